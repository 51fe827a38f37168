"""A stream that is looked through without a consumer gives what a reader would get, by the same indexes."""

import random

import pytest
from tests.plane.test_filter import wants
from tests.plane.test_index import SEGMENT, arguments_of, fill, make_indexes, read
from tests.plane.test_stream import Stream

from brokerd import plane
from brokerd.queues.filters import compile_filter

FILTERS = (
    {}, {"x-stream-filter": "eu"}, {"x-stream-filter": ["us", "gone"], "x-stream-match-unfiltered": True},
    {"x-stream-filter": "eu", "x-stream-filter-sql": "offset % 3 = 0"},
    {"x-stream-filter-sql": "size > 5 AND offset < 700"},
)


@pytest.fixture
def stream(make_bench):
    stream = Stream(make_bench(segment_octets=SEGMENT))
    chance = random.Random(4)
    values = [value for _ in range(40) for value in [chance.choice((b"eu", b"us", None))] * chance.randrange(1, 50)]
    fill(stream, *values)
    return stream


def look(stream, offset, *, count=1 << 30, looks=1 << 30, **wanted):
    return plane.look_through(stream.queue, offset, count, looks, **wanted)


@pytest.mark.parametrize("has_indexes", [False, True])
@pytest.mark.parametrize("asked", FILTERS)
def test_it_gives_what_a_reader_gets(stream, asked, has_indexes):
    if has_indexes:
        assert len(make_indexes(stream)) > 2
    wanted = arguments_of(compile_filter(asked)) if asked else {}
    names = {"filter": "values"}
    for offset in (1, 300, stream.queue.next_seq - 1, stream.queue.next_seq, stream.queue.next_seq + 5):
        rows, after, examined = look(stream, offset, **{names.get(name, name): value for name, value in wanted.items()})
        assert [row[0] for row in rows] == read(stream, start=("offset", offset), **wanted)
        assert after == max(offset, stream.queue.next_seq)
        assert examined >= len(rows)
        assert not has_indexes or rows == [row for row in stream.queue.browse(offset, 1 << 30) if row in rows]
    stream.queue.check()


def test_pieces_of_any_size_give_the_whole(stream):
    make_indexes(stream)
    whole = [row[0] for row in look(stream, 1, values=wants(b"eu"))[0]]
    for count, looks in ((1, 1 << 30), (7, 50), (1 << 30, 1), (1 << 30, 100)):
        found, at = [], 1
        while True:
            rows, after, _ = look(stream, at, count=count, looks=looks, values=wants(b"eu"))
            assert len(rows) <= count
            if after == at:
                break
            found += [row[0] for row in rows]
            at = after
        assert (found, at) == (whole, stream.queue.next_seq)


def test_blocks_and_segments_without_the_value_are_not_looked_at(make_bench):
    stream = Stream(make_bench(segment_octets=SEGMENT))
    fill(stream, *[b"eu"] * 700, *[b"rare"] * 3, *[b"eu"] * 700)
    assert look(stream, 1, values=wants(b"rare"))[2] == 1403
    make_indexes(stream)
    rows, after, examined = look(stream, 1, values=wants(b"rare"))
    assert ([row[0] for row in rows], after) == ([701, 702, 703], 1404)
    assert examined < 400               # A block or two, and the last segment, which has no index.
    assert look(stream, 1, values=wants(b"nobody's"))[2] < 300


def test_it_wants_indexes_as_a_reader_does_and_keeps_nothing(stream):
    assert stream.bench.core.take_unindexed() == []
    look(stream, 1, values=wants(b"eu"))
    assert len(stream.bench.core.take_unindexed()) > 2
    assert (stream.gate.readers(), stream.gate.missed, stream.gate.shares()) == ([], 0, [])
    assert len([segment for segment in stream.queue.segments() if segment["mapped"]]) == 1


def test_another_queue_or_a_wrong_program_is_refused(stream):
    with pytest.raises(ValueError, match="it is no stream"):
        plane.look_through(stream.bench.queue(), 1, 1, 1)
    with pytest.raises(ValueError, match="operation at octet 0"):
        look(stream, 1, program=b"\xff")
