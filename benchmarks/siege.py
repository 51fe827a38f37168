"""Does a well-behaved client keep its messages, and its pace, among thousands that mean no good?

    PYTHONPATH=src python benchmarks/siege.py
    PYTHONPATH=src python benchmarks/siege.py --minutes 1 --connections 1000 --rate 100

A broker is started, with a limit of open files and a watermark of memory.  One client publishes 200 persistent messages
a second to a durable queue, with confirms, and consumes them with acks.  Beside it 4,000 connections of 22 kinds (KINDS
in hostile.py) do what no client should, so many operations a second in all.  An operation is a packet of work, such as
20 queues declared and deleted, or a publish to 1,000 queues.  Printed:

    pace     milliseconds from when a message was due until its confirm, and until its delivery
    lost     messages that were confirmed and not delivered, or delivered twice or out of their order; the aim: none
    broker   the processors it had, its descriptors, and by how much its loop was late: its own part of the pace
    memory   the broker's own (anonymous) memory, before, at most, and after; the aim: under the watermark
    leaked   what is left when the hostile clients have gone: descriptors, memory, files in the data directory

Hostile clients are processes with nice 19.  The exit status is 1 if something was lost or leaked, or if memory was over
the watermark by more than a tenth.  What latencies say depends on how quiet the machine is: they change no exit status.
"""

import argparse
import json
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from brokers import BROKERD, ENVIRONMENT, Broker, Wire, free_port, tls_options
from hostile import FANOUT, FANOUT_QUEUES, KINDS, begin, bind, consume, declare, hello, made_by, properties, publish

from brokerd.cli.perfclient import BODY, FRAME_END, METHOD, method

QUEUE = "siege.good"
RATE = 200  # messages of the good client, a second
PREFETCH = 1000
WARM_SECONDS = 5
DRAIN_SECONDS = 300  # for what is still under way when the publishes end
SETTLE_SECONDS = 120  # for the broker, to give back what hostile clients had
IDLE_QUEUE_SECONDS = 5
MIB = 1 << 20
SAMPLES = 20  # of memory, in the table
PAGE_OCTETS = os.sysconf("SC_PAGE_SIZE")
# What a broker may keep when all is over.
SLACK_DESCRIPTORS = 16  # eight nameless files of transient queues, and what syncs and upkeep have open
SLACK_FILES = 0
SLACK_MEMORY = 64 * MIB  # caches of routes and logins, and pages that the allocator has not given back
OPEN_OK, CHANNEL_CLOSE, CONNECTION_CLOSE = b"\0\x14\0\x0b", b"\0\x14\0\x28", b"\0\x0a\0\x32"  # class and method
BASIC_DELIVER, BASIC_ACK, BASIC_NACK = b"\0\x3c\0\x3c", b"\0\x3c\0\x50", b"\0\x3c\0\x78"
WORSE = re.compile(r"^\S+ \S+ (ERROR|CRITICAL)|^Traceback")
NOT_COUNTED = ("spare", "garbage", "garbage.old")  # folders that the broker empties by itself, and refills


class Held(NamedTuple):
    """What the broker's process has at one moment."""

    descriptors: int
    memory: int  # octets, anonymous
    files: frozenset[str]
    disk: int  # octets of those files


def memory_of(pid: int) -> int:
    """The anonymous memory of a process, as the broker itself counts it."""
    _, resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[:3]
    return (int(resident) - int(shared)) * PAGE_OCTETS


def descriptors_of(pid: int) -> int:
    """How many descriptors a process has open."""
    folder = f"/proc/{pid}/fd"
    return os.stat(folder).st_size or len(os.listdir(folder))  # From Linux 6.2 on the size is their count, before 0.


def lateness_of(pid: int, log: Path) -> int:
    """By how many ms the broker's loop was late at most, as its summary of the state says."""
    begin = log.stat().st_size
    os.kill(pid, signal.SIGUSR1)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        said = re.search(rb"at most by (\d+) ms since", log.read_bytes()[begin:])
        if said:
            return int(said[1])
        time.sleep(0.1)
    raise SystemExit("the broker says nothing of its state")


def cpu_seconds_of(pid: int) -> float:
    """CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def held(pid: int, data: Path) -> Held:
    """What the broker has now."""
    files, octets = set(), 0
    for folder, folders, names in os.walk(data):
        if Path(folder) == data:
            folders[:] = [name for name in folders if name not in NOT_COUNTED]
        for name in names:
            path = os.path.join(folder, name)
            try:
                octets += os.stat(path).st_blocks * 512
            except FileNotFoundError:
                continue
            # A queue's second segment has another number and is no other file.
            files.add(os.path.relpath(folder, data) + "/" + name.rstrip("0123456789"))
        files.update(os.path.relpath(os.path.join(folder, name), data) + "/" for name in folders)
    return Held(descriptors_of(pid), memory_of(pid), frozenset(files), octets)


class Line:
    """One connection of the well-behaved client, which never waits for its socket."""

    def __init__(self, port: int, poll: select.epoll) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), 60)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.sendall(hello())
        self._came, self._out = b"", b""
        self._poll = poll
        while not any(payload[:4] == OPEN_OK for _, payload in self.frames(wait=True)):
            pass
        self._sock.setblocking(False)
        poll.register(self._sock, select.EPOLLIN)

    @property
    def number(self) -> int:
        """The descriptor."""
        return self._sock.fileno()

    def send(self, octets: bytes = b"") -> None:
        """Send; what the socket does not take goes when epoll says so."""
        self._out += octets
        try:
            self._out = self._out[self._sock.send(self._out):]
        except BlockingIOError:
            pass
        self._poll.modify(self._sock, select.EPOLLIN | (select.EPOLLOUT if self._out else 0))

    def frames(self, *, wait: bool = False) -> list[tuple[int, bytes]]:
        """The frames that have come: type and payload.  Raises SystemExit where the broker closes the connection."""
        try:
            octets = self._sock.recv(1 << 20)
            if not octets:
                raise SystemExit("the broker has closed a connection of the well-behaved client")
            self._came += octets
        except BlockingIOError:
            if wait:
                raise
        found, at, came = [], 0, self._came
        while len(came) - at >= 8:
            end = at + 8 + int.from_bytes(came[at + 3:at + 7])
            if end > len(came):
                break
            if came[at] == METHOD and came[at + 7:at + 11] in (CONNECTION_CLOSE, CHANNEL_CLOSE):
                raise SystemExit(f"the broker ends a well-behaved client: {came[at + 13:end - 5]!r}")
            found.append((came[at], came[at + 7:end - 1]))
            at = end
        self._came = came[at:]
        return found


class Good:
    """The well-behaved client: a connection that publishes, and one that consumes, both served by one thread."""

    def __init__(self, port: int) -> None:
        self._poll = select.epoll()
        self._publisher, self._consumer = Line(port, self._poll), Line(port, self._poll)
        self._consumer.send(declare(QUEUE, exclusive=False, durable=True)
                            + method(1, (60, 10), struct.pack(">IHB", 0, PREFETCH, 0))
                            + consume(QUEUE, "good", no_ack=False))
        self._publisher.send(method(1, (85, 10), b"\0"))
        # The body is the message's number.
        self._head = begin("", QUEUE, 8, properties(persistent=True)) + b"\3\0\1" + struct.pack(">I", 8)
        self._due: list[float] = [0.0]  # when each message was due
        self.answered = self.delivered = 0  # the last of them
        self.confirms: list[float] = []  # seconds, of each message
        self.deliveries: list[float] = []
        self.faults: list[str] = []  # what was lost, came twice, or out of its order

    @property
    def published(self) -> int:
        """How many messages."""
        return len(self._due) - 1

    def run(self, seconds: float, each_second: Callable[[], object] = lambda: None) -> None:
        """Publish for so long; what is confirmed and delivered meanwhile is counted."""
        began = looked = time.monotonic()
        due = began
        while (now := time.monotonic()) < began + seconds:
            while due <= now:
                self._due.append(due)
                self._publisher.send(self._head + self.published.to_bytes(8) + FRAME_END)
                due += 1 / RATE
            self._serve(max(0.0, due - time.monotonic()))
            if now >= looked + 1:
                looked = now
                each_second()

    def drain(self) -> None:
        """Wait for what is under way, and say what never came."""
        until = time.monotonic() + DRAIN_SECONDS
        while (self.answered < self.published or self.delivered < self.answered) and time.monotonic() < until:
            self._serve(0.1)
        if self.answered < self.published:
            self.faults.append(f"{self.published - self.answered} messages were never confirmed")
        if self.delivered < self.answered:
            self.faults.append(f"{self.answered - self.delivered} confirmed messages were never delivered")

    def forget_pace(self) -> None:
        """Latencies count from now on."""
        self.confirms.clear()
        self.deliveries.clear()

    def _serve(self, seconds: float) -> None:
        for number, events in self._poll.poll(seconds):
            line = self._publisher if number == self._publisher.number else self._consumer
            if events & select.EPOLLOUT:
                line.send()
            if events & ~select.EPOLLOUT:
                (self._take_confirms if line is self._publisher else self._take_deliveries)()

    def _take_confirms(self) -> None:
        frames = self._publisher.frames()
        now = time.monotonic()
        for _, payload in frames:
            if payload[:4] not in (BASIC_ACK, BASIC_NACK):
                continue
            tag, multiple = struct.unpack(">QB", payload[4:13])
            first = self.answered + 1 if multiple else tag
            if first != self.answered + 1:
                self.faults.append(f"the confirm of message {first} came behind that of {self.answered}")
            if payload[:4] == BASIC_NACK:
                self.faults.append(f"messages {first} to {tag} were refused")
            self.confirms += [now - each for each in self._due[first:tag + 1]]
            self.answered = tag

    def _take_deliveries(self) -> None:
        frames = self._consumer.frames()
        now = time.monotonic()
        tag = b""
        for kind, payload in frames:
            if payload[:4] == BASIC_DELIVER and kind == METHOD:
                at = 5 + payload[4]
                tag = payload[at:at + 8]
                if payload[at + 8]:
                    self.faults.append(f"a message behind {self.delivered} came a second time")
            elif kind == BODY:
                number = int.from_bytes(payload)
                if number != self.delivered + 1:
                    self.faults.append(f"message {number} came behind message {self.delivered}")
                self.delivered = number
                self.deliveries.append(now - self._due[number])
        if tag:
            self._consumer.send(method(1, (60, 80), tag + b"\1"))


class Hostile:
    """The processes of the hostile clients."""

    def __init__(self, port: int, tls_port: int, options: argparse.Namespace) -> None:
        script = str(Path(__file__).resolve().with_name("hostile.py"))
        self._processes = []
        for number in range(options.processes):
            first, end = (options.connections * each // options.processes for each in (number, number + 1))
            self._processes.append(subprocess.Popen(
                ["nice", "-n", "19", sys.executable, script, "--port", str(port), "--tls-port", str(tls_port),
                 "--first", str(first), "--count", str(end - first), "--rate", str(options.rate / options.processes),
                 "--kinds", options.kinds],
                stdout=subprocess.PIPE, env=ENVIRONMENT))

    def check(self) -> None:
        """Raise SystemExit if one has ended."""
        if any(each.poll() is not None for each in self._processes):
            raise SystemExit("a process of hostile clients has ended early")

    def end(self) -> dict[str, Counter[str]]:
        """Have all clients go; what each kind did."""
        told: dict[str, Counter[str]] = {}
        for each in self._processes:
            each.send_signal(signal.SIGTERM)
        for each in self._processes:
            for kind, counts in json.loads(each.communicate()[0]).items():
                told.setdefault(kind, Counter()).update(counts)
        return told

    def kill(self) -> None:
        """End them, even if they are busy."""
        for each in self._processes:
            each.kill()
            each.wait()


def make_fanout(wire: Wire) -> None:
    """The exchange with many queues."""
    wire.declare_exchange(FANOUT, "fanout")
    for number in range(FANOUT_QUEUES):
        name = f"{FANOUT}.{number}"
        wire.send(declare(name, exclusive=False, x_max_length=10) + bind(name, FANOUT, ""))


def remove_everything(wire: Wire, left: list[str]) -> None:
    """Delete what hostile clients, and make_fanout(), have made for all."""
    wire.delete_exchange(FANOUT)
    for name in (*(f"{FANOUT}.{number}" for number in range(FANOUT_QUEUES)), *left):
        wire.delete_queue(name)


def wait_until_settled(pid: int, data: Path, before: Held, settle_seconds: float) -> tuple[Held, list[str]]:
    """What the broker has when it has given back what it can, and what of that is too much."""
    until = time.monotonic() + settle_seconds
    while True:
        after = held(pid, data)
        leaks = []
        if after.descriptors > before.descriptors + SLACK_DESCRIPTORS:
            leaks.append(f"{after.descriptors - before.descriptors} descriptors")
        if after.memory > before.memory + SLACK_MEMORY:
            leaks.append(f"{(after.memory - before.memory) / MIB:.0f} MiB of memory")
        if left := sorted(after.files - before.files):
            leaks.append(f"{len(left)} files or folders in the data directory, the first: {', '.join(left[:5])}")
        if not leaks or time.monotonic() > until:
            return after, leaks
        time.sleep(1)


def milliseconds(values: list[float]) -> str:
    """Median, 99 of a hundred, and the longest."""
    if not values:
        return "none"
    values = sorted(values)
    parts = (("p50", values[len(values) // 2]), ("p99", values[len(values) * 99 // 100]), ("max", values[-1]))
    return "   ".join(f"{name} {value * 1000:9.2f}" for name, value in parts) + " ms"


class Siege:
    """One run: what was seen in it."""

    def __init__(self, broker: Broker, options: argparse.Namespace, tls_port: int) -> None:
        self._broker, self._options, self._tls_port = broker, options, tls_port
        self.memory: list[int] = []  # of each second
        self.descriptors = 0  # at most
        self.cpu = 0.0  # of the broker, seconds
        self.late = 0  # its loop, ms
        self.told: dict[str, Counter[str]] = {}

    def run(self) -> tuple[Good, Held, Held, list[str]]:
        """The well-behaved client, what the broker had before and after, and what leaked."""
        port, pid = self._broker.target.port, self._broker.pid
        data = self._broker.directory / "data"
        good = Good(port)
        good.run(WARM_SECONDS)
        quiet = f"confirm {milliseconds(good.confirms)}"
        print(f"alone       {quiet}\n            deliver {milliseconds(good.deliveries)}", flush=True)
        good.forget_pace()
        wire = Wire(self._broker.target.address(), 600)
        wire.send(declare("siege.first") + publish("", "siege.first"))  # The first transient queue makes their folder.
        wire.delete_queue("siege.first")
        before = held(pid, data)
        make_fanout(wire)
        hostile = Hostile(port, self._tls_port, self._options)
        try:
            began = cpu_seconds_of(pid)
            lateness_of(pid, self._broker.directory / "log")  # It counts from here on.

            def look() -> None:
                hostile.check()
                self.memory.append(memory_of(pid))
                self.descriptors = max(self.descriptors, descriptors_of(pid))

            good.run(self._options.minutes * 60, look)
            self.cpu = cpu_seconds_of(pid) - began
            self.late = lateness_of(pid, self._broker.directory / "log")
            self.told = hostile.end()
        finally:
            hostile.kill()
        good.drain()
        remove_everything(wire, made_by(self._options.connections, self._options.kinds.split(",")))
        wire.drop()
        after, leaks = wait_until_settled(pid, data, before, self._options.settle)
        return good, before, after, leaks


def report(siege: Siege, good: Good, before: Held, after: Held, options: argparse.Namespace) -> None:
    """Print what was seen."""
    every = max(1, len(siege.memory) // SAMPLES)
    samples = " ".join(f"{each / MIB:.0f}" for each in siege.memory[::every])
    print(f"besieged    confirm {milliseconds(good.confirms)}\n            deliver {milliseconds(good.deliveries)}")
    print(f"messages    {good.published} published, {good.answered} confirmed, {good.delivered} delivered")
    print(f"broker      {siege.cpu / options.minutes / 60:.2f} processors, at most {siege.descriptors} descriptors; "
          f"its loop was late by {siege.late} ms at most")
    print(f"memory      before {before.memory / MIB:.0f}, at most {max(siege.memory) / MIB:.0f}, "
          f"after {after.memory / MIB:.0f}; watermark {options.watermark} MiB")
    print(f"            every {every} s: {samples}")
    print(f"left        descriptors {before.descriptors} before, {after.descriptors} after; "
          f"disk {before.disk / MIB:.1f} MiB, {after.disk / MIB:.1f}")
    if options.verbose:
        print(f"\n{'kind':20}{'held':>7}{'operations':>12}{'connections':>13}{'ended':>8}{'not read':>10}")
        for kind, counts in siege.told.items():
            print(f"{kind:20}{counts['held']:7}{counts['operations']:12}{counts['connections']:13}"
                  f"{counts['ended by the broker']:8}{counts['the broker does not read']:10}")


def main() -> None:
    """Besiege a broker as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--connections", type=int, default=4000, help="hostile ones (default: 4000)")
    parser.add_argument("--rate", type=float, default=200, help="operations a second of all of them (default: 200)")
    parser.add_argument("--processes", type=int, default=2, help="of hostile clients (default: 2)")
    parser.add_argument("--watermark", type=int, default=1024, help="MiB of memory for the broker (default: 1024)")
    parser.add_argument("--files", type=int, default=16384, help="the broker's limit of open files (default: 16384)")
    parser.add_argument("--kinds", default=",".join(KINDS), help=", of: " + ", ".join(KINDS))
    parser.add_argument("--settle", type=float, default=SETTLE_SECONDS,
                        help="seconds for the broker to give back what hostile clients had (default: 120)")
    parser.add_argument("--verbose", action="store_true", help="print what each kind did")
    parser.add_argument("--keep", metavar="FILE", help="copy the broker's log there")
    options = parser.parse_args()
    unknown = [name for name in options.kinds.split(",") if name not in KINDS]
    if unknown:
        parser.error(f"unknown kind {unknown[0]!r}")
    tls_port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = (f"prlimit --nofile={options.files}:{options.files} {BROKERD} {tls_options(Path(folder))} "
                   f"--amqps-port {tls_port} --memory-high-watermark-octets {options.watermark * MIB} "
                   f"--idle-queue-seconds {IDLE_QUEUE_SECONDS}")
        with Broker(command) as broker:
            siege = Siege(broker, options, tls_port)
            good, before, after, leaks = siege.run()
            report(siege, good, before, after, options)
            log = broker.directory / "log"
            errors = [line for line in log.read_text(errors="replace").splitlines() if WORSE.search(line)]
            print(f"log         {log.stat().st_size / MIB:.1f} MiB, {len(errors)} lines of errors")
            if options.keep:
                shutil.copy(log, options.keep)
    faults = [f"lost: {each}" for each in good.faults[:10]] + [f"leaked: {each}" for each in leaks]
    if max(siege.memory) > options.watermark * MIB * 11 // 10:
        faults.append("memory was over the watermark by more than a tenth")
    faults += [f"log: {line}" for line in errors[:5]]
    for fault in faults:
        print(fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
