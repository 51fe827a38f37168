"""Makes the tables of the source ``brokerd``: their columns, and Arrow batches of rows from one triple.

    messages    a row for each record, damaged ones included (``sound`` false)
    events      a row for each event of a journal; type "started", without seq: a start, or a switch of the journal
    lifecycle   a row for each sound record: the life of its message
    segments    a row for each segment; ``whole``: its journal has every event since it was made
    acks        a row for each entry of an acks file, in order; ``last``: of a file that a broker may be writing to, the
                last one, whose event it may not have written yet

Makes only the columns asked for, and reads no file for those that names and sizes give.  Knows nothing of tasks.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from brokerd.audit import AuditError, clean, figures, words
from brokerd.audit import layout as shapes
from brokerd.audit.arrays import as_signed
from brokerd.audit.deliveries import expirations, may_have_been_out
from brokerd.audit.fetch import read_head
from brokerd.audit.files import FOREVER, Source, Triple
from brokerd.audit.lifecycle import CAUSES, ENDED, REASONS, Lives, lives, messages_of
from brokerd.audit.properties import ROUTING_KEY, Texts, priorities, texts
from brokerd.audit.segment import SegmentData, read_events, read_triple
from brokerd.spark.bounds import Bounds
from brokerd.spark.contents import ASKED, Contents
from brokerd.store import format as layout
from brokerd.store import reading

_OF_ALL = {"vhost": "string", "queue": "string", "priority": "int", "segment": "bigint"}
_PUBLISHER = {"connection": "bigint", "channel": "int", "publish_seq": "bigint"}
TABLES: dict[str, dict[str, str]] = {
    "messages": {
        **_OF_ALL, "position": "bigint", "seq": "bigint", "ts": "bigint", "time": "timestamp", **_PUBLISHER,
        "exchange": "string", "routing_key": "string", "message_id": "string", "body_octets": "bigint",
        "persistent": "boolean", "sound": "boolean", "own_priority": "int", "said_priority": "int",
        "expiration_ms": "bigint",
    },
    "events": {
        **_OF_ALL, "seq": "bigint", "ts": "bigint", "time": "timestamp", "type": "string", "reason": "string",
        "consumer": "bigint", "delivery_tag": "bigint", "count": "int", "redelivered": "boolean",
        "by_get": "boolean", "before_start": "boolean", "no_ack": "boolean", "run": "int", "position": "bigint",
    },
    "lifecycle": {
        **_OF_ALL, "position": "bigint", "seq": "bigint", "published": "bigint", "first_delivered": "bigint",
        "last_delivered": "bigint", "settled": "bigint", "deliveries": "int", "returns": "int", "ended": "string",
        "reason": "string", **_PUBLISHER, "body_octets": "bigint", "covered": "boolean", "redriven": "boolean",
        "unseen": "boolean",
    },
    "segments": {
        **_OF_ALL, "file": "string", "kept": "boolean", "generation": "int", "base_seq": "bigint", "records": "bigint",
        "first_seq": "bigint", "last_seq": "bigint", "first_ts": "bigint", "last_ts": "bigint", "octets": "bigint",
        "entries": "bigint", "settled": "bigint", "events": "bigint", "lost": "bigint", "begun": "bigint",
        "whole": "boolean", "damage": "string", "said_records": "bigint", "said_sealed": "bigint",
        "said_settled": "bigint", "said_entries": "bigint", "said_passed": "bigint", "open": "boolean",
        "written": "bigint", "more_records": "boolean", "more_events": "boolean", "more_passed": "boolean",
        "said_doubted": "bigint", "again": "string", "late": "boolean", "stopped": "boolean",
    },
    "acks": {
        **_OF_ALL, "entry": "bigint", "position": "bigint", "seq": "bigint", "type": "string", "reason": "string",
        "count": "int", "last": "boolean",
    },
}
ARROW = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "boolean": pa.bool_(),
         "timestamp": pa.timestamp("us", "UTC"), "binary": pa.binary()}
EVENT_TYPES = [None, "acked", "rejected", "returned", "dead-lettered", "expired", "dropped", "purged", "delivered",
               "started"]
ENTRY_TYPES = [*EVENT_TYPES[:8], "handed out", None, "set aside", "parked", "retry time", "replayed"]
STARTS = [None, "restarted", "power lost", "switched on", "switched off"]
ROWS_MAX = 1 << 17              # in one batch
ALIKE_OCTETS_MAX = 64           # longer strings of one length are gathered as strings of any length are


def ddl(table: str, columns: Sequence[str] | None = None) -> str:
    """The schema of a table, or of these ``columns`` in this order, as Spark writes it.  Raises AuditError."""
    types = TABLES[table] | (ASKED.get(table, {}) if columns else {})
    for column in columns or ():
        if column not in types:
            raise AuditError(f"table {table} has no column {column} (it has {', '.join(types)})")
    return ", ".join(f"{column} {types[column]}" for column in columns or types)


def arrow_schema(table: str, schema: Any) -> pa.Schema:
    """The Arrow schema for a StructType of Spark.  Raises AuditError for a column or type that the table lacks."""
    types, fields = TABLES[table] | ASKED.get(table, {}), []
    for field in schema.fields:
        ddl(table, [field.name])
        if field.dataType.simpleString() != types[field.name]:
            raise AuditError(f"column {field.name} of table {table} is {types[field.name]}, "
                             f"not {field.dataType.simpleString()}")
        fields.append(pa.field(field.name, ARROW[types[field.name]], nullable=field.nullable))
    return pa.schema(fields)


def batches(table: str, source: Source, triple: Triple, schema: pa.Schema, *, crc: bool = True,
            bounds: Bounds | None = None, data: SegmentData | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of one triple.  A segment that a running broker has removed meanwhile has no rows.

    ``data``: the content of the triple, if the caller has read it.
    """
    segment = READINGS[table](source, triple, crc, bounds)
    if data is not None:
        segment.data = data
    for condition in bounds.by_cost() if bounds is not None else ():
        if segment.count:
            values = _arrow(segment.column(condition.column), ARROW[TABLES[table][condition.column]], segment.count)
            keep = condition.rows(values)
            if not keep.all():
                segment.narrow(keep)
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

    def narrow(self, keep: np.ndarray) -> None:
        """Leave out all rows but those for which ``keep`` is true."""
        raise NotImplementedError


class Messages(Contents, Reading):
    """Records."""

    @cached_property
    def data(self) -> SegmentData:
        """The records of the triple.  Its acks and its journal are not read: no column needs them."""
        return read_triple(self.source, self.triple._replace(acks=None, journal=None), crc=self.crc)

    @cached_property
    def _rows(self) -> np.ndarray:
        if self.bounds is not None and self.bounds.sound_only:
            return np.flatnonzero(self.data.sound)
        return np.arange(self.data.headers.size)

    def narrow(self, keep: np.ndarray) -> None:
        self._rows = self._rows[keep]
        self.__dict__.pop("_records", None)

    @cached_property
    def _records(self) -> reading.Records:
        if self._rows.size == self.data.headers.size:
            return self.data.records            # All are wanted: a copy would take longer than all the rest.
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
        return as_signed(self._records.headers["publish_seq"])

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

    def _own_priority(self) -> Any:
        """The priority that the message was published with, which may be above the queue's highest level."""
        return self._records.headers["priority"]

    def _said_priority(self) -> Any:
        """The priority in the message's properties; 0 without one."""
        return priorities(self.data.octets, self._records)

    def _expiration_ms(self) -> Any:
        own = expirations(self.data)
        if own is None:
            return pa.nulls(self.count, pa.int64())
        return pa.array(own[self._rows] // 1_000_000, mask=own[self._rows] == FOREVER)


class Events(Reading):
    """Events, and those of type "started"."""

    @cached_property
    def data(self) -> Any:
        """The journal of the triple.  As a rule its records are not read: no column needs them."""
        return read_events(self.source, self.triple, crc=self.crc)

    @cached_property
    def _placed(self) -> tuple[np.ndarray, np.ndarray]:
        """The events by time, of one time as they stand in the file; and their offsets."""
        starts, start_places = self._starts()
        events, places = self.data.events, self.data.event_places if isinstance(
            self.data, SegmentData) else self.data.places
        if not starts.size and (self.bounds is None or self.bounds.places is None) and (
                events["ts"][1:] >= events["ts"][:-1]).all():
            return events, places               # They stand in order.
        events = np.concatenate((events, starts))
        places = np.concatenate((places, start_places))
        order = np.lexsort((places, events["ts"]))
        if self.bounds is not None and self.bounds.places is not None:
            first, after = (layout.HEADER_OCTETS + layout.EVENT_OCTETS * index for index in self.bounds.places)
            order = order[(places[order] >= first) & (places[order] < after)]
        return events[order], places[order]

    @property
    def _all(self) -> np.ndarray:
        return self._placed[0]

    def narrow(self, keep: np.ndarray) -> None:
        self._placed = self._placed[0][keep], self._placed[1][keep]

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
        if self.triple.cut is not None:
            index = index[events["ts"][index] <= self.triple.cut]
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
        counts = np.where(np.arange(16) == layout.RETURNED, len(CAUSES) - 1, 0)
        counts[layout.DEAD_LETTERED] = counts[layout.DROPPED] = len(REASONS) - 1
        counts[layout.STARTED] = len(STARTS) - 1
        known = (why > 0) & (why <= counts[type_])
        return _named(names, np.where(known, bases[type_] + why - 1, 0))

    def _consumer(self) -> Any:
        return _or_null(self._all["consumer"])

    def _position(self) -> Any:
        return self._placed[1]

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

    def _no_ack(self) -> Any:
        return self._bit(layout.WITHOUT_ACK)

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
        return np.flatnonzero(self._lives.record >= 0)

    def narrow(self, keep: np.ndarray) -> None:
        self._rows = self._rows[keep]
        self.__dict__.pop("_headers", None)

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
        if name in ("first_delivered", "last_delivered", "settled"):
            return _or_null(getattr(self._lives, "first" if name == "first_delivered" else name)[self._rows])
        if name in ("connection", "channel", "publish_seq"):
            return as_signed(self._headers[name])
        return super().column(name)

    def _position(self) -> Any:
        return self.data.positions[self._record()]

    def _redriven(self) -> Any:
        return self._headers["flags"] & layout.REDRIVEN != 0

    def _unseen(self) -> Any:
        return may_have_been_out(self.data, self._lives)[self._rows]

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

    FROM_NAMES = {"file": "msgs", "kept": "kept", "octets": "octets", "stopped": "stopped"}
    _wanted = True

    @property
    def count(self) -> int:
        return int(self._wanted)

    def narrow(self, keep: np.ndarray) -> None:
        self._wanted = bool(keep.all())

    def column(self, name: str) -> Any:
        if name in self.FROM_NAMES:
            return getattr(self.triple, self.FROM_NAMES[name])
        if name == "open":      # A broker may be at work on it.
            return self.triple.cut is not None
        if name == "said_passed":       # Below this position the cursor has passed all records.
            return self.data.delivered_below if self.triple.acks is not None else None
        if name == "said_doubted":      # And below this one, perhaps; 0: no.
            return self.data.doubted_below
        if name in ("generation", "base_seq", "begun", "late"):
            return getattr(self.data, name)
        if name in ("first_seq", "last_seq", "first_ts", "last_ts"):
            return self._end(name.partition("_")[2], -1 if name.startswith("last") else 0)
        if name.startswith(("said_", "more_")):     # -1: the word in the header is not whole; null: it is absent.
            return getattr(self._words, name.removeprefix("said_"))
        return super().column(name)

    def _whole(self) -> Any:
        return self.data.journal_is_whole

    def _records(self) -> Any:
        return int(self.data.headers.size)

    def _entries(self) -> Any:
        return int(self.data.entries.size)

    def _written(self) -> Any:
        return self.data.entries_written

    def _settled(self) -> Any:
        return words.settled_records(self.data)

    def _events(self) -> Any:
        return int(self.data.events.size)

    def _lost(self) -> Any:
        """How many events a full disk lost; null without a journal."""
        head = read_head(self.source, self.triple.journal or "") if self.data.begun is not None else b""
        return int(np.frombuffer(head, shapes.JOURNAL)[0]["lost"]) if len(head) == layout.HEADER_OCTETS else None

    @cached_property
    def _words(self) -> words.Words:
        return words.words_of(self.source, self.data)

    def _damage(self) -> Any:
        return "; ".join(f"{d.file.rpartition('/')[2]} {d.detail}" for d in self.data.damage) or None

    def _end(self, field: str, index: int) -> int | None:
        sound = self.data.headers[field][self.data.sound]
        return int(sound[index]) if sound.size else None

    def _again(self) -> Any:
        """The counts of ``figures`` for messages since their replays, counters and standing; null without replays."""
        if not self.data.events_again.size:
            return None
        counts = (figures.counters_again(self.data.events_again), figures.standing_again(self.data))
        return " ".join(map(str, np.concatenate(counts).tolist()))


class Acks(Reading):
    """Entries of the acks file."""

    @cached_property
    def _seqs(self) -> np.ndarray:
        """The number of the message of each entry; 0: no record is at its position."""
        life = lives(self.data)
        of = messages_of(self.data, life.record, self.data.entries)
        return np.where(of >= 0, life.seq[of] if life.seq.size else 0, 0)

    @cached_property
    def _rows(self) -> np.ndarray:
        return np.arange(self.data.entries.size)

    def narrow(self, keep: np.ndarray) -> None:
        self._rows = self._rows[keep]

    @property
    def count(self) -> int:
        return int(self._rows.size)

    def _entry(self) -> Any:
        return self._rows

    def _position(self) -> Any:
        return self.data.entries["position"][self._rows]

    def _seq(self) -> Any:
        return _or_null(self._seqs[self._rows])

    def _type(self) -> Any:
        return _named(ENTRY_TYPES, self.data.entries["kind"][self._rows] & 0x0F)

    def _reason(self) -> Any:
        kind = self.data.entries["kind"][self._rows]
        return _named([None, *CAUSES[1:], *REASONS[1:]], reason_codes(kind & 0x0F, kind >> 4))

    def _count(self) -> Any:
        return self.data.entries["count"][self._rows]

    def _last(self) -> Any:
        return (self._rows == self.data.entries.size - 1) & (self.triple.cut is not None)


def reason_codes(type_: np.ndarray, why: np.ndarray) -> np.ndarray:
    """Causes of returns from 1 on, and behind them the reasons of deaths; 0 for what has neither."""
    why = why.astype(np.int64)
    cause = (type_ == layout.RETURNED) & (why < len(CAUSES))
    death = np.isin(type_, (layout.DEAD_LETTERED, layout.DROPPED)) & (why > 0) & (why < len(REASONS))
    return np.where(cause, why, np.where(death, len(CAUSES) - 1 + why, 0))


READINGS: dict[str, type[Reading]] = {"messages": Messages, "events": Events, "lifecycle": Lifecycle,
                                      "segments": Segments, "acks": Acks}


def strings(octets: bytes, where: Texts, count: int) -> pa.Array:
    """The strings at those places as a column of ``count`` rows, null for rows without a string.

    Replacement characters stand for octets that are not UTF-8, because Python could not read Spark's version of them.
    """
    inside = (where.start + where.length <= len(octets))
    index, start, length = where.index[inside], where.start[inside], where.length[inside]
    if index.size == count and count and (length == length[0]).all() and 0 < length[0] <= ALIKE_OCTETS_MAX:
        return _checked(_alike(octets, start, int(length[0])))
    lengths = np.zeros(count, np.int64)
    lengths[index] = length
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    place = np.repeat(start - offsets[index], length) + np.arange(int(offsets[-1]))
    packed = np.frombuffer(octets, np.uint8)[place]
    valid = np.zeros(count, bool)
    valid[index] = True
    return _checked(pa.Array.from_buffers(pa.string(), count, [
        pa.py_buffer(np.packbits(valid, bitorder="little")), pa.py_buffer(offsets.astype(np.int32)),
        pa.py_buffer(packed)]))


def _alike(octets: bytes, start: np.ndarray, length: int) -> pa.Array:
    """Strings of one length, gathered eight octets at a time; of equal ones only the first is gathered whole."""
    words = np.ndarray((len(octets) + 1,), "<u8", octets + bytes(8), 0, (1,))
    count, width = start.size, -(-length // 8)
    packed = np.empty((count, width), "<u8")
    for column in range(width):
        packed[:, column] = words[start + 8 * column]
    texts_ = packed.view(np.uint8).reshape(count, 8 * width)[:, :length]
    if (texts_ == texts_[0]).all():
        one = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(np.array([0, length], np.int32)),
                                                     pa.py_buffer(texts_[0].copy())])
        return _checked(one).take(pa.array(np.zeros(count, np.int32)))
    return pa.Array.from_buffers(pa.string(), count, [
        None, pa.py_buffer(np.arange(count + 1, dtype=np.int32) * length), pa.py_buffer(np.ascontiguousarray(texts_))])


def _checked(made: pa.Array) -> pa.Array:
    """The strings, with replacement characters for octets that are not UTF-8."""
    try:
        made.validate(full=True)
    except pa.ArrowInvalid:
        raw = made.cast(pa.binary())
        made = pa.array([None if text is None else text.decode("utf-8", "replace") for text in raw.to_pylist()],
                        pa.string())
    return made
