"""Plays a queue with message groups, retries, parks, fencing tokens, deduplication keys, redrives or replays.

docs/groups.md has the promises.  Knows groups by one header, of which one message may be out at a time, parks behind a
message that has failed too often, and keys that count for a number of messages.
"""

from collections import defaultdict

from tests.planter import properties
from tests.planter.files import ASIDE, HANDED_OUT, RETURNED
from tests.planter.play import GONE, MS, OUT, READY, Play

PARKED, RELEASED, TOKEN, RETRY, REPLAYED, REPLAY, DUPLICATE, GROUP_PARKED, GROUP_RELEASED, REDRIVEN = range(16, 26)
PARKS, TRY = 11, 12             # entries: as one that sets aside, and a part of the time of the next try
STOPS, RELEASES = (PARKED, GROUP_PARKED), (RELEASED, GROUP_RELEASED)
REASONS = {PARKED: (4,), RELEASED: (0,), REPLAY: (0,), DUPLICATE: (1, 2, 3, 4), GROUP_PARKED: (4, 5),
           GROUP_RELEASED: (0,), REDRIVEN: (0,)}
AGAIN = 16                      # flag of a record that was redriven
SLACK = 2 * MS                  # times of tries are in ms


class GroupPlay(Play):
    """``place``: where a message stands in its group; ``tries``: up to when nothing of a group, or a message without
    one, goes out; ``stops``: groups that are parked."""

    def __init__(self, queue):
        super().__init__(queue)
        groups = queue.setting("groups")
        self.header = groups["headers"][0] if groups else None
        self.groups, self.place = defaultdict(set), {}
        self.tries, self.due, self.stops, self.spared = {}, {}, set(), defaultdict(int)
        self.tokens = {}
        self.replayed = defaultdict(int)
        self.put_back, self.again = set(), set()        # redriven, and replayed
        self.order = []                 # of first deliveries since the broker's last start

    def group_of(self, life):
        """What waits with a message: its group; without groups, the message alone."""
        found = properties.header(life.record.meta, self.header) if self.header else None
        return life.record.seq if found is None else found

    def publish(self, part, record):
        super().publish(part, record)
        life = self.lives[record.seq]
        self.groups[self.group_of(life)].add(record.seq)
        again = properties.header(record.meta, "x-group-seq") if record.flags & AGAIN else None
        self.place[record.seq] = again if again is not None and again < record.seq else record.seq
        if bool(record.flags & AGAIN) and again is None:
            self.say("redriven ones say where they stood", record.seq, "no x-group-seq")

    def mark(self, part, event):
        super().mark(part, event)
        self.replayed[part.number] = 0
        self.order.clear()

    def event(self, part, event, ts):
        life = self.lives.get(event.seq)
        if event.type not in range(PARKED, REDRIVEN + 1) or life is None or life.part is not part:
            super().event(part, event, ts)
            return
        group = self.group_of(life)
        if event.reason not in REASONS.get(event.type, range(256)):
            self.say("types", event.seq, f"reason {event.reason} of type {event.type}")
        if event.type == RETRY:
            self.tries[group] = ts + event.aux * MS
            self.due[event.seq] = group
        elif event.type in STOPS:
            if event.reason == 4 and not self.is_beyond_limit(life, ts):
                self.say("parked at the limit", event.seq, f"failed {life.failed}")
            self.stops.add(group)
        elif event.type in RELEASES:
            self.release(life, group)
        elif event.type == TOKEN:
            self.tell(life, event, group)
        elif event.type in (REPLAYED, REPLAY):
            self.replay(life, event, part)
        elif event.type == REDRIVEN:
            if not life.record.flags & AGAIN or life.seen:
                self.say("redriven once", event.seq, f"flags {life.record.flags}, seen {life.seen}")
            self.put_back.add(event.seq)
        elif not life.record.dedup_hash:
            self.say("duplicates have keys", event.seq, "the first one has none")

    def release(self, life, group):
        self.stops.discard(group)
        self.tries.pop(group, None)
        self.spared[life.record.seq] = life.failed

    def tell(self, life, event, group):
        token = event.aux | event.count << 32 | event.reason << 48
        if token <= self.tokens.get(group, -1):
            self.say("tokens rise", event.seq, f"{token} after {self.tokens[group]}")
        self.tokens[group] = max(token, self.tokens.get(group, -1))
        following = [each for each in self.events_of[event.seq] if each.ts > event.ts]
        if not following or (following[0].type, following[0].consumer) != (8, event.consumer):
            self.say("a token goes with its delivery", event.seq, f"to {event.consumer}")

    def replay(self, life, event, part):
        if event.type == REPLAY:
            if event.aux != self.replayed[part.number]:
                self.say("a replay is exact", event.seq, f"{self.replayed[part.number]}, and says {event.aux}")
            self.replayed[part.number] = 0
            return
        self.replayed[part.number] += 1
        if life.state != GONE or life.settled[0] == 7 or life.settled == (6, 5):
            self.say("only settled ones are replayed", event.seq, f"{life.state} {life.settled}")
        life.state, life.failed, life.settled, life.entries = READY, 0, (), []
        self.ready[part.level].add(event.seq)
        self.again.add(event.seq)
        self.spared.pop(event.seq, None)

    # --- turns

    def deliver(self, life, event, ts):
        if event.seq not in self.order and event.seq not in self.again:
            self.order.append(event.seq)
        if life.record.flags & AGAIN and event.seq not in self.put_back:
            self.say("redriven ones go out when they are back", event.seq, "it has no such event")
        self.due.pop(event.seq, None)
        super().deliver(life, event, ts)

    def judge_turn(self, life, event, ts):
        seq, group = event.seq, self.group_of(life)
        if ts < self.tries.get(group, 0) - SLACK:
            self.say("blocking retry", seq, f"{(self.tries[group] - ts) / MS} ms too early")
        if group in self.stops:
            self.say("a parked group waits", seq, str(group))
        if not self.header:
            if any(stop < seq for stop in self.stops):
                self.say("nothing passes a stop", seq, str(self.stops))
            super().judge_turn(life, event, ts)
            return
        for each in self.groups[group] - {seq}:
            other = self.lives[each]
            if other.state == OUT:
                self.say("one of a group", seq, f"{each} is out")
            elif other.state == READY and self.place[each] < self.place[seq] and not self.is_dying(other, ts) \
                    and (each in self.put_back or not other.record.flags & AGAIN):
                self.say("a group in order", seq, f"{each} is not settled")

    def is_in_turn(self, life, ts):
        return life.record.seq not in self.due and super().is_in_turn(life, ts)

    def waiting(self):
        return sum(1 for each in self.due if self.lives[each].state == READY)

    def may_overtake(self, life):
        return life.record.seq not in self.again

    def overtaken_by(self, life):
        if life.record.seq in self.again:
            return 0
        if not self.header:
            return super().overtaken_by(life)
        return len(self.order) - 1 - self.order.index(life.record.seq) if life.record.seq in self.order else 0

    def is_beyond_limit(self, life, ts):
        limit = self.settings.at(ts).get("delivery_limit")
        return limit is not None and life.failed - self.spared[life.record.seq] > limit

    def give_back(self, life, event):
        super().give_back(life, event)
        following = [each for each in self.events_of[event.seq]
                     if each.ts > event.ts and each.type not in (TOKEN, RETRY)]
        if following and following[0].type == GROUP_PARKED and life.entries[-1][0] == RETURNED:
            life.entries.pop()          # Its entry is that of the park.

    def settle(self, life, event, ts):
        super().settle(life, event, ts)
        if self.due.pop(life.record.seq, None) is not None:
            self.tries.pop(self.group_of(life), None)

    def compared(self, entries, told):
        """As that of other queues, but a message that waits in its group may have the entry that sets it aside in place
        of one of its return, and one more of its first delivery.  So may one that was redriven: it goes out by its
        entries, and that which set it aside may be left out."""
        said, asides, redriven = [], set(), False
        for entry in entries:
            redriven |= bool(entry.record.flags & AGAIN)
            if entry.type in (ASIDE, PARKS):
                asides.add(entry.count)
            elif not entry.settles:
                said.append((entry.type, entry.reason, entry.count))
        returns = {count for kind, _, count in said if kind == RETURNED}
        told = [each for each in told if each[0] != RETURNED or each[2] in returns or each[2] not in asides]
        first = (HANDED_OUT, 0, 0)
        if (asides or redriven) and said[:1] == [first] and told[:1] != [first]:
            del said[0]
        return said, told


def judge_keys(queue, play):
    """No key was stored twice within its window."""
    keys, last = queue.setting("deduplication"), {}
    if not keys:
        return
    if keys["scope"] == "waiting":
        judge_waiting_keys(play)
        return
    for seq in sorted(play.lives):
        key = play.lives[seq].record.dedup_hash
        if key and key in last and seq - last[key] < keys["size"]:
            play.say("keys count once", seq, f"{last[key]} has its key")
        last[key] = seq


def judge_waiting_keys(play):
    """No key was stored again while its message waited, or waited again."""
    waits = defaultdict(list)               # key -> (from, until, number)
    for seq in sorted(play.lives):
        record = play.lives[seq].record
        if not record.dedup_hash:
            continue
        for begin, end, other in waits[record.dedup_hash]:
            if begin < record.ts < end:
                play.say("keys count while their messages wait", seq, f"{other} has its key")
        begin = record.ts
        for event in play.events_of[seq]:
            if event.settles and begin is not None:
                waits[record.dedup_hash].append((begin, event.ts, seq))
                begin = None
            elif event.type == REPLAYED:
                begin = event.ts
        if begin is not None:
            waits[record.dedup_hash].append((begin, 1 << 62, seq))


def judge_told(queue, play):
    """Without groups, the journal has each next try and each stop before the acks have it."""
    if play.header:
        return
    for part in queue.parts:
        noted, last = defaultdict(int), {}
        for entry in part.entries():
            if entry.record is None:
                continue
            seq = entry.record.seq
            noted[seq, PARKED] += entry.type == PARKS
            noted[seq, RETRY] += entry.type == RETURNED and last.get(seq) == (TRY, 2)
            last[seq] = entry.type, entry.reason
        for (seq, kind), count in noted.items():
            told = sum(1 for event in play.events_of[seq] if event.type == kind)
            if count > told:
                play.say("the journal has it first", seq, f"{count} of type {kind} in the acks, {told} in the journal")


def judge_tries(queue, play):
    """Where both have all next tries of a message, they have the same times."""
    for part in queue.parts:
        told, parts = defaultdict(list), defaultdict(list)
        for entry in part.entries():
            if entry.record is None:
                continue
            seq = entry.record.seq
            if entry.type == TRY:
                parts[seq].append(entry)
                continue
            if entry.type == RETURNED and [one.reason for one in parts[seq][-3:]] == [0, 1, 2]:
                told[seq].append(sum(one.count << 16 * one.reason for one in parts[seq][-3:]) * MS)
            parts[seq].clear()
        for seq, times in told.items():
            said = [event.ts + event.aux * MS for event in play.events_of[seq] if event.type == RETRY]
            if len(said) == len(times) and any(abs(a - b) > SLACK for a, b in zip(said, times, strict=True)):
                play.say("both tell one time of the next try", seq, f"{said} and {times}")


def is_played(queue):
    """Whether a queue has something of what this module knows."""
    return any(queue.setting(name) for name in ("groups", "retry", "deduplication")) or any(
        event.type == REPLAYED for part in queue.parts for event in part.events())


def since_replay(entries):
    """The entries of a message's last life, without the times of its tries."""
    begin = max((place + 1 for place, entry in enumerate(entries) if entry.type == 13), default=0)
    return [entry for entry in entries[begin:] if entry.type != 12]
