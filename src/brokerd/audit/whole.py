"""Judges the whole queue: ``judge`` calls the audits that need all levels and segments at once.

Their results come as ``Given``, by audit; their findings go where those across edges go.  ``applies`` says about which
queues each audit can say something.
"""

from typing import Any, NamedTuple

import numpy as np

from brokerd.audit import counts, holders, indexes, kept, letters, many, places, streams, waits, words
from brokerd.audit.files import QueueFiles, Source
from brokerd.audit.scan import Options, Summary
from brokerd.audit.stitch import Findings
from brokerd.audit.unsaid import too_many

COMPACTED = "its segment says that it was compacted, which no stream is"
COLUMNS = ("seq", "place", "ts", "a", "b")              # of Rows


class Given(NamedTuple):
    """The result of one audit of a queue; ``more``: fields of its row besides; ``doubts``: why it is not sure."""

    found: int
    checked: int
    uncovered: int = 0
    more: dict[str, Any] = {}
    doubts: tuple[str, ...] = ()
    singles: tuple[str, ...] = ()       # findings that are of no message


def has_levels(queue: QueueFiles, levels: dict[int, list[Summary]]) -> bool:
    """Whether the queue has priorities."""
    return len(levels) > 1 or bool(queue.settings.get("max_priority"))


def has_waits(queue: QueueFiles) -> bool:
    """Whether the queue has, or had, a rule by which a message of a high priority may wait while others go out."""
    return any(rule.groups or rule.retry or rule.stops for rule in queue.rules)


def clipped(options: Options) -> bool:
    """Whether only a part of the messages is judged."""
    return bool(options.from_ns or options.to_ns)


def cut_of(queue: QueueFiles) -> int | None:
    """When the dump copied the queue (ns); None: the files are not a dump."""
    cut = (queue.manifest or {}).get("cut")
    return cut if isinstance(cut, int) else None


def applies(audit: str, queue: QueueFiles, levels: dict[int, list[Summary]], options: Options) -> bool:
    """Whether this audit can say anything about this queue."""
    if audit == "channel_order":
        return has_levels(queue, levels)
    if audit == "words":
        return not clipped(options)
    if audit == "dead_letters":
        return letters.applies(queue)
    if audit in ("after_cut", "counters"):
        return cut_of(queue) is not None and not (clipped(options) and audit == "counters")
    if audit in waits.AUDITS:
        return waits.applies(audit, queue) and not clipped(options)
    if audit in kept.AUDITS:
        return kept.applies(audit, queue) and not clipped(options) and (audit != "replay_exact" or any(
            summary.replayed for level in levels.values() for summary in level))
    return audit not in holders.AUDITS or holders.applies(audit, queue)


def judge(source: Source, queue: QueueFiles, levels: dict[int, list[Summary]], options: Options,
          findings: Findings) -> dict[str, Given]:
    """Judge those of these audits that the options ask for."""
    given: dict[str, Given] = {}
    summaries = [summary for level in levels.values() for summary in level]
    records = sum(s.records for s in summaries)
    if options.wants("channel_order") or options.wants("time_order"):
        found = places.orders(source, levels, options, findings, several=has_levels(queue, levels))
        for name, order in found.items():
            same = places.equal_times(source, summaries, options, findings) if name == "time_order" else 0
            more = {"consequences": order.consequences, "by_rule": order.by_rule + same} if order.by_rule else {}
            given[name] = Given(order.found + same, order.checked, more=more, doubts=_lost(order.stale))
    if options.wants("numbers"):
        count, excused = places.numbers(source, queue, levels, options, findings)
        given["numbers"] = Given(count, records, doubts=_lost(excused))
    words.excuse(summaries)
    if options.wants("agreement"):
        _cut_off_at_once(summaries, findings)
    if options.wants("before_publish"):
        _excuse_early(summaries, places.power_cuts(summaries))
    if options.wants("after_cut") and cut_of(queue) is not None:
        count = places.after_cut(source, queue, summaries, options, findings)
        given["after_cut"] = Given(count, records + sum(s.events for s in summaries))
    if options.wants("counters") and applies("counters", queue, levels, options):
        wrong, checked, doubts = counts.judge(source, queue, summaries, options, findings)
        given["counters"] = Given(
            len(wrong), checked, sum(s.uncovered for s in summaries), doubts=doubts,
            singles=tuple(f"{one.name}: {one.told} by the broker ({one.source}), {one.recount} by the journals"
                          for one in wrong))
    if options.wants("dead_letters") and letters.applies(queue):
        said = letters.judge(source, queue, summaries, options, findings)
        given["dead_letters"] = Given(said.found, said.checked, sum(s.uncovered for s in summaries), doubts=said.doubts)
    if options.wants("stream") and not clipped(options) and streams.is_stream(source, queue):
        verdict = streams.judge(queue, summaries, streams.read(source, queue) or b"")
        misled, indexed = indexes.judge(source, queue, summaries, indexes.names(source, queue))
        compacted = [(s.numbers.first, COMPACTED) for s in summaries if s.generation and s.records]
        faults = (*verdict.faults, *misled, *compacted)
        given["stream"] = Given(len(faults), verdict.checked + indexed, doubts=verdict.doubts,
                                singles=tuple(f"message {seq}: {text}" if seq else text for seq, text in faults))
    for name, held in holders.judge(source, queue, summaries, options, findings).items():
        given[name] = Given(held.found, held.checked, sum(s.uncovered for s in summaries), doubts=held.doubts)
    if not clipped(options):
        for name, one in (waits.judge(source, queue, summaries, options, findings)
                          | kept.judge(source, queue, summaries, options, findings)).items():
            uncovered = 0 if name == "dedup_kept" else sum(s.uncovered for s in summaries)
            given[name] = Given(one.found, one.checked, uncovered, doubts=one.doubts)
    return given


def _lost(count: int) -> tuple[str, ...]:
    if not count:
        return ()
    return (f"{many(count, 'record')} from before a loss of power have numbers that were given again",)


def _cut_off_at_once(summaries: list[Summary], findings: Findings) -> None:
    """Find replays without an event that no kill explains, because it cut off another one, in another segment."""
    cut_off = [(s, one) for s in summaries for one in s.cut_off]
    for at in too_many([one for _, one in cut_off]):
        summary, one = cut_off[at]
        columns = (np.array([value], np.int64) for value in (one.seq, -1, one.starts[0], one.starts[0], one.starts[0]))
        findings.add(summary, "agreement", "msgs", "replayed by the acks, and not by the journal; the kill before the "
                     "start at {a:t} cut off another replay", *columns)


def _excuse_early(summaries: list[Summary], cuts: list[int]) -> None:
    """Take back the findings of ``before_publish`` that a loss of power explains which only other segments know of: the
    journal of a lost segment was continued by one that got its number."""
    for s in summaries:
        for at, rows in enumerate(s.rows):
            if rows.audit == "before_publish":
                explained = np.searchsorted(cuts, rows.ts) < np.searchsorted(cuts, rows.a)
                s.rows[at] = rows._replace(**{name: getattr(rows, name)[~explained] for name in COLUMNS})
                result = s.results["before_publish"]
                count = int(np.count_nonzero(explained))
                s.results["before_publish"] = result._replace(found=result.found - count)
