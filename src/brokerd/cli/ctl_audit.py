"""The command ``brokerctl audit``, which is also the program spark_jobs/ordering_audit.py.

It chooses who judges: the processors of this machine (``brokerd.auditor.here``), which costs no start of Java; or Spark
(``brokerd.spark.audit``), for much data, on a cluster, or if the options ask for it.

Exit codes: 0 every promise was kept, perhaps with effects of use; 1 violated; 2 bad usage or input, or something is not
installed; 3 undecidable, and nothing violated; 130 interrupted before there was a verdict.
"""

import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from brokerd.audit import AuditError, many
from brokerd.audit import octets as in_words
from brokerd.audit.chain import read_log
from brokerd.audit.files import QueueFiles, open_source
from brokerd.audit.properties import PROPERTIES, ROUTING_KEY
from brokerd.audit.scan import AUDITS, Options
from brokerd.audit.verdicts import Judged, exit_status, summary, worst
from brokerd.auditor import here, output
from brokerd.auditor.interrupts import Interrupts
from brokerd.auditor.request import (
    BAD_INPUT,
    ENGINES,
    HERE_OCTETS_MAX,
    INTERRUPTED,
    KEPT,
    REPORT,
    SPARK,
    Progress,
    Request,
    find,
    judged_by_spark,
    make_folder,
    must_be_installed,
)
from brokerd.clock import Clock
from brokerd.command_line import OneLineCommand, complete_files, complete_folders

PROGRESS_SECONDS = 5
GROUPED_BY = (ROUTING_KEY, *(name for name, kind in PROPERTIES if kind == "s"))


def main(argv: Sequence[str] | None = None, program: str = "ordering_audit") -> int:
    """Run the command with ``argv`` (None: the process's), and return the exit code.  An error is a line on stderr."""
    try:
        return command.main(args=None if argv is None else list(argv), prog_name=program,
                            standalone_mode=False) or KEPT
    except click.exceptions.Exit as end:
        return end.exit_code
    except AuditError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return BAD_INPUT
    except click.Abort:
        return INTERRUPTED


def run(request: Request) -> int:
    """Audit or follow, write the requested files, print the verdicts, and return the exit code.  Raises AuditError."""
    try:
        with Interrupts() as interrupts:
            progress = Progress()
            queues = progress.stage("finding files", lambda: find(request))
            octets = sum(triple.octets for queue in queues for triple in queue.triples)
            segments = sum(len(queue.triples) for queue in queues)
            progress.say(f"{many(len(queues), 'queue')}, {many(segments, 'segment')}, {in_words(octets)}")
            make_folder(request.report)
            if request.report or request.parquet:
                must_be_installed(REPORT, "a report" if request.report else "--to-parquet")
            if judged_by_spark(request, octets):
                must_be_installed(SPARK, "an audit by Spark")
                return _in_spark(request, queues, octets, progress, interrupts)
            return _tell(request, progress, _here(request, queues, octets, progress), [])
    except KeyboardInterrupt:
        return INTERRUPTED


def _here(request: Request, queues: list[QueueFiles], octets: int, progress: Progress) -> list[Judged]:
    """Judge by this machine's processors, and write the tables that were asked for."""
    done, said = 0, time.monotonic()

    def tell(more: int) -> None:
        nonlocal done, said
        done += more
        if time.monotonic() - said >= PROGRESS_SECONDS:
            said = time.monotonic()
            progress.say(f"{in_words(done)} of {in_words(octets)} read")

    root = open_source(request.path).root
    judged: list[Judged] = progress.stage("reading and judging", lambda: here.judge_all(
        root, queues, request.options, workers=request.workers, progress=tell), octets)
    if request.parquet:
        from brokerd.spark import export  # Only --to-parquet needs pyarrow for tables.

        progress.stage("writing tables", lambda: export.write_tables(
            root, queues, request.parquet or "", crc=request.options.crc, workers=request.workers))
    return judged


def _in_spark(request: Request, queues: list[QueueFiles], octets: int, progress: Progress,
              interrupts: Interrupts) -> int:
    from brokerd.spark import audit
    from brokerd.spark.java import JavaError

    try:
        with audit.started(request, progress, interrupts) as spark:
            if request.follow:
                return audit.followed(spark, request, progress, interrupts)
            found = audit.audited(spark, request, queues, octets, progress)
            return _tell(request, progress, found.judged, found.checked)
    except JavaError as error:
        raise AuditError(str(error)) from None


def _tell(request: Request, progress: Progress, judged: list[Judged], checked: list[dict[str, Any]]) -> int:
    """Write the report, print the verdicts, and return the exit code."""
    document = summary(open_source(request.path).root, judged, options=request.options, fail_on=request.fail_on,
                       stages=progress.stages, made=Clock().epoch_ns())
    document["options"] |= {"queues": request.queues, "engine": request.engine}
    findings = [finding for one in judged for finding in one.findings]
    if request.engine == "b":
        document |= {"audits": checked, "verdict": worst(checked), "findings_total": sum(r["found"] for r in checked)}
        document["exit"] = exit_status(checked, request.fail_on)
    disagreed = output.disagreements(document["audits"], checked) if request.engine == "both" else []
    if disagreed:
        document |= {"disagreements": disagreed, "exit": BAD_INPUT}
    written = None
    if request.report:
        written = progress.stage("writing the report", lambda: output.write_report(
            request.report or "", document, findings))
    output.show(document)
    if written:
        click.echo(f"report: {os.path.abspath(written)}")
    for line in disagreed:
        sys.stderr.write(f"{request.program}: the engines disagree: {line}\n")
    return int(document["exit"])


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


@click.command(cls=OneLineCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("path", required=False, shell_complete=complete_folders)
@click.option("--segments", metavar="DIR", shell_complete=complete_folders,
              help="A data directory, a dump or an archive, here or s3://bucket/prefix.")
@click.option("--report", metavar="OUT", shell_complete=complete_folders,
              help="Folder for summary.json, findings/ and report.html.")
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
@click.option("--chain-log", metavar="FILE", shell_complete=complete_files,
              help="Compare hash chains with the heads that the broker wrote to this file.")
@click.option("--verify", metavar="PUBKEY", shell_complete=complete_files,
              help="First verify the signature of the dump's manifest by this public key (Ed25519, PEM).")
@click.option("--to-parquet", metavar="DIR", shell_complete=complete_folders,
              help="Write all tables to this folder, for other queries.")
@click.option("--fail-on", default="any", show_default=True, metavar="any|LIST|none",
              help="Audits that decide the exit code; effects of use count where LIST names their audit.")
@click.option("--master", metavar="URL",
              help=f"Judge by Spark, with this master: local[*], spark://host:7077.  Without it the processors of this "
                   f"machine judge up to {HERE_OCTETS_MAX >> 30} GiB, and Spark judges more, where it is installed.")
@click.option("--engine", type=click.Choice(ENGINES), default="a", show_default=True,
              help="a: one pass over arrays; b: SQL by Spark, slower; both: compared.")
@click.option("--follow", is_flag=True,
              help="Judge the publish order while a broker writes, by Spark, until interrupted.")
@click.option("--checkpoint", metavar="DIR", shell_complete=complete_folders,
              help="Folder for the state of --follow; another run goes on from it.")
@click.option("--once", is_flag=True, help="With --follow: judge the present messages, then end.")
@click.option("--installed", is_flag=True, help="The workers have brokerd: do not send it.")
def command(path: str | None, segments: str | None, report: str | None, queues: str | None, audits: str | None,
            from_: str | None, to: str | None, no_crc: bool, group_header: str | None, group_by: str | None,
            unacked_after: float, duplicate_window: float, delivery_limit: int | None, chain_log: str | None,
            verify: str | None, to_parquet: str | None, fail_on: str, master: str | None, engine: str, follow: bool,
            checkpoint: str | None, once: bool, installed: bool) -> int:
    """Check from the files of a broker whether messages kept their order.

    Prints each audit that did not hold.  Exit status 0: the broker kept every promise, perhaps with effects of use,
    1: violated, 2: bad usage or input, 3: undecidable.
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
                      audits=_names(audits), from_ns=_moment(from_), to_ns=_moment(to),
                      chain_log=read_log(chain_log) if chain_log else ())
    if verify:
        from brokerd.audit import signature

        signature.verify(open_source(path or segments or ""), verify)
    return run(Request(path or segments or "", options, queues, report, to_parquet, _fail_on(fail_on), master, engine,
                       not installed, follow=follow, checkpoint=checkpoint, once=once,
                       program=click.get_current_context().info_name or "ordering_audit"))
