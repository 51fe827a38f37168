"""Alarms: while disk, memory or file descriptors run short, publishers are blocked.

    disk                free space below its limit, or a write that failed for want of it
    memory              this process over its limit
    file descriptors    a file could not be opened because the process has as many as it may

While an alarm is raised, publishers are blocked (``core.blocked``); clients that understand it are told why, in
RabbitMQ's words.  The node calls ``check`` once a second with the settings of that moment.  Knows nothing of vhosts, of
connections except that they can be unblocked, or of how room is made.
"""

import os
from collections.abc import Callable
from logging import getLogger
from typing import TYPE_CHECKING, Protocol

from brokerd.store.disk import NO_DESCRIPTORS

if TYPE_CHECKING:
    from brokerd import plane
    from brokerd.settings import Settings

log = getLogger("brokerd")

DISK, MEMORY, DESCRIPTORS = "disk", "memory", "file descriptors"  # told to blocked publishers; two are RabbitMQ's words


class Blocked(Protocol):
    """Something that waits for the end of all alarms: a connection, a transaction."""

    def unblock(self) -> None:
        """Go on: all alarms are over."""


class Alarms:
    """The alarms of one broker, and all that waits for their end (``blocked``)."""

    __slots__ = (
        "_core", "_disk_full", "_free_disk", "_make_room", "_memory_octets", "_raised", "_tell", "_trying",
        "_used_memory", "blocked",
    )  # fmt: skip

    def __init__(
        self,
        core: "plane.Core",
        *,
        free_disk: Callable[[], int],
        used_memory: Callable[[], int],
        memory_octets: int,
        make_room: Callable[[int, int], bool],
        tell: Callable[[str, bool], object],
    ) -> None:
        """``free_disk()`` and ``used_memory()`` measure, in octets; ``memory_octets`` is how much memory there is.
        ``make_room(free, limit)`` is called first: it returns whether there will be enough in a moment.
        ``tell(what, raised)`` is called at the beginning and end of each alarm."""
        self._core = core
        self._free_disk = free_disk
        self._used_memory = used_memory
        self._memory_octets = memory_octets
        self._make_room = make_room
        self._tell = tell
        self._raised: set[str] = set()
        self._disk_full = False  # a write failed for want of space
        self._trying = False  # publishers try whether there are descriptors again
        self.blocked: set[Blocked] = set()  # these wait for the end of all alarms

    @property
    def reason(self) -> str:
        """What blocked publishers are told; "" while there is no alarm."""
        return "low on " + " & ".join(sorted(self._raised)) if self._raised else ""

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
        elif raised and (not self._disk_full or free >= 2 * settings.segment_octets):
            self._disk_full = False
            self._clear(DISK)
            log.warning("no longer low on disk: %d octets free; %s", free, self._publishers)

    def _check_memory(self, settings: "Settings") -> None:
        """Memory grows with connections, queues and unacked messages."""
        limit = settings.memory_high_watermark_octets
        limit = limit or self._memory_octets * settings.memory_high_watermark_percent // 100
        raised = MEMORY in self._raised
        if not limit and not raised:
            return
        used = self._used_memory()
        if limit and used > limit:
            if not raised:
                log.warning("low on memory: %d octets used, limit %d; publishers are blocked", used, limit)
            self._raise(MEMORY)
        elif raised:
            self._clear(MEMORY)
            log.warning("no longer low on memory: %d octets used; %s", used, self._publishers)

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
