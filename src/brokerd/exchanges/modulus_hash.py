"""The modulus hash exchange: the routing key's hash, modulo the number of destinations, picks one.

Destinations stand in the order of their names (queues before exchanges), so the answer is the same after a
restart; one more or less moves most keys.  Binding keys are not read.  RabbitMQ's x-modulus-hash, with another hash.
"""

from collections.abc import Collection
from typing import Any, ClassVar
from zlib import crc32

from brokerd.exchanges import held
from brokerd.exchanges.exchange import Binding, Exchange, Lazily


class ModulusHashExchange(Exchange):
    """One destination a routing key."""

    __slots__ = ("_bound", "_sorted")

    type: ClassVar[str] = "x-modulus-hash"

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._bound: held.Held = None
        self._sorted: list[Any] = []  # empty: to be made anew

    def destinations(self, routing_key: str, properties: Lazily) -> Collection[Any]:
        if self._bound is None:
            return ()
        if not self._sorted:
            self._sorted = sorted(held.each(self._bound), key=lambda each: (isinstance(each, Exchange), each.name))
        return (self._sorted[crc32(routing_key.encode("utf-8", "surrogateescape")) % len(self._sorted)],)

    def _added(self, binding: Binding) -> None:
        self._bound = held.including(self._bound, binding.destination)
        self._sorted = []

    def _removed(self, binding: Binding) -> None:
        self._bound = held.excluding(self._bound, binding.destination)
        self._sorted = []
