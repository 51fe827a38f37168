"""How a fault gets to its place: messages as kinds see them, the places of a kind, and the table of kinds.

    @message(...) plant(view, one)      a fault of one message
    @segment(...) plant(view, part)     a fault of one segment
    @queue(...)   plant(view, place)    a fault of a queue, or of what stands beside it

A kind is planted at each of these places where it can be: the first and the last message that it suits, both sides of
the boundaries of segments, the middle of kept and of live segments, and each level of priority.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.planter.files import ACKED, DELIVERED, NO_ACKS, Entry, Event

# What the documents name at the time of writing.  An audit with another name was added later, and may find anything.
ATTEMPTS = 12
BROKEN_PROMISES = frozenset({
    "publish_order", "fifo", "returned_first", "priority", "delivery_limit", "limit_kept", "ack_without_delivery",
    "double_settle", "delivery_after_settle", "holes", "damage"})
EFFECTS_OF_USE = frozenset({"overtaking", "unacked", "duplicates", "group_fifo"})


class NotHere(Exception):
    """The kind cannot be planted at this place."""


@dataclass(eq=False)
class Message:
    """One message with all that is written of it."""

    record: object
    part: object
    index: int                      # of its record in the segment
    events: list[Event] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    @property
    def seq(self):
        return self.record.seq

    @property
    def level(self):
        return self.part.level

    @property
    def shape(self):
        return tuple(event.type for event in self.events)

    @property
    def settled(self):
        return bool(self.events) and self.events[-1].settles

    def drop_events(self, events):
        for event in list(events):
            self.part.journal.events.remove(event)
            self.events.remove(event)

    def drop_entries(self, entries):
        for entry in list(entries):
            self.part.acks.entries.remove(entry)
            self.entries.remove(entry)

    def settle_entry(self):
        for entry in self.entries:
            if entry.settles:
                return entry
        raise NotHere("no entry settles it")


def is_plain(one):
    """Delivered once, acked once, with acks."""
    return one.shape == (DELIVERED, ACKED) and not one.events[0].reason & (NO_ACKS | 4)


class View:
    """A queue as kinds see it: read from the disk for one plant, and changed."""

    def __init__(self, queue, tree=None):
        self.queue, self.tree = queue, tree
        self.messages = {}
        for part in queue.parts:
            for index, record in enumerate(part.records()):
                self.messages[record.seq] = Message(record, part, index)
        for part in queue.parts:
            for event in part.events():
                if event.seq in self.messages and event.type != 9:
                    self.messages[event.seq].events.append(event)
            for entry in part.entries():
                if entry.record is not None:
                    self.messages[entry.record.seq].entries.append(entry)
        self.order = sorted(self.messages.values(), key=lambda one: one.seq)

    def events(self):
        """All events of messages by time."""
        return sorted((event for one in self.order for event in one.events), key=lambda event: event.ts)

    def consumers(self):
        """number -> (since, until)."""
        found = {}
        for line in self.queue.lines or ():
            if line["what"] == "consumer":
                found[line["number"]] = line["at"], 1 << 62
            elif line["what"] == "consumer_gone" and line["number"] in found:
                found[line["number"]] = found[line["number"]][0], line["at"]
        return found

    def another_consumer(self, ts, but):
        """A consumer that was there at a time, and is none of ``but``."""
        for number, (begun, ended) in sorted(self.consumers().items()):
            if number not in but and begun < ts < ended:
                return number
        raise NotHere("there is no other consumer")

    def time_after(self, ts, before=1 << 62):
        found = self.queue.free_time(ts, before)
        if found is None:
            raise NotHere("there is no time between")
        return found

    def time_before(self, ts, after=0):
        """A free time before ``ts``, as late as may be."""
        found = self.queue.free_time_before(ts, after)
        if found is None:
            raise NotHere("there is no time before")
        return found

    def add(self, one, kind, ts, **values):
        """Add an event to a message's journal."""
        last = one.events[-1] if one.events else None
        event = Event(one.seq, ts, **({"consumer": last.consumer if last else 0, "aux": 0, "count": 0, "type": kind,
                                       "reason": 0} | values))
        one.part.insert(event)
        one.events.append(event)
        one.events.sort(key=lambda each: each.ts)
        return event

    def add_entry(self, one, kind, *, reason=0, count=0, at=None):
        entry = Entry(one.record, kind, reason, count)
        entries = one.part.acks.entries
        entries.insert(len(entries) if at is None else at, entry)
        one.entries.append(entry)
        return entry

    def neighbour(self, one, *, step=1, suits=lambda other: True):
        """The next message of the same level that suits."""
        same = [each for each in self.order if each.level == one.level]
        for other in same[same.index(one) + step:][::1]:
            if suits(other):
                return other
        raise NotHere("there is no neighbour")


class Kind(NamedTuple):
    name: str
    scope: str                      # message, segment, queue
    queues: tuple[str, ...]
    right: frozenset[str]           # documented audits that may find it; those that are added later always may
    undecidable: bool               # whether "undecidable" of one of these is right
    suits: Callable
    plant: Callable
    counted: bool                   # the words are made to say what the files hold
    together: bool                  # all queues of the dump belong to it
    audit: str                      # one that must find it; "": any
    sees: bool                      # the model of this package sees it: it reads neither bodies' CRCs nor ``begun``


KINDS: dict[str, Kind] = {}
JOURNALED = ("plain", "levels", "limited", "single")


def _register(scope, right, queues, suits, undecidable, counted, together, sees, audit=""):
    def register(plant):
        assert plant.__name__ not in KINDS, plant.__name__
        KINDS[plant.__name__] = Kind(plant.__name__, scope, tuple(queues), frozenset(right.split()), undecidable, suits,
                                     plant, counted, together, audit, sees)
        return plant
    return register


def message(right="", *, queues=("plain", "levels"), suits=is_plain, undecidable=False, counted=True, together=False,
            sees=True, audit=""):
    return _register("message", right, queues, suits, undecidable, counted, together, sees, audit)


def segment(right="", *, queues=("plain", "levels"), suits=lambda part: True, undecidable=False, counted=True,
            sees=True):
    return _register("segment", right, queues, suits, undecidable, counted, False, sees)


def queue(right="", *, queues=("plain",), places=lambda view: ("it",), undecidable=False, counted=True, together=False,
          sees=True):
    return _register("queue", right, queues, places, undecidable, counted, together, sees)


# --- places


def places(kind, view):
    """place -> what plant() gets, for each place of a queue at which a kind can perhaps be planted.

    The value is a list: the first with which the planting succeeds is taken.
    """
    if kind.scope == "queue":
        return {str(place): [place] for place in kind.suits(view)}
    if kind.scope == "segment":
        return _segment_places([part for part in view.queue.parts if kind.suits(part)])
    return _message_places(view, [one for one in view.order if kind.suits(one)])


def _segment_places(parts):
    found = {}
    kept = [part for part in parts if part.kept]
    live = [part for part in parts if not part.kept]
    for place, some in (("first", parts), ("kept, last", kept[::-1]), ("live, first", live), ("last", parts[::-1])):
        if some:
            found[place] = some[:1]
    for level in sorted({part.level for part in parts} - {0}):
        found[f"level {level}"] = [part for part in parts if part.level == level][:1]
    return found


def _message_places(view, ones):
    if not ones:
        return {}
    found = {"first": ones, "last": ones[::-1]}
    ends, begins = defaultdict(list), defaultdict(list)
    for part in view.queue.parts:
        records = part.records()
        if records:
            ends[part.level].append(records[-1].seq)
            begins[part.level].append(records[0].seq)
    for level in sorted(ends):
        some = [one for one in ones if one.level == level]
        name = f" of level {level}" if len(ends) > 1 else ""
        if len(ends[level]) > 1 and some:
            found["end of a segment" + name] = _nearest(some, ends[level][:-1])
            found["begin of a segment" + name] = _nearest(some, begins[level][1:])
        if level:
            found[f"middle of level {level}"] = some[len(some) // 2:]
    for place, kept in (("middle of kept", True), ("middle of live", False)):
        some = [one for one in ones if one.part.kept == kept]
        found[place] = some[len(some) // 2:] + some[:len(some) // 2]
    return {place: some for place, some in found.items() if some}


def _nearest(ones, seqs):
    return sorted(ones, key=lambda one: min(abs(one.seq - seq) for seq in seqs))


class Planted(NamedTuple):
    kind: Kind
    queue: str
    place: str
    seq: int                        # of the message; of a segment's first one; 0


def plant(kind, tree, name, place, attempt=0):
    """Plant a fault at a place of a tree that was read for it.  Returns Planted.

    Raises NotHere when this attempt failed: the tree is spoilt then.  Raises IndexError when there are no more.
    """
    view = View(tree.queues[name], tree)
    targets = places(kind, view).get(place, [])
    target = targets[:ATTEMPTS][attempt]
    seq = getattr(target, "seq", 0)
    if kind.scope == "segment":
        seq = target.records()[0].seq if target.records() else 0
    if kind.counted:
        view.queue.count()
    kind.plant(view, target)
    if kind.counted:
        view.queue.count()
    return Planted(kind, name, place, seq)


def plant_somewhere(kind, read, name, place):
    """Plant a fault with the first of some targets that takes it.  ``read()`` reads the tree anew.

    Returns (tree, Planted); (None, None): it cannot be planted here.
    """
    for attempt in range(ATTEMPTS):
        tree = read()
        try:
            return tree, plant(kind, tree, name, place, attempt)
        except NotHere:
            continue
        except IndexError:
            break
    return None, None
