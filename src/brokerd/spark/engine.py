"""Engine A of the audits: each segment read once, in a task, and what is left of it judged, a queue at a time.

    queues -> work -> summaries (a row a segment, small)  -> judged_here   in this process
                                                          -> judged_there  a queue a task: for many segments

No message crosses from one machine to another.  What runs in tasks must import without click and Java.
"""

import os
import pickle
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.audit import AuditError
from brokerd.audit.files import QueueFiles, Source, Triple
from brokerd.audit.scan import Options, Summary, scan
from brokerd.audit.verdicts import Judged, judge
from brokerd.spark.packs import SPLIT_OCTETS, packs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUMMARIES = "queue int, place int, summary binary"
VERDICTS = "queue int, judged binary"


class Work(NamedTuple):
    """A segment to be read: of which queue, and its place among that queue's."""

    queue: int
    place: int
    triple: Triple


def work_of(queues: Sequence[QueueFiles]) -> list[Work]:
    """Every segment of ``queues``."""
    return [Work(index, place, triple) for index, queue in enumerate(queues)
            for place, triple in enumerate(queue.triples)]


def summaries(spark: "SparkSession", work: Sequence[Work], options: Options) -> "DataFrame":
    """A row for each triple, with its summary; several triples a task."""
    packed = [(bytearray(pickle.dumps(pack)),) for pack in packs(work, lambda one: one.triple.octets, SPLIT_OCTETS)]
    frame = spark.createDataFrame(spark.sparkContext.parallelize(packed, len(packed)), "work binary")
    return frame.mapInArrow(_scanner(options), SUMMARIES)


def _scanner(options: Options) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def scan_all(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for cell in batch.column(0):
                for index, place, triple in pickle.loads(cell.as_py()):
                    _must_be_here(triple.root)
                    made = pickle.dumps(scan(Source(triple.root), triple, options))
                    yield pa.RecordBatch.from_arrays(
                        [pa.array([index], pa.int32()), pa.array([place], pa.int32()), pa.array([made], pa.binary())],
                        names=["queue", "place", "summary"])

    return scan_all


def _must_be_here(root: str) -> None:
    """Raises AuditError where a worker does not see the folder: all its segments would seem to be gone."""
    if not root.startswith("s3://") and not os.path.isdir(root):
        raise AuditError(f"{root}: no such folder on worker {socket.gethostname()}: all workers must see it by the "
                         "same path")


def judged_there(spark: "SparkSession", root: str, queues: Sequence[QueueFiles], scanned: "DataFrame",
                 options: Options) -> list[Judged]:
    """Every queue judged where Spark puts it, from what ``summaries`` gave: summaries cross, and verdicts."""
    shared = spark.sparkContext.broadcast(list(queues))

    def judge_one(table: Any) -> Any:
        import pyarrow as pa

        columns = table.to_pydict()
        index = columns["queue"][0]
        ordered = sorted(zip(columns["place"], columns["summary"], strict=True))
        made = judge(Source(root), shared.value[index], [pickle.loads(octets) for _, octets in ordered], options)
        return pa.table({"queue": pa.array([index], pa.int32()), "judged": pa.array([pickle.dumps(made)], pa.binary())})

    rows = scanned.groupBy("queue").applyInArrow(judge_one, VERDICTS).collect()
    made = {row.queue: pickle.loads(row.judged) for row in rows}
    return [made[index] if index in made else judge(Source(root), queue, [], options)
            for index, queue in enumerate(queues)]


def judged_here(root: str, queues: Sequence[QueueFiles], rows: Iterable[Any], options: Options) -> list[Judged]:
    """Every queue judged in this process, from the rows that ``summaries`` gave."""
    found: dict[int, list[Summary]] = {}
    for row in sorted(rows, key=lambda row: (row.queue, row.place)):
        found.setdefault(row.queue, []).append(pickle.loads(row.summary))
    return [judge(Source(root), queue, found.get(index, []), options) for index, queue in enumerate(queues)]
