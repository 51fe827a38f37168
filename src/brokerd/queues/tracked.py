"""The offsets that a stream keeps for its named readers: a mapped file of fixed slots beside its segments.

    claim(name) ─> Slot ─> plane.Stream.begin: with each ack that moves it, the plane writes the lowest unacknowledged
                           offset there

kill -9 loses no offset that an ack moved.  After a power cut an offset may be an older one, so its reader reads again;
it is never ahead of an ack.  The layout: ``store/format``, docs/formats.md.  Knows nothing of consumers.
"""

import mmap
import os
import re
from logging import getLogger
from typing import NamedTuple

from brokerd import plane
from brokerd.store.disk import Disk
from brokerd.store.format import (
    READERS_BEGAN,
    READERS_CELLS,
    READERS_FILE,
    READERS_HEADER,
    READERS_MAGIC,
    READERS_MISSED,
    READERS_MISSED_CELL,
    READERS_NAME,
    READERS_SINCE,
    READERS_SLOT,
    READERS_SLOTS,
    READERS_VERSION,
)

log = getLogger("brokerd")

CELL = 16  # octets: offset, turn, CRC
NAME_OCTETS_MAX = 255
# Names that are new at each run: tags that pika, aio-pika and Bunny make, and the readers of shovels that have an end.
MADE_UP = re.compile(r"ctag\d+\.[0-9a-f]{32}|bunny-\d+-\d+|shovel\.[0-9a-f]{32}")


class Slot(NamedTuple):
    """One reader's slot, claimed: what the plane needs to write into it."""

    octets: memoryview
    turn: int
    offset: int | None  # None: the reader is new


class TrackedReader(NamedTuple):
    """A reader whose offset is kept."""

    name: str
    offset: int
    since: int  # ns since the epoch: when it last began to read
    missed: int = 0  # messages that were gone before it came to them, since it was new
    counted: int = 0  # those before this offset are counted there

    def missed_by(self, first_offset: int) -> int:
        """The number of messages that it has missed, and will have missed when it reads again; it does not read now."""
        return self.missed + max(first_offset - max(self.offset, self.counted), 0)


class Tracked:
    """The file of one stream, which ``stream`` names for people.  Raises OSError where it cannot be made or read."""

    __slots__ = ("_disk", "_map", "_slots", "_stream", "_turns", "_view", "path")

    def __init__(self, directory: str, stream: str = "a stream") -> None:
        self._stream = stream
        self._turns: dict[int, int] = {}  # the last one of a slot whose reader was forgotten: its acks may still come
        self.path = os.path.join(directory, READERS_FILE)
        size = READERS_SLOT * READERS_SLOTS
        self._disk = disk = Disk()
        fd = disk.open(self.path, os.O_RDWR | os.O_CREAT)
        try:
            there = disk.size(fd)
            if there < size:  # Blocks are written now: a store into a hole fails on a full disk.
                disk.pwrite(fd, bytes(size - there), there)
            self._map = mmap.mmap(fd, size)
            self._view = memoryview(self._map)
            magic, version = READERS_HEADER.unpack_from(self._map)
            if (magic, version) == (0, 0):  # It is new, or power was lost before it was synced.
                self._map[:size] = bytes(size)
                READERS_HEADER.pack_into(self._map, 0, READERS_MAGIC, READERS_VERSION)
            elif (magic, version) != (READERS_MAGIC, READERS_VERSION):
                raise OSError(f"{self.path} has another format: magic {magic:#x}, version {version}")
            disk.fsync(fd, self.path)
        finally:
            disk.close(fd)
        disk.sync_directory(directory)
        self._slots: dict[str, int] = {}
        for number in range(1, READERS_SLOTS):
            name = self._name_at(number)
            if name is not None:
                self._slots[name] = number

    def octets(self) -> bytes:
        """The present contents of the file."""
        return bytes(self._view)

    def _sync(self) -> None:
        """Have on the disk what the map says."""
        fd = self._disk.open(self.path, os.O_RDWR)
        try:
            self._disk.fdatasync(fd, self.path)
        finally:
            self._disk.close(fd)

    # --- slots

    def _at(self, number: int) -> memoryview:
        return self._view[READERS_SLOT * number : READERS_SLOT * (number + 1)]

    def _name_at(self, number: int) -> str | None:
        slot = self._at(number)
        octets = slot[READERS_NAME + 1 : READERS_NAME + 1 + slot[READERS_NAME]]
        if not slot[READERS_NAME] or int.from_bytes(slot[:4], "little") != _name_crc(bytes(octets)):
            return None
        return bytes(octets).decode("utf-8", "surrogateescape")

    def _cell(self, number: int) -> tuple[int, int] | None:
        """(turn, offset) of the newer whole cell."""
        slot, found = self._at(number), []
        for at in (READERS_CELLS, READERS_CELLS + CELL):
            cell = bytes(slot[at : at + CELL])
            if int.from_bytes(cell[12:], "little") == plane.crc32c(bytes(slot[:4]) + cell[:12]):
                found.append((int.from_bytes(cell[8:12], "little"), int.from_bytes(cell[:8], "little")))
        if len(found) == 2 and (found[1][0] - found[0][0]) & 0xFFFFFFFF == 1:
            return found[1]
        return found[0] if found else None

    def _write(self, number: int, turn: int, offset: int) -> None:
        slot = self._at(number)
        cell = offset.to_bytes(8, "little") + (turn & 0xFFFFFFFF).to_bytes(4, "little")
        cell += plane.crc32c(bytes(slot[:4]) + cell).to_bytes(4, "little")
        at = READERS_CELLS + CELL * (turn & 1)
        slot[at : at + CELL] = cell

    def _free_slot(self, reading: "frozenset[str]") -> int:
        """A slot for a new reader.  If there is none, one that does not read now is forgotten: the one that began
        longest ago of those that never acknowledged, or have a made-up name.  Raises OSError if all
        others are services, which would skip messages."""
        taken = set(self._slots.values())
        for number in range(1, READERS_SLOTS):
            if number not in taken:
                return number
        idle = [
            (self._since(number), name) for name, number in self._slots.items()
            if name not in reading and (MADE_UP.fullmatch(name) or not self._has_moved(number))
        ]  # fmt: skip
        if not idle:
            raise OSError(
                f"all {READERS_SLOTS - 1} places are taken by readers that read now or have acknowledged messages; "
                "'brokerctl stream delete' makes room"
            )
        _, name = min(idle)
        log.warning("%s: there is no room for one more reader; reader '%s' is forgotten", self._stream, name)
        number = self._slots[name]
        self.forget(name)
        return number

    def _has_moved(self, number: int) -> bool:
        """Whether the reader, or an operator, has moved the offset since the reader was new."""
        cell, began = self._cell(number), bytes(self._at(number)[READERS_BEGAN : READERS_BEGAN + 8])
        return cell is not None and cell[1] != int.from_bytes(began, "little")

    def _since(self, number: int) -> int:
        return int.from_bytes(self._at(number)[READERS_SINCE : READERS_SINCE + 8], "little")

    def _missed(self, number: int) -> tuple[int, int]:
        """(missed, counted) of the newer whole cell, which the plane writes: the count only rises."""
        slot, found = bytes(self._at(number)), (0, 0)
        for at in (READERS_MISSED, READERS_MISSED + READERS_MISSED_CELL.size):
            missed, counted, _, crc = READERS_MISSED_CELL.unpack_from(slot, at)
            if crc == plane.crc32c(slot[:4] + slot[at : at + READERS_MISSED_CELL.size - 4]):
                found = max(found, (missed, counted))
        return found

    # --- readers

    def offset(self, name: str) -> int | None:
        """The lowest offset that the reader has not acknowledged; None: it is unknown."""
        number = self._slots.get(name)
        cell = None if number is None else self._cell(number)
        return None if cell is None else cell[1]

    def claim(self, name: str, begins: int, now: int, reading: "frozenset[str]" = frozenset()) -> Slot:
        """The slot of a reader that begins to read.  A new one is kept from ``begins`` on.  Acks for deliveries of a
        former reader of the name move the offset no more.  ``reading``: names that read now."""
        former = self.offset(name)
        number, turn = self._put(name, begins if former is None else former, reading)
        self._at(number)[READERS_SINCE : READERS_SINCE + 8] = now.to_bytes(8, "little")
        if former is None:
            self._at(number)[READERS_BEGAN : READERS_BEGAN + 8] = begins.to_bytes(8, "little")
            self._sync()
        return Slot(self._at(number), turn & 0xFFFFFFFF, former)

    def _put(self, name: str, offset: int, reading: "frozenset[str]" = frozenset()) -> tuple[int, int]:
        number = self._slots.get(name)
        if number is None:
            octets = name.encode("utf-8", "surrogateescape")
            number = self._free_slot(reading)
            slot = self._at(number)
            slot[:] = bytes(READERS_SLOT)
            slot[READERS_NAME] = len(octets)
            slot[READERS_NAME + 1 : READERS_NAME + 1 + len(octets)] = octets
            slot[:4] = _name_crc(octets).to_bytes(4, "little")
            self._slots[name] = number
        cell = self._cell(number)
        turn = (self._turns.get(number, 0) if cell is None else cell[0]) + 1
        self._write(number, turn, offset)
        return number, turn

    def set(self, name: str, offset: int, reading: "frozenset[str]" = frozenset()) -> None:
        """Keep another offset for a reader, on the disk when this returns.  ``reading``: names that read now."""
        number, _ = self._put(name, offset, reading)
        self._at(number)[READERS_BEGAN : READERS_BEGAN + 8] = bytes(8)
        self._sync()

    def forget(self, name: str) -> bool:
        """Keep no offset for a reader.  False: it was unknown."""
        number = self._slots.pop(name, None)
        if number is None:
            return False
        cell = self._cell(number)
        if cell is not None:
            self._turns[number] = cell[0]
        self._at(number)[:] = bytes(READERS_SLOT)
        self._sync()
        return True

    def readers(self) -> list[TrackedReader]:
        """All readers whose offsets are kept, by name."""
        rows = []
        for name, number in sorted(self._slots.items()):
            cell = self._cell(number)
            if cell is not None:
                rows.append(TrackedReader(name, cell[1], self._since(number), *self._missed(number)))
        return rows

    def lower(self, next_seq: int) -> None:
        """After a start: no offset is beyond the next one, which a power cut may have taken back."""
        for reader in self.readers():
            if reader.offset > next_seq:
                self.set(reader.name, next_seq)


def exists(directory: str) -> bool:
    """Whether the stream in that folder keeps offsets."""
    return os.path.exists(os.path.join(directory, READERS_FILE))


def _name_crc(octets: bytes) -> int:
    return plane.crc32c(bytes((len(octets),)) + octets)
