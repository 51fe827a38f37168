"""The layouts of segments, acks and journals as numpy dtypes, for readers outside the broker.

Needs numpy, ``brokerd.store.format`` and ``brokerd.store.reading``, which need only the standard library and numpy.  So
a Spark worker needs only a zip of ``brokerd/__init__.py``, these two with ``brokerd/store/__init__.py``, and
``brokerd/audit/``.  ``store.format`` describes the files.
"""

from functools import cache

import numpy as np

from brokerd.store.format import (
    ACKED,
    DEAD_LETTERED,
    DROPPED,
    EXPIRED,
    HEADER_OCTETS,
    LONG_META,
    PERSISTENT,
    PURGED,
    REJECTED,
    RETURNED,
    acks_name,
    crc32c,
    journal_name,
    segment_name,
    segment_number,
)
from brokerd.store.reading import (
    Entries,
    Records,
    acks_dtype,
    entry_dtype,
    event_dtype,
    journal_dtype,
    read_entries,
    record_checks,
    record_dtype,
    scan_records,
    segment_dtype,
    settled_positions,
)

SEGMENT = segment_dtype()
RECORD = record_dtype()
ACKS = acks_dtype()
ENTRY = entry_dtype()
JOURNAL = journal_dtype()
EVENT = event_dtype()

__all__ = [
    "ACKED", "ACKS", "DEAD_LETTERED", "DROPPED", "ENTRY", "EVENT", "EXPIRED", "HEADER_OCTETS", "JOURNAL", "LONG_META",
    "PERSISTENT", "PURGED", "RECORD", "REJECTED", "RETURNED", "SEGMENT", "Entries", "Records", "acks_name",
    "event_checks", "event_crcs", "journal_name", "read_entries", "record_checks", "scan_records", "segment_name",
    "segment_number", "settled_positions",
]


@cache
def _halves() -> tuple[np.ndarray, np.ndarray]:
    """Tables of the raw CRC32C of four octets, one by their low and one by their high 16 bits."""
    low = np.arange(1 << 16, dtype=np.uint32)
    states = np.concatenate((low, low << np.uint32(16)))
    for _ in range(32):
        states = states >> np.uint32(1) ^ (states & np.uint32(1)) * np.uint32(0x82F63B78)
    return states[:1 << 16], states[1 << 16:]


def event_crcs(events: np.ndarray, number: int) -> np.ndarray:
    """The crc (u4) that each of ``events`` must have in the journal of segment ``number``."""
    low, high = _halves()
    words = np.ascontiguousarray(events).view("<u4").reshape(-1, 8)
    state = np.full(len(words), crc32c(number.to_bytes(8, "little")) ^ 0xFFFFFFFF, np.uint32)
    for column in range(7):
        mixed = state ^ words[:, column]
        state = low[mixed & np.uint32(0xFFFF)] ^ high[mixed >> np.uint32(16)]
    return state ^ np.uint32(0xFFFFFFFF)


def event_checks(events: np.ndarray, number: int) -> np.ndarray:
    """Which of ``events`` have the right CRC, as booleans; about 1,000 MB/s."""
    return event_crcs(events, number) == events["crc"]
