"""What do features cost that LavinMQ has too, and what must they cost?

    PYTHONPATH=src python benchmarks/features.py --rounds 5 --write-readme
    PYTHONPATH=src python benchmarks/features.py --rounds 5 --cases expired,tx --tree before=../before/src

Each row is a case of another file of this folder, which says what is measured, less what the same message costs without
the feature, where the row says "over".  Printed: microseconds of the broker's CPU for each operation, medians, in
brackets the best; what the row must be, and aims at; and LavinMQ 2.9.1's reference figure.

In the rows tx, reply, connect and get client and broker wait for each other, so that processors fall asleep.  On a
virtual machine the one that wakes another up pays for it, 5 to 25 us, and that is the hypervisor's work.  ``--awake``
keeps all processors awake meanwhile, as they are on a machine that has other work.

LavinMQ's figures were taken in an hour in which row c of suite.py cost brokerd 0.14 us a message.  Row c is measured
here as well: the table says how much slower this machine is now, and every other figure has to be seen in that light.
"""

import argparse
import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import dead_letters
import delayed
import duplicates
import headers
import rare_methods
import transactions
from brokers import Broker, Target, processors_awake
from turns import Case, add_brokers, choose

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- features: written by features.py --write-readme -->", "<!-- end of features -->"
ROW_C_US = 0.14  # of brokerd, when LavinMQ's figures were taken
ROW_C_MESSAGES = 2_000_000


class Feature(NamedTuple):
    """A row: a case, and the case that it is compared with; the figures are microseconds of CPU for each operation.

    wall: the figures are microseconds that the client waits instead.
    """

    what: str
    cases: Mapping[str, Case]
    case: str
    must: float
    aim: float
    peer: str
    over: str = ""
    wall: bool = False


FEATURES = {
    "expired": Feature("expired → dead-letter queue, over its publish", dead_letters.CASES, "expired", 2, 0.8, "3.6",
                       "published"),
    "over length": Feature("over length → dead-letter queue, with its publish", dead_letters.CASES, "over length", 2.5,
                           1, "4.6"),
    "nacked": Feature("nack multiple → dead-letter queue", dead_letters.CASES, "nacked", 2, 0.8, "10"),
    "delayed": Feature("delayed exchange, over a plain publish", delayed.CASES, "equal", 4, 2, "5", "direct"),
    "headers": Feature("headers exchange, 1 header, 1 binding, with consume", headers.CASES, "same", 0.3, 0.2, "1.7"),
    "headers differ": Feature("headers that differ each time, with consume", headers.CASES, "values differ", 3, 1.5,
                              "–"),
    "headers bound": Feature("headers that lead to another binding each time, with consume", headers.CASES,
                             "bound values", 3, 1.5, "–"),
    "deduplication": Feature("deduplication, over a plain publish with the header", duplicates.CASES, "queue", 0.5, 0.1,
                             "0", "plain"),
    "tx": Feature("tx: 10 publishes and commit", transactions.CASES, "one queue", 150, 60, "300"),
    "tx wall": Feature("the same, the wait of the client, over that for confirms of 10 publishes: one sync each",
                       transactions.CASES, "one queue", 100, 0, "–", "confirms", wall=True),
    "reply": Feature("direct reply-to, request and answer", rare_methods.CASES, "reply", 70, 40, "115"),
    "reply wall": Feature("the same, the wait of the client", rare_methods.CASES, "reply", 300, 300, "394", wall=True),
    "connect": Feature("connect, open a channel, close", rare_methods.CASES, "connect", 400, 250, "567"),
    "get": Feature("basic.get", rare_methods.CASES, "get", 20, 10, "77"),
}

Figures = dict[str, list[float]]  # by target: of each round


def measure(feature: Feature, target: Target) -> float:
    """Microseconds for one operation."""
    def cost_of(name: str) -> float:
        case = feature.cases[name]
        cost = case.measure(target, round(case.count * target.scale))
        return cost.wall if feature.wall else cost.cpu

    return cost_of(feature.case) - (cost_of(feature.over) if feature.over else 0)


def row_c(target: Target) -> float:
    """Microseconds of CPU for a message of row c of suite.py."""
    done = target.perf(f"throughput -n {round(ROW_C_MESSAGES * target.scale)}")
    if "error" in done:
        raise SystemExit(f"{target.name}: {done['error']}")
    cost: float = done["broker"]["cpu_s_per_million"]
    return cost


def text(values: list[float], places: int = 2) -> str:
    """Median and best."""
    return f"{statistics.median(values):.{places}f} ({min(values):.{places}f})"


def table(found: Mapping[str, Figures], machine: Figures, targets: list[str]) -> list[str]:
    """The lines of README.md."""
    pace = statistics.median(machine[targets[0]]) / ROW_C_US
    lines = [f"Row c in the same run: {text(machine[targets[0]])}. That is {pace:.1f} times what it was when LavinMQ's "
             "figures were taken.", "",
             "| | " + " | ".join(targets) + " | must | aim | LavinMQ 2.9.1 |", "|---" * (len(targets) + 4) + "|"]
    for name, figures in found.items():
        row = FEATURES[name]
        cells = " | ".join(text(figures[target]) for target in targets)
        lines.append(f"| {row.what} | {cells} | {row.must:g} | {row.aim:g} | {row.peer} |")
    return lines


def main() -> None:
    """Measure as the command line says; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    chosen_of = choose(parser, FEATURES)
    add_brokers(parser)
    parser.add_argument("--awake", action="store_true", help="keep all processors awake")
    parser.add_argument("--write-readme", action="store_true", help="put the table into README.md")
    options = parser.parse_args()
    chosen = chosen_of(options)
    with ExitStack() as stack:
        if options.awake:
            stack.enter_context(processors_awake())
        targets = [stack.enter_context(Broker()).target]
        targets += [stack.enter_context(Broker(command, name)).target for name, command in options.tree]
        targets += options.target
        found: dict[str, Figures] = {name: {one.name: [] for one in targets} for name in chosen}
        machine: Figures = {one.name: [] for one in targets}
        for turn in range(options.rounds + 1):  # The first round warms up and does not count.
            for target in (*targets[turn % len(targets) :], *targets[: turn % len(targets)]):
                cost = row_c(target)
                costs = {name: measure(FEATURES[name], target) for name in chosen}
                if turn:
                    machine[target.name].append(cost)
                    for name in chosen:
                        found[name][target.name].append(costs[name])
    lines = table(found, machine, [one.name for one in targets])
    print("\n".join(lines))
    if options.write_readme:
        before, _, rest = README.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        README.write_text("\n".join([before + BEGIN, "", *lines, "", END + after]))


if __name__ == "__main__":
    main()
