"""Queues in which exactly one promise is broken, written by hand: which messages an audit must find there.

    for name, story in stories().items():
        story.write(root, queue=name)       # story.audit must find story.seqs, and no other audit may find anything

A message's life is a list of (type, reason, count), ten microseconds apart; the consumer is 7 unless a fourth value
says otherwise.  Between two lives the clock goes on by a millisecond.  ``CUT`` and ``AGED`` are steps of their own.
"""

from tests.audit import writer

from brokerd.store import format as layout
from brokerd.store.format import (
    ACKED,
    BEFORE_START,
    DEAD_LETTERED,
    DELIVERED,
    DROPPED,
    EXPIRED,
    PURGED,
    REDELIVERED,
    REJECTED,
    RETURNED,
)

START = 1_780_000_000_000_000_000
MS = 1_000_000
NACK, RECOVER = layout.CAUSE_NACK, 3
AGAIN, AFTER_START = REDELIVERED, REDELIVERED | BEFORE_START
CUT = "the broker starts"
AGED = "its time to live passes"
CONSUMER = 7
LIMIT = 2
TTL_MS = 50

PLAIN = [(DELIVERED, 0, 0), (ACKED, 0, 0)]
BACK = [(DELIVERED, 0, 0), (RETURNED, NACK, 1), (DELIVERED, AGAIN, 1), (ACKED, 0, 1)]
OVER_A_START = [(DELIVERED, 0, 0), CUT, (DELIVERED, AFTER_START, 1), (RETURNED, RECOVER, 2), (DELIVERED, AGAIN, 2),
                (REJECTED, 0, 2)]
DEAD = [*[(DELIVERED, AGAIN if n else 0, n) if k == 0 else (RETURNED, NACK, n + 1) for n in range(3) for k in (0, 1)],
        (DEAD_LETTERED, layout.REASON_LIMIT, 3, 0)]
EXPIRES = [AGED, (EXPIRED, 0, 0, 0)]
SOUND = (PLAIN, BACK, OVER_A_START, DEAD, EXPIRES, [(DELIVERED, 0, 0), (DEAD_LETTERED, layout.REASON_REJECTED, 0, 0)],
         [(PURGED, 0, 0, 0)], [(DELIVERED, 0, 0), (RETURNED, NACK, 1), (DROPPED, 5, 1, 0)])


class Story:
    """``lives``: of each message, one after the other, each all done before the next begins.  ``early``: how many ns
    the events of a faulty message come too early, ``late``: how many too late."""

    def __init__(self, audit, lives, wrong, *, early=0, late=0):
        self.audit, self.lives, self.wrong, self.early, self.late = audit, lives, wrong, early, late

    @property
    def seqs(self):
        return [k + 1 for k, life in enumerate(self.lives) if life in self.wrong]

    def write(self, root, *, queue="q", segment=1000, folder="queue"):
        now, published, rows, starts = START, [], [], []
        for k, life in enumerate(self.lives):
            now += MS
            published.append(now)
            at = now + (self.late - self.early if life in self.wrong else 0)
            for step in life:
                at += 10_000
                if step == AGED:
                    at += TTL_MS * MS
                elif step == CUT:
                    starts.append((at, at - 1, layout.STARTED, layout.RESTARTED))
                else:
                    type_, reason, count, *consumer = step
                    rows.append((at, k + 1, type_, reason, consumer[0] if consumer else CONSUMER, count))
            now = max(now, at)
        level = writer.Level(writer.messages(range(1, len(published) + 1), published), writer.events(rows + starts))
        settings = {"delivery_limit": LIMIT, "message_ttl_ms": TTL_MS, "dead_letter_exchange": "dlx"}
        options = writer.Options(segment_messages=segment, settings=settings)
        return writer.write_queue(root, level, options, queue=queue, folder=folder)


# What a broker leaves that is killed in the midst of a hand-out: the message counts as out without its first delivery
# in the journal; the last redelivery is in the journal without being counted.
KILLED = ([CUT, (DELIVERED, AFTER_START, 1), (ACKED, 0, 1)], [CUT, (DELIVERED, AFTER_START, 0), (ACKED, 0, 0)],
          [*BACK[:3], CUT, (DELIVERED, AFTER_START, 1), (ACKED, 0, 1)],
          [*BACK[:3], CUT, (DELIVERED, AFTER_START, 2), (ACKED, 0, 2)])


def among(*wrong):
    """Lives in which these faulty ones stand between sound ones."""
    lives = []
    for life in wrong:
        lives += [*SOUND, life]
    return [*lives, *SOUND]


def by_audit():
    """audit -> Story, with all broken lives of that audit."""
    found = {}
    for story in stories().values():
        one = found.setdefault(story.audit, Story(story.audit, [], [], early=story.early, late=story.late))
        one.lives, one.wrong = one.lives + story.lives, one.wrong + story.wrong
    return found


def stories():
    """name -> Story.  One for each way in which a promise of ``brokerd.audit.deliveries`` can be broken."""
    told = {
        "unmarked redelivery": ("redelivered", [*BACK[:2], (DELIVERED, 0, 1), (ACKED, 0, 1)]),
        "marked at first": ("redelivered", [(DELIVERED, AGAIN, 0), (ACKED, 0, 0)]),
        "from before no start": ("redelivered", [(DELIVERED, AFTER_START, 0), (ACKED, 0, 0)]),
        "start not said": ("redelivered", [(DELIVERED, 0, 0), CUT, (DELIVERED, AGAIN, 1), (ACKED, 0, 1)]),
        "unmarked over a start": ("redelivered", [(DELIVERED, 0, 0), CUT, (DELIVERED, 0, 1), (ACKED, 0, 1)]),
        "start said twice": ("redelivered", [(DELIVERED, 0, 0), CUT, (DELIVERED, AFTER_START, 1), (RETURNED, NACK, 2),
                                             (DELIVERED, AFTER_START, 2), (ACKED, 0, 2)]),
        "out twice": ("out_twice", [(DELIVERED, 0, 0), (DELIVERED, AGAIN, 0), (ACKED, 0, 0)]),
        "with two consumers": ("out_twice", [(DELIVERED, 0, 0), (DELIVERED, AGAIN, 0, 8), (ACKED, 0, 0, 8)]),
        "ack of another": ("wrong_consumer", [(DELIVERED, 0, 0), (ACKED, 0, 0, 8)]),
        "ack of nobody": ("wrong_consumer", [(DELIVERED, 0, 0), (ACKED, 0, 0, 0)]),
        "reject of another": ("wrong_consumer", [(DELIVERED, 0, 0), (DEAD_LETTERED, layout.REASON_REJECTED, 0, 8)]),
        "return of another": ("wrong_consumer", [(DELIVERED, 0, 0), (RETURNED, NACK, 1, 8), (DELIVERED, AGAIN, 1),
                                                 (ACKED, 0, 1)]),
        "expired while out": ("ended_while_out", [(DELIVERED, 0, 0), AGED, (EXPIRED, 0, 0, 0)]),
        "purged while out": ("ended_while_out", [(DELIVERED, 0, 0), (PURGED, 0, 0, 0)]),
        "dropped while out": ("ended_while_out", [(DELIVERED, 0, 0), (DROPPED, layout.REASON_LENGTH, 0, 0)]),
        "aged while out": ("ended_while_out", [(DELIVERED, 0, 0), AGED, (DEAD_LETTERED, layout.REASON_EXPIRED, 0, 0)]),
        "expired too early": ("early_death", [(EXPIRED, 0, 0, 0)]),
        "dead of age too early": ("early_death", [*BACK[:2], (DEAD_LETTERED, layout.REASON_EXPIRED, 1, 0)]),
        "dead too early": ("early_death", [*BACK[:2], (DELIVERED, AGAIN, 1), (RETURNED, NACK, 2),
                                           (DEAD_LETTERED, layout.REASON_LIMIT, 2, 0)]),
        "dropped too early": ("early_death", [*BACK[:2], (DROPPED, layout.REASON_LIMIT, 1)]),
        "a failure not counted": ("failure_counts", [(DELIVERED, 0, 0), (RETURNED, NACK, 0), (DELIVERED, AGAIN, 0),
                                                     (ACKED, 0, 0)]),
        "a failure too many": ("failure_counts", [(DELIVERED, 0, 0), (RETURNED, NACK, 3), (DELIVERED, AGAIN, 3),
                                                  (ACKED, 0, 3)]),
        "a failure forgotten": ("failure_counts", [*BACK[:2], (DELIVERED, AGAIN, 0), (ACKED, 0, 0)]),
        "a start not counted": ("failure_counts", [(DELIVERED, 0, 0), CUT, (DELIVERED, AFTER_START, 0), (ACKED, 0, 0)]),
        "a start counted twice": ("failure_counts", [(DELIVERED, 0, 0), CUT, CUT, (DELIVERED, AFTER_START, 2),
                                                     (ACKED, 0, 2)]),
    }
    made = {name: Story(audit, among(life, life), [life]) for name, (audit, life) in told.items()}
    life = [(DELIVERED, 0, 0), (REJECTED, 0, 0)]
    made["too early"] = Story("before_publish", among(life, life), [life], early=15_000)
    made["too late"] = Story("late_delivery", among(life, life), [life], late=(TTL_MS + 1) * MS)
    return made
