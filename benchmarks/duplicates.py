"""What does the deduplication key of a message cost the broker?

    PYTHONPATH=src python benchmarks/duplicates.py --rounds 7
    PYTHONPATH=src python benchmarks/duplicates.py --rounds 7 --tree before=../before/src --target lavinmq=5674

One connection publishes messages of 16 octets, made before, with a key of 20 octets in the header
x-deduplication-header.  Printed: microseconds of the broker's CPU for each message, all its threads.

    plain           to a queue that looks for no duplicates
    queue           to one that does, with a window of 100,000 keys; each key is new
    known           the same key each time
    number          as queue; the keys are whole numbers
    exchange        to an exchange with a window, which is durable, and has its keys in a log
    both            to such an exchange, and from there to a queue with a window

Brokers take turns, and so do the cases, with a fresh exchange and queue each time.
"""

import struct
from functools import partial
from typing import Any, NamedTuple

from brokers import Target, Wire
from turns import Case, Cost, Cpu, main

from brokerd.cli.perfclient import BODY, HEADER, frame, method, shortstr, table

QUEUE, EXCHANGE, OCTETS, KEYS = "duplicates.queue", "duplicates.exchange", 16, 100_000
RULE: dict[str, Any] = {"x-message-deduplication": True, "x-cache-size": KEYS}


class Kind(NamedTuple):
    """Who looks for duplicates, and the key of message n."""

    by_queue: bool
    by_exchange: bool
    key: str | None = "{:020}"  # None: the number itself


KINDS = {
    "plain": Kind(False, False),
    "queue": Kind(True, False),
    "known": Kind(True, False, "k" * 20),
    "number": Kind(True, False, None),
    "exchange": Kind(False, True),
    "both": Kind(True, True),
}


def publish(key: str | int) -> bytes:
    """One message."""
    properties = table({"x-deduplication-header": key}) + b"\1"
    return (method(1, (60, 40), b"\0\0" + shortstr(EXCHANGE) + shortstr("key") + b"\0")
            + frame(HEADER, 1, struct.pack(">HHQH", 60, 0, OCTETS, 0x3000) + properties)
            + frame(BODY, 1, bytes(OCTETS)))


def measure(kind: Kind, target: Target, messages: int) -> Cost:
    """The cost of each message."""
    cpu = Cpu(target)
    client = Wire(target.address(), 120)
    client.delete_exchange(EXCHANGE)
    client.delete_queue(QUEUE)
    arguments = b"\0\0" + shortstr(EXCHANGE) + shortstr("direct") + b"\2"
    client.request((40, 10), arguments + table(RULE if kind.by_exchange else {}), (40, 11))
    client.declare_queue(QUEUE, durable=True, arguments=RULE if kind.by_queue else {})
    client.bind(QUEUE, EXCHANGE, "key")
    octets = b"".join([publish(n if kind.key is None else kind.key.format(n)) for n in range(messages)])
    cpu.start()
    client.send(octets)
    found = client.declare_queue(QUEUE, passive=True)  # answered when all before it is done
    cost = Cost(cpu.us_each(messages))
    expected = 1 if kind is KINDS["known"] else messages
    if found != expected:
        raise SystemExit(f"{target.name}: {found:,} messages in {QUEUE} instead of {expected:,}")
    client.delete_exchange(EXCHANGE)
    client.delete_queue(QUEUE)
    client.drop()
    return cost


CASES = {name: Case(partial(measure, kind), 100_000) for name, kind in KINDS.items()}

if __name__ == "__main__":
    main(__doc__, CASES)
