"""The modulus hash exchange: one destination a key, the same after a restart."""

from collections import Counter

import pytest
from tests.exchanges.destinations import queues

from brokerd.exchanges.modulus_hash import ModulusHashExchange
from brokerd.wire.properties import Properties

KEYS = [f"key{number}" for number in range(2000)]


def bound(order):
    exchange, ends = ModulusHashExchange("x"), queues(len(order))
    for number in order:
        exchange.bind(ends[number], "whatever")
    return exchange


def targets(exchange):
    found = [exchange.destinations(key, Properties) for key in KEYS]
    return [name for (queue,) in found for name in [queue.name]]


def test_keys_are_shared_out_evenly():
    for count in Counter(targets(bound([0, 1, 2, 3]))).values():
        assert count == pytest.approx(len(KEYS) / 4, rel=0.15)


def test_neither_time_nor_the_order_of_binding_makes_a_difference():
    assert targets(bound([0, 1, 2])) == targets(bound([2, 0, 1]))


def test_a_destination_bound_twice_has_one_share_and_leaves_with_its_last_binding():
    exchange, (one, two) = ModulusHashExchange("x"), queues(2)
    assert exchange.destinations("k", Properties) == ()
    for queue, key in ((one, "a"), (one, "b"), (two, "")):
        exchange.bind(queue, key)
    once = targets(exchange)
    exchange.unbind(one, "a")
    assert targets(exchange) == once
    exchange.unbind(one, "b")
    assert set(targets(exchange)) == {"q1"}


def test_the_routing_key_alone_decides():
    assert ModulusHashExchange.key_decides is True
