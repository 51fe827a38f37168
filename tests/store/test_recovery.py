import os
import random
import struct

import pytest
from tests.store.segments import Files, record

from brokerd import plane
from brokerd.errors import StoreError
from brokerd.store import format as layout
from brokerd.store import reading, side_file
from brokerd.store.disk import Disk
from brokerd.store.recovery import recover
from brokerd.store.settled_recovery import NUMBER_MOST
from brokerd.testing.disk import ForgetfulDisk

BODIES = [b"body %d" % i * (i % 5 + 1) for i in range(10)]


class Queue:
    """Stands for plane.Queue: keeps what it is told."""

    max_priority = 0

    def __init__(self, directory):
        self.directory = str(directory)
        self.segments = {}
        self.next_seq = None

    def attach_segment(self, number, **facts):
        assert not self.segments or number > max(self.segments)
        self.segments[number] = facts

    def found_pause(self):
        self.paused = True

    def finish_recovery(self, next_seq, *, suspect, last_ts=0, last_number=0):
        self.next_seq, self.suspect = next_seq, suspect
        self.last_ts, self.last_number = last_ts, last_number


def run(directory, suspect=False, disk=None, **more):
    """(queue, findings)"""
    queue, findings = Queue(directory), []
    recover(queue, disk or Disk(), suspect, findings.append, **more)
    return queue, findings


def kinds(findings):
    return [finding.kind for finding in findings]


@pytest.fixture
def files(tmp_path):
    return Files(str(tmp_path / "q"))


def three_segments(files):
    files.segment(1, BODIES, base_seq=1)
    files.segment(2, BODIES, base_seq=11)
    files.segment(3, BODIES, base_seq=21, sealed=layout.OPEN, room=4096)


def test_a_queue_without_a_directory_begins_at_one(tmp_path):
    queue, findings = run(tmp_path / "none")
    assert (queue.segments, queue.next_seq, findings) == ({}, 1, [])


@pytest.mark.parametrize("suspect", [True, False])
def test_a_whole_directory_is_attached_in_order_and_nothing_is_told(files, suspect):
    three_segments(files)
    queue, findings = run(files.directory, suspect)
    assert (list(queue.segments), queue.next_seq, findings) == ([1, 2, 3], 31, [])
    assert queue.segments[3]["ready_octets"] == sum(map(len, BODIES))
    assert queue.segments[1]["ready_octets"] == queue.segments[1]["end"] - 64 - 10 * 64     # Names and pads with it.
    assert all(s["records"] == 10 and s["settled"] == 0 for s in queue.segments.values())
    assert [s["synced"] for s in queue.segments.values()] == [True, True, False]


def test_a_sealed_segment_costs_two_small_reads_and_the_last_alone_is_mapped(files, monkeypatch):
    class Counting(Disk):
        def __init__(self):
            self.octets = 0

        def pread(self, fd, octets, position):
            self.octets += octets
            return super().pread(fd, octets, position)

        def read(self, path):
            raise AssertionError(path)

    three_segments(files)
    for number in (1, 2, 3):
        files.ack(number, [(0, layout.ACKED, 0)])
    disk = Counting()
    run(files.directory, disk=disk)
    assert disk.octets == 3 * (64 + 64 + 8)


def test_settled_records_and_marks_come_from_the_acks(files):
    three_segments(files)
    files.ack(1, [(0, layout.ACKED, 0), (1, layout.RETURNED, 1), (1, layout.DEAD_LETTERED | 0x30, 1)], delivered=200)
    queue, findings = run(files.directory)
    assert findings == []
    assert {k: queue.segments[1][k] for k in ("settled", "acks", "delivered")} == {
        "settled": 2, "acks": 3, "delivered": 200}
    assert 0 < queue.segments[1]["ready_octets"] < queue.segments[1]["end"]


def test_entries_that_say_how_a_message_stands_settle_nothing(files):
    three_segments(files)
    told = [(0, layout.ACKED, 0), (1, layout.HANDED_OUT, 1), (2, layout.SET_ASIDE, 0), (1, layout.RETURNED, 2),
            (2, layout.SET_ASIDE | 0x10, 1)]
    for number, suspect in ((1, False), (2, True)):
        files.ack(number, told, delivered=300)
        queue, findings = run(files.directory, suspect)
        assert findings == []
        assert (queue.segments[number]["settled"], queue.segments[number]["acks"]) == (1, 5)


@pytest.mark.parametrize("suspect", [True, False])
def test_acks_files_of_version_1_are_version_2_after_a_start(files, suspect):
    three_segments(files)
    files.ack(1, [(0, layout.ACKED, 0), (1, layout.RETURNED, 1)], delivered=200, version=1)
    files.ack(2, [], version=1)
    before = files.read(files.acks(1))
    os.mkdir(files.path("kept"))
    os.rename(files.acks(2), files.path("kept/acks.0000000002"))
    os.rename(files.msgs(2), files.path("kept/msgs.0000000002"))
    kept = files.read(files.path("kept/acks.0000000002"))
    queue, findings = run(files.directory, suspect)
    after = files.read(files.acks(1))
    assert after[:24] == layout.acks_header(1)[:24]
    assert after[56:] == before[56:]
    assert (queue.segments[1]["settled"], queue.segments[1]["delivered"], findings) == (1, 200, [])
    assert files.read(files.path("kept/acks.0000000002")) == kept


def test_an_acks_file_is_raised_to_version_2_in_one_write(files):
    class Watching(Disk):
        def __init__(self):
            self.writes = []

        def pwrite(self, fd, octets, position):
            self.writes.append((position, octets))
            super().pwrite(fd, octets, position)

    three_segments(files)
    files.ack(1, [(0, layout.ACKED, 0)], version=1, generation=0)
    disk = Watching()
    run(files.directory, disk=disk)
    assert disk.writes == [(0, layout.acks_header(1)[:24])]
    run(files.directory, disk=disk)
    assert len(disk.writes) == 1


@pytest.mark.parametrize("damage", ["power", "delivered", "doubted", "missing", "blank", "header"])
def test_where_marks_may_be_lost_all_is_doubted_and_stays_so_over_crashes(files, damage):
    three_segments(files)
    files.ack(1, [(0, layout.ACKED, 0)], delivered=200)
    if damage == "delivered":
        files.poke(files.acks(1), 24, b"\x01")
    elif damage == "doubted":
        files.poke(files.acks(1), 48, b"\x01")
    elif damage == "missing":
        os.unlink(files.acks(1))
    elif damage == "blank":
        files.poke(files.acks(1), 0, bytes(64))
    elif damage == "header":
        files.poke(files.acks(1), 8, b"\x07")
    first, _ = run(files.directory, suspect=damage in ("power", "missing"))
    facts = first.segments[1]
    assert facts["doubted"] == facts["end"]
    assert facts["delivered"] == (200 if damage in ("power", "doubted") else 0)
    again, findings = run(files.directory)
    assert {k: again.segments[1][k] for k in ("doubted", "delivered", "settled", "acks")} == {
        k: facts[k] for k in ("doubted", "delivered", "settled", "acks")}
    assert findings == []


def test_a_word_that_counts_and_is_damaged_makes_nobody_doubt_what_was_handed_out(files):
    three_segments(files)
    files.ack(1, [(0, layout.ACKED, 0)], delivered=200)
    files.poke(files.acks(1), 32, b"\x09")
    queue, _ = run(files.directory)
    assert {k: queue.segments[1][k] for k in ("delivered", "doubted", "acks", "settled")} == {
        "delivered": 200, "doubted": 0, "acks": 1, "settled": 1}


@pytest.mark.parametrize(("counted", "settled"), [(1, 1), (2, 1), (2, 2)])
def test_a_kill_between_an_entry_and_its_counts_loses_no_settlement(files, counted, settled):
    three_segments(files)
    files.ack(2, [(0, layout.ACKED, 0), (4, layout.ACKED, 0)], counted=counted, settled=settled)
    queue, findings = run(files.directory)
    assert (queue.segments[2]["acks"], queue.segments[2]["settled"], findings) == (2, 2, [])
    again, _ = run(files.directory)
    for start in (queue, again):
        del start.segments[2]["ready_octets"]       # Exact only where the records were read for it.
    assert again.segments == queue.segments


def test_a_kill_between_an_entry_that_settles_nothing_and_its_count_loses_no_entry(files):
    three_segments(files)
    files.ack(2, [(0, layout.ACKED, 0), (4, layout.RETURNED, 3)], counted=1, settled=1)
    queue, _ = run(files.directory)
    assert (queue.segments[2]["acks"], queue.segments[2]["settled"]) == (2, 1)


def test_what_stands_behind_the_entries_and_is_none_is_not_counted(files):
    three_segments(files)
    files.ack(2, [(0, layout.ACKED, 0), (4, layout.ACKED, 0)], counted=1, settled=1)
    files.poke(files.acks(2), 64 + 8 + 5, b"?")
    queue, _ = run(files.directory)
    assert (queue.segments[2]["acks"], queue.segments[2]["settled"]) == (1, 1)


def test_a_record_written_but_not_yet_committed_is_taken(files):
    octets = files.segment(1, BODIES, room=4096)
    files.poke(files.msgs(1), len(octets), record(1, 11, b"the last before the kill"))
    queue, findings = run(files.directory)
    assert (queue.segments[1]["records"], queue.next_seq, kinds(findings)) == (11, 12, ["recounted"])
    again, findings = run(files.directory)
    assert (again.segments, findings) == (queue.segments, [])


@pytest.mark.parametrize("suspect", [True, False])
@pytest.mark.parametrize("at", range(40, 64, 4))
def test_a_torn_word_is_mended_from_the_records(files, at, suspect):
    three_segments(files)
    files.poke(files.msgs(2), at, b"\x5a")
    queue, findings = run(files.directory, suspect)
    assert queue.segments[2]["records"] == 10
    assert queue.segments[2]["end"] >= queue.segments[1]["end"]
    assert kinds(findings) == ["recounted"]
    assert run(files.directory)[1] == []


def test_a_start_seals_the_segments_that_another_follows_or_that_are_full(files):
    """kill -9 came between the making of a segment and the sealing of the one before."""
    files.segment(1, BODIES, sealed=layout.OPEN, room=4096)
    files.segment(2, BODIES, base_seq=11, sealed=layout.OPEN, room=4096)
    for _ in range(2):
        assert run(files.directory)[1] == []
        assert [sealed_word(files, number) for number in (1, 2)] == [layout.FULL, layout.OPEN]
    files.segment(2, BODIES, base_seq=11, sealed=layout.OPEN)
    assert run(files.directory)[1] == []
    assert sealed_word(files, 2) == layout.FULL


def sealed_word(files, number):
    value, complement = struct.unpack_from("<II", files.read(files.msgs(number)), 56)
    assert value ^ complement == 0xFFFFFFFF
    return value


def test_a_torn_end_is_cut_off_and_never_appended_over(files):
    octets = files.segment(1, BODIES, sealed=layout.OPEN, room=4096)
    last = files.positions[1][-1]
    files.poke(files.msgs(1), last + 70, bytes(20))
    queue, findings = run(files.directory, suspect=True)
    (cut,) = findings
    assert (cut.kind, cut.path, cut.offset, cut.octets) == ("cut", files.msgs(1), last, len(octets) - last)
    facts = queue.segments[1]
    assert (facts["records"], facts["end"], facts["capacity"], queue.next_seq) == (9, last, last, 10)
    assert os.path.getsize(files.msgs(1)) == last


def test_damage_in_the_middle_keeps_what_is_before_and_behind(files):
    files.segment(1, BODIES, sealed=layout.OPEN, room=4096)
    files.poke(files.msgs(1), files.positions[1][4] + 66, b"?")
    for suspect in (False, True):
        queue, findings = run(files.directory, suspect)
        assert (queue.segments[1]["records"], queue.next_seq) == (9, 11)
        assert (findings[0].kind, findings[0].offset) == ("damaged", files.positions[1][4])


def with_a_gap(files):
    """Segment 1 lost the records 4 to 7; 0, 1, 5 and 6 were settled, and 2 came back."""
    files.segment(1, BODIES, sealed=layout.FULL)
    files.segment(2, BODIES, base_seq=11, sealed=layout.OPEN, room=4096)
    files.ack(1, [(2, layout.RETURNED, 1), *((i, layout.ACKED, 0) for i in (0, 5, 6, 1))])
    begin, end = files.positions[1][4], files.positions[1][8]
    files.poke(files.msgs(1), begin, bytes(end - begin))


def test_entries_of_records_that_a_power_cut_took_settle_no_others_at_the_starts_that_follow(files):
    with_a_gap(files)
    for suspect in (True, False, False):
        queue, _ = run(files.directory, suspect)
        assert {k: queue.segments[1][k] for k in ("records", "settled", "acks")} == {
            "records": 6, "settled": 2, "acks": 5}


@pytest.mark.parametrize(("counted", "settled"), [(5, 2), (6, 2), (6, 3)])
def test_a_kill_between_an_entry_and_its_counts_is_told_from_entries_of_lost_records(files, counted, settled):
    with_a_gap(files)
    run(files.directory, suspect=True)
    files.poke(files.acks(1), 64 + 5 * 8, layout.entry(1, files.positions[1][9], layout.ACKED, 0))
    words = struct.pack("<4I", *layout.word(counted), *layout.word(settled))
    files.poke(files.acks(1), layout.ACKS_WORDS_AT + 8, words)
    queue, _ = run(files.directory)
    assert (queue.segments[1]["settled"], queue.segments[1]["acks"]) == (3, 6)


@pytest.mark.parametrize("lost", [(4, 8), (0, 3), (7, 10)])
def test_records_found_damaged_at_a_clean_start_take_their_entries_with_them(files, lost):
    octets = files.segment(1, BODIES, sealed=layout.OPEN, room=4096)
    files.ack(1, [(i, layout.ACKED, 0) for i in (*range(*lost), 3)])
    begin, end = ([*files.positions[1], len(octets)][i] for i in lost)
    files.poke(files.msgs(1), begin, bytes(end - begin))
    for _ in range(2):
        queue, _ = run(files.directory)
        assert (queue.segments[1]["records"], queue.segments[1]["settled"]) == (10 - (lost[1] - lost[0]), 1)


def test_a_segment_with_lost_records_is_not_given_up_before_the_others_are_settled(files):
    files.segment(1, BODIES, sealed=layout.FULL)
    files.segment(2, BODIES, base_seq=11, sealed=layout.OPEN, room=4096)
    files.ack(1, [(i, layout.ACKED, 0) for i in range(8)])
    begin, end = files.positions[1][2], files.positions[1][6]
    files.poke(files.msgs(1), begin, bytes(end - begin))
    for suspect in (True, False):
        core = plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=print, damaged=print)
        queue = plane.Queue(core, files.directory, durable=True)
        recover(queue, Disk(), suspect, print)
        assert [row[6] for row in queue.browse(0, 3)] == [BODIES[8], BODIES[9], BODIES[0]]
        assert queue.ready == 12
        queue.close()


def test_damage_at_the_end_without_a_power_cut_is_told_and_nothing_is_cut(files):
    files.segment(1, BODIES, sealed=layout.OPEN, room=4096)
    files.poke(files.msgs(1), files.positions[1][-1] + 66, b"?")
    before = os.path.getsize(files.msgs(1))
    queue, findings = run(files.directory)
    assert (kinds(findings), queue.segments[1]["records"], queue.next_seq) == (["damaged"], 9, 11)
    assert queue.segments[1]["capacity"] == queue.segments[1]["end"]
    assert os.path.getsize(files.msgs(1)) == before


@pytest.mark.parametrize("position", [0, 5, 8, 17, 30, 33, 36])
def test_a_segment_with_a_damaged_header_is_put_aside_with_its_acks(files, position):
    three_segments(files)
    files.ack(3, [(0, layout.ACKED, 0)])
    octet = files.read(files.msgs(3))[position]
    files.poke(files.msgs(3), position, bytes((octet ^ 4,)))
    content = files.read(files.msgs(3))
    queue, findings = run(files.directory)
    assert (list(queue.segments), kinds(findings)) == ([1, 2], ["damaged", "damaged"])
    assert files.read(files.msgs(3) + ".damaged") == content
    assert not os.path.exists(files.acks(3))
    assert queue.next_seq == 31     # What was put aside is not numbered again.


def test_a_segment_larger_than_any_can_be_is_put_aside_unread(files):
    three_segments(files)
    files.ack(3, [(0, layout.ACKED, 0)])
    os.truncate(files.msgs(3), 4 << 40)
    queue, findings = run(files.directory)
    assert (list(queue.segments), kinds(findings)) == ([1, 2], ["damaged", "damaged"])
    assert "it has 4398046511104 octets, more than any segment" in findings[0].text
    assert queue.next_seq == 31


@pytest.mark.parametrize("suspect", [False, True])
def test_acks_larger_than_any_can_be_are_put_aside_unread(files, suspect):
    three_segments(files)
    files.ack(1, [(0, layout.ACKED, 0)], delivered=64)
    os.truncate(files.acks(1), 4 << 40)
    queue, findings = run(files.directory, suspect=suspect)
    assert "it has 4398046511104 octets, more than any acks file" in findings[0].text
    assert queue.segments[1]["settled"] == 0
    assert os.path.exists(files.acks(1) + ".damaged")


def test_what_was_put_aside_before_is_not_overwritten(files):
    three_segments(files)
    files.write(files.msgs(2) + ".damaged", b"older")
    files.poke(files.msgs(2), 0, b"?")
    run(files.directory)
    assert files.read(files.msgs(2) + ".damaged") == b"older"
    assert os.path.exists(files.msgs(2) + ".damaged.2")


def test_a_segment_under_another_ones_name_is_put_aside(files):
    three_segments(files)
    os.rename(files.msgs(2), files.msgs(7))
    queue, findings = run(files.directory)
    assert (list(queue.segments), kinds(findings)) == ([1, 3], ["damaged"])
    assert "header is that of segment 2" in findings[0].text


def test_a_spare_renamed_but_never_written_is_removed_after_a_power_cut(files):
    three_segments(files)
    os.rename(files.msgs(1), files.msgs(4))
    queue, findings = run(files.directory, suspect=True)
    assert (list(queue.segments), kinds(findings), queue.next_seq) == ([2, 3], ["leftover"], 31)


@pytest.mark.parametrize("content", [b"", bytes(30), bytes(8192)])
def test_a_segment_that_nothing_was_written_into_is_removed(files, content):
    three_segments(files)
    files.write(files.msgs(4), content)
    queue, findings = run(files.directory)
    assert (list(queue.segments), kinds(findings)) == ([1, 2, 3], ["leftover"])
    assert not os.path.exists(files.msgs(4))


def test_spares_and_acks_without_records_go(files):
    three_segments(files)
    files.segment(9, BODIES)
    files.ack(9, [(0, layout.ACKED, 0)])
    os.rename(files.msgs(9), files.path("spare.msgs"))
    files.write(files.path(".queue"), b"name")
    queue, findings = run(files.directory)
    assert (list(queue.segments), kinds(findings)) == ([1, 2, 3], ["leftover"])
    assert sorted(os.listdir(files.directory)) == [".queue", *(layout.segment_name(n) for n in (1, 2, 3))]


@pytest.mark.parametrize("suspect", [True, False])
def test_a_stream_gives_up_the_acks_files_of_former_releases_and_gets_no_others(files, suspect):
    three_segments(files)
    for number in (1, 2, 3):
        files.ack(number, [(0, layout.ACKED, 0)] if number == 2 else [], delivered=64)
    files.write(files.path("acks.0000000002.damaged"), b"aside")
    queue, findings = run(files.directory, suspect, stream=True)
    left = [*(layout.segment_name(n) for n in (1, 2, 3)), "acks.0000000002.damaged"]
    assert sorted(os.listdir(files.directory)) == sorted(left)
    assert [(one.kind, one.text.split(" ")[0]) for one in findings] == [("leftover", "3")]
    assert {(one["settled"], one["delivered"], one["doubted"]) for one in queue.segments.values()} == {(0, 0, 0)}
    queue, findings = run(files.directory, suspect, stream=True)
    assert (list(queue.segments), findings) == ([1, 2, 3], [])
    assert sorted(os.listdir(files.directory)) == sorted(left)


@pytest.mark.parametrize("position", [0, 9, 16, 20])
def test_damaged_acks_are_put_aside_and_the_messages_come_again_marked(files, position):
    three_segments(files)
    files.ack(1, [(0, layout.ACKED, 0)], delivered=64)
    files.poke(files.acks(1), position, bytes((files.read(files.acks(1))[position] ^ 2,)))
    queue, findings = run(files.directory)
    facts = queue.segments[1]
    assert (facts["settled"], facts["acks"], facts["delivered"], facts["doubted"]) == (0, 0, 0, facts["end"])
    assert kinds(findings) == ["damaged"]
    assert os.path.exists(files.acks(1) + ".damaged")


def test_after_a_power_cut_acks_are_counted_anew_and_only_for_records_that_are_there(files):
    files.segment(1, BODIES, sealed=layout.OPEN, room=4096)
    files.ack(1, [(0, layout.ACKED, 0), (9, layout.ACKED, 0), (1, layout.RETURNED, 3), (0, layout.ACKED, 0)],
              counted=1, settled=0)
    files.poke(files.msgs(1), files.positions[1][9] + 70, b"\0\0\0")
    queue, findings = run(files.directory, suspect=True)
    facts = queue.segments[1]
    assert (facts["records"], facts["settled"], facts["acks"]) == (9, 1, 4)
    assert facts["ready_octets"] == sum(map(len, BODIES[1:9]))
    assert kinds(findings) == ["cut"]


def test_what_was_doubted_before_more_came_is_doubted_and_nothing_else(files):
    three_segments(files)
    files.ack(1, [(0, layout.ACKED, 0)])
    header = layout.acks_header(1, generation=0, delivered=100, settled=1, entries=1, doubted=200)
    files.poke(files.acks(1), 0, header)
    queue, findings = run(files.directory)
    assert (queue.segments[1]["doubted"], queue.segments[1]["settled"], findings) == (200, 1, [])


@pytest.mark.parametrize("suspect", [True, False])
def test_a_blank_acks_file_of_a_full_segment_is_damage_where_no_power_was_lost(files, suspect):
    three_segments(files)
    files.write(files.acks(1), bytes(4096))
    queue, findings = run(files.directory, suspect)
    assert (queue.segments[1]["settled"], queue.segments[1]["doubted"]) == (0, queue.segments[1]["end"])
    assert [finding.text for finding in findings if finding.path == files.acks(1)] == (
        [] if suspect else ["its header is blank; 10 messages of the segment come again"])


def test_an_acks_file_cut_short_tells_how_many_come_again(files):
    three_segments(files)
    files.ack(1, [(i, layout.ACKED, 0) for i in range(5)])
    os.truncate(files.acks(1), 64 + 8 * 2)
    queue, findings = run(files.directory)
    assert queue.segments[1]["settled"] == 2
    assert [(finding.offset, finding.octets, finding.text) for finding in findings] == [
        (80, 24, "cut short; 3 settled messages come again")]


def test_a_segment_without_records_has_no_octets_that_are_ready(files):
    files.segment(1, [], sealed=layout.OPEN, room=4096)
    queue, _ = run(files.directory)
    assert (queue.segments[1]["records"], queue.segments[1]["ready_octets"]) == (0, 0)


def test_a_damaged_entry_is_told_and_its_message_comes_again(files):
    three_segments(files)
    files.ack(3, [(0, layout.ACKED, 0), (1, layout.ACKED, 0)])
    files.poke(files.acks(3), 64 + 6, b"\x01")
    files.poke(files.acks(3), 40, b"\x07")
    queue, findings = run(files.directory)
    assert (queue.segments[3]["settled"], kinds(findings)) == (1, ["damaged"])


@pytest.mark.parametrize("path", ["msgs", "acks"])
def test_a_file_of_a_later_version_is_refused(files, path):
    three_segments(files)
    files.ack(2, [])
    name, crc_at = (files.msgs(2), 36) if path == "msgs" else (files.acks(2), 20)
    files.poke(name, 4, b"\x09")
    files.poke(name, crc_at, layout.crc32c(files.read(name)[:crc_at]).to_bytes(4, "little"))
    with pytest.raises(StoreError, match=f"{name} has version 9 at offset 4"):
        run(files.directory)


@pytest.mark.parametrize(("renamed", "finished"), [((), False), (("msgs",), True), (("acks",), True)])
def test_a_compaction_under_way_is_finished_or_undone(files, renamed, finished):
    three_segments(files)
    files.ack(1, [(i, layout.ACKED, 0) for i in range(8)], settled=8)
    old = {kind: files.read(files.path(f"{kind}.0000000001")) for kind in ("msgs", "acks")}
    files.segment(1, BODIES[8:], base_seq=1, generation=1)
    files.ack(1, [], generation=1)
    for kind in ("msgs", "acks"):
        if kind not in renamed:
            os.rename(files.path(f"{kind}.0000000001"), files.path(f"{kind}.0000000001.new"))
            files.write(files.path(f"{kind}.0000000001"), old[kind])
    queue, findings = run(files.directory)
    facts = queue.segments[1]
    assert kinds(findings) == ["leftover"]
    assert (facts["generation"], facts["records"] - facts["settled"]) == (int(finished), 2)
    assert not [name for name in os.listdir(files.directory) if name.endswith(".new")]


def test_acks_of_another_generation_are_not_believed(files):
    three_segments(files)
    files.segment(1, BODIES[:2], generation=1)
    files.ack(1, [(0, layout.ACKED, 0)], generation=0)
    queue, findings = run(files.directory)
    assert (queue.segments[1]["settled"], kinds(findings)) == (0, ["damaged"])


@pytest.mark.parametrize("octets", [0, 100, 4096, 70_000])
def test_acks_made_but_not_begun_when_the_broker_died_are_begun_before_records_follow(files, octets):
    files.segment(1, [], sealed=layout.OPEN, room=8192)
    files.write(files.acks(1), bytes(octets))
    for _ in range(2):
        queue, findings = run(files.directory)
        assert (queue.segments[1]["records"], findings) == (0, [])
    assert files.read(files.acks(1)) == layout.acks_header(1).ljust(max(octets, 4096), b"\0")
    files.segment(1, BODIES, sealed=layout.OPEN, room=8192)     # Appended, and nothing delivered.
    queue, findings = run(files.directory)
    assert (queue.segments[1]["delivered"], queue.segments[1]["doubted"], findings) == (0, 0, [])


def test_a_last_segment_full_of_old_records_of_others_is_read_to_its_own_end_only(files):
    stale = files.segment(1, BODIES * 3)
    os.unlink(files.msgs(1))
    own = files.segment(2, BODIES[:2], base_seq=31, sealed=layout.OPEN)
    files.write(files.msgs(2), own + stale[len(own):])
    for suspect in (False, True):
        queue, findings = run(files.directory, suspect)
        assert (queue.segments[2]["records"], queue.next_seq, findings) == (2, 33, [])


@pytest.mark.parametrize("seed", range(80))
def test_synced_messages_survive_power_loss_and_unsynced_ones_never_come_out_wrong(tmp_path, seed):
    chance, root = random.Random(seed), tmp_path / "data"
    files = Files(str(root / "q"))
    disk = ForgetfulDisk(str(root))
    bodies, synced = [], 0
    number, base = 1, 1
    for _ in range(chance.randrange(1, 12)):
        more = [chance.randbytes(chance.choice((5, 900, 5000))) for _ in range(chance.randrange(1, 5))]
        bodies += more
        full = chance.random() < 0.3
        octets = files.segment(number, bodies[base - 1:], base_seq=base, sealed=layout.FULL if full else layout.OPEN)
        files.write(files.msgs(number), octets.ljust(1 << 17, b"\0"))
        if chance.random() < 0.5:
            for path in [files.msgs(n) for n in range(1, number + 1)]:
                fd = disk.open(path)
                disk.fdatasync(fd, path)
                disk.close(fd)
            disk.sync_directory(files.directory)
            disk.sync_directory(str(root))
            synced = len(bodies)
        if full:
            number, base = number + 1, len(bodies) + 1
    disk.lose_power(str(tmp_path / "after"), chance)
    disk.release()
    directory = tmp_path / "after/q"
    queue, _ = run(directory, suspect=True)
    seen = {}
    for attached, facts in queue.segments.items():
        octets = Files.read(str(directory / layout.segment_name(attached)))
        assert len(octets) >= facts["end"]
        found = reading.scan_records(octets, facts["end"])
        right = reading.record_checks(octets, found, attached)
        assert int(right.sum()) == facts["records"]
        for seq, position, length in zip(found.headers["seq"][right], found.positions[right],
                                         found.headers["length"][right], strict=True):
            seen[int(seq)] = octets[position + 71:position + length]
    assert all(seen[seq] == bodies[seq - 1] for seq in seen)
    assert set(range(1, synced + 1)) <= seen.keys()
    assert queue.next_seq > max(seen, default=0)
    again, findings = run(directory, suspect=True)
    assert {n: f["records"] for n, f in again.segments.items()} == {n: f["records"] for n, f in queue.segments.items()}
    assert [f for f in findings if f.kind == "cut"] == []


def test_the_plane_takes_what_recovery_tells_it(files):
    three_segments(files)
    files.ack(1, [(i, layout.ACKED, 0) for i in range(10)], delivered=10_000)
    files.ack(2, [(0, layout.ACKED, 0)])
    core = plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=print, damaged=print)
    queue = plane.Queue(core, files.directory, durable=True)
    recover(queue, Disk(), False, print)
    assert (queue.ready, queue.next_seq) == (19, 31)


# --- what belongs to order journals

def journal(files, number, folder=""):
    path = os.path.join(files.directory, folder, layout.journal_name(number))
    files.write(path, layout.journal_header(number, begun=1))
    return path


@pytest.mark.parametrize("suspect", [True, False])
@pytest.mark.parametrize("left", [("journal", "acks"), ("acks",), ()])
def test_a_settled_segment_that_was_on_its_way_arrives(files, left, suspect):
    three_segments(files)
    files.ack(1, [(i, layout.ACKED, 0) for i in range(10)], delivered=9000)
    kept = os.path.join(files.directory, "kept")
    os.mkdir(kept)
    names = {"msgs": layout.segment_name(1), "journal": layout.journal_name(1), "acks": layout.acks_name(1)}
    journal(files, 1)
    for kind, name in names.items():
        if kind not in left:
            os.rename(files.path(name), os.path.join(kept, name))
    queue, findings = Queue(files.directory), []
    assert recover(queue, Disk(), suspect, findings.append) is True
    assert sorted(os.listdir(kept)) == sorted(names.values())
    assert not {*names.values()} & {*os.listdir(files.directory)}
    assert (list(queue.segments), queue.next_seq, kinds(findings)) == ([2, 3], 31, ["leftover"] * len(left))


@pytest.mark.parametrize("suspect", [True, False])
@pytest.mark.parametrize("back", [(), ("acks",), ("journal",)])
def test_records_whose_old_name_came_back_are_settled_by_the_acks_that_had_moved(files, back, suspect):
    three_segments(files)
    files.ack(1, [(i, layout.ACKED, 0) for i in range(10)], delivered=9000)
    journal(files, 1)
    os.mkdir(files.path("kept"))
    for kind, name in (("msgs", layout.segment_name(1)), ("journal", layout.journal_name(1)),
                       ("acks", layout.acks_name(1))):
        os.rename(files.path(name), files.path(f"kept/{name}"))
        if kind in ("msgs", *back):
            os.link(files.path(f"kept/{name}"), files.path(name))
    queue, findings = run(files.directory, suspect)
    assert queue.segments[1]["settled"] == 10
    assert kinds(findings) == ["leftover"] * (2 - len(back))
    assert os.path.exists(files.path(layout.journal_name(1)))


def test_a_file_that_arrived_before_is_not_written_over_by_one_of_its_name(files):
    three_segments(files)
    kept = os.path.join(files.directory, "kept")
    os.mkdir(kept)
    os.rename(files.msgs(1), os.path.join(kept, layout.segment_name(1)))
    arrived = journal(files, 1, "kept")
    files.write(files.path(layout.journal_name(1)), b"another")
    before = files.read(arrived)
    _, findings = run(files.directory)
    assert files.read(arrived) == before
    assert not os.path.exists(files.path(layout.journal_name(1)))
    assert kinds(findings) == ["leftover"]


def test_journals_beside_segments_are_left_as_they_are(files):
    three_segments(files)
    paths = [journal(files, number) for number in (2, 3, 9)]
    queue, findings = run(files.directory)
    assert (list(queue.segments), findings) == ([1, 2, 3], [])
    assert all(os.path.exists(path) for path in paths)


def note(files, *lines):
    files.write(files.path(layout.SIDE_FILE), b"".join(side_file.encode(line) for line in lines))


def removed(*numbers, level=0):
    return {"at": 1, "what": "removed", "level": level, "segments": list(numbers), "why": "age"}


@pytest.mark.parametrize("suspect", [True, False])
def test_a_journal_whose_segment_was_removed_goes_and_only_that(files, suspect):
    three_segments(files)
    note(files, {"at": 1, "what": "settings", "journal": True}, removed(7, 8), removed(9, level=2))
    paths = {number: journal(files, number) for number in (2, 8, 9)}
    files.write(files.path(layout.chain_name(8)), b"its chain")
    queue, findings = run(files.directory, suspect)
    assert list(queue.segments) == [1, 2, 3]
    assert {number: os.path.exists(path) for number, path in paths.items()} == {2: True, 8: False, 9: True}
    assert not os.path.exists(files.path(layout.chain_name(8)))
    assert [(each.kind, os.path.basename(each.path)) for each in findings] == [
        ("leftover", layout.chain_name(8)), ("leftover", layout.journal_name(8))]
    assert run(files.directory)[1] == []


def test_a_journal_whose_records_were_lost_stays_as_evidence(files):
    three_segments(files)
    note(files, {"at": 1, "what": "settings", "journal": True}, removed(7), {"what": "removed", "segments": 5},
         {"what": "removed", "level": 0, "segments": ["9", None]})
    lost = journal(files, 9)
    os.rename(journal(files, 2), files.path(layout.journal_name(8)))
    os.rename(files.msgs(1), files.msgs(1) + ".damaged")
    damaged = journal(files, 1)
    note(files, removed(1))
    _, findings = run(files.directory)
    assert findings == []
    assert all(os.path.exists(path) for path in (lost, damaged, files.path(layout.journal_name(8))))


def test_journals_left_of_a_queue_that_has_none_any_more_go(files):
    three_segments(files)
    note(files, {"at": 1, "what": "settings", "journal": True}, {"at": 2, "what": "settings", "journal": False})
    left, beside = journal(files, 9), journal(files, 2)
    _, findings = run(files.directory)
    assert (os.path.exists(left), os.path.exists(beside), kinds(findings)) == (False, True, ["leftover"])


def test_a_journal_whose_segment_was_removed_goes_in_each_priority_level(tmp_path):
    above, files = Files(str(tmp_path / "q")), Files(str(tmp_path / "q" / "prio.002"))
    files.segment(2, BODIES, base_seq=11, sealed=layout.OPEN)
    note(above, removed(1, level=2), removed(3))
    gone, stays = journal(files, 1), journal(files, 3)
    queue, findings = Queue(tmp_path / "q"), []
    queue.max_priority = 5
    recover(queue, Disk(), False, findings.append)
    assert (os.path.exists(gone), os.path.exists(stays), kinds(findings)) == (False, True, ["leftover"])


def test_a_chain_without_its_journal_and_records_goes(files):
    three_segments(files)
    for number in (2, 9):
        files.write(files.path(layout.chain_name(number)), b"a chain")
    _, findings = run(files.directory)
    assert not os.path.exists(files.path(layout.chain_name(9)))
    assert os.path.exists(files.path(layout.chain_name(2)))
    assert kinds(findings) == ["leftover"]


def test_a_chain_follows_its_segment_that_was_moved(files):
    three_segments(files)
    os.mkdir(files.path("kept"))
    os.rename(files.msgs(1), files.path("kept/" + layout.segment_name(1)))
    files.write(files.path(layout.chain_name(1)), b"a chain")
    run(files.directory)
    assert files.read(files.path("kept/" + layout.chain_name(1))) == b"a chain"


def test_what_is_left_of_a_removal_is_not_brought_back(files):
    three_segments(files)
    os.mkdir(files.path("kept"))
    journal(files, 7, "kept")
    queue, findings = run(files.directory)
    assert (list(queue.segments), findings) == ([1, 2, 3], [])
    assert os.listdir(files.path("kept")) == [layout.journal_name(7)]


def test_a_queue_that_never_had_an_order_journal_is_told_apart(files):
    three_segments(files)
    assert recover(Queue(files.directory), Disk(), False, print) is False
    files.write(files.path("order.jsonl"), b"")
    assert recover(Queue(files.directory), Disk(), False, print) is True


def test_moves_are_finished_in_each_priority_level(tmp_path):
    files = Files(str(tmp_path / "q" / "prio.002"))
    files.segment(1, BODIES)
    files.segment(2, BODIES, base_seq=11, sealed=layout.OPEN)
    os.mkdir(files.path("kept"))
    os.rename(files.msgs(1), files.path("kept/" + layout.segment_name(1)))
    journal(files, 1)
    queue, findings = Queue(tmp_path / "q"), []
    queue.max_priority = 5
    assert recover(queue, Disk(), False, findings.append) is True
    assert sorted(os.listdir(files.path("kept"))) == [layout.journal_name(1), layout.segment_name(1)]


@pytest.mark.parametrize("suspect", [True, False])
def test_journals_of_kept_segments_say_after_a_loss_of_power_that_events_may_be_missing(files, suspect):
    os.makedirs(f"{files.directory}/kept")
    for name, octets in (("msgs.0000000003", layout.segment_header(3, base_seq=1, created=1)),
                         ("journal.0000000003", layout.journal_header(3, begun=7))):
        files.write(f"{files.directory}/kept/{name}", octets)
    run(files.directory, suspect)
    with open(f"{files.directory}/kept/journal.0000000003", "rb") as file:
        octets = file.read()
    mark = layout.event(3, 7, 8, layout.STARTED, layout.POWER_LOST)
    assert octets[layout.HEADER_OCTETS:] == (mark if suspect else b"")


def keep(files, number):
    """Move a segment to where settled ones are."""
    os.makedirs(files.path("kept"), exist_ok=True)
    os.rename(files.msgs(number), files.path("kept/" + layout.segment_name(number)))


@pytest.mark.parametrize("generation", [0, 1])
@pytest.mark.parametrize("left", [(1,), ()])
def test_numbers_of_settled_messages_are_not_given_again_though_power_took_the_last_segment(files, left, generation):
    three_segments(files)
    files.segment(3, BODIES, base_seq=21, generation=generation)
    for number in {1, 2, 3} - {*left}:
        keep(files, number)
    queue, _ = run(files.directory, suspect=True)
    assert (list(queue.segments), queue.next_seq, queue.last_number) == ([*left], 31, 3)


def test_numbers_of_messages_that_were_removed_are_not_given_again_though_power_took_the_last_segment(files):
    files.segment(1, BODIES)
    lines = [{**removed(2), "last_seq": 44}, {**removed(3), "last_seq": None}, {**removed(1, level=3), "last_seq": 50}]
    note(files, *lines)
    assert run(files.directory, suspect=True)[0].next_seq == 51


@pytest.mark.parametrize("suspect", [True, False])
@pytest.mark.parametrize("name", ["journal.0000000009", "kept/msgs.0000000009", "kept/journal.0000000009"])
def test_no_segment_gets_the_number_of_a_file_that_is_left_of_one(files, name, suspect):
    three_segments(files)
    os.mkdir(files.path("kept"))
    files.write(files.path(name), b"")
    assert run(files.directory, suspect)[0].last_number == 9


@pytest.mark.parametrize("highest", [0, 5])
def test_numbers_go_on_above_those_of_every_priority_level(tmp_path, highest):
    """The level with the highest numbers, and the journal, need not be the last one that is read."""
    levels = {0: Files(str(tmp_path)), 5: Files(str(tmp_path / layout.priority_folder(5)))}
    levels[0].segment(4, BODIES, base_seq=1 if highest else 101)
    levels[5].segment(9, BODIES, base_seq=101 if highest else 1)
    levels[highest].write(levels[highest].path(layout.journal_name(12)), bytes(64))
    os.mkdir(levels[highest].path(layout.KEPT_FOLDER))
    queue = Queue(tmp_path)
    queue.max_priority = 5
    assert recover(queue, Disk(), False, lambda finding: None)      # It has a journal.
    assert (queue.next_seq, queue.last_number) == (111, 12)


@pytest.mark.parametrize("number_in_header", [1, 3])
def test_a_blank_segment_of_another_number_is_removed_only_if_it_was_a_spare_of_an_older_one(files, number_in_header):
    files.segment(number_in_header, [b"x"])
    os.rename(files.msgs(number_in_header), files.msgs(2))
    _, findings = run(files.directory, suspect=True)
    assert kinds(findings) == (["leftover"] if number_in_header == 1 else ["damaged"])
    assert os.listdir(files.directory) == ([] if number_in_header == 1 else ["msgs.0000000002.damaged"])


@pytest.mark.parametrize("suspect", [True, False])
def test_records_behind_a_header_of_zeros_are_kept(files, suspect):
    three_segments(files)
    files.poke(files.msgs(2), 0, bytes(64))
    queue, findings = run(files.directory, suspect)
    assert kinds(findings) == ["damaged"]
    assert "at least 10 records are in it" in findings[0].text
    assert "msgs.0000000002.damaged" in os.listdir(files.directory)
    assert (list(queue.segments), queue.next_seq) == ([1, 3], 31)


@pytest.mark.parametrize("suspect", [True, False])
@pytest.mark.parametrize("base_seq", [NUMBER_MOST + 1, (1 << 64) - 12, (1 << 64) - 11])
@pytest.mark.parametrize("number", [2, 3])
def test_a_segment_with_message_numbers_that_no_broker_gave_is_put_aside(files, number, base_seq, suspect):
    three_segments(files)
    files.segment(number, BODIES, base_seq=base_seq, sealed=layout.OPEN if number == 3 else layout.SYNCED)
    queue, findings = run(files.directory, suspect)
    assert "damaged" in kinds(findings)
    assert f"msgs.000000000{number}.damaged" in os.listdir(files.directory)
    assert (list(queue.segments), queue.next_seq) == ([1, 3], 31) if number == 2 else ([1, 2], 21)


def test_a_last_record_whose_number_no_broker_gave_puts_its_segment_aside(files):
    three_segments(files)
    octets = files.segment(3, BODIES[:2], base_seq=21, sealed=layout.OPEN)
    at = files.positions[3][1]
    files.write(files.msgs(3), octets[:at] + record(3, (1 << 64) - 1, BODIES[1]))
    queue, findings = run(files.directory)
    assert kinds(findings) == ["damaged"]
    assert "it ends with message 18446744073709551615, which no queue can have" in findings[0].text
    assert (list(queue.segments), queue.next_seq) == ([1, 2], 21)


@pytest.mark.parametrize("number", [NUMBER_MOST + 1, 10**30])
def test_a_segment_with_a_number_that_no_broker_gave_is_put_aside(files, number):
    three_segments(files)
    os.rename(files.msgs(3), files.path(f"msgs.{number}"))
    queue, findings = run(files.directory)
    assert kinds(findings) == ["damaged"]
    assert f"msgs.{number}.damaged" in os.listdir(files.directory)
    assert (list(queue.segments), queue.next_seq) == ([1, 2], 21)


def test_a_damaged_first_record_is_reported_where_it_stands(files):
    three_segments(files)
    files.poke(files.msgs(3), 64 + 30, b"??")
    _, findings = run(files.directory)
    assert [(finding.kind, finding.offset, finding.octets) for finding in findings] == [
        ("damaged", 64, files.positions[3][1] - 64)]


def test_times_go_on_behind_the_latest_of_all_segments(files):
    files.segment(1, BODIES, base_seq=1, sealed=layout.FULL)
    files.segment(2, BODIES, base_seq=11, sealed=layout.FULL)
    queue, _ = run(files.directory, suspect=True)
    assert queue.last_ts == 1_020
