"""What a stream keeps: whole segments go, the oldest first, and readers that this hits are told."""

import pytest
from tests.plane.harness import Bench, ack, nack
from tests.plane.test_stream import Stream, recovered


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
