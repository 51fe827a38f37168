"""Judges the publish order of a live broker while it writes: ``ordering_audit --follow``.

``stream`` gives each message once, and this module judges it as the audit ``publish_order`` does.  For each publisher
(a channel of a connection) the checkpoint keeps the highest number in a queue, from batch to batch, in
``publishers/<batch>.json``.  So a batch that Spark repeats after a crash begins with the same numbers, and has the same
findings.  The broker never uses the number of a connection again, and the files do not say when a connection ends.
Therefore, of more than ``PUBLISHERS_KEPT`` publishers, this module forgets those that were silent longest.

``audit`` makes the audits that need a message's whole life.
"""

import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from brokerd.audit import AuditError, many

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OF_PUBLISHER = {"vhost": "string", "queue": "string", "priority": "int", "connection": "bigint", "channel": "int"}
PUBLISHER = list(OF_PUBLISHER)
KEY = ", ".join(f"{name} {kind}" for name, kind in OF_PUBLISHER.items())
# Before its first batch a query starts a Python process, and Spark gives up after 10 s, which no setting changes.  A
# busy machine may need more; the next start is as good as the first.
STARTS_MAX = 10
TOO_BUSY = "Python worker failed to connect back"
PUBLISHERS_KEPT = 100_000
STATES_KEPT = 2         # Spark may repeat the last batch, and no earlier one.
REPORTED_MAX = 1_000    # findings in a batch that are reported one by one

Finding = dict[str, Any]
Highest = dict[str, int]        # a publisher, as JSON -> its highest number; the publisher heard last stands last


class Follower:
    """The state of publishers.  Calls ``tell(finding)`` for each message out of order, ``say(text)`` for each batch.

    A finding has the publisher's fields, "seq" of the message, its "publish_seq", and "former", the highest before it.
    """

    def __init__(self, checkpoint: str, tell: Callable[[Finding], object], say: Callable[[str], object]) -> None:
        self.folder = os.path.join(checkpoint, "publishers")
        self.found = 0
        self._tell = tell
        self._say = say
        os.makedirs(self.folder, exist_ok=True)

    def batch(self, messages: "DataFrame", number: int) -> None:
        """As foreachBatch calls it.  Raises AuditError."""
        from pyspark.sql import functions as f

        highest = self._load(number - 1)
        messages = messages.persist()
        try:
            count = messages.count()
            by_clients = messages.where("connection > 0")   # The broker's own copies have no order of publishing.
            wrong = _wrong(by_clients, highest).persist()
            out_of_order = wrong.count()
            found = [row.asDict() for row in wrong.orderBy("queue", "seq").limit(REPORTED_MAX).collect()]
            wrong.unpersist()
            publishers = by_clients.groupBy(*PUBLISHER).agg(f.max("publish_seq").alias("highest")).collect()
        finally:
            messages.unpersist()
        for row in publishers:
            key = json.dumps([row[name] for name in PUBLISHER])
            highest[key] = max(row.highest, highest.pop(key, 0))
        self.found += out_of_order
        for finding in found:
            self._tell(finding)
        self._say(f"{many(count, 'message')} of {many(len(publishers), 'publisher')}"
                  f"{f', {out_of_order} out of order' if out_of_order else ''}")
        self._save(number, highest)

    def _path(self, number: int) -> str:
        return os.path.join(self.folder, f"{number}.json")

    def _load(self, number: int) -> Highest:
        if number < 0:
            return {}
        try:
            with open(self._path(number), encoding="utf-8") as file:
                highest: Highest = json.load(file)
                return highest
        except (OSError, ValueError) as error:
            raise AuditError(f"{self._path(number)}: {error}: begin anew with another checkpoint") from None

    def _save(self, number: int, highest: Highest) -> None:
        for key in list(highest)[:-PUBLISHERS_KEPT]:
            del highest[key]
        with open(self._path(number) + ".new", "w", encoding="utf-8") as file:
            json.dump(highest, file)
        os.replace(self._path(number) + ".new", self._path(number))
        for name in os.listdir(self.folder):
            stem, _, suffix = name.partition(".")
            if suffix == "json" and stem.isdigit() and int(stem) <= number - STATES_KEPT:
                os.remove(os.path.join(self.folder, name))


def _wrong(messages: "DataFrame", highest: Highest) -> "DataFrame":
    """The messages with a number no higher than that of an earlier message, with "former"."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    known = messages.sparkSession.createDataFrame([(*json.loads(key), most) for key, most in highest.items()],
                                                  f"{KEY}, highest bigint")
    before = Window.partitionBy(*PUBLISHER).orderBy("seq").rowsBetween(Window.unboundedPreceding, -1)
    former = f.greatest(f.max("publish_seq").over(before), "highest")       # greatest() skips a null.
    return messages.join(f.broadcast(known), PUBLISHER, "left").withColumn("former", former).where(
        "publish_seq <= former").drop("highest")


def follow(spark: "SparkSession", path: str, options: Mapping[str, str], checkpoint: str, follower: Follower, *,
           seconds: float = 2, once: bool = False, stopped: threading.Event | None = None) -> None:
    """Judge new messages at ``path``, a batch every ``seconds``, until ``stopped`` is set; ``once``: only the present
    ones.

    ``options`` are the source's.  ``checkpoint`` is a folder on this machine; a later call with it goes on where this
    one ended.  Raises AuditError, and the errors of Spark.
    """
    stopped = stopped or threading.Event()
    stream = spark.readStream.format("brokerd").schema(f"{KEY}, seq bigint, publish_seq bigint").options(
        **options).load(path)
    writer = stream.writeStream.foreachBatch(follower.batch).option(
        "checkpointLocation", "file://" + os.path.abspath(os.path.join(checkpoint, "spark")))
    if once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{seconds} seconds")
    for starts_left in reversed(range(STARTS_MAX)):
        query = writer.start()
        try:
            while not stopped.is_set() and not query.awaitTermination(1):
                pass
            return
        except Exception as error:
            if stopped.is_set():
                return                          # What told this process to end may have ended its Java already.
            if not starts_left or TOO_BUSY not in str(error):
                raise
        finally:
            _stop(query, stopped)


def _stop(query: Any, stopped: threading.Event) -> None:
    try:
        query.stop()
    except Exception:
        if not stopped.is_set():
            raise
