"""Whether the messages of a queue were worked on in their order, judged from the queue's order journal: ``Order``.

Of the messages with one key, in the order in which they stand in the queue:

    1. none went out before an earlier one had gone out, or had expired or been dropped
    2. none was with one consumer while another one was with another consumer
    3. none was settled (acked, rejected, expired, ...) before an earlier one was

One consumer may hold several of them: it gets them in order, and may work on them in any order.  A message
that comes back and is handed out again breaks nothing, as long as no later one was settled meanwhile.  This is more
lenient than the audit ``group_fifo``, which wants each message settled before the next one goes out.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.errors import BrokerError

if TYPE_CHECKING:
    from brokerd.audit.files import QueueFiles, Triple
    from brokerd.testing.broker import Broker

FOREVER = (1 << 63) - 1  # ns
TEXT_SHOWN = 60  # characters of a body


class Message(NamedTuple):
    """A message as ``key`` may see it, and what became of it."""

    seq: int
    priority: int
    routing_key: str
    headers: dict[str, Any]
    body: bytes
    published: int  # ns since the epoch
    events: "tuple[Event, ...]" = ()


class Event(NamedTuple):
    """One event of a message: ``what`` is "delivered", "returned", "acked", ..."""

    at: tuple[int, int]  # ns since the epoch, place in the journal
    what: str
    consumer: int
    why: str
    whom: str = ""  # of a delivery: the consumer in words


class Fault(NamedTuple):
    """Two messages whose order was broken."""

    text: str
    earlier: Message
    later: Message


Key = str | Callable[[Message], Any] | None


class Order:
    """The order in the queues of one broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def assert_fifo(self, queue: str, *, key: Key = None, vhost: str | None = None) -> int:
        """Check the order of the messages of a queue, or of those with the same key.  Returns how many were judged.

        ``key``: the name of a header, or a function of a Message; messages for which it is None count for nothing.
        ``vhost``: where the queue is; None: ``Broker.vhost``.  Raises AssertionError, with the life of the two
        messages, if the order was broken or if no message has gone out; BrokerError if the journal cannot tell.
        """
        name = self._broker.vhost if vhost is None else vhost
        messages = self.messages(queue, vhost=name)
        groups: dict[Any, list[Message]] = {}
        judged = 0
        for message in messages:
            value = _value(key, message)
            if value is None:
                continue
            groups.setdefault((message.priority, value if key is not None else ""), []).append(message)
            judged += any(event.what == "delivered" for event in message.events)
        if not judged:
            whose = "" if key is None else f" of those with {_named(key)}"
            raise AssertionError(f"queue '{queue}' in vhost '{name}' has no order to judge: it has {len(messages)} "
                                 f"messages, and none{whose} has gone out")
        faults = [(value, fault) for (_, value), group in groups.items() for fault in find_faults(group)]
        if faults:
            raise AssertionError(_told(queue, name, key, faults, judged, len(groups)))
        return judged

    def messages(self, queue: str, *, vhost: str | None = None) -> list[Message]:
        """All messages that the queue has had, with what became of each, in the order of the queue.

        The broker first reads what clients have sent by now: acks have no answer that a client could wait for.
        Raises BrokerError if the journal does not know all."""
        from brokerd.audit.files import open_source  # numpy, which comes with it, takes longer than a broker's start

        name = self._broker.vhost if vhost is None else vhost
        self._broker.ask("settle")
        source = open_source(str(self._broker.data_dir))
        found = [each for each in source.queues() if (each.vhost, each.queue) == (name, queue)]
        if not found:
            raise BrokerError(f"there is no durable queue '{queue}' with messages in vhost '{name}': only those have "
                              "an order journal, and only as long as they are not deleted")
        messages = [message for triple in found[0].triples for message in _read(source, found[0], triple)]
        return sorted(messages, key=lambda message: (-message.priority, message.seq))


def find_faults(group: Iterable[Message]) -> list[Fault]:
    """The faults in the order of messages, which stand here in the order of their queue.  One fault for each message
    at most."""
    faults = []
    last_first: tuple[tuple[int, int], Message] | None = None  # the latest first delivery so far, and whose it was
    last_end: tuple[tuple[int, int], Message] | None = None
    holds: list[tuple[tuple[int, int], tuple[int, int], int, Message]] = []
    for message in group:
        end = next((event.at for event in message.events if event.what not in ("delivered", "returned")), (FOREVER, 0))
        # A message that expired or was dropped before it went out holds up no other from then on.
        first = next((event.at for event in message.events if event.what == "delivered"), end)
        if last_first is not None and first < last_first[0]:
            faults.append(Fault("went out before", last_first[1], message))
        elif last_end is not None and end < last_end[0]:
            faults.append(Fault("was settled before", last_end[1], message))
        if last_first is None or first > last_first[0]:
            last_first = first, message
        if last_end is None or end > last_end[0]:
            last_end = end, message
        holds += [(start, stop, consumer, message) for start, stop, consumer in _holds(message)]
    return faults or _shared(holds)


def _holds(message: Message) -> list[tuple[tuple[int, int], tuple[int, int], int]]:
    """From when until when which consumer had the message."""
    found = []
    ends = [event.at for event in message.events[1:]] + [(FOREVER, 0)]
    for event, end in zip(message.events, ends, strict=False):
        if event.what == "delivered":
            found.append((event.at, end, event.consumer))
    return found


def _shared(holds: list[tuple[tuple[int, int], tuple[int, int], int, Message]]) -> list[Fault]:
    """Faults of messages that were with two consumers at a time."""
    faults = []
    latest: dict[int, tuple[tuple[int, int], Message]] = {}  # consumer: until when it has one of them, and which
    for start, stop, consumer, message in sorted(holds, key=lambda hold: hold[0]):
        for other, (until, held) in latest.items():
            if other != consumer and until > start and held is not message:
                earlier, later = sorted((held, message), key=lambda each: each.seq)
                faults.append(Fault("was with another consumer at the same time as", earlier, later))
                break
        if consumer not in latest or stop > latest[consumer][0]:
            latest[consumer] = stop, message
    return faults


# --- reading


def _read(source: Any, queue: "QueueFiles", triple: "Triple") -> Iterable[Message]:
    from brokerd.audit.lifecycle import CAUSES, lives
    from brokerd.audit.segment import read_triple
    from brokerd.audit.trace import WHAT
    from brokerd.store import format as layout

    data = read_triple(source, triple)
    life = lives(data)
    if not life.seq.size:
        return
    if data.begun is None or not life.covered.all():
        raise BrokerError(f"the order journal of queue '{queue.queue}' does not have the whole life of each message: "
                          "it was switched on later, or a power cut took some events")
    events: dict[int, list[Event]] = {}
    for index, row, run in zip(life.event.tolist(), life.of.tolist(), life.run.tolist(), strict=True):
        raw = data.events[index]
        type_ = int(raw["type"])
        why = CAUSES[int(raw["reason"])] if type_ == layout.RETURNED else ""
        known = events.setdefault(row, [])
        if known and run and known[-1].what == "delivered" and int(data.runs[run - 1]) > known[-1].at[0]:
            known.append(Event((int(data.runs[run - 1]), 0), "returned", 0, "broker ended"))
        number, place = int(raw["consumer"]), (int(raw["ts"]), int(data.event_places[index]))
        whom = _in_words(queue, number, int(raw["reason"])) if type_ == layout.DELIVERED else ""
        known.append(Event(place, WHAT[type_], number, why, whom))
    for row, index in enumerate(life.record.tolist()):
        if index < 0:
            continue
        record = data.headers[index]
        known = events.get(row, [])
        if known and known[-1].what == "delivered" and data.runs.size and int(data.runs[-1]) > known[-1].at[0]:
            known.append(Event((int(data.runs[-1]), 0), "returned", 0, "broker ended"))
        routing_key, headers, body = _content(data.octets, int(data.positions[index]), record)
        yield Message(int(record["seq"]), triple.priority, routing_key, headers, body, int(record["ts"]), tuple(known))


def _in_words(queue: "QueueFiles", number: int, reason: int) -> str:
    from brokerd.store import format as layout

    if reason & layout.BY_GET:
        return "a basic.get"
    tag = queue.consumers.get(number, {}).get("tag")  # The broker writes it down a moment after the first delivery.
    return f"consumer {number}{f' ({tag})' if tag else ''}"


def _content(octets: bytes, position: int, record: Any) -> tuple[str, dict[str, Any], bytes]:
    """Routing key, headers and body of a record."""
    from brokerd.store import format as layout
    from brokerd.wire.properties import CLASS_BASIC, decode_header

    at = position + layout.HEADER_OCTETS
    meta = int(record["meta_len"])
    if meta == layout.LONG_META:
        meta = int.from_bytes(octets[at : at + 4], "little")
        at += 4
    stop = at + meta
    at += 1 + octets[at]
    routing_key = octets[at + 1 : at + 1 + octets[at]].decode(errors="replace")
    at += 1 + octets[at]
    head = CLASS_BASIC.to_bytes(2, "big") + bytes(2) + bytes(8)
    _, properties = decode_header(head + octets[at:stop])
    end = position + int(record["length"])
    return routing_key, properties.headers or {}, octets[stop:end]


# --- telling


def _value(key: Key, message: Message) -> Any:
    if key is None:
        return ""
    value = key(message) if callable(key) else message.headers.get(key)
    return repr(value) if isinstance(value, dict | list) else value


def _named(key: Key) -> str:
    return f"the header '{key}'" if isinstance(key, str) else "a key"


def _told(queue: str, vhost: str, key: Key, faults: list[tuple[Any, Fault]], judged: int, groups: int) -> str:
    from brokerd.audit import many

    value, fault = faults[0]
    within = "" if key is None else f" with {_named(key)} = {value!r}"
    among = many(judged, "message") + ("" if key is None else f" with {many(groups, 'key')}")
    lines = [
        f"queue '{queue}' in vhost '{vhost}': message {fault.later.seq} {fault.text} message {fault.earlier.seq}"
        f"{within} ({many(len(faults), 'fault')} among {among})",
        *_life(fault.earlier), *_life(fault.later),
        "What keeps the order: one consumer for each key (or single active consumer), which settles messages in the "
        "order in which it got them.",
    ]  # fmt: skip
    return "\n".join(lines)


def _life(message: Message) -> list[str]:
    body = repr(message.body[: TEXT_SHOWN + 1])
    body = body if len(message.body) <= TEXT_SHOWN else f"{body[:TEXT_SHOWN]}... ({len(message.body)} octets)"
    lines = [f"  message {message.seq}: {body}, routing key '{message.routing_key}', headers {message.headers}"]
    for event in message.events:
        after = (event.at[0] - message.published) / 1e6
        whom = f" to {event.whom}" if event.whom else ""
        lines.append(f"    {after:12.3f} ms after it came: {event.what}{whom}{f' ({event.why})' if event.why else ''}")
    if not message.events:
        lines.append("    it has not gone out")
    return lines
