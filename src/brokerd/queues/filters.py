"""Filters of a stream's readers, compiled into programs that the data plane runs for each message.

    x-stream-filter       texts: values of x-stream-filter-value; tables: headers, or a place on the earth
    x-filter-match-type   all (the default), any: of the texts and the conditions of the tables
    x-stream-filter-sql   an expression, which must be true as well (queues/expressions)

``plane/filter.pxi`` lists the operations of a program.  Texts alone need none.  Knows nothing of streams.
"""

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from brokerd import plane
from brokerd.wire.values import encode_table

VALUES_MAX, VALUE_OCTETS_MAX = 64, 255
CONDITIONS_MAX = 64
CORNERS_MAX = 256
RADIUS_KM_MAX = 40_075.0
AND, OR, VALUES, HEADER_IS, NEAR, BOX, POLYGON, BOOLEAN = 22, 23, 7, 8, 9, 10, 11, 1
GEO = {  # names of the numbers that each kind of place has, in the order in which its operation takes them
    "geo-within-radius": (NEAR, ("lat", "lon", "radius_km")),
    "geo-bbox": (BOX, ("min_lat", "max_lat", "min_lon", "max_lon")),
}


class Filter(NamedTuple):
    """A reader's filter, as plane.Stream.begin takes it."""

    values: bytes | None = None
    unfiltered: bool = False
    program: bytes | None = None


class FilterFault(Exception):
    """A filter is wrong: which argument, and why."""

    def __init__(self, argument: str, reason: str) -> None:
        super().__init__(argument, reason)
        self.argument, self.reason = argument, reason


def compile_filter(arguments: Mapping[str, Any]) -> Filter:
    """The filter that these arguments of basic.consume ask for.  Raises FilterFault."""
    unfiltered = arguments.get("x-stream-match-unfiltered", False)
    if not isinstance(unfiltered, bool):
        raise FilterFault("x-stream-match-unfiltered", "it must be true or false")
    match = arguments.get("x-filter-match-type", "all")
    if match not in ("all", "any"):
        raise FilterFault("x-filter-match-type", "it must be 'all' or 'any'")
    texts, tables = _parts(arguments)
    values = b"".join(len(text).to_bytes(2) + text for text in texts) if texts else None
    conditions = [bytes((VALUES,))] if texts else []
    for table in tables:
        conditions += _conditions(table)
    if len(conditions) > CONDITIONS_MAX:
        raise FilterFault("x-stream-filter", f"{len(conditions)} conditions, at most {CONDITIONS_MAX}")
    joins = bytes((AND if match == "all" else OR,))
    program = b"".join(one if at == 0 else one + joins for at, one in enumerate(conditions)) if tables else b""
    if "x-stream-filter-sql" in arguments:
        from brokerd.queues.expressions import ExpressionFault, compile_expression  # Most readers have none.

        try:
            expression = compile_expression(arguments["x-stream-filter-sql"])
        except ExpressionFault as fault:
            raise FilterFault("x-stream-filter-sql", str(fault)) from None
        before = program or (conditions[0] if conditions else b"")
        program = before + expression + bytes((AND,)) if before else expression
    if program:
        try:
            plane.check_filter(program)
        except ValueError as fault:
            raise FilterFault("x-stream-filter-sql", str(fault)) from None
    return Filter(values, unfiltered, program or None)


def _parts(arguments: Mapping[str, Any]) -> tuple[list[bytes], list[dict[str, Any]]]:
    """The texts and the tables of x-stream-filter."""
    if "x-stream-filter" not in arguments:
        return [], []
    given = arguments["x-stream-filter"]
    parts = given if isinstance(given, list) else [given]
    if not 1 <= len(parts) <= VALUES_MAX:
        raise FilterFault("x-stream-filter", f"{len(parts)} values, but a filter has 1 to {VALUES_MAX}")
    texts: list[bytes] = []
    tables: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, dict):
            tables.append(part)
        elif isinstance(part, str):
            texts.append(part.encode("utf-8", "surrogateescape"))
            if len(texts[-1]) > VALUE_OCTETS_MAX:
                reason = f"a value of {len(texts[-1])} octets, at most {VALUE_OCTETS_MAX}"
                raise FilterFault("x-stream-filter", reason)
        else:
            raise FilterFault("x-stream-filter", "it must be a text, a table, or a list of these")
    return texts, tables


def _conditions(table: Mapping[str, Any]) -> list[bytes]:
    """A program for each condition of a table."""
    if not table:
        raise FilterFault("x-stream-filter", "a table without a condition")
    return [_place(name, value) if name.startswith("geo-") else _header(name, value) for name, value in table.items()]


def _header(name: str, value: Any) -> bytes:
    """Whether a header has a value, as headers exchanges compare them; without a value: whether it is there."""
    octets = name.encode("utf-8", "surrogateescape")
    if len(octets) > VALUE_OCTETS_MAX:
        raise FilterFault("x-stream-filter", f"a header's name of {len(octets)} octets, at most {VALUE_OCTETS_MAX}")
    if value is None:
        plain = b""
    else:
        if isinstance(value, list | dict):
            raise FilterFault("x-stream-filter", f"'{name}': a table or a list cannot be compared")
        found = plane.HeaderBindings(bytes).values(encode_table({name: value}))
        plain = next(iter(found.values()))
        if len(plain) > VALUE_OCTETS_MAX + 5:
            raise FilterFault("x-stream-filter", f"'{name}': a value of more than {VALUE_OCTETS_MAX} octets")
    return bytes((HEADER_IS, len(octets))) + octets + len(plain).to_bytes(2) + plain


def _place(kind: str, value: Any) -> bytes:
    """Whether the headers x-geo-lat and x-geo-lon, degrees, are in a circle, a box or a polygon."""
    if not isinstance(value, dict):
        raise FilterFault("x-stream-filter", f"'{kind}' must be a table")
    if kind == "geo-polygon":
        points = value.get("points")
        if not isinstance(points, list) or not 3 <= len(points) <= CORNERS_MAX:
            raise FilterFault("x-stream-filter", f"'{kind}': points must be a list of 3 to {CORNERS_MAX} corners")
        for point in points:
            if not isinstance(point, list) or len(point) != 2:
                raise FilterFault("x-stream-filter", f"'{kind}': a corner must be a list [latitude, longitude]")
        numbers = [_number(kind, name, one)
                   for point in points for name, one in zip(("lat", "lon"), point, strict=True)]  # fmt: skip
        for (_, west), (_, east) in zip(points, [*points[1:], points[0]], strict=True):
            if abs(float(west) - float(east)) > 180:
                reason = (
                    f"'{kind}': the edge from longitude {west:g} to {east:g} is longer than 180 degrees: take a "
                    "polygon at each side of the date line with x-filter-match-type 'any', or put a corner between"
                )
                raise FilterFault("x-stream-filter", reason)
        return struct.pack(f">BH{len(numbers)}d", POLYGON, len(points), *numbers)
    if kind not in GEO:
        known = ", ".join([*GEO, "geo-polygon"])
        raise FilterFault("x-stream-filter", f"'{kind}' is unknown: there are {known}")
    code, names = GEO[kind]
    numbers = [_number(kind, name, value.get(name)) for name in names]
    if code == BOX:
        return _box(*numbers)
    return struct.pack(f">B{len(numbers)}d", code, *numbers)


def _box(low: float, high: float, west: float, east: float) -> bytes:
    """A box whose west is east of its east goes over the date line: it is two boxes, one at each side."""
    if low > high:
        raise FilterFault("x-stream-filter", f"'geo-bbox': min_lat {low:g} is above max_lat {high:g}")
    if west <= east:
        return struct.pack(">B4d", BOX, low, high, west, east)
    return struct.pack(">B4dB4dB", BOX, low, high, west, 180.0, BOX, low, high, -180.0, east, OR)


def _number(kind: str, name: str, value: Any) -> float:
    most = RADIUS_KM_MAX if name == "radius_km" else 90.0 if name.endswith("lat") else 180.0
    least = 0.0 if name == "radius_km" else -most
    try:
        number = float(value) if not isinstance(value, bool | str) else None
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or not least <= number <= most:
        raise FilterFault("x-stream-filter", f"'{kind}': {name} must be a number from {least:g} to {most:g}")
    return number
