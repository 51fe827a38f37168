"""The side file of an order journal: lines in, lines out, torn ones passed over, never large."""

import contextlib
import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.store import side_file
from brokerd.store.disk import Disk


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "order.jsonl")


def removed(first, last, level=0, why="age", segments=(1,), at=1):
    return {"at": at, "what": "removed", "level": level, "segments": list(segments), "first_seq": first,
            "last_seq": last, "messages": last - first + 1, "octets": 10, "why": why}


def consumer(number, tag="t"):
    return {"at": number, "what": "consumer", "number": number, "tag": tag}


def settings(at, limit):
    return {"at": at, "what": "settings", "delivery_limit": limit}


def test_lines_are_added_in_order(path):
    side_file.append(path, [settings(1, None)], Disk())
    side_file.append(path, [consumer(2), {"at": 3, "what": "consumer_gone", "number": 2}], Disk(), sync=True)
    assert [line["at"] for line in side_file.read(path, Disk())] == [1, 2, 3]
    assert side_file.read(path + ".none", Disk()) == []


@given(st.integers(0, 200))
def test_a_torn_last_line_is_passed_over_and_the_next_one_is_whole(cut):
    lines = [consumer(1, "a" * 20), consumer(2, "\udcff\n")]
    octets = b"".join(map(side_file.encode, lines))[:cut]
    whole = side_file.decode(octets)
    assert whole == lines[:len(whole)]
    assert len(whole) >= octets.count(b"\n")
    assert side_file.decode(octets + b"\n" + side_file.encode(lines[0])) == [*whole, lines[0]]


def test_a_line_after_a_torn_one_begins_anew(path):
    side_file.append(path, [consumer(1)], Disk())
    with open(path, "ab") as file:
        file.write(b'{"at": 2, "wh')
    side_file.append(path, [consumer(3)], Disk())
    assert side_file.read(path, Disk()) == [consumer(1), consumer(3)]


def test_what_is_no_object_is_passed_over():
    assert side_file.decode(b'[1]\n5\n\xff\xfe\n{"a": 1}\n\x00\x00\n{"b":') == [{"a": 1}]


def test_values_that_json_has_not_are_written_as_text():
    from decimal import Decimal

    (line,) = side_file.decode(side_file.encode({"a": b"x\xff", "b": Decimal("1.5")}))
    assert line == {"a": "x\udcff", "b": "1.5"}


def test_the_file_is_written_anew_before_it_is_larger_than_a_mebibyte(path):
    disk = Disk()
    side_file.append(path, [settings(1, 1), settings(2, 1), settings(3, 2)], disk)
    for number in range(0, 20_000, 500):
        lines = [consumer(n, "tag" * 20) for n in range(number, number + 500)]
        side_file.append(path, [*lines, removed(number + 1, number + 500, segments=[number])], disk)
        assert os.path.getsize(path) <= side_file.OCTETS_MAX
    lines = side_file.read(path, disk)
    assert [line for line in lines if line["what"] == "settings"] == [settings(1, 1), settings(3, 2)]
    gone = [line for line in lines if line["what"] == "removed"]
    assert sum(line["messages"] for line in gone) == 20_000
    assert [gone[0]["first_seq"], gone[-1]["last_seq"]] == [1, 20_000]
    numbers = [line["number"] for line in lines if line["what"] == "consumer"]
    assert numbers == list(range(numbers[0], 20_000))
    assert len(numbers) > 1000
    assert not os.path.exists(path + ".tmp")


def test_what_was_removed_is_joined_only_where_it_is_one_stretch():
    lines = [removed(1, 5, segments=[1], at=1), removed(6, 9, segments=[2], at=2), removed(10, 12, why="space", at=3),
             removed(15, 20, segments=[4], at=4), removed(10, 14, level=1, at=5)]
    assert side_file.condensed(lines) == [
        {**removed(1, 9, segments=[1, 2], at=2), "octets": 20}, lines[2], lines[3], lines[4]]


def test_too_many_stretches_are_joined_over_their_gaps():
    lines = [removed(10 * n, 10 * n + 3, segments=[n], at=n, level=n % 2) for n in range(1, 8000)]
    short = side_file.condensed(lines)
    assert [(line["level"], line["first_seq"], line["messages"]) for line in short] == [
        (1, 10, 16_000), (0, 20, 15_996)]
    assert short[0]["segments"][-1] == 7999
    assert len(short[0]["segments"]) == side_file.SEGMENTS_MAX


def test_lines_of_another_shape_do_not_stop_it():
    lines = [{"what": "removed"}, {"what": "removed", "level": [], "why": "age"}, {"what": 5}, removed(1, 2)]
    assert side_file.condensed(lines) == [removed(1, 2)]


class Full(Disk):
    def pwrite(self, fd, octets, position):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_told(path):
    with pytest.raises(OSError, match="No space left"):
        side_file.append(path, [consumer(1)], Full())


@pytest.mark.parametrize("room", [True, False])
def test_a_file_that_was_added_to_is_closed(path, room):
    class Counting(Disk if room else Full):
        opened = closed = 0

        def open(self, *args, **options):
            self.opened += 1
            return super().open(*args, **options)

        def close(self, fd):
            self.closed += 1
            super().close(fd)

    disk = Counting()
    with contextlib.suppress(OSError):
        side_file.append(path, [consumer(1)], disk)
    assert disk.opened == disk.closed == 1
