"""Clients that hold the broker's memory and do little with it: cut off when memory becomes scarce.

A client that does not read makes its output wait here; one that begins messages and never ends them makes the broker
keep their beginnings.  Neither may hold up all publishers.  So from three quarters of the memory limit on, before there
is an alarm, the node asks once a second.  A connection is a hoarder if it holds much memory, and for a while has
sent and read fewer octets than an eighth of what it holds.  The node cuts off those that hold most, as many as
necessary to get below three quarters.  A publisher that the alarm itself stopped in the midst of a message cannot end
it, and so has more time; but not for ever, because the memory of such clients may be the cause of the alarm.

A transaction that is never committed holds memory too, and its client may not be cut off for that: an alarm keeps it
from committing.  So open transactions together may have a share of the memory, which they cannot exceed.

Knows connections by what they hold and have moved, and nothing of alarms.
"""

from collections.abc import Collection, Iterator
from logging import getLogger
from typing import Protocol

from brokerd.pieces import Core, add_work

log = getLogger("brokerd")

MUCH_OCTETS = 1 << 20
PATIENCE_SECONDS = 20.0
STOPPED_PATIENCE_SECONDS = 60.0  # with a client from which the broker does not read
LITTLE = 8  # an eighth of what is held
NO_LIMIT = 1 << 62


class Holder(Protocol):
    """A connection, as this module sees it."""

    def held_memory(self) -> int:
        """Octets of output that waits for the client, and of messages that it has begun."""

    def moved_octets(self) -> int:
        """Octets that came from the client or went to it, ever."""

    @property
    def stopped(self) -> bool:
        """Whether the broker keeps itself from reading what the client sends."""

    def cut_off(self) -> None:
        """End the connection at once."""


class Memory(Protocol):
    """How scarce memory is: ``Alarms``."""

    @property
    def excess_octets(self) -> int:
        """The memory in use above the limit at which it is scarce."""

    def note_freed(self, octets: int) -> None:
        """So much was given up."""


class Hoarders:
    """The connections as they were seen since memory became scarce."""

    __slots__ = ("_core", "_looking", "_memory", "_still")

    def __init__(self, core: Core, memory: Memory) -> None:
        self._core = core
        self._memory = memory
        self._looking = False
        self._still: dict[Holder, tuple[int, float]] = {}  # moved octets, and when there were so many

    def tick(self, connections: Collection[Holder], now: float) -> None:
        """If memory is scarce, look at all connections in pieces.  Then cut off those that hold most, until they held
        what is too much.

        Call this once a second.  ``now``: monotonic seconds.
        """
        if not self._memory.excess_octets:
            self._still.clear()
        elif not self._looking:
            self._looking = True
            found: list[tuple[int, Holder]] = []
            add_work(self._core, self._look(connections, now, found), lambda: self._cut_off(found, connections))

    def _look(self, connections: Collection[Holder], now: float, found: list[tuple[int, Holder]]) -> Iterator[None]:
        still: dict[Holder, tuple[int, float]] = {}
        for each in list(connections):
            yield
            if each not in connections or (held := each.held_memory()) < MUCH_OCTETS:
                continue  # It has gone meanwhile, or holds little.
            moved = each.moved_octets()
            before, since = self._still.get(each, (moved, now))
            if (moved - before) * LITTLE >= held:
                before, since = moved, now
            still[each] = before, since
            if now - since >= (STOPPED_PATIENCE_SECONDS if each.stopped else PATIENCE_SECONDS):
                found.append((held, each))
        self._still = still

    def _cut_off(self, found: list[tuple[int, Holder]], connections: Collection[Holder]) -> None:
        self._looking = False
        for held, hoarder in sorted(found, key=lambda each: -each[0]):
            if not self._memory.excess_octets:
                break
            if hoarder not in connections:
                continue
            before, _ = self._still.pop(hoarder)
            log.warning("%s: cut off: memory is low, and it holds %d octets and has moved %d in a while", hoarder, held,
                        hoarder.moved_octets() - before)
            hoarder.cut_off()
            self._memory.note_freed(held)


class TransactionMemory:
    """The memory of the open transactions of a broker, beside the part that the data plane keeps.

    Together they may have ``most`` octets.  When that is used up, those that hold MUCH_OCTETS get no more.
    """

    __slots__ = ("most", "octets")

    def __init__(self) -> None:
        self.most = NO_LIMIT
        self.octets = 0

    def take(self, held: int, more: int) -> bool:
        """Whether a transaction that holds ``held`` octets gets ``more``, or gives back as many if that is negative."""
        if more > 0 and self.octets + more > self.most and held + more > MUCH_OCTETS:
            return False
        self.octets += more
        return True
