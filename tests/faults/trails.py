"""Where messages may be that a queue's rules move: each in its queue or where its dead go, counted and in order.

    Trail     a queue, or an exchange and its queue, and the queue of its dead letters; a ``Step`` for each message
    Batches   transactions over several queues: whole or not at all

Bodies are the ledger's.  Knows no sockets.
"""

from collections import Counter

from tests.faults.ledger import GONE, MAYBE, OPEN, read_body

BATCH = 16              # message n of a transaction's stream: transaction times this, and its place in it


class Step:
    """One message, and what is known of it."""

    __slots__ = ("confirmed", "count", "due", "late", "look", "priority", "received", "settled")

    def __init__(self, priority, due):
        self.priority, self.due = priority, due
        self.confirmed = self.received = False
        self.settled = OPEN
        self.count = 0              # failed deliveries, as the last delivery told
        self.look = self.late = 0   # number of the look that missed it, and how often it came after that


class Trail:
    """``reasons``: why its messages may die; ``levels``: of priorities; ``counts``: deliveries tell how many failed;
    ``delays``: ms that its exchange may hold a message back."""

    def __init__(self, name, arguments, *, exchange="", dead=None, reasons=(), levels=0, counts=False, delays=()):
        self.name, self.arguments, self.exchange, self.dead, self.reasons = name, arguments, exchange, dead, reasons
        self.levels, self.counts, self.delays = levels, counts, delays
        self.steps = {}
        self.before = {}            # those that were looked for before
        self.looks = 0
        self.twice = 0              # messages of which a kill made two
        self.deaths = self.highest = 0      # dead letters seen, and failed deliveries of one message

    def receive(self, content, now):
        """A client got it from the queue.  Fails for what must not have come."""
        message = read_body(content.body)
        step = self.steps.get(message)
        assert step is not None, f"{self.name}: {message} came, which was settled or never published"
        assert step.settled != GONE, f"{self.name}: {message} came although it was settled"
        assert content.redelivered or not step.received, f"{self.name}: {message} came again without redelivered"
        # Its delay counts from the millisecond in which it came.
        assert now + 0.002 >= step.due, f"{self.name}: {message} came {step.due - now:.3f} s before it was due"
        count = content.header("x-delivery-count")
        if self.counts:
            assert (count or 0) >= step.count + step.received, (
                f"{self.name}: {message} came with count {count} after {step.count}")
        self.highest = max(self.highest, count or 0)
        step.count, step.received, step.settled = count or 0, True, OPEN
        step.confirmed = True
        return message

    def in_order(self, contents):
        """Of a whole queue that nobody else has: the highest level first, each stream in order within its level."""
        places = [(-self.steps[message].priority, message) for message in map(read_body, bodies(contents))]
        levels = [level for level, _ in places]
        assert levels == sorted(levels), f"{self.name}: a lower priority came before a higher one"
        last = {}
        for level, (stream, n) in places:
            assert last.get((level, stream), 0) < n, f"{self.name}: {(stream, n)} came late"
            last[level, stream] = n

    def looked(self, contents, dead):
        """All that is there: nothing that was confirmed and not settled is missing."""
        here, there = set(map(read_body, bodies(contents))), set(map(read_body, bodies(dead)))
        assert len(here) == len(contents), f"{self.name}: a message is in it twice"
        # Killed between its dead letter and its end in the queue: it may have died once more since.
        times = Counter(map(read_body, bodies(dead)))
        assert all(n == 1 or (n == 2 and message not in here) for message, n in times.items()), (
            f"{self.dead}: {times.most_common(3)}")
        for content in dead:
            message = read_body(content.body)
            assert message in self.steps, f"{self.dead}: {message} came, which was settled or never published"
            assert self.steps[message].settled != GONE, f"{self.dead}: {message} came although it was settled"
            assert content.header("x-last-death-reason") in self.reasons, content.header("x-last-death-reason")
        wanted = {message for message, step in self.steps.items() if step.confirmed and step.settled == OPEN}
        missing = wanted - here - there
        assert not missing, f"{self.name}: {len(missing)} confirmed are missing, first {sorted(missing)[:5]}"
        self.twice += len(here & there) + len(dead) - len(there)
        self.deaths += len(dead)
        self.looks += 1
        for step in self.steps.values():
            step.look = self.looks
        self.before |= self.steps
        self.steps = {}

    def came_late(self, message):
        """Whether it was looked for before.  It may come once, and once more for each kill since it was published."""
        step = self.before.get(message)
        if step is None:
            return False
        step.late += 1
        assert step.late <= 3 + self.looks - step.look, f"{self.name}: {message} comes again and again"
        return True


class Batches:
    """Transactions of publishes to ``names``, by (stream, transaction): how many went to each, and what came of it."""

    def __init__(self, names):
        self.names = names
        self.sent = {}              # (stream, transaction): messages in each queue
        self.outcome = {}           # True committed, False rolled back, absent: not answered
        self.halves = 0             # asked for, not answered, and there

    def looked(self, contents_by_name):
        came = {}
        for name, contents in contents_by_name.items():
            last = {}
            for stream, n in map(read_body, bodies(contents)):
                assert last.get(stream, 0) < n, f"{name}: {(stream, n)} came after {last[stream]}"
                last[stream] = n
                batch = came.setdefault((stream, n // BATCH), {})
                batch.setdefault(name, []).append(n)
        for batch, sent in self.sent.items():
            there = came.pop(batch, {})
            if there or self.outcome.get(batch):
                assert there == sent, f"transaction {batch} is not whole: {there} of {sent}"
                assert self.outcome.get(batch) is not False, f"transaction {batch} was rolled back"
                self.halves += batch not in self.outcome
        assert not came, f"messages of no transaction: {list(came)[:5]}"
        self.sent, self.outcome = {}, {}


def bodies(contents):
    return [content.body for content in contents]


def acked(trail, messages, *, surely):
    """An ack of these was sent, or answered."""
    for message in messages:
        step = trail.steps[message]
        step.settled = GONE if surely else max(step.settled, MAYBE)
