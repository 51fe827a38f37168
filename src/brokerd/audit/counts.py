"""Compares the broker's counts with the journals of a dump: ``counters``, for each queue.

The broker counts what disturbs the order since the queue was declared: in the file ``order``, and in the manifest of a
dump.  Where the files have the whole life of the queue, the journals must come to the same numbers.  Where retention
took segments, or the journal began later, the broker may have counted more, but never less.  Only dumps are judged: a
running broker goes on counting while its files are read.

With message groups the broker counts every message that went out for the first time meanwhile as overtaking, also
earlier ones of other groups: then the journals must not come to more than the broker's count.

The manifest of a dump also says how many messages were ready and how many were out at its cut.  The journals must come
to the same numbers, if they cover all messages that are not settled, and nothing is damaged.  A message that is set
aside while its dead letter is stored is neither.  Its last acks entry may say so; if it had been delivered, perhaps no
entry does.
"""

from typing import Any, NamedTuple

import numpy as np

from brokerd.audit.figures import STANDING
from brokerd.audit.files import QueueFiles, Source
from brokerd.audit.inspect import counters
from brokerd.audit.scan import Options, Summary
from brokerd.audit.stitch import Findings
from brokerd.store import format as layout

OVERTAKING = ("out_of_sequence", "overtakings")
STATES = ("ready", "unacked")
WAITING_ROOMS = "amq.delayed."          # The names of queues that hold delayed messages back begin with it.


class Counted(NamedTuple):
    """One counter that differs: who counted it, its name, what the broker and what the journals say."""

    source: str
    name: str
    told: int
    recount: int


def told(source: Source, queue: QueueFiles) -> dict[str, dict[str, int]]:
    """The broker's counts, by their place: ``manifest``, ``order``; only those that a dump has."""
    if queue.manifest is None:
        return {}
    found: dict[str, dict[str, int]] = {}
    said: Any = queue.manifest.get("counters")
    said = {name: said[name] for name in layout.ORDER_COUNTERS if name in said} if isinstance(said, dict) else {}
    said |= {name: queue.manifest[name] for name in STATES if name in queue.manifest}
    found["manifest"] = {name: value for name, value in said.items() if type(value) is int}
    counted = counters(source, queue.folder)
    if counted is not None:
        found["order"] = counted
    return found


def recount(summaries: list[Summary], findings: Findings, options: Options) -> dict[str, int]:
    """The same counters from the journals; those of overtaking only if that audit is asked for."""
    sums = sum((s.counters for s in summaries), np.zeros(len(layout.ORDER_COUNTERS), np.int64))
    named = dict(zip(layout.ORDER_COUNTERS, sums.tolist(), strict=True))
    named["out_of_sequence"] = findings.found.get("overtaking", 0) + sum(
        s.results["overtaking"].found for s in summaries)
    named["overtakings"] = findings.overtakings + sum(s.overtakings for s in summaries)
    return {name: count for name, count in named.items() if name not in OVERTAKING or options.wants("overtaking")}


def is_whole(queue: QueueFiles, summaries: list[Summary]) -> bool:
    """Whether the files have the queue's whole life."""
    numbers = [s.numbers.first for s in summaries if s.records]
    return not queue.removed and min(numbers, default=1) == 1 and not any(s.uncovered or s.gaps for s in summaries)


def bounds(queue: QueueFiles, summaries: list[Summary]) -> dict[str, tuple[int, int]]:
    """How many messages were ready and how many out at the cut of a dump, at least and at most; none where the files
    cannot tell."""
    sums = sum((s.standing for s in summaries), np.zeros(len(STANDING), np.int64))
    out, ready, fresh, aside, unknown = sums.tolist()
    damaged = bool(queue.damage) or any(s.damage or s.gone or s.power_cut for s in summaries)
    if unknown or damaged or queue.queue.startswith(WAITING_ROOMS):
        return {}
    least = fresh if any(rule.dead_letters for rule in queue.rules) else ready
    return {"ready": (least, ready + aside), "unacked": (out, out)}


def judge(source: Source, queue: QueueFiles, summaries: list[Summary], options: Options,
          findings: Findings) -> tuple[list[Counted], int, tuple[str, ...]]:
    """The counters that differ, how many were compared, and the doubts."""
    mine, whole = recount(summaries, findings, options), is_whole(queue, summaries)
    sure = not any(s.power_cut for s in summaries)      # A loss of power may take counts.
    in_groups = any(rule.groups for rule in queue.rules)
    wrong, checked = [], 0
    for where, counts in told(source, queue).items():
        for name in mine.keys() & counts.keys():
            checked += 1
            exact = whole and not (in_groups and name in OVERTAKING)
            if (sure and mine[name] > counts[name]) or (exact and mine[name] < counts[name]):
                wrong.append(Counted(where, name, counts[name], mine[name]))
    for name, (least, most) in bounds(queue, summaries).items():
        value = told(source, queue).get("manifest", {}).get(name)
        if value is not None:
            checked += 1
            if not least <= value <= most:
                wrong.append(Counted("manifest", name, value, most if value > most else least))
    order = {name: k for k, name in enumerate((*layout.ORDER_COUNTERS, *STATES))}
    doubts = () if whole else ("the files have not all that happened since the queue was declared",)
    return sorted(wrong, key=lambda one: (one.source, order[one.name])), checked, doubts
