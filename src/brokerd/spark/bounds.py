"""Selects files and rows by the filters of a query, which ``query`` finds.

Comparisons of ``vhost``, ``queue``, ``priority`` and ``segment`` leave out whole files.  Comparisons of ``seq`` and of
times leave out files and rows: the numbers and times in the files of one level rise, so the begins of two neighbours
bound the rows between them.  All other comparisons leave out rows, before any other column of them is made.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from glob import escape
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from brokerd.audit import clean
from brokerd.audit import layout as shapes
from brokerd.audit.files import Source, Triple
from brokerd.store.format import (
    EVENT_OCTETS,
    HEADER_OCTETS,
    RECORD_MAGIC,
    SEGMENT_CRC_END,
    SEGMENT_FIXED,
    SEGMENT_MAGIC,
    crc32c,
    word_ok,
)

ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "EqualTo": operator.eq, "GreaterThan": operator.gt, "GreaterThanOrEqual": operator.ge, "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
}
TEXTS: dict[str, Callable[[str, str], bool]] = {
    "StringStartsWith": str.startswith, "StringEndsWith": str.endswith, "StringContains": operator.contains,
}
NULLS = ("IsNull", "IsNotNull")
OF_FILES: dict[str, Callable[[Triple], Any]] = {
    "vhost": lambda triple: clean(triple.vhost), "queue": lambda triple: clean(triple.queue),
    "priority": lambda triple: triple.priority, "segment": lambda triple: triple.number,
}
TYPES: dict[str, type] = {"string": str, "int": int, "bigint": int, "boolean": bool, "timestamp": int}
RISING = ("seq", "ts", "time", "published")     # columns that rise in the records of a level
FOREVER = (1 << 63) - 1


class Condition(NamedTuple):
    """A filter that wanted rows meet.  ``kind`` is the name of its class in Spark.  ``value`` is a list if that is In;
    a timestamp is µs since the epoch."""

    column: str
    kind: str
    value: Any = None
    negated: bool = False

    def holds(self, mine: Any) -> bool:
        """Whether a value that is not null meets it."""
        if self.kind in NULLS:
            met = self.kind == "IsNotNull"
        elif self.kind == "In":
            met = mine in self.value
        else:
            met = bool((ORDERS | TEXTS)[self.kind](mine, self.value))
        return met != self.negated

    def rows(self, values: Any) -> np.ndarray:
        """Which values of an Arrow array meet it, as booleans; as in SQL, a null meets nothing but IsNull."""
        import pyarrow as pa
        from pyarrow import compute

        if self.kind in NULLS:
            met = compute.is_null(values) if self.kind == "IsNull" else compute.is_valid(values)
        elif self.kind == "In":
            met = compute.if_else(values.is_valid(), compute.is_in(values, pa.array(self.value, values.type)), None)
        elif self.kind in ORDERS:
            name = {"EqualTo": "equal", "GreaterThan": "greater", "GreaterThanOrEqual": "greater_equal",
                    "LessThan": "less", "LessThanOrEqual": "less_equal"}[self.kind]
            met = compute.call_function(name, [values, pa.scalar(self.value, values.type)])
        else:
            name = {"StringStartsWith": "starts_with", "StringEndsWith": "ends_with",
                    "StringContains": "match_substring"}[self.kind]
            met = getattr(compute, name)(values, self.value)
        if self.negated:
            met = compute.invert(met)
        return np.asarray(met.fill_null(False))

    def span(self) -> tuple[int, int]:
        """The lowest and the highest ns or number that can meet it, if its values are of that kind."""
        if self.negated or self.kind in (*NULLS, *TEXTS):
            return 0, FOREVER
        unit = 1000 if self.column == "time" else 1
        values = [value * unit for value in (self.value if self.kind == "In" else [self.value])]
        low = min(values, default=FOREVER) if self.kind in ("EqualTo", "In", "GreaterThan", "GreaterThanOrEqual") else 0
        high = max(values, default=-1) if self.kind in ("EqualTo", "In", "LessThan", "LessThanOrEqual") else FOREVER
        if self.column == "time" and high < FOREVER:
            high += 999             # A timestamp leaves out the last three digits of ns.
        return low, high


class Bounds:
    """Conditions that all wanted rows meet.  Picklable.

    ``kinds``: the columns of the table, and their types.  For streams: ``after`` and ``until`` bound ``seq``;
    ``sound_only`` leaves out damaged records; ``places`` has the first wanted event of a journal, and the first one
    after the wanted events.
    """

    def __init__(self, kinds: Mapping[str, str] | None = None, *, after: int | None = None, until: int | None = None,
                 sound_only: bool = False, places: tuple[int, int] | None = None) -> None:
        self.kinds = dict(kinds or {})
        self.sound_only, self.places = sound_only, places
        self.of_files: list[Condition] = []
        self.of_rows: list[Condition] = []
        if after is not None:
            self.of_rows.append(Condition("seq", "GreaterThan", after))
        if until is not None:
            self.of_rows.append(Condition("seq", "LessThanOrEqual", until))

    def take(self, condition: Condition) -> bool:
        """Leave out from now on what does not meet the condition; False if it cannot be judged here as Spark would."""
        if condition.column not in self.kinds or not _is_exact(condition, TYPES[self.kinds[condition.column]]):
            return False
        (self.of_files if condition.column in OF_FILES else self.of_rows).append(condition)
        return True

    def glob(self) -> str | None:
        """A pattern of names that all wanted queues match, for code that lists folders; None: it is not known."""
        for condition in self.of_files:
            if condition.column == "queue" and not condition.negated and "\ufffd" not in str(condition.value):
                if condition.kind == "EqualTo":
                    return escape(condition.value)
                if condition.kind == "StringStartsWith":
                    return escape(condition.value) + "*"
        return None

    def files(self, source: Source, triples: Sequence[Triple], table: str = "messages") -> list[Triple]:
        """The triples that may have wanted rows of that table."""
        chosen = [t for t in triples if all(c.holds(OF_FILES[c.column](t)) for c in self.of_files)]
        if any(c.column == "seq" for c in self.of_rows):
            chosen = _between(chosen, [_base_seq(source, triple) for triple in chosen], *self.span("seq"))
        low, high = self.span("ts", "time", "published")
        if (low, high) == (0, FOREVER):
            return chosen
        if table == "events":
            return [triple for triple in chosen if _overlap(_event_times(source, triple), low, high)]
        return _between(chosen, [_first_time(source, triple) for triple in chosen], low, high)

    def span(self, *columns: str) -> tuple[int, int]:
        """The lowest and the highest number that a wanted row can have in these columns."""
        spans = [condition.span() for condition in self.of_rows if condition.column in columns]
        return max((low for low, _ in spans), default=0), min((high for _, high in spans), default=FOREVER)

    def by_cost(self) -> list[Condition]:
        """The conditions of rows, those first that are quickly judged."""
        return sorted(self.of_rows, key=lambda c: (c.column not in RISING, self.kinds.get(c.column) == "string"))


def _is_exact(condition: Condition, kind: type) -> bool:
    """Whether it means here what it means to Spark."""
    if condition.kind in NULLS:
        return True
    values = condition.value if condition.kind == "In" else [condition.value]
    if not isinstance(values, tuple | list) or not all(_is_a(value, kind) for value in values):
        return False
    return condition.kind in ORDERS or condition.kind == "In" or (condition.kind in TEXTS and kind is str)


def _is_a(value: object, kind: type) -> bool:
    return type(value) is kind and not (isinstance(value, int) and not -FOREVER <= value <= FOREVER)


def _between(triples: Sequence[Triple], firsts: Sequence[int | None], low: int, high: int) -> list[Triple]:
    """Those triples of which something may lie in [low, high], if ``firsts`` has the least of each (None: unknown)."""
    wanted = [first is None or first <= high for first in firsts]
    for index, (one, following) in enumerate(pairwise(triples)):
        after = firsts[index + 1]
        if (one.vhost, one.queue, one.priority) == (following.vhost, following.queue, following.priority):
            wanted[index] &= after is None or after > low
    return [triple for triple, want in zip(triples, wanted, strict=True) if want]


def _overlap(times: tuple[int, int] | None, low: int, high: int) -> bool:
    return times is None or (times[0] <= high and times[1] >= low)


# --- what the begin of a file tells


def _base_seq(source: Source, triple: Triple) -> int | None:
    """The first number that a segment can hold; None if its header cannot be read."""
    head = _octets(source, triple.msgs, 0, HEADER_OCTETS)
    if len(head) < HEADER_OCTETS:
        return None
    fixed = head[:SEGMENT_CRC_END]
    magic, _, number, base_seq, _, _ = SEGMENT_FIXED.unpack(fixed)
    whole = crc32c(fixed) == int.from_bytes(head[SEGMENT_CRC_END:SEGMENT_CRC_END + 4], "little")
    return base_seq if whole and magic == SEGMENT_MAGIC and number == triple.number else None


def _first_time(source: Source, triple: Triple) -> int | None:
    """When the first record of a segment was published; None if it cannot be read."""
    head = _octets(source, triple.msgs, HEADER_OCTETS, HEADER_OCTETS)
    record = np.frombuffer(head, shapes.RECORD)[0] if len(head) == HEADER_OCTETS else None
    return int(record["ts"]) if record is not None and int(record["magic"]) == RECORD_MAGIC else None


def _event_times(source: Source, triple: Triple) -> tuple[int, int] | None:
    """The times of the first and the last event of a journal; None if they are not known."""
    if triple.journal is None:
        return FOREVER, -1      # There are no events.
    head = _octets(source, triple.journal, 0, HEADER_OCTETS + EVENT_OCTETS)
    if len(head) < HEADER_OCTETS + EVENT_OCTETS:
        return None
    header = np.frombuffer(head, shapes.JOURNAL, 1)[0]
    count = int(header["events"])
    if not word_ok(count, int(header["events_complement"])) or not count:
        return None
    tail = _octets(source, triple.journal, HEADER_OCTETS + (count - 1) * EVENT_OCTETS, EVENT_OCTETS)
    ends = np.frombuffer(head[HEADER_OCTETS:] + tail, shapes.EVENT, (EVENT_OCTETS + len(tail)) // EVENT_OCTETS)
    whole = ends.size == 2 and bool(shapes.event_checks(ends, triple.number).all())
    return (int(ends["ts"][0]), int(ends["ts"][1])) if whole else None


def _octets(source: Source, path: str, start: int, length: int) -> bytes:
    try:
        return source.read(path, start, length)
    except OSError:
        return b""              # The broker has just moved it: a task will find it.
