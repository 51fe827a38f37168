"""Makes the tables of the source ``brokerd``: their columns, and Arrow batches of rows from one triple.

    messages    a row for each record, damaged ones included (``sound`` false)
    events      a row for each event of a journal; type "started", without seq: the broker started, or the journal was
                switched on or off
    lifecycle   a row for each sound record: the life of its message
    segments    a row for each segment

Makes only the requested columns, and reads no file for those that names and sizes give.  Knows nothing of Spark's
sessions and tasks; of Spark itself it knows only names of types.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from brokerd.audit import AuditError
from brokerd.audit import layout as shapes
from brokerd.audit.files import Source, Triple
from brokerd.audit.lifecycle import CAUSES, ENDED, REASONS, Lives, lives
from brokerd.audit.properties import ROUTING_KEY, Texts, texts
from brokerd.audit.segment import SegmentData, read_triple
from brokerd.spark.bounds import Bounds, clean
from brokerd.store import format as layout
from brokerd.store import reading

_OF_ALL = {"vhost": "string", "queue": "string", "priority": "int", "segment": "bigint"}
_PUBLISHER = {"connection": "bigint", "channel": "int", "publish_seq": "bigint"}
TABLES: dict[str, dict[str, str]] = {
    "messages": {
        **_OF_ALL, "position": "bigint", "seq": "bigint", "ts": "bigint", "time": "timestamp", **_PUBLISHER,
        "exchange": "string", "routing_key": "string", "message_id": "string", "body_octets": "bigint",
        "persistent": "boolean", "sound": "boolean",
    },
    "events": {
        **_OF_ALL, "seq": "bigint", "ts": "bigint", "time": "timestamp", "type": "string", "reason": "string",
        "consumer": "bigint", "delivery_tag": "bigint", "count": "int", "redelivered": "boolean",
        "by_get": "boolean", "before_start": "boolean", "run": "int",
    },
    "lifecycle": {
        **_OF_ALL, "position": "bigint", "seq": "bigint", "published": "bigint", "first_delivered": "bigint",
        "last_delivered": "bigint", "settled": "bigint", "deliveries": "int", "returns": "int", "ended": "string",
        "reason": "string", **_PUBLISHER, "body_octets": "bigint", "covered": "boolean",
    },
    "segments": {
        **_OF_ALL, "file": "string", "kept": "boolean", "generation": "int", "base_seq": "bigint",
        "records": "bigint", "first_seq": "bigint", "last_seq": "bigint", "first_ts": "bigint", "last_ts": "bigint",
        "octets": "bigint", "entries": "bigint", "settled": "bigint", "events": "bigint", "lost": "bigint",
        "begun": "bigint", "damage": "string",
    },
}
ARROW = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "boolean": pa.bool_(),
         "timestamp": pa.timestamp("us", "UTC")}
EVENT_TYPES = [None, "acked", "rejected", "returned", "dead-lettered", "expired", "dropped", "purged", "delivered",
               "started"]
STARTS = [None, "restarted", "power lost", "switched on", "switched off"]
ROWS_MAX = 1 << 17              # in one batch


def ddl(table: str, columns: Sequence[str] | None = None) -> str:
    """The schema of a table, or of these ``columns`` in this order, as Spark writes it.  Raises AuditError."""
    types = TABLES[table]
    for column in columns or ():
        if column not in types:
            raise AuditError(f"table {table} has no column {column} (it has {', '.join(types)})")
    return ", ".join(f"{column} {types[column]}" for column in columns or types)


def arrow_schema(table: str, schema: Any) -> pa.Schema:
    """The Arrow schema for a StructType of Spark.  Raises AuditError for a column or type that the table lacks."""
    types, fields = TABLES[table], []
    for field in schema.fields:
        ddl(table, [field.name])
        if field.dataType.simpleString() != types[field.name]:
            raise AuditError(f"column {field.name} of table {table} is {types[field.name]}, "
                             f"not {field.dataType.simpleString()}")
        fields.append(pa.field(field.name, ARROW[types[field.name]], nullable=field.nullable))
    return pa.schema(fields)


def batches(table: str, source: Source, triple: Triple, schema: pa.Schema, *, crc: bool = True,
            bounds: Bounds | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of one triple.  A segment that a running broker has removed meanwhile has no rows."""
    segment = READINGS[table](source, triple, crc, bounds)
    count = segment.count
    if count == 0:
        return
    arrays = [_arrow(segment.column(field.name), field.type, count) for field in schema]
    whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
    for start in range(0, count, ROWS_MAX):
        yield whole.slice(start, ROWS_MAX)


def _arrow(values: Any, kind: pa.DataType, count: int) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, str):
        values = clean(values)
    if not isinstance(values, np.ndarray):
        return pa.repeat(pa.scalar(values, kind), count)
    if pa.types.is_timestamp(kind):
        return pa.array(values.astype(np.int64) // 1000).cast(kind)
    return pa.array(values.astype(kind.to_pandas_dtype(), copy=False))


def _or_null(values: np.ndarray, kind: Any = np.int64) -> pa.Array:
    """The values, with null for each zero."""
    return pa.array(values.astype(kind), mask=values == 0)


def _named(names: Sequence[str | None], codes: np.ndarray) -> pa.Array:
    known = pa.array([name or None for name in names] + [None], pa.string())
    return known.take(pa.array(np.minimum(codes.astype(np.int64), len(names))))


class Reading:
    """One triple being read for a table; a column is a method ``_name``, or else a constant of the triple."""

    def __init__(self, source: Source, triple: Triple, crc: bool, bounds: Bounds | None) -> None:
        self.source, self.triple, self.crc, self.bounds = source, triple, crc, bounds

    @cached_property
    def data(self) -> SegmentData:
        """The content of the triple, which the first use reads."""
        return read_triple(self.source, self.triple, crc=self.crc)

    @property
    def count(self) -> int:
        """Rows."""
        raise NotImplementedError

    def column(self, name: str) -> Any:
        """An array, or one value that all rows have."""
        method: Callable[[], Any] | None = getattr(self, f"_{name}", None)
        if method is not None:
            return method()
        return {"vhost": self.triple.vhost, "queue": self.triple.queue, "priority": self.triple.priority,
                "segment": self.triple.number}[name]

    def wanted(self, seq: np.ndarray) -> np.ndarray:
        """Indices of the rows that the query's filters let through."""
        rows = self.bounds.rows(seq.astype(np.int64)) if self.bounds is not None else None
        return np.arange(seq.size) if rows is None else np.flatnonzero(rows)


class Messages(Reading):
    """Records."""

    @cached_property
    def _rows(self) -> np.ndarray:
        rows = self.wanted(self.data.headers["seq"])
        return rows[self.data.sound[rows]] if self.bounds is not None and self.bounds.sound_only else rows

    @cached_property
    def _records(self) -> reading.Records:
        return reading.Records(self.data.headers[self._rows], self.data.positions[self._rows], [])

    @property
    def count(self) -> int:
        return int(self._rows.size)

    def _position(self) -> Any:
        return self._records.positions

    def _seq(self) -> Any:
        return self._records.headers["seq"]

    def _ts(self) -> Any:
        return self._records.headers["ts"]

    _time = _ts

    def _connection(self) -> Any:
        return self._records.headers["connection"]

    def _channel(self) -> Any:
        return self._records.headers["channel"]

    def _publish_seq(self) -> Any:
        return self._records.headers["publish_seq"]

    def _exchange(self) -> Any:
        octets = np.frombuffer(self.data.octets, np.uint8)
        long = self._records.headers["meta_len"] == layout.LONG_META
        at = np.minimum(self._records.positions + layout.HEADER_OCTETS + 4 * long, octets.size - 1)
        return strings(self.data.octets, Texts(np.arange(at.size), at + 1, octets[at].astype(np.int64)), self.count)

    def _routing_key(self) -> Any:
        return strings(self.data.octets, texts(self.data.octets, self._records, ROUTING_KEY), self.count)

    def _message_id(self) -> Any:
        return strings(self.data.octets, texts(self.data.octets, self._records, "message-id"), self.count)

    def _body_octets(self) -> Any:
        return reading.body_octets(self.data.octets, self._records)

    def _persistent(self) -> Any:
        return self._records.headers["flags"] & layout.PERSISTENT != 0

    def _sound(self) -> Any:
        return self.data.sound[self._rows]


class Events(Reading):
    """Events, and those of type "started"."""

    @cached_property
    def _all(self) -> np.ndarray:
        starts, start_places = self._starts()
        events = np.concatenate((self.data.events, starts))
        places = np.concatenate((self.data.event_places, start_places))
        order = np.argsort(events["ts"], kind="stable")
        if self.bounds is not None and self.bounds.places is not None:
            first, after = (layout.HEADER_OCTETS + layout.EVENT_OCTETS * index for index in self.bounds.places)
            order = order[(places[order] >= first) & (places[order] < after)]
        if self.bounds is not None and self.bounds.of_seq:
            order = order[events["type"][order] != layout.STARTED]
            order = order[self.wanted(events["seq"][order])]
        return events[order]

    def _starts(self) -> tuple[np.ndarray, np.ndarray]:
        """The events of type STARTED and their offsets; ``SegmentData`` does not have them among its events."""
        octets = b""
        if self.data.runs.size or self.data.gaps:
            try:
                octets = self.source.read(self.triple.journal or "", layout.HEADER_OCTETS)
            except OSError:
                pass                            # The broker has just moved the file: the next reading finds it.
        events = np.frombuffer(octets, shapes.EVENT, len(octets) // layout.EVENT_OCTETS)
        index = np.flatnonzero(events["type"] == layout.STARTED)
        index = index[shapes.event_checks(events[index], self.triple.number)]
        return events[index], layout.HEADER_OCTETS + layout.EVENT_OCTETS * index

    @property
    def count(self) -> int:
        return int(self._all.size)

    def _delivered(self) -> np.ndarray:
        return self._all["type"] == layout.DELIVERED

    def _bit(self, bit: int) -> np.ndarray:
        return self._delivered() & (self._all["reason"] & bit != 0)

    def _seq(self) -> Any:
        return pa.array(self._all["seq"].astype(np.int64), mask=self._all["type"] == layout.STARTED)

    def _ts(self) -> Any:
        return self._all["ts"]

    _time = _ts

    def _type(self) -> Any:
        return _named(EVENT_TYPES, self._all["type"])

    def _reason(self) -> Any:
        """The reason as text: the cause of a return, the kind of a start; null for a delivery, which has columns for
        its bits."""
        type_, why = self._all["type"], self._all["reason"].astype(np.int64)
        names = [None, *CAUSES[1:], *REASONS[1:], *STARTS[1:]]
        bases = np.zeros(16, np.int64)
        bases[layout.RETURNED] = 1
        bases[layout.DEAD_LETTERED] = bases[layout.DROPPED] = len(CAUSES)
        bases[layout.STARTED] = len(CAUSES) + len(REASONS) - 1
        counts = np.zeros(16, np.int64)
        counts[layout.RETURNED] = len(CAUSES) - 1
        counts[layout.DEAD_LETTERED] = counts[layout.DROPPED] = len(REASONS) - 1
        counts[layout.STARTED] = len(STARTS) - 1
        known = (why > 0) & (why <= counts[type_])
        return _named(names, np.where(known, bases[type_] + why - 1, 0))

    def _consumer(self) -> Any:
        return _or_null(self._all["consumer"])

    def _delivery_tag(self) -> Any:
        return pa.array(self._all["aux"].astype(np.int64), mask=~self._delivered())

    def _count(self) -> Any:
        return self._all["count"]

    def _redelivered(self) -> Any:
        return self._bit(layout.REDELIVERED)

    def _by_get(self) -> Any:
        return self._bit(layout.BY_GET)

    def _before_start(self) -> Any:
        return self._bit(layout.BEFORE_START)

    def _run(self) -> Any:
        """How many starts the journal has before the event; comparable only within a segment."""
        return np.searchsorted(self.data.runs, self._all["ts"], "right")


class Lifecycle(Reading):
    """One row for the life of each message."""

    @cached_property
    def _lives(self) -> Lives:
        return lives(self.data)

    @cached_property
    def _rows(self) -> np.ndarray:
        known = np.flatnonzero(self._lives.record >= 0)
        return known[self.wanted(self._lives.seq[known])]

    @cached_property
    def _headers(self) -> np.ndarray:
        return self.data.headers[self._record()]

    @property
    def count(self) -> int:
        return int(self._rows.size)

    def _record(self) -> np.ndarray:
        return self._lives.record[self._rows]

    def column(self, name: str) -> Any:
        if name in ("seq", "published", "deliveries", "returns", "covered"):
            return getattr(self._lives, name)[self._rows]
        if name in ("last_delivered", "settled"):
            return _or_null(getattr(self._lives, name)[self._rows])
        if name in ("connection", "channel", "publish_seq"):
            return self._headers[name]
        return super().column(name)

    def _position(self) -> Any:
        return self.data.positions[self._record()]

    def _first_delivered(self) -> Any:
        return _or_null(self._lives.first[self._rows])

    def _ended(self) -> Any:
        return _named(ENDED, self._lives.ended[self._rows])

    def _reason(self) -> Any:
        ended, why = self._lives.ended[self._rows], self._lives.reason[self._rows]
        named = (ended == layout.DEAD_LETTERED) | (ended == layout.DROPPED)
        return _named(REASONS, np.where(named, np.minimum(why, len(REASONS)), 0))

    def _body_octets(self) -> Any:
        return reading.body_octets(self.data.octets, self.data.records)[self._record()]


class Segments(Reading):
    """The segment itself."""

    FROM_NAMES = {"file": "msgs", "kept": "kept", "octets": "octets"}

    @property
    def count(self) -> int:
        return 1

    def column(self, name: str) -> Any:
        if name in self.FROM_NAMES:
            return getattr(self.triple, self.FROM_NAMES[name])
        if name in ("generation", "base_seq", "begun"):
            return getattr(self.data, name)
        return super().column(name)

    def _records(self) -> Any:
        return int(self.data.headers.size)

    def _entries(self) -> Any:
        return int(self.data.entries.size)

    def _settled(self) -> Any:
        return int(np.isin(reading.settled_positions(self.data.entries), self.data.positions).sum())

    def _events(self) -> Any:
        return int(self.data.events.size)

    def _lost(self) -> Any:
        """How many events a full disk lost; null without a journal."""
        if self.data.begun is None:
            return None
        try:
            head = self.source.read(self.triple.journal or "", 0, layout.HEADER_OCTETS)
        except OSError:
            return None
        return int(np.frombuffer(head, shapes.JOURNAL)[0]["lost"]) if len(head) == layout.HEADER_OCTETS else None

    def _damage(self) -> Any:
        return "; ".join(f"{d.file.rpartition('/')[2]} {d.detail}" for d in self.data.damage) or None

    def _end(self, field: str, index: int) -> int | None:
        sound = self.data.headers[field][self.data.sound]
        return int(sound[index]) if sound.size else None

    def _first_seq(self) -> Any:
        return self._end("seq", 0)

    def _last_seq(self) -> Any:
        return self._end("seq", -1)

    def _first_ts(self) -> Any:
        return self._end("ts", 0)

    def _last_ts(self) -> Any:
        return self._end("ts", -1)


READINGS: dict[str, type[Reading]] = {"messages": Messages, "events": Events, "lifecycle": Lifecycle,
                                      "segments": Segments}


def strings(octets: bytes, where: Texts, count: int) -> pa.Array:
    """The strings at those places as a column of ``count`` rows, null for rows without a string.

    Replacement characters stand for octets that are not UTF-8, because Python could not read Spark's version of them.
    """
    inside = (where.start + where.length <= len(octets))
    index, start, length = where.index[inside], where.start[inside], where.length[inside]
    lengths = np.zeros(count, np.int64)
    lengths[index] = length
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    place = np.repeat(start - offsets[index], length) + np.arange(int(offsets[-1]))
    packed = np.frombuffer(octets, np.uint8)[place]
    valid = np.zeros(count, bool)
    valid[index] = True
    made = pa.Array.from_buffers(pa.string(), count, [
        pa.py_buffer(np.packbits(valid, bitorder="little")), pa.py_buffer(offsets.astype(np.int32)),
        pa.py_buffer(packed)])
    try:
        made.validate(full=True)
    except pa.ArrowInvalid:
        raw = made.cast(pa.binary())
        made = pa.array([None if text is None else text.decode("utf-8", "replace") for text in raw.to_pylist()],
                        pa.string())
    return made
