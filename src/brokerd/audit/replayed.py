"""Judges a segment's messages from their replay on: ``judge``.

A replay makes a settled message ready again, with no failed delivery; its events and entries from there on are those of
another life.  ``lives`` has the first life of each message.  This module judges the other lives, by the rules of the
same audits: ``AUDITS``.  ``stitch``, ``holders`` and ``priority`` judge several messages together, over all lives.

If the journal may lack events of a message's later lives, this message is not judged, and counts as uncovered.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from brokerd.audit.agreement import may_be_aside_instead
from brokerd.audit.files import FOREVER
from brokerd.audit.lifecycle import CAUSES, SETTLING
from brokerd.audit.segment import SegmentData, record_at
from brokerd.store import format as layout

AUDITS = ("redelivered", "out_twice", "wrong_consumer", "ended_while_out", "early_death", "failure_counts",
          "before_publish", "delivery_limit", "limit_kept", "ack_without_delivery", "double_settle",
          "delivery_after_settle", "agreement")
COUNT_MAX = 0xFFFF              # failed deliveries: the journal counts no further
DYING = (layout.DEAD_LETTERED, layout.DROPPED)
TOLD_BY_BOTH = np.array([type_ in (*layout.SETTLING_TYPES, layout.RETURNED, layout.HANDED_OUT, layout.REPLAYED)
                         for type_ in range(16)])
# Of the entries of a message: they are those that its events ask for; kill -9 explains the difference; nothing does;
# and there is one more, which settles, so that a kill may explain it.
ALIKE, EXPLAINED, OTHER, ONE_END_MORE = range(4)


class Found(NamedTuple):
    """The findings of one audit: columns.  ``checked``: how many cases were judged; ``uncovered``: how many messages
    could not be."""

    audit: str
    detail: str
    seq: np.ndarray
    place: np.ndarray
    ts: np.ndarray
    a: np.ndarray
    b: np.ndarray
    checked: int
    uncovered: int


class Events(NamedTuple):
    """Events since replays, by message and time.  ``was``: the type of the one before, in the same message; ``out``: it
    is a delivery of the same life of the broker, so that a consumer has the message."""

    seq: np.ndarray
    ts: np.ndarray
    type: np.ndarray
    why: np.ndarray
    consumer: np.ndarray
    failures: np.ndarray
    place: np.ndarray
    run: np.ndarray
    head: np.ndarray
    was: np.ndarray
    same_run: np.ndarray
    out: np.ndarray
    judged: np.ndarray


def events_of(data: SegmentData) -> Events:
    """The events since replays."""
    again = data.events_again
    order = np.argsort(again["seq"], kind="stable")     # The file has them in the order of their times.
    seq, ts = again["seq"][order].astype(np.int64), again["ts"][order].astype(np.int64)
    type_, run = again["type"][order], np.searchsorted(data.runs, ts)
    head = np.append(True, seq[1:] != seq[:-1])[:seq.size]
    was = np.where(head, layout.EVENT_REPLAYED, _shifted(type_))
    same_run = ~head & (_shifted(run) == run)
    return Events(seq, ts, type_, again["reason"][order], again["consumer"][order].astype(np.int64),
                  again["count"][order].astype(np.int64), data.again_places[order], run, head, was, same_run,
                  same_run & (was == layout.DELIVERED), ts[head][np.cumsum(head) - 1] > _known_since(data))


_Case = tuple[str, str, np.ndarray, np.ndarray, np.ndarray, np.ndarray]     # audit, detail, bad, a, b, cases


def judge(data: SegmentData, limit: int | None = None) -> Iterator[Found]:
    """Judge the later lives by all of ``AUDITS``.  ``limit``: the delivery limit to judge by, None: that of the
    settings."""
    if not data.events_again.size:
        return
    e = events_of(data)
    unknown = int(np.count_nonzero(e.head & ~e.judged))
    for audit, detail, bad, a, b, cases in (*_deliveries(e), *_ends(e), *_counts(data, e, limit), *_times(data, e)):
        which = np.flatnonzero(bad & e.judged)
        yield Found(audit, detail, e.seq[which], e.place[which], e.ts[which], a[which], b[which],
                    int(np.count_nonzero(cases & e.judged)), unknown)
    yield _limit_kept(data, e, limit)
    yield _agreement(data, e)


def _shifted(values: np.ndarray) -> np.ndarray:
    return np.append(np.zeros(1, values.dtype), values[:-1])[:values.size]


def _known_since(data: SegmentData) -> int:
    """A message that was replayed later has all its events since then."""
    return max((gap.stop for gap in data.gaps), default=0)


def _first_of_run(e: Events) -> np.ndarray:
    """Which deliveries are the first hand-out of their message in a life of the broker.  A replay counts as one: the
    message had been out before."""
    counts = (e.type == layout.DELIVERED) | (e.type == layout.EVENT_REPLAYED)
    which = np.flatnonzero(counts)
    first = np.ones(which.size, bool)
    first[1:] = (e.seq[which][1:] != e.seq[which][:-1]) | (e.run[which][1:] != e.run[which][:-1])
    found = np.zeros(e.seq.size, bool)
    found[which] = first
    return found


def _deliveries(e: Events) -> Iterator[_Case]:
    delivered = e.type == layout.DELIVERED
    marked, restarted = e.why & layout.REDELIVERED > 0, e.why & layout.BEFORE_START > 0
    says = np.where(restarted, 2, np.where(marked, 1, 0))
    should = np.where(_first_of_run(e), 2, 1)
    yield ("redelivered", "marked {a}, and should be {b} (0 new, 1 redelivered, 2 from before a start)",
           delivered & (~marked | (says != should)), says, should, delivered)
    former = _shifted(e.consumer)
    yield "out_twice", "handed out to {a} while {b} had it", delivered & e.out, e.consumer, former, delivered
    ended = SETTLING[e.was]
    yield ("delivery_after_settle", "delivered, though it was settled after its replay", delivered & ended, e.ts, e.ts,
           delivered)


def _ends(e: Events) -> Iterator[_Case]:
    settles, ended = SETTLING[e.type], SETTLING[e.was]
    yield "double_settle", "settled again after its replay", settles & ended, e.ts, e.ts, settles
    dead, returned = np.isin(e.type, DYING), e.type == layout.RETURNED
    by_reject = (e.type == layout.DEAD_LETTERED) & (e.why == layout.REASON_REJECTED)
    taken = np.isin(e.type, (layout.ACKED, layout.REJECTED)) | by_reject
    yield ("ack_without_delivery", "settled by a client that did not have it", taken & ~e.out & ~ended, e.ts, e.ts,
           taken)
    former = np.where(e.out, _shifted(e.consumer), 0)
    at_limit = dead & (e.why == layout.REASON_LIMIT) & e.same_run & (e.was == layout.RETURNED)
    had = np.where(at_limit, _shifted(e.consumer), former)
    by_itself = dead & (e.consumer == 0)
    named = returned | ((taken | at_limit) & ~by_itself)
    wrong = np.where(e.out | at_limit, e.consumer != had, returned)
    yield ("wrong_consumer", "{a} settled or returned it, and {b} had it (0: no consumer)", named & wrong, e.consumer,
           had, named)
    gone = (dead & (e.why != layout.REASON_REJECTED)) | np.isin(e.type, (layout.EXPIRED, layout.PURGED))
    yield "ended_while_out", "left the queue while {a} had it", gone & e.out, former, former, gone
    of_age = (e.type == layout.EXPIRED) | (dead & (e.why == layout.REASON_EXPIRED))
    yield "early_death", "expired, which a replayed message does not", of_age, e.ts, e.ts, of_age


def _counts(data: SegmentData, e: Events, limit: int | None) -> Iterator[_Case]:
    """As in the first life: ``deliveries``, ``limits``.  The last event of a broker's life may be a hand-out that the
    next start did not know of, and did not count."""
    returned, before = e.type == layout.RETURNED, np.where(e.was == layout.EVENT_REPLAYED, 0, _shifted(e.failures))
    cut = ~e.same_run & ~e.head & (e.was == layout.DELIVERED)
    least = before + returned + cut
    ends = _ends_of_runs(data)
    least -= cut & np.isin(_shifted(e.ts), ends)
    most = np.minimum(before + returned + cut, COUNT_MAX)
    least = np.minimum(least, COUNT_MAX)
    replay = e.type == layout.EVENT_REPLAYED
    least, most = np.where(replay, 0, least), np.where(replay, 0, most)
    judged = ~SETTLING[e.was]
    yield ("failure_counts", "counts {a} failed deliveries, and should count {b}",
           judged & ((e.failures < least) | (e.failures > most)), e.failures, most, judged)
    highest = _highest_limit(data, limit)
    delivered = e.type == layout.DELIVERED
    limited = delivered & (highest < FOREVER)
    yield ("delivery_limit", "delivered after {a} failures, with a limit of {b}", limited & (e.failures > highest),
           e.failures, np.full(e.seq.size, highest), limited)


class _Tries(NamedTuple):
    """Lives since replays: columns.  ``final``: their last event; ``failed`` so often, of which ``doubtful`` (0 or 1)
    may not be counted; ``cut``: a delivery among these was out when a broker's life ended."""

    final: np.ndarray
    failed: np.ndarray
    doubtful: np.ndarray
    cut: np.ndarray


def _tries(data: SegmentData, e: Events) -> _Tries:
    begins = e.head | (e.type == layout.EVENT_REPLAYED)
    first, of = np.flatnonzero(begins), np.cumsum(begins) - 1
    final = np.append(first[1:], e.seq.size) - 1
    following = np.append(e.run[1:], 0)
    following[final] = np.where(SETTLING[e.type[final]], e.run[final], data.runs.size)
    cut = (e.type == layout.DELIVERED) & (e.run < following)
    cuts = np.bincount(of[cut], minlength=first.size)
    returns = np.bincount(of[e.type == layout.RETURNED], minlength=first.size)
    return _Tries(final, returns + cuts, np.minimum(cuts, 1), cuts > 0)


def _is_out(data: SegmentData, e: Events, which: np.ndarray) -> np.ndarray:
    return (e.type[which] == layout.DELIVERED) & (e.run[which] == data.runs.size)


def _limit_kept(data: SegmentData, e: Events, limit: int | None) -> Found:
    """A message that failed too often died of it.  One that has no end yet is ``pending``."""
    tries, highest = _tries(data, e), _highest_limit(data, limit)
    end, judged = e.type[tries.final], e.judged[tries.final] & (highest < FOREVER)
    went_on = (_is_out(data, e, tries.final) | SETTLING[end]) & ~np.isin(end, DYING) & judged & (tries.failed > highest)
    sure = tries.failed - tries.doubtful > highest
    bad, failed = tries.final[went_on & sure], tries.failed[went_on & sure]
    unsure = int(np.count_nonzero(went_on & ~sure))
    return Found("limit_kept", "failed {a} times since its replay, with a limit of {b}, and went on", e.seq[bad],
                 e.place[bad], e.ts[bad], failed, np.full(bad.size, highest), int(np.count_nonzero(judged)),
                 (int(np.count_nonzero(e.head & ~e.judged)) if highest < FOREVER else 0) + unsure)


def pending(data: SegmentData, limit: int | None) -> dict[str, np.ndarray]:
    """The messages beyond their limit since a replay that are neither dead nor out: columns of ``Summary.pending``."""
    e = events_of(data)
    tries = _tries(data, e)
    waits = e.judged[tries.final] & (tries.failed > _highest_limit(data, limit)) & ~SETTLING[e.type[tries.final]]
    waits &= ~_is_out(data, e, tries.final)
    some = tries.final[waits]
    return {"seq": e.seq[some], "ts": e.ts[some], "place": e.place[some], "waits": tries.cut[waits]}


def _highest_limit(data: SegmentData, limit: int | None) -> int:
    """The highest limit that was ever in force; FOREVER: none."""
    if limit is not None:
        return limit
    limits = [FOREVER if rule.limit is None or rule.stops else rule.limit for rule in data.triple.rules]
    return max(limits, default=FOREVER)


def _ends_of_runs(data: SegmentData) -> np.ndarray:
    """The times of the last events of this journal in each life of the broker."""
    ts = np.sort(np.concatenate((data.events["ts"], data.events_again["ts"])))
    last = np.append(np.searchsorted(ts, data.runs), ts.size)
    return ts[last[last > 0] - 1]


def _times(data: SegmentData, e: Events) -> Iterator[_Case]:
    numbers, published = data.headers["seq"][data.sound].astype(np.int64), data.headers["ts"][data.sound]
    order = np.argsort(numbers, kind="stable")
    place = np.minimum(np.searchsorted(numbers[order], e.seq), max(numbers.size - 1, 0))
    known = numbers[order][place] == e.seq if numbers.size else np.zeros(e.seq.size, bool)
    since = np.where(known, published[order][place] if numbers.size else 0, 0)
    yield "before_publish", "happened before its message was published, at {b:t}", e.ts <= since, e.ts, since, known


# --- the acks


def _agreement(data: SegmentData, e: Events) -> Found:
    """Each message's entries since its replay tell what its events tell, in their order.  A compaction leaves only the
    last entry of a record; then nothing is compared."""
    which, checked, doubts = [], 0, 0
    if not data.generation and data.triple.acks is not None and not data.matters("acks"):
        heads = np.flatnonzero(e.head & e.judged)
        checked, events, entries = heads.size, _told_by_events(e), _told_by_entries(data)
        if not all(np.array_equal(*pair) for pair in zip(events, entries, strict=True)):
            said, told = _by_message(*entries), _by_message(*events)
            asides, closing = _asides(data) if may_be_aside_instead(data) else {}, _closing(data, e)
            none: frozenset[int] = frozenset()
            for head, seq in zip(heads.tolist(), e.seq[heads].tolist(), strict=True):
                answer = _compare(told[seq], said.get(seq, []), asides.get(seq, none), closing.get(seq, none),
                                  goes_on=data.triple.cut is not None)
                if answer == ONE_END_MORE:
                    answer = EXPLAINED if _may_be_cut_off(data, seq) else OTHER
                doubts += answer == EXPLAINED
                which += [head] * (answer == OTHER)
    bad = np.array(which, np.int64)
    return Found("agreement", "the acks tell otherwise than the journal what became of it since its replay", e.seq[bad],
                 e.place[bad], e.ts[bad], e.ts[bad], e.ts[bad], checked,
                 int(np.count_nonzero(e.head & ~e.judged)) + doubts + len(data.cut_off))


def _codes(type_: np.ndarray, why: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Type, reason and count of each, as one number; only what both files tell."""
    why = np.where(((type_ == layout.RETURNED) & (why < len(CAUSES))) | np.isin(type_, DYING), why, 0)
    count = np.where(np.isin(type_, (layout.RETURNED, layout.HANDED_OUT)), count, 0)
    return type_.astype(np.int64) << 24 | why.astype(np.int64) << 16 | count.astype(np.int64)


def _told_by_events(e: Events) -> tuple[np.ndarray, np.ndarray]:
    """The message and the code of each entry that there should be."""
    type_ = np.where(e.type == layout.EVENT_REPLAYED, layout.REPLAYED,
                     np.where(e.type == layout.DELIVERED, layout.HANDED_OUT, e.type))
    told = ~((e.type == layout.DELIVERED) & (e.why & layout.WITHOUT_ACK > 0))
    return e.seq[told], _codes(type_, e.why, e.failures)[told]


def _entries(data: SegmentData) -> tuple[np.ndarray, np.ndarray]:
    """The message of each entry since a replay, and the entry."""
    record = record_at(data.positions, len(data.octets), data.entries_again["position"])
    known = record >= 0
    seq = data.headers["seq"].astype(np.int64)[record[known]]
    order = np.argsort(seq, kind="stable")
    return seq[order], data.entries_again[known][order]


def _told_by_entries(data: SegmentData) -> tuple[np.ndarray, np.ndarray]:
    seq, entries = _entries(data)
    told = TOLD_BY_BOTH[entries["kind"] & 0x0F]
    return seq[told], _codes(entries["kind"] & 0x0F, entries["kind"] >> 4, entries["count"])[told]


def _by_message(seq: np.ndarray, values: np.ndarray) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for one, value in zip(seq.tolist(), values.tolist(), strict=True):
        found.setdefault(one, []).append(value)
    return found


def _asides(data: SegmentData) -> dict[int, frozenset[int]]:
    """The counts of the entries that set messages aside: one may stand in place of a return."""
    seq, entries = _entries(data)
    aside = np.isin(entries["kind"] & 0x0F, layout.ASIDE_TYPES)
    return {one: frozenset(counts) for one, counts in _by_message(seq[aside], entries["count"][aside]).items()}


def _closing(data: SegmentData, e: Events) -> dict[int, frozenset[int]]:
    """The codes of events that are the last of this journal in a life of the broker: kill -9 may have come before their
    entries."""
    last = np.isin(e.ts, _ends_of_runs(data))
    if data.triple.cut is None and data.runs.size:
        last &= e.run < data.runs.size                  # The last life has ended by itself.
    type_ = np.where(e.type == layout.DELIVERED, layout.HANDED_OUT, e.type)
    last &= np.isin(type_, (layout.RETURNED, layout.HANDED_OUT))
    found = _by_message(e.seq[last], _codes(type_, e.why, e.failures)[last])
    return {seq: frozenset(codes) for seq, codes in found.items()}


def _may_be_cut_off(data: SegmentData, seq: int) -> bool:
    """Whether kill -9 may have come between the last entry that settles a message and its event: if a broker's life
    ended between the message's last event and the event of the next entry of that kind in the file."""
    record = record_at(data.positions, len(data.octets), data.entries_again["position"])
    if not data.runs.size or data.is_again.size != data.entries.size + record.size:
        return False
    entries = np.empty(data.is_again.size, data.entries.dtype)
    entries[data.is_again], entries[~data.is_again] = data.entries_again, data.entries
    record = record_at(data.positions, len(data.octets), entries["position"])
    settles = np.flatnonzero(SETTLING[entries["kind"] & 0x0F] & (record >= 0))
    of = data.headers["seq"][record[settles]].astype(np.int64)
    mine = np.flatnonzero(of == seq)
    if not mine.size:
        return False
    events = np.concatenate((data.events, data.events_again))
    since = int(events["ts"][events["seq"] == seq].max(initial=0))
    until = FOREVER
    for k in range(int(mine[-1]) + 1, of.size):         # The first one that has its event.
        ends = events["ts"][(events["seq"] == of[k]) & SETTLING[events["type"]]]
        rank = int(np.count_nonzero(of[:k] == of[k]))
        if rank < ends.size:
            until = int(ends[rank])
            break
    return bool(np.searchsorted(data.runs, until, "right") > np.searchsorted(data.runs, since, "right"))


def _compare(told: list[int], said: list[int], asides: frozenset[int], closing: frozenset[int], *,
             goes_on: bool) -> int:
    """Whether the entries (``said``) are those that there should be.  ``goes_on``: a broker may be at work, and entries
    have no times: the last ones may be later than the events."""
    at, answer = 0, ALIKE
    for k, code in enumerate(told):
        if at < len(said) and said[at] == code:
            at += 1
            continue
        is_return = code >> 24 == layout.RETURNED
        dies = k + 1 < len(told) and told[k + 1] >> 24 in DYING and told[k + 1] >> 16 & 0xFF == layout.REASON_LIMIT
        if is_return and (code & 0xFFFF in asides or dies):
            continue
        if code not in closing:
            return OTHER
        answer = EXPLAINED
    rest = said[at:]
    if not rest or goes_on:
        return answer
    return ONE_END_MORE if len(rest) == 1 and bool(SETTLING[rest[0] >> 24]) else OTHER
