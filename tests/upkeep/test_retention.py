"""What goes of order journals: by size, by age, for want of room, or into the archive; over the real data plane."""

import errno
import logging
import os

import pytest
from tests.upkeep.journaled import Journaled, kept_names, kept_numbers

from brokerd.policies import Policy
from brokerd.store import format as layout
from brokerd.store import reading, side_file
from brokerd.store import settled_segments as files
from brokerd.store.disk import Disk
from brokerd.store.format import folder_name
from brokerd.upkeep.order_journals import SWEEP_TICKS
from brokerd.upkeep.retention import HEADROOM_OCTETS

HOUR = 3_600 * 10**9


@pytest.fixture
def place(tmp_path):
    place = Journaled(tmp_path / "data")
    yield place
    place.close()


@pytest.fixture(autouse=True)
def data(tmp_path):
    (tmp_path / "data").mkdir(exist_ok=True)


def entry(place, name="q"):
    return place.journals.entries[place.vhost.queues[name].directory]


def removed(place, queue):
    return [(line["why"], line["level"], line["segments"], line["first_seq"], line["last_seq"], line["messages"])
            for line in place.lines(queue, "removed")]


def size_of(path):
    return sum(os.path.getsize(os.path.join(path, name)) for name in os.listdir(path))


# --- retention

def test_within_its_retention_everything_is_kept(place):
    queue = place.queue()
    place.pass_on(1, 600)
    place.second(2 * SWEEP_TICKS)
    assert len(kept_numbers(queue)) == 9
    assert removed(place, queue) == []


def test_what_is_beyond_the_octets_goes_the_oldest_first_and_is_said(place, caplog):
    queue = place.queue(x_order_journal_retention_bytes=200_000)
    place.pass_on(1, 600)
    place.second()
    assert kept_numbers(queue) == [8, 9]
    chains = sum(os.path.getsize(f"{queue.directory}/kept/{layout.chain_name(number)}") for number in (8, 9))
    assert size_of(f"{queue.directory}/kept") - chains == entry(place).octets <= 200_000
    first_kept = 7 * 61 + 1
    assert removed(place, queue) == [("size", 0, [1, 2, 3, 4, 5, 6, 7], 1, first_kept - 1, first_kept - 1)]
    assert place.lines(queue, "removed")[0]["octets"] == 7 * entry(place).octets // 2
    with caplog.at_level(logging.INFO, "brokerd"):
        place.second(SWEEP_TICKS)
    assert caplog.text.count("order journals: settled segments gone, by reason: size: 7 segments, 489832 octets") == 1
    place.pass_on(601, 660)
    place.second()
    assert len(kept_numbers(queue)) == 2


def test_what_is_older_than_the_age_goes_by_the_time_of_its_last_event(place):
    queue = place.queue(x_order_journal_retention_age="2h")
    place.pass_on(1, 130)
    place.second()
    place.now += HOUR
    place.pass_on(131, 300)
    place.second()
    assert kept_numbers(queue) == [1, 2, 3, 4]
    for number in (1, 2):       # Times of files do not count.
        os.utime(f"{queue.directory}/kept/{layout.segment_name(number)}")
    place.now += HOUR
    place.second(SWEEP_TICKS)
    assert kept_numbers(queue) == [3, 4]
    assert removed(place, queue) == [("age", 0, [1, 2], 1, 122, 122)]


def test_a_retention_of_nothing_keeps_nothing(place):
    queue = place.queue(x_order_journal_retention_bytes=0)
    place.pass_on(1, 300)
    place.second()
    assert (kept_names(queue), entry(place).octets) == ([], 0)


def test_a_shorter_retention_by_policy_takes_effect_with_the_next_sweep(place):
    queue = place.queue()
    place.pass_on(1, 300)
    place.second()
    place.vhost.policies.put(Policy("p", "", {"order-journal-retention-bytes": 0}))
    place.upkeep.apply_policies(place.vhost)
    place.second(SWEEP_TICKS)
    assert kept_names(queue) == []


def test_what_an_earlier_journal_has_left_goes_in_its_time(place):
    place.vhost.policies.put(Policy("p", "", {"order-journal": True}))
    place.vhost.add_queue("q", durable=True, auto_delete=False, arguments={})
    place.upkeep.apply_policies(place.vhost)
    place.pass_on(1, 300)
    place.vhost.policies.delete("p")
    queue = place.restart()
    place.second()
    assert len(kept_numbers(queue)) == 4
    place.now += 7 * 24 * HOUR
    place.second(SWEEP_TICKS)
    assert kept_names(queue) == []
    assert removed(place, queue) == [("age", 0, [1, 2, 3, 4], 1, 244, 244)]


def test_the_reason_is_on_disk_before_anything_is_removed(place):
    order = []

    class Watching(Disk):
        def fdatasync(self, fd, path):
            order.append(os.path.basename(path))

        def unlink(self, path):
            order.append(os.path.basename(path))
            super().unlink(path)

    place.disk = Watching()
    place.restart()
    place.queue(x_order_journal_retention_bytes=0)
    place.pass_on(1, 70)
    place.second()
    assert order[-5:] == ["order.jsonl", layout.segment_name(1), layout.journal_name(1), layout.acks_name(1),
                          layout.chain_name(1)]


def test_nothing_goes_while_somebody_copies_the_files(place):
    queue = place.queue(x_order_journal_retention_bytes=0)
    queue.copying = True
    place.pass_on(1, 300)
    place.second()
    assert not place.journals.make_room(0, 1 << 40)
    assert len(kept_numbers(queue)) == 4
    queue.copying = False
    place.second(SWEEP_TICKS)
    assert kept_names(queue) == []


# --- low on disk

def test_low_on_disk_the_oldest_of_all_queues_go_until_there_is_enough(place, caplog):
    for name in "qr":
        place.queue(name)
    place.pass_on(1, 130)
    place.now += HOUR
    place.pass_on(1, 130, "r")
    place.now += HOUR
    place.pass_on(131, 300)
    place.second()
    q, r = place.vhost.queues["q"], place.vhost.queues["r"]
    assert (len(kept_numbers(q)), len(kept_numbers(r))) == (4, 2)
    limit = 1 << 30
    enough = limit + HEADROOM_OCTETS * 4
    assert not place.journals.make_room(enough, limit)
    with caplog.at_level(logging.WARNING, "brokerd"):
        assert not place.journals.make_room(limit + limit // 4 - 150_000, limit)     # Not yet short of it.
        assert not place.journals.make_room(0, limit)       # One at a time.
        place.second()
    assert (kept_numbers(q), kept_numbers(r)) == ([3, 4], [2])
    assert [line[:3] for line in removed(place, q) + removed(place, r)] == [("space", 0, [1, 2]), ("space", 0, [1])]
    assert "order journals: settled segments gone, by reason: space: 3 segments" in caplog.text
    assert place.journals.make_room(limit - 100, limit)     # What goes will be enough.
    place.second()
    assert kept_names(q) == kept_names(r) == []
    assert not place.journals.make_room(limit - 100, limit)


def test_on_a_full_disk_room_is_made_before_it_is_said(place):
    class Full(Disk):
        full = False

        def pwrite(self, fd, octets, position):
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().pwrite(fd, octets, position)

        def unlink(self, path):
            self.full = False
            super().unlink(path)

    place.disk = Full()
    place.restart()
    queue = place.queue()
    place.pass_on(1, 300)
    place.second()
    place.disk.full = True
    assert place.journals.make_room(0, 1)
    place.second()
    assert kept_names(queue) == []
    assert removed(place, queue) == [("space", 0, [1, 2, 3, 4], 1, 244, 244)]


# --- the archive

def archived(tmp_path, name="q"):
    return str(tmp_path / "archive" / folder_name("/") / folder_name(name))


@pytest.fixture(params=[True, False], ids=["rename", "copy"])
def archiving(place, tmp_path, request, monkeypatch):
    """With an archive, on the same file system or as if it were on another."""
    if not request.param:
        monkeypatch.setattr(files, "same_file_system", lambda one, other: False)
    place.set_archive(tmp_path / "archive")
    return place


def test_with_an_archive_what_is_beyond_its_retention_is_moved_there(archiving, tmp_path):
    queue = archiving.queue(x_order_journal_retention_bytes=150_000)
    archiving.pass_on(1, 300)
    archiving.second()
    assert kept_numbers(queue) == [3, 4]
    target = archived(tmp_path)
    assert sorted(os.listdir(target)) == [".queue", "kept", "order.jsonl"]
    assert sorted(os.listdir(target + "/kept")) == sorted(
        f"{kind}.{n:010d}" for n in (1, 2) for kind in ("msgs", "acks", "journal", "chain"))
    with open(target + "/.queue") as name, open(os.path.dirname(target) + "/.vhost") as vhost:
        assert (name.read(), vhost.read()) == ("q", "/")
    assert removed(archiving, queue) == [("archived", 0, [1, 2], 1, 122, 122)]
    assert side_file.read(target + "/order.jsonl", Disk()) == archiving.lines(queue)
    octets = open_and_read(target + "/kept/" + layout.segment_name(2))
    assert len(reading.scan_records(octets, len(octets)).positions) == 61


def open_and_read(path):
    with open(path, "rb") as file:
        return file.read()


def test_an_archive_that_cannot_take_it_leaves_it_where_it_is(archiving, tmp_path, caplog):
    (tmp_path / "archive").write_text("no folder")
    queue = archiving.queue(x_order_journal_retention_bytes=0)
    archiving.pass_on(1, 300)
    with caplog.at_level(logging.ERROR, "brokerd"):
        archiving.second()
    assert kept_numbers(queue) == [1, 2, 3, 4]
    assert caplog.text.count("its settled segments stay for now") == 1
    assert removed(archiving, queue) == []
    (tmp_path / "archive").unlink()
    archiving.second(SWEEP_TICKS)
    assert kept_names(queue) == []
    assert len(os.listdir(archived(tmp_path) + "/kept")) == 16


def test_a_deleted_queue_leaves_all_its_segments_in_the_archive(archiving, tmp_path):
    queue = archiving.queue()
    archiving.pass_on(1, 300)
    archiving.publish(301, 302)
    archiving.second()
    archiving.vhost.delete_queue(queue)
    assert not os.path.exists(queue.directory)
    again = archiving.queue()
    archiving.second()
    target = archived(tmp_path) + ".1"
    assert sorted({int(name[-10:]) for name in os.listdir(target + "/kept")}) == [1, 2, 3, 4, 5]
    last = open_and_read(target + "/kept/" + layout.segment_name(5))
    assert len(reading.scan_records(last, len(last)).positions) == 58
    assert [line["what"] for line in side_file.read(target + "/order.jsonl", Disk())].count("settings") == 1
    assert open_and_read(target + "/.queue") == b"q"
    assert not os.path.exists(archived(tmp_path))
    assert (again.next_seq, kept_names(again)) == (1, [])
    archiving.second()
    assert not any(os.scandir(archiving.path / "archiving"))


def test_what_was_on_its_way_into_the_archive_goes_on_after_a_crash(archiving, tmp_path):
    queue = archiving.queue()
    archiving.pass_on(1, 300)
    archiving.vhost.delete_queue(queue)
    archiving.thread.jobs.clear()
    assert os.listdir(archiving.path / "archiving") == ["1"]
    archiving.restart()
    archiving.second()
    assert len(os.listdir(archived(tmp_path) + ".1/kept")) == 16     # 5 segments, and the chain of the one in use


def test_without_the_archive_what_was_on_its_way_there_goes(archiving, tmp_path):
    queue = archiving.queue()
    archiving.pass_on(1, 300)
    archiving.vhost.delete_queue(queue)
    archiving.thread.jobs.clear()
    archiving.archive = ""
    archiving.restart()
    archiving.second()
    assert not os.path.exists(archiving.path / "archiving")
    assert not os.path.exists(tmp_path / "archive")


def test_segments_of_a_later_queue_of_that_name_do_not_take_the_place_of_those_before(archiving, tmp_path):
    queue = archiving.queue(x_order_journal_retention_bytes=0)
    archiving.pass_on(1, 130)
    archiving.second()
    archiving.set_archive("")
    archiving.vhost.delete_queue(queue)
    archiving.set_archive(tmp_path / "archive")
    archiving.queue(x_order_journal_retention_bytes=0)
    archiving.now += HOUR
    archiving.pass_on(1, 130)
    archiving.second()
    target = archived(tmp_path)
    for path in (target, target + ".1"):
        assert len(os.listdir(path + "/kept")) == 8
        assert open_and_read(path + "/.queue") == b"q"
    assert open_and_read(target + "/kept/" + layout.segment_name(1)) != open_and_read(
        target + ".1/kept/" + layout.segment_name(1))


def test_the_rest_of_a_segment_follows_its_records_into_the_archive(archiving, tmp_path):
    queue = archiving.queue(x_order_journal_retention_bytes=0)
    archiving.pass_on(1, 130)
    archiving.second()
    names = layout.journal_name(2), layout.acks_name(2), layout.chain_name(2)
    source, target = f"{queue.directory}/kept", archived(tmp_path) + "/kept"
    for name in names:
        os.rename(f"{target}/{name}", f"{source}/{name}")
    if not files.same_file_system(source, target):      # There they are copied before anything goes.
        for name in names:
            with open(f"{target}/{name}", "wb") as file:
                file.write(open_and_read(f"{source}/{name}"))
    queue = archiving.restart()
    archiving.second()
    assert kept_names(queue) == []
    assert len(os.listdir(target)) == 8


def test_low_on_disk_an_archive_on_the_same_file_system_is_no_help(archiving, tmp_path):
    queue = archiving.queue()
    archiving.pass_on(1, 300)
    archiving.second()
    archiving.journals.make_room(0, 1)
    archiving.second()
    same = files.same_file_system(str(tmp_path), str(tmp_path))
    assert [line[0] for line in removed(archiving, queue)] == ["space" if same else "archived"]
    assert kept_names(queue) == []
    assert os.path.exists(archived(tmp_path) + "/kept") is not same


def test_without_an_archive_a_deleted_queue_takes_what_was_kept_with_it(place, tmp_path):
    queue = place.queue()
    place.pass_on(1, 300)
    place.second()
    place.vhost.delete_queue(queue)
    place.second()
    assert not os.path.exists(queue.directory)
    assert os.listdir(place.path / "garbage") == []
    assert not os.path.exists(place.path / "archiving")
