"""The default exchange, named "": each queue is bound to it under the queue's own name; no other binding is allowed."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, NoReturn

from brokerd.errors import AccessRefused
from brokerd.exchanges.exchange import Exchange, LazyProperties


class DefaultExchange(Exchange):
    """Routes to the queue that the routing key names.  Its bindings are implied: no index holds them."""

    __slots__ = ("_find",)

    type: ClassVar[str] = "direct"
    matches_keys: ClassVar[bool] = True

    def __init__(self, queues: Callable[[str], Any | None] | Mapping[str, Any], **properties: Any) -> None:
        """``queues`` returns the queue of a name, or None."""
        properties.setdefault("durable", True)
        super().__init__("", **properties)
        self._find = queues if callable(queues) else queues.get

    def destinations(self, routing_key: str, properties: LazyProperties) -> Collection[Any]:
        queue = self._find(routing_key)
        return () if queue is None else (queue,)

    def bind(self, destination: Any, routing_key: str, arguments: dict | None = None) -> NoReturn:
        """Raises AccessRefused, always (RabbitMQ)."""
        raise AccessRefused("operation not permitted on the default exchange")

    def unbind(self, destination: Any, routing_key: str, arguments: dict | None = None) -> NoReturn:
        """Raises AccessRefused, always (RabbitMQ)."""
        raise AccessRefused("operation not permitted on the default exchange")
