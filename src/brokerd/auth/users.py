"""The broker's users: names, password hashes and tags, stored in ``users.json``.

    [{"name": ..., "password_hash": ..., "hashing_algorithm": ..., "tags": [...], "limits": {...}}, ...]

The shape is that of ``users`` in RabbitMQ's definitions.  A change is on the disk before it takes effect.  Knows
nothing of permissions, nor of where a client connects from.
"""

import os
from collections.abc import Iterable, Iterator
from typing import Any

from brokerd.auth.passwords import (
    ALGORITHMS,
    BCRYPT,
    NEW,
    SHA256,
    Memory,
    hash_password,
    is_hash,
    is_slow,
    verify,
    verify_nothing,
)
from brokerd.errors import NotFound, PreconditionFailed, StoreError
from brokerd.store import json_file
from brokerd.store.disk import Disk

FILE = "users.json"
NAME_OCTETS_MAX = 255
ADMINISTRATOR = "administrator"
MAX_CONNECTIONS, MAX_CHANNELS = "max-connections", "max-channels"
LIMITS = (MAX_CONNECTIONS, MAX_CHANNELS)
LIMIT_MOST = (1 << 31) - 1


class User:
    """One user.  It never changes: a new User replaces it.  A user with an empty ``password_hash`` has no password
    login."""

    __slots__ = ("hashing_algorithm", "limits", "name", "password_hash", "tags")

    def __init__(
        self,
        name: str,
        password_hash: str,
        hashing_algorithm: str = SHA256,
        tags: Iterable[str] = (),
        limits: dict[str, int] | None = None,
    ) -> None:
        self.name = name
        self.password_hash = password_hash
        self.hashing_algorithm = hashing_algorithm
        self.tags = tuple(tags)
        self.limits = limits or {}

    def definition(self) -> dict[str, Any]:
        """The user as RabbitMQ's definitions write it; without ``limits`` if the user has no limits."""
        entry = {
            "name": self.name,
            "password_hash": self.password_hash,
            "hashing_algorithm": self.hashing_algorithm,
            "tags": list(self.tags),
        }
        return {**entry, "limits": self.limits} if self.limits else entry

    def with_changes(self, **changes: Any) -> "User":
        """A copy of the user with these attributes changed."""
        return User(**{**{name: getattr(self, name) for name in self.__slots__}, **changes})

    @classmethod
    def from_definition(cls, entry: dict[str, Any]) -> "User":
        """The user of an entry of definitions; tags may be a list or joined by commas.  Raises PreconditionFailed."""
        name, algorithm = checked_name(entry.get("name")), entry.get("hashing_algorithm", SHA256)
        password_hash, tags = entry.get("password_hash"), entry.get("tags", [])
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise PreconditionFailed(f"hashing_algorithm of user '{name}' is not one of {', '.join(ALGORITHMS)}")
        if not isinstance(password_hash, str) or not is_hash(password_hash, algorithm):
            raise PreconditionFailed(f"password_hash of user '{name}' is {_kind(algorithm)}")
        limits = checked_limits(entry.get("limits") or {}, LIMITS, f"user '{name}'")
        if isinstance(tags, str):
            tags = [tag.strip() for tag in tags.split(",") if tag.strip()]
        return cls(name, password_hash, algorithm, checked_tags(name, tags), limits)


class Users:
    """All users.  A change that cannot be written raises OSError and has no effect."""

    __slots__ = ("_by_name", "_file", "_memory", "path")

    def __init__(self, data_dir: str, disk: Disk, default_user: str = "guest", default_password: str = "guest") -> None:
        """Read ``users.json``; if it is missing, create it with the default user as administrator.

        Raises StoreError for a damaged file, OSError.
        """
        self.path = os.path.join(data_dir, FILE)
        self._file = json_file.JSONFile(self.path, disk)
        self._by_name: dict[str, User] = {}
        self._memory = Memory()
        content = self._file.read()
        if content is None:
            self.add(default_user, default_password, [ADMINISTRATOR])
            return
        self._by_name = self._checked(content)
        self._file.take_over()

    def read_again(self) -> dict[str, User]:
        """The users by name as the file has them now; nothing changes before ``take_over``.

        Raises StoreError if the file is missing or cannot be used, OSError.
        """
        return self._checked(self._file.read_again())

    def take_over(self, found: dict[str, User]) -> json_file.Changes:
        """Let what ``read_again`` found hold.  Returns what that changes, by the users' names."""
        before, self._by_name = self._by_name, found
        self._file.take_over()
        return json_file.changes(_in_words(before), _in_words(found))

    def check_unedited(self) -> None:
        """Raise OSError if the file was edited since it was read: then no change can be written."""
        self._file.check_unedited()

    def _checked(self, content: Any) -> dict[str, User]:
        by_name: dict[str, User] = {}
        for entry in json_file.rows(
            self.path, content, ("name", "password_hash"), ("hashing_algorithm", "tags", "limits")
        ):
            try:
                user = User.from_definition(entry)
            except PreconditionFailed as error:
                raise StoreError(f"{self.path}: {error}") from None
            if user.name in by_name:
                raise StoreError(f"{self.path}: user '{user.name}' is there twice")
            by_name[user.name] = user
        return by_name

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[User]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> User:
        """The user of this name.  Raises NotFound."""
        try:
            return self._by_name[name]
        except KeyError:
            raise NotFound(f"no user '{name}'") from None

    def authenticate(self, name: str, password: str | bytes) -> User | None:
        """The user of this name if the password is right, else None.  May take long: see ``is_slow``."""
        user = self._by_name.get(name)
        if self.remembers(name, password):
            return user
        return user if self.verify(user, password) else None

    def remembers(self, name: str, password: str | bytes) -> bool:
        """Whether the password was right before, for the hash that the user has now.  Takes microseconds."""
        user = self._by_name.get(name)
        return user is not None and is_slow(user.hashing_algorithm) and self._memory.knows(user.password_hash, password)

    def is_slow(self, name: str) -> bool:
        """Whether it takes long to check a password of this user."""
        user = self._by_name.get(name)
        return is_slow(NEW if user is None else user.hashing_algorithm)

    def verify(self, user: User | None, password: str | bytes) -> bool:
        """Whether the password is right.  Any thread may ask.  For no user it takes as long as for a new one."""
        if user is None:
            verify_nothing(password)
            return False
        right = verify(password, user.password_hash, user.hashing_algorithm)
        if right and is_slow(user.hashing_algorithm):
            self._memory.note(user.password_hash, password)
        return right

    def add(self, name: str, password: str, tags: Iterable[str] = ()) -> User:
        """Create a user.  Raises PreconditionFailed if the user exists, or for an invalid name or tag."""
        checked_name(name)
        if name in self._by_name:
            raise PreconditionFailed(f"user '{name}' already exists")
        return self.put(User(name, _hashed(name, password), SHA256, checked_tags(name, list(tags))))

    def put(self, user: User) -> User:
        """Create or replace a user whose password is already hashed, as in definitions."""
        self.changed([user]).do()
        return user

    def change_password(self, name: str, password: str) -> User:
        """Set a new password.  Raises NotFound; PreconditionFailed for an empty password."""
        user = self.get(name)
        return self.put(user.with_changes(password_hash=_hashed(name, password), hashing_algorithm=SHA256))

    def clear_password(self, name: str) -> User:
        """Remove the password, so that the user cannot log in with one.  Raises NotFound."""
        return self.put(self.get(name).with_changes(password_hash=""))

    def set_tags(self, name: str, tags: Iterable[str]) -> User:
        """Replace the user's tags.  Raises NotFound; PreconditionFailed for an invalid tag."""
        return self.put(self.get(name).with_changes(tags=checked_tags(name, list(tags))))

    def set_limits(self, name: str, limits: dict[str, Any]) -> User:
        """Replace a user's limits; {} removes all.  Raises NotFound; PreconditionFailed for an invalid limit."""
        return self.put(self.get(name).with_changes(limits=checked_limits(limits, LIMITS, f"user '{name}'")))

    def limit(self, name: str, limit: str) -> int:
        """The user's limit of this name (one of ``LIMITS``); -1: no limit."""
        user = self._by_name.get(name)
        return -1 if user is None else user.limits.get(limit, -1)

    def delete(self, name: str) -> None:
        """Delete the user; the caller also calls ``Permissions.forget_user``.  Raises NotFound."""
        self.changed(gone=[self.get(name).name]).do()

    def changed(self, users: Iterable[User] = (), gone: Iterable[str] = ()) -> json_file.Change:
        """The change that puts these users, and deletes those of these names."""
        after = {**self._by_name, **{user.name: user for user in users}}
        for name in gone:
            after.pop(name, None)

        def apply() -> None:
            self._by_name = after

        return json_file.Change(self._file, lambda: [user.definition() for user in after.values()], apply)


def _in_words(users: dict[str, User]) -> dict[str, Any]:
    return {f"'{name}'": user.definition() for name, user in users.items()}


def checked_limits(limits: Any, known: tuple[str, ...], owner: str) -> dict[str, int]:
    """The limits of ``owner``, as RabbitMQ's definitions write them, without those below 0, which mean no limit.

    Raises PreconditionFailed.
    """
    if not isinstance(limits, dict):
        raise PreconditionFailed(f"limits of {owner} are not an object")
    for name, value in limits.items():
        if name not in known:
            raise PreconditionFailed(f"limits of {owner} are {' and '.join(known)}, not {name!r:.80}")
        if not isinstance(value, int) or isinstance(value, bool) or value > LIMIT_MOST:
            raise PreconditionFailed(f"{name} of {owner} is not a whole number up to {LIMIT_MOST}")
    return {name: value for name, value in limits.items() if value >= 0}


def _kind(algorithm: str) -> str:
    return "no hash of bcrypt" if algorithm == BCRYPT else f"not base64 of a salt and {algorithm}"


def checked_name(name: Any) -> str:
    """The name, if a user can have it.  Raises PreconditionFailed."""
    # With a line feed in its name a user could forge lines of the log.
    if not isinstance(name, str) or not name or not name.isprintable() or len(name.encode()) > NAME_OCTETS_MAX:
        raise PreconditionFailed(f"user name {name!r:.80} is not 1 to {NAME_OCTETS_MAX} octets of printable text")
    return name


def checked_tags(name: str, tags: Any) -> tuple[str, ...]:
    """The tags, each once, if the user of that name can have them.  Raises PreconditionFailed."""
    if not isinstance(tags, list) or not all(isinstance(tag, str) and tag and tag.isprintable() for tag in tags):
        raise PreconditionFailed(f"tags of user '{name}' are not a list of words")
    return tuple(dict.fromkeys(tags))


def _hashed(name: str, password: str) -> str:
    if not password:
        raise PreconditionFailed(f"password of user '{name}' must not be empty")
    return hash_password(password)
