"""The layouts of segments and acks as numpy dtypes, for readers that are not the broker.

Needs numpy and ``brokerd.store.format`` (standard library only), so a zip of
``brokerd/__init__.py``, ``brokerd/store/__init__.py``, ``brokerd/store/format.py`` and
``brokerd/audit/`` is all a Spark worker must be sent.  Nothing is defined here: what
is on disk is written down in ``store.format``.
"""

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
    Entries,
    Records,
    acks_dtype,
    acks_name,
    entry_dtype,
    read_entries,
    record_checks,
    record_dtype,
    scan_records,
    segment_dtype,
    segment_name,
    segment_number,
    settled_positions,
)

SEGMENT = segment_dtype()
RECORD = record_dtype()
ACKS = acks_dtype()
ENTRY = entry_dtype()

__all__ = [
    "ACKED", "ACKS", "DEAD_LETTERED", "DROPPED", "ENTRY", "EXPIRED", "HEADER_OCTETS", "LONG_META", "PERSISTENT",
    "PURGED", "RECORD", "REJECTED", "RETURNED", "SEGMENT", "Entries", "Records", "acks_name", "read_entries",
    "record_checks", "scan_records", "segment_name", "segment_number", "settled_positions",
]
