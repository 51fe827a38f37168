"""``brokerd``: run the broker.

Each option of ``config.py`` has one flag, made from its row.  This module turns the command line into a configuration
and hands it to ``server/launch.py``.  Exit status: 0 stopped on request, 1 a failure while running, 2 an unusable
configuration.
"""

import os
import sys
from typing import Any

import click

from brokerd import __version__
from brokerd.command_line import COMPLETE, OneLineCommand, complete_files
from brokerd.config import OPTIONS, Row, load
from brokerd.errors import BrokerError, ConfigError, in_words


class _WholeNumber(click.IntRange):
    """A number within an option's bounds.  A refusal has the words of the other sources of options."""

    def __init__(self, row: Row) -> None:
        super().__init__(row.option.low, row.option.high)
        self._rule = row.rule

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number.  Fails for other texts, and for numbers out of bounds."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            return self.fail(f"{value!r}: must be {self._rule}", param, ctx)


def _flag(row: Row) -> click.Option:
    """The command-line option of one row."""
    names = [row.flag, row.name] + ([row.option.short] if row.option.short else [])
    default = "hidden" if row.option.secret else row.default
    if row.type is bool or default in ("", None):
        default = str(default or None if row.type is not bool else default).lower()
    text = f"{row.option.help}  [default: {default}]"
    if row.type is bool:
        names[0] = f"{row.flag}/--no-{row.flag[2:]}"
        return click.Option(names, default=None, help=text)
    kind: Any = click.STRING
    if row.choices:
        kind = click.Choice(row.choices)
    elif row.type is int:
        kind = _WholeNumber(row)
    return click.Option(names, type=kind, default=None, help=text, shell_complete=COMPLETE[row.option.path])


def _serve(config_file: str | None, **flags: Any) -> None:
    from brokerd.server.launch import serve  # Printing help and refusing a flag do not need this import.

    environ = os.environ
    path = config_file or environ.get("BROKERD_CONFIG") or None
    try:
        for name, value in flags.items():
            if isinstance(value, str) and OPTIONS[name].option.low and not value:
                raise ConfigError(f"{OPTIONS[name].flag}: must be {OPTIONS[name].rule}")
        config = load(path, environ, flags)
    except ConfigError as error:
        _end(error, 2)
    try:
        status = serve(config, reload=lambda: load(path, environ, flags))
    except (BrokerError, OSError) as error:
        _end(error, 1)
    sys.exit(status)


def _end(error: Exception, status: int) -> None:
    click.echo(f"brokerd: {in_words(error)}", err=True)
    sys.exit(status)


def command() -> click.Command:
    """The command with all its options."""
    options: list[click.Parameter] = [
        click.Option(["-c", "--config", "config_file"], help="File of options (TOML).", metavar="FILE",
                     shell_complete=complete_files),
        *map(_flag, OPTIONS.values()),
    ]
    run = OneLineCommand(
        "brokerd",
        params=options,
        callback=_serve,
        help="Run the broker until TERM or INT stops it.  HUP makes it read the configuration, users, "
             "permissions and policies again; USR1 writes a summary of its state into the log.",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    return click.version_option(__version__, "-v", "--version", message="%(prog)s %(version)s")(run)
