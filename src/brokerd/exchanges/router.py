"""From an exchange through all exchanges bound to it, to the queues.

Knows nothing of publishers, permissions or vhosts.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from brokerd.exchanges.exchange import Exchange, Lazily


class Route(NamedTuple):
    """Where a message goes."""

    queues: tuple[Any, ...]  # each once, in the order they were first met
    cacheable: bool  # whatever is published with this key goes there too
    keepers: tuple[Exchange, ...]  # on the way: those whose keep() is to be called with the message


def route(
    exchange: Exchange,
    routing_key: str,
    properties: Lazily,
    *,
    further_keys: Sequence[str] = (),
    alternate: Callable[[Exchange], Exchange | None] | None = None,
) -> Route:
    """Follow a message from ``exchange`` on.

    ``further_keys`` are those of CC and BCC: each exchange that matches keys is asked for all.  ``alternate`` tells
    where an exchange sends what it has itself no destination for; as in RabbitMQ a destination that leads nowhere
    counts.  ``properties`` is called only by exchanges that read them.  Cycles are harmless: an exchange is
    visited once.
    """
    queues: dict[Any, None] = {}
    visited = {exchange: None}
    waiting = [exchange]
    cacheable = True
    keepers: tuple[Exchange, ...] = ()
    for visiting in waiting:  # grows as we walk
        found = visiting.destinations(routing_key, properties)
        if further_keys and visiting.matches_keys:
            found = list(found)
            for key in further_keys:
                found += visiting.destinations(key, properties)
        if not visiting.key_decides:
            cacheable = False
        if visiting.keeps_messages:
            keepers += (visiting,)
        if not found and alternate is not None:
            other = alternate(visiting)
            if other is not None:
                found = (other,)
        for destination in found:
            if not isinstance(destination, Exchange):
                queues[destination] = None
            elif destination not in visited:
                visited[destination] = None
                waiting.append(destination)
    return Route(tuple(queues), cacheable and not further_keys, keepers)
