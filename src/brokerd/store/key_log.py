"""The keys that one exchange knows, on disk: files ``keys.SHA1.N``, appended to, each dropped when no key in it counts.

A row is written when its message was stored, so that kill -9 takes none but, at most, that of the message just stored;
its record carries the hash as well.  After a power cut a row must not be believed where the message may be lost.  So
the group commit that a confirm waits for syncs the messages first, then has the count of rows that they cover written
into the header, then syncs the file: what is counted has its message on disk, and what is confirmed is counted.  Rows
of messages that no sync covers (transient ones) are believed after a power cut only from before the last clean stop.

Layout: store/format, KEY FILE.  Knows nothing of exchanges, messages or headers.
"""

import os
from collections.abc import Callable

from brokerd import plane
from brokerd.store import format as layout
from brokerd.store.key_files import FORMER_NUMBER, KeyFile, KeyFiles, read

ROWS_MIN = 4096  # of a file before the next one is begun: then as many as the window has keys

_ROW = layout.KEY_ROW_OCTETS


class _File:
    """One file that is written to."""

    __slots__ = ("fd", "lasting", "named", "path", "rows", "until_ms")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        self.rows = 0
        self.lasting = 0  # rows up to the last that the next sync is to cover; 0: none
        self.named = False  # its name is on disk
        self.until_ms = 0


class KeyLog:
    """The files of one exchange: ``prefix`` is their path up to the number."""

    __slots__ = ("_closed", "_file", "_files", "_found", "_full", "_number", "_prefix", "_suspect", "_window",
                 "cut_short", "former")

    def __init__(self, files: KeyFiles, prefix: str, window: plane.Window) -> None:
        self._files = files
        self._prefix = prefix
        self._window = window
        self._number = FORMER_NUMBER
        self._file: _File | None = None
        self._suspect = False
        self._found: list[KeyFile] = []  # at start
        self._closed: list[_File] = []
        self._full: list[_File] = []  # not written to any more, with rows that wait for a sync
        self.former = b""  # the hash key of keys that an earlier release knew
        self.cut_short = False  # the broker before died: a message may have been stored without its row

    # --- at start

    def read(self, *, suspect: bool) -> None:
        """Read what is on disk; then call ``enter``.  ``suspect``: power was lost.  Raises OSError, StoreError."""
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
                self._found.append(found._replace(rows=_believed(found, suspect=suspect)))

    def knows(self) -> set[int]:
        """The hashes of all rows that were read."""
        return {hashed for file in self._found for _, hashed, _ in layout.KEY_ROW.iter_unpack(file.rows)}

    @property
    def last_ns(self) -> int:
        """When the message of the last row that was read came."""
        return max((layout.KEY_ROW.unpack_from(file.rows, len(file.rows) - _ROW)[0]
                    for file in self._found if file.rows), default=0)

    def enter(self, missed: list[tuple[int, int, int]]) -> None:
        """Have the window know what was read, and keys of messages that the log had missed: (ns, hash, expires) each,
        of messages that are on disk, or will be with the next sync.  Raises OSError, StoreError."""
        extra = b"".join(layout.KEY_ROW.pack(*row) for row in missed)
        self._window.load(extra + b"".join(file.rows for file in self._found), self._files.now_ms)
        for file in self._found:
            self._files.watch(self.path(file.number), self._window, file.until_ms)
        for row in missed:
            self.append(*row, lasting=True)

    def all_synced(self) -> None:
        """All that was read, or written before ``close``, is on disk by now, and the messages are.  Raises OSError."""
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
        """Change the header of a file that is not written to any more.  The file may be gone by now."""
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
        """The exchange is gone, or another one has its name."""
        self.close()
        directory, _, name = self._prefix.rpartition("/")
        for each in self._files.disk.names(directory):
            if layout.keys_number(each, name) is not None:
                self._files.remove(f"{directory}/{each}")

    def append(self, came_ns: int, hashed: int, expires_ms: int, *, lasting: bool) -> None:
        """A message with this key was stored.  ``lasting``: the next group commit covers it; have begin_sync() called
        with that.  Raises OSError: nothing was written."""
        self.begin()
        assert self._file is not None
        file = self._file
        row = layout.KEY_ROW.pack(came_ns | (0 if lasting else layout.NOT_LASTING), hashed, expires_ms)
        self._files.disk.pwrite(file.fd, row, layout.HEADER_OCTETS + _ROW * file.rows)
        file.rows += 1
        file.until_ms = max(file.until_ms, expires_ms)
        if lasting:
            file.lasting = file.rows
        if file.rows >= max(ROWS_MIN, len(self._window)):
            self._file = None
            self._files.watch(file.path, self._window, file.until_ms)
            if file.lasting:
                self._full.append(file)
            else:
                self._files.disk.close(file.fd)

    def begin(self) -> None:
        """Have a file to write to, before the message is stored: it tells the next start that there may be one.

        Raises OSError.
        """
        if self._file is not None:
            return
        disk, number = self._files.disk, self._number + 1
        path = self.path(number)
        header = layout.keys_header(number, self._files.hash_key, open_=True)
        fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            disk.pwrite(fd, header, 0)
        except BaseException:
            disk.close(fd)
            raise
        self._number = number
        self._file = _File(path, fd)

    def path(self, number: int) -> str:
        """Of one of its files."""
        return f"{self._prefix}.{number:010d}"

    # --- what a power cut may take

    def begin_sync(self) -> Callable[[], None]:
        """What to do, in a thread, when the messages of all lasting rows are on disk; when it returns,
        their keys are.  It raises OSError."""
        disk = self._files.disk
        full, self._full = self._full, []
        now = [*full, *([self._file] if self._file is not None and self._file.lasting else [])]
        counts = [(os.dup(file.fd), file.path, file.lasting, file.named) for file in now]
        for file in now:
            file.lasting, file.named = 0, True
        for file in full:
            disk.close(file.fd)

        def work() -> None:
            try:
                for fd, path, count, _ in counts:
                    disk.pwrite(fd, count.to_bytes(8, "little"), layout.KEYS_MARKS_AT)
                    disk.fdatasync(fd, path)
                if not all(named for *_, named in counts):
                    disk.sync_directory(os.path.dirname(self._prefix))
            finally:
                for fd, *_ in counts:
                    disk.close(fd)

        return work

    def close(self) -> None:
        """The broker stops; call ``all_synced`` when all is on disk."""
        for file in (*self._full, *([self._file] if self._file is not None else [])):
            self._files.disk.close(file.fd)
            self._closed.append(file)
        self._full, self._file = [], None


def _believed(file: KeyFile, *, suspect: bool) -> bytes:
    """The rows that count: all that are whole, or those whose messages are on disk."""
    rows = file.rows
    end = file.synced * _ROW if suspect else len(rows)
    kept = bytearray()
    for at in range(0, min(len(rows), end), _ROW):
        order, hashed, expires = layout.KEY_ROW.unpack_from(rows, at)
        if not hashed or (suspect and order & layout.NOT_LASTING and at >= file.whole * _ROW):
            continue
        kept += layout.KEY_ROW.pack(order & ~layout.NOT_LASTING, hashed, expires)
    return bytes(kept)
