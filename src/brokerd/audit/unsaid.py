"""Replays of which kill -9 left the entry and not the event: ``with_replays`` adds the event that the broker owed.

The broker writes the entry before the event.  If it is killed between the two, its next start takes the entry for true:
the message is ready, and goes out again, though its journal says last that it was settled.  Such an event is added at
the nanosecond before that start, when nothing else stands between the two; an audit calls the message a doubt.  Where
anything contradicts this, nothing is added, and the audits accuse.

A kill cuts off one replay.  ``too_many`` finds those of a queue for which there are not enough starts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from brokerd.audit import layout as shapes
from brokerd.audit._journal import Journal, since_replay
from brokerd.audit.files import FOREVER
from brokerd.store import format as layout

SETTLING = np.array([type_ in layout.SETTLING_TYPES for type_ in range(256)])


class _Gone(NamedTuple):
    """A replay without an event: its entry (index), its message, the settlement before it (time, place), and when the
    next thing happened to the message (FOREVER: nothing)."""

    entry: int
    seq: int
    settled: int
    place: int
    following: int


class Unsaid(NamedTuple):
    """A replay of which only the acks tell; ``starts``: those before which a kill may have cut it off."""

    seq: int
    starts: tuple[int, ...]


def too_many(cut_off: Sequence[Unsaid]) -> list[int]:
    """The indices of those that are left if as many as possible get a start of their own."""
    of: dict[int, int] = {}                             # start -> the one that has it

    def place(one: int, tried: set[int]) -> bool:
        for start in cut_off[one].starts:
            if start not in tried:
                tried.add(start)
                if start not in of or place(of[start], tried):
                    of[start] = one
                    return True
        return False

    return [one for one in range(len(cut_off)) if not place(one, set())]


def may_miss(journal: Journal) -> bool:
    """Whether a message has an event of another life of the broker behind its settlement, without a replay between."""
    if not journal.runs.size:
        return False
    events = journal.events
    first, last = np.searchsorted(events["ts"], journal.runs[0]), np.searchsorted(events["ts"], journal.runs[-1])
    ended = events["seq"][:last][SETTLING[events["type"][:last]]]
    later = events["seq"][first:][np.isin(events["type"][first:], (layout.DELIVERED, *layout.SETTLING_TYPES))]
    later = later[np.isin(later, ended)]
    if later.size:                                      # Settled in the same life, perhaps.
        some = events[np.isin(events["seq"], later)]
        if _goes_on(some, journal.runs):
            return True
    return _goes_on(journal.again, journal.runs)


def _goes_on(events: np.ndarray, runs: np.ndarray) -> bool:
    order = np.lexsort((events["ts"], events["seq"]))
    seq, type_, run = events["seq"][order], events["type"][order], np.searchsorted(runs, events["ts"][order])
    return bool((SETTLING[type_[:-1]] & (seq[1:] == seq[:-1]) & (type_[1:] != layout.EVENT_REPLAYED)
                 & (run[1:] > run[:-1])).any())


def with_replays(journal: Journal, entries: np.ndarray, seqs: np.ndarray) -> tuple[Journal, tuple[Unsaid, ...]]:
    """The journal with the events that kills took from it, and of which replays they are.

    ``entries``: all of the acks, in the order of the file; ``seqs``: the message of each, 0: not known.
    """
    kinds = entries["kind"] & 0x0F
    noted = seqs[(kinds == layout.REPLAYED) & (seqs > 0)]
    if not noted.size or not journal.runs.size:
        return journal, ()
    told = np.sort(journal.again["seq"][journal.again["type"] == layout.EVENT_REPLAYED].astype(np.int64))
    some, counts = np.unique(noted, return_counts=True)
    had = np.searchsorted(told, some, "right") - np.searchsorted(told, some)
    if (counts <= had).all():
        return journal, ()
    events = np.concatenate((journal.events, journal.again))
    places = np.concatenate((journal.places, journal.again_places))
    gone: list[_Gone] = []
    for seq, lacks in zip(some[counts > had].tolist(), (counts - had)[counts > had].tolist(), strict=True):
        own = _gone(events, places, np.flatnonzero((seqs == seq) & (kinds == layout.REPLAYED)), seq)
        gone += own if len(own) == lacks else []
    found, cut_off = _explained(journal, events, kinds, seqs, sorted(gone))
    return (_added(journal, found), tuple(cut_off)) if found else (journal, ())


def _gone(events: np.ndarray, places: np.ndarray, replays: np.ndarray, seq: int) -> list[_Gone]:
    """The replays of a message that have no event; ``replays``: its entries of them."""
    mine = np.flatnonzero(events["seq"] == seq)
    mine = mine[np.argsort(events["ts"][mine], kind="stable")]
    found = []
    for rank, at in enumerate(np.flatnonzero(SETTLING[events["type"][mine]]).tolist()):
        after = mine[at + 1:at + 2]
        if rank < replays.size and not (events["type"][after] == layout.EVENT_REPLAYED).any():
            found.append(_Gone(int(replays[rank]), seq, int(events["ts"][mine[at]]), int(places[mine[at]]),
                               int(events["ts"][after[0]]) if after.size else FOREVER))
    return found


def _explained(journal: Journal, events: np.ndarray, kinds: np.ndarray, seqs: np.ndarray,
               gone: list[_Gone]) -> tuple[list[tuple[_Gone, int]], list[Unsaid]]:
    """Those that were the last thing that a broker wrote, each with the first start that may be behind it; and all that
    may."""
    found, cut_off, start = [], [], 0
    for one in gone:
        since, until = _around(events, kinds, seqs, one.entry)
        after = int(np.searchsorted(journal.runs, max(one.settled, since, start), "right"))
        if after < journal.runs.size and int(journal.runs[after]) <= min(until, one.following):
            start = int(journal.runs[after])
            found.append((one, start))
            last = int(np.searchsorted(journal.runs, min(until, one.following), "right"))
            cut_off.append(Unsaid(one.seq, tuple(journal.runs[after:last].tolist())))
    return found, cut_off


def _around(events: np.ndarray, kinds: np.ndarray, seqs: np.ndarray, entry: int) -> tuple[int, int]:
    """The times of the nearest replays and settlements before and behind an entry in the acks that have events."""
    telling = np.flatnonzero((SETTLING[kinds] | (kinds == layout.REPLAYED)) & (seqs > 0))
    at = int(np.searchsorted(telling, entry))

    def time_of(k: int) -> int | None:
        one = int(telling[k])
        same, types = SETTLING[kinds], SETTLING[events["type"]]
        if kinds[one] == layout.REPLAYED:
            same, types = kinds == layout.REPLAYED, events["type"] == layout.EVENT_REPLAYED
        rank = int(np.count_nonzero(same[:one] & (seqs[:one] == seqs[one])))
        times = np.sort(events["ts"][types & (events["seq"] == seqs[one])])
        return int(times[rank]) if rank < times.size else None

    def first(places: range, nothing: int) -> int:
        return next((time for time in map(time_of, places) if time is not None), nothing)

    return first(range(at - 1, -1, -1), 0), first(range(at + 1, telling.size), FOREVER)


def _added(journal: Journal, found: list[tuple[_Gone, int]]) -> Journal:
    more = np.zeros(len(found), shapes.EVENT)
    more["seq"], more["ts"] = [one.seq for one, _ in found], [start - 1 for _, start in found]
    more["type"] = layout.EVENT_REPLAYED
    events = np.concatenate((journal.events, journal.again, more))
    at = np.array([one.place for one, _ in found], np.int64)
    places = np.concatenate((journal.places, journal.again_places, at))
    order = np.argsort(events["ts"], kind="stable")
    events, places = events[order], places[order]
    again = since_replay(events["seq"], events["type"] == layout.EVENT_REPLAYED)
    return journal._replace(events=events[~again], places=places[~again], again=events[again],
                            again_places=places[again])
