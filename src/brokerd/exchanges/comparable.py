"""Field values made hashable, so that two are equal exactly where they make the same binding.

Python's own equality is too generous: it calls ``True``, ``1`` and ``1.0`` equal.  A string stays as it is; every other
value carries its type.  (To a message's header a headers exchange compares the numbers 1 and 1.0 as equal: see
``plain_value`` of the data plane.)

Knows nothing of octets: numbers of different widths on the wire may be equal, and a timestamp is a whole number.
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


def canonical(value: Any) -> bytes:
    """Octets that two values share exactly if ``comparable`` makes them equal."""
    return repr(_in_order(comparable(value))).encode("utf-8", "backslashreplace")


def _in_order(value: Any) -> Any:
    """A comparable value, where equal ones also look equal: without sets, and decimals without zeros at their end."""
    from decimal import Decimal  # Decimals are rare, and a start without them saves the memory of this import.

    if isinstance(value, frozenset):
        return sorted([(name, _in_order(item)) for name, item in value])
    if isinstance(value, tuple):
        return tuple([_in_order(item) for item in value])
    return value.normalize() if isinstance(value, Decimal) else value
