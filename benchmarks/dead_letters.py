"""What does a dead letter cost the broker, by the cause of the death?

    PYTHONPATH=src python benchmarks/dead_letters.py --rounds 7
    PYTHONPATH=src python benchmarks/dead_letters.py --rounds 7 --target lavinmq=5674

The dead letters of a durable queue go through the default exchange to another durable queue, at most once unless the
cause says otherwise.  Messages have 16 octets and are transient.  Printed: microseconds of the broker's CPU for each
message, all its threads, until its dead letter is in the other queue.

    published           nothing dies: what the publish alone costs
    expired             the queue has an x-message-ttl; with the publish
    over length         the queue has an x-max-length; with the publish
    nacked              all messages are out with one consumer, and one basic.nack with `multiple` rejects them; the
                        publish and the delivery are not counted
    persistent          nothing dies: a publish of persistent messages to a quorum queue, without confirms
    at least once       as expired, of persistent messages in a quorum queue with dead-letter-strategy at-least-once;
                        with the publish

Brokers take turns, and so do the causes, with fresh queues each time.
"""

import contextlib
import json
import struct
import time
from collections.abc import Callable
from functools import partial

from brokers import Target
from turns import Case, Cost, Cpu, main

from brokerd.cli.perfclient import Client, method

SOURCE, DEAD = "dead-letters.source", "dead-letters.dead"
DEAD_LETTERS: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
QUORUM: dict[str, object] = {"x-queue-type": "quorum"}
TTL_MS, LENGTH = 500, 10
POLL_SECONDS = 0.02         # A question costs the broker some 50 us.
PATIENCE_SECONDS = 60


class Rejecter(Client):
    """A client that can reject what it was delivered."""

    __slots__ = ()

    def reject_all(self) -> None:
        """Reject all deliveries so far in one basic.nack, without requeueing."""
        self._send(method(1, (60, 120), struct.pack(">QB", 0, 1)))


class Bench:
    """A broker with both queues, empty."""

    def __init__(self, target: Target, messages: int, arguments: dict[str, object]) -> None:
        self._target, self._messages, self._arguments = target, messages, arguments
        self._cpu = Cpu(target)
        self._client = Rejecter(target.address(), PATIENCE_SECONDS)
        self._delete()
        self._client.declare_queue(SOURCE, durable=True, arguments=arguments)
        self._client.declare_queue(DEAD, durable=True)

    def publish(self, flags: str = "") -> None:
        """Publish all messages to the source."""
        done = self._target.perf(f"throughput {flags} -y 0 --durable --keep -u {SOURCE} -n {self._messages} "
                                 f"--queue-args '{json.dumps(self._arguments)}'")
        if "error" in done:
            raise SystemExit(f"{self._target.name}: {done['error']}")

    def wait_for(self, queue: str, count: int) -> None:
        """Until so many messages are ready in the queue."""
        end = time.monotonic() + PATIENCE_SECONDS
        while (found := self._client.declare_queue(queue, passive=True)) != count:
            if time.monotonic() > end:
                raise SystemExit(f"{self._target.name}: {found:,} messages in {queue} instead of {count:,}")
            time.sleep(POLL_SECONDS)

    def take_all(self) -> None:
        """Have all messages delivered to this client's consumer."""
        self._client.consume(SOURCE, "all", no_ack=False)
        self.wait_for(SOURCE, 0)

    def reject_all(self) -> None:
        """Reject what was delivered."""
        self._client.reject_all()

    def cost(self, work: Callable[[], object], left: int) -> Cost:
        """The cost of each message, until all but so many are dead letters."""
        self._cpu.start()
        work()
        self.wait_for(SOURCE, left)
        self.wait_for(DEAD, self._messages - left)
        return Cost(self._cpu.us_each(self._messages))

    def _delete(self) -> None:
        self._client.delete_queue(SOURCE)
        self._client.delete_queue(DEAD)

    def close(self) -> None:
        """Delete the queues."""
        self._delete()
        self._client.drop()


def published(target: Target, messages: int) -> Cost:
    """Nothing dies."""
    with contextlib.closing(Bench(target, messages, {})) as bench:
        return bench.cost(bench.publish, messages)


def expired(target: Target, messages: int) -> Cost:
    """By x-message-ttl."""
    with contextlib.closing(Bench(target, messages, {**DEAD_LETTERS, "x-message-ttl": TTL_MS})) as bench:
        return bench.cost(bench.publish, 0)


def persistent(target: Target, messages: int) -> Cost:
    """Nothing dies."""
    with contextlib.closing(Bench(target, messages, QUORUM)) as bench:
        return bench.cost(partial(bench.publish, "-p"), messages)


def at_least_once(target: Target, messages: int) -> Cost:
    """By x-message-ttl; each letter is on disk before its message is settled."""
    arguments = {**DEAD_LETTERS, **QUORUM, "x-message-ttl": TTL_MS, "x-dead-letter-strategy": "at-least-once",
                 "x-overflow": "reject-publish"}
    with contextlib.closing(Bench(target, messages, arguments)) as bench:
        return bench.cost(partial(bench.publish, "-p"), 0)


def over_length(target: Target, messages: int) -> Cost:
    """By x-max-length."""
    with contextlib.closing(Bench(target, messages, {**DEAD_LETTERS, "x-max-length": LENGTH})) as bench:
        return bench.cost(bench.publish, LENGTH)


def nacked(target: Target, messages: int) -> Cost:
    """By one basic.nack for all."""
    with contextlib.closing(Bench(target, messages, DEAD_LETTERS)) as bench:
        bench.publish()
        bench.take_all()
        return bench.cost(bench.reject_all, 0)


CASES = {
    "published": Case(published, 100_000), "expired": Case(expired, 100_000), "over length": Case(over_length, 100_000),
    "nacked": Case(nacked, 100_000), "persistent": Case(persistent, 100_000),
    "at least once": Case(at_least_once, 100_000),
}

if __name__ == "__main__":
    main(__doc__, CASES)
