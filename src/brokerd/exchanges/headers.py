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

The tables are in a plane.HeaderBindings.  Their keys are octets, so that the data plane can look up a message's
headers as they came.
"""

from collections.abc import Collection
from typing import Any, ClassVar

from brokerd import plane
from brokerd.errors import PreconditionFailed
from brokerd.exchanges import destinations_of_key as of_key
from brokerd.exchanges.comparable import canonical
from brokerd.exchanges.exchange import Binding, Exchange, LazyProperties
from brokerd.exchanges.terms import format_amqp_term
from brokerd.wire.values import decode_table, encode_longstr, encode_table, type_name

X_MATCH = ("all", "any", "all-with-x", "any-with-x")
_VOID = b"V"  # a plain value
_NO_HEADERS = encode_table({})


class HeadersExchange(Exchange):
    """The routing key is not read (AMQP 0-9-1, 3.1.3.4)."""

    __slots__ = ("_shapes", "asked", "decides")

    type: ClassVar[str] = "headers"
    key_decides: bool = False

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self.asked: plane.HeaderBindings = plane.HeaderBindings(_compound)
        self.decides: plane.HeaderBindings = self.asked
        self._shapes: dict[tuple[tuple[bytes, ...], tuple[bytes, ...]], plane.Shape] = {}

    def destinations(self, routing_key: str, properties: LazyProperties) -> Collection[Any]:
        headers = properties().headers
        return self.asked.find(encode_table(headers) if headers else _NO_HEADERS)

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
        destination, tables = binding.destination, self.asked
        asks = _Asks(tables, binding.arguments)
        tables.add(asks.table)
        if not asks.all:
            for condition in asks.conditions():
                tables.by_condition[condition] = of_key.add(tables.by_condition.get(condition), destination)
        elif not asks.values:
            tables.always = of_key.add(tables.always, destination)
        else:
            shape = self._shapes.get(asks.names())
            if shape is None:
                shape = self._shapes[asks.names()] = self._new_shape(*asks.names())
            values = asks.valued_octets()
            shape.by_values[values] = of_key.add(shape.by_values.get(values), destination)

    def _new_shape(self, valued: tuple[bytes, ...], there: tuple[bytes, ...]) -> plane.Shape:
        shapes_of = self.asked.shapes_of
        anchor = min((*valued, *there), key=lambda name: len(shapes_of.get(name, ())))
        shape = plane.Shape(valued, there, anchor)
        shapes_of.setdefault(anchor, []).append(shape)
        return shape

    def _removed(self, binding: Binding) -> None:
        destination, tables = binding.destination, self.asked
        asks = _Asks(tables, binding.arguments)
        tables.remove(asks.table)
        if not asks.all:
            for condition in asks.conditions():
                _exclude(tables.by_condition, condition, destination)
        elif not asks.values:
            tables.always = of_key.remove(tables.always, destination)
        else:
            shape = self._shapes[asks.names()]
            _exclude(shape.by_values, asks.valued_octets(), destination)
            if not shape.by_values:
                del self._shapes[asks.names()]
                tables.shapes_of[shape.anchor].remove(shape)
                if not tables.shapes_of[shape.anchor]:
                    del tables.shapes_of[shape.anchor]


class _Asks:
    """The conditions of a binding's arguments, in the order of names."""

    __slots__ = ("all", "table", "values")

    def __init__(self, tables: plane.HeaderBindings, arguments: dict) -> None:
        match = arguments.get("x-match", "all")
        with_x = match in ("all-with-x", "any-with-x")
        names = [name for name in sorted(arguments) if name != "x-match" and (with_x or not name.startswith("x-"))]
        self.all: bool = match in ("all", "all-with-x")  # must agree, not just one
        self.table = encode_table({name: arguments[name] for name in names})  # the arguments that count
        self.values = tables.values(self.table)  # plain ones, by name

    def conditions(self) -> list[bytes]:
        """A name, or a name and its value, for each argument."""
        return [name if value == _VOID else name + value for name, value in self.values.items()]

    def names(self) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """The names with a value, and those of headers that need only be there."""
        valued = tuple([name for name, value in self.values.items() if value != _VOID])
        return valued, tuple([name for name, value in self.values.items() if value == _VOID])

    def valued_octets(self) -> bytes:
        """The values asked for, one behind the other."""
        return b"".join([value for value in self.values.values() if value != _VOID])


def _compound(octets: bytes) -> bytes:
    """Octets for a table, array or decimal, given with its kind: the same for equal ones."""
    table, _ = decode_table(encode_longstr(b"\0" + octets))
    return octets[:1] + encode_longstr(canonical(table[""]))


def _exclude(table: dict[bytes, Any], key: bytes, destination: Any) -> None:
    left = of_key.remove(table[key], destination)
    if left is None:
        del table[key]
    else:
        table[key] = left
