"""The commit journal: one transaction on disk, whole, before the first of its messages is in a queue.

File ``tx.CONNECTION.CHANNEL`` in the vhost's folder (decimal numbers; connection numbers are never given twice).
It holds what a transaction publishes, and becomes a decision with its header::

     0 magic "BTXJ"   4 version u4     8 connection u4  12 channel u2   14 zero u2
    16 plan_at u8    24 end u8        32 check u4 (CRC32C of octets 64..end)
    36 crc u4 (CRC32C of octets 0..36)
    40 applied u4: 1, all of it was done      44 zeros up to 64

MESSAGES from 64 on, back to back, as they were published::

    publish_seq u8 | exchange: length u1, octets | routing key: length u1, octets
    | property flags and list: length u4, octets | body: length u8, octets

PLAN at ``plan_at``, up to ``end``: what commit resolved, durable queues only::

    queues u4, each: name length u1, octets
    messages u4, each: position u8 in this file, queues u4, each: number u4 of the queue above
    settlements u4, each: number u4 of the queue, seq u8, outcome u1 (0 acked, 1 rejected)

All numbers are little endian.  A file whose header is not whole (zeros, until commit) is no decision: a transaction
that never was.  Large transactions write their messages here as they come, small ones with the header.

Order: messages, plan, header; sync of file and name; the messages into the queues, the settlements; ``applied``;
sync of the queues; the file is removed.  At start (``recover``) a decision that is not ``applied`` is done for those
messages whose record (connection, channel, publish_seq) is in no segment of their queue: the broker died between
the first and the last of them, so no segment of theirs is gone yet.  After a power cut ``applied`` says nothing, since
the queues may have lost what the journal kept: the same search decides.  (Then, and only then, a message may come
twice: if it was delivered and acknowledged, its segment given up, and the power cut, all before the sync was over.)

UPGRADE RULE: as store/format's: a broker reads its own version and those before, and refuses later ones.
"""

import os
from collections.abc import Callable, Iterable
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, NamedTuple

from brokerd.errors import StoreError
from brokerd.store import format as layout
from brokerd.store import reading

if TYPE_CHECKING:
    from brokerd.queues.queue import Queue
    from brokerd.store.disk import Disk
    from brokerd.vhost.vhost import VHost

PREFIX = "tx."
MAGIC = 0x4A585442  # "BTXJ"
VERSION = 1
HEADER_OCTETS = 64
IN_MEMORY_OCTETS_MAX = 1 << 20  # of messages; what is more is written into the file before commit
ACKED, REJECTED = 0, 1

_HEADER = Struct("<IIIHHQQI")
_U4, _U8 = Struct("<I"), Struct("<Q")
_APPLIED_AT = 40
_SETTLEMENT = Struct("<IQB")


class Message(NamedTuple):
    """One publish of a transaction, as it came."""

    publish_seq: int
    exchange: bytes
    routing_key: bytes
    properties: bytes
    body: bytes


class Place(NamedTuple):
    """Where in its journal a message stands."""

    position: int
    octets: int


class Plan(NamedTuple):
    """What commit decided: each message's durable queues, and the deliveries that are settled (queue, seq, outcome)."""

    messages: "list[tuple[int, list[Queue]]]"
    settlements: "list[tuple[Queue, int, int]]"


class Journal:
    """The messages of one transaction, in memory and on disk, and its decision.

    ``dirty``, ``path`` and ``fileno`` are what the group commit asks for.
    """

    __slots__ = ("_check", "_disk", "_fd", "_rest", "_written", "dirty", "path")

    def __init__(self, path: str, disk: "Disk") -> None:
        self.path = path
        self.dirty = False
        self._disk = disk
        self._fd = -1
        self._rest = bytearray()  # messages not yet in the file
        self._written = HEADER_OCTETS  # where they go
        self._check = 0

    def add(self, message: Message) -> Place:
        """Keep one message.  Raises OSError: then it is not kept."""
        octets = _encode_message(message)
        if len(self._rest) + len(octets) > IN_MEMORY_OCTETS_MAX:
            self._write_rest()
        place = Place(self._written + len(self._rest), len(octets))
        self._rest += octets
        return place

    def read(self, place: Place) -> Message:
        """A message that was kept.  Raises OSError."""
        at = place.position - self._written
        if at >= 0:
            return _decode_message(bytes(memoryview(self._rest)[at : at + place.octets]))
        return _decode_message(self._disk.pread(self._fd, place.octets, place.position))

    def decide(self, connection: int, channel: int, plan: Plan) -> None:
        """Write all and the header: from now on (after a sync, if power is lost) it will be done.

        Raises OSError: then nothing is decided.
        """
        self._write_rest()
        octets = _encode_plan(plan)
        self._disk.pwrite(self._fd, octets, self._written)
        check = layout.crc32c(octets, self._check)
        end = self._written + len(octets)
        head = _HEADER.pack(MAGIC, VERSION, connection, channel, 0, self._written, end, check)
        self._disk.pwrite(self._fd, (head + _U4.pack(layout.crc32c(head))).ljust(HEADER_OCTETS, b"\0"), 0)
        self.dirty = True

    def sync(self) -> None:
        """Wait until the decision is on disk.  Raises OSError."""
        self._disk.fsync(self._fd, self.path)
        self._disk.sync_directory(os.path.dirname(self.path))
        self.dirty = False

    def applied(self) -> None:
        """All is in the queues: after a crash nothing is to be done.  Never fails: then it is looked for."""
        try:
            self._disk.pwrite(self._fd, _U4.pack(1), _APPLIED_AT)
        except OSError:
            return

    def remove(self) -> bool:
        """The transaction is over, or never was; whether there was a file.  Never fails."""
        self.dirty = False
        self._rest.clear()
        if self._fd < 0:
            return False
        self._disk.close(self._fd)
        self._fd = -1
        try:
            self._disk.unlink(self.path)
        except OSError:
            return False
        return True

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


def _encode_plan(plan: Plan) -> bytes:
    numbers: dict[Queue, int] = {}
    for queues in (*[queues for _, queues in plan.messages], [queue for queue, _, _ in plan.settlements]):
        for queue in queues:
            numbers.setdefault(queue, len(numbers))
    parts = [_U4.pack(len(numbers))]
    parts += [_short(queue.name.encode("utf-8", "surrogateescape")) for queue in numbers]
    parts.append(_U4.pack(len(plan.messages)))
    for position, queues in plan.messages:
        parts += [_U8.pack(position), _U4.pack(len(queues)), *[_U4.pack(numbers[queue]) for queue in queues]]
    parts.append(_U4.pack(len(plan.settlements)))
    parts += [_SETTLEMENT.pack(numbers[queue], seq, outcome) for queue, seq, outcome in plan.settlements]
    return b"".join(parts)


class _Reader:
    """Values from octets, one behind the other.  Raises IndexError or struct.error where they end too early."""

    __slots__ = ("at", "octets")

    def __init__(self, octets: bytes, at: int = 0) -> None:
        self.octets = octets
        self.at = at

    def number(self, form: Struct) -> int:
        self.at += form.size
        value: int = form.unpack_from(self.octets, self.at - form.size)[0]
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
    """A journal found at start: names instead of queues."""

    connection: int
    channel: int
    applied: bool
    messages: list[tuple[Message, list[str]]]
    settlements: list[tuple[str, int, int]]


def load(path: str, disk: "Disk") -> Decision | None:
    """The decision in a journal; None where none was made.  Raises StoreError (a later version), OSError."""
    octets = disk.read(path)
    if len(octets) < HEADER_OCTETS or not any(octets[:HEADER_OCTETS]):
        return None
    magic, version, connection, channel, _, plan_at, end, check = _HEADER.unpack_from(octets)
    crc = _U4.unpack_from(octets, _HEADER.size)[0]
    if magic != MAGIC or crc != layout.crc32c(octets[: _HEADER.size]):
        return None
    if version > VERSION:
        raise StoreError(f"{path} has version {version} at offset 4: written by a later brokerd; this one knows up to "
                         f"{VERSION}")
    if end > len(octets) or check != layout.crc32c(memoryview(octets)[HEADER_OCTETS:end]):
        return None
    try:
        messages, settlements = _decode_plan(octets, plan_at)
    except (IndexError, struct_error):
        return None
    applied = _U4.unpack_from(octets, _APPLIED_AT)[0] == 1
    return Decision(connection, channel, applied, messages, settlements)


def _decode_plan(octets: bytes, at: int) -> tuple[list[tuple[Message, list[str]]], list[tuple[str, int, int]]]:
    reader = _Reader(octets, at)
    names = [reader.short().decode("utf-8", "surrogateescape") for _ in range(reader.number(_U4))]
    messages = []
    for _ in range(reader.number(_U4)):
        message = _decode_message(octets, reader.number(_U8))
        messages.append((message, [names[reader.number(_U4)] for _ in range(reader.number(_U4))]))
    settlements = []
    for _ in range(reader.number(_U4)):
        number, seq, outcome = _SETTLEMENT.unpack(reader.take(_SETTLEMENT.size))
        settlements.append((names[number], seq, outcome))
    return messages, settlements


def recover(vhost: "VHost", disk: "Disk", *, suspect: bool, report: Callable[[str], None]) -> list[str]:
    """Do what was decided and not done, in a vhost whose queues are recovered; the journals found.

    They are to be removed (``discard``) once all queues are synced.  ``suspect``: power was lost.  ``report``
    hears of each transaction in one line.  Raises StoreError, OSError.
    """
    paths = [os.path.join(vhost.directory, name) for name in sorted(disk.names(vhost.directory))
             if name.startswith(PREFIX)]  # fmt: skip
    for path in paths:
        decision = load(path, disk)
        if decision is None:
            report(f"{path}: a transaction that was not committed: dropped")
        elif suspect or not decision.applied:
            stored, settled = _apply(vhost, disk, decision)
            report(f"{path}: a committed transaction was brought to its end: {stored} stored, {settled} settled")
    return paths


def discard(paths: Iterable[str], disk: "Disk") -> None:
    """Remove journals that ``recover`` has returned.  Never fails: what stays is found again at the next start."""
    for path in paths:
        try:
            disk.unlink(path)
        except OSError:
            continue


def _apply(vhost: "VHost", disk: "Disk", decision: Decision) -> tuple[int, int]:
    """How many messages were stored (once a queue), and how many deliveries settled."""
    present: dict[str, set[int]] = {}
    stored = settled = 0
    for message, names in decision.messages:
        for name in names:
            queue = vhost.queues.get(name)
            if queue is None:
                continue
            if name not in present:
                present[name] = published_in(queue.directory, disk, decision.connection, decision.channel)
            if message.publish_seq not in present[name]:
                vhost.core.put((queue,), *message[1:], connection=decision.connection, channel=decision.channel,
                               publish_seq=message.publish_seq, sync=True)  # fmt: skip
                stored += 1
    for name, seq, outcome in decision.settlements:
        queue = vhost.queues.get(name)
        row = None if queue is None else queue.remove(seq)
        if queue is not None and row is not None:
            settled += 1
            if outcome == REJECTED:
                _, _, _, exchange, routing_key, properties, body = row
                queue.on_dead("rejected", 0, exchange, routing_key, properties, body, 0)
    return stored, settled


def published_in(directory: str, disk: "Disk", connection: int, channel: int) -> set[int]:
    """The publish numbers of all records of one channel that are in the segments of a queue's folder."""
    found: set[int] = set()
    try:
        names = disk.names(directory)
    except FileNotFoundError:
        return found
    for name in names:
        if not name.startswith("msgs.") or layout.segment_number(name) is None:
            continue
        octets = disk.read(os.path.join(directory, name))
        if len(octets) < layout.HEADER_OCTETS:
            continue
        end, complement = Struct("<II").unpack_from(octets, layout.SEGMENT_WORDS_AT)
        if not layout.word_ok(end, complement) or end > len(octets):
            end = len(octets)
        headers = reading.scan_records(octets, end).headers
        ours = headers[(headers["connection"] == connection) & (headers["channel"] == channel)]
        found.update(ours["publish_seq"].tolist())
    return found
