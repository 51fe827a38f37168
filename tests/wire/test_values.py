"""Field values, tables and strings: what is written can be read, and what is malformed is refused with its place."""

import re
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd import plane
from brokerd.errors import SyntaxError_
from brokerd.wire import values
from brokerd.wire.values import decode_table, encode_table


def table_of(value_octets: bytes, name: bytes = b"k") -> bytes:
    field = bytes((len(name),)) + name + value_octets
    return len(field).to_bytes(4) + field


SAMPLES = [  # type octet and octets, value, its Python type, RabbitMQ's name of the type
    (b"t\x01", True, bool, "bool"),
    (b"t\x00", False, bool, "bool"),
    (b"b\xff", -1, values.Int8, "byte"),
    (b"B\xff", 255, values.UInt8, "unsignedbyte"),
    (b"s\xff\xfe", -2, values.Int16, "short"),
    (b"u\xff\xfe", 65534, values.UInt16, "unsignedshort"),
    (b"I\xff\xff\xff\xfd", -3, int, "signedint"),
    (b"i\xff\xff\xff\xfd", 4294967293, values.UInt32, "unsignedint"),
    (b"l" + b"\0" * 7 + b"\x05", 5, values.Int64, "long"),
    (b"f\x3f\x80\0\0", 1.0, values.Float32, "float"),
    (b"d\x3f\xf8" + b"\0" * 6, 1.5, float, "double"),
    (b"D\x02\0\0\0\x96", Decimal("1.50"), Decimal, "decimal"),
    (b"D\x01\xff\xff\xff\xff", Decimal("-0.1"), Decimal, "decimal"),
    (b"T\xff" + b"\0" * 7, 255 << 56, values.Timestamp, "timestamp"),
    (b"S\0\0\0\x02\xc3\xa9", "é", str, "longstr"),
    (b"S\0\0\0\x01\xff", "\udcff", str, "longstr"),
    (b"x\0\0\0\x02\0\xff", b"\0\xff", bytes, "binary"),
    (b"V", None, type(None), "void"),
    (b"A\0\0\0\x03Vt\x01", [None, True], list, "array"),
    (b"F\0\0\0\x04\x01nb\x01", {"n": 1}, dict, "table"),
]


@pytest.mark.parametrize(("octets", "value", "kind", "name"), SAMPLES)
def test_each_type_is_read_as_itself_and_written_as_it_was(octets, value, kind, name):
    table, at = decode_table(table_of(octets))
    assert at == len(table_of(octets))
    assert table == {"k": value}
    assert type(table["k"]) is kind
    assert values.type_name(table["k"]) == name
    assert encode_table(table) == table_of(octets)


@pytest.mark.parametrize("octets", [sample[0] for sample in SAMPLES])
def test_a_table_cut_off_anywhere_is_refused(octets):
    whole = table_of(octets)
    for end in range(len(whole)):
        with pytest.raises(SyntaxError_, match=r"octet \d+"):
            decode_table(whole[:end])


@pytest.mark.parametrize("octets", [sample[0] for sample in SAMPLES])
def test_a_value_that_leaves_its_table_is_refused_even_if_octets_follow(octets):
    whole = table_of(octets)
    for missing in range(1, len(whole) - 4):
        shorter = (len(whole) - 4 - missing).to_bytes(4) + whole[4:] + b"\0" * 300
        with pytest.raises(SyntaxError_, match=r"octet \d+"):
            decode_table(shorter)


@pytest.mark.parametrize("octets", [sample[0] for sample in SAMPLES])
def test_octets_before_and_behind_a_table_are_not_looked_at(octets):
    whole = table_of(octets)
    table, at = decode_table(b"\xffhead" + whole + b"tail", 5)
    assert at == 5 + len(whole)
    assert table == decode_table(whole)[0]


@pytest.mark.parametrize("at", [0, 1, 4, 5])
def test_an_empty_table_must_be_whole_too(at):
    with pytest.raises(SyntaxError_):
        decode_table(b"\0" * (at + 3), at)
    assert decode_table(b"\0" * (at + 4), at) == ({}, at + 4)


def test_capital_l_is_read_as_rabbitmq_does_and_written_as_small_l():
    table, _ = decode_table(table_of(b"L" + b"\xff" * 8))
    assert table == {"k": -1}
    assert encode_table(table) == table_of(b"l" + b"\xff" * 8)


def test_of_two_fields_of_one_name_the_first_counts():
    octets = b"\x01kb\x01\x01kb\x02"
    assert decode_table(len(octets).to_bytes(4) + octets)[0] == {"k": 1}


@pytest.mark.parametrize("kind", sorted(set(range(256)) - set(b"tbBsuUIilLfdDTSxAFV")))
def test_an_unknown_type_is_refused_with_its_octet(kind):
    with pytest.raises(SyntaxError_, match=f"type {kind:#04x} at octet 6"):
        decode_table(table_of(bytes((kind,)) + b"\0" * 8))


def nested_octets(kind: bytes, depth: int) -> bytes:
    """A table with so many tables or arrays inside each other in it."""
    inner = b""
    for _ in range(depth):
        inner = kind + len(inner).to_bytes(4) + inner if kind == b"A" else kind + table_of(inner or b"V")
    return table_of(inner or b"V")


@pytest.mark.parametrize("kind", [b"A", b"F"])
def test_nesting_ends_at_its_limit_and_not_before(kind):
    decode_table(nested_octets(kind, values.DEPTH_MAX))
    with pytest.raises(SyntaxError_, match="more than 64"):
        decode_table(nested_octets(kind, values.DEPTH_MAX + 1))
    with pytest.raises(SyntaxError_, match="more than 64"):
        decode_table(nested_octets(kind, 5000))


def test_the_plane_takes_headers_exactly_as_deep_as_they_can_be_read():
    text = (Path(plane.__file__).parent / "hot.h").read_text()
    assert re.findall(r"#define PROPERTY_DEPTH (\d+)", text) == [str(values.DEPTH_MAX)]


def test_each_type_that_the_plane_takes_can_be_read():
    text = (Path(plane.__file__).parent / "hot.h").read_text()
    taken = re.findall(r"case '(\w)'", text.split("static int value_is_whole", 1)[1].split("default:", 1)[0])
    assert len(taken) > 15
    for kind in taken:
        value = kind.encode() + bytes(8)[:{"V": 0, "t": 1, "b": 1, "B": 1, "s": 2, "u": 2, "U": 2, "D": 5}.get(
            kind, 8 if kind in "lLdT" else 4)]
        table, _ = decode_table(table_of(value))
        assert decode_table(encode_table(table))[0] == table


def test_what_is_too_deep_to_be_read_is_not_written_either():
    table: dict = {}
    for _ in range(values.DEPTH_MAX):
        table = {"k": table}
    assert decode_table(encode_table(table))[0] == table
    with pytest.raises(ValueError, match="more than 64"):
        encode_table({"k": table})


@pytest.mark.parametrize(
    ("number", "kind"), [(-(1 << 31), b"I"), ((1 << 31) - 1, b"I"), (1 << 31, b"l"), (-1 << 63, b"l")]
)
def test_a_plain_int_takes_the_smaller_of_int32_and_int64(number, kind):
    octets = encode_table({"k": number})
    assert octets[6:7] == kind
    assert decode_table(octets)[0] == {"k": number}
    assert values.type_name(number) == ("signedint" if kind == b"I" else "long")


@pytest.mark.parametrize(
    "value",
    [1 << 63, values.Int8(128), values.UInt32(-1), values.Timestamp(-1), values.Float32(1e300), Decimal("1e30"),
     Decimal("NaN"), Decimal("1e-256"), Decimal(1 << 31), Decimal("1e999999")],
)  # fmt: skip
def test_a_number_that_no_type_holds_is_a_value_error(value):
    with pytest.raises(ValueError):
        encode_table({"k": value})


def test_a_value_without_a_type_is_a_type_error():
    with pytest.raises(TypeError, match="no field value type for object"):
        encode_table({"k": object()})


def test_a_decimal_without_places_is_written_out():
    assert decode_table(encode_table({"k": Decimal("1E+2")}))[0] == {"k": Decimal(100)}


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1).map(values.Int64),
    st.integers(0, (1 << 64) - 1).map(values.Timestamp),
    st.integers(0, 65535).map(values.UInt16),
    st.integers(-32768, 32767).map(values.Int16),
    st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(values.Float32),
    st.builds(
        lambda unscaled, places: Decimal(unscaled).scaleb(-places),
        st.integers(-(1 << 31), (1 << 31) - 1), st.integers(0, 255),
    ),
    texts,
    st.binary(max_size=40),
    st.binary(max_size=40).map(lambda octets: octets.decode("utf-8", "surrogateescape")),
)  # fmt: skip
names = st.binary(max_size=255).map(lambda octets: octets.decode("utf-8", "surrogateescape"))
tables = st.dictionaries(
    names,
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4)),
    max_size=6,
)


def typed(value: object) -> object:
    if isinstance(value, dict):
        return {name: typed(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [typed(inner) for inner in value]
    return type(value), repr(value)


@given(tables)
def test_a_table_comes_back_with_every_type(table):
    octets = encode_table(table)
    decoded, at = decode_table(octets)
    assert at == len(octets)
    assert typed(decoded) == typed(table)
    assert list(decoded) == list(table)


@given(st.binary(max_size=200))
def test_any_octets_are_a_table_or_a_syntax_error(octets):
    try:
        table, at = decode_table(len(octets).to_bytes(4) + octets)
    except SyntaxError_:
        return
    assert at == len(octets) + 4
    assert typed(decode_table(encode_table(table))[0]) == typed(table)


@given(st.binary(max_size=255), st.binary(max_size=9))
def test_a_short_string_comes_back_octet_by_octet(octets, tail):
    whole = bytes((len(octets),)) + octets
    text, at = values.read_shortstr(whole + tail, 0)
    assert at == len(whole)
    assert values.encode_shortstr(text) == whole
    for end in range(len(whole)):
        with pytest.raises(SyntaxError_, match="short string"):
            values.read_shortstr(whole[:end], 0)


@given(st.binary(max_size=300), st.binary(max_size=9))
def test_a_long_string_comes_back_octet_by_octet(octets, tail):
    whole = values.encode_longstr(octets)
    assert values.read_longstr(b"?" + whole + tail, 1) == (octets, 1 + len(whole))
    for end in range(len(whole)):
        with pytest.raises(SyntaxError_, match="long string"):
            values.read_longstr(whole[:end], 0)


def test_a_short_string_of_256_octets_is_a_value_error():
    assert len(values.encode_shortstr("é" * 127 + "x")) == 256
    with pytest.raises(ValueError, match="at most 255 octets, not 256"):
        values.encode_shortstr("é" * 128)
