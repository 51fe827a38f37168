"""What do message groups cost the broker, and does a hot group hold up the others?

    PYTHONPATH=src python benchmarks/groups.py --rounds 5
    PYTHONPATH=src python benchmarks/groups.py --rounds 5 --cases "plain,exclusive,sticky"

One connection publishes messages of 16 octets with a group in the header group-id; ten others consume them, with a
prefetch of 100, and acknowledge each message by itself.  Printed: microseconds of the broker's CPU for each message.

    plain           the queue has no groups, the messages have the same header
    exclusive       exclusive groups, 10,000 groups in rotation
    sticky          sticky groups, the same
    hot             as exclusive, behind 1,000,000 messages of one group, of which the first is out
    scan            what it costs to look past a message of that hot group
"""

import selectors
import struct
from functools import partial
from typing import Any

from brokers import Target, Wire
from turns import Case, Cost, Cpu, main

from brokerd.cli.perfclient import BODY, HEADER, frame, method, shortstr, table

QUEUE, OCTETS, GROUPS, CONSUMERS, PREFETCH = "groups.queue", 16, 10_000, 10, 100
HOT = 1_000_000
DELIVER = struct.pack(">HH", 60, 60)
ACK_HEAD, FRAME_END = struct.pack(">BHIHH", 1, 1, 13, 60, 80), b"\0\xce"


def publish(group: str) -> bytes:
    """One message."""
    properties = table({"group-id": group}) + b"\1"
    return (method(1, (60, 40), b"\0\0" + shortstr("") + shortstr(QUEUE) + b"\0")
            + frame(HEADER, 1, struct.pack(">HHQH", 60, 0, OCTETS, 0x3000) + properties)
            + frame(BODY, 1, bytes(OCTETS)))


class Worker:
    """A consumer that acknowledges each delivery by itself."""

    def __init__(self, target: Target) -> None:
        self.client = Wire(target.address(), 120)
        self.client.ask((60, 10), struct.pack(">IHB", 0, PREFETCH, 0))
        self.rest = b""

    def consume(self) -> None:
        """Begin."""
        self.client.request((60, 20), b"\0\0" + shortstr(QUEUE) + shortstr("") + b"\0" + table({}), (60, 21))

    def work(self) -> int:
        """Read what is there, and acknowledge it.  Returns how many messages."""
        octets, at, acks = self.rest + self.client._socket.recv(1 << 18), 0, []
        while len(octets) - at >= 7:
            end = at + 8 + int.from_bytes(octets[at + 3:at + 7], "big")
            if end > len(octets):
                break
            if octets[at] == 1 and octets[at + 7:at + 11] == DELIVER:
                tag = at + 12 + octets[at + 11]
                acks.append(ACK_HEAD + octets[tag:tag + 8] + FRAME_END)
            at = end
        self.rest = octets[at:]
        if acks:
            self.client.send(b"".join(acks))
        return len(acks)


def drain(workers: list[Worker], messages: int) -> None:
    """Work until so many messages are acknowledged."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.client._socket, selectors.EVENT_READ, worker)
            messages -= worker.work() if worker.rest else 0
        while messages > 0:
            for key, _ in selector.select(60):
                messages -= key.data.work()


def declared(target: Target, arguments: dict[str, Any]) -> Wire:
    """A client, and a fresh queue."""
    client = Wire(target.address(), 120)
    client.delete_queue(QUEUE)
    client.declare_queue(QUEUE, durable=True, arguments=arguments)
    return client


def measure(arguments: dict[str, Any], target: Target, messages: int, *, hot: int = 0) -> Cost:
    """The cost of a message from publish to ack, in rounds of as many as there are groups."""
    cpu, client = Cpu(target), declared(target, arguments)
    rotation = b"".join([publish(f"customer-{n}") for n in range(GROUPS)])
    workers = [Worker(target) for _ in range(CONSUMERS)]
    if hot:
        put_hot_group(client, hot)
        holder = Wire(target.address(), 120)
        holder.request((60, 70), b"\0\0" + shortstr(QUEUE) + b"\0", (60, 71))   # The first of the hot group stays out.
    for worker in workers:
        worker.consume()
    if hot:
        client.send(publish("other"))
        drain(workers, 1)               # All of the hot group has been looked past.
    rounds = max(messages // GROUPS, 1)
    cpu.start()
    for _ in range(rounds):
        client.send(rotation)
        drain(workers, GROUPS)
    cost = Cost(cpu.us_each(rounds * GROUPS))
    for worker in workers:
        worker.client.drop()
    client.delete_queue(QUEUE)
    client.drop()
    return cost


def put_hot_group(client: Wire, count: int) -> None:
    """Publish a long backlog of one group."""
    piece = publish("hot") * 10_000
    for _ in range(count // 10_000):
        client.send(piece)
    client.declare_queue(QUEUE, passive=True)


def scan(target: Target, messages: int) -> Cost:
    """The cost of looking past a message."""
    cpu, client = Cpu(target), declared(target, {"x-message-group": "exclusive"})
    put_hot_group(client, messages)
    client.send(publish("other"))
    worker = Worker(target)
    client.declare_queue(QUEUE, passive=True)
    holder = Wire(target.address(), 120)
    holder.request((60, 70), b"\0\0" + shortstr(QUEUE) + b"\0", (60, 71))       # The first of the hot group stays out.
    cpu.start()
    worker.consume()
    drain([worker], 1)                  # The other group's message, behind them all.
    cost = Cost(cpu.us_each(messages))
    worker.client.drop()
    client.delete_queue(QUEUE)
    client.drop()
    return cost


CASES = {
    "plain": Case(partial(measure, {}), 100_000),
    "exclusive": Case(partial(measure, {"x-message-group": "exclusive"}), 100_000),
    "sticky": Case(partial(measure, {"x-message-group": "sticky"}), 100_000),
    "hot": Case(partial(measure, {"x-message-group": "exclusive"}, hot=HOT), 100_000),
    "scan": Case(scan, 200_000),
}

if __name__ == "__main__":
    main(__doc__, CASES)
