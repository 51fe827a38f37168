"""Judges whether the records of a segment stand in the folder of their priority: ``wrong_level``.

A record has the priority of its properties, also if that is above the queue's highest level.  In a queue without
priorities all records stand in one folder, and their priorities differ.
"""

import numpy as np

from brokerd.audit.properties import priorities
from brokerd.audit.segment import SegmentData
from brokerd.store import reading

LEVEL = "has priority {a}, and stands in level {b}"
PROPERTY = "has priority {a}, and its properties say another one"


def wrong_level(data: SegmentData, sound: np.ndarray) -> list[tuple[np.ndarray, str]]:
    """Which of the records ``sound`` (indices) have a priority that is not theirs, or do not belong into their level;
    with what is wrong in words.  None is named twice.

    A priority above the queue's highest level means the highest level.  Without settings that level is not known.
    """
    level, rules = data.triple.priority, data.triple.rules
    priority = data.headers["priority"][sound].astype(np.int64)
    highest = max((rule.max_priority for rule in rules if rule.max_priority is not None), default=None)
    if not highest and data.triple.levels == 1:
        return [(_of_other_properties(data, sound), PROPERTY)]
    if highest is not None:
        wrong = np.minimum(priority, highest) != level
    else:                       # The highest level may be this one, which takes all priorities above.
        wrong = priority < level if level else priority > 0
    return [(sound[wrong], LEVEL), (_of_other_properties(data, sound[~wrong]), PROPERTY)]


def _of_other_properties(data: SegmentData, some: np.ndarray) -> np.ndarray:
    said = priorities(data.octets, reading.Records(data.headers[some], data.positions[some], []))
    return some[said != data.headers["priority"][some]]
