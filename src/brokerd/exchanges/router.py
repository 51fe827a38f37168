"""From an exchange through all exchanges bound to it, to the queues.

Knows nothing of publishers, permissions or what is done when nobody gets the message.
"""

from collections.abc import Callable
from typing import Any

from brokerd.exchanges.exchange import Exchange


def route(exchange: Exchange, routing_key: str, headers: Callable[[], dict | None]) -> tuple[tuple[Any, ...], bool]:
    """The queues a message goes to, each once, in the order they were first met; and whether that may be remembered.

    ``headers`` is called at most once, and only when an exchange on the way reads them; such
    an answer is for this message only.  Cycles are harmless: an exchange is visited once.
    """
    queues: dict[Any, None] = {}
    visited = {exchange: None}
    waiting = [exchange]
    table: dict | None = None
    cacheable = True
    for visiting in waiting:  # grows as we walk
        if visiting.reads_headers and cacheable:
            cacheable = False
            table = headers()
        for destination in visiting.destinations(routing_key, table):
            if not isinstance(destination, Exchange):
                queues[destination] = None
            elif destination not in visited:
                visited[destination] = None
                waiting.append(destination)
    return tuple(queues), cacheable
