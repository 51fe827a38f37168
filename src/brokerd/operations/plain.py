"""Values of AMQP tables as JSON has them.  Knows nothing of where they come from."""

from decimal import Decimal
from typing import Any


def plain(value: Any) -> Any:
    """The value with what JSON has: octets as text, a time as seconds, a decimal number as a number."""
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "surrogateescape")
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has neither infinity nor NaN.
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Decimal):
        return float(value)
    return str(value)
