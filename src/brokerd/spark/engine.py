"""Engine A of the audits: a task reads each segment once, and the summaries of a queue's segments are judged together.

    queues -> work -> summaries (a small row per segment)  -> judge_here   in this process
                                                           -> judge_in_tasks  one task per queue: for many segments

No message crosses from one machine to another.  The code that runs in tasks must import without click and Java.
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
from brokerd.spark.packs import SPLIT_OCTETS, make_packs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUMMARIES = "queue int, place int, summary binary"
VERDICTS = "queue int, judged binary"


class Work(NamedTuple):
    """A segment to read, the number of its queue, and its place among the segments of that queue."""

    queue: int
    place: int
    triple: Triple


def work_of(queues: Sequence[QueueFiles]) -> list[Work]:
    """Every segment of ``queues``."""
    return [Work(index, place, triple) for index, queue in enumerate(queues)
            for place, triple in enumerate(queue.triples)]


def summaries(spark: "SparkSession", work: Sequence[Work], options: Options) -> "DataFrame":
    """A row for each triple, with its summary; a task reads several triples."""
    packs = make_packs(work, lambda one: one.triple.octets, SPLIT_OCTETS)
    packed = [(bytearray(pickle.dumps(pack)),) for pack in packs]
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
    """Raise AuditError if this worker does not see the folder: otherwise all segments would seem to be gone."""
    if not root.startswith("s3://") and not os.path.isdir(root):
        raise AuditError(f"{root}: no such folder on worker {socket.gethostname()}: all workers must see it by the "
                         "same path")


def judge_in_tasks(spark: "SparkSession", root: str, queues: Sequence[QueueFiles], scanned: "DataFrame",
                   options: Options) -> list[Judged]:
    """Judge each queue in a task of its own, from the rows of ``summaries``; only summaries and verdicts move."""
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


def judge_here(root: str, queues: Sequence[QueueFiles], rows: Iterable[Any], options: Options) -> list[Judged]:
    """Judge each queue in this process, from the rows of ``summaries``."""
    found: dict[int, list[Summary]] = {}
    for row in sorted(rows, key=lambda row: (row.queue, row.place)):
        found.setdefault(row.queue, []).append(pickle.loads(row.summary))
    return [judge(Source(root), queue, found.get(index, []), options) for index, queue in enumerate(queues)]
