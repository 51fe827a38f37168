"""A model of power loss.

    disk = ForgetfulDisk(root)      all that is there now counts as synced
    ... run anything that syncs through it (writes may go past it: maps, the plane) ...
    disk.lose_power(target, random) writes to target what a machine could find after a power cut

For each file (by inode) its content as of its last sync is remembered, for each directory
its entries as of its last fsync.  Then each 4 KiB page that differs, each length, and each
change of a name is at random old or new; a rename is one change, with the file it replaced.
Harsher than ext4, which keeps the order of names.
"""

import os
from random import Random

from brokerd.store.disk import Disk

PAGE_OCTETS = 4096


class ForgetfulDisk(Disk):


    def __init__(self, root: str) -> None:
        self.root = root
        self.syncs: list[str] = []                      # Paths, in order; "syncfs" for all.
        self.fail_syncs: OSError | None = None
        self._files: dict[int, bytes] = {}              # inode: content on disk
        self._entries: dict[int, dict[str, int]] = {}   # directory's inode: name -> inode
        self._held: dict[int, int] = {}                 # inode: a descriptor, lest the number be used again
        self._everything_is_synced()

    def release(self) -> None:
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()

    # --- what is watched

    def open(self, path, flags=os.O_RDONLY, mode=0o640):
        fd = super().open(path, flags, mode)
        self._hold(path)
        return fd

    def fsync(self, fd, path):
        self._synced(fd, path)

    def fdatasync(self, fd, path):
        self._synced(fd, path)

    def syncfs(self, fd, path):
        if self.fail_syncs:
            raise self.fail_syncs
        self.syncs.append("syncfs")
        self._everything_is_synced()

    def _synced(self, fd, path):
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

    def _hold(self, path):
        inode = os.stat(path).st_ino
        if inode not in self._held:
            self._held[inode] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _names_now(self, directory):
        names = {}
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            self._hold(path)
            names[name] = os.stat(path).st_ino
        return names

    def _everything_is_synced(self):
        for directory, _, files in os.walk(self.root):
            self._hold(directory)
            self._entries[os.stat(directory).st_ino] = self._names_now(directory)
            for name in files:
                with open(os.path.join(directory, name), "rb") as file:
                    self._files[os.stat(file.fileno()).st_ino] = file.read()

    # --- the cut

    def lose_power(self, target: str, random: Random) -> None:
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
            page = random.choice((old, new))[at:at + PAGE_OCTETS]
            pages.append(page.ljust(min(PAGE_OCTETS, length - at), b"\0")[:length - at])
        return b"".join(pages)


def _some_of(old: dict[str, int], new: dict[str, int], random: Random) -> dict[str, int]:
    """Entries of a directory of which some changes reached the disk: names tied by a rename change together."""
    changed = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    result = {name: inode for name, inode in old.items() if name not in changed}
    while changed:
        group, inodes = set(), set()
        front = {min(changed)}
        while front:
            group |= front
            inodes |= {entries[name] for entries in (old, new) for name in front if name in entries}
            front = {n for n in changed - group if old.get(n) in inodes or new.get(n) in inodes}
        chosen = random.choice((old, new))
        result |= {name: chosen[name] for name in group if name in chosen}
        changed -= group
    return result
