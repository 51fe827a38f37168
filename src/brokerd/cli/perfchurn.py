"""The run `churn` of the load generator: open and close, declare and delete, over and over.

A `Kind` names what a round does.  Workers do rounds, each on a connection of its own, and count how long each took.
Knows nothing of options, exit codes and terminals.
"""

import dataclasses
import threading
import time
from collections.abc import Callable

from brokerd.cli._perf import Histogram
from brokerd.cli.perfclient import Address, Client, PerfError, part
from brokerd.cli.perfproc import usage
from brokerd.cli.perfrun import Figures, broker_figures, interrupts, quantiles, start
from brokerd.cli.perfsample import Sampler, Say

POLL_SECONDS = 0.05
BODY_OCTETS = 16
Round = Callable[["Churn", Client, str], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Churn:
    """What is done again and again: `kind` is a key of `KINDS`.  seconds, or count of rounds of all workers, end it.

    rate: rounds a second of all workers together; 0: as fast as it goes.  messages: of a round of `session`.
    """

    address: Address
    kind: str = "connection"
    workers: int = 1
    seconds: float = 0.0
    count: int = 0
    rate: float = 0.0
    messages: int = 1
    durable: bool = False
    pids: tuple[int, ...] = ()


def _connection(churn: Churn, client: Client, queue: str) -> None:
    Client(churn.address).drop()


def _channel(churn: Churn, client: Client, queue: str) -> None:
    client.reopen_channel()


def _queue(churn: Churn, client: Client, queue: str) -> None:
    client.declare_queue(queue, churn.durable)
    client.bind(queue, "amq.direct", queue)
    client.delete_queue(queue)


def _consumer(churn: Churn, client: Client, queue: str) -> None:
    client.consume(queue, "churn", no_ack=True)
    client.cancel("churn")


def _session(churn: Churn, client: Client, queue: str) -> None:
    with_broker = Client(churn.address)
    try:
        with_broker.declare_queue(queue, churn.durable)
        with_broker.confirm_select()
        for _ in range(churn.messages):
            with_broker.publish_confirmed(queue, BODY_OCTETS)
        for _ in range(churn.messages):
            with_broker.get(queue)
        with_broker.delete_queue(queue)
    finally:
        with_broker.drop()


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One kind of round, in words and in code; whether the worker's queue exists all the time."""

    told: str
    round: Round
    needs_queue: bool = False


KINDS = {
    "connection": Kind("open a connection with a channel, and close it", _connection),
    "channel": Kind("close a channel, and open it again", _channel),
    "queue": Kind("declare a queue, bind it to amq.direct, and delete it", _queue),
    "consumer": Kind("start a consumer, and cancel it", _consumer, needs_queue=True),
    "session": Kind("connect, declare a queue, publish with confirms, get, delete, close", _session),
}


class _Work:
    """The values that the workers of a run share, and their counts."""

    def __init__(self, churn: Churn) -> None:
        self.churn = churn
        self.took = [Histogram() for _ in range(churn.workers)]
        self.failures: list[PerfError] = []
        self.over = threading.Event()
        self._turn, self._lock = 0, threading.Lock()
        self.began = time.monotonic()

    def done(self) -> int:
        """How many rounds are done."""
        return sum(histogram.count for histogram in self.took)

    def turn(self) -> bool:
        """Wait until the next round is due; False if there is none."""
        churn = self.churn
        with self._lock:
            number, self._turn = self._turn, self._turn + 1
        if churn.count and number >= churn.count:
            return False
        due = self.began + number / churn.rate if churn.rate else 0.0
        if churn.seconds and max(due, time.monotonic()) >= self.began + churn.seconds:
            return False
        wait = due - time.monotonic()
        return not (self.over.wait(wait) if wait > 0 else self.over.is_set())

    def run(self, index: int, client: Client) -> None:
        """Be worker ``index``."""
        kind, took = KINDS[self.churn.kind], self.took[index]
        queue = _queue_of(index)
        try:
            while self.turn():
                began = time.monotonic_ns()
                kind.round(self.churn, client, queue)
                took.record(time.monotonic_ns() - began)
        except PerfError as error:
            self.failures.append(error)
            self.over.set()


def _queue_of(worker: int) -> str:
    return f"brokerperf.churn.{worker}"


def churn(load: Churn, say: Say) -> Figures:
    """Do the rounds, and measure.  PerfError if one fails.  A worker that was begun ends its round."""
    clients: list[Client] = []
    kind = KINDS[load.kind]
    try:
        for index in range(load.workers):
            clients.append(Client(load.address))
            clients[index].delete_queue(_queue_of(index))
            if kind.needs_queue:
                clients[index].declare_queue(_queue_of(index), load.durable)
        before = usage(list(load.pids))
        work, sampler = _Work(load), Sampler(load.pids)
        threads = [start(work.run, index, client) for index, client in enumerate(clients)]
        with interrupts() as interrupted:
            _watch(work, sampler, threads, say, interrupted)
            seconds, after = time.monotonic() - work.began, usage(list(load.pids))
            if work.failures:
                raise work.failures[0]
            _tell(work, sampler, say)
            for index, client in enumerate(clients):
                client.delete_queue(_queue_of(index))
    finally:
        part(clients)
    whole = Histogram()
    for histogram in work.took:
        whole.merge(histogram)
    say.spread(f"{load.kind} time", whole)
    figures: Figures = {"what": load.kind, "workers": load.workers, "rounds": work.done(), "seconds": round(seconds, 4),
                        "rate": round(work.done() / seconds, 1), "round_us": quantiles([whole])}
    if load.pids:
        figures["rss_kb_grown"] = after.rss_kb - before.rss_kb
        figures["broker"] = broker_figures(before, after, work.done())
    if interrupted():
        figures["interrupted"] = True
    return figures


def _watch(work: _Work, sampler: Sampler, threads: list[threading.Thread], say: Say,
           interrupted: Callable[[], bool]) -> None:
    """Wait until the workers are done, and tell how far they are."""
    try:
        while any(thread.is_alive() for thread in threads):
            next(thread for thread in threads if thread.is_alive()).join(POLL_SECONDS)
            if interrupted() and not work.over.is_set():
                say.line("interrupted: what was measured so far")
                work.over.set()
            if sampler.due(time.monotonic()):
                _tell(work, sampler, say)
    finally:
        work.over.set()
        for thread in threads:
            thread.join()


def _tell(work: _Work, sampler: Sampler, say: Say) -> None:
    now, load = time.monotonic(), work.churn
    sample = sampler.take(now, {load.kind: work.done()}, {f"{load.kind} time": work.took})
    shares = [work.done() / load.count] if load.count else []
    shares += [(now - work.began) / load.seconds] if load.seconds else []
    say.sample(sample)
    say.at(min(max(shares), 1.0) if shares else None, f"{load.kind} {sample.rate(load.kind):,.0f}/s")
