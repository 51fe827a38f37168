"""Carries out what brokerperf was asked for, and tells how it went: figures, report, exit code.

An `Order` is a run under a name.  Runs follow each other; one that fails does not stop the next, Ctrl-C does.
Knows no options.
"""

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import click

from brokerd.cli.perfclient import PerfError
from brokerd.cli.perflive import Teller
from brokerd.cli.perfrun import Figures
from brokerd.cli.perfsample import Record, Say

if TYPE_CHECKING:
    from brokerd.cli.perfreport import Done

FAILED, ORDER_VIOLATED, STALLED, INTERRUPTED = 1, 3, 4, 130
PASSWORD = re.compile(r"(amqps?://[^:/@]*):[^/]*@")


class Plan(NamedTuple):
    """A command's name, and the run that it asks for."""

    command: str
    run: Callable[[Say], Figures]


class Order(NamedTuple):
    """A plan, under the name of its scenario (else empty), and the arguments that asked for it."""

    name: str
    arguments: list[str]
    plan: Plan


class Outcome(NamedTuple):
    """How a run ended.  ``error``: one line; empty if all is well."""

    code: int
    error: str
    figures: Figures
    record: Record


def carry_out(orders: Sequence[Order], as_json: bool, quiet: bool, report: str | None) -> None:
    """Run all, print their figures, and exit with the first code that is not 0."""
    if report:
        _check_report(report)
    # A stop by systemd or a container ends a run as politely as Ctrl-C does.
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    outcomes: list[Outcome] = []
    try:
        for order in orders:
            outcomes.append(_measure(order, quiet))
            _print(order, outcomes[-1], as_json)
            if outcomes[-1].code == INTERRUPTED or outcomes[-1].figures.get("interrupted"):
                break
    finally:
        signal.signal(signal.SIGTERM, former)
    if report:
        _write_report(report, orders, outcomes, quiet)
    code = next((outcome.code for outcome in outcomes if outcome.code), 0)
    if code:
        sys.exit(code)


def _measure(order: Order, quiet: bool) -> Outcome:
    figures: Figures = {"name": order.name} if order.name else {}
    figures["command"] = order.plan.command
    with Teller(quiet, order.name) as teller:
        try:
            figures |= order.plan.run(teller)
        except (PerfError, ValueError, OSError) as error:
            return Outcome(FAILED, str(error), figures, teller.record)
        except KeyboardInterrupt:
            return Outcome(INTERRUPTED, "interrupted", figures, teller.record)
    if figures.get("stalled"):
        return Outcome(STALLED, "nothing moved any more", figures, teller.record)
    if any(figures["order"].values() if "order" in figures else ()):
        return Outcome(ORDER_VIOLATED, "the order of messages was violated", figures, teller.record)
    return Outcome(0, "", figures, teller.record)


def _print(order: Order, outcome: Outcome, as_json: bool) -> None:
    whole = outcome.code not in (FAILED, INTERRUPTED)
    if as_json and (whole or order.name):
        click.echo(json.dumps(outcome.figures | ({} if whole else {"error": outcome.error})))
    elif whole:
        for line in summary(outcome.figures):
            click.echo(line)
        if order.name:
            click.echo("")
    if outcome.error:
        click.echo(f"brokerperf: {order.name + ': ' if order.name else ''}{outcome.error}", err=True)


def summary(figures: Figures) -> list[str]:
    """The figures as lines of text; a group of figures shares one line."""
    lines = []
    for name, value in figures.items():
        if value is None:
            continue
        if isinstance(value, dict):
            value = "  ".join(f"{key} {number:,}" for key, number in value.items())
        elif isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, int | float):
            value = f"{value:,}"
        lines.append(f"{name.replace('_', ' '):24}{value}")
    return lines


def shown(arguments: Sequence[str]) -> str:
    """The arguments as for a shell, without passwords."""
    return PASSWORD.sub(r"\1:…@", shlex.join(["brokerperf", *arguments]))


def _check_report(path: str) -> None:
    """Exit, before anything runs, if the report could not be written."""
    problem = ""
    folder = os.path.dirname(os.path.abspath(path))
    if find_spec("jinja2") is None:
        from brokerd.auditor.request import REPORT, how_to_install

        problem = f"--report needs jinja2, which this Python does not have; this installs it: {how_to_install(REPORT)}"
    elif os.path.isdir(path):
        problem = f"{path}: is a folder"
    elif not os.path.isdir(folder):
        problem = f"{folder}: no such folder"
    elif not os.access(folder, os.W_OK):
        problem = f"{folder}: may not be written to"
    if problem:
        click.echo(f"brokerperf: {problem}", err=True)
        sys.exit(FAILED)


def _write_report(path: str, orders: Sequence[Order], outcomes: Sequence[Outcome], quiet: bool) -> None:
    from brokerd.cli import perfreport  # jinja2 takes 60 ms to import.

    done: list[Done] = [
        perfreport.Done(order.name or order.plan.command, shown(order.arguments), outcome.figures, outcome.record,
                        outcome.error)
        for order, outcome in zip(orders, outcomes, strict=False)]
    try:
        perfreport.write(path, done)
    except OSError as error:
        click.echo(f"brokerperf: {path}: {error.strerror or error}", err=True)
        sys.exit(FAILED)
    if not quiet:
        click.echo(f"brokerperf: report: {os.path.abspath(path)}", err=True)
