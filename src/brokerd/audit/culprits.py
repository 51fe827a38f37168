"""Names the culprits of a broken order: the fewest rows without which the others are in order.

One message with a wrong number stands before or behind thousands of others, and a rule that looks at pairs finds all of
these.  The rows that belong to a longest rising subsequence are right; the others are the culprits, and further
findings of the rule are their consequences.  If either of two rows may be the culprit, it is the one behind.
"""

from bisect import bisect_left

import numpy as np

from brokerd.audit.arrays import group_max_before

CONSEQUENCE = "a consequence: "     # with this begins the text of a finding that is no culprit


def culprits(values: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """The indices (rising) of the fewest rows without which the values of each group rise strictly; at most
    len(values) * log(len(values)) steps, and for all rows in order only few.  ``groups``: None: all are one."""
    if groups is None:
        return _of_one(values)
    found = []
    bad = np.unique(groups[values <= group_max_before(groups, values)])
    order = np.argsort(groups, kind="stable")
    starts, stops = (np.searchsorted(groups[order], bad, side) for side in ("left", "right"))
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        rows = order[start:stop]
        found.append(rows[_of_one(values[rows])])
    return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)


def broken(values: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """The indices of all rows that are not above every earlier one of their group: what a rule of pairs finds."""
    if groups is not None:
        return np.flatnonzero(values <= group_max_before(groups, values))
    if values.size < 2:
        return np.empty(0, np.int64)
    return np.flatnonzero(values[1:] <= np.maximum.accumulate(values)[:-1]) + 1


def _of_one(values: np.ndarray) -> np.ndarray:
    """A row above all earlier and below all later ones is in its place, and cuts the rows into blocks."""
    if values.size < 2:
        return np.empty(0, np.int64)
    above = np.append(True, values[1:] > np.maximum.accumulate(values)[:-1])
    below = np.append(values[:-1] < np.minimum.accumulate(values[::-1])[::-1][1:], True)
    loose = np.flatnonzero(~(above & below))
    if not loose.size:
        return loose
    blocks = np.split(loose, np.flatnonzero(np.diff(loose) != 1) + 1)
    return np.concatenate([block[_without_longest(values[block].tolist())] for block in blocks])


def _without_longest(values: list[int]) -> list[int]:
    """The indices of the values that are not in a longest rising subsequence.

    Goes from the end to the begin, with the signs changed, so that of two values in each other's way the first stays.
    """
    count = len(values)
    tops: list[int] = []            # of the subsequences of each length: the least last value
    ends: list[int] = []            # and its index
    before = [-1] * count
    for index in range(count - 1, -1, -1):
        value = -values[index]
        length = bisect_left(tops, value)
        before[index] = ends[length - 1] if length else -1
        if length == len(tops):
            tops.append(value)
            ends.append(index)
        else:
            tops[length], ends[length] = value, index
    stays = set()
    index = ends[-1]
    while index >= 0:
        stays.add(index)
        index = before[index]
    return [index for index in range(count) if index not in stays]
