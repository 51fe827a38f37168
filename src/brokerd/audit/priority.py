"""Finds deliveries of a priority level while a higher level had a ready message: ``priority``, over a whole queue.

A message is ready from its publish or return until its next delivery: that is a *stretch*.  The number of ready
messages of a level at a time is the number of stretches that have begun minus those that have ended; two sorted arrays
tell both.  A large queue is judged in slices of time.  A segment that lies in several slices is read for each.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from brokerd.audit.files import FOREVER, Source
from brokerd.audit.lifecycle import Lives
from brokerd.audit.replayed import Events, events_of
from brokerd.audit.scan import Options, Pass, Summary
from brokerd.audit.stitch import Findings, read_again
from brokerd.store import format as layout

SLICE = 8_000_000               # records and events in one slice
CACHED = 8                      # segments


class Stretches(NamedTuple):
    """The stretches of one segment: when they begin and end; and its deliveries: time, seq, place."""

    starts: np.ndarray
    ends: np.ndarray
    deliveries: np.ndarray
    seq: np.ndarray
    place: np.ndarray


def stretches(p: Pass) -> Stretches:
    """The ready stretches of those messages that the journal covers from publish to end."""
    life: Lives = p.life
    settles_well = np.isin(life.type, (layout.EXPIRED, layout.DROPPED, layout.PURGED))
    ends_it = p.delivered | settles_well
    # With dead letters, a message without an end may be dying, and not ready: see scan.
    open_counts = not any(rule.dead_letters for rule in p.data.triple.rules)
    # From being published to the first event.
    has_event = np.zeros(life.seq.size, bool)
    has_event[life.of] = True
    head = np.flatnonzero(life.head & ends_it & life.covered[life.of] & (life.published[life.of] > 0))
    starts, ends = [life.published[life.of[head]]], [life.ts[head]]
    if open_counts:
        waiting = np.flatnonzero(~has_event & life.covered & (life.published > 0))
        starts.append(life.published[waiting])
        ends.append(np.full(waiting.size, FOREVER))
    # From returning, or the end of a broker's life, to the next event.
    runs = p.data.runs
    following = np.append(life.run[1:], runs.size)
    following[life.last] = runs.size
    cut = p.delivered & (life.run < following)
    since = life.ts.copy()
    if runs.size:
        since[cut] = runs[life.run[cut]]
    back = ((life.type == layout.RETURNED) | cut) & life.covered[life.of]
    goes_on = np.flatnonzero(back & ~life.last & np.append(ends_it[1:], False))
    starts.append(since[goes_on])
    ends.append(np.append(life.ts[1:], 0)[goes_on])
    if open_counts:
        stays = np.flatnonzero(back & life.last)
        starts.append(since[stays])
        ends.append(np.full(stays.size, FOREVER))
    which = np.flatnonzero(p.delivered)
    deliveries = [(life.ts[which], life.seq[life.of[which]], p.data.event_places[life.event[which]])]
    if p.data.events_again.size:
        e = events_of(p.data)
        more = _since_replays(e, runs, open_counts=open_counts)
        starts.append(more[0])
        ends.append(more[1])
        which = np.flatnonzero(e.judged & (e.type == layout.DELIVERED))
        deliveries.append((e.ts[which], e.seq[which], e.place[which]))
    ts, seq, place = (np.concatenate(column) for column in zip(*deliveries, strict=True))
    order = np.argsort(ts, kind="stable")
    return Stretches(np.sort(np.concatenate(starts)), np.sort(np.concatenate(ends)), ts[order], seq[order],
                     place[order])


def _since_replays(e: Events, runs: np.ndarray, *, open_counts: bool) -> tuple[np.ndarray, np.ndarray]:
    """When the stretches of the messages' later lives begin and end."""
    last = np.append(e.head[1:], True)[:e.seq.size]
    following = np.where(last, runs.size, np.append(e.run[1:], 0)[:e.seq.size])
    cut = (e.type == layout.DELIVERED) & (e.run < following)
    since = e.ts.copy()
    if runs.size:
        since[cut] = runs[e.run[cut]]
    back = e.judged & (cut | np.isin(e.type, (layout.EVENT_REPLAYED, layout.RETURNED)))
    then = np.append(e.type[1:], 0)[:e.seq.size]
    ends_it = np.isin(then, (layout.DELIVERED, layout.EXPIRED, layout.DROPPED, layout.PURGED))
    goes_on, stays = np.flatnonzero(back & ~last & ends_it), np.flatnonzero(back & last & open_counts)
    return (np.concatenate((since[goes_on], since[stays])),
            np.concatenate((np.append(e.ts[1:], 0)[goes_on], np.full(stays.size, FOREVER))))


class _Reader:
    """Reads the stretches of segments, and caches those of the last few segments."""

    def __init__(self, source: Source, options: Options) -> None:
        self._source, self._options = source, options
        self._cache: dict[tuple[int, int], Stretches] = {}

    def get(self, summary: Summary) -> Stretches:
        key = (summary.triple.priority, summary.triple.number)
        found = self._cache.pop(key, None)
        if found is None:
            found = stretches(read_again(self._source, summary, self._options))
        self._cache[key] = found
        if len(self._cache) > CACHED:
            self._cache.pop(next(iter(self._cache)))
        return found


def priority(source: Source, levels: dict[int, list[Summary]], options: Options, findings: Findings,
             slice_size: int = SLICE) -> int:
    """Judge all deliveries of a queue with levels, and return their number."""
    reader, checked = _Reader(source, options), 0
    ready = dict.fromkeys(levels, 0)                    # when the slice begins
    edges = slices([s for level in levels.values() for s in level], slice_size)
    for start, stop in pairwise(edges):
        higher_starts = higher_ends = np.zeros(0, np.int64)
        carried = 0
        for level in sorted(levels, reverse=True):
            parts = [(s, _part(reader.get(s), start, stop)) for s in levels[level]
                     if s.first_ts < stop and s.last_ts >= start]
            for summary, part in parts:
                checked += part.deliveries.size
                count = carried + np.searchsorted(higher_starts, part.deliveries) - np.searchsorted(
                    higher_ends, part.deliveries, "right")
                bad = count > 0
                findings.add(summary, "priority", "journal", "delivered while {a} messages of higher priority waited",
                              part.seq[bad], part.place[bad], part.deliveries[bad], count[bad], count[bad])
            carried += ready[level]
            begun = np.concatenate([np.zeros(0, np.int64), *(part.starts for _, part in parts)])
            ended = np.concatenate([np.zeros(0, np.int64), *(part.ends for _, part in parts)])
            ready[level] += begun.size - ended.size
            higher_starts = np.sort(np.concatenate((higher_starts, begun)))
            higher_ends = np.sort(np.concatenate((higher_ends, ended)))
    return checked


def _part(whole: Stretches, start: int, stop: int) -> Stretches:
    """The part of the stretches that falls into [start, stop)."""
    def cut(times: np.ndarray) -> slice:
        return slice(int(np.searchsorted(times, start)), int(np.searchsorted(times, stop)))

    when = cut(whole.deliveries)
    return Stretches(whole.starts[cut(whole.starts)], whole.ends[cut(whole.ends)], whole.deliveries[when],
                     whole.seq[when], whole.place[when])


def slices(summaries: list[Summary], size: int) -> list[int]:
    """The times that cut the queue's life into slices of about ``size`` records and events each."""
    some = [s for s in summaries if s.records + s.events]
    if not some:
        return [0, FOREVER]
    weight = np.array([s.records + s.events for s in some], np.int64)
    pieces = int(weight.sum() // size) + 1
    ends = np.array([s.last_ts for s in some], np.int64)
    order = np.argsort(ends)
    total = np.cumsum(weight[order])
    cuts = [int(ends[order[min(int(np.searchsorted(total, k * total[-1] // pieces)), order.size - 1)]])
            for k in range(1, pieces)]
    return [0, *sorted(set(cuts)), FOREVER]
