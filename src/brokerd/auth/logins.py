"""Logins: who a client is, by its SASL mechanism, and how often it may be wrong.

If the hash of a password takes long, a thread checks it first: ``slow_part`` is the work of that thread.  Knows nothing
of connections, nor of a user's rights.
"""

from collections.abc import Callable
from logging import getLogger
from typing import TYPE_CHECKING, Any

from brokerd.auth.failures import FailedLogins
from brokerd.auth.granted import GrantedLogins
from brokerd.auth.mechanisms import ANONYMOUS, EXTERNAL, credentials
from brokerd.errors import LoginRefused

if TYPE_CHECKING:
    from brokerd.auth.hook import Ask
    from brokerd.auth.http_backend import HTTPBackend, Question
    from brokerd.auth.tokens import Token, Tokens
    from brokerd.auth.users import Users
    from brokerd.clock import Clock
    from brokerd.settings import Settings

log = getLogger("brokerd")

INTERNAL, HTTP, HOOK = "internal", "http", "hook"  # back-ends: see the option auth_backends


class Logins:
    """The logins of one broker.  ``settings()`` are those of the moment."""

    __slots__ = (
        "_asked", "_asking", "_clock", "_failed", "_settings", "_tokens", "_users", "granted", "hook", "submit_http",
        "submit_tokens",
    )  # fmt: skip

    submit_tokens: "Callable[[Callable[[], object], Callable[[Any], object]], object]"
    """Runs work() in the thread of tokens, then done(error or None) on the loop.  The server sets it."""

    submit_http: "Callable[[Callable[[], object], Callable[[Any], object]], object]"
    """The same in one of several threads, which wait for a web server."""

    def __init__(self, users: "Users", settings: "Callable[[], Settings]", clock: "Clock") -> None:
        self._users, self._settings, self._clock = users, settings, clock
        self._failed = FailedLogins(clock.monotonic)
        self._tokens: Tokens | None = None  # None: not used yet
        self._asked: HTTPBackend | None = None  # the same
        self.hook: Ask | None = None  # the object that is asked for the back-end hook; None: no hook
        self._asking: dict[Question, list[Callable[[], object]]] = {}  # what is called when the answer is there
        self.granted = GrantedLogins(lambda: clock.epoch_ns() / 1e9)  # logins over HTTP

    def slow_part(self, mechanism: str, response: bytes, address: str) -> Callable[[], object] | None:
        """The work for a thread before ``authenticate`` is asked; None: none.  Raises AMQPError."""
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
        return (name, password) if self.is_token(password) else None

    def is_token(self, password: bytes) -> bool:
        """Whether it has the form of a token, and tokens are on."""
        return bool(self._settings().oauth2.jwks) and password.startswith(b"ey") and password.count(b".") == 2

    def verify_token(self, text: bytes) -> "Token":
        """The contents of the token.  In the thread of tokens.  Raises LoginRefused."""
        from brokerd.auth.tokens import Tokens

        if self._tokens is None:
            self._tokens = Tokens(lambda: self._clock.epoch_ns() / 1e9, self._clock.monotonic)
        return self._tokens.verify(text.decode("ascii", "replace"), self._settings().oauth2)

    def tell_refused(self, peer: str, reason: str) -> None:
        """A secret that a client shows later on is refused."""
        log.warning("%s: new secret refused: %s", peer, reason)

    # --- a web server

    def asks_others(self, mechanism: str) -> bool:
        """Whether others than ``users.json`` are asked about a login by this mechanism."""
        return self._settings().auth_backends != (INTERNAL,) and mechanism not in (EXTERNAL, ANONYMOUS)

    @property
    def backends(self) -> tuple[str, ...]:
        """Who is asked about a password, in this order."""
        return self._settings().auth_backends

    @property
    def asked(self) -> "HTTPBackend":
        """The questions to the web server, or to the hook."""
        hook = self.hook if HOOK in self.backends else None
        if self._asked is None or self._asked.hook is not hook:
            from brokerd.auth.http_backend import HTTPBackend  # Most brokers have none.

            self._asked = HTTPBackend(lambda: self._settings().http_auth, self._clock.monotonic, hook)
        return self._asked

    def ask(self, question: "Question", then: Callable[[], object]) -> None:
        """Ask the web server, once for all who want to know; then call ``then()``: its answer is in ``http``."""
        waiting = self._asking.get(question)
        if waiting is not None:
            waiting.append(then)
            return
        self._asking[question] = [then]
        asked, found = self.asked, list[bool]()

        def done(error: object) -> None:
            asked.note(question, found[0] if found else None, error)
            for each in self._asking.pop(question):
                each()

        self.submit_http(lambda: found.append(asked.fetch(question)), done)

    def ask_login(
        self, name: str, password: bytes, then: "Callable[[tuple[str, ...] | None, LoginRefused | None], object]"
    ) -> None:
        """Ask the web server about a password; then call ``then(tags, None)`` or ``then(None, why)``."""
        asked, found = self.asked, list[tuple[str, ...]]()

        def done(error: object) -> None:
            if found:
                asked.note_login(name, password, found[0])
                then(found[0], None)
            else:
                then(None, asked.refusal(name, error))

        self.submit_http(lambda: found.append(asked.fetch_login(name, password)), done)

    # --- passwords, certificates, none

    def authenticate(
        self, mechanism: str, response: bytes, loopback: bool, certificate_name: str = "", address: str = "", *,
        counts: bool = True,
    ) -> str:  # fmt: skip
        """The user who logs in, from this address.  ``counts``: a wrong password is noted as a failure.  Raises
        LoginRefused with the reason for the log."""
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
                if counts:
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
            log.warning("too many failed logins of %s from %s: for a while the broker refuses all further ones, "
                        "even with the right password", who, address)  # fmt: skip

    def check_place(self, name: str, *, loopback: bool) -> None:
        """Check that the user may come from there.  Raises LoginRefused."""
        settings = self._settings()
        if not loopback and settings.default_user_only_loopback and name == settings.default_user:
            raise LoginRefused(f"user '{name}' can only connect via localhost")
