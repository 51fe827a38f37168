"""The fanout exchange: a message goes to everything that is bound."""

from collections.abc import Collection
from typing import Any, ClassVar

from brokerd.exchanges import held
from brokerd.exchanges.exchange import Binding, Exchange, Lazily


class FanoutExchange(Exchange):
    """The routing key is not read (AMQP 0-9-1, 3.1.3.2)."""

    __slots__ = ("_bound",)

    type: ClassVar[str] = "fanout"

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._bound: held.Held = None

    def destinations(self, routing_key: str, properties: Lazily) -> Collection[Any]:
        return held.each(self._bound)

    def _added(self, binding: Binding) -> None:
        self._bound = held.including(self._bound, binding.destination)

    def _removed(self, binding: Binding) -> None:
        self._bound = held.excluding(self._bound, binding.destination)
