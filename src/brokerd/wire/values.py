"""AMQP field values, field tables and strings: octets to Python values and back.

    short string   | length u8  | octets |            names, routing keys
    long string    | length u32 | octets |
    field table    | length u32 | name (short string), value | name, value | ...
    field array    | length u32 | value | value | ...
    field value    | type octet | octets of that type |

Types are RabbitMQ's, which differ from the specification's (section 4.2.1):

    t bool             b Int8     B UInt8    s Int16    u UInt16    I int (int32)   i UInt32
    l Int64            L Int64 (as RabbitMQ does; written again as l)               V None
    U Int16 (the specification's; written again as s)
    f Float32          d float    D Decimal  T Timestamp
    S str              x bytes    A list     F dict

Decoding and encoding again gives the same octets, with three exceptions.  L becomes l, and U becomes s.  A true bool
becomes 1.  Of several fields with one name only the first stays, as in RabbitMQ.  Small subclasses of int and float
keep the type of a number; they compare and compute as numbers.  Surrogates keep the octets of strings that are not
UTF-8 (PEP 383).

Each step that moves the position checks its bound.  Malformed octets raise ``SyntaxError_`` (502) with the position in
the given octets.  A value that cannot be written raises ``ValueError`` or ``TypeError``, because it is the caller's
mistake and not a peer's.  Knows nothing of what a name or a value means.
"""

from collections.abc import Callable
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, Any

from brokerd.errors import SyntaxError_

if TYPE_CHECKING:
    from decimal import Decimal

# Levels of tables and arrays inside a table, which is not counted itself: as many as the data plane takes in headers
# (PROPERTY_DEPTH in plane/hot.h).  RabbitMQ limits them by its memory alone.
DEPTH_MAX = 64
SHORTSTR_OCTETS_MAX = 255

_EMPTY_TABLE = b"\0\0\0\0"
_u32 = Struct(">I")


class Int8(int):
    """A number that travels as type ``b``."""

    __slots__ = ()


class UInt8(int):
    """A number that travels as type ``B``."""

    __slots__ = ()


class Int16(int):
    """A number that travels as type ``s``."""

    __slots__ = ()


class UInt16(int):
    """A number that travels as type ``u``."""

    __slots__ = ()


class UInt32(int):
    """A number that travels as type ``i``."""

    __slots__ = ()


class Int64(int):
    """A number that travels as type ``l``, even if a shorter type could hold it."""

    __slots__ = ()


class Float32(float):
    """A number that travels as type ``f``."""

    __slots__ = ()


class Timestamp(int):
    """Seconds since 1970-01-01 UTC, unsigned 64 bits: type ``T``."""

    __slots__ = ()


# Type octet -> struct of the value, and the Python type that wraps it (None: as unpacked).
_FIXED: dict[int, tuple[Struct, type | None]] = {
    ord("t"): (Struct(">?"), None),
    ord("I"): (Struct(">i"), None),
    ord("l"): (Struct(">q"), Int64),
    ord("L"): (Struct(">q"), Int64),
    ord("d"): (Struct(">d"), None),
    ord("T"): (Struct(">Q"), Timestamp),
    ord("b"): (Struct(">b"), Int8),
    ord("B"): (Struct(">B"), UInt8),
    ord("s"): (Struct(">h"), Int16),
    ord("u"): (Struct(">H"), UInt16),
    ord("U"): (Struct(">h"), Int16),
    ord("i"): (Struct(">I"), UInt32),
    ord("f"): (Struct(">f"), Float32),
}
_DECIMAL = Struct(">Bi")

# Python type -> pack function and type octet.
_PACKERS: dict[type, tuple[Callable[[bytes, Any], bytes], bytes]] = {
    Int8: (Struct(">cb").pack, b"b"),
    UInt8: (Struct(">cB").pack, b"B"),
    Int16: (Struct(">ch").pack, b"s"),
    UInt16: (Struct(">cH").pack, b"u"),
    UInt32: (Struct(">cI").pack, b"i"),
    Int64: (Struct(">cq").pack, b"l"),
    Timestamp: (Struct(">cQ").pack, b"T"),
    Float32: (Struct(">cf").pack, b"f"),
    float: (Struct(">cd").pack, b"d"),
    bool: (Struct(">c?").pack, b"t"),
}
_pack_int32 = Struct(">ci").pack
_pack_int64 = Struct(">cq").pack

# The names RabbitMQ gives the types in its reply texts, e.g. "of type 'signedint'".
_TYPE_NAMES = {
    type(None): "void", bool: "bool", int: "signedint", float: "double", str: "longstr", bytes: "binary",
    list: "array", tuple: "array", dict: "table", Int8: "byte", UInt8: "unsignedbyte", Int16: "short",
    UInt16: "unsignedshort", UInt32: "unsignedint", Int64: "long", Float32: "float", Timestamp: "timestamp",
}  # fmt: skip


def type_name(value: Any) -> str:
    """RabbitMQ's name of the type in which ``value`` travels: signedint, long, longstr, bool, ..."""
    if type(value) is int and not -0x80000000 <= value <= 0x7FFFFFFF:
        return "long"
    return _TYPE_NAMES.get(type(value)) or "decimal"


def read_shortstr(octets: bytes, at: int) -> tuple[str, int]:
    """The short string that starts at ``at``, and the position behind it."""
    if at >= len(octets):
        raise SyntaxError_(f"short string cut off at octet {at}")
    start = at + 1
    end = start + octets[at]
    if end > len(octets):
        raise SyntaxError_(f"short string at octet {at} is {end - start} octets long, but {len(octets) - start} follow")
    return octets[start:end].decode("utf-8", "surrogateescape"), end


def read_longstr(octets: bytes, at: int) -> tuple[bytes, int]:
    """The octets of the long string that starts at ``at``, and the position behind it."""
    start, end = _span(octets, at, len(octets), "long string")
    return octets[start:end], end


def decode_table(octets: bytes, at: int = 0) -> tuple[dict[str, Any], int]:
    """The field table at ``at``, where its length stands, and the position behind it."""
    if octets[at : at + 4] == _EMPTY_TABLE:
        return {}, at + 4
    return _read_table(octets, at, len(octets), 0)


def encode_shortstr(text: str) -> bytes:
    """``text`` as a short string, its length first.  ValueError: more than 255 octets."""
    octets = text.encode("utf-8", "surrogateescape")
    try:
        return _LENGTHS[len(octets)] + octets
    except IndexError:
        raise ValueError(f"a short string has at most 255 octets, not {len(octets)}") from None


def encode_longstr(octets: bytes | str) -> bytes:
    """``octets`` (or a text as UTF-8) as a long string, the length first."""
    if isinstance(octets, str):
        octets = octets.encode("utf-8", "surrogateescape")
    return _u32.pack(len(octets)) + octets


def encode_table(table: dict[str, Any]) -> bytes:
    """``table`` as a field table, its length first.

    A plain int becomes ``I`` if it fits into int32, else ``l``.  ValueError: a number or name is too large for its
    type, or the table is nested deeper than ``DEPTH_MAX``.  TypeError: AMQP has no type for a value.
    """
    if not table:
        return _EMPTY_TABLE
    return _write_table(table, 0)


_LENGTHS = [bytes((length,)) for length in range(SHORTSTR_OCTETS_MAX + 1)]


def _span(octets: bytes, at: int, end: int, what: str) -> tuple[int, int]:
    """Start and end of the octets that follow the 32-bit length at ``at``; they must not pass ``end``."""
    start = at + 4
    if start > end:
        raise SyntaxError_(f"length of {what} cut off at octet {at}")
    stop = start + _u32.unpack_from(octets, at)[0]
    if stop > end:
        raise SyntaxError_(f"{what} at octet {at} is {stop - start} octets long, but {end - start} follow")
    return start, stop


def _read_table(octets: bytes, at: int, end: int, depth: int) -> tuple[dict[str, Any], int]:
    at, stop = _span(octets, at, end, "field table")
    table: dict[str, Any] = {}
    while at < stop:
        start = at + 1
        after = start + octets[at]
        if after >= stop:
            raise SyntaxError_(f"field name or its value's type cut off at octet {at}")
        name = octets[start:after].decode("utf-8", "surrogateescape")
        value, at = _read_value(octets, after, stop, depth)
        table.setdefault(name, value)
    return table, stop


def _read_array(octets: bytes, at: int, end: int, depth: int) -> tuple[list[Any], int]:
    at, stop = _span(octets, at, end, "field array")
    array = []
    while at < stop:
        value, at = _read_value(octets, at, stop, depth)
        array.append(value)
    return array, stop


def _read_value(octets: bytes, at: int, end: int, depth: int) -> tuple[Any, int]:
    """The value with its type octet at ``at``, which is below ``end``; ``depth`` counts the levels around it,
    without the outermost table."""
    kind = octets[at]
    if kind == 0x53:  # S
        start, stop = _span(octets, at + 1, end, "long string")
        return octets[start:stop].decode("utf-8", "surrogateescape"), stop
    fixed = _FIXED.get(kind)
    if fixed is not None:
        layout, wrap = fixed
        stop = at + 1 + layout.size
        if stop > end:
            raise SyntaxError_(f"value of type '{chr(kind)}' cut off at octet {at}")
        value = layout.unpack_from(octets, at + 1)[0]
        return (value if wrap is None else wrap(value)), stop
    if kind == 0x56:  # V
        return None, at + 1
    if kind == 0x78:  # x
        start, stop = _span(octets, at + 1, end, "octet string")
        return octets[start:stop], stop
    if kind == 0x44:  # D
        return _read_decimal(octets, at, end)
    if kind in b"FA":
        if depth >= DEPTH_MAX:
            raise SyntaxError_(f"more than {DEPTH_MAX} tables and arrays inside each other at octet {at}")
        read = _read_table if kind == 0x46 else _read_array
        return read(octets, at + 1, end, depth + 1)
    raise SyntaxError_(f"unknown field value type {kind:#04x} at octet {at}")


def _read_decimal(octets: bytes, at: int, end: int) -> "tuple[Decimal, int]":
    """Type D: number of decimal places, then a signed number, as clients write it (RabbitMQ only passes it on)."""
    from decimal import Decimal  # Decimals are rare, and a start without them saves the memory of this import.

    stop = at + 1 + _DECIMAL.size
    if stop > end:
        raise SyntaxError_(f"value of type 'D' cut off at octet {at}")
    places, unscaled = _DECIMAL.unpack_from(octets, at + 1)
    sign, digits, _ = Decimal(unscaled).as_tuple()
    return Decimal((sign, digits, -places)), stop


def _write_table(table: dict[str, Any], depth: int) -> bytes:
    pieces = []
    for name, value in table.items():
        pieces.append(encode_shortstr(name))
        pieces.append(_write_value(value, depth))
    octets = b"".join(pieces)
    return _u32.pack(len(octets)) + octets


def _write_value(value: Any, depth: int) -> bytes:
    kind = type(value)
    if kind is str:
        return b"S" + encode_longstr(value)
    packer = _PACKERS.get(kind)
    if packer is not None:
        pack, octet = packer
        return _packed(pack, octet, value)
    if isinstance(value, int):
        return _pack_int32(b"I", value) if -0x80000000 <= value <= 0x7FFFFFFF else _packed(_pack_int64, b"l", value)
    if value is None:
        return b"V"
    if isinstance(value, bytes | bytearray):
        return b"x" + encode_longstr(bytes(value))
    if isinstance(value, dict | list | tuple):
        if depth >= DEPTH_MAX:
            raise ValueError(f"more than {DEPTH_MAX} tables and arrays inside each other")
        if isinstance(value, dict):
            return b"F" + _write_table(value, depth + 1)
        octets = b"".join([_write_value(item, depth + 1) for item in value])
        return b"A" + _u32.pack(len(octets)) + octets
    if isinstance(value, float):
        return _packed(*_PACKERS[float], float(value))
    if isinstance(value, str):
        return b"S" + encode_longstr(value)
    return _write_decimal(value)


def _packed(pack: Callable[[bytes, Any], bytes], octet: bytes, value: Any) -> bytes:
    try:
        return pack(octet, value)
    except (struct_error, OverflowError):
        raise ValueError(f"{value!r} does not fit into field value type '{octet.decode()}'") from None


def _write_decimal(value: Any) -> bytes:
    from decimal import Decimal

    if not isinstance(value, Decimal):
        raise TypeError(f"no field value type for {type(value).__name__}")
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{value} does not fit into field value type 'D'")
    if exponent > 0:  # 1E+2 is written as 100.  More than ten digits do not fit anyway.
        digits, exponent = digits + (0,) * min(exponent, 11), 0
    unscaled = int("".join(map(str, digits))) if len(digits) <= 11 else 1 << 32
    unscaled = -unscaled if sign else unscaled
    if exponent < -255 or not -0x80000000 <= unscaled <= 0x7FFFFFFF:
        raise ValueError(f"{value} does not fit into field value type 'D'")
    return b"D" + _DECIMAL.pack(-exponent, unscaled)
