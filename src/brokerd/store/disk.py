"""The one way to the operating system for all code that is not on a message's way.

It is thin on purpose: a method is one call of the kernel, or several calls in the one order that is safe.  Tests use
another ``Disk``: one that forgets what was not synced, is full, or fails.  Knows nothing of queues or formats.  Every
method raises OSError as the kernel gives it.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable

Octets = bytes | bytearray | memoryview
Stamp = tuple[int, int, int]
SYNCFS_FROM_FILES = 8       # From this many dirty files on, one sync of the filesystem is cheaper.
NO_DESCRIPTORS = errno.EMFILE, errno.ENFILE     # The process, or the system, has as many as it may.
READ_OCTETS_MAX = 1 << 32   # of a file that is read whole
HOLE_OCTETS_MAX = 1 << 26   # No file of ours is larger and mostly a hole: it would fill the memory with zeros.
SYNC_DESCRIPTORS = SYNCFS_FROM_FILES    # that the data plane lends to one sync: with so many files it needs one.


class Disk:
    """The real disk.  It has no state: one object serves all callers, from any thread."""

    __slots__ = ()
    syncs_at_once = 8

    # --- files

    def open(self, path: str, flags: int = os.O_RDONLY, mode: int = 0o640) -> int:
        """A descriptor of a regular file or a directory.

        A link is not followed, except to a directory that is asked for (O_DIRECTORY), and a pipe or a device is refused
        (EINVAL): otherwise a data directory from elsewhere could hold up the broker, or lead its writes to another
        file.
        """
        if not flags & os.O_DIRECTORY:
            flags |= os.O_NOFOLLOW | os.O_NONBLOCK  # The latter is for pipes and devices alone.
        try:
            fd = os.open(path, flags | os.O_CLOEXEC, mode)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a pipe without a reader
                raise _not_regular(path) from error
            raise
        kind = os.fstat(fd).st_mode
        if stat.S_ISREG(kind) or stat.S_ISDIR(kind):
            return fd
        os.close(fd)
        raise _not_regular(path)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, octets: int, position: int) -> bytes:
        return os.pread(fd, octets, position)

    def pwrite(self, fd: int, octets: Octets, position: int) -> None:
        """Write all of ``octets`` at ``position``.  After an OSError a part may have been written."""
        written = os.pwrite(fd, octets, position)
        rest = memoryview(octets)[written:]
        while rest:             # The kernel stops short at a signal, or just before the disk is full.
            position += written
            written = os.pwrite(fd, rest, position)
            rest = rest[written:]

    def truncate(self, fd: int, octets: int) -> None:
        os.ftruncate(fd, octets)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def device(self, where: int | str) -> int:
        """The number of the filesystem that a descriptor or a path belongs to."""
        return os.stat(where).st_dev

    def read(self, path: str, most: int = READ_OCTETS_MAX) -> bytes:
        """The whole file.  Raises FileNotFoundError; EFBIG if it has more than ``most`` octets, or is mostly a hole;
        every error names the file."""
        fd = self.open(path)
        try:
            _check_size(os.fstat(fd), most)
            parts: list[bytes] = []
            while part := os.read(fd, max(os.fstat(fd).st_size + 1, 1 << 16) if not parts else 1 << 20):
                parts.append(part)
            return b"".join(parts)
        except OSError as error:        # A directory; a disk that cannot be read.
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            self.close(fd)

    def replace(self, path: str, content: Octets, mode: int = 0o640) -> None:
        """Replace the content of ``path``.  A reader, or a start after a power cut, finds the whole old or the whole
        new.

        Returns when the new content is on disk: temporary file, fsync, rename, fsync of the directory.  A temporary
        file that is there already gives its room, so that a full disk does not stop this.  An OSError names ``path``.
        """
        temporary = path + ".tmp"
        fd = self.open(temporary, os.O_WRONLY | os.O_CREAT, mode)
        try:
            self.pwrite(fd, content, 0)
            self.truncate(fd, len(content))
            self.fsync(fd, temporary)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        finally:
            self.close(fd)
        self.rename(temporary, path)
        self.sync_directory(os.path.dirname(path))

    # --- names

    def names(self, directory: str) -> list[str]:
        return os.listdir(directory)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def stamp(self, path: str) -> Stamp | None:
        """A mark that differs between two states of a file: inode, octets, time of the last change (ns).  None: it is
        missing.  Raises OSError."""
        try:
            figures = os.lstat(path)
        except FileNotFoundError:
            return None
        return figures.st_ino, figures.st_size, figures.st_mtime_ns

    def check_temporaries(self, directory: str) -> None:
        """Refuse what would keep replace() from making its temporary files in ``directory``: a folder, link, pipe or
        device ``*.tmp``.  A regular file is what a broker before has left: replace() writes it over.

        Raises OSError (EINVAL), which names it; FileNotFoundError if there is no such directory."""
        for name in sorted(self.names(directory)):
            if name.endswith(".tmp"):
                path = f"{directory}/{name}"
                kind = os.lstat(path).st_mode
                if stat.S_ISDIR(kind):
                    raise OSError(errno.EINVAL, "a folder is where a temporary file has to be: move it away", path)
                if not stat.S_ISREG(kind):
                    raise _not_regular(path)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_directory(self, path: str) -> None:
        """Make one directory; its parent must exist.  Raises FileExistsError."""
        os.mkdir(path, 0o750)

    # --- syncs: all code of the broker syncs by these methods

    def fsync(self, fd: int, path: str) -> None:
        """``path`` is for the error's text and for tests."""
        try:
            os.fsync(fd)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error

    def fdatasync(self, fd: int, path: str) -> None:
        try:
            os.fdatasync(fd)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error

    def sync_directory(self, path: str) -> None:
        """Put the names in a directory on disk: of files that were made, renamed or removed."""
        fd = self.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.fsync(fd, path)
        finally:
            self.close(fd)

    def syncfs(self, fd: int, path: str) -> None:
        """Sync the whole filesystem of ``fd``."""
        from brokerd.plane import sync_filesystem  # Here, so that readers can do without the compiled plane.

        try:
            sync_filesystem(fd)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error

    def lend(self, fd: int) -> int:
        """Another descriptor of the same file, for sync_all(); -1: the process has none left."""
        return _unless_none_is_left(lambda: os.dup(fd))

    def lend_directory(self, path: str) -> int:
        """A descriptor of a directory, for sync_all(); -1: the process has none left.  Raises FileNotFoundError."""
        return _unless_none_is_left(lambda: self.open(path, os.O_RDONLY | os.O_DIRECTORY))

    def sync_all(self, files: Iterable[tuple[int, str]]) -> None:
        """Sync each (fd, path); a path that ends in '/' is a directory.  Many of one filesystem are synced at once.

        fd -1 stands for a file without a descriptor: its whole filesystem is synced, because the file may have another
        name by now.  A file in a directory that is gone was deleted, and has nothing to sync.  Does not close the
        descriptors.  Raises the first OSError.
        """
        files = list(files)
        if len(files) >= SYNCFS_FROM_FILES or any(fd < 0 for fd, _ in files):
            files = self._sync_filesystems(files)
        if min(len(files), self.syncs_at_once) < 2:
            for file in files:
                self._sync_one(file)
            return
        # All at once: a disk that takes long for each sync takes no longer for several.
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(self.syncs_at_once) as threads:
            under_way = []
            for file in files:
                try:
                    under_way.append(threads.submit(self._sync_one, file))
                except RuntimeError:  # No thread is left.
                    self._sync_one(file)
            for each in under_way:
                each.result()

    def _sync_one(self, file: tuple[int, str]) -> None:
        fd, path = file
        if path.endswith("/"):
            self.fsync(fd, path)
        else:
            self.fdatasync(fd, path)

    def _sync_filesystems(self, files: list[tuple[int, str]]) -> list[tuple[int, str]]:
        """Sync each filesystem that holds many of ``files``, or one without a descriptor.

        Returns the files that must be synced one by one."""
        by_device: dict[int, list[tuple[int, str]]] = {}
        for fd, path in files:
            with contextlib.suppress(FileNotFoundError):
                named = path if fd >= 0 else os.path.dirname(path)
                by_device.setdefault(os.stat(fd if fd >= 0 else named).st_dev, []).append((fd, named))
        rest = []
        for group in by_device.values():
            lent = [one for one in group if one[0] >= 0]
            if lent == group and len(group) < SYNCFS_FROM_FILES:
                rest += group
            elif lent:
                self.syncfs(*lent[0])
            else:
                self._sync_filesystem_of([path for _, path in group])
        return rest

    def _sync_filesystem_of(self, paths: list[str]) -> None:
        """Sync the filesystem that all these are on.  If all were deleted meanwhile, there is nothing to sync."""
        for path in paths:
            try:
                fd = self.open(path)
            except FileNotFoundError:
                continue
            try:
                self.syncfs(fd, path)
            finally:
                self.close(fd)
            return

    # --- the rest

    def lock(self, fd: int) -> bool:
        """Lock a whole file for this process, without waiting; False if another process has the lock.

        The lock ends with the process."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def takes_a_file(self, directory: str) -> bool:
        """Whether one more file with an octet can be made on the disk of ``directory``."""
        path = directory + "/.room"
        try:
            fd = self.open(path, os.O_WRONLY | os.O_CREAT)
            try:
                self.pwrite(fd, b"\n", 0)
            finally:
                self.close(fd)
        except OSError:
            return False
        finally:
            with contextlib.suppress(OSError):
                self.unlink(path)
        return True

    def free_octets(self, path: str) -> int:
        """How many octets a process that is not root may still write on the filesystem of ``path``."""
        figures = os.statvfs(path)
        return figures.f_bavail * figures.f_frsize

    def is_directory(self, fd: int) -> bool:
        return stat.S_ISDIR(os.fstat(fd).st_mode)


class Room:
    """Whether the filesystem of a folder has room, for callers that ask often.

    Half of what is free is granted before the filesystem is asked again.  Others write there, too, so the owner calls
    ``measure_again`` once a second.  It is no promise: a write may still find the disk full.
    """

    __slots__ = ("_disk", "_granted_most")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._granted_most: dict[str, int] = {}  # by folder: octets that may be granted without a new measurement

    def has(self, folder: str, octets: int) -> bool:
        """Whether a process that is not root may write so many octets more."""
        left = self._granted_most.get(folder, 0) - octets
        fits = True
        if left < 0:
            free = self._disk.free_octets(folder)
            left = free // 2 - octets
            fits = octets <= free
        self._granted_most[folder] = left
        return fits

    def measure_again(self) -> None:
        """Ask the filesystems the next time."""
        self._granted_most.clear()


def _not_regular(path: str) -> OSError:
    return OSError(errno.EINVAL, "not a regular file (links, pipes and devices are refused)", path)


def _check_size(figures: os.stat_result, most: int) -> None:
    size = figures.st_size
    if size > most:
        raise OSError(errno.EFBIG, f"has {size} octets, more than the {most} that are read")
    if size > HOLE_OCTETS_MAX and figures.st_blocks * 512 < size // 1000:  # It may compress zeros.
        raise OSError(errno.EFBIG, f"most of its {size} octets were never written")


def _unless_none_is_left(opened: Callable[[], int]) -> int:
    """A new descriptor; -1: the process has none left."""
    try:
        return opened()
    except OSError as error:
        if error.errno not in NO_DESCRIPTORS:
            raise
        return -1
