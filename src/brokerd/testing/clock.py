"""A clock that can be set forward, and the timers that follow it.

``advance`` goes from one due time to the next, so that what happens at one of them (a message expires, and goes to a
queue where it expires again) has its own time.  The time of day moves, and with it how long queues are unused and
deliveries unacked.  ``monotonic`` stays the machine's, because heartbeats and handshakes concern clients too, and a
test cannot set a client's clock.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from brokerd.clock import Clock

STEPS_MAX = 10_000  # of one advance; after that the clock jumps


class MovableClock(Clock):
    """The machine's clock, some time ahead."""

    __slots__ = ("ahead_ns",)

    def __init__(self, ahead_ns: int = 0) -> None:
        self.ahead_ns = ahead_ns

    def epoch_ns(self) -> int:
        """Nanoseconds since 1970-01-01 UTC."""
        return time.time_ns() + self.ahead_ns

    def monotonic_ns(self) -> int:
        """Nanoseconds since some moment, for how long something was unused or unacked: ahead as well."""
        return time.monotonic_ns() + self.ahead_ns


class Loop(Protocol):
    """The part of an event loop that this module uses."""

    def call_later(self, delay: float, callback: Callable[..., object]) -> Any: ...


class Timer:
    """One callback that waits for its time."""

    __slots__ = ("_timers", "callback", "handle", "when_ns")

    def __init__(self, timers: "Timers", when_ns: int, callback: Callable[[], object]) -> None:
        self._timers = timers
        self.when_ns, self.callback = when_ns, callback
        self.handle: Any = None

    def fire(self) -> None:
        """Call back, once."""
        if self in self._timers.waiting:
            self.cancel()
            self.callback()

    def cancel(self) -> None:
        """Drop the callback."""
        self._timers.waiting.pop(self, None)
        self.handle.cancel()


class Timers:
    """All timers that wait for a time of the clock."""

    __slots__ = ("_clock", "_loop", "waiting")

    def __init__(self, clock: MovableClock, loop: Loop) -> None:
        self._clock = clock
        self._loop = loop
        self.waiting: dict[Timer, None] = {}

    def call_at(self, when_ns: int, callback: Callable[[], object]) -> Timer:
        """Call back at that time (ns since the epoch) of the clock."""
        timer = Timer(self, when_ns, callback)
        self._arm(timer)
        self.waiting[timer] = None
        return timer

    def _arm(self, timer: Timer) -> None:
        timer.handle = self._loop.call_later(max(0.0, (timer.when_ns - self._clock.epoch_ns()) / 1e9), timer.fire)

    async def advance(self, ahead_ns: int, settle: Callable[[], Awaitable[object]]) -> None:
        """Set the clock forward by that much, and fire all timers that are due on the way, in order.

        ``settle()`` returns when all that a step has caused is done.
        """
        clock = self._clock
        target = clock.ahead_ns + ahead_ns
        for _ in range(STEPS_MAX):
            due = min((timer.when_ns for timer in self.waiting), default=None)
            if due is None or due - time.time_ns() > target:
                break
            clock.ahead_ns = max(clock.ahead_ns, due - time.time_ns())
            self._fire_due()
            await settle()
        clock.ahead_ns = target
        self._fire_due()
        for timer in self.waiting:
            timer.handle.cancel()
            self._arm(timer)
        await settle()

    def _fire_due(self) -> None:
        now = self._clock.epoch_ns()
        for timer in sorted((each for each in self.waiting if each.when_ns <= now), key=lambda each: each.when_ns):
            timer.fire()
