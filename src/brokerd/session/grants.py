"""A login by token: what a connection may do is what its token says, and ends when the token ends.

    start-ok, its password a token -> thread: Tokens.verify -> Grant of the connection -> connection.open asks the Grant
    update-secret                  -> thread: Tokens.verify -> the Grant has the new token

Knows nothing of keys and signatures.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from brokerd.auth.tokens import Token
from brokerd.errors import ConnectionForced, LoginRefused, NotAllowed
from brokerd.vhost.access import Access
from brokerd.wire import methods

if TYPE_CHECKING:
    from brokerd.session.connection import Connection
    from brokerd.vhost.features import Timer
    from brokerd.vhost.vhost import VHost

NS = 1_000_000_000


class Grant:
    """What one connection's token allows."""

    __slots__ = ("_access", "_connection", "_timer", "token")

    def __init__(self, connection: "Connection", token: Token) -> None:
        self._connection = connection
        self._access: Access | None = None
        self._timer: Timer | None = None
        self.token = token
        self._await_end()

    def has_access(self, user: str, vhost: str) -> bool:
        """As ``Permissions.has_access``."""
        return self.token.scopes.has_access(vhost)

    def door(self, vhost: "VHost") -> Access:
        """The door to the vhost, for this connection alone."""
        name = vhost.name

        def may(operation: str, thing: str) -> bool:
            return self.token.scopes.check(name, operation, thing)

        def has_tag(tag: str) -> bool:
            return tag in self.token.scopes.tags

        def may_use_key(operation: str, exchange: str, routing_key: str) -> bool:
            return self.token.scopes.check_topic(name, operation, exchange, routing_key)

        self._access = Access(vhost, self.token.user, may, has_tag, may_use_key)
        self._access.open(self._key)
        return self._access

    @property
    def _key(self) -> str:
        return f"{self.token.user}\0{id(self)}"  # No user's name has a NUL.

    def renew(self, token: Token) -> None:
        """The client shows another token of the same user: from now on that one counts."""
        self.token = token
        if self._access is not None:
            self._access.permission_changed()
        self._await_end()

    def end(self) -> None:
        """The connection has gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._access is not None:
            self._access.shut(self._key)

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


def check(
    connection: "Connection", text: bytes, then: Callable[[Token | None, LoginRefused | None], object]
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


def update_secret(connection: "Connection", grant: Grant, secret: bytes) -> None:
    """connection.update-secret of a client that has logged in by token."""

    def then(token: Token | None, why: LoginRefused | None) -> None:
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
