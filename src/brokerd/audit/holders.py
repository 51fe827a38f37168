"""Judges who holds how many messages of a queue, over all its levels and segments together.

====================  ===============================================================================================
single_active         a queue with a single active consumer hands nothing to one while another holds a message
prefetch              no consumer holds more messages than its prefetch allows
consumers             deliveries go to consumers that order.jsonl knows, and to none before it came or after it is gone
====================  ===============================================================================================

A delivery *holds* its message until the consumer settles or returns it, or the broker's life ends.  A reject whose dead
letter is not stored yet has no event: so a delivery whose end is not sure holds nothing.  What basic.get takes belongs
to a connection and not to a consumer; what is delivered without acks is never held.

Reads the journals of the queue once more, and the records only where a journal does not cover all of its segment.
"""

from typing import Any, NamedTuple

import numpy as np

from brokerd.audit import many
from brokerd.audit._journal import SWITCHED_OFF_WORDS, Journal, read_journal
from brokerd.audit.deliveries import in_force
from brokerd.audit.files import FOREVER, QueueFiles, Source
from brokerd.audit.scan import Options, Pass, Summary
from brokerd.audit.stitch import Findings, read_again, run_starts
from brokerd.store import format as layout

AUDITS = ("single_active", "prefetch", "consumers")
SLACK_NS = 1_000_000_000        # by so much may the clock be put back between a delivery and a line of order.jsonl


class Held(NamedTuple):
    """The deliveries to consumers, in order of time: columns.  ``until``: FOREVER if the message is still out, ``ts``
    if it is not sure that it was held."""

    ts: np.ndarray
    until: np.ndarray
    consumer: np.ndarray
    seq: np.ndarray
    place: np.ndarray
    segment: np.ndarray


class Found(NamedTuple):
    """The result of one audit; ``doubts``: why it is not sure."""

    found: int
    checked: int
    doubts: tuple[str, ...] = ()


def held_of(p: Pass, number: int) -> Held:
    """The deliveries of one segment; ``number``: of the segment, among those that are judged."""
    life, runs = p.life, p.data.runs
    which = np.flatnonzero(p.delivered & (life.why & (layout.BY_GET | layout.WITHOUT_ACK) == 0))
    ts, run = life.ts[which], life.run[which]
    after, after_ts, after_run = (np.append(column[1:], 0)[which] for column in (life.type, life.ts, life.run))
    goes_on = ~life.last[which] & (after_run == run)
    ended = goes_on & np.isin(after, (layout.ACKED, layout.REJECTED, layout.RETURNED))
    may_be_dying = any(rule.dead_letters for rule in p.data.triple.rules)
    stays = ~goes_on & (not may_be_dying)
    until = np.where(ended, after_ts, np.where(stays, np.append(runs, FOREVER)[run], ts))
    until = np.where(life.covered[life.of[which]], until, ts)
    consumer = p.data.events["consumer"][life.event[which]].astype(np.int64)
    held_ = Held(ts, until, consumer, life.seq[life.of[which]], p.data.event_places[life.event[which]],
                 np.full(which.size, number))
    if not p.data.events_again.size:
        return held_
    again = _held(p.data.events_again, p.data.again_places, runs, number, may_be_dying=may_be_dying)
    sure = again.ts > max((gap.stop for gap in p.data.gaps), default=0)
    again = again._replace(until=np.where(sure, again.until, again.ts))
    return Held(*(np.concatenate(both) for both in zip(held_, again, strict=True)))


def held_by_journal(journal: Journal, number: int, *, may_be_dying: bool) -> Held:
    """As ``held_of``, of a segment whose journal covers all its messages: the events alone say it."""
    if not journal.again.size:
        return _held(journal.events, journal.places, journal.runs, number, may_be_dying=may_be_dying)
    # A message's events since its replay come behind the others.
    return _held(np.concatenate((journal.events, journal.again)),
                 np.concatenate((journal.places, journal.again_places)), journal.runs, number,
                 may_be_dying=may_be_dying)


def _held(events: np.ndarray, places: np.ndarray, runs: np.ndarray, number: int, *, may_be_dying: bool) -> Held:
    """The deliveries among these events, which stand in each message in the order of their times."""
    seq = events["seq"].astype(np.int64)
    order = np.argsort(seq, kind="stable")
    seq, ts = seq[order], events["ts"][order]
    type_, why = events["type"][order], events["reason"][order]
    run = np.searchsorted(runs, ts)
    which = np.flatnonzero((type_ == layout.DELIVERED) & (why & (layout.BY_GET | layout.WITHOUT_ACK) == 0))
    after = np.minimum(which + 1, max(seq.size - 1, 0))
    goes_on = (after > which) & (seq[after] == seq[which]) & (run[after] == run[which])
    ended = goes_on & np.isin(type_[after], (layout.ACKED, layout.REJECTED, layout.RETURNED))
    stays = ~goes_on & (not may_be_dying)
    until = np.where(ended, ts[after], np.where(stays, np.append(runs, FOREVER)[run[which]], ts[which]))
    return Held(ts[which], until, events["consumer"][order][which].astype(np.int64), seq[which],
                places[order][which], np.full(which.size, number))


def _held_of(source: Source, summary: Summary, options: Options, number: int) -> Held:
    whole = not (summary.uncovered or summary.damage or summary.gaps or options.from_ns or options.to_ns)
    if not whole:
        return held_of(read_again(source, summary, options), number)
    journal = read_journal(source, summary.triple, [], crc=False)
    return held_by_journal(journal, number, may_be_dying=any(rule.dead_letters for rule in summary.triple.rules))


def held(source: Source, summaries: list[Summary], options: Options) -> Held:
    """The deliveries of all these segments."""
    parts = [_held_of(source, s, options, k) for k, s in enumerate(summaries) if s.events]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else [
        np.empty(0, np.int64) for _ in Held._fields]
    order = np.argsort(columns[0], kind="stable")
    return Held(*(column[order] for column in columns))


def out_before(ts: np.ndarray, until: np.ndarray) -> np.ndarray:
    """At each delivery (rising ``ts``), how many messages are held just before."""
    held_ = until > ts
    return np.cumsum(held_) - held_ - np.searchsorted(np.sort(until[held_]), ts, "right")


def out_of_own(rows: Held) -> np.ndarray:
    """At each delivery, how many messages its own consumer held just before."""
    own = np.zeros(rows.ts.size, np.int64)
    order = np.argsort(rows.consumer, kind="stable")
    cuts = np.flatnonzero(rows.consumer[order][1:] != rows.consumer[order][:-1]) + 1
    for some in np.split(order, cuts):
        own[some] = out_before(rows.ts[some], rows.until[some])
    return own


def judge(source: Source, queue: QueueFiles, summaries: list[Summary], options: Options,
          findings: Findings) -> dict[str, Found]:
    """Judge those of ``AUDITS`` that the options ask for and that can say something about this queue."""
    wanted = [name for name in AUDITS if options.wants(name) and applies(name, queue)]
    if not wanted:
        return {}
    # A broker may go on while this is read, segment after segment.  What was there when all of them had been read once
    # is there in each of them now.
    last = max((s.last_ts for s in summaries), default=0)
    rows = held(source, summaries, options)
    rows = Held(*(column[rows.ts <= last] for column in rows))
    own = out_of_own(rows)
    made: dict[str, Found] = {}
    if "single_active" in wanted:
        made["single_active"] = _single_active(queue, summaries, rows, own, findings)
    if "prefetch" in wanted:
        made["prefetch"] = _prefetch(queue, summaries, rows, own, findings)
    if "consumers" in wanted:
        made["consumers"] = _consumers(queue, summaries, rows, findings)
    return made


def applies(audit: str, queue: QueueFiles) -> bool:
    """Whether this audit can say anything about this queue."""
    if audit == "single_active":
        return any(rule.single_active for rule in queue.rules)
    return bool(queue.rules)


def _tell(audit: str, detail: str, summaries: list[Summary], rows: Held, bad: np.ndarray, b: np.ndarray,
          findings: Findings) -> int:
    for number in np.unique(rows.segment[bad]).tolist():
        own = bad[rows.segment[bad] == number]
        findings.add(summaries[number], audit, "journal", detail, rows.seq[own], rows.place[own], rows.ts[own],
                     rows.consumer[own], b[own])
    return int(bad.size)


def _single_active(queue: QueueFiles, summaries: list[Summary], rows: Held, own: np.ndarray,
                   findings: Findings) -> Found:
    """Only deliveries at times at which every setting that may count asks for a single active consumer."""
    always = np.ones(rows.ts.size, bool)
    for rule, some in in_force(queue.rules, rows.ts, rows.ts):
        always &= ~some | rule.single_active
    others = out_before(rows.ts, rows.until) - own
    bad = np.flatnonzero(always & (others > 0))
    _tell("single_active", "handed out to consumer {a} while others held {b}", summaries, rows, bad, others, findings)
    return Found(bad.size, int(np.count_nonzero(always)))


def _prefetch(queue: QueueFiles, summaries: list[Summary], rows: Held, own: np.ndarray, findings: Findings) -> Found:
    said = {number: line.get("prefetch") for number, line in queue.consumers.items()}
    limit = _of_each(rows.consumer, said, 0)
    bad = np.flatnonzero((limit > 0) & (own >= limit))
    _tell("prefetch", "consumer {a} had as many messages as its prefetch allows: {b}", summaries, rows, bad, limit,
          findings)
    return Found(bad.size, int(np.count_nonzero(limit > 0)))


def _of_each(consumer: np.ndarray, values: dict[int, Any], nothing: int) -> np.ndarray:
    """The value of each delivery's consumer; ``nothing`` where it has none."""
    numbers, index = np.unique(consumer, return_inverse=True)
    found = [values.get(int(number)) for number in numbers]
    return np.array([v if isinstance(v, int) else nothing for v in found] or [0], np.int64)[index]


def _consumers(queue: QueueFiles, summaries: list[Summary], rows: Held, findings: Findings) -> Found:
    """A consumer without a line is a doubt, unless its line must be there (``_must_be_known``).  So is one that got
    something in the second after it was gone: all of that may be a clock that was put back."""
    gone = _of_each(rows.consumer, {number: line.get("gone") for number, line in queue.consumers.items()}, FOREVER)
    since = _of_each(rows.consumer, {number: line.get("at") for number, line in queue.consumers.items()}, 0)
    off = was_off(queue, summaries)
    unknown = (since == 0) & (rows.consumer > 0)
    late = rows.ts - SLACK_NS > gone
    early = (since - SLACK_NS > rows.ts) & (not off)
    absent = unknown & ~late & (_must_be_known(queue, summaries, rows) if not off else False)
    for bad, detail, b in ((late, "handed out to consumer {a}, which was gone at {b:t}", gone),
                           (early & ~late, "handed out to consumer {a}, which came at {b:t}", since),
                           (absent, "handed out to consumer {a}, of which order.jsonl has no line", since)):
        _tell("consumers", detail, summaries, rows, np.flatnonzero(bad), b, findings)
    doubts = []
    if unknown.any():
        count = np.unique(rows.consumer[unknown]).size
        doubts.append(f"order.jsonl does not know {many(count, 'consumer')}")
    soon = int(np.count_nonzero((rows.ts > gone) & ~late))
    if soon:
        doubts.append(f"{soon} went out in the second after their consumers were gone")
    return Found(int(np.count_nonzero(late | early | absent)), rows.ts.size, tuple(doubts))


def was_off(queue: QueueFiles, summaries: list[Summary]) -> bool:
    """Whether the journal was switched off once.  When it is switched on again, all consumers that are there then get a
    line of that time."""
    return any(not rule.journal for rule in queue.rules) or any(
        gap.why == SWITCHED_OFF_WORDS for s in summaries for gap in s.gaps)


def _must_be_known(queue: QueueFiles, summaries: list[Summary], rows: Held) -> np.ndarray:
    """The deliveries with a consumer that must have a line, if it was there.

    Consumers get rising numbers: it was not there before one with a lower number, which came later.  And the lines are
    written in their order: a later line of the same life of the broker is there only if the consumer's is.
    """
    known = np.array(sorted((number, line["at"]) for number, line in queue.consumers.items() if "at" in line),
                     np.int64).reshape(-1, 2)
    tops = np.append(0, np.maximum.accumulate(known[:, 1]))
    not_yet = tops[np.searchsorted(known[:, 0], rows.consumer)] - SLACK_NS > rows.ts
    if not queue.noted.whole or any(s.power_cut for s in summaries):
        return not_yet
    times = np.array([*queue.noted.times, FOREVER], np.int64)
    following = times[np.searchsorted(times[:-1], rows.ts + SLACK_NS, "right")]
    starts = run_starts(summaries)
    same_life = np.searchsorted(starts, following) == np.searchsorted(starts, rows.ts)
    return not_yet | (same_life & (following < FOREVER) & (rows.ts >= queue.rules[0].at))
