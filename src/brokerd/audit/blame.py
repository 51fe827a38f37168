"""Names the culprits of ``publish_order`` and ``fifo`` where these find something: ``blame``, for one audit of a queue.

The rules of these audits look at pairs: a message is found if an earlier one has a later publish, or went out later.
One message that is far out of place makes thousands of others seem wrong.  So a level in which something is wrong is
read again as a whole, and the fewest messages without which the rest is in order are told first, the others as their
consequences.
"""

from typing import NamedTuple

import numpy as np

from brokerd.audit.arrays import as_signed, group_max_before
from brokerd.audit.culprits import CONSEQUENCE, culprits
from brokerd.audit.files import Source
from brokerd.audit.scan import Options, Pass, Rows, Summary
from brokerd.audit.stitch import Findings, read_again

AUDITS = ("publish_order", "fifo")
# What is said of a message that comes behind one that it should come before, and of one before which others come.
BEHIND = {"publish_order": "publish {a} of connection {b} comes behind a later one of its channel",
          "fifo": "first delivered at {a:t}, before an earlier one, at {b:t}"}
BEFORE = {"publish_order": "publish {a} of connection {b} comes before earlier ones of its channel",
          "fifo": "first delivered at {a:t}, after later ones"}


class Blamed(NamedTuple):
    """``less``: how many fewer culprits there are than the rule of pairs finds; ``consequences``: what it finds
    besides them."""

    less: int
    consequences: int


class _Columns(NamedTuple):
    """The columns that the rule compares within each group of a level, with the places of the messages; ``connection``:
    0 if the rule does not look at it."""

    values: np.ndarray
    groups: np.ndarray
    seq: np.ndarray
    place: np.ndarray
    ts: np.ndarray
    connection: np.ndarray
    segment: np.ndarray


def blame(audit: str, source: Source, levels: dict[int, list[Summary]], options: Options,
          findings: Findings) -> Blamed:
    """Replace the findings of ``audit``, in those levels that have some, by the culprits and their consequences."""
    less = consequences = 0
    for level in levels.values():
        if not any(_has_found(audit, s, findings) for s in level):
            continue
        parts = [_columns(audit, read_again(source, s, options), k) for k, s in enumerate(level)]
        rows = _Columns(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        found = culprits(rows.values, rows.groups)
        top = group_max_before(rows.groups, rows.values)
        bad = np.flatnonzero(rows.values <= top)
        rest = np.setdiff1d(bad, found)
        less += bad.size - found.size
        consequences += rest.size
        _forget(audit, level, findings)
        b = rows.connection if audit == "publish_order" else top
        for which, words in ((np.intersect1d(found, bad), BEHIND[audit]), (np.setdiff1d(found, bad), BEFORE[audit]),
                             (rest, CONSEQUENCE + BEHIND[audit])):
            for k in np.unique(rows.segment[which]).tolist():
                own = which[rows.segment[which] == k]
                told = Rows(audit, "msgs", words, rows.seq[own], rows.place[own], rows.ts[own], rows.values[own],
                            b[own])
                findings.rows.append((level[k], told))
    return Blamed(less, consequences)


def _is_of_pairs(audit: str, rows: Rows) -> bool:
    """Whether the rule of pairs has made these rows; ``fifo`` may have others, of messages that were passed over."""
    return rows.audit == audit and (audit != "fifo" or rows.detail.startswith("first delivered"))


def _has_found(audit: str, summary: Summary, findings: Findings) -> bool:
    return any(_is_of_pairs(audit, rows) for rows in summary.rows) or any(
        one is summary and _is_of_pairs(audit, rows) for one, rows in findings.rows)


def _forget(audit: str, level: list[Summary], findings: Findings) -> None:
    for summary in level:
        summary.rows[:] = [rows for rows in summary.rows if not _is_of_pairs(audit, rows)]
    own = {id(summary) for summary in level}
    findings.rows = [(summary, rows) for summary, rows in findings.rows
                     if id(summary) not in own or not _is_of_pairs(audit, rows)]


def _columns(audit: str, p: Pass, number: int) -> _Columns:
    if audit == "publish_order":
        index = np.flatnonzero(p.data.sound & (p.data.headers["connection"] > 0))
        headers = p.data.headers[index]
        connection = headers["connection"].astype(np.int64)
        return _Columns(as_signed(headers["publish_seq"]), connection << 16 | headers["channel"],
                        headers["seq"].astype(np.int64), p.data.positions[index], headers["ts"], connection,
                        np.full(index.size, number))
    sure = np.flatnonzero(p.life.first_sure)
    first = p.life.first[sure]
    return _Columns(first, np.zeros(sure.size, np.int64), p.life.seq[sure], p.places(sure), first,
                    np.zeros(sure.size, np.int64), np.full(sure.size, number))
