"""The modulus hash exchange: the routing key's hash, modulo the number of destinations, picks one.

Destinations stand in the order of their names (queues before exchanges), so the answer is the same after a restart.
A destination that comes or goes moves most keys.  The exchange does not read binding keys.  It is RabbitMQ's
x-modulus-hash with another hash.
"""

from collections.abc import Collection
from typing import Any, ClassVar
from zlib import crc32

from brokerd.exchanges import destinations_of_key as of_key
from brokerd.exchanges.exchange import Binding, Exchange, LazyProperties


class ModulusHashExchange(Exchange):
    """Each routing key goes to one destination."""

    __slots__ = ("_bound", "_sorted")

    type: ClassVar[str] = "x-modulus-hash"

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._bound: of_key.Destinations = None
        self._sorted: list[Any] = []  # empty after a change of bindings: the next message sorts anew

    def destinations(self, routing_key: str, properties: LazyProperties) -> Collection[Any]:
        if self._bound is None:
            return ()
        if not self._sorted:
            bound = of_key.list_once(self._bound)
            self._sorted = sorted(bound, key=lambda each: (isinstance(each, Exchange), each.name))
        return (self._sorted[crc32(routing_key.encode("utf-8", "surrogateescape")) % len(self._sorted)],)

    def _added(self, binding: Binding) -> None:
        self._bound = of_key.add(self._bound, binding.destination)
        self._sorted = []

    def _removed(self, binding: Binding) -> None:
        self._bound = of_key.remove(self._bound, binding.destination)
        self._sorted = []
