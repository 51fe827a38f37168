"""Logins and permissions that a web server decides, as RabbitMQ's rabbitmq_auth_backend_http asks for them.

    user        username, password                                      allow [TAG ...] | deny [REASON]
    vhost       username, vhost, ip, tags                               allow | deny [REASON]
    resource    username, vhost, resource, name, permission, tags       the same; resource is exchange or queue
    topic       ... resource=topic, routing_key                         the same; name is the exchange

Each line is a form, sent to the URL of that name.  An answer counts for ``cache_seconds``.  Permissions are asked for
while a client's method is under way, and the loop must not wait: a question without an answer raises NotAsked, the
caller has it asked in a thread (``HTTPBackend.fetch``), and comes again.  A server that fails, or says something
else, has denied, for ``FAILED_SECONDS``.  A hook (see ``hook``) may be asked instead.  Knows nothing of connections.
"""

import os
from collections import OrderedDict
from collections.abc import Callable
from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.auth.fetching import fetch
from brokerd.auth.users import checked_name
from brokerd.errors import LoginRefused, NotAnsweredYet, PreconditionFailed, in_words
from brokerd.settings import HTTPAuth

if TYPE_CHECKING:
    from brokerd.auth.hook import Ask

log = getLogger("brokerd")

ANSWER_OCTETS_MAX = 16 << 10
FAILED_SECONDS = 2.0
TOLD_SECONDS = 10.0  # The log tells of a failing server so often.
TAGS_MAX = 100


class NotAsked(NotAnsweredYet):
    """The server was not asked this question yet, or some time ago."""

    def __init__(self, question: "Question") -> None:
        super().__init__()
        self.question = question

    def find_out(self, node: Any, then: Callable[[], object]) -> None:
        """Ask it."""
        node.logins.ask(self.question, then)


class Question(NamedTuple):
    """A question to the server: the name of its URL, and the fields of the form."""

    path: str
    fields: tuple[tuple[str, str], ...]


class Answer(NamedTuple):
    """Whether it is allowed, and until when that counts."""

    allowed: bool
    until: float
    tags: tuple[str, ...] = ()


class HTTPBackend:
    """The questions and their answers.  ``settings()`` are those of the moment, ``monotonic()`` is in seconds.

    ``fetch`` and ``fetch_login`` may be called in any thread, everything else on the loop.
    """

    __slots__ = ("_answers", "_monotonic", "_salt", "_settings", "_told", "hook")

    def __init__(
        self, settings: Callable[[], HTTPAuth], monotonic: Callable[[], float], hook: "Ask | None" = None
    ) -> None:
        """``hook`` is asked instead of the web server."""
        self._settings, self._monotonic, self.hook = settings, monotonic, hook
        self._salt = os.urandom(16)
        self._answers: OrderedDict[Question | bytes, Answer] = OrderedDict()
        self._told = float("-inf")

    # --- permissions

    def answer(self, question: Question, *, also_old: bool = False) -> Answer | None:
        """The answer that counts; None: it must be asked for.  ``also_old``: one whose time is over will do."""
        found = self._answers.get(question)
        return found if found is not None and (also_old or found.until > self._monotonic()) else None

    def fetch(self, question: Question) -> bool:
        """Ask the server.  Raises OSError, ValueError."""
        word, rest = self._ask(question)
        if word == "allow" and not rest:
            return True
        if word == "deny":
            if rest:
                log.info("HTTP authorization denied: %s of user %r: %.200r", question.path, question.fields[0][1], rest)
            return False
        raise ValueError("the answer is neither allow nor deny")

    def note(self, question: Question, allowed: bool | None, error: object = None) -> None:
        """Keep what the server said; None: it failed with this error."""
        if allowed is None:
            self._tell(question.path, error)
        self._keep(question, Answer(bool(allowed), self._end(failed=allowed is None)))

    # --- logins

    def known_login(self, name: str, password: bytes) -> tuple[str, ...] | None:
        """The tags of a user whose password was right a moment ago; None: ask."""
        found = self._answers.get(self._mark(name, password))
        return found.tags if found is not None and found.until > self._monotonic() else None

    def fetch_login(self, name: str, password: bytes) -> tuple[str, ...]:
        """Ask the server for the user's tags.  Raises LoginRefused, OSError, ValueError."""
        try:
            checked_name(name)
        except PreconditionFailed as error:
            raise LoginRefused(str(error)) from None
        text = password.decode("utf-8", "surrogateescape")
        word, rest = self._ask(Question("user", (("username", name), ("password", text))))
        if word == "deny":
            raise LoginRefused(f"user '{name}' - denied by {self._who}{f': {rest[:200]!r}' if rest else ''}")
        if word != "allow":
            raise ValueError("the answer is neither allow nor deny")
        return tuple(dict.fromkeys(tag for tag in rest.split()[:TAGS_MAX] if tag.isprintable()))

    def note_login(self, name: str, password: bytes, tags: tuple[str, ...]) -> None:
        """The password was right."""
        self._keep(self._mark(name, password), Answer(True, self._end(), tags))

    def refusal(self, name: str, error: object) -> LoginRefused:
        """Why a login that ``fetch_login`` raised ``error`` for is refused."""
        if isinstance(error, LoginRefused):
            return error
        self._tell("user", error)
        return LoginRefused(f"user '{name}' - {self._who} gives no answer")

    @property
    def _who(self) -> str:
        return "the hook" if self.hook is not None else "the HTTP back-end"

    # --- both

    def _ask(self, question: Question) -> tuple[str, str]:
        """The word with which the answer begins, in small letters, and the rest of it."""
        if self.hook is not None:
            return self.hook(question)
        from urllib.parse import urlencode

        settings = self._settings()
        address = settings.paths[question.path]
        form = urlencode(question.fields, errors="surrogateescape").encode()
        if settings.method == "get":
            address, form = f"{address}{'&' if '?' in address else '?'}{form.decode()}", b""
        status, octets = fetch(address, seconds=settings.timeout_seconds, octets_most=ANSWER_OCTETS_MAX,
                               ca_cert=settings.ca_cert, form=form or None)  # fmt: skip
        if status not in (200, 201):
            raise ValueError(f"status {status}")
        word, _, rest = octets.decode("utf-8", "replace").strip().partition(" ")
        return word.lower(), rest.strip()

    def _keep(self, key: Question | bytes, answer: Answer) -> None:
        self._answers[key] = answer
        self._answers.move_to_end(key)
        while len(self._answers) > self._settings().cache_entries:
            self._answers.popitem(last=False)

    def _end(self, *, failed: bool = False) -> float:
        return self._monotonic() + (FAILED_SECONDS if failed else self._settings().cache_seconds)

    def _mark(self, name: str, password: bytes) -> bytes:
        """Stands for a name with a password, which stay out of memory."""
        from hashlib import blake2b

        text = name.encode("utf-8", "surrogateescape") + b"\0" + password
        return blake2b(text, key=self._salt, digest_size=16).digest()

    def _tell(self, path: str, error: object) -> None:
        now = self._monotonic()
        if now - self._told >= TOLD_SECONDS:
            self._told = now
            reason = in_words(error) if isinstance(error, Exception) else "no answer"
            who = "auth hook" if self.hook is not None else f"HTTP back-end: auth_http_{path}_path"
            log.warning("%s gives no answer (%s): denied", who, reason)


class HTTPGranted:
    """The rights of one user who comes from this address.

    ``on_use(until)`` is told how long each answer counts that was used.  ``also_old()``: whether answers do whose time
    is over.
    """

    __slots__ = ("_address", "_backend", "_user", "also_old", "on_use", "tags")

    def __init__(self, backend: HTTPBackend, user: str, tags: tuple[str, ...], address: str) -> None:
        self._backend, self._user, self._address = backend, user, address
        self.tags = tags
        self.on_use: Callable[[float], object] | None = None
        self.also_old: Callable[[], bool] = _no

    def has_access(self, vhost: str) -> bool:
        """As ``Granted`` has it."""
        return self._is_allowed("vhost", vhost, ("ip", self._address))

    def check(self, vhost: str, operation: str, name: str, kind: str) -> bool:
        """As ``Granted`` has it."""
        return self._is_allowed("resource", vhost, ("resource", kind), ("name", name), ("permission", operation))

    def check_topic(self, vhost: str, operation: str, exchange: str, routing_key: str) -> bool:
        """As ``Granted`` has it."""
        return self._is_allowed("topic", vhost, ("resource", "topic"), ("name", exchange), ("permission", operation),
                                ("routing_key", routing_key))  # fmt: skip

    def _is_allowed(self, path: str, vhost: str, *fields: tuple[str, str]) -> bool:
        question = Question(path, (("username", self._user), ("vhost", vhost), *fields, ("tags", " ".join(self.tags))))
        answer = self._backend.answer(question, also_old=self.also_old())
        if answer is None:
            raise NotAsked(question)
        if self.on_use is not None:
            self.on_use(answer.until)
        return answer.allowed


def _no() -> bool:
    return False
