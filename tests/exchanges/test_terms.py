"""Values as Erlang prints them; the answers are a running RabbitMQ's."""

import pytest

from brokerd.exchanges.terms import char_list, format_amqp_term
from brokerd.wire.values import Int64


@pytest.mark.parametrize(("value", "shown"), [
    ("", "<<>>"), ("abc", '<<"abc">>'), ('a"b\\', '<<"a\\"b\\\\">>'), ("a\nb", '<<"a\\nb">>'), ("é", '<<"é"/utf8>>'),
    ("\x01", "<<1>>"), ("\u0663", "<<217,163>>"), ("\udcff", "<<255>>"), (b"\xff\x00", "<<255,0>>"), (5, "5"),
    (Int64(-5), "-5"), (True, "true"), (None, "undefined"), ([1, "a"], '[{signedint,1},{longstr,<<"a">>}]'),
    ({"k": True}, '[{<<"k">>,bool,true}]'), ([], "[]"),
])
def test_a_value_is_shown_as_erlang_shows_it(value, shown):
    assert format_amqp_term(value) == shown


@pytest.mark.parametrize(("text", "shown"), [
    ("s", '"s"'), ('"q', '"\\"q"'), ("\n", '"\\n"'), ("é", '"é"'), ("\x01", "[1]"), ("a\x01", "[97,1]"),
])
def test_a_list_of_characters_is_shown_as_text_where_all_of_them_can_be(text, shown):
    assert char_list(text) == shown
