"""What do connections, basic.get and direct reply-to cost the broker, one at a time?

    PYTHONPATH=src python benchmarks/rare_methods.py --rounds 7
    PYTHONPATH=src python benchmarks/rare_methods.py --rounds 7 --tree before=../before/src --target lavinmq=5674

One client on one thread sends frames that were made before and waits for each answer.  Printed: microseconds of the
broker's CPU for each, all its threads, its packets included, and until the client had the whole answer.

    connect             handshake with a client's usual properties, channel.open, connection.close; the log is at info
    get                 basic.get without acks, from a durable queue; messages of 16 octets
    get and ack         the same with acks, each in one packet with the next basic.get
    get-empty           basic.get from an empty queue
    reply               a request through a queue to an answerer, and its direct reply; 16 octets each

Brokers take turns, and so do the cases.
"""

import socket
import statistics
import struct
import time
from collections.abc import Callable
from contextlib import closing

from brokers import Target
from turns import Case, Cost, Cpu, main

from brokerd.cli.perfclient import (
    BODY,
    HEADER,
    Client,
    frame,
    longstr,
    method,
    shortstr,
    table,
)

QUEUE, REPLY_TO = "rare-methods", "amq.rabbitmq.reply-to"
OCTETS = 16
SETTLE_SECONDS = 0.1        # What the broker still does after the last answer counts.
START, TUNE, OPEN_OK, CLOSE_OK = (10, 10), (10, 30), (10, 41), (10, 51)
CHANNEL_OPEN_OK, CONSUME_OK, DELIVER, GET_OK, GET_EMPTY = (20, 11), (60, 21), (60, 60), (60, 71), (60, 72)
PROPERTIES = {                # as pika sends them
    "product": "Pika Python Client Library", "platform": "Python 3.11.2", "version": "1.3.2",
    "information": "See http://pika.rtfd.org",
    "capabilities": {"authentication_failure_close": True, "basic.nack": True, "connection.blocked": True,
                     "consumer_cancel_notify": True, "publisher_confirms": True},
}
START_OK = method(0, (10, 11), table(PROPERTIES) + shortstr("PLAIN") + longstr(b"\0guest\0guest") + shortstr("en_US"))
TUNE_OK_AND_OPEN = method(0, (10, 31), struct.pack(">HIH", 2047, 131072, 0)) + method(0, (10, 40), b"\x01/\0\0")
CHANNEL_OPEN = method(1, (20, 10), b"\0")
CLOSE = method(0, (10, 50), struct.pack(">H", 200) + shortstr("Normal shutdown") + bytes(4))


class Wire:
    """A socket.  The first answer of each kind is read frame by frame; later ones must have as many octets."""

    __slots__ = ("_lengths", "_socket")

    def __init__(self, target: Target, lengths: dict[tuple[int, int], int]) -> None:
        self._lengths = lengths
        self._socket = socket.create_connection(("127.0.0.1", target.port), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, octets: bytes) -> None:
        """Send, and wait for nothing."""
        self._socket.sendall(octets)

    def wait(self, index: tuple[int, int]) -> bytes:
        """All octets of the answer, whose first method is (class, method)."""
        known = self._lengths.get(index)
        octets = self._read(known) if known else self._read_frames(index)
        if struct.unpack_from(">HH", octets, 7) != index:
            raise SystemExit(f"another answer came instead of {index}: {octets!r:.300}")
        return octets

    def ask(self, octets: bytes, index: tuple[int, int]) -> bytes:
        """Send a request and wait for its answer."""
        self._socket.sendall(octets)
        return self.wait(index)

    def _read(self, size: int) -> bytes:
        octets = self._socket.recv(size, socket.MSG_WAITALL)
        if len(octets) < size:
            raise SystemExit(f"the broker hung up after {octets!r:.300}")
        return octets

    def _read_frames(self, index: tuple[int, int]) -> bytes:
        octets = self._read_frame()
        if index in (DELIVER, GET_OK):
            header = self._read_frame()
            octets += header + (self._read_frame() if struct.unpack_from(">Q", header, 11)[0] else b"")
        self._lengths[index] = len(octets)
        return octets

    def _read_frame(self) -> bytes:
        head = self._read(7)
        return head + self._read(struct.unpack_from(">I", head, 3)[0] + 1)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class Bench:
    """One broker, and its clients."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._lengths: dict[tuple[int, int], int] = {}

    def open(self, lengths: dict[tuple[int, int], int] | None = None) -> Wire:
        """A client with channel 1 open.  Answers of other lengths than in other clients need a table of their own."""
        wire = Wire(self.target, self._lengths if lengths is None else lengths)
        wire.ask(b"AMQP\0\0\x09\x01", START)
        wire.ask(START_OK, TUNE)
        wire.ask(TUNE_OK_AND_OPEN, OPEN_OK)
        wire.ask(CHANNEL_OPEN, CHANNEL_OPEN_OK)
        return wire

    def cost(self, work: Callable[[], object], times: int) -> Cost:
        """The cost of the work, which is done so many times; its median wait."""
        work()
        cpu = Cpu(self.target)
        walls = []
        for _ in range(times):
            began = time.perf_counter()
            work()
            walls.append(time.perf_counter() - began)
        time.sleep(SETTLE_SECONDS)
        return Cost(cpu.us_each(times), statistics.median(walls) * 1e6)

    def declare(self, messages: int = 0) -> None:
        """The queue, with so many messages in it."""
        client = Client(self.target.address())
        client.delete_queue(QUEUE)
        client.declare_queue(QUEUE, durable=True)
        client.drop()
        if messages:
            done = self.target.perf(f"throughput -y 0 --durable --keep -u {QUEUE} -n {messages} -s {OCTETS}")
            if "error" in done:
                raise SystemExit(f"{self.target.name}: {done['error']}")


def connect(target: Target, times: int) -> Cost:
    """Connect, open a channel, close."""
    bench = Bench(target)

    def work() -> None:
        wire = bench.open()
        wire.ask(CLOSE, CLOSE_OK)
        wire.close()

    return bench.cost(work, times)


def get(target: Target, times: int) -> Cost:
    """basic.get, no acks."""
    bench = Bench(target)
    bench.declare(times + 1)
    request = method(1, (60, 70), b"\0\0" + shortstr(QUEUE) + b"\x01")
    with closing(bench.open()) as wire:
        return bench.cost(lambda: wire.ask(request, GET_OK), times)


def get_and_ack(target: Target, times: int) -> Cost:
    """basic.get, and an ack of the message before."""
    bench = Bench(target)
    bench.declare(times + 1)
    request = method(1, (60, 70), b"\0\0" + shortstr(QUEUE) + b"\0")
    acks = [b"", *[method(1, (60, 80), struct.pack(">QB", tag, 0)) for tag in range(1, times + 1)]]
    requests = iter([ack + request for ack in acks])
    with closing(bench.open()) as wire:
        return bench.cost(lambda: wire.ask(next(requests), GET_OK), times)


def get_empty(target: Target, times: int) -> Cost:
    """basic.get, nothing there."""
    bench = Bench(target)
    bench.declare()
    request = method(1, (60, 70), b"\0\0" + shortstr(QUEUE) + b"\x01")
    with closing(bench.open()) as wire:
        return bench.cost(lambda: wire.ask(request, GET_EMPTY), times)


def reply(target: Target, times: int) -> Cost:
    """A request and its answer."""
    bench = Bench(target)
    bench.declare()
    with closing(bench.open({})) as requester, closing(bench.open({})) as answerer:
        for wire, queue in ((requester, REPLY_TO), (answerer, QUEUE)):
            wire.ask(method(1, (60, 20), b"\0\0" + shortstr(queue) + shortstr("c") + b"\x02" + bytes(4)), CONSUME_OK)
        body = frame(BODY, 1, bytes(OCTETS))
        properties = shortstr("correlation-0001") + shortstr(REPLY_TO)
        request = method(1, (60, 40), b"\0\0\0" + shortstr(QUEUE) + b"\0") + body_header(0x0600, properties) + body
        requester.send(request)
        name = reply_name(answerer.wait(DELIVER))
        correlated = body_header(0x0400, shortstr("correlation-0001")) + body
        answer = method(1, (60, 40), b"\0\0\0" + shortstr(name) + b"\0") + correlated
        answerer.send(answer)
        requester.wait(DELIVER)

        def work() -> None:
            requester.send(request)
            answerer.wait(DELIVER)
            answerer.send(answer)
            requester.wait(DELIVER)

        return bench.cost(work, times)


def body_header(flags: int, properties: bytes) -> bytes:
    """The content header frame of a message."""
    return frame(HEADER, 1, struct.pack(">HHQH", 60, 0, OCTETS, flags) + properties)


def reply_name(delivery: bytes) -> str:
    """The name that the broker gave the requester: the request's reply-to."""
    at = delivery.index(REPLY_TO.encode())
    return delivery[at:at + delivery[at - 1]].decode()


CASES = {
    "connect": Case(connect, 500), "get": Case(get, 5000), "get and ack": Case(get_and_ack, 5000),
    "get-empty": Case(get_empty, 5000), "reply": Case(reply, 3000),
}

if __name__ == "__main__":
    main(__doc__, CASES)
