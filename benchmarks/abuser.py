"""The other client of starvation.py: a connection, the frames that it sends, and the operations that it asks for."""

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brokers import Target, Wire

from brokerd.cli import ctl_client
from brokerd.cli.perfclient import BODY, HEADER, declare_arguments, frame, method, shortstr, table

QUEUE, DEAD, EXCHANGE = "starvation.queue", "starvation.dead", "starvation.exchange"
PATIENCE_SECONDS = 300

Step = Callable[[], object]


def publish(key: str, exchange: str = "", *, octets: int = 16, priority: int = 0,
            headers: dict[str, Any] | None = None) -> bytes:  # fmt: skip
    """The frames of one message."""
    flags = 0x0800 | (0x2000 if headers is not None else 0)
    properties = (table(headers) if headers is not None else b"") + bytes([priority])
    head = (method(1, (60, 40), b"\0\0" + shortstr(exchange) + shortstr(key) + b"\0")
            + frame(HEADER, 1, struct.pack(">HHQH", 60, 0, octets, flags) + properties))
    return head + b"".join(frame(BODY, 1, bytes(min(131064, octets - at))) for at in range(0, octets, 131064))


class Abuser:
    """The other client: ``prepare`` makes what an abuse needs, and yields what is then done again and again."""

    def __init__(self, target: Target, directory: Path | None) -> None:
        self._target = target
        self._directory = directory
        self.client = self.connect()

    def connect(self) -> Wire:
        """A connection with channel 1 open."""
        return Wire(self._target.address(), PATIENCE_SECONDS)

    def sync(self) -> None:
        """Wait until the broker has done all that was sent."""
        self.client.ask((60, 10), bytes(7))

    def exchange(self, kind: str) -> None:
        """Make the exchange anew."""
        self.client.delete_exchange(EXCHANGE)
        self.client.ask((40, 10), b"\0\0" + shortstr(EXCHANGE) + shortstr(kind) + b"\0" + table({}))

    def queues(self, count: int, **arguments: Any) -> list[str]:
        """Make transient queues."""
        names = [f"{QUEUE}.{number}" for number in range(count)]
        asked = {name.replace("_", "-"): value for name, value in arguments.items()}
        self.client.send(b"".join(method(1, (50, 10), declare_arguments(name, False, asked, False)) for name in names))
        for _ in names:
            self.client.wait_for((50, 11))
        return names

    def delete(self, names: list[str]) -> None:
        """Delete queues."""
        self.client.send(b"".join(method(1, (50, 40), b"\0\0" + shortstr(name) + b"\0") for name in names))
        for _ in names:
            self.client.wait_for((50, 41))

    def bind(self, bindings: list[tuple[str, str, dict[str, Any]]]) -> None:
        """Bind queues to the exchange: (queue, key, arguments)."""
        self.client.send(b"".join(
            method(1, (50, 20), b"\0\0" + shortstr(queue) + shortstr(EXCHANGE) + shortstr(key) + b"\0" + table(asked))
            for queue, key, asked in bindings))
        for _ in bindings:
            self.client.wait_for((50, 21))

    def do(self, octets: bytes) -> None:
        """Send methods that ask for no answer, and wait until all is done."""
        self.client.send(octets)
        self.sync()

    def fill(self, count: int, **arguments: Any) -> None:
        """A new queue with so many messages."""
        self.client.delete_queue(QUEUE)
        self.client.declare_queue(QUEUE, arguments={name.replace("_", "-"): value for name, value in arguments.items()})
        self.client.send(publish(QUEUE) * count)
        self.sync()

    def drain(self, queue: str) -> None:
        """Take all messages of a queue, and forget them."""
        other = self.connect()
        other.consume(queue, "all", no_ack=True)
        while self.client.declare_queue(queue, passive=True):
            time.sleep(0.01)
            other.discard()
        other.drop()

    def operate(self, verb: str, **fields: Any) -> Any:
        """Ask for an operation, as brokerctl does; its answer."""
        assert self._directory is not None
        with ctl_client.Client(str(self._directory)) as control:
            return control.ask(verb, fields, seconds=PATIENCE_SECONDS)
