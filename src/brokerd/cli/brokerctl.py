"""``brokerctl``: look at a broker's queues and messages, copy them, audit them.

The commands of operations follow from the table of operations (``ctl_commands``).  The commands in this module read
files and need no broker.  Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted; ``audit``, ``inspect`` and
``export`` end with 2 also if their input cannot be used, because their 1 is a verdict or an error of the disk.  A
failure is one line on standard error.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from brokerd import __version__
from brokerd.audit import AuditError, NoSuchQueueError
from brokerd.cli.ctl_commands import REMOTE, Commands
from brokerd.cli.ctl_output import Progress, remark, show
from brokerd.command_line import WRONG_USAGE, asks_for_help, complete_files, complete_folders, usage_line
from brokerd.errors import BrokerError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

NOT_ALL = 3  # exit status of an export: what is damaged is not in it


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
@click.option("-D", "--data-dir", metavar="DIR", envvar="BROKERD_DATA_DIR", shell_complete=complete_folders,
              help="Data directory of the broker (also BROKERD_DATA_DIR).  [default: brokerd's]")  # fmt: skip
@click.option("-c", "--config", "config_file", metavar="FILE", envvar="BROKERD_CONFIG", shell_complete=complete_files,
              help="The broker's file of options, which may name that directory (also BROKERD_CONFIG).")  # fmt: skip
@click.option("--url", metavar="URL", envvar="BROKERCTL_URL",
              help="Ask a broker over HTTP, such as https://mq.example:15671 (also BROKERCTL_URL).")  # fmt: skip
@click.option("--broker", metavar="NAME", envvar="BROKERCTL_BROKER",
              help="The same, by a name in ~/.config/brokerd/brokers.toml (also BROKERCTL_BROKER).")  # fmt: skip
@click.option("--user", metavar="USER", envvar="BROKERCTL_USER",
              help="The user who asks over HTTP (also BROKERCTL_USER).  [default: guest]")  # fmt: skip
@click.version_option(__version__, "-v", "--version", message="%(prog)s %(version)s")
@click.pass_context
def cli(
    context: click.Context, data_dir: str | None, config_file: str | None, url: str | None, broker: str | None,
    user: str | None,
) -> None:  # fmt: skip
    """Look at a broker's queues and messages, copy them, audit them."""
    context.obj = (data_dir, config_file)
    if url or broker:
        from brokerd.cli import ctl_remote  # Without them brokerctl does without.

        context.meta[REMOTE] = ctl_remote.find(url, broker, user)


# --- files


@cli.command("inspect", short_help="Show the contents of a folder of the broker's files.")
@click.argument("directory", metavar="DIR", shell_complete=complete_folders)
@click.option("--queues", "glob", default="", metavar="GLOB", help="Only queues with a matching name, or vhost/name.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def inspect_(context: click.Context, directory: str, glob: str, as_json: bool) -> None:
    """Show the contents of a data directory, a dump or an archive: counts, numbers, damage.  Changes nothing.

    Exit status 0: nothing is damaged, 1: something is, 2: bad usage or input.
    """
    from brokerd.cli import ctl_inspect

    try:
        with Progress() as progress:
            table = ctl_inspect.read(directory, glob, progress.at)
    except AuditError as error:
        remark(str(error))
        context.exit(WRONG_USAGE)
    show(json.dumps(table) if as_json else ctl_inspect.text(table))
    context.exit(ctl_inspect.exit_status(table))


@cli.command("restore", short_help="Make a data directory of a backup.")
@click.argument("backup", metavar="BACKUP", shell_complete=complete_folders)
@click.argument("directory", metavar="DIR", required=False, shell_complete=complete_folders)
@click.option("--dry-run", is_flag=True, help="Check the backup, and write nothing: this needs no DIR.")
def restore(backup: str, directory: str | None, dry_run: bool) -> None:
    """Make the data directory DIR of a backup, and check every file of it.  Needs no broker.

    DIR must not exist, or be empty.  Where a file of the backup is missing or is not what the manifest says, nothing is
    restored.
    """
    from brokerd.cli import ctl_restore

    if not dry_run and not directory:
        raise click.UsageError("Missing argument 'DIR'.")
    with Progress() as progress:
        target = os.path.abspath(directory or backup)
        told = ctl_restore.restore(os.path.abspath(backup), target, progress.at, dry=dry_run)
    show(told)


def _complete_audit(context: click.Context, param: click.Parameter | None, incomplete: str) -> list["CompletionItem"]:
    """Completions from the audit, which reads its own command line."""
    from click.shell_completion import ShellComplete

    from brokerd.cli.ctl_audit import command

    given = list(context.params.get("arguments") or ())
    return ShellComplete(command, {}, "brokerctl audit", "").get_completions(given, incomplete)


class AuditCommand(click.Command):
    """A command that hands its whole command line on."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["CompletionItem"]:
        """The options of the audit."""
        return _complete_audit(ctx, None, incomplete)


@cli.command("export", short_help="Write messages and events as Parquet, for other programs.")
@click.argument("directory", metavar="DIR", shell_complete=complete_folders)
@click.argument("out", metavar="OUT", shell_complete=complete_folders)
@click.option("--queues", "glob", default="", metavar="GLOB", help="Only queues with a matching name, or vhost/name.")
@click.option("--tables", default="messages,events,lifecycle,segments", show_default=True, metavar="LIST",
              help="These tables, separated by commas.")  # fmt: skip
@click.option("--no-crc", is_flag=True, help="Do not check the sums of records and events.")
@click.pass_context
def export(context: click.Context, directory: str, out: str, glob: str, tables: str, no_crc: bool) -> None:
    """Write the tables of a data directory, a dump or an archive as Parquet, in folders by vhost, queue and day.

    OUT must not exist, or be empty.  Exit status 0: done, 1: the disk would not take it, 2: bad usage or input,
    3: done, but what is damaged could not be exported; standard error says what.
    """
    from brokerd.cli import ctl_export

    try:
        with Progress() as progress:
            told, damaged = ctl_export.write(directory, out, glob, tables, not no_crc, progress.at)
    except AuditError as error:
        remark(str(error))
        context.exit(WRONG_USAGE)
    for line in damaged:
        remark(line)
    show(told)
    if damaged:
        context.exit(NOT_ALL)


@cli.command(short_help="Check whether messages kept their order.", cls=AuditCommand, add_help_option=False,
             context_settings={
    "ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": [],
})  # fmt: skip
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, shell_complete=_complete_audit)
@click.pass_context
def audit(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Check whether messages kept their order, from a data directory, a dump or an archive (audit --help)."""
    from brokerd.cli.ctl_audit import main as run_audit

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
        except NoSuchQueueError as error:
            remark(str(error))
            return WRONG_USAGE
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
