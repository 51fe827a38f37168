"""The change log's line about an operation: who asked for it, through which face, with which fields, and with which
result.

Passwords, their hashes and those in addresses are left out, and so are long values.  Traffic, such as a message that is
published by HTTP, is not in the log.
"""

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.links.uris import masked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokerd.operations.rows import Operation, Who

VALUE_CHARACTERS_MAX = 1000
FIELDS_MAX = 40
HIDDEN = "***"
SECRETS = re.compile("password|secret|token|credential", re.IGNORECASE)
_IN_ADDRESS = re.compile("://[^/@\\s\"]*@")


class By(NamedTuple):
    """Through which face somebody asked, and from which address ("": from the broker's own machine)."""

    face: str
    address: str


ON_MACHINE = By("brokerctl", "")


def is_noted(row: "Operation[Any, Any]") -> bool:
    """Whether the log is told of an operation."""
    return row.changes and not row.traffic


def line_of(
    row: "Operation[Any, Any]", who: "Who", by: By, fields: "Mapping[str, Any]", at_ms: int,
    fault: tuple[str, int] | None, undo: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """The line: ``change.ChangeRow`` is its shape.  ``fault``: text and code, where it was refused or failed.
    ``undo``: what ``message undo`` asks for."""
    shown = {name[:100]: _shown(name, value) for name, value in list(fields.items())[:FIELDS_MAX]}
    return {
        "at": at_ms, "user": who.user[:1000], "face": by.face, "address": by.address[:200], "operation": row.name,
        "request": shown, "done": fault is None, "text": "" if fault is None else fault[0][:VALUE_CHARACTERS_MAX],
        "code": 0 if fault is None else fault[1], "undo": undo,
    }  # fmt: skip


def _shown(name: str, value: Any) -> Any:
    import json  # The control socket has it by now.

    if SECRETS.search(name):
        return HIDDEN
    try:
        text = value if isinstance(value, str) else json.dumps(value)
    except RecursionError:
        return "JSON that is nested too deeply"
    if len(text) > VALUE_CHARACTERS_MAX:  # No secret is looked for in megabytes that are not shown.
        return f"{len(text)} characters" if isinstance(value, str) else f"{len(text)} characters of JSON"
    return _without_secrets(value, 8)


def _without_secrets(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return _IN_ADDRESS.sub(f"://{HIDDEN}@", masked(value))
    if not depth:
        return HIDDEN
    if isinstance(value, dict):
        return {name: HIDDEN if SECRETS.search(str(name)) else _without_secrets(each, depth - 1)
                for name, each in value.items()}  # fmt: skip
    if isinstance(value, list):
        return [_without_secrets(each, depth - 1) for each in value]
    return value
