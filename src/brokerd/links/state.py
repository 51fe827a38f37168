"""The state of one link in the peers' words, the reason, and its counters.

The process of links reports states as JSON lines; the broker keeps the last of each link (``book``).  An address in a
state never has its password.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, Self

# kinds
SHOVEL, QUEUE_LINK, EXCHANGE_LINK = "shovel", "queue", "exchange"
# states
STARTING = "starting"  # it connects, or will again at ``next_try``
RUNNING = "running"
BLOCKED = "blocked"  # the destination takes nothing: an alarm, a refused message that is tried again
PAUSED = "paused"
IDLE = "idle"  # a queue's link without consumers here, or with messages that are ready here
TERMINATED = "terminated"  # it has failed, or has done its work, and is not tried again
STATES = (STARTING, RUNNING, BLOCKED, PAUSED, IDLE, TERMINATED)


class LinkKey(NamedTuple):
    """The key of a link.  ``name``: of the shovel, or of the federated queue or exchange; ``upstream``: "" for a
    shovel."""

    kind: str
    vhost: str
    name: str
    upstream: str = ""


@dataclass(slots=True)
class LinkState:
    """One link.  Times are seconds since 1970, 0 if there is none."""

    kind: str
    vhost: str
    name: str
    upstream: str = ""
    state: str = STARTING
    reason: str = ""  # why it does not run, in words
    next_try: float = 0.0
    since: float = 0.0  # since when it has this state
    source_uri: str = ""  # which it is connected to, or tried last, without password
    dest_uri: str = ""
    source: str = ""  # the queue or exchange at the other end
    dest: str = ""
    consumer_tag: str = ""
    messages: int = 0  # that have arrived
    rate: float = 0.0  # of those, a second
    unconfirmed: int = 0  # sent, and not yet confirmed
    retried: int = 0  # that the destination refused, and that were sent again
    rejected: int = 0  # that were given up, and left to the source's dead-letter rules
    reconnects: int = 0
    last_message: float = 0.0
    lag: int = 0  # messages that wait at the source, as last told

    @property
    def key(self) -> LinkKey:
        """Its key."""
        return LinkKey(self.kind, self.vhost, self.name, self.upstream)

    def as_row(self) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        return asdict(self)

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        """Read what ``as_row`` wrote; keys that are not known are left out."""
        names = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in row.items() if name in names})
