"""What the audits should find, one message after the other in plain Python, straight from their definitions.

    messages  [(seq, ts, connection, channel, publish_seq)]      of one priority level
    events    [(ts, seq, type, reason)]                          without STARTED
    starts    [(ts, reason, whole_up_to)]                        STARTED events
"""

from collections import defaultdict

from brokerd.store import format as layout

SETTLING = (layout.ACKED, layout.REJECTED, layout.DEAD_LETTERED, layout.EXPIRED, layout.DROPPED, layout.PURGED)
FOREVER = float("inf")
OFF = 4


class Level:
    """One priority level of a queue."""

    def __init__(self, messages, events, starts=(), *, begun=0, limit=None, dead_letters=False):
        self.messages = sorted(messages)
        self.events = sorted(events)
        self.boundaries = sorted(ts for ts, reason, _ in starts if reason != OFF)
        self.gaps = [(whole, ts) for ts, reason, whole in starts
                     if reason in (layout.POWER_LOST, layout.SWITCHED_ON)]
        self.power_cuts = [ts for ts, reason, _ in starts if reason == layout.POWER_LOST]
        if starts and max(starts)[1] == OFF:
            self.gaps.append((max(starts)[0], FOREVER))
        self.begun, self.limit, self.dead_letters = begun, limit, dead_letters
        self.of = defaultdict(list)
        for event in self.events:
            self.of[event[1]].append(event)
        self.ts = {m[0]: m[1] for m in self.messages}

    def run(self, ts):
        return sum(boundary < ts for boundary in self.boundaries)

    def deliveries(self, seq):
        return [e for e in self.of[seq] if e[2] == layout.DELIVERED]

    def settled(self, seq):
        return next((e[0] for e in self.of[seq] if e[2] in SETTLING), None)

    def covered(self, seq):
        # A power cut may have undone the first settlement: its life goes on to its last event.
        until = self.of[seq][-1][0] if self.settled(seq) is not None else FOREVER
        return self.ts[seq] > self.begun and all(until <= a or self.ts[seq] >= b for a, b in self.gaps)

    def first(self, seq):
        """The first delivery ever, if that is known."""
        found = self.deliveries(seq)
        if found and (self.covered(seq) or not found[0][3] & layout.REDELIVERED):
            return found[0][0]
        return None

    def uncovered(self):
        return sum(not self.covered(m[0]) for m in self.messages)

    # --- audits: how many were found wrong

    def publish_order(self):
        found = 0
        for k, (_, _, connection, channel, number) in enumerate(self.messages):
            found += connection > 0 and any(
                m[2:4] == (connection, channel) and m[4] >= number for m in self.messages[:k])
        return found

    def fifo(self):
        firsts = [self.first(m[0]) for m in self.messages]
        early = sum(d1 is not None and any(d is not None and d > d1 for d in firsts[:k])
                    for k, d1 in enumerate(firsts))
        passed_over = sum(self.covered(m[0]) and not self.of[m[0]] and any(d is not None for d in firsts[k + 1:])
                          for k, m in enumerate(self.messages))
        return early + passed_over

    def stretches_after_return(self, seq):
        """(from, to) of each time that the message was ready again; to: its next delivery."""
        events = self.of[seq]
        for k, (ts, _, type_, _) in enumerate(events):
            after = events[k + 1] if k + 1 < len(events) else None
            since = None
            if type_ == layout.RETURNED:
                since = ts
            elif type_ == layout.DELIVERED:
                ends = [b for b in self.boundaries if b > ts]
                if ends and (after is None or after[0] > ends[0]):
                    since = ends[0]
            if since is None:
                continue
            if after is None and not self.dead_letters:
                yield since, FOREVER
            elif after is not None and after[2] == layout.DELIVERED:
                yield since, after[0]

    def returned_first(self):
        out = [e for e in self.events if e[2] == layout.DELIVERED]
        return sum(any(e[1] > m[0] and since < e[0] < until for e in out)
                   for m in self.messages if self.covered(m[0])
                   for since, until in self.stretches_after_return(m[0]))

    def first_of_run(self, seq, run):
        found = [e for e in self.deliveries(seq) if self.run(e[0]) == run]
        if not found:
            return None
        why = found[0][3]
        if self.covered(seq) or not why & layout.REDELIVERED or why & layout.BEFORE_START:
            return found[0][0]
        return None

    def overtaking(self):
        """(out of sequence, overtakings)"""
        out, total = 0, 0
        for m in self.messages:
            for ts, _, _, why in self.deliveries(m[0]):
                run = self.run(ts)
                first = self.first_of_run(m[0], run)
                if first is None or first == ts or why & layout.BEFORE_START:
                    continue
                later = [self.first_of_run(n[0], run) for n in self.messages if n[0] > m[0]]
                count = sum(d is not None and first < d < ts for d in later)
                out, total = out + (count > 0), total + count
        return out, total

    def cut_off(self, seq):
        """Deliveries that were out when a broker's life ended."""
        events = self.of[seq]
        return [e for k, e in enumerate(events) if e[2] == layout.DELIVERED and self.run(e[0]) < (
            self.run(events[k + 1][0]) if k + 1 < len(events) else len(self.boundaries))]

    def delivery_limit(self):
        """Deliveries since the last loss of power before the last of them.  One may be a redelivery that a kill kept
        from being counted."""
        found = 0
        for m in self.messages:
            out = [e[0] for e in self.deliveries(m[0])]
            since = max([cut for cut in self.power_cuts if out and cut < out[-1]], default=0)
            doubtful = any(e[3] & layout.REDELIVERED for e in self.cut_off(m[0]))
            found += sum(ts > since for ts in out) > self.limit + 1 + doubtful
        return found

    def after_settlement(self, types):
        """A loss of power since then may have taken the ack."""
        return sum(e[2] in types and self.settled(e[1]) is not None and e[0] > self.settled(e[1])
                   and not any(self.settled(e[1]) < cut < e[0] for cut in self.power_cuts) for e in self.events)

    def delivery_after_settle(self):
        return self.after_settlement((layout.DELIVERED,))

    def double_settle(self):
        return self.after_settlement(SETTLING)

    def ack_without_delivery(self):
        found = 0
        for m in self.messages:
            if not self.covered(m[0]):
                continue
            before = None
            for event in self.of[m[0]]:
                ts, _, type_, why = event
                by_client = type_ in (layout.ACKED, layout.REJECTED) or (
                    type_ == layout.DEAD_LETTERED and why == layout.REASON_REJECTED)
                if by_client and ts <= self.settled(m[0]):
                    found += not (before is not None and before[2] == layout.DELIVERED
                                  and self.run(before[0]) == self.run(ts))
                before = event
        return found

    def out(self, seq):
        events = self.of[seq]
        return bool(events) and events[-1][2] == layout.DELIVERED and (
            self.run(events[-1][0]) == len(self.boundaries)) and self.settled(seq) is None

    def unacked(self, bound):
        return sum(self.out(m[0]) and self.of[m[0]][-1][0] < bound for m in self.messages)

    # --- for priority

    def ready_stretches(self):
        """(from, to) of each time that a message was ready, as far as that is known."""
        ends = (layout.DELIVERED, layout.EXPIRED, layout.DROPPED, layout.PURGED)
        for m in self.messages:
            seq = m[0]
            if not self.covered(seq):
                continue
            events = self.of[seq]
            if not events and not self.dead_letters:
                yield m[1], FOREVER
            elif events and events[0][2] in ends:
                yield m[1], events[0][0]
            for k, (ts, _, type_, _) in enumerate(events):
                after = events[k + 1] if k + 1 < len(events) else None
                since = ts if type_ == layout.RETURNED else None
                if type_ == layout.DELIVERED:
                    bounds = [b for b in self.boundaries if b > ts]
                    if bounds and (after is None or after[0] > bounds[0]):
                        since = bounds[0]
                if since is not None and after is None and not self.dead_letters:
                    yield since, FOREVER
                elif since is not None and after is not None and after[2] in ends:
                    yield since, after[0]


def priority(levels):
    """Deliveries of a level while a higher one had a ready message; ``levels``: {priority: Level}."""
    found = 0
    for number, level in levels.items():
        for ts, _, type_, _ in level.events:
            if type_ == layout.DELIVERED:
                found += any(since < ts < until for other, above in levels.items() if other > number
                             for since, until in above.ready_stretches())
    return found


def duplicates(ids, window_ns):
    """``ids``: [(ts, id)] of a queue: how many come within the window after an equal one."""
    last, found = {}, 0
    for ts, id_ in sorted(ids):
        if id_ and id_ in last and ts - last[id_] <= window_ns:
            found += 1
        if id_:
            last[id_] = ts
    return found


def group_fifo(level, groups):
    """``groups``: {seq: group or None}."""
    found, seen = 0, defaultdict(list)
    for m in level.messages:
        group = groups.get(m[0])
        if group is None or not level.covered(m[0]):
            continue
        first = level.first(m[0])
        if first is not None:
            found += any(end > first for end in seen[group])
        seen[group].append(level.settled(m[0]) or FOREVER)
    return found
