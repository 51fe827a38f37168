"""Finds sequence numbers that are missing without a reason, over all levels of a queue together: ``holes``.

Retention explains a missing number (order.jsonl says so), and so does compaction (in a segment of a generation above
0).  A queue without an order journal removes settled segments without a trace, so there a missing number is a doubt and
not a hole.  A number from before a loss of power is also a doubt, because its message may never have been confirmed.

Judges slices of sequence numbers one after the other, so that memory does not grow with the queue.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from brokerd.audit.arrays import mark, ranges_of
from brokerd.audit.files import FOREVER, QueueFiles
from brokerd.audit.scan import Summary

SLICE = 1 << 23
RANGES_MAX = 10_000             # ranges that are reported


class Holes(NamedTuple):
    """``missing``: (first, last) of each hole, at most ``RANGES_MAX``; ``found``: how many numbers are in holes;
    ``checked``: how many numbers should be there."""

    found: int
    checked: int
    missing: list[tuple[int, int]]
    doubts: list[str]


def holes(queue: QueueFiles, levels: dict[int, list[Summary]], *, clipped: bool = False,
          slice_size: int = SLICE) -> Holes:
    """Find the holes.  ``clipped``: the summaries cover a part of the queue, so its ends say nothing."""
    summaries = [s for level in levels.values() for s in level]
    there = [s for s in summaries if s.numbers.last >= s.numbers.first]
    manifest = queue.manifest or {}
    first = min((s.numbers.first for s in there), default=0)
    last = max((s.numbers.last for s in there), default=-1)
    if not clipped and there:
        first, last = _promised(manifest, first, last)
    legal, unknown, lost = _legal(queue, levels), _unknown(levels), _lost(there)
    count = doubtful = maybe_lost = checked = 0
    missing: list[tuple[int, int]] = []
    for base in range(first, last + 1, slice_size):
        size = min(slice_size, last + 1 - base)
        if not any(low < base + size and high >= base for low, high in (
                *((s.numbers.first, s.numbers.last) for s in there), *legal, *unknown, *lost)):
            checked, count = checked + size, count + size       # All numbers of this slice are missing.
            _extend(missing, [(base, base + size - 1)])
            continue
        present = np.zeros(size, bool)
        for s in there:
            mark(present, base, s.numbers)
        absent = ~present
        _clear(absent, base, legal)
        checked += int(np.count_nonzero(present)) + int(np.count_nonzero(absent))
        doubtful += _clear(absent, base, unknown)
        maybe_lost += _clear(absent, base, lost)
        count += int(np.count_nonzero(absent))
        if len(missing) < RANGES_MAX and absent.any():
            _extend(missing, ranges_of(absent, base))
    doubts = []
    if doubtful:
        doubts.append(f"{doubtful} numbers are absent where settled segments were removed without a trace, "
                      "for want of an order journal")
    if maybe_lost:
        doubts.append(f"{maybe_lost} numbers are absent of messages that were published before power was lost")
    if any(s.gone for s in summaries):
        doubts.append("segments were removed while they were read")
    if not count and any("records" in d.matters for d in (*queue.damage, *(d for s in summaries for d in s.damage))):
        doubts.append("records are missing or damaged")
    return Holes(count, checked, missing[:RANGES_MAX], doubts)


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


def _legal(queue: QueueFiles, levels: dict[int, list[Summary]]) -> list[tuple[int, int]]:
    """Ranges in which retention or compaction may have removed numbers."""
    ranges = [(line["first_seq"], line["last_seq"]) for line in queue.removed]
    for level in levels.values():
        for k, s in enumerate(level):
            if s.generation:
                following = level[k + 1].base_seq if k + 1 < len(level) else s.numbers.last + 1
                ranges.append((min(s.base_seq, s.numbers.first), max(following - 1, s.numbers.last)))
    return ranges


def _unknown(levels: dict[int, list[Summary]]) -> list[tuple[int, int]]:
    """Ranges that settled segments may have held, which the queue removed while it wrote no journal."""
    ranges = []
    for level in levels.values():
        several = len(levels) > 1
        if several and not all(_journaled(s) for s in level if s.records):
            return [(0, FOREVER)]                       # A segment of any level may have held the numbers.
        known = [s for s in level if s.numbers.last >= s.numbers.first]
        for before, after in pairwise(known):
            if not _journaled(before) and after.numbers.first > before.numbers.last + 1:
                ranges.append((before.numbers.last + 1, after.numbers.first - 1))
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
