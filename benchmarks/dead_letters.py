"""What does a dead letter cost the broker, by the cause of the death?

    PYTHONPATH=src python benchmarks/dead_letters.py --rounds 7
    PYTHONPATH=src python benchmarks/dead_letters.py --rounds 7 --target lavinmq=5674

One durable queue, whose dead letters go through the default exchange to one other durable queue, at most once; messages
of 16 octets, transient.  Printed: microseconds of the broker's CPU for each message, all its threads, until its dead
letter is in the other queue.

    published           nothing dies: what the publish alone costs
    expired             the queue has an x-message-ttl; with the publish
    over length         the queue has an x-max-length; with the publish
    nacked              all messages are out with one consumer, and one basic.nack with `multiple` rejects them; the
                        publish and the delivery are not counted

Brokers take turns, and so do the causes, with fresh queues each time.
"""

import argparse
import contextlib
import json
import statistics
import struct
import time
from collections.abc import Callable

from brokers import Broker, Target

from brokerd.cli.perfclient import Client, method
from brokerd.cli.perfproc import listeners, usage

SOURCE, DEAD = "dead-letters.source", "dead-letters.dead"
DEAD_LETTERS: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
TTL_MS, LENGTH = 500, 10
POLL_SECONDS = 0.02         # A question costs the broker some 50 us.
PATIENCE_SECONDS = 60


class Rejecter(Client):
    """A client that can reject what it was delivered."""

    __slots__ = ()

    def reject_all(self) -> None:
        """Reject all deliveries so far in one basic.nack; none is requeued."""
        self._send(method(1, (60, 120), struct.pack(">QB", 0, 1)))


class Case:
    """A broker with both queues, empty; its CPU time is that of the processes that listen on its port."""

    def __init__(self, target: Target, messages: int, arguments: dict[str, object]) -> None:
        self._target, self._messages, self._arguments = target, messages, arguments
        self._pids = listeners(target.port)
        if not self._pids:
            raise SystemExit(f"{target.name}: no process of this host that can be measured listens on {target.port}")
        self._client = Rejecter(target.address(), PATIENCE_SECONDS)
        self._delete()
        self._client.declare_queue(SOURCE, durable=True, arguments=arguments)
        self._client.declare_queue(DEAD, durable=True)

    def publish(self) -> None:
        """Publish all messages to the source."""
        done = self._target.perf(f"throughput -y 0 --durable --keep -u {SOURCE} -n {self._messages} "
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

    def cpu_us(self, work: Callable[[], object], left: int) -> float:
        """CPU for each message that the work costs, until all but so many are dead letters."""
        before = usage(self._pids).cpu_s
        work()
        self.wait_for(SOURCE, left)
        self.wait_for(DEAD, self._messages - left)
        return (usage(self._pids).cpu_s - before) / self._messages * 1e6

    def _delete(self) -> None:
        self._client.delete_queue(SOURCE)
        self._client.delete_queue(DEAD)

    def close(self) -> None:
        """Delete the queues."""
        self._delete()
        self._client.drop()


def published(target: Target, messages: int) -> float:
    """Nothing dies."""
    with contextlib.closing(Case(target, messages, {})) as case:
        return case.cpu_us(case.publish, messages)


def expired(target: Target, messages: int) -> float:
    """By x-message-ttl."""
    with contextlib.closing(Case(target, messages, {**DEAD_LETTERS, "x-message-ttl": TTL_MS})) as case:
        return case.cpu_us(case.publish, 0)


def over_length(target: Target, messages: int) -> float:
    """By x-max-length."""
    with contextlib.closing(Case(target, messages, {**DEAD_LETTERS, "x-max-length": LENGTH})) as case:
        return case.cpu_us(case.publish, LENGTH)


def nacked(target: Target, messages: int) -> float:
    """By one basic.nack for all."""
    with contextlib.closing(Case(target, messages, DEAD_LETTERS)) as case:
        case.publish()
        case.take_all()
        return case.cpu_us(case.reject_all, 0)


CAUSES: dict[str, Callable[[Target, int], float]] = {
    "published": published, "expired": expired, "over length": over_length, "nacked": nacked,
}


def main() -> None:
    """Measure each cause in turns; print medians and the best of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--target", action="append", type=Target.parse, default=[], metavar="NAME=PORT[:SCALE]",
                        help="another broker of this host; may be repeated")
    parser.add_argument("--data-root", default="/var/tmp", help="a directory on the disk to measure")
    parser.add_argument("--json", action="store_true", help="print all figures as one JSON object")
    options = parser.parse_args()
    with Broker(data_root=options.data_root) as broker:
        targets = [broker.target, *options.target]
        figures: dict[str, dict[str, list[float]]] = {
            cause: {target.name: [] for target in targets} for cause in CAUSES}
        for _ in range(options.rounds + 1):
            for cause, measure in CAUSES.items():
                for target in targets:
                    figures[cause][target.name].append(measure(target, round(options.messages * target.scale)))
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{'':14}" + "".join(f"{target.name:>20}" for target in targets) + "    medians (best), us")
    for cause, by_name in figures.items():
        found = [sorted(by_name[target.name][1:]) for target in targets]        # the first one warms up
        print(f"{cause:14}" + "".join(f"{statistics.median(one):12.2f} ({one[0]:.2f})" for one in found))


if __name__ == "__main__":
    main()
