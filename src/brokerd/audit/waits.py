"""Judges messages that must wait: behind earlier ones of their group, behind a message that is tried again later, or
behind one that stops its group or its queue.

===============  ====================================================================================================
group_order      a message of a group went out after all earlier ones were settled, or were out with the same consumer
group_owner      the messages of a group that were out at one time were with one consumer, and not too many of them
retry_kept       no message, and nothing of its group, went out before the time of its next try
stop_kept        nothing behind a message that stops its queue or its group went out until an operator acted
===============  ====================================================================================================

The queue's settings name the header or property that holds a message's group, as text.  Messages with other keys, or
without one, are not judged; nor is a delivery without acks, for which the broker promises nothing.  A settlement that
an owner sends too late is fenced: it has no event, and ``wrong_consumer`` would find one.

The audits are not sure of these: messages that the journal does not cover, a settlement that only the acks have (kill
-9 came before its event), events before a loss of power, and a try that was early by a clock that may have been put
back.  An audit does not judge a queue if the settings of its rule have changed.

Reads the segments of such queues once more.
"""

from typing import NamedTuple

import numpy as np

from brokerd.audit import many, parks, tries
from brokerd.audit.arrays import count_above, group_max_before
from brokerd.audit.files import FOREVER, QueueFiles, Source
from brokerd.audit.notes import PLACE
from brokerd.audit.properties import Grouping, Texts, hashes, texts, whole_numbers, with_header
from brokerd.audit.scan import Options, Pass, Summary
from brokerd.audit.segment import SegmentData
from brokerd.audit.spells import Spells, at, of_entries, spells
from brokerd.audit.stitch import Findings, read_again
from brokerd.store import format as layout

AUDITS = ("group_order", "group_owner", "retry_kept", "stop_kept")
BY_CONNECTION = 1 << 32         # what basic.get takes belongs to a connection, whose numbers are not those of consumers
STOPS = (layout.PARKED_EVENT, layout.GROUP_PARKED_EVENT)
RELEASES = (layout.RELEASED_EVENT, layout.GROUP_RELEASED_EVENT)


class Found(NamedTuple):
    """The result of one audit; ``doubts``: why it is not sure."""

    found: int
    checked: int
    doubts: tuple[str, ...] = ()


class Messages(NamedTuple):
    """Messages, rising ``seq``, one row for each of their ``spells``: columns.  ``group``: a hash, 0: none.  ``since``,
    ``settled``, ``later``: as in Spells.  ``place``: its number in its group, another than ``seq`` if it was redriven.
    ``published`` and ``connection``: of its record, 0: there is none."""

    seq: np.ndarray
    group: np.ndarray
    since: np.ndarray
    settled: np.ndarray
    later: np.ndarray
    level: np.ndarray
    place: np.ndarray
    published: np.ndarray
    connection: np.ndarray

    @property
    def redriven(self) -> np.ndarray:
        """Which rows are of messages that were redriven to earlier places."""
        return self.place != self.seq

    @property
    def stands(self) -> np.ndarray:
        """Behind which place nothing passes a row that waits.  A redriven message that is replayed may stand at either
        of its numbers."""
        return np.where(self.later, self.seq, self.place)


class Deliveries(NamedTuple):
    """Deliveries with acks, in order of time: columns.  ``row``: of the message.  ``until``: it is out up to then."""

    ts: np.ndarray
    until: np.ndarray
    holder: np.ndarray
    row: np.ndarray
    place: np.ndarray
    segment: np.ndarray


class Notes(NamedTuple):
    """Events of messages that wait, in order of time: columns.  ``aux``: the delay in ms of a retry.  ``acks``: what
    they say of its time, see ``tries``.  ``begun``: when the first event of the same return happened.  ``place``: of
    the event, ``segment``: the index of its summary."""

    ts: np.ndarray
    type: np.ndarray
    aux: np.ndarray
    row: np.ndarray
    acks: np.ndarray
    begun: np.ndarray
    place: np.ndarray
    segment: np.ndarray


class History(NamedTuple):
    """The history of a queue.  ``times``: of all records and events, sorted.  ``starts``: of the broker, rising."""

    messages: Messages
    deliveries: Deliveries
    notes: Notes
    times: np.ndarray
    starts: np.ndarray
    unclear: int                    # messages that only their acks know to be settled
    untold: np.ndarray              # rows of those of whose next try only the acks tell
    parked: parks.Parked
    open: bool                      # a broker may be at work


def applies(audit: str, queue: QueueFiles) -> bool:
    """Whether this audit can say anything about this queue: its settings are known, and never changed in this."""
    rules = queue.rules
    if not rules or len({(rule.grouping, rule.retry, rule.stops) for rule in rules}) > 1:
        return False
    (rule, *_) = rules
    if audit == "retry_kept":
        return rule.retry
    return rule.grouping is not None or ((rule.stops or rule.retry) and audit == "stop_kept")


def judge(source: Source, queue: QueueFiles, summaries: list[Summary], options: Options,
          findings: Findings) -> dict[str, Found]:
    """Judge those of ``AUDITS`` that the options ask for and that can say something about this queue."""
    wanted = [name for name in AUDITS if options.wants(name) and applies(name, queue)]
    if not wanted or not summaries:
        return {}
    history = _history(source, queue.rules[0].grouping, summaries, options)
    unclear = (f"of {many(history.unclear, 'message')} only the acks know the end",) if history.unclear else ()
    made: dict[str, Found] = {}
    for name in wanted:
        if name.startswith("group_"):
            bad = (_out_of_order if name == "group_order" else _with_others)(history, queue.rules[0].grouping)
            doubts: tuple[str, ...] = unclear
            if name == "group_order":
                untold, alone = _never_put_back(history)
                bad = np.union1d(bad, untold)
                doubts += (f"nothing says that {many(alone, 'redriven message')} came back",) * (alone > 0)
            _tell(name, summaries, history, bad, findings)
            grouped = history.messages.group[history.deliveries.row] != 0
            made[name] = Found(bad.size, int(np.count_nonzero(grouped)), doubts)
        else:
            made[name] = _noted(name, queue.rules[0].grouping, summaries, history, findings)
    return made


# ---- reading

def _history(source: Source, grouping: Grouping | None, summaries: list[Summary], options: Options) -> History:
    # What was there when all files had been read once is in each of them now, though a broker may go on writing.
    last = max((s.last_ts for s in summaries), default=0)
    parts = [_part(read_again(source, s, options), grouping, k, s.power_cut) for k, s in enumerate(summaries)]
    of = Messages(*_joined([part.messages for part in parts]))
    order = np.lexsort((of.since, of.seq))
    of, row = Messages(*(column[order] for column in of)), np.empty(order.size, np.int64)
    row[order] = np.arange(order.size)
    offsets = np.cumsum([0, *(part.messages[0].size for part in parts)])

    def in_time(which: list[tuple[np.ndarray, ...]], at: int) -> list[np.ndarray]:
        """Sorted by time, up to ``last``; each row of its part becomes one of all."""
        columns = _joined(which)
        columns[at] = row[columns[at] + np.repeat(offsets[:-1], [some[0].size for some in which])]
        chosen = np.argsort(columns[0], kind="stable")
        chosen = chosen[columns[0][chosen] <= last]
        return [column[chosen] for column in columns]

    starts = np.unique(np.concatenate([s.starts for s in summaries])) if summaries else np.empty(0, np.int64)
    untold = [row[part.untold + offset] for part, offset in zip(parts, offsets[:-1].tolist(), strict=True)]
    times = np.sort(np.concatenate([np.empty(0, np.int64), *(part.times for part in parts)]))
    return History(of, Deliveries(*in_time([part.deliveries for part in parts], 3)),
                   Notes(*in_time([part.notes for part in parts], 3)), times, starts,
                   sum(part.unclear for part in parts), np.concatenate([np.empty(0, np.int64), *untold]),
                   parks.Parked(*_joined([part.parked for part in parts])),
                   any(s.triple.cut is not None for s in summaries))


def _joined(parts: list[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


class _Part(NamedTuple):
    """What History has, of one segment.  Rows are those of its own ``messages``.  Only what the journal covers has a
    group, and only its deliveries and notes are there."""

    messages: tuple[np.ndarray, ...]
    deliveries: tuple[np.ndarray, ...]
    notes: tuple[np.ndarray, ...]
    times: np.ndarray
    unclear: int
    untold: np.ndarray
    parked: parks.Parked


def _part(p: Pass, grouping: Grouping | None, number: int, power_cut: int) -> _Part:
    data, life = p.data, p.life
    known = spells(data, life, power_cut)
    record = life.record[known.of]
    group = np.zeros(known.seq.size, np.int64)
    if grouping is not None and data.positions.size:
        of_record = np.append(groups_of(data, grouping), 0)
        group = np.where(known.sure, of_record[record], 0)      # A message without a record, -1, has the last one.
    aside = at(known, data.aside["seq"].astype(np.int64), data.aside["ts"].astype(np.int64))
    told = np.flatnonzero((aside >= 0) & known.sure[aside]) if known.seq.size else aside[:0]
    entries, row = of_entries(data, life, known)
    next_tries = tries.told_by_acks(entries, row)
    notes = (*(data.aside[name][told].astype(np.int64) for name in ("ts", "type", "aux")), aside[told],
             tries.said_of(data, known, aside, next_tries)[told], tries.begun(data)[told], data.aside_places[told],
             np.full(told.size, number))
    times = np.concatenate((data.headers["ts"][data.sound], data.events["ts"], data.aside["ts"], data.marks,
                            data.events_again["ts"])).astype(np.int64)
    places = np.append(_places(data), 0)[record]
    place = np.where((record >= 0) & (places > 0) & (places < known.seq), places, known.seq)
    messages = (known.seq, group, known.since, known.settled, known.later,
                np.full(known.seq.size, data.triple.priority), place, life.published[known.of],
                np.append(data.headers["connection"].astype(np.int64), 0)[record])
    untold = tries.untold(data, life, known, aside, next_tries) if grouping is None else row[:0]
    parked = parks.parked(data, record, known, group, (entries, row), aside, number)
    return _Part(messages, _deliveries(p, known, number), notes, times, int(np.count_nonzero(known.by_acks)), untold,
                 parked)


def _deliveries(p: Pass, known: Spells, number: int) -> tuple[np.ndarray, ...]:
    """The deliveries with acks of one segment: columns of Deliveries."""
    data, life, e = p.data, p.life, known.events
    which = np.flatnonzero(p.delivered & (life.why & layout.WITHOUT_ACK == 0) & known.sure[known.first[life.of]])
    goes_on = ~life.last[which] & (np.append(life.run[1:], 0)[which] == life.run[which])
    ends = np.append(data.runs, FOREVER)
    until = np.where(goes_on, np.append(life.ts[1:], 0)[which], ends[life.run[which]])
    events = data.events[life.event[which]]
    first = (life.ts[which], until, _holders(events["consumer"], life.why[which]), known.first[life.of[which]],
             data.event_places[life.event[which]], np.full(which.size, number))
    if not e.seq.size:
        return first
    sure = (known.again >= 0) & known.sure[known.again] if known.seq.size else known.again >= 0
    which = np.flatnonzero((e.type == layout.DELIVERED) & (e.why & layout.WITHOUT_ACK == 0) & sure)
    goes_on = np.append(~e.head[1:] & (e.run[1:] == e.run[:-1]), False)[which]
    until = np.where(goes_on, np.append(e.ts[1:], 0)[which], ends[e.run[which]])
    again = (e.ts[which], until, _holders(e.consumer[which], e.why[which]), known.again[which], e.place[which],
             np.full(which.size, number))
    return tuple(np.concatenate(both) for both in zip(first, again, strict=True))


def _holders(consumer: np.ndarray, why: np.ndarray) -> np.ndarray:
    return consumer.astype(np.int64) + np.where(why & layout.BY_GET, BY_CONNECTION, 0)


def _places(data: SegmentData) -> np.ndarray:
    """Where each record that was redriven stood in its group; 0 of others."""
    found = np.zeros(data.positions.size, np.int64)
    if data.positions.size and (data.headers["flags"] & layout.REDRIVEN).any():
        index, numbers = whole_numbers(data.octets, data.records, PLACE)
        found[index] = numbers
        found[data.headers["flags"] & layout.REDRIVEN == 0] = 0
    return found


def groups_of(data: SegmentData, grouping: Grouping) -> np.ndarray:
    """A hash of the group of each record; 0: none, or its key is no text."""
    found, known = np.zeros(data.positions.size, np.int64), np.zeros(data.positions.size, bool)
    for name in grouping.headers or (grouping.by,):
        is_header = bool(grouping.headers)
        where = texts(data.octets, data.records, name, header=is_header)
        octet = np.frombuffer(data.octets, np.uint8)
        right = ~known[where.index] & (where.length > 0)
        if is_header:
            right &= octet[np.maximum(where.start - 5, 0)] == ord("S")
        where = Texts(where.index[right], where.start[right], where.length[right])
        found[where.index] = hashes(data.octets, where).astype(np.int64)
        # Of several names the first that a message has counts.  A key that is no text is not known here.
        known[with_header(data.octets, data.records, name) if is_header else where.index] = True
    return found


# ---- groups

def _out_of_order(history: History, grouping: Grouping | None) -> np.ndarray:
    """The deliveries before which an earlier message of the group was neither settled nor with that consumer."""
    of, rows = history.messages, history.deliveries
    again = of.redriven                             # It stands before others only since it was put back.
    apart = again | of.later
    order = np.lexsort((of.since, of.seq, of.group))
    before = np.zeros(of.seq.size, np.int64)        # For each message, when the last of all earlier ones was settled.
    before[order] = group_max_before(of.group[order], np.where(apart, 0, of.settled)[order])
    begins = np.searchsorted(of.group[order], of.group)
    at_ = np.empty(order.size, np.int64)
    at_[order] = np.arange(order.size)
    holds = _Holds(rows)
    bad = []
    for k in np.flatnonzero((of.group[rows.row] != 0) & (before[rows.row] > rows.ts) & ~again[rows.row]).tolist():
        row, ts = int(rows.row[k]), int(rows.ts[k])
        earlier = order[begins[row]:at_[row]]
        if any(holds.holder(int(one), ts) != int(rows.holder[k])
               for one in earlier[(of.settled[earlier] > ts) & ~apart[earlier]]):
            bad.append(k)
    found = np.array(bad, np.int64)
    if again.any():
        found = np.union1d(found, _past_redriven(history, holds))
    return np.union1d(found, _past_replayed(history, holds)) if of.later.any() else found


def _past_replayed(history: History, holds: "_Holds") -> np.ndarray:
    """The deliveries that passed a replayed message of their group."""
    of, rows = history.messages, history.deliveries
    waiting = np.flatnonzero(of.later & (of.group != 0) & ~of.redriven & (of.settled > of.since))
    groups, rank = np.unique(of.group[rows.row], return_inverse=True)
    order = np.argsort(rank, kind="stable")         # Within a group still in order of time.
    place, time = of.place[rows.row][order], np.searchsorted(ts := np.unique(rows.ts), rows.ts)[order]
    key = rank[order] * (ts.size + 1) + time
    own = np.minimum(np.searchsorted(groups, of.group[waiting]), max(groups.size - 1, 0))
    if not groups.size:
        return np.empty(0, np.int64)
    waiting, own = (column[groups[own] == of.group[waiting]] for column in (waiting, own))
    low = np.searchsorted(key, own * (ts.size + 1) + np.searchsorted(ts, of.since[waiting], "right"))
    high = np.searchsorted(key, own * (ts.size + 1) + np.searchsorted(ts, of.settled[waiting]))
    bad: set[int] = set()
    for k in np.flatnonzero(count_above(place, low, high, of.seq[waiting])).tolist():
        some, row = order[low[k]:high[k]], int(waiting[k])
        passed = some[of.place[rows.row[some]] > of.seq[row]]
        bad.update(passed[~holds.held_by(row, rows.ts[passed], rows.holder[passed])].tolist())
    return np.array(sorted(bad), np.int64)


def _past_redriven(history: History, holds: "_Holds") -> np.ndarray:
    """The deliveries that passed a redriven message of their group, and those of redriven ones that passed others, or
    that came before the message was put back.  Killed just before that event, a broker puts it back without one."""
    of, rows, put_back = history.messages, history.deliveries, _put_back(history)
    again, stands = of.redriven, of.stands
    bad: set[int] = set()
    by_group = _index(of.group[rows.row])
    for row in np.flatnonzero(again & (of.group != 0)).tolist():
        waiting = by_group.get(int(of.group[row]), np.empty(0, np.int64))
        ts, other = rows.ts[waiting], rows.row[waiting]
        since = int(of.since[row]) if of.later[row] else put_back.get(row, FOREVER)
        until = int(of.settled[row])                # 0: it is not known when.
        passed = (of.place[other] > stands[row]) & (ts > since) & (ts < until) & (other != row)
        bad |= {k for k in waiting[passed].tolist() if holds.holder(row, int(rows.ts[k])) != int(rows.holder[k])}
        same = np.flatnonzero((of.group == of.group[row]) & (of.place < of.place[row]) & ~again)
        for k in waiting[other == row].tolist():
            if not of.later[row] and int(rows.ts[k]) < put_back.get(row, 0):
                bad.add(k)
            open_ = same[(of.settled[same] > rows.ts[k]) & (of.since[same] < rows.ts[k])]
            if any(holds.holder(int(one), int(rows.ts[k])) != int(rows.holder[k]) for one in open_.tolist()):
                bad.add(k)
    return np.array(sorted(bad), np.int64)


def _put_back(history: History) -> dict[int, int]:
    """When each redriven message was put back into its group."""
    notes = history.notes
    told = np.flatnonzero(notes.type == layout.REDRIVEN_EVENT)[::-1]    # The first one of a message stays.
    return dict(zip(notes.row[told].tolist(), notes.ts[told].tolist(), strict=True))


def _never_put_back(history: History) -> tuple[np.ndarray, int]:
    """The deliveries of redriven messages that were never put back into their groups; and how many more messages that
    may be true of.

    A redrive stores all its messages, and then puts them back.  One that a kill cut short is finished by the next
    start: messages of before are put back without an event, and older brokers told none of those that a start stored.
    """
    of, rows, since, starts = history.messages, history.deliveries, _put_back(history), history.starts
    untold = [row for row in np.flatnonzero(of.redriven & ~of.later & (of.group != 0)).tolist() if row not in since]
    if not untold:
        return np.empty(0, np.int64), 0
    put_back = np.array([*since.items()], np.int64).reshape(-1, 2)
    by_row, bad, doubtful = _index(rows.row), [], 0
    for row in untold:
        mine, published = by_row.get(row, np.empty(0, np.int64))[:1], int(of.published[row])
        until = int(np.append(starts, FOREVER)[np.searchsorted(starts, published)])     # The end of that life.
        if not mine.size or int(rows.ts[mine[0]]) > until:
            continue
        others = put_back[of.connection[put_back[:, 0]] == of.connection[row]][:, 1]    # Of the same redrive.
        if ((others > published) & (others < until)).any():
            bad += mine.tolist()
        else:
            doubtful += 1
    return np.array(bad, np.int64), doubtful


def _with_others(history: History, grouping: Grouping | None) -> np.ndarray:
    """The deliveries during which another consumer had a message of the group, or too many of it were out."""
    of, rows = history.messages, history.deliveries
    group = of.group[rows.row]
    order = np.argsort(group, kind="stable")        # Within a group still in order of time.
    latest = group_max_before(group[order], rows.until[order])
    begins = np.searchsorted(group[order], group[order])
    most = grouping.most if grouping is not None and not grouping.sticky else FOREVER
    bad = []
    for k in np.flatnonzero((group[order] != 0) & (latest > rows.ts[order])).tolist():
        own, earlier = order[k], order[begins[k]:k]
        out = earlier[(rows.until[earlier] > rows.ts[own]) & (rows.row[earlier] != rows.row[own])]
        if (rows.holder[out] != rows.holder[own]).any() or out.size >= most:
            bad.append(int(own))
    return np.array(sorted(bad), np.int64)


class _Holds:
    """Who has a message at a time."""

    def __init__(self, rows: Deliveries) -> None:
        self.rows = rows
        self.order = np.argsort(rows.row, kind="stable")
        self.sorted = rows.row[self.order]

    def held_by(self, row: int, ts: np.ndarray, holder: np.ndarray) -> np.ndarray:
        """At which of these times that consumer has it."""
        low, high = np.searchsorted(self.sorted, (row, row + 1)).tolist()
        found = np.zeros(ts.size, bool)
        for k in self.order[low:high].tolist():
            found |= (self.rows.ts[k] < ts) & (ts < self.rows.until[k]) & (self.rows.holder[k] == holder)
        return found

    def holder(self, row: int, ts: int) -> int:
        """The consumer that has it then; -1: no consumer has."""
        low, high = np.searchsorted(self.sorted, (row, row + 1)).tolist()
        for k in self.order[low:high].tolist():
            if self.rows.ts[k] < ts < self.rows.until[k]:
                return int(self.rows.holder[k])
        return -1


# ---- retries and stops

def _noted(audit: str, grouping: Grouping | None, summaries: list[Summary], history: History,
           findings: Findings) -> Found:
    """Judge by the notes of one kind: until each one ends, nothing that waits for it goes out."""
    of, notes = history.messages, history.notes
    kinds = (layout.RETRY_SCHEDULED,) if audit == "retry_kept" else STOPS
    which = np.flatnonzero(np.isin(notes.type, kinds))
    releases = notes.row[np.isin(notes.type, RELEASES)], notes.ts[np.isin(notes.type, RELEASES)]
    of_row, of_group = _index(releases[0]), _index(of.group[releases[0]])
    by_row, by_group = _index(history.deliveries.row), _index(of.group[history.deliveries.row])
    level = of.level[history.deliveries.row]        # Behind a message stands what is of lower levels, too.
    by_level = {one: np.flatnonzero(level <= one) for one in np.unique(of.level).tolist()}
    which = which[(notes.acks[which] != tries.UNKNOWN) | ~_cut_off(history, summaries, notes.ts[which])]
    if grouping is not None:        # A release is of a group: without the group's key it is not known of which.
        which = which[of.group[notes.row[which]] != 0]
    bad: set[int] = set()
    for k in which.tolist():
        row, ts = int(notes.row[k]), int(notes.ts[k])
        group = int(of.group[row])
        until = int(of.settled[row]) or ts          # Not known when it was settled: it may have been at once.
        if audit == "retry_kept":
            until = min(until, ts + int(notes.aux[k]) * 1_000_000 - tries.SLACK_NS)
        ends = releases[1][np.asarray(of_group.get(group, ()) if group else of_row.get(row, ()), np.int64)]
        following = int(np.searchsorted(ends, ts, "right"))
        until = min(until, int(ends[following])) if following < ends.size else until
        if group:
            waiting = by_group.get(group, ())
        elif notes.type[k] == layout.PARKED_EVENT:
            waiting = by_level.get(int(of.level[row]), ())
        else:
            waiting = by_row.get(row, ())
        bad |= _early(history, waiting, ts, until, row)
    found = np.array(sorted(bad), np.int64)
    at = history.deliveries.ts[found]
    at -= np.isin(at - 1, notes.ts[notes.type == layout.TOKEN_EVENT])   # The token of a delivery comes just before it.
    excused = _is_next(history, at) if audit == "retry_kept" else np.zeros(found.size, bool)
    _tell(audit, summaries, history, found[~excused], findings)
    doubts: tuple[str, ...] = ()
    if excused.any():
        doubts += (f"{int(excused.sum())} went out early, or the clock was put back",)
    if audit == "retry_kept":
        untold = np.array([by_row[row][0] for row in history.untold.tolist() if row in by_row], np.int64)
        _tell(audit, summaries, history, untold, findings, tries.UNTOLD)
        other, unsure = _other_times(summaries, history, findings)
        more = untold.size + other
        doubts += (f"{many(unsure, 'time')} of a next try differ, or the clock was put back",) * (unsure > 0)
    else:
        more, unsure = _parked(grouping, summaries, history, findings)
        doubts += (f"of the stop of {many(unsure, 'group')} only the acks tell",) * (unsure > 0)
    return Found(int(np.count_nonzero(~excused)) + more, int(which.size) + more, doubts)


def _other_times(summaries: list[Summary], history: History, findings: Findings) -> tuple[int, int]:
    """How many next tries are at another time by the acks than by the journal; and of how many more that is so by a
    clock that was put back."""
    notes = history.notes
    which = np.flatnonzero(notes.acks >= tries.EARLIER)
    excused = (notes.acks[which] == tries.EARLIER) & _is_next(history, notes.begun[which])
    for number in np.unique(notes.segment[which[~excused]]).tolist():
        own = which[~excused & (notes.segment[which] == number)]
        ts = notes.ts[own]
        findings.add(summaries[number], "retry_kept", "journal", tries.WORDS, history.messages.seq[notes.row[own]],
                     notes.place[own], ts, ts, ts)
    return int(np.count_nonzero(~excused)), int(np.count_nonzero(excused))


def _is_next(history: History, ts: np.ndarray) -> np.ndarray:
    """Which of these times are one ns later than another one: while a clock that was put back has not caught up, each
    event is so."""
    place = np.minimum(np.searchsorted(history.times, ts - 1), max(history.times.size - 1, 0))
    return history.times[place] == ts - 1 if ts.size else np.zeros(0, bool)


def _parked(grouping: Grouping | None, summaries: list[Summary], history: History,
            findings: Findings) -> tuple[int, int]:
    """How many messages stopped something by the acks alone, and of how many groups that may be true."""
    of, notes, rows = history.messages, history.notes, history.parked
    told = of.group[notes.row[notes.type == layout.GROUP_PARKED_EVENT]]
    whole = int(of.seq[0]) == 1 and not any(s.uncovered for s in summaries) if of.seq.size else False
    lives = history.starts.size + history.open
    bad, unsure = parks.untold(rows, told, lives, grouped=grouping is not None, whole=whole)
    for number in np.unique(rows.segment[bad]).tolist():
        own = bad[rows.segment[bad] == number]
        findings.add(summaries[number], "stop_kept", "msgs", parks.WORDS, rows.seq[own], rows.place[own],
                     rows.published[own], rows.published[own], rows.published[own])
    return bad.size, unsure


def _cut_off(history: History, summaries: list[Summary], ts: np.ndarray) -> np.ndarray:
    """Which notes are the last thing of a broker's life.  Their entries come behind them, and kill -9 may have struck
    between: then the next life does not know of them."""
    starts = np.unique(np.concatenate([s.starts for s in summaries]))
    following = np.append(history.times, FOREVER)[np.searchsorted(history.times, ts, "right")]
    return np.isin(following, starts)


def _index(values: np.ndarray) -> dict[int, np.ndarray]:
    """The indices of each value, rising."""
    order = np.argsort(values, kind="stable")
    cuts = np.flatnonzero(np.diff(values[order])) + 1
    return {int(values[some[0]]): some for some in np.split(order, cuts) if some.size}


def _early(history: History, waiting: "np.ndarray | tuple[()]", ts: int, until: int, row: int) -> set[int]:
    """Those of the deliveries ``waiting`` that came between, of this message or later ones."""
    some = np.asarray(waiting, np.int64)
    times = history.deliveries.ts[some]
    some = some[np.searchsorted(times, ts, "right"):np.searchsorted(times, until)]
    of, rows = history.messages, history.deliveries.row[some]
    behind = (of.place[rows] >= of.stands[row]) | (rows == row)
    if not of.group[row]:
        behind |= of.level[rows] < of.level[row]
    return set(some[behind].tolist())


WORDS = {
    "group_order": "handed out before an earlier one of its group was settled",
    "group_owner": "handed out while others of its group were with another consumer, or too many were out",
    "retry_kept": "handed out before the time of the next try of its message or group",
    "stop_kept": "handed out while its queue or group had stopped at a message before it",
}


def _tell(audit: str, summaries: list[Summary], history: History, bad: np.ndarray, findings: Findings,
          words: str = "") -> None:
    rows, seq = history.deliveries, history.messages.seq
    for number in np.unique(rows.segment[bad]).tolist():
        own = bad[rows.segment[bad] == number]
        findings.add(summaries[number], audit, "journal", words or WORDS[audit], seq[rows.row[own]], rows.place[own],
                     rows.ts[own], rows.ts[own], rows.ts[own])
