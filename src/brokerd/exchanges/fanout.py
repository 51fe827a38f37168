"""The fanout exchange: a message goes to everything that is bound."""

from collections.abc import Collection
from typing import Any, ClassVar

from brokerd.exchanges import destinations_of_key as of_key
from brokerd.exchanges.exchange import Binding, Exchange, LazyProperties


class FanoutExchange(Exchange):
    """The routing key is not read (AMQP 0-9-1, 3.1.3.2)."""

    __slots__ = ("_bound",)

    type: ClassVar[str] = "fanout"

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._bound: of_key.Destinations = None

    def destinations(self, routing_key: str, properties: LazyProperties) -> Collection[Any]:
        return of_key.list_once(self._bound)

    def _added(self, binding: Binding) -> None:
        self._bound = of_key.add(self._bound, binding.destination)

    def _removed(self, binding: Binding) -> None:
        self._bound = of_key.remove(self._bound, binding.destination)
