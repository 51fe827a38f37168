"""Field values made hashable, equal exactly where RabbitMQ takes them as equal (Erlang's ``=:=``).

Python's own equality is too generous: it calls ``True``, ``1`` and ``1.0`` equal, and RabbitMQ does not.  A string
stays as it is; every other value carries its type.

Knows nothing of octets: two numbers are equal whatever width they had on the wire, and a timestamp is a whole number.
"""

from collections.abc import Hashable
from typing import Any


def comparable(value: Any) -> Hashable:
    """The hashable value that stands for ``value`` in dict keys and comparisons."""
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
