"""Writes the indexes of streams' full segments, in a thread.

    plane.Core.take_unindexed ─> queue, segment ─ plane.index_segment ─> index.N beside the segment ─> mark_indexed

The data plane names a segment when a reader would have used its index and found none, and each one that is full once
a reader has had a use for them.  An index
follows from its segment alone and carries a checksum, so nothing here is synced: after a crash a reader asks again.
``plane/index.pxi`` describes the file.  Knows nothing of readers or filters.
"""

import os
from logging import getLogger
from typing import TYPE_CHECKING

from brokerd import plane
from brokerd.store import format as layout

if TYPE_CHECKING:
    from brokerd.store.disk import Disk
    from brokerd.store.garbage import Garbage, Submit

log = getLogger("brokerd")

SEGMENTS_PER_TICK = 64  # each costs its thread some milliseconds


class IndexKeeper:
    """Writes index files; ``tick`` is called once a second."""

    __slots__ = ("_core", "_disk", "_failed", "_garbage", "_submit", "_waiting")

    def __init__(self, core: plane.Core, disk: "Disk", submit: "Submit", garbage: "Garbage") -> None:
        self._core = core
        self._disk = disk
        self._submit = submit
        self._garbage = garbage
        self._waiting: list[tuple[plane.Queue, int]] = []
        self._failed = False

    def tick(self) -> None:
        """Have the indexes written that are wanted, a bounded number at a time."""
        self._waiting += self._core.take_unindexed()
        now, self._waiting = self._waiting[:SEGMENTS_PER_TICK], self._waiting[SEGMENTS_PER_TICK:]
        for queue, number in now:
            self._write(queue, number)

    def _write(self, queue: plane.Queue, number: int) -> None:
        directory, made = queue.directory, False

        def work() -> None:
            nonlocal made
            made = write_index(directory, number, self._disk)

        def done(error: BaseException | None) -> None:
            if error is not None and not isinstance(error, FileNotFoundError) and not self._failed:
                log.warning("%s: the index of segment %d cannot be written: %s; its readers look at each message",
                            queue, number, error)  # fmt: skip
                self._failed = True
            if not self._core.mark_indexed(queue, number, made) and made:
                self._garbage.discard(f"{directory}/{layout.index_name(number)}")  # Retention was quicker.

        self._submit(work, done)


def write_index(directory: str, number: int, disk: "Disk") -> bool:
    """Write the index of a segment.  False: there can be none, because the segment is not full, or damaged.  Raises
    OSError."""
    fd = disk.open(f"{directory}/{layout.segment_name(number)}")
    try:
        octets = plane.index_segment(fd, number)
    finally:
        disk.close(fd)
    if octets is None:
        return False
    path = f"{directory}/{layout.index_name(number)}"
    if disk.exists(path):
        disk.unlink(path)  # A dump may be copying the former one.
    fd = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        disk.pwrite(fd, octets, 0)
    finally:
        disk.close(fd)
    return True
