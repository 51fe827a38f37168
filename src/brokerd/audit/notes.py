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
    events = np.concatenate((journal.events, journal.again))
    order = np.lexsort((events["ts"], events["seq"]))
    events = events[order]
    found, runs = [], journal.runs
    every = np.sort(np.concatenate((events["ts"], journal.aside["ts"])))
    first = np.searchsorted(events["seq"], journal.aside["seq"][tokens])
    for token, at in zip(tokens.tolist(), first.tolist(), strict=True):
        one = journal.aside[token]
        end = np.append(runs, FOREVER)[np.searchsorted(runs, one["ts"])]        # of that life
        goes_on = every[np.searchsorted(every, end) - 1] > one["ts"] and not journal.gaps
        goes_on &= one["seq"] not in journal.late["seq"]
        found += [token] * _is_alone(one, events, at, runs, goes_on=bool(goes_on))
    return np.array(found, np.int64)


def _is_alone(token: np.void, events: np.ndarray, at: int, runs: np.ndarray, *, goes_on: bool) -> bool:
    """Whether the first event of its message behind a token (events from ``at`` on) is no delivery to its consumer.
    ``goes_on``: whether something else happened later in that life of the broker."""
    while at < events.size and events["seq"][at] == token["seq"] and events["ts"][at] < token["ts"]:
        at += 1
    if at == events.size or events["seq"][at] != token["seq"]:
        return goes_on
    event = events[at]
    if np.searchsorted(runs, event["ts"]) != np.searchsorted(runs, token["ts"]):
        return goes_on
    return bool(event["type"] != layout.DELIVERED or event["consumer"] != token["consumer"])
