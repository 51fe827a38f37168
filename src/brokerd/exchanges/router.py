"""The walk from an exchange, through all exchanges that are bound to it, to the queues.

Knows nothing of publishers, permissions or vhosts.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.exchanges.exchange import Exchange, LazyProperties

if TYPE_CHECKING:
    from brokerd.plane import Asked


class Route(NamedTuple):
    """Where a message goes."""

    queues: tuple[Any, ...]  # each once, in the order in which the walk first met them
    cacheable: bool  # every message with this routing key goes to the same queues
    with_history: tuple[Exchange, ...]  # the exchanges on the way that want the message in remember()
    # Every message with this routing key, and the same of what these ask of headers, goes there.  (): not so.
    by_headers: "tuple[Asked, ...]" = ()


def route(
    exchange: Exchange,
    routing_key: str,
    properties: LazyProperties,
    *,
    further_keys: Sequence[str] = (),
    alternate: Callable[[Exchange], Exchange | None] | None = None,
) -> Route:
    """Follow a message from ``exchange`` on.

    ``further_keys`` are those of CC and BCC: the walk asks each exchange that matches keys for all of them.
    ``alternate`` returns the exchange that gets a message for which an exchange has no destination; as in RabbitMQ, a
    destination that leads nowhere is a destination.  Only exchanges that read the properties call ``properties``.
    Cycles are harmless, because the walk visits an exchange once.
    """
    queues: dict[Any, None] = {}
    visited = {exchange: None}
    waiting = [exchange]
    cacheable = True
    with_history: tuple[Exchange, ...] = ()
    asked: tuple[Asked, ...] = ()
    headers_decide = not further_keys
    keys = tuple(dict.fromkeys((routing_key, *further_keys))) if further_keys else ()
    for visiting in waiting:  # the list grows during the walk
        if further_keys and visiting.matches_keys:
            found = visiting.destinations_of_keys(keys, properties)
        else:
            found = visiting.destinations(routing_key, properties)
        if not visiting.key_decides:
            cacheable = False
            if visiting.asked is not None:
                asked += (visiting.asked,)
            else:
                headers_decide = False
        if visiting.has_history:
            with_history += (visiting,)
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
    return Route(tuple(queues), cacheable and not further_keys, with_history, asked if headers_decide else ())
