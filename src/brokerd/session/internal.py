"""The login of the broker's own process of links: no user, no password, every right in each vhost.

The broker gives the process a secret on its standard input, anew at each of its starts.  The broker takes the login
only on a unix socket, and only while there is such a process; it does not offer the mechanism to clients.
"""

from typing import TYPE_CHECKING

from brokerd.vhost.access import Access
from brokerd.vhost.events import INTERNAL_USER
from brokerd.vhost.routing import IMPERSONATOR

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.vhost.vhost import VHost


class Everything:
    """The rights of a connection of the process: everything.  Messages that it carries keep their user-id."""

    __slots__ = ("_access",)

    def __init__(self) -> None:
        self._access: Access | None = None

    def has_access(self, vhost: str) -> bool:
        """As ``Permissions.has_access``."""
        return True

    def door(self, vhost: "VHost") -> Access:
        """The door to the vhost, for this connection alone."""
        self._access = Access(vhost, INTERNAL_USER, _may, _has_tag)
        self._access.open(self._key)
        return self._access

    @property
    def _key(self) -> str:
        return f"\0{id(self)}"  # No user's name has a NUL.

    def end(self) -> None:
        """The connection has gone."""
        if self._access is not None:
            self._access.shut(self._key)


def _may(operation: str, name: str, kind: str) -> bool:
    return True


def _has_tag(tag: str) -> bool:
    return tag == IMPERSONATOR


def is_right(node: "Node", response: bytes) -> bool:
    """Whether that is the secret of the process that runs now."""
    from hmac import compare_digest

    secret = node.links.secret
    return bool(secret) and compare_digest(bytes(response), secret.encode())
