"""Settled segments as files: cut to size, described, removed, copied; files written octet by octet."""

import errno
import os

import pytest
from tests.store.segments import Files, record

from brokerd.store import format as layout
from brokerd.store import reading
from brokerd.store import settled_segments as settled
from brokerd.store.disk import Disk

BODIES = [b"body %d" % i for i in range(10)]


@pytest.fixture
def files(tmp_path):
    """Segment 7 with room behind its end in each of its files."""
    files = Files(str(tmp_path / "q" / "kept"))
    files.segment(7, BODIES, base_seq=61, room=8192)
    files.ack(7, [(i, layout.ACKED, 0) for i in range(10)])
    write_journal(files, events=10)
    files.write(files.path(layout.chain_name(7)), b"a chain")
    return files


def write_journal(files, *, events, counted=None, room=4096, number=7):
    octets = b"".join(layout.event(number, 61 + i, 1000 + i, layout.ACKED) for i in range(events))
    head = layout.journal_header(number, begun=5, events=events if counted is None else counted)
    files.write(files.path(layout.journal_name(number)), head + octets + bytes(room))


def sizes(files, number=7):
    return [os.path.getsize(files.path(name)) for name in settled.names_of(number)[:settled.CUT]]


END = 64 + sum((71 + len(body) + 7) & ~7 for body in BODIES)


def test_each_file_is_cut_to_what_it_says_is_in_it(files):
    found = settled.trim(files.directory, 2, 7, Disk())
    assert found == settled.SettledSegment(1009, 2, 7, END + (64 + 320) + (64 + 80))
    assert sizes(files) == [END, 64 + 320, 64 + 80]
    assert settled.trim(files.directory, 2, 7, Disk()) == found


def test_without_cutting_sizes_are_as_they_are(files):
    before = sizes(files)
    found = settled.trim(files.directory, 0, 7, Disk(), cut=False, sync=False)
    assert (sizes(files), found.octets, found.newest_ns) == (before, sum(before), 1009)


@pytest.mark.parametrize("name", ["msgs", "acks", "journal"])
def test_a_file_whose_word_is_torn_is_not_cut(files, name):
    path = files.path(f"{name}.0000000007")
    before = os.path.getsize(path)
    files.poke(path, 40 if name == "msgs" else 32, b"\x01\x02\x03\x04")
    settled.trim(files.directory, 0, 7, Disk())
    assert os.path.getsize(path) == before


@pytest.mark.parametrize("name", ["msgs", "acks", "journal"])
def test_a_file_of_another_segment_or_none_of_ours_is_not_cut(files, name):
    path = files.path(f"{name}.0000000007")
    before = os.path.getsize(path)
    for at in (8, 0):
        files.poke(path, at, b"\x55")
        settled.trim(files.directory, 0, 7, Disk())
        assert os.path.getsize(path) == before


def test_what_was_written_and_not_yet_counted_is_not_cut_off(files):
    write_journal(files, events=10, counted=9)
    before = sizes(files)[1]
    settled.trim(files.directory, 0, 7, Disk())
    assert sizes(files)[1] == before


@pytest.mark.parametrize("octets", [b"", b"x" * 63])
def test_a_file_shorter_than_a_header_is_no_fault(files, octets):
    for name in settled.names_of(7):
        files.write(files.path(name), octets)
    assert settled.trim(files.directory, 0, 7, Disk()).octets == 3 * len(octets)
    assert settled.read_content(files.directory, 7, Disk(), dense=True) is None


def test_without_a_journal_the_age_is_that_of_the_records_file(files):
    os.unlink(files.path(layout.journal_name(7)))
    os.utime(files.msgs(7), ns=(5, 12345))
    assert settled.trim(files.directory, 0, 7, Disk(), cut=False).newest_ns == 12345
    write_journal(files, events=0)
    assert settled.trim(files.directory, 0, 7, Disk(), cut=False).newest_ns == 12345


def test_without_records_there_is_no_segment(files):
    os.unlink(files.msgs(7))
    assert settled.trim(files.directory, 0, 7, Disk()) is None
    assert settled.read_content(files.directory, 7, Disk(), dense=True) is None


def test_all_that_is_kept_is_found_by_any_of_its_files(tmp_path):
    for path in ("kept/msgs.0000000001", "kept/journal.0000000002", "kept/acks.0000000003", "msgs.0000000004",
                 "kept/order.jsonl", "kept/msgs.1", "kept/msgs.0000000005.damaged", "prio.003/kept/msgs.0000000001",
                 "prio.999/kept/msgs.0000000001"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "prio.004").mkdir()
    (tmp_path / "prio.005").touch()
    assert settled.find(str(tmp_path), Disk())[:4] == [(0, 1), (0, 2), (0, 3), (3, 1)]
    assert settled.find(str(tmp_path / "none"), Disk()) == []


@pytest.mark.parametrize(("generation", "dense"), [(0, True), (0, False), (1, True)])
def test_content_is_what_the_records_say(files, generation, dense):
    files.segment(8, BODIES, base_seq=61, generation=generation)
    assert settled.read_content(files.directory, 8, Disk(), dense=dense) == settled.Content(61, 70, 10)


def test_an_empty_segment_has_no_messages(files):
    files.segment(8, [], base_seq=71)
    assert settled.read_content(files.directory, 8, Disk(), dense=False) == settled.Content(71, 70, 0)


def test_removing_what_is_partly_gone_is_no_fault(files):
    os.unlink(files.path(layout.journal_name(7)))
    settled.remove(files.directory, 7, Disk())
    settled.remove(files.directory, 7, Disk())
    assert os.listdir(files.directory) == []


def test_a_copy_is_whole_or_not_there(files, tmp_path):
    target = str(tmp_path / "copy")
    settled.copy(files.msgs(7), target, Disk())
    assert files.read(target) == files.read(files.msgs(7))
    settled.copy(files.msgs(99), str(tmp_path / "none"), Disk())
    assert sorted(os.listdir(tmp_path)) == ["copy", "q"]

    class Full(Disk):
        def pwrite(self, fd, octets, position):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        settled.copy(files.msgs(7), target + "2", Full())
    assert sorted(os.listdir(tmp_path)) == ["copy", "q"]


def test_folders_are_made_with_those_above(tmp_path):
    settled.make_folders(str(tmp_path / "a" / "b" / "c"), Disk())
    settled.make_folders(str(tmp_path / "a" / "b" / "c"), Disk())
    assert (tmp_path / "a" / "b" / "c").is_dir()


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("steps", range(40))
def test_a_crash_at_any_step_leaves_a_segment_in_one_place_or_the_other(files, tmp_path, monkeypatch, same, steps):
    class Dying(Disk):
        left = steps

        def step(self):
            if self.left == 0:
                raise RuntimeError("power")
            self.left -= 1

        def rename(self, old, new):
            self.step()
            super().rename(old, new)

        def unlink(self, path):
            self.step()
            super().unlink(path)

        def pwrite(self, fd, octets, position):
            self.step()
            super().pwrite(fd, octets, position)

    monkeypatch.setattr(settled, "same_file_system", lambda one, other: same)
    source, target = str(tmp_path / "q"), str(tmp_path / "archive" / "v" / "q")
    before = [files.read(files.path(name)) for name in settled.names_of(7)]

    def move(disk):
        archive = settled.Archive(source, target, disk)
        archive.open(b"v", b"q")
        archive.make_way([(0, 7, files.directory)])
        archive.prepare(0, 7, files.directory)
        archive.finish(0, 7, files.directory)
        archive.close()

    try:
        move(Dying())
    except RuntimeError:
        if os.path.exists(files.msgs(7)):
            move(Disk())
        else:
            assert settled.Archive(source, target, Disk()).finish_if_archived(0, 7)
    assert os.listdir(files.directory) == []
    assert not os.path.exists(f"{target}.1")        # Its own segment was not in its way.
    assert [files.read(f"{target}/kept/{name}") for name in settled.names_of(7)] == before


# --- what is known to be on disk


def journal_of(files, number=7):
    with open(files.path(layout.journal_name(number)), "rb") as file:
        octets = file.read()
    header = reading.journal_dtype()
    import numpy as np
    head = np.frombuffer(octets, header, 1)[0]
    return head, np.frombuffer(octets, reading.event_dtype(), int(head["events"]), layout.HEADER_OCTETS)


def test_a_segment_that_was_synced_says_so(files):
    settled.trim(files.directory, 0, 7, Disk())
    head, events = journal_of(files)
    assert (int(head["synced"]), int(head["synced_complement"]), len(events)) == ((1 << 63) - 1, -(1 << 63), 10)


def test_a_segment_that_was_not_synced_says_nothing(files):
    settled.trim(files.directory, 0, 7, Disk(), sync=False)
    assert int(journal_of(files)[0]["synced"]) == 0


def test_after_a_loss_of_power_it_says_since_when_events_may_be_missing_and_says_it_once(files):
    for _ in range(2):
        settled.seal(files.directory, 7, Disk(), power_lost=True)
    head, events = journal_of(files)
    last = events[-1]
    assert (int(head["events"]), int(head["synced"])) == (11, (1 << 63) - 1)
    assert (int(last["type"]), int(last["reason"]), int(last["seq"]), int(last["ts"])) == (
        layout.STARTED, layout.POWER_LOST, 5, 1010)


def test_a_segment_known_to_be_synced_lost_nothing_with_the_power(files):
    settled.trim(files.directory, 0, 7, Disk())
    settled.seal(files.directory, 7, Disk(), power_lost=True)
    assert len(journal_of(files)[1]) == 10


def test_events_beyond_the_count_and_holes_are_before_the_mark(files):
    path = files.path(layout.journal_name(7))
    files.poke(path, 64 + 32 * 3, bytes(64))
    files.poke(path, 32, b"".join(word.to_bytes(4, "little") for word in layout.word(2)))
    settled.seal(files.directory, 7, Disk(), power_lost=True)
    head, events = journal_of(files)
    assert (int(head["events"]), int(events[10]["type"]), int(events[10]["ts"])) == (11, layout.STARTED, 1010)


@pytest.mark.parametrize("sync", [True, False])
def test_all_files_are_on_disk_before_the_journal_says_so(files, sync):
    synced = []

    class Recorder(Disk):
        def fdatasync(self, fd, path):
            synced.append((os.path.basename(path), int(journal_of(files)[0]["synced"]) != 0))
            super().fdatasync(fd, path)

    settled.trim(files.directory, 0, 7, Recorder(), sync=sync)
    names = [layout.segment_name(7), layout.acks_name(7), layout.journal_name(7)]
    assert {name for name, said in synced if not said} == (set(names) if sync else set())


def test_content_of_a_compacted_segment_is_read_from_its_records(files):
    files.segment(8, [b"x", b"y"], base_seq=61, generation=1)
    files.poke(files.msgs(8), files.positions[8][1], record(8, 70, b"y"))
    assert settled.read_content(files.directory, 8, Disk(), dense=True) == settled.Content(61, 70, 2)


def test_content_of_a_segment_whose_records_are_all_damaged_is_what_its_header_says(files):
    files.segment(8, [b"x", b"y"], base_seq=61)
    for position in files.positions[8]:
        files.poke(files.msgs(8), position, bytes(8))
    assert settled.read_content(files.directory, 8, Disk(), dense=False) == settled.Content(61, 62, 2)


def test_an_archive_that_is_closed_has_its_names_on_disk(files, tmp_path):
    class Recorder(Disk):
        synced = ()

        def sync_directory(self, path):
            self.synced = (*self.synced, path)
            super().sync_directory(path)

    disk, target = Recorder(), str(tmp_path / "archive" / "v" / "q")
    archive = settled.Archive(str(tmp_path / "q"), target, disk)
    archive.open(b"v", b"q")
    archive.make_way([(0, 7, files.directory)])
    archive.prepare(0, 7, files.directory)
    archive.finish(0, 7, files.directory)
    disk.synced = ()
    archive.close()
    assert f"{target}/kept" in disk.synced


def test_nothing_is_archived_of_a_deleted_queue_without_segments(tmp_path):
    (tmp_path / "q").mkdir()
    assert settled.archive_whole(str(tmp_path / "q"), str(tmp_path / "archive" / "q"), b"v", b"q", Disk()) == 0
    assert os.listdir(tmp_path) == ["q"]


def test_all_segments_of_a_deleted_queue_are_counted_and_set_aside(files, tmp_path):
    assert settled.archive_whole(str(tmp_path / "q"), str(tmp_path / "archive" / "q"), b"v", b"q", Disk()) == 1
    assert {"q", "q.1"} & set(os.listdir(tmp_path / "archive")) == {"q.1"}
