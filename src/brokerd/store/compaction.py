"""Gives back the space of an old segment of which little is still needed.

A segment goes when all its messages are settled; a few messages that stay unacked would hold its 8 MiB.  So the live
records are copied, octet by octet, into ``msgs.N.new``, what is known of them into ``acks.N.new`` (both of the next
generation), both are synced, renamed, and the queue is told where its records are now.  ``store.recovery`` handles a
crash between the two renames.  Records keep their number, sequence and CRC; a journal beside them stays as it is.

    prepare   may run in a thread: reads files, writes the .new ones; touches no queue
    finish    on the loop: gives up if anything was settled or returned meanwhile
"""

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from brokerd.store import format as layout
from brokerd.store import reading
from brokerd.store.disk import Disk

if TYPE_CHECKING:
    import numpy

LIVE_PERCENT_MAX = 25       # A segment with less of its octets live is rewritten.
PAGE_OCTETS = 4096          # An acks file is never shorter: the plane takes a shorter one for a new one.


class Compactable(Protocol):
    """The part of plane.Queue that this module uses."""

    directory: str
    copying: bool

    def segments(self) -> list[dict[str, Any]]: ...
    def can_drop_records(self, number: int, level: int = 0) -> bool: ...
    def can_compact(self, number: int, level: int = 0) -> bool: ...
    def replace_segment(self, number: int, old: "numpy.ndarray", new: "numpy.ndarray", end: int, capacity: int,
                        generation: int, entries: int, level: int = 0) -> None: ...


class Sparse(NamedTuple):
    """A segment: its number, and the priority level that it is of."""

    number: int
    level: int = 0

    def __str__(self) -> str:
        return str(self.number)


def find_sparse(queue: Compactable, keep: Callable[[dict[str, Any]], bool] | None = None) -> Sparse | None:
    """The segment most worth compacting, judged by its records; None: no segment is.  Segments for which ``keep``
    returns True stay whole."""
    best, best_share = None, LIVE_PERCENT_MAX / 100
    for segment in queue.segments():
        live = segment["records"] - segment["settled"]
        share = live / segment["records"] if segment["records"] else 1.0
        # Never the last one of a level, which can_compact() knows: see store/format.py.
        if segment["sealed"] and live and share < best_share and queue.can_compact(
                segment["number"], segment["level"]) and not (keep is not None and keep(segment)):
            best, best_share = Sparse(segment["number"], segment["level"]), share
    return best


def compact(queue: Compactable, disk: Disk) -> bool:
    """Compact one segment, if one is worth it: some milliseconds.  Raises OSError; then all is as before."""
    sparse = find_sparse(queue)
    if sparse is None:
        return False
    compaction = prepare(queue.directory, sparse, disk)
    return compaction is not None and compaction.finish(queue)


class Compaction:
    """A segment copied, not yet put in place."""

    __slots__ = ("_acks", "_disk", "_entries_seen", "_msgs", "end", "entries", "generation", "level", "new", "number",
                 "old")

    def __init__(self, directory: str, sparse: Sparse, disk: Disk) -> None:
        number, level = sparse
        if level:
            directory = f"{directory}/{layout.priority_folder(level)}"
        self._disk = disk
        self.level = level
        self._msgs = f"{directory}/{layout.segment_name(number)}"
        self._acks = f"{directory}/{layout.acks_name(number)}"
        self._entries_seen = 0
        self.number = number
        self.old: numpy.ndarray     # Positions (u4, rising) of the live records in the old file ...
        self.new: numpy.ndarray     # ... and in the new one.
        self.end = self.entries = self.generation = 0

    def finish(self, queue: Compactable) -> bool:
        """Put it in place.  False: thrown away, since the segment changed meanwhile, somebody copies its files, or
        keys of its records are on disk nowhere else."""
        if (queue.copying or not queue.can_compact(self.number, self.level) or self._changed()
                or not queue.can_drop_records(self.number, self.level)):
            self.undo()
            return False
        self._disk.rename(self._msgs + ".new", self._msgs)
        self._disk.rename(self._acks + ".new", self._acks)
        self._disk.sync_directory(self._msgs.rpartition("/")[0])
        queue.replace_segment(self.number, self.old, self.new, self.end, self.end, self.generation, self.entries,
                              self.level)
        return True

    def undo(self) -> None:
        """Throw the copy away."""
        for path in (self._msgs, self._acks):
            with contextlib.suppress(FileNotFoundError):    # Never made, or the queue was deleted meanwhile.
                self._disk.unlink(path + ".new")

    def _changed(self) -> bool:
        """Whether an entry was written since ``prepare`` looked."""
        try:
            fd = self._disk.open(self._acks)
        except FileNotFoundError:
            return True
        try:
            at = layout.HEADER_OCTETS + self._entries_seen * layout.ENTRY_OCTETS
            return any(self._disk.pread(fd, layout.ENTRY_OCTETS, at))
        finally:
            self._disk.close(fd)

    def _prepare(self) -> bool:
        import numpy as np  # Compaction is rare; a broker that never does it saves 20 MB.

        octets, acks = self._disk.read(self._msgs), self._disk.read(self._acks)
        header = np.frombuffer(octets, reading.segment_dtype(), 1)[0]
        old_end, number = int(header["end"]), self.number
        if old_end > len(octets) or int(header["number"]) != number:
            return False
        records = reading.scan_records(octets, old_end)
        if records.gaps:
            return False        # Damaged: the file stays as it is, so that an operator can look at it.
        found = reading.read_entries(acks, number)
        live = ~np.isin(records.positions, reading.settled_positions(found.entries))
        old = records.positions[live]
        words = records.headers["length"][live].astype(np.int64) + 7 >> 3
        live_octets = int(words.sum()) * 8
        if not old.size or live_octets * 100 >= LIVE_PERCENT_MAX * (old_end - layout.HEADER_OCTETS):
            return False
        before = np.cumsum(words) - words       # Words of the new file before each record.
        gather = np.repeat((old >> 3) - before, words) + np.arange(words.sum())
        copied = np.frombuffer(octets, "<u8", old_end // 8)[gather]
        self.old, self.new = old.astype(np.uint32), (before * 8 + layout.HEADER_OCTETS).astype(np.uint32)
        self.end, self.generation = layout.HEADER_OCTETS + live_octets, int(header["generation"]) + 1
        self._entries_seen = found.written
        entries = self._standing(found.entries)
        self.entries = len(entries)
        self._write(self._msgs, layout.segment_header(
            number, base_seq=int(header["base_seq"]), created=int(header["created"]), generation=self.generation,
            end=self.end, records=len(old), sealed=layout.SYNCED) + copied.tobytes())
        content = layout.acks_header(number, generation=self.generation, delivered=self.end,
                                     entries=self.entries) + entries.tobytes()
        self._write(self._acks, content + bytes(-len(content) % PAGE_OCTETS))
        return True

    def _standing(self, entries: "numpy.ndarray") -> "numpy.ndarray":
        """One entry for each live record, which says how it stands, in the order of the records; before it those that
        tell its retry time.

        The cursor has passed them all: one without an entry was handed out by it, and in the new file only an entry
        can say so for that record alone.
        """
        import numpy as np

        states = reading.last_states(entries[np.isin(entries["position"], self.old)])
        made = np.zeros(self.old.size, reading.entry_dtype())
        made["kind"] = layout.HANDED_OUT
        made[np.searchsorted(self.old, states["position"])] = states
        made["position"] = self.new
        waiting, times = reading.retry_times(entries[np.isin(entries["position"], self.old)])
        if waiting.size:
            rows = np.searchsorted(self.old, waiting)
            times["position"] = self.new[rows][:, None]
            made = np.insert(made, np.repeat(rows, layout.RETRY_PARTS), times.reshape(-1))
        made["check"] = reading.entry_checks(made, self.number)
        return made

    def _write(self, path: str, content: bytes) -> None:
        fd = self._disk.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self._disk.pwrite(fd, content, 0)
            self._disk.fdatasync(fd, path + ".new")
        finally:
            self._disk.close(fd)


def prepare(directory: str, sparse: Sparse, disk: Disk) -> Compaction | None:
    """Copy what is live of that segment; None where it is not worth it.  Raises OSError, having tidied up."""
    compaction = Compaction(directory, sparse, disk)
    try:
        if compaction._prepare():
            return compaction
    except FileNotFoundError:
        pass                    # The segment, or its queue, is gone.
    except BaseException:
        compaction.undo()
        raise
    compaction.undo()
    return None
