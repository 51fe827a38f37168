"""The time that each mark of a journal keeps, against the events around it: ``contradictions``.

A mark (an event STARTED) keeps a time up to which all events before it are present.  A broker that starts or switches
the journal off has every event, and keeps the time of the mark itself.  One that switches it on keeps the time of the
last event that it finds.  Only after a loss of power may the time lie further back; or it is the highest one there is,
if the journal was settled, and power was lost before its move to ``kept/`` was on disk.
"""

import numpy as np

from brokerd.store import format as layout

NOW = "keeps the time {kept}, and not its own, up to which all events are there"
LAST = "keeps the time {kept}, and not that of the event before it, up to which all events are there"
OUTSIDE = "keeps the time {kept}, which does not lie between the journal's begin and its own"


def contradictions(events: np.ndarray, begun: int) -> list[tuple[int, str]]:
    """(index, fault) of each mark with a time that cannot be its own.  ``events``: the sound ones, marks
    included, in the order of the file."""
    found = []
    for index in np.flatnonzero(events["type"] == layout.STARTED).tolist():
        mark = events[index]
        kept, ts, why = int(mark["seq"]), int(mark["ts"]), int(mark["reason"])
        before = int(events["ts"][index - 1]) if index else begun
        words = None
        if why in (layout.RESTARTED, layout.SWITCHED_OFF):
            words = NOW if kept != ts else None
        elif why == layout.SWITCHED_ON:
            words = LAST if kept != before else None
        elif why == layout.POWER_LOST and not begun <= kept <= ts and kept != layout.FOR_EVER:
            words = OUTSIDE
        if words is not None:
            found.append((index, words.format(kept=kept)))
    return found
