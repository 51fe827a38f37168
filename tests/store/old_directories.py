"""Data directories that brokers of before left behind, killed by kill -9: unpacked for tests, and made.

    unpack("acks-1", folder, boot)   the directory; told("acks-1") what is in it, queue by queue
    python -m tests.store.old_directories SOURCES NAME      makes fixtures/NAME.tar.xz and .json

``SOURCES`` is the ``src`` of a built checkout of the broker of before.  Each line of the record is one message that is
not settled: its number, its body's number, its priority, and how it stood at the kill::

    waiting         never handed out
    out             handed out once, and out at the kill
    ready           returned ``count`` times, and lying ready
    again           returned ``count`` times, and out again
    kept            a dead letter without a target, which is kept until it has one

``acks-1``: all acks files are of version 1.
"""

import json
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from tests.broker import Broker
from tests.faults.client import Client
from tests.plane.harness import ack, nack, publish

from brokerd.store import format as layout
from brokerd.wire import methods

FIXTURES = Path(__file__).resolve().parent / "fixtures"
SEGMENT_OCTETS = 1 << 20
COMPACTED_BY = 120.0            # seconds; the broker looks every 30
KINDS = ("waiting", "out", "ready", "again", "kept")


def unpack(name, folder, boot):
    """The data directory ``folder/data`` as the kill left it, in that boot."""
    with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    directory = Path(folder) / "data"
    (directory / "running").write_text(f"{boot} whole\n")
    return directory


def told(name):
    """What is in it: queue -> its messages, in order of their numbers."""
    return json.loads((FIXTURES / f"{name}.json").read_text())


# --- how they were made


class Maker(Client):
    """A client that plays with one message after the other by basic.get, and notes how each stands."""

    def __init__(self, port):
        super().__init__(port)
        self.tags = {}          # (queue, body's number): the tag under which it is out

    def declare(self, queue, **arguments):
        """A durable queue; with a delivery limit, so that redeliveries carry their counts."""
        arguments = {"x-delivery-limit": 100} | {name.replace("_", "-"): value for name, value in arguments.items()}
        self.ask(methods.QueueDeclare(queue=queue, durable=True, arguments=arguments), methods.QueueDeclareOk)

    def put(self, queue, numbers, octets=20, priority=None):
        """Messages whose bodies are these numbers and zeros."""
        properties = b"\x10\x00\x02" if priority is None else b"\x18\x00\x02" + bytes((priority,))
        for number in numbers:
            self.sock.sendall(publish(1, b"%d" % number + bytes(octets), queue.encode(), properties=properties))
        self.settled()

    def get(self, queue, count=1):
        """Take the next ``count``; the numbers of their bodies."""
        numbers = []
        for _ in range(count):
            self.write(methods.BasicGet(queue=queue))
            content = self.wait_for_contents(1)[0]
            numbers.append(int(content.body.rstrip(b"\0")))
            self.tags[queue, numbers[-1]] = content.tag
        return numbers

    def give_back(self, queue, *numbers):
        """Each returns to its place."""
        for number in numbers:
            self.sock.sendall(nack(1, self.tags.pop((queue, number))))
        self.settled()

    def refuse(self, queue, *numbers):
        """Each is dead-lettered, or dropped."""
        for number in numbers:
            self.sock.sendall(nack(1, self.tags.pop((queue, number)), requeue=False))
        self.settled()

    def work(self, queue, *numbers):
        """Each is acked."""
        for number in numbers:
            self.sock.sendall(ack(1, self.tags.pop((queue, number))))
        self.settled()

    def settled(self):
        """All that was sent has been done."""
        self.ask(methods.BasicQos(), methods.BasicQosOk)


def usual(client, queue, first=1):
    """Six messages in each way of standing, and six behind them that wait: (body's number, kind, count)."""
    a, b, c, d, e, f = client.get(queue, 6)
    assert (a, f) == (first, first + 5)
    client.work(queue, a)
    client.refuse(queue, f)
    client.give_back(queue, e)
    assert client.get(queue) == [e]
    client.give_back(queue, e)
    client.give_back(queue, d)
    assert client.get(queue) == [d]
    client.give_back(queue, c)
    return [(b, "out", 0), (c, "ready", 1), (d, "again", 1), (e, "ready", 2)]


def sparse(client, directory):
    """A segment of fifty messages in which few are wanted, compacted while the broker runs."""
    client.declare("sparse")
    client.put("sparse", range(1, 101), SEGMENT_OCTETS // 50)
    numbers = client.get("sparse", 60)
    stay = [5, 10, 15, 20, 25]
    client.give_back("sparse", 20, 15)
    assert client.get("sparse", 2) == [15, 20]
    client.give_back("sparse", 20)
    client.work("sparse", *(n for n in numbers if n not in stay and n <= 55))
    started = time.monotonic()
    while not any(map(compacted, directory.rglob("msgs.??????????"))) or any(directory.rglob("*.new")):
        assert time.monotonic() - started < COMPACTED_BY, "never compacted"
        time.sleep(0.2)
    client.give_back("sparse", 10)
    assert client.get("sparse") == [10]
    client.give_back("sparse", 25)
    return [(5, "out", 0), (10, "again", 1), (15, "again", 1), (20, "ready", 2), (25, "ready", 1),
            *((n, "out", 0) for n in range(56, 61)), *((n, "waiting", 0) for n in range(61, 101))]


def compacted(path):
    octets = path.read_bytes()[:layout.HEADER_OCTETS]
    return len(octets) == layout.HEADER_OCTETS and layout.SEGMENT_HEADER.unpack(octets)[5] > 0


def first_life(client):
    """What happens before the first kill."""
    client.declare("twice")
    client.put("twice", range(1, 5))
    assert client.get("twice", 2) == [1, 2]
    client.give_back("twice", 2)


def second_life(client, directory):
    """What happens between the kills: queue -> (body's number, kind, count)."""
    assert client.get("twice", 2) == [1, 2]
    client.give_back("twice", 1)                # It was out at the first kill: that counts, and so does this.
    found = {"twice": [(1, "ready", 2), (2, "again", 1), (3, "waiting", 0), (4, "waiting", 0)]}
    client.declare("untouched")
    client.put("untouched", range(1, 4))
    found["untouched"] = [(n, "waiting", 0) for n in range(1, 4)]
    for queue, arguments in (("plain", {}), ("journaled", {"x_order_journal": True})):
        client.declare(queue, **arguments)
        client.put(queue, range(1, 13))
        found[queue] = [*usual(client, queue), *((n, "waiting", 0) for n in range(7, 13))]
    client.declare("levels", x_max_priority=5)
    client.put("levels", range(13, 25), priority=0)
    client.put("levels", range(1, 13), priority=3)
    low = [(n, "waiting", 0) for n in range(13, 25)]
    found["levels"] = [*low, *usual(client, "levels"), *((n, "waiting", 0) for n in range(7, 13))]
    client.ask(methods.ExchangeDeclare(exchange="nowhere", type="fanout", durable=True), methods.ExchangeDeclareOk)
    client.declare("dead", x_queue_type="quorum", x_dead_letter_exchange="nowhere",
                   x_dead_letter_strategy="at-least-once", x_overflow="reject-publish")
    client.put("dead", range(1, 7))
    assert client.get("dead", 4) == [1, 2, 3, 4]
    client.give_back("dead", 3)
    assert client.get("dead") == [3]
    client.refuse("dead", 1, 3)
    client.work("dead", 4)
    found["dead"] = [(1, "kept", 0), (2, "out", 0), (3, "kept", 1), (5, "waiting", 0), (6, "waiting", 0)]
    found["sparse"] = sparse(client, directory)
    return found


def make(sources, name):
    """Have the broker of those sources write what the module's docstring says."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "data"
        broker = Broker(directory, "--segment-octets", SEGMENT_OCTETS, env={"PYTHONPATH": str(Path(sources).resolve())})
        broker.start()
        with Maker(broker.port) as client:
            first_life(client)
            broker.kill()
        broker.start()
        with Maker(broker.port) as client:
            found = second_life(client, directory)
            broker.kill()
        for path in directory.rglob("*"):
            if path.is_socket() or path.name == ".lock":
                path.unlink()       # They name the machine, and no start needs them.
        (directory / "running").write_text("made whole\n")
        with tarfile.open(FIXTURES / f"{name}.tar.xz", "w:xz", preset=9) as archive:
            archive.add(directory, "data", filter=_anonymous)
    record = {queue: [_line(queue, *message) for message in messages]
              for queue, messages in sorted(found.items())}
    lines = ",\n".join(f" {json.dumps(queue)}: [\n  " + ",\n  ".join(map(json.dumps, messages)) + "]"
                       for queue, messages in record.items())
    (FIXTURES / f"{name}.json").write_text("{\n" + lines + "\n}\n")


def _line(queue, body, kind, count):
    assert kind in KINDS
    line = {"body": body, "kind": kind, "count": count}
    if queue == "levels":
        line["priority"] = 0 if body > 12 else 3
        line["seq"] = body - 12 if body > 12 else body + 12
    else:
        line["seq"] = body
    return line


def _anonymous(member):
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    make(*sys.argv[1:])
