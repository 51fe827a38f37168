"""Judges the deliveries of a segment's messages, each by the events of its own message: ``judge``.

====================  ===============================================================================================
redelivered           a delivery is marked as redelivered if there was one before, and otherwise not
out_twice             a message that a consumer has is not handed out again
wrong_consumer        an ack, a reject or a return comes from the consumer that has the message
ended_while_out       no message expires, is purged or dropped, or dies of its age or limit, while a consumer has it
early_death           no message dies of its delivery limit before it has failed as often as the limit allows, and none
                      of its age before its time to live is over
failure_counts        the count of failed deliveries in each event follows from the returns, also over restarts
before_publish        nothing happens to a message before it is published
late_delivery         no message is handed out after its time to live
====================  ===============================================================================================

All but ``redelivered``, ``early_death``, ``before_publish`` and ``late_delivery`` judge only messages whose whole life
the journal has.  Knows nothing of other segments.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from brokerd.audit.files import FOREVER, Rule
from brokerd.audit.lifecycle import SETTLING, Lives, places_of
from brokerd.audit.properties import texts
from brokerd.audit.segment import SegmentData
from brokerd.store import format as layout
from brokerd.store import reading

AUDITS = ("redelivered", "out_twice", "wrong_consumer", "ended_while_out", "early_death", "failure_counts",
          "before_publish", "late_delivery")
COUNT_MAX = 0xFFFF              # failed deliveries: the journal counts no further
EXPIRES = 2                     # flag of a record: it has an expiration
EXPIRATION_MS_MAX = 315_360_000_000     # ten years: the broker accepts no longer expiration
SLACK_NS = 1_000_000            # of a time to live: times of a queue's events rise by 1 ns at least, ahead of the clock
MS = 1_000_000


class Found(NamedTuple):
    """The findings of one audit: ``which`` are indices into the sorted events, ``a`` and ``b`` are for ``detail``.

    ``checked``: how many cases were judged; ``uncovered``: how many messages could not be judged.
    """

    audit: str
    detail: str
    which: np.ndarray
    a: np.ndarray
    b: np.ndarray
    checked: int
    uncovered: int


class Before(NamedTuple):
    """The past of each event (sorted by message and time) in its message's life.

    ``same``: there is an event of the same message and the same life of the broker before it; ``out``: that one is a
    delivery, so that a consumer has the message.
    """

    there: np.ndarray
    same: np.ndarray
    out: np.ndarray
    type: np.ndarray
    run: np.ndarray
    consumer: np.ndarray
    failures: np.ndarray


def judge(data: SegmentData, life: Lives, limit: int | None = None) -> Iterator[Found]:
    """Judge all audits of ``AUDITS``, some in two parts.  ``limit``: the delivery limit to judge by, None: that of the
    settings."""
    consumer = data.events["consumer"][life.event].astype(np.int64)
    count = data.events["count"][life.event].astype(np.int64)
    before = _before(life, consumer, count)
    unknown = int(np.count_nonzero(~life.covered))
    born = np.searchsorted(data.runs, life.published)   # In which life of the broker each message was published.
    unseen = may_have_been_out(data, life)
    yield _redelivered(life, (life.record >= 0) | (data.generation > 0), born, unseen, unknown)
    yield _out_twice(life, before, consumer, unknown)
    yield _wrong_consumer(life, before, consumer, unknown)
    yield _ended_while_out(life, before, unknown)
    yield _early_death(data, life, count, limit, unknown)
    yield _early_expiry(data, life, unknown)
    yield _failure_counts(life, before, born, unseen, count, unknown)
    yield _late_delivery(data, life, unknown)


def _shifted(values: np.ndarray) -> np.ndarray:
    return np.append(np.zeros(1, values.dtype), values[:-1])[:values.size]


def _before(life: Lives, consumer: np.ndarray, count: np.ndarray) -> Before:
    there = ~life.head
    type_, run = _shifted(life.type), _shifted(life.run)
    same = there & (run == life.run)
    return Before(there, same, same & (type_ == layout.DELIVERED), type_, run, _shifted(consumer), _shifted(count))


def may_have_been_out(data: SegmentData, life: Lives) -> np.ndarray:
    """Which messages may have been out without an event: kill -9 came between the move of the cursor and the event of
    the hand-out.  Not those that the cursor had not passed by then, nor those that were set aside before they ever went
    out: their event is the first thing that a hand-out writes."""
    if data.generation or data.triple.acks is None or data.matters("acks"):
        return np.ones(life.seq.size, bool)
    position = np.append(data.positions, 0)[life.record]        # A message without a record, -1, has the last one.
    unseen = position < max(data.cursor, data.doubted_below)
    never_out = np.isin(data.entries["kind"], layout.ASIDE_TYPES)       # The reason in the high nibble is 0.
    unseen &= ~np.isin(position, data.entries["position"][never_out])
    if not unseen.any() or not data.runs.size:
        return unseen
    # The cursor passes no message before the earlier ones: what happens first to one of these happens no later.
    begins = np.full(life.seq.size, FOREVER)
    begins[life.of[life.head]] = life.ts[life.head]
    entered = np.isin(position, data.entries["position"])
    aside = np.isin(position, data.entries["position"][np.isin(data.entries["kind"] & 0x0F, layout.ASIDE_TYPES)])
    known = life.covered & (life.record >= 0) & ~aside & ((begins < FOREVER) | ~entered)
    not_before = np.append(0, np.maximum.accumulate(np.where(known, begins, 0))[:-1])
    started = np.append(0, data.runs)[np.searchsorted(data.runs, begins)]     # The last start before.
    return unseen & (not_before <= started)


def _redelivered(life: Lives, known: np.ndarray, born: np.ndarray, unseen: np.ndarray, unknown: int) -> Found:
    """After a start the mark may be there without an earlier delivery, of messages that may have been out unseen.  So
    such a mark is wrong if no start of the broker lies between the publish and the delivery.  Deliveries before the
    publish do not count: see ``before_publish``."""
    order = np.flatnonzero((life.type == layout.DELIVERED) & known[life.of] & (life.ts > life.published[life.of]))
    first, first_of_run = np.ones(order.size, bool), np.ones(order.size, bool)
    first[1:] = life.of[order][1:] != life.of[order][:-1]
    first_of_run[1:] = first[1:] | (life.run[order][1:] != life.run[order][:-1])
    why, covered = life.why[order], life.covered[life.of[order]]
    marked, restarted = why & layout.REDELIVERED > 0, why & layout.BEFORE_START > 0
    missing = ~first & ~marked
    alone = first & marked & ~restarted & covered
    since = life.of[order]
    # A start since the publish?  Of a record that a compaction removed that is not known.
    in_run = (life.published[since] > 0) & (born[since] == life.run[order])
    unstarted = first & marked & restarted & covered & (in_run | ~unseen[since])
    # The first delivery of a later life says that the former one was before the start, and the others do not.
    unsaid = ~first & first_of_run & marked & ~restarted & covered
    oversaid = ~first & ~first_of_run & restarted & covered
    bad = missing | alone | unstarted | unsaid | oversaid | (restarted & ~marked)
    says = np.where(restarted, 2, np.where(marked, 1, 0))
    should = np.where(first, 0, np.where(first_of_run, 2, 1))
    return Found("redelivered", "marked {a}, and should be {b} (0 new, 1 redelivered, 2 from before a start)",
                 order[bad], says[bad], should[bad], order.size, unknown)


def _out_twice(life: Lives, before: Before, consumer: np.ndarray, unknown: int) -> Found:
    judged = (life.type == layout.DELIVERED) & life.covered[life.of]
    bad = np.flatnonzero(judged & before.out)
    return Found("out_twice", "handed out to {a} while {b} had it", bad, consumer[bad], before.consumer[bad],
                 int(np.count_nonzero(judged)), unknown)


def _wrong_consumer(life: Lives, before: Before, consumer: np.ndarray, unknown: int) -> Found:
    """A death at the delivery limit follows the return that made it; a dead letter may name no consumer."""
    covered = life.covered[life.of]
    returned = life.type == layout.RETURNED
    dead = np.isin(life.type, (layout.DEAD_LETTERED, layout.DROPPED))
    by_reject = (life.type == layout.DEAD_LETTERED) & (life.why == layout.REASON_REJECTED)
    settled = np.isin(life.type, (layout.ACKED, layout.REJECTED)) | by_reject
    at_limit = dead & (life.why == layout.REASON_LIMIT) & before.same & (before.type == layout.RETURNED)
    by_itself = dead & (consumer == 0)
    judged = covered & (returned | ((settled | at_limit) & ~by_itself))
    had = before.out | at_limit
    wrong = np.where(had, consumer != before.consumer, returned)
    bad = np.flatnonzero(judged & wrong)
    return Found("wrong_consumer", "{a} settled or returned it, and {b} had it (0: no consumer)", bad, consumer[bad],
                 np.where(had, before.consumer, 0)[bad], int(np.count_nonzero(judged)), unknown)


def _ended_while_out(life: Lives, before: Before, unknown: int) -> Found:
    dead = np.isin(life.type, (layout.DEAD_LETTERED, layout.DROPPED)) & (life.why != layout.REASON_REJECTED)
    judged = life.covered[life.of] & (dead | np.isin(life.type, (layout.EXPIRED, layout.PURGED)))
    bad = np.flatnonzero(judged & before.out)
    return Found("ended_while_out", "left the queue while {a} had it", bad, before.consumer[bad], before.consumer[bad],
                 int(np.count_nonzero(judged)), unknown)


# --- the settings in force


def in_force(rules: tuple[Rule, ...], since: np.ndarray, until: np.ndarray) -> Iterator[tuple[Rule, np.ndarray]]:
    """Each rule with the cases (``since`` to ``until``, ns) for which it counts: those in whose time it was in force,
    or which had just ended: the broker writes the line a moment after the change."""
    for k, rule in enumerate(rules):
        begins = rules[k - 1].at if k > 1 else 0
        ends = rules[k + 1].at if k + 1 < len(rules) else FOREVER
        yield rule, (since < ends) & (until >= begins)


def _early_death(data: SegmentData, life: Lives, count: np.ndarray, limit: int | None, unknown: int) -> Found:
    """The lowest limit that was in force in the message's life counts."""
    which = np.flatnonzero(np.isin(life.type, (layout.DEAD_LETTERED, layout.DROPPED))
                           & (life.why == layout.REASON_LIMIT))
    lowest = np.full(which.size, FOREVER if limit is None else limit, np.int64)
    if limit is None:
        for rule, some in in_force(data.triple.rules, life.published[life.of[which]], life.ts[which]):
            if rule.limit is not None:
                lowest[some] = np.minimum(lowest[some], rule.limit)
    known = limit is not None or bool(data.triple.rules)
    bad = count[which] <= np.minimum(lowest, COUNT_MAX - 1) if known else np.zeros(which.size, bool)
    none = lowest == FOREVER
    return Found("early_death", "dead of its limit after {a} failures, with a limit of {b} (-1: none)", which[bad],
                 count[which][bad], np.where(none, -1, lowest)[bad], which.size if known else 0, unknown)


def _early_expiry(data: SegmentData, life: Lives, unknown: int) -> Found:
    """The shortest time to live that was in force in the message's life counts.  The broker compares that with its
    clock, and no event is earlier than the clock: so the last nanosecond counts."""
    of_age = np.isin(life.type, (layout.DEAD_LETTERED, layout.DROPPED)) & (life.why == layout.REASON_EXPIRED)
    which = np.flatnonzero((of_age | (life.type == layout.EXPIRED)) & (life.published[life.of] > 0))
    if not data.triple.rules:
        which = which[:0]           # The files do not say the queue's own time to live.
    published = life.published[life.of[which]]
    ttl = np.full(which.size, FOREVER, np.int64)
    for rule, some in in_force(data.triple.rules, published, life.ts[which]):
        if rule.ttl_ms is not None:
            ttl[some] = np.minimum(ttl[some], min(rule.ttl_ms * MS, FOREVER))
    own = expirations(data) if which.size else None
    if own is not None:
        ttl = np.minimum(ttl, own[life.record[life.of[which]]])
    lived = life.ts[which] - published
    bad = lived < ttl
    return Found("early_death", "expired {a} ms after its publish, with a time to live of {b} ms (-1: none)",
                 which[bad], lived[bad] // MS, np.where(ttl < FOREVER, ttl // MS, -1)[bad], which.size, unknown)


def _failure_counts(life: Lives, before: Before, born: np.ndarray, unseen: np.ndarray, count: np.ndarray,
                    unknown: int) -> Found:
    """A return counts one; a message that was out when the broker's life ended counts one more with its next event.

    Two exceptions, both of a broker that was killed in the midst of a hand-out: of a first one, only the mark of the
    delivery in the next life knows (of those ``unseen``); and the last event of a life may be the redelivery that is
    not counted.
    """
    judged = life.covered[life.of] & ~(before.there & SETTLING[before.type])
    returned = life.type == layout.RETURNED
    cut = before.there & ~before.same & (before.type == layout.DELIVERED)
    least = np.where(before.there, before.failures, 0) + returned
    least += cut
    most = least.copy()
    from_before = (life.type == layout.DELIVERED) & (life.why & layout.BEFORE_START > 0)
    later = (life.type != layout.DELIVERED) & (life.run > born[life.of])
    most += ~before.there & (from_before | later) & unseen[life.of]
    ends = np.zeros(int(life.run.max(initial=0)) + 1, np.int64)
    np.maximum.at(ends, life.run, life.ts)
    midst = np.flatnonzero(cut)
    midst = midst[(life.why[midst - 1] & layout.REDELIVERED > 0) & (life.ts[midst - 1] == ends[life.run[midst - 1]])]
    least[midst] -= 1
    least, most = np.minimum(least, COUNT_MAX), np.minimum(most, COUNT_MAX)
    bad = np.flatnonzero(judged & ((count < least) | (count > most)))
    return Found("failure_counts", "counts {a} failed deliveries, and should count {b}", bad, count[bad], most[bad],
                 int(np.count_nonzero(judged)), unknown)


EARLY = "happened before its message was published, at {a:t}"


class Early(NamedTuple):
    """The findings of ``before_publish``: columns; ``checked``: how many events were judged."""

    seq: np.ndarray
    place: np.ndarray
    ts: np.ndarray
    published: np.ndarray
    checked: int


def before_publish(data: SegmentData, life: Lives) -> Early:
    """Find events that are earlier than their message.  A loss of power in between explains them: it took a message and
    left its events, and another message got its number."""
    of = places_of(life.seq, data.events["seq"].astype(np.int64))
    published = life.published[np.maximum(of, 0)] if life.seq.size else of
    judged = (of >= 0) & (published > 0)
    ts, cuts = data.events["ts"], data.power_cuts
    bad = np.flatnonzero(judged & (ts <= published))
    bad = bad[np.searchsorted(cuts, ts[bad]) == np.searchsorted(cuts, published[bad])]
    return Early(data.events["seq"][bad].astype(np.int64), data.event_places[bad], ts[bad], published[bad],
                 int(np.count_nonzero(judged)))


# --- times to live


def _late_delivery(data: SegmentData, life: Lives, unknown: int) -> Found:
    which = np.flatnonzero((life.type == layout.DELIVERED) & (life.published[life.of] > 0))
    published = life.published[life.of[which]]
    ttl = np.full(which.size, FOREVER if not data.triple.rules else -1, np.int64)
    for rule, some in in_force(data.triple.rules, published, life.ts[which]):
        ttl[some] = np.maximum(ttl[some], FOREVER if rule.ttl_ms is None else min(rule.ttl_ms * MS, FOREVER))
    ttl = np.where(ttl < 0, FOREVER, ttl)
    own = expirations(data)
    if own is not None:
        ttl = np.minimum(ttl, own[life.record[life.of[which]]])
    limited = ttl < FOREVER
    bad = limited & (life.ts[which] - published - SLACK_NS > ttl)
    return Found("late_delivery", "handed out {a} ms after its publish, with a time to live of {b} ms", which[bad],
                 (life.ts[which] - published)[bad] // MS, ttl[bad] // MS, int(np.count_nonzero(limited)), unknown)


def expirations(data: SegmentData) -> np.ndarray | None:
    """The property ``expiration`` of each record (ns), FOREVER without one; None: no record has one."""
    has = np.flatnonzero(data.sound & (data.headers["flags"] & EXPIRES > 0))
    if not has.size:
        return None
    own = np.full(data.headers.size, FOREVER, np.int64)
    where = texts(data.octets, reading.Records(data.headers[has], data.positions[has], []), "expiration")
    for row, start, length in zip(has[where.index].tolist(), where.start.tolist(), where.length.tolist(), strict=True):
        written = data.octets[start:start + length]
        if written.isdigit() and int(written) <= EXPIRATION_MS_MAX:
            own[row] = int(written) * MS
    return own
