"""Streams messages and events of a live broker; with Spark's checkpoints a stream has neither gaps nor repeats.

The checkpoint has an offset, as JSON, for the folder of each level of a queue (``<vhost>/<queue>[/prio.NNN]``)::

    messages  [segment, end, seq]       the newest segment, its written octets, its last number
    events    {"7": [120, 0], ...}      of each journal that exists: how many events were read, and 1 if it is complete

A batch has the messages above one number and up to another, so a compaction or a move to ``kept`` between planning and
reading changes nothing.  The events of a message go to the journal of its segment, so that many journals grow at once.
Damaged records are left out.

The stream cannot read messages that the broker removed before.  It says so on stderr, or ends the query with the option
``missing=fail``.  A broker that lost its power may give numbers again that were read before; the stream does not read
these numbers again.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from brokerd.audit import AuditError
from brokerd.audit import layout as shapes
from brokerd.audit.fetch import other_place
from brokerd.audit.files import QueueFiles, Source, Triple, open_source
from brokerd.audit.segment import check_records
from brokerd.spark import tables
from brokerd.spark.bounds import Bounds
from brokerd.spark.packs import make_packs
from brokerd.store import format as layout
from brokerd.store import reading

if TYPE_CHECKING:
    from brokerd.spark.source import Settings


class Piece(NamedTuple):
    """Rows of one triple."""

    triple: Triple
    bounds: Bounds


class Pieces(InputPartition):
    """The pieces that one task reads."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.value = pieces


class Level(NamedTuple):
    """One level of one queue, with its files at this moment."""

    queue: QueueFiles
    priority: int
    triples: list[Triple]


def stream_reader(settings: "Settings", schema: StructType) -> DataSourceStreamReader:
    """The stream of a table.  Raises AuditError for a table that cannot be a stream."""
    if settings.table == "messages":
        return MessageStream(settings, schema)
    if settings.table == "events":
        return EventStream(settings, schema)
    raise AuditError(f"table {settings.table} is no stream: messages and events are")


class _Stream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, settings: "Settings", schema: StructType) -> None:
        self.settings = settings
        self.schema = tables.arrow_schema(settings.table, schema)
        self.target: dict[str, Any] | None = None   # With the trigger AvailableNow: the offset at which to end.
        self.stops = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's names, here and below)
        return {}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        reached = self._reach(start) if self.target is None else self.target
        if self.stops:
            self.target = reached
        return reached

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.stops = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        source = open_source(self.settings.path)
        pieces: list[Piece] = []
        for key, level in self._levels(source).items():
            if key in end and end[key] != start.get(key):
                self._tell_missing(key, level, start.get(key))
                pieces += self._pieces(level, start.get(key), end[key])
        for key in start.keys() - self._levels(source).keys():
            if end.get(key) != start[key]:
                self._tell(f"{key} was deleted: what had not been read of it is missing")
        shared = make_packs(pieces, lambda piece: piece.triple.octets, self.settings.split)
        return [Pieces(pack) for pack in shared]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for piece in partition.value:
            yield from tables.batches(self.settings.table, Source(piece.triple.root), piece.triple, self.schema,
                                      crc=self.settings.crc, bounds=piece.bounds)

    def _levels(self, source: Source) -> dict[str, Level]:
        levels: dict[str, Level] = {}
        for queue in source.queues(self.settings.queues):
            for triple in queue.triples:
                folder = triple.msgs.rpartition("/")[0]
                key = folder.removesuffix(layout.KEPT_FOLDER).rstrip("/") or "."
                levels.setdefault(key, Level(queue, triple.priority, [])).triples.append(triple)
        return levels

    def _tell(self, text: str) -> None:
        if self.settings.missing == "fail":
            raise AuditError(text)
        sys.stderr.write(f"brokerd: {text}\n")

    def _reach(self, start: dict[str, Any]) -> dict[str, Any]:
        source = open_source(self.settings.path)
        reached = {}
        for key, level in self._levels(source).items():
            offset = self._offset(source, level, start.get(key))
            if offset is not None:
                reached[key] = offset
        return reached

    def _offset(self, source: Source, level: Level, start: Any) -> Any:
        raise NotImplementedError

    def _pieces(self, level: Level, start: Any, end: Any) -> list[Piece]:
        raise NotImplementedError

    def _tell_missing(self, key: str, level: Level, start: Any) -> None:
        raise NotImplementedError


class MessageStream(_Stream):
    """Rows of ``messages``."""

    def _offset(self, source: Source, level: Level, start: Any) -> Any:
        newest = level.triples[-1]
        head = _header(source, newest.msgs, shapes.SEGMENT)
        if head is None or int(head["magic"]) != layout.SEGMENT_MAGIC or int(head["number"]) != newest.number:
            return start                        # The broker is making the file, or writing over it.
        end = int(head["end"])
        if not layout.word_ok(end, int(head["end_complement"])) or end < layout.HEADER_OCTETS:
            return start
        if start is not None and (start[0] > newest.number or start[:2] == [newest.number, end]):
            return start
        last = self._last_seq(source, newest, end)
        seq = int(head["base_seq"]) - 1 if last is None else last
        return [newest.number, end, max(seq, start[2] if start else 0)]

    def _last_seq(self, source: Source, triple: Triple, end: int) -> int | None:
        octets = _octets(source, triple.msgs, end)
        if octets is None or len(octets) < end:
            return None
        records = reading.scan_records(octets, end)
        sound = check_records(octets, records, triple.number) if self.settings.crc else None
        seqs = records.headers["seq"] if sound is None else records.headers["seq"][sound]
        return int(seqs[-1]) if seqs.size else None

    def _pieces(self, level: Level, start: Any, end: Any) -> list[Piece]:
        first, after = (start[0], start[2]) if start else (0, 0)
        bounds = Bounds(after=after, until=end[2], sound_only=self.settings.crc)
        return [Piece(triple, bounds) for triple in level.triples if first <= triple.number <= end[0]]

    def _tell_missing(self, key: str, level: Level, start: Any) -> None:
        after = start[2] if start else 0
        missing = [line for line in level.queue.removed
                   if line["level"] == level.priority and line["last_seq"] > after]
        if start and missing:
            first, last = max(missing[0]["first_seq"], after + 1), missing[-1]["last_seq"]
            self._tell(f"{key}: messages {first} to {last} were removed before they were read")
        elif start and len({triple.priority for triple in level.queue.triples}) == 1:
            # Without a journal the broker removes settled segments without a trace.  With one level, the numbers
            # show it.
            segment = level.triples[0]
            head = _header(Source(segment.root), segment.msgs, shapes.SEGMENT)
            if head is not None and segment.number > start[0] and int(head["base_seq"]) > after + 1:
                self._tell(f"{key}: messages {after + 1} to {int(head['base_seq']) - 1} were removed before they "
                           "were read")


class EventStream(_Stream):
    """Rows of ``events``."""

    def _offset(self, source: Source, level: Level, start: Any) -> Any:
        done = {number for number, (_, over) in (start or {}).items() if over}
        reached: dict[str, list[int]] = {}
        below = True                            # All journals so far are read to their end: the offset leaves them out.
        floor = int((start or {}).get("below", [0, 0])[0])
        for triple in level.triples:
            number = str(triple.number)
            if triple.number < floor:
                continue
            if below and number in done:
                floor = triple.number + 1
                continue
            below = False
            before = (start or {}).get(number, [0, 0])
            if triple.journal is None:
                continue
            head = _header(source, triple.journal, shapes.JOURNAL)
            count = before[0]
            if head is not None and layout.word_ok(int(head["events"]), int(head["events_complement"])) and int(
                    head["number"]) == triple.number:
                count = max(count, int(head["events"]))
            reached[number] = [count, int(triple.settled)]
        return {"below": [floor, 0], **reached}

    def _pieces(self, level: Level, start: Any, end: Any) -> list[Piece]:
        pieces = []
        for triple in level.triples:
            first = (start or {}).get(str(triple.number), [0, 0])[0]
            after = end.get(str(triple.number), [0, 0])[0]
            if after > first:
                pieces.append(Piece(triple, Bounds(places=(first, after))))
        return pieces

    def _tell_missing(self, key: str, level: Level, start: Any) -> None:
        there = {str(triple.number) for triple in level.triples}
        for number, (count, over) in (start or {}).items():
            if number != "below" and number not in there and not over:
                self._tell(f"{key}: {layout.journal_name(int(number))} was removed when {count} of its events had "
                           "been read")


def _header(source: Source, path: str, kind: np.dtype) -> Any:
    octets = _octets(source, path, layout.HEADER_OCTETS)
    return np.frombuffer(octets, kind)[0] if octets is not None and len(octets) == layout.HEADER_OCTETS else None


def _octets(source: Source, path: str, length: int) -> bytes | None:
    """The first octets of a file, which may just have moved to ``kept``; None: the file is gone."""
    for place in (path, other_place(path)):
        try:
            return source.read(place, 0, length)
        except FileNotFoundError:
            continue
    return None
