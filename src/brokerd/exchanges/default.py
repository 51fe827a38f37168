"""The default exchange, named "": every queue is bound to it by its own name, and nothing else can be."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, NoReturn

from brokerd.errors import AccessRefused
from brokerd.exchanges.exchange import Exchange, Lazily


class DefaultExchange(Exchange):
    """Routes to the queue of that name.  The bindings are implied: they are neither kept nor listed here."""

    __slots__ = ("_find",)

    type: ClassVar[str] = "direct"
    matches_keys: ClassVar[bool] = True

    def __init__(self, queues: Callable[[str], Any | None] | Mapping[str, Any], **properties: Any) -> None:
        """``queues`` finds a queue by its name, or None."""
        properties.setdefault("durable", True)
        super().__init__("", **properties)
        self._find = queues if callable(queues) else queues.get

    def destinations(self, routing_key: str, properties: Lazily) -> Collection[Any]:
        queue = self._find(routing_key)
        return () if queue is None else (queue,)

    def bind(self, destination: Any, routing_key: str, arguments: dict | None = None) -> NoReturn:
        """Raises AccessRefused, always (RabbitMQ)."""
        raise AccessRefused("operation not permitted on the default exchange")

    def unbind(self, destination: Any, routing_key: str, arguments: dict | None = None) -> NoReturn:
        """Raises AccessRefused, always (RabbitMQ)."""
        raise AccessRefused("operation not permitted on the default exchange")
