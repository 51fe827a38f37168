"""JSON is read by the faster library, and as json reads it where that one refuses."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd import json_text

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4), max_leaves=20)


@given(values, st.booleans())
def test_a_value_is_read_as_json_reads_it(value, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert json_text.decode(text) == json.loads(text) == value
    assert json_text.decode(text.encode()) == value


@pytest.mark.parametrize("text", ['{"name": "caf\\udce9"}', '"\\ud800"', '["\\udcff\\udcfe", 1]'])
def test_half_of_a_surrogate_pair_is_taken(text):
    assert json_text.decode(text) == json_text.decode(text.encode()) == json.loads(text)


def test_numbers_that_are_none_in_json_are_taken_as_json_takes_them():
    found = json_text.decode("[NaN, Infinity, -Infinity]")
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf]


def test_of_two_values_of_a_name_the_last_one_counts():
    assert json_text.decode('{"a": 1, "a": 2}') == {"a": 2}


@pytest.mark.parametrize("text", ['{"a": 1,\n}', "", "[1 2]", '{"a": tru}', '"\x01"'])
def test_a_fault_is_told_with_line_and_column(text):
    with pytest.raises(json.JSONDecodeError) as fast:
        json_text.decode(text)
    with pytest.raises(json.JSONDecodeError) as plain:
        json.loads(text)
    assert (fast.value.lineno, fast.value.colno, fast.value.msg) == (
        plain.value.lineno, plain.value.colno, plain.value.msg)


def test_octets_that_are_no_text_are_refused():
    with pytest.raises(ValueError, match="utf-8"):
        json_text.decode(b'"\xff"')


def test_what_is_nested_too_deeply_is_refused():
    with pytest.raises(RecursionError):
        json_text.decode("[" * 100_000)
