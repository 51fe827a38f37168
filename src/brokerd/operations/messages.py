"""Operations on messages: publish one, look at those of a queue, take, delete, copy and move them.

Messages are looked at a few at a time, in turns with other work of the loop.  Their payload is text where it is UTF-8,
else base64, as in RabbitMQ's management API.
"""

from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from brokerd import plane
from brokerd.operations import OperationError
from brokerd.operations.changing import OPERATOR, Lasting, door
from brokerd.operations.jobs import IN_THREAD, ON_LOOP, Pace, Steps, Wait, encoded
from brokerd.operations.lists import find_vhost
from brokerd.operations.plain import plain
from brokerd.operations.transfer import Change, Taken, forget, read_undo
from brokerd.wire.properties import FIELDS, Properties, decode_header, encode_header

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.rows import Who
    from brokerd.queues.queue import Queue
    from brokerd.vhost.access import Access
    from brokerd.vhost.vhost import VHost

BROWSED_AT_ONCE = 16
LOOK_OCTETS = 256 << 10  # of messages that one look copies, where many are read
LOOK_MOST = 256
_HEAD = b"\0\x3c" + bytes(10)  # of a content header, before the property flags
_TEXT = ("utf-8", "surrogateescape")
PROPERTIES = tuple(name.replace("-", "_") for name, _ in FIELDS)
SHORT = frozenset({name.replace("-", "_") for name, domain in FIELDS if domain == "shortstr"})


# --- publish


def publish(node: "Node", who: "Who", request: Any) -> Lasting:
    """The job that publishes a message, and answers when it is on disk.  Raises OperationError."""
    vhost = find_vhost(node, request.vhost)
    access = door(node, who, vhost)
    body = _body(request.payload, request.payload_encoding)
    header = encode_header(len(body), _properties(dict(request.properties or {})))
    name = "" if request.exchange == "amq.default" else request.exchange
    exchange, key = name.encode(*_TEXT), request.routing_key.encode(*_TEXT)

    def steps() -> Steps:
        if node.core.blocked:
            raise OperationError(f"the broker takes no messages now: {node.alarm_reason}", 409)
        answer = access.resolve(exchange, key, header)
        properties = answer.properties or header[12:]
        answer.take_body(body)
        queues = answer.before_storing() or ()
        if answer.refuses:
            raise OperationError(f"exchange '{name}' in vhost '{vhost.name}' refuses the message: a duplicate", 409)
        stored = node.core.put(queues, exchange, key, properties, body, sync=True, keys=answer.keys) if queues else ()
        answer.after_storing(plane.Message(exchange, key, properties, body), None, stored)
        node.core.turn()
        yield Wait(partial(_wait, node, vhost))
        return {"routed": bool(stored) or answer.counts_as_routed, "queues": [queue.name for queue in stored]}

    return Lasting(node, steps())


def _wait(node: "Node", vhost: "VHost", go_on: Callable[[], object]) -> None:
    node.commit.wait(go_on, vhost.log)


def _body(payload: str, encoding: str) -> bytes:
    if encoding == "string":
        return payload.encode(*_TEXT)
    try:
        return b64decode(payload, validate=True)
    except (Error, ValueError) as error:
        raise OperationError(f"payload is not base64: {error}", 400) from None


def _properties(table: dict[str, Any]) -> Properties:
    """Properties of their names.  Raises OperationError (400)."""
    for name, value in table.items():
        if name not in PROPERTIES:
            from brokerd.errors import did_you_mean

            raise OperationError(f"properties: unknown property '{name}'{did_you_mean(name, PROPERTIES)}", 400)
        good = isinstance(value, str) if name in SHORT else isinstance(value, dict if name == "headers" else int)
        if not good or isinstance(value, bool):
            kind = "a text" if name in SHORT else "an object" if name == "headers" else "a whole number"
            raise OperationError(f"properties: {name} must be {kind}", 400)
    properties = Properties(**table)
    try:
        encode_header(0, properties)
    except (ValueError, TypeError) as error:
        raise OperationError(f"properties: {error}", 400) from None
    return properties


# --- look


def shown(queue: "Queue", row: tuple[Any, ...], encoding: str, truncate: int) -> dict[str, Any]:
    """A message as people and programs see it; ``message.MessageRow`` is its shape."""
    seq, ts, redelivered, exchange, routing_key, properties, body = row
    payload, kind = payload_of(body[:truncate] if truncate else body, encoding)
    return {
        "seq": seq, "published_at": ts, "redelivered": redelivered, "exchange": exchange.decode(*_TEXT),
        "routing_key": routing_key.decode(*_TEXT),
        "properties": properties_of(properties),
        "group": group_of(queue, routing_key, properties),
        "payload": payload, "payload_encoding": kind, "payload_bytes": len(body), "message_count": queue.ready,
    }  # fmt: skip


def group_of(queue: "Queue", routing_key: bytes, properties: bytes) -> str | None:
    """The message group of a message; None: it has none, or the queue has none."""
    key = queue.groups.key_of(routing_key, properties) if queue.groups is not None else None
    return None if key is None else key.decode(*_TEXT)


def _read(properties: bytes) -> Properties:
    return decode_header(_HEAD + properties)[1]


def properties_of(properties: bytes) -> dict[str, Any]:
    """The properties that are there, by name."""
    return {name: plain(value) for name, value in _read(properties).present().items()}


def payload_of(body: bytes, encoding: str) -> tuple[str, str]:
    """The payload as JSON can hold it, and how it is written: string or base64."""
    if encoding == "auto":
        try:
            return body.decode(), "string"
        except UnicodeDecodeError:
            pass
    return b64encode(body).decode(), "base64"


def walk(queue: "Queue", from_seq: int, most: int) -> Iterator[tuple[Any, ...] | None]:
    """The ready messages from that number on, in order; None where others may have their turn.

    Where the queue has priorities it is the order in which they would be delivered, and one look takes all.
    """
    if queue.max_priority:
        yield from queue.browse(from_seq, most)
        return
    at = from_seq
    while most > 0 and not queue.deleted:
        rows = queue.browse(at, min(BROWSED_AT_ONCE, most))
        if not rows:
            return
        yield from rows
        yield None
        at, most = rows[-1][0] + 1, most - len(rows)


def next_look(rows: list[tuple[Any, ...]]) -> int:
    """How many messages the next look takes, if they are as large as these."""
    octets = sum([128 + len(row[5]) + len(row[6]) for row in rows])
    return min(max(LOOK_OCTETS * len(rows) // octets, 1), LOOK_MOST)


def matcher(request: Any) -> Callable[[tuple[Any, ...]], bool]:
    """A function that says whether a message meets the filters."""
    tests: list[Callable[[tuple[Any, ...]], bool]] = []
    if request.routing_key:
        tests.append(lambda row: request.routing_key == row[4].decode(*_TEXT))
    if request.exchange:
        wanted = "" if request.exchange == "amq.default" else request.exchange
        tests.append(lambda row: wanted == row[3].decode(*_TEXT))
    if request.since:
        tests.append(lambda row: row[1] >= request.since * 1_000_000)
    if request.until:
        tests.append(lambda row: row[1] < request.until * 1_000_000)
    if request.contains:
        octets = request.contains.encode(*_TEXT)
        tests.append(lambda row: octets in row[6])
    properties = dict(request.properties or {})
    if properties:
        headers = properties.pop("headers", {})
        _properties({**properties, "headers": headers})
        tests.append(lambda row: _has(_read(row[5]), properties, headers))
    return lambda row: all(test(row) for test in tests)


def _has(properties: Properties, wanted: dict[str, Any], headers: dict[str, Any]) -> bool:
    there = properties.headers or {}
    return (all(getattr(properties, name) == value for name, value in wanted.items())
            and all(name in there and plain(there[name]) == value for name, value in headers.items()))  # fmt: skip


def queue_of(node: "Node", who: "Who", request: Any) -> "tuple[VHost, Access, Queue]":
    """The queue that ``who`` may read.  Raises OperationError, AMQPError."""
    vhost = find_vhost(node, request.vhost)
    access = door(node, who, vhost)
    return vhost, access, access.queue_to_use(request.queue, "read", OPERATOR)


def search(queue: "Queue", request: Any, matches: Callable[[tuple[Any, ...]], bool]) -> Steps:
    """The rows that match, at most ``request.count``, looked for among ``request.examine``; and the next number."""
    found = list[tuple[Any, ...]]()

    def take(row: tuple[Any, ...]) -> bool:
        if not matches(row):
            return False
        found.append(row)
        return True

    at = yield from look_for(queue, request, take)
    return found, at


def look_for(queue: "Queue", request: Any, take: Callable[[tuple[Any, ...]], bool]) -> Steps:
    """Look at messages until ``take`` has taken ``request.count`` of them; returns the number to go on from."""
    pace, taken, at = Pace(), 0, request.from_seq
    for row in walk(queue, request.from_seq, request.examine):
        if row is not None:
            at = row[0] + 1
            taken += take(row)
            if taken == request.count:
                break
        if pace.is_over():
            yield ON_LOOP
    return at


class Browsing:
    """The job that looks at messages, and leaves them where they are."""

    def __init__(self, node: "Node", who: "Who", request: Any) -> None:
        self._request = request
        _, _, self._queue = queue_of(node, who, request)
        self._matches = matcher(request)

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        request, pace = self._request, Pace()
        found, at = yield from search(self._queue, request, self._matches)
        items = []
        for row in found:
            items.append(shown(self._queue, row, request.encoding, request.truncate))
            if pace.is_over():
                yield ON_LOOP
        return (yield from encoded({"items": items, "next_seq": at}))

    def clean_up(self) -> None:
        """As ``jobs.Job``."""


# --- take, delete, copy, move


def check_gives(queue: Any) -> None:
    """Refuse to take messages out of a stream."""
    if queue.stream is not None:
        raise OperationError(f"{queue}: messages of a stream stay there until retention removes them", 400)


def get(node: "Node", who: "Who", request: Any) -> Lasting:
    """The job that takes the first messages; with a requeuing ``ackmode`` they stay where they are."""
    vhost, _, queue = queue_of(node, who, request)
    if not request.ackmode.endswith("true"):
        check_gives(queue)

    def steps() -> Steps:
        pace, items = Pace(), list[dict[str, Any]]()
        for row in walk(queue, 1, request.count):
            if row is None:
                if pace.is_over():
                    yield ON_LOOP
                continue
            taken = row if request.ackmode.endswith("true") else queue.remove(row[0])
            if taken is not None:
                items.append(shown(queue, row, request.encoding, request.truncate))
        node.core.turn()
        if not request.ackmode.endswith("true"):
            yield Wait(partial(_wait, node, vhost))
        return {"items": items}

    return Lasting(node, steps())


def delete(node: "Node", who: "Who", request: Any) -> Lasting:
    """The job that deletes chosen messages, all at once."""
    vhost, _, queue = queue_of(node, who, request)
    check_gives(queue)

    def add(change: "Change", row: "plane.Row") -> bool:
        return change.add(Taken(queue, row[0]), row[3:])

    return Lasting(node, change_chosen(node, vhost, queue, request, add))


def transfer(node: "Node", who: "Who", request: Any, *, move: bool) -> Lasting:
    """The job that puts chosen messages into another queue, in their order and all at once, and with ``move`` takes
    them out of theirs."""
    vhost, access, queue = queue_of(node, who, request)
    if move:
        check_gives(queue)
    access.check_exchange("write", "")
    target = access.vhost.queue(request.to)
    target.check_access(OPERATOR)
    target.check_in_service()
    if target is queue:
        raise OperationError(f"{queue}: its own messages cannot be put into it again", 400)

    def add(change: "Change", row: "plane.Row") -> bool:
        return change.add(Taken(queue, row[0]) if move else None, row[3:], target, row[3:])

    return Lasting(node, change_chosen(node, vhost, queue, request, add))


def change_chosen(
    node: "Node", vhost: "VHost", queue: "Queue", request: Any, add: "Callable[[Change, plane.Row], bool]"
) -> Steps:
    """Do with the chosen messages what ``add`` says, all at once; with ``dry_run`` only find them."""
    matches = chosen(request)
    if request.dry_run:
        found, _ = yield from search(queue, request, matches)
        return {"messages": len(found), "seqs": [row[0] for row in found], "undo": 0}
    change, seqs = Change(node, vhost), list[int]()

    def take(row: "plane.Row") -> bool:
        if not matches(row) or not add(change, row):
            return False
        seqs.append(row[0])
        return True

    try:
        yield from look_for(queue, request, take)
    except BaseException:
        change.abandon()
        raise
    outcome = yield from change.carry_out()
    seqs = [seqs[at] for at in outcome.done]
    return {"messages": len(seqs), "seqs": seqs, "undo": outcome.undo}


def undo(node: "Node", who: "Who", request: Any) -> Lasting:
    """The job that undoes a change of messages."""
    vhost = find_vhost(node, request.vhost)
    access = door(node, who, vhost)

    def may(name: str) -> None:
        access.queue_to_use(name, "read", OPERATOR)
        access.check_exchange("write", "")

    def steps() -> Steps:
        yield IN_THREAD  # It may have 50,000 messages.
        back = read_undo(node, vhost, request.number)
        yield ON_LOOP
        for name in sorted(back.queues & set(vhost.queues)):
            may(name)
        change = Change(node, vhost, can_be_undone=False)
        try:
            added, left = yield from back.add_to(change)
        except BaseException:
            change.abandon()
            raise
        if request.dry_run:
            change.abandon()
            return {"messages": added, "left": left}
        outcome = yield from change.carry_out()
        forget(node, vhost, request.number)
        return {"messages": len(outcome.done), "left": left + added - len(outcome.done)}

    return Lasting(node, steps())


def chosen(request: Any) -> Callable[[tuple[Any, ...]], bool]:
    """A function that says whether a message is chosen: by its number, and by ``matcher``."""
    matches = matcher(request)
    if not request.seqs:
        return matches
    from brokerd.operations.replay import read_numbers

    numbers = frozenset(read_numbers(request.seqs, request.count + 1))
    return lambda row: row[0] in numbers and matches(row)
