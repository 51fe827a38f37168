"""Finds contradictions in events of the types from 16 on, and in the records that they belong to.

These events tell of parks, tokens, retries, duplicates, replays and redrives.  Each is of a message of its segment.  A
token stands just before a delivery to the same consumer.  A message with an event of a duplicate has a deduplication
key.  A message that was redriven has its number in its group.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

from brokerd.audit._journal import POWER_LOST_WORDS, Journal
from brokerd.audit.fetch import several
from brokerd.audit.files import FOREVER, Damage, Triple
from brokerd.audit.properties import whole_numbers
from brokerd.store import format as layout
from brokerd.store.reading import Records

PLACE = "x-group-seq"


def contradictions(triple: Triple, records: Records, journal: Journal, *, whole: bool) -> list[Damage]:
    """``whole``: the segment has all its records.  A loss of power may take records and leave their events."""
    damage: list[Damage] = []
    if any(gap.why == POWER_LOST_WORDS for gap in journal.gaps):
        return damage
    for which, events, places, words in _wrong(records, journal, whole=whole):
        several(damage, triple.journal or "", which, partial(_damage, triple, events, places, words))
    return damage


def _damage(triple: Triple, events: np.ndarray, places: np.ndarray, words: str, k: int) -> Damage:
    return Damage(triple.journal or "", int(places[k]), int(events["seq"][k]) & FOREVER, int(events["ts"][k]), words,
                  ("events",))


def unplaced(octets: bytes, records: Records, sound: np.ndarray) -> np.ndarray:
    """The indices of sound records that say that they were redriven, and not where they stood in their group."""
    marked = sound & (records.headers["flags"] & layout.REDRIVEN != 0)
    if marked.any():
        marked[whole_numbers(octets, records, PLACE)[0]] = False
    return np.flatnonzero(marked)


def _wrong(records: Records, journal: Journal, *,
           whole: bool) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, str]]:
    """(indices, events, places, fault)"""
    aside, places = journal.aside, journal.aside_places
    if whole:
        seq = records.headers["seq"]
        for events, at in ((aside, places), (journal.again, journal.again_places)):
            yield (np.flatnonzero(~np.isin(events["seq"], seq)), events, at,
                   "an event of a message that is not in the segment")
    if not aside.size:
        return
    yield _tokens_without_deliveries(journal), aside, places, "a token that its consumer was not told with a delivery"
    without = records.headers["seq"][records.headers["dedup_hash"] == 0]
    of_duplicate = aside["type"] == layout.DUPLICATE_EVENT
    yield (np.flatnonzero(of_duplicate & np.isin(aside["seq"], without)), aside, places,
           "a duplicate of a message without a deduplication key")


def _tokens_without_deliveries(journal: Journal) -> np.ndarray:
    """The tokens that are not followed by a delivery of their message to their consumer.  kill -9 may come between:
    then nothing else happens in that life of the broker."""
    tokens = np.flatnonzero(journal.aside["type"] == layout.TOKEN_EVENT)
    if not tokens.size:
        return tokens
    events, told = np.concatenate((journal.events, journal.again)), journal.aside[tokens]
    events = events[np.lexsort((events["ts"], events["seq"]))]
    times, runs = told["ts"].astype(np.int64), journal.runs.astype(np.int64)
    every = np.sort(np.concatenate((events["ts"], journal.aside["ts"])).astype(np.int64))
    ends = np.append(runs, FOREVER)[np.searchsorted(runs, times)]       # Of the life of the broker that told it.
    goes_on = (every[np.searchsorted(every, ends) - 1] > times) & (not journal.gaps)
    goes_on &= ~np.isin(told["seq"], journal.late["seq"])
    at = _following(events, told)
    event = events[np.minimum(at, events.size - 1)] if events.size else np.zeros(at.size, events.dtype)
    same = (at < events.size) & (event["seq"] == told["seq"])
    same &= np.searchsorted(runs, event["ts"].astype(np.int64)) == np.searchsorted(runs, times)
    other = (event["type"] != layout.DELIVERED) | (event["consumer"] != told["consumer"])
    return tokens[np.where(same, other, goes_on)]


def _following(events: np.ndarray, told: np.ndarray) -> np.ndarray:
    """For each token, the place of the first event that is not before it, of events by number and time."""
    seq, ts = (np.concatenate((events[name], told[name])) for name in ("seq", "ts"))
    is_event = np.arange(seq.size) < events.size
    order = np.lexsort((is_event, ts, seq))
    before = np.cumsum(is_event[order])
    at = np.empty(told.size, np.int64)
    at[order[~is_event[order]] - events.size] = before[~is_event[order]]
    return at
