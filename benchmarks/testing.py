"""How long do tests wait for brokerd.testing?

    PYTHONPATH=src python benchmarks/testing.py [--repeat 20] [--sync]

Beside it: how long ``brokerd --no-sync`` takes from its command to its listening port.  Prints the least and the median
in ms: other work of the machine adds to the median, and hardly to the least.  The answer last measured stands in
README.md.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from brokerd.testing import Broker, prepare

VHOSTS = 20  # in each repetition
PREPARED_SECONDS = 0.5


class Times:
    """Durations by what was done, in the order of their first."""

    def __init__(self) -> None:
        self.by_name: dict[str, list[float]] = {}

    def time(self, name: str, work: Callable[[], object]) -> None:
        """Do it, and note how long it took."""
        began = time.perf_counter()
        work()
        self.by_name.setdefault(name, []).append(1000 * (time.perf_counter() - began))

    def show(self) -> None:
        """One line each."""
        for name, values in self.by_name.items():
            print(f"{name:32} least {min(values):8.2f} ms, median {statistics.median(values):8.2f} ms, n {len(values)}")


def start_brokerd() -> None:
    """Until it says that it listens."""
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(
        [sys.executable, "-m", "brokerd", "-D", f"{folder}/data", "-p", "0", "--no-sync"], stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if b"(AMQP)" in line)
        process.kill()


def prepared(sync: bool) -> Broker:
    """A broker whose imports have ended, as behind pytest's collection of tests."""
    broker = Broker(sync=sync)
    prepare()
    time.sleep(PREPARED_SECONDS)
    return broker


def measure(times: Times, sync: bool) -> None:
    """One life of a broker with all its verbs."""
    broker = Broker(sync=sync)
    times.time("start", broker.start)
    other = prepared(sync)
    times.time("start of a prepared one", other.start)
    other.stop()
    for _ in range(VHOSTS):
        times.time("make a vhost", broker.make_vhost)
        times.time("delete it", lambda: broker.delete_vhost(broker.vhost))
    times.time("advance the clock", lambda: broker.clock.advance(hours=1))
    times.time("drop connections", broker.drop_connections)
    times.time("crash and start again", broker.crash)
    if sync:
        times.time("power cut and start again", broker.power_cut)
    times.time("stop", broker.stop)


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--sync", action="store_true", help="Broker(sync=True)")
    arguments = parser.parse_args()
    times = Times()
    for _ in range(arguments.repeat):
        times.time("brokerd --no-sync, for comparison", start_brokerd)
        measure(times, arguments.sync)
    times.show()


if __name__ == "__main__":
    main()
