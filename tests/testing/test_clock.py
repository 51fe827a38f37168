"""The clock and its timers, with a loop of the tests."""

import asyncio
import time

import pytest

from brokerd.testing.clock import STEPS_MAX, MovableClock, Timers

SECOND = 1_000_000_000
HOUR = 3600 * SECOND


class Handle:
    def __init__(self, delay):
        self.delay, self.cancelled = delay, False

    def cancel(self):
        self.cancelled = True


class Loop:
    def __init__(self):
        self.handles = []

    def call_later(self, delay, callback):
        self.handles.append(Handle(delay))
        self.handles[-1].callback = callback
        return self.handles[-1]


@pytest.fixture
def world():
    class World:
        clock = MovableClock()
        loop = Loop()
        timers = Timers(clock, loop)
        settled = 0

        async def settle(self):
            self.settled += 1

        def advance(self, ns):
            asyncio.run(self.timers.advance(ns, self.settle))

    return World()


def test_the_time_of_day_moves_and_the_monotonic_time_does_not(world):
    monotonic = world.clock.monotonic()
    world.advance(1000 * HOUR)
    assert world.clock.epoch_ns() - time.time_ns() >= 999 * HOUR
    assert world.clock.monotonic() - monotonic < 3_600_000


def test_timers_fire_in_their_order_each_at_its_own_time(world):
    begin, fired = world.clock.epoch_ns(), []
    for hours in (3, 1, 2, 5):
        world.timers.call_at(begin + hours * HOUR, lambda hours=hours: fired.append((hours, world.clock.epoch_ns())))
    world.advance(4 * HOUR)
    assert [hours for hours, _ in fired] == [1, 2, 3]
    for hours, at in fired:
        assert begin + hours * HOUR <= at < begin + (hours + 1) * HOUR
    assert len(world.timers.waiting) == 1


def test_a_timer_that_sets_the_next_one_fires_as_often_as_time_allows(world):
    fired = []

    def again():
        fired.append(world.clock.epoch_ns())
        world.timers.call_at(fired[-1] + HOUR, again)

    again()
    world.advance(10 * HOUR + SECOND)
    assert len(fired) == 11
    assert world.settled >= 10


def test_a_cancelled_timer_does_not_fire(world):
    timer = world.timers.call_at(world.clock.epoch_ns() + HOUR, pytest.fail)
    timer.cancel()
    world.advance(2 * HOUR)
    timer.fire()
    assert all(handle.cancelled for handle in world.loop.handles)


def test_what_is_not_due_yet_waits_for_the_rest_of_its_time(world):
    world.timers.call_at(world.clock.epoch_ns() + 10 * HOUR, pytest.fail)
    world.advance(9 * HOUR)
    first, last = world.loop.handles
    assert first.cancelled
    assert last.delay <= 3600


def test_a_timer_of_the_loop_fires_once(world):
    fired = []
    world.timers.call_at(world.clock.epoch_ns(), lambda: fired.append(1))
    world.loop.handles[0].callback()
    world.advance(HOUR)
    assert fired == [1]


def test_a_timer_that_never_lets_time_pass_does_not_hold_the_clock_up(world):
    fired = []

    def at_once():
        fired.append(1)
        world.timers.call_at(world.clock.epoch_ns(), at_once)

    at_once()
    world.advance(HOUR)
    assert STEPS_MAX <= len(fired) <= STEPS_MAX + 3
    assert world.clock.ahead_ns == HOUR
