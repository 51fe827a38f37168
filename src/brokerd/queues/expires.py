"""Queues that are deleted when they were not used for a while (``x-expires``): a heap of when to look again.

A queue is in use if it has a consumer, or had a consumer, a basic.get or a declare within its time.  Only queues with
the rule are in the heap.  A look at a queue in use pushes one new entry for the earliest time at which it can be due.
So each queue in use is looked at once in its time, and an unused one goes within the timer's precision.

Time comes from the monotonic clock: when the machine's clock is set a day ahead, no queue becomes unused for a day.
Knows neither loop nor vhosts: its builder hands in the time, a timer, and how a queue is deleted.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Protocol

from brokerd.queues.rules import Rules

DELETED_PER_RUN = 100  # so that other work gets its turn


class Timer(Protocol):
    """The result of ``call_at``."""

    def cancel(self) -> object: ...


CallAt = Callable[[int, Callable[[], object]], Timer]  # ns, as ``now()``


class Unused(Protocol):
    """The part of a queue that this module uses."""

    rules: Rules
    deleted: bool
    unused_since: int  # ns: when it last had a consumer, a get or a declare
    consumer_count: int

    def touch(self) -> None:
        """Note that it is used now."""


class Expires:
    """All queues of a broker that expire."""

    __slots__ = ("_armed", "_call_at", "_delete", "_entry", "_heap", "_now", "_numbers", "_sweep_at", "_timer")

    def __init__(
        self,
        now: Callable[[], int],
        delete: Callable[[Any], object],
        call_at: CallAt | None = None,
    ) -> None:
        """``now()``: ns since some moment, the queues' own clock.  Without ``call_at``, the caller must call ``run``
        often enough.  ``delete`` may fail and leave the queue; it is called again after the queue's time."""
        self._now = now
        self._delete = delete
        self._call_at = call_at
        self._heap: list[tuple[int, int, Unused]] = []  # due (ns), the entry's number, queue
        self._entry: dict[Unused, int] = {}  # the number of the one entry that counts
        self._numbers = count()
        self._sweep_at = 64  # entries
        self._timer: Timer | None = None
        self._armed = 0  # ns: when the timer runs

    def __len__(self) -> int:
        return len(self._entry)

    def __contains__(self, queue: Unused) -> bool:
        return queue in self._entry

    def watch(self, queue: Unused) -> None:
        """Take over a queue's new or changed ``rules.expires_ms``.  Its time begins now (RabbitMQ)."""
        if queue.rules.expires_ms is None:
            self._entry.pop(queue, None)
            return
        queue.touch()
        self._push(queue, self._now() + queue.rules.expires_ms * 1_000_000)
        self._arm()

    def run(self) -> None:
        """Delete the queues that are due.  A call without work costs next to nothing."""
        now, deleted = self._now(), 0
        while self._heap and self._heap[0][0] <= now and deleted < DELETED_PER_RUN:
            _, number, queue = heappop(self._heap)
            if self._entry.get(queue) != number:
                continue  # Its rule has changed since.
            del self._entry[queue]
            expires_ms = queue.rules.expires_ms
            if queue.deleted or expires_ms is None:
                continue
            expires_ns = expires_ms * 1_000_000
            since = now if queue.consumer_count else queue.unused_since
            if since + expires_ns <= now:
                deleted += 1
                self._delete(queue)
                if queue.deleted:
                    continue
                since = now
            self._push(queue, since + expires_ns)
        self._arm()

    def _push(self, queue: Unused, due: int) -> None:
        self._entry[queue] = number = next(self._numbers)
        heappush(self._heap, (due, number, queue))
        if len(self._heap) > self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        """Forget queues that were deleted otherwise, and entries that do not count any more."""
        self._entry = {queue: number for queue, number in self._entry.items() if not queue.deleted}
        self._heap = [entry for entry in self._heap if self._entry.get(entry[2]) == entry[1]]
        heapify(self._heap)
        self._sweep_at = 2 * len(self._heap) + 64

    def _arm(self) -> None:
        if self._call_at is None or not self._heap:
            return
        due = self._heap[0][0]
        if self._timer is not None:
            if self._armed <= due:
                return
            self._timer.cancel()
        self._armed = due
        self._timer = self._call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.run()
