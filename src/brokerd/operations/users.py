"""Changes of users that need a thread, or more than one file, for the rows in ``user``.

A password is hashed and checked in the thread: that may take tens of milliseconds.
"""

from collections.abc import Callable, Generator, Iterable
from logging import getLogger
from typing import TYPE_CHECKING, Any

from brokerd.auth.logins import INTERNAL
from brokerd.auth.passwords import hash_new, verify_nothing
from brokerd.auth.users import User, checked_name
from brokerd.errors import ConnectionForced, LoginRefused
from brokerd.operations import OperationError
from brokerd.operations.changing import Lasting, change_files, file_changes, in_pieces
from brokerd.operations.jobs import IN_THREAD, ON_LOOP, Steps, Wait
from brokerd.operations.lists import find_user
from brokerd.operations.rows import DONE, Who

if TYPE_CHECKING:
    from brokerd.auth.tokens import Token
    from brokerd.node import Node
    from brokerd.store.json_file import Change


log = getLogger("brokerd")

SESSION_SECONDS = 8 * 3600  # that a login by a web server may last over HTTP: a page's session


class Hashing:
    """The job that hashes a password."""

    def __init__(self, password: str) -> None:
        self._password = password

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        yield IN_THREAD
        password_hash, algorithm = hash_new(self._password)
        return {"password_hash": password_hash, "hashing_algorithm": algorithm}

    def clean_up(self) -> None:
        """As ``jobs.Job``."""


def add(node: "Node", who: Who, request: Any) -> Lasting:
    """The job that makes or replaces a user.  Raises OperationError, PreconditionFailed."""
    checked_name(request.user)
    if request.password and request.password_hash:
        raise OperationError("either password or password_hash can be given, not both", 400)
    entry = {"name": request.user, "password_hash": request.password_hash, "tags": list(request.tags)}
    if request.hashing_algorithm:
        entry["hashing_algorithm"] = request.hashing_algorithm
    user = User.from_definition(entry)
    _check_new(node, request)
    return Lasting(node, _add(node, who, request, user))


def _check_new(node: "Node", request: Any) -> None:
    if request.user in node.users and not request.replace:
        raise OperationError(f"user '{request.user}' already exists", 409)


def _add(node: "Node", who: Who, request: Any, user: User) -> Steps:
    if request.password:
        yield IN_THREAD
        password_hash, algorithm = hash_new(request.password)
        yield ON_LOOP
        user = user.with_changes(password_hash=password_hash, hashing_algorithm=algorithm)
    before: list[User] = []

    def plan() -> Iterable["Change"]:
        _check_new(node, request)
        if user.name in node.users:
            before.append(node.users.get(user.name))
        kept = before[0].limits if before else {}
        return [node.users.changed([user.with_changes(limits=kept)])]

    def then() -> Any:
        if not before:
            node.tell("user.created", {"name": user.name}, who.user)
        else:
            if before[0].password_hash != user.password_hash:
                what = "changed" if user.password_hash else "cleared"
                node.tell(f"user.password.{what}", {"name": user.name}, who.user)
        if user.tags != (before[0].tags if before else ()):
            node.tell("user.tags.set", {"name": user.name, "tags": list(user.tags)}, who.user)
        return DONE

    return (yield from file_changes(node, plan, then))


def set_password(node: "Node", who: Who, name: str, password: str) -> Lasting:
    """The job that changes a password.  Raises OperationError (404)."""
    find_user(node, name)

    def steps() -> Steps:
        yield IN_THREAD
        password_hash, algorithm = hash_new(password)
        yield ON_LOOP

        def plan() -> Iterable["Change"]:
            user = find_user(node, name)
            return [node.users.changed([user.with_changes(password_hash=password_hash, hashing_algorithm=algorithm)])]

        def then() -> Any:
            node.tell("user.password.changed", {"name": name}, who.user)
            return DONE

        return (yield from file_changes(node, plan, then))

    return Lasting(node, steps())


def delete(node: "Node", who: Who, name: str) -> Lasting:
    """The job that deletes a user, with its permissions.  Raises OperationError (404)."""
    find_user(node, name)
    if who.user == name:
        raise OperationError(f"user '{name}' cannot delete itself", 400)

    def plan() -> Iterable["Change"]:
        find_user(node, name)
        # First what was granted: a later user of that name must not inherit it, even if the broker dies in between.
        for entries in (node.permissions, node.permissions.topics):
            keys = entries.keys_of_user(name)
            if keys:
                yield entries.changed(gone=keys)
        yield node.users.changed(gone=[name])

    def then() -> Steps:
        yield from in_pieces(_shut(node, name))
        node.tell("user.deleted", {"name": name}, who.user)
        return DONE

    return change_files(node, plan, then)


def _shut(node: "Node", name: str) -> Iterable[None]:
    for connection in list(node.connections):
        if connection.user == name:
            connection.shut(ConnectionForced(f"user '{name}' is deleted"))
        yield


class Authenticating:
    """The job that checks a password as AMQP logins do, with their limits.  Raises OperationError (401)."""

    def __init__(self, node: "Node", name: str, password: str, address: str) -> None:
        self._node, self._name, self._password, self._address = node, name, password, address
        self._right = False

    def _verify(self, user: User | None) -> None:
        """In the thread.  The answer takes as long for an unknown user, and for one whose hash is a quick one."""
        users = self._node.users
        self._right = users.verify(user, self._password)
        if not self._right and user is not None and not users.is_slow(self._name):
            verify_nothing(self._password)

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        node, name, address = self._node, self._name, self._address
        if node.logins.are_too_many(name, address):
            raise OperationError(f"user '{name}': too many failed logins from {address or 'this machine'}", 401)
        octets = self._password.encode("utf-8", "surrogateescape")
        if node.logins.is_token(octets):
            return (yield from _check_token(node, name, octets, address))
        backends = node.logins.backends
        for backend in backends:
            if backend != INTERNAL:
                answer = yield from self._ask_web_server(octets)
            elif name in node.users or len(backends) == 1:
                answer = yield from self._look_up()
            else:
                continue
            if answer is not None:
                check_place(node, name, address)
                return answer
        node.logins.note_failure(name, address)
        raise OperationError(f"user '{name}': invalid credentials", 401)

    def _look_up(self) -> Generator[Any, None, dict[str, Any] | None]:
        node, name = self._node, self._name
        user = node.users.get(name) if name in node.users else None
        right = node.users.remembers(name, self._password)
        if not right:
            yield Wait(lambda go_on: node.submit_logins(lambda: self._verify(user), lambda error: go_on()))
            right = self._right
        # Between the two the user may have gone, or got another password.
        if not right or user is None or name not in node.users or node.users.get(name) is not user:
            return None
        return {"name": name, "tags": list(user.tags), "grant": "", "expires": None}

    def _ask_web_server(self, password: bytes) -> Generator[Any, None, dict[str, Any] | None]:
        from brokerd.auth.http_backend import HTTPGranted  # Most brokers have none.

        node, name, asked = self._node, self._name, self._node.logins.asked
        tags = asked.known_login(name, password)
        if tags is None:
            found: list[Any] = []

            def begin(go_on: Callable[[], object]) -> None:
                def answered(tags: tuple[str, ...] | None, why: LoginRefused | None) -> None:
                    found.append((tags, why))
                    go_on()

                node.logins.ask_login(name, password, answered)

            yield Wait(begin)
            tags, why = found[0]
            if tags is None:
                log.warning("HTTP login refused: %s", why)
                return None
        granted = HTTPGranted(asked, name, tags, self._address)
        until = node.clock.epoch_ns() / 1e9 + SESSION_SECONDS
        return {"name": name, "tags": list(tags), "expires": None,
                "grant": node.logins.granted.keep(name, granted, until, "http", self._address)}  # fmt: skip

    def clean_up(self) -> None:
        """As ``jobs.Job``."""


class CheckingToken:
    """The job that checks a token as AMQP logins do, with their limits.  Raises OperationError (401)."""

    def __init__(self, node: "Node", token: str, address: str) -> None:
        self._node, self._token, self._address = node, token.encode("utf-8", "surrogateescape"), address

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        node = self._node
        if not node.logins.is_token(self._token):
            raise OperationError("no token, or this broker takes none", 401)
        if node.logins.are_too_many("", self._address):
            raise OperationError(f"too many failed logins from {self._address or 'this machine'}", 401)
        return (yield from _check_token(node, "", self._token, self._address))

    def clean_up(self) -> None:
        """As ``jobs.Job``."""


def _check_token(node: "Node", name: str, octets: bytes, address: str) -> Steps:
    """Check a token that was shown beside this user's name, as connections do."""
    found: list[Token] = []
    errors: list[object] = []

    def begin(go_on: Callable[[], object]) -> None:
        def done(error: object) -> None:
            errors.append(error)
            go_on()

        node.logins.submit_tokens(lambda: found.append(node.logins.verify_token(octets)), done)

    yield Wait(begin)
    if not found:
        node.logins.note_failure(name, address)
        log.warning("HTTP login refused: %s", errors[0])
        raise OperationError("the token is refused", 401)
    token = found[0]
    check_place(node, token.user, address)
    key = node.logins.granted.keep(token.user, token.scopes, token.expires, "token", octets.decode("ascii", "replace"))
    return {"name": token.user, "tags": list(token.scopes.tags), "grant": key, "expires": int(token.expires)}


def check_place(node: "Node", name: str, address: str) -> None:
    """Raise OperationError (401) if the user may not come from there."""
    try:
        node.logins.check_place(name, loopback=_is_loopback(address))
    except LoginRefused as error:
        raise OperationError(str(error), 401) from None


def _is_loopback(address: str) -> bool:
    return not address or address.removeprefix("::ffff:").startswith("127.") or address == "::1"
