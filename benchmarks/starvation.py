"""How long does one client hold up another?

    PYTHONPATH=src python benchmarks/starvation.py
    PYTHONPATH=src python benchmarks/starvation.py --cases "fanout,expiry" --seconds 10 --target lavinmq=5674

A well-behaved client publishes 1,000 messages a second with confirms, and consumes them.  Beside it another client does
one of the things below, again and again.  Printed: milliseconds from when a message was due until its consumer had it:
the median, what 99.9 of a hundred stay below, and the longest; and how often the other client did its thing.  The
clients share the machine's cores with the broker, so "nothing" is the floor.

    nothing         the well-behaved client is alone
    methods         100,000 basic.qos in one piece
    declares        2,000 queues declared in one piece, then deleted
    commit          100,000 publishes and tx.commit in one piece
    fanout          a publish to 10,000 queues, after a binding has changed, so that its way is not remembered
    priorities      256 messages, one for each of 255 priorities and none, and basic.get for each
    exclusive       20,000 exclusive queues that end with their connection
    purge           100,000 messages published, and purged
    delete          100,000 messages published, and their queue deleted
    expiry          50,000 messages expire at once, to a dead-letter queue
    letters         20,000 messages rejected in one piece, whose dead letters go to 60 queues of at most 10 each
    chain           5,000 messages expire in one queue after the other, four times
    due             5,000 delayed messages that are due at once, to 50 queues of at most 10 each
    requeue         50,000 messages out with a consumer that hangs up
    unbind          an exchange with 5,000 bindings is deleted
    cancel          a channel with 20,000 consumers is closed
    headers         5,000 headers that agree with other ones of 5,000 bindings each
    topics          a publish of many words to patterns of # and *, after a binding has changed
    ring            a queue is bound to an x-consistent-hash exchange of 10,000, and unbound after a publish
    bindings        a queue with 20,000 bindings to a topic exchange is deleted
    exchange        a topic exchange with 20,000 bindings to a queue is deleted
    consumers       a queue with 20,000 consumers is deleted
    auto-delete     a channel that consumes from 10,000 auto-delete queues is closed
    storm           1,000 consumers of a queue with an order journal come and go
    get and reject  basic.get and basic.reject with requeue of one message of 1 MiB, 200 in one piece
    connections     100 connections that come and go

In these one request, or one end, is very large:

    history         a queue is bound to an x-recent-history exchange that has 200,000 messages
    last binding    an auto-delete exchange to which 100,000 bindings lead loses the last one that leads from it
    one queue       an exchange with 200,000 bindings to one queue is deleted
    behind a commit tx.commit, and in the same octets the deletion of a queue with 100,000 bindings
    recover         basic.recover of 200,000 deliveries
    rejected        a transaction that rejects 200,000 deliveries at once
    long chain      300 messages whose letters pass 4,000 exchanges are rejected, and in the same octets a method
    many leave      500 connections with 50 channels each hang up at once
    large           a message of 100 MiB is published and purged
    large commit    the same in a transaction
    long commit     a transaction of 300,000 messages of 100 octets
    copies          a message of 1 MiB goes to 500 queues
    carbon copies   a message with 3,000 keys in CC goes to as many queues
    weights         an x-consistent-hash exchange of 10,000 queues gets one of 100,000 times their weight, and loses it
    levels          40 queues get a message in each of 255 priorities, give them out, get them again and are deleted
    topics of letters   a dead letter goes through a fanout to 200 topic exchanges of 202 patterns each

In these, which are for brokerd alone, an operator has the broker do something, or readers of a stream do:

    filters         10 readers of 2,000 messages of a stream, each with a hundred LIKE
    many readers    10,000 readers of a stream with a filter, whose channel is closed
    given back      10,000 messages given back by a reader of a stream that is 14,000 segments further
    sharing         64 readers that share a stream and have a million messages unacked hang up
    retention       a policy has a stream give up 1,000 segments
    group purge     50,000 messages of one message group are purged, among 1,000 other groups
    groups          a queue of 50,000 message groups is listed, and purged
    redrive         20,000 dead letters are put back into their queue, and die again
    replay          50,000 settled messages become ready again, and are taken
    move            50,000 messages are moved to another queue, and back
    copy            50,000 messages are copied to another queue, and what was copied is undone
    queue copy      a queue of 50,000 messages is copied into another one, which is purged
    browse          100,000 messages are searched for a text, and 10,000 are shown
    backup          a backup of 1,000 queues and a million messages
    import          definitions of 10,000 queues are imported into a vhost twice, which is deleted
    export          definitions with 10,000 queues are exported, and the queues listed
    policy          a policy of 10,000 queues changes
"""

import argparse
import contextlib
import json
import shlex
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crowds
import errands
import probed
from abuser import DEAD, EXCHANGE, QUEUE, Abuser, Step, publish
from brokers import BROKERD, Broker, Target
from turns import add_trees

from brokerd.cli.perfclient import method, shortstr, table

RATE, WINDOW = 1000, 1000


@contextlib.contextmanager
def nothing(_: Abuser) -> Iterator[Step]:
    yield lambda: time.sleep(0.1)


@contextlib.contextmanager
def methods(it: Abuser) -> Iterator[Step]:
    octets = method(1, (60, 10), bytes(7)) * 100_000

    def work() -> None:
        reader = threading.Thread(target=lambda: [it.client.wait_for((60, 11)) for _ in range(100_000)])
        reader.start()
        it.client.send(octets)
        reader.join()

    yield work


@contextlib.contextmanager
def declares(it: Abuser) -> Iterator[Step]:
    yield lambda: it.delete(it.queues(2000))


@contextlib.contextmanager
def commit(it: Abuser) -> Iterator[Step]:
    it.fill(0)
    it.client.ask((90, 10))
    octets = publish(QUEUE) * 100_000

    def work() -> None:
        it.client.send(octets)
        it.client.ask((90, 20))
        it.client.request((50, 30), b"\0\0" + shortstr(QUEUE) + b"\0", (50, 31))

    yield work


@contextlib.contextmanager
def fanout(it: Abuser) -> Iterator[Step]:
    names = it.queues(10_000)
    it.exchange("fanout")
    it.bind([(name, "", {}) for name in names])

    def work() -> None:
        it.bind([(names[0], str(time.monotonic_ns()), {})])
        it.client.send(publish("", EXCHANGE))
        it.sync()

    yield work
    it.delete(names)


@contextlib.contextmanager
def priorities(it: Abuser) -> Iterator[Step]:
    it.fill(0, x_max_priority=255)
    octets = b"".join(publish(QUEUE, priority=number) for number in range(256))
    gets = method(1, (60, 70), b"\0\0" + shortstr(QUEUE) + b"\1") * 256

    def work() -> None:
        it.client.send(octets + gets)
        it.sync()

    yield work


@contextlib.contextmanager
def exclusive(it: Abuser) -> Iterator[Step]:
    octets = b"".join(method(1, (50, 10), b"\0\0" + shortstr(f"{QUEUE}.x{number}") + b"\4" + table({}))
                      for number in range(20_000))

    def work() -> None:
        other = it.connect()
        other.send(octets)
        for _ in range(20_000):
            other.wait_for((50, 11))
        other.request((10, 50), struct.pack(">H", 200) + shortstr("") + bytes(4), (10, 51), channel=0)
        other.drop()

    yield work


@contextlib.contextmanager
def purge(it: Abuser) -> Iterator[Step]:
    def work() -> None:
        it.fill(100_000)
        it.client.request((50, 30), b"\0\0" + shortstr(QUEUE) + b"\0", (50, 31))

    yield work


@contextlib.contextmanager
def delete(it: Abuser) -> Iterator[Step]:
    def work() -> None:
        it.fill(100_000)
        it.client.delete_queue(QUEUE)

    yield work


@contextlib.contextmanager
def expiry(it: Abuser) -> Iterator[Step]:
    it.client.delete_queue(DEAD)
    it.client.declare_queue(DEAD, arguments={"x-max-length": 1})

    def work() -> None:
        it.fill(50_000, x_message_ttl=1000, x_dead_letter_exchange="", x_dead_letter_routing_key=DEAD)
        while it.client.declare_queue(QUEUE, passive=True, arguments={}):
            time.sleep(0.05)

    yield work
    it.client.delete_queue(DEAD)


@contextlib.contextmanager
def letters(it: Abuser) -> Iterator[Step]:
    names = it.queues(60, x_max_length=10)
    it.exchange("fanout")
    it.bind([(name, "", {}) for name in names])

    def work() -> None:
        it.fill(20_000, x_dead_letter_exchange=EXCHANGE)
        other = it.connect()
        other.consume(QUEUE, "all", no_ack=False)
        while it.client.declare_queue(QUEUE, passive=True):
            time.sleep(0.05)
            other.discard()
        other.send(method(1, (60, 120), struct.pack(">QB", 0, 1)))     # basic.nack: all of them, without requeue
        it.client.delete_queue(QUEUE)                                   # It goes when its letters are stored.
        other.drop()

    yield work
    it.delete(names)


@contextlib.contextmanager
def chain(it: Abuser) -> Iterator[Step]:
    names = [f"{QUEUE}.{number}" for number in range(4)]
    for name, following in zip(names, [*names[1:], DEAD], strict=True):
        it.client.declare_queue(name, arguments={
            "x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": following})
    it.client.declare_queue(DEAD, arguments={"x-max-length": 1})

    def work() -> None:
        it.client.send(publish(names[0]) * 5000)
        while any(it.client.declare_queue(name, passive=True, arguments={}) for name in names):
            time.sleep(0.05)

    yield work
    it.delete([*names, DEAD])


@contextlib.contextmanager
def due(it: Abuser) -> Iterator[Step]:
    names = it.queues(50, x_max_length=10)
    it.client.delete_exchange(EXCHANGE)
    it.client.ask((40, 10), b"\0\0" + shortstr(EXCHANGE) + shortstr("x-delayed-message") + b"\2"
                  + table({"x-delayed-type": "fanout"}))
    it.bind([(name, "", {}) for name in names])

    def work() -> None:
        at = time.time() + 0.5
        it.client.send(publish("", EXCHANGE, headers={"x-deliver-at": round(at * 1000)}) * 5000)
        it.sync()
        time.sleep(max(0.0, at - time.time()) + 0.5)

    yield work
    it.delete(names)


@contextlib.contextmanager
def requeue(it: Abuser) -> Iterator[Step]:
    it.fill(50_000)

    def work() -> None:
        other = it.connect()
        other.consume(QUEUE, "all", no_ack=False)
        while it.client.declare_queue(QUEUE, passive=True):
            time.sleep(0.05)
            other.discard()
        other.drop()

    yield work


@contextlib.contextmanager
def unbind(it: Abuser) -> Iterator[Step]:
    names = it.queues(100)

    def work() -> None:
        it.exchange("direct")
        it.bind([(names[number % 100], str(number), {}) for number in range(5000)])
        it.client.delete_exchange(EXCHANGE)

    yield work
    it.delete(names)


@contextlib.contextmanager
def cancel(it: Abuser) -> Iterator[Step]:
    it.fill(0)

    def work() -> None:
        other = it.connect()
        for number in range(20_000):
            other.consume(QUEUE, str(number), no_ack=True, no_wait=True)
        other.request((20, 40), struct.pack(">H", 200) + shortstr("") + bytes(4), (20, 41))
        other.drop()

    yield work


@contextlib.contextmanager
def headers(it: Abuser) -> Iterator[Step]:
    it.fill(0)
    it.exchange("headers")
    it.bind([(QUEUE, "", {"x-match": "any", "id": number}) for number in range(5000)])
    octets = b"".join(publish("", EXCHANGE, headers={"id": number}) for number in range(5000))

    def work() -> None:
        it.bind([(QUEUE, "", {"x-match": "any", "other": time.monotonic_ns()})])
        it.client.send(octets)
        it.sync()

    yield work


@contextlib.contextmanager
def topics(it: Abuser) -> Iterator[Step]:
    it.fill(0)
    it.exchange("topic")
    patterns = [".".join("#*a"[number // 3 ** at % 3] for at in range(6)) for number in range(3 ** 6)]
    it.bind([(QUEUE, pattern, {}) for pattern in patterns])

    def work() -> None:
        it.bind([(QUEUE, str(time.monotonic_ns()), {})])
        it.client.send(publish(".".join("a" * 100), EXCHANGE))
        it.sync()

    yield work


def binding(queue: str, key: str, *, undo: bool = False) -> bytes:
    """queue.bind to the exchange; ``undo``: queue.unbind, which is always answered."""
    names = b"\0\0" + shortstr(queue) + shortstr(EXCHANGE) + shortstr(key)
    return method(1, (50, 50) if undo else (50, 20), names + (b"" if undo else b"\1") + table({}))


def consumer(queue: str, tag: str, channel: int = 1) -> bytes:
    """basic.consume without acks and without an answer."""
    return method(channel, (60, 20), b"\0\0" + shortstr(queue) + shortstr(tag) + b"\x0a" + table({}))


@contextlib.contextmanager
def ring(it: Abuser) -> Iterator[Step]:
    names = it.queues(10_000)
    it.exchange("x-consistent-hash")
    it.do(b"".join(binding(name, "1000000") for name in names))
    it.fill(0)

    def work() -> None:
        it.do(binding(QUEUE, "2000001") + publish("k", EXCHANGE) + binding(QUEUE, "2000001", undo=True)
              + publish("k", EXCHANGE))

    yield work
    it.delete(names)


@contextlib.contextmanager
def bindings(it: Abuser) -> Iterator[Step]:
    octets = b"".join(binding(QUEUE, f"a.{number}.#.*.{number % 100}") for number in range(20_000))

    def work() -> None:
        it.exchange("topic")
        it.fill(0)
        it.do(octets)
        it.client.delete_queue(QUEUE)

    yield work


@contextlib.contextmanager
def exchange(it: Abuser) -> Iterator[Step]:
    octets = b"".join(binding(QUEUE, f"a.{number}.#.*.{number % 100}") for number in range(20_000))
    it.fill(0)

    def work() -> None:
        it.exchange("topic")
        it.do(octets)
        it.client.delete_exchange(EXCHANGE)

    yield work


@contextlib.contextmanager
def consumers(it: Abuser) -> Iterator[Step]:
    octets = b"".join(consumer(QUEUE, str(number)) for number in range(20_000))

    def work() -> None:
        it.fill(0)
        it.do(octets)
        it.client.delete_queue(QUEUE)

    yield work


@contextlib.contextmanager
def auto_delete(it: Abuser) -> Iterator[Step]:
    octets = b"".join(method(2, (50, 10), b"\0\0" + shortstr(f"{QUEUE}.{number}") + b"\x18" + table({}))
                      + consumer(f"{QUEUE}.{number}", str(number), 2) for number in range(10_000))

    def work() -> None:
        it.client.request((20, 10), shortstr(""), (20, 11), channel=2)
        it.client.send(octets)
        it.client.request((20, 40), struct.pack(">H", 200) + shortstr("") + bytes(4), (20, 41), channel=2)

    yield work


@contextlib.contextmanager
def storm(it: Abuser) -> Iterator[Step]:
    it.client.delete_queue(QUEUE)
    it.client.declare_queue(QUEUE, durable=True, arguments={"x-order-journal": True})
    octets = b"".join(consumer(QUEUE, str(number)) + method(1, (60, 30), shortstr(str(number)) + b"\1")
                      for number in range(1000))

    yield lambda: it.do(octets)


@contextlib.contextmanager
def get_and_reject(it: Abuser) -> Iterator[Step]:
    it.fill(0)
    it.client.send(publish(QUEUE, octets=1 << 20))
    it.sync()
    tag = 0

    def work() -> None:
        nonlocal tag
        octets = b""
        for _ in range(200):
            tag += 1
            octets += method(1, (60, 70), b"\0\0" + shortstr(QUEUE) + b"\0")
            octets += method(1, (60, 90), struct.pack(">QB", tag, 1))
        it.client.send(octets)
        it.sync()

    yield work


@contextlib.contextmanager
def connections(it: Abuser) -> Iterator[Step]:
    def work() -> None:
        for other in [it.connect() for _ in range(100)]:
            other.drop()

    yield work


CASES: dict[str, Callable[[Abuser], contextlib.AbstractContextManager[Step]]] = {
    "nothing": nothing, "methods": methods, "declares": declares, "commit": commit, "fanout": fanout,
    "priorities": priorities, "exclusive": exclusive, "purge": purge, "delete": delete, "expiry": expiry,
    "letters": letters, "chain": chain, "due": due,
    "requeue": requeue, "unbind": unbind, "cancel": cancel, "headers": headers, "topics": topics,
    "ring": ring, "bindings": bindings, "exchange": exchange, "consumers": consumers, "auto-delete": auto_delete,
    "storm": storm,
    "get and reject": get_and_reject, "connections": connections, **crowds.CASES, **errands.CASES,
}


def with_probe(command: str) -> str:
    """The command that starts the same broker, which notes its longest turn in the file `turn`."""
    before, found, after = command.partition("-m brokerd ")
    if not found:
        raise ValueError(f"{command!r} starts no brokerd")
    return f"{before}{shlex.quote(probed.__file__)} {{dir}}.turn {after}"


def measure(target: Target, directory: Path | None, name: str, seconds: float, *, turns: bool) -> dict[str, Any]:
    """What the well-behaved client met while the abuse went on."""
    abuser = Abuser(target, directory)
    figures: dict[str, Any] = {}
    with CASES[name](abuser) as step:
        step()
        if turns and directory is not None:
            probed.longest_ms(directory.with_suffix(".turn"))
        perf = threading.Thread(target=lambda: figures.update(
            target.perf(f"latency -r {RATE} -z {seconds + 1} --warmup 1 -c {WINDOW} -u starvation.good")))
        perf.start()
        count = 0
        while perf.is_alive():
            step()
            count += 1
        if turns and directory is not None:
            figures["turn_ms"] = probed.longest_ms(directory.with_suffix(".turn"))
    abuser.client.delete_exchange(EXCHANGE)
    abuser.client.delete_queue(QUEUE)
    abuser.client.drop()
    if "error" in figures:
        raise SystemExit(f"{target.name}, {name}: {figures['error']}")
    return {**figures["latency_us"], "turn_ms": figures.get("turn_ms", 0), "times": count}


def main() -> None:
    """Measure as the command line says; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--cases", default=",".join(CASES), help=", of: " + ", ".join(CASES))
    parser.add_argument("--target", action="append", type=Target.parse, default=[], metavar="NAME=PORT",
                        help="another broker of this host; may be repeated")
    add_trees(parser)
    parser.add_argument("--turns", action="store_true",
                        help="in place of latencies, the longest turn of the broker's loop, in CPU time")
    parser.add_argument("--json", action="store_true", help="print all figures as one JSON object")
    options = parser.parse_args()
    unknown = [name for name in options.cases.split(",") if name not in CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]!r}")
    with contextlib.ExitStack() as stack:
        commands = [(BROKERD, "brokerd"), *((command, name) for name, command in options.tree)]
        brokers = [stack.enter_context(Broker(with_probe(command) if options.turns else command, name))
                   for command, name in commands]
        targets: list[tuple[Target, Path | None]] = [(one.target, one.directory / "data") for one in brokers]
        targets += [(target, None) for target in options.target]
        found: dict[str, dict[str, Any]] = {}
        for name in options.cases.split(","):
            for target, directory in targets:
                if directory is None and name in errands.CASES:
                    continue
                one = measure(target, directory, name, options.seconds, turns=options.turns)
                found.setdefault(name, {})[target.name] = one
                if not options.json and options.turns:
                    print(f"{name:18}{target.name:10} longest turn {one['turn_ms']:8.2f} ms of CPU   "
                          f"{one['times']:5} times", flush=True)
                elif not options.json:
                    p50, p999, longest = (one[which] / 1000 for which in ("p50", "p99.9", "max"))
                    print(f"{name:18}{target.name:10} p50 {p50:8.2f}   p99.9 {p999:8.2f}   max {longest:8.2f} ms   "
                          f"{one['times']:5} times", flush=True)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
