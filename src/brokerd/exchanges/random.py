"""The random exchange: every message to one of its bindings, whichever.

Neither routing key nor binding key is read, and a destination bound twice is met twice as often (RabbitMQ).
"""

import os
from collections.abc import Collection
from typing import Any, ClassVar

from brokerd.exchanges.exchange import Binding, Exchange, Lazily


class RandomExchange(Exchange):
    """RabbitMQ's x-random."""

    __slots__ = ("_places", "_row")

    type: ClassVar[str] = "x-random"
    key_decides: bool = False

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._row: list[Binding] = []
        self._places: dict[Binding, int] = {}  # where in the row

    def destinations(self, routing_key: str, properties: Lazily) -> Collection[Any]:
        if not self._row:
            return ()
        return (self._row[int.from_bytes(os.urandom(8)) % len(self._row)].destination,)

    def _added(self, binding: Binding) -> None:
        self._places[binding] = len(self._row)
        self._row.append(binding)

    def _removed(self, binding: Binding) -> None:
        place, last = self._places.pop(binding), self._row.pop()
        if last is not binding:
            self._row[place] = last
            self._places[last] = place


class LocalRandomExchange(RandomExchange):
    """RabbitMQ's x-local-random: a queue of the node the publisher is at, and there is only one."""

    __slots__ = ()

    type: ClassVar[str] = "x-local-random"
