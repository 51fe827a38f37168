"""Copies one queue's files as they were at one instant: the part of a dump that knows the contents of files.

``take_cut`` runs on the loop.  For each file it takes down how many octets count and what the words of the header say,
and it gives the file a second name, so that the octets stay when the first name goes.  ``Copier`` copies them later, in
a thread.  Layouts are ``store.format``'s.
"""

import errno
import os
import struct
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.operations import OperationError
from brokerd.operations.files import NAMES, kept_segments, levels
from brokerd.queues.settings_line import describe_settings
from brokerd.store import format as layout
from brokerd.store import reading, side_file

if TYPE_CHECKING:
    from brokerd.queues.queue import Queue
    from brokerd.store.disk import Disk

CHUNK_OCTETS = 4 << 20
SYNC_OCTETS = 1 << 20  # files from this size on are synced one by one, so that not too much is dirty at the end
STEP_SECONDS = 0.1  # in the thread, before other work gets its turn
NO_SUCH_WAY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})


class Piece(NamedTuple):
    """A file to copy: its first ``octets``; then each patch (offset, octets) is written over the copy."""

    link: str
    target: str  # relative to the queue's folder
    octets: int
    patches: tuple[tuple[int, bytes], ...] = ()


class Cut(NamedTuple):
    """A queue at one instant.  ``facts``: its entry in the manifest, without what the files say."""

    directory: str
    max_priority: int
    pieces: list[Piece]
    live: dict[int, list[int]]  # numbers of segments in use, by level
    kept: list[tuple[str, int, frozenset[str]]]  # folder relative to the queue's, number, files
    order: bytes  # the file of counters; b"": none
    readers: bytes  # the file of a stream's named readers; b"": none
    missing: list[str]  # files that should have been there
    facts: dict[str, Any]


def take_cut(queue: "Queue", links: str, now_ns: int) -> Cut:
    """On the loop: take the cut of ``queue``.  ``links``: an empty folder of the same filesystem.  Raises OSError."""
    segments = queue.segments()
    live: dict[int, list[int]] = {}
    missing: list[str] = []
    pieces: list[Piece] = []
    for segment in segments:
        live.setdefault(segment["level"], []).append(segment["number"])
        pieces += _segment(queue.directory, segment, links, missing)
        if queue.stream is not None:
            pieces += _index(queue.directory, segment["number"], links)
    kept = []
    for level in levels(queue.directory, queue.max_priority):
        for number, there in kept_segments(os.path.join(queue.directory, level.path)).items():
            if "msgs" in there:  # Else retention is removing it.
                kept.append((level.path, number, frozenset(there)))
    counts = queue.order_counts()[0]
    facts = {
        "vhost": queue.vhost_name,
        "queue": queue.name,
        "folder": "/".join(queue.directory.split("/")[-2:]),
        "cut": max(now_ns, queue.last_ts),  # The times of a queue go on when the clock is put back.
        "settings": describe_settings(queue),
        "journaled": queue.journaled,
        "next_seq": queue.next_seq,
        "ready": queue.message_count,
        "unacked": queue.unacked,
        "counters": dict(zip(layout.ORDER_COUNTERS, counts, strict=True)),
    }
    order = layout.order_header() + struct.pack(f"<{len(counts)}Q", *counts) if any(counts) else b""
    readers = queue.tracked.octets() if queue.tracked is not None else b""
    return Cut(queue.directory, queue.max_priority, pieces, live, kept, order, readers, missing, facts)


def _segment(directory: str, segment: dict[str, Any], links: str, missing: list[str]) -> Iterator[Piece]:
    """The files of a segment in use."""
    number, level = segment["number"], segment["level"]
    path = layout.priority_folder(level) if level else ""
    linked = {}
    for kind, name in NAMES.items():
        there = _link(os.path.join(directory, path, name(number)), links, f"{level}-{name(number)}")
        if there is not None:
            linked[kind] = there
    if "msgs" not in linked:
        missing.append(os.path.join(path, layout.segment_name(number)))
    end, records, sealed = segment["end"], segment["records"], segment["sealed"]
    for kind, there in linked.items():
        target = os.path.join(path, NAMES[kind](number))
        if kind == "msgs":
            words = layout.WORDS.pack(*layout.word(end), *layout.word(records), *layout.word(sealed))
            yield Piece(there, target, end, ((layout.SEGMENT_WORDS_AT, words),))
        elif kind == "acks":
            entries = segment["entries"]
            delivered, settled = min(_word(there, layout.ACKS_WORDS_AT, end), end), segment["settled"]
            words = layout.WORDS.pack(*layout.word(delivered), *layout.word(entries), *layout.word(settled))
            octets = layout.HEADER_OCTETS + layout.ENTRY_OCTETS * entries
            yield Piece(there, target, octets, ((layout.ACKS_WORDS_AT, words),))
        elif kind == "chain":
            yield Piece(there, target, _whole_links(there))  # It covers only events from before the cut.
        else:
            # -1: the broker has not read its count yet, and so has not written into it either.
            events = segment["events"] if segment["events"] >= 0 else _word(there, _EVENTS_AT, 0)
            octets = layout.HEADER_OCTETS + layout.EVENT_OCTETS * events
            yield Piece(there, target, octets, ((_EVENTS_AT, struct.pack("<2I", *layout.word(events))),))


def _index(directory: str, number: int, links: str) -> Iterator[Piece]:
    """The index of a stream's segment.  It is written once, in one go."""
    name = layout.index_name(number)
    there = _link(os.path.join(directory, name), links, name)
    if there is not None:
        yield Piece(there, name, os.stat(there).st_size)


_EVENTS_AT = 32
_COUNTS = {  # of a settled segment: where the count stands, octets of each, octets before them
    "msgs": (layout.SEGMENT_WORDS_AT, 1, 0),
    "acks": (layout.ACKS_WORDS_AT + 8, layout.ENTRY_OCTETS, layout.HEADER_OCTETS),
    "journal": (_EVENTS_AT, layout.EVENT_OCTETS, layout.HEADER_OCTETS),
}


def _link(path: str, links: str, name: str) -> str | None:
    """Give a file a second name and return it; None: the file does not exist."""
    link = os.path.join(links, name)
    try:
        os.link(path, link)
    except FileNotFoundError:
        return None
    return link


def _whole_links(path: str) -> int:
    """How many octets of a hash chain count now: another thread may be adding links at the end."""
    octets = os.stat(path).st_size
    return octets - octets % layout.LINK_OCTETS


def _word(path: str, offset: int, otherwise: int) -> int:
    """A word of a file's header; ``otherwise`` if the word is not whole."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        octets = os.pread(fd, 8, offset)
    finally:
        os.close(fd)
    if len(octets) < 8:
        return otherwise
    value, complement = struct.unpack("<2I", octets)
    return value if layout.word_ok(value, complement) else otherwise


class Copier:
    """Copies a cut into ``folder``.  In the thread.

    ``octets`` counts what is copied.  ``files`` are those written, (path relative to ``folder``, octets, SHA-256 in
    hex, which is "" if no digests are wanted).  ``chains`` are the hash chains among them, (path, links, digest of the
    last one in hex).
    """

    __slots__ = ("_clock", "_cut", "_disk", "_links", "chains", "digests", "files", "folder", "octets", "segments")

    def __init__(
        self, cut: Cut, folder: str, links: str, disk: "Disk", monotonic: Callable[[], float], *, digests: bool = True
    ) -> None:
        self._cut = cut
        self._links = links
        self._disk = disk
        self._clock = monotonic
        self.digests = digests
        self.folder = folder
        self.octets = 0
        self.segments = 0
        self.files: list[tuple[str, int, str]] = []
        self.chains: list[tuple[str, int, str]] = []

    def copy(self, room: Callable[[], int]) -> Iterator[None]:
        """Copy all; yield every ``STEP_SECONDS``, so that other work gets its turn.  ``room()``: octets that may be
        written.

        Raises OperationError (500): there is not enough room; OSError.
        """
        cut, since = self._cut, self._clock()
        self._disk.make_directory(self.folder)
        self._write(layout.QUEUE_NAME_FILE, cut.facts["queue"].encode("utf-8", "surrogateescape"))
        kept: list[Piece] = []
        for path, number, there in cut.kept:
            kept += self._link_settled(path, number, there)
            if self._clock() - since > STEP_SECONDS:
                yield
                since = self._clock()
        needed, there_is = sum(piece.octets for piece in (*cut.pieces, *kept)), room()
        if needed > there_is:
            there_is = max(there_is, 0)
            raise OperationError(f"no space: {needed} octets are to be copied, and {there_is} may be written", 500)
        if cut.order:
            self._write(layout.ORDER_FILE, cut.order)
        if cut.readers:
            self._write(layout.READERS_FILE, cut.readers)
        for piece in (*cut.pieces, *kept):
            for _ in self._copy(piece):
                if self._clock() - since > STEP_SECONDS:
                    yield
                    since = self._clock()
        self._copy_log()

    def _link_settled(self, path: str, number: int, there: frozenset[str]) -> list[Piece]:
        """Give the files of a settled segment their second names; [] if retention has just removed one of them."""
        pieces = []
        for kind in sorted(there):
            name = NAMES[kind](number)
            target = os.path.join(path, layout.KEPT_FOLDER, name)
            link = _link(os.path.join(self._cut.directory, target), self._links, f"kept-{path}-{name}")
            if link is None:
                return []
            if kind == "chain":
                pieces.append(Piece(link, target, _whole_links(link)))
                continue
            at, each, before = _COUNTS[kind]
            size = os.stat(link).st_size
            pieces.append(Piece(link, target, min(before + each * _word(link, at, size), size)))
        return pieces

    def _copy(self, piece: Piece) -> Iterator[None]:
        """One file, a chunk at a time."""
        path = os.path.join(self.folder, piece.target)
        try:
            os.makedirs(os.path.dirname(path), 0o750, exist_ok=True)
            source = os.open(piece.link, os.O_RDONLY | os.O_CLOEXEC)
            try:
                target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
                try:
                    copied = 0
                    for count in copy_chunks(source, target, piece.octets):
                        copied += count
                        self.octets += count
                        yield
                    for offset, octets in piece.patches:
                        if offset + len(octets) <= copied:
                            self._disk.pwrite(target, octets, offset)
                    digest = yield from self._digest(target)
                    if copied >= SYNC_OCTETS:
                        self._disk.fdatasync(target, path)
                finally:
                    os.close(target)
            finally:
                os.close(source)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        self.files.append((piece.target, copied, digest))
        if os.path.basename(piece.target).startswith("chain."):
            self._note_chain(piece.target, path)
        self.segments += os.path.basename(piece.target).startswith("msgs.")

    def _digest(self, fd: int) -> Generator[None, None, str]:
        """The digest of a file of the copy, as it is now; a chunk at a time."""
        if not self.digests:
            return ""
        from hashlib import sha256  # A dump without digests needs none.

        hash_, done = sha256(), 0
        while octets := self._disk.pread(fd, CHUNK_OCTETS, done):
            hash_.update(octets)
            done += len(octets)
            yield
        return hash_.hexdigest()

    def _note_chain(self, target: str, path: str) -> None:
        """Take down the head of a chain, which is read from the copy."""
        number = int(path.rpartition(".")[2])
        try:
            chain = reading.read_chain(self._disk.read(path), number)
        except ValueError:
            chain = None  # An audit will say what is wrong with it.
        if chain is not None and chain.links:
            self.chains.append((target, len(chain.links), chain.links[-1].digest.hex()))

    def _write(self, name: str, octets: bytes) -> None:
        path = os.path.join(self.folder, name)
        fd = self._disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            self._disk.pwrite(fd, octets, 0)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            self._disk.close(fd)
        self.files.append((name, len(octets), reading.sha256(octets).hex() if self.digests else ""))

    def _copy_log(self) -> None:
        """Copy the side file up to the cut.  This thread writes its lines, so those from before the cut are there now.
        Later lines that name removed segments are copied too: the copy may lack these segments."""
        try:
            octets = self._disk.read(os.path.join(self._cut.directory, layout.SIDE_FILE))
        except FileNotFoundError:
            return
        cut = self._cut.facts["cut"]
        octets = side_file.without(octets, lambda line: line.get("what") != "removed" and _later(line, cut))
        if octets:
            self._write(layout.SIDE_FILE, octets)


def _later(line: dict[str, Any], cut_ns: int) -> bool:
    at = line.get("at")
    return isinstance(at, int) and at > cut_ns


def copy_chunks(source: int, target: int, octets: int) -> Iterator[int]:
    """Copy the first ``octets`` of a file, or all if it is shorter, to an empty one, by the quickest way that the
    kernel has.  Yields the number of octets after each chunk.  Raises OSError."""
    ways = [_by_range, _by_sendfile, _by_hand]
    done = 0
    while done < octets:
        try:
            count = ways[0](source, target, min(CHUNK_OCTETS, octets - done), done)
        except OSError as error:
            if error.errno not in NO_SUCH_WAY or len(ways) == 1:
                raise
            ways.pop(0)  # These two filesystems, or this kernel, do not have this way.
            continue
        if not count:
            if len(ways) == 1:
                return
            ways.pop(0)  # The file has an end there, or copy_file_range only believes so: some filesystems' say 0.
            continue
        done += count
        yield count


def _by_range(source: int, target: int, count: int, offset: int) -> int:
    return os.copy_file_range(source, target, count, offset, offset)


def _by_sendfile(source: int, target: int, count: int, offset: int) -> int:
    os.lseek(target, offset, os.SEEK_SET)
    return os.sendfile(target, source, offset, count)


def _by_hand(source: int, target: int, count: int, offset: int) -> int:
    return os.pwrite(target, os.pread(source, count, offset), offset)
