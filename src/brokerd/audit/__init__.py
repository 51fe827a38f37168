"""Reads and judges segments from outside the broker: for Spark jobs, inspection, tracing.  See ``layout``, ``files``.

This package needs numpy, and of brokerd only ``store.format`` and ``store.reading``.  So a Spark worker needs only a
zip of this package, ``brokerd/__init__.py`` and ``brokerd/store/{__init__,format,reading}.py``.  A worker that has the
compiled plane checks sums faster.

In this package and in ``brokerd.spark``, *journal* means the order journal.
"""


def many(count: int, thing: str) -> str:
    """``1 queue``, ``1,234 queues``."""
    return f"{count:,} {thing}{'s' if count != 1 else ''}"


class AuditError(Exception):
    """The files cannot be read at all; the text is one line for the user."""
