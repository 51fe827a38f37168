"""The random exchange: every binding has its turn, and only those that are there."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.exchanges.destinations import queues

from brokerd.exchanges import exchange_type
from brokerd.wire.properties import Properties

TYPES = ["x-random", "x-local-random"]


def count(exchange, messages=2000):
    return Counter(queue.name for _ in range(messages) for queue in exchange.destinations("k", Properties))


@pytest.mark.parametrize("kind", TYPES)
def test_each_message_goes_to_one_destination_and_all_get_about_the_same(kind):
    exchange = exchange_type(kind)("x")
    assert exchange.destinations("k", Properties) == ()
    for queue in queues(4):
        exchange.bind(queue, "ignored")
    found = count(exchange)
    assert sum(found.values()) == 2000
    assert all(350 < share < 650 for share in found.values())
    assert exchange.key_decides is False


def test_a_destination_bound_twice_is_met_twice_as_often():
    exchange, (one, two) = exchange_type("x-random")("x"), queues(2)
    for queue, key in ((one, "a"), (one, "b"), (two, "a")):
        exchange.bind(queue, key)
    assert 1150 < count(exchange)["q0"] < 1500


@given(leaving=st.lists(st.integers(0, 9), unique=True))
def test_whoever_has_left_gets_nothing(leaving):
    exchange, ends = exchange_type("x-random")("x"), queues(10)
    for queue in ends:
        exchange.bind(queue, "")
    for number in leaving:
        exchange.unbind(ends[number], "")
    assert set(count(exchange, 300)) <= {queue.name for queue in ends} - {f"q{number}" for number in leaving}
    assert len(exchange._row) == len(exchange._places) == 10 - len(leaving)
