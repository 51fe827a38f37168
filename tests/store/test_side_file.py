"""The side file of an order journal: lines in, lines out, torn ones passed over, never large."""

import contextlib
import errno
import json
import os
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.store import reading, side_file
from brokerd.store.disk import Disk


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "order.jsonl")


def removed(first, last, level=0, why="age", segments=(1,), at=1):
    return {"at": at, "what": "removed", "level": level, "segments": list(segments), "first_seq": first,
            "last_seq": last, "messages": last - first + 1, "octets": 10, "why": why}


def consumer(number, tag="t"):
    return {"at": number, "what": "consumer", "number": number, "tag": tag}


def condensed(lines):
    return side_file.decode(side_file.condensed(b"".join(map(side_file.encode, lines)))[0])


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


def test_of_lines_that_could_not_be_written_the_last_word_stays():
    lost = [{"at": at, "what": "lost"} for at in (2, 4)]
    assert condensed([settings(1, None), lost[0], consumer(3), lost[1], consumer(5)]) == [
        settings(1, None), lost[1], consumer(3), consumer(5)]


@given(st.text(), st.text(), st.text(), st.booleans())
def test_the_lines_of_consumers_are_those_that_json_would_make(tag, peer, user, no_ack):
    line = {"at": 1_700_000_000_000_000_000, "what": "consumer", "number": 7, "tag": tag, "connection": 8, "channel": 9,
            "peer": peer, "user": user, "prefetch": 10, "no_ack": no_ack, "priority": -11}
    rest = {key: value for key, value in line.items() if key not in ("at", "what")}
    assert side_file.encode_consumer(line["at"], **rest) == side_file.encode(line)
    assert side_file.encode_consumer_gone(5, 6) == side_file.encode({"at": 5, "what": "consumer_gone", "number": 6})


def numbered(lines, first=1):
    return side_file.numbered(b"".join(map(side_file.encode, lines)), first)


def faults(octets):
    return [each.fault for each in reading.read_side_lines(octets) if each.fault]


CONSUMERS = [consumer(number, f"tag {number}") for number in range(1, 7)]


def test_each_line_has_its_number_and_a_checksum_that_anybody_can_make(path):
    side_file.append(path, CONSUMERS[:2], Disk())
    side_file.append(path, CONSUMERS[2:], Disk())
    with open(path, "rb") as file:
        for number, octets in enumerate(file.read().splitlines(), 1):
            line = json.loads(octets)
            assert list(line)[-2:] == ["line", "crc"]
            assert (line["line"], line["crc"]) == (number, zlib.crc32(octets.rpartition(b',"crc":')[0]))
    assert side_file.read(path, Disk()) == CONSUMERS


@given(st.data())
def test_any_octet_that_is_changed_makes_a_line_damaged(data):
    octets = numbered(CONSUMERS)
    at = data.draw(st.integers(0, len(octets) - 2))
    new = data.draw(st.integers(0, 255).filter(lambda each: each != octets[at]))
    changed = octets[:at] + bytes([new]) + octets[at + 1:]
    assert faults(changed)
    kept = side_file.decode(changed)
    assert [line for line in kept if line not in CONSUMERS] == []


@pytest.mark.parametrize(("order", "fault"), [
    ((1, 3, 4), "line 2 has the number 3: 1 before it is missing"),
    ((2, 3), "line 1 has the number 2: 1 before it is missing"),
    ((1, 2, 2, 3), "line 3 has the number 2, which stood before it: it is not in its place"),
    ((1, 6), "line 2 has the number 6: 4 before it are missing"),
])
def test_a_line_left_out_or_doubled_shows(order, fault):
    lines = numbered(CONSUMERS).splitlines(keepends=True)
    assert faults(b"".join(lines[number - 1] for number in order)) == [fault]
    assert faults(b"".join(lines)) == []


def test_lines_that_change_places_show():
    lines = numbered(CONSUMERS).splitlines(keepends=True)
    lines[2], lines[3] = lines[3], lines[2]
    assert len(faults(b"".join(lines))) == 3


def test_lines_of_an_older_broker_come_before_all_others(path):
    old = b"".join(map(side_file.encode, CONSUMERS[:3]))
    with open(path, "wb") as file:
        file.write(old)
    side_file.append(path, CONSUMERS[3:], Disk())
    with open(path, "rb") as file:
        octets = file.read()
    assert octets == old + numbered(CONSUMERS[3:])
    assert (faults(octets), side_file.decode(octets)) == ([], CONSUMERS)
    assert faults(octets + old[:old.index(b"\n") + 1]) == ["line 7 has no checksum, though lines before it have"]


@pytest.mark.parametrize("torn", [b'{"at":2,"wh', b"\0" * 5000, numbered([consumer(9)], 3)[:-3]])
def test_what_a_crash_has_torn_is_cut_off_before_the_next_line(path, torn):
    side_file.append(path, CONSUMERS[:2], Disk())
    with open(path, "ab") as file:
        file.write(torn)
    with open(path, "rb") as file:
        assert faults(file.read()) == []
    side_file.append(path, CONSUMERS[2:], Disk())
    with open(path, "rb") as file:
        assert file.read() == numbered(CONSUMERS)


def test_a_line_that_lacks_only_its_end_of_line_stays(path):
    with open(path, "wb") as file:
        file.write(numbered(CONSUMERS[:2])[:-1])
    side_file.append(path, CONSUMERS[2:], Disk())
    with open(path, "rb") as file:
        assert file.read() == numbered(CONSUMERS)


def test_the_next_line_after_a_damaged_one_does_not_hide_it(path):
    octets = numbered(CONSUMERS[:3])
    with open(path, "wb") as file:
        file.write(octets.replace(b"tag 3", b"tag 9"))
    side_file.append(path, CONSUMERS[3:], Disk())
    with open(path, "rb") as file:
        assert faults(file.read()) == ["line 3 is damaged: its checksum is wrong"]
    assert side_file.read(path, Disk()) == CONSUMERS[:2] + CONSUMERS[3:]


def test_writes_in_one_life_need_not_read_the_file_again(path):
    read = []

    class Noting(Disk):
        def pread(self, *args):
            read.append(args)
            return super().pread(*args)

    disk, end = Noting(), None
    fd = disk.open(path, os.O_RDWR | os.O_CREAT)
    for line in CONSUMERS:
        end = side_file.write(fd, path, side_file.encode(line), disk, end)
    assert (len(read), end) == (1, (os.path.getsize(path), 6))
    disk.truncate(fd, end.octets - 5)     # as after a write that failed
    side_file.write(fd, path, side_file.encode(CONSUMERS[5]), disk, end)
    disk.close(fd)
    with open(path, "rb") as file:
        assert file.read() == numbered(CONSUMERS)


def test_a_file_written_anew_keeps_what_was_wrong_with_its_lines():
    lines = numbered([settings(1, 1), *CONSUMERS, settings(8, 2)]).splitlines(keepends=True)
    assert faults(side_file.condensed(b"".join(lines))[0]) == []
    octets, number = side_file.condensed(b"".join(lines))
    assert side_file.decode(octets) == [settings(1, 1), settings(8, 2), *CONSUMERS]
    assert number == len(lines)
    stripped = lines[3][:lines[3].index(b',"line"')] + b"}\n"
    for wrong in ([lines[3].replace(b"tag", b"gat")], [lines[3][:-9] + b"\n"], [], [lines[3]] * 2, [stripped],
                  [b"garbage\n"]):
        octets, number = side_file.condensed(b"".join([*lines[:3], *wrong, *lines[4:]]))
        assert faults(octets), wrong
        assert len(faults(octets + numbered(CONSUMERS, number + 1))) == len(faults(octets))
    lines[0] = lines[0].replace(b"1", b"2", 1)
    assert faults(side_file.condensed(b"".join(lines))[0])


def test_what_is_taken_out_leaves_the_rest_as_right_or_wrong_as_it_was():
    octets = numbered([settings(1, 1), *CONSUMERS])
    assert side_file.without(octets, lambda line: False) == octets
    rest = side_file.without(octets, lambda line: line.get("number") in (2, 4))
    assert side_file.decode(rest) == [settings(1, 1), *[CONSUMERS[index] for index in (0, 2, 4, 5)]]
    assert faults(rest) == []
    lines = octets.splitlines(keepends=True)
    for wrong in ([*lines[:4], *lines[5:]], [*lines[:4], lines[4].replace(b"tag", b"gat"), *lines[5:]]):
        assert faults(side_file.without(b"".join(wrong), lambda line: line.get("number") == 2))


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
    assert condensed(lines) == [
        {**removed(1, 9, segments=[1, 2], at=2), "octets": 20}, lines[2], lines[3], lines[4]]


def test_too_many_stretches_are_joined_over_their_gaps():
    lines = [removed(10 * n, 10 * n + 3, segments=[n], at=n, level=n % 2) for n in range(1, 8000)]
    short = condensed(lines)
    assert [(line["level"], line["first_seq"], line["messages"]) for line in short] == [
        (1, 10, 16_000), (0, 20, 15_996)]
    assert short[0]["segments"][-1] == 7999
    assert len(short[0]["segments"]) == side_file.SEGMENTS_MAX


def test_lines_of_another_shape_do_not_stop_it():
    lines = [{"what": "removed"}, {"what": "removed", "level": [], "why": "age"}, {"what": 5}, removed(1, 2)]
    assert condensed(lines) == [removed(1, 2)]


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


def test_a_file_of_terabytes_is_written_anew_from_its_end(tmp_path):
    path = str(tmp_path / "order.jsonl")
    with open(path, "wb") as file:
        file.truncate(4 << 40)
    side_file.append(path, [{"at": 1, "what": "settings"}], Disk())
    assert side_file.read(path, Disk()) == [{"at": 1, "what": "settings"}]
