"""Judges where the messages of a queue stand, over all its levels and segments together.

====================  ===============================================================================================
channel_order         what one channel published stands in the queue in that order, also between levels
time_order            the times of records rise with their sequence numbers, also between levels and over boundaries;
                      and no two events of any journals have the same time
numbers               a record's number belongs to its segment, and is below the queue's next number
after_cut             nothing in a dump is later than its cut
====================  ===============================================================================================

The first two read the records of a queue with several levels once more, a slice of its sequence numbers at a time.  Of
a queue with one level they need only the edges of its segments.  Where something is wrong, they name the fewest records
without which the rest is in order (``culprits``).
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from brokerd.audit._journal import POWER_LOST_WORDS, read_journal
from brokerd.audit.arrays import as_signed, group_max_before
from brokerd.audit.culprits import CONSEQUENCE, culprits
from brokerd.audit.files import FOREVER, QueueFiles, Source
from brokerd.audit.scan import AT_ONCE, Options, Summary
from brokerd.audit.segment import read_records
from brokerd.audit.stitch import Findings

AUDITS = ("channel_order", "time_order", "numbers", "after_cut")
SLICE = 8_000_000               # records that are compared at once
CACHED = 8                      # segments


class Verdict(NamedTuple):
    """``found``: the culprits; ``by_rule``: the records that are not behind all earlier ones; ``consequences``: those
    of them that are no culprits."""

    found: int
    checked: int
    by_rule: int
    consequences: int
    stale: int = 0              # records that a loss of power explains: see ``stale``


class Records(NamedTuple):
    """Sound records of several segments, by sequence number: columns, and the index of the segment of each."""

    seq: np.ndarray
    ts: np.ndarray
    channel: np.ndarray         # connection and channel in one number; below 65536: not known
    publish_seq: np.ndarray
    place: np.ndarray
    segment: np.ndarray


def power_cuts(summaries: list[Summary]) -> list[int]:
    """The times at which a broker started after a loss of power, by all journals of the queue."""
    return sorted({gap.stop for s in summaries for gap in s.gaps if gap.why == POWER_LOST_WORDS})


def stale(rows: Records, cuts: list[int], least: list[int] | None = None) -> np.ndarray:
    """Which records a loss of power has brought back, or has not taken, although their numbers were given again: they
    are from before it, and a message from after it has their number or a lower one.  ``least``: the lowest number after
    each loss; without it, ``rows`` are those of the whole queue."""
    found = np.zeros(rows.seq.size, bool)
    for cut, since in zip(cuts, least if least is not None else _least_since(rows, cuts), strict=True):
        found |= (rows.ts < cut) & (rows.seq >= since)
    return found


def _least_since(rows: Records, cuts: list[int]) -> list[int]:
    return [int(rows.seq[rows.ts > cut].min(initial=FOREVER)) for cut in cuts]


class _Reader:
    """Reads the records of segments, and caches those of the last few."""

    def __init__(self, source: Source, summaries: list[Summary], options: Options) -> None:
        self._source, self._summaries, self._options = source, summaries, options
        self._cache: dict[int, Records] = {}

    def get(self, index: int) -> Records:
        found = self._cache.pop(index, None)
        if found is None:
            summary = self._summaries[index]
            headers, places = read_records(self._source, summary.triple, crc=self._options.crc,
                                           trust=self._options.crc and not summary.damage)
            inside = headers["ts"] >= self._options.from_ns
            inside &= headers["ts"] < (self._options.to_ns or FOREVER)
            headers, places = headers[inside], places[inside]
            found = Records(headers["seq"].astype(np.int64), headers["ts"].astype(np.int64),
                            headers["connection"].astype(np.int64) << 16 | headers["channel"],
                            as_signed(headers["publish_seq"]), places, np.full(places.size, index))
        self._cache[index] = found
        if len(self._cache) > CACHED:
            self._cache.pop(next(iter(self._cache)))
        return found

    def between(self, low: int, high: int) -> Records:
        """The records with numbers in [low, high), in order."""
        parts = []
        for index, summary in enumerate(self._summaries):
            if summary.records and summary.numbers.first < high and summary.numbers.last >= low:
                one = self.get(index)
                some = (one.seq >= low) & (one.seq < high)
                parts.append([column[some] for column in one])
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else [
            np.empty(0, np.int64)] * len(Records._fields)
        order = np.lexsort((columns[1], columns[0]))
        return Records(*(column[order] for column in columns))


def _slices(summaries: list[Summary], size: int) -> list[int]:
    """Sequence numbers that cut the queue into slices of about ``size`` records: after the last ones of segments, so
    that a damaged number does not make the slices of all others longer."""
    cuts, held = [0], 0
    for s in sorted((s for s in summaries if s.records), key=lambda s: s.numbers.last):
        held += s.records
        if held >= size and cuts[-1] < s.numbers.last + 1 < FOREVER:
            cuts.append(s.numbers.last + 1)
            held = 0
    return [*cuts, FOREVER]


def orders(source: Source, levels: dict[int, list[Summary]], options: Options, findings: Findings,
           *, several: bool, slice_size: int = SLICE) -> dict[str, Verdict]:
    """Judge ``time_order``, and with ``several`` (the queue has priorities) ``channel_order``."""
    summaries = [summary for level in levels.values() for summary in level]
    checked = sum(s.records for s in summaries)
    wanted = [name for name in AUDITS[:2] if options.wants(name) and (several or name == "time_order")]
    reader = _Reader(source, summaries, options)
    wrong: set[str] = set()
    if wanted:
        wrong = _wrong_orders(reader, summaries, slice_size) if several else _wrong_edges(summaries)
    made = {}
    for name in wanted:
        made[name] = Verdict(0, checked, 0, 0)
        if name in wrong:
            found = _name(name, reader.between(0, FOREVER), summaries, findings)
            made[name] = found._replace(checked=checked)
    return made


def _wrong_edges(summaries: list[Summary]) -> set[str]:
    """Whether times may go back within a segment or where two segments meet, of a queue with one level."""
    top = last = 0
    for s in summaries:
        if s.records and (not s.rising or s.first_record_ts <= top or s.numbers.first <= last):
            return {"time_order"}
        top, last = max(top, s.last_record_ts), max(last, s.numbers.last)
    return set()


def _wrong_orders(reader: _Reader, summaries: list[Summary], slice_size: int) -> set[str]:
    wrong: set[str] = set()
    top = 0
    keys = tops = np.empty(0, np.int64)                 # The last publish of each channel in the slices before.
    for low, high in pairwise(_slices(summaries, slice_size)):
        rows = reader.between(low, high)
        if not rows.seq.size:
            continue
        if int(rows.ts[0]) <= top or (rows.ts[1:] <= np.maximum.accumulate(rows.ts)[:-1]).any():
            wrong.add("time_order")
        top = max(top, int(rows.ts.max()))
        known = rows.channel > 0xFFFF
        channel = np.concatenate((keys, rows.channel[known]))
        number = np.concatenate((tops, rows.publish_seq[known]))
        if (number <= group_max_before(channel, number)).any():
            wrong.add("channel_order")
        order = np.lexsort((number, channel))
        last = np.append(channel[order][1:] != channel[order][:-1], True)[:order.size]
        keys, tops = channel[order][last], number[order][last]
    return wrong


def _name(audit: str, rows: Records, summaries: list[Summary], findings: Findings) -> Verdict:
    """The culprits of a queue in which something seems wrong; the rest of what the rule finds as their consequences."""
    gone = stale(rows, power_cuts(summaries))
    rows = Records(*(column[~gone] for column in rows))
    if audit == "channel_order":
        rows = Records(*(column[rows.channel > 0xFFFF] for column in rows))
        values, groups = rows.publish_seq, rows.channel
        detail = "publish {a} of connection {b} is not in its channel's order"
        a, b = rows.publish_seq, rows.channel >> 16
    else:
        values, groups = rows.ts, np.zeros(rows.ts.size, np.int64)
        detail = "stored at {a:t}, which does not lie between the times of its neighbours"
        a = b = rows.ts
    found = culprits(values, groups)
    rest = np.setdiff1d(np.flatnonzero(values <= group_max_before(groups, values)), found)
    by_rule = int(np.count_nonzero(values <= group_max_before(groups, values)))
    for which, words in ((found, detail), (rest, CONSEQUENCE + detail)):
        for index in np.unique(rows.segment[which]).tolist():
            own = which[rows.segment[which] == index]
            findings.add(summaries[index], audit, "msgs", words, rows.seq[own], rows.place[own], rows.ts[own], a[own],
                         b[own])
    return Verdict(found.size, 0, by_rule, rest.size, int(np.count_nonzero(gone)))


def equal_times(source: Source, summaries: list[Summary], options: Options, findings: Findings) -> int:
    """Find events that have the time of another one of the queue, or of a record; of those with one time, all but the
    first.  How many.  What a record and an event of one segment have alike, the scan has found.

    Reads the files once more, in the order in which they begin, and keeps the times that the next ones may have.
    Leaves out times from before a loss of power, of which a broker may have known nothing.
    """
    some = sorted((s for s in summaries if s.events or s.records), key=lambda s: s.first_ts)
    lost = max((s.power_cut for s in summaries), default=0)
    count = sum(s.at_once for s in some)
    events, records = np.empty(0, np.int64), np.empty(0, np.int64)
    for k, s in enumerate(some if any(s.events for s in some) else ()):
        journal = read_journal(source, s.triple, [], crc=options.crc and bool(s.damage))
        numbers_, ts, where = (np.concatenate(both) for both in (
            [part[name] for part in (journal.events, journal.again, journal.aside)] if name else
            [journal.places, journal.again_places, journal.aside_places] for name in ("seq", "ts", "")))
        order = np.argsort(ts, kind="stable")
        ts = ts[order]
        first = np.append(True, ts[1:] != ts[:-1])[:ts.size] & ~_among(ts, events)
        judged = (ts > lost) & (ts >= options.from_ns) & (ts < (options.to_ns or FOREVER))
        for bad, words in ((~first & judged, "happened at {a:t}, as another event did"),
                           (first & judged & _among(ts, records), AT_ONCE)):
            which = order[bad]
            count += which.size
            findings.add(s, "time_order", "journal", words, numbers_[which].astype(np.int64), where[which], ts[bad],
                         ts[bad], ts[bad])
        if len(some) > 1:
            headers, places = read_records(source, s.triple, crc=options.crc, trust=options.crc and not s.damage)
            stored = headers["ts"].astype(np.int64)
            bad = _among(stored, events) & (stored > lost) & (stored >= options.from_ns)
            bad &= stored < (options.to_ns or FOREVER)
            count += int(np.count_nonzero(bad))
            findings.add(s, "time_order", "msgs", "stored at {a:t}, when an event happened",
                         headers["seq"][bad].astype(np.int64), places[bad], stored[bad], stored[bad], stored[bad])
            records = _merged(records, stored)
        events = _merged(events, ts)
        since = some[k + 1].first_ts if k + 1 < len(some) else FOREVER
        events, records = events[events >= since], records[records >= since]
    return count


def _among(some: np.ndarray, rising: np.ndarray) -> np.ndarray:
    """Which of these are among others that rise: np.isin() would sort those, or hash them, at each call."""
    if not rising.size:
        return np.zeros(some.size, bool)
    return rising[np.minimum(np.searchsorted(rising, some), rising.size - 1)] == some


def _merged(rising: np.ndarray, more: np.ndarray) -> np.ndarray:
    return np.sort(np.concatenate((rising, more)), kind="stable")       # It finds the runs that rise.


# --- numbers, and the cut of a dump


def numbers(source: Source, queue: QueueFiles, levels: dict[int, list[Summary]], options: Options,
            findings: Findings) -> tuple[int, int]:
    """Find records with a number that is not of their segment, or that the queue has not given yet.  How many; and how
    many more a loss of power explains."""
    summaries = [summary for level in levels.values() for summary in level]
    reader = _Reader(source, summaries, options)
    cuts = power_cuts(summaries)
    least: list[int] | None = None
    excused = 0
    following = (queue.manifest or {}).get("next_seq")
    limit = following if isinstance(following, int) and following > 0 else FOREVER
    count = 0
    for level in levels.values():
        for k, s in enumerate(level):
            later = [one.base_seq for one in level[k + 1:k + 2] if one.base_seq]
            stop = min([limit, *later])
            if not s.records or (s.numbers.first >= max(s.base_seq, 1) and s.numbers.last < stop):
                continue
            rows = reader.get(summaries.index(s))
            bad = (rows.seq < max(s.base_seq, 1)) | (rows.seq >= stop)
            if least is None:
                least = [min(each, default=FOREVER) for each in zip(*(
                    _least_since(reader.get(index), cuts) for index in range(len(summaries))), strict=True)]
            gone = bad & stale(rows, cuts, least)
            excused += int(np.count_nonzero(gone))
            bad &= ~gone
            size = int(np.count_nonzero(bad))
            count += size
            findings.add(s, "numbers", "msgs", "not a number from {a} up to {b}, before which its segment ends",
                         rows.seq[bad], rows.place[bad], rows.ts[bad], np.full(size, s.base_seq), np.full(size, stop))
    return count, excused


def after_cut(source: Source, queue: QueueFiles, summaries: list[Summary], options: Options,
              findings: Findings) -> int:
    """Find records and events, and marks of starts, that are later than the cut of the dump."""
    cut: Any = (queue.manifest or {}).get("cut")
    count = 0
    for s in summaries:
        if s.last_ts <= cut:
            continue
        headers, places = read_records(source, s.triple, crc=options.crc, trust=options.crc and not s.damage)
        journal = read_journal(source, s.triple, [], crc=options.crc)
        events = [(journal.events, journal.places), (journal.again, journal.again_places),
                  (journal.aside, journal.aside_places)]
        for kind, seq, ts, at in (("msgs", headers["seq"], headers["ts"], places),
                                  *(("journal", some["seq"], some["ts"], own) for some, own in events),
                                  ("journal", np.zeros(journal.marks.size), journal.marks["ts"], journal.mark_places)):
            bad = ts > cut
            count += int(np.count_nonzero(bad))
            findings.add(s, "after_cut", kind, "later than the cut of the dump, {b:t}", seq[bad].astype(np.int64),
                         at[bad], ts[bad], ts[bad], np.full(int(bad.sum()), cut))
    return count
