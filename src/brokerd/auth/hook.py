"""Logins and permissions that another package decides, for example by an LDAP directory: see ``Hook``.

The package has an entry point, a function that makes its hook:

    [project.entry-points."brokerd.auth"]
    ldap = "acme_ldap:connect"              # connect(text) -> Hook; text is the option auth_hook_config

``load`` makes an object that the broker asks in place of the web server: a question of ``http_backend`` in, the
answer's words out.  Several threads ask at the same time.  An error of the hook, or an answer of the wrong type, counts
as a denial, with a line in the log.  Knows no directory, and does not remember answers.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from brokerd.errors import ConfigError

if TYPE_CHECKING:
    from brokerd.auth.http_backend import Question

GROUP = "brokerd.auth"
Ask = Callable[["Question"], tuple[str, str]]


class Wish(NamedTuple):
    """The wish of a user.

    kind       vhost: enter it from ``address``; exchange, queue: do ``permission`` with ``name``;
               topic: do ``permission`` with ``routing_key`` at the exchange ``name``
    permission configure, write or read; "" for a vhost
    """

    user: str
    tags: tuple[str, ...]
    vhost: str
    kind: str
    name: str = ""
    permission: str = ""
    routing_key: str = ""
    address: str = ""


class Hook(Protocol):
    """Decides about logins and permissions.  Both methods may take some seconds; only the asking client waits."""

    def log_in(self, user: str, password: str, /) -> Iterable[str] | None:
        """The tags of the user (none: an empty list); None if the name or the password is wrong."""

    def allows(self, wish: Wish, /) -> bool:
        """Whether the user may."""


def load(name: str, text: str) -> Ask:
    """The hook of the package that has an entry point of this name.  Raises ConfigError, one line."""
    from importlib.metadata import entry_points

    known = entry_points(group=GROUP)
    try:
        hook: Hook = known[name].load()(text)
    except KeyError:
        there = ", ".join(sorted(known.names)) or "none"
        raise ConfigError(f"auth_hook {name}: no installed package has it ({GROUP} has: {there})") from None
    except Exception as error:
        raise ConfigError(f"auth_hook {name}: {_in_a_line(error)}") from error
    if not callable(getattr(hook, "log_in", None)) or not callable(getattr(hook, "allows", None)):
        raise ConfigError(f"auth_hook {name}: {type(hook).__name__} has no methods log_in and allows")
    return lambda question: _ask(hook, question)


def _ask(hook: Hook, question: "Question") -> tuple[str, str]:
    """The answer as the web server words it.  Raises ValueError."""
    fields = dict(question.fields)
    try:
        if question.path == "user":
            return _log_in(hook, fields)
        allowed: Any = hook.allows(_wish(question.path, fields))
    except Exception as error:
        raise ValueError(_in_a_line(error)) from error
    if not isinstance(allowed, bool):
        raise ValueError(f"allows returned {type(allowed).__name__}, not bool")
    return ("allow" if allowed else "deny"), ""


def _log_in(hook: Hook, fields: dict[str, str]) -> tuple[str, str]:
    if not fields["password"]:
        return "deny", "an empty password"  # LDAP takes this as an anonymous login, and accepts it.
    tags: Any = hook.log_in(fields["username"], fields["password"])
    if tags is None:
        return "deny", ""
    if isinstance(tags, str):
        raise TypeError("log_in returned one text, not a list of tags")
    found = list(tags)
    if not all(isinstance(tag, str) and tag and not any(map(str.isspace, tag)) for tag in found):
        raise TypeError("a tag is no text, or has a blank")
    return "allow", " ".join(found)


def _wish(path: str, fields: dict[str, str]) -> Wish:
    kind = path if path in ("vhost", "topic") else fields["resource"]
    return Wish(fields["username"], tuple(fields["tags"].split()), fields["vhost"], kind, fields.get("name", ""),
                fields.get("permission", ""), fields.get("routing_key", ""), fields.get("ip", ""))  # fmt: skip


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(": ")
