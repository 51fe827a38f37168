"""What does a message through a delayed exchange cost the broker, until it is in its queue?

    PYTHONPATH=src python benchmarks/delayed.py --rounds 7
    PYTHONPATH=src python benchmarks/delayed.py --rounds 7 --tree before=../before/src --target lavinmq=5674

One connection publishes messages of 16 octets, made before, to an exchange with one durable queue.  Printed:
microseconds of the broker's CPU for each message, all its threads, until all are in the queue.

    direct          through a direct exchange: what the publish alone costs
    at once         through a delayed exchange, without a delay
    equal           with an x-delay of 1,000 ms
    differ          with an x-delay from 1 to 2,000 ms, in no order
    persistent      as equal, with persistent messages; the client asks for no confirms

Brokers take turns, and so do the cases, with a fresh exchange and queue each time.  LavinMQ has no plugin: it is given
the argument x-delayed-exchange, as brokerd is.
"""

import random
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from brokers import Target, Wire
from turns import Case, Cost, Cpu, main

from brokerd.cli.perfclient import BODY, HEADER, frame, method, shortstr, table

QUEUE, EXCHANGE, OCTETS = "delayed.queue", "delayed.exchange", 16
DELAY_MS, LONGEST_MS = 1000, 2000
POLL_SECONDS, PATIENCE_SECONDS = 0.02, 120


class Kind(NamedTuple):
    """Whether the exchange delays, the delay of the n-th message (None: no header), and its delivery mode."""

    delays: bool
    delay: Callable[[random.Random], int | None]
    mode: int = 1


KINDS = {
    "direct": Kind(False, lambda _: None),
    "at once": Kind(True, lambda _: None),
    "equal": Kind(True, lambda _: DELAY_MS),
    "differ": Kind(True, lambda chance: chance.randint(1, LONGEST_MS)),
    "persistent": Kind(True, lambda _: DELAY_MS, 2),
}


def publish(delay: int | None, mode: int) -> bytes:
    """One message."""
    flags, properties = 0x1000, bytes([mode])
    if delay is not None:
        flags, properties = 0x3000, table({"x-delay": delay}) + properties
    return (method(1, (60, 40), b"\0\0" + shortstr(EXCHANGE) + shortstr("key") + b"\0")
            + frame(HEADER, 1, struct.pack(">HHQH", 60, 0, OCTETS, flags) + properties)
            + frame(BODY, 1, bytes(OCTETS)))


def measure(kind: Kind, target: Target, messages: int) -> Cost:
    """The cost of each message."""
    cpu = Cpu(target)
    client = Wire(target.address(), PATIENCE_SECONDS)
    client.delete_exchange(EXCHANGE)
    client.delete_queue(QUEUE)
    arguments = b"\0\0" + shortstr(EXCHANGE) + shortstr("direct") + b"\2"
    client.request((40, 10), arguments + table({"x-delayed-exchange": True} if kind.delays else {}), (40, 11))
    client.declare_queue(QUEUE, durable=True)
    client.bind(QUEUE, EXCHANGE, "key")
    chance = random.Random(1)
    octets = b"".join([publish(kind.delay(chance), kind.mode) for _ in range(messages)])
    end = time.monotonic() + PATIENCE_SECONDS
    cpu.start()
    client.send(octets)
    if kind.delay(chance) is not None:
        time.sleep(LONGEST_MS / 1000)
    while (found := client.declare_queue(QUEUE, passive=True)) != messages:
        if time.monotonic() > end:
            raise SystemExit(f"{target.name}: {found:,} messages in {QUEUE} instead of {messages:,}")
        time.sleep(POLL_SECONDS)
    cost = Cost(cpu.us_each(messages))
    client.delete_exchange(EXCHANGE)
    client.delete_queue(QUEUE)
    client.drop()
    return cost


CASES = {name: Case(partial(measure, kind), 50_000) for name, kind in KINDS.items()}

if __name__ == "__main__":
    main(__doc__, CASES)
