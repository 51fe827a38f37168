"""The Spark data source ``brokerd``: segments, acks and journals as tables, which it reads in place and never writes.

    spark.read.format("brokerd").option("table", "events").option("queues", "orders*").load("/var/lib/brokerd")
    spark.readStream.format("brokerd").schema("queue string, seq bigint").load("s3://bucket/archive")

Options: ``table`` (messages, events, lifecycle, segments, acks), ``columns`` (names, separated by commas), ``queues``
(a glob of names or vhost/name), ``crc`` (true: check sums, and leave out rows with a wrong one), ``split`` (octets of
files per task), ``cut`` (a JSON object of queues' folders and times in ns: what is later is left out), and for streams
``missing`` (say or fail: what to do if the broker removed messages before they were read).

The source makes only the columns named with ``columns`` or ``.schema(...)``: Spark tells a source written in Python
nothing of what a query selects.  It would tell the filters of a query, but then applies those of the last query to all
others of the same DataFrame, and to both sides of a join (4.3.0), so that rows are missing.  So the source has no
``pushFilters``.  ``query`` looks up columns and filters in the plan of a query, and gives them to a reading of its own
as schema and option ``conditions`` (JSON, a list of [column, kind, value, negated]; see ``bounds``).

A task reads several whole segments and yields Arrow batches.  ``tables`` lists the tables and makes their columns;
``stream`` follows a live broker.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from brokerd.audit import AuditError
from brokerd.audit.files import Source, Triple, open_source
from brokerd.spark import tables
from brokerd.spark.bounds import Bounds, Condition
from brokerd.spark.packs import SPLIT_OCTETS, make_packs
from brokerd.spark.stream import stream_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OPTIONS = {"path", "table", "columns", "conditions", "queues", "crc", "split", "missing", "cut"}
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
        self.bounds = Bounds(tables.TABLES[settings.table])
        for condition in settings.conditions:
            self.bounds.take(condition)

    def partitions(self) -> Sequence[InputPartition]:
        source = open_source(self.settings.path)
        cuts = self.settings.cuts
        triples = [triple._replace(cut=cuts.get(queue.folder, 0)) if cuts else triple
                   for queue in source.queues(self.settings.queues or self.bounds.glob()) for triple in queue.triples]
        triples = self.bounds.files(source, triples, self.settings.table)
        shared = make_packs(triples, lambda triple: triple.octets, self.settings.split)
        return [Segments(pack) for pack in shared or [[]]]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for triple in partition.value:
            yield from tables.batches(self.settings.table, Source(triple.root), triple, self.schema,
                                      crc=self.settings.crc, bounds=self.bounds)


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
        names = [name for name in (name.strip() for name in given.get("columns", "").split(",")) if name]
        tables.ddl(self.table, names)
        self.columns: list[str] | None = names or None
        self.conditions = _conditions(given.get("conditions"))
        self.queues: str | None = given.get("queues") or None
        self.crc = _truth("crc", given.get("crc", "true"))
        self.split = _octets("split", given.get("split"))
        self.missing: str = given.get("missing", "say")
        self.cuts = _cuts(given.get("cut"))
        if self.missing not in ("say", "fail"):
            raise AuditError(f"option missing is say or fail, not {self.missing}")


class BrokerdSource(DataSource):
    """The data source; the module's docstring describes it."""

    @classmethod
    def name(cls) -> str:
        return "brokerd"

    def schema(self) -> str:
        settings = Settings(self.options)
        return tables.ddl(settings.table, settings.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BrokerdReader(Settings(self.options), schema)

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802  (Spark's name)
        return stream_reader(Settings(self.options), schema)


def register(spark: "SparkSession") -> None:
    """Make ``format("brokerd")`` known to a session.

    Raises AuditError if the Python that runs the session's workers cannot read the files.
    """
    _check_workers(spark)
    spark.dataSource.register(BrokerdSource)


def _check_workers(spark: "SparkSession") -> None:
    """Raise AuditError if the workers are another Python of this machine, which lacks what the source imports."""
    context = spark.sparkContext
    python = shutil.which(context.pythonExec)
    if not (context.master or "").startswith("local") or python is None or os.path.samefile(python, sys.executable):
        return
    done = subprocess.run([python, "-c", "import brokerd.spark.source"], capture_output=True, text=True, check=False,
                          env=os.environ | context.environment)
    if done.returncode:
        line = (done.stderr.strip().splitlines() or ["it ends with an error"])[-1]
        raise AuditError(f"the workers of this session are {python}, which cannot read the files ({line}): start "
                         f"Python with PYSPARK_PYTHON={sys.executable}")


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


def _conditions(text: str | None) -> list[Condition]:
    try:
        return [Condition(*condition) for condition in json.loads(text or "[]")]
    except (ValueError, TypeError):
        raise AuditError(f"option conditions is a list in JSON, of lists [column, kind, value, negated], not {text}"
                         ) from None


def _truth(name: str, value: str) -> bool:
    if value.lower() in TRUE_WORDS | FALSE_WORDS:
        return value.lower() in TRUE_WORDS
    raise AuditError(f"option {name} is true or false, not {value}")


def _cuts(value: str | None) -> dict[str, int]:
    try:
        return {str(folder): int(cut) for folder, cut in json.loads(value or "{}").items()}
    except (ValueError, TypeError, AttributeError):
        raise AuditError("option cut is a JSON object of folders and times in ns") from None


def _octets(name: str, value: str | None) -> int:
    if value is None:
        return SPLIT_OCTETS
    if value.isascii() and value.isdigit() and int(value) > 0:
        return int(value)
    raise AuditError(f"option {name} is a number of octets, not {value}")
