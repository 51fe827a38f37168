"""The culprits are the fewest rows without which the rest is in order."""

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brokerd.audit.culprits import broken, culprits


def rises(values):
    return all(a < b for a, b in pairwise(values))


@given(st.lists(st.integers(0, 9), max_size=9))
def test_no_smaller_set_leaves_the_rest_in_order(values):
    found = culprits(np.array(values, np.int64)).tolist()
    assert rises([value for k, value in enumerate(values) if k not in found])
    for some in combinations(range(len(values)), max(len(found) - 1, 0)):
        assert not found or not rises([value for k, value in enumerate(values) if k not in some])


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(-50, 50)), max_size=60))
def test_each_group_is_judged_alone(rows):
    groups, values = (np.array([row[k] for row in rows], np.int64) for k in (0, 1))
    found = culprits(values, groups).tolist()
    wanted = []
    for group in range(-2, 3):
        own = np.flatnonzero(groups == group)
        wanted += own[culprits(values[own])].tolist()
    assert found == sorted(wanted)
    assert len(found) <= broken(values, groups).size


@given(st.lists(st.integers(0, 30), max_size=40))
def test_what_is_broken_is_all_that_is_not_above_what_came_before(values):
    wanted = [k for k, value in enumerate(values) if any(other >= value for other in values[:k])]
    assert broken(np.array(values, np.int64)).tolist() == wanted


def test_one_row_far_too_high_is_one_culprit():
    values = np.arange(200_000)
    values[1000] = 10 ** 9
    assert culprits(values).tolist() == [1000]
    assert broken(values).size == 198_999


def test_of_two_rows_that_changed_places_the_one_behind_is_the_culprit():
    values = np.arange(100)
    values[[40, 41]] = values[[41, 40]]
    assert culprits(values).tolist() == [41]
