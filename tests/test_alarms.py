"""Alarms over a disk and a memory by hand: raised once, told once, over when the last one is."""

import errno
import logging
from types import SimpleNamespace

import pytest

from brokerd.alarms import Alarms
from brokerd.config import Config
from brokerd.server.values import settings_of


class World:
    """``free`` and ``used`` are octets; ``room`` is whether there will be room in a moment."""

    def __init__(self):
        self.free, self.used, self.room = 100, 0, False
        self.core = SimpleNamespace(blocked=False)
        self.told, self.asked, self.let_go = [], [], 0
        self.alarms = Alarms(
            self.core, free_disk=lambda: self.free, used_memory=lambda: self.used, memory_octets=1000,
            make_room=self.make_room, tell=lambda what, raised: self.told.append((what, raised)))
        self.alarms.blocked.add(self)
        self.settings = settings_of(Config())._replace(
            free_disk_min_octets=10, memory_high_watermark_octets=50, segment_octets=20)

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


def test_publishers_are_blocked_below_the_limit_of_the_disk_and_let_go_at_it(world):
    assert (world.check(free=10), world.core.blocked) == ("", False)
    assert (world.check(free=9), world.core.blocked, world.let_go) == ("low on disk", True, 0)
    assert (world.check(free=10), world.core.blocked, world.let_go) == ("", False, 1)


def test_publishers_are_blocked_above_the_limit_of_memory_and_let_go_at_it(world):
    assert world.check(used=50) == ""
    assert (world.check(used=51), world.core.blocked) == ("low on memory", True)
    assert (world.check(used=50), world.core.blocked) == ("", False)


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
    assert (world.check(used=50), publisher.written, world.core.blocked) == ("", 1, False)


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
    assert world.check(used=100) == ""
    assert world.check(used=101) == "low on memory"
    world.settings = world.settings._replace(memory_high_watermark_percent=0)
    assert world.check() == ""
