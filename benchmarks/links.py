"""What a shovel costs: messages a second and CPU seconds for a million, of all processes that take part.

    python benchmarks/links.py [--messages 300000] [--rounds 3]

A queue is filled; then a shovel carries it to a second queue of the same broker, 16 octets a message, durable queues,
persistent messages, prefetch 1000, for each ack-mode, and on-confirm with dedup.  Modes take turns; printed are the
medians and, in brackets, the best.  CPU is that of the broker and of its process of links together.
"""

import argparse
import contextlib
import json
import statistics
import time

from brokers import BROKERD, Broker

from brokerd import local_socket
from brokerd.cli.perfclient import Address, Client, publish_frames
from brokerd.cli.perfproc import listeners, usage

DEDUP = "dedup"  # on-confirm, and the destination drops what comes twice
MODES = ("on-confirm", DEDUP, "on-publish", "no-ack")
DROPS = {"x-message-deduplication": True, "x-deduplication-header": "x-shovel-id", "x-cache-size": 262144}
SIZE, CHUNK = 16, 1000
LOOK_SECONDS = 0.01


def ask(directory: str, verb: str, **fields: object) -> None:
    """Perform an operation.  SystemExit with its text if it is refused."""
    with contextlib.closing(local_socket.connect(directory, 60)) as sock, sock.makefile("rwb") as file:
        file.write(json.dumps({"verb": verb, **fields}).encode() + b"\n")
        file.flush()
        while "progress" in (answer := json.loads(file.readline())):
            pass
    if "result" not in answer:
        raise SystemExit(f"{verb}: {answer}")


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def cpu_s(pids: list[int]) -> float:
    """CPU seconds of the broker and of what it has started."""
    return usage([*pids, *(child for pid in pids for child in children(pid))]).cpu_s


def await_count(client: Client, queue: str, count: int) -> None:
    """Wait until so many messages are ready."""
    while client.declare_queue(queue, durable=True, passive=True) < count:
        time.sleep(LOOK_SECONDS)


def one(address: Address, directory: str, pids: list[int], mode: str, count: int) -> tuple[float, float]:
    """Messages a second, and CPU seconds for a million."""
    client = Client(address)
    for name in ("from", "to"):
        client.delete_queue(name)
        drops = (name, mode) == ("to", DEDUP)
        client.declare_queue(name, durable=True, arguments=DROPS if drops else None)
    frames, _ = publish_frames("", "from", SIZE, True, client.frame_max)
    for _ in range(count // CHUNK):
        client._send(frames * CHUNK)
    await_count(client, "from", count)
    # The first link starts the process: that is not what is measured.
    value = {"src-uri": "amqp://", "dest-uri": "amqp://", "dest-queue": "to", "src-prefetch-count": 1000}
    value |= {"dedup": True} if mode == DEDUP else {"ack-mode": mode}
    ask(directory, "parameter set", component="shovel", name="idle",
        value={**value, "src-queue": "idle", "dest-queue": "nowhere"})
    time.sleep(1.5)
    before, began = cpu_s(pids), time.monotonic()
    ask(directory, "parameter set", component="shovel", name="s", value={**value, "src-queue": "from"})
    await_count(client, "to", count)
    took, used = time.monotonic() - began, cpu_s(pids) - before
    ask(directory, "parameter clear", component="shovel", name="s")
    client.drop()
    return count / took, used / count * 1e6


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with Broker(f"{BROKERD} --http-port 0") as broker:
        found: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
        directory = str(broker.directory / "data")
        address, pids = broker.target.address(), listeners(broker.target.port)
        for _ in range(options.rounds):
            for mode in MODES:
                found[mode].append(one(address, directory, pids, mode, options.messages))
    print(f"{'mode':12} {'messages/s':>22} {'CPU s a million':>18}")
    for mode, values in found.items():
        rates, costs = zip(*values, strict=True)
        print(f"{mode:12} {statistics.median(rates):12,.0f} [{max(rates):,.0f}] "
              f"{statistics.median(costs):10.2f} [{min(costs):.2f}]")


if __name__ == "__main__":
    main()
