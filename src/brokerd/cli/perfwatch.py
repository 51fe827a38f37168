"""A look at links while they run: what they count, whether anything moves, and a sample each second.

Knows the load that was asked for, and nothing of how links were made.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Iterable

from brokerd.cli._perf import Histogram, Link
from brokerd.cli.perfclient import Address, PerfError
from brokerd.cli.perfsample import Sampler, Say


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A flow of messages from producers over queues to consumers, and when it ends.

    count is per producer; seconds limits publishing, or the whole run if it only consumes.
    ack is 0 for auto-ack, else the number of messages for each ack.  rate is messages per second of
    all producers together.  A `{}` in a key stands for 0, 1, … `keys` - 1 in turn.
    """

    address: Address
    producers: int = 1
    consumers: int = 1
    queues: int = 1
    queue: str = "brokerperf"
    size: int = 16
    seconds: float = 0.0
    count: int = 0
    confirm: int = 0
    ack: int = 0
    prefetch: int = 0
    persistent: bool = False
    durable: bool = False
    queue_args: dict[str, object] = dataclasses.field(default_factory=dict)
    consumer_args: dict[str, object] = dataclasses.field(default_factory=dict)
    exchange: str = ""
    exchange_type: str = ""
    routing_keys: tuple[str, ...] = ()
    binding_keys: tuple[str, ...] = ()
    keys: int = 1
    copies: int = 1
    rate: float = 0.0
    verify_order: bool = False
    keep: bool = False
    stall: float = 30.0
    warmup: float = 0.0
    measure: bool = False
    pids: tuple[int, ...] = ()

    def queue_name(self, index: int) -> str:
        """The name of a queue: the name from the options, and the queue's index if there are several queues."""
        return self.queue if self.queues == 1 else f"{self.queue}.{index}"

    def queues_of(self, worker: int, workers: int) -> list[int]:
        """The queues that a producer or consumer serves, such that each queue is served and each worker has work."""
        if self.queues > workers:
            return list(range(worker, self.queues, workers))
        return [worker % self.queues]

    def expand(self, patterns: tuple[str, ...]) -> list[str]:
        """All keys that the patterns stand for, in the order in which they are used."""
        if not any("{}" in pattern for pattern in patterns):
            return list(patterns)
        return [pattern.replace("{}", str(turn)) for turn in range(self.keys) for pattern in patterns]

class Watch:
    """Watches running links: reports progress once a second, notices when no message moves, sums counters."""

    def __init__(self, load: Load, producers: list[Link], consumers: list[Link], say: Say, backlog: int) -> None:
        self.load, self.producers, self.consumers, self._say = load, producers, consumers, say
        self._backlog = backlog
        self._sampler = Sampler(load.pids)
        self.started = self._moved = time.monotonic()
        self._sum = 0
        self.stalled = False

    def total(self, name: str) -> int:
        """The sum of one counter over all links."""
        return sum(getattr(link, name) for link in itertools.chain(self.producers, self.consumers))

    def check(self) -> None:
        """Look at the links once.  PerfError if a link has failed."""
        for link in itertools.chain(self.producers, self.consumers):
            if link.error:
                raise PerfError(link.error)
        now = time.monotonic()
        moved = self.total("published") + self.total("received") + self.total("confirmed")
        # While a producer waits for its last answer, the broker works through what the producer sent before.
        if moved != self._sum or any(link.syncing and not link.finished for link in self.producers):
            self._sum, self._moved = moved, now
        patience = max(self.load.stall, 10 / self.load.rate if self.load.rate else 0)
        if not self.load.producers and self.load.seconds:
            # Another process publishes, at times that we do not know.
            patience = math.inf
        self.stalled = now - self._moved > patience
        if self._sampler.due(now):
            self._tell(now)

    def finish(self) -> None:
        """Tell the figures after the last sample, and how all durations were spread."""
        now = time.monotonic()
        self._tell(now)
        for name, histograms in self._spreads().items():
            whole = Histogram()
            for histogram in histograms:
                whole.merge(histogram)
            self._say.spread(name, whole)

    def _counts(self) -> dict[str, int]:
        counts = {}
        if self.producers:
            counts["publish"] = self.total("published")
        if self.consumers:
            counts["consume"] = self.total("received")
        if self.load.confirm:
            counts["confirm"] = self.total("confirmed")
        return counts

    def _spreads(self) -> dict[str, Iterable[Histogram]]:
        found = {"latency": [link.latency for link in self.consumers if link.latency is not None],
                 "confirm time": [link.waits for link in self.producers if link.waits is not None]}
        return {name: histograms for name, histograms in found.items() if histograms}

    def _tell(self, now: float) -> None:
        sample = self._sampler.take(now, self._counts(), self._spreads())
        blocked = ", blocked by the broker" if any(link.blocked for link in self.producers) else ""
        rates = [f"{what} {sample.rate(what):,.0f}/s" for what in ("publish", "consume") if what in sample.counts]
        self._say.sample(sample)
        self._say.at(self._share(now - self.started), "  ".join(rates) + blocked)

    def _share(self, seconds: float) -> float | None:
        """How much of the run is done: of its time, or of its messages."""
        load, shares = self.load, []
        published, received = self.total("published"), self.total("received")
        if load.seconds:
            shares.append(seconds / load.seconds)
        if load.producers and load.count:
            shares.append(published / (load.count * load.producers))
            if load.consumers:
                expected = self._backlog + load.count * load.producers * load.copies
                shares[-1] = (shares[-1] + received / expected) / 2
        elif not load.producers and self._backlog:
            shares.append(received / self._backlog)
        return min(max(shares), 1.0) if shares else None
