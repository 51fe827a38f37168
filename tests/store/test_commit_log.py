import os
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import StoreError
from brokerd.store import commit_log as journal
from brokerd.store import format as layout
from brokerd.store.commit_log import CommitLog, Message, Plan, encode_plan
from brokerd.store.disk import Disk
from brokerd.store.format import COMMIT_ACKED as ACKED
from brokerd.store.format import COMMIT_REJECTED as REJECTED
from brokerd.testing.disk import ForgetfulDisk


class Queue:
    """A queue by its name and folder alone."""

    def __init__(self, directory, name):
        self.name = name
        self.directory = os.path.join(directory, name)


class VHost:
    def __init__(self, directory):
        self.directory = str(directory)
        self.queues = {name: Queue(self.directory, name) for name in ("a", "b")}


@pytest.fixture
def vhost(tmp_path):
    return VHost(tmp_path)


def message(seq, body=b"body"):
    return Message(seq, b"exchange", b"key", b"\x10\0\2", body)


def decide(vhost, count=3, *, names=("a",), settlements=(), applied=False, number=7):
    """A journal of connection ``number``, channel 1, with publishes 1..count."""
    entry = CommitLog(os.path.join(vhost.directory, f"tx.{number}.1"), Disk())
    places = [entry.add(message(seq, b"%d" % seq)) for seq in range(1, count + 1)]
    queues = [vhost.queues[name] for name in names]
    entry.decide(number, 1, encode_plan(Plan([(place.position, queues) for place in places],
                                 [(vhost.queues[name], seq, outcome) for name, seq, outcome in settlements])))
    if applied:
        entry.mark_applied()
    return entry


messages = st.lists(st.builds(
    Message, st.integers(0, 2**64 - 1), st.binary(max_size=255), st.binary(max_size=255), st.binary(max_size=300),
    st.binary(max_size=2000)), max_size=20)


@given(messages)
def test_what_is_kept_is_read_again(tmp_path_factory, kept):
    entry = CommitLog(str(tmp_path_factory.getbasetemp() / "tx.1.1"), Disk())
    places = [entry.add(one) for one in kept]
    assert [entry.read(place) for place in places] == kept
    entry.decide(1, 1, encode_plan(Plan([(place.position, []) for place in places], [])))
    assert [entry.read(place) for place in places] == kept
    assert [one for one, _ in journal.load(entry.path, Disk()).messages] == kept
    entry.remove()


def test_messages_beyond_what_memory_may_hold_are_in_the_file(vhost):
    entry = CommitLog(os.path.join(vhost.directory, "tx.1.1"), Disk())
    large = [message(seq, bytes([seq]) * 400_000) for seq in range(9)]
    places = [entry.add(one) for one in large]
    assert os.path.getsize(entry.path) > 2_000_000
    assert [entry.read(place) for place in places] == large


def test_no_file_is_made_for_what_is_rolled_back_early(vhost):
    entry = CommitLog(os.path.join(vhost.directory, "tx.1.1"), Disk())
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
        head[4] = 3
        file.seek(0)
        file.write(head + layout.crc32c(head).to_bytes(4, "little"))
    with pytest.raises(StoreError, match="version 3 at offset 4: written by a later brokerd"):
        journal.load(path, Disk())


def test_what_a_broker_of_the_first_version_has_decided_is_found(vhost):
    path = decide(vhost, 2).path
    with open(path, "r+b") as file:
        head = bytearray(file.read(36))
        head[4] = 1
        file.seek(0)
        file.write(head + layout.crc32c(head).to_bytes(4, "little"))
    found = journal.load(path, Disk())
    assert ([one.publish_seq for one, _ in found.messages], found.stored) == ([1, 2], 0)


def test_how_much_is_stored_is_found_with_the_number_from_which_it_counts(vhost):
    entry = CommitLog(os.path.join(vhost.directory, "tx.7.1"), Disk())
    places = [entry.add(message(seq)) for seq in (5, 6, 7)]
    entry.decide(7, 1, encode_plan(Plan([(place.position, [vhost.queues["a"]]) for place in places[1:]], [])))
    entry.mark_stored(2)
    found = journal.load(entry.path, Disk())
    assert (found.first, found.stored, found.applied) == (5, 2, False)


def test_messages_in_the_file_are_read_in_any_order(vhost, monkeypatch):
    monkeypatch.setattr(journal, "IN_MEMORY_OCTETS_MAX", 1000)
    monkeypatch.setattr(journal, "_READ_OCTETS", 500)
    entry = CommitLog(os.path.join(vhost.directory, "tx.7.1"), Disk())
    places = [entry.add(message(seq, b"%d" % seq * 40)) for seq in range(60)]
    for seq in [*range(60), *reversed(range(60)), *range(0, 60, 7)]:
        assert entry.read(places[seq]) == message(seq, b"%d" % seq * 40)
    entry.remove()
    assert entry.read(entry.add(message(99))) == message(99)


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
    entry = CommitLog(os.path.join(vhost.directory, "tx.7.1"), disk)
    places = [entry.add(one) for one in kept]
    entry.decide(7, 1, encode_plan(Plan([(place.position, [vhost.queues["a"]]) for place in places], [])))
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


def test_whether_there_was_a_file_is_told_when_it_is_removed(vhost):
    entry = CommitLog(os.path.join(vhost.directory, "tx.7.1"), Disk())
    entry.add(message(1))
    assert not entry.remove()
    assert decide(vhost).remove()


def test_a_file_that_cannot_be_removed_is_told_as_none(vhost):
    class Refusing(Disk):
        def unlink(self, path):
            raise PermissionError(path)

    entry = CommitLog(os.path.join(vhost.directory, "tx.7.1"), Refusing())
    entry.decide(7, 1, encode_plan(Plan([(entry.add(message(1)).position, [])], [])))
    assert not entry.remove()


@pytest.mark.parametrize("before", [0, 100, journal.IN_MEMORY_OCTETS_MAX - 10])
@pytest.mark.parametrize("size", [10, journal.IN_MEMORY_OCTETS_MAX])
def test_messages_that_were_encoded_elsewhere_stand_behind_those_that_were_added(vhost, before, size):
    log = CommitLog(os.path.join(vhost.directory, "tx.7.1"), Disk())
    places = [log.add(message(9, bytes(before)))] if before else []
    octets = b"".join(journal._encode_message(message(seq, body)) for seq, body in ((1, bytes(size)), (2, b"last")))
    at = log.adopt(octets)
    last = len(journal._encode_message(message(2, b"last")))
    places += [journal.Place(at, len(octets) - last), journal.Place(at + len(octets) - last, last), log.add(message(3))]
    bodies = [*([bytes(before)] if before else []), bytes(size), b"last", b"body"]
    assert [log.read(place).body for place in places] == bodies
    assert (log.in_memory, log.octets > 0) == (before + size < journal.IN_MEMORY_OCTETS_MAX, True)
    log.decide(7, 1, encode_plan(Plan([(place.position, [vhost.queues["a"]]) for place in places], [])))
    (path,) = journal.find(vhost.directory, Disk())
    assert [each.body for each, _ in journal.load(path, Disk()).messages] == bodies


def test_a_plan_whose_part_about_messages_is_encoded_is_the_same_plan(vhost):
    a, b = vhost.queues.values()
    settlements = [(b, 5, ACKED), (a, 6, REJECTED)]
    plan = encode_plan(Plan([(64, [a, b]), (90, [b])], settlements), shift=3)
    encoder = journal.PlanEncoder(queues=[a, b])
    for settlement in settlements:
        encoder.add_settlement(*settlement)
    names = 4 + 2 + 2
    assert encoder.octets(plan[names:names + 4 + 20 + 16]) == plan


@pytest.mark.parametrize("position", [64, 1 << 63, (1 << 64) - 1])
def test_a_plan_that_names_a_place_behind_the_end_decides_nothing(position):
    names, messages, of_no_queue, settlements = (0).to_bytes(4), (1).to_bytes(4, "little"), bytes(4), bytes(4)
    plan, marks = names + messages + position.to_bytes(8, "little") + of_no_queue + settlements, journal.Marks(False, 0)
    assert journal.decode_decision(plan, (0, 0), 1, 1, marks) is None
    assert journal.decode_decision(plan, (0, position), 1, 1, marks) is None
