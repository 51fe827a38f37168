"""Body frames whose octets are used as they come: a frame that is cut on its way is the same as a whole one."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.plane.harness import Bench, content_header, frame, publish, publish_method
from tests.plane.test_kept import bodies
from tests.plane.test_store import no_larger_than

PART = 4096                     # octets of a body frame that the plane uses before the others are there
LONG = bytes(range(256)) * 80   # 20,480 octets


@pytest.fixture
def queue(bench):
    return bench.queue()


@pytest.fixture
def connection(bench, queue):
    return bench.connection(1, 2)


def taken(connection, queue):
    """The bodies in the queue, in order."""
    connection.frames()
    while connection.channels[1].get(queue, True):
        pass
    connection.bench.turns()
    return connection.bodies()


@pytest.mark.parametrize("cut", [1, 7, 8, PART + 6, PART + 7, PART + 8, 12_000, 20_486, 20_487, 20_488])
def test_a_body_frame_may_be_cut_anywhere(connection, queue, cut):
    octets = publish(1, LONG) + publish(1, b"next")
    start = len(octets) - len(publish(1, b"next")) - len(LONG) - 8
    connection.feed(octets[:start + cut])
    connection.feed(octets[start + cut:])
    assert taken(connection, queue) == [LONG, b"next"]
    assert not connection.errors


CHUNKS = st.lists(st.integers(1, 30_000), max_size=12)
BODIES = st.lists(st.tuples(st.integers(0, 40_000), st.sampled_from([131_064, 20_000, 5_000])), min_size=1, max_size=4)


@example([20_000], [(40_000, 20_000)])
@given(CHUNKS, BODIES)
def test_messages_in_any_chunks_are_the_same(tmp_path_factory, chunks, bodies):
    bench = Bench(tmp_path_factory.mktemp("chunks"))
    try:
        queue = bench.queue()
        connection = bench.connection(1, 2)
        sent = [LONG[:1] * size for size, _ in bodies]
        octets = b"".join(publish(1, body, piece=piece) for body, (_, piece) in zip(sent, bodies, strict=True))
        for size in chunks:
            connection.feed(octets[:size])
            octets = octets[size:]
        connection.feed(octets)
        assert taken(connection, queue) == sent
        assert not connection.errors
    finally:
        bench.close()


def test_two_channels_do_not_mix_their_bodies(connection, queue):
    first = publish(1, b"1" * 20_000, piece=10_000)
    second = publish(2, b"2" * 20_000, piece=10_000)
    at = len(first) - 10_008
    connection.feed(first[:at])                 # Its method, its header and half of its body.
    connection.feed(second[:-5000])
    connection.feed(second[-5000:])
    connection.feed(first[at:-1])
    connection.feed(first[-1:])
    assert taken(connection, queue) == [b"2" * 20_000, b"1" * 20_000]


def test_the_octets_of_a_frame_under_way_are_not_put_by(connection, queue):
    """The next chunk of 250,000 octets would not fit behind 200,000 that are put by: a frame may have 131,072."""
    octets = publish(1, b"a" * 131_000) + publish(1, b"b" * 131_000)
    for at in range(0, len(octets), 60_000):
        connection.feed(octets[at:at + 60_000])
    assert taken(connection, queue) == [b"a" * 131_000, b"b" * 131_000]


@pytest.mark.parametrize("end", [0, 0xCD])
def test_a_cut_frame_with_another_end_is_a_frame_error_with_its_first_octets(connection, queue, end):
    octets = publish(1, LONG)
    connection.feed(octets[:-5000])
    connection.feed(octets[-5000:-1] + bytes([end]) + publish(1, b"never heard"))
    channel, code, hard, text, *_ = connection.fault
    assert (channel, code, hard) == (1, 501, True)
    first = ",".join(map(str, range(16)))
    assert text == f"type 3, first 16 octets = <<{first}>>: {{invalid_frame_end_marker,{end}}}"
    assert queue.ready == 0


def test_a_cut_frame_that_is_longer_than_the_header_said_is_refused_when_it_is_whole(connection, queue):
    octets = frame(1, 1, publish_method(b"q")) + frame(2, 1, content_header(5000)) + frame(3, 1, bytes(6000))
    connection.feed(octets[:-100])
    assert not connection.errors
    connection.feed(octets[-100:])
    assert connection.fault[1:4] == (501, True, "content body is larger than its header said")
    assert queue.ready == 0


@pytest.mark.parametrize("rest", [b"", b"\0" * 5000])
def test_a_channel_that_the_broker_closes_within_a_frame_drops_the_rest_of_it(connection, queue, rest):
    octets = publish(1, LONG)
    connection.feed(octets[:-9000])
    connection.channels[1].closing = True
    connection.feed(octets[-9000:] + publish(2, b"other channel"))
    connection.feed(publish(1, b"not heard" + rest))
    assert taken_by(connection, 2, queue) == [b"other channel"]
    assert not connection.errors


def test_a_channel_that_is_gone_within_a_frame_drops_the_rest_of_it(connection, queue):
    octets = publish(1, LONG)
    connection.feed(octets[:-9000])
    connection.channels[1].close()
    connection.feed(octets[-9000:-4000])
    connection.feed(octets[-4000:] + publish(2, b"other channel"))
    assert taken_by(connection, 2, queue) == [b"other channel"]
    assert not connection.errors


def test_a_connection_that_discards_drops_the_rest_of_a_frame_and_hears_the_close_behind_it(connection, queue):
    close = frame(1, 0, struct.pack(">HH", 10, 51))
    octets = publish(1, LONG)
    connection.feed(octets[:-9000])
    connection.discard = True
    connection.feed(octets[-9000:] + close)
    assert connection.methods == [(0, struct.pack(">HH", 10, 51))]
    assert queue.ready == 0


def test_a_message_is_stored_with_the_end_of_its_last_frame_and_not_before(connection, queue):
    octets = publish(1, LONG)
    connection.feed(octets[:-9000])
    connection.feed(octets[-9000:-1])
    assert queue.ready == 0
    connection.feed(octets[-1:])
    assert taken(connection, queue) == [LONG]


def test_a_message_that_came_in_parts_waits_for_room_on_the_disk_with_what_stands_behind_it(connection, queue):
    octets = publish(1, LONG)
    with no_larger_than(1000):
        connection.feed(octets[:-9000])
        assert not connection.stopped
        connection.feed(octets[-9000:] + publish(1, LONG[:12_000])[:-5000])
        assert connection.stopped
        assert queue.ready == 0
        connection.feed(publish(1, LONG[:12_000])[-5000:])
    connection.unblock()
    assert not connection.stopped
    assert taken(connection, queue) == [LONG, LONG[:12_000]]


def test_a_transaction_keeps_a_message_that_came_in_parts(committer):
    queue = committer.bench.queues[b"q"]
    octets = publish(1, LONG)
    committer.feed(octets[:-9000])
    committer.feed(octets[-9000:])
    assert (queue.ready, committer.went_up, committer.errors) == (0, [], [])
    assert bodies(committer.channels[1]) == [LONG]


def taken_by(connection, number, queue):
    connection.frames()
    while connection.channels[number].get(queue, True):
        pass
    connection.bench.turns()
    return connection.bodies()
