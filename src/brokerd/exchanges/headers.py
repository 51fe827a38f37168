"""The headers exchange: a message goes where its header table agrees with the binding's arguments.

x-match (RabbitMQ) says how many of the arguments must agree: ``all`` (the default) or ``any``, not counting names that
begin with ``x-``.  ``all-with-x`` and ``any-with-x`` count these names too; x-match itself never counts.  An argument
without a value (void) only asks that the header exists.  Without any counted argument, ``all`` matches every message
and ``any`` matches no message.

A binding of ``any`` stands in a table under each of its conditions: a header's name alone, or (name, value).  Bindings
of ``all`` that ask for the same names share a *shape*, which is one table by the values of these names:

    {"paid": True, "order": 1}, {"paid": True, "order": 2}, {"paid": None}
        shape (order, paid)     {(1, True): destinations, (2, True): destinations}
        shape (), paid present  {(): destinations}

Each shape stands under one of its names, its *anchor*: the name that anchors the fewest shapes.  So a message looks
only at the shapes that one of its own headers leads to, each by one look-up.

``asked`` tells the data plane which headers and values bindings ask for, so that it can remember where messages go that
differ in no such header.
"""

from collections.abc import Collection, Hashable
from typing import Any, ClassVar

from brokerd import plane
from brokerd.errors import PreconditionFailed
from brokerd.exchanges import destinations_of_key as of_key
from brokerd.exchanges.comparable import comparable
from brokerd.exchanges.exchange import Binding, Exchange, LazyProperties
from brokerd.exchanges.terms import format_amqp_term
from brokerd.wire.values import encode_table, type_name

X_MATCH = ("all", "any", "all-with-x", "any-with-x")


class _Shape:
    """The bindings that ask for values of the same headers, and for the presence of the same other headers."""

    __slots__ = ("anchor", "by_values", "there", "valued")

    def __init__(self, valued: tuple[str, ...], there: tuple[str, ...], anchor: str) -> None:
        self.valued = valued
        self.there = there
        self.anchor = anchor
        self.by_values: dict[tuple[Hashable, ...], of_key.Destinations] = {}


class HeadersExchange(Exchange):
    """The routing key is not read (AMQP 0-9-1, 3.1.3.4)."""

    __slots__ = ("_always", "_any", "_shapes", "_shapes_of", "asked")

    type: ClassVar[str] = "headers"
    key_decides: bool = False

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self.asked: plane.Asked = plane.Asked()
        self._always: of_key.Destinations = None
        self._any: dict[Hashable, of_key.Destinations] = {}  # by condition
        self._shapes: dict[tuple[tuple[str, ...], tuple[str, ...]], _Shape] = {}
        self._shapes_of: dict[str, list[_Shape]] = {}  # by anchor

    def destinations(self, routing_key: str, properties: LazyProperties) -> Collection[Any]:
        found = list(of_key.list_once(self._always))
        headers = properties().headers
        if not headers:
            return found
        values = {name: comparable(value) for name, value in headers.items()}
        if self._any:
            for condition in values.items():
                found += of_key.list_once(self._any.get(condition[0]))
                found += of_key.list_once(self._any.get(condition))
        if self._shapes_of:
            for name in values:
                for shape in self._shapes_of.get(name, ()):
                    try:
                        asked = tuple([values[valued] for valued in shape.valued])
                    except KeyError:
                        continue
                    bound = shape.by_values.get(asked)
                    if bound is not None and all(there in values for there in shape.there):
                        found += of_key.list_once(bound)
        return found

    def check_binding(self, routing_key: str, arguments: dict) -> None:
        """Raise PreconditionFailed if x-match is not one of the four (RabbitMQ's texts)."""
        if "x-match" not in arguments:
            return
        match = arguments["x-match"]
        if not isinstance(match, str | bytes):
            raise PreconditionFailed(
                f"Invalid x-match field type {type_name(match)} (value {format_amqp_term(match)}); expected longstr"
            )
        if match not in X_MATCH:
            raise PreconditionFailed(
                f"Invalid x-match field value {format_amqp_term(match)}; expected all, any, all-with-x, or any-with-x"
            )

    def _added(self, binding: Binding) -> None:
        destination = binding.destination
        match_all, counted, valued, there = _conditions(binding.arguments)
        if counted:
            self.asked.add(encode_table(counted))
        if not match_all:
            for condition in (*there, *valued.items()):
                self._any[condition] = of_key.add(self._any.get(condition), destination)
        elif not valued and not there:
            self._always = of_key.add(self._always, destination)
        else:
            key = tuple(valued), there
            shape = self._shapes.get(key)
            if shape is None:
                shape = self._shapes[key] = self._new_shape(*key)
            values = tuple(valued.values())
            shape.by_values[values] = of_key.add(shape.by_values.get(values), destination)

    def _new_shape(self, valued: tuple[str, ...], there: tuple[str, ...]) -> _Shape:
        anchor = min((*valued, *there), key=lambda name: len(self._shapes_of.get(name, ())))
        shape = _Shape(valued, there, anchor)
        self._shapes_of.setdefault(anchor, []).append(shape)
        return shape

    def _removed(self, binding: Binding) -> None:
        destination = binding.destination
        match_all, counted, valued, there = _conditions(binding.arguments)
        if counted:
            self.asked.remove(encode_table(counted))
        if not match_all:
            for condition in (*there, *valued.items()):
                _exclude(self._any, condition, destination)
        elif not valued and not there:
            self._always = of_key.remove(self._always, destination)
        else:
            shape = self._shapes[tuple(valued), there]
            _exclude(shape.by_values, tuple(valued.values()), destination)
            if not shape.by_values:
                del self._shapes[shape.valued, shape.there]
                self._shapes_of[shape.anchor].remove(shape)
                if not self._shapes_of[shape.anchor]:
                    del self._shapes_of[shape.anchor]


def _conditions(arguments: dict) -> tuple[bool, dict[str, Any], dict[str, Hashable], tuple[str, ...]]:
    """Whether all must agree; the arguments that count; the values asked for; the headers that need only exist.  All in
    the order of names."""
    match = arguments.get("x-match", "all")
    with_x = match in ("all-with-x", "any-with-x")
    names = [name for name in sorted(arguments) if name != "x-match" and (with_x or not name.startswith("x-"))]
    counted = {name: arguments[name] for name in names}
    valued = {name: comparable(value) for name, value in counted.items() if value is not None}
    return match in ("all", "all-with-x"), counted, valued, tuple([name for name in names if name not in valued])


def _exclude(table: dict[Any, of_key.Destinations], key: Hashable, destination: Any) -> None:
    left = of_key.remove(table[key], destination)
    if left is None:
        del table[key]
    else:
        table[key] = left
