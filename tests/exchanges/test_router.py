"""The walk over exchanges bound to exchanges, and the default exchange."""

from itertools import pairwise

import pytest
from tests.exchanges.destinations import queues

from brokerd.errors import AccessRefused
from brokerd.exchanges import (
    DefaultExchange,
    DirectExchange,
    FanoutExchange,
    HeadersExchange,
    RecentHistoryExchange,
    Route,
    TopicExchange,
    route,
)
from brokerd.exchanges.random import RandomExchange
from brokerd.wire.properties import Properties


def never():
    raise AssertionError("properties were read")


def plainly(exchange, key, properties=never, **more):
    """The queues, and whether that may be remembered."""
    found = route(exchange, key, properties, **more)
    assert found.with_history == ()
    return found.queues, found.cacheable


def test_queues_come_once_and_in_the_order_first_met():
    first, second, (one, two, three) = FanoutExchange("1"), FanoutExchange("2"), queues(3)
    first.bind(second, "")
    for queue in (two, one):
        first.bind(queue, "")
    for queue in (one, three, two):
        second.bind(queue, "")
    assert plainly(first, "k") == ((two, one, three), True)


def test_a_cycle_of_exchanges_ends():
    ring, (queue,) = [FanoutExchange(str(number)) for number in range(5)], queues(1)
    for number, exchange in enumerate(ring):
        exchange.bind(ring[(number + 1) % 5], "")
        exchange.bind(exchange, "")
    ring[4].bind(queue, "")
    assert plainly(ring[0], "") == ((queue,), True)


def test_a_long_chain_of_exchanges_needs_no_stack():
    chain, (queue,) = [FanoutExchange(str(number)) for number in range(5000)], queues(1)
    for one, other in pairwise(chain):
        one.bind(other, "")
    chain[-1].bind(queue, "")
    assert route(chain[0], "", never)[0] == (queue,)


def test_nothing_bound_is_no_queue_and_may_be_remembered():
    assert plainly(TopicExchange("x"), "k") == ((), True)


def test_what_headers_decide_is_not_to_be_remembered():
    first, (queue,) = DirectExchange("1"), queues(1)
    decoded, properties = [], Properties(headers={"a": 1})
    for name in ("h1", "h2"):
        headers = HeadersExchange(name)
        headers.bind(queue, "", {"a": 1})
        first.bind(headers, "k")
    assert plainly(first, "k", lambda: decoded.append(1) or properties) == ((queue,), False)
    assert decoded == [1, 1]  # It is the caller's to decode once.


def test_a_headers_exchange_off_the_way_does_not_keep_the_answer_from_being_remembered():
    first = DirectExchange("1")
    first.bind(HeadersExchange("h"), "other")
    assert plainly(first, "k") == ((), True)


def test_a_message_without_headers_passes_a_headers_exchange():
    exchange, (every, some) = HeadersExchange("h"), queues(2)
    exchange.bind(every, "")
    exchange.bind(some, "", {"a": 1})
    assert plainly(exchange, "", Properties) == ((every,), False)


@pytest.mark.parametrize("as_callable", [False, True])
def test_the_default_exchange_routes_to_the_queue_of_that_name(as_callable):
    (queue,) = queues(1)
    named = {"q0": queue}
    default = DefaultExchange(named.get if as_callable else named)
    assert plainly(default, "q0") == ((queue,), True)
    assert plainly(default, "q1") == ((), True)
    assert (default.name, default.type, default.durable) == ("", "direct", True)


@pytest.mark.parametrize("verb", ["bind", "unbind"])
def test_the_default_exchange_cannot_be_bound(verb):
    with pytest.raises(AccessRefused) as refusal:
        getattr(DefaultExchange({}), verb)(queues(1)[0], "q0")
    assert refusal.value.reply_text == "ACCESS_REFUSED - operation not permitted on the default exchange"


# --- further keys and alternates

def test_each_of_several_keys_is_matched_at_every_exchange_on_the_way():
    outer, inner, (one, two, three) = DirectExchange("o"), TopicExchange("i"), queues(3)
    outer.bind(one, "a")
    outer.bind(inner, "b")
    inner.bind(two, "*.d")
    inner.bind(three, "a")
    assert plainly(outer, "a", further_keys=("b", "c.d", "a")) == ((one, three, two), False)


def test_a_type_that_reads_no_key_is_asked_once_however_many_there_are():
    class Counting(FanoutExchange):
        asked = 0

        def destinations(self, routing_key, properties):
            Counting.asked += 1
            return super().destinations(routing_key, properties)

    exchange, (queue,) = Counting("x"), queues(1)
    exchange.bind(queue, "")
    assert plainly(exchange, "a", further_keys=("b", "c")) == ((queue,), False)
    assert Counting.asked == 1


def with_alternates(**alternates):
    exchanges = {name: DirectExchange(name) for name in alternates}
    return exchanges, lambda exchange: exchanges.get(alternates[exchange.name])


def test_the_alternate_gets_what_the_exchange_itself_has_no_destination_for():
    exchanges, alternate = with_alternates(a="b", b="c", c=None)
    one, two = queues(2)
    exchanges["a"].bind(one, "k")
    exchanges["c"].bind(two, "other")
    assert plainly(exchanges["a"], "k", alternate=alternate) == ((one,), True)
    assert plainly(exchanges["a"], "other", alternate=alternate) == ((two,), True)
    assert plainly(exchanges["a"], "k", further_keys=("other",), alternate=alternate) == ((one,), False)
    assert plainly(exchanges["a"], "nowhere", alternate=alternate) == ((), True)


def test_an_exchange_bound_that_leads_nowhere_counts_as_a_destination_but_its_own_alternate_is_asked():
    exchanges, alternate = with_alternates(a="b", b=None, dead_end=None, inner="c", c=None)
    one, two = queues(2)
    exchanges["b"].bind(one, "k")
    exchanges["a"].bind(exchanges["dead_end"], "k")
    assert plainly(exchanges["a"], "k", alternate=alternate) == ((), True)
    exchanges["a"].bind(exchanges["inner"], "k")
    exchanges["c"].bind(two, "k")
    assert plainly(exchanges["a"], "k", alternate=alternate) == ((two,), True)


def test_alternates_in_a_circle_end():
    exchanges, alternate = with_alternates(a="b", b="a")
    assert plainly(exchanges["a"], "k", alternate=alternate) == ((), True)


def test_exchanges_that_keep_messages_are_told_of_once_each_wherever_they_stand():
    outer, kept, other = FanoutExchange("o"), RecentHistoryExchange("r"), RecentHistoryExchange("s")
    outer.bind(kept, "")
    outer.bind(kept, "again")
    kept.bind(other, "")
    assert route(outer, "k", never) == Route((), True, (kept, other))


def test_headers_decide_only_where_no_exchange_on_the_way_reads_more():
    first, second, (queue,) = HeadersExchange("1"), HeadersExchange("2"), queues(1)
    first.bind(second, "", {"a": 1})
    second.bind(queue, "", {})
    assert route(first, "", lambda: Properties(headers={"a": 1})).by_headers == (first.asked, second.asked)
    assert route(first, "", Properties).by_headers == (first.asked,)
    assert route(first, "", Properties, further_keys=("k",)).by_headers == ()
    first.bind(RandomExchange("r"), "", {"a": 1})
    assert route(first, "", lambda: Properties(headers={"a": 1})).by_headers == ()
    assert route(first, "", Properties).by_headers == (first.asked,)
