"""Figures of a segment that judge nothing: latencies, what happened in each hour, the broker's counters once more."""

import numpy as np

from brokerd.audit._journal import NO_EVENTS
from brokerd.audit.arrays import histogram
from brokerd.audit.lifecycle import READY, UNACKED, Lives, messages_of
from brokerd.audit.segment import SegmentData
from brokerd.store import format as layout
from brokerd.store import reading

STANDING = ("out", "ready", "fresh", "aside", "unknown")
HOUR = 3600 * 10 ** 9           # ns


def latency(life: Lives) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    """Histograms of the times (ns) from publish to first delivery and from there to settlement, and the longest of
    each; only of messages whose first delivery is known."""
    delivered = life.first_sure & (life.published > 0)
    waited = life.first[delivered] - life.published[delivered]
    settled = life.first_sure & (life.settled > 0)
    worked = life.settled[settled] - life.first[settled]
    waited, worked = waited[waited >= 0], worked[worked >= 0]
    longest = (int(waited.max()) if waited.size else 0, int(worked.max()) if worked.size else 0)
    return histogram(waited), histogram(worked), longest


def hours(data: SegmentData, life: Lives) -> dict[str, np.ndarray]:
    """A row for each hour in which something happened: ``hour`` (ns), and how many messages were published, delivered
    and settled in it, with the octets of the published bodies."""
    headers = data.headers[data.sound]
    octets = reading.body_octets(data.octets, data.records)[data.sound] if data.octets else np.zeros(0, np.int64)
    published = headers["ts"] // HOUR
    delivered = life.ts[life.type == layout.DELIVERED] // HOUR
    settled = life.settled[life.settled > 0] // HOUR
    spans = np.unique(np.concatenate([h[np.append(True, h[1:] != h[:-1])] if h.size else h
                                      for h in (published, delivered, settled)]))

    def per_hour(what: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(np.searchsorted(spans, what), weights, spans.size).astype(np.int64)

    return {"hour": spans * HOUR, "published": per_hour(published), "delivered": per_hour(delivered),
            "settled": per_hour(settled), "octets": per_hour(published, octets)}


def counters(life: Lives, again: np.ndarray = NO_EVENTS) -> np.ndarray:
    """The events of this segment as the broker counts them, without overtakings.  ``again``: those after replays."""
    return _counters(life.type, life.why) + counters_again(again)


def counters_again(again: np.ndarray) -> np.ndarray:
    """The same of the events after replays alone."""
    again = again[again["type"] != layout.EVENT_REPLAYED]
    return _counters(again["type"], again["reason"])


def _counters(type_: np.ndarray, why: np.ndarray) -> np.ndarray:
    counts = dict.fromkeys(layout.ORDER_COUNTERS, 0)
    kinds = np.bincount(type_.astype(np.int64) << 8 | why, minlength=10 << 8).reshape(-1, 256)
    for cause, name in enumerate(layout.ORDER_COUNTERS[:6], 1):
        counts[name] = int(kinds[layout.RETURNED, cause])
    flags = np.arange(256)
    counts["redelivered"] = int(kinds[layout.DELIVERED, flags & layout.REDELIVERED > 0].sum())
    counts["redelivered_after_restart"] = int(kinds[layout.DELIVERED, flags & layout.BEFORE_START > 0].sum())
    for reason, name in enumerate(layout.ORDER_COUNTERS[10:14], 1):
        counts[name] = int(kinds[layout.DEAD_LETTERED, reason])
    counts["rejected"] = int(kinds[layout.REJECTED].sum())
    counts["expired"] = int(kinds[layout.EXPIRED].sum())
    counts["dropped_maxlen"] = int(kinds[layout.DROPPED, layout.REASON_LENGTH])
    counts["dropped_delivery_limit"] = int(kinds[layout.DROPPED, layout.REASON_LIMIT])
    counts["removed"] = int(kinds[layout.DROPPED, layout.REASON_REMOVED])
    counts["purged"] = int(kinds[layout.PURGED].sum())
    return np.array(list(counts.values()), np.int64)


def standing(data: SegmentData, life: Lives) -> np.ndarray:
    """How many of the unsettled messages are out, are ready, are ready and were never delivered, are set aside or have
    been, and are not covered by the journal: ``STANDING``."""
    rows = np.flatnonzero((life.record >= 0) & ((life.ended == READY) | (life.ended == UNACKED)))
    replayed = standing_again(data)
    if not rows.size:
        return replayed
    of, aside = messages_of(data, life.record, data.entries), np.zeros(life.seq.size, bool)
    aside[of[of >= 0]] = np.isin(data.entries["kind"] & 0x0F, layout.ASIDE_TYPES)[of >= 0]     # The last one stays.
    covered, aside, out = life.covered[rows], aside[rows], life.ended[rows] == UNACKED
    ready = covered & ~aside & ~out
    return replayed + np.array([np.count_nonzero(some) for some in (
        covered & ~aside & out, ready, ready & (life.deliveries[rows] == 0), covered & aside, ~covered)], np.int64)


def standing_again(data: SegmentData) -> np.ndarray:
    """The same of messages that were replayed, and are not settled again."""
    found, again = np.zeros(len(STANDING), np.int64), data.events_again
    if again.size and data.headers.size:
        last = again[::-1][np.unique(again["seq"][::-1], return_index=True)[1]]
        last = last[np.isin(last["seq"], data.headers["seq"])]
        live = not data.runs.size or last["ts"] > data.runs[-1]
        out = (last["type"] == layout.DELIVERED) & live
        found[0] = np.count_nonzero(out)
        found[1] = np.count_nonzero(~out & ~np.isin(last["type"], tuple(layout.SETTLING_TYPES)))
    return found
