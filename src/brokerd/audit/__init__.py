"""Reads and judges segments from outside the broker: for Spark jobs, inspection, tracing.  See ``layout``, ``files``.

This package needs numpy, and of brokerd only ``store.format`` and ``store.reading``.  So a Spark worker needs only a
zip of this package, ``brokerd/__init__.py`` and ``brokerd/store/{__init__,format,reading}.py``.  A worker that has the
compiled plane checks sums faster.

In this package and in ``brokerd.spark``, *journal* means the order journal.
"""

import os
from datetime import UTC, datetime


def many(count: int, thing: str) -> str:
    """``1 queue``, ``1,234 queues``."""
    return f"{count:,} {thing}{'s' if count != 1 else ''}"


def moment(ns: int | None) -> str:
    """A time in ns since the epoch as UTC, to the microsecond; ``–`` for none."""
    if not ns:
        return "–"
    try:
        return datetime.fromtimestamp(ns // 10 ** 9, UTC).strftime("%Y-%m-%d %H:%M:%S") + f".{ns % 10 ** 9 // 1000:06d}"
    except (ValueError, OverflowError, OSError):
        return f"{ns} ns"       # A damaged record may have any number.


def octets(number: float | None) -> str:
    """Octets in words: ``1.2 MB``; ``–`` for None."""
    if number is None:
        return "–"
    for size, unit in ((10 ** 12, "TB"), (10 ** 9, "GB"), (10 ** 6, "MB"), (10 ** 3, "kB")):
        if number >= 0.9995 * size:         # 999.6 kB would be 1e+03 kB.
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


def clean(name: str) -> str:
    """A name in a form that other programs can hold: replacement characters stand for octets that are not UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def are_two_files(one: str, other: str) -> bool:
    """Whether two paths are names of two files.  They are not if one is gone: a broker moves files, so that their names
    are found at both places, one after the other."""
    try:
        return not os.path.samefile(one, other)
    except OSError:
        return False


class AuditError(Exception):
    """The files cannot be read at all; the text is one line for the user."""


class NoSuchQueueError(AuditError):
    """No queue matches the pattern that the user gave."""
