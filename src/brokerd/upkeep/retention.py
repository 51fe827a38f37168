"""Decides which settled segments of order journals stay, and removes or archives the others.

A segment goes because its queue's segments are too large together, because it is too old, or because the disk is nearly
full.  Its age is that of its last event.  With an ``archive`` (a folder, on any file system) segments beyond their
queue's retention are moved there.  A deleted queue is moved there whole, by way of ``<data_dir>/archiving``; after a
crash the next start finishes the move.  The queue's ``order.jsonl`` names a segment before the segment goes.

Only the slow thread touches files; everything else happens on the loop.  Knows neither all queues nor what is in
journals.
"""

import contextlib
import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heapreplace
from logging import INFO, WARNING, getLogger
from typing import TYPE_CHECKING, Any

from brokerd.queues.settings_line import describe_settings
from brokerd.store import chain, side_file
from brokerd.store import settled_segments as settled
from brokerd.store.format import (
    ARCHIVING_FOLDER,
    KEPT_FOLDER,
    QUEUE_NAME_FILE,
    SIDE_FILE,
    VHOST_NAME_FILE,
    folder_name,
    segment_name,
)

if TYPE_CHECKING:
    from brokerd import plane
    from brokerd.queues.queue import Queue
    from brokerd.store.disk import Disk
    from brokerd.store.garbage import Garbage, Submit

log = getLogger("brokerd")

HEADROOM_OCTETS = 64 << 20  # free space above the limit (or a quarter of it); with less the oldest begin to go
AGE, SIZE, SPACE, ARCHIVED = "age", "size", "space", "archived"
_MS = 1_000_000  # ns

Chosen = list[tuple[settled.SettledSegment, str]]  # segments that are to go, and why


class Entry:
    """One queue: its settled segments, and the lines of its ``order.jsonl`` that wait to be written."""

    __slots__ = ("_now", "_write_soon", "end", "kept", "lines", "noted", "octets", "queue", "waits")

    def __init__(self, queue: "Queue", now: Callable[[], int], write_soon: "Callable[[Entry], object]") -> None:
        """``write_soon(entry)`` has the entry's lines written."""
        self.queue = queue
        self.kept: list[settled.SettledSegment] = []  # the oldest first
        self.octets = 0  # of those
        self.lines: deque[bytes] = deque()
        self.end: side_file.End | None = None  # of the side file, for the thread
        self.waits = False  # for the thread: it has been asked to write the lines
        self.noted: dict[str, Any] | None = None  # the settings last written
        self._now = now
        self._write_soon = write_soon

    @property
    def path(self) -> str:
        """The side file."""
        return f"{self.queue.directory}/{SIDE_FILE}"

    def note(self, what: str, fields: dict[str, Any]) -> None:
        """Have a line written soon."""
        self._add(side_file.encode({"at": self._now(), "what": what, **fields}))

    def _add(self, line: bytes) -> None:
        self.lines.append(line)
        if not self.waits:
            self.waits = True
            self._write_soon(self)

    def note_settings(self) -> None:
        """Note the settings, unless they are those noted last."""
        now = describe_settings(self.queue)
        if now != self.noted:
            self.noted = now
            self.note("settings", now)

    def note_consumer(self, consumer: "plane.Consumer") -> None:
        """Note a new consumer of the queue."""
        channel: Any = consumer.channel
        connection = channel.connection
        self._add(side_file.encode_consumer(
            self._now(), consumer.number, consumer.tag.decode("utf-8", "surrogateescape"), connection.number,
            channel.number, connection.peer, connection.user, consumer.prefetch, consumer.no_ack, consumer.priority,
        ))  # fmt: skip

    def note_consumer_gone(self, consumer: "plane.Consumer") -> None:
        """Note that a consumer is gone."""
        self._add(side_file.encode_consumer_gone(self._now(), consumer.number))

    def add(self, more: list[settled.SettledSegment]) -> None:
        """Add settled segments.  Known ones are ignored."""
        for each in more:
            at = bisect_left(self.kept, each[:3])  # There may be very many.
            if at == len(self.kept) or self.kept[at][:3] != each[:3]:
                self.kept.insert(at, each)
                self.octets += each.octets

    def take_lines(self) -> bytes:
        """In the thread: take out all lines that wait."""
        self.waits = False  # Lines that come from now on have the thread asked anew.
        lines = self.lines
        return b"".join([lines.popleft() for _ in range(len(lines))])

    def take_oldest(self) -> settled.SettledSegment:
        """Take out the oldest segment, which is to go."""
        oldest = self.kept.pop(0)
        self.octets -= oldest.octets
        return oldest

    def take_overdue(self, now_ns: int, archive: bool) -> Chosen:
        """Take out the segments beyond the queue's retention."""
        rules, chosen = self.queue.rules, []
        while self.kept:
            if self.octets > rules.retention_octets:
                why = SIZE
            elif self.kept[0].newest_ns < now_ns - rules.retention_ms * _MS:
                why = AGE
            else:
                break
            chosen.append((self.take_oldest(), ARCHIVED if archive else why))
        return chosen


class Retention:
    """Removes or archives segments of all queues.  ``submit(work, done)`` runs work() in the slow thread, in order."""

    __slots__ = (
        "_complained",
        "_disk",
        "_done",
        "_freeing",
        "_garbage",
        "_leaving",
        "_now",
        "_submit",
        "_sync",
        "archive",
        "left_over",
    )  # fmt: skip

    def __init__(
        self, disk: "Disk", data_dir: str, submit: "Submit", garbage: "Garbage", now: Callable[[], int], *, sync: bool
    ) -> None:
        self._disk = disk
        self._submit = submit
        self._garbage = garbage
        self._now = now  # ns since the epoch
        self._sync = sync
        self.archive = ""  # a folder; "": what goes is removed
        self._freeing = False  # a removal is under way because the disk is nearly full
        self._done: dict[str, list[int]] = {}  # why: segments and octets, since the last line in the log
        self._complained: set[str] = set()  # complaints of this minute
        self._leaving = os.path.join(data_dir, ARCHIVING_FOLDER)
        self.left_over = os.path.exists(self._leaving)  # by the former broker

    def log_removals(self) -> None:
        """Log, in one line, what has gone since the last such line.  Waits for removals that are under way."""
        self._complained.clear()
        self._submit(_nothing, self._log_removals)

    def enforce(self, entries: Iterable[Entry]) -> None:
        """Remove or archive the segments beyond their queue's retention."""
        now = self._now()
        chosen = {entry: found for entry in entries if entry.kept and not entry.queue.copying
                  and (found := entry.take_overdue(now, bool(self.archive)))}  # fmt: skip
        if chosen:
            self._take_away(chosen, _nothing)

    def make_room(self, free: int, limit: int, entries: Iterable[Entry]) -> bool:
        """The disk is nearly full: let the oldest settled segments of all queues go.

        Returns True if ``free`` octets are below the limit and the removal will lift them above it."""
        wanted = limit + max(limit // 4, HEADROOM_OCTETS) - free
        if wanted <= 0 or self._freeing:
            return False
        heap = [(entry.kept[0], number, entry) for number, entry in enumerate(entries)
                if entry.kept and not entry.queue.copying]  # fmt: skip
        heapify(heap)
        chosen: dict[Entry, Chosen] = {}
        octets = 0
        while octets < wanted and heap:
            _, number, entry = heap[0]
            oldest = entry.take_oldest()
            chosen.setdefault(entry, []).append((oldest, SPACE))
            octets += oldest.octets
            if entry.kept:
                heapreplace(heap, (entry.kept[0], number, entry))
            else:
                heappop(heap)
        if chosen:
            self._freeing = True
            self._take_away(chosen, self._end_freeing)
        return free < limit <= free + octets

    def _end_freeing(self) -> None:
        self._freeing = False
        self._log_removals(None)

    def _take_away(self, chosen: dict[Entry, Chosen], then: Callable[[], object]) -> None:
        left: dict[Entry, list[settled.SettledSegment]] = {}
        gone: list[tuple[str, int, int]] = []
        archive = self.archive

        def work() -> None:
            for entry, found in chosen.items():
                if entry.queue.deleted:
                    continue
                try:
                    gone.extend(self._take_away_of(entry, found, archive))
                except OSError as error:
                    left[entry] = [each for each, _ in found if self._disk.exists(_records_of(entry.queue, each))]
                    if entry.path not in self._complained:
                        self._complained.add(entry.path)
                        log.error("%s: its settled segments stay for now: %s", entry.queue, error)

        def done(error: BaseException | None) -> None:
            if error is not None:
                log.error("order journals: %s", error)
            for entry, more in left.items():
                entry.add(more)
            for why, segments, octets in gone:
                count = self._done.setdefault(why, [0, 0])
                count[0] += segments
                count[1] += octets
            then()

        self._submit(work, done)

    def _take_away_of(self, entry: Entry, found: Chosen, archive: str) -> list[tuple[str, int, int]]:
        """In the thread: write the lines that name the segments, then let them go.  Returns rows of why, segments,
        octets.  Raises OSError."""
        directory, for_space = entry.queue.directory, found[0][1] == SPACE
        to: settled.Archive | None = None
        if archive:
            try:
                to = self._prepare_archive(entry.queue, [each for each, _ in found], for_space)
            except OSError:
                if not for_space:
                    raise
        groups: dict[tuple[int, str], list[settled.SettledSegment]] = {}
        for each, why in found:
            groups.setdefault((each.level, why if to is None else ARCHIVED), []).append(each)
        lines = b"".join([self._describe_removed(entry.queue, *group, segments) for group, segments in groups.items()])
        # The lines are on disk first, so that each gap has its reason beside it.  On a full disk room comes first.
        if not for_space:
            append(entry, lines, self._disk, sync=self._sync)
        for (level, _), segments in groups.items():
            folder = settled.kept_folder(directory, level)
            for each in segments:
                if to is not None:
                    to.finish(level, each.number, folder)
                else:
                    settled.remove(folder, each.number, self._disk)
        if for_space:
            append(entry, lines, self._disk, sync=self._sync)
        if to is not None:
            to.close()
        return [(why, len(segments), sum([each.octets for each in segments]))
                for (_, why), segments in groups.items()]  # fmt: skip

    def _prepare_archive(
        self, queue: "Queue", segments: list[settled.SettledSegment], for_space: bool
    ) -> settled.Archive | None:
        """Make the archive ready to take these segments.  None: moving them there would make no room."""
        directory = queue.directory
        archive = settled.Archive(directory, self._target(directory), self._disk)
        archive.open(*[name.encode("utf-8", "surrogateescape") for name in (queue.vhost_name, queue.name)])
        if for_space and settled.same_file_system(archive.source, archive.target):
            return None
        rows = [(each.level, each.number, settled.kept_folder(directory, each.level)) for each in segments]
        archive.make_way(rows)
        for row in rows:
            archive.prepare(*row)
        return archive

    def _describe_removed(self, queue: "Queue", level: int, why: str, segments: list[settled.SettledSegment]) -> bytes:
        """The line of ``order.jsonl`` for segments that go; b"" if their records are gone already."""
        folder = settled.kept_folder(queue.directory, level)
        dense = not queue.max_priority
        found = [settled.read_content(folder, each.number, self._disk, dense=dense) for each in segments]
        parts = [part for part in found if part is not None]
        return b"" if not parts else side_file.encode({
            "at": self._now(),
            "what": "removed",
            "level": level,
            "segments": [each.number for each in segments],
            "first_seq": min([part.first_seq for part in parts]),
            "last_seq": max([part.last_seq for part in parts]),
            "messages": sum([part.messages for part in parts]),
            "octets": sum([each.octets for each in segments]),
            "why": why,
        })

    def _log_removals(self, _: BaseException | None) -> None:
        """Log, in one line, all that has gone since the last such line."""
        if self._done:
            done, self._done = self._done, {}
            words = [f"{why}: {segments} segments, {octets} octets" for why, (segments, octets) in sorted(done.items())]
            severity = WARNING if SPACE in done else INFO
            log.log(severity, "order journals: settled segments gone, by reason: %s", "; ".join(words))

    def finish_move(self, entry: Entry, level: int, number: int) -> None:
        """In the thread: finish what a crash cut short after the segment's records were removed or archived."""
        directory = entry.queue.directory
        if self.archive:
            archive = settled.Archive(directory, self._target(directory), self._disk)
            try:
                if archive.finish_if_archived(level, number):
                    return
            except OSError as error:
                log.warning("%s: %s", archive.target, error)
                return
        settled.remove(settled.kept_folder(directory, level), number, self._disk)

    # --- whole queues into the archive

    def _target(self, directory: str) -> str:
        """The folder in the archive for the queue with that folder."""
        above, name = os.path.split(directory)
        return os.path.join(os.path.abspath(self.archive), os.path.basename(above), name)

    def send_away(self, queue: "Queue") -> None:
        """Move the folder of a deleted queue out of the way, and its segments into the archive.  Raises OSError."""
        os.makedirs(self._leaving, exist_ok=True)
        with open(f"{queue.directory}/{VHOST_NAME_FILE}", "wb") as file:
            file.write(queue.vhost_name.encode("utf-8", "surrogateescape"))
        count = 1
        while os.path.exists(f"{self._leaving}/{count}"):
            count += 1
        os.rename(queue.directory, f"{self._leaving}/{count}")
        self._archive_whole(f"{self._leaving}/{count}")

    def _archive_whole(self, path: str) -> None:
        archive = os.path.abspath(self.archive)

        def work() -> None:
            vhost, queue = (self._disk.read(f"{path}/{name}") for name in (VHOST_NAME_FILE, QUEUE_NAME_FILE))
            folders = [folder_name(name.decode("utf-8", "surrogateescape")) for name in (vhost, queue)]
            settled.archive_whole(path, os.path.join(archive, *folders), vhost, queue, self._disk, self._finish_chain)

        def done(error: BaseException | None) -> None:
            if error is not None:
                log.error("%s: a deleted queue could not be archived: %s; to be tried at the next start", path, error)
            else:
                self._garbage.discard(path)

        self._submit(work, done)

    def _finish_chain(self, folder: str, number: int) -> None:
        """In the thread: make the last links of a segment of a deleted queue.  One that an older broker settled may
        have no chain, and gets none."""
        if self._sync:
            with contextlib.suppress(chain.Foreign):
                begin = os.path.basename(folder) != KEPT_FOLDER
                chain.finish(folder, number, self._disk, self._now, begin=begin)

    def resume(self) -> None:
        """Finish the moves into the archive that the former broker had begun."""
        self.left_over = False
        if not self.archive:
            self._garbage.discard(self._leaving)
            return
        for name in sorted(os.listdir(self._leaving)):
            self._archive_whole(f"{self._leaving}/{name}")


def append(entry: Entry, octets: bytes, disk: "Disk", *, sync: bool) -> None:
    """In the thread: add lines to the queue's side file.  Raises OSError."""
    fd = disk.open(entry.path, os.O_RDWR | os.O_CREAT)
    try:
        if not entry.queue.deleted:  # Else the file may be that of another queue of this name.
            entry.end = side_file.write(fd, entry.path, octets, disk, entry.end, sync=sync)
    finally:
        disk.close(fd)


def _records_of(queue: "Queue", each: settled.SettledSegment) -> str:
    return f"{settled.kept_folder(queue.directory, each.level)}/{segment_name(each.number)}"


def _nothing() -> None:
    """Submitted only to learn that all earlier work is done."""
