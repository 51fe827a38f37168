"""What does a message through a headers exchange cost the broker, in and out, by what its headers have in common?

    PYTHONPATH=src python benchmarks/headers.py --rounds 7
    PYTHONPATH=src python benchmarks/headers.py --rounds 7 --tree before=../before/src --target lavinmq=5674

One connection publishes transient messages of 16 octets, made before; another one has a consumer without acks.
Printed: microseconds of the broker's CPU for each message, all its threads.

    direct          through a direct exchange, with one header that nothing reads
    same            one header, one binding that asks for it
    others differ   the same, and a second header, different each time, that no binding asks for
    values differ   the binding takes any message that has the header; its value is different each time
    bound values    as many bindings as messages, each of which asks for another value: the first message of each

Brokers take turns, and so do the cases, with a fresh exchange each time.
"""

import struct
import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from brokers import Target
from turns import Case, Cost, Cpu, main

from brokerd.cli.perfclient import BODY, HEADER, Client, frame, method, shortstr, table

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


class Kind(NamedTuple):
    """What is bound, and what a message has; both by a number.  bindings: how many; 0: as many as messages."""

    kind: str
    binding: Headers
    message: Headers
    bindings: int = 1


KINDS = {
    "direct": Kind("direct", lambda n: {}, lambda n: {"a": 1}),
    "same": Kind("headers", lambda n: {"a": 1}, lambda n: {"a": 1}),
    "others differ": Kind("headers", lambda n: {"a": 1}, lambda n: {"a": 1, "n": n}),
    "values differ": Kind("headers", lambda n: {"a": None}, lambda n: {"a": n}),
    "bound values": Kind("headers", lambda n: {"a": n}, lambda n: {"a": n}, 0),
}


def publish(headers: dict[str, object]) -> bytes:
    """One message."""
    properties = table(headers)
    return (method(1, (60, 40), b"\0\0" + shortstr(EXCHANGE) + shortstr("") + b"\0")
            + frame(HEADER, 1, struct.pack(">HHQH", 60, 0, OCTETS, 0x2000) + properties)
            + frame(BODY, 1, bytes(OCTETS)))


def measure(kind: Kind, target: Target, messages: int) -> Cost:
    """The cost of each message."""
    cpu = Cpu(target)
    publisher, consumer = (Peer(target.address(), PATIENCE_SECONDS) for _ in range(2))
    publisher.delete_queue(QUEUE)
    publisher.delete_exchange(EXCHANGE)
    publisher.declare_exchange(EXCHANGE, kind.kind)
    publisher.declare_queue(QUEUE)
    head = b"\0\0" + shortstr(QUEUE) + shortstr(EXCHANGE) + shortstr("") + b"\1"    # nothing answers
    publisher.send(b"".join([method(1, (50, 20), head + table(kind.binding(n)))
                             for n in range(kind.bindings or messages)]))
    publisher.declare_queue(QUEUE, passive=True)
    consumer.consume(QUEUE, TAG, no_ack=True)
    octets = b"".join([publish(kind.message(n)) for n in range(messages)])
    # Of the method only the tag, the delivery tag and a bit are not in the publish, and the 16 bits that are reserved.
    delivered = len(octets) + messages * (len(shortstr(TAG)) + 8 + 1 - 2 - 1)
    reader = threading.Thread(target=consumer.read, args=(delivered,))
    cpu.start()
    reader.start()
    publisher.send(octets)
    reader.join()
    cost = Cost(cpu.us_each(messages))
    publisher.delete_queue(QUEUE)
    publisher.delete_exchange(EXCHANGE)
    for one in (publisher, consumer):
        one.drop()
    return cost


CASES = {name: Case(partial(measure, kind), 50_000) for name, kind in KINDS.items()}

if __name__ == "__main__":
    main(__doc__, CASES)
