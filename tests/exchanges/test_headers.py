"""Headers exchange: truth tables of x-match, values that are equal or not, refusals."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exchanges.destinations import queues
from tests.exchanges.naive import headers_match

from brokerd.errors import PreconditionFailed
from brokerd.exchanges import HeadersExchange
from brokerd.wire.properties import Properties
from brokerd.wire.values import Float32, Int8, Int64, Timestamp, UInt8

VALUES = st.sampled_from([None, True, 1, 1.0, "1", b"1", [1], {"n": 1}, {"n": True}, ""])
TABLES = st.dictionaries(st.sampled_from(["a", "b", "c", "x-a", "x-b"]), VALUES, max_size=5)
MATCHES = st.sampled_from([{}, *({"x-match": m} for m in ("all", "any", "all-with-x", "any-with-x"))])


def takes(arguments, headers):
    exchange, (queue,) = HeadersExchange("x"), queues(1)
    exchange.bind(queue, "", arguments)
    return queue in exchange.destinations("", lambda: Properties(headers=headers))


@pytest.mark.parametrize(
    ("headers", "all_", "any_", "all_with_x", "any_with_x"),
    [
        (None, False, False, False, False),
        ({}, False, False, False, False),
        ({"a": 1}, False, True, False, True),
        ({"a": 2}, False, False, False, False),
        ({"a": 1, "b": "2"}, True, True, False, True),
        ({"a": 1, "b": 2}, False, True, False, True),
        ({"x-c": 3}, False, False, False, True),
        ({"a": 1, "b": "2", "x-c": 3}, True, True, True, True),
        ({"a": 1, "b": "2", "x-c": 4, "d": 5}, True, True, False, True),
        ({"x-match": "all"}, False, False, False, False),
    ],
)
def test_x_match_counts_as_the_table_says(headers, all_, any_, all_with_x, any_with_x):
    asked = {"a": 1, "b": "2", "x-c": 3}
    kinds = ("all", "any", "all-with-x", "any-with-x")
    assert [takes({"x-match": kind, **asked}, headers) for kind in kinds] == [all_, any_, all_with_x, any_with_x]
    assert takes(asked, headers) is all_


@pytest.mark.parametrize("headers", [None, {}, {"a": 1}])
@pytest.mark.parametrize(("match", "expected"), [("all", True), ("any", False), ("all-with-x", True)])
def test_all_of_nothing_is_every_message_and_any_of_nothing_is_none(headers, match, expected):
    assert takes({"x-match": match}, headers) is expected
    if match != "all-with-x":
        assert takes({"x-match": match, "x-ignored": 1}, headers) is expected


@pytest.mark.parametrize("value", [None, 0, False, "", [], {}, b"\xff"])
def test_a_void_argument_asks_only_that_the_header_is_there(value):
    assert takes({"a": None}, {"a": value})
    assert not takes({"a": None}, {"b": value})


@pytest.mark.parametrize(("one", "other"), [(1, True), (0, False), (1, 1.5), ("1", 1), ("a", b"a"), ([1], [True])])
def test_values_of_different_types_are_different(one, other):
    assert takes({"a": one}, {"a": one})
    assert not takes({"a": one}, {"a": other})
    assert not takes({"a": other}, {"a": one})


@settings(max_examples=300)
@given(bindings=st.lists(st.tuples(MATCHES, TABLES), max_size=12), headers=st.none() | TABLES)
def test_the_index_finds_what_asking_each_binding_finds(bindings, headers):
    exchange, ends = HeadersExchange("x"), queues(len(bindings))
    for end, (match, table) in zip(ends, bindings, strict=True):
        exchange.bind(end, "ignored", match | table)
    expected = {
        end for end, (match, table) in zip(ends, bindings, strict=True) if headers_match(match | table, headers)
    }
    assert set(exchange.destinations("", lambda: Properties(headers=headers))) == expected


@pytest.mark.parametrize(
    ("match", "text"),
    [
        ("some", 'Invalid x-match field value <<"some">>; expected all, any, all-with-x, or any-with-x'),
        ("é", 'Invalid x-match field value <<"é"/utf8>>; expected all, any, all-with-x, or any-with-x'),
        (b"\xff\x00", "Invalid x-match field value <<255,0>>; expected all, any, all-with-x, or any-with-x"),
        (5, "Invalid x-match field type signedint (value 5); expected longstr"),
        (1 << 40, f"Invalid x-match field type long (value {1 << 40}); expected longstr"),
        (True, "Invalid x-match field type bool (value true); expected longstr"),
        (None, "Invalid x-match field type void (value undefined); expected longstr"),
    ],
)
def test_another_x_match_is_refused_in_rabbitmqs_words(match, text):
    with pytest.raises(PreconditionFailed) as refusal:
        takes({"x-match": match}, None)
    assert refusal.value.reply_text == f"PRECONDITION_FAILED - {text}"


def test_bindings_that_ask_for_the_same_headers_are_one_table():
    exchange, ends = HeadersExchange("x"), queues(1000)
    for number, end in enumerate(ends):
        exchange.bind(end, "", {"paid": True, "order": number})
    (shape,) = exchange._shapes.values()
    assert len(shape.by_values) == 1000
    assert exchange.destinations("", lambda: Properties(headers={"paid": True, "order": 7})) == [ends[7]]


def test_a_message_looks_only_at_shapes_that_share_a_rare_header_with_it():
    exchange, ends = HeadersExchange("x"), queues(1000)
    for number, end in enumerate(ends):
        exchange.bind(end, "", {"paid": True, f"order-{number}": number})
    assert max(map(len, exchange.asked.shapes_of.values())) == 1
    assert exchange.destinations("", lambda: Properties(headers={"paid": True, "order-7": 7})) == [ends[7]]


@pytest.mark.parametrize("one", [5, UInt8(5), Int64(5), Timestamp(5)])
def test_the_width_of_a_number_makes_no_difference(one):
    for other in (5, Int8(5), Int64(5), Timestamp(5)):
        assert takes({"a": one}, {"a": other})
        assert takes({"a": one, "x-match": "any"}, {"a": other})
    assert not takes({"a": one}, {"a": True})
    assert takes({"a": Float32(1.5)}, {"a": 1.5})
    assert takes({"a": [one]}, {"a": [5]})


@pytest.mark.parametrize(("one", "other"), [
    (1, 1.0), (Int8(-1), Float32(-1.0)), (0, -0.0), (Timestamp(1 << 63), 2.0**63), (-(1 << 63), -(2.0**63)),
    (1 << 53, 2.0**53),
])  # fmt: skip
def test_a_whole_number_is_equal_to_a_float_of_its_value(one, other):
    assert takes({"a": one}, {"a": other})
    assert takes({"a": other}, {"a": one})
    assert takes({"a": other, "x-match": "any"}, {"a": one})


@pytest.mark.parametrize(("one", "other"), [
    (1, 1.5), ((1 << 53) + 1, 2.0**53), ((1 << 63) - 1, 2.0**63), (Timestamp(1 << 63), 2.0**63 + 2048), (1, True),
    (1.0, True), (1, "1"), ([1], [1.0]),
])  # fmt: skip
def test_a_number_is_not_equal_to_what_only_looks_like_it(one, other):
    assert not takes({"a": one}, {"a": other})
    assert not takes({"a": other}, {"a": one})
