"""Files of messages, of acks and of journals as objects that can be changed and written again.

    MessageFile     header fields, ``records``
    AcksFile        header fields, ``entries``
    JournalFile     header fields, ``events``

A record, an entry or an event that nobody has touched keeps its checksum as it was read.  ``touch()`` makes it right
again at the next write; ``wrong`` spoils it.  A header's CRC is always written right unless ``wrong`` is set.  The
words of a header are what the file says until ``count()`` makes them what the contents say.
"""

import struct
from dataclasses import dataclass, field, fields

from tests.planter.crc import crc32c, fold

HEADER_OCTETS = 64
MESSAGES_HEAD = struct.Struct("<4sIQQqI")      # magic, version, number, base_seq, created, generation
ACKS_HEAD = struct.Struct("<4sIQI")            # magic, version, number, generation
JOURNAL_HEAD = struct.Struct("<4sIQq")         # magic, version, number, begun
RECORD = struct.Struct("<4sIIHBBQqIHHQQQ")
ENTRY = struct.Struct("<IBBH")
EVENT = struct.Struct("<QqIIHBBI")
WORD = struct.Struct("<II")

ACKED, REJECTED, RETURNED, DEAD, EXPIRED, DROPPED, PURGED, DELIVERED, MARK, ASIDE = range(1, 11)
HANDED_OUT = 8                                  # in acks
SETTLING = frozenset({ACKED, REJECTED, DEAD, EXPIRED, DROPPED, PURGED})
REDELIVERED, BY_GET, BEFORE_START, NO_ACKS = 1, 2, 4, 8     # reason of DELIVERED, a sum
STARTED, LOST_POWER, ON_AGAIN, SWITCHED_OFF = 1, 2, 3, 4    # reason of MARK


class NotAsDescribed(ValueError):
    """The octets are not as docs/formats.md says."""


def word(value):
    return WORD.pack(value & 0xFFFFFFFF, ~value & 0xFFFFFFFF)


def read_word(octets, at, *, empty=None):
    value, complement = WORD.unpack_from(octets, at)
    if value ^ complement == 0xFFFFFFFF:
        return value
    if empty is not None and not value and not complement:
        return empty
    raise NotAsDescribed(f"the word at {at} is {value:#x}, {complement:#x}")


def padded(length):
    return length + 7 & ~7


class _Summed:
    """Something with a checksum that is kept as it was read until somebody touches it."""

    def touch(self, **changes):
        for name, value in changes.items():
            if name not in self.NAMES:
                raise AttributeError(name)
            setattr(self, name, value)
        self.sum = None
        return self

    def copy(self, **changes):
        twin = type(self)(**{name: getattr(self, name) for name in self.NAMES})
        return twin.touch(**changes)


@dataclass(eq=False)
class Record(_Summed):
    """One message: ``meta`` and ``body`` are octets."""

    priority: int
    kind: int
    seq: int
    ts: int
    connection: int
    channel: int
    flags: int
    publish_seq: int
    group_hash: int
    dedup_hash: int
    meta: bytes
    body: bytes
    position: int = 0               # where it stood when it was read, or was written last
    sum: int | None = None          # its CRC as it was read; None: to be made
    wrong: bool = False             # the CRC is to be wrong

    @classmethod
    def read(cls, octets, position):
        (magic, length, crc, meta_len, priority, kind, seq, ts, connection, channel, flags, publish_seq, group, dedup,
         ) = RECORD.unpack_from(octets, position)
        if magic != b"BSGM" or length < 64 or position + length > len(octets):
            raise NotAsDescribed(f"no record at {position}")
        begin = position + 64
        if meta_len == 65535:
            (meta_len,) = struct.unpack_from("<I", octets, begin)
            begin += 4
        end = position + length
        return cls(priority, kind, seq, ts, connection, channel, flags, publish_seq, group, dedup,
                   bytes(octets[begin:begin + meta_len]), bytes(octets[begin + meta_len:end]), position, crc)

    def octets(self, number):
        long = len(self.meta) >= 65535
        length = 64 + 4 * long + len(self.meta) + len(self.body)
        head = RECORD.pack(b"BSGM", length, 0, 65535 if long else len(self.meta), self.priority, self.kind, self.seq,
                           self.ts, self.connection, self.channel, self.flags, self.publish_seq, self.group_hash,
                           self.dedup_hash)
        rest = (struct.pack("<I", len(self.meta)) if long else b"") + self.meta + self.body
        if self.sum is None:
            self.sum = crc32c(struct.pack("<Q", number) + head[12:] + rest)
        crc = self.sum ^ (0x5A5A5A5A if self.wrong else 0)
        return head[:8] + struct.pack("<I", crc) + head[12:] + rest + bytes(padded(length) - length)


@dataclass(eq=False)
class Entry(_Summed):
    """What became of ``record``.  ``position`` counts if that is None: an entry that no record has."""

    record: Record | None
    type: int
    reason: int
    count: int
    position: int = 0
    sum: int | None = None
    wrong: bool = False

    def octets(self, number):
        position = self.record.position if self.record is not None else self.position
        kind = self.type | self.reason << 4
        check = fold(number, ENTRY.pack(position, kind, 0, self.count)) ^ (0x5A if self.wrong else 0)
        return ENTRY.pack(position, kind, check, self.count)

    @property
    def settles(self):
        return self.type in SETTLING


@dataclass(eq=False)
class Event(_Summed):
    """One event of a message's life, or a mark."""

    seq: int
    ts: int
    consumer: int
    aux: int
    count: int
    type: int
    reason: int
    sum: int | None = None
    wrong: bool = False

    @classmethod
    def read(cls, octets, position):
        seq, ts, consumer, aux, count, kind, reason, crc = EVENT.unpack_from(octets, position)
        return cls(seq, ts, consumer, aux, count, kind, reason, crc)

    def octets(self, number):
        head = EVENT.pack(self.seq, self.ts, self.consumer, self.aux, self.count, self.type, self.reason, 0)[:28]
        if self.sum is None:
            self.sum = crc32c(struct.pack("<Q", number) + head)
        return head + struct.pack("<I", self.sum ^ (0x5A5A5A5A if self.wrong else 0))

    @property
    def settles(self):
        return self.type in SETTLING


for _each in (Record, Entry, Event):
    _each.NAMES = tuple(one.name for one in fields(_each))


@dataclass
class MessageFile:
    """``msgs.N``."""

    number: int
    base_seq: int
    created: int
    generation: int
    end: int                        # word
    count_word: int                 # word "records"
    sealed: int                     # word
    records: list[Record]
    tail: bytes                     # octets behind ``end``
    magic: bytes = b"BSEG"
    version: int = 1
    wrong: bool = False

    @classmethod
    def read(cls, octets):
        magic, version, number, base, created, generation = MESSAGES_HEAD.unpack_from(octets)
        _check_head(octets, magic, b"BSEG", MESSAGES_HEAD.size)
        end = read_word(octets, 40)
        records, position = [], HEADER_OCTETS
        while position < end:
            records.append(Record.read(octets, position))
            position += padded(int.from_bytes(octets[position + 4:position + 8], "little"))
        if position != end:
            raise NotAsDescribed(f"the last record ends at {position}, not at {end}")
        return cls(number, base, created, generation, end, read_word(octets, 48), read_word(octets, 56), records,
                   bytes(octets[end:]), magic, version)

    def lay_out(self):
        """Give each record its position.  Returns where the last one ends."""
        position = HEADER_OCTETS
        for record in self.records:
            record.position = position
            long = len(record.meta) >= 65535
            position += padded(64 + 4 * long + len(record.meta) + len(record.body))
        return position

    def count(self):
        """The words say what the file holds."""
        self.end = self.lay_out()
        self.count_word = len(self.records)

    def octets(self):
        head = MESSAGES_HEAD.pack(self.magic, self.version, self.number, self.base_seq, self.created, self.generation)
        return _head(head, self.wrong) + word(self.end) + word(self.count_word) + word(self.sealed) + b"".join(
            record.octets(self.number) for record in self.records) + self.tail


@dataclass
class AcksFile:
    """``acks.N``.  ``delivered`` and ``doubted`` are positions in ``msgs.N``."""

    number: int
    generation: int
    delivered: int
    count_word: int                 # word "entries"
    settled: int
    doubted: int | None             # None: eight zeros
    entries: list[Entry]
    tail: bytes
    magic: bytes = b"BACK"
    version: int = 3
    wrong: bool = False
    blank: bytes = field(default=bytes(8))

    @classmethod
    def read(cls, octets, records):
        magic, version, number, generation = ACKS_HEAD.unpack_from(octets)
        _check_head(octets, magic, b"BACK", ACKS_HEAD.size)
        places = {record.position: record for record in records}
        count, entries = read_word(octets, 32), []
        for at in range(HEADER_OCTETS, HEADER_OCTETS + 8 * count, 8):
            position, kind, check, failed = ENTRY.unpack_from(octets, at)
            if fold(number, ENTRY.pack(position, kind, 0, failed)) != check:
                raise NotAsDescribed(f"the check of the entry at {at}")
            entries.append(Entry(places.get(position), kind & 15, kind >> 4, failed, position))
        doubted = None if octets[48:56] == bytes(8) else read_word(octets, 48)
        return cls(number, generation, read_word(octets, 24), count, read_word(octets, 40), doubted, entries,
                   bytes(octets[HEADER_OCTETS + 8 * count:]), magic, version, False, bytes(octets[56:64]))

    def count(self):
        """The words say what the file holds."""
        self.count_word = len(self.entries)
        settled = {}
        for entry in self.entries:
            settled[id(entry.record)] = entry.settles or (settled.get(id(entry.record), False) and entry.type != 13)
        self.settled = sum(settled.values())

    def octets(self):
        head = ACKS_HEAD.pack(self.magic, self.version, self.number, self.generation)
        doubted = bytes(8) if self.doubted is None else word(self.doubted)
        return (_head(head, self.wrong) + word(self.delivered) + word(self.count_word) + word(self.settled) + doubted
                + self.blank + b"".join(entry.octets(self.number) for entry in self.entries) + self.tail)


@dataclass
class JournalFile:
    """``journal.N``."""

    number: int
    begun: int
    count_word: int                 # word "events"
    lost: int
    synced: bytes                   # sixteen octets: the time and its complement
    events: list[Event]
    tail: bytes
    magic: bytes = b"BJRN"
    version: int = 1
    wrong: bool = False
    blank: bytes = field(default=bytes(4))

    @classmethod
    def read(cls, octets):
        magic, version, number, begun = JOURNAL_HEAD.unpack_from(octets)
        _check_head(octets, magic, b"BJRN", JOURNAL_HEAD.size)
        count = read_word(octets, 32)
        events = [Event.read(octets, at) for at in range(HEADER_OCTETS, HEADER_OCTETS + 32 * count, 32)]
        return cls(number, begun, count, read_word(octets, 40, empty=0), bytes(octets[48:64]), events,
                   bytes(octets[HEADER_OCTETS + 32 * count:]), magic, version, False, bytes(octets[28:32]))

    def count(self):
        """The word says what the file holds."""
        self.count_word = len(self.events)

    def octets(self):
        head = JOURNAL_HEAD.pack(self.magic, self.version, self.number, self.begun)
        return (_head(head, self.wrong) + self.blank + word(self.count_word) + word(self.lost) + self.synced
                + b"".join(event.octets(self.number) for event in self.events) + self.tail)


def _head(octets, wrong):
    return octets + struct.pack("<I", crc32c(octets) ^ (0x5A5A5A5A if wrong else 0))


def _check_head(octets, magic, wanted, size):
    if magic != wanted:
        raise NotAsDescribed(f"magic {magic!r}")
    if struct.unpack_from("<I", octets, size)[0] != crc32c(octets[:size]):
        raise NotAsDescribed("the CRC of the header")
