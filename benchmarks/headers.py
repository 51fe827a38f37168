"""What does a message through a headers exchange cost the broker, in and out, by what its headers have in common?

    PYTHONPATH=src python benchmarks/headers.py --rounds 7
    PYTHONPATH=src python benchmarks/headers.py --rounds 7 --command "env PYTHONPATH=OTHER/src python -m brokerd"

One connection publishes transient messages of 16 octets, made before; another one has a consumer without acks.
Printed: microseconds of the broker's CPU for each message, all its threads.

    direct          through a direct exchange, with one header that nothing reads
    same            one header, one binding that asks for it
    others differ   the same, and a second header, different each time, that no binding asks for
    values differ   the binding takes any message that has the header; its value is different each time
    bound values    as many bindings as messages, each of which asks for another value: the first message of each

Brokers take turns, and so do the cases, with a fresh exchange each time.  ``--command`` (how another broker starts;
"-D DIRECTORY -p PORT" is added) and ``--target`` (one that is up) bring others in.
"""

import argparse
import json
import statistics
import struct
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from brokers import BROKERD, Broker, Target

from brokerd.cli.perfclient import BODY, HEADER, Client, frame, method, shortstr, table
from brokerd.cli.perfproc import listeners, usage

QUEUE, EXCHANGE, TAG = "headers.queue", "headers.exchange", "c"
OCTETS = 16
PATIENCE_SECONDS = 60

Headers = Callable[[int], dict[str, object]]


class Peer(Client):
    """A client that sends and reads octets as they are."""

    __slots__ = ()

    def send(self, octets: bytes) -> None:
        """Send, and wait for nothing."""
        self._send(octets)

    def read(self, octets: int) -> None:
        """Until so many octets came."""
        octets -= len(self._pending)
        room = bytearray(1 << 20)
        while octets > 0:
            came = self._socket.recv_into(room, min(octets, len(room)))
            if not came:
                raise SystemExit("the broker hung up")
            octets -= came


class Case(NamedTuple):
    """What is bound, and what a message has; both by a number.  bindings: how many; 0: as many as messages."""

    kind: str
    binding: Headers
    message: Headers
    bindings: int = 1


CASES = {
    "direct": Case("direct", lambda n: {}, lambda n: {"a": 1}),
    "same": Case("headers", lambda n: {"a": 1}, lambda n: {"a": 1}),
    "others differ": Case("headers", lambda n: {"a": 1}, lambda n: {"a": 1, "n": n}),
    "values differ": Case("headers", lambda n: {"a": None}, lambda n: {"a": n}),
    "bound values": Case("headers", lambda n: {"a": n}, lambda n: {"a": n}, 0),
}


def publish(headers: dict[str, object]) -> bytes:
    """One message."""
    properties = table(headers)
    return (method(1, (60, 40), b"\0\0" + shortstr(EXCHANGE) + shortstr("") + b"\0")
            + frame(HEADER, 1, struct.pack(">HHQH", 60, 0, OCTETS, 0x2000) + properties)
            + frame(BODY, 1, bytes(OCTETS)))


def measure(target: Target, case: Case, messages: int) -> float:
    """CPU for each message."""
    pids = listeners(target.port)
    if not pids:
        raise SystemExit(f"{target.name}: no process of this host that can be measured listens on {target.port}")
    publisher, consumer = (Peer(target.address(), PATIENCE_SECONDS) for _ in range(2))
    publisher.delete_queue(QUEUE)
    publisher.delete_exchange(EXCHANGE)
    publisher.declare_exchange(EXCHANGE, case.kind)
    publisher.declare_queue(QUEUE)
    head = b"\0\0" + shortstr(QUEUE) + shortstr(EXCHANGE) + shortstr("") + b"\1"    # nothing answers
    publisher.send(b"".join([method(1, (50, 20), head + table(case.binding(n)))
                             for n in range(case.bindings or messages)]))
    publisher.declare_queue(QUEUE, passive=True)
    consumer.consume(QUEUE, TAG, no_ack=True)
    octets = b"".join([publish(case.message(n)) for n in range(messages)])
    # Of the method only the tag, the delivery tag and a bit are not in the publish, and the 16 bits that are reserved.
    delivered = len(octets) + messages * (len(shortstr(TAG)) + 8 + 1 - 2 - 1)
    reader = threading.Thread(target=consumer.read, args=(delivered,))
    before = usage(pids).cpu_s
    reader.start()
    publisher.send(octets)
    reader.join()
    spent = usage(pids).cpu_s - before
    publisher.delete_queue(QUEUE)
    publisher.delete_exchange(EXCHANGE)
    for one in (publisher, consumer):
        one.drop()
    return spent / messages * 1e6


def main() -> None:
    """Measure each case in turns; print medians and the best of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--command", action="append", default=[], help="starts another broker; may be repeated")
    parser.add_argument("--target", action="append", type=Target.parse, default=[], metavar="NAME=PORT[:SCALE]",
                        help="another broker of this host; may be repeated")
    parser.add_argument("--data-root", default="/var/tmp", help="a directory on the disk to measure")
    parser.add_argument("--json", action="store_true", help="print all figures as one JSON object")
    options = parser.parse_args()
    commands = [BROKERD, *[f"{command} -D {{dir}} -p {{port}}" for command in options.command]]
    with ExitStack() as stack:
        names = ["brokerd", *[f"other {number + 1}" for number in range(len(options.command))]]
        brokers = [stack.enter_context(Broker(command, name, data_root=options.data_root))
                   for command, name in zip(commands, names, strict=True)]
        targets = [*[broker.target for broker in brokers], *options.target]
        figures: dict[str, dict[str, list[float]]] = {name: {one.name: [] for one in targets} for name in CASES}
        for _ in range(options.rounds + 1):
            for name, case in CASES.items():
                for target in targets:
                    figures[name][target.name].append(measure(target, case, round(options.messages * target.scale)))
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{'':14}" + "".join(f"{target.name:>20}" for target in targets) + "    medians (best), us")
    for name, by_target in figures.items():
        found = [sorted(by_target[target.name][1:]) for target in targets]      # the first one warms up
        print(f"{name:14}" + "".join(f"{statistics.median(one):12.2f} ({one[0]:.2f})" for one in found))


if __name__ == "__main__":
    main()
