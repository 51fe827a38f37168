"""Rights of a user who is not in ``users.json``: a token has them, or another program is asked.

``GrantedLogins`` keeps the rights of logins by HTTP, under keys that only the broker can make: its process of
management shows the key with each request of that login.  Knows neither tokens nor HTTP.
"""

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, Protocol

GRANTED_MAX = 10_000


class Granted(Protocol):
    """The rights of one login."""

    @property
    def tags(self) -> tuple[str, ...]:
        """The user's tags."""

    def has_access(self, vhost: str, /) -> bool:
        """Whether the vhost may be entered.  Raises NotAnsweredYet."""

    def check(self, vhost: str, operation: str, name: str, kind: str, /) -> bool:
        """Whether the operation (configure, write or read) is allowed with the exchange or queue (``kind``) of this
        name.  Raises NotAnsweredYet."""

    def check_topic(self, vhost: str, operation: str, exchange: str, routing_key: str, /) -> bool:
        """Whether the operation (write or read) is allowed with this routing key of a topic exchange.  Raises
        NotAnsweredYet."""


class GrantedLogin(NamedTuple):
    """A login, and when it ends by ``now()`` of its table."""

    user: str
    granted: Granted
    until: float


class GrantedLogins:
    """The logins by their keys; the newest ``GRANTED_MAX`` of them.  ``now()`` is seconds since the epoch."""

    __slots__ = ("_by_key", "_now", "_salt")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._salt = os.urandom(16)
        self._by_key: OrderedDict[str, GrantedLogin] = OrderedDict()

    def keep(self, user: str, granted: Granted, until: float, *proof: str) -> str:
        """The key of a login.  The same ``proof`` (a token, or where a user comes from) has the same key."""
        from hashlib import blake2b

        text = "\0".join((user, *granted.tags, *proof)).encode("utf-8", "surrogateescape")
        key = blake2b(text, key=self._salt, digest_size=16).hexdigest()
        self._by_key[key] = GrantedLogin(user, granted, until)
        self._by_key.move_to_end(key)
        while len(self._by_key) > GRANTED_MAX:
            self._by_key.popitem(last=False)
        return key

    def find(self, key: str) -> GrantedLogin | None:
        """The login of that key; None: there is none, or its time is over."""
        found = self._by_key.get(key)
        if found is not None and found.until <= self._now():
            del self._by_key[key]
            return None
        return found
