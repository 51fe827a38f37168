"""The commit log: one transaction on disk, whole, before the first of its messages is in a queue.

The layout stands in store/format.  Connection numbers are never given twice, so a file's name is its own.  Large
transactions write their messages here as they come, small ones with the header.

Order: messages, plan, header; sync of file and name; the messages into the queues, the settlements; ``applied``;
sync of the queues; the file is removed.  Many messages are stored in pieces, and others have their turn between two
pieces: their consumers may take and settle what is stored, and its segment may go.  So ``stored`` says how many are
stored before a piece ends.

At start (vhost/commits) a decision that is not ``applied`` is done for those messages that ``stored`` does not count
and whose record (connection, channel, publish_seq) is in no segment of their queue: the broker died within a piece, so
no segment of that piece's messages is gone yet.  After a power cut ``applied`` and ``stored`` say nothing, since the
queues may have lost what the commit log still has: the search alone decides.  (Then, and only then, a message may
come twice: if it was delivered and acknowledged, its segment given up, and the power cut, all before the sync was
over.)

Knows nothing of what queues do with it: vhost/commits carries decisions out at start, session/transactions before.
"""

import os
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Protocol

from brokerd.errors import StoreError
from brokerd.store import format as layout
from brokerd.store import reading

if TYPE_CHECKING:
    from brokerd.store.disk import Disk

IN_MEMORY_OCTETS_MAX = 1 << 20  # of messages; what is more is written into the file before commit

_READ_OCTETS = 1 << 17  # that are read at a time, where a message is not larger

_U4, _U8 = Struct("<I"), Struct("<Q")


class Message(NamedTuple):
    """One publish of a transaction, as it came."""

    publish_seq: int
    exchange: bytes
    routing_key: bytes
    properties: bytes
    body: bytes


class Place(NamedTuple):
    """Where in its commit log a message stands."""

    position: int
    octets: int


class Named(Protocol):
    """The part of a queue that this module uses.  A Protocol, because queues are a floor above."""

    name: str


class Plan(NamedTuple):
    """The decision of a commit: each message's durable queues, and the deliveries that are settled (queue, seq,
    outcome)."""

    messages: Sequence[tuple[int, Sequence[Named]]]
    settlements: Sequence[tuple[Named, int, int]]


class CommitLog:
    """The messages of one transaction, in memory and on disk, and its decision; after ``remove`` those of the next one.

    ``dirty``, ``path`` and ``fileno`` are what the group commit asks for.
    """

    __slots__ = ("_check", "_disk", "_fd", "_read", "_read_at", "_rest", "_written", "dirty", "path")

    def __init__(self, path: str, disk: "Disk") -> None:
        self.path = path
        self.dirty = False
        self._disk = disk
        self._fd = -1
        self._rest = bytearray()  # messages not yet in the file
        self._written = layout.HEADER_OCTETS  # where they go
        self._check = 0
        self._read = b""  # of the file, what was read last
        self._read_at = 0  # where that begins

    def add(self, message: Message) -> Place:
        """Add one message.  Raises OSError: then it is not added."""
        octets = _encode_message(message)
        if len(self._rest) + len(octets) > IN_MEMORY_OCTETS_MAX:
            self._write_rest()
        place = Place(self._written + len(self._rest), len(octets))
        self._rest += octets
        return place

    def adopt(self, messages: bytes) -> int:
        """Add messages that are encoded; the position of the first.  Raises OSError: then no message is added."""
        if len(self._rest) + len(messages) > IN_MEMORY_OCTETS_MAX:
            self._write_rest()
        at = self._written + len(self._rest)
        self._rest += messages
        return at

    def read(self, place: Place) -> Message:
        """Read a message that was added.  Raises OSError."""
        at = place.position - self._written
        if at >= 0:
            return _decode_message(bytes(memoryview(self._rest)[at : at + place.octets]))
        at = place.position - self._read_at
        if at < 0 or at + place.octets > len(self._read):
            # Messages are read one behind the other.
            octets = max(place.octets, min(_READ_OCTETS, self._written - place.position))
            self._read, self._read_at, at = self._disk.pread(self._fd, octets, place.position), place.position, 0
        return _decode_message(self._read, at)

    @property
    def in_memory(self) -> bool:
        """Nothing is in a file yet."""
        return self._fd < 0

    @property
    def octets(self) -> int:
        """How many octets of messages there are in memory."""
        return len(self._rest)

    @property
    def messages(self) -> bytes:
        """All messages, where they are in memory."""
        return bytes(self._rest)

    def decide(self, connection: int, channel: int, octets: bytes) -> None:
        """Write all, a plan's ``octets`` and the header: from now on (after a sync, if power is lost) it will be done.

        Raises OSError: then nothing is decided.
        """
        self._write_rest()
        self._disk.pwrite(self._fd, octets, self._written)
        check = layout.crc32c(octets, self._check)
        end = self._written + len(octets)
        head = layout.COMMIT_HEADER.pack(
            layout.COMMIT_MAGIC, layout.COMMIT_VERSION, connection, channel, 0, self._written, end, check
        )
        self._disk.pwrite(self._fd, (head + _U4.pack(layout.crc32c(head))).ljust(layout.HEADER_OCTETS, b"\0"), 0)
        self.dirty = True

    def sync(self) -> None:
        """Wait until the decision is on disk.  Raises OSError."""
        self._disk.fsync(self._fd, self.path)
        self._disk.sync_directory(os.path.dirname(self.path))
        self.dirty = False

    def mark_stored(self, count: int) -> None:
        """Note that so many messages, from the first one on, are in their queues.  Never fails: see mark_applied()."""
        self._mark(_U4.pack(count), layout.COMMIT_STORED_AT)

    def mark_applied(self) -> None:
        """Note that all is in the queues, so that a start after a crash has nothing to do.

        Never fails: without the mark a start searches the queues.
        """
        self._mark(_U4.pack(1), layout.COMMIT_APPLIED_AT)

    def _mark(self, octets: bytes, at: int) -> None:
        if self._fd < 0:
            return
        try:
            self._disk.pwrite(self._fd, octets, at)
        except OSError:
            return

    def remove(self) -> bool:
        """The transaction is over, or never was; whether there was a file.  Never fails."""
        if self._rest:
            self._rest = bytearray()
        if self._fd < 0:
            return False
        self.dirty = False
        self._read = b""
        self._written = layout.HEADER_OCTETS
        self._check = 0
        self._disk.close(self._fd)
        self._fd = -1
        try:
            self._disk.unlink(self.path)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Leave the file as it is."""
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1
        self.dirty = False

    def fileno(self) -> int:
        """The open file."""
        return self._fd

    def _write_rest(self) -> None:
        if self._fd < 0:
            self._fd = self._disk.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._disk.pwrite(self._fd, self._rest, self._written)
        self._check = layout.crc32c(memoryview(self._rest), self._check)
        self._written += len(self._rest)
        self._rest = bytearray()


# --- octets


def _short(octets: bytes) -> bytes:
    return len(octets).to_bytes(1) + octets


def _encode_message(message: Message) -> bytes:
    return b"".join((
        _U8.pack(message.publish_seq), _short(message.exchange), _short(message.routing_key),
        _U4.pack(len(message.properties)), message.properties, _U8.pack(len(message.body)), message.body,
    ))  # fmt: skip


def encode_plan(plan: Plan, shift: int = 0) -> bytes:
    """The octets of a plan; ``shift`` is added to each position."""
    encoder = PlanEncoder(shift)
    for position, queues in plan.messages:
        encoder.add_message(position, queues)
    for queue, seq, outcome in plan.settlements:
        encoder.add_settlement(queue, seq, outcome)
    return encoder.octets()


def plan_octets(queues: Iterable[Named], messages: int, stores: int, settlements: int) -> int:
    """How many octets a plan has, at most."""
    names = sum(1 + len(queue.name.encode("utf-8", "surrogateescape")) for queue in queues)
    return 12 + names + 12 * messages + 4 * stores + layout.COMMIT_SETTLEMENT.size * settlements


class PlanEncoder:
    """Makes the octets of a plan, one message or settlement at a time.

    ``shift`` is added to each position.  ``queues`` get the first numbers, where the part about messages is encoded.
    """

    __slots__ = ("_messages", "_numbers", "_places", "_settlements", "_settles", "_shift")

    def __init__(self, shift: int = 0, queues: Iterable[Named] = ()) -> None:
        self._shift = shift
        self._numbers: dict[Named, int] = {queue: number for number, queue in enumerate(queues)}
        self._places = bytearray()
        self._messages = 0
        self._settlements = bytearray()
        self._settles = 0

    def add_message(self, position: int, queues: Sequence[Named]) -> None:
        """The message at that position goes into these queues."""
        numbers = [self._number(queue) for queue in queues]
        self._places += Struct(f"<QI{len(numbers)}I").pack(position + self._shift, len(numbers), *numbers)
        self._messages += 1

    def add_settlement(self, queue: Named, seq: int, outcome: int) -> None:
        """A delivery is settled."""
        self._settlements += layout.COMMIT_SETTLEMENT.pack(self._number(queue), seq, outcome)
        self._settles += 1

    def octets(self, messages: bytes | None = None) -> bytes:
        """The plan; ``messages``: its part about messages, where that is encoded."""
        assert messages is None or not self._messages
        names = [_short(queue.name.encode("utf-8", "surrogateescape")) for queue in self._numbers]
        if messages is None:
            messages = _U4.pack(self._messages) + self._places
        return b"".join((_U4.pack(len(names)), *names, messages, _U4.pack(self._settles), self._settlements))

    def _number(self, queue: Named) -> int:
        return self._numbers.setdefault(queue, len(self._numbers))


class _Reader:
    """Values from octets, one behind the other.  Raises IndexError where they end too early."""

    __slots__ = ("at", "octets")

    def __init__(self, octets: bytes, at: int = 0) -> None:
        self.octets = octets
        self.at = at

    def number(self, form: Struct) -> int:
        value: int = form.unpack(self.take(form.size))[0]
        return value

    def take(self, count: int) -> bytes:
        self.at += count
        if self.at > len(self.octets):
            raise IndexError(self.at)
        return self.octets[self.at - count : self.at]

    def short(self) -> bytes:
        return self.take(self.take(1)[0])


def _decode_message(octets: bytes, at: int = 0) -> Message:
    reader = _Reader(octets, at)
    return Message(reader.number(_U8), reader.short(), reader.short(), reader.take(reader.number(_U4)),
                   reader.take(reader.number(_U8)))


# --- at start


class Decision(NamedTuple):
    """The decision in a commit log found at start, with names instead of queues.

    ``stored``: so many publishes, counted from ``first`` on (a publish_seq), are in their queues.
    """

    connection: int
    channel: int
    applied: bool
    first: int
    stored: int
    messages: list[tuple[Message, list[str]]]
    settlements: list[tuple[str, int, int]]


def load(path: str, disk: "Disk") -> Decision | None:
    """The decision in a commit log; None where the transaction was not decided.

    Raises StoreError (a later version), OSError.
    """
    octets = disk.read(path)
    if len(octets) < layout.HEADER_OCTETS or not any(octets[:layout.HEADER_OCTETS]):
        return None
    magic, version, connection, channel, _, plan_at, end, check = layout.COMMIT_HEADER.unpack_from(octets)
    crc = _U4.unpack_from(octets, layout.COMMIT_HEADER.size)[0]
    if magic != layout.COMMIT_MAGIC or crc != layout.crc32c(octets[: layout.COMMIT_HEADER.size]):
        return None
    if version > layout.COMMIT_VERSION:
        raise StoreError(f"{path} has version {version} at offset 4: written by a later brokerd; this one knows up to "
                         f"{layout.COMMIT_VERSION}")
    if end > len(octets) or check != layout.crc32c(memoryview(octets)[layout.HEADER_OCTETS:end]):
        return None
    marks = Marks(_U4.unpack_from(octets, layout.COMMIT_APPLIED_AT)[0] == 1,
                  _U4.unpack_from(octets, layout.COMMIT_STORED_AT)[0])  # fmt: skip
    return decode_decision(octets, (layout.HEADER_OCTETS, plan_at), connection, channel, marks)


class Marks(NamedTuple):
    """What a commit log says of the work that its broker had done."""

    applied: bool
    stored: int


def decode_decision(
    octets: bytes, places: tuple[int, int], connection: int, channel: int, marks: Marks
) -> Decision | None:
    """The decision that ``octets`` hold, with messages and plan at these places; None where they end too early."""
    messages_at, plan_at = places
    try:
        first = _Reader(octets, messages_at).number(_U8) if plan_at > messages_at else 0
        messages, settlements = _decode_plan(octets, plan_at)
    except IndexError:
        return None
    return Decision(connection, channel, marks.applied, first, marks.stored, messages, settlements)


def _decode_plan(octets: bytes, at: int) -> tuple[list[tuple[Message, list[str]]], list[tuple[str, int, int]]]:
    reader = _Reader(octets, at)
    names = [reader.short().decode("utf-8", "surrogateescape") for _ in range(reader.number(_U4))]
    messages = []
    for _ in range(reader.number(_U4)):
        message = _decode_message(octets, reader.number(_U8))
        messages.append((message, [names[reader.number(_U4)] for _ in range(reader.number(_U4))]))
    settlements = []
    for _ in range(reader.number(_U4)):
        number, seq, outcome = layout.COMMIT_SETTLEMENT.unpack(reader.take(layout.COMMIT_SETTLEMENT.size))
        settlements.append((names[number], seq, outcome))
    return messages, settlements


def find(directory: str, disk: "Disk") -> list[str]:
    """The paths of the commit logs in a vhost's folder."""
    return [os.path.join(directory, name) for name in sorted(disk.names(directory))
            if name.startswith(layout.COMMIT_PREFIX)]  # fmt: skip


def discard(paths: Iterable[str], disk: "Disk") -> None:
    """Remove commit logs that ``find`` has returned.

    Raises OSError: a start must not go on, because the next one would do again what they decide.
    """
    for path in paths:
        disk.unlink(path)


def published_in(directory: str, disk: "Disk", connections: set[int]) -> dict[tuple[int, int, int], int]:
    """The sequence numbers of all records of these connections that are in a queue's folder, settled or not, by
    (connection, channel, publish number).

    Its priority levels are looked at too.  A record with a wrong CRC is not there.
    """
    from numpy import isin  # Only after a crash.

    found: dict[tuple[int, int, int], int] = {}
    try:
        names = disk.names(directory)
    except FileNotFoundError:
        return found
    for name in names:
        if layout.priority_level(name) is not None:
            found |= published_in(os.path.join(directory, name), disk, connections)
        number = layout.segment_number(name) if name.startswith("msgs.") else None
        if number is None:
            continue
        octets = disk.read(os.path.join(directory, name))
        if len(octets) < layout.HEADER_OCTETS:
            continue
        end, complement = Struct("<II").unpack_from(octets, layout.SEGMENT_WORDS_AT)
        if not layout.word_ok(end, complement) or end > len(octets):
            end = len(octets)
        records = reading.scan_records(octets, end)
        mine = isin(records.headers["connection"], list(connections))
        records = reading.Records(records.headers[mine], records.positions[mine], records.gaps)
        ours = records.headers[reading.record_checks(octets, records, number)]
        published = zip(*[ours[name].tolist() for name in ("connection", "channel", "publish_seq")], strict=True)
        found.update(zip(published, ours["seq"].tolist(), strict=True))
    return found
