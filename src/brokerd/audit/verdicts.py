"""Verdicts, findings and figures of a queue, from the summaries of its segments.  ``summary`` joins all queues.

    held            every case was checked, and none was wrong
    violated        at least one case was wrong, even if others could not be checked
    effects of use  the same in an audit of ``OF_USE``, which judges no promise of the broker
    undecidable     no checked case was wrong, but some could not be checked: the reason says which
    covers nothing  only of ``chain``: no hash chain covers any event, so there was nothing to compare

Knows which audit cannot decide without which files and events.  ``scan`` and ``stitch`` judge the cases.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from brokerd import __version__
from brokerd.audit import blame, chain, deliveries, digests, holders, many, moment, places, stitch, waits, whole
from brokerd.audit.arrays import add_histograms, bucket_low, percentile
from brokerd.audit.culprits import CONSEQUENCE
from brokerd.audit.cut import find_queues
from brokerd.audit.files import Damage, QueueFiles, Source
from brokerd.audit.holes import holes, segments_of
from brokerd.audit.priority import priority
from brokerd.audit.scan import AUDITS, DEFAULTS, Options, Rows, Summary, scan
from brokerd.audit.stitch import Findings
from brokerd.store import format as layout

HELD, VIOLATED, EFFECTS, UNDECIDABLE = "held", "violated", "effects of use", "undecidable"
UNCOVERED = "covers nothing"
# The worst comes first.  The last one says nothing beside others.
SEVERITY = (VIOLATED, UNDECIDABLE, EFFECTS, HELD, UNCOVERED)
# What these find follows from how the queue is consumed, and from what was published.  The broker does not promise it.
OF_USE = frozenset(("overtaking", "unacked", "duplicates", "group_fifo"))
RECORDS_ONLY = ("publish_order", "duplicates", "wrong_level", "words", "dedup_kept", *places.AUDITS)
NEED_EVENTS = ("fifo", "returned_first", "overtaking", "priority", "ack_without_delivery", "double_settle",
               "delivery_after_settle", "agreement", "unacked", "delivery_limit", "limit_kept", "group_fifo",
               *deliveries.AUDITS, *holders.AUDITS, *waits.AUDITS, "token_kept", "replay_exact", "counters",
               "dead_letters")
NEED_ACKS = ("double_settle", "agreement", "words")
NEED_LIMIT = ("delivery_limit", "limit_kept")


class Judged(NamedTuple):
    """The result of one queue: a row for each audit, its figures, its findings."""

    audits: list[dict[str, Any]]
    queue: dict[str, Any]
    findings: list[dict[str, Any]]
    inputs: dict[str, int]
    cut: int | None                     # when the dump copied the queue (ns); None: the files are not a dump


def verdict_of(audit: str, found: int, doubtful: bool) -> str:
    """The verdict of an audit with so many findings; ``doubtful``: not every case could be judged."""
    if found:
        return EFFECTS if audit in OF_USE else VIOLATED
    return UNDECIDABLE if doubtful else HELD


def worst(audits: Iterable[dict[str, Any]]) -> str:
    """The worst verdict of these rows; held without any."""
    verdicts = {row["verdict"] for row in audits}
    return next((verdict for verdict in SEVERITY if verdict in verdicts), HELD)


def judge(source: Source, queue: QueueFiles, summaries: list[Summary], options: Options = DEFAULTS) -> Judged:
    """The verdicts on one queue, from the summaries of all its triples in any order.  May read segments again."""
    levels: dict[int, list[Summary]] = {}
    for summary in sorted(summaries, key=lambda s: (s.triple.priority, s.triple.number)):
        levels.setdefault(summary.triple.priority, []).append(summary)
    found = Findings()
    for number, level in levels.items():
        if options.wants("overtaking") or options.wants("returned_first"):
            level = levels[number] = stitch.with_all_that_overlap(source, level, options)
            stitch.returned(source, level, options, found)
        if options.wants("publish_order"):
            stitch.publish_order(source, level, options, found)
        if options.wants("fifo") and not has_groups(queue):
            stitch.fifo(source, level, options, found)
        if options.wants("group_fifo"):
            stitch.group_fifo(source, level, options, found)
    every = [summary for level in levels.values() for summary in level]
    if options.wants("duplicates") and every:
        stitch.duplicates(every, options, found)
    case = _Case(source, queue, every, levels, options, found)
    case.given = whole.judge(source, queue, levels, options, found)
    audits = [case.row(audit) for audit in AUDITS if options.wants(audit) and case.applies(audit)]
    inputs = {"segments": len(every), "messages": sum(s.records for s in every), "events": sum(s.events for s in every),
              "octets": sum(s.octets for s in every)}
    return Judged(audits, _figures(queue, every, found), case.findings(), inputs, case.cut)


def chain_row(queue: QueueFiles, said: chain.Verdict) -> dict[str, Any]:
    """The row of the audit ``chain``, for both engines.  ``covered`` of ``events`` are covered by a chain."""
    verdict = verdict_of("chain", len(said.faults), bool(said.doubts))
    if verdict == HELD and not said.covered:
        verdict = UNCOVERED
    words = [f"{len(said.faults)} found"] if said.faults else []
    reason = "; ".join([*words, *said.doubts, *([said.reason] if said.reason else [])])
    return {"vhost": queue.vhost, "queue": queue.queue, "audit": "chain", "verdict": verdict, "found": len(said.faults),
            "checked": said.covered, "reason": reason, "events": said.events}


def has_groups(queue: QueueFiles) -> bool:
    """Whether the queue has, or had, message groups: then order holds in each group, and not in the queue."""
    return any(rule.groups for rule in queue.rules)


class _Case:
    """One queue while it is judged."""

    def __init__(self, source: Source, queue: QueueFiles, summaries: list[Summary], levels: dict[int, list[Summary]],
                 options: Options, found: Findings) -> None:
        self.source, self.queue, self.options = source, queue, options
        self.summaries, self.levels, self.found = summaries, levels, found
        self.given: dict[str, whole.Given] = {}         # what the audits of the whole queue say
        self.cut = whole.cut_of(queue)
        self.last_ts = max((s.last_ts for s in summaries), default=0)
        self.damage: list[tuple[int, int, Damage]] = [(0, 0, d) for d in queue.damage]
        if options.wants("damage"):
            self.damage += [(0, 0, d) for d in digests.check(source, queue)]
        self.damage += [(s.triple.priority, s.triple.number, d) for s in summaries for d in s.damage]
        self.singles: list[dict[str, Any]] = []         # findings that do not come as Rows

    def applies(self, audit: str) -> bool:
        """Whether this audit can say anything about this queue."""
        if audit == "priority":
            return whole.has_levels(self.queue, self.levels) and not whole.has_waits(self.queue)
        if audit in ("fifo", "returned_first"):
            return not has_groups(self.queue)
        if audit == "group_fifo":
            return bool(self.options.group_header or self.options.group_by)
        if audit == "stream":
            return audit in self.given
        if audit == "chain":
            return any(s.chained is not None and (s.chained.events or s.chained.faults) for s in self.summaries)
        if audit in NEED_LIMIT:
            return self.options.delivery_limit is not None or any(r.limit is not None for r in self.queue.rules)
        return whole.applies(audit, self.queue, self.levels, self.options)

    def row(self, audit: str) -> dict[str, Any]:
        """The verdict of one audit."""
        results = [s.results[audit] for s in self.summaries if audit in s.results]
        count = sum(r.found for r in results) + self.found.found.get(audit, 0)
        checked = sum(r.checked for r in results)
        uncovered = sum(r.uncovered for r in results)
        more: dict[str, Any] = {}
        doubts: list[str] = []
        if audit in self.given:
            given = self.given[audit]
            count, checked, uncovered, more = given[:4]
            doubts += given.doubts
            for text in given.singles:
                self._single(audit, 0, 0, text)
        elif audit == "holes":
            count, checked, doubts = self._holes()
        elif audit == "damage":
            count, checked = len(self.damage), sum(s.records + s.events for s in self.summaries)
        elif audit == "unacked":
            count, checked, uncovered, more = self._unacked()
        elif audit == "priority":
            checked = priority(self.source, self.levels, self.options, self.found)
            count = self.found.found.get("priority", 0)
            uncovered = sum(s.uncovered for s in self.summaries)
        elif audit == "limit_kept":
            count, more = self._pending(count)
        elif audit in blame.AUDITS and count:
            blamed = blame.blame(audit, self.source, self.levels, self.options, self.found)
            more = {"consequences": blamed.consequences, "by_rule": count}
            count -= blamed.less
        elif audit == "overtaking":
            more = {"overtakings": sum(s.overtakings for s in self.summaries) + self.found.overtakings}
        elif audit == "chain":
            return self._chain()
        doubts += self._doubts(audit, uncovered)
        verdict = verdict_of(audit, count, bool(doubts))
        reason = "; ".join(doubts)
        if count:
            reason = f"{count} found" + (f"; and not all could be judged: {reason}" if reason else "")
        elif not doubts and not checked:
            reason = "nothing to judge"
        return {"vhost": self.queue.vhost, "queue": self.queue.queue, "audit": audit, "verdict": verdict,
                "found": int(count), "checked": int(checked), "reason": reason} | more

    def _chain(self) -> dict[str, Any]:
        known = [s.chained for s in self.summaries if s.chained is not None]
        said = chain.judge(self.queue, known, self.options.chain_log)
        for triple, fault in said.faults:
            level, number = (triple.priority, triple.number) if triple is not None else (0, 0)
            self._single("chain", level, fault.seq, fault.detail, number, fault.file, fault.offset, fault.ts)
        return chain_row(self.queue, said)

    def _doubts(self, audit: str, uncovered: int) -> list[str]:
        """The reasons why "nothing found" does not mean "held"."""
        doubts = []
        if audit in RECORDS_ONLY and self._spoiled("records"):
            doubts.append("records are missing or damaged")
        if audit in NEED_ACKS and self._spoiled("acks"):
            doubts.append("acks are missing or damaged")
        if audit not in NEED_EVENTS:
            return doubts
        if uncovered:
            messages = many(uncovered, "message")
            doubts.append(f"no order journal covers the whole life of {messages}{self._why_uncovered()}")
        if self._spoiled("records") or self._spoiled("events"):
            doubts.append("files are missing or damaged")
        return doubts

    def _spoiled(self, what: str) -> bool:
        return any(what in damage.matters for _, _, damage in self.damage)

    def _why_uncovered(self) -> str:
        whys = set()
        for s in self.summaries:
            if s.uncovered and s.begun is None:
                whys.add("the queue has none")
            elif s.uncovered:
                whys |= {gap.why for gap in s.gaps}
                if not s.gaps and not self._spoiled("records") and not self._spoiled("events"):
                    whys.add("it began later")  # Else what is damaged is the reason, which is named apart.
        return f" ({', '.join(sorted(whys))})" if whys else ""

    def _holes(self) -> tuple[int, int, list[str]]:
        found = holes(self.queue, self.levels, clipped=bool(self.options.from_ns or self.options.to_ns))
        for first, last in found.missing:
            words = f"{first} is missing" if first == last else f"{first} to {last} are missing"
            self._single("holes", 0, first, words)
        for seq, (one, *_, other) in segments_of(self.levels, found.twice).items():
            words = f"stands in {one.triple.msgs} as well"
            self._single("holes", other.triple.priority, seq, words, other.triple.number, other.triple.msgs)
        return found.found, found.checked, found.doubts

    def _single(self, audit: str, level: int, seq: int, words: str, segment: int = 0, file: str = "", offset: int = -1,
                ts: int = 0) -> None:
        self.singles.append({
            "audit": audit, "vhost": self.queue.vhost, "queue": self.queue.queue, "priority": level, "seq": seq,
            "segment": segment, "file": file, "offset": offset, "ts": ts, "detail": words})

    def _unacked(self) -> tuple[int, int, int, dict[str, Any]]:
        now = self.cut or self.last_ts
        bound = now - int(self.options.unacked_after_s * 1e9)
        count = total = 0
        for s in self.summaries:
            old = s.out["ts"] < bound
            total += s.out.size
            count += int(np.count_nonzero(old))
            for seq, ts, place in zip(*(s.out[c][old][:self.options.findings_max].tolist()
                                        for c in ("seq", "ts", "place")), strict=True):
                self._single("unacked", s.triple.priority, seq, f"unacked for {(now - ts) // 10 ** 9} s",
                             s.triple.number, s.triple.msgs, place, ts)
        checked = sum(s.records for s in self.summaries)
        return count, checked, sum(s.uncovered for s in self.summaries), {"unacked": total}

    def _pending(self, count: int) -> tuple[int, dict[str, Any]]:
        """Judge the messages beyond their limit that have no end in any segment: those that have waited too long are
    findings, and the others are pending."""
        bound = (self.cut or self.last_ts) - int(self.options.unacked_after_s * 1e9)
        pending = 0
        for s in self.summaries:
            old = (s.pending["ts"] < bound) & ~s.pending["waits"]
            pending += int(np.count_nonzero(~old))
            for seq, ts, place in zip(*(s.pending[c][old].tolist() for c in ("seq", "ts", "place")), strict=True):
                count += 1
                self._single("limit_kept", s.triple.priority, seq, "beyond its limit, and neither dead-lettered nor "
                             "dropped", s.triple.number, s.triple.msgs, place, ts)
        return count, {"pending": pending}

    def findings(self) -> list[dict[str, Any]]:
        """All rows, at most ``findings_max`` for each audit."""
        shown_counts: dict[str, int] = {}
        rows: list[dict[str, Any]] = []
        for summary, some in [*((s, r) for s in self.summaries for r in s.rows), *self.found.rows]:
            if self.options.wants(some.audit):
                left = self.options.findings_max - shown_counts.get(some.audit, 0)
                rows += _expanded(summary, some, left)
                shown_counts[some.audit] = shown_counts.get(some.audit, 0) + some.seq.size
        for row in self.singles:
            shown_counts[row["audit"]] = shown_counts.get(row["audit"], 0) + 1
            if shown_counts[row["audit"]] <= self.options.findings_max:
                rows.append(row)
        self.singles = []
        if self.options.wants("damage"):
            for level, segment, damage in self.damage[:self.options.findings_max]:
                self._single("damage", level, damage.seq, damage.detail, segment, damage.file, damage.offset, damage.ts)
        order = {audit: k for k, audit in enumerate(AUDITS)}
        return sorted(rows + self.singles, key=lambda row: (
            order[row["audit"]], row["detail"].startswith(CONSEQUENCE), row["priority"], row["seq"]))


class _Number(int):
    """A number in the text of a finding; ``{a:t}`` writes it as a time."""

    def __format__(self, spec: str) -> str:
        return f"{moment(int(self))} UTC" if spec == "t" else format(int(self), spec)


def _expanded(summary: Summary, rows: Rows, most: int) -> list[dict[str, Any]]:
    triple = summary.triple
    file = {"msgs": triple.msgs, "acks": triple.acks}.get(rows.kind, triple.journal) or ""
    columns = [column[:max(most, 0)].tolist() for column in rows[3:]]
    return [{
        "audit": rows.audit, "vhost": triple.vhost, "queue": triple.queue, "priority": triple.priority, "seq": seq,
        "segment": triple.number, "file": file, "offset": place, "ts": ts,
        "detail": rows.detail.format(a=_Number(a), b=_Number(b)),
    } for seq, place, ts, a, b in zip(*columns, strict=True)]


# --- figures


def _counters(queue: QueueFiles, summaries: list[Summary], found: Findings) -> dict[str, int] | None:
    """The broker's counters, counted again from the events; None: the queue has no journal that tells events."""
    if not any(s.begun is not None for s in summaries) and not any(rule.journal for rule in queue.rules):
        return None
    counters = sum((s.counters for s in summaries), np.zeros(len(layout.ORDER_COUNTERS), np.int64))
    named = dict(zip(layout.ORDER_COUNTERS, counters.tolist(), strict=True))
    named["out_of_sequence"] = found.found.get("overtaking", 0) + sum(
        s.results["overtaking"].found for s in summaries)
    named["overtakings"] = found.overtakings + sum(s.overtakings for s in summaries)
    return named


def _figures(queue: QueueFiles, summaries: list[Summary], found: Findings) -> dict[str, Any]:
    waited = worked = np.zeros(0, np.int64)
    for s in summaries:
        waited, worked = add_histograms(waited, s.waited), add_histograms(worked, s.worked)
    seqs = [s.numbers for s in summaries if s.numbers.last >= s.numbers.first]
    return {
        "vhost": queue.vhost, "queue": queue.queue, "messages": sum(s.records for s in summaries),
        "first_seq": min((n.first for n in seqs), default=0), "last_seq": max((n.last for n in seqs), default=0),
        "first_ts": min((s.first_ts for s in summaries if s.first_ts), default=0),
        "last_ts": max((s.last_ts for s in summaries), default=0),
        "journaled": any(s.begun is not None for s in summaries),
        "counters": _counters(queue, summaries, found),
        "latency": {"enqueue_to_delivery": _latency(waited, max((s.longest[0] for s in summaries), default=0)),
                    "delivery_to_settlement": _latency(worked, max((s.longest[1] for s in summaries), default=0))},
        "throughput": _throughput(summaries),
        "consumers": [{k: v for k, v in line.items() if k != "what"} | {"number": number}
                      for number, line in sorted(queue.consumers.items())],
    }


def _latency(counts: np.ndarray, longest: int) -> dict[str, Any]:
    filled = np.flatnonzero(counts)
    return {"p50": min(percentile(counts, 0.5), longest), "p90": min(percentile(counts, 0.9), longest),
            "p99": min(percentile(counts, 0.99), longest), "max": longest, "count": int(counts.sum()),
            "histogram": [[bucket_low(int(bucket)), int(counts[bucket])] for bucket in filled]}


def _throughput(summaries: list[Summary]) -> list[dict[str, int]]:
    hours: dict[int, list[int]] = {}
    for s in summaries:
        for hour, *row in zip(*(column.tolist() for column in s.hours.columns.values()), strict=True):
            hours[hour] = [a + b for a, b in zip(hours.get(hour, [0] * 4), row, strict=True)]
    return [{"hour": hour, "published": row[0], "delivered": row[1], "settled": row[2], "octets": row[3]}
            for hour, row in sorted(hours.items())]


# --- all queues


def audit(source: Source, options: Options = DEFAULTS, glob: str | None = None,
          progress: Callable[[int], object] | None = None) -> list[Judged]:
    """Audit all queues in this process, one segment after the other.  ``progress`` gets the octets of each segment."""
    judged = []
    for queue in find_queues(source, glob):
        summaries = []
        for triple in queue.triples:
            summaries.append(scan(source, triple, options))
            if progress is not None:
                progress(triple.octets)
        judged.append(judge(source, queue, summaries, options))
    return judged


def exit_status(audits: Iterable[dict[str, Any]], fail_on: str = "any") -> int:
    """0: every promise was kept; 1: violated; 3: none violated, but some undecidable, or all of them cover nothing.

    ``fail_on``: any, none, or names of audits.  Effects of use are violations only in audits that it names.
    """
    rows = list(audits)
    names = None if fail_on == "any" else set() if fail_on == "none" else set(fail_on.split(","))
    failing = {VIOLATED} if names is None else {VIOLATED, EFFECTS}
    if any(row["verdict"] in failing and (names is None or row["audit"] in names) for row in rows):
        return 1
    counted = [row["verdict"] for row in rows if names is None or row["audit"] in names]
    return 3 if UNDECIDABLE in counted or set(counted) == {UNCOVERED} else 0


def summary(source_path: str, judged: list[Judged], *, options: Options = DEFAULTS, fail_on: str = "any",
            stages: list[dict[str, Any]] | None = None, made: int = 0) -> dict[str, Any]:
    """The document ``summary.json``, schema 1.  ``made``: the present time in ns since the epoch; the caller has a
    clock."""
    audits = [row for one in judged for row in one.audits]
    cuts = [one.cut for one in judged if one.cut is not None]
    keys = ("segments", "messages", "events", "octets")
    said = options._asdict() | {"audits": sorted(options.audits) if options.audits is not None else None,
                                "chain_log": len(options.chain_log)}
    return {
        "schema": 1, "brokerd": __version__, "made": made, "source": source_path,
        "cut": min(cuts) if cuts else None,
        "inputs": {"queues": len(judged)} | {key: sum(one.inputs[key] for one in judged) for key in keys},
        "exit": exit_status(audits, fail_on), "verdict": worst(audits), "audits": audits,
        "queues": [one.queue for one in judged], "findings_total": sum(row["found"] for row in audits),
        "stages": stages or [], "options": said | {"fail_on": fail_on},
    }
