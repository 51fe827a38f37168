"""Judges three promises that a queue keeps beside the order of its messages.

===============  ====================================================================================================
token_kept       fencing tokens of a group rise, and no former owner settled a message of it after a newer token
dedup_kept       no deduplication key was accepted twice within its window
replay_exact     a replay made ready exactly as many messages as it says, and only settled ones
===============  ====================================================================================================

``token_kept`` knows the tokens that consumers were told (``x-group-info``).  ``dedup_kept`` compares the hashes that
records carry, and judges only queues whose rule never changed; keys with a time of their own, and a rule by which a
newer message replaces an older one, are not judged.  A key counts for certain while fewer messages came behind it than
the window holds.  Where keys count until their messages are settled, that of a replayed message counts again from the
replay to its next end, unless a newer message with this key waited meanwhile: then the newer one's end is the key's.

Reads the segments of such queues once more.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from brokerd.audit import many
from brokerd.audit.arrays import group_max_before
from brokerd.audit.files import FOREVER, QueueFiles, Source
from brokerd.audit.properties import Deduplicating
from brokerd.audit.scan import Options, Pass, Summary
from brokerd.audit.segment import SegmentData
from brokerd.audit.spells import spells
from brokerd.audit.stitch import Findings, read_again
from brokerd.audit.waits import Found, groups_of
from brokerd.store import format as layout

AUDITS = ("token_kept", "dedup_kept", "replay_exact")
SETTLED_BY_CLIENT = (layout.ACKED, layout.REJECTED, layout.DEAD_LETTERED)
OTHERS_KEY, OWN_TIME = 4, 8     # bits of a record's flags
SLACK_NS = 2_000_000            # times of keys are in ms


class _Rows(NamedTuple):
    """Rows of one audit: columns.  ``segment``: the index of the summary, ``place``: where it stands in the file."""

    seq: np.ndarray
    ts: np.ndarray
    value: np.ndarray
    other: np.ndarray
    place: np.ndarray
    segment: np.ndarray


def applies(audit: str, queue: QueueFiles) -> bool:
    """Whether this audit can say anything about this queue."""
    rules = queue.rules
    if not rules:
        return False
    if audit == "replay_exact":
        return True
    if audit == "token_kept":
        return rules[0].grouping is not None and len({rule.grouping for rule in rules}) == 1
    dedup = rules[0].dedup
    return dedup is not None and len({rule.dedup for rule in rules}) == 1 and dedup.action != "replace"


def judge(source: Source, queue: QueueFiles, summaries: list[Summary], options: Options,
          findings: Findings) -> dict[str, Found]:
    """Judge those of ``AUDITS`` that the options ask for and that can say something about this queue."""
    wanted = [name for name in AUDITS if options.wants(name) and applies(name, queue)]
    replayed = any(s.replayed for s in summaries)
    if "replay_exact" in wanted and not replayed:
        wanted.remove("replay_exact")
    if not wanted or not summaries:
        return {}
    passes = [read_again(source, s, options) for s in summaries]
    made: dict[str, Found] = {}
    for name in wanted:
        found, checked, doubts = {"token_kept": _tokens, "dedup_kept": _keys, "replay_exact": _replays}[name](
            queue, passes, summaries)
        kind = "msgs" if name == "dedup_kept" else "journal"
        for words, rows in found:
            for number in np.unique(rows.segment).tolist():
                own = rows.segment == number
                findings.add(summaries[number], name, kind, words, rows.seq[own], rows.place[own], rows.ts[own],
                             rows.value[own], rows.other[own])
        made[name] = Found(sum(rows.seq.size for _, rows in found), checked, doubts)
    return made


_Judged = tuple[list[tuple[str, _Rows]], int, tuple[str, ...]]


def _rows(parts: Sequence[tuple[np.ndarray, ...]]) -> _Rows:
    """The rows of all segments: seq, ts, value, other, place of each."""
    seq, ts, value, other, place = [np.concatenate([part[k] for part in parts]).astype(np.int64) for k in range(5)]
    segment = np.concatenate([np.full(part[0].size, k) for k, part in enumerate(parts)])
    return _Rows(seq, ts, value, other, place, segment)


def _chosen(rows: _Rows, which: np.ndarray) -> _Rows:
    return _Rows(*(column[which] for column in rows))


# ---- tokens

def _tokens(queue: QueueFiles, passes: list[Pass], summaries: list[Summary]) -> _Judged:
    """``value``: the token, or the number of the consumer that settled; ``other``: a hash of the group."""
    grouping = queue.rules[0].grouping
    assert grouping is not None
    told, settled, delivered = [], [], []
    for p in passes:
        data = p.data
        of_record = np.append(groups_of(data, grouping), 0) if data.positions.size else np.zeros(1, np.int64)
        numbers = data.headers["seq"].astype(np.int64)

        def group_of(seq: np.ndarray, numbers: np.ndarray = numbers, of: np.ndarray = of_record) -> np.ndarray:
            at = np.minimum(np.searchsorted(numbers, seq), max(numbers.size - 1, 0))
            return np.where(numbers[at] == seq, of[at], 0) if numbers.size else np.zeros(seq.size, np.int64)

        which = data.aside["type"] == layout.TOKEN_EVENT
        some = data.aside[which]
        token = some["aux"].astype(np.int64) | some["count"].astype(np.int64) << 32 | some["reason"].astype(
            np.int64) << 48
        told.append((some["seq"], some["ts"], token, group_of(some["seq"].astype(np.int64)), data.aside_places[which],
                     some["consumer"]))
        events, places = np.concatenate((data.events, data.events_again)), np.concatenate((
            data.event_places, data.again_places))
        own = np.isin(events["type"], SETTLED_BY_CLIENT) & (events["consumer"] > 0)
        some = events[own]
        settled.append((some["seq"], some["ts"], some["consumer"], group_of(some["seq"].astype(np.int64)),
                        places[own]))
        out = (events["type"] == layout.DELIVERED) & (events["reason"] & layout.BY_GET == 0)
        some = events[out]
        delivered.append((some["seq"], some["ts"], some["consumer"]))
    tokens, ends = _rows([part[:5] for part in told]), _rows(settled)
    owner = np.concatenate([part[5] for part in told]).astype(np.int64)
    order = np.lexsort((tokens.ts, tokens.other))
    before = np.full(order.size, -1, np.int64)
    before[order] = group_max_before(tokens.other[order], tokens.value[order])
    back = np.flatnonzero((tokens.other != 0) & (tokens.value <= before))
    late = _late(tokens, owner, order, ends, [np.concatenate([part[k] for part in delivered]).astype(np.int64)
                                              for k in range(3)])
    return ([("got a token that is not above the one before of its group", _chosen(tokens, back)),
             ("settled by consumer {a} after its group had got a new owner", _chosen(ends, late))],
            int(np.count_nonzero(tokens.other)), ())


def _late(tokens: _Rows, owner: np.ndarray, order: np.ndarray, ends: _Rows, out: list[np.ndarray]) -> np.ndarray:
    """The settlements by a consumer that had the message from before the newest token of its group, told to another."""
    if not order.size or not ends.seq.size:
        return np.empty(0, np.int64)
    groups, times = tokens.other[order], tokens.ts[order]
    bad = []
    by_message = np.lexsort((out[1], out[0]))
    seqs, since, consumers = (column[by_message] for column in out)
    lows, highs = np.searchsorted(groups, ends.other), np.searchsorted(groups, ends.other, "right")
    for k in np.flatnonzero((ends.other != 0) & (highs > lows)).tolist():
        at = int(lows[k]) + int(np.searchsorted(times[lows[k]:highs[k]], ends.ts[k])) - 1
        if at < lows[k] or owner[order[at]] == ends.value[k]:
            continue
        low, high = np.searchsorted(seqs, (ends.seq[k], ends.seq[k] + 1)).tolist()
        mine = since[low:high][(consumers[low:high] == ends.value[k]) & (since[low:high] < ends.ts[k])]
        if mine.size and int(mine.max()) < int(times[at]):
            bad.append(k)
    return np.array(bad, np.int64)


# ---- keys

def _keys(queue: QueueFiles, passes: list[Pass], summaries: list[Summary]) -> _Judged:
    """``value``: the message that has the same key; ``other``: when that came."""
    rule = queue.rules[0].dedup
    assert rule is not None
    parts, doubtful = [], 0
    for p in passes:
        data = p.data
        flags = data.headers["flags"]
        has = data.sound & (data.headers["dedup_hash"] != 0) & (flags & OTHERS_KEY == 0)
        has &= data.headers["ts"] >= queue.rules[0].at
        doubtful += int(np.count_nonzero(has & (flags & OWN_TIME != 0)))
        has &= flags & OWN_TIME == 0
        some = data.headers[has]
        parts.append((some["seq"], some["ts"], some["dedup_hash"].view(np.int64), _ended(p)[has], data.positions[has]))
    rows = _rows(parts)
    order = np.lexsort((rows.seq, rows.value))
    one, next_ = order[:-1], order[1:]
    twice = (rows.value[one] == rows.value[next_]) & (rows.seq[next_] - rows.seq[one] < rule.size)
    if rule.ttl_ms is not None:
        twice &= rows.ts[next_] - rows.ts[one] < rule.ttl_ms * 1_000_000 - SLACK_NS
    if rule.waits:
        twice &= rows.other[one] > rows.ts[next_]
    first, second = one[twice], next_[twice]
    if rule.waits and not doubtful:         # A key with a time of its own may have taken the place of another one.
        again = _while_replayed(rule, rows, order, [_spells_of(p, s) for p, s in zip(passes, summaries, strict=True)])
        new = ~np.isin(again[1], second)
        first, second = np.append(first, again[0][new]), np.append(second, again[1][new])
    found = _chosen(rows, second)._replace(value=rows.seq[first], other=rows.ts[first])
    doubts = (f"{many(doubtful, 'message')} set the time of their keys themselves",) if doubtful else ()
    return [("stored though message {a} had its deduplication key", found)], int(rows.seq.size), doubts


def _spells_of(p: Pass, summary: Summary) -> tuple[np.ndarray, ...]:
    """The spells of messages of a segment: seq, since, until (FOREVER: to the end), sure, later; and the numbers of its
    records."""
    known = spells(p.data, p.life, summary.power_cut)
    numbers = p.data.headers["seq"][p.data.sound].astype(np.int64)
    return known.seq, known.since, known.settled, known.sure, known.later, numbers


def _while_replayed(rule: Deduplicating, rows: _Rows, order: np.ndarray,
                    parts: list[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """The rows of messages that waited since a replay, and of those that were stored meanwhile with the same key, if
    all records between them are there: one that is gone may have had the key.

    ``order``: of rows, by key and number; ``parts``: what _spells_of says of each segment."""
    none = np.empty(0, np.int64)
    seq, since, until, sure, later, every = (np.concatenate([part[k] for part in parts]) for k in range(6))
    row = np.searchsorted(rows.seq, seq, sorter=(by_seq := np.argsort(rows.seq)))
    row = by_seq[np.minimum(row, max(rows.seq.size - 1, 0))] if rows.seq.size else none
    known = rows.seq[row] == seq if row.size else np.zeros(seq.size, bool)
    every = np.unique(every)
    if not (known & later).any() or rows.seq.size + np.count_nonzero(later) >= rule.size:
        return none, none           # In a window that is full it is not certain which keys count.
    row, since, until, sure, later = (column[known] for column in (row, since, until, sure, later))
    rank = np.empty(order.size, np.int64)           # Of a key; rows.value in order is sorted by key.
    rank[order] = np.cumsum(np.append(True, rows.value[order][1:] != rows.value[order][:-1]))
    by_key = np.argsort(rank[row], kind="stable")   # Spells by key.
    ranks, keys, bad = rank[order], rank[row][by_key], list[tuple[int, int]]()
    for k in np.flatnonzero(later & sure).tolist():
        mine = order[slice(*np.searchsorted(ranks, (rank[row[k]], rank[row[k]] + 1)))]
        after = mine[(rows.ts[mine] > since[k]) & (rows.seq[mine] > rows.seq[row[k]])]
        if not after.size or rows.ts[after[0]] >= until[k]:     # 0: it is not known when it ended.
            continue
        at = int(rows.ts[after[0]])
        if rule.ttl_ms is not None and at - rows.ts[row[k]] >= rule.ttl_ms * 1_000_000 - SLACK_NS:
            continue
        others = by_key[slice(*np.searchsorted(keys, (rank[row[k]], rank[row[k]] + 1)))]
        newer = others[(rows.seq[row[others]] > rows.seq[row[k]]) & (row[others] != after[0])]
        taken = (since[newer] < at) & ((until[newer] > since[k]) | ~sure[newer] | (until[newer] == 0))
        low, high = np.searchsorted(every, (rows.seq[row[k]], rows.seq[after[0]])).tolist()
        if not taken.any() and high - low == rows.seq[after[0]] - rows.seq[row[k]]:
            bad.append((int(row[k]), int(after[0])))
    found = np.array(bad, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _ended(p: Pass) -> np.ndarray:
    """When each record was settled; FOREVER: it is not, 0: it is not known when."""
    life, data = p.life, p.data
    found = np.zeros(data.headers.size, np.int64)
    inside = life.record >= 0
    ends = np.where(life.settled > 0, life.settled, np.where(life.ended == 0, FOREVER, 0))
    found[life.record[inside]] = np.where(life.covered, ends, 0)[inside]
    return found


# ---- replays

def _replays(queue: QueueFiles, passes: list[Pass], summaries: list[Summary]) -> _Judged:
    """``value``: how many messages a replay says, ``other``: how many there are."""
    wrong, unsettled, checked = [], [], 0
    for p in passes:
        count, some, others = _replays_of(p.data)
        checked += count
        wrong.append(some)
        unsettled.append(others)
    return ([("a replay made {b} messages of this segment ready, and says {a}", _rows(wrong)),
             ("replayed, and was not settled", _rows(unsettled))], checked, ())


def _replays_of(data: SegmentData) -> tuple[int, tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """How many messages of a segment were replayed; the replays that say another number; the messages not settled."""
    events = np.concatenate((data.events, data.events_again))
    places = np.concatenate((data.event_places, data.again_places))
    is_replay = events["type"] == layout.EVENT_REPLAYED
    said = data.aside["type"] == layout.REPLAY_EVENT
    ends = data.aside["ts"][said].astype(np.int64)
    times = np.sort(events["ts"][is_replay].astype(np.int64))
    starts = np.sort(np.concatenate((data.marks.astype(np.int64), ends)))
    begin = np.append(0, starts)[np.searchsorted(starts, ends)]      # The end of the replay before, or a start.
    there = np.searchsorted(times, ends) - np.searchsorted(times, begin)
    aux = data.aside["aux"][said].astype(np.int64)
    odd = there != aux
    some = (data.aside["seq"][said][odd], ends[odd], aux[odd], there[odd], data.aside_places[said][odd])
    order = np.lexsort((events["ts"], events["seq"]))
    seq, type_, why = (events[name][order].astype(np.int64) for name in ("seq", "type", "reason"))
    same = np.append(False, seq[1:] == seq[:-1])
    before, why_before = np.append(0, type_[:-1]), np.append(0, why[:-1])
    right = np.isin(before, tuple(layout.SETTLING_TYPES)) & (before != layout.PURGED)
    right &= ~((before == layout.DROPPED) & (why_before == layout.REASON_REMOVED))
    bad = order[(type_ == layout.EVENT_REPLAYED) & same & ~right]
    zeros = np.zeros(bad.size, np.int64)
    others = (events["seq"][bad], events["ts"][bad], zeros, zeros, places[bad])
    return int(np.count_nonzero(is_replay)), some, others
