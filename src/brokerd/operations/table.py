"""The table of operations: finds the row of a name, and performs it if the user has the right.

Knows nothing of sockets: a request is a name and a table of fields.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from brokerd.operations import OperationError, rights
from brokerd.operations.rows import Operation, Who, request_fields

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from brokerd.node import Node

NOUNS = (  # each has its rows in a module of this package
    "binding", "change", "channel", "connection", "consumer", "definitions", "exchange", "federation_link",
    "global_parameter", "group", "message", "node", "operator_policy", "parameter", "permission", "policy", "queue",
    "run", "shovel", "stream", "topic_permission", "trace_file", "tracer", "upstream", "user", "vhost",
)  # fmt: skip
_ADAPTERS: "dict[type, TypeAdapter[Any]]" = {}


@cache
def by_name() -> dict[str, Operation[Any, Any]]:
    """Every row by "noun verb", in order of the names."""
    rows: list[Operation[Any, Any]] = []
    for noun in NOUNS:
        rows += import_module(f"brokerd.operations.{noun}").OPERATIONS
    return {row.name: row for row in sorted(rows, key=lambda row: row.name)}


def find(name: str) -> Operation[Any, Any]:
    """The row of that name or alias.  Raises OperationError (400)."""
    rows = by_name()
    row = rows.get(name) or next((row for row in rows.values() if name in row.aliases), None)
    if row is None:
        from difflib import get_close_matches

        close = get_close_matches(name, [*rows, *(alias for row in rows.values() for alias in row.aliases)], 1)
        raise OperationError(f"no operation '{name}'{f'; did you mean {close[0]}?' if close else ''}", 400)
    return row


def prepare() -> None:
    """Import pydantic, and have it read the requests.  It takes some tenths of a second: not on a broker's loop."""
    for row in by_name().values():
        adapter(row.request)


def perform(node: "Node", who: Who, name: str, fields: Mapping[str, Any]) -> tuple[Operation[Any, Any], Any]:
    """Check the request and the user's rights, then do the operation.  Returns its row, and the answer or the job.

    Raises OperationError, and what the operation raises.
    """
    row = find(name)
    request = read(row, name, fields)
    rights.check(node, who, row, request)
    return row, row.function(node, who, request)


def read(row: Operation[Any, Any], name: str, fields: Mapping[str, Any]) -> Any:
    """The row's request from its fields.  Raises OperationError (400); its text begins with ``name``."""
    try:
        return adapter(row.request).validate_python(dict(fields))
    except _pydantic().ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise OperationError(f"{name}: {_fault(row, faults)}", 400) from None


def adapter(model: type) -> "TypeAdapter[Any]":
    """pydantic's view of a request or an answer."""
    if model not in _ADAPTERS:
        _ADAPTERS[model] = _pydantic().TypeAdapter(model)
    return _ADAPTERS[model]


def _pydantic() -> Any:
    import pydantic  # A broker that is asked nothing does without it.

    return pydantic


def _fault(row: Operation[Any, Any], faults: list[Any]) -> str:
    """One fault in one line.  An unknown field is named before a missing one: it explains more."""
    fault = next((each for each in faults if each["type"] == "unexpected_keyword_argument"), faults[0])
    name = str(fault["loc"][0])
    known = {each.name: each for each in request_fields(row.request)}
    if name not in known:
        return f"unknown field '{name}'"
    rule = known[name].rule
    if fault["type"] == "missing":
        return f"{name} is missing{f': it must be {rule}' if rule else ''}"
    if rule:
        return f"{name} must be {rule}"
    return f"{'.'.join(map(str, fault['loc']))}: {' '.join(fault['msg'].split())}"
