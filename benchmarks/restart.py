"""How long does a restart over a deep queue take, and how much memory does that queue cost?

    PYTHONPATH=src python benchmarks/restart.py --messages 10000000 [--kill]

Fills a durable queue with persistent messages, stops the broker (or kills it), starts it again, asks until the
count is right, and drains the queue with its order checked.  Row j of the suite; the answer last measured stands
in README.md.  For another broker: --command, a line that starts it in the foreground on {port} with data in {dir}.
"""

import argparse
import json
import signal
import sys
import time
from typing import Any

from brokers import BROKERD, POLL_SECONDS, Broker

from brokerd.cli.perfproc import usage

QUEUE = "restart"


def measure(broker: Broker, messages: int, kill: bool, confirm: int = 0, patience: float = 600) -> dict[str, Any]:
    """Fill, restart, drain.  Returns seconds, KiB and messages a second, or "error"."""
    target = broker.target
    before = usage([broker.pid])
    fill = target.perf(f"throughput -y 0 -n {messages} -p --durable --keep --queue {QUEUE} --confirm {confirm}"
                       f" --stall 120 --pid {broker.pid}")
    if "error" in fill:
        return fill
    filled = usage([broker.pid])
    figures: dict[str, Any] = {
        "messages": messages, "fill_rate": fill["publish_rate"], "fill_cpu": fill["broker"]["cpu_s_per_million"],
        "rss_mb": filled.rss_kb / 1024, "anon_growth_mb": (filled.rss_anon_kb - before.rss_anon_kb) / 1024,
        "stop_s": broker.stop(signal.SIGKILL if kill else signal.SIGTERM)}
    began = time.monotonic()
    figures["port_s"] = broker.start(patience)
    while (count := target.queue_length(QUEUE)) != messages and time.monotonic() - began < patience:
        time.sleep(POLL_SECONDS)
    figures["ready_s"] = time.monotonic() - began
    figures["count_after"] = count
    drained = target.perf(f"drain --queue {QUEUE} --verify-order --stall 120 --pid {broker.pid}")
    figures |= {"drain_rate": drained.get("consume_rate"), "order": drained.get("order"),
                "drain_cpu": drained.get("broker", {}).get("cpu_s_per_million")}
    if count != messages or drained.get("consumed") != messages:
        figures["error"] = f"{messages} published, {count} counted, {drained.get('consumed')} drained"
    if "error" in drained:
        figures["error"] = drained["error"]
    return figures


def main() -> None:
    """Measure once, print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--kill", action="store_true", help="kill -9 instead of a clean stop")
    parser.add_argument("--confirm", type=int, default=0, help="publish with confirms, so many outstanding")
    parser.add_argument("--command", default=BROKERD, help="how to start the broker, with {dir} and {port}")
    parser.add_argument("--data-root", default="/var/tmp", help="a directory on the disk to measure")
    arguments = parser.parse_args()
    with Broker(arguments.command, data_root=arguments.data_root) as broker:
        figures = measure(broker, arguments.messages, arguments.kill, arguments.confirm)
    print(json.dumps(figures))
    sys.exit("error" in figures)


if __name__ == "__main__":
    main()
