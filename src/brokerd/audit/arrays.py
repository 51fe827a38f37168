"""Array functions that numpy lacks: counting in ranges, maxima within groups, histograms, sets of sequence numbers.

All are vectorised.  They compare ranks where adding offsets to nanoseconds would overflow.
"""

from typing import NamedTuple

import numpy as np

BUCKETS = 8                     # buckets of a histogram for each power of two
_MANTISSA = 52 - 3


def as_signed(values: np.ndarray) -> np.ndarray:
    """Numbers (u8) as i8; those that it does not have become its highest one, so that they are still above others."""
    return np.minimum(values, np.uint64(np.iinfo(np.int64).max)).astype(np.int64)


def count_above(values: np.ndarray, starts: np.ndarray, stops: np.ndarray, floors: np.ndarray) -> np.ndarray:
    """For each query, how many of ``values[start:stop]`` are above its floor.

    Walks a wavelet matrix: one step for each bit of the values' ranks, which all queries take at once.
    """
    level, floor, size = _ranked(values, floors)
    low, high = starts.astype(np.int64), np.maximum(stops, starts).astype(np.int64)
    above = np.zeros(low.size, np.int64)
    none = floor >= size
    floor = np.minimum(floor, max(size - 1, 0))
    for bit in range(max(size - 1, 1).bit_length() - 1, -1, -1):
        ones = (level >> bit & 1).astype(bool)
        before = np.concatenate(([0], np.cumsum(ones)))
        zeros = level.size - int(before[-1])
        low_ones, high_ones = before[low], before[high]
        set_ = (floor >> bit & 1).astype(bool)
        above += np.where(set_, 0, high_ones - low_ones)
        low = np.where(set_, zeros + low_ones, low - low_ones)
        high = np.where(set_, zeros + high_ones, high - high_ones)
        level = np.concatenate((level[~ones], level[ones]))
    above += high - low                                 # The values of exactly that rank.
    return np.where(none, 0, above)


def _ranked(values: np.ndarray, floors: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Ranks of the values, the rank from which on each floor is exceeded, and how many ranks there are."""
    if values.size:
        least, most = int(values.min()), int(values.max())
        if most - least < 4 * values.size:              # Numbers that lie close together can serve as ranks.
            return values - least, np.clip(floors, least - 1, most) - least + 1, most - least + 1
    ranks = np.unique(values)
    return np.searchsorted(ranks, values), np.searchsorted(ranks, floors, "right"), ranks.size


NEVER = -(1 << 63)


def group_max_before(groups: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The greatest earlier value of each row's group; NEVER for the group's first row.  Rows are in order."""
    before = np.full(groups.size, NEVER, np.int64)
    if groups.size < 2:
        return before
    order = np.argsort(groups, kind="stable")
    grouped = groups[order]
    new = np.append(True, grouped[1:] != grouped[:-1])
    ranks = np.unique(values)
    base = (np.cumsum(new) - 1) * ranks.size            # Below 2**63 for all values.
    top = np.maximum.accumulate(base + np.searchsorted(ranks, values[order]))
    before[order[1:]] = np.where(new[1:], NEVER, ranks[(top - base)[:-1]])
    return before


def histogram(values: np.ndarray) -> np.ndarray:
    """Counts of values (ns, from 0) in buckets: 8 for each power of two, so that a bucket is at most an eighth of its
    lowest value wide."""
    if not values.size:
        return np.zeros(0, np.int64)
    bits = np.maximum(values, 1).astype(np.float64).view(np.int64) >> _MANTISSA
    return np.bincount(bits - (1023 << 3))


def bucket_low(bucket: int) -> int:
    """The lowest value of a bucket (ns)."""
    return int((1 << (bucket >> 3)) * (1 + (bucket & 7) / BUCKETS))


def add_histograms(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The sum of two histograms."""
    if one.size < other.size:
        one, other = other, one
    total = one.copy()
    total[:other.size] += other
    return total


def percentile(counts: np.ndarray, share: float) -> int:
    """The middle (ns) of the bucket in which that share of all values is reached; 0 for an empty histogram."""
    if not counts.sum():
        return 0
    bucket = int(np.searchsorted(np.cumsum(counts), share * counts.sum()))
    return (bucket_low(bucket) + bucket_low(bucket + 1)) // 2


class Numbers(NamedTuple):
    """A set of sequence numbers: ranges, or bits from ``first`` on if ranges would take more octets."""

    first: int
    last: int                   # first - 1: empty
    starts: np.ndarray
    ends: np.ndarray            # of the ranges: the last number of each
    bits: bytes | None


def numbers(seq: np.ndarray) -> Numbers:
    """The set of ``seq`` (rising)."""
    if not seq.size:
        return Numbers(0, -1, seq, seq, None)
    cuts = np.flatnonzero(np.diff(seq) != 1) + 1
    first, last = int(seq[0]), int(seq[-1])
    if cuts.size * 128 > last - first:
        present = np.zeros(last - first + 1, bool)
        present[seq - first] = True
        return Numbers(first, last, seq[:0], seq[:0], np.packbits(present).tobytes())
    starts, ends = np.append(0, cuts), np.append(cuts, seq.size) - 1
    return Numbers(first, last, seq[starts], seq[ends], None)


def ranges_within(these: Numbers, base: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """The ranges of the set between ``base`` and ``end``, as [start, stop)."""
    low, high = max(these.first, base), min(these.last + 1, end)
    if low >= high:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    if these.bits is None:
        some = (these.starts < high) & (these.ends >= low)
        return np.maximum(these.starts[some], low), np.minimum(these.ends[some], high - 1) + 1
    edges = np.diff(flags_within(these, low, high).view(np.int8), prepend=0, append=0)
    return np.flatnonzero(edges == 1) + low, np.flatnonzero(edges == -1) + low


def flags_within(these: Numbers, low: int, high: int) -> np.ndarray:
    """Which numbers from ``low`` up to ``high``, which lie between the first and the last one of the set, it has; it is
    one of bits."""
    skip = (low - these.first) // 8
    octets = np.frombuffer(these.bits or b"", np.uint8, (high - these.first + 7) // 8 - skip, skip)
    at = these.first + 8 * skip
    return np.unpackbits(octets)[low - at:high - at].view(bool)


def contains(these: Numbers, seq: np.ndarray) -> np.ndarray:
    """Which of ``seq`` are in the set, as booleans."""
    found = (seq >= these.first) & (seq <= these.last)
    if these.bits is not None:
        place = seq[found] - these.first
        octets = np.frombuffer(these.bits, np.uint8)
        found[found] = (octets[place >> 3] >> (7 - (place & 7)) & 1).astype(bool)
    elif found.any():
        place = np.searchsorted(these.starts, seq[found], "right") - 1
        found[found] = seq[found] <= these.ends[place]
    return found
