"""SQL expressions: what is wrong says where; what is too large is refused; nothing else escapes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd import plane
from brokerd.queues.expressions import CHARACTERS_MAX, PROGRAM_MAX, ExpressionFault, compile_expression


@pytest.mark.parametrize(("text", "reason"), [
    (5, "it must be a text"), ("", "line 1, column 1: a value is wanted, but it ends"),
    ("a = ", "line 1, column 5: a value is wanted, but it ends"),
    ("a = 1 b", "line 1, column 7: the end is wanted, not 'b'"),
    ("a = 1\n AND ;", "line 2, column 6: ';' has no meaning here"),
    ("a = 'x", "line 1, column 5: a text without its end"),
    ('a = 1 AND "b = 2', "line 1, column 11: a name without its end"),
    ("a = 1\n /* b", "line 2, column 2: a comment without its end"),
    ("a NOT 5", "line 1, column 7: IN, LIKE or BETWEEN is wanted, not '5'"),
    ("a LIKE 5", "line 1, column 8: a text in single quotes is wanted, not '5'"),
    ("a LIKE 'x' ESCAPE 'ab'", "line 1, column 19: ESCAPE takes one character"),
    ("a LIKE '!x' ESCAPE '!'", "line 1, column 8: the escape stands before %, _ or itself only"),
    ("a IN ()", "line 1, column 7: a value is wanted, not ')'"),
    ("(a = 1", "line 1, column 7: ')' is wanted, but it ends"),
    ("a IS 5", "line 1, column 6: 'NULL' is wanted, not '5'"),
    ("a BETWEEN 1 OR 2", "line 1, column 13: 'AND' is wanted"),
    ("properties.nothing = 1", "line 1, column 12: 'nothing' is no property: there are content_type"),
    ("n > 1 AND size = '5'", "line 1, column 11: size is a number: it never compares with a text"),
    ("5 < routing_key", "line 1, column 1: routing_key is a text: it never compares with a number"),
    ("p.delivery_mode IN (1, 'x')", "line 1, column 24: delivery_mode is a number: it never compares with a text"),
    ("stored BETWEEN 1 AND '2'", "line 1, column 1: stored is a number: it never compares with a text"),
    ("priority LIKE '1%'", "line 1, column 1: priority is a number: it never compares with a text"),
    ("type = TRUE", "line 1, column 1: type is a text: it never compares with a truth value"),
    ("a = 9223372036854775808", "line 1, column 5: a whole number has at most 64 bits"),
    ("a = 1e999", "line 1, column 5: the number is too large"),
    ("(" * 30 + "a" + ")" * 30, "line 1, column 25: more than 24 conditions within one another"),
    ("a" * (CHARACTERS_MAX + 1), f"{CHARACTERS_MAX + 1} characters, at most {CHARACTERS_MAX}"),
    (f"a IN ({'1,' * 128}1)", "more than 128 values in a list"), ("header('" + "a" * 256 + "')", "at most 255 octets"),
    (" + ".join(["a"] * 1300) + " = 1", "characters, at most"),
    ("(" * 12 + "a" + " BETWEEN 1 AND 2)" * 12, "it is too long"),
])
def test_a_wrong_expression_says_where(text, reason):
    with pytest.raises(ExpressionFault) as fault:
        compile_expression(text)
    assert reason in str(fault.value)


WORDS = st.sampled_from([
    "a", "'x%'", "1", "-2.5", "NULL", "TRUE", "AND", "OR", "NOT", "(", ")", "=", "<>", "<", "+", "-", "*", "/", "%",
    "IN", ",",
    "LIKE", "IS", "BETWEEN", "priority", "header('h')", "properties.type", "\"q\"", "size"])


@given(st.lists(WORDS, max_size=14).map(" ".join) | st.text(max_size=40))
def test_any_text_is_a_program_for_the_plane_or_refused_with_its_place(text):
    program, refused = None, ""
    try:
        program = compile_expression(text)
    except ExpressionFault as fault:
        refused = str(fault)
    if program is None:
        assert refused.startswith("line ")
    else:
        assert 0 < len(program) <= PROGRAM_MAX
        plane.check_filter(program)


@pytest.mark.parametrize("program", [
    b"", b"\x07\x07", b"\x10", b"\x07\x16", b"\x05\x05ab", b"\x63", b"\x07\x23\xff\xff", b"\x07\x23\0\1\x07\x17",
    b"\x07" * 34 + b"\x16" * 33, b"\4\0\1a\x20\0\1\1", b"\x0b\0\2" + bytes(32), b"\x07" * 9000,
])
def test_the_plane_takes_no_program_that_leaves_its_stack_or_its_octets(program):
    with pytest.raises(ValueError, match="octet|stack|nested|one value"):
        plane.check_filter(program)


@given(st.binary(max_size=60))
def test_the_plane_checks_any_octets(octets):
    refused = "unread"
    try:
        plane.check_filter(octets)
    except ValueError as fault:
        refused = str(fault)
    assert refused


@pytest.mark.parametrize("text", [
    "size = 5 + 1", "size = n", "n = 'x'", "type = 'x' OR type IS NULL", "size IN (1, 2.5)", "routing_key LIKE '1%'",
    "exchange BETWEEN 'a' AND 'b'", "offset % 2 = '1'", "type = NULL", "size = offset",
])
def test_what_may_be_true_is_taken(text):
    plane.check_filter(compile_expression(text))
