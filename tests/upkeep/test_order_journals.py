"""Order journals of a broker: switched on and off, synced, cut to size, found again; over the real data plane."""

import errno
import logging
import os

import pytest
from tests.upkeep.journaled import JOURNAL, NEVER, Journaled, kept_names, kept_numbers

from brokerd.policies import Policy
from brokerd.store import format as layout
from brokerd.store import settled_segments
from brokerd.store.disk import Disk
from brokerd.upkeep import upkeep
from brokerd.upkeep.order_journals import SWEEP_TICKS
from brokerd.wire import methods


@pytest.fixture
def place(tmp_path):
    place = Journaled(tmp_path)
    yield place
    place.close()


def octets_of(path):
    with open(path, "rb") as file:
        return file.read()


def whats(lines):
    return [line["what"] for line in lines]


def policy(place, **definition):
    place.vhost.policies.put(Policy("p", "", {key.replace("_", "-"): value for key, value in definition.items()}))
    place.upkeep.apply_policies(place.vhost)


# --- on and off

def test_without_an_order_journal_there_is_nothing_to_do(place):
    queue = place.vhost.add_queue("q", durable=True, auto_delete=False, arguments={})
    place.pass_on(1, 300)
    place.upkeep.tick(NEVER)
    place.thread.jobs.clear()
    place.upkeep.tick(NEVER)
    assert (place.journals.entries, place.thread.jobs) == ({}, [])
    assert "order.jsonl" not in os.listdir(queue.directory)
    assert "kept" not in os.listdir(queue.directory)


def test_the_argument_makes_a_journal_and_says_the_settings(place):
    queue = place.queue(x_order_journal_retention_bytes=5, x_delivery_limit=2)
    place.second()
    (line,) = place.lines(queue)
    assert (line["what"], line["at"], line["journal"], line["queue"]) == ("settings", place.now - 10**9, True, "q")
    assert (line["retention_octets"], line["delivery_limit"], line["policy"]) == (5, 2, None)
    assert queue.journaled


def test_a_policy_switches_journals_on_and_off_while_messages_are_there(place):
    queue = place.vhost.add_queue("q", durable=True, auto_delete=False, arguments={})
    place.publish(1)
    place.client.send((1, methods.BasicConsume(queue="q", consumer_tag="before")))
    policy(place, order_journal=True)
    assert queue.journaled
    place.client.send((1, methods.BasicConsume(queue="q", consumer_tag="after")))
    place.client.send((1, methods.BasicCancel(consumer_tag="before")))
    place.second()
    lines = place.lines(queue)
    assert whats(lines) == ["settings", "consumer", "consumer", "consumer_gone"]
    assert [line.get("tag") for line in lines[1:3]] == ["before", "after"]
    assert lines[1]["number"] == lines[3]["number"] != lines[2]["number"]
    assert [lines[0]["policy"], lines[0]["journal"]] == ["p", True]
    place.vhost.policies.delete("p")
    place.upkeep.apply_policies(place.vhost)
    assert (queue.journaled, queue.side_file) == (False, None)
    place.client.send((1, methods.BasicCancel(consumer_tag="after")))
    place.second()
    last = place.lines(queue)[4:]
    assert [(line["what"], line["journal"], line["policy"]) for line in last] == [("settings", False, None)]


def test_settings_are_said_again_only_when_they_are_others(place):
    queue = place.queue()
    place.second(3)
    policy(place, max_length=5)
    place.second()
    policy(place, max_length=5)
    place.second()
    assert whats(place.lines(queue)) == ["settings"] * 2
    assert place.lines(queue)[1]["policy"] == "p"


def test_a_policy_is_without_effect_on_transient_queues(place):
    policy(place, order_journal=True)
    queue = place.vhost.add_queue("t", durable=False, auto_delete=False, arguments={})
    assert (queue.journaled, queue.rules.journal, place.journals.entries) == (False, True, {})


def test_an_operator_policy_may_ask_for_journals(place):
    place.vhost.policies.operators.put(Policy("o", "", {"order-journal": True}, operator=True))
    assert place.vhost.add_queue("q", durable=True, auto_delete=False, arguments={}).journaled


def test_consumers_have_numbers_that_are_never_given_twice_also_without_a_journal(place):
    queue = place.vhost.add_queue("q", durable=True, auto_delete=False, arguments={})
    for tag in "abc":
        place.client.send((1, methods.BasicConsume(queue="q", consumer_tag=tag)))
    numbers = [consumer.number for consumer in queue.consumers]
    assert len({place.client.connection.number, *numbers}) == 4
    assert 0 not in numbers


# --- over restarts

def test_consumers_that_come_and_go_in_one_burst_are_one_write(place, monkeypatch):
    queue = place.queue()
    place.second()
    asked = len(place.thread.jobs)
    place.client.send(*[(1, each) for number in range(50) for each in (
        methods.BasicConsume(queue="q", consumer_tag=f"c{number}", no_wait=True),
        methods.BasicCancel(consumer_tag=f"c{number}", no_wait=True))])
    assert len(place.thread.jobs) == asked + 1
    written = []
    monkeypatch.setattr(Disk, "pwrite", lambda _, fd, octets, at: written.append(octets) or os.pwrite(fd, octets, at))
    place.thread.run()
    (octets,) = written
    assert octets.count(b"\n") == 100
    assert whats(place.lines(queue)) == ["settings", *["consumer", "consumer_gone"] * 50]
    place.client.send((1, methods.BasicConsume(queue="q", consumer_tag="later", no_wait=True)))
    place.thread.run()
    tags = [line["tag"] for line in place.lines(queue, "consumer")]
    assert tags == [*[f"c{number}" for number in range(50)], "later"]


def test_a_journal_goes_on_after_a_restart_and_what_is_kept_is_known(place):
    queue = place.queue()
    place.pass_on(1, 300)
    place.second()
    before = place.journals.entries[queue.directory].kept
    queue = place.restart()
    assert queue.journaled
    place.second()
    assert place.journals.entries[queue.directory].kept == before
    assert len(before) == 4
    assert whats(place.lines(queue)).count("settings") == 2
    place.pass_on(301, 600)
    place.second()
    assert len(kept_numbers(queue)) > len(before)


def test_a_journal_that_the_policy_no_longer_asks_for_ends_with_the_restart(place):
    policy(place, order_journal=True)
    place.vhost.add_queue("q", durable=True, auto_delete=False, arguments={})
    place.pass_on(1, 300)
    place.vhost.policies.delete("p")
    queue = place.restart()
    place.second()
    assert not queue.journaled
    assert place.lines(queue, "settings")[-1]["journal"] is False
    assert len(place.journals.entries[queue.directory].kept) == 4       # in their time they go


def test_what_was_settled_just_before_the_end_is_cut_to_size_after_it(place):
    queue = place.queue()
    place.pass_on(1, 300)
    queue = place.restart()
    place.second()
    for number in kept_numbers(queue):
        assert os.path.getsize(f"{queue.directory}/kept/{layout.journal_name(number)}") % 4096
        assert os.path.getsize(f"{queue.directory}/kept/{layout.acks_name(number)}") % 4096


def test_what_a_removal_cut_short_has_left_goes_at_the_start(place):
    queue = place.queue()
    place.pass_on(1, 300)
    os.unlink(f"{queue.directory}/kept/{layout.segment_name(2)}")
    queue = place.restart()
    place.second()
    assert kept_numbers(queue) == [1, 3, 4]


def test_a_queue_of_the_same_name_begins_with_nothing(place):
    queue = place.queue()
    place.pass_on(1, 300)
    place.vhost.delete_queue(queue)
    again = place.queue()
    assert again is not queue
    place.second()
    assert whats(place.lines(again)) == ["settings"]
    assert (kept_names(again), place.journals.entries[again.directory].kept) == ([], [])


def test_the_folder_of_a_queue_that_never_held_a_message_goes_with_it(place):
    queue = place.queue()
    assert os.path.exists(queue.directory)
    place.vhost.delete_queue(queue)
    assert not os.path.exists(queue.directory)
    assert place.journals.entries == {}


# --- settled segments

def whole_until_synced(name, octets):
    """What it was before it was said in a journal's header up to when its events are synced (octets 48 to 63)."""
    return octets if not name.startswith("journal") else octets[:48] + bytes(16) + octets[64:]


def test_settled_segments_are_cut_to_their_committed_ends_and_not_otherwise_changed(place):
    queue = place.queue()
    place.pass_on(1, 300)
    before = {name: octets_of(f"{queue.directory}/kept/{name}") for name in kept_names(queue)}
    place.second()
    assert kept_numbers(queue) == [1, 2, 3, 4]
    for name, octets in before.items():
        after = octets_of(f"{queue.directory}/kept/{name}")
        assert octets.startswith(whole_until_synced(name, after))
        value = int.from_bytes(after[40:44] if name.startswith("msgs") else after[32:36], "little")
        end = {"msgs": value, "acks": 64 + 8 * value, "jour": 64 + 32 * value}[name[:4]]
        assert len(after) == end
    entry = place.journals.entries[queue.directory]
    assert entry.octets == sum(os.path.getsize(f"{queue.directory}/kept/{name}") for name in before)
    assert [each.number for each in entry.kept] == [1, 2, 3, 4]


def test_levels_have_folders_of_their_own(place):
    place.queue(x_max_priority=3)
    from brokerd.wire.frames import body_frames, header_frame

    octets = b""
    for number in range(1, 301):
        body = number.to_bytes(4) * 250
        header = b"\0\x3c\0\0" + len(body).to_bytes(8) + b"\x18\0\x02" + bytes([number % 2 * 2])
        octets += methods.BasicPublish(routing_key="q").frame(1) + header_frame(1, header) + body_frames(1, body, 4096)
    place.client.raw(octets)
    place.client.send((1, methods.BasicConsume(queue="q")))
    place.client.send((1, methods.BasicAck(delivery_tag=0, multiple=True)))
    place.second()
    queue = place.vhost.queues["q"]
    assert (kept_numbers(queue), kept_numbers(queue, 2)) == ([1, 2], [1, 2])
    known = [(each.level, each.number) for each in place.journals.entries[queue.directory].kept]
    assert sorted(known) == [(0, 1), (0, 2), (2, 1), (2, 2)]


def test_after_a_loss_of_power_what_lies_there_is_not_cut(place):
    place.queue()
    place.pass_on(1, 300)
    place.suspect = True
    queue = place.restart()
    place.second()
    sizes = {os.path.getsize(f"{queue.directory}/kept/{layout.acks_name(n)}") % 4096 for n in kept_numbers(queue)}
    assert sizes == {0}
    assert len(place.journals.entries[queue.directory].kept) == 4


# --- syncs

class SyncedDisk(Disk):
    def __init__(self):
        self.synced, self.failing = [], False

    def sync_all(self, files):
        self.synced += [os.path.basename(path) for _, path in files]
        if self.failing:
            raise OSError(errno.EIO, "Input/output error")


@pytest.fixture
def synced(place):
    place.disk = SyncedDisk()
    place.restart()
    place.queue()
    place.second()
    place.disk.synced.clear()
    return place


def said_synced(queue, number=1):
    with open(f"{queue.directory}/{layout.journal_name(number)}", "rb") as file:
        return int.from_bytes(file.read(64)[48:56], "little")


def test_journals_are_synced_once_a_second_when_something_was_written(synced):
    queue = synced.vhost.queues["q"]
    synced.pass_on(1, 3)
    assert said_synced(queue) == 0
    synced.second(3)
    assert synced.disk.synced == [layout.journal_name(1)]
    assert said_synced(queue) > 1_600_000_000 * 10**9


def test_no_sync_begins_while_one_is_under_way(synced):
    synced.pass_on(1, 3)
    synced.upkeep.tick(NEVER)
    synced.pass_on(4, 6)
    synced.upkeep.tick(NEVER)
    synced.second()
    assert synced.disk.synced == [layout.journal_name(1)]
    synced.second()
    assert synced.disk.synced == [layout.journal_name(1)] * 2


def test_a_journal_that_was_settled_meanwhile_is_synced_where_it_is(synced):
    synced.publish(*range(1, 201))
    synced.client.send((1, methods.BasicConsume(queue="q")))
    synced.upkeep.tick(NEVER)
    synced.client.send((1, methods.BasicAck(delivery_tag=200, multiple=True)))
    synced.second()
    assert layout.journal_name(1) in synced.disk.synced


def test_the_folder_of_settled_segments_is_synced_when_they_were_cut_to_size(synced, monkeypatch):
    queue, folders = synced.vhost.queues["q"], []
    monkeypatch.setattr(synced.disk, "sync_directory", folders.append)
    synced.pass_on(1, 100)
    synced.second()
    assert f"{queue.directory}/kept" in folders


def test_a_settled_segment_that_cannot_be_cut_stops_no_other(synced, monkeypatch, caplog):
    synced.queue("other")
    trim = settled_segments.trim

    def failing(folder, level, number, disk, **options):
        if folder == f"{synced.vhost.queues['q'].directory}/kept":
            raise OSError(errno.EIO, "Input/output error")
        return trim(folder, level, number, disk, **options)

    monkeypatch.setattr(settled_segments, "trim", failing)
    synced.pass_on(1, 100)
    synced.pass_on(1, 100, key="other")
    with caplog.at_level(logging.WARNING, "brokerd"):
        synced.second()
    entries = {name: synced.journals.entries[synced.vhost.queues[name].directory] for name in ("q", "other")}
    assert (bool(entries["q"].kept), bool(entries["other"].kept)) == (False, True)
    assert "Input/output error" in caplog.text


def test_after_a_failed_sync_nothing_is_said_to_be_on_disk(synced, caplog):
    queue = synced.vhost.queues["q"]
    synced.disk.failing = True
    synced.pass_on(1, 3)
    with caplog.at_level(logging.ERROR, "brokerd"):
        synced.second()
    assert "a sync failed: [Errno 5] Input/output error" in caplog.text
    synced.disk.failing = False
    synced.pass_on(4, 6)
    synced.second(3)
    assert said_synced(queue) == 0


# --- the side file

class FullDisk(Disk):
    full = False

    def pwrite(self, fd, octets, position):
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().pwrite(fd, octets, position)


def test_lines_that_found_no_room_leave_a_line_before_the_next_one_that_is_written(place):
    place.disk = FullDisk()
    place.restart()
    queue = place.queue()
    place.second()
    place.disk.full = True
    for tag in ("a", "b"):
        place.client.send((1, methods.BasicConsume(queue="q", consumer_tag=tag)))
        place.second()
    place.disk.full = False
    place.client.send((1, methods.BasicConsume(queue="q", consumer_tag="c")))
    place.second()
    lines = place.lines(queue)
    assert whats(lines) == ["settings", "lost", "consumer"]
    assert lines[2]["tag"] == "c"


def test_settings_that_found_no_room_are_said_with_the_next_sweep(place, caplog):
    place.disk = FullDisk()
    place.restart()
    queue = place.queue()
    place.disk.full = True
    with caplog.at_level(logging.WARNING, "brokerd"):
        place.second()
    assert "order.jsonl: not written: " in caplog.text
    place.disk.full = False
    assert place.lines(queue) == []
    place.second(SWEEP_TICKS)
    assert whats(place.lines(queue)) == ["lost", "settings"]


# --- compaction

def sparse(place):
    """All but a few of the messages in the first segments are settled."""
    queue = place.queue(x_order_journal_retention_age="1h")
    place.publish(*range(1, 301))
    place.client.send((1, methods.BasicConsume(queue="q", consumer_tag="c")))
    for tag in range(1, 301):
        if tag % 40:
            place.client.send((1, methods.BasicAck(delivery_tag=tag)))
    return queue


def test_within_its_retention_a_journaled_queue_is_not_compacted(place):
    queue = sparse(place)
    for segment in queue.segments():
        path = f"{queue.directory}/{layout.segment_name(segment['number'])}"
        os.utime(path, ns=(place.now, place.now))
    place.second(upkeep.COMPACT_EVERY_TICKS + 2)
    assert {segment["generation"] for segment in queue.segments()} == {0}
    place.now += 3_600 * 10**9
    place.second(upkeep.COMPACT_EVERY_TICKS + 2)
    assert 1 in {segment["generation"] for segment in queue.segments()}
    assert os.path.exists(f"{queue.directory}/{layout.journal_name(1)}")


def test_a_queue_larger_than_its_retention_is_compacted_and_its_journals_stay(place):
    queue = sparse(place)
    policy(place, order_journal_retention_bytes=1)
    before = {n: octets_of(f"{queue.directory}/{layout.journal_name(n)}") for n in (1, 2)}
    place.second(upkeep.COMPACT_EVERY_TICKS + 2)
    assert {segment["number"]: segment["generation"] for segment in queue.segments()}[1] == 1
    for number, octets in before.items():
        assert octets_of(f"{queue.directory}/{layout.journal_name(number)}")[64:4000] == octets[64:4000]
    got = place.client.send((1, methods.BasicCancel(consumer_tag="c")), (1, methods.BasicRecover(requeue=True)))
    assert got
    assert queue.ready == 7


def test_nothing_is_compacted_or_removed_while_somebody_copies_the_files(place):
    queue = sparse(place)
    policy(place, order_journal_retention_bytes=1)
    queue.copying = True
    place.second(upkeep.COMPACT_EVERY_TICKS + 2)
    assert {segment["generation"] for segment in queue.segments()} == {0}


def test_queues_without_a_journal_are_compacted_as_ever(place):
    place.vhost.add_queue("q", durable=True, auto_delete=False, arguments={})
    queue = sparse(place)
    place.second(upkeep.COMPACT_EVERY_TICKS + 2)
    assert 1 in {segment["generation"] for segment in queue.segments()}
    assert JOURNAL.keys() & queue.arguments.keys() == set()


def test_segments_settled_after_the_journal_was_switched_off_leave_no_journal_behind(place):
    policy(place, order_journal=True)
    queue = place.vhost.add_queue("q", durable=True, auto_delete=False, arguments={})
    place.publish(*range(1, 301))
    place.second()
    there = [name for name in os.listdir(queue.directory) if name.startswith("journal.")]
    assert len(there) == 5
    place.vhost.policies.delete("p")
    place.upkeep.apply_policies(place.vhost)
    place.client.send((1, methods.BasicConsume(queue="q", consumer_tag="all")))
    place.client.send((1, methods.BasicAck(delivery_tag=0, multiple=True)))
    place.second(2)
    left = {kind: {name[-10:] for name in os.listdir(queue.directory) if name.startswith(f"{kind}.0")}
            for kind in ("msgs", "journal", "acks")}
    assert left["journal"] == left["msgs"] == left["acks"]
    assert len(left["msgs"]) == 1
    assert place.restart() is not None
