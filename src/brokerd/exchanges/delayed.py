"""The delayed exchange: messages with a delay wait elsewhere first; all others are routed as by the inner type.

Types ``x-delayed-message`` (the RabbitMQ plugin's) and ``x-delayed-exchange`` (LavinMQ) name the inner type in the
argument ``x-delayed-type``.  With the argument ``x-delayed-exchange: true`` any exchange delays and keeps its own type
(LavinMQ); its class is then ``delayed_class(cls)``.  A publisher asks for a delay with one of these headers::

    x-delay         milliseconds: any whole number, a decimal string, or a fraction that is cut off
    x-deliver-at    when: milliseconds since the epoch, a timestamp, or an ISO 8601 text (UTC where it names no zone)

If a message has both, x-deliver-at decides.  The exchange does not delay a message that is due now or in the past, nor
one with an x-delay that is not a number (as the plugin).  It delays only messages that are published or dead-lettered
to it directly, and not those that come by a binding from another exchange.

Knows nothing of where messages wait: that is for the ``holder``, which vhost/delays sets.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from brokerd import plane
from brokerd.errors import PreconditionFailed
from brokerd.exchanges.arguments import inner_type
from brokerd.exchanges.exchange import Binding, Exchange, Intercepted, Intercepting, LazyProperties
from brokerd.wire.values import Timestamp, encode_table

if TYPE_CHECKING:
    from brokerd.plane import Message

DELAY, DELIVER_AT = "x-delay", "x-deliver-at"
DUE_MS_MAX = (1 << 63) - 1
_HEADERS = Intercepting((DELAY, DELIVER_AT), plane.Asked())
_HEADERS.asked.add(encode_table(dict.fromkeys(_HEADERS.names)))


class Holder(Protocol):
    """The keeper of delayed messages."""

    def hold(self, exchange: "DelayedExchange", routing_key: str, properties: LazyProperties) -> Intercepted | None:
        """Where the message waits; None for a message without a delay.  Raises AMQPError."""


class DelayedExchange(Exchange):
    """An exchange of the inner type that can hold messages back before it routes them."""

    __slots__ = ("_inner", "holder")

    type: ClassVar[str] = "x-delayed-message"
    inner: ClassVar[Callable[..., Exchange] | None] = None  # None: the arguments name the inner type
    intercepts = _HEADERS

    def __init__(self, name: str, **properties: Any) -> None:
        """Raises PreconditionFailed (406) unless ``x-delayed-type`` names a type that does not delay itself."""
        super().__init__(name, **properties)
        inner = self.inner or inner_type(self.arguments)
        self._inner = inner(name, arguments=self.arguments)
        self.holder: Holder | None = None  # vhost/delays sets it

    @property
    def key_decides(self) -> bool:  # type: ignore[override]
        """As the inner type: its bindings route messages that are not delayed, or are due."""
        return self._inner.key_decides

    @property
    def asked(self) -> "plane.Asked | None":  # type: ignore[override]
        """As the inner type."""
        return self._inner.asked

    @property
    def matches_keys(self) -> bool:  # type: ignore[override]
        """As the inner type."""
        return self._inner.matches_keys

    @property
    def has_history(self) -> bool:  # type: ignore[override]
        """As the inner type."""
        return self._inner.has_history

    def intercept(self, routing_key: str, properties: LazyProperties) -> Intercepted | None:
        return None if self.holder is None else self.holder.hold(self, routing_key, properties)

    def destinations(self, routing_key: str, properties: LazyProperties) -> Collection[Any]:
        return self._inner.destinations(routing_key, properties)

    def destinations_of_keys(self, keys: Sequence[str], properties: LazyProperties) -> Collection[Any]:
        return self._inner.destinations_of_keys(keys, properties)

    def remember(self, message: "Message") -> None:
        self._inner.remember(message)

    def follow(self) -> "deque[Message]":
        return self._inner.follow()

    def unfollow(self, messages: "deque[Message]") -> None:
        self._inner.unfollow(messages)

    def check_binding(self, routing_key: str, arguments: dict) -> None:
        self._inner.check_binding(routing_key, arguments)

    def _added(self, binding: Binding) -> None:
        self._inner._added(binding)

    def _removed(self, binding: Binding) -> None:
        self._inner._removed(binding)


class DelayedExchangeByItsOtherName(DelayedExchange):
    """The delayed exchange under LavinMQ's type name."""

    __slots__ = ()

    type: ClassVar[str] = "x-delayed-exchange"


@cache
def delayed_class(cls: type[Exchange]) -> type[Exchange]:
    """The class for exchanges of type ``cls`` with the argument ``x-delayed-exchange: true``."""
    if issubclass(cls, DelayedExchange):
        return cls
    return type(f"Delayed{cls.__name__}", (DelayedExchange,), {"__slots__": (), "type": cls.type, "inner": cls})


# --- when


def due_of(headers: dict[str, Any] | None, now_ms: int) -> int | None:
    """When a message published at ``now_ms`` is due (ms since the epoch); None: at once.

    Raises PreconditionFailed for an x-deliver-at that is not a time.
    """
    if not headers:
        return None
    due = time_of(headers[DELIVER_AT]) if headers.get(DELIVER_AT) is not None else now_ms + (delay_of(headers) or 0)
    return min(due, DUE_MS_MAX) if due > now_ms else None


def delay_of(headers: dict[str, Any]) -> int | None:
    """The milliseconds in x-delay, which may be negative; None if it does not hold a number."""
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
    """The time in x-deliver-at, in milliseconds since the epoch.  Raises PreconditionFailed."""
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
