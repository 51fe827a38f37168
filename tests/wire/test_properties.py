"""The basic content header."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import SyntaxError_, UnexpectedFrame
from brokerd.wire.properties import FIELDS, Properties, decode_header, encode_header
from brokerd.wire.values import Timestamp

SOME = {"shortstr": "té", "table": {"k": 1, "n": {"deep": [None]}}, "octet": 2, "timestamp": Timestamp(1 << 40)}
ALL = {name.replace("-", "_"): SOME[domain] for name, domain in FIELDS}


@pytest.mark.parametrize("name", ALL)
def test_each_property_comes_back_alone(name):
    properties = Properties(**{name: ALL[name]})
    payload = encode_header(77, properties)
    assert decode_header(payload) == (77, properties)
    assert decode_header(payload)[1].present() == {name: ALL[name]}


def test_the_flags_stand_where_the_specification_has_them():
    assert encode_header(5, Properties(content_type="a", delivery_mode=2)) == (
        b"\x00\x3c\x00\x00" + (5).to_bytes(8) + b"\x90\x00" + b"\x01a\x02"
    )
    assert encode_header(0) == b"\x00\x3c" + b"\0" * 12


def test_a_header_cut_off_anywhere_is_refused():
    payload = encode_header(1, Properties(**ALL))
    for end in range(len(payload)):
        with pytest.raises(SyntaxError_, match=r"cut off|octets long"):
            decode_header(payload[:end])


def test_octets_behind_the_last_property_are_refused():
    with pytest.raises(SyntaxError_, match="2 octets too many, from octet 14 on"):
        decode_header(encode_header(1) + b"ab")


def test_the_text_names_the_property():
    with pytest.raises(SyntaxError_, match="property headers: unknown field value type 0x5a at octet 20"):
        decode_header(b"\x00\x3c\0\0" + b"\0" * 8 + b"\x20\0" + b"\0\0\0\x03\x01kZ")


def test_the_header_of_another_class_or_weight_is_unexpected():
    with pytest.raises(UnexpectedFrame, match="expected content header for class 60, got one for class 50 instead"):
        decode_header(b"\x00\x32" + b"\0" * 12)
    with pytest.raises(UnexpectedFrame, match="weight 0, got 1"):
        decode_header(b"\x00\x3c\x00\x01" + b"\0" * 10)


def test_the_two_lowest_flags_are_ignored():
    assert decode_header(b"\x00\x3c" + b"\0" * 11 + b"\x03") == (0, Properties())


@pytest.mark.parametrize("value", [{"priority": 256}, {"timestamp": -1}, {"user_id": "u" * 256}])
def test_a_value_its_property_cannot_hold_is_a_value_error(value):
    with pytest.raises(ValueError, match=f"property {next(iter(value))}"):
        encode_header(0, Properties(**value))


OF_DOMAIN = {
    "shortstr": st.binary(max_size=255).map(lambda octets: octets.decode("utf-8", "surrogateescape")),
    "table": st.dictionaries(
        st.text(max_size=9).filter(str.isprintable), st.integers(-9, 9) | st.booleans(), max_size=4
    ),
    "octet": st.integers(0, 255),
    "timestamp": st.integers(0, (1 << 64) - 1),
}


@given(
    st.integers(0, (1 << 64) - 1),
    st.fixed_dictionaries({}, optional={name.replace("-", "_"): OF_DOMAIN[domain] for name, domain in FIELDS}),
)
def test_any_properties_come_back(size, fields):
    assert decode_header(encode_header(size, Properties(**fields))) == (size, Properties(**fields))


@given(st.binary(max_size=120))
def test_any_octets_are_a_header_or_an_error_of_ours(octets):
    try:
        decode_header(b"\x00\x3c\x00\x00" + octets)
    except SyntaxError_:
        pass
