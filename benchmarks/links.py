"""What links cost: CPU seconds for a million messages, memory while idle, and what another client feels.

    python benchmarks/links.py [--messages 300000] [--rounds 3] [--idle 100,1000] [--ids 262144,16384]

A queue is filled; then a shovel carries it to a second queue of the same broker, 16 octets a message, durable queues,
persistent messages, prefetch 1000, for each ack-mode, and on-confirm with dedup: a row for each number of --ids, which
the destination remembers.  Modes take turns; printed are the medians and, in brackets, the best.  CPU is that of the
broker and of its process of links together.

Then idle shovels are made, both ends at this broker: printed is the memory of the process of links above that with one
link, and the CPU of all for a second of idleness.  Last, a client publishes and consumes 1,000 messages a second, in
turns alone and beside two shovels that send messages round and round as fast as they can.
"""

import argparse
import contextlib
import json
import statistics
import time
from typing import Any

from brokers import BROKERD, Broker

from brokerd import local_socket
from brokerd.cli.perfclient import Address, Client, publish_frames
from brokerd.cli.perfproc import listeners, usage

DEDUP = "dedup"  # on-confirm, and the destination drops what comes twice
MODES = ("on-confirm", "on-publish", "no-ack")
DROPS = {"x-message-deduplication": True, "x-deduplication-header": "x-shovel-id"}
SIZE, CHUNK = 16, 1000
LOOK_SECONDS = 0.01
IDLE_SECONDS = 5
ROUND_AND_ROUND = 5000  # messages of the busy shovels
LATENCY = "latency -r 1000 -z 6 --warmup 1 -u links.other"


def ask(directory: str, verb: str, **fields: object) -> Any:
    """Perform an operation, and return its result.  SystemExit with its text if it is refused."""
    with contextlib.closing(local_socket.connect(directory, 60)) as sock, sock.makefile("rwb") as file:
        file.write(json.dumps({"verb": verb, **fields}).encode() + b"\n")
        file.flush()
        while "progress" in (answer := json.loads(file.readline())):
            pass
    if "result" not in answer:
        raise SystemExit(f"{verb}: {answer}")
    return answer["result"]


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
    """Messages a second, and CPU seconds for a million.  ``mode``: also "dedup" and how many ids are remembered."""
    client = Client(address)
    mode, _, ids = mode.partition(" ")
    drops = {**DROPS, "x-cache-size": int(ids)} if mode == DEDUP else None
    for name in ("from", "to"):
        client.delete_queue(name)
        client.declare_queue(name, durable=True, arguments=drops if name == "to" else None)
    frames, _ = publish_frames("", "from", SIZE, True, client.frame_max)
    for _ in range(count // CHUNK):
        client._send(frames * CHUNK)
    await_count(client, "from", count)
    # The first link starts the process: that is not what is measured.
    value = {"src-uri": "amqp://", "dest-uri": "amqp://", "dest-queue": "to", "src-prefetch-count": 1000}
    value |= {"dedup": True, "dest-queue-args": drops} if mode == DEDUP else {"ack-mode": mode}
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


def running(directory: str) -> int:
    """How many shovels run."""
    listed = ask(directory, "shovel list")
    return sum(row["state"] == "running" for row in listed["items"])


def idle(directory: str, pids: list[int], counts: list[int]) -> None:
    """Print what so many links take."""
    made = 0
    print(f"\n{'idle links':12} {'MiB of links':>14} {'MiB a link':>12} {'CPU ms a second':>18}")
    first = 0.0
    for count in [1, *counts]:
        for number in range(made, count):
            ask(directory, "parameter set", component="shovel", name=f"idle-{number}", value={
                "src-uri": "amqp://", "dest-uri": "amqp://", "src-queue": f"idle-{number}", "dest-queue": "nowhere"})
        made = count
        while running(directory) < count:
            time.sleep(10 * LOOK_SECONDS)
        time.sleep(2)
        before = cpu_s(pids)
        time.sleep(IDLE_SECONDS)
        used = cpu_s(pids) - before
        memory = usage([child for pid in pids for child in children(pid)]).rss_anon_kb / 1024
        first = first or memory
        more = memory - first
        print(f"{count:12,} {more:14.1f} {more / max(count - 1, 1):12.3f} {used / IDLE_SECONDS * 1000:18.1f}")
    for number in range(made):
        ask(directory, "parameter clear", component="shovel", name=f"idle-{number}")


def beside(broker: Broker, directory: str, rounds: int) -> None:
    """Print what a client feels of busy shovels."""
    client = Client(broker.target.address())
    client.declare_queue("a", durable=True)
    frames, _ = publish_frames("", "a", SIZE, True, client.frame_max)
    client._send(frames * ROUND_AND_ROUND)
    client.declare_queue("b", durable=True)
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for _ in range(rounds):
        for busy in found:
            for name, source, destination in (("one", "a", "b"), ("two", "b", "a")) if busy else ():
                ask(directory, "parameter set", component="shovel", name=name, value={
                    "src-uri": "amqp://", "dest-uri": "amqp://", "src-queue": source, "dest-queue": destination})
            figures = broker.target.perf(LATENCY)
            if "error" in figures:
                raise SystemExit(figures["error"])
            found[busy].append(figures["latency_us"])
            for name in ("one", "two") if busy else ():
                ask(directory, "parameter clear", component="shovel", name=name)
    print(f"\n{'another client, ms':22} {'p50':>8} {'p99':>8}")
    for busy, values in found.items():
        middle, high = (statistics.median(each[share] / 1000 for each in values) for share in ("p50", "p99"))
        print(f"{'beside busy shovels' if busy else 'alone':22} {middle:8.2f} {high:8.2f}")


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", default="100,1000", help="so many links are made that carry nothing")
    parser.add_argument("--ids", default="262144", help="so many ids the destination of a shovel with dedup remembers")
    options = parser.parse_args()
    modes = (*MODES, *(f"{DEDUP} {ids}" for ids in options.ids.split(",") if ids))
    with Broker(f"{BROKERD} --http-port 0") as broker:
        found: dict[str, list[tuple[float, float]]] = {mode: [] for mode in modes}
        directory = str(broker.directory / "data")
        address, pids = broker.target.address(), listeners(broker.target.port)
        for _ in range(options.rounds):
            for mode in modes:
                found[mode].append(one(address, directory, pids, mode, options.messages))
        show(found)
        idle(directory, pids, [int(count) for count in options.idle.split(",") if count])
        beside(broker, directory, options.rounds)


def show(found: dict[str, list[tuple[float, float]]]) -> None:
    """Print rates and costs."""
    print(f"{'mode':14} {'messages/s':>22} {'CPU s a million':>18}")
    for mode, values in found.items():
        rates, costs = zip(*values, strict=True)
        print(f"{mode:14} {statistics.median(rates):12,.0f} [{max(rates):,.0f}] "
              f"{statistics.median(costs):10.2f} [{min(costs):.2f}]")


if __name__ == "__main__":
    main()
