"""The ring: it changes in place, and its answers depend on the present weights alone."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exchanges.destinations import Queue, queues

from brokerd.exchanges import FanoutExchange, ring
from brokerd.exchanges.ring import CHANGES_MAX, POINTS_PER_UNIT_MAX, RING_POINTS_MAX, Ring

DESTINATIONS = [*queues(12), FanoutExchange("q0"), FanoutExchange("q1")]
NUMBERS = [number * 0x9E3779B97F4A7C15 % (1 << 64) for number in range(300)]
WEIGHTS = st.one_of(st.just(0), st.integers(1, 4), st.integers(1, 100_000), st.just(10**40))
CHANGES = st.lists(st.tuples(st.sampled_from(DESTINATIONS), WEIGHTS, st.booleans()), max_size=60)


def ring_of(weights):
    made = Ring()
    for destination, weight in weights.items():
        made.set_weight(destination, weight)
    return made


def content(one):
    """All points in order, each with its destination and those that have the same point."""
    assert len(one) == len(one._owners)
    return [(point, owner, *one._behind.get(point, ()))
            for point, owner in zip(one._points, one._owners, strict=True)]


@pytest.fixture
def digests(monkeypatch):
    """The inputs that were hashed, as they come."""
    hashed, digest = [], ring.digest
    monkeypatch.setattr(ring, "digest", lambda octets, size: hashed.append(octets) or digest(octets, size))
    return hashed


def hashed_names(digests):
    """Whose points were hashed."""
    return {octets.partition(b"\0")[2] for octets in digests}


def change(one, changes):
    """Make changes, and ask after some of them."""
    for destination, weight, asks in changes:
        if weight or destination in one.weights:
            one.set_weight(destination, weight)
        if asks and one.weights:
            assert one.owner(0) in one.weights


@settings(max_examples=40)
@given(changes=CHANGES)
def test_after_any_changes_the_points_are_those_of_a_ring_made_of_the_weights_that_are_left(changes):
    changed = Ring()
    change(changed, changes)
    assert content(changed) == content(ring_of(dict(sorted(changed.weights.items(), key=lambda each: str(each[0])))))


@settings(max_examples=30)
@given(changes=CHANGES)
def test_equal_points_of_two_destinations_stand_in_one_order_whatever_came_first(changes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring, "digest", lambda octets, size: bytes([octets[0] % 3]) * size)
        patch.setattr(ring, "POINTS_PER_UNIT_MAX", 16)
        patch.setattr(ring, "RING_POINTS_MAX", 256)
        changed = Ring()
        change(changed, changes)
        afresh = ring_of(dict(reversed(changed.weights.items())))
        assert content(changed) == content(afresh)


def test_a_number_goes_to_the_next_point_and_behind_the_last_one_to_the_first():
    made = ring_of(dict.fromkeys(DESTINATIONS, 1))
    points = content(made)
    for (before, _), (_, owner) in pairwise(points):
        assert made.owner(before) is owner
    assert made.owner(points[-1][0]) is points[0][1] is made.owner(0)


def test_one_more_destination_of_many_hashes_its_own_points_alone_and_none_when_it_leaves(digests):
    made = ring_of(dict.fromkeys(queues(1000), 50))
    made.owner(0)
    digests.clear()
    new = Queue("new")
    made.set_weight(new, 60)
    made.owner(0)
    assert hashed_names(digests) == {b"queue:new"}
    points = len(made)
    digests.clear()
    made.set_weight(new, 0)
    made.owner(0)
    assert hashed_names(digests) == set()
    assert len(made) == points - 60 * 16 // 50


def test_many_changes_are_made_before_anybody_asks(digests):
    made = ring_of(dict.fromkeys(queues(2 * CHANGES_MAX - 1), 1))
    assert hashed_names(digests) == {b"queue:q%d" % number for number in range(CHANGES_MAX)}
    made.owner(0)
    assert hashed_names(digests) == {b"queue:q%d" % number for number in range(2 * CHANGES_MAX - 1)}


def test_many_that_leave_before_anybody_asks_are_forgotten_and_nothing_is_hashed_for_them(digests):
    many = queues(2 * CHANGES_MAX + 10)
    made = ring_of(dict.fromkeys(many, 1))
    made.owner(0)
    digests.clear()
    for queue in many[:-10]:
        made.set_weight(queue, 0)
    assert (digests, set(made._owners), made._changed) == ([], set(many[-10:]), {})
    assert content(made) == content(ring_of(dict.fromkeys(many[-10:], 1)))


@pytest.mark.parametrize(("weights", "points"), [
    ([7], POINTS_PER_UNIT_MAX), ([1] * 32, RING_POINTS_MAX), ([1] * 33, 33 * 256), ([1, 3], 4 * POINTS_PER_UNIT_MAX),
    ([1, 10**200], 1 + RING_POINTS_MAX), ([1] * 20_000, 20_000),
])
def test_the_lightest_has_a_power_of_two_of_points_and_all_together_about_the_maximum_at_most(weights, points):
    assert len(ring_of(dict(zip(queues(len(weights)), weights, strict=True)))) == points


def test_a_ring_that_all_have_left_has_no_points():
    made = ring_of({DESTINATIONS[0]: 5})
    made.owner(0)
    made.set_weight(DESTINATIONS[0], 0)
    assert (len(made), made.weights) == (0, {})
