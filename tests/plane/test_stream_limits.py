"""What a stream keeps: whole segments go, the oldest first, and readers that this hits are told."""

import pytest
from tests.plane.harness import Bench, ack, nack
from tests.plane.test_stream import Stream, offset_of, recovered


@pytest.mark.parametrize("limits", [{"max_length": 40}, {"max_octets": 200_000}, {"age_ns": 50_000_000}])
def test_retention_takes_whole_segments_and_tells_the_readers_that_it_hits(make_bench, limits):
    bench = make_bench()
    stream = Stream(bench)
    bench.core.clock = lambda: 1_000_000_000
    stream.publish(*[b"m" * 2000] * 10)
    stream.read(2, prefetch=4)
    assert stream.offsets() == [1, 2, 3, 4]
    stream.connection.feed(nack(2, 2) + ack(2, 3))      # 1 and 4 are out, 2 is to come again, 5 is next.
    stream.connection.channels[2].flow = False
    stream.connection.frames()
    stream.gate.set_limits(**limits)
    for ms in range(1001, 1291):
        bench.core.clock = lambda ms=ms: ms * 1_000_000
        stream.publish(b"m" * 2000)
        stream.connection.frames()
    first = stream.gate.first_offset
    assert 180 < first <= 300
    assert stream.queue.ready == 300 - first + 1 == 300 - stream.gate.removed
    assert first - 1 == stream.gate.removed
    assert len(stream.queue.segments()) == 300 // 31 + 1 - stream.gate.removed_segments
    stream.connection.channels[2].flow = True
    came = stream.offsets()
    stream.connection.feed(ack(2, 0, multiple=True))
    came += stream.offsets()
    came = [offset for offset in came if offset > 5]
    assert came[0] == first
    assert came == list(range(first, first + len(came)))
    (_, _, _, missed), = stream.gate.readers()
    assert missed in (first - 5, first - 6, first - 4)      # What was given back may have gone out before it was gone.
    stream.gate.set_limits(max_length=0)
    stream.gate.retain(1000)
    assert len(stream.queue.segments()) == 1                # The last one stays.


def test_a_purge_takes_so_many_segments_at_a_time_and_leaves_what_comes_meanwhile(make_bench):
    stream = Stream(make_bench(segment_octets=4096))
    stream.publish(*[b"m" * 2000] * 9)
    stream.read(2, prefetch=2)
    assert stream.offsets() == [1, 2]
    below, came, pieces, whole = stream.queue.next_seq, 0, [], False
    while not whole:
        removed, whole = stream.gate.purge(below, 2)
        pieces.append(removed)
        stream.publish(b"new")
        came += 1
        stream.queue.check()
    assert pieces == [2, 2, 2, 2, 1]        # A segment has room for one of them.
    assert (stream.queue.ready, stream.gate.first_offset) == (came, 10)
    assert stream.gate.purge(below, 2) == (0, True)
    stream.connection.feed(ack(2, 0, multiple=True))
    assert stream.offsets() == [10, 11]
    assert stream.purge() == came


def test_what_was_given_back_and_is_gone_is_missed_in_pieces_between_which_other_readers_have_their_turn(make_bench):
    stream = Stream(make_bench(segment_octets=1 << 16, deliver_octets_per_turn=1 << 16))
    for _ in range(5):
        stream.publish(*[b"m" * 40] * 2000)
    for number in (2, 3):
        stream.read(number, prefetch=10_000 if number == 2 else 1)
    for _ in range(50):
        stream.bench.turns()
        stream.connection.frames()
    stream.connection.channels[2].flow = False
    stream.connection.feed(nack(2, 10_000, multiple=True) + ack(3, 1))
    stream.gate.set_limits(max_length=0)
    assert stream.gate.retain(1000)
    first = stream.gate.first_offset
    before = stream.gate.missed
    stream.connection.channels[2].flow = True
    stream.bench.core.turn()
    assert 0 < stream.gate.missed - before <= 4096
    stream.bench.turns()
    came = stream.connection.delivered()
    assert [offset_of(one) for one in came if one.channel == 2] == list(range(first, 10_001))
    assert stream.gate.missed - before == first - 1


def test_a_stream_has_segments_of_the_size_that_it_asks_for(make_bench):
    stream = Stream(make_bench())
    sizes = []
    for octets, expected in ((5000, 8192), (1 << 17, 1 << 17), (0, 1 << 16)):
        stream.gate.set_limits(segment_octets=octets)
        before = len(stream.queue.segments())
        while len(stream.queue.segments()) < before + 3:
            stream.publish(b"m" * 1000)
        sizes += [segment["capacity"] for segment in stream.queue.segments()[-2:]]
        assert sizes[-2:] == [expected] * 2
    stream.publish(b"m" * 100_000)
    assert stream.queue.segments()[-1]["capacity"] > 100_000
    stream.read(2, prefetch=0)
    last = stream.queue.next_seq - 1
    assert stream.offsets() == list(range(1, last + 1))
    again = recovered(lambda: Bench(stream.bench.directory))
    again.read(2, prefetch=0)
    assert again.offsets() == list(range(1, last + 1))


def test_small_segments_that_retention_takes_are_written_again(make_bench):
    stream = Stream(make_bench())
    stream.gate.set_limits(segment_octets=4096, max_octets=8192)
    stream.publish(*[b"m" * 1000] * 40)
    assert {segment["capacity"] for segment in stream.queue.segments()} == {4096}
    assert stream.gate.removed_segments > 5
    assert stream.queue.segments()[-1]["number"] > 10
    stream.read(2)
    first = stream.gate.first_offset
    assert stream.offsets() == list(range(first, 41))
    stream.gate.set_limits()       # The spare has another size than what follows.
    stream.publish(*[b"m" * 1000] * 80)
    assert stream.queue.segments()[-1]["capacity"] == 1 << 16
