"""What does a stream cost: to publish to, to read, to search with a filter, to enter by a time, and to start with?

    PYTHONPATH=src python benchmarks/streams.py --rounds 5 --write-readme
    PYTHONPATH=src python benchmarks/streams.py --rounds 5 --rows read,ten --tree before=../before/src
    PYTHONPATH=src python benchmarks/streams.py --rounds 1 --rows attach,start,kill --long 100000000

Messages have 16 octets.  Costs are microseconds of the broker's CPU, all its threads: medians, in brackets the best.

    queue           publish into a plain durable queue, for comparison
    publish         publish the same into a stream
    read            one reader from the start: an ack every 100, a prefetch of 1,000
    both            the same, while another connection publishes
    ten             ten readers at the end while another connection publishes, for each delivery
    replay          one reader through a long stream, in order: an ack every 1,000, a prefetch of 10,000
    one in 100      a reader from the start that wants a value of x-stream-filter-value: for each message that is there
    one in 1000     the same, of a value that is rarer
    rare            the same, of a value that ten messages in a row have, at the end
    table           one in 100, by a table that asks for a header
    sql             one in 100, by an expression
    memory          of a reader at the end, over a plain consumer; KiB
    holding         the same, while each has 100 unacknowledged messages
    attach          begin to read at a time in a long stream, until the first delivery; milliseconds
    empty           start a broker that has nothing, until a client has logged in: milliseconds of its CPU
    start           start with a long stream, until that answers, the same.  LavinMQ's is elapsed, and of a queue
    kill            the same after kill -9

Row c of suite.py is measured in the same run.  LavinMQ 2.9.1's figures, and those that are wanted, are of an hour in
which row c cost brokerd 0.14 us.  The table has them as they would be at the pace of this run, but for memory and
milliseconds.  Brokers take turns.
"""

import argparse
import random
import signal
import statistics
import struct
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from brokers import BROKERD, POLL_SECONDS, Broker, Target, Wire
from features import ROW_C_US, row_c, text
from turns import add_trees, choose

from brokerd.cli.perfclient import BODY, HEADER, frame, longstr, method, qos_arguments, shortstr, table
from brokerd.cli.perfproc import usage

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- streams: written by streams.py --write-readme -->", "<!-- end of streams -->"

STREAM, QUEUE, LONG, VALUES = "streams.stream", "streams.queue", "streams.long", "streams.values"
OF_STREAM = {"x-queue-type": "stream"}
ARGUMENTS = "--durable --queue-args '{\"x-queue-type\": \"stream\"}'"
FROM_FIRST = "--consumer-args '{\"x-stream-offset\": \"first\"}'"
OCTETS, PIECE, RARE = 16, 10_000, 10
CONSUMERS, HELD = 1_000, 100
ATTACHES = 20


class Bench:
    """What is measured: a broker, how many messages, and how many the long stream has."""

    def __init__(self, broker: Broker, command: str, scale: float, long: int) -> None:
        self.broker, self.target, self.command, self.scale, self.long = broker, broker.target, command, scale, long
        self.since = self.until = 0.0   # when the long stream was made

    def count(self, messages: int) -> int:
        """As many messages, or fewer in a short run."""
        return max(round(messages * self.scale) // PIECE, 1) * PIECE

    def perf(self, arguments: str) -> dict[str, Any]:
        """Run brokerperf."""
        done = self.target.perf(arguments)
        if "error" in done:
            raise SystemExit(f"{self.target.name}: brokerperf {arguments}: {done['error']}")
        return done

    def fill(self, name: str, messages: int, arguments: str) -> dict[str, Any]:
        """Publish into a fresh queue, which stays."""
        self.remove(name)
        return self.perf(f"throughput -y 0 --keep -n {messages} -u {name} {arguments}")

    def remove(self, name: str) -> None:
        """Delete a queue, if there is one."""
        client = Wire(self.target.address())
        client.delete_queue(name)
        client.drop()


# --- publishing and reading


def cpu_of(done: dict[str, Any]) -> float:
    """Microseconds for each message of a run of brokerperf."""
    return float(done["broker"]["cpu_s_per_million"])


def publish(bench: Bench, arguments: str = ARGUMENTS) -> float:
    """Publish alone."""
    cost = cpu_of(bench.fill(STREAM, bench.count(4_000_000), arguments))
    bench.remove(STREAM)
    return cost


def read(bench: Bench) -> float:
    """Read all from the start."""
    bench.fill(STREAM, bench.count(4_000_000), ARGUMENTS)
    done = bench.perf(f"drain -u {STREAM} --ack multi:100 -P 1000 {FROM_FIRST}")
    bench.remove(STREAM)
    return cpu_of(done)


def both(bench: Bench) -> float:
    """Publish and read at once."""
    return cpu_of(bench.perf(f"throughput -u {STREAM} {ARGUMENTS} -n {bench.count(2_000_000)} --ack multi:100 -P 1000 "
                             + FROM_FIRST))


def ten(bench: Bench) -> float:
    """Ten readers at the end."""
    return cpu_of(bench.perf(f"throughput -u {STREAM} {ARGUMENTS} -n {bench.count(500_000)} -y 10 --copies 10 "
                             "--ack multi:100 -P 1000"))


def replay(bench: Bench) -> float:
    """Read all of a long stream."""
    make_long(bench)
    return cpu_of(bench.perf(f"drain -u {LONG} --ack multi:1000 -P 10000 {FROM_FIRST} --verify-order"))


# --- filters


def valued(n: int) -> bytes:
    """A message whose filter value comes once in 100, or once in 1,000 messages."""
    value = "thousandth" if n % 1_000 == 999 else "hundredth" if n % 100 == 49 else "usual"
    properties = table({"x-stream-filter-value": value, "kind": value, "n": n})
    return (method(1, (60, 40), b"\0\0" + shortstr("") + shortstr(VALUES) + b"\0")
            + frame(HEADER, 1, struct.pack(">HHQH", 60, 0, OCTETS, 0x2000) + properties)
            + frame(BODY, 1, bytes(OCTETS)))


def make_values(bench: Bench) -> int:
    """The stream in which messages have values, if it is not there yet.  Returns how many."""
    messages = bench.count(2_000_000)
    client = Wire(bench.target.address(), 120)
    if client.declare_queue(VALUES, durable=True, arguments=OF_STREAM) == 0:
        piece = b"".join([valued(n) for n in range(PIECE)])
        for _ in range(messages // PIECE):
            client.send(piece)
        client.send(piece[:len(valued(0))].replace(b"usual", b"final") * RARE)
        client.declare_queue(VALUES, passive=True)
    client.drop()
    return messages


def search(bench: Bench, argument: str, every: int) -> float:
    """Read with a filter that one in so many messages passes (0: RARE messages at the end); for each that is there."""
    messages = make_values(bench)
    found = messages // every if every else RARE
    done = bench.perf(f"drain -u {VALUES} -n {found} -P 1000 "
                      f"--consumer-args '{{\"x-stream-offset\": \"first\", {argument}}}' --keep")
    cost: float = done["broker"]["cpu_s"] / messages * 1e6
    return cost


# --- readers at rest


def anonymous_kb(broker: Broker) -> int:
    """The memory of a broker that has nothing to do."""
    time.sleep(0.3)
    return usage([broker.pid]).rss_anon_kb


def consumers_kb(bench: Bench, messages: int, plain: bool) -> float:
    """KiB for each of many consumers, of which each holds so many messages; of a fresh broker."""
    name, arguments = (QUEUE, {}) if plain else (STREAM, OF_STREAM)
    with Broker(bench.command) as broker:
        client, publisher = (Wire(broker.target.address(), 120) for _ in range(2))
        client.declare_queue(name, durable=True, arguments=arguments)
        client.request((60, 10), qos_arguments(HELD), (60, 11))
        before = anonymous_kb(broker)
        one = method(1, (60, 20), b"\0\0" + shortstr(name) + shortstr("") + b"\10" + table({}))     # no-wait
        client.send(one * CONSUMERS)
        client.declare_queue(name, passive=True)
        if messages:
            head = method(1, (60, 40), b"\0\0" + shortstr("") + shortstr(name) + b"\0")
            message = head + frame(HEADER, 1, struct.pack(">HHQH", 60, 0, 1, 0)) + frame(BODY, 1, b"x")
            publisher.send(message * (messages * CONSUMERS if plain else messages))
            wait_for_deliveries(client, messages * CONSUMERS)
        used = anonymous_kb(broker) - before
        for one_client in (client, publisher):
            one_client.drop()
        return used / CONSUMERS


def wait_for_deliveries(client: Wire, messages: int) -> None:
    """Read frames until so many messages came."""
    seen, rest = 0, b""
    while seen < messages:
        octets = rest + client._socket.recv(1 << 20)
        at = 0
        while len(octets) - at >= 8 and (end := at + 8 + int.from_bytes(octets[at + 3:at + 7], "big")) <= len(octets):
            seen += octets[at] == BODY
            at = end
        rest = octets[at:]


def memory(bench: Bench, messages: int) -> float:
    """KiB of a reader over those of a plain consumer."""
    return consumers_kb(bench, messages, plain=False) - consumers_kb(bench, messages, plain=True)


# --- a long stream


def make_long(bench: Bench) -> None:
    """The long stream, if it is not there yet."""
    if bench.since == 0:
        bench.since = time.time()
        bench.fill(LONG, bench.long, ARGUMENTS)
        bench.until = time.time()


def attach(bench: Bench) -> float:
    """Begin at times while it was filled; milliseconds until the first delivery, the median of some."""
    make_long(bench)
    took = []
    for _ in range(ATTACHES):
        client = Wire(bench.target.address())
        client.qos(1)
        moment = int(random.uniform(bench.since, max(bench.until - 2, bench.since)))
        arguments = longstr(shortstr("x-stream-offset") + b"T" + struct.pack(">Q", moment))
        began = time.perf_counter()
        client.request((60, 20), b"\0\0" + shortstr(LONG) + shortstr("") + b"\0" + arguments, (60, 21))
        client.wait_for((60, 60))
        took.append((time.perf_counter() - began) * 1000)
        client.drop()
    return statistics.median(took)


def start_empty(bench: Bench) -> float:
    """Start another broker; milliseconds of CPU."""
    with Broker(bench.command) as broker:
        return usage([broker.pid]).cpu_s * 1000


def start(bench: Bench, number: int) -> float:
    """Stop it by a signal, start it, and ask for the number of messages; milliseconds of CPU."""
    make_long(bench)
    bench.broker.stop(number)
    began = time.monotonic()
    bench.broker.start()
    while bench.target.queue_length(LONG) != bench.long:
        if time.monotonic() - began > 60:
            raise SystemExit(f"{bench.target.queue_length(LONG)} messages are there, of {bench.long}")
        time.sleep(POLL_SECONDS)
    return usage([bench.broker.pid]).cpu_s * 1000


class Row(NamedTuple):
    """wanted, lavinmq: of an hour in which row c cost 0.14 us; None: there is no such figure.

    paced: whether a figure depends on the pace of the machine."""

    what: str
    measure: Callable[[Bench], float]
    unit: str = "us"
    wanted: float | None = None
    lavinmq: float | None = None
    paced: bool = True

    def at(self, value: float | None, pace: float) -> str:
        """A figure of that hour, at the pace of another one."""
        if value is None:
            return "–"
        return f"{value * (pace if self.paced else 1):.3g}"


def filtered(what: str, argument: str, every: int, wanted: float | None = None) -> Row:
    """A row of a reader with a filter."""
    return Row(what, partial(search, argument=argument, every=every), wanted=wanted)


ROWS = {
    "queue": Row("publish, a plain durable queue", partial(publish, arguments="--durable")),
    "publish": Row("publish", publish, wanted=0.13 * 1.1, lavinmq=1.06),
    "read": Row("read from the start, an ack every 100, prefetch 1,000", read, wanted=0.12, lavinmq=0.67),
    "both": Row("both at once", both, lavinmq=1.86),
    "ten": Row("ten readers at the end, a delivery", ten, wanted=0.09, lavinmq=0.96),
    "replay": Row("replay of a long stream, an ack every 1,000", replay, wanted=1 / 8),
    "one in 100": filtered("filter by a value of one in 100, a message there",
                           '"x-stream-filter": "hundredth"', 100),
    "one in 1000": filtered("filter by a value of one in 1,000, a message there",
                            '"x-stream-filter": "thousandth"', 1_000, 1 / 30),
    "rare": filtered("filter by a value at the end alone, a message there", '"x-stream-filter": "final"', 0),
    "table": filtered("filter by a header of one in 100, a message there",
                      '"x-stream-filter": {"kind": "hundredth"}', 100),
    "sql": filtered("filter by SQL, one in 100, a message there",
                    "\"x-stream-filter-sql\": \"kind IN ('\"'\"'hundredth'\"'\"') AND n >= 0\"", 100),
    "memory": Row("memory of a reader over a plain consumer", partial(memory, messages=0), "KiB", 4, paced=False),
    "holding": Row("the same, 100 messages unacknowledged", partial(memory, messages=HELD), "KiB", 4, paced=False),
    "attach": Row("begin at a time in a long stream", attach, "ms", 10, paced=False),
    "empty": Row("start without messages", start_empty, "ms"),
    "start": Row("start with a long stream", partial(start, number=signal.SIGTERM), "ms", 150, 39, False),
    "kill": Row("start with it after kill -9", partial(start, number=signal.SIGKILL), "ms", None, 92, False),
}


def lines_of(found: dict[str, dict[str, list[float]]], machine: dict[str, list[float]],
             targets: list[Target], long: int) -> list[str]:
    """The lines of README.md."""
    first = machine[targets[0].name]
    pace = statistics.median(first) / ROW_C_US
    head = ["", "unit", *(target.name for target in targets), "wanted", "LavinMQ 2.9.1"]
    lines = [f"Row c in the same run: {text(first)}, {pace:.1f} times what it was when the two last columns were taken."
             f" The long stream has {long:,} messages.", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, figures in found.items():
        row = ROWS[name]
        cells = [row.what, row.unit, *(text(figures[target.name], 3) for target in targets),
                 row.at(row.wanted, pace), row.at(row.lavinmq, pace)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def options_of() -> tuple[argparse.Namespace, list[str]]:
    """The command line, and the rows that it chooses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    chosen_of = choose(parser, ROWS, "rows")
    add_trees(parser)
    parser.add_argument("--scale", type=float, default=1, help="times all message counts but the long stream's")
    parser.add_argument("--long", type=int, default=10_000_000, help="messages of the long stream")
    parser.add_argument("--data-root", default="/var/tmp", help="a directory on the disk to measure")
    parser.add_argument("--write-readme", action="store_true", help="put the table into README.md")
    options = parser.parse_args()
    return options, chosen_of(options)


def main() -> None:
    """Measure as the command line says; print the table."""
    options, chosen = options_of()
    trees = [("brokerd", BROKERD), *options.tree]
    found: dict[str, dict[str, list[float]]] = {name: {tree: [] for tree, _ in trees} for name in chosen}
    machine: dict[str, list[float]] = {tree: [] for tree, _ in trees}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    brokers = [Broker(command, name, data_root=options.data_root) for name, command in trees]
    try:
        benches = [Bench(broker, command, options.scale, options.long)
                   for broker, (_, command) in zip(brokers, trees, strict=True)]
        for broker in brokers:
            broker.start()
        for turn in range(options.rounds):
            for place in range(len(benches)):
                bench = benches[(turn + place) % len(benches)]
                machine[bench.target.name].append(row_c(bench.target))
                for name in chosen:
                    value = ROWS[name].measure(bench)
                    found[name][bench.target.name].append(value)
                    print(f"{turn + 1} {name:12}{bench.target.name:10}{value:.3f} {ROWS[name].unit}", file=sys.stderr)
    finally:
        for broker in brokers:
            broker.close()
    lines = lines_of(found, machine, [broker.target for broker in brokers], options.long)
    print("\n".join(lines))
    if options.write_readme:
        before, _, rest = README.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        README.write_text("\n".join([before + BEGIN, "", *lines, "", END + after]))


if __name__ == "__main__":
    main()
