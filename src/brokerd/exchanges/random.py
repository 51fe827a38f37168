"""The random exchange: each message goes to one of its bindings, picked at random.

The exchange reads neither routing key nor binding key.  A destination that is bound twice gets twice as many messages
(RabbitMQ).
"""

import os
from collections.abc import Collection
from typing import Any, ClassVar

from brokerd.exchanges.exchange import Binding, Exchange, LazyProperties


class RandomExchange(Exchange):
    """RabbitMQ's x-random."""

    __slots__ = ("_places", "_row")

    type: ClassVar[str] = "x-random"
    key_decides: bool = False

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._row: list[Binding] = []
        self._places: dict[Binding, int] = {}  # binding -> its index in the row

    def destinations(self, routing_key: str, properties: LazyProperties) -> Collection[Any]:
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
    """RabbitMQ's x-local-random, which prefers queues on the publisher's node; brokerd has only one node."""

    __slots__ = ()

    type: ClassVar[str] = "x-local-random"
