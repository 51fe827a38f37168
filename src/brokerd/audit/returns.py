"""The stretches in which messages that had come back lie ready: ``waits``, for the audit ``returned_first``.

A message waits from its return, its replay, or the start of a broker that found it out, until it goes
out again.  A message that ends otherwise does not count: its end may be older than the event that tells of it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from brokerd.audit import replayed
from brokerd.audit.files import FOREVER, Rule
from brokerd.audit.lifecycle import Lives
from brokerd.audit.segment import SegmentData
from brokerd.store import format as layout


class Waits(NamedTuple):
    """Columns: the message, since when and until when it waits (FOREVER: to the end), and time and place of the event
    by which it began."""

    seq: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    ts: np.ndarray
    place: np.ndarray


def waits(data: SegmentData, life: Lives) -> Waits:
    """All stretches of a segment that the journal shows."""
    # A message that dies at its limit or of age has no end yet while its dead letter is being stored.
    may_be_dying = any(rule.dead_letters for rule in data.triple.rules)
    first = _waits(life.seq[life.of], life.ts, life.type, life.run, life.last, data, may_be_dying)
    which = first & life.covered[life.of]
    found = _columns(life.seq[life.of], life.ts, life.type, life.run, life.last, data.event_places[life.event],
                     data.runs, which)
    if not data.events_again.size:
        return found
    e = replayed.events_of(data)
    last = np.append(e.head[1:], True)
    which = _waits(e.seq, e.ts, e.type, e.run, last, data, may_be_dying) & e.judged
    again = _columns(e.seq, e.ts, e.type, e.run, last, e.place, data.runs, which)
    return Waits(*(np.concatenate(both) for both in zip(found, again, strict=True)))


def _waits(seq: np.ndarray, ts: np.ndarray, type_: np.ndarray, run: np.ndarray, last: np.ndarray, data: SegmentData,
           may_be_dying: bool) -> np.ndarray:
    """At which events (sorted by message and time) such a stretch begins."""
    back = ((type_ == layout.RETURNED) & ~_may_wait(ts, data.triple.rules)) | (type_ == layout.EVENT_REPLAYED)
    ends = _to_delivery(type_, last) | (last & (not may_be_dying))
    return (back | _cut(type_, run, last, data.runs.size)) & ends


def _columns(seq: np.ndarray, ts: np.ndarray, type_: np.ndarray, run: np.ndarray, last: np.ndarray, place: np.ndarray,
             starts: np.ndarray, which: np.ndarray) -> Waits:
    since, cut = ts.copy(), _cut(type_, run, last, starts.size)
    if starts.size:
        since[cut] = starts[run[cut]]
    until = np.where(_to_delivery(type_, last), np.append(ts[1:], 0)[:ts.size], FOREVER)
    return Waits(seq[which], since[which], until[which], ts[which], place[which])


def _to_delivery(type_: np.ndarray, last: np.ndarray) -> np.ndarray:
    return np.append(type_[1:] == layout.DELIVERED, False)[:type_.size] & ~last


def _cut(type_: np.ndarray, run: np.ndarray, last: np.ndarray, starts: int) -> np.ndarray:
    """Deliveries that were out when the broker's life ended."""
    following = np.append(run[1:], starts)[:run.size]
    following[last] = starts
    return (type_ == layout.DELIVERED) & (run < following)


def _may_wait(ts: np.ndarray, rules: Sequence[Rule]) -> np.ndarray:
    """At which times the settings let a message wait that returned then."""
    found = np.zeros(ts.size, bool)
    for k, rule in enumerate(rules):
        if rule.retry or rule.stops:
            start, stop = rule.at if k else 0, rules[k + 1].at if k + 1 < len(rules) else FOREVER
            found |= (ts >= start) & (ts < stop)
    return found
