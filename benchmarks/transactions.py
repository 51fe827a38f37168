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

import argparse
import json
import shlex
import statistics
import struct
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from brokers import BROKERD, Broker, Target

from brokerd.cli.perfclient import Client, longstr, method, publish_frames, shortstr
from brokerd.cli.perfproc import listeners, usage

OUT, IN, FANOUT = "transactions.out", "transactions.in", "transactions.fanout"
OUTS = [OUT, OUT + ".2", OUT + ".3"]
MESSAGES, OCTETS, FRAME_MAX = 10, 100, 131072
TX_SELECT, TX_COMMIT, COMMIT_OK = (90, 10), (90, 20), method(1, (90, 21))
CONFIRM_SELECT = (85, 10)
PATIENCE_SECONDS = 60


class Wire(Client):
    """A client that sends octets as they are."""

    __slots__ = ()

    def send(self, octets: bytes) -> None:
        """Send the octets."""
        self._send(octets)

    def ask(self, index: tuple[int, int], arguments: bytes = b"") -> None:
        """Send a method, and wait for its answer."""
        self.request(index, arguments, (index[0], index[1] + 1))

    def wait_for(self, index: tuple[int, int]) -> bytes:
        """Read frames up to the method; its arguments."""
        return self._answer(index)

    def wait_until_read(self, octets: bytes) -> None:
        """Read up to this frame, which must be the last."""
        read, self._pending = self._pending, b""
        while not read.endswith(octets):
            part = self._socket.recv(1 << 18)
            if not part:
                raise SystemExit("the broker hung up")
            read = read[-len(octets):] + part


class Cost(NamedTuple):
    """Microseconds for one transaction."""

    cpu: float
    wall: float


def measure(target: Target, count: int, transaction: Callable[[int], bytes], finish: Callable[[Wire, int], None],
            prepare: Callable[[Wire], None]) -> Cost:
    """Send ``count`` transactions, one after the other; the first ones warm up."""
    pids = listeners(target.port)
    if not pids:
        raise SystemExit(f"{target.name}: no process of this host that can be measured listens on {target.port}")
    octets = [transaction(n) for n in range(count)]
    walls = []
    wire = Wire(target.address(), PATIENCE_SECONDS)
    prepare(wire)
    warm, before = count // 5, 0.0
    for n in range(count):
        if n == warm:
            before = usage(pids).cpu_s
        began = time.perf_counter()
        wire.send(octets[n])
        finish(wire, n)
        walls.append(time.perf_counter() - began)
    spent = usage(pids).cpu_s - before
    wire.drop()
    return Cost(spent / (count - warm) * 1e6, statistics.median(walls[warm:]) * 1e6)


def make_queues(target: Target) -> None:
    """Declare all queues anew."""
    client = Client(target.address(), PATIENCE_SECONDS)
    for name in (*OUTS, IN):
        client.delete_queue(name)
        client.declare_queue(name, durable=True)
    client.declare_exchange(FANOUT, "fanout")
    for name in OUTS:
        client.bind(name, FANOUT, "")
    client.drop()


def delete_queues(target: Target) -> None:
    """Delete all queues."""
    client = Client(target.address(), PATIENCE_SECONDS)
    for name in (*OUTS, IN):
        client.delete_queue(name)
    client.drop()


def publishes(exchange: str) -> bytes:
    """The publishes of one transaction."""
    return publish_frames(exchange, OUT, OCTETS, True, FRAME_MAX)[0] * MESSAGES


def select_tx(wire: Wire) -> None:
    """Make the channel transactional."""
    wire.ask(TX_SELECT)


def committed(wire: Wire, _: int) -> None:
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
    def prepare(wire: Wire) -> None:
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
    def confirmed(wire: Wire, n: int) -> None:
        while struct.unpack(">Q", wire.wait_for((60, 80))[:8])[0] < MESSAGES * (n + 1):
            pass

    octets = publishes("")
    return measure(target, count, lambda _: octets, confirmed, lambda wire: wire.ask(CONFIRM_SELECT, b"\0"))


CASES: dict[str, Callable[[Target, int], Cost]] = {
    "one queue": one_queue, "three queues": three_queues, "with acks": with_acks, "confirms": confirms,
}


def tree(text: str) -> tuple[str, str]:
    """NAME=PATH: a name, and the command that starts the brokerd in that folder."""
    name, _, path = text.partition("=")
    if not name or not path:
        raise ValueError(f"{text!r} is not NAME=PATH")
    return name, f"env PYTHONPATH={shlex.quote(path)} {BROKERD}"


def main() -> None:
    """Measure each case in turns; print medians and the best of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--transactions", type=int, default=500, help="in each round and case")
    parser.add_argument("--case", choices=list(CASES), action="append", help="may be repeated; all of them")
    parser.add_argument("--tree", action="append", type=tree, default=[], metavar="NAME=PATH",
                        help="the sources of another brokerd, built, which is started as well; may be repeated")
    parser.add_argument("--target", action="append", type=Target.parse, default=[], metavar="NAME=PORT[:SCALE]",
                        help="another broker of this host; may be repeated")
    parser.add_argument("--data-root", default="/var/tmp", help="a directory on the disk to measure")
    parser.add_argument("--json", action="store_true", help="print all figures as one JSON object")
    options = parser.parse_args()
    cases = {case: CASES[case] for case in options.case or CASES}
    with ExitStack() as stack:
        targets = [stack.enter_context(Broker(data_root=options.data_root)).target]
        targets += [stack.enter_context(Broker(command, name, data_root=options.data_root)).target
                    for name, command in options.tree]
        targets += options.target
        figures: dict[str, dict[str, list[Cost]]] = {case: {target.name: [] for target in targets} for case in cases}
        for _ in range(options.rounds):
            for case, run in cases.items():
                for target in targets:
                    make_queues(target)
                    figures[case][target.name].append(run(target, round(options.transactions * target.scale)))
        for target in targets:
            delete_queues(target)
    if options.json:
        json.dump(figures, sys.stdout)
        return
    print(f"{'us a transaction: median (best)':36}" + "".join(f"{target.name:>20}" for target in targets))
    for case, by_name in figures.items():
        for what in Cost._fields:
            found = [sorted(getattr(cost, what) for cost in by_name[target.name]) for target in targets]
            print(f"{case:16}{what:20}" + "".join(f"{statistics.median(one):12.0f} ({one[0]:.0f})" for one in found))


if __name__ == "__main__":
    main()
