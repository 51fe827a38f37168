"""Delivery limits: how often each message was handed out and failed, and the limit that was in force.

Every return is a failed delivery.  So is a delivery that was out when a broker stopped or died: the next start counts
it.  A limit of N lets a message fail N times; so it is handed out N+1 times at most, and dies of the next failure.

Two things that a broker may have forgotten do not count against it.  A loss of power may take the count: so deliveries
are counted since the last loss of power before the message's last one.  And kill -9 may come between the event of a
redelivery and its entry in the acks: so one failure that a start was to count is in doubt.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from brokerd.audit.files import FOREVER, Rule
from brokerd.audit.lifecycle import Lives
from brokerd.audit.segment import SegmentData
from brokerd.store import format as layout


class Failures(NamedTuple):
    """For each message: ``handed`` out so often, ``failed`` so often, ``cut``: how many of these failures are
    deliveries that were out when a broker's life ended, ``doubtful``: one of them (0 or 1) may not be counted."""

    handed: np.ndarray
    failed: np.ndarray
    cut: np.ndarray
    doubtful: np.ndarray


def failures(data: SegmentData, life: Lives) -> Failures:
    """Count the deliveries and failures of each message, by its events."""
    count, runs = life.seq.size, data.runs.size
    delivered = life.type == layout.DELIVERED
    following = np.append(life.run[1:], runs)
    following[life.last] = runs
    cut = delivered & (life.run < following)
    era = np.searchsorted(data.power_cuts, life.ts)
    last = np.full(count, -1)
    last[life.of[delivered]] = era[delivered]           # Events are in order of time: the last one stays.
    handed = delivered & (era == last[life.of]) if count else delivered
    cuts = np.bincount(life.of[cut], minlength=count)
    again = np.bincount(life.of[cut & (life.why & layout.REDELIVERED > 0)], minlength=count)
    return Failures(np.bincount(life.of[handed], minlength=count), life.returns + cuts, cuts, np.minimum(again, 1))


def limit_of_each(life: Lives, rules: Sequence[Rule], given: int | None) -> np.ndarray | None:
    """The highest limit in force in each message's life (FOREVER: none that a message dies of); None: the queue never
    had a limit.  ``given`` stands for all of them."""
    if given is not None:
        return np.full(life.seq.size, given, np.int64)
    if all(rule.limit is None for rule in rules):
        return None
    limit = np.full(life.seq.size, -1, np.int64)
    until = np.where(life.settled > 0, life.settled, FOREVER)
    for k, rule in enumerate(rules):
        start, stop = rule.at if k else 0, rules[k + 1].at if k + 1 < len(rules) else FOREVER
        lived = (life.published < stop) & (until >= start)
        limit[lived] = np.maximum(limit[lived], FOREVER if rule.limit is None or rule.stops else rule.limit)
    return np.where(limit < 0, FOREVER, limit)
