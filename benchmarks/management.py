"""What do the management process and its answers cost, with many queues?

    PYTHONPATH=src python benchmarks/management.py [--queues 10000] [--seconds 10]

Starts a broker with that many queues, then asks over one connection: the median and the worst time of each question,
and the CPU time that it costs the broker and the management process; how many messages a second go in and out by HTTP;
what share of a core both use while two clients poll all questions each second; and how late messages come at 5,000 a
second, alone and beside those two clients, in turns.  Also the memory of both, and how long after the broker the
process listens.
"""

import argparse
import contextlib
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from http.client import HTTPConnection

import pika
from brokers import Target

AUTHORIZATION = "Basic " + b64encode(b"guest:guest").decode()
QUESTIONS = (
    "/api/overview", "/api/queues?page=1&page_size=100", "/api/queues", "/api/queues/%2F/q5", "/api/exchanges",
    "/api/nodes", "/api/connections", "/metrics", "/metrics/per-object",
)  # fmt: skip
TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Running:
    """A broker with its management process."""

    def __init__(self, folder: str) -> None:
        self.amqp, self.http = free_port(), free_port()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "brokerd", "-D", folder, "-p", str(self.amqp), "--http-port", str(self.http)],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.ready_seconds = self._await_http()
        threading.Thread(target=self._drain, daemon=True).start()
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as file:
            self.management = int(file.read().split()[0])

    def _await_http(self) -> float:
        assert self.process.stderr is not None
        began = 0.0
        for line in self.process.stderr:
            if re.search(r"listening on .*\(AMQP\)", line):
                began = time.perf_counter()
            elif "(HTTP)" in line:
                return time.perf_counter() - began
        raise SystemExit("the broker ended")

    def _drain(self) -> None:
        assert self.process.stderr is not None
        for _ in self.process.stderr:
            pass

    def cpu(self) -> list[float]:
        """What broker and management process have used, in seconds."""
        return [cpu_seconds(pid) for pid in (self.process.pid, self.management)]

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()


def cpu_seconds(pid: int) -> float:
    """What a process has used."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mib(pid: int) -> float:
    """What a process has in memory."""
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1)) / 1024  # type: ignore[union-attr]


class Client:
    """A connection that stays."""

    def __init__(self, port: int) -> None:
        self.connection = HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, path: str, method: str = "GET", body: str | None = None) -> float:
        """How many ms an answer takes."""
        began = time.perf_counter()
        self.connection.request(method, path, body, {"authorization": AUTHORIZATION})
        answer = self.connection.getresponse()
        content = answer.read()
        assert answer.status < 300, (path, answer.status, content[:200])
        return 1000 * (time.perf_counter() - began)


def declare(port: int, queues: int) -> None:
    """Make the queues."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=port, heartbeat=0))
    channel = connection.channel()
    for number in range(queues):
        channel.queue_declare(f"q{number}", durable=False)
    connection.close()


def ask_all(running: "Running", repeat: int) -> None:
    """Show how long each question takes, and what it costs."""
    client = Client(running.http)
    for path in QUESTIONS:
        before = running.cpu()
        # Each time another question: what took long would be given again.
        times = [client.ask(f"{path}{'&' if '?' in path else '?'}asked={number}") for number in range(repeat)]
        broker, management = (1000 * (new - old) / repeat for old, new in zip(before, running.cpu(), strict=True))
        print(f"{path:36} median {statistics.median(times):8.2f} ms, worst {max(times):8.2f} ms, CPU of the broker "
              f"{broker:6.1f} ms, of the management process {management:6.1f} ms")


def publish_and_get(port: int, seconds: float) -> None:
    """Show how many messages a second four clients move."""
    sent = '{"routing_key": "q1", "properties": {}, "payload": "hello", "payload_encoding": "string"}'
    got = '{"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}'
    counts = [0] * 4
    until = time.perf_counter() + seconds

    def work(number: int) -> None:
        client = Client(port)
        while time.perf_counter() < until:
            client.ask("/api/exchanges/%2F/amq.default/publish", "POST", sent)
            client.ask("/api/queues/%2F/q1/get", "POST", got)
            counts[number] += 2

    run([lambda number=number: work(number) for number in range(4)])
    print(f"{'publish and get':36} {sum(counts) / seconds:8.0f} requests/s by 4 clients")


def poll(running: Running, seconds: float) -> None:
    """Show what two clients cost that poll all questions each second."""
    before = running.cpu()
    with polled(running):
        time.sleep(seconds)
    for name, old, new in zip(("broker", "management"), before, running.cpu(), strict=True):
        print(f"{'2 clients poll: ' + name:36} {100 * (new - old) / seconds:8.1f} % of a core")


@contextlib.contextmanager
def polled(running: Running) -> Iterator[None]:
    """Meanwhile two clients ask all questions each second."""
    ended = threading.Event()

    def work() -> None:
        client = Client(running.http)
        while not ended.is_set():
            began = time.perf_counter()
            for path in QUESTIONS:
                client.ask(path)
            ended.wait(max(0.0, 1 - (time.perf_counter() - began)))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def lateness(running: Running, seconds: float, turns: int) -> None:
    """Show how late messages come, alone and beside clients that poll."""
    target, found = Target("brokerd", running.amqp), dict[str, list[float]]()
    for _ in range(turns):
        for name, beside in (("alone", contextlib.nullcontext()), ("beside 2 clients that poll", polled(running))):
            with beside:
                figures = target.perf(f"latency -r 5000 -z {seconds:g}")
            if "error" in figures:
                raise SystemExit(figures["error"])
            found.setdefault(name, []).append(figures["latency_us"]["p99"])
    for name, values in found.items():
        print(f"{'p99 at 5,000/s ' + name:42} median {statistics.median(values):8.0f} µs of "
              f"{', '.join(f'{each:.0f}' for each in values)}")


def run(works: list) -> None:
    """Do all at once."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3, help="of lateness")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        running = Running(folder)
        try:
            print(f"{'listens after the broker':36} {1000 * running.ready_seconds:8.0f} ms")
            print(f"{'memory at the start':36} {memory_mib(running.management):8.1f} MiB, "
                  f"broker {memory_mib(running.process.pid):.1f} MiB")
            declare(running.amqp, given.queues)
            ask_all(running, given.repeat)
            publish_and_get(running.http, given.seconds)
            poll(running, given.seconds)
            lateness(running, given.seconds, given.turns)
            print(f"{'memory at the end':36} {memory_mib(running.management):8.1f} MiB, "
                  f"broker {memory_mib(running.process.pid):.1f} MiB")
        finally:
            running.stop()


if __name__ == "__main__":
    main()
