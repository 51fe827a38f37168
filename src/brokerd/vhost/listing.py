"""vhosts.json: which vhosts there are.

    [{"name": ..., "limits": {...}, "tracing": true}, ...]

``limits`` and ``tracing`` (the firehose) may be left out.  Knows nothing of what is in a vhost.
"""

from typing import Any, NamedTuple

from brokerd.auth.users import MAX_CONNECTIONS, checked_limits
from brokerd.errors import PreconditionFailed, StoreError
from brokerd.store import json_file

VHOSTS_FILE = "vhosts.json"
MAX_QUEUES = "max-queues"
VHOST_LIMITS = (MAX_CONNECTIONS, MAX_QUEUES)


class Row(NamedTuple):
    """What vhosts.json says of a vhost."""

    limits: dict[str, int]
    tracing: bool


def rows(path: str, content: Any) -> dict[str, Row]:
    """By name.  Raises StoreError."""
    found: dict[str, Row] = {}
    for number, entry in enumerate(json_file.rows(path, content, ("name",), ("limits", "tracing")), 1):
        name, tracing = entry["name"], entry.get("tracing", False)
        if not isinstance(name, str) or name in found or any("\ud800" <= c <= "\udfff" for c in name):
            raise StoreError(f"{path}: entry {number}: name is not a text of its own")
        if not isinstance(tracing, bool):
            raise StoreError(f"{path}: entry {number}: tracing is neither true nor false")
        try:
            limits = checked_limits(entry.get("limits", {}), VHOST_LIMITS, f"vhost '{name}'")
        except PreconditionFailed as error:
            raise StoreError(f"{path}: entry {number}: {error}") from None
        found[name] = Row(limits, tracing)
    return found


def entries(rows: dict[str, Row]) -> list[dict[str, Any]]:
    """What the file is to hold."""
    content: list[dict[str, Any]] = []
    for name, row in rows.items():
        entry: dict[str, Any] = {"name": name}
        if row.limits:
            entry["limits"] = row.limits
        if row.tracing:
            entry["tracing"] = True
        content.append(entry)
    return content
