"""Indexes of full segments: a place is found, blocks are skipped, and readers get the same as without one."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plane.harness import Bench, ack, consume, publish
from tests.plane.test_filter import valued, wants
from tests.plane.test_stream import Stream, recovered

from brokerd import plane
from brokerd.queues.filters import compile_filter
from brokerd.store.disk import Disk
from brokerd.store.format import INDEX_HEADER, INDEX_ROW, crc32c
from brokerd.upkeep.indexes import write_index

SEGMENT = 1 << 19       # eight blocks
BODY = b"m" * 2000
HOUR = 3_600_000_000_000


def fill(stream, *values, body=BODY):
    """Publish a message for each value, each hundred a millisecond later."""
    for at in range(0, len(values), 100):
        now = stream.time = getattr(stream, "time", HOUR) + 1_000_000
        stream.bench.core.clock = lambda now=now: now
        stream.connection.feed(b"".join(
            publish(1, body, properties=valued(value)) for value in values[at:at + 100]))
        stream.bench.turns()


def make_indexes(stream):
    """Have a reader want an index of each segment, and do what the control plane does each second.  Returns the
    segments that got one."""
    read(stream, 9, filter=wants(b"nobody's"))
    made = []
    for queue, number in stream.bench.core.take_unindexed():
        there = write_index(queue.directory, number, Disk())
        assert stream.bench.core.mark_indexed(queue, number, there)
        made += [number] if there else []
    return made


def read(stream, number=2, start=("offset", 1), **wanted):
    channel = stream.connection.channels.get(number) or plane.Channel(stream.connection, number)
    channel.prefetch = 0
    stream.gate.begin(*start, **wanted)
    consume(channel, stream.queue, b"r%d" % number)
    found = stream.offsets(number)
    channel.cancel(channel.consumers[b"r%d" % number])
    stream.connection.feed(ack(number, 0, multiple=True))
    return found


def arguments_of(asked):
    return {"filter": asked.values, "unfiltered": asked.unfiltered, "program": asked.program}


def paths(stream):
    return sorted(name for name in os.listdir(stream.queue.directory) if name.startswith("index."))


@pytest.fixture
def stream(make_bench):
    return Stream(make_bench(segment_octets=SEGMENT))


def test_a_segment_that_is_full_wants_an_index_once(stream):
    fill(stream, *[b"a"] * 600)
    full = [segment["number"] for segment in stream.queue.segments()[:-1]]
    assert len(full) == 2
    assert make_indexes(stream) == full
    assert paths(stream) == [f"index.{number:010d}" for number in full]
    fill(stream, *[b"a"] * 10)
    assert make_indexes(stream) == []


def test_a_stream_gets_indexes_when_a_reader_has_a_use_for_them(stream):
    fill(stream, *[b"a"] * 600)
    assert read(stream) == list(range(1, 601))
    assert read(stream, start=("offset", 256))[0] == 256
    assert [number for _, number in stream.bench.core.take_unindexed()] == [2]      # 256 is within it.
    read(stream, start=("next", 0), filter=wants(b"x"))
    fill(stream, *[b"a"] * 600)
    assert [number for _, number in stream.bench.core.take_unindexed()] == [3, 4]


def test_an_index_says_where_each_block_begins_and_which_values_it_has(stream):
    fill(stream, *[b"a"] * 100, None, *[b"b"] * 200)
    make_indexes(stream)
    segment = stream.queue.segments()[0]
    octets = Path(f"{stream.queue.directory}/index.{segment['number']:010d}").read_bytes()
    magic, version, number, base_seq, _, end, records, rows, block, flags, crc = INDEX_HEADER.unpack_from(octets)
    assert (magic.to_bytes(4, "little"), version, number, base_seq) == (b"BIDX", 1, segment["number"], 1)
    assert (end, records, block, flags) == (segment["end"], segment["records"], 65536, 1)
    assert len(octets) == 4160 + 64 * rows
    assert crc == crc32c(octets[64:], crc32c(octets[:52]))
    assert rows == 8
    found = [INDEX_ROW.unpack_from(octets, 4160 + 64 * row) for row in range(rows)]
    record = (segment["end"] - 64) // segment["records"]    # All but the one without a value have one size.
    for seq, ts, position, flags, bits in found:
        assert abs(position - 64 - (seq - 1) * record) < record
        assert flags == (seq <= 101 < seq + 65536 // record)
        h = crc32c(b"a") * 0x9E3779B97F4A7C15 % (1 << 64)
        assert all(bits[n // 8] >> n % 8 & 1 for n in (h >> 40 & 255, h >> 48 & 255, h >> 56)) == (seq <= 100)
        assert ts // HOUR == 1


def test_what_an_index_rules_out_is_not_even_mapped(stream):
    fill(stream, *[b"a"] * 1000, b"rare", *[b"a"] * 500)
    make_indexes(stream)
    stream.queue.rest()
    assert read(stream, filter=wants(b"rare")) == [1001]
    before = [segment for segment in stream.queue.segments() if segment["base_seq"] + segment["records"] <= 1000]
    assert len(before) > 2
    stream.gate.begin("offset", 1, filter=wants(b"rare"))
    channel = stream.connection.channels[2]
    consume(channel, stream.queue, b"r")
    assert stream.offsets() == [1001]
    assert not any(segment["mapped"] for segment in stream.queue.segments()[1:len(before)])
    assert stream.gate.readers()[0][1:3] == (1502, 1001)


@given(runs=st.lists(st.tuples(st.sampled_from([None, b"a", b"b", b"c", b"int"]), st.integers(1, 60)), max_size=30),
       wanted=st.lists(st.sampled_from([b"a", b"b", b"x"]), min_size=1), unfiltered=st.booleans(),
       indexed=st.booleans(), start=st.integers(1, 400))
@settings(deadline=None, max_examples=40)
def test_a_filter_lets_the_same_through_with_an_index_and_without(tmp_path_factory, runs, wanted, unfiltered, indexed,
                                                                  start):
    bench = Bench(tmp_path_factory.mktemp("stream"), segment_octets=SEGMENT)
    stream = Stream(bench)
    values = [value for value, n in runs for _ in range(n)]
    fill(stream, *values)
    if indexed:
        make_indexes(stream)
    expected = [offset for offset, value in enumerate(values, 1) if offset >= start
                and (unfiltered if value in (None, b"int") else value in wanted)]
    assert read(stream, start=("offset", start), filter=wants(*wanted), unfiltered=unfiltered) == expected
    asked = compile_filter({"x-stream-filter": [*map(bytes.decode, wanted)], "x-stream-match-unfiltered": unfiltered,
                            "x-stream-filter-sql": "offset % 2 = 0 OR size < 5"})
    odd = [offset for offset in expected if offset % 2 == 0]
    assert read(stream, start=("offset", start), **arguments_of(asked)) == odd
    share = {"share": b"s", "names": (b"k",)}
    assert read(stream, start=("offset", start), filter=wants(*wanted), unfiltered=unfiltered, **share) == expected
    bench.close()


def test_a_filter_that_asks_for_one_thing_or_another_skips_nothing(stream):
    fill(stream, *[b"a"] * 700)
    make_indexes(stream)
    asked = compile_filter({"x-stream-filter": ["x", {"none": None}], "x-filter-match-type": "any",
                            "x-stream-filter-sql": "TRUE"})
    assert read(stream, **arguments_of(asked)) == []
    asked = compile_filter({"x-stream-filter": ["x", {"x-stream-filter-value": "a"}], "x-filter-match-type": "any"})
    assert read(stream, **arguments_of(asked)) == list(range(1, 701))


def test_an_offset_or_a_time_is_found_in_each_block(stream):
    values = [b"a"] * 700
    fill(stream, *values)
    rows = stream.queue.browse(1, 1000)
    for indexed in (False, True):
        for offset in (1, 2, 30, 31, 32, 33, 200, 251, 252, 253, 500, 699, 700):
            assert read(stream, start=("offset", offset)) == list(range(offset, 701)), (indexed, offset)
            assert read(stream, start=("time", rows[offset - 1][1])) == list(range(offset, 701))
        assert make_indexes(stream) == ([] if indexed else [1, 2])


def test_a_long_way_through_a_segment_gives_others_their_turn(make_bench):
    bench = make_bench(segment_octets=1 << 23)
    stream = Stream(bench)
    fill(stream, *[b""] * 70_000, body=b"")
    stream.read(2, ("offset", 69_000), prefetch=10)
    bench.core.turn()
    assert [row[1] for row in stream.gate.readers()] == [69_000]
    assert stream.connection.delivered() == []
    assert stream.offsets() == list(range(69_000, 69_010))


@pytest.mark.parametrize("fault", ["missing", "torn", "flipped", "foreign", "longer", "lying"])
def test_an_index_that_is_not_whole_is_made_again_and_hides_nothing(make_bench, stream, fault):
    fill(stream, *[b"a", b"b"] * 500)
    make_indexes(stream)
    first, second, *_ = (f"{stream.queue.directory}/{name}" for name in paths(stream))
    octets = Path(first).read_bytes()
    if fault == "missing":
        os.unlink(first)
    elif fault == "foreign":
        shutil.copy(second, first)
    elif fault == "lying":      # The checksum is right, and a row leads into the middle of a record.
        at = 4160 + 64 * 4
        seq, ts, position, flags, bits = INDEX_ROW.unpack_from(octets, at)
        row = INDEX_ROW.pack(seq, ts, position + 8, flags, bits)
        octets = octets[:at] + row + octets[at + 64:]
        octets = octets[:52] + crc32c(octets[64:], crc32c(octets[:52])).to_bytes(4, "little") + octets[56:]
    octets = {"torn": octets[:4200], "flipped": octets[:100] + b"\xff" + octets[101:], "longer": octets + b"\0"}.get(
        fault, octets)
    if fault not in ("missing", "foreign"):
        Path(first).write_bytes(octets)
    again = recovered(lambda: Bench(stream.bench.directory, segment_octets=SEGMENT))
    for _ in range(2):
        assert read(again, filter=wants(b"b")) == list(range(2, 1001, 2))
        assert read(again, start=("offset", 150)) == list(range(150, 1001))
        assert make_indexes(again) == ([1] if fault != "lying" and _ == 0 else [])
    assert again.bench.damages == []


def test_a_damaged_segment_has_no_index_and_is_asked_for_it_once(stream):
    fill(stream, *[b"a"] * 600)
    path = f"{stream.queue.directory}/msgs.0000000001"
    with open(path, "r+b") as file:
        file.seek(100_000)
        file.write(bytes(8192))
    again = recovered(lambda: Bench(stream.bench.directory, segment_octets=SEGMENT))
    found = read(again, filter=wants(b"a"))
    assert found[-1] == 600
    assert 590 <= len(found) < 600
    assert make_indexes(again) == [2]
    assert read(again, filter=wants(b"a")) == found
    assert again.bench.core.take_unindexed() == []


def test_retention_takes_the_index_and_one_that_comes_too_late_belongs_to_no_segment(stream):
    fill(stream, *[b"a"] * 600)
    make_indexes(stream)
    stream.gate.set_limits(max_length=0)
    stream.gate.retain(10)
    assert f"{stream.queue.directory}/index.0000000001" in stream.bench.core.take_garbage()
    assert not stream.bench.core.mark_indexed(stream.queue, 1, True)


def test_a_start_removes_an_index_without_its_segment(stream):
    fill(stream, *[b"a"] * 600)
    make_indexes(stream)
    os.unlink(f"{stream.queue.directory}/msgs.0000000001")
    again = recovered(lambda: Bench(stream.bench.directory, segment_octets=SEGMENT))
    assert paths(again) == ["index.0000000002"]


def test_an_open_segment_and_another_file_have_no_index(stream, tmp_path):
    fill(stream, b"a")
    assert not write_index(stream.queue.directory, 1, Disk())
    path = tmp_path / "other"
    path.write_bytes(b"x" * 200)
    with open(path, "rb") as file:
        assert plane.index_segment(file.fileno(), 1) is None


def test_long_meta_and_large_messages_are_indexed(stream):
    for _ in range(4):
        stream.connection.feed(publish(1, b"m" * 300_000, properties=valued(b"v" * 70_000)))
        fill(stream, b"a", None)
    fill(stream, *[b"a"] * 300)
    assert make_indexes(stream) != []
    assert read(stream, filter=wants(b"x")) == []
    assert read(stream, filter=wants(b"a")) == [2, 5, 8, 11, *range(13, 313)]


NUMBER = st.one_of(st.integers(0, 700), st.sampled_from([0, 64, 65536, 1 << 31, (1 << 32) - 1, (1 << 32) - 8]))


@given(changes=st.lists(st.tuples(st.integers(0, 7), st.sampled_from([0, 8, 16, 20, 32, 60]), NUMBER), max_size=4),
       head=st.lists(st.tuples(st.sampled_from([0, 4, 8, 16, 32, 36, 40, 44, 48]), NUMBER), max_size=1),
       size=st.sampled_from([None, None, None, 4160, 4224, 12480]))
@settings(deadline=None, max_examples=60)
def test_no_index_however_wrong_reaches_beyond_its_segment(tmp_path_factory, changes, head, size):
    bench = Bench(tmp_path_factory.mktemp("stream"), segment_octets=SEGMENT)
    stream = Stream(bench)
    fill(stream, *[b"a", b"a", b"b"] * 100)
    make_indexes(stream)
    path = Path(f"{stream.queue.directory}/index.0000000001")
    octets = bytearray(path.read_bytes())
    for row, at, number in changes:
        octets[4160 + 64 * row + at:4160 + 64 * row + at + 4] = number.to_bytes(4, "little")
    for at, number in head:
        octets[at:at + 4] = number.to_bytes(4, "little")
    octets = octets if size is None else octets.ljust(size, b"\0")[:size]
    octets[52:56] = crc32c(bytes(octets[64:]), crc32c(bytes(octets[:52]))).to_bytes(4, "little")
    path.write_bytes(octets)
    again = recovered(lambda: Bench(stream.bench.directory, segment_octets=SEGMENT))
    assert set(read(again, filter=wants(b"b"))) <= set(range(3, 301, 3))
    for offset in (1, 40, 150, 250, 300):
        assert read(again, start=("offset", offset)) == list(range(offset, 301))
    found = read(again, start=("time", HOUR + 2_000_000))
    assert found == list(range(found[0], 301))
    assert again.bench.damages == []
    bench.close()
    again.bench.close()
