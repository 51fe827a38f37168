"""Field values made hashable, equal exactly where RabbitMQ holds them for equal (Erlang's ``=:=``).

Python's own equality is too generous: ``True == 1 == 1.0`` are three values
here.  A string stays itself; anything else carries its type.

Knows nothing of octets; the width a number had on the wire is not a part of it, and a timestamp is a whole number.
"""

from collections.abc import Hashable
from typing import Any


def comparable(value: Any) -> Hashable:
    """What stands for ``value`` in dict keys and comparisons."""
    if type(value) is str:
        return value
    kind = type(value)
    if kind is int:
        return (int, value)
    if kind is dict:
        return (dict, frozenset((key, comparable(item)) for key, item in value.items()))
    if kind is list:
        return (list, tuple(map(comparable, value)))
    if isinstance(value, float):
        return (float, float(value).hex())  # NaN must equal itself, or its binding could never be unbound.
    if isinstance(value, int) and kind is not bool:
        return (int, int(value))
    if kind is bytes or kind is bytearray or kind is memoryview:
        return (bytes, bytes(value))
    return (kind, value)
