"""What does an order journal cost a message?

    PYTHONPATH=src python benchmarks/journal.py --rounds 7

One broker, one durable queue with a journal and one without, in turns; a message is delivered once and acked, so
that it makes two events.  Printed: the broker's CPU seconds per million messages, and the difference in ns an event.
A journal is written into new files, and the segments it tells of are kept, so that a queue with one also pays for
segments that another would write over: both are in the difference.
"""

import argparse
import statistics

from brokers import Broker

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


def main() -> None:
    """Measure with and without a journal in turns; print medians and the best of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--data-root", default="/var/tmp", help="a directory on the disk to measure")
    options = parser.parse_args()
    print(f"{'':16}{'without':>16}{'with':>16}{'ns an event':>16}    medians (best), s/M")
    with Broker(data_root=options.data_root) as broker:
        for row in ROWS:
            figures: dict[bool, list[float]] = {False: [], True: []}
            for journal in (False, True) * (options.rounds + 1):
                figures[journal].append(cost(broker, row, journal, options.messages))
            without, with_ = (sorted(figures[journal][1:]) for journal in (False, True))     # the first one warms up
            event = [1000 * (b - a) / EVENTS for a, b in ((statistics.median(without), statistics.median(with_)),
                                                          (without[0], with_[0]))]
            print(f"{row:16}" + "".join(f"{statistics.median(f):9.3f} ({f[0]:.3f})" for f in (without, with_))
                  + f"{event[0]:9.0f} ({event[1]:.0f})")


if __name__ == "__main__":
    main()
