"""An audit by Spark, for much data and for clusters: ``audited`` and ``followed``.

Tasks share the segments.  A task reads each of its segments once and returns a small summary (``brokerd.audit.scan``).
``brokerd.audit.verdicts`` judges the summaries of a queue together: in this process, or for many segments in one task
per queue.  No message crosses from one machine to another.  ``brokerd.auditor`` has the request, and reports
the verdicts; ``brokerd.cli.ctl_audit`` is the command.
"""

import contextlib
import json
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from brokerd.audit import AuditError, many
from brokerd.audit.files import QueueFiles, open_source
from brokerd.audit.verdicts import HELD, VIOLATED, Judged, exit_status
from brokerd.auditor.interrupts import Interrupts, in_thread
from brokerd.auditor.output import where
from brokerd.auditor.request import Progress, Request, make_folder
from brokerd.spark import engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRESS_SECONDS = 5


class Found:
    """The verdicts of both engines, of those that were asked for."""

    def __init__(self) -> None:
        self.judged: list[Judged] = []              # by engine a
        self.checked: list[dict[str, Any]] = []     # by engine b: rows as in summary.json


@contextlib.contextmanager
def started(request: Request, progress: Progress, interrupts: Interrupts) -> Iterator["SparkSession"]:
    """A session for the audit, ended afterwards unless the caller had it before.

    Raises AuditError, also for what fails in Spark, and JavaError.
    """
    from pyspark.sql import SparkSession

    from brokerd.spark.session import session

    running = SparkSession.getActiveSession()
    interrupts.defer()
    spark = progress.stage("starting Spark", lambda: in_thread(
        lambda: session("ordering_audit", request.master, ship=request.ship)))
    try:
        interrupts.watch()
        yield spark
    except KeyboardInterrupt:
        running = spark                         # It may be in no state to be asked.  It ends with this process.
        raise
    except Exception as error:
        line = _line_of(error)
        if line is None:
            raise
        raise AuditError(line) from error
    finally:
        if running is None:                     # A session that ran before belongs to the caller.
            _stop(spark, interrupts)


def _stop(spark: "SparkSession", interrupts: Interrupts) -> None:
    try:
        spark.stop()
    except Exception:
        if not interrupts.arrived.is_set():     # What ended this process may have ended its Java, too.
            raise


def followed(spark: "SparkSession", request: Request, progress: Progress, interrupts: Interrupts) -> int:
    """Judge the publish order of new messages, until interrupted; then print the verdict and return the exit code."""
    from brokerd.spark.follow import Finding, Follower, follow

    def tell(found: Finding) -> None:
        click.echo(f"{'violated':<11} {'publish_order':<21} {where(found)}  message {found['seq']}: publish "
                   f"{found['publish_seq']} of connection {found['connection']}, channel {found['channel']} comes "
                   f"behind {found['former']}")

    interrupts.defer()
    with contextlib.ExitStack() as stack:
        checkpoint = request.checkpoint or stack.enter_context(tempfile.TemporaryDirectory(prefix="brokerd-follow-"))
        make_folder(checkpoint)
        follower = Follower(checkpoint, tell, progress.say)
        follow(spark, request.path, source_options(request), checkpoint, follower, once=request.once,
               stopped=interrupts.arrived)
    click.echo(f"{VIOLATED if follower.found else HELD}: {many(follower.found, 'message')} out of the order of "
               "publishing")
    return exit_status([{"audit": "publish_order", "verdict": VIOLATED if follower.found else HELD}],
                       request.fail_on)


def audited(spark: "SparkSession", request: Request, queues: list[QueueFiles], octets: int,
            progress: Progress) -> Found:
    """Judge by the engines that were asked for, and write the tables that were asked for."""
    found = Found()
    if request.engine != "b":
        found.judged = engine_a(spark, request, queues, octets, progress)
    if request.engine != "a":
        found.checked = progress.stage("checking by SQL", lambda: engine_b(spark, request, queues))
    if request.parquet:
        progress.stage("writing tables", lambda: _write_tables(spark, request))
    return found


# --- engine A


def engine_a(spark: "SparkSession", request: Request, queues: list[QueueFiles], octets: int,
             progress: Progress) -> list[Judged]:
    """Judge each queue, from one pass over its segments."""
    work, root, options = engine.work_of(queues), open_source(request.path).root, request.options
    if not work:
        return progress.stage("judging", lambda: engine.judge_here(root, queues, [], options))
    scanned = engine.summaries(spark, work, options)
    if len(work) > request.judged_here_max and len(queues) > 1:
        return progress.stage("reading and judging", lambda: _watched(
            spark, progress, lambda: engine.judge_in_tasks(spark, root, queues, scanned, options)), octets)
    rows = progress.stage("reading", lambda: _watched(spark, progress, scanned.collect), octets)
    return progress.stage("judging", lambda: engine.judge_here(root, queues, rows, options))


def _watched(spark: "SparkSession", progress: Progress, work: Callable[[], Any]) -> Any:
    """Do the work, and report from time to time how many of Spark's tasks are done."""
    over, tracker = threading.Event(), spark.sparkContext.statusTracker()

    def watch() -> None:
        while not over.wait(PROGRESS_SECONDS):
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None:
                    progress.say(f"{info.numCompletedTasks} of {info.numTasks} tasks done")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        return work()
    finally:
        over.set()
        watcher.join()


# --- engine B


def engine_b(spark: "SparkSession", request: Request, queues: Sequence[QueueFiles] = ()) -> list[dict[str, Any]]:
    """The verdicts of the checks in SQL."""
    from brokerd.spark import checks  # Only --engine b and both need it.

    if request.options.from_ns or request.options.to_ns:
        raise AuditError("engine b does not know --from and --to")
    given = {"queues": request.queues} if request.queues else {}
    cuts = {queue.folder: triple.cut for queue in queues for triple in queue.triples[:1] if triple.cut is not None}
    if cuts:
        given["cut"] = json.dumps(cuts)
    return checks.run(spark, request.path, request.options, **given)


# --- output


def _write_tables(spark: "SparkSession", request: Request) -> None:
    from brokerd.spark.source import read
    from brokerd.spark.tables import TABLES

    for table in TABLES:
        rows = read(spark, request.path, table, **source_options(request))
        rows.write.mode("overwrite").parquet(f"{request.parquet}/{table}")


def source_options(request: Request) -> dict[str, str]:
    """The options of the source ``brokerd``."""
    return {"crc": str(request.options.crc).lower()} | ({"queues": request.queues} if request.queues else {})


def _line_of(error: Exception) -> str | None:
    """The reason in an exception from Spark, as one line for the user; None: it is a bug of ours."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException | Py4JError):
        return None
    ours = re.findall(r"\bAuditError: ([^\n]+)", str(error))
    raised = ours or re.findall(r"^\s*(?:[\w.]+\.)?(\w+(?:Error|Exception): [^\n]+)", str(error), re.MULTILINE)
    return raised[-1] if raised else " ".join(str(error).split())[:300]
