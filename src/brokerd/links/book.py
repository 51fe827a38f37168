"""The broker's book of links: the last state of each, and the way to their process.

Parameters and policies say which links there are; the process says how they are.  An operation reads states here and
asks for a restart.  Knows nothing of the process: the server sets ``changed`` and ``restart``.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokerd.links.state import LinkKey, LinkState


def _nothing() -> None:
    pass


def _has_ended(keys: "list[LinkKey]", go_on: Callable[[], object]) -> None:
    go_on()


def _no_restart(key: "LinkKey") -> bool:
    return False


class LinkBook:
    """``states`` has every link that the process runs, by key."""

    __slots__ = ("await_end", "changed", "restart", "secret", "states")

    def __init__(self) -> None:
        self.states: dict[LinkKey, LinkState] = {}
        self.secret = ""
        """What the process logs in with; "": there is no process."""
        self.changed: Callable[[], None] = _nothing
        """Parameters, policies, queues, exchanges or bindings have changed: links may have to begin or end."""
        self.await_end: Callable[[list[LinkKey], Callable[[], object]], object] = _has_ended
        """Call a function once these links, whose parameters have just gone or changed, move nothing more; after a few
        seconds in any case."""
        self.restart: Callable[[LinkKey], bool] = _no_restart
        """End a link and begin it anew; False: there is no such link."""

    def of_kind(self, *kinds: str) -> "list[LinkState]":
        """The states of links of these kinds."""
        return [state for state in self.states.values() if state.kind in kinds]
