"""What is seen of a queue's folder without reading it through."""

import pytest

from brokerd.operations.files import Level, first_kept_seq, first_seq, has_kept_folder, kept_segments, levels
from brokerd.store import format as layout

NO_RECORD = b"\0" * 64


def segment(number, seq):
    header = layout.segment_header(number, base_seq=seq, created=1, end=128)
    return header + layout.RECORD_MAGIC.to_bytes(4, "little") + bytes(12) + seq.to_bytes(8, "little") + bytes(40)


@pytest.fixture
def folder(tmp_path):
    for name, seq in (("msgs.0000000005", 50), ("kept/msgs.0000000002", 20), ("prio.003/msgs.0000000001", 33),
                      ("prio.003/kept/msgs.0000000004", 17)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(segment(int(path.name[5:]), seq))
    return tmp_path


def test_levels_are_those_that_have_a_folder(folder):
    (folder / "prio.abc").mkdir()
    assert levels(str(folder), 9) == [Level(0, ""), Level(3, "prio.003")]
    assert levels(str(folder), 0) == levels(str(folder / "none"), 9) == [Level(0, "")]


def test_a_queue_keeps_something_where_any_of_its_levels_does(folder, tmp_path):
    assert has_kept_folder(str(folder), 0)
    assert not has_kept_folder(str(folder / "prio.003" / "kept"), 9)
    (folder / "kept").rename(tmp_path / "away")
    assert (has_kept_folder(str(folder), 0), has_kept_folder(str(folder), 9)) == (False, True)


def test_kept_segments_are_sorted_by_number_and_nothing_else_is_one(tmp_path):
    assert kept_segments(str(tmp_path)) == {}
    (tmp_path / "kept").mkdir()
    for name in ("msgs.0000000012", "acks.0000000012", "journal.0000000012", "msgs.0000000003", "msgs.0000000004.new",
                 "spare.0000000001", "msgs.12", "order"):
        (tmp_path / "kept" / name).touch()
    assert list(kept_segments(str(tmp_path)).items()) == [(3, {"msgs"}), (12, {"msgs", "acks", "journal"})]


@pytest.mark.parametrize(("octets", "seq"), [
    (b"", 0), (NO_RECORD, 0), (NO_RECORD * 2, 0), (segment(1, 77), 77), (segment(1, 77)[:100], 0),
])
def test_the_first_number_is_that_of_a_record_that_is_there(tmp_path, octets, seq):
    (tmp_path / "msgs").write_bytes(octets)
    assert first_seq(str(tmp_path / "msgs")) == seq


def test_the_first_message_on_disk_is_the_lowest_of_all_levels(folder):
    assert first_kept_seq(str(folder), 9, {0: [5], 3: [1]}) == 17
    assert first_kept_seq(str(folder), 0, {0: [5]}) == 20
    assert first_kept_seq(str(folder / "prio.003" / "kept"), 0, {0: [4]}) == 17
    assert first_kept_seq(str(folder / "prio.003" / "kept"), 0, {0: [3, 4]}) == 17, "the third is gone"
    assert first_kept_seq(str(folder / "none"), 9, {}) == 0
