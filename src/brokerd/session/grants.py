"""The rights of a connection with a user who need not be in ``users.json``: a token has them, or a web server is asked.

    start-ok, its password a token -> thread: Tokens.verify -> TokenGrant -> connection.open asks it
    update-secret                  -> thread: Tokens.verify -> the TokenGrant has the new token
    start-ok, see ``backends``     -> thread: HTTPBackend.fetch_login -> AskedGrant -> connection.open asks it

When a token ends, its connection ends too.  When a web server's answer ends, the connection forgets its rights, and
asks again at its next method.  Knows nothing of keys, signatures and forms.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from brokerd.auth.granted import Granted
from brokerd.errors import ConnectionForced, LoginRefused, NotAllowed
from brokerd.vhost.access import Access, access_by
from brokerd.wire import methods

if TYPE_CHECKING:
    from brokerd.auth.http_backend import HTTPGranted
    from brokerd.auth.tokens import Token
    from brokerd.session.connection import Connection
    from brokerd.vhost.features import Timer
    from brokerd.vhost.vhost import VHost

NS = 1_000_000_000


class Grant:
    """The rights of one connection."""

    __slots__ = ("_access", "_connection", "_timer")

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._access: Access | None = None
        self._timer: Timer | None = None

    @property
    def granted(self) -> Granted:
        """The rights of now."""
        raise NotImplementedError

    def door(self, vhost: "VHost") -> Access:
        """The door to the vhost, for this connection alone."""
        self._access = access_by(vhost, self._connection.user, self)
        self._access.open(self._key)
        return self._access

    # --- as auth.granted has it, by the rights of now

    @property
    def tags(self) -> tuple[str, ...]:
        """The user's tags."""
        return self.granted.tags

    def has_access(self, vhost: str) -> bool:
        """Whether the vhost may be entered."""
        return self.granted.has_access(vhost)

    def check(self, vhost: str, operation: str, name: str, kind: str) -> bool:
        """Whether the operation is allowed with the exchange or queue."""
        return self.granted.check(vhost, operation, name, kind)

    def check_topic(self, vhost: str, operation: str, exchange: str, routing_key: str) -> bool:
        """Whether the operation is allowed with the routing key."""
        return self.granted.check_topic(vhost, operation, exchange, routing_key)

    @property
    def _key(self) -> str:
        return f"{self._connection.user}\0{id(self)}"  # No user's name has a NUL.

    def end(self) -> None:
        """The connection has gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._access is not None:
            self._access.shut(self._key)


class TokenGrant(Grant):
    """The rights by one connection's token."""

    __slots__ = ("token",)

    def __init__(self, connection: "Connection", token: "Token") -> None:
        super().__init__(connection)
        self.token = token
        self._await_end()

    @property
    def granted(self) -> Granted:
        """The scopes of the token that the client has shown last."""
        return self.token.scopes

    def renew(self, token: "Token") -> None:
        """The client shows another token of the same user: from now on that one counts."""
        self.token = token
        if self._access is not None:
            self._access.permission_changed()
        self._await_end()

    def _await_end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._connection.node.call_at(int(self.token.expires * NS), self._expire)

    def _expire(self) -> None:
        connection = self._connection
        self._timer = None
        if connection.transport is None:
            return
        if connection.node.clock.epoch_ns() < self.token.expires * NS:
            self._await_end()  # The clock was set back.
            return
        connection.shut(ConnectionForced("token expired"))
        connection.node.core.turn()


class AskedGrant(Grant):
    """The rights that a web server gives the user of one connection."""

    __slots__ = ("_asked", "_until")

    def __init__(self, connection: "Connection", asked: "HTTPGranted") -> None:
        super().__init__(connection)
        self._asked = asked
        self._until = 0.0  # monotonic seconds: when the timer runs
        asked.on_use, asked.also_old = self._rely, self._is_at_commit

    @property
    def granted(self) -> Granted:
        """The answers of the web server."""
        return self._asked

    def _is_at_commit(self) -> bool:
        return self._access is not None and self._access.is_at_commit

    def _rely(self, until: float) -> None:
        """An answer was used that counts until then: the data plane may remember what follows from it."""
        if self._timer is not None:
            if until >= self._until:
                return
            self._timer.cancel()
        node = self._connection.node
        self._until = until
        left = max(0.0, until - node.clock.monotonic())
        self._timer = node.call_at(node.clock.epoch_ns() + int(left * NS), self._forget)

    def _forget(self) -> None:
        self._timer = None
        if self._access is not None:
            self._access.permission_changed()


def check(
    connection: "Connection", text: bytes, then: "Callable[[Token | None, LoginRefused | None], object]"
) -> None:
    """Check a token in the thread, while the client rests; then call ``then(token, None)`` or ``then(None, why)``."""
    node = connection.node
    found: list[Token] = []

    def checked(error: object) -> None:
        if connection.transport is not None:
            if found:
                then(found[0], None)
            else:
                why = error if isinstance(error, LoginRefused) else LoginRefused(f"the token is refused: {error}")
                then(None, why)
        connection.go_on()
        node.core.turn()

    connection.rest()
    node.logins.submit_tokens(lambda: found.append(node.logins.verify_token(text)), checked)


def update_secret(connection: "Connection", grant: TokenGrant, secret: bytes) -> None:
    """connection.update-secret of a client that has logged in by token."""

    def then(token: "Token | None", why: LoginRefused | None) -> None:
        if connection.access is None or connection.state in ("closing", "closed"):
            return
        if token is None or token.user != grant.token.user:
            reason = why.args[0] if why is not None else "the token is another user's"
            connection.on_error(0, NotAllowed("New secret was refused by one of the backends"), 10, 70)
            connection.node.logins.tell_refused(connection.peer, str(reason))
            return
        grant.renew(token)
        connection.write(methods.ConnectionUpdateSecretOk().frame(0))

    check(connection, secret, then)
