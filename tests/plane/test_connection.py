"""Frames cut out of octets: wherever they are cut on their way, and what is no frame."""

import socket
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plane.harness import (
    HEADER,
    Bench,
    ack,
    consume,
    content_header,
    frame,
    publish,
    publish_method,
    reject,
)

from brokerd import plane

CONVERSATION = (
    publish(1, b"first") + publish(1, b"") + frame(8, 0, b"") + publish(1, b"x" * 300, piece=100)
    + frame(1, 1, struct.pack(">HH", 20, 20) + b"\1") + publish(1, b"last", persistent=True)
)
BODIES = [b"first", b"", b"x" * 300, b"last"]


def stored(queue, connection):
    """What is in the queue, read by basic.get."""
    channel = next(iter(connection.channels.values()))
    connection.frames()
    while channel.get(queue, True):
        pass
    connection.bench_core.turn()
    return connection.bodies()


@pytest.fixture
def queue(bench):
    return bench.queue()


@pytest.fixture
def connection(bench, queue):
    connection = bench.connection(1)
    connection.bench_core = bench.core
    return connection


def test_a_conversation_fed_whole_is_worked_whole(queue, connection):
    connection.feed(CONVERSATION)
    assert stored(queue, connection) == BODIES
    assert connection.methods == [(1, struct.pack(">HH", 20, 20) + b"\1")]
    assert not connection.errors


def test_a_conversation_fed_octet_by_octet_is_the_same(queue, connection):
    for at in range(len(CONVERSATION)):
        connection.feed(CONVERSATION[at:at + 1])
    assert stored(queue, connection) == BODIES
    assert len(connection.methods) == 1
    assert not connection.errors


def test_a_conversation_cut_in_two_anywhere_is_the_same(queue, connection):
    for at in range(len(CONVERSATION) + 1):
        connection.feed(CONVERSATION[:at])
        connection.feed(CONVERSATION[at:])
        assert stored(queue, connection) == BODIES
    assert not connection.errors


@settings(deadline=None)
@given(st.lists(st.integers(0, len(CONVERSATION)), max_size=12))
def test_a_conversation_cut_in_many_pieces_is_the_same(tmp_path_factory, cuts):
    bench = Bench(tmp_path_factory.mktemp("cuts"))
    queue, connection = bench.queue(), bench.connection(1, greeted=False)
    connection.bench_core = bench.core
    octets, cuts = HEADER + CONVERSATION, sorted(cuts)
    for begin, end in zip([0, *cuts], [*cuts, len(octets)], strict=True):
        connection.feed(octets[begin:end])
    assert stored(queue, connection) == BODIES
    assert connection.headers == [HEADER]
    bench.close()


def test_an_unfinished_tail_is_kept_until_the_rest_comes(queue, connection):
    tail = publish(1, b"tail")
    connection.feed(publish(1, b"whole") + tail[:-1])
    assert queue.ready == 1
    connection.feed(tail[-1:])
    assert queue.ready == 2


def test_octets_are_counted_as_they_come_and_go(queue, connection):
    before = connection.received_octets
    connection.feed(CONVERSATION)
    assert connection.received_octets - before == len(CONVERSATION)
    connection.write(frame(8, 0, b""))
    assert connection.sent_octets == 0
    connection.bench_core.turn()
    assert connection.sent_octets == len(connection.out.octets) == 8


def test_a_chunk_larger_than_the_input_buffer_is_worked_whole(queue, connection):
    connection.feed(publish(1, b"y" * 1000) * 1000)
    assert queue.ready == 1000


def test_the_shared_buffer_is_where_a_chunk_is_read_from(queue, connection):
    view = connection.get_buffer(-1)
    octets = publish(1, b"by buffer")
    view[:len(octets)] = octets
    connection.buffer_updated(len(octets))
    assert stored(queue, connection) == [b"by buffer"]


def test_a_stash_survives_the_chunks_of_other_connections(bench, queue, connection):
    other = bench.connection(1)
    mine, theirs = publish(1, b"m" * 500), publish(1, b"t" * 5000)
    connection.feed(mine[:400])
    other.feed(theirs[:4000])
    connection.feed(mine[400:])
    other.feed(theirs[4000:])
    assert stored(queue, connection) == [b"m" * 500, b"t" * 5000]


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_a_payload_may_be_as_large_as_frame_max_and_no_larger(bench, queue, over):
    connection = bench.connection(1, frame_max=4096)
    connection.feed(frame(1, 1, publish_method(b"q")) + frame(2, 1, content_header(4096 + over)))
    connection.feed(frame(3, 1, b"z" * (4096 + over)))
    if over == 1:
        assert connection.fault == (1, 501, True, "type 3, all octets = <<>>: {frame_too_large,4097,4088}", 0, 0)
        assert queue.ready == 0
    else:
        assert not connection.errors
        assert queue.ready == 1


def test_a_frame_too_large_is_known_by_its_first_octets_and_reported_once(connection):
    connection.feed(struct.pack(">BHI", 1, 0, 200_000) + b"?")
    assert connection.fault == (0, 501, True, "type 1, all octets = <<>>: {frame_too_large,200000,131064}", 0, 0)
    connection.feed(b"x" * 300_000)
    assert len(connection.errors) == 1


def test_a_frame_too_large_behind_a_good_one_is_reported_once(queue, connection):
    connection.feed(publish(1, b"good") + struct.pack(">BHI", 3, 1, 0xFFFFFFFF) + bytes(50))
    assert connection.fault[1] == 501
    assert queue.ready == 1


@pytest.mark.parametrize("end", [0, 0xCD, 0xFF])
def test_a_frame_that_does_not_end_in_0xce_is_a_frame_error(connection, end):
    connection.feed(frame(1, 1, struct.pack(">HH", 20, 20) + b"\1")[:-1] + bytes([end]))
    assert connection.fault == (
        1, 501, True, f"type 1, all octets = <<0,20,0,20,1>>: {{invalid_frame_end_marker,{end}}}", 0, 0)
    assert connection.methods == []


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_bad_end_anywhere_in_a_whole_publish_stores_nothing(queue, connection, wrong):
    parts = [frame(1, 1, publish_method(b"q")), frame(2, 1, content_header(4)), frame(3, 1, b"body")]
    parts[wrong] = parts[wrong][:-1] + b"\0"
    connection.feed(b"".join(parts))
    assert connection.fault[:3] == (1, 501, True)
    assert queue.ready == 0


@pytest.mark.parametrize("kind", [0, 4, 7, 9, 65, 255])
def test_an_unknown_frame_type_is_a_frame_error(connection, kind):
    connection.feed(frame(kind, 0, b"some"))
    assert connection.fault == (0, 501, True, f'type {kind}, all octets = <<"some">>: unknown_frame', 0, 0)


@pytest.mark.parametrize(("channel", "payload"), [(1, b""), (0, b"x"), (9, b"x")])
def test_a_heartbeat_is_empty_and_on_channel_0(connection, channel, payload):
    connection.feed(frame(8, channel, payload))
    assert connection.fault == (channel, 501, True, "heartbeat frames are empty and on channel 0", 0, 0)


def test_heartbeats_are_eaten(connection):
    connection.feed(frame(8, 0, b"") * 3)
    assert not connection.errors
    assert not connection.methods


def test_nothing_but_a_protocol_header_may_come_first(bench):
    connection = bench.connection(greeted=False)
    connection.feed(b"GET / HT")
    assert connection.headers == [b"GET / HT"]
    assert not connection.errors


def test_methods_go_up_in_order_with_their_channel(connection):
    payloads = [(0, struct.pack(">HH", 10, 40)), (1, struct.pack(">HH", 50, 10) + b"abc"),
                (7, struct.pack(">HH", 20, 10))]
    connection.feed(b"".join(frame(1, channel, payload) for channel, payload in payloads))
    assert connection.methods == payloads


@pytest.mark.parametrize("method", [publish_method(b"q"), ack(3, 1)[7:-1], reject(3, 1)[7:-1]])
def test_hot_methods_on_a_channel_that_is_not_open_go_up(connection, method):
    connection.feed(frame(1, 3, method) + frame(1, 60000, method))
    assert connection.methods == [(3, method), (60000, method)]


@pytest.mark.parametrize("kind", [2, 3])
def test_content_on_a_channel_that_is_not_open_is_a_channel_error(connection, kind):
    connection.feed(frame(kind, 3, content_header(0)))
    assert connection.fault == (3, 504, True, "expected 'channel.open'", 0, 0)


@pytest.mark.parametrize("kind", [2, 3])
def test_content_on_channel_0_is_unexpected(connection, kind):
    connection.feed(frame(kind, 0, content_header(0)))
    assert connection.fault == (
        0, 505, True, "expected method frame on channel 0, got content frame instead", 0, 0)


def test_while_discarding_only_close_and_close_ok_are_seen(queue, connection):
    connection.discard = True
    closes = [(0, struct.pack(">HH", 10, 50)), (0, struct.pack(">HH", 10, 51))]
    connection.feed(CONVERSATION + b"".join(frame(1, channel, payload) for channel, payload in closes))
    connection.feed(frame(1, 0, struct.pack(">HH", 10, 40)) + frame(2, 5, b"x") + frame(3, 0, b""))
    assert connection.methods == closes
    assert not connection.errors
    assert queue.ready == 0


def test_on_a_closing_channel_only_close_and_close_ok_are_seen(queue, connection):
    connection.channels[1].closing = True
    close, close_ok = struct.pack(">HHHBHH", 20, 40, 200, 0, 0, 0), struct.pack(">HH", 20, 41)
    connection.feed(CONVERSATION + ack(1, 9) + frame(1, 1, close) + frame(1, 1, close_ok))
    assert connection.methods == [(1, close), (1, close_ok)]
    assert not connection.errors
    assert queue.ready == 0


def test_what_an_upcall_raises_goes_to_on_error_with_its_method(bench):
    class Failing(type(bench.connection())):
        def on_method(self, channel, payload):
            raise KeyError("nothing")

    connection = Failing(bench.core)
    connection.feed(HEADER)
    connection.feed(frame(1, 0, struct.pack(">HH", 50, 10)))
    (channel, error, class_id, method_id), = connection.errors
    assert (channel, repr(error), class_id, method_id) == (0, "KeyError('nothing')", 50, 10)
    connection.detach()


def test_a_connection_may_be_detached_while_it_works(bench, queue):
    class Leaving(type(bench.connection())):
        def on_method(self, channel, payload):
            self.detach()

    connection = Leaving(bench.core)
    connection.routes = bench.routes
    connection.feed(HEADER)
    plane.Channel(connection, 1)
    connection.feed(publish(1, b"one") + frame(1, 0, struct.pack(">HH", 10, 50)) + publish(1, b"two"))
    assert queue.ready == 1
    connection.feed(publish(1, b"three"))
    assert queue.ready == 1
    assert connection.channels == {}


def test_a_publish_before_connection_open_is_refused(connection):
    connection.routes = None
    connection.feed(publish(1, b"early"))
    assert connection.fault[:4] == (1, 504, True, "expected 'connection.open'")


def test_held_output_goes_out_at_the_last_release(bench, connection):
    connection.hold()
    connection.hold()
    connection.write(frame(8, 0, b""))
    bench.turns()
    connection.release()
    bench.turns()
    assert connection.out.octets == b""
    connection.release()
    bench.turns()
    assert connection.frames() == [(8, 0, b"")]


def test_deliveries_are_held_too_and_none_is_lost(bench, queue, connection):
    consume(connection.channels[1], queue, no_ack=True)
    connection.hold()
    connection.feed(publish(1, b"h" * 50_000) * 20)
    bench.turns()
    assert connection.out.octets == b""
    assert queue.ready > 0
    connection.release()
    bench.turns()
    assert connection.bodies() == [b"h" * 50_000] * 20


def test_flush_sends_outside_of_a_turn(connection):
    connection.write(frame(8, 0, b""))
    connection.flush()
    assert connection.frames() == [(8, 0, b"")]


def test_while_writing_is_paused_nothing_is_sent_or_delivered(bench, queue, connection):
    consume(connection.channels[1], queue, no_ack=True)
    connection.pause_writing()
    connection.feed(publish(1, b"1") + publish(1, b"2"))
    bench.turns()
    assert connection.out.octets == b""
    assert queue.ready == 2
    connection.resume_writing()
    bench.turns()
    assert connection.bodies() == [b"1", b"2"]


def test_a_transport_that_pauses_in_the_middle_of_deliveries_stops_them(bench, queue, connection):
    consume(connection.channels[1], queue, no_ack=True)
    connection.out.on_write = connection.pause_writing
    connection.feed(publish(1, b"p" * 60_000) * 20)
    bench.turns()
    first = connection.bodies()
    assert 0 < len(first) < 20
    assert queue.ready == 20 - len(first)
    connection.out.on_write = None
    connection.resume_writing()
    bench.turns()
    assert len(connection.bodies()) == 20 - len(first)


def test_others_are_served_while_one_is_paused(bench, queue, connection):
    other = bench.connection(1)
    consume(connection.channels[1], queue, no_ack=True)
    consume(other.channels[1], queue, no_ack=True)
    connection.pause_writing()
    other.feed(publish(1, b"a") * 4)
    bench.turns()
    assert other.bodies() == [b"a"] * 4


def test_reading_stops_when_the_peer_takes_nothing_and_goes_on_when_it_does(connection):
    connection.pause_writing()
    connection.write(bytes(2_000_000))
    connection.feed(frame(8, 0, b""))
    assert not connection.out.reading
    connection.resume_writing()
    assert connection.out.reading


def test_a_transport_that_fails_ends_the_connection_quietly(bench, queue, connection):
    def fail():
        raise OSError("gone")

    connection.out.on_write = fail
    consume(connection.channels[1], queue)
    connection.feed(publish(1, b"never seen"))
    bench.turns()
    assert not connection.errors
    connection.detach()
    assert queue.ready == 1


def received(end):
    octets = b""
    while True:
        try:
            some = end.recv(1 << 20)
        except BlockingIOError:
            return octets
        if not some:
            return octets
        octets += some


def test_output_goes_straight_to_the_socket_and_the_rest_to_the_transport(bench, queue, connection, sockets):
    ours, theirs = sockets
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 50_000)
    connection.attach(connection.out, ours.fileno())
    connection.write(frame(8, 0, b""))
    bench.turns()
    assert received(theirs) == frame(8, 0, b"")
    assert connection.out.octets == b""
    connection.out.on_write = connection.pause_writing
    consume(connection.channels[1], queue, no_ack=True)
    connection.feed(b"".join(publish(1, b"%d" % at + bytes(30_000)) for at in range(40)))
    bench.turns()
    octets = received(theirs) + connection.out.octets
    connection.out.octets = b""
    assert queue.ready > 0
    connection.out.on_write = None
    while queue.ready:
        connection.resume_writing()
        bench.turns()
        octets += received(theirs) + connection.out.octets
        connection.out.octets = b""
    connection.out.octets = octets
    assert [one.rstrip(b"\0") for one in connection.bodies()] == [b"%d" % at for at in range(40)]


def test_a_socket_that_the_peer_closed_kills_nobody(bench, queue, connection, sockets):
    ours, theirs = sockets
    connection.attach(connection.out, ours.fileno())
    theirs.close()
    consume(connection.channels[1], queue)
    connection.feed(publish(1, b"for nobody"))
    connection.detach()
    assert queue.ready == 1


def test_frame_max_has_a_least_and_a_most_value(connection):
    for octets in (0, 4095, 131073):
        with pytest.raises(ValueError, match="4096"):
            connection.frame_max = octets


def test_a_channel_number_is_opened_once(connection):
    with pytest.raises(ValueError, match="channel 1 is open"):
        plane.Channel(connection, 1)
    connection.channels[1].close()
    assert plane.Channel(connection, 1) is connection.channels[1]
    assert plane.Channel(connection, 65535).number == 65535


def test_behind_octets_that_are_no_frame_nothing_is_heard(bench, connection):
    close_ok = frame(1, 0, b"\0\x0a\0\x33")
    connection.feed(frame(1, 0, b"\0\x0a\0\x32")[:-1] + b"?")
    assert connection.fault[1] == 501
    connection.feed(close_ok)
    assert connection.methods == []


def test_each_publish_of_a_transaction_goes_up_whole(bench, queue, connection):
    given = []
    connection.on_publish = lambda channel, method, header, body: given.append((channel, body))
    connection.channels[1].tx = True
    for body in (b"one", b"", b"three"):
        connection.feed(publish(1, body))
        connection.feed(publish(1, body, piece=2))
    assert given == [(1, body) for body in (b"one", b"", b"three") for _ in range(2)]
    assert (queue.ready, connection.errors) == (0, [])
