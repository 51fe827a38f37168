"""The direct exchange: a message goes to the bindings with exactly its routing key."""

from collections.abc import Collection
from typing import Any, ClassVar

from brokerd.exchanges import destinations_of_key as of_key
from brokerd.exchanges.exchange import Binding, Exchange, LazyProperties


class DirectExchange(Exchange):
    """Routing key equals binding key (AMQP 0-9-1, 3.1.3.1)."""

    __slots__ = ("_by_key",)

    type: ClassVar[str] = "direct"
    matches_keys: ClassVar[bool] = True

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._by_key: dict[str, of_key.Destinations] = {}

    def destinations(self, routing_key: str, properties: LazyProperties) -> Collection[Any]:
        return of_key.list_once(self._by_key.get(routing_key))

    def _added(self, binding: Binding) -> None:
        key = binding.routing_key
        self._by_key[key] = of_key.add(self._by_key.get(key), binding.destination)

    def _removed(self, binding: Binding) -> None:
        key = binding.routing_key
        left = of_key.remove(self._by_key[key], binding.destination)
        if left is None:
            del self._by_key[key]
        else:
            self._by_key[key] = left
