"""What each user may do in each vhost: three regular expressions, stored in ``permissions.json``.

    [{"user": ..., "vhost": ..., "configure": ..., "write": ..., "read": ...}, ...]

The shape is that of ``permissions`` in RabbitMQ's definitions.  An expression may match anywhere in a name; an empty
expression matches no name.  A change is on the disk before it takes effect.  Knows nothing of exchanges and queues:
names in, yes or no out.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

from brokerd.errors import NotFound, PreconditionFailed, StoreError
from brokerd.patterns import PatternError, Search, compiled
from brokerd.store import json_file
from brokerd.store.disk import Disk

FILE = "permissions.json"
OPERATIONS = ("configure", "write", "read")
_KEYS = ("user", "vhost", *OPERATIONS)


class Permission:
    """What one user may do in one vhost.  It never changes: a new permission replaces it."""

    __slots__ = ("configure", "read", "searches", "user", "vhost", "write")

    def __init__(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Raises PreconditionFailed for an invalid regular expression."""
        self.user, self.vhost = user, vhost
        self.configure, self.write, self.read = configure, write, read
        self.searches: dict[str, Search] = {name: _search(getattr(self, name), name) for name in OPERATIONS}

    def definition(self) -> dict[str, str]:
        """The permission as RabbitMQ's definitions write it."""
        return {key: getattr(self, key) for key in _KEYS}


class Permissions:
    """All permissions.  A change that cannot be written raises OSError and has no effect.

    ``on_change(user, vhost)`` is called after each change, so that caches of answers can be emptied.
    """

    __slots__ = ("_by_key", "_disk", "on_change", "path")

    def __init__(self, data_dir: str, disk: Disk, default_user: str = "guest", default_vhost: str = "/") -> None:
        """Read ``permissions.json``; if it is missing, create it and let the default user do everything.

        Raises StoreError for a damaged file, OSError.
        """
        self.path = os.path.join(data_dir, FILE)
        self._disk = disk
        self._by_key: dict[tuple[str, str], Permission] = {}
        self.on_change: Callable[[str, str], object] | None = None
        content = json_file.read(self.path, disk)
        if content is None:
            self.set(default_user, default_vhost, ".*", ".*", ".*")
            return
        for number, entry in enumerate(json_file.rows(self.path, content, _KEYS), 1):
            permission = self._from_entry(number, entry)
            key = (permission.user, permission.vhost)
            if key in self._by_key:
                raise StoreError(f"{self.path}: entry {number}: user '{key[0]}' has vhost '{key[1]}' twice")
            self._by_key[key] = permission

    def __iter__(self) -> Iterator[Permission]:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)

    def has_access(self, user: str, vhost: str) -> bool:
        """Whether ``user`` may open ``vhost``, which takes an entry for it, whatever the entry allows."""
        return (user, vhost) in self._by_key

    def check(self, user: str, vhost: str, operation: str, name: str) -> bool:
        """Whether ``user`` may do ``operation`` (configure, write or read) with the queue or exchange ``name``."""
        permission = self._by_key.get((user, vhost))
        return permission is not None and bool(permission.searches[operation](name))

    def get(self, user: str, vhost: str) -> Permission:
        """The permission of the user in the vhost.  Raises NotFound."""
        try:
            return self._by_key[user, vhost]
        except KeyError:
            raise NotFound(f"user '{user}' has no permissions in vhost '{vhost}'") from None

    def set(self, user: str, vhost: str, configure: str, write: str, read: str) -> Permission:
        """Set or replace the user's permission.  Raises PreconditionFailed for an invalid regular expression."""
        permission = Permission(user, vhost, configure, write, read)
        self._store({**self._by_key, (user, vhost): permission}, [(user, vhost)])
        return permission

    def clear(self, user: str, vhost: str) -> None:
        """Take the user's access to the vhost away.  Raises NotFound."""
        self.get(user, vhost)
        self._remove([(user, vhost)])

    def forget_user(self, user: str) -> None:
        """Remove all permissions of a user who is deleted."""
        self._remove([key for key in self._by_key if key[0] == user])

    def forget_vhost(self, vhost: str) -> None:
        """Remove all permissions in a vhost that is deleted."""
        self._remove([key for key in self._by_key if key[1] == vhost])

    def _from_entry(self, number: int, entry: dict[str, Any]) -> Permission:
        for key in _KEYS:
            if not isinstance(entry[key], str):
                raise StoreError(f"{self.path}: entry {number}: {key} is not a text")
        try:
            return Permission(**entry)
        except PreconditionFailed as error:
            raise StoreError(f"{self.path}: entry {number}: {error}") from None

    def _remove(self, keys: list[tuple[str, str]]) -> None:
        if keys:
            gone = set(keys)
            self._store({key: value for key, value in self._by_key.items() if key not in gone}, keys)

    def _store(self, permissions: dict[tuple[str, str], Permission], changed: list[tuple[str, str]]) -> None:
        json_file.replace(self.path, [each.definition() for each in permissions.values()], self._disk)
        self._by_key = permissions
        if self.on_change is not None:
            for user, vhost in changed:
                self.on_change(user, vhost)


def _search(pattern: str, operation: str) -> Search:
    """The function that tells whether a name matches."""
    if pattern in ("", "^$"):
        return _never
    try:
        return compiled(pattern)
    except PatternError as error:
        raise PreconditionFailed(f"{operation} is no regular expression: {error}: {pattern!r:.80}") from None


def _never(name: str) -> bool:
    # "^$" would match an empty name, but the broker never checks permissions for an empty name.
    return False
