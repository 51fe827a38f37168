"""The headers exchange: a message goes where its header table agrees with the binding's arguments.

x-match (RabbitMQ): ``all`` (the default) or ``any`` of the arguments must agree, those
that begin with ``x-`` not counted; ``all-with-x`` and ``any-with-x`` count these too,
x-match itself never.  An argument without a value (void) asks only that the header is there.
``all`` of none is every message, ``any`` of none is no message.

What an argument asks is a *condition*: the header's name alone, or (name, value).  Each
binding waits under conditions: one of ``any`` under each of its own, one of ``all`` under
that which fewest wait under, with the rest to be checked.  A message looks only at what waits
under its own headers.  (Remembering answers by header table was weighed and left out: to
look a table up takes most of the work that the lookup itself is.)
"""

from collections.abc import Hashable, Iterable
from typing import Any, ClassVar

from brokerd.errors import PreconditionFailed
from brokerd.exchanges.comparable import comparable
from brokerd.exchanges.exchange import Binding, Exchange

X_MATCH = ("all", "any", "all-with-x", "any-with-x")

_NOTHING: frozenset[Hashable] = frozenset()


class HeadersExchange(Exchange):
    """The routing key is not read (AMQP 0-9-1, 3.1.3.4)."""

    __slots__ = ("_always", "_waiting")

    type: ClassVar[str] = "headers"
    reads_headers: ClassVar[bool] = True

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._always: dict[Binding, None] = {}
        # condition -> binding -> the conditions that must hold besides
        self._waiting: dict[Hashable, dict[Binding, frozenset[Hashable]]] = {}

    def destinations(self, routing_key: str, headers: dict | None) -> Iterable[Any]:
        found = [binding.destination for binding in self._always]
        if not headers or not self._waiting:
            return found
        met: dict[Hashable, None] = {}
        for name, value in headers.items():
            met[name] = None
            met[name, comparable(value)] = None
        for condition in met:
            for binding, rest in self._waiting.get(condition, _NO_BINDINGS).items():
                if not rest or rest <= met.keys():
                    found.append(binding.destination)
        return found

    def check_arguments(self, arguments: dict) -> None:
        """Raise PreconditionFailed if x-match is none of the four (RabbitMQ's texts)."""
        if "x-match" not in arguments:
            return
        match = arguments["x-match"]
        if not isinstance(match, str | bytes):
            raise PreconditionFailed(
                f"Invalid x-match field type {_field_type(match)} (value {_term(match)}); expected longstr"
            )
        if match not in X_MATCH:
            raise PreconditionFailed(
                f"Invalid x-match field value {_term(match)}; expected all, any, all-with-x, or any-with-x"
            )

    def _added(self, binding: Binding) -> None:
        match_all, conditions = _conditions(binding.arguments)
        if not match_all:
            for condition in conditions:
                self._waiting.setdefault(condition, {})[binding] = _NOTHING
        elif not conditions:
            self._always[binding] = None
        else:
            anchor = min(conditions, key=lambda condition: len(self._waiting.get(condition, _NO_BINDINGS)))
            self._waiting.setdefault(anchor, {})[binding] = frozenset(conditions) - {anchor}

    def _removed(self, binding: Binding) -> None:
        self._always.pop(binding, None)
        for condition in _conditions(binding.arguments)[1]:
            waiting = self._waiting.get(condition)
            if waiting is not None and waiting.pop(binding, None) is not None and not waiting:
                del self._waiting[condition]


_NO_BINDINGS: dict[Binding, frozenset[Hashable]] = {}


def _conditions(arguments: dict) -> tuple[bool, list[Hashable]]:
    """Whether all must hold, and what the arguments ask of a message."""
    match = arguments.get("x-match", "all")
    with_x = match in ("all-with-x", "any-with-x")
    conditions = [
        name if value is None else (name, comparable(value))
        for name, value in arguments.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    ]
    return match in ("all", "all-with-x"), conditions


def _field_type(value: Any) -> str:
    """RabbitMQ's name of the field type that ``value`` came as, as far as the value tells."""
    names = {bool: "bool", float: "double", list: "array", dict: "table", type(None): "void"}
    if type(value) is int:
        return "signedint" if -(1 << 31) <= value < 1 << 31 else "long"
    return names.get(type(value), type(value).__name__.lower())


def _term(value: Any) -> str:
    """``value`` as Erlang prints it; for tables and arrays, as Python does."""
    if isinstance(value, str):
        text = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'<<"{text}">>' if value.isascii() else f'<<"{text}"/utf8>>'
    if isinstance(value, bytes):
        return f"<<{','.join(map(str, value))}>>"
    if value is None:
        return "undefined"
    return str(value).lower() if isinstance(value, bool) else str(value)
