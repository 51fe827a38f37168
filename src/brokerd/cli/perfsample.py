"""Figures of a run of the load generator while it goes on: a `Sample` each second, kept in a bounded `Record`.

Knows nothing of brokers, terminals and pages: runs give numbers, and listeners draw them.
"""

import dataclasses
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from brokerd.cli._perf import Histogram
from brokerd.cli.perfproc import Usage, usage

SAMPLES_AT_MOST = 1200      # a longer run keeps fewer: two that follow each other become one
REST_SECONDS = 0.5          # a shorter sample would be all noise


class Waits(NamedTuple):
    """Percentiles of durations within one sample, in microseconds."""

    p50: float
    p99: float
    longest: float

    @classmethod
    def of(cls, histogram: Histogram) -> "Waits":
        """The percentiles of a histogram."""
        return cls(histogram.quantile(0.5) / 1000, histogram.quantile(0.99) / 1000, histogram.max / 1000)


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """The figures of a part of a run.

    at: when the part ended, in seconds from the start.  seconds: how long it was.  counts: how many messages were
    published, consumed, and so on.  waits: durations by their name.  cpu: processors that the broker kept busy.  cpu
    and rss_kb are None if no process of the broker is known.
    """

    at: float
    seconds: float
    counts: Mapping[str, int]
    waits: Mapping[str, Waits]
    cpu: float | None = None
    rss_kb: int | None = None

    def rate(self, name: str) -> float:
        """How many there were in a second."""
        return self.counts.get(name, 0) / self.seconds

    def joined(self, later: "Sample") -> "Sample":
        """This sample and the next as one; of percentiles the greater, because those of both together are not known."""
        seconds = self.seconds + later.seconds
        waits = dict(self.waits)
        for name, wait in later.waits.items():
            waits[name] = Waits(*map(max, waits[name], wait)) if name in waits else wait
        cpu = None
        if self.cpu is not None and later.cpu is not None:
            cpu = (self.cpu * self.seconds + later.cpu * later.seconds) / seconds
        names = {**self.counts, **later.counts}
        counts = {name: self.counts.get(name, 0) + later.counts.get(name, 0) for name in names}
        return Sample(later.at, seconds, counts, waits, cpu, later.rss_kb)


class Say(Protocol):
    """Where a run tells how far it is."""

    def line(self, text: str) -> None:
        """Say something once."""

    def at(self, share: float | None, text: str) -> None:
        """Say how far the run is: a share of 0 to 1, None if it is not known, and what goes on."""

    def sample(self, sample: Sample) -> None:
        """Say what happened since the last sample."""

    def spread(self, name: str, histogram: Histogram) -> None:
        """Say, at the end, how long all that ``name`` stands for took."""


class Record:
    """The samples and histograms of one run."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.spreads: dict[str, Histogram] = {}
        self._each = 1          # samples that were joined to one
        self._open: Sample | None = None
        self._joined = 0

    def add(self, sample: Sample) -> None:
        """Keep a sample.  The short rest of a run belongs to the sample before it."""
        if sample.seconds < REST_SECONDS and self._open is None and self.samples:
            self.samples[-1] = self.samples[-1].joined(sample)
            return
        self._open = sample if self._open is None else self._open.joined(sample)
        self._joined += 1
        if self._joined < self._each:
            return
        self.samples.append(self._open)
        self._open, self._joined = None, 0
        if len(self.samples) >= SAMPLES_AT_MOST:
            pairs = zip(self.samples[::2], self.samples[1::2], strict=True)
            self.samples = [first.joined(second) for first, second in pairs]
            self._each *= 2

    def all(self) -> list[Sample]:
        """The samples, with the last that is not yet as long as the others."""
        return [*self.samples, *([self._open] if self._open is not None else [])]


class Sampler:
    """Makes samples out of counters and histograms that grow."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = list(pids)
        self.began = self._last = time.monotonic()
        self._counts: dict[str, int] = {}
        self._before: dict[str, Histogram] = {}
        self._usage: Usage = usage(self._pids)

    def due(self, now: float) -> bool:
        """Whether a second is over since the last sample."""
        return now - self._last >= 1

    def take(self, now: float, counts: Mapping[str, int], spreads: Mapping[str, Iterable[Histogram]]) -> Sample:
        """The figures since the last sample.  ``counts`` and ``spreads`` count from the start."""
        seconds = max(now - self._last, 1e-6)
        waits = {}
        for name, histograms in spreads.items():
            whole = Histogram()
            for histogram in histograms:
                whole.merge(histogram)
            found = whole.since(self._before.get(name, Histogram()))
            self._before[name] = whole
            if found.count:
                waits[name] = Waits.of(found)
        used = usage(self._pids)
        new = {name: number - self._counts.get(name, 0) for name, number in counts.items()}
        cpu = max(0.0, used.cpu_s - self._usage.cpu_s) / seconds if self._pids else None
        sample = Sample(now - self.began, seconds, new, waits, cpu, used.rss_kb if self._pids else None)
        self._last, self._usage, self._counts = now, used, dict(counts)
        return sample
