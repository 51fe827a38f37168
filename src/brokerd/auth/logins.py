"""Logins: who a client is, by its SASL mechanism, and how often it may be wrong.

A password whose hash takes long is checked in a thread first: ``slow_part`` says what has to be done there.  Knows
nothing of connections, nor of what a user may do.
"""

from collections.abc import Callable
from logging import getLogger
from typing import TYPE_CHECKING

from brokerd.auth.failures import FailedLogins
from brokerd.auth.mechanisms import ANONYMOUS, EXTERNAL, credentials
from brokerd.errors import LoginRefused

if TYPE_CHECKING:
    from brokerd.auth.users import Users
    from brokerd.settings import Settings

log = getLogger("brokerd")


class Logins:
    """The logins of one broker.  ``settings()`` are those of the moment, ``monotonic()`` seconds."""

    __slots__ = ("_failed", "_settings", "_users")

    def __init__(
        self, users: "Users", settings: "Callable[[], Settings]", monotonic: Callable[[], float]
    ) -> None:  # fmt: skip
        self._users, self._settings = users, settings
        self._failed = FailedLogins(monotonic)

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
