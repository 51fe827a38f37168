"""How many instructions does the broker itself need for a message?  The answer is the same on a busy machine.

    PYTHONPATH=src python benchmarks/instructions.py --tree before=/path/to/other/src

Runs brokers under valgrind's callgrind, which counts what their processes do outside the kernel; needs ``valgrind``.
Two runs of the same build differ by some 0.1 %.  The figure leaves out the kernel's work, waiting for memory, and
the disk; suite.py measures them.
"""

import argparse
import re
import shlex
import subprocess
from contextlib import ExitStack
from pathlib import Path

import unhurried
from brokers import BROKERD, Broker
from suite import SAFE
from turns import add_trees, choose

# brokerperf's command for each row of suite.py, and how many messages it means: fewer than there, under callgrind the
# broker runs at a fiftieth of its pace.
ROWS = {
    "a": ("throughput -y 0 --durable --keep -n 300000", 300_000),
    "b": ("drain", 300_000),
    "c": ("throughput -n 300000", 300_000),
    "d": ("throughput -s 1024 -n 100000", 100_000),
    "e": (f"throughput {SAFE} -n 100000", 100_000),
    "f": ("throughput -x 10 -y 10 --queues 10 -n 30000", 300_000),
    "fanout": ("throughput -e bench.fanout --exchange-type fanout -y 10 --queues 10 --copies 10 -n 30000", 300_000),
    "topic": (
        "throughput -e bench.topic --exchange-type topic --keys 100 -k 'bench.{{}}.x' -b 'bench.{{}}.*' -n 200000",
        200_000,
    ),
    "each": ("throughput --ack each -n 200000", 200_000),
}
CALLGRIND = "valgrind -q --tool=callgrind --instr-atstart=no --callgrind-out-file={dir}.calls"


def under_callgrind(command: str) -> str:
    """The command that starts the same broker under callgrind, with turns that suit its pace there."""
    environment, found, rest = command.partition(BROKERD)
    if not found:
        raise ValueError(f"{command!r} starts no brokerd")
    unhurried_ = found.replace("-m brokerd ", f"{shlex.quote(unhurried.__file__)} ")
    return f"{environment}{CALLGRIND} {unhurried_}{rest}"


def control(broker: Broker, *arguments: str) -> None:
    """Tell callgrind something."""
    subprocess.run(["callgrind_control", *arguments, str(broker.pid)], check=True, capture_output=True)


def counted(directory: Path) -> int:
    """Instructions that callgrind has written down, which are forgotten here."""
    total = 0
    for file in directory.glob("data.calls*"):
        total += sum(int(number) for number in re.findall(r"^totals: (\d+)", file.read_text(errors="replace"), re.M))
        file.unlink()
    return total


def measure(broker: Broker, row: str) -> float:
    """Instructions for one message of this row."""
    command, messages = ROWS[row]
    control(broker, "-i", "on")
    done = broker.target.perf(command)
    control(broker, "-d")
    control(broker, "-i", "off")
    if "error" in done:
        raise SystemExit(f"{broker.target.name}, row {row}: {done['error']}")
    return counted(broker.directory) / messages


def main() -> None:
    """Measure as the command line says; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_trees(parser)
    rows = choose(parser, ROWS, "rows")
    options = parser.parse_args()
    with ExitStack() as stack:
        brokers = [stack.enter_context(Broker(under_callgrind(BROKERD)))]
        brokers += [stack.enter_context(Broker(under_callgrind(command), name)) for name, command in options.tree]
        print(f"{'':8}" + "".join(f"{broker.target.name:>18}" for broker in brokers) + "    instructions for a message")
        for broker in brokers:
            for kind in ("", " -y 0 --durable --keep"):
                broker.target.perf(f"throughput -n 2000{kind}")  # What is made once, and imported, does not count.
        for row in rows(options):
            found = [measure(broker, row) for broker in brokers]
            print(f"{row:8}" + "".join(f"{one:10.1f} (x{found[0] / one:.2f})" for one in found), flush=True)


if __name__ == "__main__":
    main()
