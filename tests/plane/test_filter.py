"""Filters of a stream's readers: exactly what matches goes out, and others have their turn meanwhile."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plane.harness import Bench, consume, publish
from tests.plane.test_stream import Stream, offset_of

from brokerd import plane


def valued(value):
    """The properties of a message with that filter value; None: without one."""
    if value is None:
        return b"\x10\x00\x02"
    text = b"S" + len(value).to_bytes(4) + value
    item = b"\x15x-stream-filter-value" + (b"l" + bytes(8) if value == b"int" else text)
    return b"\x30\x00" + len(item).to_bytes(4) + item + b"\x02"


def wants(*values):
    return b"".join(len(value).to_bytes(2) + value for value in values)


VALUES = st.sampled_from([None, b"", b"a", b"b", b"ab", b"int", b"c" * 300])


WANTED = st.lists(st.sampled_from([b"", b"a", b"b", b"ab", b"x"]), min_size=1)


@given(values=st.lists(VALUES, max_size=60), wanted=WANTED, unfiltered=st.booleans())
@settings(deadline=None, max_examples=60)
def test_a_filter_lets_through_what_matches_and_nothing_else(tmp_path_factory, values, wanted, unfiltered):
    bench = Bench(tmp_path_factory.mktemp("stream"))
    stream = Stream(bench)
    stream.connection.feed(b"".join(publish(1, b"m" * 1500, properties=valued(value)) for value in values))
    bench.turns()
    plane.Channel(stream.connection, 2)
    stream.connection.channels[2].prefetch = 1000
    stream.gate.begin("offset", 1, filter=wants(*wanted), unfiltered=unfiltered)
    consume(stream.connection.channels[2], stream.queue, b"r2")
    expected = [i for i, value in enumerate(values, 1)
                if (unfiltered if value in (None, b"int") else value in wanted)]
    assert stream.offsets() == expected
    stream.connection.feed(publish(1, b"m", properties=valued(wanted[0])))
    assert stream.offsets() == [len(values) + 1]
    bench.close()


def test_a_filter_that_matches_little_lets_other_readers_and_queues_have_their_turn(make_bench):
    bench = make_bench(segment_octets=1 << 20)
    stream = Stream(bench)
    stream.publish(*[b"m"] * 20_000)
    for number in (2, 3):
        plane.Channel(stream.connection, number)
        stream.connection.channels[number].prefetch = 10
    stream.gate.begin("offset", 1, filter=wants(b"rare"))
    consume(stream.connection.channels[2], stream.queue, b"r2")
    stream.gate.begin("offset", 1)
    consume(stream.connection.channels[3], stream.queue, b"r3")
    bench.core.turn()
    assert stream.gate.readers()[1][1] < 20_000     # The filter has not looked at all messages
    bench.core.turn()
    first = [offset_of(one) for one in stream.connection.delivered()]
    assert first == list(range(1, len(first) + 1)) != []
    assert first + stream.offsets(3) == list(range(1, 11))
    stream.connection.feed(publish(1, b"m", properties=valued(b"rare")))
    assert stream.offsets(2) == [20_001]
