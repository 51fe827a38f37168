"""Order journals once a second: syncs them, cuts them to size when their segment is settled, writes the side files.

    data plane    take_settled_segments -> cut to size (store/settled_segments) -> Entry.kept, the oldest first
    each second   begin_journal_sync -> sync -> end_journal_sync; links of the hash chains (chains)
    each minute   segments beyond their queue's retention go (retention)
    at once       the lines of ``order.jsonl``: settings, consumers

A queue has an entry here if it has an order journal, or files of an earlier one.  Other queues cost nothing.  Only the
slow thread touches files; everything else happens on the loop.  Knows nothing of what is in journals.
"""

import contextlib
import os
import resource
from collections import deque
from collections.abc import Callable
from logging import getLogger
from typing import TYPE_CHECKING, Any

from brokerd.store import settled_segments as settled
from brokerd.store import side_file
from brokerd.store.format import ENTRY_OCTETS, EVENT_OCTETS, KEPT_FOLDER, priority_level, segment_name
from brokerd.upkeep.chains import Chains
from brokerd.upkeep.retention import Entry, Retention, append

if TYPE_CHECKING:
    from brokerd import plane
    from brokerd.queues.queue import Queue
    from brokerd.store.disk import Disk
    from brokerd.store.garbage import Garbage, Submit

log = getLogger("brokerd")

SWEEP_TICKS = 60
MEASURED_AT_ONCE = 16  # settled segments, each of which may take some milliseconds
SYNC_FILES = 64  # journals that are open at once while they are synced; fewer if the process may have few files open
_MS = 1_000_000  # ns


class Journals:
    """All order journals of a broker.  ``submit(work, done)`` runs work() in the slow thread, in order."""

    __slots__ = (
        "_core", "_cut", "_dirty", "_disk", "_new", "_now", "_submit", "_sync", "_syncing", "_ticks", "_unread",
        "_untrusted", "_writing", "chains", "entries", "retention",
    )  # fmt: skip

    def __init__(
        self,
        core: "plane.Core",
        disk: "Disk",
        data_dir: str,
        submit: "Submit",
        garbage: "Garbage",
        now: Callable[[], int],
        *,
        sync: bool = True,
        suspect: bool = False,
    ) -> None:
        """``suspect``: power was lost, so segments that lie there already are not cut to size."""
        self._core = core
        self._disk = disk
        self._submit = submit
        self._now = now  # ns since the epoch
        self._sync = sync
        self._cut = not suspect
        self.chains = Chains(disk, submit, now)
        self.retention = Retention(disk, data_dir, submit, garbage, now, sync=sync)
        self.entries: dict[str, Entry] = {}  # by the queue's folder
        self._unread: list[Entry] = []  # their folders have files of a former broker
        self._new: list[tuple[Entry, int, int]] = []  # level and number of segments not yet cut to size
        self._dirty: deque[Entry] = deque()  # they have lines to be written
        self._writing = False
        self._syncing = False
        self._untrusted = False  # a sync failed: from then on no journal is marked as synced
        self._ticks = 0

    # --- which queues

    def add_recovered(self, queue: "Queue") -> None:
        """Add a queue in which a former broker has left journals.  Called before ``watch``."""
        self._unread.append(self._entry(queue))

    def watch(self, queue: "Queue") -> None:
        """Take note that the queue's journal was switched on or off, or that its settings may have changed."""
        entry = self.entries.get(queue.directory)
        if entry is None or entry.queue is not queue:
            if not queue.journaled:
                return
            entry = self._entry(queue)
        if not queue.journaled:
            queue.side_file = None
            entry.note_settings()
            return
        try:
            if not os.path.isdir(queue.directory):
                queue.make_directory()
        except OSError as error:
            log.warning("%s: no folder for its order journal: %s", queue, error)
            return
        entry.note_settings()
        if queue.side_file is None:
            queue.side_file = entry
            for consumer in queue.consumers or ():
                entry.note_consumer(consumer)

    def _entry(self, queue: "Queue") -> Entry:
        entry = self.entries[queue.directory] = Entry(queue, self._now, self._write_soon)
        return entry

    def review(self, vhost_name: str) -> None:
        """Note the settings again: policies of that vhost may have changed, even where the rules are the same."""
        for entry in list(self.entries.values()):
            if entry.queue.vhost_name == vhost_name:
                self.watch(entry.queue)

    def forget(self, queue: "Queue") -> None:
        """Forget a queue that was dropped.  With an archive its folder is moved on its way there; otherwise the caller
        removes the folder."""
        if queue.directory not in self.entries:
            return
        self._take_settled()
        entry = self.entries.pop(queue.directory)
        queue.side_file = None
        if self.retention.archive and (queue.rules.journal or entry.kept):
            try:
                self.retention.send_away(queue)
            except OSError as error:
                log.error("%s: cannot be archived: %s; removed", queue, error)

    # --- once a second

    def tick(self, archive: str, chain_log: str = "") -> None:
        """Do the work of one second.  Segments that go are moved to the folder ``archive``; "": they are removed.  The
        file ``chain_log`` is told of the heads of hash chains; "": no file is."""
        self.retention.archive = archive
        self.chains.log_path = chain_log
        self._ticks += 1
        if self.retention.left_over:
            self.retention.resume()
        if not self.entries:
            return
        if self._unread:
            self._read()
        self._take_settled()
        if self._new:
            self._cut_to_size()
        self._sync_journals()
        self.chains.go_on()
        if self._ticks % SWEEP_TICKS == 1:
            self.sweep()

    def _take_settled(self) -> None:
        for folder, number in self._core.take_settled_segments():
            level = priority_level(os.path.basename(folder)) or 0
            entry = self.entries.get(os.path.dirname(folder) if level else folder)
            if entry is not None:
                self._new.append((entry, level, number))

    def _cut_to_size(self) -> None:
        new, self._new = self._new, []
        for start in range(0, len(new), MEASURED_AT_ONCE):  # Others of the thread's work have their turn in between.
            self._measure(new[start : start + MEASURED_AT_ONCE], cut=True, of_now=True)

    def _measure(self, new: list[tuple[Entry, int, int]], *, cut: bool, of_now: bool) -> None:
        """Cut settled segments to size, in the thread, and finish their hash chains; then add them to their entries.

        ``of_now``: they were settled by this broker.  Those of a former one have chains if it made chains."""
        found: list[tuple[Entry, settled.SettledSegment]] = []

        def work() -> None:
            folders = set()
            oldest: dict[str, int] = {}  # segments from here on have chains
            for entry, level, number in new:
                folder = settled.kept_folder(entry.queue.directory, level)
                if entry.queue.deleted:
                    continue
                try:
                    each = settled.trim(folder, level, number, self._disk, cut=cut, sync=self._sync)
                except OSError as error:
                    log.warning("%s/%s: %s", folder, segment_name(number), error)
                    continue
                if each is None:
                    self.retention.finish_move(entry, level, number)
                else:
                    found.append((entry, each))
                    folders.add(folder)
                    if self._sync and not self._untrusted:  # Else a power cut could take what a chain covers.
                        if folder not in oldest:
                            oldest[folder] = number if of_now else settled.first_chain(folder, self._disk)
                        self.chains.finish(entry.queue, folder, number, begin=oldest[folder] <= number)
            if self._sync:
                for folder in folders:
                    with contextlib.suppress(FileNotFoundError):
                        self._disk.sync_directory(folder)

        def done(error: BaseException | None) -> None:
            if error is not None:
                log.warning("order journals: %s", error)
            by_entry: dict[Entry, list[settled.SettledSegment]] = {}
            for entry, each in found:
                by_entry.setdefault(entry, []).append(each)
            for entry, more in by_entry.items():
                entry.add(more)
            self.retention.enforce(by_entry)

        self._submit(work, done)

    def _read(self) -> None:
        """Find the settled segments that a former broker has left."""
        unread, self._unread = self._unread, []
        new: list[tuple[Entry, int, int]] = []

        def work() -> None:
            for entry in unread:
                if not entry.queue.deleted:
                    there = settled.find(entry.queue.directory, self._disk)
                    new.extend((entry, level, number) for level, number in there)

        def done(error: BaseException | None) -> None:
            if error is not None:
                log.warning("order journals: %s", error)
            if new:
                self._measure(new, cut=self._cut, of_now=False)

        self._submit(work, done)

    # --- syncs

    def _sync_journals(self) -> None:
        if self._syncing or self._untrusted or not self._sync:
            return
        queues: list[Queue] = []
        paths: list[tuple[str, Queue]] = []
        for entry in self.entries.values():
            if entry.queue.journaled:
                unsynced = entry.queue.begin_journal_sync()
                if unsynced:
                    queues.append(entry.queue)
                    paths += [(path, entry.queue) for path in unsynced]
        if not queues:
            return
        self._syncing = True

        def done(error: BaseException | None) -> None:
            self._syncing = False
            if error is not None:
                self._untrusted = True
                log.error("order journals: a sync failed: %s; after a power cut they count as incomplete", error)
                return
            for queue in queues:
                if not queue.deleted:
                    queue.end_journal_sync()
            self.chains.go_on()

        self._submit(lambda: _sync_files(paths, self._disk, self.chains), done)

    # --- the side file

    def _write_soon(self, entry: Entry) -> None:
        """Have the entry's lines written soon."""
        self._dirty.append(entry)
        if not self._writing:
            self._writing = True
            self._submit(self._write, _log_error)

    def _write(self) -> None:
        self._writing = False  # Lines that come from now on are submitted anew.
        while self._dirty:
            self._write_lines(self._dirty.popleft())

    def _write_lines(self, entry: Entry) -> None:
        """In the thread: write all lines that wait."""
        octets = entry.take_lines()
        try:
            append(entry, octets, self._disk, sync=False)
        except OSError as error:
            if not entry.queue.deleted:
                entry.noted = None  # The next sweep notes the settings again.
                # The next line that is written has this one before it: an audit must not miss what it cannot find.
                entry.lines.appendleft(side_file.encode({"at": self._now(), "what": "lost"}))
                log.warning("%s: not written: %s", entry.path, error)

    # --- what goes

    def sweep(self) -> None:
        """Let go what is beyond its retention, and note settings that could not be written."""
        for entry in self.entries.values():
            if entry.noted is None:
                self.watch(entry.queue)
        self.retention.enforce(self.entries.values())
        self.retention.log_removals()

    def make_room(self, free: int, limit: int) -> bool:
        """See Retention.make_room."""
        return bool(self.entries) and self.retention.make_room(free, limit, self.entries.values())

    # --- compaction

    def exclude_retained(self, queue: "Queue") -> Callable[[dict[str, Any]], bool]:
        """A test of segments in use (rows of ``segments()``): whether retention forbids to compact one.  It does while
        the queue's files together are not too large and the segment's last append is not too long ago."""
        entry = self.entries.get(queue.directory)
        octets = entry.octets if entry is not None else 0
        for each in queue.segments():
            octets += each["end"] + ENTRY_OCTETS * each["entries"] + EVENT_OCTETS * max(each["events"], 0)
        if octets > queue.rules.retention_octets:
            return lambda segment: False
        since = self._now() - queue.rules.retention_ms * _MS

        def is_retained(segment: dict[str, Any]) -> bool:
            folder = settled.level_folder(queue.directory, segment["level"])
            try:
                return os.stat(f"{folder}/{segment_name(segment['number'])}").st_mtime_ns >= since
            except OSError:
                return True

        return is_retained


def _sync_files(paths: "list[tuple[str, Queue]]", disk: "Disk", chains: Chains) -> None:
    """Sync journals, and have links made for what is on disk then.  A journal that was just settled is in ``kept``, or
    gone."""
    # A quarter of the descriptors, at most, that segments leave to others (see descriptors).
    at_once = max(min(SYNC_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 32), 1)
    for start in range(0, len(paths), at_once):
        files: list[tuple[int, str, Queue]] = []
        try:
            for path, queue in paths[start : start + at_once]:
                folder, name = os.path.split(path)
                for place in (path, f"{folder}/{KEPT_FOLDER}/{name}"):
                    try:
                        files.append((disk.open(place), place, queue))
                        break
                    except FileNotFoundError:
                        continue
            due = chains.find_due(files)
            disk.sync_all([(fd, place) for fd, place, _ in files])
            chains.add(due)
        finally:
            for fd, _, _ in files:
                disk.close(fd)


def _log_error(error: BaseException | None) -> None:
    if error is not None:
        log.warning("order journals: %s", error)
