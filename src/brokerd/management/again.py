"""Answers that took long to make, given again for a while to clients that ask for the same.

A list of ten thousand queues takes the broker more than a tenth of a second of its only loop, and collectors ask for it
each second.  So such an answer holds for ``TIMES`` times as long as it took, at most ``SECONDS_MAX``, in the manner of
RabbitMQ's ``management_db_cache_multiplier``.  Clients that ask while it is made wait for the same one.  An answer that
was made quickly, or is small, is never given again.

Every change through this process ends all of them.  Others (by AMQP, by brokerctl on the socket) show when the time is
over.  Keys name everything that an answer depends on: who asks, and for what.  Knows nothing of what answers contain.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable

from starlette.responses import Response

TIMES = 30
QUICK_SECONDS = 0.05
LARGE_OCTETS = 1 << 20  # A small answer may take long on a busy machine, and costs little.
SECONDS_MAX = 5.0
OCTETS_MAX = 32 << 20  # of all answers that are kept
KEYS_MAX = 1000  # of which it is known that they take long

Make = Callable[[], Awaitable[Response]]


class Again:
    """The answers that are kept, and those under way."""

    __slots__ = ("_changes", "_kept", "_making", "_octets", "_slow", "_time")

    def __init__(self, time: Callable[[], float] | None = None) -> None:
        """``time``: the clock; None: the loop's."""
        self._time = time or (lambda: asyncio.get_running_loop().time())
        self._kept: dict[Hashable, tuple[Response, float]] = {}  # with the time up to which it holds
        self._making: dict[Hashable, asyncio.Task[Response]] = {}
        self._slow: set[Hashable] = set()
        self._octets = 0
        self._changes = 0

    async def answer(self, key: Hashable, make: Make) -> Response:
        """The answer to this key: one that is kept or under way, or what ``make()`` returns or raises."""
        now = self._time()
        kept = self._kept.get(key)
        if kept is not None and now < kept[1]:
            return kept[0]
        if key not in self._slow:
            return await self._made(key, make)  # It ends with the client, should that go.
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = asyncio.create_task(self._made(key, make))
            making.add_done_callback(lambda done: self._end(key, done))
        return await asyncio.shield(making)

    def end_all(self) -> None:
        """Something has changed: nothing that was made, or begun, before now is given to those who ask from now on."""
        self._changes += 1
        self._kept.clear()
        self._making.clear()
        self._octets = 0

    async def _made(self, key: Hashable, make: Make) -> Response:
        changes, began = self._changes, self._time()
        made = await make()
        now = self._time()
        took = now - began
        if took < QUICK_SECONDS or len(made.body) < LARGE_OCTETS:
            self._slow.discard(key)
            return made
        if len(self._slow) < KEYS_MAX:
            self._slow.add(key)
        self._forget(key)  # Another client may have asked at the same time.
        self._forget_old()
        if changes == self._changes and made.status_code == 200 and self._octets + len(made.body) <= OCTETS_MAX:
            holds = min(TIMES * took, SECONDS_MAX)
            self._kept[key] = made, now + holds
            self._octets += len(made.body)
            asyncio.get_running_loop().call_later(holds + 0.1, self._forget_old)  # It may be that nobody asks again.
        return made

    def _forget_old(self) -> None:
        """Forget what holds no longer."""
        now = self._time()
        for key in [key for key, (_, until) in self._kept.items() if until <= now]:
            self._forget(key)

    def _forget(self, key: Hashable) -> None:
        if key in self._kept:
            self._octets -= len(self._kept.pop(key)[0].body)

    def _end(self, key: Hashable, done: "asyncio.Task[Response]") -> None:
        if self._making.get(key) is done:
            del self._making[key]
        if not done.cancelled():
            done.exception()  # Those who waited have it, if any client is still there.
