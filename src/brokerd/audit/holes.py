"""Finds sequence numbers that are missing without a reason, and numbers that stand in two segments: ``holes``.

Judges all levels of a queue together.  Retention explains a missing number (order.jsonl says so), and so does
compaction: it takes settled records out of a segment, whose generation is then above 0, and the journal beside it shows
that they were settled.  If that journal has gaps, the number is a doubt; without a journal compaction explains it.  A
message that was not settled when a broker was killed is a doubt as well: it may have been settled just then.

A queue without an order journal removes settled segments without a trace, so there a missing number is a doubt and not
a hole.  A number from before a loss of power is also a doubt,
because its message may never have been confirmed.  So is a number around a segment with a damaged header (``hidden``).

Judges slices of sequence numbers one after the other, so that memory does not grow with the queue.  Skips numbers that
are far from all segments, so that a damaged number does not cost time.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from brokerd.audit.arrays import Numbers, mark, numbers, ranges_of
from brokerd.audit.files import FOREVER, QueueFiles
from brokerd.audit.hidden import around_spoiled_headers
from brokerd.audit.scan import Summary

SLICE = 1 << 23
RANGES_MAX = 10_000             # ranges that are reported


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
    ranges = _Ranges(queue, levels, summaries)
    count = checked = 0
    missing: list[tuple[int, int]] = []
    twice: list[int] = []
    for base, end, is_empty in _areas(first, last + 1, [s.numbers for s in there] + ranges.sets, slice_size):
        if is_empty:
            absent, doubtful = ranges.without_reason(base, end - 1)
            checked, count = checked + _total(absent) + doubtful, count + _total(absent)
            _extend(missing, absent)
            continue
        present, more = np.zeros(end - base, bool), np.zeros(end - base, bool)
        for s in there:
            _mark_again(present, more, base, s.numbers)
        count += int(np.count_nonzero(more))
        twice += (np.flatnonzero(more)[:RANGES_MAX - len(twice)] + base).tolist()
        flags = ~present
        ranges.clear(flags, base)
        checked += int(np.count_nonzero(present)) + int(np.count_nonzero(flags))
        ranges.doubt(flags, base)
        count += int(np.count_nonzero(flags))
        if len(missing) < RANGES_MAX and flags.any():
            _extend(missing, ranges_of(flags, base))
    doubts = ranges.doubts()
    if not count and any("records" in d.matters for d in (*queue.damage, *(d for s in summaries for d in s.damage))):
        doubts.append("records are missing or damaged")
    return Holes(count, checked, missing[:RANGES_MAX], doubts, twice)


def segments_of(levels: dict[int, list[Summary]], seq: int) -> list[Summary]:
    """The segments that hold this number."""
    found = []
    for s in (s for level in levels.values() for s in level):
        there = np.zeros(1, bool)
        mark(there, seq, s.numbers)
        if there[0]:
            found.append(s)
    return found


def _mark_again(present: np.ndarray, more: np.ndarray, base: int, these: Numbers) -> None:
    """Set the flags of ``these`` in ``present``, and in ``more`` those that were set already."""
    low, high = max(these.first - base, 0), min(these.last + 1 - base, present.size)
    if low >= high:
        return
    own = np.zeros(high - low, bool)
    mark(own, base + low, these)
    more[low:high] |= present[low:high] & own
    present[low:high] |= own


class _Ranges:
    """Why a number may be missing: ranges of numbers, and sets of them."""

    def __init__(self, queue: QueueFiles, levels: dict[int, list[Summary]], summaries: list[Summary]) -> None:
        compacted = [s for s in summaries if s.generation and s.begun is not None]
        self.legal = [(line["first_seq"], line["last_seq"]) for line in queue.removed] + _compactions(
            levels, lambda s: s.begun is None)
        self.explained = [s.explained for s in compacted]
        self.unknown = _unknown(levels)
        self.gappy = _compactions(levels, lambda s: s.begun is not None and not s.journal_is_whole)
        self.cut_off = _cut_off(summaries, compacted)
        self.lost = _lost([s for s in summaries if s.numbers.last >= s.numbers.first])
        self.spoiled = around_spoiled_headers(levels)
        self.gone = [(0, FOREVER)] if any(s.gone for s in summaries) else []
        self._doubtful = dict.fromkeys(("unknown", "gappy", "cut_off", "lost", "spoiled", "gone"), 0)

    @property
    def sets(self) -> list[Numbers]:
        """Those that are no ranges."""
        return [*self.explained, self.cut_off]

    def without_reason(self, first: int, last: int) -> tuple[list[tuple[int, int]], int]:
        """What is left, for no known reason, of numbers that no segment has and no set; and how many are in doubt."""
        absent, doubtful = _left([(first, last)], self.legal), 0
        for name in self._doubtful:
            why = getattr(self, name)
            if not isinstance(why, Numbers):
                left = _left(absent, why)
                self._doubtful[name] += _total(absent) - _total(left)
                doubtful += _total(absent) - _total(left)
                absent = left
        return absent, doubtful

    def clear(self, absent: np.ndarray, base: int) -> None:
        """Clear the flags of numbers that retention or compaction took."""
        _clear(absent, base, self.legal)
        for these in self.explained:
            _clear_these(absent, base, these)

    def doubt(self, absent: np.ndarray, base: int) -> None:
        """Clear the flags of numbers that the files cannot decide, and count them."""
        for name in self._doubtful:
            why = getattr(self, name)
            self._doubtful[name] += (_clear_these if isinstance(why, Numbers) else _clear)(absent, base, why)

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
        return said + (["segments were removed while they were read"] if self.gone else [])


def _areas(first: int, end: int, there: list[Numbers], slice_size: int) -> Iterator[tuple[int, int, bool]]:
    """Cut the numbers from ``first`` up to ``end`` into (first, end, whether none of these is there).

    Areas with numbers have at most ``slice_size``.  Others may be larger than memory: a damaged record may have any
    number.
    """
    at = first
    for start, stop in _runs(there, slice_size):
        start, stop = max(start, at), min(stop, end)
        if start >= stop:
            continue
        if at < start:
            yield at, start, True
        for at in range(start, stop, slice_size):
            yield at, min(at + slice_size, stop), False
        at = stop
    if at < end:
        yield at, end, True


def _runs(there: list[Numbers], slice_size: int) -> list[tuple[int, int]]:
    """(First, end) of areas in which there are numbers, in order.  Gaps smaller than a slice are part of them."""
    runs: list[tuple[int, int]] = []
    for these in there:
        if these.bits is not None:
            runs.append((these.first, these.last + 1))
            continue
        wide = np.flatnonzero(these.starts[1:] - these.stops[:-1] >= slice_size)
        starts = np.append(these.starts[:1], these.starts[1:][wide])
        stops = np.append(these.stops[:-1][wide], these.stops[-1:])
        runs += zip(starts.tolist(), stops.tolist(), strict=True)
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(runs):
        if joined and start - joined[-1][1] < slice_size:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def _left(ranges: list[tuple[int, int]], taken: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges without the ranges ``taken``; both ends are part of a range."""
    for low, high in taken:
        ranges = [part for start, stop in ranges for part in ((start, min(stop, low - 1)), (max(start, high + 1), stop))
                  if part[0] <= part[1]] if low <= high else ranges
    return ranges


def _total(ranges: list[tuple[int, int]]) -> int:
    return sum(stop - start + 1 for start, stop in ranges)


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


def _clear(flags: np.ndarray, base: int, ranges: list[tuple[int, int]]) -> int:
    """Clear the flags of these ranges, and return how many were set."""
    cleared = 0
    for start, stop in ranges:                          # Both ends are part of a range.
        low, high = max(start - base, 0), min(stop + 1 - base, flags.size)
        if low < high:
            cleared += int(np.count_nonzero(flags[low:high]))
            flags[low:high] = False
    return cleared


def _clear_these(flags: np.ndarray, base: int, these: Numbers) -> int:
    """Clear the flags of these numbers, and return how many were set."""
    low, high = max(these.first - base, 0), min(these.last + 1 - base, flags.size)
    if low >= high:
        return 0
    own = np.zeros(high - low, bool)
    mark(own, base + low, these)
    cleared = int(np.count_nonzero(flags[low:high] & own))
    flags[low:high] &= ~own
    return cleared


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
