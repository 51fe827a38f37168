"""Logins: who a client is, by its SASL mechanism, and how often it may be wrong.

A password whose hash takes long is checked in a thread first: ``slow_part`` says what has to be done there.  Knows
nothing of connections, nor of what a user may do.
"""

from collections.abc import Callable
from logging import getLogger
from typing import TYPE_CHECKING, Any

from brokerd.auth.failures import FailedLogins
from brokerd.auth.mechanisms import ANONYMOUS, EXTERNAL, credentials
from brokerd.errors import LoginRefused

if TYPE_CHECKING:
    from brokerd.auth.tokens import Token, Tokens
    from brokerd.auth.users import Users
    from brokerd.clock import Clock
    from brokerd.settings import Settings

log = getLogger("brokerd")


class Logins:
    """The logins of one broker.  ``settings()`` are those of the moment."""

    __slots__ = ("_clock", "_failed", "_settings", "_tokens", "_users", "submit_tokens")

    submit_tokens: "Callable[[Callable[[], object], Callable[[Any], object]], object]"
    """Runs work() in the thread of tokens, then done(error or None) on the loop.  The server sets it."""

    def __init__(self, users: "Users", settings: "Callable[[], Settings]", clock: "Clock") -> None:
        self._users, self._settings, self._clock = users, settings, clock
        self._failed = FailedLogins(clock.monotonic)
        self._tokens: Tokens | None = None  # None: not used yet

    def slow_part(self, mechanism: str, response: bytes, address: str) -> Callable[[], object] | None:
        """What must be done in a thread before ``authenticate`` is asked; None: nothing.  Raises AMQPError."""
        if mechanism in (EXTERNAL, ANONYMOUS):
            return None
        name, password = credentials(mechanism, response)
        users = self._users
        if not users.is_slow(name) or users.remembers(name, password) or self.are_too_many(name, address):
            return None
        user = users.get(name) if name in users else None
        return lambda: users.verify(user, password)

    # --- tokens

    def token_in(self, mechanism: str, response: bytes) -> tuple[str, bytes] | None:
        """The name and the token of a client with a token for a password; None: it has none, or tokens are off.  Raises
        LoginRefused, SyntaxError_.

        What has the form of a token is never looked for among the passwords.
        """
        if not self._settings().oauth2.jwks or mechanism in (EXTERNAL, ANONYMOUS):
            return None
        if mechanism == "PLAIN" and response.startswith(b"\0\0"):
            name, password = "", response[2:]  # A token names its user by itself.
        else:
            name, password = credentials(mechanism, response)
        return (name, password) if password.startswith(b"ey") and password.count(b".") == 2 else None

    def verify_token(self, text: bytes) -> "Token":
        """What the token says.  In the thread of tokens.  Raises LoginRefused."""
        from brokerd.auth.tokens import Tokens

        if self._tokens is None:
            self._tokens = Tokens(lambda: self._clock.epoch_ns() / 1e9, self._clock.monotonic)
        return self._tokens.verify(text.decode("ascii", "replace"), self._settings().oauth2)

    def tell_refused(self, peer: str, reason: str) -> None:
        """A secret that a client shows later on is refused."""
        log.warning("%s: new secret refused: %s", peer, reason)

    # --- passwords, certificates, none

    def authenticate(
        self, mechanism: str, response: bytes, loopback: bool, certificate_name: str = "", address: str = ""
    ) -> str:
        """The user who logs in, from this address.  Raises LoginRefused with the reason for the log."""
        users, settings = self._users, self._settings()
        if mechanism in (EXTERNAL, ANONYMOUS):
            name = certificate_name if mechanism == EXTERNAL else settings.anonymous_login_user
            if name not in users:
                raise LoginRefused(f"user '{name}' of mechanism {mechanism} - invalid credentials")
        else:
            name, password = credentials(mechanism, response)
            if self.are_too_many(name, address):
                raise LoginRefused(f"user '{name}' - too many failed logins from {address}: not looked at")
            if not (users.remembers(name, password) if users.is_slow(name) else users.authenticate(name, password)):
                self.note_failure(name, address)
                raise LoginRefused(f"user '{name}' - invalid credentials")
        self.check_place(name, loopback=loopback)
        return name

    def are_too_many(self, name: str, address: str) -> bool:
        """Whether a login must be refused without a look at its password."""
        return self._failed.are_too_many(address, name, self._settings().failed_logins_per_second)

    def note_failure(self, name: str, address: str) -> None:
        """The password was wrong."""
        for locked in self._failed.note(address, name, self._settings().failed_logins_per_second):
            who = "all users" if locked is None else f"user '{locked}'"
            log.warning("too many failed logins of %s from %s: further ones are refused without a look, also "
                        "with the right password, until time has passed", who, address)  # fmt: skip

    def check_place(self, name: str, *, loopback: bool) -> None:
        """Check that the user may come from there.  Raises LoginRefused."""
        settings = self._settings()
        if not loopback and settings.default_user_only_loopback and name == settings.default_user:
            raise LoginRefused(f"user '{name}' can only connect via localhost")
