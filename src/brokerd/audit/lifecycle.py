"""The life of each message of a segment, one row for each message: ``lives`` for audits, ``lifecycle`` as a table.

Events are sorted once, by message and then by time; all else follows by indexing.  A message that a compaction took out
of the segment is known by its events alone.  Knows nothing of other segments, nor of what is right or wrong.
"""

from typing import Any, NamedTuple

import numpy as np

from brokerd.audit.arrays import Numbers, as_signed, numbers
from brokerd.audit.files import FOREVER
from brokerd.audit.segment import SegmentData, record_at
from brokerd.store import format as layout
from brokerd.store import reading

READY, UNACKED = 0, 8           # states of an unsettled message; the state of a settled one is the type of its entry
ENDED = ("ready", "acked", "rejected", "", "dead-lettered", "expired", "dropped", "purged", "unacked")
REASONS = ("", "rejected", "expired", "maxlen", "delivery_limit", "removed")
CAUSES = ("", "nack", "reject", "recover", "channel closed", "connection closed", "consumer timeout")
SETTLING = np.array([type_ in layout.SETTLING_TYPES for type_ in range(256)])


class Lives(NamedTuple):
    """Messages (rising seq) and their events.

    Columns of messages: ``record`` is an index into data.headers, or -1.  Times are ns, 0: none.  ``covered``: the
    journal has its whole life.  ``ended`` is as in ENDED.  ``out``: handed out, and neither settled nor returned since.
    ``first`` is the first delivery in the journal, and ``first_sure`` says that no delivery came before it.

    Columns of events, sorted by message and time: ``event`` is an index into data.events, ``of`` the index of the
    message, ``run`` the index of the broker's life.  ``head`` and ``last`` mark the first and last event of a message.
    """

    seq: np.ndarray
    record: np.ndarray
    published: np.ndarray
    covered: np.ndarray
    first: np.ndarray
    first_sure: np.ndarray
    last_delivered: np.ndarray
    settled: np.ndarray
    deliveries: np.ndarray
    returns: np.ndarray
    settlements: np.ndarray
    ended: np.ndarray
    reason: np.ndarray
    out: np.ndarray
    event: np.ndarray
    of: np.ndarray
    ts: np.ndarray
    type: np.ndarray
    why: np.ndarray
    run: np.ndarray
    head: np.ndarray
    last: np.ndarray
    orphans: np.ndarray         # indices into data.events of the events of unknown messages


def lives(data: SegmentData) -> Lives:
    """Join records and events.  A damaged record has no life."""
    index = np.flatnonzero(data.sound)
    seq = data.headers["seq"][index].astype(np.int64)
    if seq.size > 1 and not (seq[1:] > seq[:-1]).all():
        seq, first = np.unique(seq, return_index=True)
        index = index[first]
    event_seq = data.events["seq"].astype(np.int64)
    of = places_of(seq, event_seq)
    unknown = np.flatnonzero(of < 0)
    orphans = unknown
    if unknown.size and (data.generation or data.matters("records")):
        more = np.unique(event_seq[unknown])
        seq = np.concatenate((seq, more))
        order = np.argsort(seq, kind="stable")
        seq, index = seq[order], np.concatenate((index, np.full(more.size, -1)))[order]
        of, orphans = places_of(seq, event_seq), unknown[:0]
    published = np.where(index >= 0, data.headers["ts"][index] if data.headers.size else 0, 0)
    if data.power_cuts.size:    # A power cut may lose a message and leave its events; another one gets its number.
        of = np.where((of >= 0) & (data.events["ts"] < published[np.maximum(of, 0)]), -1, of) if seq.size else of
    event = _sorted_events(of, data.events["ts"])
    of = of[event]
    known = np.searchsorted(of, 0)                      # Events of unknown messages, -1, come first.
    event, of = event[known:], of[known:]
    ts, type_, why = data.events["ts"][event], data.events["type"][event], data.events["reason"][event]
    count = seq.size
    delivered, settling = type_ == layout.DELIVERED, SETTLING[type_]
    columns = _by_message(count, of, ts, type_, why, delivered, settling)
    run = np.searchsorted(data.runs, ts) if data.runs.size else np.zeros(ts.size, np.int64)
    changes = of[1:] != of[:-1]
    head, last = np.append(True, changes)[:of.size], np.append(changes, True)[-of.size:] if of.size else of == 0
    out = np.zeros(count, bool)
    out[of[last]] = delivered[last] & (run[last] == data.runs.size)
    ends = np.zeros(count, np.int64)
    ends[of[last]] = ts[last]   # The last settlement: a power cut may have undone the first one.
    covered = _covered(data, published, index, np.where(columns["settled"] > 0, ends, 0))
    known_first = np.zeros(count, bool)
    known_first[of[delivered][::-1]] = (why[delivered] & layout.REDELIVERED == 0)[::-1]
    if not data.generation:     # No compaction explains a missing record: its events may be of another segment.
        covered &= (index >= 0) & (orphans.size == 0)   # Orphans show that the whole journal may be of another one.
        known_first &= index >= 0
    columns["ended"] = np.where(out & (columns["settled"] == 0), UNACKED, columns["ended"])
    _from_entries(data, index, columns, covered)
    return Lives(
        seq=seq, record=index, published=published, covered=covered,
        first_sure=(columns["first"] > 0) & (covered | known_first),
        out=out & (columns["settlements"] == 0), event=event, of=of, ts=ts, type=type_, why=why, run=run,
        head=head, last=last, orphans=orphans, **columns)


def places_of(seq: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The index of each of ``wanted`` in ``seq`` (rising); -1: not there."""
    if not seq.size:
        return np.full(wanted.size, -1, np.int64)
    if int(seq[-1]) - int(seq[0]) == seq.size - 1:
        place = wanted - seq[0]
        return np.where((place >= 0) & (place < seq.size), place, -1)
    place = np.minimum(np.searchsorted(seq, wanted), seq.size - 1)
    return np.where(seq[place] == wanted, place, -1)


def _sorted_events(of: np.ndarray, ts: np.ndarray) -> np.ndarray:
    """The indices that sort events by message, then by time."""
    if ts.size > 1 and not (ts[1:] > ts[:-1]).all():
        return np.lexsort((ts, of))
    keys = (of + 1 << 32) + np.arange(of.size)          # Sorting plain numbers is several times faster than argsort.
    keys.sort()
    return keys & 0xFFFFFFFF


def _by_message(count: int, of: np.ndarray, ts: np.ndarray, type_: np.ndarray, why: np.ndarray,
                delivered: np.ndarray, settling: np.ndarray) -> dict[str, Any]:
    """The columns that need events only in the order of time.  numpy keeps the last value written to a repeated
    index, so the last event of a message counts."""
    first, last, settled = (np.zeros(count, np.int64) for _ in range(3))
    ended, reason = np.zeros(count, np.uint8), np.zeros(count, np.uint8)
    to, at = of[delivered], ts[delivered]
    first[to[::-1]] = at[::-1]
    last[to] = at
    end, back = of[settling], np.flatnonzero(settling)[::-1]
    settled[of[back]] = ts[back]
    ended[of[back]] = type_[back]
    reason[of[back]] = why[back]
    return {
        "first": first, "last_delivered": last, "settled": settled, "ended": ended, "reason": reason,
        "deliveries": np.bincount(to, minlength=count), "settlements": np.bincount(end, minlength=count),
        "returns": np.bincount(of[type_ == layout.RETURNED], minlength=count),
    }


def _covered(data: SegmentData, published: np.ndarray, index: np.ndarray, ends: np.ndarray) -> np.ndarray:
    if data.begun is None:
        return np.zeros(index.size, bool)
    if (index < 0).any():       # A compaction took the record: it was published no earlier than the one before it.
        since = np.maximum.accumulate(np.maximum(published, data.created)) if index.size else published
        published = np.where(index < 0, since, published)
    covered = published > data.begun
    until = np.where(ends > 0, ends, FOREVER)
    for gap in data.gaps:
        covered &= (until <= gap.start) | (published >= gap.stop)
    return covered


def _from_entries(data: SegmentData, index: np.ndarray, columns: dict[str, Any], covered: np.ndarray) -> None:
    """Fill in, from the acks file, the ends and counts of messages that the journal does not cover."""
    if covered.all():
        return
    position = np.where(index >= 0, data.positions[index] if data.positions.size else 0, 0)
    open_ = (~covered & (columns["settled"] == 0)) & (index >= 0)
    entries = data.entries
    of = messages_of(data, index, entries)
    type_ = entries["kind"] & 0x0F
    settling = (of >= 0) & SETTLING[type_]
    ends = np.zeros(index.size, np.uint8)
    why = np.zeros(index.size, np.uint8)
    ends[of[settling][::-1]] = type_[settling][::-1]
    why[of[settling][::-1]] = (entries["kind"][settling] >> 4)[::-1]
    returned = (of >= 0) & (type_ == layout.RETURNED)
    returns = np.bincount(of[returned], minlength=index.size)
    columns["ended"] = np.where(open_ & (ends > 0), ends, columns["ended"])
    columns["reason"] = np.where(open_ & (ends > 0), why, columns["reason"])
    columns["returns"] = np.where(covered, columns["returns"], np.maximum(returns, columns["returns"]))
    columns["settlements"] = np.maximum(columns["settlements"], np.where(
        covered, 0, np.bincount(of[settling], minlength=index.size)))
    if data.begun is None:
        handed_out = open_ & (ends == 0) & _was_out(of, entries, position < data.delivered_below)
        columns["ended"] = np.where(handed_out, UNACKED, columns["ended"])


def messages_of(data: SegmentData, record: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """The index of the message of each of ``entries``, -1: none.  ``record``: the index of each message's record, -1:
    none."""
    at = np.full(data.positions.size + 1, -1)
    at[record] = np.arange(record.size)                 # Messages without a record, -1, fall on the extra last place.
    at[-1] = -1
    found = record_at(data.positions, len(data.octets), entries["position"])
    return np.where(found >= 0, at[found], -1)


def _was_out(of: np.ndarray, entries: np.ndarray, passed: np.ndarray) -> np.ndarray:
    """Which messages were handed out and have not come back, by the last entry of each: see store.format.

    ``of``: the message of each entry, -1: none; ``passed``: whether the cursor has passed the message.
    """
    out = passed.copy()         # The cursor handed out the messages that it passed and that have no entry.
    type_ = entries["kind"] & 0x0F
    standing = np.flatnonzero((of >= 0) & np.isin(type_, tuple(layout.STANDING_TYPES)))
    out[of[standing]] = type_[standing] == layout.HANDED_OUT    # For a repeated index the last value stays.
    return out


def without_record(life: Lives) -> tuple[Numbers, dict[str, np.ndarray]]:
    """What the journal says of messages without a record: the numbers of those that were settled, and the others, as
    columns ``seq`` and ``ts`` (of the last event)."""
    gone, settled = life.record < 0, np.zeros(life.seq.size, bool)
    settled[life.of[SETTLING[life.type]]] = True
    ends = np.zeros(life.seq.size, np.int64)
    ends[life.of[life.last]] = life.ts[life.last]
    left = gone & ~settled
    return numbers(life.seq[gone & settled]), {"seq": life.seq[left], "ts": ends[left]}


def lifecycle(data: SegmentData) -> dict[str, np.ndarray]:
    """The columns of table ``lifecycle``, one row for each sound record; times in ns, 0: none.

    ``ended`` and ``reason`` are strings.  Without a journal there are no times, and ``deliveries`` is 0.
    """
    life = lives(data)
    rows = np.flatnonzero(life.record >= 0)
    headers = data.headers[life.record[rows]]
    ended, reason = life.ended[rows], life.reason[rows]
    why = np.where((ended == layout.DEAD_LETTERED) | (ended == layout.DROPPED), np.minimum(reason, 5), 0)
    triple = data.triple

    def same(value: Any, kind: Any) -> np.ndarray:
        return np.full(rows.size, value, kind)

    return {
        "vhost": same(triple.vhost, object), "queue": same(triple.queue, object),
        "priority": same(triple.priority, np.int32), "segment": same(triple.number, np.int64),
        "position": data.positions[life.record[rows]], "seq": life.seq[rows], "published": life.published[rows],
        "first_delivered": life.first[rows], "last_delivered": life.last_delivered[rows],
        "settled": life.settled[rows], "deliveries": life.deliveries[rows].astype(np.int32),
        "returns": life.returns[rows].astype(np.int32), "ended": np.array(ENDED, object)[ended],
        "reason": np.array(REASONS, object)[why], "connection": headers["connection"].astype(np.int64),
        "channel": headers["channel"].astype(np.int32), "publish_seq": as_signed(headers["publish_seq"]),
        "body_octets": reading.body_octets(data.octets, data.records)[life.record[rows]],
        "covered": life.covered[rows],
    }
