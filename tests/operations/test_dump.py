"""Copies of queues: as they were at one instant, whatever goes on; all of it or nothing."""

import errno
import hashlib
import json
import os
from types import SimpleNamespace

import pytest
from tests.operations.stand_in import Place, work

from brokerd import plane
from brokerd.operations import OperationError, copying
from brokerd.operations.dump import Dump, matches
from brokerd.operations.jobs import IN_THREAD, ON_LOOP, Running
from brokerd.queues.stream import tracked_of
from brokerd.queues.tracked import Tracked
from brokerd.store import format as layout
from brokerd.store import reading, side_file
from brokerd.store.disk import Disk
from brokerd.store.recovery import recover
from brokerd.upkeep.indexes import write_index


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "data")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def tiny_steps(monkeypatch):
    """Every page of a file is a step: much can happen in between."""
    monkeypatch.setattr(copying, "CHUNK_OCTETS", 4096)
    monkeypatch.setattr(copying, "STEP_SECONDS", -1.0)


class Copy:
    """A dump as its files say."""

    def __init__(self, out):
        self.out = out
        self.manifest = json.loads((out / "manifest.json").read_text())
        self.queues = {entry["queue"]: entry for entry in self.manifest["queues"]}

    def folder(self, name):
        return self.out / self.queues[name]["folder"]

    def segments(self, name):
        """(folder, number) of each segment, settled ones too."""
        return [(path.parent, int(path.name[5:])) for path in sorted(self.folder(name).rglob("msgs.*"))]

    def read(self, name):
        """({seq: ts} of records, {seq} unsettled, events as (seq, ts, type)); every octet of it is checked."""
        records, unsettled, events = {}, set(), []
        for folder, number in self.segments(name):
            octets = (folder / layout.segment_name(number)).read_bytes()
            header = layout.SEGMENT_HEADER.unpack(octets[:64])
            assert (header[0], header[2]) == (layout.SEGMENT_MAGIC, number)
            assert header[7] == len(octets), "the word says what is there"
            end, count, *_ = plane.scan_segment(octets, number, layout.HEADER_OCTETS)
            assert (end, count) == (len(octets), header[9])
            found = reading.scan_records(octets, len(octets)).headers if count else []
            seqs = {int(each["seq"]): int(each["ts"]) for each in found}
            positions = reading.scan_records(octets, len(octets)).positions if count else []
            by_position = dict(zip(map(int, positions), seqs, strict=True))
            records |= seqs
            settled = self._settled(folder, number, by_position)
            unsettled |= seqs.keys() - settled
            events += self._events(folder, number)
        return records, unsettled, events

    def _settled(self, folder, number, by_position):
        try:
            octets = (folder / layout.acks_name(number)).read_bytes()
        except FileNotFoundError:
            return set()
        entries = reading.read_entries(octets, number)
        words = layout.ACKS_HEADER.unpack(octets[:64])
        assert (words[7], len(octets), entries.damaged) == (entries.written, 64 + 8 * entries.written, 0)
        return {by_position[int(position)] for position in reading.settled_positions(entries.entries)}

    def _events(self, folder, number):
        try:
            octets = (folder / layout.journal_name(number)).read_bytes()
        except FileNotFoundError:
            return []
        count = int.from_bytes(octets[32:36], "little")
        assert len(octets) == 64 + 32 * count
        found = []
        for at in range(64, len(octets), 32):
            seq, ts, consumer, aux, failed, kind, reason = layout.EVENT.unpack(octets[at:at + 28])
            assert octets[at:at + 32] == layout.event(
                number, seq, ts, kind, reason, consumer=consumer, aux=aux, count=failed)
            found.append((seq, ts, kind))
        return found

    def recovered(self, name):
        """(ready, next seq) of a queue made of the copy."""
        core = plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=print, damaged=print)
        priorities = self.queues[name]["settings"]["max_priority"]
        queue = plane.Queue(core, str(self.folder(name)), durable=True, max_priority=priorities)
        findings = []
        recover(queue, Disk(), False, findings.append)
        assert not findings
        found = queue.ready, queue.next_seq
        queue.close()
        return found

    def check(self, name):
        """The copy is whole, and says of the queue what the manifest says."""
        entry = self.queues[name]
        for file in entry["files"]:
            octets = (self.out / file["path"]).read_bytes()
            assert (len(octets), hashlib.sha256(octets).hexdigest()) == (file["octets"], file["sha256"])
        named = {file["path"] for file in entry["files"]}
        there = [path for path in self.folder(name).rglob("*") if path.is_file()]
        assert {str(path.relative_to(self.out)) for path in [*there, self.folder(name).parent / ".vhost"]} == named
        records, unsettled, events = self.read(name)
        assert len(unsettled) == entry["ready"] + entry["unacked"]
        # A settled segment of a queue without a journal is gone; those that are there are whole.
        if entry["journaled"]:
            assert sorted(records) == list(range(entry["first_kept_seq"], entry["next_seq"]))
            times = sorted([ts for _, ts, kind in events if kind != layout.STARTED] + list(records.values()))
            assert len(set(times)) == len(times)
            settled = {seq for seq, _, kind in events if kind == layout.ACKED}
            assert settled == records.keys() - unsettled
        else:
            assert min(records, default=entry["next_seq"]) == entry["first_kept_seq"]
        assert self.recovered(name) == (len(unsettled), entry["next_seq"])
        return records, unsettled, events


# --- what a copy holds

@pytest.mark.parametrize("arguments", [{}, {"order_journal": True}, {"order_journal": True, "max_priority": 2}],
                         ids=["plain", "journal", "journal and priorities"])
def test_a_copy_is_the_queue_at_one_instant_though_messages_come_and_go_between_all_steps(
        place, out, tiny_steps, arguments):
    place.queue(**arguments)
    place.publish(300)
    place.consume()
    place.settle(1, 90)
    tags, steps, at_cut = [91], [], []

    def traffic(where):
        steps.append(where)
        if where is ON_LOOP:
            at_cut.append((place.queue().next_seq, place.queue().unacked))
            return
        priority = len(steps) % 3 if "max_priority" in arguments else None
        place.publish(3, priority=priority)
        place.settle(tags[0], tags[0] + 1)
        place.settle(tags[0] + 2, requeue=True)
        tags[0] += 3
        place.tick()

    result = work(Dump(place.node, "", str(out)), traffic)
    assert len(steps) > 50
    assert place.queue().next_seq > 350
    assert not place.queue().copying
    copy = Copy(out)
    entry = copy.queues["q"]
    assert (entry["next_seq"], entry["unacked"]) == at_cut[0]
    copy.check("q")
    assert result["segments"] == len(copy.segments("q")) > 2
    assert result["octets"] == sum(f["octets"] for f in entry["files"] if "." in os.path.basename(f["path"])[1:]
                                   and not f["path"].endswith("jsonl"))


def test_a_segment_that_is_settled_while_it_is_copied_is_not_written_over(place, out, tiny_steps):
    place.queue()
    place.publish(200)
    place.consume()
    settled = []

    def traffic(where):
        if where is IN_THREAD and place.queue().copying and not settled:
            place.settle(1, 200)
            place.tick()
            settled.append(True)
        if settled:
            place.publish(20)

    work(Dump(place.node, "", str(out)), traffic)
    assert settled
    records, unsettled, _ = Copy(out).check("q")
    assert len(records) == len(unsettled) == 200


def test_settled_segments_that_are_kept_are_copied(place, out):
    place.queue(order_journal=True)
    place.publish(200)
    place.consume()
    place.settle(1, 150)
    place.tick()
    work(Dump(place.node, "", str(out)))
    copy = Copy(out)
    records, unsettled, events = copy.check("q")
    assert (len(records), len(unsettled)) == (200, 50)
    assert any(folder.name == "kept" for folder, _ in copy.segments("q"))
    assert copy.queues["q"]["first_kept_seq"] == 1
    assert sum(kind == layout.DELIVERED for _, _, kind in events) == 200


def test_what_retention_removes_before_it_is_copied_is_left_out_and_the_log_says_so(place, out):
    queue = place.queue(order_journal=True)
    place.tick()
    place.publish(300)
    place.consume()
    place.settle(1, 250)
    place.tick()
    kept = os.path.join(queue.directory, "kept")
    number = min(int(name[5:]) for name in os.listdir(kept) if name.startswith("msgs."))
    line = {"at": 1 << 62, "what": "removed", "level": 0, "segments": [number], "first_seq": 1, "last_seq": 9,
            "messages": 9, "octets": 9, "why": "size"}
    log = os.path.join(queue.directory, layout.SIDE_FILE)
    gone = []

    def retention(where):
        if where is IN_THREAD and queue.copying and not gone:
            gone.append(number)
            side_file.append(log, [line, {"at": 1 << 62, "what": "consumer_gone", "number": 1}], Disk())
            for name in ("msgs", "journal"):
                os.unlink(os.path.join(kept, f"{name}.{number:010d}"))

    work(Dump(place.node, "", str(out)), retention)
    assert gone
    copy = Copy(out)
    assert number not in [each for _, each in copy.segments("q")]
    assert not list(out.rglob(f"acks.{number:010d}"))
    first = copy.queues["q"]["first_kept_seq"]
    assert first > 1
    assert min(copy.read("q")[0]) == first
    lines = side_file.read(str(copy.folder("q") / layout.SIDE_FILE), Disk())
    assert [each["what"] for each in lines] == ["settings", "consumer", "removed"]


def test_nothing_is_later_than_the_cut_if_the_clock_was_put_back(place, out, monkeypatch):
    place.queue(durable=True, order_journal=True)
    place.publish(3)
    place.consume(prefetch=2)
    monkeypatch.setattr(type(place.node.clock), "epoch_ns", lambda self: 10 ** 18)
    work(Dump(place.node, "", str(out)))
    copy = Copy(out)
    records, _, events = copy.read("q")
    times = [*records.values(), *(event[1] for event in events)]
    assert len(times) == 5
    assert copy.queues["q"]["cut"] == max(times) > 10 ** 18


def test_counters_and_settings_are_those_of_the_cut(place, out):
    place.queue(delivery_limit=7)
    place.publish(3)
    place.consume()
    place.settle(1, requeue=True)
    work(Dump(place.node, "", str(out)))
    copy = Copy(out)
    entry = copy.queues["q"]
    assert entry["counters"]["returned_nack"] == 1
    assert entry["counters"].keys() == set(layout.ORDER_COUNTERS)
    octets = (copy.folder("q") / layout.ORDER_FILE).read_bytes()
    assert octets[:64] == layout.order_header()
    counts = [int.from_bytes(octets[at:at + 8], "little") for at in range(64, len(octets), 8)]
    assert dict(zip(layout.ORDER_COUNTERS, counts, strict=True)) == entry["counters"]
    assert (entry["settings"]["delivery_limit"], entry["arguments"]) == (7, {"x-delivery-limit": 7})


def test_digests_can_be_left_out(place, out):
    place.queue()
    place.publish(99)
    work(Dump(place.node, "", str(out), digests=False))
    for entry in Copy(out).queues.values():
        assert entry["files"]
        assert all(set(file) == {"path", "octets"} for file in entry["files"])


def test_names_are_those_of_the_queue_and_the_vhost(place, out):
    place.queue("a/ü*")
    place.publish(1, key="a/ü*".encode().decode())
    work(Dump(place.node, "", str(out)))
    copy = Copy(out)
    folder = copy.folder("a/ü*")
    assert (folder / ".queue").read_text() == "a/ü*"
    assert (folder.parent / ".vhost").read_text() == "/"
    assert copy.manifest["manifest"] == 1
    assert copy.manifest["cut"] <= copy.queues["a/ü*"]["cut"]
    assert copy.manifest["cut"] <= copy.manifest["finished"]


def test_a_queue_that_has_held_nothing_is_in_the_copy(place, out):
    place.queue()
    assert work(Dump(place.node, "", str(out)))["segments"] == 0
    copy = Copy(out)
    assert copy.check("q") == ({}, set(), [])
    assert copy.queues["q"]["first_kept_seq"] == copy.queues["q"]["next_seq"] == 1


def test_a_file_that_is_missing_is_told_and_stops_nothing(place, out):
    queue = place.queue()
    place.publish(200)
    os.unlink(os.path.join(queue.directory, "msgs.0000000001"))
    work(Dump(place.node, "", str(out)))
    assert Copy(out).queues["q"]["missing"] == ["msgs.0000000001"]


# --- which queues

@pytest.mark.parametrize(("glob", "there"), [
    ("", True), ("orders", True), ("ord*", True), ("//orders", True), ("*/orders", True), ("/*", True),
    ("Orders", False), ("eu/orders", False), ("order", False), ("[a-n]*", False), ("[a-o]*", True),
])
def test_a_queue_is_named_by_itself_or_with_its_vhost(glob, there):
    assert matches(glob, "/", "orders") is there


def test_queues_that_are_not_durable_are_left_out_and_named(place, out):
    place.queue("kept")
    place.queue("lost", durable=False)
    result = work(Dump(place.node, "", str(out)))
    assert result["skipped"] == [{"vhost": "/", "queue": "lost", "why": "it is not durable"}]
    assert Copy(out).queues.keys() == {"kept"}
    told = "^no queue is called like 'lo\\*', but for some that are not durable$"
    with pytest.raises(OperationError, match=told) as no:
        Dump(place.node, "lo*", f"{out}2")
    assert no.value.code == 404


def test_a_queue_that_is_deleted_meanwhile_is_left_out_and_named(place, out):
    place.queue("a")
    place.queue("b")

    def deleting(where):
        if "b" in place.vhost.queues:
            place.vhost.delete_queue(place.vhost.queues["b"])

    result = work(Dump(place.node, "", str(out)), deleting)
    assert result["skipped"] == [{"vhost": "/", "queue": "b", "why": "it was deleted meanwhile"}]
    assert Copy(out).queues.keys() == {"a"}


def test_a_queue_that_is_deleted_while_it_is_copied_is_copied_to_its_end(place, out, tiny_steps):
    queue = place.queue()
    place.publish(200)

    def deleting(where):
        if where is IN_THREAD and queue.copying and "q" in place.vhost.queues:
            place.vhost.delete_queue(queue)
            place.tick()

    work(Dump(place.node, "", str(out)), deleting)
    assert len(Copy(out).check("q")[0]) == 200


# --- where to

@pytest.mark.parametrize(("made", "path", "told", "code"), [
    (None, "here/out", "'here/out' is not an absolute path", 400),
    ("file", "{0}/out/below/this", "{0}/out is no folder", 400),
    (None, "{0}/data/out", "{0}/data/out is in the data directory", 400),
    (None, "{0}/data", "{0}/data is in the data directory", 400),
    ("file", "{0}/out", "{0}/out is there, and is no folder", 409),
    ("full", "{0}/out", "{0}/out is not empty", 409),
])
def test_a_place_that_cannot_be_used_is_refused_before_anything_is_done(place, tmp_path, made, path, told, code):
    place.queue()
    if made == "file":
        (tmp_path / "out").write_text("mine")
    elif made == "full":
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine").touch()
    with pytest.raises(OperationError) as no:
        Dump(place.node, "", path.format(tmp_path))
    assert (str(no.value), no.value.code) == (told.format(tmp_path), code)


def test_the_folders_above_a_dump_are_made(place, tmp_path):
    place.queue()
    out = tmp_path / "a" / "b" / "c"
    work(Dump(place.node, "", str(out)))
    assert Copy(out).queues.keys() == {"q"}
    assert [each.name for each in out.parent.iterdir()] == ["c"]


def test_an_empty_folder_can_be_used(place, out):
    out.mkdir()
    place.queue()
    work(Dump(place.node, "", str(out) + "/"))
    assert Copy(out).queues.keys() == {"q"}


def test_what_an_unfinished_dump_left_is_not_touched(place, out, tmp_path):
    place.queue()
    (tmp_path / "out.partial").mkdir()
    with pytest.raises(OperationError, match="of a dump that did not end: remove it first") as no:
        work(Dump(place.node, "", str(out)))
    assert no.value.code == 409
    assert (tmp_path / "out.partial").exists()
    assert not (place.path / "dumping").exists()


def test_one_dump_keeps_another_out(place, out, tmp_path):
    place.queue()
    place.publish()
    refused = []

    def second(where):
        if (place.path / "dumping").exists() and not refused:
            with pytest.raises(OperationError, match="^another dump is under way$") as no:
                work(Dump(place.node, "", str(tmp_path / "second")))
            refused.append(no.value.code)

    work(Dump(place.node, "", str(out)), second)
    assert refused == [409]
    assert Copy(out).check("q")[0].keys() == {1}


# --- what goes wrong

def nothing_is_left(place, tmp_path):
    assert not [name for name in os.listdir(tmp_path) if name != "data"]
    assert not (place.path / "dumping").exists()
    assert not any(queue.copying for queue in place.vhost.queues.values())


def test_too_little_room_is_told_with_its_figures_and_nothing_is_left(place, out, tmp_path):
    place.queue()
    place.publish(10)
    place.node.disk = SimpleNamespace(make_directory=os.mkdir, open=Disk().open, pwrite=Disk().pwrite,
                                      close=os.close, replace=Disk().replace, exists=os.path.lexists,
                                      free_octets=lambda path: 5000)
    with pytest.raises(OperationError, match=r"^no space: \d{5} octets are to be copied, and 5000 may be written$"):
        work(Dump(place.node, "", str(out)))
    nothing_is_left(place, tmp_path)


def test_publishers_are_not_blocked_by_a_copy_beside_the_messages(place, out, tmp_path):
    place.queue()
    place.publish(10)
    place.node.settings = place.node.settings._replace(free_disk_min_octets=1 << 60)
    with pytest.raises(OperationError, match="and 0 may be written$"):
        work(Dump(place.node, "", str(out)))
    nothing_is_left(place, tmp_path)


@pytest.mark.parametrize("failing", ["copy_file_range", "link", "fdatasync"])
def test_a_disk_that_fails_is_told_and_nothing_is_left(place, out, tmp_path, monkeypatch, failing):
    def fails(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO), "the file")

    place.queue()
    place.publish(200)
    monkeypatch.setattr(copying, "SYNC_OCTETS", 1000)
    monkeypatch.setattr(os, failing, fails)
    with pytest.raises(OSError, match="Input/output error"):
        work(Dump(place.node, "", str(out)))
    nothing_is_left(place, tmp_path)


def test_a_dump_that_nobody_wants_any_more_is_undone_in_the_thread(place, out, tmp_path, tiny_steps):
    place.queue()
    place.publish(200)
    heard, loop = [], []
    running = Running(Dump(place.node, "", str(out)), submit=place.thread.submit, later=loop.append,
                      progress=heard.append, done=lambda *answer: heard.append(answer))
    while not heard:
        loop.pop(0)() if loop else place.thread.run()
    assert place.queue().copying
    running.cancel()
    while loop or place.thread.jobs:
        loop.pop(0)() if loop else place.thread.run()
    assert len(heard) == 1
    nothing_is_left(place, tmp_path)


def test_a_stream_is_copied_with_its_indexes_and_the_offsets_of_its_readers(place, out, tiny_steps):
    queue = place.queue(queue_type="stream")
    place.publish(900)
    for number in [segment["number"] for segment in queue.segments()[:2]]:
        write_index(queue.directory, number, Disk())
    tracked_of(queue).set("billing", 17)

    dump = Dump(place.node, "", str(out))

    def moves(where):
        if queue.copying:       # The cut has been taken.
            tracked_of(queue).set("billing", 800)

    work(dump, moves)
    assert tracked_of(queue).offset("billing") == 800
    copy = Copy(out)
    folder = copy.folder("q")
    assert Tracked(str(folder)).offset("billing") == 17
    names = {file["path"].rpartition("/")[2] for file in copy.queues["q"]["files"]}
    assert names >= {"readers", "index.0000000001", "index.0000000002"}
    for name in ("index.0000000001", "index.0000000002"):
        with open(folder / f"msgs{name[5:]}", "rb") as file:
            assert plane.index_segment(file.fileno(), int(name[6:])) == (folder / name).read_bytes()
