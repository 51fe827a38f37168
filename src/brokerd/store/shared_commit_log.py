"""The shared commit log of a vhost: small transactions, one behind the other, so that one sync serves all that wait.

A commit writes its entry here: messages and plan, as in a commit log of its own.  After the sync of this file it is
stored in its queues, and answered.  The queues themselves are synced later, a second's work at a time:

    entries go into one of two files; at ``rotate`` the other one takes over
      | all entries of the former are stored in their queues
    their queues are synced
      | then the entries are not needed any more
    a new generation begins in the file: its header is written, and synced

After kill -9 a start carries out the entries that are not marked as applied.  After a power cut it carries out all,
where a message is not found in its queue.  An entry's crc begins with the generation, so entries of a former one end
the file; so does one that is not whole.  An entry behind one that is not whole was not answered, since a sync covers
all entries before it.

Blocks of the file are written with zeros before they are needed: then a sync need not write the filesystem's journal.
Layouts are in store/format.  Knows nothing of what queues do with it.
"""

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from brokerd.errors import StoreError
from brokerd.store import format as layout
from brokerd.store.commit_log import Decision, Marks, decode_decision

if TYPE_CHECKING:
    from brokerd.store.disk import Disk

FILE_OCTETS = 1 << 20  # from here on the other file takes over
ENTRY_OCTETS_MAX = 1 << 19  # a larger transaction has a commit log of its own
_ZEROS = bytes(1 << 16)  # written ahead of the entries
_GONE = 1 << 62  # ``entries`` of a file that cannot be used any more


class GroupCommit(Protocol):
    """The part of store.sync.GroupCommit that this module uses."""

    def wait(self, callback: Callable[[], object], log: Any = None) -> None: ...
    def sync_directory(self, path: str) -> None: ...


class Core(Protocol):
    """The part of plane.Core that this module uses."""

    def sync_next(self, queues: Iterable[Any]) -> None: ...


class LogFile:
    """One of the two files.  ``dirty``, ``path`` and ``fileno`` are what the group commit asks for."""

    __slots__ = ("_disk", "_fd", "_zeroed", "dirty", "end", "entries", "generation", "number", "path", "pending",
                 "queues", "synced")  # fmt: skip

    def __init__(self, path: str, number: int, disk: "Disk") -> None:
        """Raises OSError."""
        self.path = path
        self.number = number
        self.dirty = False
        self.entries = 0  # of this generation
        self.pending = 0  # of these, not yet stored in their queues
        self.queues: dict[Any, None] = {}  # to which entries of this generation went
        self.generation = 0
        self.end = self._zeroed = layout.HEADER_OCTETS
        self.synced = 0  # ``sync`` has put all before this position on disk
        self._disk = disk
        self._fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def fileno(self) -> int:
        """The open file."""
        return self._fd

    def begin(self, generation: int) -> None:
        """Forget all entries.  Raises OSError."""
        self._disk.pwrite(self._fd, layout.shared_commit_header(self.number, generation), 0)
        self.dirty = True
        self.generation = generation
        self.end = layout.HEADER_OCTETS
        self.synced = 0
        self.entries = 0
        self.queues.clear()

    def write(self, octets: bytes) -> int:
        """Write an entry; where it begins.  Raises OSError: then it is not written."""
        at = self.end
        if at + len(octets) > self._zeroed:
            self._disk.pwrite(self._fd, octets + _ZEROS, at)
            self._zeroed = at + len(octets) + len(_ZEROS)
        else:
            self._disk.pwrite(self._fd, octets, at)
        self.end += len(octets)
        self.entries += 1
        self.pending += 1
        self.dirty = True
        return at

    def mark(self, at: int, *, applied: bool, stored: int) -> None:
        """Note that an entry is stored, or how many of its messages.

        Never fails: without the mark a start searches the queues.
        """
        try:
            self._disk.pwrite(self._fd, layout.ENTRY_MARKS.pack(applied | stored << 8), at + layout.ENTRY_APPLIED_AT)
        except OSError:
            return

    def sync(self) -> None:
        """Wait until all entries are on disk.  Raises OSError."""
        self._disk.fsync(self._fd, self.path)
        self._disk.sync_directory(os.path.dirname(self.path))
        self.dirty = False
        self.synced = self.end

    def close(self) -> None:
        """Close the file."""
        self.dirty = False
        self.entries = _GONE
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1

    @property
    def closed(self) -> bool:
        """The log was closed."""
        return self._fd < 0


class Entry(NamedTuple):
    """A committed transaction in the log."""

    file: LogFile
    at: int


class SharedCommitLog:
    """See above.  ``number``: a connection number, which no other log of the vhost ever has."""

    __slots__ = ("_commit", "_core", "_directory", "_disk", "_files", "_generation", "_left", "_number",
                 "_other", "_written")  # fmt: skip

    def __init__(self, directory: str, number: int, disk: "Disk", commit: GroupCommit, core: Core) -> None:
        self._directory = directory
        self._number = number
        self._disk = disk
        self._commit = commit
        self._core = core
        self._generation = 0
        self._files = 0  # that were made
        self._left: list[LogFile] = []  # for the next start
        self._written: LogFile | None = None  # takes the entries
        self._other: LogFile | None = None

    def append(self, connection: int, channel: int, messages: bytes, plan: bytes, queues: Iterable[Any]) -> Entry:
        """Write a transaction; wait for the sync of ``Entry.file`` before it is stored in ``queues``.

        Positions in the plan count from the begin of the entry, where ENTRY_HEAD_OCTETS stand before the messages.
        Raises OSError: then it is not written.
        """
        file = self._written
        if file is not None and file.end >= FILE_OCTETS:
            self.rotate()
            file = self._written
        if file is None:
            file = self._written = self._make()
        octets = layout.shared_commit_entry(file.generation, connection, channel, messages, plan)
        entry = Entry(file, file.write(octets))
        for queue in queues:
            file.queues[queue] = None
        return entry

    def mark_stored(self, entry: Entry, count: int) -> None:
        """So many of the transaction's messages, from the first one on, are stored in their queues."""
        if not entry.file.closed:
            entry.file.mark(entry.at, applied=False, stored=count)

    def mark_applied(self, entry: Entry) -> None:
        """The transaction is stored in its queues."""
        file = entry.file
        if file.closed:
            return
        file.mark(entry.at, applied=True, stored=0)
        file.pending -= 1
        if file is self._other and not file.pending:
            self._release(file)
        elif file in self._left and not file.pending:
            self._core.sync_next(file.queues)
            self._commit.wait(lambda: self._remove(file))

    def rotate(self) -> None:
        """Have the other file take the entries from now on, and give up those in this one once their queues are synced.

        Without effect while the other one is not given up.  Called once a second.
        """
        file = self._written
        if file is None or not file.entries:
            return
        if self._other is None:
            try:
                self._other = self._make()
            except OSError:
                return
        if self._other.entries:
            return
        self._written, self._other = self._other, file
        if not file.pending:
            self._release(file)

    def leave(self, entry: Entry) -> None:
        """There is no room for the transaction: until it is stored after all, the next start needs the file for it."""
        file = entry.file
        if file.closed or file in self._left:
            return
        self._left.append(file)
        if file is self._written:
            self._written, self._other = self._other, None
        elif file is self._other:
            self._other = None

    def _remove(self, file: LogFile) -> None:
        """No start needs the file any more: all that it decides is stored after all, and on disk."""
        if file.closed:
            return
        self._left.remove(file)
        file.close()
        try:
            self._disk.unlink(file.path)
        except OSError:
            return
        self._commit.sync_directory(self._directory)

    def close(self, *, remove: bool = False) -> None:
        """Close the files.  ``remove``: everything is synced."""
        for file in (self._written, self._other):
            if file is not None:
                file.close()
                if remove:
                    self._disk.unlink(file.path)
        for file in self._left:
            file.close()
        self._written = self._other = None

    def _make(self) -> LogFile:
        path = os.path.join(self._directory, f"{layout.SHARED_COMMIT_PREFIX}{self._number}.{self._files}")
        self._files += 1
        file = LogFile(path, self._number, self._disk)
        self._generation += 1
        try:
            file.begin(self._generation)
        except OSError:
            file.close()
            self._disk.unlink(path)
            raise
        self._commit.sync_directory(self._directory)
        return file

    def _release(self, file: LogFile) -> None:
        self._core.sync_next(file.queues)
        self._commit.wait(lambda: self._begin_again(file))

    def _begin_again(self, file: LogFile) -> None:
        if file.closed:
            return
        self._generation += 1
        try:
            file.begin(self._generation)
        except OSError:
            file.entries = _GONE  # It takes no more entries.
            return
        self._commit.wait(_nothing, file)


def _nothing() -> None:
    """The end of a sync that no caller waits for."""


# --- at start


class Found(NamedTuple):
    """A file found at start: its decisions, in their order.  Files are to be read in the order of the numbers."""

    number: int
    generation: int
    decisions: list[Decision]


def load(path: str, disk: "Disk") -> Found:
    """The decisions in a shared commit log, up to the first entry that is not whole.

    Raises StoreError (a later version), OSError.
    """
    octets = disk.read(path)
    if len(octets) < layout.HEADER_OCTETS:
        return Found(0, 0, [])
    magic, version, number, _, _, generation, _, _ = layout.COMMIT_HEADER.unpack_from(octets)
    crc = int.from_bytes(octets[layout.COMMIT_HEADER.size : layout.COMMIT_HEADER.size + 4], "little")
    if magic != layout.COMMIT_MAGIC or crc != layout.crc32c(octets[: layout.COMMIT_HEADER.size]):
        return Found(0, 0, [])
    if version not in (2, layout.SHARED_COMMIT_VERSION):
        raise StoreError(f"{path} has version {version} at offset 4: written by a later brokerd; this one knows up to "
                         f"{layout.SHARED_COMMIT_VERSION}")
    found = Found(number, generation, [])
    at = layout.HEADER_OCTETS
    while at + layout.ENTRY_HEAD_OCTETS <= len(octets):
        length, crc, marks, connection, channel, _, plan_at = layout.ENTRY_HEAD.unpack_from(octets, at)
        entry = octets[at : at + length]
        if not layout.ENTRY_HEAD_OCTETS <= length == len(entry) or crc != layout.shared_commit_crc(entry, generation):
            break
        decision = decode_decision(entry, (layout.ENTRY_HEAD_OCTETS, plan_at), connection, channel,
                                   Marks(marks & 0xFF == 1, marks >> 8))  # fmt: skip
        if decision is None:
            break
        found.decisions.append(decision)
        at += layout.round_up(length)
    return found
