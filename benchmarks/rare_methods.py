"""What do connections, basic.get and direct reply-to cost the broker, one at a time?

    PYTHONPATH=src python benchmarks/rare_methods.py --rounds 7
    PYTHONPATH=src python benchmarks/rare_methods.py --rounds 7 --command "env PYTHONPATH=OTHER/src python -m brokerd"

One client on one thread sends frames that were made before and waits for each answer.  Printed: microseconds of the
broker's CPU for each, all its threads, its packets included.

    connect             handshake with a client's usual properties, channel.open, connection.close; the log is at info
    get                 basic.get without acks, from a durable queue; messages of 16 octets
    get and ack         the same with acks, each in one packet with the next basic.get
    get-empty           basic.get from an empty queue
    reply               a request through a queue to an answerer, and its direct reply; 16 octets each

Brokers take turns.  ``--command`` (how another broker starts; "-D DIRECTORY -p PORT" is added) and ``--target`` (one
that is up) bring others in.
"""

import argparse
import json
import socket
import statistics
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import NamedTuple

from brokers import BROKERD, Broker, Target

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
from brokerd.cli.perfproc import listeners, usage

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
    """A socket on which each request is answered by as many octets as its like was before.  To learn how many, the
    first answer is read frame by frame."""

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


class Case:
    """One broker, whose CPU time is that of the processes that listen on its port."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._pids = listeners(target.port)
        if not self._pids:
            raise SystemExit(f"{target.name}: no process of this host that can be measured listens on {target.port}")
        self._lengths: dict[tuple[int, int], int] = {}

    def open(self, lengths: dict[tuple[int, int], int] | None = None) -> Wire:
        """A client with channel 1 open.  Answers of other lengths than in other clients need a table of their own."""
        wire = Wire(self.target, self._lengths if lengths is None else lengths)
        wire.ask(b"AMQP\0\0\x09\x01", START)
        wire.ask(START_OK, TUNE)
        wire.ask(TUNE_OK_AND_OPEN, OPEN_OK)
        wire.ask(CHANNEL_OPEN, CHANNEL_OPEN_OK)
        return wire

    def cpu_us(self, work: Callable[[], object], times: int) -> float:
        """CPU for each of so many times that the work is done."""
        work()
        before = usage(self._pids).cpu_s
        for _ in range(times):
            work()
        time.sleep(SETTLE_SECONDS)
        return (usage(self._pids).cpu_s - before) / times * 1e6

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


def connect(case: Case, times: int) -> float:
    """Connect, open a channel, close."""
    def work() -> None:
        wire = case.open()
        wire.ask(CLOSE, CLOSE_OK)
        wire.close()

    return case.cpu_us(work, times)


def get(case: Case, times: int) -> float:
    """basic.get, no acks."""
    case.declare(times + 1)
    request = method(1, (60, 70), b"\0\0" + shortstr(QUEUE) + b"\x01")
    with closing(case.open()) as wire:
        return case.cpu_us(lambda: wire.ask(request, GET_OK), times)


def get_and_ack(case: Case, times: int) -> float:
    """basic.get, and an ack of the message before."""
    case.declare(times + 1)
    request = method(1, (60, 70), b"\0\0" + shortstr(QUEUE) + b"\0")
    acks = [b"", *[method(1, (60, 80), struct.pack(">QB", tag, 0)) for tag in range(1, times + 1)]]
    requests = iter([ack + request for ack in acks])
    with closing(case.open()) as wire:
        return case.cpu_us(lambda: wire.ask(next(requests), GET_OK), times)


def get_empty(case: Case, times: int) -> float:
    """basic.get, nothing there."""
    case.declare()
    request = method(1, (60, 70), b"\0\0" + shortstr(QUEUE) + b"\x01")
    with closing(case.open()) as wire:
        return case.cpu_us(lambda: wire.ask(request, GET_EMPTY), times)


def reply(case: Case, times: int) -> float:
    """A request and its answer."""
    case.declare()
    with closing(case.open({})) as requester, closing(case.open({})) as answerer:
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

        return case.cpu_us(work, times)


def body_header(flags: int, properties: bytes) -> bytes:
    """The content header frame of a message."""
    return frame(HEADER, 1, struct.pack(">HHQH", 60, 0, OCTETS, flags) + properties)


def reply_name(delivery: bytes) -> str:
    """The name that the broker gave the requester: the request's reply-to."""
    at = delivery.index(REPLY_TO.encode())
    return delivery[at:at + delivery[at - 1]].decode()


class Kind(NamedTuple):
    """What is measured, and how often in a round."""

    measure: Callable[[Case, int], float]
    times: int


KINDS = {
    "connect": Kind(connect, 500), "get": Kind(get, 5000), "get and ack": Kind(get_and_ack, 5000),
    "get-empty": Kind(get_empty, 5000), "reply": Kind(reply, 3000),
}


def main() -> None:
    """Measure each kind in turns; print medians and the best of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kinds", default=",".join(KINDS), help=", of: " + ", ".join(KINDS))
    parser.add_argument("--command", action="append", default=[], help="starts another broker; may be repeated")
    parser.add_argument("--target", action="append", type=Target.parse, default=[], metavar="NAME=PORT[:SCALE]",
                        help="another broker of this host; may be repeated")
    parser.add_argument("--data-root", default="/var/tmp", help="a directory on the disk to measure")
    parser.add_argument("--json", action="store_true", help="print all figures as one JSON object")
    options = parser.parse_args()
    kinds = {name: KINDS[name] for name in options.kinds.split(",")}
    commands = [BROKERD, *[f"{command} -D {{dir}} -p {{port}}" for command in options.command]]
    with ExitStack() as stack:
        names = ["brokerd", *[f"other {number + 1}" for number in range(len(options.command))]]
        brokers = [stack.enter_context(Broker(command, name, data_root=options.data_root))
                   for command, name in zip(commands, names, strict=True)]
        targets = [*[broker.target for broker in brokers], *options.target]
        figures: dict[str, dict[str, list[float]]] = {name: {one.name: [] for one in targets} for name in kinds}
        for _ in range(options.rounds + 1):
            for name, kind in kinds.items():
                for target in targets:
                    figures[name][target.name].append(kind.measure(Case(target), round(kind.times * target.scale)))
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{'':14}" + "".join(f"{target.name:>20}" for target in targets) + "    medians (best), us")
    for name, by_target in figures.items():
        found = [sorted(by_target[target.name][1:]) for target in targets]      # the first one warms up
        print(f"{name:14}" + "".join(f"{statistics.median(one):12.1f} ({one[0]:.1f})" for one in found))


if __name__ == "__main__":
    main()
