"""How many messages a second does the broker move, and what does a million cost it, compared with other brokers?

    PYTHONPATH=src python benchmarks/suite.py --repeat 5 --write-readme
    PYTHONPATH=src python benchmarks/suite.py --rows a,b,c --target lavinmq=5674 --target rabbitmq=5673:0.1

Starts a brokerd of its own, on a free port with an empty data directory (--no-own: does not), and takes turns with
the targets that are up.  Prints medians, ratios to brokerd, and with --out each run as a line of JSON.  The rows are
the table below; README.md holds the answer last measured.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from brokers import BROKERD, Broker, Target, free_port, tls_options
from floor import floor
from restart import measure as measure_restart

from brokerd.cli.perfclient import Client
from brokerd.cli.perfproc import usage

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- figures: written by suite.py --write-readme -->", "<!-- end of figures -->"

SAFE = "-p --durable --confirm 1000 --ack multi:100 -P 1000"
Figures = dict[str, Any]


class Figure(NamedTuple):
    """One number of a row: its place in the figures, how to print it, and whether more is better."""

    path: str
    form: str
    more: bool = False

    def of(self, figures: Figures) -> float | None:
        """The number, or None if it was not measured."""
        value: Any = figures
        for step in self.path.split("/"):
            value = value.get(step) if isinstance(value, dict) else None
        return None if value is None else float(value)

    def text(self, value: float) -> str:
        """The number as text."""
        return self.form.format(value)


CPU = Figure("broker/cpu_s_per_million", "{:.3f} s/M")
OVER_FLOOR = Figure("over_floor", "{:.1f} × floor")
PUBLISH, CONSUME = Figure("publish_rate", "{:,.0f}/s", more=True), Figure("consume_rate", "{:,.0f}/s", more=True)
EACH, RATE = Figure("rss_kb_each", "{:.1f} KiB each"), Figure("rate", "{:,.0f}/s", more=True)
LATENCY = tuple(Figure(f"latency_us/{name}", name + " {:,.0f} µs") for name in ("p50", "p95", "p99", "p99.9", "max"))
WRITTEN = tuple(Figure(f"from_write_us/{name}", name + " after the write {:,.0f} µs") for name in ("p50", "p99"))


class Row(NamedTuple):
    """A measurement: a brokerperf command ({n}: messages per producer), or a function that needs a broker of its own.

    reference: LavinMQ 2.9.1 on the 2-core machine of the reference figures: rate, CPU seconds per million.
    octets: of frames with messages, in and out, for one message; () where that is not what the row is about.
    """

    what: str
    run: str | Callable[[Broker], Figures]
    figures: tuple[Figure, ...]
    reference: str
    messages: int = 0
    fresh: bool = False
    octets: tuple[int, ...] = ()


def empty(broker: Broker) -> Figures:
    """Memory of a server that has had no client since it started."""
    time.sleep(1)
    return {"rss_mb": usage([broker.pid]).rss_kb / 1024}


def many_queues(broker: Broker, count: int) -> Figures:
    """Time to start with so many durable queues: until the port answers, and until the last queue is there."""
    declared = broker.target.perf(f"queues -n {count} --window 100 --keep")
    if "error" in declared:
        return declared
    broker.stop()
    began = time.monotonic()
    broker.start()
    client = Client(broker.target.address())
    client.declare_queue(f"brokerperf.queue.{count - 1}", passive=True)
    client.drop()
    return {"ready_s": time.monotonic() - began}


def deep_queue(broker: Broker) -> Figures:
    """Restart over 10 M messages: clean, then after kill -9."""
    clean = measure_restart(broker, 10_000_000, kill=False)
    if "error" in clean:
        return clean
    killed = measure_restart(broker, 10_000_000, kill=True)
    return (
        clean
        | {"ready_after_kill_s": killed.get("ready_s")}
        | ({"error": killed["error"]} if "error" in killed else {})
    )


def through(broker: Broker, arguments: str, unix: bool = False) -> Figures:
    """A brokerperf command over a unix socket or TLS, with a broker that has both beside its plain port."""
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=broker.directory.parent))
    tls, tls_port = tls_options(folder), free_port()
    if not tls and not unix:
        return {"error": "there is no openssl command"}
    command = f"{BROKERD} --unix-path {folder}/amqp --amqps-port {tls_port} {tls}"
    try:
        with Broker(command, data_root=str(folder)) as own:
            over_unix, over_tls = f"amqp://{quote(f'{folder}/amqp', safe='')}/", f"amqps://127.0.0.1:{tls_port}/"
            return own.target.perf(arguments, over_unix if unix else over_tls + " --no-verify")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


ROWS = {
    "a": Row(
        "publish only, 16 B, transient, durable queue",
        "throughput -y 0 --durable --keep -n {n}",
        (PUBLISH, CPU, OVER_FLOOR),
        "1.44 M/s, 0.63",
        4_000_000,
        octets=(74, 0),
    ),
    "b": Row("drain what row a left, auto-ack", "drain", (CONSUME, CPU, OVER_FLOOR), "2.28 M/s, 0.36", octets=(0, 82)),
    "c": Row(
        "1 → 1, 16 B, auto-ack",
        "throughput -n {n}",
        (CONSUME, CPU, OVER_FLOOR),
        "904 k/s, 0.97",
        4_000_000,
        octets=(74, 82),
    ),
    "d": Row(
        "1 → 1, 1 KiB, auto-ack",
        "throughput -s 1024 -n {n}",
        (CONSUME, CPU, OVER_FLOOR),
        "240 k/s, 3.66",
        1_000_000,
        octets=(1082, 1090),
    ),
    "e": Row(
        "1 → 1, persistent, confirm window 1000, ack every 100, prefetch 1000",
        f"throughput {SAFE} -n {{n}}",
        (CONSUME, CPU, OVER_FLOOR),
        "495 k/s, 1.62",
        400_000,
        octets=(74, 82),
    ),
    "e2": Row(
        "as e, 10 → 10 over 10 queues",
        f"throughput {SAFE} -x 10 -y 10 --queues 10 -n {{n}}",
        (CONSUME, CPU, OVER_FLOOR),
        "651 k/s, 1.38",
        60_000,
        octets=(75, 84),
    ),
    "f": Row(
        "10 → 10 over 10 queues, 16 B, auto-ack",
        "throughput -x 10 -y 10 --queues 10 -n {n}",
        (CONSUME, CPU, OVER_FLOOR),
        "906 k/s, 1.02",
        400_000,
        octets=(75, 84),
    ),
    "fanout": Row(
        "each message to 10 queues; figures per copy",
        "throughput -e bench.fanout --exchange-type fanout -y 10 --queues 10 --copies 10 -n {n}",
        (CONSUME, CPU, OVER_FLOOR),
        "–",
        400_000,
        octets=(9, 95),
    ),
    "topic": Row(
        "topic exchange, 1,000 bindings, 1,000 keys in turn",
        "throughput -e bench.topic --exchange-type topic --keys 1000 -k 'bench.{{}}.x' -b 'bench.{{}}.*' -n {n}",
        (CONSUME, CPU, OVER_FLOOR),
        "–",
        1_000_000,
        octets=(86, 94),
    ),
    "each": Row(
        "as c, an ack for each message",
        "throughput --ack each -n {n}",
        (CONSUME, CPU, OVER_FLOOR),
        "–",
        2_000_000,
        octets=(95, 82),
    ),
    "64k": Row(
        "1 → 1, 64 KiB, auto-ack", "throughput -s 65536 -n {n}", (CONSUME, CPU, OVER_FLOOR), "218 s/M", 20_000,
        octets=(65_627, 65_610),
    ),
    "1m": Row(
        "1 → 1, 1 MiB, auto-ack", "throughput -s 1048576 -n {n}", (CONSUME, CPU, OVER_FLOOR), "4,247 s/M", 1_000,
        octets=(1_048_715, 1_048_698),
    ),
    "unix": Row(
        "as c, over a unix socket", partial(through, arguments="throughput -n 4000000", unix=True), (CONSUME, CPU), "–"
    ),
    "unix-d": Row(
        "as d, over a unix socket", partial(through, arguments="throughput -s 1024 -n 1000000", unix=True),
        (CONSUME, CPU), "–",
    ),
    "tls": Row(
        "as c, over TLS", partial(through, arguments="throughput -n 4000000"), (CONSUME, CPU), "1.17 s/M"
    ),
    "tls-d": Row(
        "as d, over TLS", partial(through, arguments="throughput -s 1024 -n 1000000"), (CONSUME, CPU), "5.3 s/M"
    ),
    "g1": Row(
        "latency at 5,000/s",
        "latency -r 5000 -z 10",
        (*LATENCY, *WRITTEN, CPU),
        "p50 40, p95 93, p99 384, p99.9 3,498, max 5,086 µs after the write; 43",
    ),
    "g2": Row(
        "latency at 20,000/s",
        "latency -r 20000 -z 10",
        (*LATENCY, *WRITTEN, CPU),
        "p50 65, p95 952, p99 4,256, p99.9 33,653, max 40,480 µs after the write; 30",
    ),
    "h": Row(
        "2,000 idle connections, each a channel and a consumer",
        "connections -n 2000 --hold 3",
        (EACH, RATE),
        "57 KiB each, 2,350–3,600/s",
        fresh=True,
    ),
    "i": Row(
        "10,000 durable queues, each bound", "queues -n 10000", (RATE, EACH), "107–172/s, 20 KiB each", fresh=True
    ),
    "i2": Row("as i, 100 at a time", "queues -n 10000 --window 100", (RATE, EACH), "–", fresh=True),
    "j": Row(
        "10 M persistent messages in a queue; restart",
        deep_queue,
        (
            Figure("anon_growth_mb", "{:.1f} MiB of anonymous memory"),
            Figure("ready_s", "back in {:.3f} s"),
            Figure("ready_after_kill_s", "after kill -9 {:.3f} s"),
            Figure("drain_rate", "drain {:,.0f}/s", more=True),
            Figure("fill_cpu", "fill {:.3f} s/M"),
            Figure("drain_cpu", "drain {:.3f} s/M"),
        ),
        "3.4 MiB, 0.039 s, 0.092 s, 1.2–1.4 M/s, 0.70, 0.43–0.49",
        fresh=True,
    ),
    "k": Row(
        "start with 10,000 durable queues, each bound",
        partial(many_queues, count=10_000),
        (Figure("ready_s", "{:.2f} s"),),
        "4.8 s",
        fresh=True,
    ),
    "k2": Row(
        "start with 100,000",
        partial(many_queues, count=100_000),
        (Figure("ready_s", "{:.2f} s"),),
        "–",
        fresh=True,
    ),
    "empty": Row("memory at rest, empty", empty, (Figure("rss_mb", "{:.1f} MiB"),), "13 MiB", fresh=True),
}
# The rows in which brokerperf can check the order.
ORDERED = ("b", "c", "d", "e", "e2", "f", "fanout", "topic", "each")


class Suite:
    """The runs: rows by target, in turns, so that other load on the machine meets all targets alike."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.results: dict[tuple[str, str], list[Figures]] = {}
        self.floors: dict[str, float] = {}  # of the rows in this turn

    def run(self) -> None:
        """Run every row `repeat` times."""
        for turn in range(self.arguments.repeat):
            if self.arguments.no_own:
                self._turn(turn, None)
            else:
                with self._own() as broker:
                    self._turn(turn, broker)

    def _own(self) -> Broker:
        return Broker(self.arguments.brokerd, data_root=self.arguments.data_root)

    def _turn(self, turn: int, broker: Broker | None) -> None:
        """Each row with each broker.  Another one goes first each time, because the first pays for what the one before
        left behind: up to 20 % in rows of few messages."""
        for name in self.arguments.rows:
            row = ROWS[name]
            if row.octets:
                self.floors[name] = floor(*row.octets)
            brokers = [broker] if broker is not None else []
            others = [*brokers, *(self.arguments.target if isinstance(row.run, str) else ())]
            for place in range(len(others)):
                self._measure_and_note(turn, name, others[(turn + place) % len(others)])

    def _measure_and_note(self, turn: int, name: str, what: Broker | Target) -> None:
        if not isinstance(what, Broker):
            self._note(turn, name, what, self._measure(name, what, None))
        elif ROWS[name].fresh:
            with self._own() as fresh:
                self._note(turn, name, fresh.target, self._measure(name, fresh.target, fresh))
        else:
            self._note(turn, name, what.target, self._measure(name, what.target, what))

    def _measure(self, name: str, target: Target, broker: Broker | None) -> Figures:
        row = ROWS[name]
        if not isinstance(row.run, str):
            assert broker is not None
            return row.run(broker)
        verify = " --verify-order" if self.arguments.verify_order and name in ORDERED else ""
        done = target.perf(row.run.format(n=max(1, int(row.messages * target.scale * self.arguments.scale))) + verify)
        cost = CPU.of(done)
        if row.octets and cost is not None:
            done["over_floor"] = cost / self.floors[name]
        return done

    def _note(self, turn: int, name: str, target: Target, figures: Figures) -> None:
        self.results.setdefault((name, target.name), []).append(figures)
        if self.arguments.out:
            with self.arguments.out.open("a") as out:
                line = {"row": name, "target": target.name, "turn": turn, "load1": os.getloadavg()[0]} | figures
                out.write(json.dumps(line) + "\n")
        print(f"{turn + 1} {name:7}{target.name:10}{text(ROWS[name], [figures])}", flush=True)

    def names(self) -> list[str]:
        """The targets, ours first."""
        found = dict.fromkeys(target for _, target in self.results)
        return sorted(found, key=["brokerd", *(target.name for target in self.arguments.target)].index)

    def table(self) -> Iterable[str]:
        """The medians, and factors that compare the others with the first target: above 1 the first is better."""
        first, *others = self.names()
        yield f"{'row':8}{'broker':11}median of {self.arguments.repeat}"
        for name in self.arguments.rows:
            for target in (first, *others):
                runs = self.results.get((name, target))
                if runs is not None:
                    yield f"{name:8}{target:11}{text(ROWS[name], runs)}" + (
                        "" if target == first else ratios(ROWS[name], self.results.get((name, first), []), runs)
                    )


def medians(row: Row, runs: list[Figures]) -> list[tuple[Figure, float]]:
    """The median of each figure over the runs without an error."""
    found = []
    for figure in row.figures:
        values = [value for run in runs if "error" not in run and (value := figure.of(run)) is not None]
        if values:
            found.append((figure, statistics.median(values)))
    return found


def text(row: Row, runs: list[Figures]) -> str:
    """The medians as text, and the errors."""
    parts = [figure.text(value) for figure, value in medians(row, runs)]
    parts += [f"FAILED: {run['error']}" for run in runs if "error" in run]
    return ", ".join(parts)


def ratios(row: Row, ours: list[Figures], theirs: list[Figures]) -> str:
    """The factor by which ours is better, for each figure."""
    base = dict(medians(row, ours))
    factors = [
        (base[figure] / value if figure.more else value / base[figure])
        for figure, value in medians(row, theirs)
        if base.get(figure) and value
    ]
    return "   [" + ", ".join(f"×{factor:.2f}" for factor in factors) + "]" if factors else ""


def write_readme(suite: Suite) -> None:
    """Put the medians of brokerd between the markers of README.md; rows not run keep what stands there."""
    before, _, rest = README.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    kept = {cells[1].strip(): line for line in old.splitlines() if len(cells := line.split("|")) > 4}
    lines = ["| row | what | brokerperf | brokerd | LavinMQ 2.9.1 |", "|---|---|---|---|---|"]
    for name, row in ROWS.items():
        command = f"`{row.run.format(n=row.messages)}`" if isinstance(row.run, str) else "suite.py --rows " + name
        runs = suite.results.get((name, "brokerd"))
        if runs is None and name in kept:
            answer = kept[name].split("|")[4].strip()
        else:
            answer = text(row, runs or []) or "–"
        lines.append(f"| {name} | {row.what} | {command} | {answer} | {row.reference} |")
    README.write_text(before + BEGIN + "\n\n" + "\n".join(lines) + "\n\n" + END + after)


def row_names(value: str) -> list[str]:
    """Row names between commas; a and b go together: one fills, the other drains."""
    names = value.split(",")
    for name in names:
        if name not in ROWS:
            raise argparse.ArgumentTypeError(f"no row {name!r}; there are {', '.join(ROWS)}")
    if "a" in names or "b" in names:
        names += ["a", "b"]
    return [name for name in ROWS if name in names]


def main() -> None:
    """Run, print, and write the requested files; exit 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=row_names, default=list(ROWS), help="names between commas (default: all)")
    parser.add_argument("--repeat", type=int, default=3, help="how often; the medians are what counts")
    parser.add_argument(
        "--target",
        type=Target.parse,
        action="append",
        default=[],
        metavar="NAME=PORT[:SCALE]",
        help="a broker that is up; its message counts times SCALE",
    )
    parser.add_argument("--no-own", action="store_true", help="only the targets")
    parser.add_argument(
        "--brokerd", default=BROKERD, metavar="COMMAND", help="how to start ours, with {dir} and {port}"
    )
    parser.add_argument("--data-root", default="/var/tmp", help="a directory on the disk to measure")
    parser.add_argument("--scale", type=float, default=1, help="all message counts times this")
    parser.add_argument("--verify-order", action="store_true", help="check the order in every row that has one")
    parser.add_argument("--out", type=Path, help="append each run as a line of JSON")
    parser.add_argument("--write-readme", action="store_true", help="put brokerd's medians into README.md")
    arguments = parser.parse_args()
    if arguments.no_own and not arguments.target:
        parser.error("--no-own without a --target leaves nothing to measure")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    suite = Suite(arguments)
    suite.run()
    print()
    for line in suite.table():
        print(line)
    if arguments.write_readme:
        write_readme(suite)
    sys.exit(any("error" in run for runs in suite.results.values() for run in runs))


if __name__ == "__main__":
    main()
