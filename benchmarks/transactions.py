"""What does a small transaction cost the broker, and how long does its client wait?

    PYTHONPATH=src python benchmarks/transactions.py --rounds 7
    PYTHONPATH=src python benchmarks/transactions.py --rounds 7 --tree before=../before/src --target lavinmq=5674

One client on a plain socket: it sends the frames of one transaction, which were made before, and waits for commit-ok.
Printed for each case: microseconds of the broker's CPU for one transaction, all its threads, and microseconds from the
first octet sent to the answer.  Messages are persistent and of 100 octets, queues are durable.

    one queue       10 publishes to a queue, and tx.commit
    three queues    the same, each message to three queues of a fanout exchange
    with acks       10 publishes to a queue and one ack for 10 deliveries of another queue, and tx.commit
    confirms        for comparison: 10 publishes on a channel with confirms, and the wait for the last of them

Brokers take turns, with fresh queues each time.
"""

import statistics
import struct
import time
from collections.abc import Callable

from brokers import Target, Wire
from turns import Case, Cost, Cpu, main

from brokerd.cli.perfclient import longstr, method, publish_frames, shortstr

OUT, IN, FANOUT = "transactions.out", "transactions.in", "transactions.fanout"
OUTS = [OUT, OUT + ".2", OUT + ".3"]
MESSAGES, OCTETS, FRAME_MAX = 10, 100, 131072
TX_SELECT, TX_COMMIT, COMMIT_OK = (90, 10), (90, 20), method(1, (90, 21))
CONFIRM_SELECT = (85, 10)
PATIENCE_SECONDS = 60


class Transactor(Wire):
    """A client that waits for the octets of an answer."""

    __slots__ = ()

    def wait_until_read(self, octets: bytes) -> None:
        """Read up to this frame, which must be the last."""
        read, self._pending = self._pending, b""
        while not read.endswith(octets):
            part = self._socket.recv(1 << 18)
            if not part:
                raise SystemExit("the broker hung up")
            read = read[-len(octets):] + part


def measure(target: Target, count: int, transaction: Callable[[int], bytes], finish: Callable[[Transactor, int], None],
            prepare: Callable[[Transactor], None]) -> Cost:
    """Send ``count`` transactions, one after the other; the first ones warm up."""
    cpu = Cpu(target)
    octets = [transaction(n) for n in range(count)]
    walls = []
    wire = Transactor(target.address(), PATIENCE_SECONDS)
    prepare(wire)
    warm = count // 5
    for n in range(count):
        if n == warm:
            cpu.start()
        began = time.perf_counter()
        wire.send(octets[n])
        finish(wire, n)
        walls.append(time.perf_counter() - began)
    spent = cpu.us_each(count - warm)
    wire.drop()
    return Cost(spent, statistics.median(walls[warm:]) * 1e6)


def make_queues(target: Target) -> None:
    """Declare all queues anew."""
    client = Wire(target.address(), PATIENCE_SECONDS)
    for name in (*OUTS, IN):
        client.delete_queue(name)
        client.declare_queue(name, durable=True)
    client.declare_exchange(FANOUT, "fanout")
    for name in OUTS:
        client.bind(name, FANOUT, "")
    client.drop()


def delete_queues(target: Target) -> None:
    """Delete all queues."""
    client = Wire(target.address(), PATIENCE_SECONDS)
    for name in (*OUTS, IN):
        client.delete_queue(name)
    client.drop()


def with_queues(measured: Callable[[Target, int], Cost]) -> Callable[[Target, int], Cost]:
    """Have all queues fresh, and gone afterwards."""
    def measure_in_them(target: Target, count: int) -> Cost:
        make_queues(target)
        cost = measured(target, count)
        delete_queues(target)
        return cost

    return measure_in_them


def publishes(exchange: str) -> bytes:
    """The publishes of one transaction."""
    return publish_frames(exchange, OUT, OCTETS, True, FRAME_MAX)[0] * MESSAGES


def select_tx(wire: Transactor) -> None:
    """Make the channel transactional."""
    wire.ask(TX_SELECT)


def committed(wire: Transactor, _: int) -> None:
    """Wait for commit-ok."""
    wire.wait_until_read(COMMIT_OK)


def one_queue(target: Target, count: int) -> Cost:
    """To one queue."""
    octets = publishes("") + method(1, TX_COMMIT)
    return measure(target, count, lambda _: octets, committed, select_tx)


def three_queues(target: Target, count: int) -> Cost:
    """To three queues."""
    octets = publishes(FANOUT) + method(1, TX_COMMIT)
    return measure(target, count, lambda _: octets, committed, select_tx)


def with_acks(target: Target, count: int) -> Cost:
    """To one queue, with acks of another one's deliveries."""
    def prepare(wire: Transactor) -> None:
        wire.send(publish_frames("", IN, OCTETS, True, FRAME_MAX)[0] * (MESSAGES * count))
        wire.ask((60, 20), b"\0\0" + shortstr(IN) + shortstr("c") + b"\0" + longstr(b""))
        for _ in range(MESSAGES * count):
            wire.wait_for((60, 60))
        wire.ask(TX_SELECT)

    def transaction(n: int) -> bytes:
        ack = method(1, (60, 80), struct.pack(">QB", MESSAGES * (n + 1), 1))
        return publishes("") + ack + method(1, TX_COMMIT)

    return measure(target, count, transaction, committed, prepare)


def confirms(target: Target, count: int) -> Cost:
    """No transaction: confirms."""
    def confirmed(wire: Transactor, n: int) -> None:
        while struct.unpack(">Q", wire.wait_for((60, 80))[:8])[0] < MESSAGES * (n + 1):
            pass

    octets = publishes("")
    return measure(target, count, lambda _: octets, confirmed, lambda wire: wire.ask(CONFIRM_SELECT, b"\0"))


CASES = {
    "one queue": Case(with_queues(one_queue), 500), "three queues": Case(with_queues(three_queues), 500),
    "with acks": Case(with_queues(with_acks), 500), "confirms": Case(with_queues(confirms), 500),
}

if __name__ == "__main__":
    main(__doc__, CASES)
