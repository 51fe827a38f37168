"""Selects the files and rows that a query's filters ask for.

Comparisons of ``vhost``, ``queue``, ``priority`` and ``segment`` leave out whole files; comparisons of ``seq`` leave
out files and rows.  The numbers in the files of one level rise, and a segment's header has the first of its numbers.
"""

import operator
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from brokerd.audit.files import Source, Triple
from brokerd.store.format import HEADER_OCTETS, SEGMENT_CRC_END, SEGMENT_FIXED, SEGMENT_MAGIC, crc32c

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "EqualTo": operator.eq, "EqualNullSafe": operator.eq, "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge, "LessThan": operator.lt, "LessThanOrEqual": operator.le,
}
OF_FILES: dict[str, Callable[[Triple], Any]] = {
    "vhost": lambda triple: clean(triple.vhost), "queue": lambda triple: clean(triple.queue),
    "priority": lambda triple: triple.priority, "segment": lambda triple: triple.number,
}
SEQ_MAX = (1 << 63) - 1


class Bounds:
    """Conditions that all wanted rows meet.  Picklable.

    For streams: ``sound_only`` leaves out damaged records; ``places`` has the first wanted event of a journal, and the
    first one after the wanted events.
    """

    def __init__(self, *, after: int | None = None, until: int | None = None, sound_only: bool = False,
                 places: tuple[int, int] | None = None) -> None:
        self.sound_only, self.places = sound_only, places
        self.of_files: list[tuple[str, str, Any]] = []
        self.of_seq: list[tuple[str, Any]] = []
        if after is not None:
            self.of_seq.append(("GreaterThan", after))
        if until is not None:
            self.of_seq.append(("LessThanOrEqual", until))

    def take(self, condition: Any) -> bool:
        """Apply a filter of Spark from now on; False if it cannot be applied here exactly."""
        kind, column = type(condition).__name__, ".".join(condition.attribute) if hasattr(
            condition, "attribute") else ""
        value = getattr(condition, "value", None)
        if kind == "IsNotNull" and column in OF_FILES:
            return True
        if (kind != "In" and kind not in OPERATORS) or (kind != "In" and value is None):
            return False
        if column in OF_FILES:
            self.of_files.append((column, kind, value))
        elif column == "seq":
            self.of_seq.append((kind, value))
        else:
            return False
        return True

    def files(self, source: Source, triples: Sequence[Triple]) -> list[Triple]:
        """The triples that may have wanted rows."""
        chosen = [t for t in triples if all(_holds(kind, OF_FILES[column](t), value)
                                            for column, kind, value in self.of_files)]
        low, high = self.seq_range()
        if (low, high) == (0, SEQ_MAX):
            return chosen
        firsts = [_base_seq(source, triple) for triple in chosen]
        wanted = [first is None or first <= high for first in firsts]
        for index, (one, following) in enumerate(pairwise(chosen)):
            after = firsts[index + 1]
            if (one.vhost, one.queue, one.priority) == (following.vhost, following.queue, following.priority):
                wanted[index] &= after is None or after > low
        return [triple for triple, want in zip(chosen, wanted, strict=True) if want]

    def seq_range(self) -> tuple[int, int]:
        """The lowest and the highest number that a wanted row can have."""
        low, high = 0, SEQ_MAX
        for kind, value in self.of_seq:
            values = [v for v in value if v is not None] if kind == "In" else [value]
            if kind in ("EqualTo", "EqualNullSafe", "In", "GreaterThan", "GreaterThanOrEqual"):
                low = max(low, min(values, default=SEQ_MAX))
            if kind in ("EqualTo", "EqualNullSafe", "In", "LessThan", "LessThanOrEqual"):
                high = min(high, max(values, default=-1))
        return low, high

    def rows(self, seq: np.ndarray) -> np.ndarray | None:
        """Which of the numbers are wanted, as booleans; None: all."""
        wanted = None
        for kind, value in self.of_seq:
            if kind == "In":
                holds = np.isin(seq, np.array([v for v in value if v is not None], np.int64))
            else:
                holds = OPERATORS[kind](seq, value)
            wanted = holds if wanted is None else wanted & holds
        return wanted


def clean(name: str) -> str:
    """A name in a form that Spark can hold: replacement characters stand for octets that are not UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _holds(kind: str, mine: Any, value: Any) -> bool:
    return mine in value if kind == "In" else bool(OPERATORS[kind](mine, value))


def _base_seq(source: Source, triple: Triple) -> int | None:
    """The first number that a segment can hold; None if its header cannot be read."""
    try:
        head = source.read(triple.msgs, 0, HEADER_OCTETS)
    except OSError:
        return None
    if len(head) < HEADER_OCTETS:
        return None
    fixed = head[:SEGMENT_CRC_END]
    magic, _, number, base_seq, _, _ = SEGMENT_FIXED.unpack(fixed)
    whole = crc32c(fixed) == int.from_bytes(head[SEGMENT_CRC_END:SEGMENT_CRC_END + 4], "little")
    return base_seq if whole and magic == SEGMENT_MAGIC and number == triple.number else None
