"""The walk over exchanges bound to exchanges, and the default exchange."""

from itertools import pairwise

import pytest
from tests.exchanges.destinations import queues

from brokerd.errors import AccessRefused
from brokerd.exchanges import DefaultExchange, DirectExchange, FanoutExchange, HeadersExchange, TopicExchange, route


def never():
    raise AssertionError("headers were read")


def test_queues_come_once_and_in_the_order_first_met():
    first, second, (one, two, three) = FanoutExchange("1"), FanoutExchange("2"), queues(3)
    first.bind(second, "")
    for queue in (two, one):
        first.bind(queue, "")
    for queue in (one, three, two):
        second.bind(queue, "")
    assert route(first, "k", never) == ((two, one, three), True)


def test_a_cycle_of_exchanges_ends():
    ring, (queue,) = [FanoutExchange(str(number)) for number in range(5)], queues(1)
    for number, exchange in enumerate(ring):
        exchange.bind(ring[(number + 1) % 5], "")
        exchange.bind(exchange, "")
    ring[4].bind(queue, "")
    assert route(ring[0], "", never) == ((queue,), True)


def test_a_long_chain_of_exchanges_needs_no_stack():
    chain, (queue,) = [FanoutExchange(str(number)) for number in range(5000)], queues(1)
    for one, other in pairwise(chain):
        one.bind(other, "")
    chain[-1].bind(queue, "")
    assert route(chain[0], "", never)[0] == (queue,)


def test_nothing_bound_is_no_queue_and_may_be_remembered():
    assert route(TopicExchange("x"), "k", never) == ((), True)


def test_headers_are_decoded_once_and_the_answer_is_not_to_be_remembered():
    first, (queue,) = DirectExchange("1"), queues(1)
    decoded = []
    for name in ("h1", "h2"):
        headers = HeadersExchange(name)
        headers.bind(queue, "", {"a": 1})
        first.bind(headers, "k")
    assert route(first, "k", lambda: decoded.append(1) or {"a": 1}) == ((queue,), False)
    assert decoded == [1]


def test_a_headers_exchange_off_the_way_does_not_keep_the_answer_from_being_remembered():
    first = DirectExchange("1")
    first.bind(HeadersExchange("h"), "other")
    assert route(first, "k", never) == ((), True)


def test_a_message_without_headers_passes_a_headers_exchange():
    exchange, (every, some) = HeadersExchange("h"), queues(2)
    exchange.bind(every, "")
    exchange.bind(some, "", {"a": 1})
    assert route(exchange, "", lambda: None) == ((every,), False)


@pytest.mark.parametrize("as_callable", [False, True])
def test_the_default_exchange_routes_to_the_queue_of_that_name(as_callable):
    (queue,) = queues(1)
    named = {"q0": queue}
    default = DefaultExchange(named.get if as_callable else named)
    assert route(default, "q0", never) == ((queue,), True)
    assert route(default, "q1", never) == ((), True)
    assert (default.name, default.type, default.durable) == ("", "direct", True)


@pytest.mark.parametrize("verb", ["bind", "unbind"])
def test_the_default_exchange_cannot_be_bound(verb):
    with pytest.raises(AccessRefused) as refusal:
        getattr(DefaultExchange({}), verb)(queues(1)[0], "q0")
    assert refusal.value.reply_text == "ACCESS_REFUSED - operation not permitted on the default exchange"
