"""A login by password where others than ``users.json`` are asked: the back-ends of ``auth_backends``, in order.

The first one that knows the user with this password lets it in, and says what it may do: ``permissions.json`` where
that is the internal one, else the web server or the hook (``grants.AskedGrant``).  A failure counts once, when all
have refused.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.auth.http_backend import HTTPGranted
from brokerd.auth.logins import INTERNAL
from brokerd.auth.mechanisms import credentials
from brokerd.errors import LoginRefused, SyntaxError_
from brokerd.session import grants

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokerd.session.connection import Connection


class Steps(NamedTuple):
    """Steps of the handshake: see there.  It hands these in, because it imports this module."""

    is_waiting: "Callable[[Connection], bool]"  # whether the client still waits for its login
    check_password: "Callable[..., object]"
    welcome: "Callable[[Connection, str], object]"
    refuse: "Callable[[Connection, Any, Exception], object]"


def log_in(connection: "Connection", method: Any, steps: Steps) -> None:
    """Find out who it is, while the client rests, and go on with tune, or refuse the client."""
    logins, address = connection.node.logins, connection.address
    try:
        name, password = credentials(method.mechanism, method.response)
        if logins.are_too_many(name, address):
            raise LoginRefused(f"user '{name}' - too many failed logins from {address}: not looked at")
    except (LoginRefused, SyntaxError_) as error:
        steps.refuse(connection, method, error)
        return
    _Attempt(connection, method, name, password, steps).go_on()


class _Attempt:
    """One login under way."""

    __slots__ = ("_connection", "_left", "_method", "_name", "_password", "_steps", "_why")

    def __init__(self, connection: "Connection", method: Any, name: str, password: bytes, steps: Steps) -> None:
        self._connection, self._method, self._steps = connection, method, steps
        self._name, self._password = name, password
        self._left = list(connection.node.logins.backends)
        self._why: Exception = LoginRefused(f"user '{name}' - invalid credentials")

    def go_on(self) -> None:
        """Ask the next back-end."""
        connection, method = self._connection, self._method
        node = connection.node
        if not self._left:
            node.logins.note_failure(self._name, connection.address)
            self._steps.refuse(connection, method, self._why)
        elif self._left.pop(0) != INTERNAL:
            self._ask_web_server()
        elif self._name in node.users:
            self._steps.check_password(connection, method, self._refused, counts=False)
        else:
            self.go_on()

    def _refused(self, _connection: "Connection", _method: Any, why: Exception) -> None:
        self._why = why
        self.go_on()

    def _ask_web_server(self) -> None:
        connection = self._connection
        node = connection.node
        known = node.logins.asked.known_login(self._name, self._password)
        if known is not None:
            self._let_in(known)
            return

        def answered(tags: tuple[str, ...] | None, why: LoginRefused | None) -> None:
            if self._steps.is_waiting(connection):
                if tags is not None:
                    self._let_in(tags)
                else:
                    self._why = why or self._why
                    self.go_on()
            connection.go_on()
            node.core.turn()

        connection.rest()
        node.logins.ask_login(self._name, self._password, answered)

    def _let_in(self, tags: tuple[str, ...]) -> None:
        connection, logins = self._connection, self._connection.node.logins
        try:
            logins.check_place(self._name, loopback=connection.loopback)
        except LoginRefused as error:
            self._steps.refuse(connection, self._method, error)
            return
        connection.user = self._name
        connection.grant = grants.AskedGrant(
            connection, HTTPGranted(logins.asked, self._name, tags, connection.address)
        )
        self._steps.welcome(connection, self._method.mechanism)
