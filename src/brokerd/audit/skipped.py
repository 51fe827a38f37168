"""Messages that were passed over: ready all the time, never delivered, while later ones of their level went out.

Such a message has no event in a journal that covers its life, and no entry in the acks but that it was set aside.  A
queue with a dead letter exchange sets messages aside while their dead letters are being stored, and these have not been
passed over.  Any other queue sets a message aside only if it could not write it to its consumer, and hands it out next.
"""

import numpy as np

from brokerd.audit.lifecycle import READY, Lives, messages_of
from brokerd.audit.segment import SegmentData
from brokerd.store import format as layout

PASSED_OVER = "never delivered, though {a}, a later one of its level, was"


def never_delivered(data: SegmentData, life: Lives) -> np.ndarray:
    """The indices of messages of which the journal says nothing, although it would, and the acks nothing that explains
    it."""
    rules, entries = data.triple.rules, data.entries
    if rules and not any(rule.dead_letters or rule.groups for rule in rules):
        entries = entries[~np.isin(entries["kind"] & 0x0F, layout.ASIDE_TYPES)]
    told = messages_of(data, life.record, entries)
    silent = (life.record >= 0) & life.covered & (life.deliveries == 0) & (life.ended == READY)
    silent[told[told >= 0]] = False
    return np.flatnonzero(silent)


def last_delivered(life: Lives) -> int:
    """The highest number of a message with a known first delivery; 0: none."""
    return int(life.seq[life.first_sure].max(initial=0))
