"""Writes keys into files beside the segments, before their records are removed, in a thread.

A queue that drops duplicates must not lose its keys with their records.  So a settled segment waits in the data plane
(plane.Core.take_unwritten_keys) until the keys in it that still count are on disk in a file of their own.  A sparse
segment waits for the same before it is compacted.  This module also removes key files in which no key counts any more.
store/key_files.py describes what stands in such a file.  Knows nothing of rules, headers or messages.
"""

from logging import getLogger
from typing import TYPE_CHECKING

from brokerd.store import format as layout

if TYPE_CHECKING:
    from brokerd import plane
    from brokerd.queues.queue import Queue
    from brokerd.store.compaction import Sparse
    from brokerd.store.garbage import Submit
    from brokerd.vhost.vhost import VHost

log = getLogger("brokerd")

SEGMENTS_PER_TICK = 16  # each is read through on the loop


class KeyKeeper:
    """Writes and removes key files; ``tick`` is called once a second."""

    __slots__ = ("_asked", "_core", "_failed", "_submit", "_vhosts", "_waiting")

    def __init__(self, vhosts: "dict[str, VHost]", core: "plane.Core", submit: "Submit") -> None:
        self._vhosts = vhosts
        self._core = core
        self._submit = submit
        self._waiting: dict[tuple[Queue, int, int], None] = {}  # queue, level, segment: still to be written
        self._asked: set[tuple[Queue, int, int]] = set()  # being written
        self._failed = False

    def tick(self) -> None:
        """Write the keys of segments that wait for it, a bounded number at a time."""
        for queue, level, number in self._core.take_unwritten_keys():
            asked: tuple[Queue, int, int] = (queue, level, number)  # type: ignore[assignment]  # all are queues.Queue
            if asked not in self._asked:
                self._waiting[asked] = None
        for asked in list(self._waiting)[:SEGMENTS_PER_TICK]:
            del self._waiting[asked]
            self._write(*asked)

    def can_compact(self, queue: "Queue", sparse: "Sparse") -> bool:
        """Whether a segment can be compacted now.  If its keys need a file first, a later ``tick`` writes the file."""
        return queue.can_drop_records(sparse.number, sparse.level)

    def sweep(self) -> None:
        """Remove files in which no key counts any more."""
        for vhost in self._vhosts.values():
            vhost.duplicates.sweep()

    def _write(self, queue: "Queue", level: int, number: int) -> None:
        if queue.deleted or queue.deduplication is None:
            return
        known = queue.deduplication
        folder = f"{queue.directory}/{layout.priority_folder(level)}" if level else queue.directory
        path = f"{folder}/{layout.keys_name(number)}"
        try:
            rows = queue.key_rows(number, level)
        except OSError as error:
            self._fail(queue, level, number, error)
            return
        if not rows:
            queue.mark_keys_written(number, level)
            return
        asked = (queue, level, number)
        self._asked.add(asked)

        def done(error: BaseException | None) -> None:
            self._asked.discard(asked)
            if queue.deleted:
                return
            if error is not None:
                self._fail(queue, level, number, error)
            else:
                known.watch_file(path, rows)
                queue.mark_keys_written(number, level)

        self._submit(lambda: known.write(path, number, rows), done)

    def _fail(self, queue: "Queue", level: int, number: int, error: BaseException) -> None:
        """Keep the records of a segment, and try again."""
        if not self._failed:
            log.warning("%s: keys of segment %d cannot be written: %s; its records stay until they are", queue, number,
                        error)  # fmt: skip
        self._failed = True
        self._waiting[queue, level, number] = None
