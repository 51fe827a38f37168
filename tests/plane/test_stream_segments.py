"""Segments of a stream, found by number, offset and time, among many that come and go."""

from tests.plane.harness import ack, consume, nack
from tests.plane.test_stream import FIRST, Stream, recovered

from brokerd import plane

BODY = b"m" * 900           # Four records fill a segment.


def test_what_is_given_back_is_found_in_its_segment_while_segments_come_and_go(make_bench):
    stream = Stream(make_bench(segment_octets=4096))
    stream.publish(*[BODY] * 200)
    stream.read(2, prefetch=100)
    assert stream.offsets() == [*range(1, 101)]
    stream.connection.feed(nack(2, 100, multiple=True))
    assert stream.got() == [(offset, BODY, True) for offset in range(1, 101)]
    stream.gate.set_limits(max_length=150)
    while stream.gate.retain(99):
        pass
    first = stream.gate.first_offset
    assert first > 40
    stream.publish(*[BODY] * 20)                        # Retention goes on meanwhile.
    stream.connection.feed(nack(2, 200, multiple=True))
    first = stream.gate.first_offset
    again = stream.offsets()
    assert again[:101 - first] == [*range(first, 101)]
    assert len(again) == 100                            # What has gone makes room for what is newer.
    assert stream.gate.missed == first - 1


def test_a_place_is_found_among_segments_after_a_purge_and_a_restart(make_bench):
    stream = Stream(make_bench(segment_octets=4096))
    stream.publish(*[BODY] * 50)
    stream.read(2, ("offset", 33))
    assert stream.offsets() == [*range(33, 51)]
    stream.purge()
    stream.publish(*[BODY] * 50)
    for number, offset in ((3, 1), (4, 77), (5, 100)):
        stream.read(number, ("offset", offset))
        stream.connection.feed(ack(2, 0, multiple=True))
    stream.bench.turns()
    came = stream.connection.delivered()
    assert [sum(one.channel == number for one in came) for number in (2, 3, 4, 5)] == [50, 50, 24, 1]
    stream = recovered(make_bench)
    stream.read(2, ("offset", 77))
    assert stream.offsets() == [*range(77, 101)]
    stream.read(3, FIRST)
    assert stream.offsets(3) == [*range(51, 101)]


def test_readers_with_a_kept_offset_are_told_and_one_of_each_share(make_bench):
    stream = Stream(make_bench())
    slots = memoryview(bytearray(2048))
    assert stream.gate.kept_readers() == []
    stream.read(2)
    for number, more in ((3, {}), (4, {"share": b"s"}), (5, {"share": b"s"})):
        plane.Channel(stream.connection, number)
        stream.connection.channels[number].prefetch = 10
        stream.gate.begin("next", 0, slot=slots[512 * number - 1536:], turn=1, **more)
        consume(stream.connection.channels[number], stream.queue, b"r%d" % number)
    assert [one.tag for one in stream.gate.kept_readers()] == [b"r3", b"r4"]
    for number, left in ((4, [b"r3", b"r5"]), (3, [b"r5"]), (5, [])):
        channel = stream.connection.channels[number]
        channel.cancel(channel.consumers[b"r%d" % number])
        assert [one.tag for one in stream.gate.kept_readers()] == left
