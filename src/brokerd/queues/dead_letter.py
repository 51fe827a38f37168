"""The dead letter of a message: its properties, its routing keys, and the queues to which it may not go again.

Octets in, octets out: the properties (flags and list, as stored) of the message that died give those of its
dead letter, with its history in the headers, sorted by name as RabbitMQ does::

    x-death                array of tables, the latest death first; one for each (queue, reason):
        count              long: how often it died there of that
        reason             longstr: rejected, expired, maxlen, delivery_limit
        queue              longstr
        time               timestamp, seconds: of the first of these deaths; so are
        exchange           longstr: where it was published to
        routing-keys       array of longstr: the key, then what CC says
        original-expiration   longstr, when there was one
    x-first-death-reason, -queue, -exchange    longstr, set once
    x-last-death-reason, -queue, -exchange     longstr, set at each death (RabbitMQ 4)
    x-group-id             longstr: its message group, in a queue with groups, set once; so is
    x-group-seq            long: its number there, which rises within the group

The expiration goes.  A dead-letter routing key takes the place of all keys and removes CC; without one the
message keeps its keys, CC's (and BCC's, which are removed from the headers) among them.

The history is read from the headers, so that a client which publishes a message again continues its history, as in
RabbitMQ 3.10.  Impossible parts of a history are retained where they can be, and never trusted.  An x-death of another
type starts anew.  Items that are not tables stay where they are, and a cycle with them counts as one that a client took
part in.  A count that is not a number starts at 1.  (RabbitMQ 3.10 loses the queue's process over some of these.  It
also reverses the older items at each death, against its own documentation; brokerd does not.)  Headers that cannot be
decoded at all are lost.

``x-dead-letter-exchange`` and ``x-dead-letter-routing-key`` as headers of a message (LavinMQ) take the place of the
queue's, and are removed; only with ``per_message``, since a publisher could reach exchanges that it may not write to.

Knows nothing of exchanges and queues but their names.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from brokerd.errors import SyntaxError_
from brokerd.wire.properties import Properties, decode_header, encode_header
from brokerd.wire.values import Int64, Timestamp, decode_table

REJECTED, EXPIRED, MAXLEN, DELIVERY_LIMIT = "rejected", "expired", "maxlen", "delivery_limit"
AT_LEAST_ONCE = "at-least-once"
STRATEGIES = ("at-most-once", AT_LEAST_ONCE)
COUNT_MAX = (1 << 63) - 1

NOTHING: Mapping[str, Any] = {}
EXCHANGE_HEADER = "x-dead-letter-exchange"
ROUTING_KEY_HEADER = "x-dead-letter-routing-key"
_HEAD = b"\0\x3c\0\0\0\0\0\0\0\0\0\0"  # class 60, weight 0, body size 0: what stands before the property flags
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS = 0x80, 0x40, 0x20  # bits of the first octet of the flags


class DeadLetterRule(NamedTuple):
    """Where a queue's dead messages go; ``routing_key`` None: by the keys they have."""

    exchange: str
    routing_key: str | None = None
    at_least_once: bool = False


class DeadLetter(NamedTuple):
    """A message on its way to the dead-letter exchange."""

    exchange: str
    routing_keys: tuple[str, ...]  # the first is the one it is stored with
    headers: dict[str, Any]
    properties: bytes  # flags and list


def rule_of(arguments: Mapping[str, Any]) -> DeadLetterRule | None:
    """The rule in a queue's arguments, as they are after policies; None: its dead messages are dropped.

    A queue that drops its head over a limit cannot also set dead messages aside until they are safe elsewhere.  With a
    limit, therefore, at-least-once needs ``x-overflow`` reject-publish, and is at-most-once otherwise (RabbitMQ).
    """
    exchange = arguments.get("x-dead-letter-exchange")
    if not isinstance(exchange, str):
        return None
    at_least_once = arguments.get("x-dead-letter-strategy") == AT_LEAST_ONCE
    if at_least_once and arguments.get("x-overflow", "drop-head") == "drop-head":
        at_least_once = arguments.get("x-max-length") is None and arguments.get("x-max-length-bytes") is None
    return DeadLetterRule(exchange, arguments.get("x-dead-letter-routing-key"), at_least_once)


def make_dead_letter(
    properties: bytes,
    rule: DeadLetterRule,
    *,
    queue: str,
    reason: str,
    exchange: str,
    routing_key: str,
    time_s: int,
    per_message: bool = False,
    own: Mapping[str, Any] = NOTHING,
) -> DeadLetter:
    """The dead letter of a message that died in ``queue``.

    ``properties``, ``exchange`` and ``routing_key`` are those it had there; ``time_s`` is now, seconds since the
    epoch.  ``own``: headers that tell where it stood in its queue; of an earlier queue they stay.  Raises nothing,
    even if the properties are malformed.
    """
    message = read_properties(properties)
    headers = message.headers or {}
    target, key = rule.exchange, rule.routing_key
    if per_message:
        target, key = _own_rule(headers, target, key)
    copies = keys_in(headers.get("CC"))
    keys = (key,) if key is not None else (routing_key, *copies, *keys_in(headers.pop("BCC", None)))
    entry = _entry(reason, queue, time_s, exchange, [routing_key, *copies], message.expiration)
    first = "x-death" not in headers
    headers.update({name: value for name, value in own.items() if first or name not in headers})
    _record(headers, entry)
    if key is not None:
        headers.pop("CC", None)
    headers.pop("BCC", None)
    message.headers = dict(sorted(headers.items()))
    message.expiration = None
    return DeadLetter(target, keys, message.headers, write_properties(message))


def is_cycle(headers: Mapping[str, Any], queue: str) -> bool:
    """Whether a dead letter with these headers has been in ``queue`` before and came back by itself.

    That is so when no client has rejected it since its last death there, that death included (RabbitMQ).
    """
    deaths = headers.get("x-death")
    if not isinstance(deaths, list):
        return False
    by_itself = True
    for death in deaths:
        if not isinstance(death, dict) or death.get("reason") == REJECTED:
            by_itself = False
        if isinstance(death, dict) and death.get("queue") == queue:
            return by_itself
    return False


def is_key(value: Any) -> bool:
    """Whether ``value`` can be a routing key, or any other short string."""
    return isinstance(value, str) and len(value.encode("utf-8", "surrogateescape")) <= 255


def keys_in(value: Any) -> list[str]:
    """The routing keys in CC or BCC.  Other items are ignored."""
    return [item for item in value if is_key(item)] if isinstance(value, list) else []


def read_properties(octets: bytes) -> Properties:
    """The properties in stored ``octets``, flags and list; headers that cannot be decoded are left out."""
    try:
        return decode_header(_HEAD + octets)[1]
    except SyntaxError_:
        pass
    try:  # The data plane has checked that each property is whole, but has not looked into the headers.
        at, end = headers_span(octets)
        return decode_header(_HEAD + octets[:at] + b"\0\0\0\0" + octets[end:])[1]
    except (SyntaxError_, IndexError):
        return Properties()


def write_properties(properties: Properties) -> bytes:
    """The octets that are stored of ``properties``: flags and list."""
    return encode_header(0, properties)[len(_HEAD) :]


def read_headers(octets: bytes) -> dict[str, Any]:
    """The headers that ``octets``, items of a table, hold."""
    return decode_table(len(octets).to_bytes(4) + octets)[0]


def headers_span(octets: bytes) -> tuple[int, int]:
    """Where the table of headers, with its length, starts and ends in stored properties; (0, 0): it is missing."""
    flags = octets[0]
    if not flags & _HEADERS:
        return 0, 0
    at = 2
    if flags & _CONTENT_TYPE:
        at += 1 + octets[at]
    if flags & _CONTENT_ENCODING:
        at += 1 + octets[at]
    return at, at + 4 + int.from_bytes(octets[at : at + 4])


def _own_rule(headers: dict[str, Any], exchange: str, key: str | None) -> tuple[str, str | None]:
    """Take the message's own exchange and routing key out of ``headers``, and return them; else those given."""
    own_exchange = headers.pop(EXCHANGE_HEADER, None)
    own_key = headers.pop(ROUTING_KEY_HEADER, None)
    if isinstance(own_exchange, str):
        exchange, key = own_exchange, None
    return exchange, (own_key if is_key(own_key) else key)


def _entry(
    reason: str, queue: str, time_s: int, exchange: str, keys: list[str], expiration: str | None
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "count": Int64(1),
        "reason": reason,
        "queue": queue,
        "time": Timestamp(time_s),
        "exchange": exchange,
        "routing-keys": keys,
    }
    if expiration is not None:
        entry["original-expiration"] = expiration
    return entry


def _record(headers: dict[str, Any], entry: dict[str, Any]) -> None:
    """Write a death into the headers of the message."""
    queue, reason, exchange = entry["queue"], entry["reason"], entry["exchange"]
    deaths = headers.get("x-death", _NONE)
    if isinstance(deaths, list):
        deaths = _merged(deaths)
        same = [death for death in deaths if _died(death, queue, reason)]
        others = [death for death in deaths if not _died(death, queue, reason)]
        if same:
            count = same[0].get("count")
            count = count if isinstance(count, int) and not isinstance(count, bool) else 0
            entry = {**same[0], "count": Int64(min(count + 1, COUNT_MAX))}
        headers["x-death"] = [dict(sorted(entry.items())), *others]
    else:
        headers["x-death"] = [entry]
        if deaths is _NONE:  # An x-death of another type is a lost history, so this is not the first death (RabbitMQ).
            headers["x-first-death-reason"] = reason
            headers["x-first-death-queue"] = queue
            headers["x-first-death-exchange"] = exchange
    headers["x-last-death-reason"] = reason
    headers["x-last-death-queue"] = queue
    headers["x-last-death-exchange"] = exchange


def _merged(deaths: list[Any]) -> list[Any]:
    """One item for each queue and reason: the first.  If that has no count, it gets the number of items that it stands
    for: a broker wrote one for each death once.  An x-death of one item stays as it is (RabbitMQ)."""
    if len(deaths) < 2:
        return deaths
    keys = [_key(death) for death in deaths]
    numbers = Counter(keys)
    merged = []
    for key, death in zip(keys, deaths, strict=True):
        if key is None:
            merged.append(death)
        elif numbers[key]:
            merged.append(death if "count" in death else {**death, "count": Int64(numbers[key])})
            numbers[key] = 0
    return merged


def _key(death: Any) -> tuple[str, str] | None:
    if not isinstance(death, dict):
        return None
    queue, reason = death.get("queue"), death.get("reason")
    return (queue, reason) if isinstance(queue, str) and isinstance(reason, str) else None


_NONE = object()


def _died(death: Any, queue: str, reason: str) -> bool:
    return isinstance(death, dict) and death.get("queue") == queue and death.get("reason") == reason
