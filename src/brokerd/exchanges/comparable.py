"""Field values made hashable, equal exactly where RabbitMQ holds them for equal (Erlang's ``=:=``).

Python's own equality is too generous: ``True == 1 == 1.0`` are three values
here.  A string stays itself; anything else carries its type.

Knows nothing of octets; the width an integer had on the wire is not a part of it.
"""

from collections.abc import Hashable
from typing import Any


def comparable(value: Any) -> Hashable:
    """What stands for ``value`` in dict keys and comparisons."""
    if type(value) is str:
        return value
    kind = type(value)
    if kind is dict:
        return (dict, frozenset((key, comparable(item)) for key, item in value.items()))
    if kind is list:
        return (list, tuple(map(comparable, value)))
    if kind is float:
        return (float, repr(value))  # NaN must equal itself, or its binding could never be unbound.
    if kind is bytes or kind is bytearray or kind is memoryview:
        return (bytes, bytes(value))
    return (kind, value)
