"""Judges the acks entries that say that a queue or a group has stopped at a message: a part of ``stop_kept``.

A queue without message groups tells its stop in the journal before it writes such an entry.  So an entry without that
event is no broker's.  A message group's entry comes first, and its event may be that of another message of the group:
one that was at the front when the group was parked.  So a group whose acks stop it, and of which no event tells that,
is in doubt if a kill may have come between the two, or if that event may be gone with its segment.
"""

from typing import NamedTuple

import numpy as np

from brokerd.audit.segment import SegmentData
from brokerd.audit.spells import Spells
from brokerd.store import format as layout

WORDS = "stopped its queue or group by the acks, and not by the journal"


class Parked(NamedTuple):
    """The messages at which something has stopped by their acks: columns.  ``lacks``: more often than by their own
    events; ``group``: a hash, 0: none; ``place``: of the record; ``segment``: the index of its summary."""

    seq: np.ndarray
    group: np.ndarray
    lacks: np.ndarray
    place: np.ndarray
    published: np.ndarray
    segment: np.ndarray


def parked(data: SegmentData, record: np.ndarray, known: Spells, group: np.ndarray,
           noted: tuple[np.ndarray, np.ndarray], aside: np.ndarray, number: int) -> Parked:
    """Those of one segment, in each of their spells that is sure.

    ``record``, ``group``: of each spell; ``noted``: entries, and the spell of each; ``aside``: that of each of
    data.aside."""
    entries, row = noted
    count = np.bincount(row[entries["kind"] & 0x0F == layout.PARKED], minlength=known.seq.size)
    told = aside[(data.aside["type"] == layout.PARKED_EVENT) & (aside >= 0)]
    events = np.bincount(told, minlength=known.seq.size)
    some = np.flatnonzero(known.sure & (count > 0) & (record >= 0))
    return Parked(known.seq[some], group[some], count[some] > events[some], data.positions[record[some]],
                  data.headers["ts"][record[some]].astype(np.int64), np.full(some.size, number))


def untold(rows: Parked, told: np.ndarray, lives: int, *, grouped: bool, whole: bool) -> tuple[np.ndarray, int]:
    """The rows of which the journal tells nothing, and how many more groups that may be true of.

    ``told``: the groups that events have stopped; ``lives``: how many lives of a broker have ended, or may be going on;
    ``whole``: the journals have all that ever happened.
    """
    if not grouped:
        return np.flatnonzero(rows.lacks), 0
    lacking = np.flatnonzero((rows.group != 0) & ~np.isin(rows.group, told))
    groups = np.unique(rows.group[lacking]).size
    if groups > lives and whole:
        return lacking, 0
    return lacking[:0], groups
