"""Follows the files of queues with an order journal: what was added to segments and journals since the last look.

Numbers of segments rise in a folder, so a number above the highest one that was seen is new.  A segment moves into the
folder ``kept`` when all its messages are settled, with its journal.  It is read there once more, and then left alone.
Compaction gives a segment a new generation: then it is read from its beginning, without what was read already.

The journal's count of events is read before the segment, so that each event's record has been read before the event is
told.  What was there at the beginning is not told.  A look that takes much of the processor makes
the next one later.
"""

import os
from collections.abc import Callable, Iterator
from io import FileIO
from time import monotonic, thread_time, time_ns

import numpy as np

from brokerd.audit.properties import texts
from brokerd.spans.lives import Lives, Place, read_traceparent
from brokerd.store import format as layout
from brokerd.store import reading

EVERY_SECONDS = 1.0
SHARE = 1 / 20  # of a core, for looks
WALK_SECONDS = 5.0  # between looks for new folders
PIECE_OCTETS = 16 << 20  # of a segment that are read at once
NAME = "traceparent"
_HEX = frozenset("0123456789abcdef")


class _Segment:
    """How much of a segment and its journal was read."""

    __slots__ = ("events", "generation", "offset", "seq")

    def __init__(self) -> None:
        self.offset, self.events = layout.HEADER_OCTETS, 0
        self.generation = self.seq = 0


class Folder:
    """One folder of segments: a queue, or one priority of it."""

    def __init__(self, path: str, place: Place, inode: int) -> None:
        self.path, self.place, self.inode = path, place, inode
        self.open: dict[int, _Segment] = {}
        self.highest = 0

    def look(self, limit: "Limit", lives: Lives) -> None:
        """Tell what is new.  Raises OSError if the folder has gone."""
        here, kept = _numbers(self.path), _numbers(os.path.join(self.path, layout.KEPT_FOLDER))
        for number in sorted(each for each in here | kept if each > self.highest):
            self.open[number] = _Segment()
            self.highest = number
        for number, segment in list(self.open.items()):
            folder = self.path if number in here else os.path.join(self.path, layout.KEPT_FOLDER)
            try:
                self._read(folder, number, segment, limit, lives)
            except FileNotFoundError:  # It moves just now, or was removed.
                if number not in here and number not in kept:
                    del self.open[number]
                continue
            if number not in here:
                del self.open[number]

    def skip(self) -> None:
        """What is there by now is not told: only heads of files are read.  Raises OSError if the folder has gone."""
        here, kept = _numbers(self.path), _numbers(os.path.join(self.path, layout.KEPT_FOLDER))
        self.highest = max(here | kept, default=0)
        for number in here:
            segment, (msgs, journal) = _Segment(), _paths(self.path, number)
            try:
                with open(journal, "rb", 0) as file:
                    segment.events = _word(file.read(layout.HEADER_OCTETS), 32, layout.JOURNAL_MAGIC)
                with open(msgs, "rb", 0) as file:
                    head = file.read(layout.HEADER_OCTETS)
            except FileNotFoundError:
                continue  # It moves just now: it is settled.
            segment.offset = max(_word(head, 40, layout.SEGMENT_MAGIC), layout.HEADER_OCTETS)
            segment.generation = int.from_bytes(head[32:36], "little")
            self.open[number] = segment

    def _read(self, folder: str, number: int, segment: _Segment, limit: "Limit", lives: Lives) -> None:
        msgs, journal = _paths(folder, number)
        with open(journal, "rb", 0) as file:
            count = _word(file.read(layout.HEADER_OCTETS), 32, layout.JOURNAL_MAGIC)
            file.seek(layout.HEADER_OCTETS + layout.EVENT_OCTETS * segment.events)
            octets = file.read(layout.EVENT_OCTETS * max(count - segment.events, 0))
        with open(msgs, "rb", 0) as file:
            while self._read_records(file, segment, limit, lives):
                pass
        events = np.frombuffer(octets, reading.event_dtype(), len(octets) // layout.EVENT_OCTETS)
        segment.events += events.size
        for event in events[events["type"] != layout.STARTED].tolist():
            seq, ts, consumer, _aux, _count, type_, reason, _crc = event
            lives.happened(self.place, seq, ts, type_, reason, consumer)

    def _read_records(self, file: FileIO, segment: _Segment, limit: "Limit", lives: Lives) -> bool:
        """Read a piece of the segment.  Whether there may be more."""
        file.seek(0)
        head = file.read(layout.HEADER_OCTETS)
        end = _word(head, 40, layout.SEGMENT_MAGIC)
        generation = int.from_bytes(head[32:36], "little")
        if generation != segment.generation:
            segment.generation, segment.offset = generation, layout.HEADER_OCTETS
        if end <= segment.offset:
            return False
        file.seek(segment.offset)
        octets = head + file.read(min(end - segment.offset, PIECE_OCTETS))
        records = reading.scan_records(octets, len(octets))
        if not records.positions.size:
            length = int.from_bytes(octets[68:72], "little") if len(octets) >= 72 else 0
            is_large = len(octets) == layout.HEADER_OCTETS + PIECE_OCTETS and length > PIECE_OCTETS
            limit.missed += is_large
            segment.offset = segment.offset + (length + 7 & ~7) if is_large else end
            return True
        last = int(records.positions[-1]) + int(records.headers["length"][-1]) + 7 & ~7
        segment.offset += last - layout.HEADER_OCTETS
        self._tell(octets, records, segment, limit, lives)
        return True

    def _tell(self, octets: bytes, records: reading.Records, segment: _Segment, limit: "Limit", lives: Lives) -> None:
        former, segment.seq = segment.seq, max(segment.seq, int(records.headers["seq"][-1]))
        where = texts(octets, records, NAME, header=True)
        for index, start, length in zip(where.index.tolist(), where.start.tolist(), where.length.tolist(), strict=True):
            header = records.headers[index]
            if int(header["seq"]) <= former or int(header["ts"]) < limit.since:
                continue
            parent = read_traceparent(octets[start:start + length].decode("latin-1"))
            if parent is None or not lives.is_wanted(parent) or not limit.take():
                continue
            exchange, key = _route(octets, int(records.positions[index]), int(header["meta_len"]))
            lives.came(self.place, int(header["seq"]), int(header["ts"]), parent, exchange, key)


class Limit:
    """How many messages are told a second, and since when."""

    def __init__(self, a_second: int, now: Callable[[], float] = monotonic) -> None:
        self._a_second, self._left = a_second, float(a_second)
        self._now = now
        self._at = now()
        self.since = time_ns()
        self.missed = 0

    def take(self) -> bool:
        """Whether there is room for one more message; one without is counted as missed."""
        now = self._now()
        self._left = min(float(self._a_second), self._left + (now - self._at) * self._a_second)
        self._at = now
        if self._left < 1:
            self.missed += 1
            return False
        self._left -= 1
        return True


class Follower:
    """All folders of a data directory."""

    def __init__(self, data_dir: str, lives: Lives, limit: Limit) -> None:
        self._data_dir, self._lives, self._limit = data_dir, lives, limit
        self._folders: dict[str, Folder] = {}
        self._walk_at = 0.0
        self._walk(skip=True)

    def look(self) -> float:
        """Tell what is new to ``lives``.  Returns after how many seconds to look again."""
        begun = thread_time()
        if monotonic() >= self._walk_at:
            self._walk(skip=False)
        for path, folder in list(self._folders.items()):
            try:
                folder.look(self._limit, self._lives)
            except OSError:
                del self._folders[path]  # The queue was deleted.  The next walk finds one of its name.
        return max(EVERY_SECONDS, (thread_time() - begun) / SHARE)

    def _walk(self, *, skip: bool) -> None:
        begun = thread_time()
        found = dict(_folders(self._data_dir))
        for path, (inode, vhost, queue, priority) in found.items():
            known = self._folders.get(path)
            if known is not None and known.inode == inode:
                continue
            place = Place(vhost, queue, priority, f"{path} {inode} ".encode())
            self._folders[path] = folder = Folder(path, place, inode)
            if skip:
                try:
                    folder.skip()
                except OSError:
                    del self._folders[path]
        for path in self._folders.keys() - found.keys():
            del self._folders[path]
        self._walk_at = monotonic() + max(WALK_SECONDS, (thread_time() - begun) / SHARE)


def _folders(data_dir: str) -> Iterator[tuple[str, tuple[int, str, str, int]]]:
    """Each folder of segments of a queue with an order journal: its path, inode, vhost, queue and priority."""
    for vhost in _inside(data_dir):
        vhost_name = _text(os.path.join(vhost, ".vhost"))
        for queue in _inside(vhost) if vhost_name is not None else ():
            if not os.path.exists(os.path.join(queue, layout.SIDE_FILE)):
                continue
            name = _text(os.path.join(queue, layout.QUEUE_NAME_FILE))
            try:
                levels = [each for each in os.listdir(queue) if each.startswith("prio.") and each[5:].isdigit()]
                for path, priority in [(queue, 0), *((os.path.join(queue, each), int(each[5:])) for each in levels)]:
                    yield path, (os.stat(path).st_ino, vhost_name or "", name or "", priority)
            except OSError:
                continue


def _inside(folder: str) -> list[str]:
    """The folders in it that are named by a SHA-1."""
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder) if len(name) == 40 and _HEX.issuperset(name)]
    except OSError:
        return []


def _text(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read(layout.LONG_META).decode("utf-8", "replace")
    except OSError:
        return None


def _paths(folder: str, number: int) -> tuple[str, str]:
    """Of a segment and of its journal."""
    name = layout.segment_name(number)
    return os.path.join(folder, name), os.path.join(folder, name.replace("msgs", "journal"))


def _numbers(folder: str) -> set[int]:
    """Of the journals in it."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return set()
    return {int(name[8:]) for name in names if name.startswith("journal.") and name[8:].isdigit()}


def _word(head: bytes, at: int, magic: int) -> int:
    """A word of a file's header; 0 if the header is not whole."""
    if len(head) < layout.HEADER_OCTETS or int.from_bytes(head[:4], "little") != magic:
        return 0
    value, complement = int.from_bytes(head[at:at + 4], "little"), int.from_bytes(head[at + 4:at + 8], "little")
    return value if value ^ complement == 0xFFFFFFFF else 0


def _route(octets: bytes, at: int, meta_len: int) -> tuple[str, str]:
    """The exchange and the routing key of the record there."""
    at += layout.HEADER_OCTETS + (4 if meta_len == layout.LONG_META else 0)
    exchange = octets[at + 1:at + 1 + octets[at]]
    at += 1 + octets[at]
    return exchange.decode("utf-8", "replace"), octets[at + 1:at + 1 + octets[at]].decode("utf-8", "replace")
