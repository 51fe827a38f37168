"""vhosts.json: the names of all vhosts, and the settings of each.

    [{"name": ..., "limits": {...}, "tracing": true}, ...]

``limits`` and ``tracing`` (the firehose) may be left out.  The rows in memory are those of the file: if it cannot be
written, they stay as they were.  Knows nothing of what is in a vhost.
"""

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.auth.users import MAX_CONNECTIONS, checked_limits
from brokerd.errors import PreconditionFailed, StoreError
from brokerd.store import json_file

if TYPE_CHECKING:
    from brokerd.store.disk import Disk

VHOSTS_FILE = "vhosts.json"
MAX_QUEUES = "max-queues"
VHOST_LIMITS = (MAX_CONNECTIONS, MAX_QUEUES)
DEFAULT_VHOST = "/"  # what a file that is not there yet begins with


class Row(NamedTuple):
    """What vhosts.json says of a vhost."""

    limits: dict[str, int]
    tracing: bool

    def limit(self, name: str) -> int:
        """The limit of that name; -1: no limit."""
        return self.limits.get(name, -1)


NEW = Row({}, False)


class Listing:
    """The file, and its rows by name."""

    __slots__ = ("_disk", "path", "rows")

    def __init__(self, data_dir: str, disk: "Disk") -> None:
        """Read the file, or make it with the vhost "/".  Raises StoreError, OSError."""
        self.path = os.path.join(data_dir, VHOSTS_FILE)
        self._disk = disk
        content = json_file.read(self.path, disk)
        if content is None:
            content = entries({DEFAULT_VHOST: NEW})
            json_file.replace(self.path, content, disk)
        self.rows = rows(self.path, content)

    def read_again(self) -> dict[str, Row]:
        """Read the file again, and take over the rows of vhosts that were listed before.

        Returns all rows by name.  Raises StoreError, OSError: nothing changed.
        """
        found = rows(self.path, json_file.read(self.path, self._disk) or [])
        self.rows |= {name: row for name, row in found.items() if name in self.rows}
        return found

    def put(self, name: str, row: Row = NEW) -> None:
        """Add a vhost, or change what is set for it.  Raises OSError: nothing changed."""
        self._write(self.rows | {name: row})

    def remove(self, name: str) -> None:
        """Remove the row of a vhost.  Raises OSError: the file still has it."""
        left = {each: row for each, row in self.rows.items() if each != name}
        self.rows = left
        self._write(left)

    def set_limits(self, name: str, limits: Any) -> None:
        """Replace a vhost's limits ({}: no limits).  Raises PreconditionFailed for an impossible limit; OSError."""
        self.put(name, self.rows[name]._replace(limits=checked_limits(limits, VHOST_LIMITS, f"vhost '{name}'")))

    def _write(self, rows: dict[str, Row]) -> None:
        json_file.replace(self.path, entries(rows), self._disk)
        self.rows = rows


def rows(path: str, content: Any) -> dict[str, Row]:
    """The rows by name.  Raises StoreError."""
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
    """The rows as the file holds them."""
    content: list[dict[str, Any]] = []
    for name, row in rows.items():
        entry: dict[str, Any] = {"name": name}
        if row.limits:
            entry["limits"] = row.limits
        if row.tracing:
            entry["tracing"] = True
        content.append(entry)
    return content
