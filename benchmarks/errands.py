"""The cases of starvation.py that only brokerd has: an operator asks for work, or readers of a stream do."""

import contextlib
import json
import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from abuser import DEAD, QUEUE, Abuser, Step, publish
from brokers import Wire

from brokerd.cli.perfclient import method, qos_arguments, shortstr, table

STREAM, VHOST, POLICY = "starvation.stream", "starvation", "starvation"
OF_STREAM = {"x-queue-type": "stream"}
EVERY = 100_000                 # the most messages that one operation takes
CLOSE_CHANNEL = struct.pack(">H", 200) + shortstr("") + bytes(4)


def stream_of(it: Abuser, messages: bytes, **arguments: object) -> None:
    """A new stream with these messages."""
    it.client.delete_queue(STREAM)
    it.client.declare_queue(STREAM, durable=True, arguments={**OF_STREAM, **arguments})
    it.do(messages)


def read(client: Wire, asked: dict[str, object], readers: int) -> None:
    """Begin readers of the stream, from its first message on, with a filter."""
    client.request((60, 10), qos_arguments(10), (60, 11))
    for number in range(readers):
        client.consume(STREAM, str(number), no_ack=False, no_wait=True, consumer={"x-stream-offset": "first", **asked})


def wait_for_deliveries(client: Wire, count: int) -> None:
    """Read so many deliveries."""
    for _ in range(count):
        client.wait_for((60, 60))


@contextlib.contextmanager
def filters(it: Abuser) -> Iterator[Step]:
    usual, last = (publish(STREAM, headers={"t": "a" * 100 + end}) for end in ("", " end"))
    stream_of(it, usual * 2000 + last)
    expression = " OR ".join(f"t LIKE '%a%a%{one}%'" for one in ("end", *range(100)))

    def work() -> None:
        other = it.connect()
        read(other, {"x-stream-filter-sql": expression}, 10)
        wait_for_deliveries(other, 10)
        other.drop()

    yield work
    it.client.delete_queue(STREAM)


@contextlib.contextmanager
def many_readers(it: Abuser) -> Iterator[Step]:
    stream_of(it, publish(STREAM) * 20_000)

    def work() -> None:
        other = it.connect()
        read(other, {"x-stream-filter": "not there"}, 10_000)
        other.request((20, 40), CLOSE_CHANNEL, (20, 41))
        other.drop()

    yield work
    it.client.delete_queue(STREAM)


@contextlib.contextmanager
def given_back(it: Abuser) -> Iterator[Step]:
    found = 10_000
    messages = (publish(STREAM, headers={"x-stream-filter-value": "a"}) * found
                + publish(STREAM, octets=1000, headers={}) * 40_000)
    stream_of(it, messages, **{"x-stream-max-segment-size-bytes": 4096})

    def work() -> None:
        other = it.connect()
        other.request((60, 10), qos_arguments(2 * found), (60, 11))
        other.consume(STREAM, "a", no_ack=False, consumer={"x-stream-offset": "first", "x-stream-filter": "a"})
        wait_for_deliveries(other, found)
        other.send(method(1, (60, 120), struct.pack(">QB", 0, 3)))
        wait_for_deliveries(other, found)
        other.drop()

    yield work
    it.client.delete_queue(STREAM)


@contextlib.contextmanager
def sharing(it: Abuser) -> Iterator[Step]:
    readers, messages, part = 64, 1_000_000, 10_000
    asked = {"x-stream-offset": "first", "x-stream-reader": "all", "x-stream-partitions": "hash"}
    begin = b"".join(
        method(channel, (20, 10), shortstr("")) + method(channel, (60, 10), qos_arguments(0xFFFF))
        + method(channel, (60, 20), b"\0\0" + shortstr(STREAM) + shortstr("t") + b"\0" + table(asked))
        for channel in range(2, 2 + readers))
    octets = publish(STREAM) * part

    def work() -> None:
        stream_of(it, b"")
        other = it.connect()
        other.send(begin + method(1, (60, 10), qos_arguments(0)))
        other.wait_for((60, 11))        # All of them read: the first one alone would take as many as it may.
        sender = threading.Thread(target=lambda: [it.client.send(octets) for _ in range(messages // part)])
        sender.start()
        other.count(b"\0\0\0\x10" + bytes(16) + b"\xce", messages)
        sender.join()
        other.drop()
        while it.operate("stream readers", queue=STREAM)["items"][0]["reads"]:
            time.sleep(0.01)

    yield work
    it.client.delete_queue(STREAM)


@contextlib.contextmanager
def retention(it: Abuser) -> Iterator[Step]:
    segment = 65_536
    messages = publish(STREAM, octets=segment // 2) * 2000

    def work() -> None:
        stream_of(it, messages, **{"x-stream-max-segment-size-bytes": segment})
        it.operate("policy set", name=POLICY, pattern=f"^{STREAM}$", definition={"max-length-bytes": segment})
        while it.operate("stream list", name=STREAM)["items"][0]["octets"] > 4 * segment:
            time.sleep(0.01)
        it.operate("policy delete", name=POLICY)

    yield work
    it.client.delete_queue(STREAM)


def grouped(it: Abuser, messages: bytes) -> None:
    """A new queue with message groups, and these messages."""
    it.client.delete_queue(QUEUE)
    it.client.declare_queue(QUEUE, arguments={"x-message-group": "exclusive"})
    it.do(messages)


@contextlib.contextmanager
def group_purge(it: Abuser) -> Iterator[Step]:
    messages = b"".join(publish(QUEUE, headers={"group-id": "hot"}) * 50
                        + publish(QUEUE, headers={"group-id": f"g{number}"}) for number in range(1000))

    def work() -> None:
        grouped(it, messages)
        it.operate("group purge", queue=QUEUE, group="hot")

    yield work


@contextlib.contextmanager
def groups(it: Abuser) -> Iterator[Step]:
    messages = b"".join(publish(QUEUE, headers={"group-id": f"g{number}"}) for number in range(50_000))

    def work() -> None:
        grouped(it, messages)
        it.operate("group list", queue=QUEUE, limit=10_000)
        it.client.request((50, 30), b"\0\0" + shortstr(QUEUE) + b"\0", (50, 31))

    yield work


@contextlib.contextmanager
def redrive(it: Abuser) -> Iterator[Step]:
    it.client.delete_queue(DEAD)
    it.client.declare_queue(DEAD, arguments={})
    it.fill(20_000, x_message_ttl=0, x_dead_letter_exchange="", x_dead_letter_routing_key=DEAD)

    def work() -> None:
        it.operate("message redrive", queue=DEAD, count=20_000, examine=EVERY)
        while it.client.declare_queue(DEAD, passive=True, arguments={}) != 20_000:
            time.sleep(0.01)

    while it.client.declare_queue(DEAD, passive=True, arguments={}) != 20_000:
        time.sleep(0.01)
    yield work
    it.client.delete_queue(DEAD)


@contextlib.contextmanager
def replay(it: Abuser) -> Iterator[Step]:
    it.client.delete_queue(QUEUE)
    it.client.declare_queue(QUEUE, durable=True, arguments={"x-retention-age": 3_600_000})
    it.do(publish(QUEUE) * 50_000)
    it.drain(QUEUE)

    def work() -> None:
        it.operate("queue replay", queue=QUEUE)
        it.drain(QUEUE)

    yield work


@contextlib.contextmanager
def move(it: Abuser) -> Iterator[Step]:
    it.client.delete_queue(DEAD)
    it.client.declare_queue(DEAD, arguments={})
    it.fill(50_000)

    def work() -> None:
        for source, target in ((QUEUE, DEAD), (DEAD, QUEUE)):
            it.operate("message move", queue=source, to=target, count=EVERY, examine=EVERY)

    yield work
    it.client.delete_queue(DEAD)


@contextlib.contextmanager
def copy(it: Abuser) -> Iterator[Step]:
    for queue in (QUEUE, DEAD):
        it.client.delete_queue(queue)
        it.client.declare_queue(queue, durable=True, arguments={})
    it.do(publish(QUEUE) * 50_000)

    def work() -> None:
        it.operate("message undo", number=it.operate("message copy", queue=QUEUE, to=DEAD, count=EVERY)["undo"])

    yield work
    it.client.delete_queue(DEAD)


@contextlib.contextmanager
def queue_copy(it: Abuser) -> Iterator[Step]:
    it.client.delete_queue(DEAD)
    it.client.declare_queue(DEAD, arguments={})
    it.fill(50_000)

    def work() -> None:
        it.operate("queue copy", queue=QUEUE, to=DEAD)
        it.client.request((50, 30), b"\0\0" + shortstr(DEAD) + b"\0", (50, 31))

    yield work
    it.client.delete_queue(DEAD)


@contextlib.contextmanager
def browse(it: Abuser) -> Iterator[Step]:
    it.fill(100_000)

    def work() -> None:
        it.operate("message browse", queue=QUEUE, contains="not there", examine=EVERY)
        it.operate("message browse", queue=QUEUE, count=10_000)

    yield work


@contextlib.contextmanager
def backup(it: Abuser) -> Iterator[Step]:
    names = [f"{QUEUE}.{number}" for number in range(1000)]
    it.client.declare_queues(names, True, None, False)
    for name in names:
        it.client.send(publish(name) * 1000)
    it.sync()
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/var/tmp") as folder:
        out = Path(folder) / "backup"

        def work() -> None:
            it.operate("node backup", out=str(out))
            shutil.rmtree(out)

        yield work
    it.delete(names)


def definitions(count: int) -> str:
    """A file of definitions with so many queues, each bound, in a vhost of their own."""
    names = [f"{QUEUE}.{number}" for number in range(count)]
    return json.dumps({
        "vhosts": [{"name": VHOST}],
        "queues": [{"name": name, "vhost": VHOST, "durable": True, "auto_delete": False, "arguments": {}}
                   for name in names],
        "bindings": [{"source": "amq.direct", "vhost": VHOST, "destination": name, "destination_type": "queue",
                      "routing_key": name, "arguments": {}} for name in names],
    })


@contextlib.contextmanager
def import_(it: Abuser) -> Iterator[Step]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(definitions(10_000))
        file.flush()

        def work() -> None:
            it.operate("definitions import", file=file.name)
            it.operate("definitions import", text=Path(file.name).read_text())  # It changes nothing.
            it.operate("vhost delete", vhost=VHOST)

        yield work


@contextlib.contextmanager
def with_queues(it: Abuser) -> Iterator[None]:
    """10,000 queues in a vhost of their own."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(definitions(10_000))
        file.flush()
        it.operate("definitions import", file=file.name)
    yield
    it.operate("vhost delete", vhost=VHOST)


@contextlib.contextmanager
def export(it: Abuser) -> Iterator[Step]:
    with with_queues(it):
        def work() -> None:
            it.operate("definitions export")
            it.operate("queue list", vhost=VHOST)

        yield work


@contextlib.contextmanager
def policy(it: Abuser) -> Iterator[Step]:
    length = 1000
    with with_queues(it):
        def work() -> None:
            nonlocal length
            length += 1
            it.operate("policy set", vhost=VHOST, name=POLICY, pattern=".*", definition={"max-length": length})

        yield work


CASES: dict[str, Callable[[Abuser], contextlib.AbstractContextManager[Step]]] = {
    "filters": filters, "many readers": many_readers, "given back": given_back, "sharing": sharing,
    "retention": retention,
    "group purge": group_purge, "groups": groups, "redrive": redrive, "replay": replay, "move": move, "copy": copy,
    "queue copy": queue_copy, "browse": browse, "backup": backup, "import": import_, "export": export, "policy": policy,
}  # fmt: skip
