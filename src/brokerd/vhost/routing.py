"""Where a message goes: the checks of basic.publish, then the walk over the exchanges, with alternate exchanges.

    resolve    a client's publish: permission, internal exchange, properties that are refused, CC and BCC,
               direct reply-to; in RabbitMQ's order
    resolve_again    the same, for the next publishes of the data plane
    find       a message that the broker itself sends: a dead letter, or one that was delayed; no permission is asked
    route      the walk alone

``resolve`` and ``find`` return a plane.Answer: the queues, and the features that take part when the message is stored.
The data plane remembers the answer to a publish where it depends on nothing but exchange, routing key and the headers
that bindings ask for, so most messages never come here.  Those that come should cost little: properties are decoded
only when one that matters may be there.  Knows nothing of queues' rules, nor of channels.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from brokerd import plane
from brokerd.arguments import EXPIRY_MS_MAX
from brokerd.errors import AccessRefused, AMQPError, PreconditionFailed
from brokerd.exchanges import Exchange, Intercepted, Intercepting, LazyProperties, Route
from brokerd.exchanges import route as walk
from brokerd.exchanges.arguments import alternate_exchange
from brokerd.exchanges.terms import char_list
from brokerd.wire.properties import Properties, decode_header, encode_header
from brokerd.wire.values import type_name

if TYPE_CHECKING:
    from brokerd.vhost.access import Access
    from brokerd.vhost.vhost import VHost

REPLY_TO = ("amq.rabbitmq.reply-to", "amq.direct.reply-to")  # RabbitMQ's name, LavinMQ's
REPLY_PREFIX = "amq.rabbitmq.reply-to."
KNOWN_MAX = 1024  # of ``resolve_again``, for each user of a vhost
IMPERSONATOR = "impersonator"  # users with this tag may send any user-id

# Bits of the property flags, header[12:14].
_HEADERS = 0x2000
_REPLY_TO = 0x0200
_EXPIRATION = 0x0100
_USER_ID = 0x0010
_REPLY_TO_OCTETS = (b"\x15amq.rabbitmq.reply-to", b"\x13amq.direct.reply-to")  # as short strings
_REQUEST_FLAGS = _HEADERS | _REPLY_TO | _EXPIRATION | _USER_ID  # of a request: _REPLY_TO alone
_NO_PROPERTIES = b"\0\x3c" + bytes(12)
_CC_OCTETS, _BCC_OCTETS = b"\x02CC", b"\x03BCC"
_PROPERTIES_AT = 12  # in a header's payload
_INTEGER = re.compile(r"[+-]?[0-9]+")
_TEXT = ("utf-8", "surrogateescape")


def resolve(
    access: "Access", exchange: bytes, routing_key: bytes, header: bytes, channel: "plane.Channel | None" = None, *,
    for_plane: bool = False,
) -> plane.Answer:
    """Where a publish goes: what plane.Routes asks for (see plane/__init__.pyi).

    ``header`` is the payload of its content header.  ``for_plane``: the data plane stores the message, and looks for
    duplicates where it can.  Raises AccessRefused, NotFound; PreconditionFailed for impossible properties; SyntaxError_
    for octets that cannot be decoded.
    """
    publish = _Publish(access, exchange.decode(*_TEXT), routing_key.decode(*_TEXT), header)
    publish.check_permission()
    publish.check_properties(channel)
    if not publish.is_held_back():
        publish.follow_bindings()
        publish.find_requesters()
    publish.find_duplicates(for_plane=for_plane)
    publish.show_to_firehose()
    return publish.answer()


def resolve_again(
    access: "Access", exchange: bytes, routing_key: bytes, header: bytes, channel: "plane.Channel | None" = None
) -> plane.Answer:
    """The answer of ``resolve``, sooner for a request with a direct reply-to: only the name in it is the channel's own.

    ``header`` is well formed.  Where a publish without properties goes is remembered in ``access.known`` until a change
    of permissions, exchanges, queues or bindings; None: it depends on more than exchange and routing key.
    """
    if (header[12] << 8 | header[13]) & _REQUEST_FLAGS == _REPLY_TO:
        octets = access.vhost.replies.rewrite_octets(channel, header)
        if octets is not None:
            name = (exchange, routing_key)
            if name not in access.known:
                if len(access.known) >= KNOWN_MAX:
                    access.known.clear()
                found = resolve(access, exchange, routing_key, _NO_PROPERTIES, for_plane=True)
                access.known[name] = found if found.cacheable else None
            known = access.known[name]
            if known is not None:
                return plane.Answer(known.queues, tally=known.tally, properties=octets, participants=known.participants,
                                    checks_keys=known.checks_keys, window=known.window)  # fmt: skip
    return resolve(access, exchange, routing_key, header, channel, for_plane=True)


class _Publish:
    """One publish on its way through the steps of ``resolve``.  Most messages pass each step unchanged."""

    __slots__ = (
        "_access", "_by_headers", "_cacheable", "_checked", "_checks_keys", "_decoded", "_delays", "_exchange",
        "_header", "_key", "_keys", "_octets", "_once", "_participants", "_queues", "_rewritten", "_vhost", "_window",
    )  # fmt: skip

    _queues: tuple[Any, ...]

    def __init__(self, access: "Access", exchange: str, key: str, header: bytes) -> None:
        """Raises AccessRefused, NotFound."""
        access.check_exchange("write", exchange)
        self._access = access
        self._vhost = vhost = access.vhost
        self._exchange = vhost.exchange(exchange)
        self._key = key
        self._header = header
        self._decoded: Properties | None = None
        self._participants: tuple[plane.Participant, ...] = ()
        self._cacheable = False
        self._by_headers: tuple[plane.Asked, ...] = ()
        self._delays = False  # the message waits, as others with a plain delay do
        self._once = False  # Routes must not remember the answer, even if the bindings would allow it
        self._keys: plane.Keys | None = None  # that its records carry
        self._checks_keys = False  # the data plane looks for duplicates
        self._window: plane.ExchangeWindow | None = None  # ... in this one as well
        self._rewritten: Properties | None = None  # stored in place of its own properties
        self._octets: bytes | None = None  # the same, as they are on the wire

    def properties(self) -> Properties:
        """The message's properties, decoded at the first call."""
        if self._decoded is None:
            _, self._decoded = decode_header(self._header)
        return self._decoded

    def check_permission(self) -> None:
        """Check that the user may publish to the exchange with this routing key."""
        exchange = self._exchange
        if exchange.internal:
            vhost = self._vhost.name
            raise AccessRefused(f"cannot publish to internal exchange '{exchange.name}' in vhost '{vhost}'")
        self._access.check_topic("write", exchange, self._key)

    def check_properties(self, channel: "plane.Channel | None") -> None:
        """Check the properties.  A request gets its requester's name as reply-to."""
        self._checked: _Checked | _NothingToCheck = _NOTHING_TO_CHECK
        if _matters(self._header):
            self._checked = _Checked(self._access, self.properties(), channel)
            self._rewritten = self._checked.rewritten
            for key in self._checked.further_keys:
                self._access.check_topic("write", self._exchange, key)

    def is_held_back(self) -> bool:
        """Whether the exchange delays the message.  It keeps its BCC, which counts when the message is due."""
        exchange = self._exchange
        if exchange.intercepts is None:
            return False
        intercepted = exchange.intercept(self._key, self.properties)
        if intercepted is None:
            return False
        self._queues, self._octets = intercepted
        if self._octets is None and plane.plain_due(self._header[_PROPERTIES_AT:], 0):
            self._by_headers = (exchange.intercepts.asked,)
            self._delays = True
        return True

    def follow_bindings(self) -> None:
        """The queues that exchanges and their alternates lead to, by the routing key and those of CC and BCC.

        The message loses its BCC.  Exchanges on the way may remember the message.
        """
        exchange, checked = self._exchange, self._checked
        self._rewritten = checked.without_bcc() or self._rewritten
        self._queues, self._cacheable, with_history, self._by_headers = route(
            self._vhost, exchange, self._key, self.properties, further_keys=checked.further_keys
        )
        self._once = not checked.cacheable
        if exchange.intercepts is not None:
            self._remember_without(exchange.intercepts)
        if with_history:
            self._participants = (Histories(with_history),)

    def _remember_without(self, intercepts: Intercepting) -> None:
        """Let the answer hold for messages that, like this one, have none of the headers that make the exchange take
        a message for itself."""
        headers = self.properties().headers or {}
        if (self._cacheable or self._by_headers) and not any(name in headers for name in intercepts.names):
            self._by_headers = (intercepts.asked, *self._by_headers)
        else:
            self._once = True
        self._cacheable = False

    def find_requesters(self) -> None:
        """Add the clients that wait for a direct reply under one of the routing keys.  Routes may remember this answer:
        a client that is gone by the next message takes no part in it, and its name does not come again."""
        if self._exchange.name:
            return
        for key in (self._key, *self._checked.further_keys):
            if key.startswith(REPLY_PREFIX):
                requester = self._vhost.replies.requester(key)
                if requester is not None:
                    self._participants += (requester,)
                else:
                    self._once = True

    def find_duplicates(self, *, for_plane: bool) -> None:
        """Add the check for duplicates if the exchange or a queue has a deduplication rule.  It comes before all other
        participants, because a duplicate goes nowhere.  ``for_plane``: the data plane checks where it can, if no other
        feature takes part."""
        vhost, queues = self._vhost, self._queues
        asked = vhost.duplicates.asks(self._exchange)
        if not asked:
            for queue in queues:
                if queue.deduplication is not None:
                    asked = True
        if asked and for_plane and not self._participants and not vhost.firehose.on \
                and vhost.duplicates.is_for_plane(self._exchange, queues, self._header[_PROPERTIES_AT:]):
            self._checks_keys = True
            self._window = vhost.duplicates.window_of(self._exchange)
        elif asked:
            self._once = True
            taken = bool(self._participants)
            check = vhost.duplicates.check(self._exchange, queues, self.properties, routing_key=self._key,
                                           taken=taken)  # fmt: skip
            if check is not None:
                self._participants = (check, *self._participants)
                self._keys = check.keys

    def show_to_firehose(self) -> None:
        """Add the firehose last, because the participants before it may change where the message goes."""
        firehose = self._vhost.firehose
        if firehose.on:
            self._once = True
            self._participants += (firehose.participant(),)

    def answer(self) -> plane.Answer:
        """The outcome of all steps."""
        octets = self._octets
        if octets is None and self._rewritten is not None:
            octets = encode_header(0, self._rewritten)[_PROPERTIES_AT:]
        cacheable, by_headers = (False, ()) if self._once else (self._cacheable, self._by_headers)
        decided_by = None
        if by_headers and not self._participants and not self._checks_keys:
            decided_by = self._exchange.decides
        return plane.Answer(self._queues, tally=self._exchange.tally, cacheable=cacheable, properties=octets,
                            participants=self._participants, keys=self._keys, by_headers=by_headers,
                            delays=self._delays, checks_keys=self._checks_keys, window=self._window,
                            decided_by=decided_by)  # fmt: skip


def find(
    vhost: "VHost", exchange: Exchange, keys: tuple[str, ...], properties: LazyProperties, *, intercept: bool = True
) -> plane.Answer:
    """Where a message that the broker itself sends goes from ``exchange``: a dead letter, or one that was delayed.

    ``keys``: the routing key and those of CC and BCC.  With ``intercept`` a delayed exchange may delay the message
    again.  It is stored with its properties as they are, because a dead letter has no expiration.
    """
    if intercept and exchange.intercepts:
        intercepted: Intercepted | None
        try:
            intercepted = exchange.intercept(keys[0], properties)
        except AMQPError:  # No client is there to be told, so the message goes on without a delay.
            intercepted = None
        if intercepted is not None:
            return plane.Answer(intercepted.queues)
    found = route(vhost, exchange, keys[0], properties, further_keys=keys[1:])
    return plane.Answer(found.queues, participants=(Histories(found.with_history),) if found.with_history else ())


def route(
    vhost: "VHost", exchange: Exchange, routing_key: str, properties: LazyProperties, *,
    further_keys: Sequence[str] = (),
) -> Route:
    """The queues a message goes to from ``exchange`` on, alternate exchanges included.  Checks no permission.

    ``further_keys``: what CC and BCC add.  ``properties`` is called when an exchange on the way reads them; it may
    raise.  After storing the message the caller calls remember() of each exchange in ``with_history``.
    """
    return walk(exchange, routing_key, properties, further_keys=further_keys, alternate=partial(alternate_of, vhost))


def alternate_of(vhost: "VHost", exchange: Exchange) -> Exchange | None:
    """The exchange that gets what ``exchange`` has no destination for: by its arguments, else by policy.

    None where no exchange has that name: then the message is lost, as in RabbitMQ.
    """
    name = alternate_exchange(exchange.arguments)
    if name is None and exchange.name:
        name = exchange.effective.definition.get("alternate-exchange")
    return vhost.exchanges.get(name) if isinstance(name, str) else None


def give_history(vhost: "VHost", exchange: Exchange, destination: Any) -> Iterator[None]:
    """Store the exchange's recent messages in a destination that is about to be bound: in the queue, or in the queues
    that the exchange leads to.  At each yield others may have a turn.

    What the exchange routes meanwhile follows, so the destination has all in order when it is bound at the end.
    """
    messages = exchange.follow()
    try:
        while messages and _is_there(vhost, destination):
            message = messages.popleft()
            queues: tuple[Any, ...] = (destination,)
            if isinstance(destination, Exchange):
                decoded = _Decoded(_header_of(message.properties))
                queues = route(vhost, destination, message.routing_key.decode(*_TEXT), decoded).queues
            if queues:
                vhost.core.put(queues, message.exchange, message.routing_key, message.properties, message.body)
            yield
    finally:
        exchange.unfollow(messages)


def _is_there(vhost: "VHost", destination: Any) -> bool:
    things: dict[str, Any] = vhost.exchanges if isinstance(destination, Exchange) else vhost.queues
    return things.get(destination.name) is destination


class Histories:
    """Exchanges with a history, which a message passes: they take part in its publish (plane.Participant).

    A mandatory message that only these exchanges have is returned, because no queue has it.
    """

    __slots__ = ("_exchanges",)

    counts_as_routed = False
    refuses = False

    def __init__(self, exchanges: tuple[Exchange, ...]) -> None:
        self._exchanges = exchanges

    def before_storing(self, queues: tuple[Any, ...]) -> tuple[Any, ...]:
        """Change nothing: the exchanges remember the message wherever it goes."""
        return queues

    def after_storing(self, message: plane.Message, channel: object, stored: tuple[Any, ...]) -> None:
        """Add the message to each history."""
        for exchange in self._exchanges:
            exchange.remember(message)


def check_expiration(expiration: str) -> None:
    """Raise PreconditionFailed unless the text is a number of milliseconds up to ten years (RabbitMQ's texts)."""
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
    """The properties in the payload of a content header, decoded at the first call."""

    __slots__ = ("_header", "_properties")

    def __init__(self, header: bytes) -> None:
        self._header = header
        self._properties: Properties | None = None

    def __call__(self) -> Properties:
        if self._properties is None:
            _, self._properties = decode_header(self._header)
        return self._properties


def _matters(header: bytes) -> bool:
    """Whether a property that is checked, or changes the route, may be there.  Cheap; a no is always right."""
    flags = header[12] << 8 | header[13] if len(header) >= 14 else 0
    if flags & (_EXPIRATION | _USER_ID):
        return True
    if flags & _REPLY_TO and any(octets in header for octets in _REPLY_TO_OCTETS):
        return True
    return bool(flags & _HEADERS) and (_CC_OCTETS in header or _BCC_OCTETS in header)


class _Checked:
    """The properties of one message that decide about its way.  Raises PreconditionFailed, in RabbitMQ's order.

    ``rewritten``: the properties, if their reply-to was rewritten; None: the properties are as they came.
    """

    __slots__ = ("_properties", "cacheable", "further_keys", "rewritten")

    def __init__(self, access: "Access", properties: Properties, channel: "plane.Channel | None") -> None:
        self.rewritten: Properties | None = None
        if properties.reply_to in REPLY_TO and channel is not None:
            self.rewritten = properties = access.vhost.replies.rewrite(channel, properties)
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
        """The properties without their BCC; None if they have no BCC."""
        headers = self._properties.headers
        if not headers or "BCC" not in headers:
            return None
        self._properties.headers = {name: value for name, value in headers.items() if name != "BCC"}
        return self._properties


class _NothingToCheck:
    """The same for a message that has none of these properties."""

    __slots__ = ()

    rewritten = None
    further_keys = ()
    cacheable = True

    def without_bcc(self) -> None:
        return None


_NOTHING_TO_CHECK = _NothingToCheck()


def _keys_in(headers: dict[str, Any], name: str) -> list[str]:
    """The routing keys in CC or BCC.  Items that are not texts are ignored (RabbitMQ)."""
    if name not in headers:
        return []
    value = headers[name]
    if not isinstance(value, list):
        raise PreconditionFailed(f'invalid message: {{unacceptable_type_in_header,"{name}",{type_name(value)}}}')
    return [key for key in value if isinstance(key, str)]


def _header_of(octets: bytes) -> bytes:
    """The payload of a content header with these property flags and list."""
    return b"\0\x3c" + bytes(_PROPERTIES_AT - 2) + octets
