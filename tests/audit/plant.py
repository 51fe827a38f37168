"""Faults put into the files of a queue by hand, so that an audit has exactly that many to find.

    story = Story(folder)               a queue's folder, as a broker left it, with an order journal
    planted = plant(story, "fifo", 7)   seven messages that were handed out before their turn
    story.save()                        files written anew, all sums right

Every fault is a small change of what really happened: an event is moved, one is taken out, one is added at a time at
which nothing else was.  ``PLANTS`` says of each audit how; ``planted.touches`` names the other audits that may see the
same fault.  Knows the formats, and nothing of audits.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from brokerd.store import format as layout
from brokerd.store import reading
from brokerd.store.format import ACKED, DELIVERED, REDELIVERED, RETURNED, STARTED

EVENT = np.dtype([("seq", "<u8"), ("ts", "<i8"), ("consumer", "<u4"), ("aux", "<u4"), ("count", "<u2"), ("type", "u1"),
                  ("reason", "u1"), ("crc", "<u4"), ("part", "<i4"), ("fresh", "?")])
DISTANCE = 8            # messages between two faults: none may see the other
DUPLICATE_SECONDS = 60  # at most between a message and its double
MESSAGE_ID_BIT = 7
# Of the properties before message-id: (bit of the flags, octets; 0: a shortstr, -1: a table).
BEFORE_MESSAGE_ID = ((15, 0), (14, 0), (13, -1), (12, 1), (11, 1), (10, 0), (9, 0), (8, 0))


class Planted(NamedTuple):
    """``seqs``: the messages that are wrong now, one each for a finding."""

    audit: str
    seqs: list[int]
    touches: frozenset[str] = frozenset()


class Part:
    """One segment with its acks and its journal."""

    def __init__(self, folder: str, level: int, number: int) -> None:
        self.folder, self.level, self.number = folder, level, number
        with open(self.path("msgs"), "rb") as file:
            octets = file.read()
        header = np.frombuffer(octets, reading.segment_dtype(), 1)[0]
        self.octets = bytearray(octets[:int(header["end"])])
        found = reading.scan_records(bytes(self.octets), len(self.octets))
        assert not found.gaps, self.path("msgs")
        self.headers, self.positions = found.headers, found.positions
        self.entries = self._words("acks", reading.entry_dtype())
        self.events = self._words("journal", reading.event_dtype())
        self.changed: set[str] = set()

    def path(self, kind: str) -> str:
        return f"{self.folder}/{kind}.{self.number:010d}"

    def _words(self, kind: str, dtype: np.dtype) -> np.ndarray:
        try:
            with open(self.path(kind), "rb") as file:
                octets = file.read()
        except FileNotFoundError:
            return np.empty(0, dtype)
        count = int.from_bytes(octets[32:36], "little")
        return np.frombuffer(octets, dtype, count, layout.HEADER_OCTETS).copy()

    def span(self, index: int) -> tuple[int, int]:
        """Where a record begins and ends, without padding."""
        start = int(self.positions[index])
        return start, start + int(self.headers["length"][index])

    def sign(self, index: int) -> None:
        """Give a record that was changed its sum."""
        start, stop = self.span(index)
        crc = layout.record_crc(bytes(self.octets[start:stop]), self.number)
        self.octets[start + 8:start + 12] = crc.to_bytes(4, "little")
        self.changed.add("msgs")

    def cut(self, index: int) -> None:
        """Take a record out, as if it had never been appended."""
        start, stop = self.span(index)
        octets = layout.round_up(stop - start)
        del self.octets[start:start + octets]
        self.octets[40:56] = layout.WORDS.pack(*layout.word(len(self.octets)), *layout.word(len(self.positions) - 1),
                                               0, 0)[:16]
        self.headers, self.positions = np.delete(self.headers, index), np.delete(self.positions, index)
        self.positions[index:] -= octets
        self.entries = self.entries[self.entries["position"] != start]
        self.entries["position"][self.entries["position"] > start] -= octets
        self._move_cursor(start, octets)
        self.changed |= {"msgs", "acks"}

    def _move_cursor(self, start: int, octets: int) -> None:
        """The cursor stands before the same record as it did, or behind the last one."""
        if os.path.exists(self.path("acks")):
            with open(self.path("acks"), "r+b") as file:
                below = int.from_bytes(file.read(layout.HEADER_OCTETS)[24:28], "little")
                if below > start:
                    file.seek(24)
                    file.write(layout.WORDS.pack(*layout.word(below - octets), 0, 0, 0, 0)[:8])

    def forget(self, index: int) -> None:
        """Take out what the acks say of a record."""
        self.entries = self.entries[self.entries["position"] != self.positions[index]]
        self.changed.add("acks")

    def save(self, events: np.ndarray) -> None:
        if "msgs" in self.changed:
            self._write("msgs", bytes(self.octets))
        if "acks" in self.changed and os.path.exists(self.path("acks")):
            self.entries["check"] = reading.entry_checks(self.entries, self.number)
            settled = reading.settled_positions(self.entries).size
            words = layout.WORDS.pack(0, 0, *layout.word(len(self.entries)), *layout.word(int(settled)))[8:]
            self._write("acks", words + bytes(16) + self.entries.tobytes(), 32)
        if "journal" in self.changed:
            octets = b"".join(self._event(event) for event in events)
            words = layout.WORDS.pack(*layout.word(len(events)), 0, 0, 0, 0)[:8]
            with open(self.path("journal"), "rb") as file:
                rest = file.read(layout.HEADER_OCTETS)[40:]
            self._write("journal", words + rest + octets, 32)
        self.changed.clear()

    def _event(self, e: np.void) -> bytes:
        octets = layout.EVENT.pack(*(int(e[name]) for name in ("seq", "ts", "consumer", "aux", "count", "type",
                                                              "reason")))
        if not e["fresh"]:
            return octets + int(e["crc"]).to_bytes(4, "little")
        return layout.event(self.number, int(e["seq"]), int(e["ts"]), int(e["type"]), int(e["reason"]),
                            consumer=int(e["consumer"]), aux=int(e["aux"]), count=int(e["count"]))

    def _write(self, kind: str, octets: bytes, at: int = 0) -> None:
        """Write, and leave nothing behind it."""
        with open(self.path(kind), "r+b") as file:
            file.seek(at)
            file.write(octets)
            file.truncate()


class Story:
    """All that happened to a queue's messages; rows of ``events`` in order of time, of ``seqs`` and its columns in
    order of sequence numbers.  ``most``: only so many of a level's first segments."""

    def __init__(self, folder: str, most: int | None = None) -> None:
        self.folder = str(folder)
        self.parts = [Part(*where) for level, where_all in sorted(segments(self.folder).items())
                      for where in where_all[:most]]
        events = [np.zeros(part.events.size, EVENT) for part in self.parts]
        for at, (rows, part) in enumerate(zip(events, self.parts, strict=True)):
            for name in part.events.dtype.names:
                rows[name] = part.events[name]
            rows["part"] = at
        self.events = np.concatenate(events)
        counts = [part.positions.size for part in self.parts]
        seqs = np.concatenate([part.headers["seq"] for part in self.parts]).astype(np.int64)
        order = np.argsort(seqs)
        self.seqs = seqs[order]
        self.part = np.repeat(np.arange(len(counts)), counts)[order]
        self.index = np.concatenate([np.arange(n) for n in counts])[order]
        self.ts = np.concatenate([part.headers["ts"] for part in self.parts])[order]
        self.level = np.array([part.level for part in self.parts])[self.part]
        self.look()

    def look(self) -> None:
        """Put the columns in order again, after events were changed."""
        self.events = self.events[np.argsort(self.events["ts"], kind="stable")]
        events, size = self.events, self.seqs.size
        starts = events[(events["type"] == STARTED)]
        self.last_start = int(starts["ts"].max()) if starts.size else 0
        life = np.flatnonzero(events["type"] != STARTED)
        row = np.searchsorted(self.seqs, events["seq"][life].astype(np.int64))
        kinds = events["type"][life]
        self.deliveries = np.bincount(row[kinds == DELIVERED], minlength=size)
        self.returns = np.bincount(row[kinds == RETURNED], minlength=size)
        self.first = self._place(row, life, kinds == DELIVERED, first=True)
        self.settled = self._place(row, life, (kinds != DELIVERED) & (kinds != RETURNED), first=True)
        ended = np.zeros(size, np.uint8)
        ended[self.settled >= 0] = events["type"][self.settled[self.settled >= 0]]
        self.ended = ended
        self.times = np.sort(np.concatenate((self.ts, events["ts"])))

    def _place(self, row: np.ndarray, life: np.ndarray, which: np.ndarray, *, first: bool) -> np.ndarray:
        """For each message the place of its first event of those, -1: none."""
        places = np.full(self.seqs.size, -1)
        step = -1 if first else 1
        places[row[which][::step]] = life[which][::step]
        return places

    def simple(self) -> np.ndarray:
        """Which messages were handed out once, acked, and nothing else."""
        return (self.deliveries == 1) & (self.returns == 0) & (self.ended == ACKED)

    def event_ts(self, places: np.ndarray) -> np.ndarray:
        """Times of events; -1 where there is none."""
        return np.where(places >= 0, self.events["ts"][places], -1)

    def has_room(self, after: np.ndarray, count: int) -> np.ndarray:
        """Whether in so many ns behind each of these times nothing happened."""
        place = np.searchsorted(self.times, after, "right")
        following = np.append(self.times, np.iinfo(np.int64).max)[place]
        return following - after > count

    def row(self, seq: int) -> int:
        return int(np.searchsorted(self.seqs, seq))

    # --- changes

    def touch(self, places: Iterable[int]) -> None:
        for place in places:
            self.events["fresh"][place] = True
            self.parts[int(self.events["part"][place])].changed.add("journal")

    def move(self, place: int, ts: int) -> None:
        """An event happens at another time."""
        self.events["ts"][place] = ts
        self.touch((place,))

    def add(self, seq: int, ts: int, kind: int, reason: int = 0, *, like: int) -> None:
        """One more event of a message; the rest as in the event at ``like``."""
        row = self.events[like:like + 1].copy()
        row["seq"], row["ts"], row["type"], row["reason"] = seq, ts, kind, reason
        row["part"], row["fresh"] = self.part[self.row(seq)], True
        self.events = np.concatenate((self.events, row))
        self.touch((self.events.size - 1,))

    def tell(self, row: int, kind: int, times: int = 1) -> None:
        """Let the acks say ``kind`` (type and reason) of a message, before they settle it."""
        part, index = self.record(row)
        entry = np.zeros(1, part.entries.dtype)
        entry["position"], entry["kind"] = part.positions[index], kind
        own = np.flatnonzero(part.entries["position"] == part.positions[index])
        part.entries = np.insert(part.entries, int(own[-1]) if own.size else part.entries.size, entry.repeat(times))
        part.changed.add("acks")

    def remove(self, places: Iterable[int]) -> None:
        places = list(places)
        self.touch(places)
        self.events = np.delete(self.events, places)

    def record(self, row: int) -> tuple[Part, int]:
        return self.parts[int(self.part[row])], int(self.index[row])

    def save(self) -> None:
        self.look()
        for at, part in enumerate(self.parts):
            if part.changed:
                part.save(self.events[self.events["part"] == at])

    # --- where to plant

    def spread(self, which: np.ndarray, count: int) -> list[int]:
        """At most ``count`` of those rows, far from each other, over all the story."""
        rows = np.flatnonzero(which)
        chosen: list[int] = []
        for row in rows.tolist():
            if not chosen or row - chosen[-1] >= DISTANCE:
                chosen.append(row)
        if len(chosen) > count:
            chosen = [chosen[i * len(chosen) // count] for i in range(count)]
        return chosen

    def pairs(self) -> np.ndarray:
        """For each message the row of the next of its level, in the same place or not; -1: there is none."""
        following = np.full(self.seqs.size, -1)
        for level in np.unique(self.level):
            rows = np.flatnonzero(self.level == level)
            following[rows[:-1]] = rows[1:]
        return following

    def across(self, following: np.ndarray) -> np.ndarray:
        """Which messages are the last of their segment."""
        return (following >= 0) & (self.part != self.part[following])


def segments(folder: str) -> dict[int, list[tuple[str, int, int]]]:
    """(folder, level, number) of each segment, by level, in order of the numbers."""
    found: dict[int, list[tuple[str, int, int]]] = {}
    levels = {0: folder} | {level: f"{folder}/{name}" for name in os.listdir(folder)
                            if (level := layout.priority_level(name)) is not None}
    for level, above in levels.items():
        for place in (above, f"{above}/{layout.KEPT_FOLDER}"):
            for name in os.listdir(place) if os.path.isdir(place) else ():
                number = layout.segment_number(name)
                if number is not None and name.startswith("msgs."):
                    found.setdefault(level, []).append((place, level, number))
        found.get(level, []).sort(key=lambda where: where[2])
    return found


def plant(story: Story, audit: str, count: int, *, boundary: bool = False) -> Planted:
    """Make ``count`` faults for ``audit``; ``boundary``: where two segments meet.  Raises AssertionError: no place for
    so many (at least one, where they are to be at boundaries)."""
    planted = PLANTS[audit](story, count, boundary)
    assert len(planted.seqs) == count or (boundary and planted.seqs), (audit, boundary, len(planted.seqs))
    story.look()
    return planted


# --- what each audit is to find


def publish_order(story: Story, count: int, boundary: bool) -> Planted:
    """Two messages of one channel change their publish numbers."""
    by = [np.concatenate([part.headers[name] for part in story.parts]) for name in ("connection", "channel")]
    order = np.argsort(np.concatenate([part.headers["seq"] for part in story.parts]))
    connection, channel = (column[order].astype(np.int64) for column in by)
    following = story.pairs()
    fits = (following >= 0) & (connection == connection[following]) & (channel == channel[following]) & (connection > 0)
    if boundary:
        fits &= story.across(following)
    rows = story.spread(fits, count)
    for row in rows:
        (one, i), (other, j) = story.record(row), story.record(int(following[row]))
        a, b = one.span(i)[0] + 40, other.span(j)[0] + 40
        one.octets[a:a + 8], other.octets[b:b + 8] = bytes(other.octets[b:b + 8]), bytes(one.octets[a:a + 8])
        one.sign(i)
        other.sign(j)
    return Planted("publish_order", [int(story.seqs[following[row]]) for row in rows], frozenset({"channel_order"}))


def _goes_out_behind(story: Story, following: np.ndarray, boundary: bool) -> np.ndarray:
    """Messages that were out when the next of their level went out, with no return or other delivery in between."""
    simple, first = story.simple(), story.first
    kinds = story.events["type"]
    busy = np.concatenate(([0], np.cumsum((kinds == DELIVERED) | (kinds == RETURNED) | (kinds == STARTED))))
    fits = (following >= 0) & simple & simple[following] & (first < first[following])
    fits &= busy[first[following]] == busy[first + 1]
    fits &= story.event_ts(first)[following] < story.event_ts(story.settled)
    return fits & story.across(following) if boundary else fits


def _times(story: Story, which: np.ndarray, count: int,
           *places: tuple[np.ndarray, int]) -> list[tuple[int, list[int]]]:
    """(row, free times) of ``count`` of those messages: so many times right behind each of their events."""
    for place, needed in places:
        which = which & story.has_room(story.event_ts(place), needed)
    return [(row, [ts + 1 + k for place, needed in places for ts in (int(story.events["ts"][place[row]]),)
                   for k in range(needed)]) for row in story.spread(which, count)]


def fifo(story: Story, count: int, boundary: bool) -> Planted:
    """A message goes out only after the next one of its level."""
    following = story.pairs()
    found = _times(story, _goes_out_behind(story, following, boundary), count, (story.first[following], 1))
    for row, (ts,) in found:
        story.move(int(story.first[row]), ts)
    return Planted("fifo", [int(story.seqs[following[row]]) for row, _ in found])


def returned_first(story: Story, count: int, boundary: bool) -> Planted:
    """A message returns just before the next of its level goes out, and goes out again only behind it."""
    following = story.pairs()
    found = _times(story, _goes_out_behind(story, following, boundary), count, (story.first[following], 2))
    for row, (late, again) in found:
        seq, place, behind = int(story.seqs[row]), int(story.first[row]), int(story.first[following[row]])
        back = int(story.events["ts"][behind])
        story.move(behind, late)
        story.add(seq, back, RETURNED, layout.CAUSE_NACK, like=place)
        story.add(seq, again, DELIVERED, REDELIVERED, like=place)
        story.tell(row, RETURNED | layout.CAUSE_NACK << 4)
        story.tell(row, layout.HANDED_OUT)
    return Planted("returned_first", [int(story.seqs[row]) for row, _ in found],
                   frozenset({"overtaking", "failure_counts"}))


def overtaking(story: Story, count: int, boundary: bool) -> Planted:
    """A message returns when the next one is out already, and goes out again: both events in one free moment."""
    following = story.pairs()
    found = _times(story, _goes_out_behind(story, following, boundary), count, (story.first[following], 2))
    for row, (back, again) in found:
        seq, place = int(story.seqs[row]), int(story.first[row])
        story.add(seq, back, RETURNED, layout.CAUSE_NACK, like=place)
        story.add(seq, again, DELIVERED, REDELIVERED, like=place)
        story.tell(row, RETURNED | layout.CAUSE_NACK << 4)
        story.tell(row, layout.HANDED_OUT)
    return Planted("overtaking", [int(story.seqs[row]) for row, _ in found], frozenset({"failure_counts"}))


def priority(story: Story, count: int, boundary: bool) -> Planted:
    """A message and one of a lower level, which went out next, go out the other way round."""
    simple, settled = story.simple(), story.event_ts(story.settled)
    busy = np.flatnonzero(np.isin(story.events["type"], (DELIVERED, RETURNED, STARTED)))
    row_of = np.full(story.events.size, -1)
    row_of[story.first[story.first >= 0]] = np.flatnonzero(story.first >= 0)
    high, low = row_of[busy[:-1]], row_of[busy[1:]]
    fits = (high >= 0) & (low >= 0)
    fits &= (story.level[high] > story.level[low]) & simple[high] & simple[low]
    fits &= story.event_ts(story.first)[low] < settled[high]
    after = np.full(story.seqs.size, -1)        # By the one of the higher level: the delivery behind it, and whose.
    of = after.copy()
    after[high[fits]], of[high[fits]] = story.first[low[fits]], low[fits]
    which, d1 = after >= 0, story.event_ts(story.first)
    swaps = story.ts[of] < d1                   # The other was there already.
    which &= swaps | story.has_room(d1[of], 1)
    if boundary:
        which &= story.across(story.pairs())
    rows = story.spread(which, count)
    for row in rows:
        then = int(d1[of[row]])
        story.move(int(story.first[row]), then if swaps[row] else then + 1)
        if swaps[row]:
            story.move(int(after[row]), int(d1[row]))
    return Planted("priority", [int(story.seqs[of[row]]) for row in rows])


def delivery_limit(story: Story, count: int, boundary: bool, limit: int = 3) -> Planted:
    """More deliveries of a message than its limit lets it have."""
    rows = _with_room(story, story.simple(), story.first, limit + 1, count, boundary)
    for row, times in rows:
        for ts in times:
            story.add(int(story.seqs[row]), ts, DELIVERED, REDELIVERED, like=int(story.first[row]))
        story.tell(row, layout.HANDED_OUT, len(times))
    return Planted("delivery_limit", [int(story.seqs[row]) for row, _ in rows], frozenset({"overtaking", "out_twice"}))


def limit_kept(story: Story, count: int, boundary: bool, limit: int = 3) -> Planted:
    """A message that returned more often than its limit, and was acked then."""
    rows = _with_room(story, story.simple(), story.first, limit + 2, count, boundary)
    for row, times in rows:
        for ts in times[:-1]:
            story.add(int(story.seqs[row]), ts, RETURNED, layout.CAUSE_NACK, like=int(story.first[row]))
        story.add(int(story.seqs[row]), times[-1], DELIVERED, REDELIVERED, like=int(story.first[row]))
        story.tell(row, RETURNED | layout.CAUSE_NACK << 4, len(times) - 1)
        story.tell(row, layout.HANDED_OUT)
    return Planted("limit_kept", [int(story.seqs[row]) for row, _ in rows],
                   frozenset({"overtaking", "wrong_consumer", "failure_counts"}))


def _with_room(story: Story, which: np.ndarray, places: np.ndarray, needed: int, count: int,
               boundary: bool) -> list[tuple[int, list[int]]]:
    """(row, free times right behind its event) of messages of the last run."""
    if boundary:
        which = which & story.across(story.pairs())
    return _times(story, which & (story.event_ts(places) > story.last_start), count, (places, needed))


def ack_without_delivery(story: Story, count: int, boundary: bool) -> Planted:
    """The delivery of a message is taken out."""
    which = story.simple()
    if boundary:
        which &= story.across(story.pairs())
    rows = story.spread(which, count)
    story.remove([int(story.first[row]) for row in rows])
    return Planted("ack_without_delivery", [int(story.seqs[row]) for row in rows])


def _later(story: Story, count: int, boundary: bool) -> list[tuple[int, int]]:
    """(row, a free time after it was settled) of messages of the last run, each with a time of its own."""
    settled = story.event_ts(story.settled)
    which = story.simple() & (settled > story.last_start)
    if boundary:
        which &= story.across(story.pairs())
    free = np.append(story.times[:-1][np.diff(story.times) > 1], story.times[-1])
    place = np.searchsorted(free, settled)
    _, first = np.unique(np.where(which, place, -1), return_index=True)
    alone = np.zeros(which.size, bool)
    alone[first] = True
    return [(row, int(free[place[row]]) + 1) for row in story.spread(which & alone, count)]


def double_settle(story: Story, count: int, boundary: bool) -> Planted:
    """A second ack."""
    rows = _later(story, count, boundary)
    for row, ts in rows:
        story.add(int(story.seqs[row]), ts, ACKED, like=int(story.settled[row]))
        story.tell(row, ACKED)
    return Planted("double_settle", [int(story.seqs[row]) for row, _ in rows])


def delivery_after_settle(story: Story, count: int, boundary: bool) -> Planted:
    """A delivery of what was acked."""
    rows = _later(story, count, boundary)
    for row, ts in rows:
        story.add(int(story.seqs[row]), ts, DELIVERED, REDELIVERED, like=int(story.first[row]))
        story.tell(row, layout.HANDED_OUT)
    return Planted("delivery_after_settle", [int(story.seqs[row]) for row, _ in rows],
                   frozenset({"overtaking", "returned_first", "priority", "prefetch"}))


def agreement(story: Story, count: int, boundary: bool) -> Planted:
    """What the acks say of a message that was acked is taken out, or said twice, or its ack is said to be a purge."""
    which = story.simple()
    if boundary:
        which &= story.across(story.pairs())
    rows = story.spread(which, count)
    for n, row in enumerate(rows):
        part, index = story.record(row)
        own = np.flatnonzero(part.entries["position"] == part.positions[index])
        if n % 3 == 0:
            part.forget(index)
        elif n % 3 == 1:
            part.entries = np.append(part.entries, part.entries[own])
        else:
            part.entries["kind"][own] = layout.PURGED
        part.changed.add("acks")
    return Planted("agreement", [int(story.seqs[row]) for row in rows])


def unacked(story: Story, count: int, boundary: bool, older_than: int | None = None) -> Planted:
    """The ack of a message of the last run is taken out; ``older_than``: of one handed out before then (ns)."""
    d1 = story.event_ts(story.first)
    which = story.simple() & (d1 > story.last_start)
    if boundary:
        which &= story.across(story.pairs())
    which &= d1 < (older_than if older_than is not None else int(story.times[-1]) - 1_801_000_000_000)
    rows = story.spread(which, count)
    for row in rows:
        part, index = story.record(row)
        part.forget(index)
    story.remove([int(story.settled[row]) for row in rows])
    return Planted("unacked", [int(story.seqs[row]) for row in rows])


def duplicates(story: Story, count: int, boundary: bool) -> Planted:
    """A message gets the message-id of the one before it in its level."""
    following = story.pairs()
    fits = (following >= 0) & (story.ts[following] - story.ts < DUPLICATE_SECONDS * 1_000_000_000)
    if boundary:
        fits &= story.across(following)
    rows = []
    for row in story.spread(fits, 1 << 30 if boundary else count):
        (one, i), (other, j) = story.record(row), story.record(int(following[row]))
        source, target = message_id(one, i), message_id(other, j)
        if source and target and source[1] - source[0] == target[1] - target[0]:
            other.octets[target[0]:target[1]] = one.octets[source[0]:source[1]]
            other.sign(j)
            rows.append(row)
        if len(rows) == count:
            break
    return Planted("duplicates", [int(story.seqs[following[row]]) for row in rows])


def message_id(part: Part, index: int) -> tuple[int, int] | None:
    """Where in a segment a record's message-id stands."""
    octets = part.octets
    at = part.span(index)[0] + layout.HEADER_OCTETS
    for _ in range(2):
        at += 1 + octets[at]
    flags = int.from_bytes(octets[at:at + 2])
    at += 2
    for bit, size in BEFORE_MESSAGE_ID:
        if flags >> bit & 1:
            at += size if size > 0 else 1 + octets[at] if size == 0 else 4 + int.from_bytes(octets[at:at + 4])
    return (at + 1, at + 1 + octets[at]) if flags >> MESSAGE_ID_BIT & 1 else None


def holes(story: Story, count: int, boundary: bool) -> Planted:
    """Records that are not there, nor anything about them."""
    which = story.across(story.pairs()) if boundary else (story.index > 0) & ~story.across(story.pairs())
    which[-1] = False
    rows = story.spread(which, count)
    seqs = [int(story.seqs[row]) for row in rows]
    story.remove(np.flatnonzero(np.isin(story.events["seq"].astype(np.int64), seqs)
                                & (story.events["type"] != STARTED)).tolist())
    for row in reversed(rows):
        part, index = story.record(row)
        part.cut(index)
    return Planted("holes", seqs)


def group_fifo(story: Story, count: int, boundary: bool) -> Planted:
    """A message is acked only when the next one of its level, of the same group, is out."""
    following = story.pairs()
    simple, settled = story.simple(), story.event_ts(story.settled)
    which = (following >= 0) & simple & simple[following]
    which &= settled < story.event_ts(story.first)[following]
    if boundary:
        which &= story.across(following)
    found = _times(story, which, count, (story.first[following], 1))
    for row, (ts,) in found:
        story.move(int(story.settled[row]), ts)
    return Planted("group_fifo", [int(story.seqs[following[row]]) for row, _ in found], frozenset({"prefetch"}))


def damaged_records(story: Story, count: int, boundary: bool) -> Planted:
    """One octet of records' last is another."""
    which = story.across(story.pairs()) if boundary else np.ones(story.seqs.size, bool)
    rows = story.spread(which, count)
    for row in rows:
        part, index = story.record(row)
        part.octets[part.span(index)[1] - 1] ^= 0x10
        part.changed.add("msgs")
    return Planted("damage", [int(story.seqs[row]) for row in rows])


PLANTS: dict[str, Callable[..., Planted]] = {
    "publish_order": publish_order, "fifo": fifo, "returned_first": returned_first, "overtaking": overtaking,
    "priority": priority, "delivery_limit": delivery_limit, "limit_kept": limit_kept,
    "ack_without_delivery": ack_without_delivery, "double_settle": double_settle,
    "delivery_after_settle": delivery_after_settle, "agreement": agreement, "unacked": unacked,
    "duplicates": duplicates, "holes": holes, "damage": damaged_records, "group_fifo": group_fifo,
}


# --- whole files


def flip(path: str, at: int, bits: int = 0x40) -> None:
    """One octet of a file is another; ``at`` < 0 counts from its end."""
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        octet = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([octet ^ bits]))


def flip_event(folder: str, number: int, index: int) -> None:
    """An event of a journal has another time than its sum says."""
    flip(f"{folder}/{layout.journal_name(number)}", layout.HEADER_OCTETS + index * layout.EVENT_OCTETS + 8)


def lose(folder: str, number: int) -> None:
    """All files of a segment are gone."""
    for name in (layout.segment_name(number), layout.acks_name(number), layout.journal_name(number)):
        if os.path.exists(f"{folder}/{name}"):
            os.unlink(f"{folder}/{name}")


def manifest(root: str, queues: dict[tuple[str, str], dict[str, Any]], cut: int) -> dict[str, Any]:
    """The manifest of a folder laid out as a dump, with the sizes that its files have now; ``queues``: (vhost, folder
    relative to the root) -> settings."""
    listed = []
    for (vhost, folder), settings in queues.items():
        files = [{"path": os.path.relpath(os.path.join(above, name), root),
                  "octets": os.path.getsize(os.path.join(above, name))}
                 for above, _, names in sorted(os.walk(os.path.join(root, folder))) for name in sorted(names)]
        with open(os.path.join(root, folder, layout.QUEUE_NAME_FILE), encoding="utf-8") as file:
            name = file.read()
        listed.append({"vhost": vhost, "queue": name, "folder": folder, "cut": cut, "arguments": {}, "policy": None,
                       "settings": settings, "journaled": True, "files": files, "counters": {}})
    return {"manifest": 1, "brokerd": "0.1.0", "cut": cut, "finished": cut, "host": "here", "data_dir": root,
            "queues": listed}
