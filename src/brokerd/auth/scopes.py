"""What a token allows: its scopes, in the words of RabbitMQ's OAuth 2 back-end.

    PERMISSION:VHOST/NAME[/ROUTING KEY]     configure, write or read; each part a pattern
    tag:TAG                                 management, policymaker, monitoring, administrator

In a pattern ``*`` stands for any text, and ``%2F`` for a slash, as in URLs.  A scope without a routing key allows every
key.  Other scopes are for other programs, and mean nothing here.  Knows nothing of tokens: scopes in, yes or no out.
"""

from collections.abc import Iterable
from typing import NamedTuple

PERMISSIONS = ("configure", "write", "read")
SCOPES_MAX = 1000  # of one token

Pattern = tuple[str, ...]  # the texts between the stars


class _Scope(NamedTuple):
    permission: str
    vhost: Pattern
    name: Pattern
    key: Pattern


ANY: Pattern = ("", "")


class Scopes:
    """The scopes of one token.  They never change."""

    __slots__ = ("_scopes", "tags")

    def __init__(self, words: Iterable[str]) -> None:
        self._scopes: list[_Scope] = []
        tags: list[str] = []
        for word in list(words)[:SCOPES_MAX]:
            kind, _, rest = word.partition(":")
            if kind == "tag" and rest.isprintable() and rest:
                tags.append(rest)
            elif kind in PERMISSIONS:
                parts = [_pattern(part) for part in rest.split("/")]
                if len(parts) in (2, 3):
                    self._scopes.append(_Scope(kind, parts[0], parts[1], parts[2] if len(parts) > 2 else ANY))
        self.tags = tuple(dict.fromkeys(tags))

    def has_access(self, vhost: str) -> bool:
        """Whether the vhost may be entered: any permission there is enough."""
        return any(matches(scope.vhost, vhost) for scope in self._scopes)

    def check(self, vhost: str, operation: str, name: str, kind: str = "") -> bool:
        """Whether the operation (configure, write or read) is allowed with the exchange or queue of this name; scopes
        do not tell these ``kind``s apart."""
        return any(
            scope.permission == operation and matches(scope.vhost, vhost) and matches(scope.name, name)
            for scope in self._scopes
        )

    def check_topic(self, vhost: str, operation: str, exchange: str, routing_key: str) -> bool:
        """Whether the operation (write or read) is allowed with this routing key of a topic exchange."""
        return any(
            scope.permission == operation and matches(scope.vhost, vhost) and matches(scope.name, exchange)
            and matches(scope.key, routing_key)
            for scope in self._scopes
        )  # fmt: skip


def matches(pattern: Pattern, text: str) -> bool:
    """Whether the pattern fits the whole text.  Each star takes as little as it can, so the time is bounded by the
    length of both."""
    if len(pattern) == 1:
        return text == pattern[0]
    first, *middle, last = pattern
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def _pattern(text: str) -> Pattern:
    from urllib.parse import unquote  # A broker without tokens saves this import.

    return tuple(unquote(part) for part in text.split("*"))
