"""Writes the hash chains beside order journals, off the path of messages (layout: ``store/format``, CHAIN).

    sync of a journal  -> full_blocks() before it -> grow() behind it: links for blocks that are full and on disk
    segment settled    -> cut to size and synced  -> finish(): the last events, then all entries of its acks file

A chain never covers what a power cut could take: its blocks are on disk before their links are made, and the links are
on disk when these functions return.  So a chain may be shorter than its journal, and contradicts only a journal that
was changed.  A chain that is not that of the journal beside it is left as it is, as evidence.

Keeps no state between calls: the file has it.  Everything here may block, raises OSError, and needs no lock of Python
while it hashes.
"""

import contextlib
import os
from collections.abc import Callable
from typing import NamedTuple

from brokerd.store import format as layout
from brokerd.store import reading
from brokerd.store.disk import Disk

_COUNT_AT = {layout.OF_EVENTS: 32, layout.OF_ENTRIES: layout.ACKS_WORDS_AT + 8}  # of events, of entries
_UNIT = {layout.OF_EVENTS: layout.EVENT_OCTETS, layout.OF_ENTRIES: layout.ENTRY_OCTETS}


class Foreign(Exception):
    """The chain there is not that of the journal beside it, or cannot be read; the text is one line."""


class Grown(NamedTuple):
    """A chain that has more links now.  ``begun`` (ns) is the journal's; ``head``: the last digest, in hex.

    ``octets``: how many were hashed for the new links.  ``more``: there is more to do.
    """

    number: int
    begun: int
    blocks: int
    head: str
    octets: int
    more: bool


def full_blocks(fd: int, disk: Disk) -> int:
    """How many full blocks the events in an open journal are, by its header."""
    return (_counted(disk.pread(fd, layout.HEADER_OCTETS, 0), layout.OF_EVENTS) or 0) // layout.BLOCK_OCTETS


def is_shorter(folder: str, number: int, blocks: int, disk: Disk) -> bool:
    """Whether the chain in ``folder`` has fewer links than that."""
    stamp = disk.stamp(f"{folder}/{layout.chain_name(number)}")
    return stamp is None or stamp[1] < layout.HEADER_OCTETS + blocks * layout.LINK_OCTETS


def grow(folder: str, number: int, blocks: int, disk: Disk, now: Callable[[], int], most: int) -> Grown | None:
    """Make the links for the first ``blocks`` blocks of events, which are on disk; ``most``: octets in one call.

    None: there was nothing to do, or the journal is gone.  Raises OSError, Foreign."""
    with _Writer(folder, number, disk, now) as writer:
        if not writer.begin():
            return None
        while writer.blocks < blocks and not writer.ended and writer.hashed < most:
            if not writer.add(layout.OF_EVENTS, layout.BLOCK_OCTETS, last=False):
                break
        return writer.write(more=writer.blocks < blocks and writer.hashed >= most)


def finish(folder: str, number: int, disk: Disk, now: Callable[[], int], *, begin: bool = True) -> Grown | None:
    """Make all links that are still missing.  The journal and the acks file do not change any more, and both are
    on disk.

    ``begin`` False: only if there is a chain already.  None: there was nothing to do, or the journal is gone.  Raises
    OSError, Foreign."""
    if os.path.basename(folder) == layout.KEPT_FOLDER:
        _stay_moved(folder, number, disk)
    if not begin and not disk.exists(f"{folder}/{layout.chain_name(number)}"):
        return None
    with _Writer(folder, number, disk, now) as writer:
        if not writer.begin():
            return None
        writer.add_rest(layout.OF_EVENTS)
        writer.add_rest(layout.OF_ENTRIES)
        return writer.write(more=False)


def _stay_moved(folder: str, number: int, disk: Disk) -> None:
    """A segment that the data plane has moved into ``kept`` can come back by no power cut from here on.

    Else it would come back as one that takes events, behind the last of its chain.
    """
    _take_along(folder, number, disk)
    disk.sync_directory(folder)
    disk.sync_directory(os.path.dirname(folder))


def _take_along(folder: str, number: int, disk: Disk) -> None:
    """Move a chain into ``kept``, where the data plane has moved its segment."""
    above = os.path.dirname(folder)
    chain = layout.chain_name(number)
    if not disk.exists(f"{folder}/{chain}"):
        with contextlib.suppress(FileNotFoundError):
            disk.rename(f"{above}/{chain}", f"{folder}/{chain}")


class _Writer:
    """One chain while links are added to it."""

    def __init__(self, folder: str, number: int, disk: Disk, now: Callable[[], int]) -> None:
        self._folder, self._number, self._disk, self._now = folder, number, disk, now
        self._path = f"{folder}/{layout.chain_name(number)}"
        self._fds: dict[int, int] = {}  # of the files that the links are of
        self._chain = -1
        self._begun = 0
        self._before = b""  # the digest of the last link
        self._links: list[reading.Link] = []
        self._written = 0  # of the links: those that are in the file
        self._new = False  # the file must be made
        self.hashed = 0

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (*self._fds.values(), self._chain):
            if fd >= 0:
                self._disk.close(fd)

    @property
    def blocks(self) -> int:
        return len(self._links)

    @property
    def ended(self) -> bool:
        """Whether all events have their links."""
        return any(link.last for link in self._links)

    def begin(self) -> bool:
        """Open the journal, and read its chain.  False: there is no journal.  Raises Foreign."""
        fd = self._open(layout.OF_EVENTS)
        header = self._disk.pread(fd, layout.HEADER_OCTETS, 0) if fd >= 0 else b""
        if len(header) < layout.HEADER_OCTETS or header[:4] != layout.JOURNAL_MAGIC.to_bytes(4, "little"):
            return False
        self._begun = layout.JOURNAL_FIXED.unpack_from(header)[3]
        try:
            octets = self._disk.read(self._path)
        except FileNotFoundError:
            octets = b""
        self._new = not any(octets[: layout.HEADER_OCTETS])
        if self._new:
            self._before = reading.sha256(reading.chain_start(self._number, self._begun)[:32])
            return True
        try:
            chain = reading.read_chain(octets, self._number)
        except ValueError as error:
            raise Foreign(f"{self._path}: {error}") from None
        if chain is None:
            raise Foreign(f"{self._path}: its header is damaged; no links are added to it")
        if chain.begun != self._begun:
            raise Foreign(f"{self._path}: it is not the chain of the journal beside it; no links are added to it")
        self._links, self._written = chain.links, len(chain.links)
        self._before = chain.links[-1].digest if chain.links else chain.start
        return True

    def add(self, of: int, octets: int, *, last: bool) -> bool:
        """Make the next link, for so many octets.  False: the file does not have them."""
        mine = [link for link in self._links if link.of == of]
        at = mine[-1].at + mine[-1].octets if mine else layout.HEADER_OCTETS
        block = self._disk.pread(self._open(of), octets, at) if octets else b""
        if len(block) < octets:
            return False
        link = reading.Link(of, last, octets, at, self._now(), b"")
        self._before = reading.sha256(self._before, link.head, block)
        self._links.append(link._replace(digest=self._before))
        self.hashed += octets
        return True

    def add_rest(self, of: int) -> None:
        """Make all links that a file still lacks.  Nothing if it is missing, or has its last link."""
        mine = [link for link in self._links if link.of == of]
        if (mine and mine[-1].last) or self._open(of) < 0:
            return
        at = mine[-1].at + mine[-1].octets if mine else layout.HEADER_OCTETS
        left = max(_end(self._open(of), of, self._disk) - at, 0)
        while left > layout.BLOCK_OCTETS and self.add(of, layout.BLOCK_OCTETS, last=False):
            left -= layout.BLOCK_OCTETS
        if left <= layout.BLOCK_OCTETS:
            self.add(of, left, last=True)

    def write(self, *, more: bool) -> Grown | None:
        """Put the new links on disk.  None: no link is new."""
        new = self._links[self._written :]
        if not new:
            return None
        disk = self._disk
        self._chain = disk.open(self._path, os.O_RDWR | os.O_CREAT)
        if self._new:
            disk.pwrite(self._chain, reading.chain_start(self._number, self._begun), 0)
        end = layout.HEADER_OCTETS + self._written * layout.LINK_OCTETS
        if disk.size(self._chain) > end:
            disk.truncate(self._chain, end)  # A power cut left a part of what was written.
        disk.pwrite(self._chain, b"".join([reading.encode_link(link, self._number) for link in new]), end)
        disk.fdatasync(self._chain, self._path)
        if self._new:
            self._stand_beside_the_journal()
            disk.sync_directory(os.path.dirname(self._path))
        return Grown(self._number, self._begun, len(self._links), self._before.hex(), self.hashed, more)

    def _stand_beside_the_journal(self) -> None:
        """The data plane may have moved the journal into ``kept`` since it was opened."""
        journal = layout.journal_name(self._number)
        if not self._disk.exists(f"{self._folder}/{journal}"):
            kept = f"{self._folder}/{layout.KEPT_FOLDER}"
            if self._disk.exists(f"{kept}/{journal}"):
                _take_along(kept, self._number, self._disk)
                self._path = f"{kept}/{layout.chain_name(self._number)}"

    def _open(self, of: int) -> int:
        """The open journal or acks file; -1: it is missing."""
        if of not in self._fds:
            name = layout.journal_name(self._number) if of == layout.OF_EVENTS else layout.acks_name(self._number)
            try:
                self._fds[of] = self._disk.open(f"{self._folder}/{name}")
            except FileNotFoundError:
                self._fds[of] = -1
        return self._fds[of]


def _counted(header: bytes, of: int) -> int | None:
    """How many octets of events or entries a header counts; None: it does not say."""
    at = _COUNT_AT[of]
    value, complement = (int.from_bytes(header[i : i + 4], "little") for i in (at, at + 4))
    return value * _UNIT[of] if len(header) == layout.HEADER_OCTETS and layout.word_ok(value, complement) else None


def _end(fd: int, of: int, disk: Disk) -> int:
    """The position behind the last event or entry of a file that does not change any more."""
    counted = _counted(disk.pread(fd, layout.HEADER_OCTETS, 0), of)
    size = disk.size(fd)
    if counted is not None and layout.HEADER_OCTETS + counted <= size:
        end = layout.HEADER_OCTETS + counted
        if not any(disk.pread(fd, _UNIT[of], end)):
            return end
    # The broker died between an event and its count, or power was lost.
    written = len(disk.pread(fd, size, 0).rstrip(b"\0")) - layout.HEADER_OCTETS
    return layout.HEADER_OCTETS + -(-max(written, 0) // _UNIT[of]) * _UNIT[of]
