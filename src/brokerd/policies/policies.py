"""The policies of one vhost, kept in its ``policies.json``: which settings go to which names.

    [{"name": ..., "pattern": ..., "apply-to": ..., "definition": {...}, "priority": 0}, ...]

The shape is that of ``policies`` in RabbitMQ's definitions, without the vhost.  A change
is on the disk before it holds.  Knows nothing of what the keys of a definition mean.
"""

import os
import re
from collections.abc import Iterator
from typing import Any

from brokerd.errors import NotFound, PreconditionFailed, StoreError
from brokerd.store import json_file
from brokerd.store.disk import Disk

FILE = "policies.json"
# What a policy applies to (RabbitMQ), and the kinds of things each takes in.
APPLY_TO = {
    "all": frozenset({"classic_queues", "quorum_queues", "streams", "exchanges"}),
    "queues": frozenset({"classic_queues", "quorum_queues", "streams"}),
    "classic_queues": frozenset({"classic_queues"}),
    "quorum_queues": frozenset({"quorum_queues"}),
    "streams": frozenset({"streams"}),
    "exchanges": frozenset({"exchanges"}),
}
KINDS = APPLY_TO["all"]


class Policy:
    """One policy; a change makes another.  The higher ``priority`` wins."""

    __slots__ = ("apply_to", "definition", "name", "pattern", "priority", "search")

    def __init__(
        self, name: str, pattern: str, definition: dict[str, Any], *, apply_to: str = "all", priority: int = 0
    ) -> None:
        """Raises PreconditionFailed for a value that cannot be."""
        if not isinstance(name, str) or not name or not name.isprintable():
            raise PreconditionFailed(f"policy name {name!r:.80} is not printable text")
        if not isinstance(apply_to, str) or apply_to not in APPLY_TO:
            raise PreconditionFailed(f"apply-to of policy '{name}' is not one of {', '.join(APPLY_TO)}")
        if not isinstance(definition, dict) or not definition:
            raise PreconditionFailed(f"definition of policy '{name}' is not an object with at least one key")
        if type(priority) is not int:
            raise PreconditionFailed(f"priority of policy '{name}' is not a whole number")
        try:
            self.search = re.compile(pattern).search
        except (re.error, TypeError, RecursionError, OverflowError) as error:
            raise PreconditionFailed(f"pattern of policy '{name}' is no regular expression: {error}") from None
        self.name, self.pattern, self.definition = name, pattern, definition
        self.apply_to, self.priority = apply_to, priority

    def entry(self) -> dict[str, Any]:
        """The policy as RabbitMQ's definitions write it, without the vhost."""
        return {
            "name": self.name,
            "pattern": self.pattern,
            "apply-to": self.apply_to,
            "definition": self.definition,
            "priority": self.priority,
        }

    @classmethod
    def from_entry(cls, entry: dict[str, Any]) -> "Policy":
        """The policy of an entry of definitions.  Raises PreconditionFailed."""
        return cls(
            entry.get("name"),  # type: ignore[arg-type]    # Checked there, whatever it is.
            entry.get("pattern"),  # type: ignore[arg-type]
            entry.get("definition"),  # type: ignore[arg-type]
            apply_to=entry.get("apply-to", "all"),
            priority=entry.get("priority", 0),
        )


class Policies:
    """All policies of a vhost.  Changes raise OSError when they cannot be written, and are then not made."""

    __slots__ = ("_by_name", "_disk", "path")

    def __init__(self, directory: str, disk: Disk) -> None:
        """Read ``policies.json`` in the vhost's directory; a missing one holds none.  Raises StoreError, OSError."""
        self.path = os.path.join(directory, FILE)
        self._disk = disk
        self._by_name: dict[str, Policy] = {}
        content = json_file.read(self.path, disk)
        if content is None:
            return
        keys = ("name", "pattern", "definition")
        for entry in json_file.rows(self.path, content, keys, ("apply-to", "priority")):
            try:
                policy = Policy.from_entry(entry)
            except PreconditionFailed as error:
                raise StoreError(f"{self.path}: {error}") from None
            if policy.name in self._by_name:
                raise StoreError(f"{self.path}: policy '{policy.name}' is there twice")
            self._by_name[policy.name] = policy

    def __iter__(self) -> Iterator[Policy]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Policy:
        """Raises NotFound."""
        try:
            return self._by_name[name]
        except KeyError:
            raise NotFound(f"no policy '{name}'") from None

    def put(self, policy: Policy) -> None:
        """Make or replace the policy of this name."""
        self._store({**self._by_name, policy.name: policy})

    def delete(self, name: str) -> None:
        """Raises NotFound."""
        self.get(name)
        self._store({key: policy for key, policy in self._by_name.items() if key != name})

    def matching(self, name: str, kind: str) -> list[Policy]:
        """The policies that apply to a thing of this name and kind (one of ``KINDS``), the one that wins first.

        Of equal priority the first by name wins; RabbitMQ leaves it open.
        """
        found = [each for each in self._by_name.values() if kind in APPLY_TO[each.apply_to] and each.search(name)]
        return sorted(found, key=lambda policy: (-policy.priority, policy.name))

    def _store(self, policies: dict[str, Policy]) -> None:
        json_file.replace(self.path, [policy.entry() for policy in policies.values()], self._disk)
        self._by_name = policies
