"""Small transactions in one file: whole or not at all, given up when their queues are synced."""

import os
from random import Random

import pytest
from tests.store.test_commit_log import message

from brokerd.errors import StoreError
from brokerd.store import format as layout
from brokerd.store import shared_commit_log
from brokerd.store.commit_log import CommitLog, Plan, encode_plan
from brokerd.store.disk import Disk
from brokerd.store.shared_commit_log import SharedCommitLog, load
from brokerd.testing.disk import ForgetfulDisk


class Queue:
    name = "a"


class Commit:
    """Group commit by hand, and the core whose queues it syncs."""

    def __init__(self):
        self.waiting = []
        self.queues = []

    def wait(self, callback, log=None):
        self.waiting.append((callback, log))

    def sync_directory(self, path):
        pass

    def sync_next(self, queues):
        self.queues += queues

    def end(self):
        waiting, self.waiting = self.waiting, []
        for callback, log in waiting:
            if log is not None and log.dirty:
                log.sync()
            callback()


class Log:
    """A log with transactions of one message each."""

    def __init__(self, directory, disk=None):
        self.commit = Commit()
        self.queue = Queue()
        self.disk = disk or Disk()
        self.directory = str(directory)
        self.log = SharedCommitLog(self.directory, 7, self.disk, self.commit, self.commit)

    def append(self, seq, body=b"body"):
        own = CommitLog(os.path.join(self.directory, "tx.7.1"), self.disk)
        place = own.add(message(seq, body))
        plan = encode_plan(Plan([(place.position, [self.queue])], [(self.queue, seq, layout.COMMIT_REJECTED)]),
                           layout.ENTRY_HEAD_OCTETS - layout.HEADER_OCTETS)
        return self.log.append(7, 1, own.messages, plan, [self.queue])


def found(directory):
    """Publish numbers in all files, in order, with whether each is applied."""
    files = [load(os.path.join(directory, name), Disk()) for name in os.listdir(directory)]
    return [(decision.messages[0][0].publish_seq, decision.applied)
            for file in sorted(files) for decision in file.decisions]


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path)


def test_a_transaction_is_found_as_it_was_written(log):
    entry = log.append(1, b"one")
    decision, = load(entry.file.path, Disk()).decisions
    assert (decision.connection, decision.channel, decision.applied) == (7, 1, False)
    assert decision.messages == [(message(1, b"one"), ["a"])]
    assert decision.settlements == [("a", 1, layout.COMMIT_REJECTED)]


def test_transactions_share_a_file_and_are_marked_one_by_one(log):
    entries = [log.append(seq) for seq in (1, 2, 3)]
    log.log.mark_applied(entries[1])
    assert found(log.directory) == [(1, False), (2, True), (3, False)]


def test_a_file_cut_or_changed_anywhere_has_the_transactions_before_that_place(log):
    entries = [log.append(seq, b"12345") for seq in (1, 2, 3)]  # which need no padding
    path = entries[0].file.path
    with open(path, "rb") as file:
        whole = file.read()[:entries[0].file.end]
    for at in range(entries[1].at, entries[2].at):
        if at - entries[1].at in range(8, 12):
            continue  # whether it is applied
        for broken in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1:]):
            with open(path, "wb") as file:
                file.write(broken)
            assert len(load(path, Disk()).decisions) == 1, at


def test_a_file_without_a_whole_header_has_nothing(log):
    path = log.append(1).file.path
    with open(path, "r+b") as file:
        file.write(b"\0")
    assert load(path, Disk()).decisions == []


def test_what_the_former_version_has_decided_is_found(log):
    path = log.append(1).file.path
    with open(path, "r+b") as file:
        head = bytearray(file.read(36))
        head[4] = 2
        file.seek(0)
        file.write(head + layout.crc32c(head).to_bytes(4, "little"))
    assert found(log.directory) == [(1, False)]


def test_how_much_of_a_transaction_is_stored_is_found_until_all_of_it_is(log):
    entries = [log.append(seq) for seq in (1, 2, 3)]
    log.log.mark_stored(entries[1], 0x123456)
    decisions = load(entries[0].file.path, Disk()).decisions
    assert [(one.first, one.stored, one.applied) for one in decisions] == [
        (1, 0, False), (2, 0x123456, False), (3, 0, False)]
    log.log.mark_applied(entries[1])
    assert found(log.directory) == [(1, False), (2, True), (3, False)]


def test_a_later_version_is_refused(log):
    path = log.append(1).file.path
    with open(path, "r+b") as file:
        head = bytearray(file.read(36))
        head[4] = 4
        file.seek(0)
        file.write(head + layout.crc32c(head).to_bytes(4, "little"))
    with pytest.raises(StoreError, match="version 4 at offset 4: written by a later brokerd"):
        load(path, Disk())


def test_transactions_are_forgotten_after_their_queues_are_synced_and_not_before(log):
    entry = log.append(1)
    log.log.mark_applied(entry)
    log.log.rotate()
    assert log.commit.queues == [log.queue]
    assert found(log.directory) == [(1, True)]
    log.commit.end()
    assert found(log.directory) == []


def test_a_file_is_given_up_only_when_all_its_transactions_are_stored(log):
    entries = [log.append(1), log.append(2), log.append(3)]
    log.log.mark_applied(entries[1])
    log.log.rotate()
    assert log.commit.waiting == []
    later = log.append(4)
    assert later.file is not entries[0].file
    log.log.mark_applied(entries[0])
    assert log.commit.waiting == []
    log.log.mark_applied(entries[2])
    log.commit.end()
    assert found(log.directory) == [(4, False)]


def test_a_file_that_is_not_given_up_yet_takes_no_transactions(log):
    log.append(1)
    log.log.rotate()
    second = log.append(2)
    log.log.rotate()
    assert log.append(3).file is second.file
    assert found(log.directory) == [(1, False), (2, False), (3, False)]


def test_transactions_of_a_former_generation_are_not_found_again(log):
    for seq in range(1, 10):
        log.log.mark_applied(log.append(seq, bytes(100)))
    log.log.rotate()
    log.commit.end()
    log.log.mark_applied(log.append(10))
    log.log.rotate()
    log.append(11)
    assert found(log.directory) == [(10, True), (11, False)]


def test_many_transactions_need_two_files_of_little_more_than_their_limit(log, monkeypatch):
    monkeypatch.setattr(shared_commit_log, "FILE_OCTETS", 10_000)
    for seq in range(1, 2000):
        log.log.mark_applied(log.append(seq, bytes(200)))
        log.commit.end()
    assert len(os.listdir(log.directory)) == 2
    assert all(os.path.getsize(os.path.join(log.directory, name)) < 200_000 for name in os.listdir(log.directory))


def test_what_is_left_for_the_next_start_stays_and_is_written_over_by_nothing(log):
    entry = log.append(1)
    log.log.leave(entry)
    for seq in (2, 3, 4):
        log.log.mark_applied(log.append(seq))
        log.log.rotate()
        log.commit.end()
    log.log.close(remove=True)
    assert found(log.directory) == [(1, False)]


def test_a_log_that_is_closed_leaves_its_files_and_one_that_is_not_needed_any_more_none(tmp_path):
    for remove in (False, True):
        log = Log(tmp_path)
        entry = log.append(1)
        log.log.close(remove=remove)
        log.log.mark_applied(entry)
        log.commit.end()
        assert len(os.listdir(tmp_path)) == 1 - remove


def test_a_transaction_that_finds_no_room_is_not_written(log):
    class Full(Disk):
        def pwrite(self, fd, octets, position):
            raise OSError(28, "No space left on device")

    full = Log(log.directory, Full())
    with pytest.raises(OSError, match="No space left"):
        full.append(1)
    assert os.listdir(log.directory) == []


@pytest.mark.parametrize("seed", range(40))
def test_after_a_power_cut_transactions_are_whole_those_that_were_synced_are_there_and_no_gap_is(tmp_path, seed):
    random = Random(seed)
    root = tmp_path / "root"
    root.mkdir()
    disk = ForgetfulDisk(str(root))
    log = Log(root, disk)
    synced = stored = 0
    last = random.randrange(1, 30)
    for seq in range(1, last + 1):
        entry = log.append(seq, bytes([seq]) * random.randrange(9000))
        if random.random() < 0.5:
            entry.file.sync()
            synced = seq
            log.log.mark_applied(entry)
        else:
            entry.file.pending -= 1
        if random.random() < 0.1:
            if entry.file.dirty:
                entry.file.sync()
                synced = seq
            log.log.rotate()
            if random.random() < 0.5:
                log.commit.end()
                stored = seq
    target = tmp_path / "after"
    disk.lose_power(str(target), random)
    left = [seq for seq, _ in found(str(target))]
    assert set(range(stored + 1, synced + 1)) <= set(left)
    later = [seq for seq in left if seq > synced]
    assert later == list(range(synced + 1, synced + 1 + len(later)))
    disk.release()
