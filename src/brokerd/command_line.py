"""What all programs do with a command line that cannot be used: one line on standard error, and exit status 2.  And
what their shells are told to complete.

    brokerd: No such option '--nosuch' (see brokerd --help)

A program's outermost command derives from ``OneLineCommand`` or ``OneLineGroup``.  Knows nothing of any option.
"""

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

WRONG_USAGE = 2


def complete_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list["CompletionItem"]:
    """Let the shell complete the value as a path of a file."""
    from click.shell_completion import CompletionItem  # Only a shell that asks for completions needs it.

    return [CompletionItem(incomplete, type="file")]


def complete_folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> list["CompletionItem"]:
    """Let the shell complete the value as a path of a folder."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="dir")]


COMPLETE = {"": None, "file": complete_files, "folder": complete_folders}


def usage_line(error: click.UsageError, program: str) -> str:
    """The error in one line, without the name of the program before it; ``program`` is asked for help if no command is
    known."""
    path = error.ctx.command_path if error.ctx is not None else program
    return f"{' '.join(error.format_message().split()).rstrip('.')} (see {path} --help)"


def asks_for_help(error: click.UsageError) -> bool:
    """Whether the command line named no command: the answer is then the help.  Older versions of click print it
    themselves, and have no such class."""
    return type(error).__name__ == "NoArgsIsHelpError"


def _refuse(error: click.UsageError, program: str) -> None:
    """Print the fault, and raise Exit.  If the user asked for help, raise ``error`` instead: click prints it."""
    if asks_for_help(error):
        raise error
    click.echo(f"{program}: {usage_line(error, program)}", err=True)
    raise click.exceptions.Exit(WRONG_USAGE)


class OneLineCommand(click.Command):
    """A command with usage errors of one line."""

    def make_context(self, info_name: str | None, args: list[str], parent: click.Context | None = None,
                     **extra: Any) -> click.Context:
        """Read the options.  Raises Exit."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            _refuse(error, info_name or "")
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, or in a group its commands.  Raises Exit."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            _refuse(error, ctx.info_name or "")


class OneLineGroup(OneLineCommand, click.Group):
    """A group with usage errors of one line, as those of its commands."""
