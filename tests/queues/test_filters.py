"""Filters by table: which are refused, and what they are compiled into."""

import pytest

from brokerd.queues.filters import Filter, FilterFault, compile_filter


def test_texts_are_their_values_with_their_lengths_and_need_no_program():
    assert compile_filter({"x-stream-filter": "ab"}) == Filter(b"\0\2ab")
    assert compile_filter({"x-stream-filter": ["a", "", "\u00fc"]}) == Filter(b"\0\1a\0\0\0\2\xc3\xbc")


def test_a_table_and_an_expression_are_one_program():
    both = compile_filter({"x-stream-filter": ["eu", {"kind": "a"}], "x-stream-filter-sql": "n = 1"})
    assert both.values == b"\0\2eu"
    expression = b"\5\1n" b"\2" + (1).to_bytes(8) + b"\x10"
    assert both.program == b"\x07" b"\x08\4kind\0\6S\0\0\0\1a" b"\x16" + expression + b"\x16"
    either = compile_filter({"x-stream-filter": {"a": None, "b": None}, "x-filter-match-type": "any"})
    assert either.program == b"\x08\1a\0\0" b"\x08\1b\0\0" b"\x17"


@pytest.mark.parametrize(("wanted", "reason"), [
    ({}, "a table without a condition"), ({"a": {"b": 1}}, "'a': a table or a list cannot be compared"),
    ({"a": "x" * 300}, "'a': a value of more than 255 octets"),
    ({"geo-circle": {}}, "'geo-circle' is unknown: there are"),
    ({"geo-bbox": 5}, "'geo-bbox' must be a table"),
    ({"geo-bbox": {"min_lat": 1}}, "'geo-bbox': max_lat must be a number from -90 to 90"),
    ({"geo-bbox": {"min_lat": 2, "max_lat": 1, "min_lon": 0, "max_lon": 1}}, "min_lat 2 is above max_lat 1"),
    ({"geo-within-radius": {"lat": 1, "lon": 181, "radius_km": 1}}, "lon must be a number from -180 to 180"),
    ({"geo-within-radius": {"lat": 1, "lon": 1, "radius_km": float("nan")}},
     "radius_km must be a number from 0 to 40075"),
    ({"geo-polygon": {"points": [[1, 2], [3, 4]]}}, "points must be a list of 3 to 256 corners"),
    ({"geo-polygon": {"points": [[1, 170], [3, -170], [5, 175]]}},
     "the edge from longitude 170 to -170 is longer than 180 degrees: take a polygon at each side of the date line"),
    ({"geo-polygon": {"points": [[1, -170], [3, 0], [5, 170]]}}, "the edge from longitude 170 to -170 is longer"),
    ({"geo-polygon": {"points": [[1, 2], [3, 4], [5]]}}, "a corner must be a list [latitude, longitude]"),
    ([{f"h{i}": i for i in range(65)}], "65 conditions, at most 64"),
    ([5], "it must be a text, a table, or a list of these"),
])
def test_a_table_that_is_none_is_refused(wanted, reason):
    with pytest.raises(FilterFault) as fault:
        compile_filter({"x-stream-filter": wanted})
    assert fault.value.argument == "x-stream-filter"
    assert reason in fault.value.reason
