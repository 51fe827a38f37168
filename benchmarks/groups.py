"""What do message groups cost the broker, and does one group hold up the others?  Each figure beside the wanted one.

    PYTHONPATH=src python benchmarks/groups.py
    PYTHONPATH=src python benchmarks/groups.py --rounds 15 --rows cost

Rows, in microseconds of the broker's CPU for each message unless they say otherwise:

    cost    One connection publishes 16 octets with a group in the header group-id; ten others consume, with a prefetch
            of 100, and acknowledge each message by itself.  10,000 groups in rotation: a queue without groups (plain),
            exclusive groups, sticky groups.  Rounds take turns; printed are medians, and the best in brackets.
    hot     As exclusive, behind 1,000,000 messages of one group, of which the first is out; what their memory is, and
            what it costs to look past one of them.
    live    1,000,000 groups with a message out each: octets of memory beyond the same without groups.
    back    100,000 messages that are out come back at once, by one basic.nack: of one sticky group, and of as many
            groups with a message each.
    retry   1,000,000 messages come back and wait for a retry, until all are ready again: what that costs beyond the
            same without a delay.  In a queue without groups, and in one with a group for each message.
    noisy   100,000 messages of one group before those of 1,000 quiet ones; ten workers, one message a step each.
            Amazon SQS calls a group noisy that has more than a tenth of what is out, and 30 messages or more, or more
            than a tenth of the processing time.  And how many steps the quiet ones take, with it and without.  What is
            out is looked at while quiet messages wait.
"""

import argparse
import selectors
import statistics
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from brokers import Broker, Target, Wire
from turns import Cpu, choose

from brokerd.cli.perfclient import BODY, HEADER, frame, method, shortstr, table
from brokerd.cli.perfproc import listeners, usage

QUEUE, OCTETS, GROUPS, CONSUMERS, PREFETCH = "groups.queue", 16, 10_000, 10, 100
MANY = 1_000_000
PIECE = 10_000  # messages that are published at a time
QUIET, NOISE = 1_000, 100_000
RETRY_MS = 5_000
DELIVER = struct.pack(">HH", 60, 60)
ACK_HEAD, FRAME_END = struct.pack(">BHIHH", 1, 1, 13, 60, 80), b"\0\xce"
EXCLUSIVE, STICKY = {"x-message-group": "exclusive"}, {"x-message-group": "sticky"}
RETRY = {"x-delayed-retry-type": "all", "x-delayed-retry-min": RETRY_MS, "x-delayed-retry-max": RETRY_MS}


class Line(NamedTuple):
    """A figure; ``most``: what it shall not exceed."""

    what: str
    value: float
    unit: str
    most: float | None = None
    best: float | None = None


def publish(group: str) -> bytes:
    """One message."""
    properties = table({"group-id": group}) + b"\1"
    return (method(1, (60, 40), b"\0\0" + shortstr("") + shortstr(QUEUE) + b"\0")
            + frame(HEADER, 1, struct.pack(">HHQH", 60, 0, OCTETS, 0x3000) + properties)
            + frame(BODY, 1, bytes(OCTETS)))


class Worker:
    """A consumer; ``held``: what it has not acknowledged, where that is asked for."""

    def __init__(self, target: Target, prefetch: int = PREFETCH) -> None:
        self.client = Wire(target.address(), 600)
        self.client.ask((60, 10), struct.pack(">IHB", 0, prefetch, 0))
        self.rest = b""
        self.tag = b""  # of the last delivery
        self.held: deque[tuple[bytes, bool]] = deque()  # tag, and whether the message is of the group "noisy"

    def consume(self) -> None:
        """Begin; without an answer (nowait), which might come together with deliveries."""
        self.client.send(method(1, (60, 20), b"\0\0" + shortstr(QUEUE) + shortstr("t") + b"\x08" + table({})))

    def read(self, *, hold: bool = False) -> list[bytes]:
        """The delivery tags that have come.  hold: note them in ``held``."""
        octets, at, tags = self.rest + self.client._socket.recv(1 << 18), 0, []
        while len(octets) - at >= 7:
            end = at + 8 + int.from_bytes(octets[at + 3:at + 7], "big")
            if end > len(octets):
                break
            if octets[at] == 1 and octets[at + 7:at + 11] == DELIVER:
                tag = at + 12 + octets[at + 11]
                tags.append(octets[tag:tag + 8])
                self.tag = tags[-1]
            elif hold and octets[at] == HEADER:
                self.held.append((self.tag, octets.find(b"noisy", at, end) > 0))
            at = end
        self.rest = octets[at:]
        return tags

    def work(self) -> int:
        """Read what is there, and acknowledge each message.  Returns how many."""
        tags = self.read()
        if tags:
            self.ack(*tags)
        return len(tags)

    def ack(self, *tags: bytes) -> None:
        """Acknowledge these, each by itself."""
        self.client.send(b"".join([ACK_HEAD + tag + FRAME_END for tag in tags]))

    def drop(self) -> None:
        """Leave."""
        self.client.drop()


def drain(workers: list[Worker], messages: int) -> None:
    """Work until so many messages are acknowledged."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.client._socket, selectors.EVENT_READ, worker)
            messages -= worker.work() if worker.rest else 0
        while messages > 0:
            for key, _ in selector.select(60):
                messages -= key.data.work()


class Place:
    """A client and a fresh queue, which goes at the end."""

    def __init__(self, target: Target, arguments: dict[str, Any]) -> None:
        self.target, self.workers = target, list[Worker]()
        self.client = Wire(target.address(), 600)
        self.client.delete_queue(QUEUE)
        self.client.declare_queue(QUEUE, durable=True, arguments=arguments)

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self.workers:
            worker.drop()
        self.client.delete_queue(QUEUE)
        self.client.drop()

    def put(self, groups: Iterator[str], count: int) -> None:
        """Publish so many messages, and wait until they are there."""
        for _ in range(count // PIECE):
            self.client.send(b"".join([publish(next(groups)) for _ in range(PIECE)]))
        self.ready()

    def ready(self) -> int:
        """Messages that are ready."""
        return self.client.declare_queue(QUEUE, passive=True)

    def hire(self, count: int = CONSUMERS, prefetch: int = PREFETCH) -> list[Worker]:
        """Consumers that have not begun."""
        some = [Worker(self.target, prefetch) for _ in range(count)]
        self.workers += some
        return some

    def take_first(self) -> None:
        """Somebody gets the first message, and keeps it."""
        (holder,) = self.hire(1)
        holder.client.request((60, 70), b"\0\0" + shortstr(QUEUE) + b"\0", (60, 71))

    def memory(self) -> float:
        """KiB that the broker has for itself."""
        return usage(listeners(self.target.port)).rss_anon_kb


def again(name: str) -> Iterator[str]:
    """One group for ever."""
    while True:
        yield name


def numbered() -> Iterator[str]:
    """A new group each time."""
    number = 0
    while True:
        number += 1
        yield f"customer-{number}"


# --- cost, hot


def rotation(place: Place, workers: list[Worker], messages: int) -> float:
    """The cost of a message from publish to ack, in rounds of as many as there are groups."""
    octets, cpu = b"".join([publish(f"customer-{n}") for n in range(GROUPS)]), Cpu(place.target)
    rounds = max(messages // GROUPS, 1)
    cpu.start()
    for _ in range(rounds):
        place.client.send(octets)
        drain(workers, GROUPS)
    return cpu.us_each(rounds * GROUPS)


def measure(target: Target, arguments: dict[str, Any], messages: int) -> float:
    """The cost of a message in a queue with these arguments."""
    with Place(target, arguments) as place:
        workers = place.hire()
        for worker in workers:
            worker.consume()
        return rotation(place, workers, messages)


def cost(target: Target, rounds: int) -> Iterator[Line]:
    """Row cost."""
    kinds = {"plain": {}, "exclusive": EXCLUSIVE, "sticky": STICKY}
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(rounds + 1):
        for kind, arguments in kinds.items():
            figure = measure(target, arguments, 10 * GROUPS)
            if turn:  # The first round warms up.
                found[kind].append(figure)
    for kind, figures in found.items():
        yield Line(kind, statistics.median(figures), "us", best=min(figures))
    medians = {kind: statistics.median(figures) for kind, figures in found.items()}
    yield Line("exclusive / plain", medians["exclusive"] / medians["plain"], "times", 1.3,
               min(found["exclusive"]) / min(found["plain"]))


def hot(target: Target, rounds: int) -> Iterator[Line]:
    """Row hot: rounds with the hot group take turns with rounds in a broker without it."""
    with Broker() as fresh, Place(fresh.target, EXCLUSIVE) as free, Place(target, EXCLUSIVE) as place:
        place.put(again("hot"), MANY)
        place.take_first()
        workers, others, cpu, before = place.hire(), free.hire(), Cpu(target), place.memory()
        cpu.start()
        for worker in (*workers, *others):
            worker.consume()
        place.client.send(publish("other"))
        drain(workers, 1)  # All of the hot group has been looked past.
        yield Line("looked past", cpu.us_each(MANY), "us")
        yield Line("memory of what was looked past", (place.memory() - before) / 1024, "MiB", 16)
        with_it, without = [], []
        for _ in range(rounds + 1):
            with_it.append(rotation(place, workers, 10 * GROUPS))
            without.append(rotation(free, others, 10 * GROUPS))
    yield Line("behind the hot group", statistics.median(with_it[1:]), "us", best=min(with_it[1:]))
    yield Line("without it", statistics.median(without[1:]), "us", best=min(without[1:]))
    yield Line("with / without", statistics.median(with_it[1:]) / statistics.median(without[1:]), "times", 1.1,
               min(with_it[1:]) / min(without[1:]))


# --- live, retry


def all_out(place: Place) -> Worker:
    """A worker that has everything, and acknowledges nothing."""
    place.put(numbered(), MANY)
    (worker,) = place.hire(1, prefetch=0)
    worker.consume()
    count = 0
    while count < MANY:
        count += len(worker.read())
    return worker


def live(target: Target, _rounds: int) -> Iterator[Line]:
    """Row live."""
    octets = []
    for arguments in ({}, EXCLUSIVE):
        with Broker() as fresh, Place(fresh.target, arguments) as place:
            before = place.memory()
            all_out(place)
            octets.append((place.memory() - before) * 1024 / MANY)
    yield Line("a message that is out", octets[0], "octets")
    yield Line("and its group", octets[1] - octets[0], "octets", 100)


def come_back(target: Target, arguments: dict[str, Any]) -> float:
    """Everything is returned at once; the cost of each until all is ready."""
    with Place(target, arguments) as place:
        worker, cpu = all_out(place), Cpu(place.target)
        worker.client.request((60, 30), shortstr("t") + b"\0", (60, 31))
        cpu.start()
        worker.client.send(method(1, (60, 120), bytes(8) + b"\3"))
        groups = "x-message-group" in arguments
        time.sleep(RETRY_MS / 1000 if "x-delayed-retry-type" in arguments else 0)
        while not groups and place.ready() < MANY:
            time.sleep(0.1)
        if groups:  # What waits in its group is not counted as ready: the first message goes out behind all others.
            place.client.send(publish("last"))
            (other,) = place.hire(1, prefetch=0)
            other.consume()
            count = 0
            while count <= MANY:
                count += len(other.read())
        return cpu.us_each(MANY)


def retry(target: Target, _rounds: int) -> Iterator[Line]:
    """Row retry."""
    for name, arguments in (("", {}), (", in groups", EXCLUSIVE)):
        at_once = come_back(target, arguments)
        later = come_back(target, arguments | RETRY)
        yield Line(f"come back at once{name}", at_once, "us")
        yield Line(f"come back later{name}", later, "us")
        yield Line(f"for its retry time{name}", later - at_once, "us", 0.5)


def back(target: Target, _rounds: int) -> Iterator[Line]:
    """Row back."""
    costs = []
    for groups in (numbered(), again("one")):
        with Place(target, STICKY) as place:
            place.put(groups, NOISE)
            (worker,) = place.hire(1, prefetch=0)
            worker.consume()
            count = 0
            while count < NOISE:
                count += len(worker.read())
            cpu = Cpu(target)
            worker.client.request((60, 30), shortstr("t") + b"\0", (60, 31))
            cpu.start()
            worker.client.send(method(1, (60, 120), bytes(8) + b"\3"))
            worker.client.ask((20, 20), b"\1")  # channel.flow: it is answered when all have come back.
            costs.append(cpu.us_each(NOISE))
    yield Line("come back, each a group", costs[0], "us")
    yield Line("come back, one group", costs[1], "us")
    yield Line("one group / each a group", costs[1] / costs[0], "times", 1.3)


# --- noisy


class Steps(NamedTuple):
    """What happened until the quiet groups were done.  ``most_out``: of the noisy group, at its greatest share."""

    steps: int
    noisy_worked: int
    worked: int
    most_out: int
    of_all_out: int


def step_on(place: Place) -> Steps:
    """Ten workers finish one message a step each, until all quiet messages are done."""
    workers = place.hire()
    for worker in workers:
        worker.consume()
        worker.client._socket.setblocking(False)
    steps = worked = noisy = most_out = of_all_out = 0
    while worked - noisy < 10 * QUIET:
        steps += 1
        for worker in workers:
            try:
                while True:
                    worker.read(hold=True)
            except BlockingIOError:
                pass
        out = [is_noisy for worker in workers for _, is_noisy in worker.held]
        # While quiet messages wait: when they run out, the noisy group is alone, and delays nobody.
        waits = worked - noisy + len(out) - sum(out) < 10 * QUIET
        if waits and len(out) >= CONSUMERS * PREFETCH // 2 and sum(out) * of_all_out >= most_out * len(out):
            most_out, of_all_out = sum(out), len(out)
        for worker in workers:
            if worker.held:
                tag, is_noisy = worker.held.popleft()
                worker.client._socket.setblocking(True)
                worker.ack(tag)
                worker.client._socket.setblocking(False)
                worked, noisy = worked + 1, noisy + is_noisy
        time.sleep(0.001)
    return Steps(steps, noisy, worked, most_out, max(of_all_out, 1))


def noisy(target: Target, _rounds: int) -> Iterator[Line]:
    """Row noisy."""
    for name, arguments in (("exclusive", EXCLUSIVE), ("10 out", EXCLUSIVE | {"x-group-max-inflight": 10}),
                            ("sticky", STICKY)):
        taken = []
        for noise in (0, NOISE):
            with Place(target, arguments) as place:
                place.put(again("noisy"), noise)
                place.put(iter([f"quiet-{n}" for _ in range(10) for n in range(QUIET)]), 10 * QUIET)
                taken.append(step_on(place))
        without, found = taken
        yield Line(f"{name}: of what is out, the noisy group has", 100 * found.most_out / found.of_all_out, "%", 10)
        yield Line(f"{name}: of the processing time", 100 * found.noisy_worked / found.worked, "%", 10)
        yield Line(f"{name}: steps of the quiet, with / without it", found.steps / without.steps, "times", 1.2)


ROWS: dict[str, Callable[[Target, int], Iterator[Line]]] = {
    "cost": cost, "hot": hot, "live": live, "back": back, "retry": retry, "noisy": noisy,
}  # fmt: skip

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = choose(parser, ROWS, "rows")
    options = parser.parse_args()
    for row in chosen(options):
        with Broker() as broker:
            for line in ROWS[row](broker.target, options.rounds):
                best = "" if line.best is None else f" ({line.best:.2f})"
                wanted = "" if line.most is None else f"at most {line.most:g}" + (
                    "" if line.value <= line.most else "  MISSED")
                print(f"{row:6} {line.what:52}{line.value:9.2f}{best:8} {line.unit:7}{wanted}", flush=True)
