"""Decisions that a dead broker left are carried out once: all of them, and nothing twice."""

import os

import pytest
from tests.store.segments import Files
from tests.store.test_commit_log import decide, message
from tests.store.test_shared_commit_log import Log

from brokerd.store import commit_log
from brokerd.store import format as layout
from brokerd.store.commit_log import CommitLog
from brokerd.store.disk import Disk
from brokerd.store.format import COMMIT_ACKED as ACKED
from brokerd.store.format import COMMIT_REJECTED as REJECTED
from brokerd.vhost.commits import finish_commits


class Queue:
    """A queue whose folder is real and whose plane is not; ``ready`` holds what remove() finds."""

    def __init__(self, directory, name):
        self.name = name
        self.directory = os.path.join(directory, name)
        self.ready = {}
        self.dead = []
        self.deduplication = None

    def remove(self, seq):
        return self.ready.pop(seq, None)

    def on_dead(self, *message):
        self.dead.append(message)
        return True


class VHost:
    def __init__(self, directory):
        self.directory = str(directory)
        self.queues = {name: Queue(self.directory, name) for name in ("a", "b")}
        self.exchanges = {}
        self.core = self
        self.puts = []

    def put(self, queues, exchange, key, properties, body, *, connection, channel, publish_seq, sync, keys=None):
        assert sync
        self.on_put()
        self.puts.append((*[queue.name for queue in queues], body, connection, channel, publish_seq))


    def on_put(self):
        pass


@pytest.fixture
def vhost(tmp_path):
    return VHost(tmp_path)


def recover(vhost, *, suspect=False):
    lines = []
    return finish_commits(vhost, Disk(), suspect=suspect, report=lines.append), lines


def test_a_decision_not_carried_out_is_carried_out_at_start(vhost):
    decide(vhost, 3, names=("a", "b"))
    paths, lines = recover(vhost)
    assert vhost.puts == [(name, b"%d" % seq, 7, 1, seq) for seq in (1, 2, 3) for name in ("a", "b")]
    assert lines == [f"{paths[0]}: a committed transaction was brought to its end: 6 stored, 0 settled"]


@pytest.mark.parametrize("there", range(4))
def test_only_what_is_missing_is_stored(vhost, there):
    Files(vhost.queues["a"].directory).segment(1, [b"x"] * there, room=4096)
    decide(vhost, 3)
    recover(vhost)
    assert [put[-1] for put in vhost.puts] == list(range(there + 1, 4))


def test_records_of_others_are_not_taken_for_ours(vhost):
    Files(vhost.queues["a"].directory).segment(1, [b"x"] * 3)
    decide(vhost, 3, number=8)
    recover(vhost)
    assert len(vhost.puts) == 3


def test_records_are_found_in_every_segment(vhost):
    files = Files(vhost.queues["a"].directory)
    files.segment(1, [b"x"], sealed=layout.FULL)
    files.segment(4, [b"x"], base_seq=2, sealed=layout.OPEN, room=64)
    decide(vhost, 3)
    recover(vhost)
    assert [put[-1] for put in vhost.puts] == [3]


def test_what_was_applied_is_left_alone_unless_power_was_lost(vhost):
    decide(vhost, 2, applied=True)
    recover(vhost)
    assert vhost.puts == []
    recover(vhost, suspect=True)
    assert len(vhost.puts) == 2


def test_settlements_are_carried_out_where_the_message_is_there_again(vhost):
    row = (5, 0, True, b"x", b"k", b"\0\0", b"body")
    vhost.queues["a"].ready = {5: row}
    vhost.queues["b"].ready = {6: (6, *row[1:])}
    decide(vhost, 0, settlements=[("a", 5, ACKED), ("a", 9, ACKED), ("b", 6, REJECTED)])
    _, lines = recover(vhost)
    assert vhost.queues["a"].ready == vhost.queues["b"].ready == {}
    assert vhost.queues["a"].dead == []
    assert vhost.queues["b"].dead == [("rejected", 0, b"x", b"k", b"\0\0", b"body", 0)]
    assert lines[0].endswith("0 stored, 2 settled")


def test_transactions_of_a_shared_log_are_carried_out_in_their_order_those_that_were_applied_after_a_power_cut_alone(
        vhost):
    log = Log(vhost.directory)
    entries = [log.append(seq) for seq in (1, 2, 3)]
    log.log.mark_applied(entries[1])
    paths, lines = recover(vhost)
    assert [put[-1] for put in vhost.puts] == [1, 3]
    assert lines == [f"{paths[0]}: 2 committed transactions were brought to their end: 2 stored, 0 settled"]
    vhost.puts.clear()
    recover(vhost, suspect=True)
    assert [put[-1] for put in vhost.puts] == [1, 2, 3]


def test_files_of_a_shared_log_are_read_in_the_order_in_which_they_were_written(vhost):
    log = Log(vhost.directory)
    for seq in range(1, 6):
        log.log.mark_applied(log.append(seq))
        log.log.rotate()
        if seq < 4:
            log.commit.end()
            log.commit.end()
    assert len(recover(vhost, suspect=True)[0]) == 2
    assert [put[-1] for put in vhost.puts] == [4, 5]


def test_a_settlement_does_not_see_a_message_that_is_stored_now_under_its_number(vhost):
    log = Log(vhost.directory)
    log.append(1)
    row = (1, 0, True, b"x", b"k", b"\0\0", b"body")
    vhost.on_put = lambda: vhost.queues["a"].ready.update({1: row})
    recover(vhost, suspect=True)
    assert vhost.queues["a"].ready == {1: row}
    assert vhost.queues["a"].dead == []


def test_records_of_a_priority_level_are_found(vhost):
    Files(os.path.join(vhost.queues["a"].directory, "prio.003")).segment(1, [b"x"] * 2)
    decide(vhost, 3)
    recover(vhost)
    assert [put[-1] for put in vhost.puts] == [3]


def test_a_queue_that_is_gone_is_passed_over(vhost):
    decide(vhost, 2, names=("a", "b"), settlements=[("b", 1, ACKED)])
    del vhost.queues["b"]
    recover(vhost)
    assert [put[0] for put in vhost.puts] == ["a", "a"]


def test_what_was_not_decided_never_was(vhost):
    entry = CommitLog(os.path.join(vhost.directory, "tx.7.1"), Disk())
    for seq in range(9):
        entry.add(message(seq, bytes(400_000)))
    paths, lines = recover(vhost)
    assert vhost.puts == []
    assert lines == [f"{entry.path}: a transaction that was not committed: dropped"]
    commit_log.discard(paths, Disk())
    assert os.listdir(vhost.directory) == []


def test_other_files_of_the_folder_are_not_looked_at(vhost):
    with open(os.path.join(vhost.directory, "definitions.amqp"), "w") as file:
        file.write("x")
    assert recover(vhost) == ([], [])
