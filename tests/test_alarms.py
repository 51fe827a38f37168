"""Alarms over a disk and a memory by hand: raised once, told once, over when the last one is."""

import errno
import logging
from itertools import pairwise
from types import SimpleNamespace

import pytest

from brokerd.alarms import TRIM_FROM_OCTETS, TRIM_SECONDS, TRIM_SECONDS_MOST, TRIM_SECONDS_WHILE_LOW, Alarms, Memory
from brokerd.config import Config
from brokerd.server.values import settings_of


class World:
    """``free`` and ``used`` are octets; ``room`` is whether there will be room in a moment."""

    def __init__(self):
        self.free, self.used, self.room, self.has_room = 100, 0, False, True
        self.core = SimpleNamespace(blocked=False)
        self.free_in_heap, self.objects, self.trims, self.trimmed_low = 0, 100, 0, []
        self.told, self.asked, self.let_go = [], [], 0
        self.alarms = Alarms(
            self.core, free_disk=lambda: self.free, has_room=lambda: self.has_room, make_room=self.make_room,
            memory=Memory(lambda: self.used, lambda: self.objects, self.trim, 1000),
            tell=lambda what, raised: self.told.append((what, raised)))
        self.alarms.blocked.add(self)
        self.settings = settings_of(Config())._replace(
            free_disk_min_octets=10, memory_high_watermark_octets=50, segment_octets=20)

    def trim(self, low):
        self.trimmed_low.append(low)
        self.trims += 1
        self.used -= self.free_in_heap
        self.free_in_heap = 0

    def make_room(self, free, limit):
        self.asked.append((free, limit))
        return self.room

    def unblock(self):
        self.let_go += 1
        self.alarms.blocked.discard(self)

    def check(self, **values):
        for name, value in values.items():
            setattr(self, name, value)
        self.alarms.check(self.settings)
        return self.alarms.reason


@pytest.fixture
def world():
    return World()


def test_publishers_are_blocked_below_the_limit_of_the_disk_and_let_go_a_20th_above_it(world):
    world.settings = world.settings._replace(free_disk_min_octets=1000)
    assert (world.check(free=1000), world.core.blocked) == ("", False)
    assert (world.check(free=999), world.core.blocked, world.let_go) == ("low on disk", True, 0)
    assert (world.check(free=1049), world.core.blocked, world.let_go) == ("low on disk", True, 0)
    assert (world.check(free=1050), world.core.blocked, world.let_go) == ("", False, 1)


def test_publishers_are_blocked_above_the_limit_of_memory_and_let_go_a_20th_below_it(world):
    world.settings = world.settings._replace(memory_high_watermark_octets=1000)
    assert world.check(used=1000) == ""
    assert (world.check(used=1001), world.core.blocked) == ("low on memory", True)
    assert (world.check(used=951), world.core.blocked) == ("low on memory", True)
    assert (world.check(used=950), world.core.blocked) == ("", False)


def test_an_alarm_is_told_once_and_its_end_once(world, caplog):
    caplog.set_level(logging.INFO, "brokerd")
    for free in (9, 8, 7, 30, 31):
        world.check(free=free)
    assert world.told == [("disk", True), ("disk", False)]
    assert [record.getMessage() for record in caplog.records] == [
        "low on disk: 9 octets free, limit 10; publishers are blocked",
        "no longer low on disk: 30 octets free; publishers go on"]


def test_publishers_go_on_when_the_last_of_two_alarms_is_over(world, caplog):
    caplog.set_level(logging.INFO, "brokerd")
    assert world.check(free=1, used=99) == "low on disk & memory"
    assert (world.check(free=50), world.core.blocked, world.let_go) == ("low on memory", True, 0)
    assert caplog.records[-1].getMessage() == "no longer low on disk: 50 octets free; still low on memory"
    assert (world.check(used=0), world.core.blocked, world.let_go) == ("", False, 1)


def test_a_disk_that_will_have_room_in_a_moment_raises_no_alarm(world):
    assert (world.check(free=1, room=True), world.asked) == ("", [(1, 10)])
    assert world.check(room=False) == "low on disk"
    assert world.check(room=True) == "low on disk"  # Once raised, what is free decides.


def test_a_disk_that_was_full_must_hold_two_segments_before_publishers_go_on(world):
    world.alarms.storage_failed(28)
    assert (world.core.blocked, world.told) == (True, [("disk", True)])
    assert world.check(free=39) == "low on disk"
    assert world.check(free=40) == ""
    assert world.check(free=10) == ""


def test_a_disk_with_free_octets_that_takes_no_file_stays_full(world):
    """It has no inode left: publishers would be blocked and let go each second."""
    world.alarms.storage_failed(errno.ENOSPC)
    for _ in range(3):
        assert world.check(free=1000, has_room=False) == "low on disk"
    assert world.check(has_room=True) == ""
    assert world.told == [("disk", True), ("disk", False)]


def test_a_failed_write_is_logged_once_an_alarm(world, caplog):
    caplog.set_level(logging.INFO, "brokerd")
    for _ in range(3):
        world.alarms.storage_failed(28)
    world.check(free=100)
    world.alarms.storage_failed(28)
    texts = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert texts == ["cannot write messages: No space left on device; publishers wait"] * 2


class Publisher:
    """Tries to write when it is let go, and finds no descriptor while there is none."""

    def __init__(self, world):
        self.world, self.written = world, 0

    def unblock(self):
        if self.world.descriptors:
            self.written += 1
            self.world.alarms.blocked.discard(self)
        else:
            self.world.alarms.storage_failed(errno.EMFILE)


def test_a_write_without_descriptors_blocks_publishers_until_one_succeeds_and_is_told_once(world, caplog):
    caplog.set_level(logging.INFO, "brokerd")
    world.descriptors, publisher = False, Publisher(world)
    world.alarms.blocked.add(publisher)
    world.alarms.storage_failed(errno.EMFILE)
    for _ in range(3):
        assert (world.check(), world.core.blocked, publisher.written) == ("low on file descriptors", True, 0)
    assert world.told == [("file descriptors", True)]
    world.descriptors = True
    assert (world.check(), world.core.blocked, publisher.written) == ("", False, 1)
    assert world.told == [("file descriptors", True), ("file descriptors", False)]
    assert [record.getMessage() for record in caplog.records] == [
        "cannot write messages: Too many open files; publishers wait",
        "no longer low on file descriptors; publishers go on"]


def test_publishers_without_descriptors_try_only_when_no_other_alarm_is_raised(world):
    world.descriptors, publisher = True, Publisher(world)
    world.alarms.blocked.add(publisher)
    world.alarms.storage_failed(errno.ENFILE)
    assert (world.check(used=51), publisher.written) == ("low on file descriptors & memory", 0)
    assert (world.check(used=48), publisher.written, world.core.blocked) == ("", 1, False)


def test_without_limits_nothing_is_measured_until_a_write_fails(world):
    world.settings = world.settings._replace(
        free_disk_min_octets=0, memory_high_watermark_octets=0, memory_high_watermark_percent=0)
    assert world.check(free=0, used=1 << 40) == ""
    assert world.asked == []
    world.alarms.storage_failed(28)
    assert world.check(free=39) == "low on disk"
    assert world.check(free=40) == ""


def test_without_a_watermark_in_octets_memory_is_measured_by_the_percentage(world):
    assert world.check(used=99) == "low on memory"
    world.settings = world.settings._replace(memory_high_watermark_octets=0, memory_high_watermark_percent=10)
    assert world.check(used=95) == ""
    assert world.check(used=100) == ""
    assert world.check(used=101) == "low on memory"
    world.settings = world.settings._replace(memory_high_watermark_percent=0)
    assert world.check() == ""


def test_memory_that_is_free_in_the_heap_raises_no_alarm(world):
    assert world.check(used=60, free_in_heap=20) == ""
    assert world.check(used=60) == "low on memory"


def test_while_memory_is_low_the_heap_is_trimmed_again_and_not_each_second(world):
    assert world.check(used=60) == "low on memory"
    for _ in range(TRIM_SECONDS_WHILE_LOW - 1):
        assert world.check(free_in_heap=20) == "low on memory"
    assert world.trims == 1
    assert world.check() == ""
    assert (world.trims, world.used) == (2, 40)
    assert world.trimmed_low == [True, True]


def test_a_heap_that_is_trimmed_while_there_is_enough_memory_is_trimmed_quickly(world):
    world.check(used=40)
    for _ in range(TRIM_SECONDS):
        world.check(free_in_heap=1)
    assert set(world.trimmed_low) <= {False}


def test_the_heap_is_trimmed_a_minute_after_the_last_time_when_much_less_is_used_than_then(world):
    world.settings = world.settings._replace(memory_high_watermark_octets=1 << 40)
    world.check(used=8 * TRIM_FROM_OCTETS)
    assert world.trims == 1
    for _ in range(TRIM_SECONDS - 1):
        world.check(used=5 * TRIM_FROM_OCTETS, free_in_heap=4 * TRIM_FROM_OCTETS)
    assert world.trims == 1
    world.check()
    assert (world.trims, world.used) == (2, TRIM_FROM_OCTETS)
    for _ in range(2 * TRIM_SECONDS):
        world.check(used=TRIM_FROM_OCTETS - 1)
    assert world.trims == 2


def test_while_trimming_gives_little_back_it_is_done_less_and_less_often(world):
    world.settings = world.settings._replace(memory_high_watermark_octets=1 << 40)
    seconds = []
    for second in range(8 * TRIM_SECONDS_MOST):
        before = world.trims
        world.check(used=8 * TRIM_FROM_OCTETS)
        seconds += [second] * (world.trims - before)
    waits = [later - sooner for sooner, later in pairwise(seconds)]
    assert waits[:6] == [TRIM_SECONDS << n for n in range(1, 6)] + [TRIM_SECONDS_MOST]
    assert set(waits[6:]) == {TRIM_SECONDS_MOST}


def test_a_minute_after_many_clients_left_the_heap_is_trimmed_though_trims_had_become_rare(world):
    world.settings = world.settings._replace(memory_high_watermark_octets=1 << 40)
    for _ in range(10 * TRIM_SECONDS):
        world.check(used=8 * TRIM_FROM_OCTETS)
    trims = world.trims
    for _ in range(TRIM_SECONDS):
        world.check(used=7 * TRIM_FROM_OCTETS, free_in_heap=6 * TRIM_FROM_OCTETS, objects=60)
        if world.trims > trims:
            break
    assert (world.trims, world.used) == (trims + 1, TRIM_FROM_OCTETS)


def test_what_clients_left_is_given_back_in_the_end_though_about_as_much_was_used_before(world):
    world.settings = world.settings._replace(memory_high_watermark_octets=1 << 40)
    world.check(used=8 * TRIM_FROM_OCTETS)
    for _ in range(TRIM_SECONDS_MOST):
        world.check(used=7 * TRIM_FROM_OCTETS)
    world.check(free_in_heap=6 * TRIM_FROM_OCTETS)
    for _ in range(TRIM_SECONDS_MOST):
        world.check()
    assert world.used == TRIM_FROM_OCTETS
