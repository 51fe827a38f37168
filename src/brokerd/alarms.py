"""Alarms: while disk, memory or file descriptors run short, publishers are blocked.

    disk                free space below its limit, or a write that failed for want of it
    memory              this process over its limit
    file descriptors    a file could not be opened because the process has as many open as it may have

While an alarm is raised, publishers are blocked (``core.blocked``); clients that understand it are told why, in
RabbitMQ's words.  The node calls ``check`` before its first client and then once a second, with the settings of that
moment.  An alarm ends when a little more is free than what began it, so that it does not come and go each second.
Knows nothing of vhosts, of connections except that they can be unblocked, or of how room is made.
"""

import os
from collections.abc import Callable
from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from brokerd.store.disk import NO_DESCRIPTORS

if TYPE_CHECKING:
    from brokerd import plane
    from brokerd.settings import Settings

log = getLogger("brokerd")

MORE = 20  # an alarm ends when a 20th more is free than where it begins
SCARCE = 4  # memory is scarce when less than a fourth of its limit is left
TRIM_FROM_OCTETS = 64 << 20  # With less used it does not matter how much of it is free.
TRIM_SECONDS, TRIM_SECONDS_WHILE_LOW, TRIM_SECONDS_MOST = 60, 10, 3600
DISK, MEMORY, DESCRIPTORS = "disk", "memory", "file descriptors"  # told to blocked publishers; two are RabbitMQ's words


class Blocked(Protocol):
    """Something that waits for the end of all alarms: a connection, a transaction."""

    def unblock(self) -> None:
        """Go on: all alarms are over."""


class Memory(NamedTuple):
    """How the memory of this process is measured.

    ``used()`` is what the process has from the kernel, in octets, ``objects()`` how many Python objects there are, more
    or less.  ``trim(low)`` gives back to the kernel what the heap has free; ``low``: there is an alarm, or will be.
    ``there`` is how many octets there are.
    """

    used: Callable[[], int] = lambda: 0
    objects: Callable[[], int] = lambda: 0
    trim: Callable[[bool], object] = lambda low: None
    there: int = 0


UNMEASURED = Memory()


class Alarms:
    """The alarms of one broker, and the connections that wait for their end (``blocked``)."""

    __slots__ = (
        "_core", "_disk_full", "_free_disk", "_freed", "_has_room", "_make_room", "_memory", "_raised",
        "_since_trim", "_tell", "_trim_wait", "_trimmed_objects", "_trimmed_octets", "_trying",
        "blocked", "excess_octets",
    )  # fmt: skip

    def __init__(
        self,
        core: "plane.Core",
        *,
        free_disk: Callable[[], int],
        has_room: Callable[[], bool],
        memory: Memory,
        make_room: Callable[[int, int], bool],
        tell: Callable[[str, bool], object],
    ) -> None:
        """``free_disk()`` measures, in octets.
        ``has_room()`` tries whether the disk takes one more file: it may have octets free, but no inode or quota.
        ``make_room(free, limit)`` is called first: it returns whether there will be enough in a moment.
        ``tell(what, raised)`` is called at the beginning and end of each alarm."""
        self._core = core
        self._free_disk = free_disk
        self._has_room = has_room
        self._memory = memory
        self._trimmed_octets = self._trimmed_objects = 0  # when it was trimmed last
        self._since_trim = self._trim_wait = TRIM_SECONDS
        self._freed = 0  # octets that were given up since then, and may still count as used
        self.excess_octets = 0  # more than what is used while memory is not scarce
        self._make_room = make_room
        self._tell = tell
        self._raised: set[str] = set()
        self._disk_full = False  # a write failed for want of space
        self._trying = False  # publishers try whether there are descriptors again
        self.blocked: set[Blocked] = set()  # these wait for the end of all alarms

    @property
    def reason(self) -> str:
        """The reason for blocked publishers; "" while there is no alarm."""
        return "low on " + " & ".join(sorted(self._raised)) if self._raised else ""

    def figures(self, settings: "Settings") -> dict[str, Any]:
        """The use and limits of memory and disk; 0 if the system does not say, or a limit is not set."""

        def measured(measure: Callable[[], int]) -> int:
            try:
                return measure()
            except OSError:
                return 0

        return {
            "alarms": sorted(self._raised), "mem_used": measured(self._memory.used),
            "mem_limit": self.memory_limit(settings), "disk_free": measured(self._free_disk),
            "disk_free_limit": settings.free_disk_min_octets,
        }  # fmt: skip

    def storage_failed(self, number: int) -> None:
        """Raise the alarm of the disk, or that of descriptors: a write failed, and its message was not taken."""
        if number in NO_DESCRIPTORS:
            if not self._trying and DESCRIPTORS not in self._raised:
                log.error("cannot write messages: %s; publishers wait", os.strerror(number))
                self._tell(DESCRIPTORS, True)
            self._raised.add(DESCRIPTORS)
            self._core.blocked = True
            return
        if not self._disk_full:
            log.error("cannot write messages: %s; publishers wait", os.strerror(number))
        self._disk_full = True
        self._raise(DISK)

    def check(self, settings: "Settings") -> None:
        """Block publishers when disk or memory run short; unblock them when there is enough again."""
        self._check_disk(settings)
        self._check_memory(settings)
        self._try_descriptors()

    def _try_descriptors(self) -> None:
        """Let the publishers try: how many descriptors they need is not known."""
        if self._raised != {DESCRIPTORS}:
            return
        self._trying = True
        self._raised.clear()
        self._let_go()
        self._trying = False
        if not self._raised:
            self._tell(DESCRIPTORS, False)
            log.warning("no longer low on file descriptors; publishers go on")

    def _check_disk(self, settings: "Settings") -> None:
        limit = settings.free_disk_min_octets
        raised = DISK in self._raised
        if not limit and not raised:
            return
        free = self._free_disk()
        if self._make_room(free, limit) and not raised:
            return  # There will be room in a moment.
        if free < limit:
            if not raised:
                log.warning("low on disk: %d octets free, limit %d; publishers are blocked", free, limit)
            self._raise(DISK)
        elif raised and free >= limit + limit // MORE and self._takes_writes(free, settings):
            self._disk_full = False
            self._clear(DISK)
            log.warning("no longer low on disk: %d octets free; %s", free, self._publishers)

    def _takes_writes(self, free: int, settings: "Settings") -> bool:
        """Whether writes that failed for want of space may be tried again."""
        return not self._disk_full or (free >= 2 * settings.segment_octets and self._has_room())

    def _check_memory(self, settings: "Settings") -> None:
        """Memory grows with connections, queues and unacked messages."""
        limit = self.memory_limit(settings)
        raised = MEMORY in self._raised
        if not limit and not raised:
            return
        used = self._trimmed_memory(limit)
        self.excess_octets = max(0, used - self._freed - (limit - limit // SCARCE)) if limit else 0
        if limit and used > limit:
            if not raised:
                log.warning("low on memory: %d octets used, limit %d; publishers are blocked", used, limit)
            self._raise(MEMORY)
        elif raised and (not limit or used <= limit - limit // MORE):
            self._clear(MEMORY)
            log.warning("no longer low on memory: %d octets used; %s", used, self._publishers)

    def _trimmed_memory(self, limit: int) -> int:
        """How much memory is used.

        The heap is trimmed first if more than the limit is used, if much more or less is used than after the last trim,
        if there are far fewer objects than then, or if that was long ago.  What many clients have left lies between
        what is still used, and would count for ever.  Each trim that gives back less than a tenth doubles the time
        until the next one of the last kind."""
        used = self._memory.used()
        self._since_trim += 1
        low = bool(limit and used > limit)
        if self._freed or low:
            is_time = self._since_trim >= TRIM_SECONDS_WHILE_LOW or (used > limit and MEMORY not in self._raised)
        else:
            is_alike = self._trimmed_octets * 3 <= used * 4 and used * 2 <= self._trimmed_octets * 3
            wait = self._trim_wait if is_alike else TRIM_SECONDS
            is_time = used >= TRIM_FROM_OCTETS and (self._since_trim >= wait or self._has_lost_objects())
        if is_time:
            self._memory.trim(low)
            before, used = used, self._memory.used()
            gave_little = before - used < before // 10
            self._trim_wait = min(2 * self._trim_wait, TRIM_SECONDS_MOST) if gave_little else TRIM_SECONDS
            self._trimmed_octets, self._since_trim, self._freed = used, 0, 0
            self._trimmed_objects = self._memory.objects()
        return used

    def _has_lost_objects(self) -> bool:
        """Whether a third of the objects that were there at the last trim is gone.

        Asked once a minute, because to count them may take some ms."""
        return self._since_trim % TRIM_SECONDS == 0 and self._memory.objects() * 3 < self._trimmed_objects * 2

    def note_freed(self, octets: int) -> None:
        """So much was given up because memory is scarce.  It counts as free before the heap is trimmed."""
        self._freed += octets
        self.excess_octets = max(0, self.excess_octets - octets)

    def memory_limit(self, settings: "Settings") -> int:
        """From how many octets on memory is low; 0: no limit."""
        share = self._memory.there * settings.memory_high_watermark_percent // 100
        return settings.memory_high_watermark_octets or share

    @property
    def _publishers(self) -> str:
        return f"still {self.reason}" if self._raised else "publishers go on"

    def _raise(self, what: str) -> None:
        if what not in self._raised:
            self._tell(what, True)
        self._raised.add(what)
        self._core.blocked = True

    def _clear(self, what: str) -> None:
        """End one alarm.  With the last one publishers go on."""
        self._raised.discard(what)
        self._tell(what, False)
        if not self._raised:
            self._let_go()

    def _let_go(self) -> None:
        self._core.blocked = False
        for each in list(self.blocked):
            each.unblock()
