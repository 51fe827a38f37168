"""The data directory as a whole: its identity, the lock on it, how the former broker left it, and which connection
numbers are used.

The file ``running`` marks a broker at work.  If the marker is missing, the former broker stopped cleanly.  A marker of
this boot means a crash: the page cache kept all that was written.  A marker of another boot means a power cut: only
what was synced is sure to be there.  store/format describes the files.  Knows nothing of what is in its folders.

On a full disk a broker must start and take connections, so that its queues can be drained.  The two files that are
written for that, ``running`` and ``connection_numbers``, therefore keep the room of their next version: a file
``*.tmp`` beside them.

The identity is a name of this directory that no other one has: links end their loops by it, and use it in the names of
queues and exchanges at other brokers.  It is made once, and stays when the host or the cluster gets another name.
"""

import contextlib
import os
import socket
import zlib

from brokerd.errors import StoreError
from brokerd.store.disk import Disk
from brokerd.store.format import (
    CONNECTION_NUMBERS_FILE,
    IDENTITY_FILE,
    LOCK_FILE,
    RUNNING_FILE,
    SCHEMA_FILE,
    SCHEMA_VERSION,
)
from brokerd.store.garbage import remove_all

CONNECTION_BLOCK = 10_000       # Numbers reserved with one fsync.
CONNECTION_NUMBERS_MAX = (1 << 32) - 1
IDENTITY_OCTETS = 8  # that are random
BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"

NEW, CLEAN, CRASHED, POWER_LOST = "new", "clean", "crashed", "power lost"


def boot_id() -> str:
    """The kernel's name for this boot; "" where the kernel gives none (then every crash counts as a power cut)."""
    try:
        with open(BOOT_ID_FILE, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""

SMALL_OCTETS_MAX = 4096  # of a file with a line of text
ROOM_OCTETS = 64  # more than either of those files has


class DataDir:
    """A locked data directory, from ``DataDir(...)`` to ``close()``.

    ``left`` says how the last broker left it: NEW, CLEAN, CRASHED or POWER_LOST.
    Raises StoreError if another broker has the lock, if the folder is no data directory, or if a later version wrote
    it; OSError as the kernel gives it.
    """

    __slots__ = (
        "_boot", "_disk", "_distrusted", "_found", "_has_failed", "_lock", "_next", "_reserved", "identity", "left",
        "path",
    )  # fmt: skip

    def __init__(self, path: str, disk: Disk, *, boot: str | None = None) -> None:
        self.path = os.path.abspath(path)
        self._disk = disk
        self._boot = boot_id() if boot is None else boot
        self._distrusted = self._has_failed = False
        self._found = frozenset[str]()  # what stood in the folder before its first start
        if not disk.exists(self.path):
            self._make()
        self._lock = self._take_lock()
        try:
            fresh = self._check_schema()
            disk.check_temporaries(self.path)
            self.left = NEW if fresh else self._read_marker()
            self._next = self._reserved = self._read_connection_numbers()
            self.identity = self._read_identity()
            self._mark("suspect" if self.suspect else "whole")
        except BaseException:
            disk.close(self._lock)
            raise

    @property
    def suspect(self) -> bool:
        """Whether power was lost: any page or name that was not synced may be missing."""
        return self.left == POWER_LOST

    def end_recovery(self) -> None:
        """Say that all queues and definitions are recovered: if this broker crashes, the page cache may be trusted."""
        if self.suspect and not self._distrusted:
            self._mark("whole")

    def distrust(self) -> None:
        """Have the next start check every record, as after a power cut, however this broker ends."""
        self._distrusted = True
        with contextlib.suppress(OSError):
            self._replace(RUNNING_FILE, b"unknown suspect\n")

    def next_connection_number(self) -> int:
        """A number, from 1, that no connection and no consumer had before, not even before a restart.

        After 2**32 - 1 the numbers begin again at 1 (records hold 32 bits).
        Raises OSError if no number can be reserved.
        """
        if self._next >= self._reserved:
            if self._next > CONNECTION_NUMBERS_MAX:
                self._next = 1
            reserved = min(self._next + CONNECTION_BLOCK, CONNECTION_NUMBERS_MAX + 1)
            self._replace(CONNECTION_NUMBERS_FILE, _checked(b"%d" % reserved))
            self._reserved = reserved
        number = self._next
        self._next += 1
        return number

    def _replace(self, name: str, content: bytes) -> None:
        """Replace a file, and keep room for its next version."""
        path = self._file(name)
        self._disk.replace(path, content)
        with contextlib.suppress(OSError):  # On a full disk, the next version takes the room that this one has left.
            fd = self._disk.open(path + ".tmp", os.O_WRONLY | os.O_CREAT)
            try:
                self._disk.pwrite(fd, bytes(ROOM_OCTETS), 0)
            finally:
                self._disk.close(fd)

    def sync(self) -> None:
        """Put everything that is written by now on disk.  Raises OSError."""
        self._disk.syncfs(self._lock, self.path)

    def close(self) -> None:
        """Stop cleanly, after everything was written: sync the filesystem, remove the marker, unlock.

        The whole filesystem is synced because after a crash it may hold unsynced files of the former broker that this
        one never touched.  Raises OSError: then it was no clean stop.
        """
        if self._lock < 0:
            return
        try:
            self.sync()
            if self._distrusted:
                return
            if self._has_failed and self.left == NEW and self._next == 1:  # No client has been here.
                self._take_back()
                return
            self._disk.rename(self._file(RUNNING_FILE), self._file(RUNNING_FILE) + ".tmp")
            self._disk.sync_directory(self.path)
        finally:
            self.abandon()

    def note_failure(self) -> None:
        """The start has failed: if it was the first one, ``close`` removes what it has made."""
        self._has_failed = True

    def _take_back(self) -> None:
        """Make the folder as empty as the first start found it, so that the next one is the first start: it makes the
        default user that its own options name.  The lock's file stays, as another start may be asking for the lock."""
        kept = self._found | {LOCK_FILE, SCHEMA_FILE}
        # What a kill leaves is still a data directory.
        for names in sorted(set(self._disk.names(self.path)) - kept, reverse=True), [SCHEMA_FILE]:
            remove_all([self._file(name) for name in names])
            if not set(self._disk.names(self.path)) <= kept:
                return
            self._disk.sync_directory(self.path)

    def give_up(self) -> None:
        """End a start that failed, so that the next one finds how the former broker ended, not that this one did.

        A marker that the former broker left stays, and so does one if the sync fails.
        """
        if self.left not in (NEW, CLEAN):
            self.abandon()
            return
        self.note_failure()
        try:
            self.close()
        except OSError:
            pass        # The reason of the failed start is told; the next start recovers as after a crash.

    def abandon(self) -> None:
        """Unlock, and leave everything else as a crash would."""
        if self._lock >= 0:
            self._disk.close(self._lock)
            self._lock = -1

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"

    def _make(self) -> None:
        """Make the folder.  Its parent must be there: a parent that is missing is a disk that is not mounted, or a
        slip of the pen, and the messages would go to a place where no one looks for them."""
        parent = os.path.dirname(self.path)
        try:
            self._disk.make_directory(self.path)
        except FileNotFoundError:
            missing = _first_missing(parent, self._disk)
            raise StoreError(f"data directory {self.path} cannot be made: {missing} does not exist: make it first, or "
                             "mount the disk that holds it") from None
        except NotADirectoryError:
            raise StoreError(f"data directory {self.path} cannot be made: a part of its path is no folder") from None
        self._disk.sync_directory(parent)

    def _take_lock(self) -> int:
        try:
            fd = self._disk.open(self._file(LOCK_FILE), os.O_RDWR | os.O_CREAT)
        except NotADirectoryError:
            raise StoreError(f"data directory {self.path} is a file: name a folder") from None
        try:
            if not self._disk.lock(fd):
                holder = self._disk.pread(fd, 200, 0).decode(errors="replace").strip() or "another process"
                raise StoreError(f"data directory {self.path} is in use by {holder}")
            text = f"pid {os.getpid()} on {socket.gethostname()}\n".encode()
            with contextlib.suppress(OSError):  # It is for people: a full disk must not stop the start.
                self._disk.pwrite(fd, text, 0)
                self._disk.truncate(fd, len(text))
        except BaseException:
            self._disk.close(fd)
            raise
        return fd

    def _check_schema(self) -> bool:
        """Check the version; returns True for an empty directory, which is now a data directory."""
        path = self._file(SCHEMA_FILE)
        try:
            text = self._disk.read(path, SMALL_OCTETS_MAX).strip()
        except FileNotFoundError:
            # A first start that was cut short may have left the temporary file; a mounted disk has lost+found.
            known = {"lost+found", "schema_version.tmp"}
            self._found = frozenset(self._disk.names(self.path))
            strangers = [n for n in self._found if not n.startswith(".") and n not in known]
            if strangers:
                raise StoreError(f"{self.path} has no schema_version but other files ({sorted(strangers)[0]}): it is "
                                 "no data directory; name an empty one") from None
            self._disk.replace(path, b"%d\n" % SCHEMA_VERSION)
            return True
        if not text.isdigit():
            raise StoreError(f"{path} does not hold a number at offset 0: it should read {SCHEMA_VERSION}")
        if int(text) > SCHEMA_VERSION:
            raise StoreError(f"{path} says {int(text)}: written by a later brokerd; this one knows up to "
                             f"{SCHEMA_VERSION}")
        return False

    def _read_marker(self) -> str:
        try:
            words = self._disk.read(self._file(RUNNING_FILE), SMALL_OCTETS_MAX).decode(errors="replace").split()
        except FileNotFoundError:
            return CLEAN
        return CRASHED if self._boot and words == [self._boot, "whole"] else POWER_LOST

    def _mark(self, state: str) -> None:
        """Write the marker and sync it: otherwise a power cut soon after would look like a clean stop."""
        if self.left != CRASHED or state != "whole":  # Otherwise it is there, and says so.
            self._replace(RUNNING_FILE, f"{self._boot or 'unknown'} {state}\n".encode())

    def _read_connection_numbers(self) -> int:
        path = self._file(CONNECTION_NUMBERS_FILE)
        try:
            content = self._disk.read(path, SMALL_OCTETS_MAX)
        except FileNotFoundError:
            return 1
        digits = content.split(b" ")[0]
        if not digits.isdigit() or content != _checked(b"%d" % int(digits)):
            raise StoreError(f"{path} is damaged at offset 0: write a number above every connection's so far into it "
                             "(python3 -c 'import zlib; n = b\"NUMBER\"; print(n.decode(), f\"{zlib.crc32(n):08x}\")')")
        return int(digits)

    def _read_identity(self) -> str:
        """The identity, made now if there is none: a new directory, or one of a broker that made none."""
        path = self._file(IDENTITY_FILE)
        try:
            content = self._disk.read(path, SMALL_OCTETS_MAX)
        except FileNotFoundError:
            made = f"brokerd@{socket.gethostname()}-{os.urandom(IDENTITY_OCTETS).hex()}"
            with contextlib.suppress(OSError):  # A full disk must not stop the start: the next one makes another.
                self._disk.replace(path, _checked(made.encode()))
            return made
        text = content.split(b" ")[0]
        if not text or content != _checked(text):
            raise StoreError(f"{path} is damaged at offset 0: bring it back from a backup, or remove it: then links "
                             "make their queues at upstreams anew, under another name")
        return text.decode("utf-8", "surrogateescape")


def _first_missing(path: str, disk: Disk) -> str:
    """The highest folder of ``path`` that is not there."""
    while path != (above := os.path.dirname(path)) and not disk.exists(above):
        path = above
    return path


def _checked(word: bytes) -> bytes:
    """A word without spaces, and its checksum, as a line."""
    return b"%s %08x\n" % (word, zlib.crc32(word))
