"""What does an order journal cost a message, and its hash chain a thread beside?

    PYTHONPATH=src python benchmarks/journal.py --rounds 7
    PYTHONPATH=src python benchmarks/journal.py --chain

One broker, one durable queue with a journal and one without, in turns; a message is delivered once and acked, so
that it makes two events.  Printed: the broker's CPU seconds per million messages, and the difference in ns an event.
A journal is written into new files, and the segments it tells of are kept, so that a queue with one also pays for
segments that another would write over.  The difference has the cost of both, and of the hash chain, whose CPU a thread
spends.  ``--chain`` measures the chain alone, on files of a million events.
"""

import argparse
import os
import statistics
import tempfile
import time

from brokers import Broker

from brokerd.store import chain
from brokerd.store import format as layout
from brokerd.store.disk import Disk

ROWS = {
    "auto-ack": "--ack auto",
    "ack every 100": "--ack multi:100 -P 1000",
    "each acked": "--ack each -P 1000",
}
EVENTS = 2


def cost(broker: Broker, row: str, journal: bool, messages: int) -> float:
    """CPU s/M of one run on a fresh queue."""
    arguments = '{"x-order-journal": true, "x-order-journal-retention-bytes": 268435456}' if journal else "{}"
    done = broker.target.perf(f"throughput --durable {ROWS[row]} -n {messages} -u journal-{journal} "
                              f"--queue-args '{arguments}' --pid {broker.pid}")
    if "error" in done:
        raise SystemExit(f"{row}: {done['error']}")
    return float(done["broker"]["cpu_s_per_million"])


def chain_cost(data_root: str, rounds: int, events: int = 1 << 20) -> list[float]:
    """ns of CPU an event, for all links of a settled segment: its events, and an entry for every second one."""
    found = []
    with tempfile.TemporaryDirectory(dir=data_root) as folder:
        with open(f"{folder}/{layout.journal_name(1)}", "wb") as file:
            file.write(layout.journal_header(1, begun=1, events=events) + os.urandom(events * layout.EVENT_OCTETS))
        with open(f"{folder}/{layout.acks_name(1)}", "wb") as file:
            entries = events // EVENTS
            file.write(layout.acks_header(1, entries=entries) + os.urandom(entries * layout.ENTRY_OCTETS))
        for _ in range(rounds):
            begin = time.process_time_ns()
            chain.finish(folder, 1, Disk(), time.time_ns)
            found.append((time.process_time_ns() - begin) / events)
            os.unlink(f"{folder}/{layout.chain_name(1)}")
    return sorted(found)


def main() -> None:
    """Measure with and without a journal in turns; print medians and the best of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--data-root", default="/var/tmp", help="a directory on the disk to measure")
    parser.add_argument("--chain", action="store_true", help="measure the hash chain alone")
    options = parser.parse_args()
    if options.chain:
        figures = chain_cost(options.data_root, options.rounds)
        print(f"hash chain: {statistics.median(figures):.1f} ({figures[0]:.1f}) ns of CPU an event, median (best)")
        return
    print(f"{'':16}{'without':>16}{'with':>16}{'ns an event':>16}    medians (best), s/M")
    with Broker(data_root=options.data_root) as broker:
        for row in ROWS:
            costs: dict[bool, list[float]] = {False: [], True: []}
            for journal in (False, True) * (options.rounds + 1):
                costs[journal].append(cost(broker, row, journal, options.messages))
            without, with_ = (sorted(costs[journal][1:]) for journal in (False, True))     # the first one warms up
            event = [1000 * (b - a) / EVENTS for a, b in ((statistics.median(without), statistics.median(with_)),
                                                          (without[0], with_[0]))]
            print(f"{row:16}" + "".join(f"{statistics.median(f):9.3f} ({f[0]:.3f})" for f in (without, with_))
                  + f"{event[0]:9.0f} ({event[1]:.0f})")


if __name__ == "__main__":
    main()
