"""Samples of a run: what each says, and what is left of them when there are many."""

import os

from hypothesis import given
from hypothesis import strategies as st

from brokerd.cli._perf import Histogram
from brokerd.cli.perfsample import SAMPLES_AT_MOST, Record, Sample, Sampler, Waits


def histogram(*values):
    made = Histogram()
    for value in values:
        made.record(value)
    return made


def sample(at, count, wait=1.0, seconds=1.0, cpu=0.5):
    return Sample(at, seconds, {"publish": count}, {"latency": Waits(wait, wait, wait)}, cpu, at)


@given(st.lists(st.integers(0, 10 ** 12)), st.lists(st.integers(0, 10 ** 12), min_size=1))
def test_what_a_histogram_counted_since_is_what_came_later(before, later):
    whole, earlier, alone = histogram(*before, *later), histogram(*before), histogram(*later)
    since = whole.since(earlier)
    assert since.counts() == alone.counts()
    assert alone.max <= since.max <= alone.max * 1.008
    assert sum(number for _, number in since.counts()) == since.count == len(later)
    for low, _ in since.counts():
        assert any(low <= value <= low * 1.008 for value in later)


def test_a_sampler_says_what_came_since_the_last_sample():
    sampler = Sampler([os.getpid()])
    began = sampler.began
    assert not sampler.due(began + 0.9)
    assert sampler.due(began + 1)
    first = sampler.take(began + 2, {"publish": 10}, {"latency": [histogram(1000), histogram(3000)]})
    assert (first.at, first.seconds, first.rate("publish"), first.rate("consume")) == (2, 2, 5, 0)
    assert 2.9 < first.waits["latency"].p99 < 3.1
    assert first.rss_kb > 1000
    second = sampler.take(began + 3, {"publish": 17}, {"latency": [histogram(1000), histogram(3000)]})
    assert (second.at, second.seconds, dict(second.counts), second.waits) == (3, 1, {"publish": 7}, {})
    assert Sampler([]).take(began + 1, {}, {}).cpu is None


def test_a_long_run_keeps_every_message_in_a_bounded_number_of_samples():
    record, number = Record(), 5 * SAMPLES_AT_MOST + 3
    for at in range(1, number + 1):
        record.add(sample(at, at))
        assert len(record.all()) <= SAMPLES_AT_MOST
    kept = record.all()
    assert sum(one.counts["publish"] for one in kept) == sum(range(1, number + 1))
    assert sum(one.seconds for one in kept) == kept[-1].at == number
    assert [one.at for one in kept] == sorted({one.at for one in kept})


def test_of_two_samples_made_one_the_longer_wait_and_the_mean_of_the_processor_stay():
    joined = sample(1, 10, wait=5.0, cpu=1.0).joined(sample(4, 50, wait=2.0, seconds=3.0, cpu=0.0))
    assert (joined.at, joined.seconds, joined.rate("publish"), joined.cpu) == (4, 4, 15, 0.25)
    assert joined.waits["latency"] == (5, 5, 5)


def test_the_short_rest_of_a_run_is_part_of_the_sample_before_it():
    record = Record()
    record.add(sample(1, 100))
    record.add(sample(1.1, 1, seconds=0.1))
    assert [(one.at, one.counts["publish"]) for one in record.all()] == [(1.1, 101)]
    alone = Record()
    alone.add(sample(0.1, 1, seconds=0.1))
    assert len(alone.all()) == 1
