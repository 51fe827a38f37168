"""Audits the order of any number of segments, by Spark: ``main`` is the program spark_jobs/ordering_audit.py.

Tasks share the segments.  A task reads each of its segments once and returns a small summary (``brokerd.audit.scan``).
``brokerd.audit.verdicts`` judges the summaries of a queue together: in this process, or for many segments in one task
per queue.  No message crosses from one machine to another.

Exit codes: 0 all held, or nothing to judge; 1 violated; 2 bad usage or input; 3 undecidable, and nothing violated;
130 interrupted before there was a verdict.
"""

import contextlib
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from brokerd.audit import AuditError, many
from brokerd.audit.files import QueueFiles, open_source
from brokerd.audit.properties import PROPERTIES, ROUTING_KEY
from brokerd.audit.scan import AUDITS, Options
from brokerd.audit.verdicts import Judged, exit_status, summary
from brokerd.clock import Clock
from brokerd.command_line import OneLineCommand
from brokerd.spark import engine
from brokerd.spark.interrupts import Interrupts, in_thread
from brokerd.spark.java import JavaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HELD, BAD_INPUT, INTERRUPTED = 0, 2, 130     # 1 and 3 are from the verdicts.
JUDGED_HERE_MAX = 2_000         # segments; the executors judge more, if they belong to more than one queue
PROGRESS_SECONDS = 5
ENGINES = ("a", "b", "both")
GROUPED_BY = (ROUTING_KEY, *(name for name, kind in PROPERTIES if kind == "s"))


class Request(NamedTuple):
    """The options of the command line.  ``fail_on``: any, none, or names of audits, separated by commas."""

    path: str
    options: Options = Options()
    queues: str | None = None
    report: str | None = None
    parquet: str | None = None
    fail_on: str = "any"
    master: str | None = None
    engine: str = "a"
    ship: bool = True
    judged_here_max: int = JUDGED_HERE_MAX
    follow: bool = False
    checkpoint: str | None = None
    once: bool = False


class Progress:
    """Reports the present stage, and the time of each stage, on stderr."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.stages: list[dict[str, Any]] = []

    def say(self, text: str) -> None:
        """Write one line."""
        sys.stderr.write(f"{time.monotonic() - self.began:7.1f} s  {text}\n")
        sys.stderr.flush()

    def stage(self, name: str, work: Callable[[], Any], octets: int = 0, rest: str = "") -> Any:
        """Do a stage, and say afterwards how it went."""
        began = time.monotonic()
        result = work()
        seconds = time.monotonic() - began
        self.stages.append({"name": name, "seconds": round(seconds, 3), "octets": octets})
        speed = f": {octets / 1e9:.3f} GB, {octets / 1e6 / max(seconds, 1e-3):.1f} MB/s" if octets else ""
        self.say(f"{name} took {seconds:.1f} s{speed}{rest}")
        return result


def main(argv: Sequence[str] | None = None, program: str = "ordering_audit") -> int:
    """Run the command with ``argv`` (None: the process's), and return the exit code.  An error is a line on stderr."""
    try:
        return command.main(args=None if argv is None else list(argv), prog_name=program,
                            standalone_mode=False) or HELD
    except click.exceptions.Exit as end:
        return end.exit_code
    except (AuditError, JavaError) as error:
        sys.stderr.write(f"{program}: {error}\n")
        return BAD_INPUT
    except click.Abort:
        return INTERRUPTED


def run(request: Request) -> int:
    """Audit or follow, write the requested files, print the verdicts, and return the exit code.

    Raises AuditError, JavaError.
    """
    progress = Progress()
    queues = progress.stage("finding files", lambda: find(request))
    octets = sum(triple.octets for queue in queues for triple in queue.triples)
    segments = sum(len(queue.triples) for queue in queues)
    progress.say(f"{many(len(queues), 'queue')}, {many(segments, 'segment')}, {octets / 1e9:.3f} GB")
    _make_folder(request.report)        # These checks need no Spark.
    try:
        with Interrupts() as interrupts:
            return _in_spark(request, queues, octets, progress, interrupts)
    except KeyboardInterrupt:
        return INTERRUPTED


def _in_spark(request: Request, queues: list[QueueFiles], octets: int, progress: Progress,
              interrupts: Interrupts) -> int:
    from pyspark.sql import SparkSession

    from brokerd.spark.session import session

    running = SparkSession.getActiveSession()
    interrupts.defer()
    spark = progress.stage("starting Spark", lambda: in_thread(
        lambda: session("ordering_audit", request.master, ship=request.ship)))
    try:
        interrupts.watch()
        if request.follow:
            return _followed(spark, request, progress, interrupts)
        return _audited(spark, request, queues, octets, progress)
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
            spark.stop()


def _followed(spark: "SparkSession", request: Request, progress: Progress, interrupts: Interrupts) -> int:
    """Judge the publish order of new messages, until interrupted."""
    from brokerd.spark.follow import Finding, Follower, follow

    def tell(found: Finding) -> None:
        click.echo(f"{'violated':<11} {'publish_order':<21} {_where(found)}  message {found['seq']}: publish "
                   f"{found['publish_seq']} of connection {found['connection']}, channel {found['channel']} comes "
                   f"behind {found['former']}")

    interrupts.defer()
    with contextlib.ExitStack() as stack:
        checkpoint = request.checkpoint or stack.enter_context(tempfile.TemporaryDirectory(prefix="brokerd-follow-"))
        _make_folder(checkpoint)
        follower = Follower(checkpoint, tell, progress.say)
        follow(spark, request.path, _source_options(request), checkpoint, follower, once=request.once,
               stopped=interrupts.arrived)
    click.echo(f"{'violated' if follower.found else 'held'}: {many(follower.found, 'message')} out of the order of "
               "publishing")
    return exit_status([{"audit": "publish_order", "verdict": "violated" if follower.found else "held"}],
                       request.fail_on)


def find(request: Request) -> list[QueueFiles]:
    """The queues to audit.  Raises AuditError."""
    if request.path.rstrip("/").endswith(".partial"):
        raise AuditError(f"{request.path}: a dump that was not finished")
    try:
        return open_source(request.path).queues(request.queues)
    except AuditError:
        if not request.path.startswith("s3://") and os.path.isdir(request.path.rstrip("/") + ".partial"):
            raise AuditError(f"{request.path}: its dump was not finished: there is only "
                             f"{request.path.rstrip('/')}.partial") from None
        raise


def _audited(spark: "SparkSession", request: Request, queues: list[QueueFiles], octets: int,
             progress: Progress) -> int:
    judged: list[Judged] = []
    checked: list[dict[str, Any]] = []
    if request.engine != "b":
        judged = engine_a(spark, request, queues, octets, progress)
    if request.engine != "a":
        checked = progress.stage("checking by SQL", lambda: engine_b(spark, request))
    document = summary(open_source(request.path).root, judged, options=request.options, fail_on=request.fail_on,
                       stages=progress.stages, made=Clock().epoch_ns())
    document["options"] |= {"queues": request.queues, "engine": request.engine}
    findings = [finding for one in judged for finding in one.findings]
    if request.engine == "b":
        document |= {"audits": checked, "verdict": worst(checked), "findings_total": sum(r["found"] for r in checked)}
        document["exit"] = exit_status(checked, request.fail_on)
    disagreed = disagreements(document["audits"], checked) if request.engine == "both" else []
    if disagreed:
        document |= {"disagreements": disagreed, "exit": BAD_INPUT}
    if request.parquet:
        progress.stage("writing tables", lambda: _write_tables(spark, request))
    if request.report:
        progress.stage("writing the report", lambda: write_report(request.report or "", document, findings))
    show(document)
    for line in disagreed:
        sys.stderr.write(f"ordering_audit: the engines disagree: {line}\n")
    return int(document["exit"])


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


def engine_b(spark: "SparkSession", request: Request) -> list[dict[str, Any]]:
    """The verdicts of the checks in SQL."""
    from brokerd.spark import checks  # Only --engine b and both need it.

    if request.options.from_ns or request.options.to_ns:
        raise AuditError("engine b does not know --from and --to")
    given = {"queues": request.queues} if request.queues else {}
    return checks.run(spark, request.path, request.options, **given)


def disagreements(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> list[str]:
    """The differences between two lists of verdicts, one line each; audits that only one list has are left out."""
    by_name = {(row["vhost"], row["queue"], row["audit"]): row for row in theirs}
    lines = []
    for row in ours:
        other = by_name.get((row["vhost"], row["queue"], row["audit"]))
        if other is None:
            continue
        lines += [f"{row['audit']} of {row['queue']!r} in {row['vhost']!r}: {what} is {row[what]} by a, "
                  f"{other[what]} by b" for what in ("verdict", "found", "overtakings")
                  if what in row and what in other and row[what] != other[what]]
    return lines


# --- output


def worst(audits: Iterable[dict[str, Any]]) -> str:
    """The worst of the verdicts."""
    verdicts = {row["verdict"] for row in audits}
    return next((verdict for verdict in ("violated", "undecidable") if verdict in verdicts), "held")


def write_report(folder: str, document: dict[str, Any], findings: Sequence[dict[str, Any]]) -> None:
    """Write summary.json, findings/ and report.html."""
    from brokerd.spark import report  # Only a report needs Jinja.

    write_findings(os.path.join(folder, "findings"), findings)
    path = os.path.join(folder, "summary.json")
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
    os.replace(path + ".new", path)
    report.write(folder, document, findings)


def write_findings(folder: str, findings: Sequence[dict[str, Any]]) -> None:
    """Write all findings as one Parquet file, which replaces the one of an earlier run."""
    import pyarrow as pa
    from pyarrow import parquet

    from brokerd.spark.bounds import clean

    kinds = {"audit": pa.string(), "vhost": pa.string(), "queue": pa.string(), "priority": pa.int32(),
             "seq": pa.int64(), "segment": pa.int64(), "file": pa.string(), "offset": pa.int64(), "ts": pa.int64(),
             "detail": pa.string()}
    columns = {}
    for name, kind in kinds.items():
        values = [finding[name] for finding in findings]
        columns[name] = pa.array([clean(v) for v in values] if kind == pa.string() else values, kind)
    os.makedirs(folder, exist_ok=True)
    for old in os.listdir(folder):
        if re.fullmatch(r"part-\d+\.parquet", old):
            os.remove(os.path.join(folder, old))
    parquet.write_table(pa.table(columns), os.path.join(folder, "part-00000.parquet"))


def _write_tables(spark: "SparkSession", request: Request) -> None:
    from brokerd.spark.source import read
    from brokerd.spark.tables import TABLES

    for table in TABLES:
        rows = read(spark, request.path, table, **_source_options(request))
        rows.write.mode("overwrite").parquet(f"{request.parquet}/{table}")


def _source_options(request: Request) -> dict[str, str]:
    """The options of the source ``brokerd``."""
    return {"crc": str(request.options.crc).lower()} | ({"queues": request.queues} if request.queues else {})


def show(document: dict[str, Any]) -> None:
    """Print the verdicts that are not held, and a line about all."""
    counts = dict.fromkeys(("held", "violated", "undecidable"), 0)
    for row in document["audits"]:
        counts[row["verdict"]] += 1
        if row["verdict"] != "held":
            where = _where(row)
            found = f" {row['found']} of {row['checked']}" if row["verdict"] == "violated" else ""
            click.echo(f"{row['verdict']:<11} {row['audit']:<21} {where}{found}  {row.get('reason') or ''}".rstrip())
    inputs = document["inputs"]
    click.echo(f"{document['verdict']}: {counts['held']} held, {counts['violated']} violated, "
               f"{counts['undecidable']} undecidable; " + ", ".join(
                   [many(inputs[f"{thing}s"], thing) for thing in ("queue", "segment", "message", "event")]))


def _where(row: dict[str, Any]) -> str:
    return ascii(f"{row['vhost']}: {row['queue']}")[1:-1]


def _make_folder(folder: str | None) -> None:
    if folder is None:
        return
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise AuditError(f"{folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise AuditError(f"{folder}: no permission to write to it")


def _line_of(error: Exception) -> str | None:
    """The reason in an exception from Spark, as one line for the user; None: it is a bug of ours."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException | Py4JError):
        return None
    ours = re.findall(r"\bAuditError: ([^\n]+)", str(error))
    raised = ours or re.findall(r"^\s*(?:[\w.]+\.)?(\w+(?:Error|Exception): [^\n]+)", str(error), re.MULTILINE)
    return raised[-1] if raised else " ".join(str(error).split())[:300]


# --- the command line


def _names(text: str | None) -> frozenset[str] | None:
    """Names of audits, separated by commas."""
    if text is None:
        return None
    names = frozenset(filter(None, (name.strip() for name in text.split(","))))
    unknown = sorted(names - set(AUDITS))
    if unknown or not names:
        raise click.UsageError(f"no such audit: {', '.join(unknown) or text!r} (there are {', '.join(AUDITS)})")
    return names


def _fail_on(text: str) -> str:
    return text if text in ("any", "none") else ",".join(sorted(_names(text) or ()))


def _moment(text: str | None) -> int:
    """A time in ns since the epoch; 0: none given."""
    if text is None:
        return 0
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{text!r} is no time: 2026-01-31T12:00 (UTC), or ns since the epoch") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 10 ** 9 + moment.microsecond * 1000


@click.command(cls=OneLineCommand)
@click.argument("path", required=False)
@click.option("--segments", metavar="DIR", help="A data directory, a dump or an archive, here or s3://bucket/prefix.")
@click.option("--report", metavar="OUT", help="Folder for summary.json, findings/ and report.html.")
@click.option("--queues", metavar="GLOB", help="Only queues with a matching name, or vhost/name.")
@click.option("--audits", metavar="LIST", help=f"Only these audits, separated by commas: {', '.join(AUDITS)}.")
@click.option("--from", "from_", metavar="T", help="Only messages published since, as 2026-01-31T12:00 (UTC).")
@click.option("--to", metavar="T", help="Only messages published before this time.")
@click.option("--no-crc", is_flag=True, help="Do not check the sums of records and events.")
@click.option("--group-header", metavar="NAME", help="Also judge groups: messages with equal values of this header.")
@click.option("--group-by", type=click.Choice(GROUPED_BY), metavar="PROPERTY",
              help="Also judge groups by routing-key or a property.")
@click.option("--unacked-after", type=click.FloatRange(min=0), default=1800, show_default=True, metavar="SECONDS",
              help="Seconds that a message may stay with a consumer.")
@click.option("--duplicate-window", type=click.FloatRange(min=0), default=300, show_default=True, metavar="SECONDS",
              help="Messages with one id within so many seconds are duplicates.")
@click.option("--delivery-limit", type=click.IntRange(min=0), metavar="N",
              help="Delivery limit to judge by, instead of those in the queues' settings.")
@click.option("--to-parquet", metavar="DIR", help="Write all tables to this folder, for other queries.")
@click.option("--fail-on", default="any", show_default=True, metavar="any|LIST|none",
              help="Audits that decide the exit code.")
@click.option("--master", metavar="URL", help="Spark's master: local[*], spark://host:7077; default: spark-submit's.")
@click.option("--engine", type=click.Choice(ENGINES), default="a", show_default=True,
              help="a: one pass over arrays; b: SQL, slower; both: compared.")
@click.option("--follow", is_flag=True, help="Judge the publish order while a broker writes, until interrupted.")
@click.option("--checkpoint", metavar="DIR", help="Folder for the state of --follow; another run goes on from it.")
@click.option("--once", is_flag=True, help="With --follow: judge the present messages, then end.")
@click.option("--installed", is_flag=True, help="The workers have brokerd: do not send it.")
def command(path: str | None, segments: str | None, report: str | None, queues: str | None, audits: str | None,
            from_: str | None, to: str | None, no_crc: bool, group_header: str | None, group_by: str | None,
            unacked_after: float, duplicate_window: float, delivery_limit: int | None, to_parquet: str | None,
            fail_on: str, master: str | None, engine: str, follow: bool, checkpoint: str | None, once: bool,
            installed: bool) -> int:
    """Check from the files of a broker whether messages kept their order.

    Prints each audit that did not hold.  Exit status 0: all held, 1: violated, 2: bad usage or input, 3: undecidable.
    """
    if (path is None) == (segments is None):
        raise click.UsageError("name one folder: a data directory, a dump or an archive")
    if group_header and group_by:
        raise click.UsageError("--group-header and --group-by exclude each other")
    if follow and (report or to_parquet or from_ or to or group_header or group_by or engine != "a"
                   or audits not in (None, "publish_order")):
        raise click.UsageError("--follow judges publish_order alone, by engine a, over all time, and writes no report")
    if not follow and (checkpoint or once):
        raise click.UsageError("--checkpoint and --once go with --follow")
    options = Options(crc=not no_crc, unacked_after_s=unacked_after, duplicate_window_s=duplicate_window,
                      group_header=group_header, group_by=group_by, delivery_limit=delivery_limit,
                      audits=_names(audits), from_ns=_moment(from_), to_ns=_moment(to))
    return run(Request(path or segments or "", options, queues, report, to_parquet, _fail_on(fail_on), master, engine,
                       not installed, follow=follow, checkpoint=checkpoint, once=once))
