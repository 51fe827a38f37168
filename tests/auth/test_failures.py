"""Guesses of passwords: so many are looked at, and no more."""

import pytest

from brokerd.auth.failures import BUCKETS_MAX, BURST, PER_ADDRESS, FailedLogins


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def failed(clock):
    return FailedLogins(clock)


def guess(failed, address, user, number, per_second=1):
    """So many guesses: how many of them were looked at."""
    looked_at = 0
    for _ in range(number):
        if not failed.are_too_many(address, user, per_second):
            looked_at += 1
            failed.note(address, user, per_second)
    return looked_at


def test_a_burst_is_looked_at_and_then_so_many_a_second(failed, clock):
    assert guess(failed, "a", "u", 1000) == BURST
    clock.now += 1
    assert guess(failed, "a", "u", 1000) == 1
    clock.now += 3.5
    assert guess(failed, "a", "u", 1000) == 3
    clock.now += 3600
    assert guess(failed, "a", "u", 1000) == BURST


def test_a_user_who_is_locked_out_is_told_of_once_until_all_is_forgotten(failed, clock):
    def told(number):
        return [who for _ in range(number) for who in failed.note("a", "u", 1)]

    assert told(BURST - 1) == []
    assert told(1) == ["u"]
    assert failed.are_too_many("a", "u", 1)
    for _ in range(5):
        clock.now += 1.5
        assert told(2) == []
    clock.now += 100
    assert told(BURST) == ["u"]


def test_an_address_that_is_locked_out_is_told_of_once(failed):
    told = [who for number in range(200) for who in failed.note("a", f"user {number}", 1)]
    assert told == [None]


def test_other_addresses_and_other_users_are_not_slowed_down(failed):
    guess(failed, "a", "u", 1000)
    assert guess(failed, "b", "u", 1) == 1
    assert guess(failed, "a", "v", 1) == 1


def test_one_address_has_a_bound_over_all_users(failed, clock):
    assert sum(guess(failed, "a", f"user {number}", 5) for number in range(1000)) == BURST * PER_ADDRESS
    clock.now += 1
    assert sum(guess(failed, "a", f"other {number}", 1) for number in range(1000)) == PER_ADDRESS
    assert guess(failed, "b", "u", 1) == 1


def test_a_user_without_a_name_is_one_like_others(failed):
    assert guess(failed, "a", "", 1000) == BURST
    assert guess(failed, "a", "u", 1) == 1


def test_without_a_limit_all_are_looked_at(failed):
    assert guess(failed, "a", "u", 1000, per_second=0) == 1000


def test_a_higher_rate_looks_at_more(failed, clock):
    guess(failed, "a", "u", 1000, per_second=5)
    clock.now += 1
    assert guess(failed, "a", "u", 1000, per_second=5) == 5


def test_what_is_known_is_bounded(failed):
    for number in range(BUCKETS_MAX):
        failed.note(f"address {number}", "u", 1)
    assert len(failed._buckets) == BUCKETS_MAX
    assert guess(failed, f"address {BUCKETS_MAX - 1}", "u", 100) == BURST - 1
