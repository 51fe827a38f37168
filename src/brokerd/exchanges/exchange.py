"""Exchange and Binding: what all exchange types share.

An exchange keeps its bindings in one dict, ``(destination, routing key[, arguments]) -> Binding``,
and whatever index its type needs beside it.  A destination is an Exchange or any
hashable object with a ``bindings`` collection (list or set), which bind and unbind
keep current, so that whoever deletes it need not search every exchange.

Knows nothing of sockets, permissions, durability or the names of other exchanges.
"""

from collections.abc import Callable, Collection, Hashable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from brokerd.exchanges.comparable import comparable

if TYPE_CHECKING:
    from brokerd.plane import Message, Participant, Tally
    from brokerd.wire.properties import Properties

Lazily = Callable[[], "Properties"]  # the message's properties, decoded when first asked for


class Intercepted(NamedTuple):
    """What becomes of a message that an exchange does not route."""

    queues: tuple[Any, ...] = ()
    participants: "tuple[Participant, ...]" = ()  # who is told when it is stored
    properties: bytes | None = None  # stored in place of its own; None: its own are


class Binding:
    """One way out of an exchange.  Equal ones cannot exist in one exchange; identity is enough."""

    __slots__ = ("_arguments", "destination", "routing_key", "source")

    def __init__(self, source: "Exchange", destination: Any, routing_key: str, arguments: dict | None = None) -> None:
        self.source = source
        self.destination = destination
        self.routing_key = routing_key
        self._arguments = arguments or None  # Most have none: not even an empty dict is kept.

    @property
    def arguments(self) -> dict:
        """The binding's arguments; not to be changed."""
        return self._arguments or {}

    @property
    def properties_key(self) -> str:
        """The name of this binding among all between its two ends, in URLs of the management API.

        As RabbitMQ's: ``~`` for no key and no arguments, else the quoted routing key,
        then ``~`` and a hash of the arguments if there are any.  RabbitMQ's hash is that
        of an Erlang term; ours has the same form (32 bits, base64url), not the same value.
        """
        from urllib.parse import quote_plus  # only the management API asks

        if not self._arguments:
            return quote_plus(self.routing_key).replace("~", "%7E") or "~"
        return f"{quote_plus(self.routing_key).replace('~', '%7E')}~{_arguments_hash(self._arguments)}"

    def __repr__(self) -> str:
        return f"<Binding {self.source.name!r} {self.routing_key!r} {self.destination!r} {self.arguments!r}>"


class Exchange:
    """Where messages come in.  A type overrides ``destinations`` and keeps its index in ``_added`` and ``_removed``."""

    __slots__ = ("_bindings", "arguments", "auto_delete", "bindings_to", "durable", "internal", "name", "tally")

    type: ClassVar[str]
    matches_keys: ClassVar[bool] = False  # asked for each of a message's routing keys, not for the first alone
    keeps_messages: ClassVar[bool] = False  # wants every message that comes by: see keep()
    # Of one exchange, not of a type: an argument may change them.
    key_decides: bool = True  # False: the answer depends on more than the routing key, and is not to be remembered
    intercepts: bool = False  # True: intercept() is asked before anything is routed

    def __init__(
        self,
        name: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict | None = None,
        tally: "Tally | None" = None,
    ) -> None:
        self.name = name
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments or {}
        self.tally = tally
        self.bindings_to: list[Binding] = []  # whose destination is this exchange
        self._bindings: dict[tuple[Hashable, ...], Binding] = {}

    # --- the verbs

    def bind(self, destination: Any, routing_key: str, arguments: dict | None = None) -> Binding | None:
        """Add a binding; None if an equal one is there already, which is no fault (AMQP 0-9-1, queue.bind).

        Raises PreconditionFailed when key or arguments mean nothing to this type of exchange.
        """
        self.check_binding(routing_key, arguments or {})
        key = _key(destination, routing_key, arguments)
        if key in self._bindings:
            return None
        binding = self._bindings[key] = Binding(self, destination, routing_key, arguments)
        self._added(binding)
        held = _bindings_of(destination)
        held.append(binding) if type(held) is list else held.add(binding)
        return binding

    def unbind(self, destination: Any, routing_key: str, arguments: dict | None = None) -> Binding | None:
        """Remove the binding equal to this; None if there is none, which is no fault (RabbitMQ)."""
        binding = self._bindings.pop(_key(destination, routing_key, arguments), None)
        if binding is not None:
            self._removed(binding)
            _bindings_of(destination).remove(binding)
        return binding

    def unbind_all(self, destination: Any) -> list[Binding]:
        """Remove every binding to ``destination``; costs what the destination has, not what the exchange has."""
        held = _bindings_of(destination)
        removed = [binding for binding in held if binding.source is self]
        if not removed:
            return removed
        for binding in removed:
            del self._bindings[_key(destination, binding.routing_key, binding._arguments)]
            self._removed(binding)
        kept = [binding for binding in held if binding.source is not self]
        held.clear()
        held.extend(kept) if type(held) is list else held.update(kept)
        return removed

    def unbind_everything(self) -> list[Binding]:
        """Remove every binding that leaves this exchange, as when it is deleted; those to it are their sources'."""
        removed = list(self._bindings.values())
        for destination in dict.fromkeys(binding.destination for binding in removed):
            self.unbind_all(destination)
        return removed

    # --- inspection

    def bindings(self) -> Iterator[Binding]:
        """The bindings that leave this exchange, oldest first."""
        return iter(self._bindings.values())

    @property
    def binding_count(self) -> int:
        """How many bindings leave this exchange."""
        return len(self._bindings)

    # --- for the types

    def destinations(self, routing_key: str, properties: Lazily) -> Collection[Any]:
        """Where a message goes; a destination may come more than once.  Use it before the next change of a binding."""
        raise NotImplementedError

    def intercept(self, routing_key: str, properties: Lazily) -> Intercepted | None:
        """What becomes of a message published to this very exchange, instead of being routed; None: it is routed.

        Without a queue and a participant it is dropped.  Asked for every message while ``intercepts``; raises
        AMQPError.
        """
        return None

    def keep(self, message: "Message") -> None:
        """A message that came by, as it was published, after it was routed; called while ``keeps_messages``."""

    def kept(self) -> "Collection[Message]":
        """The messages that whoever is newly bound is to get, oldest first."""
        return ()

    def check_binding(self, routing_key: str, arguments: dict) -> None:
        """Raise PreconditionFailed if such a binding of this type cannot be."""

    def _added(self, binding: Binding) -> None:
        """Enter a new binding into the type's index."""

    def _removed(self, binding: Binding) -> None:
        """Take a binding, which is there, out of the type's index."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def _key(destination: Any, routing_key: str, arguments: dict | None) -> tuple[Hashable, ...]:
    if arguments:
        return (destination, routing_key, comparable(arguments))
    return (destination, routing_key)


def _bindings_of(destination: Any) -> Any:
    return destination.bindings_to if isinstance(destination, Exchange) else destination.bindings


def _arguments_hash(arguments: dict) -> str:
    """Six letters that stand for the arguments, the same after a restart and in any order of keys."""
    from base64 import urlsafe_b64encode
    from zlib import crc32

    canonical = repr(_sorted(arguments)).encode(errors="surrogatepass")
    return urlsafe_b64encode(crc32(canonical).to_bytes(4, "big")).decode().rstrip("=")


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, _sorted(value[key])) for key in sorted(value)]
    if isinstance(value, list):
        return list(map(_sorted, value))
    return value
