"""The order journal of a segment: its sound events, the times at which a broker began to write it, and its gaps.

Damage becomes ``Damage``, and a ``Gap`` of the time from which events may be missing; nothing here raises for it.
"""

from typing import NamedTuple

import numpy as np

from brokerd.audit import headers, marks
from brokerd.audit import layout as shapes
from brokerd.audit.fetch import read, several
from brokerd.audit.files import FOREVER, Damage, Source, Triple
from brokerd.store import format as layout

POWER_LOST_WORDS = "power was lost"
SWITCHED_OFF_WORDS = "the journal was switched off"
RUNS = (layout.RESTARTED, layout.POWER_LOST, layout.SWITCHED_ON)    # STARTED events with which a new run begins
# The reasons that an event of each type may have: [type, reason].
KNOWN_REASONS = np.zeros((256, 256), bool)
EVENT_TYPES = np.zeros(256, bool)
EVENT_TYPES[layout.ACKED:layout.STARTED + 1] = True
EVENT_TYPES[[*layout.ASIDE_EVENTS, layout.EVENT_REPLAYED]] = True
KNOWN_REASONS[:, 0] = True
for _type, _first, _stop in ((layout.RETURNED, layout.CAUSE_NACK, layout.CAUSE_TIMEOUT + 1),
                             (layout.DEAD_LETTERED, layout.REASON_REJECTED, layout.REASON_REMOVED + 1),
                             (layout.DROPPED, layout.REASON_REJECTED, layout.REASON_REMOVED + 1),
                             (layout.DELIVERED, 0, 2 * layout.WITHOUT_ACK),
                             (layout.PARKED_EVENT, layout.REASON_LIMIT, layout.REASON_LIMIT + 1),
                             (layout.GROUP_PARKED_EVENT, layout.REASON_LIMIT, layout.REASON_REMOVED + 1),
                             (layout.TOKEN_EVENT, 0, 256), (layout.DUPLICATE_EVENT, 1, 5),
                             (layout.STARTED, layout.RESTARTED, layout.SWITCHED_OFF + 1)):
    KNOWN_REASONS[_type] = False
    KNOWN_REASONS[_type, _first:_stop] = True


class Gap(NamedTuple):
    """A stretch of time (ns, without its two ends) from which events may be missing."""

    start: int
    stop: int
    why: str


class Journal(NamedTuple):
    """When a journal begins, its sound events without STARTED, their offsets, when runs began, its gaps; the events
    after the triple's cut; and the sound events STARTED, with their offsets."""

    begun: int | None
    events: np.ndarray
    places: np.ndarray
    runs: np.ndarray
    gaps: list[Gap]
    late: np.ndarray                # the events after the triple's cut, which are not among ``events``
    marks: np.ndarray
    mark_places: np.ndarray
    again: np.ndarray               # the events of messages since they were replayed, which are not among ``events``
    again_places: np.ndarray
    aside: np.ndarray               # the events of types ``layout.ASIDE_EVENTS``, which are not among ``events``
    aside_places: np.ndarray


NO_EVENTS = np.empty(0, shapes.EVENT)
NO_PLACES = np.empty(0, np.int64)
NO_JOURNAL = Journal(None, NO_EVENTS, NO_PLACES, NO_PLACES, [], NO_EVENTS, NO_EVENTS, NO_PLACES, NO_EVENTS,
                     NO_PLACES, NO_EVENTS, NO_PLACES)


def read_journal(source: Source, triple: Triple, damage: list[Damage], *, crc: bool = True) -> Journal:
    """The events of a triple, and the gaps of time from which events may be missing."""
    matters = ("events",)
    if triple.journal is None:
        return NO_JOURNAL
    path = triple.journal
    head = read(source, path, damage, matters, 0, layout.HEADER_OCTETS)
    if head is None:
        return NO_JOURNAL
    if len(head) < layout.HEADER_OCTETS:
        damage.append(Damage(path, len(head), 0, 0, f"has {len(head)} octets: not even a header", matters))
        return NO_JOURNAL
    if not any(head):
        return NO_JOURNAL       # The broker has just made it.
    header = np.frombuffer(head, shapes.JOURNAL)[0]
    if int(header["magic"]) == layout.JOURNAL_MAGIC and int(header["version"]) > layout.JOURNAL_VERSION:
        damage.append(Damage(path, 0, 0, 0, f"is of version {int(header['version'])}, of a later broker", matters))
        return NO_JOURNAL
    if (int(header["magic"]) != layout.JOURNAL_MAGIC or int(header["number"]) != triple.number
            or int(header["version"]) == 0 or layout.crc32c(head[:24]) != int(header["crc"])):
        damage.append(Damage(path, 0, 0, 0, "has a damaged header, or is of another segment", matters))
        return NO_JOURNAL
    said, known = int(header["events"]), layout.word_ok(int(header["events"]), int(header["events_complement"]))
    octets = read(source, path, damage, matters, layout.HEADER_OCTETS, said * layout.EVENT_OCTETS if known else -1)
    events = np.frombuffer(octets or b"", shapes.EVENT, len(octets or b"") // layout.EVENT_OCTETS)
    gaps: list[Gap] = []
    begun = int(header["begun"])
    if known and events.size < said:
        damage.append(Damage(path, layout.HEADER_OCTETS + events.size * layout.EVENT_OCTETS, 0, 0,
                             f"half copied: {events.size} of {said} events", matters))
        gaps.append(Gap(int(events["ts"][-1]) if events.size else begun, FOREVER, "the journal is half copied"))
    elif not known:
        damage.append(Damage(path, 32, 0, 0, "does not say how many events it holds", matters))
    lost = int(header["lost"])
    if lost or not layout.word_ok(lost, int(header["lost_complement"])):
        gaps.append(Gap(begun, FOREVER, "a full disk would not take events"))
    found = _sound_events(triple, events, begun, gaps, damage, crc or not known, known)
    both = np.concatenate((found.events["ts"], found.marks["ts"]))
    damage += [Damage(path, odd.offset, 0, 0, odd.detail, matters)
               for odd in headers.of_journal(triple, head, header, both)]
    return found


def _sound_events(triple: Triple, events: np.ndarray, begun: int, gaps: list[Gap], damage: list[Damage], crc: bool,
                  known: bool) -> Journal:
    late = NO_EVENTS
    if triple.cut is not None:
        before = np.flatnonzero(events["ts"] <= triple.cut)
        count = int(before[-1]) + 1 if before.size else 0
        events, late = events[:count], events[count:]
    right = EVENT_TYPES[events["type"]]
    if crc:
        right &= shapes.event_checks(events, triple.number)
    if not known:
        last = np.flatnonzero(right)
        events, right = events[:int(last[-1]) + 1 if last.size else 0], right[:int(last[-1]) + 1 if last.size else 0]
    places = layout.HEADER_OCTETS + layout.EVENT_OCTETS * np.arange(events.size, dtype=np.int64)
    sound, at = (events, places) if right.all() else (events[right], places[right])
    _tell_odd_reasons(triple, sound, at, damage)
    damage += [Damage(triple.journal or "", int(at[k]), 0, int(sound["ts"][k]), words, ("events",))
               for k, words in marks.contradictions(sound, begun)]
    started = sound["type"] == layout.STARTED
    starts = sound[started]
    gaps += _gaps(starts)
    if triple.kept and starts.size and starts[-1]["reason"] == layout.POWER_LOST and started[-1]:
        # A start sealed it, by the time of what was left.  What happened later to any of its messages is lost.
        gaps.append(Gap(int(starts[-1]["seq"]), FOREVER, "power was lost before it was sealed"))
    if not right.all():
        _tell_bad_events(triple, np.flatnonzero(~right), events, right, gaps, damage)
    back = np.flatnonzero(sound["ts"][1:] <= sound["ts"][:-1])
    if back.size:
        damage.append(Damage(triple.journal or "", int(at[back[0] + 1]), int(sound["seq"][back[0] + 1]) & FOREVER,
                             int(sound["ts"][back[0] + 1]),
                             f"{back.size} events that are not later than the one before", ("events",)))
    mark_places = at[started]
    is_aside = np.isin(sound["type"], layout.ASIDE_EVENTS)              # Most audits judge by returns and settings.
    aside, aside_places = sound[is_aside], at[is_aside]
    others = ~started & ~is_aside
    if not others.all():
        sound, at = sound[others], at[others]
    runs = np.unique(starts["ts"][np.isin(starts["reason"], RUNS)])
    again = since_replay(sound["seq"], sound["type"] == layout.EVENT_REPLAYED)
    return Journal(begun, sound[~again], at[~again], runs, gaps, late, starts, mark_places, sound[again],
                   at[again], aside, aside_places)


def since_replay(of: np.ndarray, replayed: np.ndarray) -> np.ndarray:
    """Which rows, in the order of time, are of a message's later lives: ``replayed`` marks where those begin.

    ``of``: the message of each row."""
    if not replayed.any():
        return np.zeros(of.size, bool)
    rows = np.flatnonzero(replayed)
    messages, first = np.unique(of[rows], return_index=True)
    place = np.minimum(np.searchsorted(messages, of), messages.size - 1)
    return (messages[place] == of) & (np.arange(of.size) >= rows[first][place])


def _tell_odd_reasons(triple: Triple, sound: np.ndarray, at: np.ndarray, damage: list[Damage]) -> None:
    """An event with a reason that its type does not have is damage, though its CRC is right."""
    odd = np.flatnonzero(~KNOWN_REASONS[sound["type"], sound["reason"]])
    several(damage, triple.journal or "", odd, lambda k: Damage(
        triple.journal or "", int(at[k]), int(sound["seq"][k]) & FOREVER, int(sound["ts"][k]),
        f"an event of type {int(sound['type'][k])} with reason {int(sound['reason'][k])}, which that type does not "
        "have", ("events",)))


def _gaps(starts: np.ndarray) -> list[Gap]:
    gaps = []
    whys = {layout.POWER_LOST: POWER_LOST_WORDS, layout.SWITCHED_ON: SWITCHED_OFF_WORDS}
    for start in starts:
        why = whys.get(int(start["reason"]))
        if why is not None:
            gaps.append(Gap(int(start["seq"]), int(start["ts"]), why))
    if starts.size and int(starts[-1]["reason"]) == layout.SWITCHED_OFF:
        gaps.append(Gap(int(starts[-1]["ts"]), FOREVER, SWITCHED_OFF_WORDS))
    return gaps


def _tell_bad_events(triple: Triple, bad: np.ndarray, events: np.ndarray, right: np.ndarray, gaps: list[Gap],
                     damage: list[Damage]) -> None:
    """Events with a wrong CRC are damage, unless a loss of power explains them."""
    good = np.flatnonzero(right)
    after = np.searchsorted(good, bad)
    lost = np.flatnonzero(right & (events["type"] == layout.STARTED) & (events["reason"] == layout.POWER_LOST))
    unexplained = []
    for index, following in zip(bad.tolist(), after.tolist(), strict=True):
        later = int(events["ts"][good[following]]) if following < good.size else FOREVER
        starts = lost[lost > index]
        if starts.size and int(events["seq"][starts[0]]) < later:
            continue
        earlier = int(events["ts"][good[following - 1]]) if following else 0
        gap = Gap(earlier, later, "events are damaged")
        if not gaps or gaps[-1] != gap:
            gaps.append(gap)
        unexplained.append(index)
    several(damage, triple.journal or "", np.array(unexplained, np.int64), lambda k: Damage(
        triple.journal or "", layout.HEADER_OCTETS + layout.EVENT_OCTETS * k, 0, 0, "an event with a wrong CRC",
        ("events",)))
