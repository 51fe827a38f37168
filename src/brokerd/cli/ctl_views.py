"""How brokerctl shows the answers of operations to people: a view for each (noun, verb).

The answer of an operation without a row here is shown as names and values.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from brokerd.cli import ctl_tables, ctl_text, ctl_trace


class View(NamedTuple):
    """How one operation is shown.

    ``text`` makes the text of an answer, ``progress`` the line that says how far a job is, ``remarks`` the lines for
    standard error.  ``offline`` makes the answer from the files of a data directory, or a copy, without a broker.
    ``extra`` is an option that the broker is not told of.  ``exit_status`` is that of brokerctl after an answer.
    """

    text: Callable[[Any], str] = ctl_text.plain
    progress: Callable[[dict[str, Any]], str] = ctl_text.plain_line
    remarks: Callable[[Any], list[str]] = lambda answer: []
    offline: Callable[[str, dict[str, Any]], Any] | None = None
    extra: "Extra | None" = None
    exit_status: Callable[[Any], int] = lambda answer: 0


class Extra(NamedTuple):
    """An option with a file.  ``prepare`` reads the file before the broker is asked, and returns what is done with the
    answer; that returns a line for people."""

    flag: str
    help: str
    prepare: Callable[[str], Callable[[Any], str]]


def _sign(key_file: str) -> Callable[[Any], str]:
    from brokerd.audit.signature import Signer  # Few dumps are signed.

    signer = Signer(key_file)
    return lambda answer: f"signed: {signer.sign(answer['out'])}"


def _trace_offline(directory: str, request: dict[str, Any]) -> dict[str, Any]:
    return ctl_trace.read(directory, request["vhost"], request["queue"], request["seq"])


VIEWS: dict[tuple[str, str], View] = {
    ("definitions", "export"): View(ctl_tables.as_json),
    ("message", "trace"): View(ctl_trace.text, offline=_trace_offline, exit_status=ctl_trace.exit_status),
    ("node", "log"): View(ctl_text.log),
    ("node", "backup"): View(ctl_text.dump, progress=ctl_text.dump_progress),
    ("queue", "dump"): View(
        ctl_text.dump, progress=ctl_text.dump_progress, remarks=ctl_text.dump_remarks,
        extra=Extra("--sign", "Sign the manifest with the private key of this file (Ed25519, PEM).", _sign),
    ),
    ("run", "show"): View(ctl_tables.run),
    ("queue", "ordering"): View(ctl_text.ordering),
    ("trace_file", "read"): View(ctl_text.trace_file),
    ("stream", "read"): View(
        partial(ctl_tables.rows, columns=ctl_tables.COLUMNS["stream", "read"]), remarks=ctl_text.read_remarks,
    ),
}


def view_of(noun: str, verb: str) -> View:
    """The view of an operation."""
    view = VIEWS.get((noun, verb))
    if view is None:
        columns = ctl_tables.COLUMNS.get((noun, verb))
        view = PLAIN if columns is None else View(partial(ctl_tables.rows, columns=columns))
    return view


PLAIN = View(ctl_tables.things)
