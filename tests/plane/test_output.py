"""A large body goes to the socket straight from its segment: the client cannot tell it from others."""

import socket
import struct

import pytest
from tests.plane.harness import HEADER, Connection, ack, consume, frame, nack, publish, shortstr

from brokerd import plane

LARGE = 32_768          # octets of a body from which on it is not copied
HOUR_NS = 3_600_000_000_000   # of work before a turn ends, where time is to end none


@pytest.fixture
def bench(make_bench):
    return make_bench(segment_octets=8 << 20)


@pytest.fixture
def queue(bench):
    return bench.queue()


class Watched:
    """A connection with a real socket; ``octets`` is all that the client has got, or will get by the transport."""

    def __init__(self, bench, sockets, frame_max=131_072):
        self.bench = bench
        self.ours, self.theirs = sockets
        self.connection = bench.connection(1, frame_max=frame_max)
        self.connection.attach(self.connection.out, self.ours.fileno())
        self.octets = b""
        self.by_transport = 0

    def receive(self):
        """What came since the last call, as Deliver objects and confirms."""
        while True:
            try:
                self.octets += self.theirs.recv(1 << 20)
            except BlockingIOError:
                break
        out = self.connection.out
        self.by_transport += len(out.octets)
        octets, self.octets = self.octets + out.octets, b""
        out.octets = octets
        return self.connection.said()


@pytest.fixture
def client(bench, queue, sockets):
    return Watched(bench, sockets)


def body(octets, first=b"?"):
    return (first + bytes(range(251)) * (octets // 251 + 1))[:octets]


@pytest.mark.parametrize("size", [LARGE - 1, LARGE, LARGE + 1, 131_063, 131_064, 131_065, 300_000])
@pytest.mark.parametrize("way", ["deliver", "get"])
def test_a_body_of_any_size_arrives_whole_with_what_stands_before_it(client, bench, queue, size, way):
    sent = body(size)
    client.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    if way == "deliver":
        consume(client.connection.channels[1], queue, no_ack=True)
    client.connection.feed(publish(1, b"small"))
    client.connection.feed(publish(1, sent, properties=b"\x80\0\x04text") + publish(1, b"behind"))
    if way == "get":
        while client.connection.channels[1].get(queue, True):
            pass
    bench.turns()
    got = client.receive()
    assert [one.body for one in got] == [b"small", sent, b"behind"]
    assert [one.tag for one in got] == [1, 2, 3]
    assert (got[1].properties, got[1].size) == (b"\x80\0\x04text", size)
    assert client.by_transport == 0
    assert client.connection.sent_octets == sum(len(one.body) for one in got) + framing(got)


def framing(got):
    """Octets beside the bodies: method and header frames, and heads and ends of body frames."""
    method = 1 + 2 + 4 + 4 + 8 + 1 + 1 + 2 + 1
    total = 0
    for one in got:
        consumer = 0 if one.consumer is None else 1 + len(one.consumer)
        total += method + consumer + (4 if one.method == 71 else 0) + 20 + len(one.properties) + 8 * len(one.pieces)
    return total


@pytest.mark.parametrize("way", ["deliver", "get"])
@pytest.mark.parametrize("size", [0, 1])
def test_a_record_that_is_large_by_its_headers_alone_arrives_whole(client, bench, queue, way, size):
    value = b"v" * 40_000
    table = b"\x01hS" + len(value).to_bytes(4) + value
    properties = b"\x20\0" + len(table).to_bytes(4) + table
    if way == "deliver":
        consume(client.connection.channels[1], queue, no_ack=True)
    client.connection.feed(publish(1, body(size), properties=properties) + publish(1, b"behind"))
    if way == "get":
        while client.connection.channels[1].get(queue, True):
            pass
    bench.turns()
    got = client.receive()
    assert [one.body for one in got] == [body(size), b"behind"]
    assert got[0].properties == properties
    queue.check()


@pytest.mark.parametrize("reads", [False, True])
def test_texts_of_every_length_come_as_they_were_sent(bench, reads):
    octets = bytes(range(1, 81))        # No two are the same: one that comes from another place shows.
    for n in range(80):
        queue = bench.queue(b"q%d" % n)
        if reads:
            queue.gate = plane.Stream()
            queue.gate.begin("next", 0)
        text, key = octets[:n], octets[-n:] if n else b""
        bench.bound[text, key] = (b"q%d" % n,)
        connection = bench.connection(1)
        connection.channels[1].prefetch = 10
        consume(connection.channels[1], queue, text)
        table = b"\x01hx" + n.to_bytes(4) + text
        properties = b"\xa0\x80" + shortstr(text) + len(table).to_bytes(4) + table + shortstr(key)
        connection.feed(publish(1, text, key, exchange=text, properties=properties) * 2)
        bench.turns()
        for offset, one in enumerate(connection.delivered(), 1):
            assert (one.consumer, one.exchange, one.key, one.body) == (text, text, key, text)
            if reads:
                table = b"\x01hx" + n.to_bytes(4) + text + b"\x0fx-stream-offsetl" + offset.to_bytes(8)
            assert one.properties == b"\xa0\x80" + shortstr(text) + len(table).to_bytes(4) + table + shortstr(key)
        assert one.tag == 2


@pytest.mark.parametrize("frames", [31, 32, 33, 64, 65, 80])
def test_a_body_of_many_frames_takes_more_than_one_call(bench, queue, sockets, frames):
    client = Watched(bench, sockets, frame_max=4096)
    client.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    sent = body(4088 * frames - 5)
    client.connection.feed(publish(1, sent, piece=4088))
    consume(client.connection.channels[1], queue)
    bench.turns()
    (got,) = client.receive()
    assert got.body == sent
    assert (len(got.pieces), got.pieces[0], got.pieces[-1]) == (frames, 4088, 4083)
    assert client.by_transport == 0


@pytest.mark.parametrize("room", [4_600, 20_000, 70_000])
@pytest.mark.parametrize("frame_max", [4096, 131_072])
def test_what_the_socket_does_not_take_goes_by_the_transport_and_nothing_overtakes_it(
    bench, queue, sockets, room, frame_max
):
    client = Watched(bench, sockets, frame_max)
    client.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
    connection = client.connection
    connection.out.on_write = connection.pause_writing
    consume(connection.channels[1], queue)
    sent = [body(size, b"%d" % at) for at, size in enumerate((10, 200_000, 20, 40_000, 30, 500_000, 40))]
    for one in sent:
        connection.feed(publish(1, one, piece=frame_max - 8))
    bench.turns()
    assert queue.ready > 0                      # The transport has octets: no message goes out behind them.
    got = client.receive()
    while queue.ready:
        connection.resume_writing()
        bench.turns()
        got += client.receive()
    assert [one.body for one in got] == sent
    assert client.by_transport > 0
    connection.feed(ack(1, len(sent), multiple=True))
    assert (queue.ready, queue.unacked) == (0, 0)


def test_a_message_that_comes_again_has_its_delivery_count(client, bench, queue):
    client.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    queue.set_rules(delivery_limit=5, delivery_counts=True)
    sent = body(100_000)
    client.connection.feed(publish(1, sent))
    consume(client.connection.channels[1], queue)
    bench.turns()
    client.connection.feed(nack(1, 1))
    bench.turns()
    first, second = client.receive()
    assert (first.body, second.body) == (sent, sent)
    assert (first.redelivered, second.redelivered) == (False, True)
    assert b"x-delivery-count" not in first.properties
    assert b"x-delivery-count" in second.properties


def test_held_output_waits_whole(client, bench, queue):
    """A large body behind output that waits for a sync waits with it."""
    sent = body(100_000)
    client.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    client.connection.feed(publish(1, sent) + publish(1, b"behind"))
    client.connection.hold()
    client.connection.write(b"")                # Nothing to write is no lack of memory.
    for _ in range(2):
        assert client.connection.channels[1].get(queue, True)
    bench.turns()
    assert client.receive() == []
    client.connection.release()
    bench.turns()
    assert [one.body for one in client.receive()] == [sent, b"behind"]


@pytest.mark.parametrize("way", ["deliver", "get"])
def test_a_message_that_needs_no_ack_is_settled_before_its_last_octets_go_out(client, bench, queue, way):
    """kill -9 after the client had it must not bring it again.  The transport is called while it goes out."""
    settled = []
    channel = client.connection.channels[1]
    client.connection.out.on_write = lambda: settled.append((queue.ready, queue.segments()[0]["settled"]))
    client.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_600)
    client.connection.feed(publish(1, body(400_000)))
    if way == "deliver":
        consume(channel, queue, no_ack=True)
    else:
        assert channel.get(queue, True)
    bench.turns()
    assert settled == [(0, 1)]
    client.connection.out.on_write = None
    assert [one.body for one in client.receive()] == [body(400_000)]


@pytest.mark.parametrize("durable", [True, False])
def test_the_last_message_of_a_segment_goes_out_whole_before_its_file_is_used_again(make_bench, sockets, durable):
    bench = make_bench(segment_octets=1 << 18)
    queue = bench.queue(b"small", durable=durable)
    client = Watched(bench, sockets)
    client.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    consume(client.connection.channels[1], queue, b"t", no_ack=True)
    got, sent = [], [body(100_000, b"%d" % at) for at in range(12)]
    for one in sent:
        client.connection.feed(publish(1, one, key=b"small"))
        bench.turns()
        got += client.receive()
        queue.check()
    assert [one.body for one in got] == sent
    assert len(queue.segments()) <= 2
    assert client.by_transport == 0


def test_a_client_that_is_gone_loses_no_message(client, bench, queue):
    client.theirs.close()
    consume(client.connection.channels[1], queue)
    client.connection.feed(publish(1, body(100_000)))
    bench.turns()
    client.connection.detach()
    assert (queue.ready, queue.unacked) == (1, 0)


def test_a_transport_that_fails_ends_the_connection_quietly(client, bench, queue):
    aborted = []
    client.connection.out.abort = lambda: aborted.append(True)

    def fail():
        raise OSError("gone")

    client.connection.out.on_write = fail
    client.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_600)
    consume(client.connection.channels[1], queue)
    client.connection.feed(publish(1, body(400_000)))
    bench.turns()
    assert aborted == [True]
    client.connection.detach()
    assert (queue.ready, queue.unacked) == (1, 0)


class Answering(Connection):
    """Answers each method with so many octets."""

    answer = 300_000

    def on_method(self, channel, payload):
        super().on_method(channel, payload)
        self.write(b"\x01\x00\x01" + (self.answer).to_bytes(4) + bytes(self.answer) + b"\xce")


@pytest.fixture
def answering(make_bench):
    """A connection that answers each method until its output is full; no turn ends by time."""
    bench = make_bench(go_on=lambda: None, work_ns=HOUR_NS)
    connection = Answering(bench.core)
    connection.bench = bench
    connection.feed(HEADER)
    return connection


def method():
    return frame(1, 1, struct.pack(">HH", 10, 99))


def test_a_client_that_reads_no_answers_gets_no_more_of_them_made(answering):
    connection, core = answering, answering.bench.core
    connection.pause_writing()
    connection.feed(method() * 60)
    assert len(connection.methods) == 4     # 1 MiB waits.
    assert connection.waiting_octets < 2 << 20
    assert not connection.out.reading
    connection.feed(method())               # A transport may bring what it had read.
    assert len(connection.methods) == 4
    connection.resume_writing()
    while len(connection.methods) < 61:
        before = len(connection.methods)
        core.go_on()
        assert len(connection.methods) > before
    assert connection.out.reading
    assert len(connection.methods) == 61


def test_a_client_whose_output_waits_for_a_sync_gets_no_more_answers_made(answering):
    connection, core = answering, answering.bench.core
    connection.hold()
    connection.feed(method() * 100)
    assert len(connection.methods) == 4
    assert connection.stopped       # What it sent waits for a sync, not for itself.
    connection.release()
    while core.go_on() or len(connection.methods) < 100:
        pass
    assert connection.out.reading


def test_what_a_client_sent_before_it_went_is_worked_on_although_its_output_was_full(answering):
    connection, core = answering, answering.bench.core
    connection.pause_writing()
    connection.feed(method() * 60)
    assert connection.finish_octets() is False
    while core.go_on() or len(connection.methods) < 60:
        pass
    assert connection.waiting_octets < 2 << 20
    connection.detach()


def test_an_alarm_stops_only_who_publishes_after_it_began(bench):
    bench.queue()
    connection = bench.connection(1)
    connection.feed(publish(1, b"before"))
    bench.core.blocked = True
    connection.feed(frame(1, 1, struct.pack(">HH", 10, 99)))
    assert (connection.told_blocked, connection.out.reading) == (0, True)
    connection.feed(publish(1, b"during"))
    assert (connection.told_blocked, connection.out.reading) == (1, False)


@pytest.mark.parametrize("size", [5, LARGE + 1])
def test_a_consumer_that_asks_gets_the_number_and_the_time_of_each_message_the_same_when_it_comes_again(
        client, bench, queue, size):
    client.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    queue.set_rules(delivery_limit=5, delivery_counts=True)
    client.connection.feed(publish(1, body(size)) + publish(1, body(size)))
    consume(client.connection.channels[1], queue, numbers=True)
    bench.turns()
    client.connection.feed(nack(1, 1))
    bench.turns()

    def numbers(delivery):
        octets = delivery.properties
        at = octets.index(b"\x0dx-message-seql") + 15
        assert octets[at + 8:at + 22] == b"\x0cx-message-nsl"
        return int.from_bytes(octets[at:at + 8]), int.from_bytes(octets[at + 22:at + 30])

    first, second, again = client.receive()
    assert [one.body for one in (first, second, again)] == 3 * [body(size)]
    assert [numbers(one)[0] for one in (first, second, again)] == [1, 2, 1]
    assert numbers(again) == numbers(first)
    assert numbers(first)[1] < numbers(second)[1]
    assert b"x-delivery-count" in again.properties


def test_a_consumer_that_does_not_ask_gets_no_number_beside_one_that_does(client, bench, queue):
    channel = client.connection.channels[1]
    consume(channel, queue, b"a", numbers=True)
    consume(channel, queue, b"b")
    client.connection.feed(publish(1, b"1") + publish(1, b"2"))
    bench.turns()
    assert sorted(b"x-message-seq" in one.properties for one in client.receive()) == [False, True]


@pytest.mark.parametrize("large", [False, True])
def test_behind_octets_that_a_closing_transport_has_dropped_no_others_go_out(bench, queue, client, large):
    """The socket was full, and took a part of a frame: then the client would read a frame that has no end."""
    client.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    one, other = client.connection, bench.connection(1)
    consume(one.channels[1], queue, no_ack=True)
    one.out.closing = True
    sent = body(1_000_000) if large else body(20_000)
    for _ in range(2 if large else 100):
        other.feed(publish(1, sent))
    got = b""
    for _ in range(1000):
        other.feed(publish(1, b"later"))
        bench.turns()
        try:
            got += client.theirs.recv(1 << 24)
        except BlockingIOError:
            break
    assert got
    whole = 0
    while len(got) - whole >= 7 and whole + 8 + int.from_bytes(got[whole + 3:whole + 7]) <= len(got):
        whole += 8 + int.from_bytes(got[whole + 3:whole + 7])
        assert got[whole - 1] == 0xCE
    assert b"later" not in got
