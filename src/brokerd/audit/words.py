"""Compares the words in the headers of a segment with its contents: ``words``.

A segment to which a broker may write is not judged: a reader may see a record before the word that counts it.  So it is
settled, or part of a dump, or its broker has stopped.  Of the last ones all are judged if their data directory says
that it was a clean stop: a start corrects all words, whatever had happened.  Of others, in a copy of a queue's folder
for instance, only those with a journal are judged, and only if no journal of the queue tells of a loss of power, which
may leave the words of a segment in use as they were once.
Octets behind the last record, entry or event that a word counts are judged only if no loss of power explains them:
a broker counts each of them at once, and a start counts the one that a kill left.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from brokerd.audit import headers
from brokerd.audit import layout as shapes
from brokerd.audit.fetch import read_head, read_octets
from brokerd.audit.files import Source, Triple
from brokerd.audit.segment import SegmentData
from brokerd.store import format as layout
from brokerd.store import reading

if TYPE_CHECKING:
    from brokerd.audit.scan import Summary

# The offsets of the words.
END_AT, RECORDS_AT, SEALED_AT, PASSED_AT, ENTRIES_AT, SETTLED_AT, EVENTS_AT = 40, 48, 56, 24, 32, 40, 32
SYNCED_AT = 48                  # in a journal
ALL_SYNCED = (1 << 63) - 1
OPEN = "says 0 of whether it is full, which cannot be"
WENT_OUT = (layout.ACKED, layout.REJECTED, layout.RETURNED, layout.HANDED_OUT)  # Entries of these say that it had.


class Words(NamedTuple):
    """The words of the headers.  -1: the word is not whole.  ``settled`` is None without an acks file, and if all
    of the file is zeros.

    ``entries``: as ``settled``, and None where a loss of power may have made it old.  ``more_records``,
    ``more_events``: whether a whole one stands behind those that are counted.  ``more_passed``: whether entries say of
    more records that they went out than the cursor has passed.
    """

    records: int
    sealed: int
    settled: int | None
    entries: int | None = None
    more_records: bool = False
    more_events: bool = False
    more_passed: bool = False


class Wrong(NamedTuple):
    """A word that is wrong: in which file, "msgs", "acks" or "journal", where it stands, and what is wrong."""

    kind: str
    place: int
    detail: str


def words_of(source: Source, data: SegmentData) -> Words:
    """The words of a triple."""
    triple = data.triple
    records, sealed, end = _read(source, triple.msgs, shapes.SEGMENT, ("records", "sealed", "end"))
    settled, entries = None, None
    # Zeros are what a power cut leaves of an acks file that was never synced: it is read as a missing one.
    if triple.acks is not None and any(read_head(source, triple.acks)):
        settled, entries = _read(source, triple.acks, shapes.ACKS, ("settled", "entries"))
    said = Words(records, sealed, settled)
    if not is_judged(data) or data.power_cuts.size:
        return said
    events = 0
    if triple.journal is not None:
        events, synced = _events(source, triple.journal)
        if triple.cut is not None and synced != ALL_SYNCED:
            return said         # Power may have been lost, and no broker has started since.
    return said._replace(entries=entries, more_records=end >= 0 and _is_record(source, triple, end),
                         more_events=events >= 0 and _is_event(source, triple, events), more_passed=_more_passed(data))


def _read(source: Source, path: str, dtype: np.dtype, names: tuple[str, ...]) -> list[int]:
    head = read_head(source, path)
    if len(head) < layout.HEADER_OCTETS:
        return [-1] * len(names)
    header = np.frombuffer(head, dtype)[0]
    return [int(header[name]) if layout.word_ok(int(header[name]), int(header[f"{name}_complement"])) else -1
            for name in names]


def _events(source: Source, path: str) -> tuple[int, int]:
    """How many events the header of a journal counts, and up to when all are on disk (ns); -1: not known."""
    head = read_head(source, path)
    if len(head) < layout.HEADER_OCTETS:
        return -1, -1
    (events,) = _read(source, path, shapes.JOURNAL, ("events",))
    synced, complement = np.frombuffer(head, "<i8", 2, SYNCED_AT).tolist()
    return events, synced if synced == ~complement else -1


def _is_record(source: Source, triple: Triple, at: int) -> bool:
    """Whether a whole record of this segment begins at ``at``."""
    head = read_octets(source, triple.msgs, at, layout.HEADER_OCTETS)
    length = int.from_bytes(head[4:8], "little")
    if int.from_bytes(head[:4], "little") != layout.RECORD_MAGIC or not layout.HEADER_OCTETS <= length <= triple.octets:
        return False
    octets = read_octets(source, triple.msgs, at, length)
    return len(octets) == length and layout.record_crc(octets, triple.number) == int.from_bytes(head[8:12], "little")


def _is_event(source: Source, triple: Triple, count: int) -> bool:
    """Whether a sound event stands behind so many."""
    at = layout.HEADER_OCTETS + count * layout.EVENT_OCTETS
    octets = read_octets(source, triple.journal, at, layout.EVENT_OCTETS) if triple.journal is not None else b""
    event = np.frombuffer(octets, shapes.EVENT, len(octets) // layout.EVENT_OCTETS)
    return bool(event.size and event["type"][0] and shapes.event_checks(event, triple.number)[0])


def _more_passed(data: SegmentData) -> bool:
    """Whether an entry says that a record went out, and the cursor has not passed it.  Below ``doubted_below`` it may
    have passed more than it says.  What was redriven into its group goes out from there."""
    type_, below = data.entries["kind"] & 0x0F, max(data.delivered_below, data.doubted_below)
    more = np.unique(data.entries["position"][np.isin(type_, WENT_OUT) & (data.entries["position"] >= below)])
    return bool(np.setdiff1d(more, data.positions[data.headers["flags"] & layout.REDRIVEN != 0]).size)


def settled_records(data: SegmentData) -> int:
    """How many of the records are settled by an entry."""
    every = np.concatenate((data.entries, data.entries_again))     # Of each record they stand in their order.
    return int(np.isin(reading.settled_positions(every), data.positions).sum())


def is_judged(data: SegmentData) -> bool:
    """Whether no broker writes to the segment, and all its records can be read.  If it was settled while the
    audit was reading, its words count what is left out here."""
    stopped = headers.is_judged(data.triple) and (data.triple.stopped or data.begun is not None)
    return (data.triple.settled or stopped) and not data.gone and not data.late and not data.matters("records")


def excuse(summaries: "list[Summary]") -> None:
    """Take back what was said of segments in use, if a loss of power may have made their words old; and that one is not
    full which no segment follows, but a file that is none."""
    power_lost, last = any(s.power_cut for s in summaries), dict[int, int]()
    for s in summaries:
        if s.base_seq:
            last[s.triple.priority] = max(last.get(s.triple.priority, 0), s.triple.number)
    for s in summaries:
        if "words" not in s.results:
            continue
        newest = s.triple.number >= last.get(s.triple.priority, 0)
        old = power_lost and not s.triple.settled and not s.triple.stopped
        drop = [rows for rows in s.rows if rows.audit == "words" and (old or (newest and rows.detail == OPEN))]
        result = s.results["words"]
        checked = 0 if old else result.checked
        s.results["words"] = result._replace(found=result.found - len(drop), checked=checked)
        s.rows[:] = [rows for rows in s.rows if not any(rows is one for one in drop)]


def wrong(source: Source, data: SegmentData) -> list[Wrong]:
    """The words that are wrong."""
    if not is_judged(data) or not any(read_head(source, data.triple.msgs)):
        return []       # Zeros are what a power cut leaves of a segment that was never synced: they say nothing.
    said, found, count = words_of(source, data), [], data.headers.size
    if said.records != count:
        found.append(Wrong("msgs", RECORDS_AT, f"says that it has {said.records} records, and has {count}"))
    if said.sealed not in (0, 1, 2) or (said.sealed == 0 and data.triple.followed):
        found.append(Wrong("msgs", SEALED_AT, f"says {said.sealed} of whether it is full, which cannot be"))
    if said.more_records:
        found.append(Wrong("msgs", END_AT, "has a whole record behind the end of its records"))
    settled = settled_records(data)
    if said.settled is not None and said.settled != settled and not data.matters("acks"):
        found.append(Wrong("acks", SETTLED_AT, f"says that {said.settled} records are settled, and has {settled}"))
    written = data.entries_written
    if said.entries is not None and said.entries != written and not data.matters("acks"):
        found.append(Wrong("acks", ENTRIES_AT, f"says that it has {said.entries} entries, and has {written}"))
    if said.more_passed and not data.matters("acks"):
        found.append(Wrong("acks", PASSED_AT, "has entries of records that went out, which the cursor has not passed"))
    if said.more_events:
        found.append(Wrong("journal", EVENTS_AT, "has a whole event behind those that it counts"))
    return found
