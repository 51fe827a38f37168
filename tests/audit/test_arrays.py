"""Held against plain Python."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brokerd.audit import arrays

FAR = st.integers(-(1 << 62), 1 << 62) | st.integers(0, 6)


@given(st.lists(FAR, max_size=40), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), FAR), max_size=12))
def test_counts_in_ranges_are_exact(values, queries):
    queries = [(min(a, len(values)), min(b, len(values)), floor) for a, b, floor in queries]
    starts, stops, floors = (np.array(c, np.int64) for c in zip(*queries, strict=True)) if queries else [
        np.zeros(0, np.int64)] * 3
    counted = arrays.count_above(np.array(values, np.int64), starts, stops, floors)
    assert counted.tolist() == [sum(v > floor for v in values[a:b]) for a, b, floor in queries]


@given(st.lists(st.tuples(st.integers(0, 3), FAR), max_size=40))
def test_maxima_within_groups_do_not_overflow(rows):
    groups, values = np.array([r[0] for r in rows], np.int64), np.array([r[1] for r in rows], np.int64)
    wanted = [max((v for g, v in rows[:k] if g == group), default=arrays.NEVER) for k, (group, _) in enumerate(rows)]
    assert arrays.group_max_before(groups, values).tolist() == wanted


@given(st.lists(st.integers(1, 1 << 61), min_size=1, max_size=50))
def test_no_bucket_is_wider_than_an_eighth(values):
    counts = arrays.histogram(np.array(values))
    assert counts.sum() == len(values)
    for value in values:
        bucket = np.flatnonzero(arrays.histogram(np.array([value])))[0]
        assert arrays.bucket_low(bucket) <= value * (1 + 2 ** -50)
        assert value <= arrays.bucket_low(bucket + 1)


def test_percentiles_are_within_their_bucket():
    counts = arrays.histogram(np.arange(1, 100_001))
    assert abs(arrays.percentile(counts, 0.5) - 50_000) < 50_000 / 8
    assert arrays.percentile(np.zeros(0, np.int64), 0.5) == 0
    assert arrays.add_histograms(counts, counts[:3]).sum() == counts.sum() + counts[:3].sum()


FAR_APART = st.integers(1, 300) | st.integers(0, 3).map(lambda n: 1000 + n * (1 << 61))


@given(st.sets(FAR_APART), FAR_APART, FAR_APART)
def test_sets_of_numbers_come_back(some, base, end):
    numbers = arrays.numbers(np.array(sorted(some), np.int64))
    starts, stops = arrays.ranges_within(numbers, base, end)
    found = [n for a, b in zip(starts.tolist(), stops.tolist(), strict=True) for n in range(a, b)]
    assert found == sorted(n for n in some if base <= n < end)
    assert (starts[1:] > stops[:-1]).all()


@given(st.sets(FAR_APART), st.lists(FAR_APART))
def test_a_set_has_its_numbers_and_no_others(some, asked):
    numbers = arrays.numbers(np.array(sorted(some), np.int64))
    assert arrays.contains(numbers, np.array(asked, np.int64)).tolist() == [n in some for n in asked]


def test_interleaved_numbers_take_a_bit_each():
    numbers = arrays.numbers(np.arange(1, 100_000, 3))
    assert len(numbers.bits) < 13_000
