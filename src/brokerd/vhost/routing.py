"""Where a message goes: the checks of basic.publish, then the walk over the exchanges, with alternate exchanges.

    resolve    a client's publish: permission, internal exchange, properties that are refused, CC and BCC,
               direct reply-to; in RabbitMQ's order
    route      the walk alone, for messages that no client is publishing just now (dead letters, delayed ones)

The answer to a publish is remembered by the data plane where it depends on nothing but exchange and
routing key.  Most messages are therefore never seen here, and those that are should cost little: properties are
decoded only when one of those that matter is there.  Knows nothing of queues' rules, nor of channels.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from brokerd.arguments import EXPIRY_MS_MAX
from brokerd.errors import AccessRefused, PreconditionFailed
from brokerd.exchanges import Exchange, Handler, Lazily, Route
from brokerd.exchanges import route as walk
from brokerd.exchanges.arguments import alternate_exchange
from brokerd.exchanges.terms import char_list
from brokerd.wire.properties import Properties, decode_header, encode_header
from brokerd.wire.values import type_name

if TYPE_CHECKING:
    from brokerd.plane import Channel
    from brokerd.vhost.access import Access
    from brokerd.vhost.vhost import VHost

REPLY_TO = ("amq.rabbitmq.reply-to", "amq.direct.reply-to")  # RabbitMQ's name, LavinMQ's
REPLY_PREFIX = "amq.rabbitmq.reply-to."
IMPERSONATOR = "impersonator"  # users with this tag may send any user-id

# Bits of the property flags, header[12:14].
_HEADERS = 0x2000
_REPLY_TO = 0x0200
_EXPIRATION = 0x0100
_USER_ID = 0x0010
_REPLY_TO_OCTETS = (b"\x15amq.rabbitmq.reply-to", b"\x13amq.direct.reply-to")  # as short strings
_CC_OCTETS, _BCC_OCTETS = b"\x02CC", b"\x03BCC"
_PROPERTIES_AT = 12  # in a header's payload
_INTEGER = re.compile(r"[+-]?[0-9]+")


def resolve(
    access: "Access", exchange_octets: bytes, key_octets: bytes, header: bytes, channel: "Channel | None" = None
) -> tuple[Any, ...]:
    """Where a publish goes: what plane.Routes asks for (see plane/__init__.pyi).

    ``header`` is the payload of its content header.  Raises AccessRefused, NotFound; PreconditionFailed for
    properties that cannot be; SyntaxError_ for octets that are none.
    """
    vhost = access.vhost
    name = exchange_octets.decode("utf-8", "surrogateescape")
    access.check_exchange("write", name)
    exchange = vhost.exchange(name)
    if exchange.internal:
        raise AccessRefused(f"cannot publish to internal exchange '{name}' in vhost '{vhost.name}'")
    key = key_octets.decode("utf-8", "surrogateescape")
    check_topic(access, exchange, key)
    properties: Lazily = _Decoded(header)
    checked = _Checked(access, properties(), channel) if _matters(header) else _NOTHING_TO_CHECK
    changed, octets = checked.rewritten, None
    if vhost.finds_duplicates(exchange):
        dropped = vhost.duplicates.known_to_exchange(exchange, properties)
        if dropped is not None:
            return (), exchange.tally, False, None, dropped
    intercepted = exchange.intercept(key, properties) if exchange.intercepts else None
    if intercepted is not None:  # It is stored with its BCC, which counts when it is routed later.
        queues, handler = intercepted[:2]
        octets = intercepted[2] if len(intercepted) > 2 else None
        cacheable = False
    else:
        changed = checked.without_bcc() or changed
        found = route(vhost, exchange, key, properties, further_keys=checked.further_keys)
        replying, handler = _handler(vhost, exchange, (key, *checked.further_keys), found)
        cacheable = found.cacheable and checked.cacheable and not replying and not exchange.intercepts
        queues = found.queues
    if vhost.finds_duplicates(exchange) or any(queue.deduplication is not None for queue in queues):
        cacheable = False
        if vhost.doors is not None:
            queues, handler = vhost.duplicates.sift(exchange, queues, properties, handler)
    if vhost.trace is not None and vhost.trace.on:
        handler, cacheable = vhost.trace.handler(queues, handler), False
    if octets is None and changed is not None:
        octets = encode_header(0, changed)[_PROPERTIES_AT:]
    if octets is None and handler is None:
        return queues, exchange.tally, cacheable
    return queues, exchange.tally, cacheable, octets, handler


def route(
    vhost: "VHost", exchange: Exchange, routing_key: str, properties: Lazily, *, further_keys: Sequence[str] = ()
) -> Route:
    """The queues a message goes to from ``exchange`` on, alternate exchanges included; no permission is asked.

    ``further_keys``: what CC and BCC add.  ``properties`` is called when an exchange on the way reads them; it may
    raise.  Whoever stores the message calls keep() of the answer's keepers afterwards.
    """
    return walk(exchange, routing_key, properties, further_keys=further_keys, alternate=partial(alternate_of, vhost))


def alternate_of(vhost: "VHost", exchange: Exchange) -> Exchange | None:
    """The exchange that gets what ``exchange`` has no destination for: by its arguments, else by policy.

    None where there is none of that name: the message is lost, as in RabbitMQ.
    """
    name = alternate_exchange(exchange.arguments)
    if name is None and vhost.policies and exchange.name:
        for policy in vhost.policies.matching(exchange.name, "exchanges")[:1]:
            name = policy.definition.get("alternate-exchange")
    return vhost.exchanges.get(name) if isinstance(name, str) else None


def give_history(vhost: "VHost", exchange: Exchange, destination: Any) -> None:
    """Store what the exchange has kept in what is newly bound to it, a queue or what an exchange leads to."""
    for message in tuple(exchange.kept()):
        source, key, properties, body = message
        queues: tuple[Any, ...] = (destination,)
        if isinstance(destination, Exchange):
            decoded = _Decoded(_header_of(properties))
            queues = route(vhost, destination, key.decode("utf-8", "surrogateescape"), decoded).queues
        if queues:
            vhost.core.put(queues, source, key, properties, body)


def check_topic(access: "Access", exchange: Exchange, routing_key: str) -> None:
    """Whether the user may publish with this key to a topic exchange: there are no topic permissions, so always."""


def check_expiration(expiration: str) -> None:
    """Raise PreconditionFailed for what is no number of milliseconds up to ten years (RabbitMQ's texts)."""
    number = _INTEGER.match(expiration)
    if number is None:
        fault = "no_integer"
    elif number.end() < len(expiration):
        fault = f"{{leftover_string,{char_list(expiration[number.end() :])}}}"
    elif int(expiration) < 0:
        fault = f"{{value_negative,{int(expiration)}}}"
    elif int(expiration) > EXPIRY_MS_MAX:
        fault = f"{{value_too_large,{int(expiration)}}}"
    else:
        return
    raise PreconditionFailed(f"invalid expiration '{expiration}': {fault}")


class _Decoded:
    """The properties in the payload of a content header, decoded when they are first asked for."""

    __slots__ = ("_header", "_properties")

    def __init__(self, header: bytes) -> None:
        self._header = header
        self._properties: Properties | None = None

    def __call__(self) -> Properties:
        if self._properties is None:
            _, self._properties = decode_header(self._header)
        return self._properties


def _matters(header: bytes) -> bool:
    """Whether a property may be there that is checked or changes the route.  Cheap, and never wrongly no."""
    flags = header[12] << 8 | header[13] if len(header) >= 14 else 0
    if flags & (_EXPIRATION | _USER_ID):
        return True
    if flags & _REPLY_TO and any(octets in header for octets in _REPLY_TO_OCTETS):
        return True
    return bool(flags & _HEADERS) and (_CC_OCTETS in header or _BCC_OCTETS in header)


class _Checked:
    """What the properties of one message say of its way.  Raises PreconditionFailed, in RabbitMQ's order.

    ``rewritten``: the properties, if their reply-to was; None: as they came.
    """

    __slots__ = ("_properties", "cacheable", "further_keys", "rewritten")

    def __init__(self, access: "Access", properties: Properties, channel: "Channel | None") -> None:
        self.rewritten: Properties | None = None
        if properties.reply_to in REPLY_TO and channel is not None:
            replies = access.vhost.replies
            if replies is None:
                raise PreconditionFailed("fast reply consumer does not exist")
            self.rewritten = properties = replies.rewrite(channel, properties)
        if properties.user_id not in (None, access.user) and not access.has_tag(IMPERSONATOR):
            raise PreconditionFailed(
                f"user_id property set to '{properties.user_id}' but authenticated user was '{access.user}'"
            )
        if properties.expiration is not None:
            check_expiration(properties.expiration)
        headers = properties.headers or {}
        self._properties = properties
        self.further_keys = (*_keys_in(headers, "CC"), *_keys_in(headers, "BCC"))
        self.cacheable = properties.user_id is None and self.rewritten is None and "BCC" not in headers

    def without_bcc(self) -> Properties | None:
        """The properties without their BCC; None if there is none."""
        headers = self._properties.headers
        if not headers or "BCC" not in headers:
            return None
        self._properties.headers = {name: value for name, value in headers.items() if name != "BCC"}
        return self._properties


class _NothingToCheck:
    """The same for a message that has none of these properties."""

    rewritten = None
    further_keys = ()
    cacheable = True

    def without_bcc(self) -> None:
        return None


_NOTHING_TO_CHECK = _NothingToCheck()


def _keys_in(headers: dict[str, Any], name: str) -> list[str]:
    """The routing keys in CC or BCC; what is no text in the array is passed over (RabbitMQ)."""
    if name not in headers:
        return []
    value = headers[name]
    if not isinstance(value, list):
        raise PreconditionFailed(f'invalid message: {{unacceptable_type_in_header,"{name}",{type_name(value)}}}')
    return [key for key in value if isinstance(key, str)]


def _handler(vhost: "VHost", exchange: Exchange, keys: tuple[str, ...], found: Route) -> tuple[bool, Handler | None]:
    """Who is given the whole message besides the queues: direct replies, exchanges that keep messages.

    And whether one of the keys asks for a reply: its taker may be gone by the next message.
    """
    handlers: list[Handler] = []
    replying = False
    if not exchange.name and vhost.replies is not None:
        for key in keys:
            if key.startswith(REPLY_PREFIX):
                replying = True
                handler = vhost.replies.handler(key)
                if handler is not None:
                    handlers.append(handler)
    if found.keepers:
        handlers.append(partial(_keep, found.keepers))
    if len(handlers) < 2:
        return replying, handlers[0] if handlers else None
    return replying, partial(_each, handlers)


def _keep(
    keepers: tuple[Exchange, ...], channel: Any, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes
) -> None:
    for keeper in keepers:
        keeper.keep(exchange, routing_key, properties, body)


def _each(
    handlers: list[Handler], channel: Any, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes
) -> None:
    for handler in handlers:
        handler(channel, exchange, routing_key, properties, body)


def _header_of(octets: bytes) -> bytes:
    """The payload of a content header with these property flags and list."""
    return b"\0\x3c" + bytes(_PROPERTIES_AT - 2) + octets
