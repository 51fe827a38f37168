"""Finds sequence numbers that are missing without a reason, and numbers that stand in two segments: ``holes``.

Judges all levels of a queue together.  Retention explains a missing number (order.jsonl says so), and so does
compaction: it takes settled records out of a segment, whose generation is then above 0, and the journal beside it shows
that they were settled.  If that journal has gaps, the number is a doubt; without a journal compaction explains it.  A
message that was not settled when a broker was killed is a doubt as well: it may have been settled just then.

A queue without an order journal removes settled segments without a trace, so there a missing number is a doubt and not
a hole.  A number from before a loss of power is also a doubt,
because its message may never have been confirmed.  So is a number around a segment with a damaged header (``hidden``).

Judges ranges of numbers, unless they are short: a piece between two neighbouring ends of ranges is all there or all
absent, and has one reason.  So a damaged record, which may have any number, costs no more than another one.  Judges
slices with about as many ends each, so that memory does not grow with the queue.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np

from brokerd.audit.arrays import Numbers, contains, flags_within, numbers, ranges_within
from brokerd.audit.files import FOREVER, QueueFiles
from brokerd.audit.hidden import around_spoiled_headers
from brokerd.audit.scan import Summary

SLICE = 1 << 21                 # ends of ranges that are judged at once
RANGES_MAX = 10_000             # ranges that are reported
DENSE = 4                       # numbers for each end of a range, up to which they are judged one by one
_CHUNK = 1024                   # ends of ranges that fall into one slice together


class Holes(NamedTuple):
    """``missing``: (first, last) of each hole, at most ``RANGES_MAX``; ``twice``: numbers that stand in several
    segments, at most as many; ``found``: how many are in holes or stand twice; ``checked``: how many should be
    there."""

    found: int
    checked: int
    missing: list[tuple[int, int]]
    doubts: list[str]
    twice: list[int]


def holes(queue: QueueFiles, levels: dict[int, list[Summary]], *, clipped: bool = False,
          slice_size: int = SLICE) -> Holes:
    """Find the holes.  ``clipped``: the summaries cover a part of the queue, so its ends say nothing."""
    summaries = [s for level in levels.values() for s in level]
    there = [s for s in summaries if s.numbers.last >= s.numbers.first]
    first = min((min(s.numbers.first, s.base_seq or s.numbers.first) for s in there), default=0)
    last = max((s.numbers.last for s in there), default=-1)
    if clipped:
        first = min((s.numbers.first for s in there), default=0)
    elif there:
        first, last = _promised(queue.manifest or {}, first, last)
    reasons = _Reasons(queue, levels, summaries)
    count = checked = 0
    missing: list[tuple[int, int]] = []
    twice: list[int] = []
    sets = [s.numbers for s in there]
    every = [*sets, *reasons.sets]
    for base, end, ends in _slices(first, min(last + 1, FOREVER), every, slice_size):
        pieces = _Singles(base, end) if end - base <= DENSE * ends else _Pieces(base, end, every)
        present = pieces.cover(sets)
        count += pieces.total(present > 1)
        twice += pieces.numbers(present > 1, RANGES_MAX - len(twice))
        absent = (present == 0) & (pieces.cover(reasons.legal) == 0)
        checked += pieces.total(absent | (present > 0))
        reasons.doubt(absent, pieces)
        count += pieces.total(absent)
        if len(missing) < RANGES_MAX:
            _extend(missing, pieces.ranges(absent, RANGES_MAX))
    doubts = reasons.doubts()
    if not count and any("records" in d.matters for d in (*queue.damage, *(d for s in summaries for d in s.damage))):
        doubts.append("records are missing or damaged")
    return Holes(count, checked, missing[:RANGES_MAX], doubts, twice)


def segments_of(levels: dict[int, list[Summary]], seq: list[int]) -> dict[int, list[Summary]]:
    """The segments that hold each of these numbers, which rise."""
    wanted, found = np.array(seq, np.int64), dict[int, list[Summary]]()
    for s in (s for level in levels.values() for s in level):
        for number in wanted[contains(s.numbers, wanted)].tolist():
            found.setdefault(number, []).append(s)
    return found


class _Pieces:
    """The numbers from ``base`` up to ``end``, cut where any of the sets begins or ends."""

    def __init__(self, base: int, end: int, sets: list[Numbers]) -> None:
        self.base, self.end = base, end
        ends = [column for one in sets for column in ranges_within(one, base, end)]
        self.points = np.unique(np.concatenate([*ends, np.array([base, end], np.int64)]))
        self.sizes = np.diff(self.points).view(np.uint64)       # A piece may have more than 1 << 63.

    def cover(self, sets: list[Numbers]) -> np.ndarray:
        """How many of these sets have each piece."""
        starts, stops = self._within(sets)
        size = self.points.size
        changes = np.bincount(np.searchsorted(self.points, starts), minlength=size)
        changes -= np.bincount(np.searchsorted(self.points, stops), minlength=size)
        return np.cumsum(changes[:-1])

    def total(self, which: np.ndarray) -> int:
        """How many numbers these pieces have."""
        return int(self.sizes[which].sum())

    def ranges(self, which: np.ndarray, at_most: int) -> list[tuple[int, int]]:
        """The (first, last) number of each run of these pieces."""
        edges = np.flatnonzero(np.diff(which, prepend=False, append=False)).reshape(-1, 2)[:at_most]
        return [(start, stop - 1) for start, stop in self._numbers(edges).tolist()]

    def numbers(self, which: np.ndarray, at_most: int) -> list[int]:
        """The first numbers of these pieces."""
        ranges = self.ranges(which, at_most)
        return list(islice((number for first, last in ranges for number in range(first, last + 1)), at_most))

    def _within(self, sets: list[Numbers]) -> list[np.ndarray]:
        both = [ranges_within(one, self.base, self.end) for one in sets]
        return [np.concatenate([np.zeros(0, np.int64), *(columns[k] for columns in both)]) for k in (0, 1)]

    def _numbers(self, pieces: np.ndarray) -> np.ndarray:
        return self.points[pieces]


class _Singles(_Pieces):
    """The same where the sets begin and end so often that each number may as well be a piece."""

    def __init__(self, base: int, end: int) -> None:
        self.base, self.end = base, end

    def cover(self, sets: list[Numbers]) -> np.ndarray:
        count = np.zeros(self.end - self.base, np.int32)
        starts, stops = self._within([one for one in sets if one.bits is None])
        if starts.size:
            changes = np.bincount(starts - self.base, minlength=count.size + 1)
            changes -= np.bincount(stops - self.base, minlength=count.size + 1)
            np.cumsum(changes[:-1], out=count)
        for one in sets:
            low, high = max(one.first, self.base), min(one.last + 1, self.end)
            if one.bits is not None and low < high:
                count[low - self.base:high - self.base] += flags_within(one, low, high)
        return count

    def total(self, which: np.ndarray) -> int:
        return int(np.count_nonzero(which))

    def _numbers(self, pieces: np.ndarray) -> np.ndarray:
        return pieces + self.base


class _Reasons:
    """Why a number may be missing: sets of numbers."""

    def __init__(self, queue: QueueFiles, levels: dict[int, list[Summary]], summaries: list[Summary]) -> None:
        compacted = [s for s in summaries if s.generation and s.begun is not None]
        removed = [(line["first_seq"], line["last_seq"]) for line in queue.removed]
        unjournaled = _compactions(levels, lambda s: s.begun is None)
        self.legal = [_set(removed + unjournaled), *(s.explained for s in compacted)]
        gappy = _compactions(levels, lambda s: s.begun is not None and not s.journal_is_whole)
        self._doubts = {
            "unknown": _set(_unknown(levels)), "gappy": _set(gappy), "cut_off": _cut_off(summaries, compacted),
            "lost": _set(_lost([s for s in summaries if s.numbers.last >= s.numbers.first])),
            "spoiled": _set(around_spoiled_headers(levels)),
            "gone": _set([(0, FOREVER)] if any(s.gone for s in summaries) else [])}
        self._doubtful = dict.fromkeys(self._doubts, 0)
        self._gone = any(s.gone for s in summaries)

    @property
    def sets(self) -> list[Numbers]:
        """All of them."""
        return [*self.legal, *self._doubts.values()]

    def doubt(self, absent: np.ndarray, pieces: _Pieces) -> None:
        """Clear the flags of pieces that the files cannot decide, and count their numbers."""
        for name, why in self._doubts.items():
            doubtful = absent & (pieces.cover([why]) > 0)
            self._doubtful[name] += pieces.total(doubtful)
            absent &= ~doubtful

    def doubts(self) -> list[str]:
        """The counts, in words."""
        words = {"unknown": "numbers are absent where settled segments were removed without a trace, for want of an "
                            "order journal",
                 "gappy": "numbers are absent from compacted segments whose journals have gaps",
                 "cut_off": "numbers are absent of messages that were not settled when a broker was killed",
                 "lost": "numbers are absent of messages that were published before power was lost",
                 "spoiled": "numbers are absent around segments whose headers are damaged",
                 "gone": "numbers are absent while segments were removed"}
        said = [f"{count} {words[name]}" for name, count in self._doubtful.items() if count]
        return said + (["segments were removed while they were read"] if self._gone else [])


def _slices(first: int, end: int, sets: list[Numbers], size: int) -> Iterator[tuple[int, int, int]]:
    """Cut the numbers from ``first`` up to ``end`` into slices in which ranges of the sets begin or end about ``size``
    times: (first, end, how often at most)."""
    chunk = min(_CHUNK, size)
    places, weights = [np.array([first])], [np.array([1])]
    for these in sets:
        if these.bits is not None:          # A run of bits begins or ends at most at each of them.
            places.append(these.first + chunk * np.arange((these.last - these.first) // chunk + 1))
            weights.append(np.full(places[-1].size, chunk))
        else:
            places.append(these.starts[::chunk])
            weights.append(np.full(places[-1].size, 2 * min(chunk, these.starts.size)))
    place, weight = np.concatenate(places), np.concatenate(weights)
    inside = (place >= first) & (place < end)
    place, weight = place[inside], weight[inside]
    order = np.argsort(place, kind="stable")
    place, total = place[order], np.cumsum(weight[order])
    cuts = np.unique(place[1:][np.diff(total // size) > 0])
    cuts = cuts[cuts > first]
    upto = np.append(0, total)[np.searchsorted(place, np.append(cuts, end))].tolist()
    borders = [first, *cuts.tolist(), end]
    for start, stop, before, after in zip(borders, borders[1:], [0, *upto], upto, strict=False):
        yield start, stop, after - before


def _set(ranges: Iterable[tuple[int, int]]) -> Numbers:
    """The set of the numbers in these ranges, whatever ends they have; both ends are part of a range."""
    some = sorted((max(start, -FOREVER), min(stop, FOREVER)) for start, stop in ranges if start <= stop)
    joined: list[tuple[int, int]] = []
    for start, stop in some:
        if joined and start <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        elif start <= stop:
            joined.append((start, stop))
    starts, ends = np.array(joined, np.int64).reshape(-1, 2).T
    return Numbers(joined[0][0], joined[-1][1], starts, ends, None) if joined else numbers(starts)


def _extend(missing: list[tuple[int, int]], more: list[tuple[int, int]]) -> None:
    if missing and more and missing[-1][1] + 1 == more[0][0]:
        missing[-1] = (missing[-1][0], more[0][1])
        more = more[1:]
    missing += more


def _promised(manifest: dict[str, Any], first: int, last: int) -> tuple[int, int]:
    """The first and last number that a dump should have: as its manifest says, else ``first`` and ``last``."""
    kept, following = manifest.get("first_kept_seq"), manifest.get("next_seq")
    if isinstance(kept, int) and 0 < kept < first:
        first = kept
    if isinstance(following, int) and last + 1 < following < last + (1 << 40):
        last = following - 1
    return first, last


def _compactions(levels: dict[int, list[Summary]], which: Callable[[Summary], bool]) -> list[tuple[int, int]]:
    """The ranges of those segments from which compaction has taken numbers."""
    ranges = []
    for level in levels.values():
        for k, s in enumerate(level):
            if s.generation and which(s):
                following = level[k + 1].base_seq if k + 1 < len(level) else s.numbers.last + 1
                ranges.append((min(s.base_seq, s.numbers.first), max(following - 1, s.numbers.last)))
    return ranges


def _cut_off(summaries: list[Summary], compacted: list[Summary]) -> Numbers:
    """The numbers that compaction took, and whose last event came before a start of the broker: it may have been killed
    between the entry that settled the message and the event."""
    last = max((int(s.starts.max(initial=0)) for s in summaries), default=0)
    found = [s.unexplained["seq"][s.unexplained["ts"] < last] for s in compacted]
    return numbers(np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64))


def _unknown(levels: dict[int, list[Summary]]) -> list[tuple[int, int]]:
    """Ranges that settled segments may have held, which the queue removed while it wrote no journal."""
    ranges: list[tuple[int, int]] = []
    for level in levels.values():
        several = len(levels) > 1
        if several and not all(_journaled(s) for s in level if s.records):
            return [(0, FOREVER)]                       # A segment of any level may have held the numbers.
        known = [s for s in level if s.numbers.last >= s.numbers.first]
        for before, after in pairwise([None, *known, None]):
            least = before.numbers.last + 1 if before else 0
            most = min(after.numbers.first, after.base_seq or FOREVER) - 1 if after else FOREVER
            witness = before or after
            if least <= most and witness is not None and not _journaled(witness):
                ranges.append((least, most))
    return ranges


def _lost(there: list[Summary]) -> list[tuple[int, int]]:
    """The numbers of all messages that were published before the last loss of power."""
    cut = max((s.power_cut for s in there), default=0)
    if not cut:
        return []
    since = [s.numbers.first if s.first_record_ts > cut else s.after_cut for s in there
             if s.first_record_ts > cut or (s.power_cut == cut and s.after_cut)]
    return [(0, min(since, default=FOREVER) - 1)]


def _journaled(summary: Summary) -> bool:
    """Whether the segments after this one had a journal; order.jsonl lists each such segment that is removed."""
    if summary.begun is None or summary.begun >= summary.last_record_ts:
        return False
    rules = summary.triple.rules
    off = [rule.at for rule in rules if not rule.journal and rule.at > summary.last_record_ts]
    return not off and not any("switched off" in gap.why for gap in summary.gaps)
