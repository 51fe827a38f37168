"""brokerperf: its codec by octets alone, its commands against a broker made for the purpose."""

import json
import os
import socket
import struct
import threading
import time

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.broker import SECONDS
from tests.cli.fakebroker import FakeBroker, delivery

from brokerd.cli._perf import Control, Histogram, Link
from brokerd.cli.brokerperf import main
from brokerd.cli.perfclient import Address, field, frame, method, publish_frames, table
from brokerd.cli.perfproc import listeners, usage

FRAME_MAX = 4096
TIMEOUT = struct.pack("ll", 0, 5000)


def perf(*arguments):
    return CliRunner().invoke(main, [*arguments, "--json", "-q"])


def figures(*arguments):
    result = perf(*arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def numbered(producer, number):
    return struct.pack("<QQ", producer << 48 | number, 0)


class Wire:
    """A link and the broker's end of its socket."""

    def __init__(self, pending=b""):
        ours, self.peer = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEOUT)
        # Not settimeout: it makes the socket non-blocking, and MSG_WAITALL would not wait.
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", SECONDS, 0))
        self.ours, self.control = ours, Control()
        self.control.producers = 1
        self.link = Link(ours.fileno(), pending, self.control, FRAME_MAX)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.control.stop = True
        self.ours.close()
        self.peer.close()

    def consume(self, *chunks):
        """Let the link consume these octets until the broker's end is closed."""
        thread = threading.Thread(target=self.link.consume, args=(b"",))
        thread.start()
        for chunk in chunks:
            self.peer.sendall(chunk)
        self.peer.shutdown(socket.SHUT_WR)
        thread.join(SECONDS)
        assert self.link.finished


def consumed(stream, chunk=None, **expect):
    with Wire() as wire:
        wire.link.expect(**{"ack_every": 0, "queues": 2, "producers": 2, "verify": True} | expect)
        step = chunk or len(stream) or 1
        wire.consume(*(stream[at:at + step] for at in range(0, len(stream), step)))
        return wire.link


@pytest.mark.parametrize("chunk", [1, 7, 64, 4096])
def test_deliveries_do_not_depend_on_how_the_stream_was_cut(chunk):
    bodies = [numbered(0, 0), numbered(1, 0) + bytes(9000), numbered(0, 1), b"", b"short"]
    link = consumed(b"".join(delivery(tag, body) for tag, body in enumerate(bodies, 1)), chunk)
    assert (link.received, link.octets) == (5, sum(map(len, bodies)))
    assert link.seen() == [(0, 0, 0, 2, 1), (1, 0, 0, 1, 0)]
    assert (link.misordered, link.foreign) == (0, 2)


def test_octets_read_along_with_the_handshake_are_not_lost():
    with Wire(delivery(1, numbered(0, 0))[:30]) as wire:
        wire.link.expect(0, 1, 1)
        wire.consume(delivery(1, numbered(0, 0))[30:])
        assert wire.link.received == 1


@pytest.mark.parametrize(("numbers", "misordered"), [((0, 1, 2), 0), ((0, 2, 1), 1), ((0, 0), 1), ((5, 9), 0)])
def test_numbers_that_do_not_grow_are_misordered(numbers, misordered):
    link = consumed(b"".join(delivery(tag, numbered(0, number)) for tag, number in enumerate(numbers, 1)))
    assert link.misordered == misordered


def test_the_order_of_one_queue_says_nothing_about_another():
    link = consumed(delivery(1, numbered(0, 1), "0") + delivery(2, numbered(0, 0), "1"))
    assert link.misordered == 0


def test_messages_of_unknown_producers_are_foreign():
    assert consumed(delivery(1, numbered(7, 0))).foreign == 1


@pytest.mark.parametrize(("stream", "error"), [
    (b"\x01\0\x01\0\0\x20\0", "over the frame_max"),
    (frame(1, 1, b"\0\x3c\0\x3c")[:-1] + b"\0", "without its end octet"),
    (frame(1, 1, b"\0\x3c"), "too short for a method"),
    (frame(1, 1, b"\0\x3c\0\x3c\xff"), "basic.deliver cut short"),
    (frame(1, 1, b"\0\x3c\0\x50\0"), "confirm cut short"),
    (frame(2, 1, b"\0\x3c"), "content header cut short"),
    (frame(2, 1, bytes(11) + b"\x01" + bytes(2)) + frame(3, 1, b"two"), "more body"),
    (method(1, (60, 30), b"\0\0"), "cancelled"),
    (method(1, (20, 40), b"\x01\x94\x09NOT_FOUND\0\0\0\0"), "closed the channel: 404 NOT_FOUND"),
    (method(0, (10, 50), b"\x01\x40\xffCONN"), "closed the connection: 320 CONN"),
    (b"", "closed the socket"),
])
def test_a_stream_that_cannot_be_right_ends_the_link_with_a_reason(stream, error):
    assert error in consumed(stream + bytes(1) if "frame_max" in error else stream).error


@given(st.binary(max_size=300))
def test_no_octets_bring_a_link_down_with_anything_but_a_reason(octets):
    assert consumed(delivery(1, numbered(0, 0)) + octets).error


@pytest.mark.parametrize(("every", "acks"), [(1, [(1, 0), (2, 0), (3, 0)]), (2, [(2, 1), (3, 0)]), (3, [(3, 1)])])
def test_each_message_is_acknowledged_once(every, acks):
    with Wire() as wire:
        wire.link.expect(every, 1, 1)
        thread = threading.Thread(target=wire.link.consume, args=(b"sync",))
        thread.start()
        wire.peer.sendall(b"".join(delivery(tag, b"x") for tag in (1, 2, 3)))
        wanted = b"".join(method(1, (60, 80), struct.pack(">QB", *ack)) for ack in acks)
        assert wire.peer.recv(len(wanted), socket.MSG_WAITALL) == wanted
        wire.control.stop = True
        assert wire.peer.recv(4, socket.MSG_WAITALL) == b"sync"
        wire.peer.sendall(method(1, (60, 11)))
        thread.join(SECONDS)
        assert (wire.link.received, wire.link.error) == (3, "")


def settle(tag, multiple=0, nack=False):
    return method(1, (60, 120 if nack else 80), struct.pack(">QB", tag, multiple))


@pytest.mark.parametrize(("answers", "confirmed", "nacked"), [
    ([settle(1), settle(2), settle(3), settle(4)], 4, 0),
    ([settle(4, 1)], 4, 0),
    ([settle(0, 1)], 4, 0),
    ([settle(3), settle(2), settle(4, 1)], 4, 0),
    ([settle(2), settle(2), settle(9), settle(4, 1), settle(4, 1)], 4, 0),
    ([settle(1), settle(2, nack=True), settle(4, 1, nack=True)], 1, 3),
])
def test_every_publish_is_settled_once_however_confirms_come(answers, confirmed, nacked):
    with Wire() as wire:
        message = publish_frames("", "q", 16, False, FRAME_MAX)
        wire.link.load([message], 0, 4, 4, True)
        thread = threading.Thread(target=wire.link.publish, args=(b"", 0))
        thread.start()
        wire.peer.recv(4 * len(message[0]), socket.MSG_WAITALL)
        wire.peer.sendall(b"".join(answers))
        thread.join(SECONDS)
        assert (wire.link.confirmed, wire.link.nacked, wire.link.error) == (confirmed, nacked, "")


def test_no_more_than_the_window_is_published_unconfirmed():
    with Wire() as wire:
        message = publish_frames("", "q", 16, False, FRAME_MAX)
        wire.link.load([message] * 3, 0, 5, 2, True)
        thread = threading.Thread(target=wire.link.publish, args=(b"", 0))
        thread.start()
        for tag in range(1, 6):
            wire.peer.recv(len(message[0]), socket.MSG_WAITALL)
            assert wire.link.published <= tag + 1
            wire.peer.sendall(settle(tag))
        thread.join(SECONDS)
        assert wire.link.confirmed == 5


def test_messages_carry_their_producer_and_number_over_the_end_of_the_ring():
    with Wire() as wire:
        ring = [publish_frames("", "q" * length, 8, False, FRAME_MAX) for length in (1, 2, 3)]
        wire.link.load(ring, 3, 7, 0, True)
        thread = threading.Thread(target=wire.link.publish, args=(b"sync", 1))
        thread.start()
        for number in range(7):
            frames, body = ring[number % 3]
            found = wire.peer.recv(len(frames), socket.MSG_WAITALL)
            assert found[body:body + 8] == struct.pack("<Q", 3 << 48 | number)
            assert found[:body] == frames[:body]
        assert wire.peer.recv(4, socket.MSG_WAITALL) == b"sync"
        wire.peer.sendall(method(1, (50, 11), b"\0" * 9))
        thread.join(SECONDS)
        assert (wire.link.published, wire.link.error) == (7, "")


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 9000])
def test_a_publish_is_cut_into_frames_that_fit(size):
    octets, body = publish_frames("x", "key", size, True, FRAME_MAX)
    sizes, at = [], 0
    while at < len(octets):
        kind, _, length = struct.unpack(">BHI", octets[at:at + 7])
        assert octets[at + 7 + length] == 0xCE
        if kind == 3:
            assert sizes or at + 7 == body
            sizes.append(length)
        at += 8 + length
    assert sum(sizes) == size
    assert all(length + 8 <= FRAME_MAX for length in sizes)


@given(st.lists(st.integers(0, 1 << 62), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_within_one_percent_of_the_value_at_its_rank(values, share):
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    rank = min(value for value in values if sum(v <= value for v in values) >= share * len(values) - 1e-9)
    assert abs(histogram.quantile(share) - rank) <= rank * 0.01
    assert histogram.max == max(values)


def test_a_merged_histogram_counts_both():
    one, other = Histogram(), Histogram()
    one.record(10)
    other.record(5000)
    one.merge(other)
    assert (one.count, one.max, one.quantile(0.5)) == (2, 5000, 10)


@pytest.mark.parametrize(("uri", "address"), [
    ("amqp://localhost", ("localhost", 5672, "guest", "guest", "/")),
    ("amqp://u:p%40ss@h:1/", ("h", 1, "u", "p@ss", "/")),
    ("amqp://h/%2f", ("h", 5672, "guest", "guest", "/")),
    ("amqp://h/a%20b", ("h", 5672, "guest", "guest", "a b")),
])
def test_a_uri_says_where_and_as_whom(uri, address):
    assert tuple(Address.parse(uri)) == address


@pytest.mark.parametrize("uri", ["http://h", "amqps://h", "amqp://h:port", "amqp://h?x=1", "h"])
def test_other_uris_are_refused(uri):
    with pytest.raises(ValueError):
        Address.parse(uri)


@pytest.mark.parametrize(("value", "octets"), [
    (True, b"t\1"), (-1, b"l" + b"\xff" * 8), ("é", b"S\0\0\0\2\xc3\xa9"), (None, b"V"),
    ([1], b"A\0\0\0\x09l" + bytes(7) + b"\1"),
    ({"a": False}, b"F" + table({"a": False})), (1.0, b"d\x3f\xf0" + bytes(6)),
])
def test_values_are_written_with_their_type(value, octets):
    assert field(value) == octets


def test_all_that_is_published_arrives_in_order():
    with FakeBroker() as broker:
        found = figures("throughput", "--uri", broker.uri, "-n", "200", "-x", "2", "-y", "3", "--queues", "5",
                        "--verify-order")
    assert (found["published"], found["consumed"]) == (400, 400)
    assert found["order"] == {"misordered": 0, "missing": 0, "doubled": 0, "foreign": 0}
    assert found["broker"]["cpu_s"] >= 0


def test_confirms_and_acks_are_counted_out():
    with FakeBroker() as broker:
        found = figures("throughput", "--uri", broker.uri, "-n", "250", "-c", "10", "--ack", "multi:100", "-P", "100")
    assert (found["confirmed"], found["consumed"]) == (250, 250)
    assert max(tag for tag, _ in broker.acks) == 250


def test_kept_messages_are_there_to_drain():
    with FakeBroker() as broker:
        assert figures("throughput", "--uri", broker.uri, "-y", "0", "-n", "50", "--keep")["left"] == 50
        found = figures("drain", "--uri", broker.uri, "--verify-order")
        assert (found["consumed"], broker.queues) == (50, {})


def test_whoever_only_consumes_gets_what_is_there_and_stays_until_the_time_is_over():
    with FakeBroker() as broker:
        figures("throughput", "--uri", broker.uri, "-y", "0", "-n", "50", "--keep")
        found = figures("throughput", "--uri", broker.uri, "-x", "0", "-z", "0.2", "--stall", "0.1")
        assert found["consumed"] == 50
        assert "brokerperf" in broker.queues


def test_latency_is_measured_from_when_a_message_was_due():
    # In so short a time a busy machine may come to none of those after the warm-up: then it gets more.
    for seconds in (0.2, 1, 5, 25):
        with FakeBroker() as broker:
            found = figures("latency", "--uri", broker.uri, "-r", "200",
                            "-z", str(seconds), "--warmup", str(seconds / 2))
        assert 0 < found["published"] <= 200 * seconds
        assert found["latency_us"]["samples"] == found["from_write_us"]["samples"] <= 100 * seconds
        if found["latency_us"]["samples"]:
            break
    assert 0 < found["from_write_us"]["p50"] <= found["latency_us"]["max"]


def test_connections_and_queues_are_opened_and_taken_away():
    with FakeBroker() as broker:
        assert figures("connections", "--uri", broker.uri, "-n", "5", "--hold", "0")["connections"] == 5
        assert figures("queues", "--uri", broker.uri, "-n", "5")["queues"] == 5
        assert broker.queues == {}
        assert figures("queues", "--uri", broker.uri, "-n", "5", "--window", "2", "--keep")["queues"] == 5
        assert len(broker.queues) == 5


def test_a_violated_order_is_exit_code_3():
    with FakeBroker(swap=True) as broker:
        result = perf("throughput", "--uri", broker.uri, "-n", "10", "--verify-order")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["order"]["misordered"] == 5


def test_a_broker_that_delivers_nothing_is_exit_code_4():
    with FakeBroker(mute=True) as broker:
        result = perf("throughput", "--uri", broker.uri, "-n", "10", "--stall", "0.1")
    assert result.exit_code == 4
    assert json.loads(result.stdout)["stalled"]


def test_a_refusal_is_exit_code_1_and_one_line():
    with FakeBroker(refuse=(403, "ACCESS_REFUSED - no")) as broker:
        result = perf("throughput", "--uri", broker.uri)
    assert (result.exit_code, result.stderr) == (1, "brokerperf: the broker answered 403 ACCESS_REFUSED - no\n")


def test_nobody_listening_is_exit_code_1_and_one_line():
    with socket.socket() as bound:      # And so the port is no other process's.
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        result = perf("queues", "--uri", f"amqp://127.0.0.1:{port}/")
    assert (result.exit_code, result.stderr) == (1, f"brokerperf: 127.0.0.1:{port}: Connection refused\n")


@pytest.mark.parametrize("arguments", [
    ("throughput", "-x", "0", "-y", "0"), ("throughput", "-x", "0", "-n", "5"), ("throughput", "--uri", "http://x"),
    ("throughput", "--ack", "multi:0"), ("throughput", "--ack", "multi:9", "-P", "5"),
    ("throughput", "--verify-order", "-s", "7"), ("throughput", "--verify-order", "-y", "0"),
    ("throughput", "--exchange-type", "topic"), ("throughput", "--queue-args", "[1]"),
    ("throughput", "--queue-args", "{"), ("latency", "-s", "8"), ("latency", "-z", "1", "--warmup", "1"),
])
def test_options_that_cannot_be_meant_are_exit_code_2(arguments):
    assert perf(*arguments).exit_code == 2


def test_the_listener_of_a_port_is_found_and_measured():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert os.getpid() in listeners(listener.getsockname()[1])
    before, began = usage([os.getpid()]), time.process_time()
    while (used := time.process_time() - began) < 0.05:     # However long that takes.
        pass
    assert usage([os.getpid()]).cpu_s - before.cpu_s > used - 1e-6
    assert before.rss_kb > 1000
    assert usage([]) == (0, 0, 0, 0)
