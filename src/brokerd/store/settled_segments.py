"""Files of settled segments of queues with an order journal: cut them to size, describe, archive and remove them.

The data plane moves a settled segment into the folder ``kept`` beside it (layouts: ``store/format``).  The three files
are still as long as they were made.  This module cuts them to their committed ends and changes nothing else in them.
The hash chain, if there is one, follows them (``store/chain``).

    D/kept/msgs.N journal.N acks.N chain.N      level 0 of the queue whose folder is D
    D/prio.LLL/kept/...                         level L

An archive has the layout of a data directory, with settled segments only: ``<vhost>/.vhost``,
``<vhost>/<queue>/.queue`` and ``order.jsonl``.  When a queue is deleted, or a new queue takes its name, its folder in
the archive is renamed to ``<queue>.1``, ``<queue>.2`` and so on.  Records are moved first, then the journal, the acks
and the chain.  So files without records belong to a move or a removal that was cut short.

Everything here may block and raises OSError.  Knows nothing of queues, nor how long segments are kept.
"""

import contextlib
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from brokerd.store import format as layout
from brokerd.store.disk import Disk

KINDS = ("msgs", "acks", "journal", "chain")
CUT = 3  # so many of names_of() are cut to size; the chain is never longer than what it says, and not counted
COPY_OCTETS = 1 << 20
SYNCED_AT = 48          # in a journal's header
SEALED_AT = 56          # in the header of a segment
_WORD = struct.Struct("<II")
ALL_SYNCED = struct.pack("<qq", (1 << 63) - 1, ~((1 << 63) - 1))


class SettledSegment(NamedTuple):
    """One settled segment.  ``newest_ns``: time of its last event, or of its last change if it has no event.

    Sorting puts the oldest first.
    """

    newest_ns: int
    level: int
    number: int
    octets: int  # of its files


class Content(NamedTuple):
    """The records of a segment."""

    first_seq: int
    last_seq: int
    messages: int


def names_of(number: int) -> tuple[str, ...]:
    """The files of a segment, in the order in which they are moved and removed."""
    return (layout.segment_name(number), layout.journal_name(number), layout.acks_name(number),
            layout.chain_name(number))


def level_folder(directory: str, level: int) -> str:
    """The folder of a queue's priority level."""
    return f"{directory}/{layout.priority_folder(level)}" if level else directory


def kept_folder(directory: str, level: int) -> str:
    """The folder of the settled segments of a level."""
    return f"{level_folder(directory, level)}/{layout.KEPT_FOLDER}"


def find(directory: str, disk: Disk) -> list[tuple[int, int]]:
    """(level, number) of each settled segment of the queue, also of those with missing files."""
    found = []
    for level in _levels(directory, disk):
        try:
            names = disk.names(kept_folder(directory, level))
        except (FileNotFoundError, NotADirectoryError):
            continue
        numbers = {number for name in names if (number := _number(name)) is not None}
        found += [(level, number) for number in sorted(numbers)]
    return found


def _levels(directory: str, disk: Disk) -> list[int]:
    try:
        names = disk.names(directory)
    except FileNotFoundError:
        return []
    return [0, *sorted([level for name in names if (level := layout.priority_level(name)) is not None])]


def _number(name: str) -> int | None:
    kind, _, digits = name.partition(".")
    if kind not in KINDS or len(digits) < 10 or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def first_chain(folder: str, disk: Disk) -> int:
    """The lowest number of a segment in ``folder`` with a hash chain; without any, a number above all."""
    numbers = [number for name in disk.names(folder) if name.startswith("chain.") and (number := _number(name))]
    return min(numbers, default=1 << 64)


# --- cut to size


def trim(
    folder: str, level: int, number: int, disk: Disk, *, cut: bool = True, sync: bool = True
) -> SettledSegment | None:
    """Cut the files of a segment in ``folder`` to their committed ends; None: the file of its records is missing.

    ``cut`` False: only read.  After a loss of power the words of a header may be older than what they count.
    """
    newest = octets = 0
    try:
        for name in names_of(number)[:CUT]:
            with _opened(f"{folder}/{name}", disk) as fd:
                if fd < 0:
                    if name.startswith("msgs."):
                        return None
                    continue
                size, header = disk.size(fd), disk.pread(fd, layout.HEADER_OCTETS, 0)
                end = _committed(name, number, header, size, disk, fd)
                if cut and end < size:
                    disk.truncate(fd, end)
                    size = end
                octets += size
                if name.startswith("msgs."):
                    newest = os.fstat(fd).st_mtime_ns
                elif name.startswith("journal.") and end >= layout.HEADER_OCTETS + layout.EVENT_OCTETS:
                    newest = _last_event_ns(fd, end, disk) or newest
                if sync:
                    disk.fdatasync(fd, f"{folder}/{name}")
        if sync:
            seal(folder, number, disk)
    except FileNotFoundError:
        return None
    return SettledSegment(newest, level, number, octets)


def seal(folder: str, number: int, disk: Disk, *, power_lost: bool = False) -> None:
    """Write into the journal of a settled segment that all of it is on disk; ``trim`` synced its files before.

    ``power_lost``: power was lost before this was written.  Then first append since when events may be missing.
    """
    if power_lost:
        _mark_full(f"{folder}/{layout.segment_name(number)}", disk)
    path = f"{folder}/{layout.journal_name(number)}"
    with _opened(path, disk) as fd:
        if fd < 0:
            return
        octets = disk.pread(fd, layout.HEADER_OCTETS, 0)
        is_one = len(octets) == layout.HEADER_OCTETS and octets[:4] == layout.JOURNAL_MAGIC.to_bytes(4, "little")
        if not is_one or octets[SYNCED_AT:] == ALL_SYNCED:
            return
        if power_lost:
            _mark_loss(fd, path, number, octets, disk)
        disk.pwrite(fd, ALL_SYNCED, SYNCED_AT)
        disk.fdatasync(fd, path)


def _mark_full(path: str, disk: Disk) -> None:
    """Say again that a segment takes no more records: loss of power may have taken the word, as the page was not synced
    before its file moved.  A damaged header stays as it is."""
    with _opened(path, disk) as fd:
        header = disk.pread(fd, layout.HEADER_OCTETS, 0) if fd >= 0 else b""
        if len(header) == layout.HEADER_OCTETS and header[SEALED_AT:] == _WORD.pack(*layout.word(layout.OPEN)):
            disk.pwrite(fd, _WORD.pack(*layout.word(layout.FULL)), SEALED_AT)
            disk.fdatasync(fd, path)


def _mark_loss(fd: int, path: str, number: int, header: bytes, disk: Disk) -> None:
    """Append the event that says since when other events may be missing."""
    begun, (synced, complement) = struct.unpack_from("<q", header, 16)[0], struct.unpack_from("<qq", header, SYNCED_AT)
    octets = disk.read(path)[layout.HEADER_OCTETS:].rstrip(b"\0")
    count = -(-len(octets) // layout.EVENT_OCTETS)
    octets = octets.ljust(count * layout.EVENT_OCTETS, b"\0")
    since, last = synced if synced and synced == ~complement else begun, begun
    for at in range(len(octets) - layout.EVENT_OCTETS, -1, -layout.EVENT_OCTETS):
        seq, ts, consumer, aux, failed, type_, reason = layout.EVENT.unpack_from(octets, at)
        if octets[at:at + layout.EVENT_OCTETS] == layout.event(
                number, seq, ts, type_, reason, consumer=consumer, aux=aux, count=failed):
            last = ts
            break
    mark = layout.event(number, since, max(last, since) + 1, layout.STARTED, layout.POWER_LOST)
    disk.pwrite(fd, mark, layout.HEADER_OCTETS + count * layout.EVENT_OCTETS)
    disk.pwrite(fd, _WORD.pack(*layout.word(count + 1)), 32)
    disk.fdatasync(fd, path)


def _committed(name: str, number: int, header: bytes, size: int, disk: Disk, fd: int) -> int:
    """The committed end of a file, by its header; the file's size if the header is not usable."""
    if len(header) < layout.HEADER_OCTETS or int.from_bytes(header[8:16], "little") != number:
        return size
    magic, at, unit = {
        "msgs": (layout.SEGMENT_MAGIC, 40, 0),
        "acks": (layout.ACKS_MAGIC, 32, layout.ENTRY_OCTETS),
        "journal": (layout.JOURNAL_MAGIC, 32, layout.EVENT_OCTETS),
    }[name.partition(".")[0]]
    value, complement = (int.from_bytes(header[i : i + 4], "little") for i in (at, at + 4))
    end = layout.HEADER_OCTETS + value * unit if unit else value
    if int.from_bytes(header[:4], "little") != magic or not layout.word_ok(value, complement) or end > size:
        return size
    if unit and any(disk.pread(fd, unit, end)):
        return size  # More was written than was counted.
    return max(end, layout.HEADER_OCTETS)


def _last_event_ns(fd: int, end: int, disk: Disk) -> int:
    octets = disk.pread(fd, layout.EVENT_OCTETS, end - layout.EVENT_OCTETS)
    return int.from_bytes(octets[8:16], "little", signed=True)


@contextlib.contextmanager
def _opened(path: str, disk: Disk) -> Iterator[int]:
    """The open file; -1 where the file is missing."""
    try:
        fd = disk.open(path, os.O_RDWR)
    except FileNotFoundError:
        yield -1
        return
    try:
        yield fd
    finally:
        disk.close(fd)


# --- what is in it


def read_content(folder: str, number: int, disk: Disk, *, dense: bool) -> Content | None:
    """Which messages a segment holds; None: its file is missing.

    ``dense``: the queue has one level.  Then the sequence numbers of a segment have no gaps unless it was compacted,
    and the header is enough.  Otherwise the records are read.
    """
    path = f"{folder}/{layout.segment_name(number)}"
    with _opened(path, disk) as fd:
        octets = disk.pread(fd, layout.HEADER_OCTETS, 0) if fd >= 0 else b""
        if len(octets) < layout.HEADER_OCTETS:
            return None
        header = layout.SEGMENT_HEADER.unpack(octets)
        first, generation, records = header[3], header[5], header[9]
        if dense and not generation:
            return Content(first, first + records - 1, records)
        from brokerd.plane import scan_segment  # Here, so that the rest can be tried without the compiled plane.

        with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as file, memoryview(file) as view:
            _, count, first_seq, last_seq, *_ = scan_segment(view, number, layout.HEADER_OCTETS)
    if not count:
        return Content(first, first + records - 1, records)
    return Content(min(first, first_seq), max(last_seq, first + records - 1), records)


# --- away with it


def remove(folder: str, number: int, disk: Disk) -> None:
    """Remove the files of a segment; what is gone already is no fault."""
    for name in names_of(number):
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(f"{folder}/{name}")


class Archive:
    """Where the segments of one queue go.  ``source`` is the queue's folder, ``target`` that in the archive."""

    __slots__ = ("_disk", "_made", "_same", "source", "target")

    def __init__(self, source: str, target: str, disk: Disk) -> None:
        self.source = source
        self.target = target
        self._disk = disk
        self._same = False  # of one file system: a rename does it
        self._made: set[str] = set()

    def open(self, vhost_name: bytes, queue_name: bytes) -> None:
        """Make the folder, with the names in it, where it is missing."""
        make_folders(self.target, self._disk)
        above = os.path.dirname(self.target)
        for path, name in ((f"{above}/{layout.VHOST_NAME_FILE}", vhost_name),
                           (f"{self.target}/{layout.QUEUE_NAME_FILE}", queue_name)):
            if not self._disk.exists(path):
                self._disk.replace(path, name)
        self._same = same_file_system(self.source, self.target)

    def make_way(self, segments: Iterable[tuple[int, int, str]]) -> None:
        """Put aside what the archive has under the name of one of these (level, number, folder), unless it is a copy
        of the same segment: it belongs to another queue.  Called before ``prepare``, with all that are to go."""
        for level, number, folder in segments:
            if self._is_taken(kept_folder(self.target, level), layout.segment_name(number), folder):
                queue_name = self._disk.read(f"{self.target}/{layout.QUEUE_NAME_FILE}")
                self._set_aside()
                make_folders(self.target, self._disk)
                self._disk.replace(f"{self.target}/{layout.QUEUE_NAME_FILE}", queue_name)
                return

    def _is_taken(self, target: str, name: str, folder: str) -> bool:
        with _opened(f"{target}/{name}", self._disk) as there, _opened(f"{folder}/{name}", self._disk) as here:
            octets = layout.SEGMENT_CRC_END
            return there >= 0 and here >= 0 and self._disk.pread(here, octets, 0) != self._disk.pread(there, octets, 0)

    def prepare(self, level: int, number: int, folder: str) -> None:
        """Do first what may fail because the disk is full: make folders, and copy to another file system.  The segment
        is in ``folder``."""
        target = kept_folder(self.target, level)
        if target not in self._made:
            make_folders(target, self._disk)
            self._made.add(target)
        if not self._same:
            for name in names_of(number):
                copy(f"{folder}/{name}", f"{target}/{name}", self._disk)

    def finish(self, level: int, number: int, folder: str) -> None:
        """After ``prepare``: let the segment be in the archive, and no longer in its old place."""
        target = kept_folder(self.target, level)
        for name in names_of(number):
            with contextlib.suppress(FileNotFoundError):
                if self._same:
                    self._disk.rename(f"{folder}/{name}", f"{target}/{name}")
                else:
                    self._disk.unlink(f"{folder}/{name}")

    def close(self, *, last: bool = False) -> None:
        """Copy the side file, and sync the new names.  ``last``: the queue is gone, and no segment will follow."""
        with contextlib.suppress(FileNotFoundError):
            side_file = self._disk.read(f"{self.source}/{layout.SIDE_FILE}")
            self._disk.replace(f"{self.target}/{layout.SIDE_FILE}", side_file)
        for folder in self._made:
            self._disk.sync_directory(folder)
        if last:
            self._set_aside()

    def finish_if_archived(self, level: int, number: int) -> bool:
        """Finish a move that was cut short after the records had reached the archive.  False: they had not, nothing is
        done."""
        if not self._disk.exists(f"{kept_folder(self.target, level)}/{layout.segment_name(number)}"):
            return False
        self._same = same_file_system(self.source, self.target)
        self.finish(level, number, kept_folder(self.source, level))
        return True

    def _set_aside(self) -> None:
        count = 1
        while self._disk.exists(f"{self.target}.{count}"):
            count += 1
        self._disk.rename(self.target, f"{self.target}.{count}")
        self._disk.sync_directory(os.path.dirname(self.target))
        self._made.clear()


def archive_whole(source: str, target: str, vhost_name: bytes, queue_name: bytes, disk: Disk,
                  finish: Callable[[str, int], object] = lambda folder, number: None) -> int:
    """Move all segments of a deleted queue, settled or not, from its folder into the archive; returns how many.

    ``finish(folder, number)`` is called for each when it is cut to size, before it is moved."""
    segments = []
    for level in _levels(source, disk):
        above = level_folder(source, level)
        for folder in (f"{above}/{layout.KEPT_FOLDER}", above):
            try:
                names = disk.names(folder)
            except FileNotFoundError:
                continue
            numbers = [number for name in sorted(names) if name.startswith("msgs.") and (number := _number(name))]
            there = [number for number in numbers if trim(folder, level, number, disk) is not None]
            for number in there:
                finish(folder, number)
            segments += [(level, number, folder) for number in there]
    if not segments and not disk.exists(target):
        return 0
    archive = Archive(source, target, disk)
    archive.open(vhost_name, queue_name)
    archive.make_way(segments)
    for segment in segments:
        archive.prepare(*segment)
        archive.finish(*segment)
    archive.close(last=True)
    return len(segments)


def same_file_system(one: str, other: str) -> bool:
    """Whether a rename can move a file from one folder to the other."""
    return os.stat(one).st_dev == os.stat(other).st_dev


def make_folders(path: str, disk: Disk) -> None:
    """Make a folder and the missing ones above it, and sync their names."""
    if disk.exists(path):
        return
    above = os.path.dirname(path)
    if above != path:
        make_folders(above or ".", disk)
    with contextlib.suppress(FileExistsError):
        disk.make_directory(path)
    disk.sync_directory(above)


def copy(source: str, target: str, disk: Disk) -> None:
    """Copy a file.  The copy is on disk, whole, before it has its name.  A missing file is no fault."""
    with _opened(source, disk) as fd:
        if fd < 0:
            return
        temporary = target + ".tmp"
        new = disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            position = 0
            while octets := disk.pread(fd, COPY_OCTETS, position):
                disk.pwrite(new, octets, position)
                position += len(octets)
            disk.fsync(new, temporary)
        except OSError:
            disk.unlink(temporary)
            raise
        finally:
            disk.close(new)
        disk.rename(temporary, target)
