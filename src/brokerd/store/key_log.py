"""The keys that one exchange knows, on disk: files ``keys.SHA1.N``.  A file is removed when no key in it counts.

A full disk must not cost a row.  So the caller asks for room (``reserve``) before it stores the message: the file then
has rows of zeros behind the last one, which the next rows replace.  Rows that cannot be written all the same wait in
memory, no room is found before they are written, and a stop leaves the file as a crash would.

Rows are appended just after their messages were stored: those of one chunk of a client's octets together.  So kill -9
loses at most the rows of one chunk, and the records of its messages carry the hashes as well.  A message that went to
several queues, or to one with keys of its own, has its row at once.

After a power cut a row must not count if its message may be lost.  So a group commit works in this order: it syncs the
messages, writes the count of their rows into the header, and syncs this file.  Every counted row has its message on
disk, and every confirmed message has its row counted.  No sync covers transient messages: after a power cut their rows
count only if they are from before the last clean stop.

Layout: store/format, KEY FILE.  Knows nothing of exchanges, messages or headers.
"""

import contextlib
import os
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING

from brokerd import plane
from brokerd.errors import StoreError
from brokerd.store import format as layout
from brokerd.store.key_files import FORMER_NUMBER, KeyFile, KeyFiles, read

if TYPE_CHECKING:
    from brokerd.store.disk import Disk

ROWS_MIN = 4096  # A file takes at least so many rows, or as many as the window has keys.
ROOM_ROWS = 1024  # are made ready at a time

_ROW = layout.KEY_ROW_OCTETS


class _File:
    """A file to which rows are appended."""

    __slots__ = ("_lock", "fd", "lasting", "marking", "named", "path", "room", "rows", "until_ms")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        self.rows = 0
        self.room = 0  # for so many rows more the file has octets
        self.lasting = 0  # the next sync covers so many rows, from the first on; 0: none
        self.named = False  # its name is on disk
        self.until_ms = 0
        self.marking = False  # a sync is under way that will mark() it
        # The thread that syncs uses the loop's descriptor: a duplicate of it may not be had.
        self._lock = Lock()

    def mark(self, disk: "Disk", count: int) -> None:
        """Say in the file that the messages of so many rows are on disk.  Returns when that is on disk.

        Does nothing if the file was closed meanwhile.  Raises OSError."""
        with self._lock:
            if self.fd >= 0:
                disk.pwrite(self.fd, count.to_bytes(8, "little"), layout.KEYS_MARKS_AT)
                disk.fdatasync(self.fd, self.path)
        self.marking = False

    def close(self, disk: "Disk") -> None:
        """Close the file, unless that was done.  Waits for mark()."""
        with self._lock:
            if self.fd >= 0:
                with contextlib.suppress(OSError):  # Rows of zeros count for nothing.
                    disk.truncate(self.fd, layout.HEADER_OCTETS + _ROW * self.rows)
                disk.close(self.fd)
            self.fd = -1


class KeyLog:
    """The files of one exchange: ``prefix`` is their path up to the number."""

    __slots__ = ("_closed", "_file", "_files", "_found", "_full", "_number", "_prefix", "_since_ns", "_suspect",
                 "_waiting", "_window", "cut_short", "former")

    def __init__(self, files: KeyFiles, prefix: str, window: plane.Window, since_ns: int = 1) -> None:
        """``since_ns``: no record that came earlier has a key of this exchange; 1: not known."""
        self._since_ns = since_ns
        self._files = files
        self._prefix = prefix
        self._window = window
        self._number = FORMER_NUMBER
        self._file: _File | None = None
        self._suspect = False
        self._found: list[KeyFile] = []  # at start
        self._waiting: list[tuple[bytes, int, int]] = []  # what append_rows() could not write
        self._closed: list[_File] = []
        self._full: list[_File] = []  # complete, but with rows that wait for a sync
        self.former = b""  # the hash key of keys that an earlier release knew
        self.cut_short = False  # the former broker died: a message may lack its row

    # --- at start

    def read(self, *, suspect: bool) -> None:
        """Read the files; ``enter`` must follow.  ``suspect``: power was lost.  Raises OSError, StoreError."""
        self._suspect = suspect
        directory, _, name = self._prefix.rpartition("/")
        numbers = sorted(number for each in self._files.disk.names(directory)
                         if (number := layout.keys_number(each, name)) is not None)
        for number in numbers:
            self._number, path = number, self.path(number)
            if suspect and read(path, self._files.disk, log=True) is None:
                self._files.remove(path)  # It never reached the disk.
                continue
            found = self._files.read(path, log=True)
            if found is not None:
                self.cut_short = self.cut_short or found.open != 0
                if number == FORMER_NUMBER:
                    self.former = found.hash_key
                self._found.append(found._replace(rows=_rows_that_count(found, suspect=suspect)))

    def knows(self) -> set[int]:
        """The hashes of all rows that were read."""
        return {hashed for file in self._found for _, hashed, _ in layout.KEY_ROW.iter_unpack(file.rows)}

    @property
    def last_ns(self) -> int:
        """When the message of the last row came; 0: no row was read."""
        return max((layout.KEY_ROW.unpack_from(file.rows, len(file.rows) - _ROW)[0]
                    for file in self._found if file.rows), default=0)

    @property
    def since_ns(self) -> int:
        """No record that came earlier has a key of this exchange."""
        return max((file.open for file in self._found), default=0)

    def enter(self, missed: list[tuple[int, int, int]]) -> None:
        """Enter the rows that were read into the window, and the keys of messages that the log had missed.

        ``missed``: (ns, hash, expires) of messages that are on disk, or will be with the next sync.  Raises OSError,
        StoreError."""
        extra = b"".join(layout.KEY_ROW.pack(*row) for row in missed)
        self._window.load(extra + b"".join(file.rows for file in self._found), self._files.now_ms)
        for file in self._found:
            self._files.watch(self.path(file.number), self._window, file.until_ms)
        if missed:
            self.append_rows(b"".join(layout.KEY_ROW.pack(*row) for row in missed), len(missed),
                             max(expires for *_, expires in missed))

    def mark_all_synced(self) -> None:
        """Say in the headers that all rows that were read, or written before ``close``, are on disk, and their messages
        too.  Where rows could not be written, the files stay as a crash leaves them: the next start looks for these
        keys in the records.  Raises OSError."""
        if self._waiting:
            return
        for found in self._found:
            if found.open:
                # After a power cut rows that are not believed are among them.
                count = len(found.rows) // _ROW
                self._mark(self.path(found.number), *((found.synced, found.whole) if self._suspect else (count, count)))
        self._found.clear()
        for file in self._closed:
            self._mark(file.path, file.rows, file.rows)
        self._closed.clear()

    def _mark(self, path: str, synced: int, whole: int) -> None:
        """Change the header of a complete file, if the file still exists."""
        disk = self._files.disk
        try:
            fd = disk.open(path, os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            disk.pwrite(fd, layout.KEYS_MARKS.pack(synced, whole, 0), layout.KEYS_MARKS_AT)
            disk.fdatasync(fd, path)
        finally:
            disk.close(fd)

    # --- rows

    def remove(self) -> None:
        """Remove all files: the exchange is gone, or another one has its name."""
        self._waiting.clear()
        self.close()
        directory, _, name = self._prefix.rpartition("/")
        for each in self._files.disk.names(directory):
            if layout.keys_number(each, name) is not None:
                self._files.remove(f"{directory}/{each}")

    def append(self, came_ns: int, hashed: int, expires_ms: int, *, lasting: bool) -> None:
        """Append the row of a message that was just stored.  ``lasting``: the next group commit covers the message, and
        the caller has begin_sync() called with it.  Raises OSError."""
        row = layout.KEY_ROW.pack(came_ns | (0 if lasting else layout.NOT_LASTING), hashed, expires_ms)
        self.append_rows(row, int(lasting), expires_ms)

    def append_rows(self, rows: bytes, lasting: int, until_ms: int) -> None:
        """Append the rows of messages that were just stored.

        ``lasting``: the last row whose message the next group commit covers, counted from 1; 0: none.  ``until_ms``:
        when the last key expires.  Raises OSError, StoreError: then the rows wait in memory.
        """
        self._waiting.append((rows, lasting, until_ms))
        self._write_waiting()

    def reserve(self, rows: int) -> None:
        """Have room for so many rows more, before their messages are stored.  Raises OSError, StoreError."""
        self._write_waiting()
        self.begin()
        assert self._file is not None
        self._make_room(self._file, rows)

    @property
    def room(self) -> int:
        """So many rows more can be appended on a full disk."""
        return 0 if self._file is None or self._waiting else self._file.room

    def _write_waiting(self) -> None:
        while self._waiting:
            self._write(*self._waiting[0])
            del self._waiting[0]

    def _make_room(self, file: _File, rows: int) -> None:
        """Have the file end behind so many rows more, or further."""
        if file.room < rows:
            more = max(rows - file.room, ROOM_ROWS)
            end = layout.HEADER_OCTETS + _ROW * (file.rows + file.room)
            self._files.disk.pwrite(file.fd, bytes(_ROW * more), end)  # Zeros that are written take their room at once.
            file.room += more

    def _write(self, rows: bytes, lasting: int, until_ms: int) -> None:
        count = len(rows) // _ROW
        self.begin()
        assert self._file is not None
        file = self._file
        self._make_room(file, count)
        self._files.disk.pwrite(file.fd, rows, layout.HEADER_OCTETS + _ROW * file.rows)
        if lasting:
            file.lasting = file.rows + lasting
        file.rows += count
        file.room -= count
        file.until_ms = max(file.until_ms, until_ms)
        if file.rows >= max(ROWS_MIN, len(self._window)):
            self._file = None
            self._files.watch(file.path, self._window, file.until_ms)
            if file.lasting or file.marking:
                self._full.append(file)
            else:
                file.close(self._files.disk)

    def begin(self) -> None:
        """Have a file open before the message is stored: the file tells the next start that a row may be missing.

        Raises OSError, StoreError.
        """
        if self._file is not None:
            return
        self._files.keep_hash_key()
        disk, number = self._files.disk, self._number + 1
        path = self.path(number)
        header = layout.keys_header(number, self._files.hash_key, open_=self._since_ns)
        fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            disk.pwrite(fd, header, 0)
        except BaseException:
            disk.close(fd)
            raise
        self._number = number
        self._file = _File(path, fd)

    def path(self, number: int) -> str:
        """The path of file ``number``."""
        return f"{self._prefix}.{number:010d}"

    # --- what a power cut may take

    def begin_sync(self) -> Callable[[], None]:
        """Returns a function for the thread, to be called when the messages of all lasting rows are on disk.  When that
        function returns, their keys are on disk too.  It raises OSError."""
        disk = self._files.disk
        full, self._full = self._full, []
        now = [*full, *([self._file] if self._file is not None else [])]
        counts = [(file, file.lasting, file.named) for file in now if file.lasting]
        for file, *_ in counts:
            file.lasting, file.named, file.marking = 0, True, True

        def work() -> None:
            try:
                for file, count, _ in counts:
                    file.mark(disk, count)
                if not all(named for *_, named in counts):
                    with contextlib.suppress(FileNotFoundError):  # Its vhost was deleted meanwhile.
                        disk.sync_directory(os.path.dirname(self._prefix))
            finally:
                for file in full:
                    file.close(disk)

        return work

    def close(self) -> None:
        """Close the files, because the broker stops; ``mark_all_synced`` follows when all is on disk."""
        with contextlib.suppress(OSError, StoreError):  # mark_all_synced() sees whether rows still wait.
            self._write_waiting()
        for file in (*self._full, *([self._file] if self._file is not None else [])):
            file.close(self._files.disk)
            self._closed.append(file)
        self._full, self._file = [], None


def _rows_that_count(file: KeyFile, *, suspect: bool) -> bytes:
    """The rows that count.  ``suspect``: only those with their messages on disk."""
    rows = file.rows
    end = file.synced * _ROW if suspect else len(rows)
    counted = bytearray()
    for at in range(0, min(len(rows), end), _ROW):
        order, hashed, expires = layout.KEY_ROW.unpack_from(rows, at)
        if not hashed or (suspect and order & layout.NOT_LASTING and at >= file.whole * _ROW):
            continue
        counted += layout.KEY_ROW.pack(order & ~layout.NOT_LASTING, hashed, expires)
    return bytes(counted)
