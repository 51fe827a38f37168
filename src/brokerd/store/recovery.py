"""At a start, ``recover`` reads a queue's directory and attaches the segments that it finds to the queue.

After a clean stop a segment costs one read of 64 octets, and its acks file, which a stream does not have, another.
``recover`` reads these segments through: the last one, those that are not sealed, and those in which a word and its
complement do not agree.  After a power cut (``suspect``) it reads through every segment that is not known to be synced,
and every acks file.

It reports each fault as a ``Finding``.  It cuts off a torn end.  It renames a file with a damaged header to
``*.damaged``, together with the files that belong to it.  It deletes no file that may hold a message.
Knows nothing of consumers or names; layouts are ``store.format``'s.
"""

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, cast

from brokerd.errors import StoreError
from brokerd.store import format as layout
from brokerd.store import reading
from brokerd.store.disk import Disk
from brokerd.store.settled_recovery import NUMBER_MOST, highest_number, highest_seq, stale_journals
from brokerd.store.settled_segments import seal

# plane.scan_segment(octets, number, start) -> (end, records, first_seq, last_seq, last_ts, body_octets): the run of
# whole records (bounds, CRC) that begins at ``start``, even if the header says else; 0s if there is no record.
Scan = Callable[["mmap.mmap", int, int], tuple[int, int, int, int, int, int]]
EMPTY_HEADER = bytes(layout.HEADER_OCTETS)
ACKS_OCTETS_MIN = 4096          # An acks file is never made shorter.
REPLAYING = bytes(kind & 0x0F == layout.REPLAYED for kind in range(256))
SETTLING = bytes(kind & 0x0F in layout.SETTLING_TYPES for kind in range(256))


class Finding(NamedTuple):
    """Something that was not as a clean stop leaves it.

    ``kind`` is one of these: "cut": a torn end was cut off.  "damaged": a file that may hold messages cannot be used,
    and an operator should look at it.  "leftover": tidied up, and nothing is lost.  "recounted": counts were corrected.
    """

    kind: str
    path: str
    offset: int
    octets: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.kind} at {self.offset}, {self.octets} octets: {self.text}"


class Recoverable(Protocol):
    """The part of plane.Queue that this module uses."""

    directory: str
    max_priority: int
    def attach_segment(self, number: int, *, end: int, records: int, settled: int, base_seq: int, delivered: int,
                       acks: int, capacity: int, ready_octets: int, synced: bool, generation: int = 0,
                       level: int = 0, doubted: int = 0, created: int = 0) -> None: ...
    def finish_recovery(self, next_seq: int, *, suspect: bool, last_ts: int = 0, last_number: int = 0) -> None: ...
    def found_pause(self) -> None: ...


def recover(queue: Recoverable, disk: Disk, suspect: bool, report: Callable[[Finding], object],
            scan: Scan | None = None, *, stream: bool = False) -> bool:
    """Attach all segments of ``queue.directory``, in order; then tell the queue its next sequence number.

    Returns whether the queue has, or had, an order journal.  Journals themselves are not read here.  If the former
    broker died while it moved a settled segment into the folder ``kept``, the move is finished.

    ``stream``: messages of the queue are read, and nothing becomes of them: acks files, which former releases made
    beside its segments, are removed.

    ``suspect``: power was lost since the last clean stop.  ``ready_octets`` is exact for a segment that was read
    through or has no settled record; otherwise it is estimated from the number of unsettled records.
    Raises OSError; StoreError for a file of a later version.
    """
    if scan is None:
        from brokerd import plane  # Here, so that the rest can be tried without the compiled plane.

        scan = cast(Scan, plane.scan_segment)
    next_seq, last_ts, last_number, journaled = 1, 0, 0, False
    for level, directory in _levels(queue, disk, report):
        found = _Recovery(directory, disk, suspect, report, scan, stream)
        for s in found.segments():
            queue.attach_segment(
                s.number, end=s.end, records=s.records, settled=s.settled, base_seq=s.base_seq, delivered=s.delivered,
                acks=s.entries, capacity=s.capacity, ready_octets=s.ready_octets, synced=s.sealed == layout.SYNCED,
                generation=s.generation, level=level, doubted=s.doubted, created=s.created)
        next_seq, last_ts = max(next_seq, found.next_seq), max(last_ts, found.last_ts)
        last_number, journaled = max(last_number, found.last_number), journaled or found.journaled
        if layout.PAUSED_FILE in found.names:
            queue.found_pause()
    queue.finish_recovery(next_seq, suspect=suspect, last_ts=last_ts, last_number=last_number)
    return journaled


def _levels(queue: Recoverable, disk: Disk, report: Callable[[Finding], object]) -> Iterator[tuple[int, str]]:
    """The directories of a queue's priority levels, level 0 first."""
    yield 0, queue.directory
    if not queue.max_priority:
        return          # Do not even list the folder: a start may open 10,000 queues.
    try:
        names = sorted(disk.names(queue.directory))
    except FileNotFoundError:
        return
    for name in names:
        level = layout.priority_level(name)
        if level is None:
            continue
        path = f"{queue.directory}/{name}"
        if level <= queue.max_priority:
            yield level, path
        else:
            text = f"the queue has no priorities above {queue.max_priority}; left as it is"
            report(Finding("damaged", path, 0, 0, text))


class _Segment:
    """One segment as it will be attached."""

    __slots__ = ("base_seq", "body_octets", "capacity", "created", "delivered", "doubted", "end", "entries",
                 "generation", "number", "path", "records", "runs", "sealed", "settled", "unsettled_octets", "words")

    def __init__(self, number: int, path: str, header: tuple[int, ...], size: int) -> None:
        self.number = number
        self.path = path
        self.base_seq, self.created, self.generation = header[3:6]
        self.words = header[7:13]
        self.end, self.records, self.sealed = header[7], header[9], header[11]
        self.capacity = size
        self.settled = self.entries = self.delivered = self.doubted = 0
        self.runs: list[tuple[int, int]] | None = None      # Where whole records are, if it was read through.
        self.body_octets = max(self.end - layout.HEADER_OCTETS * (1 + self.records), 0)     # With meta, if not read.
        self.unsettled_octets: int | None = None

    @property
    def has_whole_words(self) -> bool:
        end, not_end, records, not_records, sealed, not_sealed = self.words
        return (end ^ not_end == 0xFFFFFFFF and records ^ not_records == 0xFFFFFFFF
                and sealed ^ not_sealed == 0xFFFFFFFF and layout.HEADER_OCTETS <= end <= self.capacity)

    @property
    def has_gaps(self) -> bool:
        """Whether counted records are missing in a segment that was read through: their acks entries settle nothing."""
        return self.runs is not None and sum(to - at for at, to in self.runs) != self.end - layout.HEADER_OCTETS

    @property
    def ready_octets(self) -> int:
        if self.unsettled_octets is not None:
            return self.unsettled_octets
        return self.body_octets * (self.records - self.settled) // self.records if self.records else 0


class _Recovery:
    """One directory.  ``next_seq`` is right as soon as ``segments()`` has returned."""

    __slots__ = ("_directory", "_disk", "_report", "_scan", "_stream", "_suspect", "journaled", "last_number",
                 "last_ts", "names", "next_seq")

    def __init__(self, directory: str, disk: Disk, suspect: bool, report: Callable[[Finding], object],
                 scan: Scan, stream: bool) -> None:
        self._directory = directory
        self._disk = disk
        self._suspect = suspect
        self._report = report
        self._scan = scan
        self._stream = stream
        self.names: set[str] = set()
        self.next_seq = 1
        self.last_ts = self.last_number = 0
        self.journaled = False

    def segments(self) -> list[_Segment]:
        try:
            self.names = set(self._disk.names(self._directory))
        except FileNotFoundError:
            return []
        kept: set[str] = set()
        self.journaled = not self.names.isdisjoint((layout.KEPT_FOLDER, layout.SIDE_FILE))
        if layout.KEPT_FOLDER in self.names:
            kept = set(self._disk.names(self._path(layout.KEPT_FOLDER)))
            self._finish_moves(kept)
        if self.journaled or any(name.startswith("journal.") for name in self.names):
            self.last_number = max(highest_number(self.names), highest_number(kept))
            if self._suspect:
                self._count_seq(highest_seq(self._directory, kept, self._disk, self._scan))
        self._tidy()
        numbers = sorted((n for name in self.names if name.startswith("msgs.")
                          and (n := layout.segment_number(name)) is not None), reverse=True)
        found: list[_Segment] = []
        for number in numbers:      # Backwards, because the last usable segment must be read through.
            segment = self._recover_segment(number, last=not found)
            if segment is not None:
                found.append(segment)
                self._count_seq(segment.base_seq + segment.records - 1)
        found.reverse()
        return found

    def _count_seq(self, seq: int) -> None:
        if seq <= NUMBER_MOST:
            self.next_seq = max(self.next_seq, seq + 1)

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _add_finding(self, kind: str, path: str, offset: int, octets: int, text: str) -> None:
        self._report(Finding(kind, path, offset, octets, text))

    # --- names

    def _finish_moves(self, there: set[str]) -> None:
        """Finish moves into the folder ``kept``: its records moved first, so the segment's other files belong there.

        A file that is there already has moved: loss of power brought its old name back, with octets of then.
        """
        kept = self._path(layout.KEPT_FOLDER)
        for name in sorted(there - self.names):
            number = layout.segment_number(name) if name.startswith("msgs.") else None
            if number is None:
                continue
            for other in (layout.journal_name(number), layout.acks_name(number), layout.chain_name(number)):
                if other in self.names:
                    if other in there:
                        self._disk.unlink(self._path(other))
                        text = "its segment is settled and kept, with a later one; removed"
                    else:
                        self._disk.rename(self._path(other), f"{kept}/{other}")
                        text = "its segment is settled and kept; moved to it"
                    self.names.discard(other)
                    self._add_finding("leftover", self._path(other), 0, 0, text)
            if self._suspect:   # Now, because a crash before retention reads it would let this power cut be forgotten.
                seal(kept, number, self._disk, power_lost=True)
        for number in sorted(filter(None, map(layout.segment_number, self.names))):
            if layout.segment_name(number) in there & self.names:
                self._undo_move(number, there)

    def _undo_move(self, number: int, there: set[str]) -> None:
        """Loss of power brought back the name of records that had moved: the acks that moved with them settle them."""
        for other in {layout.journal_name(number), layout.acks_name(number), layout.chain_name(number)} & there:
            if other not in self.names:
                self._disk.rename(self._path(f"{layout.KEPT_FOLDER}/{other}"), self._path(other))
                self.names.add(other)
                text = "its segment has its old name again; moved to it"
                self._add_finding("leftover", self._path(other), 0, 0, text)

    def _tidy(self) -> None:
        """Remove spare segments, and acks files, indexes, chains and journals whose records went before them; finish or
        undo compactions."""
        names = self.names
        begun = {name[5:-4] for name in names if name.endswith(".new") and name[:5] in ("msgs.", "acks.")}
        for digits in sorted(begun):
            self._settle_compaction(f"msgs.{digits}", f"acks.{digits}")
        for name in sorted(names):
            path = self._path(name)
            if name.startswith("spare."):
                self._disk.unlink(path)
                names.discard(name)
            elif (name.startswith(("acks.", "index.")) and f"msgs.{name[name.index('.') + 1:]}" not in names
                  and layout.segment_number(f"acks.{name[name.index('.') + 1:]}") is not None):
                self._disk.unlink(path)
                names.discard(name)
                self._add_finding("leftover", path, 0, 0, "its segment is gone; removed")
        self._remove_journals()
        if self._stream:
            self._remove_acks()

    def _remove_acks(self) -> None:
        """Remove the acks files of a stream: they say nothing.  The next start need not list them."""
        acks = [name for name in self.names if name.startswith("acks.") and layout.segment_number(name) is not None]
        for name in acks:
            self._disk.unlink(self._path(name))
            self.names.discard(name)
        if acks:
            text = f"{len(acks)} acks files beside the segments of a stream, which needs none; removed"
            self._add_finding("leftover", self._directory, 0, 0, text)

    def _remove_journals(self) -> None:
        for name in stale_journals(self._directory, self.names, self._disk):
            path = self._path(name)
            self._disk.unlink(path)
            self.names.discard(name)
            self._add_finding("leftover", path, 0, 0, "its segment was removed before; removed")

    def _settle_compaction(self, msgs: str, acks: str) -> None:
        """Finish or undo one compaction.  It renamed no file before both were on disk, so one renamed means both are
        good."""
        generations = {name: self._generation(name) for name in (msgs, acks, msgs + ".new", acks + ".new")}
        written = generations[msgs + ".new"] or generations[acks + ".new"]
        finish = written is not None and written in (generations[msgs], generations[acks])
        for name in (msgs, acks):
            new = name + ".new"
            if new not in self.names:
                continue
            if finish and generations[new] == written:
                self._disk.rename(self._path(new), self._path(name))
                self.names.add(name)
            else:
                self._disk.unlink(self._path(new))
            self.names.discard(new)
        self._add_finding("leftover", self._path(msgs), 0, 0, f"a compaction was {'finished' if finish else 'undone'}")

    def _generation(self, name: str) -> int | None:
        """The generation in the header of a segment or acks file; None: the file is missing or not usable."""
        if name not in self.names:
            return None
        header = self._header(self._path(name))
        at, crc_end = (32, layout.SEGMENT_CRC_END) if name.startswith("msgs.") else (16, layout.ACKS_CRC_END)
        if len(header) < layout.HEADER_OCTETS or not _crc_ok(header, crc_end):
            return None
        return int.from_bytes(header[at:at + 4], "little")

    def _header(self, path: str) -> bytes:
        fd = self._disk.open(path)
        try:
            return self._disk.pread(fd, layout.HEADER_OCTETS, 0)
        finally:
            self._disk.close(fd)

    def _put_aside(self, path: str, text: str) -> None:
        aside, more = path + ".damaged", 1
        while self._disk.exists(aside):
            more += 1
            aside = f"{path}.damaged.{more}"
        self._disk.rename(path, aside)
        self.names.discard(os.path.basename(path))
        self._add_finding("damaged", path, 0, 0, f"{text}; put aside as {aside}")

    # --- segments

    def _recover_segment(self, number: int, *, last: bool) -> _Segment | None:
        path = self._path(layout.segment_name(number))
        if number > NUMBER_MOST:
            self._put_aside(path, "no queue has a segment of this number")
            return None
        journal = layout.journal_name(number)
        if journal in self.names:      # The plane opens it when it has an event, and can refuse no start then.
            self._disk.close(self._disk.open(self._path(journal)))
        fd = self._disk.open(path, os.O_RDWR)
        try:
            octets, size = self._disk.pread(fd, layout.HEADER_OCTETS, 0), self._disk.size(fd)
            if size > layout.SEGMENT_OCTETS_MAX:
                self._reject(number, path, fd, octets, f"it has {size} octets, more than any segment")
                return None
            header = layout.SEGMENT_HEADER.unpack(octets.ljust(layout.HEADER_OCTETS, b"\0"))
            sound = header[0] == layout.SEGMENT_MAGIC and _crc_ok(octets, layout.SEGMENT_CRC_END)
            if sound and header[1] > layout.SEGMENT_VERSION:
                raise _later_version(path, header[1], layout.SEGMENT_VERSION)
            if not sound:
                self._reject(number, path, fd, octets, "its header is damaged")
                return None
            if header[2] != number:
                self._reject(number, path, fd, octets, f"its header is that of segment {header[2]}", header[2])
                return None
            if header[3] > NUMBER_MOST:
                self._reject(number, path, fd, octets, f"it begins with message {header[3]}, which no queue can have")
                return None
            segment = _Segment(number, path, header, size)
            whole = segment.has_whole_words
            if last or not whole or segment.sealed == layout.OPEN or (
                    self._suspect and segment.sealed != layout.SYNCED):
                last_seq = self._read_through(segment, fd, whole, last)
                if last_seq > NUMBER_MOST:
                    self._reject(number, path, fd, octets, f"it ends with message {last_seq}, which no queue can have")
                    return None
            if not self._stream:
                self._recover_acks(segment)
            return segment
        finally:
            self._disk.close(fd)

    def _reject(self, number: int, path: str, fd: int, header: bytes, text: str, other: int | None = None) -> None:
        """The segment cannot be used: put it aside, or remove it if it certainly holds no message.  ``other``: the
        number that its sound header has."""
        records = last_seq = 0
        if len(header) == layout.HEADER_OCTETS:
            with mmap.mmap(fd, min(self._disk.size(fd), layout.SEGMENT_OCTETS_MAX), access=mmap.ACCESS_READ) as octets:
                _, records, _, last_seq, *_ = self._scan(octets, number, layout.HEADER_OCTETS)
        acks = layout.acks_name(number)
        never_written = not any(header)     # The file was made, and then the broker or the machine stopped.
        # Or it was a spare segment: it was renamed, and its new header never reached the disk.
        recycled = self._suspect and other is not None and other < number
        if records == 0 and (never_written or recycled):
            self._disk.unlink(path)
            if acks in self.names:
                self._disk.unlink(self._path(acks))
            self._add_finding("leftover", path, 0, 0, "a new segment that nothing was written into; removed")
            return
        self._count_seq(last_seq)
        self._put_aside(path, f"{text}; at least {records} records are in it")
        if acks in self.names:
            self._put_aside(self._path(acks), "its segment is damaged")

    def _read_through(self, s: _Segment, fd: int, whole: bool, last: bool) -> int:
        """Find the records by their CRCs; correct the words of the header; cut off a torn end.  Returns the last
        sequence number."""
        committed = s.end if whole else s.capacity
        counted = s.records if whole else 0
        with mmap.mmap(fd, s.capacity, access=mmap.ACCESS_READ) as content:
            runs, records, body_octets, last_seq = self._read_runs(s, content, committed)
        end = runs[-1][1] if runs else layout.HEADER_OCTETS
        sealed = s.sealed if whole else layout.OPEN
        if whole and end < committed:
            lost = max(counted - records, 0)
            if self._suspect:
                self._add_finding("cut", s.path, end, committed - end, f"{lost} records that were not yet synced")
            else:
                self._add_finding("damaged", s.path, end, committed - end, f"not readable: {lost} records at the end")
                end, sealed = committed, max(sealed, layout.FULL)
                s.capacity = end
                last_seq += lost
        elif end > committed:
            text = f"{records - counted} whole records more"
            self._add_finding("recounted", s.path, committed, end - committed, text)
        elif not whole:
            self._add_finding("recounted", s.path, layout.SEGMENT_WORDS_AT, 24, f"{records} whole records up to {end}")
        if self._suspect:
            # A page may have been lost while later pages with records survived.  Never append over those records.
            self._disk.truncate(fd, end)
            s.capacity, sealed = end, max(sealed, layout.FULL)
        elif end >= s.capacity or not last:     # kill -9 came after the next one was made, before this one was sealed.
            sealed = max(sealed, layout.FULL)
        self._count_seq(last_seq)
        s.end, s.records, s.sealed, s.body_octets, s.runs = end, records, sealed, body_octets, runs
        words = (*layout.word(end), *layout.word(records), *layout.word(sealed))
        if words != s.words:
            self._disk.pwrite(fd, layout.WORDS.pack(*words), layout.SEGMENT_WORDS_AT)
        return last_seq

    def _read_runs(self, s: _Segment, content: mmap.mmap, committed: int
                   ) -> tuple[list[tuple[int, int]], int, int, int]:
        """Where whole records are, how many, octets of their bodies, last sequence number."""
        runs: list[tuple[int, int]] = []
        at, records, body_octets, last_seq = layout.HEADER_OCTETS, 0, 0, 0
        while True:
            end, count, _, seq, ts, octets = self._scan(content, s.number, at)
            if count:
                runs.append((at, end))
                self.last_ts = max(self.last_ts, ts)    # The clock may have been put back since.
                records, body_octets, last_seq = records + count, body_octets + octets, seq
                at = end
            following = reading.next_record(content, s.number, at, committed, last_seq) if at < committed else -1
            if following < 0:
                return runs, records, body_octets, last_seq
            self._add_finding("damaged", s.path, at, following - at, "not readable; records before and after it are")
            at = following

    # --- acks

    def _recover_acks(self, s: _Segment) -> None:
        name = layout.acks_name(s.number)
        path = self._path(name)
        if name not in self.names:
            if self._suspect and s.records:
                self._begin_acks(s, path)
            return                  # Else no message was delivered: the plane makes the file before a delivery.
        fd = self._disk.open(path, os.O_RDWR)
        try:
            octets, size = self._disk.pread(fd, layout.HEADER_OCTETS, 0), self._disk.size(fd)
            if size > layout.SEGMENT_OCTETS_MAX:
                self._put_aside(path, f"it has {size} octets, more than any acks file; all {s.records} messages of the "
                                "segment come again")
                self._begin_acks(s, path)
                return
            blank = octets == EMPTY_HEADER[:len(octets)]
            if not blank and self._acks_unusable(s, path, octets):
                self._begin_acks(s, path)
                return
            header = layout.ACKS_HEADER.unpack(octets.ljust(layout.HEADER_OCTETS, b"\0"))
            delivered, _, entries, _, settled, _, doubted, _ = words = header[5:13]
            known = layout.word_ok(*words[:2]) and (words[6:] == (0, 0) or layout.word_ok(*words[6:]))
            whole = known and all(layout.word_ok(*words[i:i + 2]) for i in (2, 4))
            cut_short = whole and self._disk.size(fd) < layout.HEADER_OCTETS + entries * layout.ENTRY_OCTETS
            if self._suspect or not whole or settled > s.records or cut_short or s.has_gaps:
                self._recount(s, path)
                if cut_short and not self._suspect:
                    self._add_finding("damaged", path, self._disk.size(fd), (entries - s.entries) * layout.ENTRY_OCTETS,
                               f"cut short; {settled - s.settled} settled messages come again")
            else:
                s.entries, s.settled = entries, settled
                self._check_last_entry(s, fd, path)
            if blank and s.records and not self._suspect:   # The header is written before the first record is.
                self._add_finding("damaged", path, 0, layout.HEADER_OCTETS,
                           f"its header is blank; {s.records - s.settled} messages of the segment come again")
            s.delivered = min(delivered, s.end) if layout.word_ok(*words[:2]) else 0
            if known and not self._suspect:
                s.doubted = doubted
            elif s.records:
                s.doubted = s.end       # Written to the file too, so that the next crash does not forget it.
            now = (*layout.word(s.delivered), *layout.word(s.entries), *layout.word(s.settled),
                   *layout.word_or_zeros(s.doubted))
            if blank:                   # Also if nothing is recorded yet, because the plane appends to this segment.
                self._write_acks_header(s, fd)
                return
            if header[1] < layout.ACKS_VERSION:
                self._disk.pwrite(fd, layout.acks_fixed(s.number, s.generation), 0)
            if now != words:
                self._disk.pwrite(fd, layout.ACKS_WORDS.pack(*now), layout.ACKS_WORDS_AT)
        finally:
            self._disk.close(fd)

    def _begin_acks(self, s: _Segment, path: str) -> None:
        """Make an acks file which says that every message may have been handed out, so that later starts know it
        too."""
        s.doubted = s.end
        fd = self._disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            self._write_acks_header(s, fd)
        finally:
            self._disk.close(fd)

    def _write_acks_header(self, s: _Segment, fd: int) -> None:
        """Write the header of an acks file, and give the file the blocks of its first page."""
        header = layout.acks_header(s.number, generation=s.generation, delivered=s.delivered, entries=s.entries,
                                    settled=s.settled, doubted=s.doubted)
        size = self._disk.size(fd)
        first = max(size, layout.HEADER_OCTETS)
        try:
            self._disk.pwrite(fd, header, 0)
            if first < ACKS_OCTETS_MIN:
                self._disk.pwrite(fd, bytes(ACKS_OCTETS_MIN - first), first)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self._disk.truncate(fd, size)  # The start goes on; a crash before the next delivery forgets these marks.

    def _acks_unusable(self, s: _Segment, path: str, octets: bytes) -> bool:
        """Put an acks file aside that does not belong to its segment.  Raises StoreError for a later version."""
        if len(octets) < layout.HEADER_OCTETS or not _crc_ok(octets, layout.ACKS_CRC_END):
            self._put_aside(path, f"its header is damaged; all {s.records} messages of the segment come again")
            return True
        magic, version, number, generation, *_ = layout.ACKS_HEADER.unpack(octets)
        if magic == layout.ACKS_MAGIC and version > layout.ACKS_VERSION:
            raise _later_version(path, version, layout.ACKS_VERSION)
        if (magic, number, generation) == (layout.ACKS_MAGIC, s.number, s.generation):
            return False
        self._put_aside(path, f"it belongs to generation {generation} of segment {number}; all {s.records} messages of "
                        f"generation {s.generation} of segment {s.number} come again")
        return True

    def _check_last_entry(self, s: _Segment, fd: int, path: str) -> None:
        """kill -9 may have struck between an entry and its count, or between the two counts."""
        following = self._disk.pread(fd, layout.ENTRY_OCTETS, layout.HEADER_OCTETS + s.entries * layout.ENTRY_OCTETS)
        extra = 0
        if any(following) and len(following) == layout.ENTRY_OCTETS:
            position, kind, check, count = layout.ENTRY.unpack(following)
            extra = int(check == layout.entry_check(s.number, position, kind, count))
        if not extra and s.settled == s.entries:
            return
        s.entries += extra
        octets = self._disk.pread(fd, s.entries * layout.ENTRY_OCTETS, layout.HEADER_OCTETS)
        kinds = octets[4::layout.ENTRY_OCTETS]
        settling = kinds.translate(SETTLING).count(1) - kinds.translate(REPLAYING).count(1)
        if settling <= s.settled:
            s.settled = settling
            return
        # Either the header does not count the last entry yet, or a power cut took records and left their entries.  Only
        # the records can tell.  To believe the entries would lose as many messages that still wait.
        if s.runs is None:
            self._find_runs(s)
        self._recount(s, path)

    def _find_runs(self, s: _Segment) -> None:
        fd = self._disk.open(s.path)
        try:
            with mmap.mmap(fd, s.capacity, access=mmap.ACCESS_READ) as content:
                s.runs, *_ = self._read_runs(s, content, s.end)
        finally:
            self._disk.close(fd)

    def _recount(self, s: _Segment, path: str) -> None:
        """Count the settled records by reading all entries, and the octets of the unsettled ones exactly."""
        octets = self._disk.read(path)
        if not any(octets[layout.HEADER_OCTETS:]):
            return                  # The usual case, which is not worth importing numpy for.
        import numpy as np  # Only after a power cut or damage.

        found = reading.read_entries(octets, s.number)
        settled = reading.settled_positions(found.entries)
        settled = settled[(settled >= layout.HEADER_OCTETS) & (settled < s.end)]
        if s.runs is not None:
            positions, body_octets = reading.records_in(self._disk.read(s.path), s.end, s.runs)
            gone = np.isin(positions, settled)
            settled = positions[gone]
            s.unsettled_octets = int(body_octets[~gone].sum())
        s.entries, s.settled = found.written, min(int(settled.size), s.records)
        if found.damaged:
            kind = "recounted" if self._suspect else "damaged"
            self._add_finding(kind, path, layout.HEADER_OCTETS, found.written * layout.ENTRY_OCTETS,
                       f"{found.damaged} entries cannot be read: what they settled comes again")


def _later_version(path: str, version: int, known: int) -> StoreError:
    return StoreError(f"{path} has version {version} at offset 4: written by a later brokerd; this one knows up to "
                      f"{known}")


def _crc_ok(header: bytes, covered: int) -> bool:
    return layout.crc32c(header[:covered]) == int.from_bytes(header[covered:covered + 4], "little")
