"""Counters of the whole broker, asked for every few seconds, and the rates between them.

A rate costs the broker nothing: it is a difference of two counters that it has anyway.  The history holds the last
hour.  Rates of single queues, connections and channels come from the lists that clients ask for: the counters of a
former list, at least ``APART_SECONDS`` old, are kept for the next one.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from logging import getLogger
from typing import Any

from brokerd.management.control import Control, Refused, Unavailable

log = getLogger("brokerd.management")

EVERY_SECONDS = 5.0
KEPT = 720
APART_SECONDS = 4.0
REMEMBERED_SECONDS = 300.0
REMEMBERED_MAX = 200_000
FOLLOWERS_WAIT_SECONDS = 3 * EVERY_SECONDS

Numbers = dict[str, float]


class Samples:
    """The history of the broker's numbers."""

    __slots__ = (
        "_asking", "_changed", "_control", "_cost", "_histograms", "_number", "_taken", "_things", "history", "last",
    )  # fmt: skip

    def __init__(self, control: Control) -> None:
        self._control = control
        self._changed = asyncio.Condition()
        self._asking = asyncio.Lock()
        self._taken = 0.0  # when that was, by the monotonic clock
        self._cost = 0.0  # seconds that the last sample took
        self._number = 0
        self._histograms = False  # a client has asked for them
        # By thing: time and counters of a former list, and of the latest.
        self._things: dict[Any, tuple[float, Numbers, float, Numbers]] = {}
        self.history: deque[tuple[float, Numbers]] = deque(maxlen=KEPT)
        self.last: dict[str, Any] | None = None  # the broker's last answer; None: it has not answered yet

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            try:
                await self.take()
            except (Refused, Unavailable) as error:
                log.debug("no sample for the charts was taken: %s", error)
            self._forget()
            await asyncio.sleep(EVERY_SECONDS)

    async def take(self) -> dict[str, Any]:
        """Ask now.  Raises Refused, Unavailable."""
        async with self._asking:
            return await self._take()

    async def recent(self) -> dict[str, Any]:
        """The broker's answer to "node show", as new as a hundredth of the broker's time allows.
        Raises Refused, Unavailable."""
        async with self._asking:
            if self.last is not None and time.monotonic() - self._taken < 100 * self._cost:
                return self.last
            return await self._take(for_history=self.last is None)

    async def with_histograms(self) -> dict[str, Any]:
        """As ``recent``, with histograms, which the broker counts from the first such call on."""
        if not self._histograms:
            self._histograms = True
            self.mark_outdated()
        return await self.recent()

    def mark_outdated(self) -> None:
        """A request has changed what the last answer tells: ``recent`` asks again."""
        self._cost = 0.0

    async def _take(self, *, for_history: bool = True) -> dict[str, Any]:
        before = time.monotonic()
        answer: dict[str, Any] = await self._control.ask("node show", {"histograms": self._histograms})
        self._taken = time.monotonic()
        self._cost = self._taken - before
        self.last = answer
        if for_history:
            self.history.append((time.time(), flat(answer)))
            self._number += 1
            async with self._changed:
                self._changed.notify_all()
        return answer

    def rate(self, name: str) -> float:
        """How much a counter of the broker grew in a second, over the last samples."""
        if len(self.history) < 2:
            return 0.0
        (before, old), (now, new) = self.history[-2], self.history[-1]
        return rate_between(old.get(name, 0), new.get(name, 0), now - before)

    def series(self, name: str, age: int, step: int) -> list[tuple[float, float]]:
        """Time and value of the samples of the last ``age`` seconds, at least ``step`` apart, the latest first."""
        found: list[tuple[float, float]] = []
        if not self.history:
            return found
        latest = self.history[-1][0]
        for when, numbers in reversed(self.history):
            if latest - when > age:
                break
            if not found or found[-1][0] - when >= step - EVERY_SECONDS / 2:
                found.append((when, numbers.get(name, 0)))
        return found

    def rates_of(self, thing: Any, counters: Numbers) -> Numbers:
        """The rates of a thing's counters since a former call, at least ``APART_SECONDS`` ago; 0 at the first."""
        now = time.monotonic()
        known = self._things.get(thing)
        if known is None:
            if len(self._things) < REMEMBERED_MAX:
                self._things[thing] = (now, counters, now, counters)
            return dict.fromkeys(counters, 0.0)
        when, old, latest, newest = known
        if counters == newest:
            counters = newest  # The same table once: of ten thousand idle queues it is megabytes.
        if now - latest >= APART_SECONDS:
            when, old = latest, newest
            self._things[thing] = (when, old, now, counters)
        if counters == old:
            return dict.fromkeys(counters, 0.0)  # As most things are: idle.
        return {name: rate_between(old.get(name, 0), value, now - when) for name, value in counters.items()}

    def _forget(self) -> None:
        """Forget the counters that no client has asked for lately."""
        oldest = time.monotonic() - REMEMBERED_SECONDS
        self._things = {thing: known for thing, known in self._things.items() if known[2] > oldest}

    async def follow(self) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        """The last sample, and each new one; with its number."""
        told = 0
        while True:
            if self.last is not None and self._number != told:
                told = self._number
                yield told, {"time": self.history[-1][0], **self.last, "rates": self._rates()}
            async with self._changed:
                number = self._number
                if number == told:
                    try:
                        async with asyncio.timeout(FOLLOWERS_WAIT_SECONDS):
                            await self._changed.wait()
                    except TimeoutError:
                        yield told, {"time": time.time(), "unavailable": True}

    def _rates(self) -> Numbers:
        return {name: self.rate(name) for name in self.history[-1][1]}


def rate_between(old: float, new: float, seconds: float) -> float:
    """The rate of a counter.  One that is smaller than before began anew."""
    if seconds <= 0 or new < old:
        return 0.0
    return round((new - old) / seconds, 3)


def flat(table: dict[str, Any], prefix: str = "") -> Numbers:
    """The numbers of a table with tables in it, by dotted names."""
    found: Numbers = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found.update(flat(value, f"{prefix}{name}."))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{prefix}{name}"] = value
    return found
