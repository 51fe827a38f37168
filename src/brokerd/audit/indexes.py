"""Holds the indexes of a stream's segments against the segments, for the audit ``stream``.

A reader believes an index that is whole: by it the reader finds a place, and skips blocks.  So an index that is wrong
would hide messages.  One that is torn, or of another segment, hides nothing, because no reader uses it: it is passed
over.
The layout: docs/formats.md.
"""

import numpy as np

from brokerd.audit import many, properties
from brokerd.audit.files import QueueFiles, Source
from brokerd.audit.scan import Summary
from brokerd.store import format as layout
from brokerd.store import reading

VALUE = "x-stream-filter-value"
VALUES_AT, ROWS_AT, ROW, CRC_AT = 64, 4160, 64, 52
MULTIPLIER = 0x9E3779B97F4A7C15
WITHOUT_VALUE = 1

Fault = tuple[int, str]  # number of the message, and what is wrong
Row = tuple[int, int, int, int, bytes]  # layout.INDEX_ROW


def names(source: Source, queue: QueueFiles) -> dict[int, str]:
    """The index files of a queue, by the numbers of their segments."""
    try:
        found = source.names(queue.folder)
    except OSError:
        return {}
    rest = {name: name.removeprefix("index.") for name in found if name.startswith("index.")}
    return {int(digits): name for name, digits in rest.items() if digits.isascii() and digits.isdigit()}


def judge(
    source: Source, queue: QueueFiles, summaries: list[Summary], named: dict[int, str]
) -> tuple[list[Fault], int]:
    """The faults of a queue's indexes, and how many were held against their segments."""
    faults: list[Fault] = []
    checked = 0
    for summary in summaries:
        triple = summary.triple
        if triple.kept or triple.number not in named or summary.damage or summary.gone:
            continue
        try:
            index = source.read(f"{queue.folder}/{named[triple.number]}")
            segment = source.read(triple.msgs)
        except OSError:
            continue  # A broker that runs has removed it.
        found = _of_segment(index, segment, triple.number)
        if found is not None:
            checked += 1
            faults += [(seq, f"{named[triple.number]}: {text}") for seq, text in found]
    return faults, checked


def _of_segment(index: bytes, segment: bytes, number: int) -> list[Fault] | None:
    """The fault of an index; None: no reader would use it."""
    rows = rows_of(index)
    if not rows or len(segment) < layout.HEADER_OCTETS:
        return None
    _, _, of, base_seq, created, end, count, *_ = layout.INDEX_HEADER.unpack_from(index)
    header = layout.SEGMENT_HEADER.unpack_from(segment)
    if (of, base_seq, created, end, count) != (number, *header[3:5], header[7], header[9]) or end > len(segment):
        return None
    records = reading.scan_records(segment, end)
    seqs = records.headers["seq"].astype(np.int64)
    if seqs.size != count or records.gaps:
        return None
    faults = [(seq, "a row leads to another place") for seq, ts, position, _, _ in rows
              if not _leads(segment, end, seq, ts, position)]  # fmt: skip
    return faults or _values(index, rows, segment, records, seqs)


def rows_of(index: bytes) -> list[Row]:
    """The rows of a whole index; []: it is not whole."""
    if len(index) <= ROWS_AT:
        return []
    magic, version, *_, count, _, _, crc = layout.INDEX_HEADER.unpack_from(index)
    if (magic, version) != (layout.INDEX_MAGIC, layout.INDEX_VERSION) or len(index) != ROWS_AT + ROW * count:
        return []
    if crc != layout.crc32c(index[VALUES_AT:], layout.crc32c(index[:CRC_AT])):
        return []
    return list(layout.INDEX_ROW.iter_unpack(index[ROWS_AT:]))


def _leads(segment: bytes, end: int, seq: int, ts: int, position: int) -> bool:
    if position % 8 or not layout.HEADER_OCTETS <= position <= end - layout.HEADER_OCTETS:
        return False
    magic = int.from_bytes(segment[position : position + 4], "little")
    there = int.from_bytes(segment[position + 16 : position + 24], "little")
    at = int.from_bytes(segment[position + 24 : position + 32], "little", signed=True)
    return (magic, there, at) == (layout.RECORD_MAGIC, seq, ts)


def _values(index: bytes, rows: list[Row], segment: bytes, records: reading.Records, seqs: np.ndarray) -> list[Fault]:
    """Whether the bits of each message's value are set, and the mark of those without one."""
    found = properties.texts(segment, records, VALUE, header=True)
    is_text = np.frombuffer(segment, np.uint8)[found.start - 5] == ord("S")
    found = found.chosen(np.flatnonzero(is_text))
    block = np.searchsorted(np.array([row[0] for row in rows]), seqs, side="right") - 1
    wrong: set[int] = set()
    known: dict[tuple[int, bytes], bool] = {}
    for at, start, length in zip(found.index.tolist(), found.start.tolist(), found.length.tolist(), strict=True):
        key = (int(block[at]), segment[start : start + length])
        if key not in known:
            known[key] = _has(index, rows[key[0]], key[1])
        if not known[key]:
            wrong.add(at)
    without = np.ones(seqs.size, bool)
    without[found.index] = False
    of_all = layout.INDEX_HEADER.unpack_from(index)[9]
    marked = np.array([bool(row[3] & of_all & WITHOUT_VALUE) for row in rows])
    wrong.update(np.flatnonzero(without & ~marked[block]).tolist())
    if not wrong:
        return []
    first = int(seqs[min(wrong)])
    return [(first, f"it hides {many(len(wrong), 'message')} from readers with a filter")]


def _has(index: bytes, row: Row, value: bytes) -> bool:
    """Whether the bits of a value are set in its block and in the whole segment."""
    h = layout.crc32c(value) * MULTIPLIER % (1 << 64)
    of_row = all(row[4][n >> 3] >> (n & 7) & 1 for n in (h >> 40 & 255, h >> 48 & 255, h >> 56))
    bits = index[VALUES_AT:ROWS_AT]
    return of_row and all(bits[n >> 3] >> (n & 7) & 1 for n in (h >> 19 & 32767, h >> 34 & 32767, h >> 49))
