"""Cases of starvation.py in which one request, or one end, is very large: found by programs of somebody else's."""

import contextlib
import struct
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

from abuser import DEAD, EXCHANGE, QUEUE, Abuser, Step, publish
from brokers import Wire

from brokerd.cli.perfclient import method, shortstr, table

TX_SELECT, TX_COMMIT = (90, 10), (90, 20)
PURGE = b"\0\0" + shortstr(QUEUE) + b"\1"


def bind(source: str, destination: str, key: str, *, exchange: bool = False) -> bytes:
    """queue.bind or exchange.bind, without an answer."""
    class_ = (40, 30) if exchange else (50, 20)
    return method(1, class_, b"\0\0" + shortstr(destination) + shortstr(source) + shortstr(key) + b"\1" + table({}))


def exchange(it: Abuser, kind: str, *, auto_delete: bool = False, **arguments: object) -> None:
    """Make the exchange anew."""
    it.client.delete_exchange(EXCHANGE)
    it.client.ask((40, 10), b"\0\0" + shortstr(EXCHANGE) + shortstr(kind) + bytes([4 * auto_delete])
                  + table({name.replace("_", "-"): value for name, value in arguments.items()}))


@contextlib.contextmanager
def history(it: Abuser) -> Iterator[Step]:
    """A queue is bound to an x-recent-history exchange that has 200,000 messages."""
    it.fill(0)
    exchange(it, "x-recent-history", x_recent_history_length=200_000)
    it.do(publish("", EXCHANGE) * 200_000)

    def work() -> None:
        it.do(bind(EXCHANGE, QUEUE, str(time.monotonic_ns())))
        it.do(method(1, (50, 30), PURGE))

    yield work


@contextlib.contextmanager
def last_binding(it: Abuser) -> Iterator[Step]:
    """An auto-delete exchange to which 100,000 bindings lead loses the last one that leads from it."""
    it.fill(0)
    octets = b"".join(bind("amq.topic", EXCHANGE, f"k.{number}", exchange=True) for number in range(100_000))

    def work() -> None:
        exchange(it, "fanout", auto_delete=True)
        it.do(bind(EXCHANGE, QUEUE, "") + octets)
        it.client.request((50, 50), b"\0\0" + shortstr(QUEUE) + shortstr(EXCHANGE) + shortstr("") + table({}), (50, 51))

    yield work


@contextlib.contextmanager
def one_queue(it: Abuser) -> Iterator[Step]:
    """An exchange with 200,000 bindings to one queue is deleted."""
    it.fill(0)
    octets = b"".join(bind(EXCHANGE, QUEUE, f"k.{number}") for number in range(200_000))

    def work() -> None:
        exchange(it, "direct")
        it.do(octets)
        it.client.delete_exchange(EXCHANGE)

    yield work


@contextlib.contextmanager
def behind_a_commit(it: Abuser) -> Iterator[Step]:
    """tx.commit, and in the same octets the deletion of a queue with 100,000 bindings."""
    exchange(it, "direct")
    it.client.declare_queue(DEAD, arguments={})
    it.client.ask(TX_SELECT)
    octets = b"".join(bind(EXCHANGE, QUEUE, f"k.{number}") for number in range(100_000))

    def work() -> None:
        it.client.declare_queue(QUEUE, arguments={})
        it.do(octets)
        it.client.send(publish(DEAD) + method(1, TX_COMMIT) + method(1, (50, 40), b"\0\0" + shortstr(QUEUE) + b"\0"))
        it.client.wait_for((50, 41))
        it.sync()

    yield work
    it.client.delete_queue(DEAD)


def take(client: Wire, count: int) -> None:
    """Have so many deliveries out."""
    client.consume(QUEUE, "all", no_ack=False)
    for _ in range(count):
        client.wait_for((60, 60))


@contextlib.contextmanager
def recover(it: Abuser) -> Iterator[Step]:
    """basic.recover of 200,000 deliveries, whose consumer has gone."""

    def work() -> None:
        it.fill(200_000)
        other = it.connect()
        take(other, 200_000)
        other.send(method(1, (60, 30), shortstr("all") + b"\1"))
        other.request((60, 110), b"\1", (60, 111))
        other.drop()

    yield work


@contextlib.contextmanager
def rejected(it: Abuser) -> Iterator[Step]:
    """A transaction that rejects 200,000 deliveries at once."""

    def work() -> None:
        it.fill(200_000)
        other = it.connect()
        other.ask(TX_SELECT)
        take(other, 200_000)
        other.send(method(1, (60, 120), struct.pack(">QB", 0, 1)))
        other.ask(TX_COMMIT)
        other.drop()

    yield work


@contextlib.contextmanager
def long_chain(it: Abuser) -> Iterator[Step]:
    """300 messages are rejected whose letters pass 4,000 exchanges, and a method follows in the same octets."""
    names = [f"{EXCHANGE}.{number}" for number in range(4000)]
    it.client.send(b"".join(method(1, (40, 10), b"\0\0" + shortstr(name) + shortstr("fanout") + b"\x10" + table({}))
                            for name in names))
    it.client.declare_queue(DEAD, arguments={"x-max-length": 10})
    it.do(b"".join(bind(source, to, "", exchange=True) for source, to in pairwise(names))
          + bind(names[-1], DEAD, ""))

    def work() -> None:
        it.fill(300, x_dead_letter_exchange=names[0])
        other = it.connect()
        take(other, 300)
        other.send(method(1, (60, 120), struct.pack(">QB", 0, 1)) + method(1, (60, 10), bytes(7)))
        other.wait_for((60, 11))
        other.drop()

    yield work
    for name in names:
        it.client.delete_exchange(name)
    it.client.delete_queue(DEAD)


@contextlib.contextmanager
def many_leave(it: Abuser) -> Iterator[Step]:
    """500 connections with 50 channels each hang up at once."""
    octets = b"".join(method(number, (20, 10), b"\0") for number in range(2, 51))

    def work() -> None:
        others = [it.connect() for _ in range(500)]
        for other in others:
            other.send(octets)
        for other in others:
            for _ in range(49):
                other.wait_for((20, 11))
        for other in others:
            other.drop()

    yield work


@contextlib.contextmanager
def large(it: Abuser) -> Iterator[Step]:
    """A message of 100 MiB is published and purged."""
    it.fill(0)
    octets = publish(QUEUE, octets=100 << 20)

    def work() -> None:
        it.do(octets)
        it.do(method(1, (50, 30), PURGE))

    yield work


def committed(it: Abuser, octets: bytes) -> Step:
    """These publishes are committed, and purged."""
    it.fill(0)
    it.client.ask(TX_SELECT)

    def work() -> None:
        it.client.send(octets)
        it.client.ask(TX_COMMIT)
        it.do(method(1, (50, 30), PURGE))

    return work


@contextlib.contextmanager
def large_commit(it: Abuser) -> Iterator[Step]:
    """The same in a transaction."""
    yield committed(it, publish(QUEUE, octets=100 << 20))


@contextlib.contextmanager
def long_commit(it: Abuser) -> Iterator[Step]:
    """A transaction of 300,000 messages of 100 octets, more than the plane keeps."""
    yield committed(it, publish(QUEUE, octets=100) * 300_000)


@contextlib.contextmanager
def copies(it: Abuser) -> Iterator[Step]:
    """A message of 1 MiB goes to 500 queues of one message each."""
    names = it.queues(500, x_max_length=1)
    exchange(it, "fanout")
    it.bind([(name, "", {}) for name in names])

    def work() -> None:
        it.do(publish("", EXCHANGE, octets=1 << 20))

    yield work
    it.delete(names)


@contextlib.contextmanager
def carbon_copies(it: Abuser) -> Iterator[Step]:
    """A message with 3,000 keys in CC goes to as many queues of one message each."""
    names = it.queues(3000, x_max_length=1)
    octets = publish(names[0], headers={"CC": names[1:]})

    def work() -> None:
        it.do(octets)

    yield work
    it.delete(names)


@contextlib.contextmanager
def weights(it: Abuser) -> Iterator[Step]:
    """A consistent hash exchange of 10,000 queues gets a queue of 100,000 times their weight, and loses it."""
    names = it.queues(10_000)
    exchange(it, "x-consistent-hash")
    it.bind([(name, "1", {}) for name in names])
    it.fill(0, x_max_length=10)

    def work() -> None:
        it.do(bind(EXCHANGE, QUEUE, "100000") + publish("a", EXCHANGE))
        it.client.request((50, 50), b"\0\0" + shortstr(QUEUE) + shortstr(EXCHANGE) + shortstr("100000") + table({}),
                          (50, 51))
        it.do(publish("a", EXCHANGE))

    yield work
    it.delete(names)


@contextlib.contextmanager
def levels(it: Abuser) -> Iterator[Step]:
    """40 queues get a message in each of 255 priorities and one in none, in one piece, and give all of them out."""
    names = [f"{QUEUE}.{number}" for number in range(40)]
    octets = b"".join(publish(name, priority=number) for number in range(256) for name in names)
    gets = b"".join(method(1, (60, 70), b"\0\0" + shortstr(name) + b"\1") * 256 for name in names)

    def work() -> None:
        it.queues(40, x_max_priority=255)
        it.do(octets)
        it.do(gets)
        it.do(octets)
        it.delete(names)

    yield work


@contextlib.contextmanager
def letters_by_topics(it: Abuser) -> Iterator[Step]:
    """A dead letter goes through a fanout to 200 topic exchanges of 202 patterns each, one of which has changed."""
    words = [".".join("#*a"[number // 3 ** at % 3] for at in range(5)) for number in range(202)]
    names = [f"{EXCHANGE}.{number}" for number in range(200)]
    it.exchange("fanout")
    it.queues(1, x_max_length=10)
    for name in names:
        it.client.ask((40, 10), b"\0\0" + shortstr(name) + shortstr("topic") + b"\0" + table({}))
        it.do(bind(EXCHANGE, name, "", exchange=True) + b"".join(bind(name, f"{QUEUE}.0", word) for word in words))

    def work() -> None:
        it.do(bind(names[0], f"{QUEUE}.0", str(time.monotonic_ns())))
        it.client.delete_queue(QUEUE)
        it.client.declare_queue(QUEUE, arguments={
            "x-max-length": 0, "x-dead-letter-exchange": EXCHANGE, "x-dead-letter-routing-key": ".".join("a" * 30)})
        it.do(publish(QUEUE))

    yield work
    for name in names:
        it.client.ask((40, 20), b"\0\0" + shortstr(name) + b"\0")
    it.delete([f"{QUEUE}.0"])


CASES: dict[str, Callable[[Abuser], contextlib.AbstractContextManager[Step]]] = {
    "history": history, "last binding": last_binding, "one queue": one_queue, "behind a commit": behind_a_commit,
    "recover": recover, "rejected": rejected, "long chain": long_chain, "many leave": many_leave, "large": large,
    "large commit": large_commit, "long commit": long_commit, "copies": copies,
    "carbon copies": carbon_copies, "weights": weights, "levels": levels,
    "topics of letters": letters_by_topics,
}  # fmt: skip
