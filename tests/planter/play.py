"""What happened in a queue, played in the order of its times: each record, event and mark changes what is known of a
message, and says what it contradicts.  ``model`` compares the end with the other files; ``play_groups`` plays queues
with message groups, retries, keys and replays.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tests.planter import properties
from tests.planter.files import (
    ACKED,
    ASIDE,
    BEFORE_START,
    BY_GET,
    DEAD,
    DELIVERED,
    DROPPED,
    EXPIRED,
    HANDED_OUT,
    MARK,
    NO_ACKS,
    PURGED,
    REDELIVERED,
    REJECTED,
    RETURNED,
    SETTLING,
    STARTED,
)

CAUSES = dict(enumerate(("returned_nack", "returned_reject", "returned_recover", "returned_channel_closed",
                         "returned_connection_closed", "returned_consumer_timeout"), 1))
ENDS = {(DEAD, 1): "dead_lettered_rejected", (DEAD, 2): "dead_lettered_expired", (DEAD, 3): "dead_lettered_maxlen",
        (DEAD, 4): "dead_lettered_delivery_limit", (REJECTED, 0): "rejected", (EXPIRED, 0): "expired",
        (DROPPED, 3): "dropped_maxlen", (DROPPED, 4): "dropped_delivery_limit", (DEAD, 5): "removed",
        (DROPPED, 5): "removed", (PURGED, 0): "purged"}
READY, OUT, GONE = "ready", "out", "gone"
BY_REJECT, BY_AGE, BY_LENGTH, BY_LIMIT, BY_OPERATOR = 1, 2, 3, 4, 5     # why a message died
MS = 1_000_000
SLACK = 1_000_000_000           # ns: the side file tells of a consumer a moment after it has come


class Broken(NamedTuple):
    rule: str
    seq: int
    why: str


@dataclass
class Life:
    """One message, as far as it has come."""

    record: object
    part: object
    state: str = READY
    holder: int = 0
    seen: bool = False              # it was delivered once
    failed: int = 0
    by_get: bool = False
    settled: tuple = ()             # type and reason
    entries: list = field(default_factory=list)     # what its acks entries should be: (type, reason, count)


class Play:
    """All that happened in a queue, in order."""

    def __init__(self, queue):
        self.queue = queue
        self.broken = []
        self.lives = {}
        self.held = defaultdict(set)        # consumer -> sequence numbers that it holds
        self.ready = defaultdict(set)       # level -> sequence numbers that are ready
        self.counts = Counter()
        self.settings = SettingsOverTime(queue)
        self.consumers = consumers_of(queue)
        self.events_of = defaultdict(list)
        for part in queue.parts:
            for event in part.events():
                self.events_of[event.seq].append(event)
        self.order_of_first = defaultdict(list)     # level -> first deliveries since the broker's last start

    def say(self, rule, seq, why):
        self.broken.append(Broken(rule, seq, why))

    def run(self):
        items = []
        for place, part in enumerate(self.queue.parts):
            items += [(record.ts, 0, place, number, part, record) for number, record in enumerate(part.records())]
            items += [(event.ts, 1, place, number, part, event) for number, event in enumerate(part.events())]
        items.sort(key=lambda item: item[:4])
        for before, item in pairwise(items):
            if before[0] == item[0] and not (before[5].__class__ is item[5].__class__
                                             and getattr(item[5], "type", 0) == MARK):
                self.say("one time, one thing", getattr(item[5], "seq", 0), f"twice {item[0]}")
        for ts, is_event, _, _, part, item in items:
            if not is_event:
                self.publish(part, item)
            elif item.type == MARK:
                self.mark(part, item)
            else:
                self.event(part, item, ts)
        return self

    # --- what happens

    def publish(self, part, record):
        if record.seq in self.lives:
            other = self.lives[record.seq].part
            self.say("one number, one message", record.seq, f"in {part.number} and {other.number}")
            return
        self.lives[record.seq] = Life(record, part)
        self.ready[part.level].add(record.seq)

    def mark(self, part, event):
        if event.reason != STARTED:
            self.say("marks", 0, f"a mark of reason {event.reason}")
            return
        self.order_of_first.clear()
        for seq, life in self.lives.items():
            if life.part is part and life.state == OUT:
                self.held[life.holder].discard(seq)
                life.state = READY
                life.failed += 1
                self.ready[part.level].add(seq)

    def event(self, part, event, ts):
        life = self.lives.get(event.seq)
        if life is None:
            self.say("events have messages", event.seq, f"type {event.type} before or without its message")
            return
        if life.part is not part:
            self.say("events have messages", event.seq, "the event is in another journal")
            return
        if event.type not in (*SETTLING, RETURNED, DELIVERED):
            self.say("types", event.seq, f"type {event.type}")
        elif life.state == GONE:
            self.say("settled once", event.seq, f"type {event.type} after it was settled")
        elif event.type == DELIVERED:
            self.deliver(life, event, ts)
        elif event.type == RETURNED:
            self.give_back(life, event)
        else:
            self.settle(life, event, ts)

    def deliver(self, life, event, ts):
        seq, level = event.seq, life.part.level
        if event.reason & ~15:
            self.say("types", seq, f"reason {event.reason} of a delivery")
        if life.state == OUT:
            self.say("out once", seq, f"with {life.holder} and {event.consumer}")
            self.held[life.holder].discard(seq)
        self.judge_turn(life, event, ts)
        if bool(event.reason & REDELIVERED) != life.seen:
            self.say("redelivered", seq, f"reason {event.reason}, seen {life.seen}")
        if event.count != life.failed:
            self.say("failures", seq, f"delivered with {event.count}, failed {life.failed}")
        if self.is_beyond_limit(life, ts):
            self.say("delivery limit", seq, f"delivered after {life.failed} failures")
        dies = self.dies_at(life, ts)
        if dies is not None and ts > dies:
            self.say("never delivered when expired", seq, f"{(ts - dies) / 1e6:.3f} ms late")
        self.take(life, event, ts)
        self.ready[level].discard(seq)
        if life.seen:
            self.counts["redelivered"] += 1
            if event.reason & BEFORE_START:
                self.counts["redelivered_after_restart"] += 1
            else:
                later = self.overtaken_by(life)
                self.counts["overtakings"] += later
                self.counts["out_of_sequence"] += later > 0
            if not event.reason & NO_ACKS:
                life.entries.append((HANDED_OUT, 0, event.count))
        if seq not in self.order_of_first[level] and self.may_overtake(life):
            self.order_of_first[level].append(seq)
        life.state, life.holder, life.seen = OUT, event.consumer, True
        life.by_get = bool(event.reason & BY_GET)
        self.held[event.consumer].add(seq)

    def judge_turn(self, life, event, ts):
        """Whether it was this message's turn."""
        seq, level = event.seq, life.part.level
        for higher, waiting in self.ready.items():
            earlier = [each for each in waiting if (higher > level or (higher == level and each < seq))
                       and self.is_in_turn(self.lives[each], ts)]
            if earlier:
                self.say("lowest number first" if higher == level else "higher priorities first", seq,
                         f"{min(earlier)} of level {higher} was ready")

    def is_in_turn(self, life, ts):
        """Whether a ready message may go out."""
        return not self.is_dying(life, ts)

    def waiting(self):
        """How many of the ready messages may not be counted as ready."""
        return 0

    def may_overtake(self, life):
        """Whether it counts as a message that overtook others."""
        return True

    def overtaken_by(self, life):
        """How many messages overtook it, when it goes out again in the same life of the broker."""
        order, seq = self.order_of_first[life.part.level], life.record.seq
        if seq not in order:
            return 0                    # It should be marked as one from before the start: another number tells.
        return sum(1 for each in order[order.index(seq) + 1:] if each > seq)

    def take(self, life, event, ts):
        """Who takes the message, and may it."""
        seq, holder = event.seq, event.consumer
        if holder == 0:
            self.say("consumers", seq, "delivered to nobody")
        if event.reason & BY_GET:
            return
        known = self.consumers.get(holder)
        if known is None:
            self.say("consumers", seq, f"consumer {holder} is not known")
            return
        if not known.begun - SLACK <= ts <= known.ended:
            self.say("consumers", seq, f"consumer {holder} was not there")
        prefetch = known.line.get("prefetch")
        held = [each for each in self.held[holder] if not self.is_rejected(self.lives[each], ts)]
        if prefetch and not event.reason & NO_ACKS and len(held) >= prefetch:
            self.say("prefetch", seq, f"{holder} holds {len(held)} already")
        if self.queue.setting("single_active_consumer"):
            others = [each for each, seqs in self.held.items() if each != holder
                      and not all(self.is_rejected(self.lives[one], ts) for one in seqs)]
            if others:
                self.say("one active consumer", seq, f"{others[0]} holds messages")

    def is_dying(self, life, ts):
        """It is at its place no more, and its end will be written a moment later."""
        dies = self.dies_at(life, ts)
        return self.is_beyond_limit(life, ts) or (dies is not None and dies <= ts)

    def is_beyond_limit(self, life, ts):
        limit = self.settings.at(ts).get("delivery_limit")
        return limit is not None and life.failed > limit

    def is_rejected(self, life, ts):
        """It may have been rejected already: that it became a dead letter is written a moment later."""
        later = [event for event in self.events_of[life.record.seq] if event.ts > ts]
        return bool(later) and later[0].type in (DEAD, DROPPED) and later[0].reason == BY_REJECT

    def give_back(self, life, event):
        seq = event.seq
        if life.state != OUT:
            self.say("returned when out", seq, f"it was {life.state}")
        elif event.consumer not in (0, life.holder):
            self.say("holder", seq, f"returned by {event.consumer}, held by {life.holder}")
        if not 1 <= event.reason <= 6:
            self.say("types", seq, f"reason {event.reason} of a return")
        life.failed += 1
        if event.count != life.failed:
            self.say("failures", seq, f"returned with {event.count}, failed {life.failed}")
        self.held[life.holder].discard(seq)
        life.state = READY
        self.ready[life.part.level].add(seq)
        self.counts[CAUSES.get(event.reason, "")] += 1
        life.entries.append((RETURNED, event.reason, event.count))

    def settle(self, life, event, ts):
        seq, kind, reason = event.seq, event.type, event.reason
        if kind in (ACKED, REJECTED) or (kind in (DEAD, DROPPED) and reason == BY_REJECT):
            if life.state != OUT:
                self.say("settled when out", seq, f"type {kind} while {life.state}")
            elif event.consumer not in (life.holder, *([0] if kind in (DEAD, DROPPED, REJECTED) else [])):
                self.say("holder", seq, f"type {kind} by {event.consumer}, held by {life.holder}")
        elif reason == BY_LIMIT and kind in (DEAD, DROPPED):
            limit = self.settings.at(ts).get("delivery_limit")
            if limit is None or event.count <= limit:
                self.say("dead at the limit", seq, f"failed {event.count}, limit {limit}")
        else:
            if life.state != READY:
                self.say("settled when ready", seq, f"type {kind} reason {reason} while {life.state}")
            if kind == EXPIRED or reason == BY_AGE:
                dies = self.dies_at(life, ts)
                if dies is None or ts < dies:
                    self.say("expired in time", seq, "it lives longer")
        if event.count != life.failed:
            self.say("failures", seq, f"settled with {event.count}, failed {life.failed}")
        if kind in (ACKED, REJECTED, EXPIRED, PURGED) and reason:
            self.say("types", seq, f"reason {reason} of type {kind}")
        if kind in (DEAD, DROPPED) and not 1 <= reason <= 5:
            self.say("types", seq, f"reason {reason} of type {kind}")
        self.held[life.holder].discard(seq)
        self.ready[life.part.level].discard(seq)
        life.state, life.settled = GONE, (kind, reason)
        self.counts[ENDS.get((kind, reason), "")] += 1

    def compared(self, entries, told):
        """What the entries of a message say besides its end, and what by the journal they should (``told``)."""
        return [(entry.type, entry.reason, entry.count) for entry in entries
                if not entry.settles and entry.type not in (ASIDE, 11)], told

    def dies_at(self, life, ts):
        """When a message expires, in ns; None: never."""
        times = [self.settings.at(ts).get("message_ttl_ms"), properties.expiration_ms(life.record.meta)]
        times = [each for each in times if each is not None]
        return life.record.ts + min(times) * MS if times else None


# --- settings and consumers


class SettingsOverTime:
    """The settings in force at a time."""

    def __init__(self, queue):
        self.lines = [line for line in queue.lines or () if line["what"] == "settings"]

    def at(self, ts):
        found = {}
        for line in self.lines:
            if line["at"] <= ts:
                found = line
        return found


class Known(NamedTuple):
    line: dict
    begun: int
    ended: int


def consumers_of(queue):
    """number -> when it was there."""
    found = {}
    for line in queue.lines or ():
        if line["what"] == "consumer":
            found[line["number"]] = Known(line, line["at"], 1 << 62)
        elif line["what"] == "consumer_gone" and line["number"] in found:
            found[line["number"]] = found[line["number"]]._replace(ended=line["at"])
    return found
