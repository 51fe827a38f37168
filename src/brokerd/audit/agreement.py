"""Compares the acks of a segment with its journal: both must tell the same of each message.

    settlements   as many, of the same type and for the same reason
    returns       each entry is of a return that the journal has, with its cause and count of failures; each return has
                  an entry, unless the message died of it, or was set aside with it
    hand-outs     each hand-out of a message that had been out, with acks, has an entry with the same count
    the order     the entries of a message stand in the order in which it happened: none behind the one that settles it,
                  returns and hand-outs as in the journal.  The last entry of a message that is out is a hand-out,
                  unless its client has rejected it and its dead letter is not stored yet
    the cursor    it has passed each delivered message, except those that were redriven into their group and go out from
                  there; and each message that it has passed was delivered, or has an entry

Compares the messages that the journal covers.  A compaction leaves one entry for each record; then this module finds
only superfluous entries.  These differences are doubts, because a broker that kept its promises may leave them:

- kill -9 may come between an entry and its event.  The entry that settles a message stands last in its file before a
  start, or last of all while a broker may be at work; a client settles only what it has.  The event of a return or of a
  hand-out is the last of its journal in that life of the broker;
- kill -9 may come when the cursor has passed a message, and before the event of its delivery.  Then the cursor goes on
  only when that message has gone out again: so it is the last one that the cursor has passed;
- a loss of power takes data that was not synced, another part of each file.
"""

from typing import NamedTuple

import numpy as np

from brokerd.audit.arrays import group_max_before
from brokerd.audit.files import FOREVER
from brokerd.audit.lifecycle import CAUSES, SETTLING, Lives, messages_of
from brokerd.audit.segment import SegmentData
from brokerd.audit.settlements import entries_behind
from brokerd.store import format as layout

NUMBER = "the acks settle it {a} times, the journal {b} times"
END = "the acks say that it ended otherwise than the journal says"
RETURNS = "the acks have {a} returns of it, the journal {b}"
RETOLD = "the acks tell a return of it with another cause or count than the journal"
ORDER = "the acks tell what became of it in another order than the journal"
HAND_OUTS = "the acks have {a} later hand-outs of it, the journal {b}"
BEHIND = "the journal has {b} deliveries of it, and the cursor of the acks stands before it"
AHEAD = "the cursor of the acks has passed it, and nothing else says that it went out"
DYING = (layout.DEAD_LETTERED, layout.DROPPED)
COUNT_MAX = 0xFFFF              # failed deliveries: no entry counts further


class Differences(NamedTuple):
    """``found``: (detail, messages, a, b) of each kind; ``doubts`` and ``checked``: how many messages."""

    found: list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]
    doubts: int
    checked: int


class _Told(NamedTuple):
    """The facts of one file about each message: settlements, the last one's type and reason, returns, later
    hand-outs."""

    settled: np.ndarray
    ended: np.ndarray
    returned: np.ndarray
    handed: np.ndarray


class _Untold(NamedTuple):
    """The messages with an event that lacks its entry; ``doubtful``: those with one that a kill may have prevented."""

    which: np.ndarray
    doubtful: np.ndarray


def compare(data: SegmentData, life: Lives) -> Differences:
    """Compare the two files of a segment.  If one of them is not there or damaged, nothing is compared.

    A broker makes the acks with their segment.  Killed between the two, it makes them before the first hand-out.  So
    where they are not there and the journal has no event, all messages are doubts.
    """
    judged = life.covered & (life.record >= 0)
    if data.begun is None or data.matters("acks") or not judged.any():
        return Differences([], 0, 0)
    if data.triple.acks is None:
        return Differences([], int(np.count_nonzero(judged)), int(np.count_nonzero(judged)))
    of = messages_of(data, life.record, data.entries)
    entries, of = data.entries[of >= 0], of[of >= 0]
    type_, why = entries["kind"] & 0x0F, entries["kind"] >> 4
    again = _later_hand_outs(life)
    acks = _told(life.seq.size, of, type_, why, type_ == layout.HANDED_OUT)
    journal = _told(life.seq.size, life.of, life.type, life.why, again)
    number = judged & (acks.settled != journal.settled)
    end = judged & ~number & (acks.settled > 0) & (acks.ended != journal.ended)
    rest = judged & ~number & ~end
    stray = rest & _stray_returns(data, life, of, entries)
    returns, hand_outs = _untold_returns(data, life, of, entries), _untold_hand_outs(data, life, of, entries, again)
    lost = rest & returns.which
    unhanded = rest & ~stray & ~lost & (hand_outs.which | _stray_hand_outs(data, life, of, entries))
    retold = stray & (acks.returned <= journal.returned)
    disorder = _disorder(data, life, of, entries)
    moved = rest & ~(stray | lost | unhanded)
    moved &= disorder.which | ((acks.settled == 1) & entries_behind(data, life))
    alike, passed = rest & ~(stray | lost | unhanded | moved), _passed(data, life)
    behind = alike & (life.deliveries > 0) & ~passed & ~_redriven(data, life)
    ahead = alike & (life.deliveries == 0) & passed & (np.bincount(of, minlength=life.seq.size) == 0)
    in_flight = number & (journal.settled == 0) & (acks.settled == 1) & _in_flight(data, life, of, entries["kind"])
    in_flight |= ahead & _last_passed(data, life, passed)
    power_lost = bool(data.power_cuts.size)
    found = []
    for detail, which, a, b in ((NUMBER, number & ~in_flight, acks.settled, journal.settled),
                                (END, end, acks.settled, journal.settled),
                                (RETOLD, retold, acks.returned, journal.returned),
                                (RETURNS, (stray | lost) & ~retold, acks.returned, journal.returned),
                                (HAND_OUTS, unhanded, acks.handed, journal.handed),
                                (ORDER, moved, acks.settled, journal.settled),
                                (BEHIND, behind, life.deliveries, life.deliveries),
                                (AHEAD, ahead & ~in_flight, life.deliveries, life.deliveries)):
        index = np.flatnonzero(which & (not power_lost))
        found.append((detail, index, a[index], b[index]))
    wrong = number | end | stray | lost | unhanded | moved | behind | ahead
    doubtful = (wrong & power_lost) | in_flight
    doubtful |= rest & ~wrong & (returns.doubtful | hand_outs.doubtful | disorder.doubtful)
    return Differences(found, int(np.count_nonzero(doubtful)), int(np.count_nonzero(judged)))


def _told(count: int, of: np.ndarray, type_: np.ndarray, why: np.ndarray, again: np.ndarray) -> _Told:
    settles, ended = SETTLING[type_], np.zeros(count, np.int64)
    dies = np.isin(type_, DYING) & (why <= layout.REASON_REMOVED)
    ended[of[settles]] = (type_.astype(np.int64) << 4 | np.where(dies, why, 0))[settles]    # The last one stays.
    return _Told(np.bincount(of[settles], minlength=count), ended,
                 np.bincount(of[type_ == layout.RETURNED], minlength=count),
                 np.bincount(of[again], minlength=count))


# --- returns and hand-outs


def _later_hand_outs(life: Lives) -> np.ndarray:
    """Which events are deliveries, with acks, of a message that had been out: each has an entry."""
    return (life.type == layout.DELIVERED) & (life.why & (layout.REDELIVERED | layout.WITHOUT_ACK)
                                              == layout.REDELIVERED)


def _counts(data: SegmentData, life: Lives, which: np.ndarray) -> np.ndarray:
    """For each of these events its message and its count of failed deliveries, as one number."""
    return life.of[which].astype(np.int64) << 16 | data.events["count"][life.event[which]]


def _causes(why: np.ndarray) -> np.ndarray:
    return np.where(why < len(CAUSES), why, 0)


def _times(keys: np.ndarray, some: np.ndarray) -> np.ndarray:
    """How often each of ``keys`` (rising) is among ``some``."""
    place = np.minimum(np.searchsorted(keys, some), keys.size - 1)
    return np.bincount(place[keys[place] == some], minlength=keys.size)


def _stray_returns(data: SegmentData, life: Lives, of: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """The messages with a return in the acks, with its cause and count, that the journal does not have."""
    stray, told = np.zeros(life.seq.size, bool), entries["kind"] & 0x0F == layout.RETURNED
    if told.any():
        which = np.flatnonzero(life.type == layout.RETURNED)
        mine = (of[told].astype(np.int64) << 16 | entries["count"][told]) << 4 | _causes(entries["kind"][told] >> 4)
        keys = np.unique(mine)
        said = _times(keys, _counts(data, life, which) << 4 | _causes(life.why[which]))
        stray[keys[_times(keys, mine) > said] >> 20] = True
    return stray


def _stray_hand_outs(data: SegmentData, life: Lives, of: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """The messages with more hand-outs in the acks, of one count, than deliveries with acks in the journal.  The
    first delivery has an entry, too, if the message had been set aside or redriven: the cursor does not tell of it."""
    stray, type_ = np.zeros(life.seq.size, bool), entries["kind"] & 0x0F
    told = type_ == layout.HANDED_OUT
    if told.any():
        aside = _redriven(data, life) | bool(data.generation)   # A compaction leaves the last entry alone.
        aside[of[np.isin(type_, layout.ASIDE_TYPES)]] = True
        which = np.flatnonzero((life.type == layout.DELIVERED) & (life.why & layout.WITHOUT_ACK == 0)
                               & ((life.why & layout.REDELIVERED > 0) | aside[life.of]))
        mine = of[told].astype(np.int64) << 16 | entries["count"][told]
        keys = np.unique(mine)
        stray[keys[_times(keys, mine) > _times(keys, _counts(data, life, which))] >> 16] = True
    return stray


def _untold_returns(data: SegmentData, life: Lives, of: np.ndarray, entries: np.ndarray) -> _Untold:
    which, type_ = np.flatnonzero(life.type == layout.RETURNED), entries["kind"] & 0x0F
    told = of.astype(np.int64) << 16 | entries["count"]
    following = np.minimum(which + 1, max(life.type.size - 1, 0))
    died = ~life.last[which] & np.isin(life.type[following], DYING) & (life.why[following] == layout.REASON_LIMIT)
    aside = told[np.isin(type_, layout.ASIDE_TYPES)] if may_be_aside_instead(data) else told[:0]
    return _untold(data, life, which, told[type_ == layout.RETURNED], aside, died)


def may_be_aside_instead(data: SegmentData) -> bool:
    """Whether a return may have an entry that sets its message aside in place of its own: where a message may die of a
    limit, or waits for its group, its next try, or an operator."""
    rules = data.triple.rules
    return not rules or any(rule.limit is not None or rule.groups or rule.retry or rule.stops for rule in rules)


def _untold_hand_outs(data: SegmentData, life: Lives, of: np.ndarray, entries: np.ndarray,
                      again: np.ndarray) -> _Untold:
    which, mine = np.flatnonzero(again), entries["kind"] & 0x0F == layout.HANDED_OUT
    told = of[mine].astype(np.int64) << 16 | entries["count"][mine]
    return _untold(data, life, which, told, told[:0], np.zeros(which.size, bool))


def _untold(data: SegmentData, life: Lives, which: np.ndarray, told: np.ndarray, aside: np.ndarray,
            died: np.ndarray) -> _Untold:
    """Which messages have more of these events, with some count, than entries with that count: ``told``, or in their
    place ``aside`` or a death."""
    untold, doubtful = np.zeros(life.seq.size, bool), np.zeros(life.seq.size, bool)
    if which.size and not data.generation:
        mine = _counts(data, life, which)
        keys = np.unique(mine)
        instead = np.maximum(_times(keys, aside), _times(keys, mine[died]))
        missing = np.maximum(_times(keys, mine) - _times(keys, told) - instead, 0)
        closing = _times(keys, mine[np.isin(life.ts[which], _last_of_lives(data))])
        untold[keys[missing > closing] >> 16] = True
        doubtful[keys[np.minimum(missing, closing) > 0] >> 16] = True
    return _Untold(untold, doubtful)


def _last_of_lives(data: SegmentData) -> np.ndarray:
    """The times of the last events of the broker's lives, in this journal; without the last life if it has ended."""
    ts = data.events["ts"]
    last = np.searchsorted(ts, data.runs)
    if data.triple.cut is not None:
        last = np.append(last, ts.size)
    return ts[last[last > 0] - 1]


# --- the order of entries


def _disorder(data: SegmentData, life: Lives, of: np.ndarray, entries: np.ndarray) -> _Untold:
    """The messages with entries in another order than their events.  ``doubtful``: a broker that is at
    work, or was killed, may be about to write the entry of a message's last hand-out.
    """
    which, doubtful = np.zeros(life.seq.size, bool), np.zeros(life.seq.size, bool)
    which[_moved(data, life, of, entries)] = True
    last = np.full(life.seq.size, -1)
    last[of] = np.arange(of.size)                       # For a repeated index the last value stays.
    aside = np.flatnonzero(life.out & (last >= 0))
    aside = aside[np.isin(entries["kind"][last[aside]] & 0x0F, layout.ASIDE_TYPES)]
    if aside.size:
        final = np.flatnonzero(life.last)[np.searchsorted(life.of[life.last], aside)]
        failed = data.events["count"][life.event[final]].astype(np.int64)
        rejected = entries["count"][last[aside]] == np.minimum(failed + 1, COUNT_MAX)
        rules = data.triple.rules
        rejected &= not rules or any(rule.dead_letters for rule in rules)
        closing = np.isin(life.ts[final], _last_of_lives(data))
        which[aside[~rejected & ~closing]] = True
        doubtful[aside[~rejected & closing]] = True
    return _Untold(which, doubtful)


def _moved(data: SegmentData, life: Lives, of: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """The messages of which a return or a hand-out stands behind another one of later events.  All events of one type
    and one count are alike."""
    told = np.flatnonzero(np.isin(entries["kind"] & 0x0F, (layout.RETURNED, layout.HANDED_OUT)))
    events = np.flatnonzero((life.type == layout.RETURNED)
                            | ((life.type == layout.DELIVERED) & (life.why & layout.WITHOUT_ACK == 0)))
    if told.size < 2 or not events.size:
        return of[:0]
    mine = (of[told].astype(np.int64) << 16 | entries["count"][told]) << 1 | (
        entries["kind"][told] & 0x0F == layout.HANDED_OUT)
    keys = _counts(data, life, events) << 1 | (life.type[events] == layout.DELIVERED)
    order = np.argsort(keys, kind="stable")
    low, high = np.searchsorted(keys[order], mine), np.searchsorted(keys[order], mine, "right")
    known = np.flatnonzero(high > low)                  # ``events`` are sorted by message and time.
    first, last = events[order[low[known]]], events[order[high[known] - 1]]
    return of[told[known]][last < group_max_before(of[told[known]], first)]


# --- the cursor


def _passed(data: SegmentData, life: Lives) -> np.ndarray:
    """Which messages the cursor has passed."""
    if not data.positions.size:
        return np.zeros(life.seq.size, bool)
    return (life.record >= 0) & (data.positions[life.record] < data.delivered_below)


def _redriven(data: SegmentData, life: Lives) -> np.ndarray:
    """Which messages were put back into their groups, from where they go out though the cursor has not come to them."""
    flags = np.append(data.headers["flags"], 0)         # A message without a record, -1, has the last one.
    return flags[life.record] & layout.REDRIVEN != 0


def _last_passed(data: SegmentData, life: Lives, passed: np.ndarray) -> np.ndarray:
    """The last message that the cursor has passed, if a broker's life has ended since its publish, or one may be at
    work."""
    which = np.zeros(life.seq.size, bool)
    last = np.flatnonzero(passed)[-1:]
    ended = FOREVER if data.triple.cut is not None else int(data.runs.max(initial=0))
    which[last] = life.published[last] < ended
    return which


# --- settlements


def _in_flight(data: SegmentData, life: Lives, of: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """Which messages a broker may have been about to settle when it was killed: a start lies between their entry and
    the next one, or theirs is the last one and a broker may be at work.  A client settles only what it has."""
    which, settles = np.zeros(life.seq.size, bool), SETTLING[kind & 0x0F]
    if not settles.any():
        return which
    last_event, last_type = np.zeros(life.seq.size, np.int64), np.zeros(life.seq.size, np.uint8)
    last_event[life.of[life.last]] = life.ts[life.last]
    last_type[life.of[life.last]] = life.type[life.last]
    message, by_client = of[settles], np.isin(kind[settles] & 0x0F, (layout.ACKED, layout.REJECTED))
    at = np.zeros(life.seq.size, np.int64)
    ends = SETTLING[life.type]
    at[life.of[ends][::-1]] = life.ts[ends][::-1]
    ts = at[message]
    former, following = np.append(1, ts[:-1]), np.append(ts[1:], FOREVER)
    known = (ts == 0) & (former > 0) & (following > 0)
    since = np.maximum(np.maximum(life.published[message], last_event[message]), former)
    begun = np.searchsorted(data.runs, since, "right")
    out = (last_type[message] == layout.DELIVERED) & (begun == np.searchsorted(data.runs, last_event[message], "right"))
    known &= out | ~by_client
    which[message[known & (np.searchsorted(data.runs, following, "right") > begun)]] = True
    if data.triple.cut is not None and settles[-1]:
        which[of[-1]] = True
    return which
