"""What does it cost to find where a message goes, and what does a binding cost?

    PYTHONPATH=src python benchmarks/routing.py

Every route is asked of the exchange; in the broker the answer for a (exchange, key) is remembered by the data plane,
so this is the price of a first message; through a headers exchange, of the first one with these of the headers that
bindings ask for.

Measured on two shared cores, Python 3.11 (us a route; factor over 10 bindings; us a bind):

                      10      1,000    100,000 bindings
    topic           2.02       2.13       3.84   x1.9    5.6   (three matches each)
    direct          0.79       0.84       1.54   x1.9    7.0
    headers         2.50       2.71       4.01   x1.6   17.8   (four headers, all of two)
    consistent_hash 2.74       2.83          -           1.4   (one of the queues)
    memory: 266 octets a binding (direct, 10,000 queues of one binding)

No work grows with the number of bindings; what does is the misses of the processor's cache.
"""

import gc
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from brokerd.exchanges import DirectExchange, Exchange, HeadersExchange, TopicExchange, route
from brokerd.exchanges.consistent_hash import ConsistentHashExchange
from brokerd.wire.properties import Properties

SIZES = (10, 1_000, 100_000)
ROUTES_PER_ROUND = 5_000
ROUNDS = 7

Ask = Callable[[int], tuple[str, Properties]]


class Queue:
    """A destination of bindings, without any queue behind it."""

    __slots__ = ("bindings", "name")

    def __init__(self) -> None:
        self.name = f"queue{id(self)}"
        self.bindings: list[Any] = []


NOTHING = Properties()


def topic(bindings: int) -> tuple[Exchange, Ask]:
    """Half plain keys, a quarter each with * and #; a message matches three of them."""
    exchange = TopicExchange("topic")
    for number in range(bindings):
        shop, place = divmod(number // 4, 100)
        pattern = ("{}.{}.a", "{}.{}.b", "{}.{}.*", "{}.{}.#")[number % 4].format(f"shop{shop}", f"place{place}")
        exchange.bind(Queue(), pattern)
    known = max(1, bindings // 4)

    def ask(turn: int) -> tuple[str, Properties]:
        shop, place = divmod(turn * 7919 % known, 100)
        return f"shop{shop}.place{place}.a", NOTHING

    return exchange, ask


def direct(bindings: int) -> tuple[Exchange, Ask]:
    """One key each; a message matches one."""
    exchange = DirectExchange("direct")
    for number in range(bindings):
        exchange.bind(Queue(), f"key{number}")
    return exchange, lambda turn: (f"key{turn * 7919 % bindings}", NOTHING)


def headers(bindings: int) -> tuple[Exchange, Ask]:
    """All of two headers, one of them shared by half of the bindings; a message of four headers matches one."""
    exchange = HeadersExchange("headers")
    for number in range(bindings):
        exchange.bind(Queue(), "", {"x-match": "all", "order": number, "paid": number % 2 == 0})

    def ask(turn: int) -> tuple[str, Properties]:
        number = turn * 7919 % bindings
        return "", Properties(headers={"order": number, "paid": number % 2 == 0, "from": "web", "attempt": 1})

    return exchange, ask


def consistent_hash(bindings: int) -> tuple[Exchange, Ask]:
    """Queues of one weight; the routing key is hashed."""
    exchange = ConsistentHashExchange("hash")
    for _ in range(bindings):
        exchange.bind(Queue(), "1")
    return exchange, lambda turn: (f"key{turn * 7919 % 100_000}", NOTHING)


def microseconds_per_route(exchanges: list[tuple[Exchange, Ask]]) -> list[float]:
    """The best of several rounds for each; they take turns, so that other load on the machine meets all alike."""
    questions = [(exchange, [ask(turn) for turn in range(ROUTES_PER_ROUND)]) for exchange, ask in exchanges]
    best = [float("inf")] * len(questions)
    for _ in range(ROUNDS):
        for number, (exchange, asked) in enumerate(questions):
            started = time.perf_counter()
            for key, properties in asked:
                route(exchange, key, lambda properties=properties: properties)
            best[number] = min(best[number], time.perf_counter() - started)
    return [seconds / ROUTES_PER_ROUND * 1e6 for seconds in best]


def octets_per_binding(bindings: int = 10_000) -> float:
    """Memory of a binding, with its key and its place in the queue's list, measured with one binding on many queues."""
    exchange = DirectExchange("amq.direct", durable=True)
    queues = [Queue() for _ in range(bindings)]
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number, queue in enumerate(queues):
        exchange.bind(queue, f"some.queue.{number}")
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return grown / bindings


def main() -> None:
    """Print one line for each type and size."""
    for build, sizes in ((topic, SIZES), (direct, SIZES), (headers, SIZES), (consistent_hash, (10, 1_000))):
        exchanges, binds = [], []
        for size in sizes:
            started = time.perf_counter()
            exchanges.append(build(size))
            binds.append((time.perf_counter() - started) / size * 1e6)
        gc.collect()
        costs = microseconds_per_route(exchanges)
        for size, cost, bind in zip(sizes, costs, binds, strict=True):
            told = f"{build.__name__:16}{size:>8} bindings"
            print(f"{told} {cost:7.2f} us a route  x{cost / costs[0]:.1f}  {bind:.1f} us a bind")
    print(f"memory: {octets_per_binding():.0f} octets a binding (direct, 10,000 queues of one binding)")


if __name__ == "__main__":
    main()
