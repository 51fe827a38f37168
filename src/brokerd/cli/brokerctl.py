"""``brokerctl``: look at a broker's queues and messages, copy them, audit them.

What needs a running broker is asked through the control socket in its data directory; the rest reads files.  Exit
status: 0 done, 1 failed, 2 a command that cannot be understood, 130 interrupted; ``audit`` has its own.  What went
wrong is one line on standard error.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from brokerd import __version__
from brokerd.audit import AuditError
from brokerd.cli.ctl_client import Client, NotRunning
from brokerd.cli.ctl_progress import Progress
from brokerd.errors import BrokerError

WATCH_SECONDS = 1.0
CLEAR = "\x1b[H\x1b[2J"
HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
VHOST = click.option("--vhost", default="/", metavar="NAME", help="Vhost of the queue.  [default: /]")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Failure(BrokerError):
    """The command cannot do what it is asked to; one line."""


class Interrupted(Exception):
    """By the user.  Not click's own, which breaks the line."""


class Group(click.Group):
    """The whole of it."""

    def invoke(self, ctx: click.Context) -> Any:
        """Raises Interrupted."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None


@click.group("brokerctl", cls=Group, context_settings=HELP)
@click.option("-D", "--data-dir", metavar="DIR", envvar="BROKERD_DATA_DIR",
              help="Data directory of the broker (also BROKERD_DATA_DIR).  [default: brokerd's]")  # fmt: skip
@click.option("-c", "--config", "config_file", metavar="FILE", envvar="BROKERD_CONFIG",
              help="The broker's file of options, which may name that (also BROKERD_CONFIG).")  # fmt: skip
@click.version_option(__version__, "-v", "--version", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context, data_dir: str | None, config_file: str | None) -> None:
    """Look at a broker's queues and messages, copy them, audit them."""
    context.obj = (data_dir, config_file)


def directory_of(context: click.Context) -> str:
    """The data directory that is meant: by flag, environment, file of options, or by default."""
    data_dir, config_file = context.obj
    if not data_dir:
        from brokerd.config import Config, load

        data_dir = (load(config_file, {}, {}) if config_file else Config()).data_dir
    return os.path.abspath(data_dir)


# --- queue, message


@cli.group()
def queue() -> None:
    """Ask about a queue."""


@queue.command("ordering", short_help="How a queue keeps its order, and what has disturbed it.")
@click.argument("name")
@VHOST
@AS_JSON
@click.option("--watch", is_flag=True, help="Again each second, until interrupted.")
@click.pass_context
def queue_ordering(context: click.Context, name: str, vhost: str, as_json: bool, watch: bool) -> None:
    """How firmly queue NAME keeps its order now, why, and what has disturbed it."""
    from brokerd.cli import ctl_text

    with Client(directory_of(context)) as client:
        while True:
            table = client.ask("ordering", vhost=vhost, queue=name)
            text = json.dumps(table) if as_json else ctl_text.ordering(table)
            show((CLEAR if watch and not as_json and sys.stdout.isatty() else "") + text)
            if not watch:
                return
            from time import sleep

            sleep(WATCH_SECONDS)


@cli.group()
def message() -> None:
    """Ask about a message."""


@message.command("trace", short_help="The life of one message.")
@click.argument("queue", metavar="QUEUE")
@click.argument("seq", type=click.IntRange(1))
@VHOST
@AS_JSON
@click.pass_context
def message_trace(context: click.Context, queue: str, seq: int, vhost: str, as_json: bool) -> None:
    """The life of message number SEQ of QUEUE: who published it, who got it, what became of it.

    Where no broker runs on the data directory it is read from the files; also from a dump's, or an archive's (-D).
    """
    from brokerd.cli import ctl_trace

    directory = directory_of(context)
    try:
        with Client(directory) as client:
            table = client.ask("trace", vhost=vhost, queue=queue, seq=seq)
    except NotRunning:
        table = ctl_trace.read(directory, vhost, queue, seq)
    show(json.dumps(table) if as_json else ctl_trace.text(table))


# --- files


@cli.command("inspect", short_help="What is in a folder of the broker's files.")
@click.argument("directory", metavar="DIR")
@click.option("--queues", "glob", default="", metavar="GLOB", help="Only queues of that name, or vhost/name.")
@AS_JSON
def inspect_(directory: str, glob: str, as_json: bool) -> None:
    """What is in the files of a data directory, a dump or an archive: counts, numbers, damage.  Changes nothing."""
    from brokerd.cli import ctl_inspect

    with Progress() as progress:
        table = ctl_inspect.read(directory, glob, progress.at)
    show(json.dumps(table) if as_json else ctl_inspect.text(table))


@cli.command(short_help="Copy queues' files while the broker goes on.")
@click.argument("out", metavar="OUT")
@click.option("--queues", "glob", default="", metavar="GLOB", help="Only queues of that name, or vhost/name.")
@AS_JSON
@click.pass_context
def dump(context: click.Context, out: str, glob: str, as_json: bool) -> None:
    """Copy the files of durable queues to the folder OUT, while the broker goes on.

    Each queue is copied as it is at one instant.  OUT must not be there, or be empty; the broker writes it.
    """
    from brokerd.cli import ctl_text

    with Client(directory_of(context)) as client, Progress() as progress:
        done = client.ask("dump", lambda at: progress.at(
            f"queue {at['number']} of {at['queues']}, {ctl_text.octets(at['octets'])}"
        ), seconds=None, queues=glob, out=os.path.abspath(out))  # fmt: skip
    if as_json:
        show(json.dumps(done))
        return
    for each in done["skipped"]:
        told(f"left out: {ctl_text.queue(each)}: {each['why']}")
    show(f"{ctl_text.many(done['queues'], 'queue')}, {ctl_text.many(done['segments'], 'segment')}, "
         f"{ctl_text.octets(done['octets'])} copied to "
         f"{ctl_text.clean(done['out'])}")  # fmt: skip


@cli.command(short_help="Judge whether the order held (Spark).", add_help_option=False, context_settings={
    "ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": [],
})  # fmt: skip
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def audit(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Judge whether the order held: a Spark job over a data directory, a dump or an archive (audit --help)."""
    from importlib.util import find_spec

    if find_spec("pyspark") is None:
        raise Failure("brokerctl audit needs the extra: pip install brokerd[spark]")
    from brokerd.spark.audit import main as run_audit

    context.exit(run_audit(list(arguments)))


# --- the program


def show(text: str) -> None:
    """Print, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def told(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"brokerctl: {' '.join(text.split())}\n")


def run(arguments: list[str]) -> int:
    """Run a command line; its exit status."""
    with _plain_output():
        try:
            status = cli.main(arguments, "brokerctl", standalone_mode=False)
            return status if isinstance(status, int) else 0
        except click.UsageError as error:
            return _usage(error)
        except (Interrupted, click.Abort, KeyboardInterrupt):
            return 130
        except BrokenPipeError:
            _close_output()
            return 1
        except (AuditError, BrokerError, click.ClickException) as error:
            told(error.format_message() if isinstance(error, click.ClickException) else str(error))
        except OSError as error:
            told(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
        return 1


def _usage(error: click.UsageError) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(error.format_message() + "\n")
        return 2
    path = error.ctx.command_path if error.ctx is not None else "brokerctl"
    told(f"{error.format_message().rstrip('.')} (see {path} --help)")
    return 2


@contextmanager
def _plain_output() -> Iterator[None]:
    """Names may hold what the terminal's encoding has not."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    yield


def _close_output() -> None:
    """Whoever read it is gone: nothing is to be written at exit either."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        pass


def main() -> None:
    """The program."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
