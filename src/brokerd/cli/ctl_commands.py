"""brokerctl's commands for operations.  Name, arguments, options and help follow from the operation's row.

``brokerctl queue ordering orders`` is the operation "queue ordering".  The command asks the broker over its control
socket.  If no broker runs, some operations read the files instead.  ``ctl_views`` says how answers are shown.
"""

import json
import os
import sys
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, get_args

import click

from brokerd.cli.ctl_client import Client, NotRunning
from brokerd.cli.ctl_output import Progress, remark, show
from brokerd.cli.ctl_views import View, view_of
from brokerd.command_line import complete_files
from brokerd.errors import BrokerError
from brokerd.operations import table
from brokerd.operations.rows import Field, Operation, RequestField, request_fields

if TYPE_CHECKING:
    from brokerd.cli.ctl_remote import Remote, RemoteClient

REMOTE = "brokerctl.remote"  # key of click's meta: a ctl_remote.Remote
WATCH_SECONDS = 1.0
CLEAR = "\x1b[H\x1b[2J"
OFFLINE = "Where no broker runs, the files are read: -D may also name a dump or an archive."


class Commands(click.Group):
    """A group that has its own commands, a subgroup for each noun of the table, and a command for each alias."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of commands and groups that help lists."""
        return sorted({*super().list_commands(ctx), *(row.noun for row in table.by_name().values())})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        rows = table.by_name().values()
        of_noun = [row for row in rows if row.noun == cmd_name]
        if of_noun:
            return _group(cmd_name, of_noun)
        for row in rows:
            if cmd_name in row.aliases or cmd_name in row.presets:
                return command(row, cmd_name)
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write click's list of commands, and the aliases below it."""
        super().format_commands(ctx, formatter)
        aliases = [(alias, f"brokerctl {row.name}") for row in table.by_name().values()
                   for alias in (*row.aliases, *row.presets)]
        if aliases:
            with formatter.section("Short names"):
                formatter.write_dl(sorted(aliases))


def _group(noun: str, rows: list[Operation[Any, Any]]) -> click.Group:
    verbs = ", ".join(row.verb for row in rows)
    group = click.Group(noun, help=f"Operations: {verbs}.")
    for row in rows:
        group.add_command(command(row, row.verb))
    return group


def command(row: Operation[Any, Any], name: str) -> click.Command:
    """The command of an operation, under that name."""
    given = row.presets.get(name, {})
    fields = [_as_argument(each) if each.name in given else each for each in request_fields(row.request)
              if given.get(each.name) is None]
    params: list[click.Parameter] = [
        *map(_parameter, fields), click.Option(["--json", "as_json"], is_flag=True, help="Print JSON."),
    ]  # fmt: skip
    extra = view_of(row.noun, row.verb).extra
    if extra is not None:
        params.append(click.Option([extra.flag, "extra"], metavar="KEYFILE", help=extra.help,
                                   shell_complete=complete_files))  # fmt: skip
    asks_first = row.changes and row.verb in ("delete", "purge")
    if asks_first:
        params.append(click.Option(["-y", "--yes"], is_flag=True, help="Do not ask first."))
    if not row.changes:
        params.append(click.Option(["--watch"], is_flag=True, help="Print it again each second, until interrupted."))

    def run(
        as_json: bool, watch: bool = False, extra: str | None = None, yes: bool = False, **values: Any
    ) -> None:  # fmt: skip
        if asks_first and not yes and sys.stdin.isatty():
            named = " ".join([str(values[each.name]) for each in fields if each.field.argument])
            click.confirm(f"{row.noun} {row.verb} {named}: this cannot be undone.  Go on?", abort=True, err=True)
        for each in fields:
            if each.field.secret and values[each.name] is None and not values.get("password_hash"):
                values[each.name] = ask_secret(each)
        remote = click.get_current_context().meta.get(REMOTE)
        request = {each.name: _value(each, values[each.name], remote is not None) for each in fields
                   if values[each.name] is not None and (values[each.name] != () or each.field.argument)}
        request |= {key: value for key, value in given.items() if value is not None}
        directory = directory_of(click.get_current_context()) if remote is None else ""
        perform(row, directory, request, as_json, watch, extra, remote=remote)

    return click.Command(name, params=params, callback=run, help=_help(row), short_help=row.help.partition("\n")[0])


def _as_argument(option: RequestField) -> RequestField:
    return option._replace(field=Field(option.field.help, argument=True), required=True)


def _help(row: Operation[Any, Any]) -> str:
    """The row's help and the help of its arguments, which click itself does not show."""
    parts = [cleandoc(row.help)]
    if view_of(row.noun, row.verb).offline is not None:
        parts.append(OFFLINE)
    arguments = {each.name.upper(): each.field.help for each in request_fields(row.request) if each.field.argument}
    if arguments:
        width = max(map(len, arguments))
        parts.append("\n".join(["\b", *(f"{name.ljust(width)}  {text}" for name, text in arguments.items())]))
    return "\n\n".join(parts)


def directory_of(context: click.Context) -> str:
    """The data directory: from the flag, the environment, the broker's file of options, or the default."""
    data_dir, config_file = context.obj
    if not data_dir:
        from brokerd.config import Config, load

        data_dir = (load(config_file, {}, {}) if config_file else Config()).data_dir
    return os.path.abspath(data_dir)


# --- a field of the request


class _Json(click.ParamType):
    """A list or a table, written as JSON."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError as error:
            self.fail(f"not JSON: {error}", param, ctx)


class _Words(click.ParamType):
    """Words, separated by commas."""

    name = "words"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if not isinstance(value, str) else [word.strip() for word in value.split(",") if word.strip()]


def _parameter(each: RequestField) -> click.Parameter:
    if type(None) in get_args(each.type):  # It may be left out: what is given has the other type.
        each = each._replace(type=next(kind for kind in get_args(each.type) if kind is not type(None)))
    attributes: dict[str, Any] = {"type": _type(each), "required": each.required}
    if not each.required:
        attributes["default"] = each.default  # click would take even None as a given value.
    if each.field.path:
        attributes["shell_complete"] = complete_files
    if each.field.argument and each.type == list[str]:
        return click.Argument([each.name], metavar=f"{each.name.upper()}...", type=str, nargs=-1)
    if each.field.argument:
        if each.field.secret:
            attributes |= {"required": False, "default": None}  # It is asked for: a list of processes must not show it.
        return click.Argument([each.name], metavar=each.name.upper(), **attributes)
    flag = f"--{each.name.replace('_', '-')}"
    if each.type == list[str] and each.field.verbatim:
        attributes |= {"type": str, "default": None, "multiple": True}
    elif each.type == list[str]:
        attributes |= {"type": _Words(), "default": None}
    shown = f"  [default: {each.default}]" if each.default not in (None, "", False, ()) else ""
    if each.type is bool:
        flag += f"/--no-{flag[2:]}"
    short = ["-p"] if each.name == "vhost" else []  # rabbitmqctl's
    return click.Option([*short, flag, each.name], help=each.field.help + shown, **attributes)


def _type(each: RequestField) -> Any:
    if each.choices:
        return click.Choice(each.choices)
    if each.type is int:
        low, high = [None if bound is None else int(bound) for bound in (each.field.low, each.field.high)]
        return click.INT if low is high is None else click.IntRange(low, high)
    if each.type is float:
        return click.FloatRange(each.field.low, each.field.high)
    return {bool: click.BOOL, str: click.STRING}.get(each.type) or _Json()


def _value(each: RequestField, value: Any, elsewhere: bool) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if elsewhere and each.field.path and value and not os.path.isabs(value):
        raise BrokerError(f"{each.name} is on the broker's machine: its whole path is needed, not {value}")
    return os.path.abspath(value) if each.field.path and value else value


def ask_secret(each: RequestField) -> str:
    """A password: without echo at a terminal, else the first line of standard input."""
    if sys.stdin.isatty():
        return str(click.prompt(each.name.replace("_", " ").capitalize(), hide_input=True, err=True))
    return sys.stdin.readline().rstrip("\r\n")


# --- doing it


def perform(
    row: Operation[Any, Any], directory: str, request: dict[str, Any], as_json: bool, watch: bool,
    extra: str | None = None, *, remote: "Remote | None" = None,
) -> None:  # fmt: skip
    """Ask the broker on that data directory, or a remote one, and show its answer.  ``extra``: the file of the view's
    own option."""
    view = view_of(row.noun, row.verb)
    then = view.extra.prepare(extra) if view.extra is not None and extra is not None else None
    try:
        with _client(directory, remote) as client:
            answer = _ask(client, row, request, view)
            while watch:
                show((CLEAR if not as_json and sys.stdout.isatty() else "") + _shown(answer, view, as_json))
                _nap()
                answer = _ask(client, row, request, view)
    except NotRunning:
        if view.offline is None:
            raise
        if not os.path.isdir(directory):
            raise BrokerError(f"{directory}: no such folder; -D names a data directory, a dump or an archive") from None
        answer = view.offline(directory, request)
    if not as_json:
        for line in view.remarks(answer):
            remark(line)
    done = "" if then is None else "\n" + then(answer)
    show(_shown(answer, view, as_json) + ("" if as_json else done))
    status = view.exit_status(answer)
    if status:
        raise click.exceptions.Exit(status)


def _client(directory: str, remote: "Remote | None") -> "Client | RemoteClient":
    if remote is None:
        return Client(directory)
    from brokerd.cli.ctl_remote import RemoteClient

    return RemoteClient(remote)


def _ask(client: "Client | RemoteClient", row: Operation[Any, Any], request: dict[str, Any], view: View) -> Any:
    if not row.job:
        return client.ask(row.name, request)
    with Progress() as progress:
        return client.ask(row.name, request, lambda far: progress.at(view.progress(far)), seconds=None)


def _shown(answer: Any, view: View, as_json: bool) -> str:
    return json.dumps(answer) if as_json else view.text(answer)


def _nap() -> None:
    from time import sleep  # Here, because only --watch waits.

    sleep(WATCH_SECONDS)
