"""The publish order of a live broker, judged while it is written: ``ordering_audit --follow``.

Messages come as a stream, each once (``stream``).  Of every publisher (a channel of a connection) the number of its
last publish to each queue is kept from batch to batch, in the checkpoint as ``publishers/<batch>.json``: a batch that
Spark makes a second time, after a crash, begins with what the one before it left, and finds what it found.

What takes a message's whole life to judge is not judged here: for that there is ``audit``.
"""

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.audit import AuditError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUBLISHER = ("vhost", "queue", "priority", "connection", "channel")
COLUMNS = ("vhost string, queue string, priority int, seq bigint, connection bigint, channel int, "
           "publish_seq bigint")
STATES_KEPT = 2         # Spark makes only the last batch anew.
TOLD_MAX = 1_000        # findings in a batch that are told one by one

Finding = dict[str, Any]


class Follower:
    """What is known of publishers.  ``tell(finding)`` hears of each message out of order, ``say(text)`` of each batch.

    A finding: the publisher's fields, "seq" of the message, its "publish_seq", and "former", that of the one before.
    """

    def __init__(self, checkpoint: str, tell: Callable[[Finding], object], say: Callable[[str], object]) -> None:
        self.folder = os.path.join(checkpoint, "publishers")
        self.found = 0
        self._tell = tell
        self._say = say
        os.makedirs(self.folder, exist_ok=True)

    def batch(self, messages: "DataFrame", number: int) -> None:
        """As foreachBatch calls it.  Raises AuditError."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        last = self._load(number - 1)
        messages = messages.persist()
        try:
            count = messages.count()
            by_clients = messages.where("connection > 0")   # The broker's own copies have no order of publishing.
            former = f.lag("publish_seq").over(Window.partitionBy(*PUBLISHER).orderBy("seq"))
            wrong = by_clients.withColumn("former", former).where("publish_seq <= former")
            found = [row.asDict() for row in wrong.orderBy("queue", "seq").limit(TOLD_MAX).collect()]
            more = wrong.count() - len(found) if len(found) == TOLD_MAX else 0
            publishers = by_clients.groupBy(*PUBLISHER).agg(
                f.min("seq").alias("seq"), f.min_by("publish_seq", "seq").alias("publish_seq"),
                f.max_by("publish_seq", "seq").alias("last")).collect()
        finally:
            messages.unpersist()
        for row in publishers:
            key = json.dumps([row[name] for name in PUBLISHER])
            if row.publish_seq <= last.get(key, 0):
                found.append({name: row[name] for name in (*PUBLISHER, "seq", "publish_seq")} | {"former": last[key]})
            last[key] = row["last"]
        self.found += len(found) + more
        for finding in found:
            self._tell(finding)
        self._say(f"{count} messages of {len(publishers)} publishers"
                  f"{f', {len(found) + more} out of order' if found else ''}")
        self._save(number, last)

    def _path(self, number: int) -> str:
        return os.path.join(self.folder, f"{number}.json")

    def _load(self, number: int) -> dict[str, int]:
        if number < 0:
            return {}
        try:
            with open(self._path(number), encoding="utf-8") as file:
                last: dict[str, int] = json.load(file)
                return last
        except (OSError, ValueError) as error:
            raise AuditError(f"{self._path(number)}: {error}: begin anew with another checkpoint") from None

    def _save(self, number: int, last: dict[str, int]) -> None:
        with open(self._path(number) + ".new", "w", encoding="utf-8") as file:
            json.dump(last, file)
        os.replace(self._path(number) + ".new", self._path(number))
        for name in os.listdir(self.folder):
            stem, _, suffix = name.partition(".")
            if suffix == "json" and stem.isdigit() and int(stem) <= number - STATES_KEPT:
                os.remove(os.path.join(self.folder, name))


class Source(NamedTuple):
    """What is followed.  ``options``: of the source ``brokerd``."""

    path: str
    options: dict[str, str]


def follow(spark: "SparkSession", source: Source, checkpoint: str, follower: Follower, *, seconds: float = 2,
           once: bool = False) -> None:
    """Judge what comes, a batch in so many seconds, until interrupted; ``once``: only what is there by now.

    ``checkpoint`` is a folder here; a later call with it goes on where this one ended.  Raises AuditError and what
    Spark raises.
    """
    stream = spark.readStream.format("brokerd").schema(COLUMNS).options(**source.options).load(source.path)
    writer = stream.writeStream.foreachBatch(follower.batch).option(
        "checkpointLocation", "file://" + os.path.abspath(os.path.join(checkpoint, "spark")))
    if once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{seconds} seconds")
    query = writer.start()
    try:
        while not query.awaitTermination(1):
            pass
    except KeyboardInterrupt:
        pass
    finally:
        query.stop()
