import os

import pytest
from tests.store.segments import Files

from brokerd import plane
from brokerd.store import format as layout
from brokerd.store import settled_recovery, side_file
from brokerd.store.disk import Disk


@pytest.fixture
def files(tmp_path):
    return Files(str(tmp_path / "q"))


def kept(files):
    return Files(files.path("kept"))


def highest_seq(files):
    names = os.listdir(files.path("kept")) if os.path.isdir(files.path("kept")) else []
    return settled_recovery.highest_seq(files.directory, names, Disk(), plane.scan_segment)


@pytest.mark.parametrize(("names", "number"), [
    ([], 0), (["order.jsonl", ".queue", "kept", "spare.0000000009", "journal.9", "journal.x", "order"], 0),
    (["msgs.0000000002", "acks.0000000007", "journal.0000000003"], 7), (["chain.0000000004"], 4),
    (["msgs.0000000012.damaged", "msgs.0000000013.damaged.2", "msgs.0000000014.new"], 14),
    (["msgs.10000000000"], 10_000_000_000), ([f"msgs.{1 << 62}"], 1 << 62), ([f"msgs.{(1 << 62) + 1}"], 0),
    (["journal." + "9" * 5000, "acks.0000000003"], 3), (["msgs.٠٠٠٠٠٠٠٠٠٩"], 0),
])
def test_the_highest_number_is_found_in_all_names_that_have_one(names, number):
    assert settled_recovery.highest_number(names) == number


def test_a_queue_without_settled_segments_has_no_highest_number(files):
    assert highest_seq(files) == 0


@pytest.mark.parametrize("generation", [0, 2])
def test_the_last_settled_segment_says_the_highest_sequence_number(files, generation):
    kept(files).segment(1, [b"x"] * 5)
    kept(files).segment(2, [b"x"] * 3, base_seq=6, generation=generation)
    assert highest_seq(files) == 8


@pytest.mark.parametrize(("at", "octets"), [(0, b"!"), (24, b"!"), (48, b"\xff\xff"), (16, b"\0\0")])
def test_a_settled_segment_with_a_damaged_header_is_read_through(files, at, octets):
    kept(files).segment(1, [b"x"] * 5, base_seq=11)
    files.poke(kept(files).msgs(1), at, octets)
    assert highest_seq(files) == 15


@pytest.mark.parametrize("octets", [b"", b"x" * 63, bytes(64), bytes(200)])
def test_a_file_that_is_no_segment_has_no_sequence_number(files, octets):
    files.write(kept(files).msgs(1), octets)
    assert highest_seq(files) == 0


def test_a_file_larger_than_any_segment_is_not_read(files):
    with open(kept(files).msgs(1), "wb") as file:
        file.truncate(layout.SEGMENT_OCTETS_MAX + 1)
    assert highest_seq(files) == 0


@pytest.mark.parametrize("last", [-1, (1 << 62) + 1, 1 << 70, 10**400, 7.5, None, [9]])
def test_an_edited_line_cannot_make_a_number_that_no_message_can_have(files, last):
    kept(files).segment(1, [b"x"] * 5)
    side_file.append(files.path(layout.SIDE_FILE), [{"what": "removed", "last_seq": last}], Disk())
    assert highest_seq(files) == 5


def test_an_edited_header_cannot_make_a_number_that_no_message_can_have(files):
    kept(files).segment(1, [], base_seq=(1 << 64) - 1)
    assert highest_seq(files) == 0


def test_what_was_removed_counts_too(files):
    kept(files).segment(1, [b"x"] * 5)
    lines = [{"what": "removed", "last_seq": 77}, {"what": "removed", "last_seq": "99"},
             {"what": "consumer", "last_seq": 98}]
    side_file.append(files.path(layout.SIDE_FILE), lines, Disk())
    assert highest_seq(files) == 77


def test_a_journal_goes_only_if_its_segment_was_removed(files):
    names = {layout.journal_name(number) for number in (1, 2, 3)} | {layout.segment_name(1)}
    side_file.append(files.path(layout.SIDE_FILE), [{"what": "removed", "level": 0, "segments": [1, 2]}], Disk())
    assert settled_recovery.stale_journals(files.directory, names, Disk()) == [layout.journal_name(2)]
