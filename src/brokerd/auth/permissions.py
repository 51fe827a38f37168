"""What each user may do in each vhost.

``permissions.json``: three regular expressions for the names of queues and exchanges.

    [{"user": ..., "vhost": ..., "configure": ..., "write": ..., "read": ...}, ...]

``topic_permissions.json``: two more for the routing keys of one topic exchange.  A user without an entry for an
exchange may use every key there.  ``{username}`` and ``{vhost}`` stand for these names.

    [{"user": ..., "vhost": ..., "exchange": ..., "write": ..., "read": ...}, ...]

The shapes are those of ``permissions`` and ``topic_permissions`` in RabbitMQ's definitions.  An expression may match
anywhere; an empty one is ``^$``, which matches no name, and of routing keys the empty one.  A change is on the disk
before it takes effect.  Knows nothing of exchanges and queues: names in, yes or no out.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from brokerd.errors import NotFound, PreconditionFailed, StoreError
from brokerd.patterns import PatternError, Search, compiled, expanded
from brokerd.store import json_file
from brokerd.store.disk import Disk

FILE = "permissions.json"
TOPICS_FILE = "topic_permissions.json"
OPERATIONS = ("configure", "write", "read")
TOPIC_OPERATIONS = ("write", "read")


class Permission:
    """The rights of one user in one vhost.  A permission never changes: a new one replaces it."""

    __slots__ = ("configure", "read", "searches", "user", "vhost", "write")

    KEYS = ("user", "vhost", *OPERATIONS)

    def __init__(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Raises PreconditionFailed for an invalid regular expression."""
        self.user, self.vhost = user, vhost
        self.configure, self.write, self.read = configure, write, read
        self.searches: dict[str, Search] = {name: _search(getattr(self, name), name) for name in OPERATIONS}

    @property
    def key(self) -> tuple[str, ...]:
        """The part that only one entry may have."""
        return self.user, self.vhost

    def __str__(self) -> str:
        return f"user '{self.user}' has vhost '{self.vhost}'"

    def definition(self) -> dict[str, str]:
        """The permission as RabbitMQ's definitions write it."""
        return {key: getattr(self, key) for key in self.KEYS}


class TopicPermission:
    """The routing keys that one user may use with one topic exchange.  It never changes: a new one replaces it."""

    __slots__ = ("exchange", "read", "searches", "user", "vhost", "write")

    KEYS = ("user", "vhost", "exchange", *TOPIC_OPERATIONS)

    def __init__(self, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """Raises PreconditionFailed for an invalid regular expression."""
        self.user, self.vhost, self.exchange = user, vhost, exchange
        self.write, self.read = write, read
        self.searches: dict[str, Search] = {
            name: _compiled(getattr(self, name) or "^$", name, {"username": user, "vhost": vhost})
            for name in TOPIC_OPERATIONS
        }

    @property
    def key(self) -> tuple[str, ...]:
        """The part that only one entry may have."""
        return self.user, self.vhost, self.exchange

    def __str__(self) -> str:
        return f"user '{self.user}' has exchange '{self.exchange}' in vhost '{self.vhost}'"

    def definition(self) -> dict[str, str]:
        """The permission as RabbitMQ's definitions write it."""
        return {key: getattr(self, key) for key in self.KEYS}


Entry = TypeVar("Entry", Permission, TopicPermission)


class Entries(Generic[Entry]):
    """The entries of one file.  A change that cannot be written raises OSError and has no effect.

    ``on_change(user, vhost)`` is called after each change, so that caches of answers can be emptied.
    """

    __slots__ = ("_by_key", "_file", "_kind", "is_new", "on_change", "path")

    def __init__(self, path: str, disk: Disk, kind: type[Entry]) -> None:
        """Read the file; ``is_new``: it is missing.  Raises StoreError for a damaged file, OSError."""
        self.path = path
        self.on_change: Callable[[str, str], object] | None = None
        self._file = json_file.JSONFile(path, disk)
        self._kind: type[Entry] = kind
        content = self._file.read()
        self.is_new = content is None
        self._by_key: dict[tuple[str, ...], Entry] = self._checked(content)
        self._file.take_over()

    def read_again(self) -> dict[tuple[str, ...], Entry]:
        """The entries by key as the file has them now; nothing changes before ``take_over``.

        Raises StoreError if the file is missing and was not, or cannot be used; OSError.
        """
        return self._checked(self._file.read_again())

    def take_over(self, found: dict[tuple[str, ...], Entry]) -> json_file.Changes:
        """Let what ``read_again`` found hold.  Returns what that changes, by user, vhost and exchange in words."""
        before = {key: entry.definition() for key, entry in self._by_key.items()}
        after = {key: entry.definition() for key, entry in found.items()}
        self._by_key = found
        self._file.take_over()
        for key in {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}:
            self._tell(key)
        return json_file.changes(_in_words(before), _in_words(after))

    def check_unedited(self) -> None:
        """Raise OSError if the file was edited since it was read: then no change can be written."""
        self._file.check_unedited()

    def _checked(self, content: Any) -> dict[tuple[str, ...], Entry]:
        by_key: dict[tuple[str, ...], Entry] = {}
        rows = json_file.rows(self.path, [] if content is None else content, self._kind.KEYS)
        for number, values in enumerate(rows, 1):
            entry = self._made(number, values)
            if entry.key in by_key:
                raise StoreError(f"{self.path}: entry {number}: {entry} twice")
            by_key[entry.key] = entry
        return by_key

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, *key: str) -> Entry | None:
        """The entry with that key, if there is one."""
        return self._by_key.get(key)

    def put(self, entry: Entry) -> None:
        """Add or replace an entry."""
        self.changed([entry]).do()

    def remove(self, keys: list[tuple[str, ...]]) -> None:
        """Remove entries that are there."""
        if keys:
            self.changed(gone=keys).do()

    def forget_user(self, user: str) -> None:
        """Remove all permissions of a user who is deleted."""
        self.remove(self.keys_of_user(user))

    def keys_of_user(self, user: str) -> list[tuple[str, ...]]:
        """The keys of all permissions of a user."""
        return [key for key in self._by_key if key[0] == user]

    def forget_vhost(self, vhost: str) -> None:
        """Remove all permissions in a vhost that is deleted."""
        self.remove(self.keys_of_vhost(vhost))

    def keys_of_vhost(self, vhost: str) -> list[tuple[str, ...]]:
        """The keys of all permissions in a vhost."""
        return [key for key in self._by_key if key[1] == vhost]

    def _made(self, number: int, values: dict[str, Any]) -> Entry:
        for key in self._kind.KEYS:
            if not isinstance(values[key], str):
                raise StoreError(f"{self.path}: entry {number}: {key} is not a text")
        try:
            return self._kind(**values)
        except PreconditionFailed as error:
            raise StoreError(f"{self.path}: entry {number}: {error}") from None

    def changed(self, entries: Iterable[Entry] = (), gone: Iterable[tuple[str, ...]] = ()) -> json_file.Change:
        """The change that puts these entries, and removes those with these keys."""
        added: dict[tuple[str, ...], Entry] = {entry.key: entry for entry in entries}
        removed: list[tuple[str, ...]] = list(gone)
        after = {**self._by_key, **added}
        for key in removed:
            after.pop(key, None)

        def apply() -> None:
            self._by_key = after
            for key in (*added, *removed):
                self._tell(key)

        return json_file.Change(self._file, lambda: [each.definition() for each in after.values()], apply)

    def _tell(self, key: tuple[str, ...]) -> None:
        if self.on_change is not None:
            self.on_change(key[0], key[1])


class Permissions(Entries[Permission]):
    """All permissions.  ``topics`` are those for routing keys."""

    __slots__ = ("topics",)

    def __init__(self, data_dir: str, disk: Disk, default_user: str = "guest", default_vhost: str = "/") -> None:
        """Read both files.  If ``permissions.json`` is missing, create it and let the default user do everything.

        Raises StoreError for a damaged file, OSError.
        """
        super().__init__(os.path.join(data_dir, FILE), disk, Permission)
        self.topics = TopicPermissions(os.path.join(data_dir, TOPICS_FILE), disk, TopicPermission)
        if self.is_new:
            self.set(default_user, default_vhost, ".*", ".*", ".*")

    def has_access(self, user: str, vhost: str) -> bool:
        """Whether ``user`` may open ``vhost``, which any entry for it allows, even one that allows nothing else."""
        return self.find(user, vhost) is not None

    def check(self, user: str, vhost: str, operation: str, name: str) -> bool:
        """Whether ``user`` may do ``operation`` (configure, write or read) with the queue or exchange ``name``."""
        permission = self.find(user, vhost)
        return permission is not None and permission.searches[operation](name)

    def get(self, user: str, vhost: str) -> Permission:
        """The permission of the user in the vhost.  Raises NotFound."""
        permission = self.find(user, vhost)
        if permission is None:
            raise NotFound(f"user '{user}' has no permissions in vhost '{vhost}'")
        return permission

    def set(self, user: str, vhost: str, configure: str, write: str, read: str) -> Permission:
        """Set or replace the user's permission.  Raises PreconditionFailed for an invalid regular expression."""
        permission = Permission(user, vhost, configure, write, read)
        self.put(permission)
        return permission

    def clear(self, user: str, vhost: str) -> None:
        """Take the user's access to the vhost away.  Raises NotFound."""
        self.remove([self.get(user, vhost).key])


class TopicPermissions(Entries[TopicPermission]):
    """The permissions for routing keys of topic exchanges."""

    __slots__ = ()

    def read_again(self) -> dict[tuple[str, ...], TopicPermission]:
        """As of all entries.  If the file is missing there are no entries: most brokers have no such file."""
        return self._checked(self._file.read())

    def check(self, user: str, vhost: str, operation: str, exchange: str, routing_key: str) -> bool:
        """Whether ``user`` may publish with (write) or bind with (read) a routing key of a topic exchange.  Without an
        entry for the exchange every key is allowed."""
        permission = self.find(user, vhost, exchange)
        return permission is None or permission.searches[operation](routing_key)

    def set(self, user: str, vhost: str, exchange: str, write: str, read: str) -> TopicPermission:
        """Set or replace the permission.  Raises PreconditionFailed for an invalid regular expression."""
        permission = TopicPermission(user, vhost, exchange, write, read)
        self.put(permission)
        return permission

    def clear(self, user: str, vhost: str, exchange: str) -> None:
        """Let the user use every key of the exchange again.  Raises NotFound."""
        if self.find(user, vhost, exchange) is None:
            raise NotFound(f"user '{user}' has no topic permissions for exchange '{exchange}' in vhost '{vhost}'")
        self.remove([(user, vhost, exchange)])


def _in_words(entries: dict[tuple[str, ...], Any]) -> dict[str, Any]:
    """The entries by ``'user' in 'vhost' for 'exchange'``."""
    return {" for ".join([f"'{user}' in '{vhost}'", *(f"'{each}'" for each in rest)]): entry
            for (user, vhost, *rest), entry in entries.items()}


def _search(pattern: str, operation: str) -> Search:
    """The function that tells whether a name matches; the broker never asks for an empty one."""
    return _never if pattern in ("", "^$") else _compiled(pattern, operation)


def _never(name: str) -> bool:
    return False


def _compiled(pattern: str, operation: str, names: dict[str, str] | None = None) -> Search:
    try:
        return compiled(expanded(pattern, names) if names else pattern)
    except PatternError as error:
        raise PreconditionFailed(f"{operation} is no regular expression: {error}: {pattern!r:.80}") from None
