"""brokerperf: its codec by octets alone, its commands against a broker made for the purpose."""

import contextlib
import io
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.broker import SECONDS, Broker, environment, readable
from tests.cli.fakebroker import FakeBroker, delivery
from tests.conversations.peer import eventually

from brokerd import __version__
from brokerd.cli._perf import Control, Histogram, Link
from brokerd.cli.brokerperf import main
from brokerd.cli.perfclient import Address, field, frame, method, publish_frames, table
from brokerd.cli.perflive import Teller
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


def test_who_reads_the_reason_while_it_is_written_reads_nothing_or_all_of_it():
    text = b"x" * 255
    closed = method(1, (20, 40), b"\x01\x94\xff" + text + b"\0\0\0\0")
    whole = f"the broker closed the channel: 404 {text.decode()}"
    seen = set()
    for _ in range(300):
        with Wire(closed) as wire:
            wire.link.expect(ack_every=0, queues=1, producers=1)
            thread = threading.Thread(target=wire.link.consume, args=(b"",))
            thread.start()
            reason = wire.link.error
            while not reason:
                reason = wire.link.error
            seen.add(reason)
            thread.join(SECONDS)
    assert seen == {whole}


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
        assert (wire.link.waits is None, wire.link.latency) == (True, None)


def test_each_confirm_is_timed_from_its_own_message_except_those_of_the_warm_up():
    with Wire() as wire:
        message = publish_frames("", "q", 16, False, FRAME_MAX)
        wire.control.measure_ns = time.monotonic_ns() + (1 << 60)
        wire.link.load([message], 0, 6, 2, True, True, True)
        thread = threading.Thread(target=wire.link.publish, args=(b"", 0))
        thread.start()
        waits = []
        for tag in (2, 4, 6):
            wire.peer.recv(2 * len(message[0]), socket.MSG_WAITALL)
            eventually(lambda tag=tag: wire.link.published == tag)
            waits.append(wire.link.waits.count)
            if tag == 4:
                time.sleep(0.05)        # The messages 3 and 4 wait so long at least.
            if tag == 2:
                wire.control.measure_ns = time.monotonic_ns()
            wire.peer.sendall(settle(tag, 1))
        thread.join(SECONDS)
        assert (waits, wire.link.waits.count) == ([0, 0, 2], 4)
        assert wire.link.waits.quantile(1) >= 0.05e9


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
    ("amqp://localhost", ("localhost", 5672, "guest", "guest", "/", None)),
    ("amqp://u:p%40ss@h:1/", ("h", 1, "u", "p@ss", "/", None)),
    ("amqp://h/%2f", ("h", 5672, "guest", "guest", "/", None)),
    ("amqp://h/a%20b", ("h", 5672, "guest", "guest", "a b", None)),
    ("amqps://h", ("h", 5671, "guest", "guest", "/", ("", True))),
    ("amqps://h:1/v", ("h", 1, "guest", "guest", "v", ("", True))),
    ("amqp://%2Frun%2FA.sock/v", ("/run/A.sock", 0, "guest", "guest", "v", None)),
    ("amqp://u:p@%2frun%2fb%20c", ("/run/b c", 0, "u", "p", "/", None)),
])
def test_a_uri_says_where_and_as_whom(uri, address):
    assert tuple(Address.parse(uri)) == address


@pytest.mark.parametrize("uri", ["http://h", "amqpss://h", "amqp://h:port", "amqp://h?x=1", "h", "amqps://%2Frun%2Fa"])
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


# --- a run that is cut short

def frames_of(octets):
    """(type, channel, payload) of each frame; fails on one that is not whole."""
    found, at = [], 0
    while at < len(octets):
        kind, channel, size = struct.unpack(">BHI", octets[at:at + 7])
        assert octets[at + 7 + size:at + 8 + size] == b"\xce", "a frame is not whole"
        found.append((kind, channel, octets[at + 7:at + 7 + size]))
        at += 8 + size
    return found


def test_a_publisher_that_is_stopped_finishes_the_message_that_it_began():
    with Wire() as wire:
        message = publish_frames("", "q", 10_000, False, FRAME_MAX)
        wire.link.load([message] * 20, 0, 0, 0, True)
        thread = threading.Thread(target=wire.link.publish, args=(b"", 0))
        thread.start()
        published = 0
        while wire.link.published != published or not published:    # Until the socket takes no more.
            published = wire.link.published
            thread.join(0.05)
        wire.control.stop = True
        octets = b""
        while thread.is_alive() or readable(wire.peer, 0):
            if readable(wire.peer, 0.05):
                octets += wire.peer.recv(1 << 20)
        bodies = sum(len(payload) for kind, _, payload in frames_of(octets) if kind == 3)
        assert (wire.link.published, bodies, wire.link.torn) == (len(octets) // len(message[0]), bodies, False)
        assert bodies == 10_000 * wire.link.published > 0


def test_a_publisher_whose_broker_reads_no_more_gives_up_and_says_that_its_connection_is_torn():
    with Wire() as wire:
        wire.link.load([publish_frames("", "q", 1_000_000, False, FRAME_MAX)], 0, 0, 0, True)
        wire.control.stop = False
        thread = threading.Thread(target=wire.link.publish, args=(b"", 0))
        thread.start()
        readable(wire.peer)
        wire.control.stop = True
        thread.join(SECONDS)
        assert (wire.link.torn, wire.link.published) == (True, 0)


def test_consumers_take_no_more_than_they_may_and_acknowledge_no_more():
    with Wire() as wire:
        wire.control.limited, wire.control.budget = True, 2
        wire.link.expect(1, 1, 1)
        thread = threading.Thread(target=wire.link.consume, args=(b"sync",))
        thread.start()
        wire.peer.sendall(b"".join(delivery(tag, b"x") for tag in (1, 2, 3)))
        wanted = b"".join(method(1, (60, 80), struct.pack(">QB", tag, 0)) for tag in (1, 2))
        assert wire.peer.recv(len(wanted), socket.MSG_WAITALL) == wanted
        wire.control.stop = True
        assert wire.peer.recv(4, socket.MSG_WAITALL) == b"sync"
        wire.peer.sendall(delivery(4, b"x") + method(1, (60, 11)))
        thread.join(SECONDS)
        assert (wire.link.received, wire.link.error) == (2, "")


def test_a_consumer_told_to_stop_when_its_buffer_is_full_waits_for_the_answer_to_its_last_request():
    with Wire(delivery(1, b"x" * 1000) * 2000) as wire:
        wire.control.stop = True
        wire.link.expect(1, 1, 1)
        thread = threading.Thread(target=wire.link.consume, args=(b"sync",))
        thread.start()
        assert wire.peer.recv(4, socket.MSG_WAITALL) == b"sync"
        wire.peer.sendall(method(1, (60, 11)))
        thread.join(SECONDS)
        assert (wire.link.finished, wire.link.received, wire.link.error) == (True, 0, "")


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("perf")
    with Broker(folder / "data", "--unix-path", folder / "Amqp") as broker:
        yield broker


def complaints(broker, begin):
    """The lines of the log from number ``begin`` on that are not usual, when all connections since then are gone.

    The end of a connection from before may stand among them."""
    def gone():
        text = "\n".join(broker.lines[begin:])
        opened = set(re.findall(r"(\S+:\d+) \S+ \S+: opened", text))
        return opened and opened <= set(re.findall(r"(\S+:\d+) \S+ \S+: (?:closed|lost|cut off)\b", text))

    eventually(gone)
    return [line for line in broker.lines[begin:] if " INFO " not in line]


class Run:
    """brokerperf in a process of its own; its standard error is a terminal."""

    def __init__(self, broker, *arguments):
        self.master, slave = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "brokerd.cli.brokerperf", *arguments,
             "--uri", f"amqp://guest:guest@127.0.0.1:{broker.port}/"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=slave, text=True, env=environment(),
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        os.close(slave)
        self.told = ""

    def until(self, pattern):
        """Wait until the terminal shows the pattern."""
        end = time.monotonic() + SECONDS
        while not re.search(pattern, self.told):
            if time.monotonic() > end:
                self.process.kill()         # It must not trouble other tests.
                self.process.communicate()
                raise AssertionError(self.told)
            if readable(self.master, 1):
                self.told += os.read(self.master, 1 << 16).decode()

    def end(self, number):
        """Send the signal: (status, standard output, what the terminal showed)."""
        os.kill(self.process.pid, number)
        out = self.process.communicate(timeout=SECONDS)[0]
        with contextlib.suppress(OSError):      # The end of a terminal.
            while octets := os.read(self.master, 1 << 16):
                self.told += octets.decode()
        os.close(self.master)
        return self.process.returncode, out, self.told


BAR_SHOWN = r"\[#* *\] +\d+%  (publish|consume) [\d,]+/s"


@pytest.mark.parametrize(("arguments", "number"), [
    (("-s", "1000000", "-x", "4", "-y", "0"), signal.SIGINT), (("-s", "100000", "-x", "2", "-y", "2"), signal.SIGINT),
    (("-c", "100", "--ack", "multi:10", "--verify-order"), signal.SIGINT),
    (("-c", "100", "--ack", "each"), signal.SIGTERM),
])
def test_a_run_that_is_interrupted_closes_politely_and_tells_what_it_measured(broker, arguments, number):
    begin = len(broker.lines)
    run = Run(broker, "throughput", "-z", "600", "--json", *arguments)
    run.until(BAR_SHOWN)
    status, out, told = run.end(number)
    assert (status, "interrupted: what was measured so far" in told) == (0, True), told
    found = json.loads(out)
    assert (found["interrupted"], found["published"] > 0) == (True, True)
    assert "Traceback" not in told
    assert complaints(broker, begin) == []


def test_queues_that_are_interrupted_are_those_declared_so_far_and_go(broker):
    begin = len(broker.lines)
    run = Run(broker, "queues", "-n", "1000000", "--window", "10", "--json")
    run.until(r"\[#* *\] +\d+%  [\d,]+ of 1,000,000 queues  [\d,]+/s")
    status, out, told = run.end(signal.SIGINT)
    assert (status, "Traceback" in told) == (0, False), told
    assert 0 < json.loads(out)["queues"] < 1_000_000
    assert json.loads(out)["interrupted"]
    assert complaints(broker, begin) == []
    assert perf("drain", "--uri", uri_of(broker), "-u", "brokerperf.queue.0").exit_code == 1


def test_connections_that_are_interrupted_are_closed_one_and_all(broker):
    begin = len(broker.lines)
    run = Run(broker, "connections", "-n", "20", "--hold", "600")
    run.until("20 of 20 connections are open")
    status, out, told = run.end(signal.SIGINT)
    assert (status, out) == (130, "")
    assert told.rstrip().endswith("brokerperf: interrupted")
    assert "Traceback" not in told
    assert complaints(broker, begin) == []


# --- drain

def uri_of(broker):
    return f"amqp://guest:guest@127.0.0.1:{broker.port}/"


def filled(broker, count, name):
    figures("throughput", "--uri", uri_of(broker), "-u", name, "-y", "0", "-n", str(count), "--keep")
    return "--uri", uri_of(broker), "-u", name


def test_a_drain_of_some_messages_takes_so_many_and_leaves_the_others_where_they_were(broker):
    queue = filled(broker, 500, "some")
    found = figures("drain", *queue, "-n", "10")
    assert {name: found[name] for name in ("found", "wanted", "consumed", "left", "deleted")} == {
        "found": 500, "wanted": 10, "consumed": 10, "left": 490, "deleted": False}
    assert not {"published", "producers", "publish_rate", "size"} & set(found)
    found = figures("drain", *queue, "-y", "3", "-n", "470", "--keep")
    assert (found["consumed"], found["left"], "deleted" in found) == (470, 20, False)
    found = figures("drain", *queue, "--verify-order")
    assert (found["consumed"], found["left"], found["deleted"]) == (20, 0, True)
    assert perf("drain", *queue).stderr.startswith("brokerperf: the broker answered 404 NOT_FOUND")


def test_a_stream_is_read_from_where_the_consumers_arguments_say(broker):
    stream = ("-u", "perf.stream", "--durable", "--queue-args", '{"x-queue-type": "stream"}')
    figures("throughput", "--uri", uri_of(broker), *stream, "-y", "0", "-n", "300", "--keep")
    queue = ("--uri", uri_of(broker), "-u", "perf.stream", "--ack", "multi:10", "-P", "100", "--stall", "10")
    for _ in range(2):
        found = figures("drain", *queue, "--consumer-args", '{"x-stream-offset": "first"}', "--verify-order")
        assert (found["consumed"], found["left"], found["deleted"]) == (300, 300, False)
    found = figures("drain", *queue, "-n", "7", "--consumer-args", '{"x-stream-offset": -7}', "--keep")
    assert (found["consumed"], found["left"]) == (7, 300)
    wrong = perf("drain", *queue, "-n", "1", "--consumer-args", '{"x-stream-offset": "noon"}')
    assert wrong.exit_code == 1
    assert "406 PRECONDITION_FAILED - invalid arg 'x-stream-offset'" in wrong.stderr


# --- what the command line shows

@pytest.mark.parametrize("arguments", [["-h"], ["throughput", "-h"], ["drain", "-h"], ["--help"]])
def test_help_is_there_by_its_short_name_too(arguments):
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, "-h, --help" in result.stdout) == (0, True)


@pytest.mark.parametrize("flag", ["-v", "--version"])
def test_the_version_is_one_line(flag):
    assert CliRunner().invoke(main, [flag]).stdout == f"brokerperf {__version__}\n"


def test_the_bar_shows_the_share_and_only_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for stream, quiet in ((Terminal(), False), (Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with Teller(quiet) as teller:
            teller.at(0.5, "publish 7/s")
            shown = stream.getvalue()
            teller.at(None, "consume 3/s")
        if stream.isatty() and not quiet:
            assert shown == f"\r[{'#' * 12}{' ' * 12}]  50%  publish 7/s"
            assert "\rconsume 3/s" in stream.getvalue()
        else:
            assert stream.getvalue() == ""


def test_messages_go_over_a_unix_socket_and_the_broker_behind_it_is_measured(broker):
    uri = f"amqp://{quote(str(broker.directory.parent / 'Amqp'), safe='')}/"
    found = figures("throughput", "--uri", uri, "-n", "100", "--verify-order")
    assert (found["published"], found["consumed"]) == (100, 100)
    assert found["broker"]["rss_kb"] > 1024
    missing = perf("throughput", "--uri", "amqp://%2Fno%2Fsuch", "-n", "1")
    assert (missing.exit_code, missing.stderr) == (1, "brokerperf: /no/such: No such file or directory\n")


def test_a_summary_says_yes_and_no_in_words():
    with FakeBroker() as broker:
        CliRunner().invoke(main, ["throughput", "--uri", broker.uri, "-y", "0", "-n", "5", "--keep", "-q"])
        told = CliRunner().invoke(main, ["drain", "--uri", broker.uri, "-q"]).stdout
    assert re.search(r"^deleted +yes$", told, re.MULTILINE)
