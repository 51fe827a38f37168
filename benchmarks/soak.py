"""Does a broker that works for an hour keep its memory, its descriptors and its disk?

    PYTHONPATH=src python benchmarks/soak.py
    PYTHONPATH=src python benchmarks/soak.py --minutes 5 --rate 20000

A broker is started.  ``brokerperf`` publishes half of so many messages a second through a durable queue (confirmed,
acknowledged) and half through a transient one.  Beside them a pika client does a round of everything else every 50 ms:
a queue declared with arguments, bound, filled, read and deleted; messages that expire, are rejected and dead-lettered,
delayed, committed, rolled back and deduplicated; a connection of its own.  Every 10 s the broker is measured:

    memory        its own (anonymous) octets
    descriptors   that it has open
    disk          octets of its data directory, without the segments that wait to be used again
    files         in it, likewise

A queue's open segment grows up to ``segment_octets``.  Segments of 1 MiB, the smallest there are, are used again within
minutes.  With larger ones the disk of so many queues would fill up for hours before it stays flat.

The table shows the mean of each quarter of the time.  The exit status is 1 if the last quarter is more than a tenth
(and 16 MiB, 16 descriptors, 32 MiB, 32 files) above the second, or if a client failed.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable

import pika
from brokers import BROKERD, Broker
from siege import descriptors_of, memory_of

MIB = 1 << 20
EVERY_SECONDS = 10
NOT_COUNTED = ("spare", "garbage")
SLACK = {"memory": 16 * MIB, "descriptors": 16, "disk": 32 * MIB, "files": 32}


def disk_of(directory: str) -> tuple[int, int]:
    """Octets and files."""
    octets = files = 0
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if name not in NOT_COUNTED]
        for name in names:
            try:
                octets += os.stat(os.path.join(folder, name)).st_blocks * 512
                files += 1
            except FileNotFoundError:
                pass
    return octets, files


class Everything:
    """A round of each feature."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.rounds = 0
        self.connection = self.connect()
        channel = self.connection.channel()
        channel.queue_declare("dead", durable=True, arguments={"x-max-length": 1000})
        channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"})
        channel.queue_declare("due", durable=True, arguments={"x-max-length": 1000})
        channel.queue_bind("due", "later", "due")
        channel.queue_declare("single", durable=True, arguments={
            "x-message-deduplication": True, "x-cache-size": 1000, "x-max-length": 1000})
        channel.close()

    def connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port))

    def round(self) -> None:
        number = self.rounds
        self.rounds += 1
        channel = self.connection.channel()
        lasting = pika.BasicProperties(delivery_mode=2)
        name = f"q{number % 50}"
        channel.queue_declare(name, durable=True, arguments={
            "x-max-priority": 1 + number % 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        channel.queue_bind(name, "amq.topic", f"soak.{number % 1000}.#")
        for priority in range(10):
            channel.basic_publish("amq.topic", f"soak.{number % 1000}.x", bytes(2000),
                                  pika.BasicProperties(delivery_mode=2, priority=priority % 5))
        channel.basic_publish("", name, b"short", pika.BasicProperties(delivery_mode=2, expiration="1"))
        for answer in range(3):
            method, _, _ = channel.basic_get(name)
            if method is not None and answer % 2:
                channel.basic_reject(method.delivery_tag, requeue=False)
            elif method is not None:
                channel.basic_ack(method.delivery_tag)
        channel.basic_publish("later", "due", b"later", pika.BasicProperties(
            delivery_mode=2, headers={"x-delay": 500 + number % 2000}))
        channel.basic_publish("", "single", b"single", pika.BasicProperties(
            delivery_mode=2, headers={"x-deduplication-header": str(number % 5000)}))
        channel.close()
        channel = self.connection.channel()
        channel.tx_select()
        for _ in range(5):
            channel.basic_publish("", name, b"tx", lasting)
        (channel.tx_rollback if number % 3 == 0 else channel.tx_commit)()
        channel.close()
        channel = self.connection.channel()
        if number % 50 > 40:
            channel.queue_purge(name)
        else:
            channel.queue_delete(name)
        channel.close()
        if number % 5 == 0:
            other = self.connect()
            other.channel().queue_declare("", exclusive=True)
            other.close()


def load(port: int, queue: str, options: argparse.Namespace, *more: str) -> subprocess.Popen[bytes]:
    """brokerperf at half of the rate."""
    seconds = options.minutes * 60
    return subprocess.Popen([
        sys.executable, "-m", "brokerd.cli.brokerperf", "throughput", "-q", "--verify-order",
        "--uri", f"amqp://guest:guest@127.0.0.1:{port}/", "-u", queue, "-r", str(options.rate / 2), "-z", str(seconds),
        "-s", "500", "--ack", "multi:50", "-P", "500", *more])


def measure(broker: Broker, directory: str) -> dict[str, float]:
    octets, files = disk_of(directory)
    return {"memory": memory_of(broker.pid), "descriptors": descriptors_of(broker.pid), "disk": octets, "files": files}


def watch(broker: Broker, directory: str, end: float, work: Callable[[], None]) -> list[dict[str, float]]:
    """Work, and measure, until the end."""
    samples: list[dict[str, float]] = []
    due = time.monotonic() + EVERY_SECONDS
    while time.monotonic() < end:
        began = time.monotonic()
        work()
        if began >= due:
            samples.append(measure(broker, directory))
            due += EVERY_SECONDS
        time.sleep(max(0.0, 0.05 - (time.monotonic() - began)))
    return samples


def show(samples: list[dict[str, float]]) -> bool:
    """Print the quarters; whether all stayed as it was."""
    flat = True
    quarter = max(len(samples) // 4, 1)
    print(f"{'':12}{'1st':>12}{'2nd':>12}{'3rd':>12}{'last':>12}  most")
    for name, slack in SLACK.items():
        values = [sample[name] for sample in samples]
        unit = MIB if name in ("memory", "disk") else 1
        means = [sum(part) / max(len(part), 1) for part in (
            values[:quarter], values[quarter:2 * quarter], values[2 * quarter:-quarter], values[-quarter:])]
        grew = means[3] > 1.1 * means[1] + slack
        flat = flat and not grew
        print(f"{name:12}" + "".join(f"{mean / unit:12,.1f}" for mean in means)
              + f"  {max(values) / unit:,.1f}{' MiB' if unit == MIB else ''}{'  GREW' if grew else ''}")
    return flat


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (default 60)")
    parser.add_argument("--rate", type=float, default=20_000, help="messages a second of brokerperf (default 20,000)")
    options = parser.parse_args()
    with Broker(f"{BROKERD} --segment-octets {MIB}") as broker:
        port = broker.target.port
        loads = [load(port, "lasting", options, "-c", "500", "-p", "--durable"), load(port, "passing", options)]
        everything = Everything(port)
        data = str(broker.directory / "data")
        samples = watch(broker, data, time.monotonic() + options.minutes * 60, everything.round)
        statuses = [each.wait() for each in loads]
        print(f"{options.minutes:g} minutes, {options.rate:,.0f} messages/s and {everything.rounds:,} rounds of "
              f"everything; brokerperf ended with {statuses}")
        sound = show(samples) and statuses == [0, 0]
        everything.connection.close()
    sys.exit(0 if sound else 1)


if __name__ == "__main__":
    main()
