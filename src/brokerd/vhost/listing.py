"""vhosts.json: the names of all vhosts, and the settings of each.

    [{"name": ..., "limits": {...}, "tracing": true, "description": ..., "tags": [...],
      "default_queue_type": "quorum"}, ...]

All but the name may be left out; ``tracing`` is the firehose, description and tags are words for people.  The rows in
memory are those of the file: if it cannot be written, they stay as they were.  Knows nothing of what is in a vhost.
"""

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.arguments import QUEUE_TYPES
from brokerd.auth.users import MAX_CONNECTIONS, checked_limits
from brokerd.errors import PreconditionFailed, StoreError
from brokerd.store import json_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from brokerd.store.disk import Disk

VHOSTS_FILE = "vhosts.json"
MAX_QUEUES = "max-queues"
VHOST_LIMITS = (MAX_CONNECTIONS, MAX_QUEUES)
OPTIONAL = ("limits", "tracing", "description", "tags", "default_queue_type")
DEFAULT_VHOST = "/"  # what a file that is not there yet begins with


class Row(NamedTuple):
    """A vhost's row in vhosts.json."""

    limits: dict[str, int]
    tracing: bool
    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str = ""  # of durable queues whose declarations name none; "": classic

    def limit(self, name: str) -> int:
        """The limit of that name; -1: no limit."""
        return self.limits.get(name, -1)


NEW = Row({}, False)


class Listing:
    """The file, and its rows by name."""

    __slots__ = ("_file", "_listed", "is_new", "path", "rows")

    def __init__(self, data_dir: str, disk: "Disk") -> None:
        """Read the file, or make it with the vhost "/".  Raises StoreError, OSError."""
        self.path = os.path.join(data_dir, VHOSTS_FILE)
        self._file = json_file.JSONFile(self.path, disk)
        content = self._file.read()
        self.is_new = content is None
        if content is None:
            content = entries({DEFAULT_VHOST: NEW})
            self._file.replace(content)
        self.rows = rows(self.path, content)  # of the vhosts that are open
        self._listed = dict(self.rows)  # what the file has; a reload may bring rows that wait for the next start
        self._file.take_over()

    def read_again(self) -> dict[str, Row]:
        """The rows by name as the file has them now; nothing changes before ``take_over``.

        Raises StoreError if the file is missing or cannot be used, OSError.
        """
        return rows(self.path, self._file.read_again())

    def take_over(self, found: dict[str, Row]) -> None:
        """Let what ``read_again`` found hold for the vhosts that are open.  The file keeps the other rows."""
        self.rows = self.rows | {name: row for name, row in found.items() if name in self.rows}
        self._listed = found
        self._file.take_over()

    def check_unedited(self) -> None:
        """Raise OSError if the file was edited since it was read: then no change can be written."""
        self._file.check_unedited()

    def put(self, name: str, row: Row = NEW) -> None:
        """Add a vhost, or change what is set for it.  Raises OSError: nothing changed."""
        self.changed({name: row}).do()

    def remove(self, name: str) -> None:
        """Remove the row of a vhost.  Raises OSError: the file still has it."""
        self.rows = {each: row for each, row in self.rows.items() if each != name}
        self.changed({}, [name]).do()

    def changed(self, rows: "Mapping[str, Row]", gone: "Iterable[str]" = ()) -> json_file.Change:
        """The change that puts these rows, and removes those of these names."""
        put, removed = dict(rows), set(gone)
        listed = {name: row for name, row in self._listed.items() if name not in removed}
        listed |= {name: row for name, row in put.items() if name in listed or name not in self.rows}

        def apply() -> None:
            self._listed = listed
            self.rows = {name: row for name, row in self.rows.items() if name not in removed} | put

        return json_file.Change(self._file, lambda: entries(listed), apply)

    def set_limits(self, name: str, limits: Any) -> None:
        """Replace a vhost's limits ({}: no limits).  Raises PreconditionFailed for an impossible limit; OSError."""
        self.put(name, self.rows[name]._replace(limits=checked_limits(limits, VHOST_LIMITS, f"vhost '{name}'")))


def rows(path: str, content: Any) -> dict[str, Row]:
    """The rows by name.  Raises StoreError."""
    found: dict[str, Row] = {}
    for number, entry in enumerate(json_file.rows(path, content, ("name",), OPTIONAL), 1):
        name, tracing = entry["name"], entry.get("tracing", False)
        description, tags = entry.get("description", ""), entry.get("tags", [])
        if not isinstance(name, str) or name in found or any("\ud800" <= c <= "\udfff" for c in name):
            raise StoreError(f"{path}: entry {number}: name is not a text of its own")
        if not isinstance(tracing, bool):
            raise StoreError(f"{path}: entry {number}: tracing is neither true nor false")
        if not isinstance(description, str) or not isinstance(tags, list) or not all(isinstance(t, str) for t in tags):
            raise StoreError(f"{path}: entry {number}: description is no text, or tags are no list of texts")
        try:
            limits = checked_limits(entry.get("limits", {}), VHOST_LIMITS, f"vhost '{name}'")
        except PreconditionFailed as error:
            raise StoreError(f"{path}: entry {number}: {error}") from None
        queue_type = entry.get("default_queue_type", "")
        if queue_type not in ("", *QUEUE_TYPES):
            raise StoreError(f"{path}: entry {number}: default_queue_type is none of {', '.join(QUEUE_TYPES)}")
        found[name] = Row(limits, tracing, description, tuple(tags), queue_type)
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
        if row.description:
            entry["description"] = row.description
        if row.tags:
            entry["tags"] = list(row.tags)
        if row.default_queue_type:
            entry["default_queue_type"] = row.default_queue_type
        content.append(entry)
    return content
