"""Compares what acks and journal say of the next tries of returned messages: a part of ``retry_kept``.

The journal tells the delay, in an event RETRY_SCHEDULED; the acks tell the time, in entries before that of the return.
The event comes first, and kill -9 may strike before the entries: then the next life of the broker does not know of it.
"""

from typing import NamedTuple

import numpy as np

from brokerd.audit.lifecycle import Lives
from brokerd.audit.segment import SegmentData
from brokerd.audit.spells import Spells
from brokerd.store import format as layout

SLACK_NS = 2_000_000            # by so much times may differ: those of entries are in ms, those of events in ns
DELAY_MOST = 0xFFFFFFFF         # An event counts no longer delay.
UNKNOWN, ALIKE, EARLIER, LATER = range(4)   # what the acks say of an event's time
UNTOLD = "waited for its next try by the acks, and not by the journal"
WORDS = "its next try is at another time by the acks"


class Told(NamedTuple):
    """The times of next tries by the entries: columns.  ``row``: of the spell; ``due``: ns."""

    row: np.ndarray
    due: np.ndarray


def told_by_acks(entries: np.ndarray, row: np.ndarray) -> Told:
    """``entries`` by message, and the ``row`` of each."""
    parts = np.arange(layout.RETRY_PARTS)
    ends = np.flatnonzero(entries["kind"] & 0x0F == layout.RETURNED)
    ends = ends[ends >= parts.size]
    before = ends[:, None] + parts - parts.size
    whole = ((row[before] == row[ends][:, None]) & (entries["kind"][before] == (layout.RETRY_TIME | parts << 4))).all(1)
    ms = (entries["count"][before[whole]].astype(np.int64) << 16 * parts).sum(1)
    return Told(row[ends[whole]], ms * 1_000_000)


def said_of(data: SegmentData, known: Spells, aside: np.ndarray, told: Told) -> np.ndarray:
    """What the acks say of each of data.aside, of which ``aside`` is the row.  EARLIER: a clock that was put back may
    explain that, as the times of events are never put back; LATER: nothing explains it."""
    said = np.full(aside.size, UNKNOWN, np.int8)
    which = np.flatnonzero((data.aside["type"] == layout.RETRY_SCHEDULED) & (aside >= 0))
    which = which[known.sure[aside[which]]] if which.size else which
    which = which[np.argsort(aside[which], kind="stable")]
    row, delay = aside[which], data.aside["aux"][which].astype(np.int64)
    due = data.aside["ts"][which].astype(np.int64) + delay * 1_000_000
    said[which[_is_near(row, due, told)]] = ALIKE
    paired = np.bincount(row, minlength=known.seq.size) == np.bincount(told.row, minlength=known.seq.size)
    if data.triple.cut is not None:
        # The acks may tell of a later try, which is cut off, and not of one that a kill had cut off.
        paired &= np.bincount(row[_ends_a_life(data, which)], minlength=known.seq.size) == 0
    which, own, late = which[paired[row]], paired[told.row], paired[row]
    more = told.due[own] - due[late]
    said[which] = np.where((np.abs(more) <= SLACK_NS) | (delay[late] == DELAY_MOST), ALIKE,
                           np.where(more < 0, EARLIER, LATER))
    return said


def begun(data: SegmentData) -> np.ndarray:
    """For each of data.aside the time of the first event of its return: that may stand just before it."""
    ts = data.aside["ts"].astype(np.int64)
    events = np.concatenate((data.events, data.events_again))
    return ts - np.isin(ts - 1, events["ts"][events["type"] == layout.RETURNED])


def _is_near(row: np.ndarray, due: np.ndarray, told: Told) -> np.ndarray:
    """Which of these times are told of the same row, or almost so."""
    rows, times = np.concatenate((row, told.row)), np.concatenate((due, told.due))
    by_acks = np.arange(rows.size) >= row.size
    near = np.zeros(rows.size, bool)
    for sign in (1, -1):                    # The nearest one that the acks tell before each, then behind each.
        order = np.lexsort((sign * times, rows))
        last = np.maximum.accumulate(np.where(by_acks[order], np.arange(order.size), -1))
        found = order[np.maximum(last, 0)]
        near[order] |= (last >= 0) & (rows[found] == rows[order]) & (np.abs(times[found] - times[order]) <= SLACK_NS)
    return near[:row.size]


def _ends_a_life(data: SegmentData, which: np.ndarray) -> np.ndarray:
    """Which of these of data.aside no event of this segment follows in the same life of the broker."""
    times = np.sort(np.concatenate((data.events["ts"], data.events_again["ts"], data.aside["ts"])).astype(np.int64))
    ts = data.aside["ts"][which].astype(np.int64)
    following = np.append(times, np.iinfo(np.int64).max)[np.searchsorted(times, ts, "right")]
    return np.searchsorted(data.runs, following, "right") > np.searchsorted(data.runs, ts, "right")


def untold(data: SegmentData, life: Lives, known: Spells, aside: np.ndarray, told: Told) -> np.ndarray:
    """The rows of which the acks tell more next tries than the journal, which has each of them first.  Of a message
    that has just returned, the cut may have taken the event.  Groups write the time of a try again."""
    events = aside[(data.aside["type"] == layout.RETRY_SCHEDULED) & (aside >= 0)]
    lacks = np.bincount(told.row, minlength=known.seq.size) - np.bincount(events, minlength=known.seq.size)
    if data.triple.cut is not None:
        lacks[known.first[life.of[life.last & (life.type == layout.RETURNED)]]] -= 1
        ends = np.append(known.events.head[1:], True)[:known.events.seq.size]
        of = known.again[ends & (known.events.type == layout.RETURNED)]
        lacks[of[of >= 0]] -= 1
    return np.flatnonzero(known.sure & (lacks > 0))
