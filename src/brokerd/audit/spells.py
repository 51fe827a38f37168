"""The spells of a segment's messages, for audits of what waits: from a publish, or a replay, until the settlement.

A message has one spell for its publish and one for each of its replays.  ``spells`` makes a row of each; ``at`` and
``of_entries`` find the row to which an event or an entry belongs.
"""

from typing import NamedTuple

import numpy as np

from brokerd.audit.files import FOREVER
from brokerd.audit.lifecycle import SETTLING, Lives, messages_of, places_of
from brokerd.audit.replayed import Events, events_of
from brokerd.audit.segment import SegmentData
from brokerd.store import format as layout
from brokerd.store import reading


class Spells(NamedTuple):
    """Rows by message, then by time: columns.  ``of``: the message, an index into Lives.  ``since``: of the first one:
    0 if the record is not there.  ``settled``: FOREVER if it is not, 0 if it is not known when.  ``sure``: the journal
    has all of it.  ``later``: it began with a replay.  ``by_acks``: only the acks know that it has ended.

    ``first``: of each message, the row of its first spell; ``again``: of each event since replays (``events``), its
    row, -1: of an unknown message."""

    of: np.ndarray
    seq: np.ndarray
    since: np.ndarray
    settled: np.ndarray
    sure: np.ndarray
    later: np.ndarray
    by_acks: np.ndarray
    first: np.ndarray
    again: np.ndarray
    events: Events


def spells(data: SegmentData, life: Lives, power_cut: int) -> Spells:
    """All spells of a segment.  Nothing from before the start after a loss of power, ``power_cut``, is sure."""
    settled = np.zeros(life.seq.size, np.int64)
    ends = np.flatnonzero(SETTLING[life.type])
    settled[life.of[ends][::-1]] = life.ts[ends][::-1]          # The first one of each message.
    sure = life.covered & (life.published > power_cut)
    position = np.append(data.positions, 0)[life.record]        # A message without a record, -1, has the last one.
    by_acks = np.isin(position, reading.settled_positions(data.entries)) & (life.record >= 0) & (settled == 0)
    settled = np.where(settled > 0, settled, np.where(by_acks | ~sure, 0, FOREVER))
    e = events_of(data)
    if not e.seq.size or not life.seq.size:
        rows = np.arange(life.seq.size)
        return Spells(rows, life.seq, life.published, settled, sure, np.zeros(rows.size, bool), by_acks & sure, rows,
                      np.full(e.seq.size, -1), e)
    begins = e.head | (e.type == layout.EVENT_REPLAYED)
    start, row = np.flatnonzero(begins), np.cumsum(begins) - 1
    of = places_of(life.seq, e.seq[start])
    until = np.zeros(start.size, np.int64)
    ends = np.flatnonzero(SETTLING[e.type])
    until[row[ends][::-1]] = e.ts[ends][::-1]
    final = np.append(e.head[start][1:], True)
    ended = reading.settled_positions(np.concatenate((data.entries, data.entries_again)))
    lost = final & (until == 0) & np.isin(position[of], ended)  # kill -9 came before the event.
    until = np.where(until > 0, until, np.where(final & ~lost & e.judged[start], FOREVER, 0))
    heads = e.head[start] & (of >= 0)
    settled[of[heads]] = np.minimum(settled[of[heads]], e.ts[start][heads])     # Settled or not: another spell begins.
    known = of >= 0
    return _in_order(life, (settled, sure, by_acks & sure), of[known], e.ts[start][known], (
        until[known], e.judged[start][known], (lost & e.judged[start])[known]), np.where(
        known[row], (np.cumsum(known) - 1)[row], -1), e)


def _in_order(life: Lives, firsts: tuple[np.ndarray, ...], of: np.ndarray, since: np.ndarray,
              others: tuple[np.ndarray, ...], again: np.ndarray, e: Events) -> Spells:
    """The first spells of all messages and the later ones (of message ``of``) as one table."""
    count = life.seq.size
    every = np.concatenate((np.arange(count), of))
    later = np.arange(every.size) >= count
    order = np.argsort(every, kind="stable")            # The later ones of each message are in order of time.
    row = np.empty(order.size, np.int64)
    row[order] = np.arange(order.size)
    settled, sure, by_acks = (np.concatenate(both)[order] for both in zip(firsts, others, strict=True))
    return Spells(every[order], life.seq[every[order]], np.concatenate((life.published, since))[order], settled, sure,
                  later[order], by_acks, row[:count], np.where(again >= 0, np.append(row[count:], -1)[again], -1), e)


def at(known: Spells, seq: np.ndarray, ts: np.ndarray) -> np.ndarray:
    """The row of each of these moments of messages; -1: of an unknown one."""
    row = np.searchsorted(known.seq, seq)
    size = known.seq.size
    row = np.where((row < size) & (np.append(known.seq, -1)[np.minimum(row, size)] == seq), row, -1)
    while True:
        following = np.minimum(row + 1, size)
        step = (row >= 0) & (np.append(known.seq, -1)[following] == seq) & (
            np.append(known.since, FOREVER)[following] <= ts)
        if not step.any():
            return row
        row = row + step


def of_entries(data: SegmentData, life: Lives, known: Spells) -> tuple[np.ndarray, np.ndarray]:
    """All entries of known messages by message, each message's in the order of the file; and the row of each."""
    entries = np.concatenate((data.entries, data.entries_again))
    of = messages_of(data, life.record, entries)
    order = np.argsort(of, kind="stable")
    order = order[np.searchsorted(of[order], 0):]       # Those of unknown messages, -1, come first.
    of, entries = of[order], entries[order]
    if not data.entries_again.size:
        return entries, known.first[of]
    replays = np.cumsum((entries["kind"] & 0x0F) == layout.REPLAYED)
    before = np.append(0, replays)[np.searchsorted(of, of)]     # Those of earlier messages.
    last = np.append(known.first[1:], known.seq.size) - 1
    return entries, np.minimum(known.first[of] + replays - before, last[of])
