"""Parameters: values by component, vhost and name, and global ones by name, in ``parameters.json``.

    [{"component": ..., "vhost": ..., "name": ..., "value": ...}, {"name": ..., "value": ...}, ...]

An entry without component and vhost is a global one.  The shapes are those of ``parameters`` and
``global_parameters`` in RabbitMQ's definitions.  Knows nothing of what a value means.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from brokerd.errors import StoreError
from brokerd.store import json_file
from brokerd.store.disk import Disk

FILE = "parameters.json"
CLUSTER_NAME = "cluster_name"  # a global parameter (RabbitMQ)


class Key(NamedTuple):
    """The key of a parameter.  A global one has neither component nor vhost."""

    component: str
    vhost: str
    name: str


class Parameters:
    """All parameters.  A change that cannot be written raises OSError and has no effect."""

    __slots__ = ("_by_key", "_file", "on_change", "path")

    def __init__(self, data_dir: str, disk: Disk) -> None:
        """Read the file; if it is missing there are no parameters.  Raises StoreError, OSError."""
        self.on_change: Callable[[], object] = _nothing
        """Called after each change."""
        self.path = os.path.join(data_dir, FILE)
        self._file = json_file.JSONFile(self.path, disk)
        self._by_key = self.read_again()
        self._file.take_over()

    def read_again(self) -> dict[Key, Any]:
        """The values by key as the file has them now; nothing changes before ``take_over``.  Raises StoreError."""
        content = self._file.read()
        found: dict[Key, Any] = {}
        rows = json_file.rows(self.path, [] if content is None else content, ("name", "value"), ("component", "vhost"))
        for number, entry in enumerate(rows, 1):
            key = Key(entry.get("component", ""), entry.get("vhost", ""), entry["name"])
            if not all(isinstance(each, str) for each in key) or not key.name or bool(key.component) != bool(key.vhost):
                raise StoreError(f"{self.path}: entry {number} needs a name, and both component and vhost or neither")
            if key in found:
                raise StoreError(f"{self.path}: entry {number}: parameter '{key.name}' is there twice")
            found[key] = entry["value"]
        return found

    def take_over(self, found: dict[Key, Any]) -> json_file.Changes:
        """Let what ``read_again`` found hold.  Returns what that changes."""
        before, self._by_key = self._by_key, found
        self._file.take_over()
        self.on_change()
        return json_file.changes(_in_words(before), _in_words(found))

    def __iter__(self) -> Iterator[tuple[Key, Any]]:
        return iter(self._by_key.items())

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def get(self, key: Key) -> Any:
        """The value.  Raises KeyError."""
        return self._by_key[key]

    def cluster_name(self, name: str) -> str:
        """The name for people: the global parameter ``cluster_name`` (RabbitMQ); without it ``name``."""
        found = self._by_key.get(Key("", "", CLUSTER_NAME))
        return found if isinstance(found, str) and found else name

    def check_unedited(self) -> None:
        """Raise OSError if the file was edited since it was read: then no change can be written."""
        self._file.check_unedited()

    def changed(self, values: dict[Key, Any] | None = None, gone: Iterable[Key] = ()) -> json_file.Change:
        """The change that puts these values, and removes those of these keys."""
        after = {**self._by_key, **(values or {})}
        for key in gone:
            after.pop(key, None)

        def apply() -> None:
            self._by_key = after
            self.on_change()

        return json_file.Change(self._file, lambda: [entry(key, value) for key, value in after.items()], apply)


def entry(key: Key, value: Any) -> dict[str, Any]:
    """A parameter as RabbitMQ's definitions write it."""
    if not key.component:
        return {"name": key.name, "value": value}
    return {"value": value, "vhost": key.vhost, "component": key.component, "name": key.name}


def _in_words(values: dict[Key, Any]) -> dict[str, Any]:
    return {" ".join([f"'{each}'" for each in key if each]): value for key, value in values.items()}


def _nothing() -> None:
    pass
