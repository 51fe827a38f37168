"""Judges the acks entries that say that a queue or a group has stopped at a message: a part of ``stop_kept``.

A queue without message groups tells its stop in the journal before it writes such an entry.  So an entry without that
event is no broker's.  A message group's entry comes first, and its event may be that of another message of the group:
one that was at the front when the group was parked.  So a group whose acks stop it, and of which no event tells that,
is in doubt if a kill may have come between the two, or if that event may be gone with its segment.
"""

from typing import NamedTuple

import numpy as np

from brokerd.audit.lifecycle import Lives, messages_of, places_of
from brokerd.audit.segment import SegmentData
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


def parked(data: SegmentData, life: Lives, sure: np.ndarray, group: np.ndarray, number: int) -> Parked:
    """Those of one segment, of the messages ``sure``."""
    of = messages_of(data, life.record, data.entries)
    of = of[(data.entries["kind"] & 0x0F == layout.PARKED) & (of >= 0)]
    entries = np.bincount(of, minlength=life.seq.size)
    told = data.aside["seq"][data.aside["type"] == layout.PARKED_EVENT].astype(np.int64)
    place = places_of(life.seq, told)
    events = np.bincount(place[place >= 0], minlength=life.seq.size)
    some = np.flatnonzero(sure & (entries > 0) & (life.record >= 0))
    return Parked(life.seq[some], group[some], entries[some] > events[some], data.positions[life.record[some]],
                  life.published[some], np.full(some.size, number))


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
