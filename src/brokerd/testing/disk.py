"""Disks for tests: one that never waits and may be full, and one that forgets what was not synced.

    disk = ForgetfulDisk(root)      all that is there now counts as synced
    ... run anything that syncs through it (writes may go past it: maps, the plane) ...
    disk.lose_power(target, random) writes to target what a machine could find after a power cut

For each file (by inode) its content as of its last sync is remembered, for each directory its entries as of its last
fsync.  Then each 4 KiB page that differs, each length, and each change of a name is at random old or new; a rename is
one change, with the file it replaced.  Harsher than ext4, which keeps the order of names.
"""

import errno
import os
from collections.abc import Sequence
from typing import Protocol, TypeVar

from brokerd.store.disk import Disk, Octets

PAGE_OCTETS = 4096
Choice = TypeVar("Choice")


class Random(Protocol):
    """The part of random.Random that a power cut uses."""

    def choice(self, seq: Sequence[Choice]) -> Choice: ...


class Nothing:
    """A "random" that always takes the old: nothing of what was not synced is there after the cut."""

    def choice(self, seq: Sequence[Choice]) -> Choice:
        """The first, which is the old one."""
        return seq[0]


class FillableDisk(Disk):
    """The real disk.  While ``full`` it takes no new octets."""

    __slots__ = ("full",)

    def __init__(self) -> None:
        self.full = False

    def open(self, path: str, flags: int = os.O_RDONLY, mode: int = 0o640) -> int:
        """As Disk does.  A full disk makes no new file."""
        if flags & os.O_CREAT and self.full and not os.path.lexists(path):
            raise self._no_space(path)
        return super().open(path, flags, mode)

    def pwrite(self, fd: int, octets: Octets, position: int) -> None:
        """As Disk does.  A full disk takes no octets behind a file's end."""
        if self.full and position + len(octets) > os.fstat(fd).st_size:
            raise self._no_space(os.readlink(f"/proc/self/fd/{fd}"))
        super().pwrite(fd, octets, position)

    def truncate(self, fd: int, octets: int) -> None:
        """As Disk does.  On a full disk no file grows."""
        if self.full and octets > os.fstat(fd).st_size:
            raise self._no_space(os.readlink(f"/proc/self/fd/{fd}"))
        super().truncate(fd, octets)

    def make_directory(self, path: str) -> None:
        """As Disk does.  A full disk makes none."""
        if self.full:
            raise self._no_space(path)
        super().make_directory(path)

    def free_octets(self, path: str) -> int:
        """None while the disk is full."""
        return 0 if self.full else super().free_octets(path)

    @staticmethod
    def _no_space(path: str) -> OSError:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


class TemporaryDisk(FillableDisk):
    """A disk whose data need not outlast the machine: its syncs do nothing."""

    __slots__ = ()

    def replace(self, path: str, content: Octets, mode: int = 0o640) -> None:
        """As Disk does, where kill -9 is the worst that can happen.

        A rename that replaces a file takes longer than all else, because filesystems then write to the hardware.  So a
        new file is written in its place, and a small file of JSON is written over, with blanks behind it: the kernel
        writes one page whole or not at all."""
        try:
            former = os.stat(path, follow_symlinks=False).st_size
        except FileNotFoundError:
            former = 0
        if former and not (path.endswith(".json") and max(former, len(content)) <= PAGE_OCTETS):
            super().replace(path, content, mode)
            return
        fd = self.open(path, os.O_WRONLY | os.O_CREAT, mode)
        try:
            self.pwrite(fd, bytes(content).ljust(former), 0)
        finally:
            self.close(fd)

    def fsync(self, fd: int, path: str) -> None:
        """Nothing."""

    def fdatasync(self, fd: int, path: str) -> None:
        """Nothing."""

    def sync_directory(self, path: str) -> None:
        """Nothing."""

    def syncfs(self, fd: int, path: str) -> None:
        """Nothing."""


class ForgetfulDisk(FillableDisk):
    """A disk that knows what was synced.  It keeps a descriptor of each file, and in memory what each sync covered."""

    syncs_at_once = 1  # one after the other, so that a seed says what follows

    def __init__(self, root: str) -> None:
        super().__init__()
        self.root = root
        self.syncs: list[str] = []  # paths, in order; "syncfs" for all
        self.fail_syncs: OSError | None = None
        self._files: dict[int, bytes] = {}  # inode: content on disk
        self._entries: dict[int, dict[str, int]] = {}  # directory's inode: name -> inode
        self._held: dict[int, int] = {}  # inode: a descriptor, lest the number be used again
        self._everything_is_synced()

    def release(self) -> None:
        """Give all descriptors back."""
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()

    # --- what is watched

    def open(self, path: str, flags: int = os.O_RDONLY, mode: int = 0o640) -> int:
        """As Disk does."""
        fd = super().open(path, flags, mode)
        self._hold(path)
        return fd

    def fsync(self, fd: int, path: str) -> None:
        """Remember what is there."""
        self._synced(fd, path)

    def fdatasync(self, fd: int, path: str) -> None:
        """Remember what is there."""
        self._synced(fd, path)

    def syncfs(self, fd: int, path: str) -> None:
        """Remember all that is there."""
        if self.fail_syncs:
            raise self.fail_syncs
        self.syncs.append("syncfs")
        self._everything_is_synced()

    def _synced(self, fd: int, path: str) -> None:
        if self.fail_syncs:
            raise self.fail_syncs
        self.syncs.append(path)
        status = os.fstat(fd)
        real = f"/proc/self/fd/{fd}"
        if self.is_directory(fd):
            self._entries[status.st_ino] = self._names_now(real)
        else:
            self._hold(real)
            with open(real, "rb") as file:
                self._files[status.st_ino] = file.read()

    def _hold(self, path: str) -> int:
        """Keep a descriptor of what is there, and return its inode.  Raises OSError."""
        inode = os.stat(path).st_ino
        if inode not in self._held:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            inode = os.fstat(fd).st_ino  # Another thread may have put another file there meanwhile.
            self._held[inode] = fd
        return inode

    def _names_now(self, directory: str) -> dict[str, int]:
        names = {}
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            try:
                names[name] = self._hold(path)
            except OSError as error:  # A socket cannot be opened, and has no content; a file may just have gone.
                if error.errno not in (errno.ENXIO, errno.ENOENT):
                    raise
        return names

    def _everything_is_synced(self) -> None:
        for directory, _, files in os.walk(self.root):
            try:
                inode = self._hold(directory)
            except FileNotFoundError:  # Another thread removes it.
                continue
            names = self._entries[inode] = self._names_now(f"/proc/self/fd/{self._held[inode]}")
            for name in files:
                if name in names:
                    with open(f"/proc/self/fd/{self._held[names[name]]}", "rb") as file:
                        self._files[names[name]] = file.read()

    # --- the cut

    def lose_power(self, target: str, random: Random) -> None:
        """Write to the new folder ``target`` what is there after a power cut now."""
        os.mkdir(target)
        self._lose_directory(os.stat(self.root).st_ino, target, random)

    def _lose_directory(self, inode: int, target: str, random: Random) -> None:
        now = self._names_now(f"/proc/self/fd/{self._held[inode]}")
        for name, child in _some_of(self._entries.get(inode, {}), now, random).items():
            path = os.path.join(target, name)
            if self.is_directory(self._held[child]):
                os.mkdir(path)
                self._lose_directory(child, path, random)
            else:
                with open(path, "wb") as file:
                    file.write(self._lose_pages(child, random))

    def _lose_pages(self, inode: int, random: Random) -> bytes:
        with open(f"/proc/self/fd/{self._held[inode]}", "rb") as file:
            new = file.read()
        old = self._files.get(inode, b"")
        if old == new:
            return new
        length = random.choice((len(old), len(new)))
        pages = []
        for at in range(0, length, PAGE_OCTETS):
            page = random.choice((old, new))[at : at + PAGE_OCTETS]
            pages.append(page.ljust(min(PAGE_OCTETS, length - at), b"\0")[: length - at])
        return b"".join(pages)


def _some_of(old: dict[str, int], new: dict[str, int], random: Random) -> dict[str, int]:
    """Entries of a directory of which some changes reached the disk: names tied by a rename change together."""
    changed = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    result = {name: inode for name, inode in old.items() if name not in changed}
    while changed:
        group: set[str] = set()
        inodes: set[int] = set()
        front = {min(changed)}
        while front:
            group |= front
            inodes |= {entries[name] for entries in (old, new) for name in front if name in entries}
            front = {name for name in changed - group if old.get(name) in inodes or new.get(name) in inodes}
        chosen = random.choice((old, new))
        result |= {name: chosen[name] for name in group if name in chosen}
        changed -= group
    return result
