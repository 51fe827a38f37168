"""The promises of docs/ordering.md and the rules of docs/formats.md, judged once more over the objects of ``folder``.

    judge(queue) -> [Broken(rule, seq, why)]        nothing: the queue contradicts no promise
    judge_tree(tree) -> {name of a queue: [...]}    and what concerns several queues

It plays all records and events of a queue in the order of their times, with the state of each message, and compares the
end with the acks, the counters and the manifest.  It is slow, simple, and made for small files without power cuts.  A
fault that it does not see is no fault for the planter.
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
    ON_AGAIN,
    PURGED,
    REDELIVERED,
    REJECTED,
    RETURNED,
    SETTLING,
    STARTED,
    SWITCHED_OFF,
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


def needed_version(events):
    """The first version of a journal that may hold these events."""
    return max([1, *(3 if event.type in (18, 21, 22, 25) else 2 for event in events if event.type >= 16)])


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
        self.order_of_first = defaultdict(list)

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
        for higher, waiting in self.ready.items():
            earlier = [each for each in waiting if (higher > level or (higher == level and each < seq))
                       and not self.is_dying(self.lives[each], ts)]
            if earlier:
                self.say("lowest number first" if higher == level else "higher priorities first", seq,
                         f"{min(earlier)} of level {higher} was ready")
        if bool(event.reason & REDELIVERED) != life.seen:
            self.say("redelivered", seq, f"reason {event.reason}, seen {life.seen}")
        if event.count != life.failed:
            self.say("failures", seq, f"delivered with {event.count}, failed {life.failed}")
        limit = self.settings.at(ts).get("delivery_limit")
        if limit is not None and life.failed > limit:
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
                later = sum(1 for each in self.order_of_first[level] if each > seq)
                self.counts["overtakings"] += later
                self.counts["out_of_sequence"] += later > 0
            if not event.reason & NO_ACKS:
                life.entries.append((HANDED_OUT, 0, event.count))
        else:
            self.order_of_first[level].append(seq)
        life.state, life.holder, life.seen = OUT, event.consumer, True
        life.by_get = bool(event.reason & BY_GET)
        self.held[event.consumer].add(seq)

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
        if kind in (ACKED, REJECTED, EXPIRED, PURGED) and reason:
            self.say("types", seq, f"reason {reason} of type {kind}")
        if kind in (DEAD, DROPPED) and not 1 <= reason <= 5:
            self.say("types", seq, f"reason {reason} of type {kind}")
        self.held[life.holder].discard(seq)
        self.ready[life.part.level].discard(seq)
        life.state, life.settled = GONE, (kind, reason)
        self.counts[ENDS.get((kind, reason), "")] += 1

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


# --- the whole


def judge(queue):
    """What the files of a queue contradict."""
    play = Play(queue)
    _judge_places(queue, play)
    if queue.journaled:
        play.run()
        _judge_end(queue, play)
    _judge_acks_alone(queue, play)
    _judge_manifest(queue, play)
    return play.broken


def _judge_places(queue, play):
    """What concerns records, words and headers alone."""
    last = {}                       # (connection, channel) -> publish_seq
    records = sorted(((record.seq, record.ts, part, record) for part in queue.parts for record in part.records()),
                     key=lambda each: each[:2])
    ts = 0
    for seq, its, part, record in records:
        if its <= ts:
            play.say("time rises", seq, f"{its} behind {ts}")
        ts = its
        if record.priority != part.level:
            play.say("priority", seq, f"{record.priority} in {part.level}")
        stream = record.connection, record.channel
        if record.publish_seq and record.publish_seq <= last.get(stream, 0):
            play.say("publish order", seq, f"{record.publish_seq} behind {last[stream]}")
        last[stream] = max(record.publish_seq, last.get(stream, 0))
        if record.wrong:
            play.say("damage", seq, "the CRC of a record")
        if record.kind or record.flags & ~31:
            play.say("kinds and flags", seq, f"kind {record.kind}, flags {record.flags:#x}")
    _judge_holes(queue, play, [seq for seq, *_ in records])
    for part in queue.parts:
        _judge_part(part, play)


def _judge_holes(queue, play, seqs):
    """Every number is there, from the first one kept on."""
    entry = queue.entry or {}
    first = entry.get("first_kept_seq") or (1 if queue.journaled and not _removed(queue) else min(seqs, default=1))
    end = entry.get("next_seq") or max(seqs, default=0) + 1
    there = set(seqs)
    for seq in range(first, end):
        if seq not in there:
            play.say("every number", seq, "it is not there")
    for seq in there:
        if seq >= end:
            play.say("numbers below the next", seq, f"next_seq {end}")


def _removed(queue):
    return any(line["what"] == "removed" for line in queue.lines or ())


def _judge_part(part, play):
    msgs, acks, journal = part.msgs, part.acks, part.journal
    first = part.records()[0].seq if part.records() else 0
    if msgs is None or acks is None:
        play.say("files", first, f"segment {part.number} has not all of its files")
        return
    # Version 1 lacks types 8 and 10, and ``doubted``; version 2 lacks types 11 to 13.  Without these all versions are
    # read by the same rules.
    types = {entry.type for entry in acks.entries}
    oldest = 3 if types & {11, 12, 13} else 2 if acks.doubted is not None or types & {HANDED_OUT, ASIDE} else 1
    if (msgs.magic, msgs.version, acks.magic) != (b"BSEG", 1, b"BACK") or not oldest <= acks.version <= 3:
        play.say("versions", first, f"segment {part.number}")
    if not part.number == msgs.number == acks.number:
        play.say("numbers of files", first, f"segment {part.number}")
    if msgs.generation != acks.generation:
        play.say("generations", first, f"{msgs.generation} and {acks.generation}")
    if journal is None and play.queue.journaled:
        play.say("files", first, f"segment {part.number} has no journal")
    if msgs.sealed not in (0, 1, 2) or (msgs.sealed == 0 and part is not _newest(play.queue, part.level)):
        play.say("words", first, f"sealed {msgs.sealed}")
    if journal is not None:
        # Version 1 lacks the events from type 16 on.
        if (journal.magic, journal.number) != (b"BJRN", part.number) \
                or not needed_version(journal.events) <= journal.version <= 3:
            play.say("versions", first, f"journal {part.number}")
        if journal.count_word != len(journal.events) or journal.lost:
            play.say("words", first, "events")
        if any(after.ts <= before.ts for before, after in pairwise(journal.events)):
            play.say("time rises", first, f"events of {part.number}")
    _judge_head(part, play, first)
    seqs = [record.seq for record in msgs.records]
    if any(after <= before for before, after in pairwise(seqs)):
        play.say("numbers rise", first, f"segment {part.number}")
    if seqs and msgs.base_seq != seqs[0] and not msgs.generation:
        play.say("base_seq", first, f"{msgs.base_seq}, first record {seqs[0]}")
    if msgs.count_word != len(msgs.records) or acks.count_word != len(acks.entries):
        play.say("words", first, "records or entries")
    if any(event.copy().octets(part.number) != event.octets(part.number) for event in part.events()):
        play.say("damage", first, f"the CRC of an event of {part.number}")
    files = [file for file in (msgs, acks, journal) if file is not None]
    if any(each.wrong for each in (*part.entries(), *part.events(), *files)):
        play.say("damage", first, f"segment {part.number}")


def _judge_head(part, play, first):
    """What headers and marks say by themselves, by docs/formats.md."""
    msgs, acks, journal = part.msgs, part.acks, part.journal
    places = {0, 64, msgs.end, *(record.position for record in msgs.records)}
    if acks.delivered not in places or (acks.doubted or 0) not in places:
        play.say("headers", first, f"the cursors {acks.delivered} and {acks.doubted}")
    if acks.blank != bytes(8) or (journal is not None and journal.blank != bytes(4)):
        play.say("headers", first, "reserved octets")
    if msgs.records and msgs.created > min(record.ts for record in msgs.records):
        play.say("headers", first, "made after its first record")
    if msgs.generation and (not msgs.sealed or acks.delivered != msgs.end):
        play.say("headers", first, f"generation {msgs.generation}")
    if journal is None:
        return
    if any(event.ts <= journal.begun for event in journal.events):
        play.say("headers", first, "begun after an event")
    synced, complement = int.from_bytes(journal.synced[:8], "little"), int.from_bytes(journal.synced[8:], "little")
    if (synced or complement) and (synced ^ complement != (1 << 64) - 1 or not journal.begun <= synced < 1 << 63):
        play.say("headers", first, f"synced {synced}")
    before = journal.begun
    for event in journal.events:
        wanted = {STARTED: event.ts, SWITCHED_OFF: event.ts, ON_AGAIN: before}.get(event.reason, event.seq)
        if event.type == MARK and event.seq != wanted:
            play.say("marks", 0, f"keeps {event.seq}, which should be {wanted}")
        before = event.ts


def _newest(queue, level):
    return [part for part in queue.parts if part.level == level][-1]


def _judge_acks_alone(queue, play):
    """What acks files contradict by themselves."""
    for part in queue.parts:
        if part.acks is None or part.msgs is None:
            continue
        settled = Counter()
        for entry in part.acks.entries:
            seq = entry.record.seq if entry.record is not None else 0
            if entry.record is None:
                play.say("entries have records", 0, f"position {entry.position}")
            elif settled[id(entry.record)]:
                play.say("settled once", seq, "an entry behind its settlement")
            settled[id(entry.record)] += entry.settles
            was_out = entry.type in (1, 2, 3, 8)        # acked, rejected, returned, handed out
            if entry.record is not None and was_out and entry.record.position >= part.acks.delivered:
                play.say("the cursor passes what is handed out", seq, f"it stands at {part.acks.delivered}")
            if entry.type not in (*SETTLING, RETURNED, HANDED_OUT, ASIDE):
                play.say("types", seq, f"entry of type {entry.type}")
        if part.acks.settled != len(+settled):
            play.say("words", 0, f"settled {part.acks.settled}, {len(+settled)} entries")


def _judge_end(queue, play):
    """The acks say what the journal says."""
    entries = defaultdict(list)
    for part in queue.parts:
        for entry in part.entries():
            if entry.record is not None:
                entries[entry.record.seq].append(entry)
    for seq, life in play.lives.items():
        said = [(entry.type, entry.reason) for entry in entries[seq] if entry.settles]
        if [life.settled] * bool(life.settled) != said:
            play.say("acks and journal", seq, f"acks {said}, journal {life.settled}")
        said = [(entry.type, entry.reason, entry.count) for entry in entries[seq]
                if not entry.settles and entry.type != ASIDE]
        if life.entries and life.entries[-1][0] == RETURNED and play.is_beyond_limit(life, 1 << 62):
            life.entries.pop()      # It came back once too often: it was set aside at once.
        if said != life.entries and life.part.acks is not None and not life.part.acks.generation:
            play.say("acks and journal", seq, f"acks {said}, journal {life.entries}")
        last = entries[seq][-1] if entries[seq] else None
        if life.state == GONE or life.part.acks is None:
            continue
        passed = life.record.position < life.part.acks.delivered
        if life.state == OUT and (last.type != HANDED_OUT if last else not passed):
            play.say("acks and journal", seq, "out in the journal, not in the acks")
        if life.state == READY:
            _judge_ready(life, last, play)


def _judge_ready(life, last, play):
    seq = life.record.seq
    if not life.seen and last is None and life.record.position < life.part.acks.delivered:
        play.say("acks and journal", seq, "passed by the cursor, not in the journal")
    if last is not None and last.type == RETURNED and last.count != life.failed:
        play.say("failures", seq, f"{last.count} in the acks, {life.failed} in the journal")


def _judge_manifest(queue, play):
    """The manifest and the file ``order`` say what can be counted."""
    entry = queue.entry
    if entry is None:
        return
    if queue.journaled:
        states = Counter(life.state for life in play.lives.values())
        if (entry["ready"], entry["unacked"]) != (states[READY], states[OUT]):
            play.say("manifest", 0, f"ready {entry['ready']}, unacked {entry['unacked']}, counted {states}")
    for part in queue.parts:
        for each in (*part.records(), *part.events()):
            if each.ts > entry["cut"]:
                play.say("nothing behind the cut", each.seq, f"{each.ts}")
    if list(entry["counters"].values()) != (queue.counters or [0] * len(entry["counters"])):
        play.say("counters", 0, "the manifest and the file order differ")
    if queue.journaled:
        for name, value in entry["counters"].items():
            if play.counts[name] != value:
                play.say("counters", 0, f"{name}: {value} in the manifest, {play.counts[name]} in the journal")


def judge_tree(tree):
    """What the files of all queues contradict: {name: [Broken]}."""
    found = {name: judge(queue) for name, queue in tree.queues.items()}
    root = tree.root.get("schema_version")
    if (root is not None and root.strip() != b"1") or (tree.manifest or {}).get("manifest", 1) != 1:
        next(iter(found.values())).append(Broken("versions", 0, "of the folder"))
    for name, queue in tree.queues.items():
        found[name] += _letters(queue, tree)
    return found


def _letters(queue, tree):
    """Each dead letter stands in the queue that it went to, by the body, in the order in which the messages died."""
    key = (queue.setting("arguments") or {}).get("x-dead-letter-routing-key")
    if key not in tree.queues:
        return []
    bodies = {record.body: record for part in tree.queues[key].parts for record in part.records()}
    deaths = sorted((event.ts, event.seq) for part in queue.parts for event in part.events() if event.type == DEAD)
    messages = {record.seq: record for part in queue.parts for record in part.records()}
    broken, last = [], 0
    for _, seq in deaths:
        letter = bodies.get(messages[seq].body) if seq in messages else None
        if letter is None:
            broken.append(Broken("dead letters arrive", seq, f"it is not in {key}"))
        elif letter.seq < last:
            broken.append(Broken("dead letters keep their order", seq, f"{letter.seq} behind {last}"))
        last = max(last, letter.seq if letter is not None else 0)
    return broken
