"""Judges the messages of a stream, and the offsets that it keeps for its named readers: ``stream``.

    messages        sequence numbers follow one another from the first message that is kept to the last: retention
                    removes whole segments, the oldest first.  A start may pass over numbers of segments
    readers         each slot in use is whole, no offset lies beyond the next message of the stream, and no reader
                    missed more messages than there were
    indexes         each agrees with its segment (``indexes``)

A queue is a stream here if its folder has the file ``readers`` or an index: a small stream without named readers looks
like any other queue, and ``holes`` and ``numbers`` judge it.  No file has the acks of readers, so nothing here could
contradict an offset that is too high but within the stream; the tests of the broker do that.
"""

from typing import NamedTuple

from brokerd.audit import indexes, many
from brokerd.audit.files import QueueFiles, Source
from brokerd.audit.scan import Summary
from brokerd.store import format as layout

CELL = 16  # octets: offset u8, turn u4, CRC u4


class Verdict(NamedTuple):
    """``faults``: number of the message or 0, and what is wrong; ``doubts``: why it is not sure of others."""

    faults: tuple[tuple[int, str], ...]
    checked: int
    doubts: tuple[str, ...]


class Kept(NamedTuple):
    """The slot of one named reader.  ``offset``, ``missed``: None: neither of its cells is whole.  ``counted``: the
    messages before that offset count in ``missed``, or the reader got them."""

    name: str
    offset: int | None
    missed: int | None
    counted: int


def read(source: Source, queue: QueueFiles) -> bytes | None:
    """The file ``readers``; None: it is not there."""
    try:
        return source.read(f"{queue.folder}/{layout.READERS_FILE}")
    except OSError:
        return None


def is_stream(source: Source, queue: QueueFiles) -> bool:
    """Whether the files show that the queue is a stream."""
    return bool(indexes.names(source, queue)) or read(source, queue) is not None


def judge(queue: QueueFiles, summaries: list[Summary], octets: bytes) -> Verdict:
    """The verdict on a stream: its segments by their numbers, and its file ``readers``."""
    ordered = sorted((s for s in summaries if not s.triple.kept), key=lambda s: s.triple.number)
    spoiled = any(s.damage or s.gone for s in ordered) or bool(queue.damage)
    faults = list(_holes(ordered))
    doubts = ["records are missing or damaged"] if spoiled else []
    if spoiled:
        faults = []  # Damage may be what left them out, and has a verdict of its own.
    slots, broken = kept(octets)
    faults += [(0, text) for text in broken]
    last = max((s.numbers.last for s in ordered), default=0)
    live = any(s.triple.cut is not None for s in ordered)  # A broker writes: the offsets were read after the messages.
    for slot in slots:
        if slot.offset is None:
            faults.append((0, f"reader '{slot.name}': neither of its offsets is whole"))
        elif slot.offset > last + 1 and live:
            doubts.append(f"reader '{slot.name}' may have gone on while the messages were read")
        elif slot.offset > last + 1 and not spoiled and ordered:
            faults.append((0, f"reader '{slot.name}' goes on with {slot.offset}, beyond the last message, {last}"))
        if slot.missed is None:
            faults.append((0, f"reader '{slot.name}': neither of its counts of missed messages is whole"))
        elif slot.missed and slot.missed >= slot.counted:
            faults.append((0, f"reader '{slot.name}' missed {slot.missed} messages before offset {slot.counted}"))
        elif slot.counted > last + 1 and not live and not spoiled and ordered:
            text = f"reader '{slot.name}' missed messages up to {slot.counted}, beyond the last one, {last}"
            faults.append((0, text))
    return Verdict(tuple(faults), sum(s.records for s in ordered) + len(slots), tuple(doubts))


def _holes(ordered: list[Summary]) -> list[tuple[int, str]]:
    faults = []
    before: Summary | None = None
    for s in ordered:
        if s.numbers.last < s.numbers.first:
            continue  # It has no message yet.
        if before is not None and s.numbers.first != before.numbers.last + 1:
            gone = s.triple.number - before.triple.number - 1
            text = f"{many(gone, 'segment')} before segment {s.triple.number} are gone, and older ones not"
            faults.append((s.numbers.first, text if gone > 0 else f"follows message {before.numbers.last}"))
        if s.numbers.bits is not None or len(s.numbers.starts) > 1:
            faults.append((s.numbers.first, f"behind it numbers are left out in segment {s.triple.number}"))
        before = s
    return faults


def kept(octets: bytes) -> tuple[list[Kept], list[str]]:
    """The slots in use, and the faults of the file."""
    size = layout.READERS_SLOT * layout.READERS_SLOTS
    if len(octets) < layout.READERS_HEADER.size or not any(octets[: layout.READERS_HEADER.size]):
        return [], []  # It was not written to the end before power was lost: a start makes it anew.
    if layout.READERS_HEADER.unpack_from(octets) != (layout.READERS_MAGIC, layout.READERS_VERSION):
        return [], [f"{layout.READERS_FILE} has another format"]
    slots, broken = [], []
    if len(octets) < size:
        broken.append(f"{layout.READERS_FILE} has {len(octets)} of {size} octets")
    for number in range(1, len(octets) // layout.READERS_SLOT):
        slot = octets[layout.READERS_SLOT * number : layout.READERS_SLOT * (number + 1)]
        length = slot[layout.READERS_NAME]
        if not length:
            continue  # It is free.
        name = slot[layout.READERS_NAME : layout.READERS_NAME + 1 + length]
        if layout.crc32c(name) != int.from_bytes(slot[:4], "little"):
            broken.append(f"slot {number} of {layout.READERS_FILE}: its name is damaged")
            continue
        slots.append(Kept(name[1:].decode("utf-8", "replace"), _offset(slot), *_missed(slot)))
    return slots, broken


def _offset(slot: bytes) -> int | None:
    """Of the newer whole cell."""
    found = []
    for at in (layout.READERS_CELLS, layout.READERS_CELLS + CELL):
        cell = slot[at : at + CELL]
        if layout.crc32c(slot[:4] + cell[:12]) == int.from_bytes(cell[12:], "little"):
            found.append((int.from_bytes(cell[8:12], "little"), int.from_bytes(cell[:8], "little")))
    if len(found) == 2 and (found[1][0] - found[0][0]) & 0xFFFFFFFF == 1:
        return found[1][1]
    return found[0][1] if found else None


def _missed(slot: bytes) -> tuple[int | None, int]:
    """(missed, counted) of the whole cell with the greater count.  One that was never written has zeros."""
    size, found = layout.READERS_MISSED_CELL.size, []
    for at in (layout.READERS_MISSED, layout.READERS_MISSED + size):
        missed, counted, _, crc = layout.READERS_MISSED_CELL.unpack_from(slot, at)
        if not any(slot[at : at + size]) or layout.crc32c(slot[:4] + slot[at : at + size - 4]) == crc:
            found.append((missed, counted))
    return max(found, default=(None, 0))
