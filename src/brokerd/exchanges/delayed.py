"""The delayed exchange: what asks to be delivered later waits elsewhere first; the rest is routed as by its inner type.

Types ``x-delayed-message`` (the RabbitMQ plugin's) and ``x-delayed-exchange`` (LavinMQ) name the inner type in the
argument ``x-delayed-type``.  With the argument ``x-delayed-exchange: true`` any exchange delays and keeps its own type
(LavinMQ): ``delaying(cls)`` is its class then.  A message asks by one of these headers::

    x-delay         milliseconds: any whole number, a decimal string, or a fraction that is cut off
    x-deliver-at    when: milliseconds since the epoch, a timestamp, or an ISO 8601 text (UTC where it names no zone)

x-deliver-at counts where both are there.  What is not later than now is not delayed; nor is an x-delay that is no
number (the plugin).  Only what is published to this very exchange, or dead-lettered to it, is delayed: not what comes
by a binding from another exchange.

Knows nothing of where messages wait: that is the ``holder``, the door to vhost/delays.
"""

from collections.abc import Callable, Collection
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from brokerd.errors import PreconditionFailed
from brokerd.exchanges.arguments import inner_type
from brokerd.exchanges.exchange import Binding, Exchange, Intercepted, Lazily
from brokerd.wire.values import Timestamp

if TYPE_CHECKING:
    from brokerd.plane import Message

DELAY, DELIVER_AT = "x-delay", "x-deliver-at"
DUE_MS_MAX = (1 << 63) - 1


class Holder(Protocol):
    """Who keeps delayed messages."""

    def hold(self, exchange: "DelayedExchange", routing_key: str, properties: Lazily) -> Intercepted | None:
        """Where the message waits; None: it is not to be delayed.  Raises AMQPError."""


class DelayedExchange(Exchange):
    """An exchange of another type, with a waiting room in front."""

    __slots__ = ("_inner", "holder")

    type: ClassVar[str] = "x-delayed-message"
    inner: ClassVar[Callable[..., Exchange] | None] = None  # None: the arguments say
    intercepts = True
    key_decides = False

    def __init__(self, name: str, **properties: Any) -> None:
        """Raises PreconditionFailed (406) unless ``x-delayed-type`` is a type that can be delayed."""
        super().__init__(name, **properties)
        inner = self.inner or inner_type(self.arguments)
        self._inner = inner(name, arguments=self.arguments)
        self.holder: Holder | None = None  # set by whoever made it

    @property
    def matches_keys(self) -> bool:  # type: ignore[override]
        """As the inner type."""
        return self._inner.matches_keys

    @property
    def keeps_messages(self) -> bool:  # type: ignore[override]
        """As the inner type."""
        return self._inner.keeps_messages

    def intercept(self, routing_key: str, properties: Lazily) -> Intercepted | None:
        return None if self.holder is None else self.holder.hold(self, routing_key, properties)

    def destinations(self, routing_key: str, properties: Lazily) -> Collection[Any]:
        return self._inner.destinations(routing_key, properties)

    def keep(self, message: "Message") -> None:
        self._inner.keep(message)

    def kept(self) -> "Collection[Message]":
        return self._inner.kept()

    def check_binding(self, routing_key: str, arguments: dict) -> None:
        self._inner.check_binding(routing_key, arguments)

    def _added(self, binding: Binding) -> None:
        self._inner._added(binding)

    def _removed(self, binding: Binding) -> None:
        self._inner._removed(binding)


class DelayedExchangeByItsOtherName(DelayedExchange):
    """The same as LavinMQ calls it."""

    __slots__ = ()

    type: ClassVar[str] = "x-delayed-exchange"


@cache
def delaying(cls: type[Exchange]) -> type[Exchange]:
    """The class of exchanges of type ``cls`` that have the argument ``x-delayed-exchange: true``."""
    if issubclass(cls, DelayedExchange):
        return cls
    return type(f"Delayed{cls.__name__}", (DelayedExchange,), {"__slots__": (), "type": cls.type, "inner": cls})


# --- when


def due_of(headers: dict[str, Any] | None, now_ms: int) -> int | None:
    """When a message published at ``now_ms`` is due (ms since the epoch); None: at once.

    Raises PreconditionFailed for an x-deliver-at that is no time.
    """
    if not headers:
        return None
    due = time_of(headers[DELIVER_AT]) if headers.get(DELIVER_AT) is not None else now_ms + (delay_of(headers) or 0)
    return min(due, DUE_MS_MAX) if due > now_ms else None


def delay_of(headers: dict[str, Any]) -> int | None:
    """Milliseconds in x-delay, negative ones included; None where it holds no number."""
    value: Any = headers.get(DELAY)
    if isinstance(value, str):
        digits = value.lstrip("+-")
        if not (digits.isascii() and digits.isdigit() and len(value) - len(digits) < 2 and len(digits) < 20):
            return None
    elif isinstance(value, bool | Timestamp) or not hasattr(value, "__trunc__"):
        return None
    try:
        return max(-DUE_MS_MAX, min(int(value), DUE_MS_MAX))
    except (ValueError, OverflowError):  # not a number, infinity
        return None


def time_of(value: Any) -> int:
    """Milliseconds since the epoch in x-deliver-at.  Raises PreconditionFailed."""
    if isinstance(value, Timestamp):
        return value * 1000
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        from datetime import UTC, datetime  # Few publishers write dates.

        try:
            when = datetime.fromisoformat(value)
            if when.tzinfo is None:
                when = when.replace(tzinfo=UTC)
            return int(when.timestamp() * 1000)
        except (ValueError, OverflowError):
            pass
    raise PreconditionFailed(
        f"invalid header '{DELIVER_AT}': expected milliseconds since the epoch, a timestamp or an ISO 8601 time"
    )
