"""The files of a stream beside its segments, as objects that can be changed and written again.

    IndexFile       header fields, ``values`` of the segment, ``rows``
    ReadersFile     ``slots``: of named readers, by their places in the file

What is written has right checksums, but where ``wrong`` spoils one: that of an index, of a slot's name or of a cell.
"""

import struct
from dataclasses import dataclass, field

from tests.planter.crc import crc32c
from tests.planter.files import NotAsDescribed

# magic, version, number, base_seq, created, end, records, rows, block, flags
INDEX_HEAD = struct.Struct("<4sIQQqIIIII")
ROW = struct.Struct("<QqII8x32s")
SLOT, SLOTS, NAME_ROOM = 512, 512, 316
OFFSET_CELL, MISSED_CELL = struct.Struct("<QI"), struct.Struct("<QQI")
MULTIPLIER = 0x9E3779B97F4A7C15
NO_VALUE = 1                                    # of flags


def bits_of_block(value):
    h = _hash(value)
    return [h >> shift & 255 for shift in (40, 48, 56)]


def bits_of_segment(value):
    h = _hash(value)
    return [h >> shift & 32767 for shift in (19, 34, 49)]


def _hash(value):
    return crc32c(value) * MULTIPLIER % (1 << 64)


def has_bits(octets, bits):
    return all(octets[bit // 8] >> bit % 8 & 1 for bit in bits)


@dataclass(eq=False)
class Row:
    seq: int
    ts: int
    position: int
    flags: int
    values: bytearray


@dataclass(eq=False)
class IndexFile:
    number: int
    base_seq: int
    created: int
    end: int
    records: int
    block: int
    flags: int
    values: bytearray
    rows: list[Row]
    wrong: bool = False

    @classmethod
    def read(cls, octets):
        magic, version, number, base_seq, created, end, records, count, block, flags = INDEX_HEAD.unpack_from(octets)
        crc = int.from_bytes(octets[52:56], "little")
        if (magic, version, crc) != (b"BIDX", 1, crc32c(octets[:52] + octets[64:])) or len(octets) != 4160 + 64 * count:
            raise NotAsDescribed("no index")
        rows = []
        for at in range(4160, len(octets), 64):
            seq, ts, position, its, values = ROW.unpack_from(octets, at)
            rows.append(Row(seq, ts, position, its, bytearray(values)))
        return cls(number, base_seq, created, end, records, block, flags, bytearray(octets[64:4160]), rows)

    def octets(self):
        head = INDEX_HEAD.pack(b"BIDX", 1, self.number, self.base_seq, self.created, self.end, self.records,
                               len(self.rows), self.block, self.flags)
        rest = bytes(self.values) + b"".join(
            ROW.pack(row.seq, row.ts, row.position, row.flags, bytes(row.values)) for row in self.rows)
        crc = crc32c(head + rest) ^ (0x5A5A5A5A if self.wrong else 0)
        return head + crc.to_bytes(4, "little") + bytes(8) + rest


@dataclass(eq=False)
class Cell:
    """``numbers``: (offset, turn), or (missed, counted, 0).  ``raw``: the octets, if they are no whole cell."""

    numbers: tuple
    raw: bytes = b""


@dataclass(eq=False)
class Slot:
    name: bytes
    offsets: list[Cell]
    since: int
    began: int
    missed: list[Cell]
    wrong: bool = False

    def newer(self):
        """The cell that has the reader's offset."""
        return max((cell for cell in self.offsets if not cell.raw), key=lambda cell: cell.numbers[1])

    @classmethod
    def read(cls, octets):
        name = octets[5:5 + octets[4]]
        if int.from_bytes(octets[:4], "little") != crc32c(octets[4:5 + octets[4]]):
            raise NotAsDescribed("a slot's name is damaged")
        cells = {at: _read_cell(octets, at, form)
                 for at, form in ((320, OFFSET_CELL), (336, OFFSET_CELL), (368, MISSED_CELL), (392, MISSED_CELL))}
        since, began = struct.unpack_from("<QQ", octets, 352)
        return cls(name, [cells[320], cells[336]], since, began, [cells[368], cells[392]])

    def octets(self):
        name = bytes([len(self.name)]) + self.name
        head = (crc32c(name) ^ (0x5A5A5A5A if self.wrong else 0)).to_bytes(4, "little")
        octets = head + name.ljust(NAME_ROOM, b"\0")
        octets += b"".join(_cell(head, cell, OFFSET_CELL) for cell in self.offsets)
        octets += struct.pack("<QQ", self.since, self.began)
        octets += b"".join(_cell(head, cell, MISSED_CELL) for cell in self.missed)
        return octets.ljust(SLOT, b"\0")


def _read_cell(slot, at, form):
    octets = slot[at:at + form.size]
    whole = slot[at + form.size:at + form.size + 4] == crc32c(slot[:4] + octets).to_bytes(4, "little")
    return Cell(form.unpack(octets), b"" if whole else bytes(slot[at:at + form.size + 4]))


def _cell(head, cell, form):
    octets = form.pack(*cell.numbers)
    return cell.raw or octets + crc32c(head + octets).to_bytes(4, "little")


@dataclass(eq=False)
class ReadersFile:
    slots: dict[int, Slot] = field(default_factory=dict)
    magic: bytes = b"BRED"
    length: int = SLOT * SLOTS      # octets that are written

    @classmethod
    def read(cls, octets):
        if octets[:8] != b"BRED" + struct.pack("<I", 1) or len(octets) != SLOT * SLOTS:
            raise NotAsDescribed("no file of readers")
        return cls({number: Slot.read(octets[SLOT * number:SLOT * (number + 1)]) for number in range(1, SLOTS)
                    if octets[SLOT * number + 4]})

    def octets(self):
        free = bytes(SLOT)
        head = (self.magic + struct.pack("<I", 1)).ljust(SLOT, b"\0")
        slots = (self.slots[number].octets() if number in self.slots else free for number in range(1, SLOTS))
        return (head + b"".join(slots))[:self.length]
