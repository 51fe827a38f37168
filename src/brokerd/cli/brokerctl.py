"""``brokerctl``: look at a broker's queues and messages, copy them, audit them.

The commands of operations follow from the table of operations (``ctl_commands``).  The commands in this module read
files and need no broker.  Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted; ``audit`` has its own.  A
failure is one line on standard error.
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
from brokerd.cli.ctl_commands import Commands
from brokerd.cli.ctl_output import Progress, remark, show
from brokerd.command_line import WRONG_USAGE, asks_for_help, usage_line
from brokerd.errors import BrokerError

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class Failure(BrokerError):
    """The command failed; the text is one line."""


class Interrupted(Exception):
    """The user interrupted the command.  click's own exception would break the line."""


class Program(Commands):
    """The group of all commands, in which an interrupt raises Interrupted."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.  Raises Interrupted."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None


@click.group("brokerctl", cls=Program, context_settings=HELP)
@click.option("-D", "--data-dir", metavar="DIR", envvar="BROKERD_DATA_DIR",
              help="Data directory of the broker (also BROKERD_DATA_DIR).  [default: brokerd's]")  # fmt: skip
@click.option("-c", "--config", "config_file", metavar="FILE", envvar="BROKERD_CONFIG",
              help="The broker's file of options, which may name that directory (also BROKERD_CONFIG).")  # fmt: skip
@click.version_option(__version__, "-v", "--version", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context, data_dir: str | None, config_file: str | None) -> None:
    """Look at a broker's queues and messages, copy them, audit them."""
    context.obj = (data_dir, config_file)


# --- files


@cli.command("inspect", short_help="Show the contents of a folder of the broker's files.")
@click.argument("directory", metavar="DIR")
@click.option("--queues", "glob", default="", metavar="GLOB", help="Only queues with a matching name, or vhost/name.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect_(directory: str, glob: str, as_json: bool) -> None:
    """Show the contents of a data directory, a dump or an archive: counts, numbers, damage.  Changes nothing."""
    from brokerd.cli import ctl_inspect

    with Progress() as progress:
        table = ctl_inspect.read(directory, glob, progress.at)
    show(json.dumps(table) if as_json else ctl_inspect.text(table))


@cli.command(short_help="Check whether messages kept their order (Spark).", add_help_option=False, context_settings={
    "ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": [],
})  # fmt: skip
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def audit(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Check whether messages kept their order: a Spark job over a data directory, dump or archive (audit --help)."""
    from importlib.util import find_spec

    if find_spec("pyspark") is None:
        # Not 1: that says of an audit that the order did not hold.
        click.echo("brokerctl: brokerctl audit needs PySpark: install brokerd's extra 'spark'", err=True)
        context.exit(2)
    from brokerd.spark.audit import main as run_audit

    context.exit(run_audit(list(arguments), "brokerctl audit"))


# --- the program


def run(arguments: list[str]) -> int:
    """Run a command line, and return its exit status."""
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
            remark(error.format_message() if isinstance(error, click.ClickException) else str(error))
        except OSError as error:
            remark(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
        return 1


def _usage(error: click.UsageError) -> int:
    if asks_for_help(error):
        sys.stderr.write(error.format_message() + "\n")
    else:
        remark(usage_line(error, "brokerctl"))
    return WRONG_USAGE


@contextmanager
def _plain_output() -> Iterator[None]:
    """Let the output replace characters that the terminal's encoding does not have; names may contain them."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    yield


def _close_output() -> None:
    """Discard all further output: its reader is gone, and Python's flush at exit would fail too."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        pass


def main() -> None:
    """Run brokerctl, and exit."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
