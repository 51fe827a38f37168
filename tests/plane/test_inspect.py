"""Checksums and layouts as they are compiled, against the page that defines them."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plane.harness import publish

from brokerd import plane
from brokerd.store import checksums, reading
from brokerd.store import format as layout


def test_crc32c_is_right_for_octets_of_any_number_and_place():
    octets = random.Random(1).randbytes(3000)
    for size in [*range(1000), 1535, 1536, 1537, 2048, 2999, 3000]:
        for begin in range(min(8, 3000 - size + 1)):
            some = memoryview(octets)[begin:begin + size]
            assert plane.crc32c(some, size) == plane.crc32c_by_table(some, size)
    assert plane.crc32c_by_table(octets) == checksums.crc32c_table(octets)


@given(st.binary(max_size=300), st.integers(0, 0xFFFFFFFF))
def test_both_compiled_crc32c_are_the_plain_one(octets, value):
    assert plane.crc32c(octets, value) == plane.crc32c_by_table(octets, value) == checksums.crc32c_table(octets, value)


@pytest.mark.parametrize(("octets", "crc"), [
    (b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
])
def test_crc32c_has_the_published_values(octets, crc):
    assert plane.crc32c(octets) == plane.crc32c_by_table(octets) == crc


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_a_crc32c_goes_on_from_what_came_before(one, two):
    assert plane.crc32c(two, plane.crc32c(one)) == plane.crc32c(one + two)


@given(st.integers(1, 1 << 40), st.integers(0, 0xFFFFFFFF), st.integers(0, 255), st.integers(0, 0xFFFF))
def test_the_check_of_an_entry_is_as_defined(number, position, kind, count):
    entry, = struct.unpack("<Q", layout.ENTRY.pack(position, kind, 0xA5, count))
    assert plane.check_of_entry(number & 0xFFFFFFFF, entry) == layout.entry_check(number, position, kind, count)


@pytest.mark.parametrize(("name", "fields"), [
    ("record", layout.RECORD_FIELDS), ("segment", layout.SEGMENT_FIELDS), ("acks", layout.ACKS_FIELDS),
    ("entry", layout.ENTRY_FIELDS),
])
def test_the_compiled_layout_is_the_written_one(name, fields):
    octets = {"u1": 1, "<u2": 2, "<u4": 4, "<i8": 8, "<u8": 8}
    written = {field: (at, octets[kind]) for field, kind, at in fields if not field.endswith("_complement")}
    assert plane.layout()[name] == written
    for field, _, at in fields:
        if field.endswith("_complement"):
            assert written[field.removesuffix("_complement")] == (at - 4, 4)


def test_the_dtypes_agree_with_the_compiled_layout():
    for name, dtype in (("record", reading.record_dtype()), ("segment", reading.segment_dtype()),
                        ("acks", reading.acks_dtype()), ("entry", reading.entry_dtype())):
        for field, (at, octets) in plane.layout()[name].items():
            assert (dtype.fields[field][1], dtype.fields[field][0].itemsize) == (at, octets)


@pytest.fixture
def segment(bench):
    """A segment file of three records, and its number."""
    queue, connection = bench.queue(), bench.connection(1)
    connection.feed(publish(1, b"one") + publish(1, b"") + publish(1, b"three" * 100))
    with open(f"{queue.directory}/msgs.0000000001", "rb") as file:
        return file.read(), queue.segments()[0]["end"]


def test_scan_follows_whole_records_to_their_end(segment):
    octets, end = segment
    found = plane.scan_segment(octets, 1, 64)
    assert found[:4] == (end, 3, 1, 3)
    assert found[5] == 503


@pytest.mark.parametrize("cut", [0, 63, 64, 65, 127, 128, 135])
def test_scan_of_a_short_file_finds_nothing(segment, cut):
    assert plane.scan_segment(segment[0][:cut], 1, 64)[1] == 0


def test_scan_stops_before_what_is_cut_off_or_changed_anywhere(segment):
    octets, end = segment
    starts = [64]
    while starts[-1] < end:
        starts.append(starts[-1] + layout.round_up(int.from_bytes(octets[starts[-1] + 4:starts[-1] + 8], "little")))
    for at in range(64, end):
        index = sum(start <= at for start in starts) - 1
        length = int.from_bytes(octets[starts[index] + 4:starts[index] + 8], "little")
        assert plane.scan_segment(octets[:at], 1, 64)[1] in (index, index + (at >= starts[index] + length))
        if at < starts[index] + length:
            changed = octets[:at] + bytes([octets[at] ^ 0x10]) + octets[at + 1:]
            assert plane.scan_segment(changed, 1, 64)[:2] == (starts[index], index)


def test_scan_believes_no_record_of_another_segment(segment):
    assert plane.scan_segment(segment[0], 2, 64)[1] == 0


@given(st.binary(max_size=400), st.integers(0, 500))
def test_scan_of_anything_stays_inside(octets, start):
    end, records, *_ = plane.scan_segment(octets, 1, start)
    assert records == 0
    assert 0 <= end <= max(len(octets), start)
