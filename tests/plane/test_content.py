"""Messages that arrive in parts: what connections hold of them is counted and bounded."""

import struct

import pytest
from tests.plane.harness import content_header, frame, publish, publish_method

BEGUN = 40_000  # octets of a message that its client does not end


def begin(channel, octets=BEGUN, announced=None):
    """A publish up to so many octets of its body."""
    announced = announced or 2 * octets
    return (frame(1, channel, publish_method(b"q")) + frame(2, channel, content_header(announced))
            + frame(3, channel, b"b" * octets))


def end(channel, octets=BEGUN):
    return frame(3, channel, b"e" * octets)


@pytest.fixture
def queue(bench):
    return bench.queue()


def test_octets_of_unfinished_messages_are_counted_until_the_messages_are_whole(bench, queue):
    connection = bench.connection(1, 2)
    connection.feed(begin(1) + begin(2))
    assert bench.core.unfinished >= 2 * BEGUN
    assert connection.held_octets == bench.core.unfinished
    connection.feed(end(1))
    assert BEGUN <= bench.core.unfinished < 2 * BEGUN
    connection.feed(end(2))
    assert bench.core.unfinished == connection.held_octets == 0
    assert queue.ready == 2


@pytest.mark.parametrize("how", ["channel", "connection", "fault"])
def test_octets_of_a_message_that_is_given_up_do_not_count(bench, queue, how):
    connection = bench.connection(1)
    connection.feed(begin(1))
    if how == "channel":
        connection.channels[1].close()
    elif how == "connection":
        connection.detach()
    else:
        connection.feed(end(1, BEGUN + 1))
        assert connection.fault[1] == 501
    assert bench.core.unfinished == 0


def test_a_connection_may_not_begin_more_than_two_of_the_largest_messages(make_bench):
    bench = make_bench(message_octets_max=1 << 20)
    bench.queue()
    connection = bench.connection(*range(1, 60))
    other = bench.connection(1)
    for channel in range(1, 60):
        connection.feed(begin(channel, 120_000))
        if connection.errors:
            break
    _, code, hard, text, class_id, method_id = connection.fault
    assert (code, hard, class_id, method_id) == (506, True, 60, 40)
    assert text.startswith("unfinished messages of this connection have ")
    assert channel > 20
    assert bench.core.unfinished <= 3 << 20
    other.feed(publish(1, b"x"))
    assert bench.queues[b"q"].ready == 1


def test_where_all_have_too_much_a_connection_with_more_than_its_share_is_refused_and_others_are_not(bench, queue):
    bench.core.unfinished_most = 10 * BEGUN
    large, small = bench.connection(*range(1, 20)), bench.connection(1)
    small.feed(begin(1))
    for channel in range(1, 20):
        if not large.errors:
            large.feed(begin(channel))
    assert large.fault[1] == 506
    small.feed(end(1))
    assert (small.errors, queue.ready) == ([], 1)


def test_a_long_frame_that_comes_in_pieces_is_bounded_too(make_bench):
    bench = make_bench(message_octets_max=200_000)
    bench.queue()
    connection = bench.connection(*range(1, 30))
    for channel in range(1, 30):
        if connection.errors:
            break
        connection.feed(frame(1, channel, publish_method(b"q")) + frame(2, channel, content_header(200_000)))
        head = struct.pack(">BHI", 3, channel, 130_000)
        connection.feed(head + b"b" * 65_000)
        connection.feed(b"b" * 65_000 + b"\xce")
    assert connection.fault[1] == 506


def test_a_publisher_that_the_alarm_stops_in_the_midst_of_a_message_is_known_as_stopped(bench, queue):
    """It cannot end its message, because the broker does not read: it gets more time."""
    connection = bench.connection(1, 2)
    connection.feed(begin(2, announced=30 * BEGUN) + frame(3, 2, bytes(BEGUN)) * 14)
    assert (connection.held_octets > 10 * BEGUN, connection.stopped) == (True, False)
    bench.core.blocked = True
    connection.feed(publish(1, b"x"))
    assert connection.stopped
