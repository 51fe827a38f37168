"""Judges how often each message of a segment was settled, and whether its client had it then.

=====================  ==============================================================================================
delivery_after_settle  no message goes out after it was settled
double_settle          each message is settled once; and of a message that the journal does not cover, the acks have
                       no entry behind the one that settles it
ack_without_delivery   a client settles only what it has
=====================  ==============================================================================================

A loss of power may take a message's entry in the acks and leave its event.  The message then lives again, which is not
a violation.
"""

from collections.abc import Iterator

import numpy as np

from brokerd.audit.deliveries import Found
from brokerd.audit.lifecycle import SETTLING, Lives, messages_of
from brokerd.audit.segment import SegmentData
from brokerd.store import format as layout


def judge(data: SegmentData, life: Lives) -> Iterator[Found]:
    """What the journal shows."""
    settled = life.settled[life.of]
    done = (settled > 0) & (life.ts > settled)
    cuts, delivered, settling = data.power_cuts, life.type == layout.DELIVERED, SETTLING[life.type]
    excused = done & (np.searchsorted(cuts, life.ts) > np.searchsorted(cuts, settled))
    wrong = done & ~excused
    unknown = int(np.count_nonzero(~life.covered))
    after = np.flatnonzero(delivered & wrong)
    yield Found("delivery_after_settle", "delivered, though it was settled at {a:t}", after, settled[after],
                settled[after], int(np.count_nonzero(delivered)), unknown + int(np.count_nonzero(delivered & excused)))
    twice = np.flatnonzero(settling & wrong)
    yield Found("double_settle", "settled again; it was, at {a:t}", twice, settled[twice], settled[twice],
                int(np.count_nonzero(life.settlements)),
                unknown + int(np.count_nonzero(settling & excused)) if data.begun is not None else 0)
    taken = (life.type == layout.ACKED) | (life.type == layout.REJECTED) | (
        (life.type == layout.DEAD_LETTERED) & (life.why == layout.REASON_REJECTED))
    out = np.zeros(life.of.size, bool)
    out[1:] = delivered[:-1] & (life.run[1:] == life.run[:-1]) & ~life.head[1:]
    judged = taken & ~done & life.covered[life.of]
    bad = np.flatnonzero(judged & ~out)
    yield Found("ack_without_delivery", "settled by a client that did not have it", bad, settled[bad], settled[bad],
                int(np.count_nonzero(judged)), unknown)


def by_entries(data: SegmentData, life: Lives) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The findings of the acks about messages that the journal does not cover: (detail, messages, a) of
    ``double_settle``."""
    later = (life.settled[life.of] > 0) & (life.ts > life.settled[life.of])
    twice = np.flatnonzero((life.settlements > 1) & ~life.covered)
    twice = twice[~np.isin(twice, life.of[later & SETTLING[life.type]])]
    yield "settled {a} times", twice, life.settlements[twice]
    once = ~life.covered & (life.settlements == 1)
    once[life.of[later]] = False                        # The journal shows it.
    behind = np.flatnonzero(once & entries_behind(data, life)) if once.any() else twice[:0]
    yield "the acks have an entry of it behind the one that settles it", behind, life.settlements[behind]


def entries_behind(data: SegmentData, life: Lives) -> np.ndarray:
    """The messages with an entry behind one that settles them.

    A broker writes no more of a message that is settled.  But a loss of power may take records and leave their entries;
    then other records stand at their positions, not below ``doubted_below``.
    """
    which, of = np.zeros(life.seq.size, bool), messages_of(data, life.record, data.entries)
    if not data.entries.size or np.bincount(of[of >= 0], minlength=1).max() < 2:
        return which
    order = np.argsort(of, kind="stable")               # In each message in the order of the file.
    same = np.append(of[order][1:] == of[order][:-1], False)
    found = of[order[same & SETTLING[data.entries["kind"][order] & 0x0F]]]
    which[found[found >= 0]] = True
    if data.doubted_below:
        which &= data.positions[life.record] < data.doubted_below
    return which
