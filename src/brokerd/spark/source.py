"""The Spark data source ``brokerd``: segments, acks and journals as tables, which it reads in place and never writes.

    spark.read.format("brokerd").option("table", "events").option("queues", "orders*").load("/var/lib/brokerd")
    spark.readStream.format("brokerd").schema("queue string, seq bigint").load("s3://bucket/archive")

Options: ``table`` (messages, events, lifecycle, segments), ``queues`` (a glob of names or vhost/name), ``crc``
(true: check sums, and leave out rows with a wrong one), ``split`` (octets of files per task), and for streams
``missing`` (say or fail: what to do if the broker removed messages before they were read).  The source produces only
the columns named with ``.schema(...)``, because Spark tells a source written in Python nothing else about columns.

A task reads several whole segments and yields Arrow batches.  ``tables`` lists the tables and makes their columns;
``stream`` follows a live broker.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from brokerd.audit import AuditError
from brokerd.audit.files import Source, Triple, open_source
from brokerd.spark import tables
from brokerd.spark.bounds import Bounds
from brokerd.spark.packs import SPLIT_OCTETS, make_packs
from brokerd.spark.stream import stream_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OPTIONS = {"path", "table", "queues", "crc", "split", "missing"}
TRUE_WORDS, FALSE_WORDS = {"true", "yes", "1"}, {"false", "no", "0"}


class Segments(InputPartition):
    """The segments that one task reads."""

    def __init__(self, triples: list[Triple]) -> None:
        self.value = triples


class BrokerdReader(DataSourceReader):
    """Batches of one table."""

    def __init__(self, settings: "Settings", schema: StructType) -> None:
        self.settings = settings
        self.schema = tables.arrow_schema(settings.table, schema)
        self.bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        source = open_source(self.settings.path)
        triples = [triple for queue in source.queues(self.settings.queues) for triple in queue.triples]
        triples = self.bounds.files(source, triples)
        shared = make_packs(triples, lambda triple: triple.octets, self.settings.split)
        return [Segments(pack) for pack in shared or [[]]]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for triple in partition.value:
            yield from tables.batches(self.settings.table, Source(triple.root), triple, self.schema,
                                      crc=self.settings.crc, bounds=self.bounds)


class PushingReader(BrokerdReader):
    """A reader for sessions that push filters down; in other sessions Spark fails if pushFilters is defined."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802  (Spark's name)
        for condition in filters:
            if not self.bounds.take(condition):
                yield condition


class Settings:
    """The options, checked.  Raises AuditError."""

    def __init__(self, options: Any) -> None:
        given = {key.lower(): value for key, value in options.items()}
        unknown = sorted(set(given) - OPTIONS)
        if unknown:
            raise AuditError(f"no such option of the source brokerd: {', '.join(unknown)}"
                             f" (there are {', '.join(sorted(OPTIONS))})")
        if not given.get("path"):
            raise AuditError("the source brokerd needs a path: load(DIR), a data directory, a dump or an archive")
        self.path: str = given["path"]
        self.table: str = given.get("table", "messages")
        if self.table not in tables.TABLES:
            raise AuditError(f"no such table: {self.table} (there are {', '.join(tables.TABLES)})")
        self.queues: str | None = given.get("queues") or None
        self.crc = _truth("crc", given.get("crc", "true"))
        self.split = _octets("split", given.get("split"))
        self.missing: str = given.get("missing", "say")
        if self.missing not in ("say", "fail"):
            raise AuditError(f"option missing is say or fail, not {self.missing}")


class BrokerdSource(DataSource):
    """The data source; the module's docstring describes it."""

    @classmethod
    def name(cls) -> str:
        return "brokerd"

    def schema(self) -> str:
        return tables.ddl(Settings(self.options).table)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BrokerdReader(Settings(self.options), schema)

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802  (Spark's name)
        return stream_reader(Settings(self.options), schema)


class PushingSource(BrokerdSource):
    """For sessions with ``spark.sql.python.filterPushdown.enabled``."""

    def reader(self, schema: StructType) -> DataSourceReader:
        return PushingReader(Settings(self.options), schema)


def register(spark: "SparkSession") -> None:
    """Make ``format("brokerd")`` known to a session.  Call it again after a change of ``filterPushdown.enabled``."""
    pushing = spark.conf.get("spark.sql.python.filterPushdown.enabled", "false") == "true"
    spark.dataSource.register(PushingSource if pushing else BrokerdSource)


def read(spark: "SparkSession", path: str, table: str = "messages", *, columns: Sequence[str] | None = None,
         **options: str) -> "DataFrame":
    """A table as a DataFrame that has only ``columns`` (None: all).

    Raises AuditError for a path without the broker's files and for an unknown name.  Spark would fail only later, with
    a Java traceback.
    """
    settings = Settings({"path": path, "table": table, **options})
    schema = tables.ddl(settings.table, columns)
    open_source(settings.path)
    reader = spark.read.format("brokerd").schema(schema).option("table", table)
    for key, value in options.items():
        reader = reader.option(key, value)
    return reader.load(path)


def _truth(name: str, value: str) -> bool:
    if value.lower() in TRUE_WORDS | FALSE_WORDS:
        return value.lower() in TRUE_WORDS
    raise AuditError(f"option {name} is true or false, not {value}")


def _octets(name: str, value: str | None) -> int:
    if value is None:
        return SPLIT_OCTETS
    if value.isascii() and value.isdigit() and int(value) > 0:
        return int(value)
    raise AuditError(f"option {name} is a number of octets, not {value}")
