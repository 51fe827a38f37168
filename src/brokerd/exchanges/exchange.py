"""Exchange and Binding: what all exchange types share.

An exchange keeps its bindings in one dict, ``(destination, routing key[, arguments]) -> Binding``, and beside it the
index that its type needs.  A destination is an Exchange or any hashable object with ``bindings``, which is an empty
list at first.  bind and unbind keep it current, so that deleting a destination need not search every exchange.

Knows nothing of sockets, permissions, durability or the names of other exchanges.
"""

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from brokerd.exchanges.comparable import comparable
from brokerd.policies import NONE_APPLY, Effective

if TYPE_CHECKING:
    from brokerd.plane import Asked, HeaderBindings, Message, Tally
    from brokerd.wire.properties import Properties

LazyProperties = Callable[[], "Properties"]  # returns the message's properties, which its first call decodes

# The bindings that lead to one destination, oldest first.  Few stand in a list, which is small.  Many stand in the keys
# of a dict: of half a million, any one goes at once.
Incoming = list["Binding"] | dict["Binding", None]
IN_A_LIST_MOST = 64


class Intercepted(NamedTuple):
    """Where a message goes that an exchange takes for itself instead of routing it."""

    queues: tuple[Any, ...] = ()
    properties: bytes | None = None  # the queues store these in place of the message's own; None: its own


class Intercepting(NamedTuple):
    """The headers without which an exchange takes no message for itself: their names, and the same as routes ask."""

    names: tuple[str, ...]
    asked: "Asked"


class Binding:
    """One way out of an exchange.  One exchange never has two equal bindings, so they are compared by identity."""

    __slots__ = ("_arguments", "destination", "routing_key", "source")

    def __init__(self, source: "Exchange", destination: Any, routing_key: str, arguments: dict | None = None) -> None:
        self.source = source
        self.destination = destination
        self.routing_key = routing_key
        self._arguments = arguments or None  # Most bindings have no arguments: None saves them an empty dict.

    @property
    def arguments(self) -> dict:
        """The binding's arguments, which the caller must not change."""
        return self._arguments or {}

    @property
    def properties_key(self) -> str:
        """The name that tells this binding from the others between its two ends, in URLs of the management API.

        As in RabbitMQ: ``~`` for a binding without key and arguments, else the quoted routing key, and after it ``~``
        and a hash of the arguments if the binding has arguments.  RabbitMQ hashes an Erlang term; our hash has the
        same form (32 bits, base64url) and another value.
        """
        from urllib.parse import quote_plus  # only the management API asks

        if not self._arguments:
            return quote_plus(self.routing_key).replace("~", "%7E") or "~"
        return f"{quote_plus(self.routing_key).replace('~', '%7E')}~{_arguments_hash(self._arguments)}"

    def __repr__(self) -> str:
        return f"<Binding {self.source.name!r} {self.routing_key!r} {self.destination!r} {self.arguments!r}>"


class Exchange:
    """The place that messages are published to.

    A type overrides ``destinations``, and keeps its index current in ``_added`` and ``_removed``.
    """

    __slots__ = (
        "_bindings", "arguments", "auto_delete", "bindings_to", "durable", "effective", "internal", "name", "tally",
    )  # fmt: skip

    type: ClassVar[str]
    matches_keys: ClassVar[bool] = False  # True: the walk asks for each of a message's routing keys (CC, BCC)
    has_history: ClassVar[bool] = False  # True: remember() gets every message that the exchange routes
    # These belong to one exchange and not to its type, because an argument may change them.
    key_decides: bool = True  # False: the answer depends on more than the routing key, so it must not be cached
    asked: "Asked | None" = None  # the answer depends on what these ask of the headers, and on no more
    decides: "HeaderBindings | None" = None  # the data plane may read in these tables where a message goes
    intercepts: "Intercepting | None" = None  # intercept() is called before a message is routed; None: it is not

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
        self.effective: Effective = NONE_APPLY  # the policies in force
        self.bindings_to: Incoming = []  # from other exchanges to this one
        self._bindings: dict[tuple[Hashable, ...], Binding] = {}

    # --- the verbs

    def bind(self, destination: Any, routing_key: str, arguments: dict | None = None) -> Binding | None:
        """Add a binding; None if an equal one exists, which is not an error (AMQP 0-9-1, queue.bind).

        Raises PreconditionFailed if this type of exchange cannot use the key or the arguments.
        """
        self.check_binding(routing_key, arguments or {})
        key = _key(destination, routing_key, arguments)
        if key in self._bindings:
            return None
        binding = self._bindings[key] = Binding(self, destination, routing_key, arguments)
        self._added(binding)
        _arrive(binding)
        return binding

    def unbind(self, destination: Any, routing_key: str, arguments: dict | None = None) -> Binding | None:
        """Remove the binding with this key and these arguments; None if it does not exist, which is not an error
        (RabbitMQ)."""
        binding = self._bindings.pop(_key(destination, routing_key, arguments), None)
        if binding is not None:
            self._removed(binding)
            _leave(binding)
        return binding

    def unbind_all(self, destination: Any) -> list[Binding]:
        """Remove every binding to ``destination``, in time that grows with the destination's bindings alone."""
        incoming = _bindings_of(destination)
        removed = [binding for binding in incoming if binding.source is self]
        for binding in removed:
            del self._bindings[_key(destination, binding.routing_key, binding._arguments)]
            self._removed(binding)
        if len(removed) == len(incoming):
            incoming.clear()
        else:
            for binding in removed:
                _leave(binding)
        return removed

    def unbind_everything(self) -> list[Binding]:
        """Remove every binding that leaves this exchange, for its deletion; bindings to it belong to their sources."""
        removed = list(self._bindings.values())
        for _ in self.unbind_everything_in_pieces():
            pass
        return removed

    def unbind_everything_in_pieces(self) -> Iterator[None]:
        """The same for an exchange that nothing leads to any more.  At each yield others may have a turn."""
        while self._bindings:
            _, binding = self._bindings.popitem()
            self._removed(binding)
            _leave(binding)
            yield

    # --- inspection

    def bindings(self) -> Iterator[Binding]:
        """The bindings that leave this exchange, oldest first."""
        return iter(self._bindings.values())

    def has_binding(self, destination: Any, routing_key: str, arguments: dict | None = None) -> bool:
        """Whether there is a binding with this key and these arguments."""
        return _key(destination, routing_key, arguments) in self._bindings

    @property
    def binding_count(self) -> int:
        """How many bindings leave this exchange."""
        return len(self._bindings)

    # --- for the types

    def destinations(self, routing_key: str, properties: LazyProperties) -> Collection[Any]:
        """Where a message goes; a destination may stand there more than once.

        The answer may be a part of the index: the caller must use it before the next change of a binding.
        """
        raise NotImplementedError

    def destinations_of_keys(self, keys: Sequence[str], properties: LazyProperties) -> Collection[Any]:
        """Where a message with several routing keys goes (CC, BCC), each of them different: every destination once.

        Asked only where ``matches_keys``.  Different keys may lead to the same thousands of destinations.  A type where
        that is possible asks for them once.
        """
        found: dict[Any, None] = {}
        for key in keys:
            found.update(dict.fromkeys(self.destinations(key, properties)))
        return found

    def intercept(self, routing_key: str, properties: LazyProperties) -> Intercepted | None:
        """The answer for a message published to this very exchange that is not routed; None: it is routed.

        Without a queue it is dropped.  Asked only while ``intercepts`` is set; raises AMQPError.
        """
        return None

    def remember(self, message: "Message") -> None:
        """Take a message, as it was published, after it was routed; called only where ``has_history``."""

    def follow(self) -> "deque[Message]":
        """The messages that a destination gets before it is bound, oldest first.  Until ``unfollow`` those that are
        routed meanwhile come behind them.  Called only where ``has_history``."""
        raise NotImplementedError

    def unfollow(self, messages: "deque[Message]") -> None:
        """Add no more to what ``follow`` returned."""
        raise NotImplementedError

    def check_binding(self, routing_key: str, arguments: dict) -> None:
        """Raise PreconditionFailed if this type cannot have a binding with this key and these arguments."""

    def _added(self, binding: Binding) -> None:
        """Enter a new binding into the type's index."""

    def _removed(self, binding: Binding) -> None:
        """Take a binding out of the type's index, which contains it."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def unbind_newest(destination: Any) -> Binding:
    """Remove the binding to ``destination`` that was made last, of those of all exchanges.  There must be one."""
    incoming = _bindings_of(destination)
    binding = incoming.popitem()[0] if isinstance(incoming, dict) else incoming.pop()
    source = binding.source
    del source._bindings[_key(destination, binding.routing_key, binding._arguments)]
    source._removed(binding)
    return binding


def _arrive(binding: Binding) -> None:
    """Let the destination know of the new binding."""
    destination = binding.destination
    incoming = _bindings_of(destination)
    if isinstance(incoming, dict):
        incoming[binding] = None
        return
    incoming.append(binding)
    if len(incoming) > IN_A_LIST_MOST:
        many = dict.fromkeys(incoming)
        if isinstance(destination, Exchange):
            destination.bindings_to = many
        else:
            destination.bindings = many


def _leave(binding: Binding) -> None:
    """Let the destination forget the binding."""
    incoming = _bindings_of(binding.destination)
    if isinstance(incoming, dict):
        del incoming[binding]
    else:
        incoming.remove(binding)


def _key(destination: Any, routing_key: str, arguments: dict | None) -> tuple[Hashable, ...]:
    if arguments:
        return (destination, routing_key, comparable(arguments))
    return (destination, routing_key)


def _bindings_of(destination: Any) -> Incoming:
    incoming: Incoming = destination.bindings_to if isinstance(destination, Exchange) else destination.bindings
    return incoming


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
