"""Files of scenarios for brokerperf: runs with their options, in TOML.

    [defaults]                  # for each scenario whose run has such an option
    uri = "amqp://guest:guest@127.0.0.1:5672/"
    seconds = 10

    [[scenario]]
    name = "plain"
    run = "throughput"          # a command of brokerperf; the other keys are its options
    producers = 2
    queue-args = { x-max-length = 100000 }

A scenario becomes the arguments that one would give the command.  So both mean the same, and are checked alike.
Knows the options of commands, and not what they do.
"""

import difflib
import json
import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

OCTETS_AT_MOST = 1 << 20
SCENARIOS_AT_MOST = 1000
OUTSIDE = ("json", "quiet", "report")       # options of the whole


class ScenarioError(Exception):
    """The file cannot be used; the text is one line for the person who wrote it."""


class Scenario(NamedTuple):
    """One run: the command, and its arguments as a shell would give them."""

    name: str
    run: str
    arguments: list[str]


def read(path: str, commands: Mapping[str, click.Command]) -> list[Scenario]:
    """The scenarios of a file.  ``commands`` are those that a scenario may run.  Raises ScenarioError."""
    try:
        with open(path, "rb") as file:
            octets = file.read(OCTETS_AT_MOST + 1)
        if len(octets) > OCTETS_AT_MOST:
            raise ScenarioError(f"{path}: more than {OCTETS_AT_MOST >> 20} MiB")
        document = tomllib.loads(octets.decode())
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"{path}: not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{path}: {error}") from None
    try:
        return _scenarios(document, commands)
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from None


def _scenarios(document: Mapping[str, Any], commands: Mapping[str, click.Command]) -> list[Scenario]:
    for key in document:
        if key not in ("defaults", "scenario"):
            raise ScenarioError(f"unknown key {key!r}; a file has [defaults] and [[scenario]]")
    defaults, tables = document.get("defaults", {}), document.get("scenario", [])
    if not isinstance(defaults, dict):
        raise ScenarioError("defaults is not a table")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ScenarioError("scenario is not an array of tables: write [[scenario]]")
    if not 0 < len(tables) <= SCENARIOS_AT_MOST:
        raise ScenarioError(f"{len(tables)} scenarios; a file has 1 to {SCENARIOS_AT_MOST}")
    known = set().union(*(_options(command) for command in commands.values()))
    for key in defaults:
        if _plain(key) not in known:
            raise ScenarioError(f"defaults: {_unknown(key, known)}")
    found: list[Scenario] = []
    for number, table in enumerate(tables, 1):
        name = table.get("name", "")
        if not isinstance(name, str) or not name:
            raise ScenarioError(f"scenario {number} has no name")
        if any(name == former.name for former in found):
            raise ScenarioError(f"two scenarios have the name {name!r}")
        try:
            found.append(_scenario(name, table, defaults, commands))
        except ScenarioError as error:
            raise ScenarioError(f"scenario {name!r}: {error}") from None
    return found


def _scenario(name: str, table: Mapping[str, Any], defaults: Mapping[str, Any],
              commands: Mapping[str, click.Command]) -> Scenario:
    run = table.get("run")
    if not isinstance(run, str) or run not in commands:
        raise ScenarioError(f"run is {run!r}; it is one of {', '.join(commands)}")
    options = _options(commands[run])
    values = {_plain(key): value for key, value in defaults.items() if _plain(key) in options}
    for key, value in table.items():
        if key in ("name", "run"):
            continue
        if _plain(key) not in options:
            raise ScenarioError(_unknown(key, set(options)))
        values[_plain(key)] = value
    arguments: list[str] = []
    for key, value in values.items():
        arguments += _arguments(key, options[key], value)
    return Scenario(name, run, arguments)


def _plain(key: str) -> str:
    return key.replace("_", "-")


def _options(command: click.Command) -> dict[str, click.Option]:
    """The options that a scenario may have, by their long names."""
    found = {}
    for option in command.params:
        if isinstance(option, click.Option):
            for name in option.opts:
                if name.startswith("--") and name[2:] not in OUTSIDE:
                    found[name[2:]] = option
    return found


def _unknown(key: str, known: set[str]) -> str:
    near = difflib.get_close_matches(_plain(key), sorted(known), 1)
    return f"no such option {key!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _arguments(key: str, option: click.Option, value: Any) -> list[str]:
    if option.is_flag:
        if not isinstance(value, bool):
            raise ScenarioError(f"{key} is true or false, not {value!r}")
        names = [f"--{key}"] if value else option.secondary_opts[:1]
        return list(names)
    if option.multiple:
        values = value if isinstance(value, list) else [value]
        return [part for single in values for part in (f"--{key}", _text(key, single))]
    return [f"--{key}", _text(key, value)]


def _text(key: str, value: Any) -> str:
    if isinstance(value, dict):
        try:
            return json.dumps(value)
        except TypeError:
            raise ScenarioError(f"{key} holds a value that JSON has not") from None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ScenarioError(f"{key} is text, a number or a table, not {value!r}")
    return str(value)
