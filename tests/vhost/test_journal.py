import os
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.forgetful_disk import ForgetfulDisk
from tests.store.segments import Files

from brokerd.errors import StoreError
from brokerd.store import format as layout
from brokerd.store.disk import Disk
from brokerd.vhost import journal
from brokerd.vhost.journal import ACKED, REJECTED, Journal, Message, Plan


class Queue:
    """A queue whose folder is real and whose plane is not; ``ready`` holds what remove() finds."""

    def __init__(self, directory, name):
        self.name = name
        self.directory = os.path.join(directory, name)
        self.ready = {}
        self.dead = []

    def remove(self, seq):
        return self.ready.pop(seq, None)

    def on_dead(self, *message):
        self.dead.append(message)
        return True


class VHost:
    def __init__(self, directory):
        self.directory = str(directory)
        self.queues = {name: Queue(self.directory, name) for name in ("a", "b")}
        self.core = self
        self.puts = []

    def put(self, queues, exchange, key, properties, body, *, connection, channel, publish_seq, sync):
        assert sync
        self.puts.append((*[queue.name for queue in queues], body, connection, channel, publish_seq))


@pytest.fixture
def vhost(tmp_path):
    return VHost(tmp_path)


def message(seq, body=b"body"):
    return Message(seq, b"exchange", b"key", b"\x10\0\2", body)


def decide(vhost, count=3, *, names=("a",), settlements=(), applied=False, number=7):
    """A journal of connection ``number``, channel 1, with publishes 1..count."""
    entry = Journal(os.path.join(vhost.directory, f"tx.{number}.1"), Disk())
    places = [entry.add(message(seq, b"%d" % seq)) for seq in range(1, count + 1)]
    queues = [vhost.queues[name] for name in names]
    entry.decide(number, 1, Plan([(place.position, queues) for place in places],
                                 [(vhost.queues[name], seq, outcome) for name, seq, outcome in settlements]))
    if applied:
        entry.applied()
    return entry


def recover(vhost, *, suspect=False):
    lines = []
    return journal.recover(vhost, Disk(), suspect=suspect, report=lines.append), lines


messages = st.lists(st.builds(
    Message, st.integers(0, 2**64 - 1), st.binary(max_size=255), st.binary(max_size=255), st.binary(max_size=300),
    st.binary(max_size=2000)), max_size=20)


@given(messages)
def test_what_is_kept_is_read_again(tmp_path_factory, kept):
    entry = Journal(str(tmp_path_factory.getbasetemp() / "tx.1.1"), Disk())
    places = [entry.add(one) for one in kept]
    assert [entry.read(place) for place in places] == kept
    entry.decide(1, 1, Plan([(place.position, []) for place in places], []))
    assert [entry.read(place) for place in places] == kept
    assert [one for one, _ in journal.load(entry.path, Disk()).messages] == kept
    entry.remove()


def test_messages_beyond_what_memory_may_hold_are_in_the_file(vhost):
    entry = Journal(os.path.join(vhost.directory, "tx.1.1"), Disk())
    large = [message(seq, bytes([seq]) * 400_000) for seq in range(9)]
    places = [entry.add(one) for one in large]
    assert os.path.getsize(entry.path) > 2_000_000
    assert [entry.read(place) for place in places] == large


def test_no_file_is_made_for_what_is_rolled_back_early(vhost):
    entry = Journal(os.path.join(vhost.directory, "tx.1.1"), Disk())
    entry.add(message(1))
    assert entry.remove() is False
    assert os.listdir(vhost.directory) == []


def test_a_decision_is_found_as_it_was_made(vhost):
    decide(vhost, 2, names=("b", "a"), settlements=[("a", 5, ACKED), ("b", 6, REJECTED)])
    found = journal.load(os.path.join(vhost.directory, "tx.7.1"), Disk())
    assert (found.connection, found.channel, found.applied) == (7, 1, False)
    assert [(one.publish_seq, one.body, names) for one, names in found.messages] == [
        (1, b"1", ["b", "a"]), (2, b"2", ["b", "a"])]
    assert found.settlements == [("a", 5, ACKED), ("b", 6, REJECTED)]


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


def test_a_queue_that_is_gone_is_passed_over(vhost):
    decide(vhost, 2, names=("a", "b"), settlements=[("b", 1, ACKED)])
    del vhost.queues["b"]
    recover(vhost)
    assert [put[0] for put in vhost.puts] == ["a", "a"]


def test_what_was_not_decided_never_was(vhost):
    entry = Journal(os.path.join(vhost.directory, "tx.7.1"), Disk())
    for seq in range(9):
        entry.add(message(seq, bytes(400_000)))
    paths, lines = recover(vhost)
    assert vhost.puts == []
    assert lines == [f"{entry.path}: a transaction that was not committed: dropped"]
    journal.discard(paths, Disk())
    assert os.listdir(vhost.directory) == []


def test_a_decision_cut_or_changed_anywhere_is_none(vhost):
    path = decide(vhost, 2, settlements=[("a", 5, ACKED)]).path
    with open(path, "rb") as file:
        whole = file.read()
    for at in range(len(whole)):
        if 40 <= at < 64:
            continue
        for broken in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1:]):
            with open(path, "wb") as file:
                file.write(broken)
            try:
                found = journal.load(path, Disk())
            except StoreError:
                found = None
            assert found is None, at


def test_a_later_version_is_refused(vhost):
    path = decide(vhost).path
    with open(path, "r+b") as file:
        head = bytearray(file.read(36))
        head[4] = 2
        file.seek(0)
        file.write(head + layout.crc32c(head).to_bytes(4, "little"))
    with pytest.raises(StoreError, match="version 2 at offset 4: written by a later brokerd"):
        recover(vhost)


def test_other_files_of_the_folder_are_not_looked_at(vhost):
    with open(os.path.join(vhost.directory, "definitions.amqp"), "w") as file:
        file.write("x")
    assert recover(vhost) == ([], [])


def test_a_journal_is_gone_when_it_is_over(vhost):
    entry = decide(vhost)
    assert entry.dirty
    assert entry.remove() is True
    assert not entry.dirty
    assert os.listdir(vhost.directory) == []


@pytest.mark.parametrize("size", [10, 400_000])
@pytest.mark.parametrize("synced", [True, False])
def test_after_a_power_cut_a_decision_is_whole_or_none_and_there_if_it_was_synced(tmp_path, size, synced):
    root = tmp_path / "root"
    root.mkdir()
    disk = ForgetfulDisk(str(root))
    vhost = VHost(root)
    kept = [message(seq, bytes([seq]) * size) for seq in range(1, 9)]
    entry = Journal(os.path.join(vhost.directory, "tx.7.1"), disk)
    places = [entry.add(one) for one in kept]
    entry.decide(7, 1, Plan([(place.position, [vhost.queues["a"]]) for place in places], []))
    if synced:
        entry.sync()
    for seed in range(20):
        target = tmp_path / str(seed)
        disk.lose_power(str(target), Random(seed))
        path = str(target / "tx.7.1")
        found = journal.load(path, Disk()) if os.path.exists(path) else None
        if synced or found is not None:
            assert [one for one, _ in found.messages] == kept
    disk.release()
