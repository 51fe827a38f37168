"""Decisions that a dead broker left are carried out once: all of them, and nothing twice."""

import os

import pytest
from tests.store.segments import Files
from tests.store.test_commit_log import decide, message
from tests.store.test_shared_commit_log import Log

from brokerd.errors import StoreError
from brokerd.store import commit_log
from brokerd.store import format as layout
from brokerd.store.commit_log import CommitLog, Plan, encode_plan
from brokerd.store.disk import Disk
from brokerd.store.format import COMMIT_ACKED as ACKED
from brokerd.store.format import COMMIT_REJECTED as REJECTED
from brokerd.vhost.commits import Start, finish_commits
from brokerd.vhost.features import NoDuplicates


class Queue:
    """A queue whose folder is real and whose plane is not; ``ready`` holds what remove() finds."""

    def __init__(self, directory, name):
        self.name = name
        self.directory = os.path.join(directory, name)
        self.ready = {}
        self.aside = {}
        self.dead = []
        self.deduplication = None

    def set_aside(self, seq):
        if seq in self.ready:
            self.aside[seq] = self.ready.pop(seq)
        return seq in self.aside

    def browse_aside(self, seq, count):
        return [self.aside[each] for each in sorted(self.aside) if each >= seq][:count]

    def release(self, seq):
        self.ready[seq] = self.aside.pop(seq)
        return True

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
        self.duplicates = NoDuplicates(self.directory, lambda: 0)
        self.core = self
        self.puts = []

    def put(self, queues, exchange, key, properties, body, *, connection, publish_seq, sync, keys):
        assert sync
        self.on_put()
        self.puts.append((*[queue.name for queue in queues], body, connection, publish_seq))

    @property
    def bodies(self):
        return [body for _, body, _, _ in self.puts]

    def on_put(self):
        pass


@pytest.fixture
def vhost(tmp_path):
    return VHost(tmp_path)


def recover(vhost, *, suspect=False):
    """A start, with number 99; what it reported.  The commit logs are there again afterwards."""
    kept = {path: Disk().read(path) for path in commit_log.find(vhost.directory, Disk())}
    lines = []
    finish_commits(vhost, Start(Disk(), suspect, lines.append, lambda: None, lambda: 99))
    assert commit_log.find(vhost.directory, Disk()) == []
    for path, octets in kept.items():
        with open(path, "wb") as file:
            file.write(octets)
    return lines


def test_a_decision_not_carried_out_is_carried_out_at_start(vhost):
    decide(vhost, 3, names=("a", "b"))
    assert recover(vhost) == [
        f"{vhost.directory}/tx.7.1: a committed transaction was brought to its end: 6 stored, 0 settled"]
    assert vhost.puts == [(name, b"%d" % seq, 99, seq) for seq in (1, 2, 3) for name in ("a", "b")]


@pytest.mark.parametrize("there", range(4))
def test_only_what_is_missing_is_stored(vhost, there):
    Files(vhost.queues["a"].directory).segment(1, [b"x"] * there, room=4096)
    decide(vhost, 3)
    recover(vhost)
    assert vhost.bodies == [b"%d" % seq for seq in range(there + 1, 4)]


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
    assert vhost.bodies == [b"3"]


def test_what_was_applied_is_left_alone_unless_power_was_lost(vhost):
    decide(vhost, 2, applied=True)
    recover(vhost)
    assert vhost.puts == []
    recover(vhost, suspect=True)
    assert len(vhost.puts) == 2


def test_messages_that_the_former_broker_noted_as_stored_are_not_stored_again_unless_power_was_lost(vhost):
    decide(vhost, 5, names=("a", "b")).mark_stored(3)
    recover(vhost)
    assert vhost.bodies == [b"4", b"4", b"5", b"5"]
    vhost.puts = []
    recover(vhost, suspect=True)
    assert len(vhost.puts) == 10


def test_a_note_that_all_is_stored_leaves_the_settlements_to_the_start(vhost):
    vhost.queues["b"].ready = {5: row(5)}
    decide(vhost, 3, settlements=[("b", 5, layout.COMMIT_ACKED)]).mark_stored(3)
    recover(vhost)
    assert (vhost.puts, vhost.queues["b"].ready) == ([], {})


def test_settlements_are_carried_out_where_the_message_is_there_again(vhost):
    row = (5, 0, True, b"x", b"k", b"\0\0", b"body")
    vhost.queues["a"].ready = {5: row}
    vhost.queues["b"].ready = {6: (6, *row[1:])}
    decide(vhost, 0, settlements=[("a", 5, ACKED), ("a", 9, ACKED), ("b", 6, REJECTED)])
    lines = recover(vhost)
    assert vhost.queues["a"].ready == vhost.queues["b"].ready == {}
    assert vhost.queues["a"].dead == []
    assert vhost.queues["b"].dead == [("rejected", 0, b"x", b"k", b"\0\0", b"body", 0)]
    assert lines[0].endswith("0 stored, 2 settled")


def test_transactions_of_a_shared_log_are_carried_out_in_their_order_those_that_were_applied_after_a_power_cut_alone(
        vhost):
    log = Log(vhost.directory)
    entries = [log.append(seq, b"%d" % seq) for seq in (1, 2, 3)]
    log.log.mark_applied(entries[1])
    lines = recover(vhost)
    assert vhost.bodies == [b"1", b"3"]
    assert lines == [f"{vhost.directory}/tx.shared.7.0: 2 committed transactions were brought to their end: "
                     "2 stored, 0 settled"]
    vhost.puts.clear()
    recover(vhost, suspect=True)
    assert vhost.bodies == [b"1", b"2", b"3"]


def test_files_of_a_shared_log_are_read_in_the_order_in_which_they_were_written(vhost):
    log = Log(vhost.directory)
    for seq in range(1, 6):
        log.log.mark_applied(log.append(seq, b"%d" % seq))
        log.log.rotate()
        if seq < 4:
            log.commit.end()
            log.commit.end()
    recover(vhost, suspect=True)
    assert vhost.bodies == [b"4", b"5"]


def row(seq):
    return (seq, 0, False, b"exchange", b"key", b"\x10\0\2", b"%d" % seq)


@pytest.fixture
def broken(vhost):
    """Power took message 2 of four; queue a has the others, and 4 is settled."""
    files = Files(vhost.queues["a"].directory)
    files.segment(1, [b"x"], sealed=layout.FULL)
    files.segment(2, [b"x"] * 2, base_seq=3)
    vhost.queues["a"].ready = {1: row(1), 3: row(3)}
    return vhost


def test_what_stands_behind_a_lost_message_is_stored_behind_it_again(broken):
    decide(broken, 4)
    assert recover(broken, suspect=True)[0].endswith(
        "2 stored, 1 of them to stand behind what was lost, 0 settled")
    assert broken.bodies == [b"2", b"3"]
    assert broken.queues["a"].ready == {1: row(1)}


def test_a_queue_that_has_all_keeps_it_where_another_lacks_a_message(broken):
    Files(broken.queues["b"].directory).segment(1, [b"x"] * 4)
    broken.queues["b"].ready = {seq: row(seq) for seq in range(1, 5)}
    decide(broken, 4, names=("a", "b"))
    recover(broken, suspect=True)
    assert broken.puts == [("a", b"2", 99, 1), ("a", b"3", 99, 2)]
    assert list(broken.queues["b"].ready) == [1, 2, 3, 4]


def test_what_a_channel_published_behind_a_lost_message_without_a_commit_log_is_stored_behind_it_again(broken):
    decide(broken, 2)
    recover(broken, suspect=True)
    assert broken.bodies == [b"2", b"3"]
    assert broken.queues["a"].ready == {1: row(1)}


def test_the_commit_log_of_a_start_that_was_cut_off_goes_before_all_others(vhost):
    decide(vhost, 3)
    os.rename(f"{vhost.directory}/tx.7.1", f"{vhost.directory}/tx.again.7")
    decide(vhost, 5, number=8)
    recover(vhost)
    assert vhost.bodies == [b"1", b"2", b"3"]


def test_of_two_starts_that_were_cut_off_the_later_one_counts(vhost):
    """It has read the log of the earlier one, and died before it removed that."""
    for number, messages in ((7, 5), (12, 3), (9, 4)):
        decide(vhost, messages, number=number)
        os.rename(f"{vhost.directory}/tx.{number}.1", f"{vhost.directory}/tx.again.{number}")
    recover(vhost)
    assert vhost.bodies == [b"1", b"2", b"3"]


def test_a_commit_log_that_a_start_had_not_decided_counts_for_nothing(vhost):
    decide(vhost, 3)
    with open(f"{vhost.directory}/tx.again.9", "wb") as file:
        file.write(bytes(200))
    assert len(recover(vhost)) == 1
    assert vhost.bodies == [b"1", b"2", b"3"]


def test_a_large_transaction_has_its_place_before_the_next_one_of_its_channel(vhost):
    log = Log(vhost.directory)
    for seq in (1, 5, 6):
        log.append(seq, b"%d" % seq)
    large = CommitLog(f"{vhost.directory}/tx.7.1", Disk())
    large.decide(7, 1, encode_plan(Plan([(large.add(message(3, b"3")).position, [vhost.queues["a"]])], [])))
    recover(vhost)
    assert vhost.bodies == [b"1", b"3", b"5", b"6"]


def test_a_large_transaction_behind_which_its_channel_published_nothing_comes_last(vhost):
    log = Log(vhost.directory)
    for seq in (8, 9):
        log.append(seq, b"%d" % seq)
    decide(vhost, 2, number=8)
    recover(vhost)
    assert vhost.bodies == [b"8", b"9", b"1", b"2"]


def test_a_rejected_delivery_is_settled_after_its_dead_letter_was_made(vhost):
    queue = vhost.queues["a"]
    queue.ready = {5: row(5)}
    seen = []
    queue.on_dead = lambda *message: seen.append((dict(queue.aside), message[5]))
    decide(vhost, 0, settlements=[("a", 5, REJECTED)])
    recover(vhost)
    assert seen == [({5: row(5)}, b"5")]
    assert queue.ready == queue.aside == {}


class Steps(Disk):
    """Notes what is removed, and when names are put on disk."""

    def __init__(self):
        self.steps = []

    def unlink(self, path):
        super().unlink(path)
        self.steps.append(os.path.basename(path))

    def sync_directory(self, path):
        super().sync_directory(path)
        self.steps.append("names")


def test_the_removal_of_a_log_is_on_disk_before_anything_else_is_done(vhost):
    decide(vhost, 2, settlements=[("b", 5, REJECTED)])
    disk = Steps()
    vhost.on_put = lambda: disk.steps.append("put")
    vhost.queues["b"].ready = {5: row(5)}
    vhost.queues["b"].on_dead = lambda *message: disk.steps.append("dead letter")
    finish_commits(vhost, Start(disk, False, lambda line: None, lambda: disk.steps.append("sync"), lambda: 99))
    assert disk.steps == [
        "sync", "sync", "tx.7.1", "names", "dead letter", "put", "put", "sync", "tx.again.99", "names"]


def test_acks_are_carried_out_before_a_dead_letter_may_get_the_number_of_a_lost_message(vhost):
    a, b = vhost.queues["a"], vhost.queues["b"]
    a.ready = {1: row(1)}
    a.on_dead = lambda *message: b.ready.update({1: message})
    decide(vhost, 0, settlements=[("a", 1, REJECTED), ("b", 1, ACKED)])
    recover(vhost, suspect=True)
    assert (list(a.ready), list(b.ready)) == ([], [1])


@pytest.mark.parametrize("prefix", ["tx.7.1", "tx.again.7"])
def test_a_message_that_no_broker_wrote_stops_the_start_before_anything_is_done(vhost, prefix):
    """Its check value may be right all the same."""
    entry = CommitLog(os.path.join(vhost.directory, prefix), Disk())
    places = [entry.add(message(1, b"1")), entry.add(message(2, b"2")._replace(properties=b"\xff\xff\x01"))]
    entry.decide(7, 1, encode_plan(Plan([(place.position, [vhost.queues["b"]]) for place in places], [])))
    with pytest.raises(StoreError, match=rf"/{prefix}: .* a message for queue 'b' .*malformed properties"):
        recover(vhost)
    assert [name for name in os.listdir(vhost.directory) if name.startswith("tx.")] == [prefix]
    assert vhost.puts == []


def test_a_log_that_cannot_be_removed_stops_the_start(vhost):
    class Stubborn(Disk):
        def unlink(self, path):
            raise OSError(5, "Input/output error")

    decide(vhost, 2)
    with pytest.raises(OSError, match="Input/output"):
        finish_commits(vhost, Start(Stubborn(), False, lambda line: None, lambda: None, lambda: 99))
    assert vhost.puts == []


def test_a_record_with_a_wrong_sum_is_not_there(vhost):
    files = Files(vhost.queues["a"].directory)
    files.segment(1, [b"x"] * 3)
    files.poke(files.msgs(1), files.positions[1][1] + layout.HEADER_OCTETS, b"?")
    decide(vhost, 3)
    recover(vhost, suspect=True)
    assert vhost.bodies == [b"2"]


def test_the_former_logs_go_when_the_new_one_is_on_disk_and_that_one_when_the_queues_are(vhost):
    decide(vhost, 2)
    steps = []
    start = Start(Disk(), False, lambda line: None,
                  lambda: steps.append((sorted(name for name in os.listdir(vhost.directory) if name[:3] == "tx."),
                                        len(vhost.puts))), lambda: 99)
    finish_commits(vhost, start)
    assert steps == [(["tx.7.1"], 0), (["tx.7.1", "tx.again.99"], 0), (["tx.again.99"], 2)]
    assert commit_log.find(vhost.directory, Disk()) == []


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
    assert vhost.bodies == [b"3"]


def test_a_queue_that_is_gone_is_passed_over(vhost):
    decide(vhost, 2, names=("a", "b"), settlements=[("b", 1, ACKED)])
    del vhost.queues["b"]
    recover(vhost)
    assert [put[0] for put in vhost.puts] == ["a", "a"]


def test_what_was_not_decided_never_was(vhost):
    entry = CommitLog(os.path.join(vhost.directory, "tx.7.1"), Disk())
    for seq in range(9):
        entry.add(message(seq, bytes(400_000)))
    assert recover(vhost) == [f"{entry.path}: a transaction that was not committed: dropped"]
    assert vhost.puts == []


def test_other_files_of_the_folder_are_not_looked_at(vhost):
    with open(os.path.join(vhost.directory, "definitions.amqp"), "w") as file:
        file.write("x")
    assert recover(vhost) == []
    assert os.listdir(vhost.directory) == ["definitions.amqp"]
