"""The command line and the table of benchmarks that measure single features: brokers and cases take turns.

    main(__doc__, {"get": Case(get, 5000), ...})

Each round measures each case at each broker; the first round warms up and does not count.  Printed are medians and, in
brackets, the best of each, in microseconds.
"""

import argparse
import json
import shlex
import statistics
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from brokers import BROKERD, Broker, Target

from brokerd.cli.perfproc import listeners, usage


class Cost(NamedTuple):
    """Microseconds for one operation: of the broker's CPU, and until the client had its answer (0: not measured)."""

    cpu: float
    wall: float = 0


class Case(NamedTuple):
    """``measure(target, count)`` does ``count`` operations; ``count``: in a round, at a target of scale 1."""

    measure: Callable[[Target, int], Cost]
    count: int


class Cpu:
    """The CPU time of a target: of all threads of the processes that listen on its port."""

    __slots__ = ("_begun", "_pids")

    def __init__(self, target: Target) -> None:
        self._pids = listeners(target.port)
        if not self._pids:
            raise SystemExit(f"{target.name}: no process of this host that can be measured listens on {target.port}")
        self._begun = usage(self._pids).cpu_s

    def start(self) -> None:
        """Count from now on."""
        self._begun = usage(self._pids).cpu_s

    def us_each(self, count: int) -> float:
        """Microseconds since the start, for each of so many operations."""
        return (usage(self._pids).cpu_s - self._begun) / count * 1e6


def tree(text: str) -> tuple[str, str]:
    """NAME=PATH: a name, and the command that starts the brokerd in that folder."""
    name, _, path = text.partition("=")
    if not name or not path:
        raise ValueError(f"{text!r} is not NAME=PATH")
    if not (Path(path) / "brokerd" / "__init__.py").is_file():  # Else its name would stand beside this tree's figures.
        raise argparse.ArgumentTypeError(f"{path!r} has no package brokerd: name the folder src")
    return name, f"env PYTHONPATH={shlex.quote(path)} {BROKERD}"


def add_trees(parser: argparse.ArgumentParser) -> None:
    """The option that names other sources to measure beside these."""
    parser.add_argument("--tree", action="append", type=tree, default=[], metavar="NAME=PATH",
                        help="the sources of another brokerd, built, which is started as well; may be repeated")


def add_brokers(parser: argparse.ArgumentParser) -> None:
    """The options that name what to measure beside this broker."""
    add_trees(parser)
    parser.add_argument("--target", action="append", type=Target.parse, default=[], metavar="NAME=PORT[:SCALE]",
                        help="another broker of this host; may be repeated")


def choose(parser: argparse.ArgumentParser, names: Iterable[str],
           what: str = "cases") -> Callable[[argparse.Namespace], list[str]]:
    """An option that chooses among names, by default all; returned is what reads the choice from the options."""
    known = list(names)
    parser.add_argument(f"--{what}", default=",".join(known), help=", of: " + ", ".join(known))

    def chosen(options: argparse.Namespace) -> list[str]:
        found: list[str] = getattr(options, what).split(",")
        unknown = [name for name in found if name not in known]
        if unknown:
            parser.error(f"unknown {what[:-1]} {unknown[0]!r}")
        return found

    return chosen


def main(description: str | None, cases: Mapping[str, Case]) -> None:
    """Measure as the command line says; print the table."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, help="operations of each case in a round; each case has its own")
    chosen_of = choose(parser, cases)
    add_brokers(parser)
    parser.add_argument("--data-root", default="/var/tmp", help="a directory on the disk to measure")
    parser.add_argument("--json", action="store_true", help="print all figures as one JSON object")
    options = parser.parse_args()
    chosen = {name: cases[name] for name in chosen_of(options)}
    with ExitStack() as stack:
        targets = [stack.enter_context(Broker(data_root=options.data_root)).target]
        targets += [stack.enter_context(Broker(command, name, data_root=options.data_root)).target
                    for name, command in options.tree]
        targets += options.target
        figures: dict[str, dict[str, list[Cost]]] = {name: {one.name: [] for one in targets} for name in chosen}
        for _ in range(options.rounds + 1):
            for name, case in chosen.items():
                for target in targets:
                    count = round((options.count or case.count) * target.scale)
                    figures[name][target.name].append(case.measure(target, count))
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{'':24}" + "".join(f"{target.name:>20}" for target in targets) + "    medians (best), us")
    for name, by_target in figures.items():
        for what in Cost._fields:
            found = [sorted(getattr(cost, what) for cost in by_target[target.name][1:]) for target in targets]
            if any(map(any, found)):
                print(f"{name:18}{what:6}" + "".join(f"{statistics.median(one):12.2f} ({one[0]:.2f})" for one in found))
