"""Lists as RabbitMQ's API answers them: name filter, order, pages, columns.

The broker filters and cuts pages where it can, so that a page of a long list costs it a page.  Order by a column
needs the whole list, and is made here.  Parameters: page, page_size, name, use_regex, pagination, sort, sort_reverse,
columns.
"""

from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from brokerd.management.answers import BadRequest, as_json, encode
from brokerd.management.app import Call

PAGE_SIZE, PAGE_SIZE_MAX = 100, 500
COLUMNS_MAX = 100
Shape = Callable[[dict[str, Any]], dict[str, Any]]


async def answer_list(call: Call, verb: str, shape: Shape, /, **fields: Any) -> Response:
    """``make_list`` as an answer.  A whole list is made row by row, and each row is given up as soon as its JSON is
    there: ten thousand rows beside their JSON would be 30 MiB."""
    if "page" in call.query or call.query.get("sort"):
        return as_json(await make_list(call, verb, shape, **fields))
    rows = (await call.ask(verb, **fields))["items"]
    rows.reverse()
    octets = bytearray(b"[")
    while rows:
        octets += encode(only_columns(shape(rows.pop()), call.query))
        if rows:
            octets += b","
    octets += b"]"
    return Response(bytes(octets), media_type="application/json")


async def make_list(call: Call, verb: str, shape: Shape, /, **fields: Any) -> Any:
    """The answer to a request for a list: rows of the operation ``verb``, each as ``shape`` makes it."""
    query = call.query
    paged = "page" in query
    if paged:
        page = _number(query, "page", 1, 1, 1 << 31)
        size = _number(query, "page_size", PAGE_SIZE, 1, PAGE_SIZE_MAX)
        if query.get("name"):
            fields |= {"name": query["name"], "use_regex": _is_true(query, "use_regex")}
    if paged and not query.get("sort"):
        found = await call.ask(verb, page=page, page_size=size, **fields)
        rows = [shape(row) for row in found["items"]]
        return _page(call, rows, found, page, size)
    found = await call.ask(verb, **fields)
    rows = [shape(row) for row in found["items"]]
    if query.get("sort"):
        rows = in_order(rows, query["sort"], reverse=_is_true(query, "sort_reverse"))
    if not paged:
        return with_columns(rows, query)
    return _page(call, rows[(page - 1) * size : page * size], found, page, size)


def list_here(call: Call, rows: list[dict[str, Any]]) -> Any:
    """The same for rows that are here already; a few, and without a regular expression."""
    query = call.query
    if query.get("sort"):
        rows = in_order(rows, query["sort"], reverse=_is_true(query, "sort_reverse"))
    if "page" not in query:
        return with_columns(rows, query)
    page = _number(query, "page", 1, 1, 1 << 31)
    size = _number(query, "page_size", PAGE_SIZE, 1, PAGE_SIZE_MAX)
    total, wanted = len(rows), query.get("name", "")
    if wanted:
        rows = [row for row in rows if wanted in str(row.get("name", ""))]
    found = {"total_count": total, "filtered_count": len(rows)}
    return _page(call, rows[(page - 1) * size : page * size], found, page, size)


def _page(call: Call, rows: list[dict[str, Any]], found: dict[str, Any], page: int, size: int) -> dict[str, Any]:
    pages = max(1, -(-found["filtered_count"] // size))
    if page > pages:
        raise BadRequest(f"page_out_of_range: page {page} of {pages}, page size {size}")
    return {
        "items": with_columns(rows, call.query),
        "item_count": len(rows),
        "filtered_count": found["filtered_count"],
        "total_count": found["total_count"],
        "page": page,
        "page_size": size,
        "page_count": pages,
    }


def in_order(rows: list[dict[str, Any]], column: str, *, reverse: bool) -> list[dict[str, Any]]:
    """The rows in order of a column, with dots where tables are in tables.  Numbers come before texts (Erlang)."""

    def key(row: dict[str, Any]) -> tuple[int, Any]:
        value = _at(row, column.split("."))
        if isinstance(value, int | float):
            return 0, value
        return (1, "") if value is None else (2, str(value))

    return sorted(rows, key=key, reverse=reverse)


def with_columns(rows: list[dict[str, Any]], query: dict[str, str]) -> list[dict[str, Any]]:
    """The rows, with only the columns that are asked for."""
    return [only_columns(row, query) for row in rows] if query.get("columns") else rows


def only_columns(row: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
    """The row, with only the columns that are asked for."""
    if not query.get("columns"):
        return row
    chosen: dict[str, Any] = {}
    for column in query["columns"].split(",")[:COLUMNS_MAX]:
        words = column.strip().split(".")
        value = _at(row, words)
        if value is not None or words[0] in row:
            place = chosen
            for word in words[:-1]:
                inner = place.setdefault(word, {})
                place = inner if isinstance(inner, dict) else {}
            place[words[-1]] = value
    return chosen


def _at(row: Any, words: list[str]) -> Any:
    for word in words:
        if not isinstance(row, dict):
            return None
        row = row.get(word)
    return row


def _number(query: dict[str, str], name: str, default: int, low: int, high: int) -> int:
    text = query.get(name) or str(default)
    if not text.isdecimal() or not text.isascii() or not low <= int(text[:12]) <= high:
        raise BadRequest(f"{name} must be a whole number from {low} to {high}")
    return int(text)


def _is_true(query: dict[str, str], name: str) -> bool:
    return query.get(name, "").lower() == "true"
