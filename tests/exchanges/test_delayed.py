"""What an exchange that delays asks of its arguments, and when a message's headers want it delivered."""

from decimal import Decimal

import pytest
from tests.exchanges.destinations import Queue

from brokerd.errors import PreconditionFailed
from brokerd.exchanges import DirectExchange, HeadersExchange, Intercepted, TopicExchange
from brokerd.exchanges.delayed import (
    DUE_MS_MAX,
    DelayedExchange,
    DelayedExchangeByItsOtherName,
    delay_of,
    delayed_class,
    due_of,
    time_of,
)
from brokerd.wire.properties import Properties
from brokerd.wire.values import Float32, Int8, Int64, Timestamp, UInt32

NOW_MS = 1_700_000_000_000


# --- when

@pytest.mark.parametrize(("value", "delay"), [
    (1000, 1000), (Int8(5), 5), (UInt32(1 << 31), 1 << 31), (Int64(1 << 40), 1 << 40), (-5, -5), (0, None),
    ("1500", 1500), ("+7", 7), ("-7", -7), ("1.5", None), ("", None), ("x", None), ("1_0", None), (" 1", None),
    ("--1", None), ("\u0663", None), ("9" * 19, DUE_MS_MAX), ("9" * 20, None), ("9" * 5000, None),
    (2.9, 2), (Float32(2.9), 2), (Decimal("3.7"), 3), (float("nan"), None), (float("inf"), None),
    (Decimal("NaN"), None), (True, None), (Timestamp(5), None), (None, None), ([1], None), ({}, None), (b"5", None),
])
def test_a_delay_is_any_whole_number_a_decimal_string_or_a_fraction_cut_off(value, delay):
    assert (delay_of({"x-delay": value}) or None) == delay


@pytest.mark.parametrize(("value", "ms"), [
    (NOW_MS, NOW_MS), (Int64(NOW_MS), NOW_MS), (Timestamp(1_700_000_000), NOW_MS), (0, 0),
    ("2023-11-14T22:13:20Z", NOW_MS), ("2023-11-14T22:13:20", NOW_MS), ("2023-11-15T00:13:20+02:00", NOW_MS),
    ("2023-11-14T22:13:20.250Z", NOW_MS + 250), ("2023-11-14", NOW_MS - 80_000_000),
])
def test_a_time_is_milliseconds_a_timestamp_or_iso_8601(value, ms):
    assert time_of(value) == ms


@pytest.mark.parametrize("value", ["soon", "", "2023-13-01", True, 1.5, [], {}, b"1", "1700000000000"])
def test_what_is_no_time_is_refused(value):
    with pytest.raises(PreconditionFailed, match="invalid header 'x-deliver-at': expected milliseconds"):
        due_of({"x-deliver-at": value}, NOW_MS)


@pytest.mark.parametrize(("headers", "due"), [
    (None, None), ({}, None), ({"x-delay": 5}, 105), ({"x-delay": 0}, None), ({"x-delay": -5}, None),
    ({"x-deliver-at": 300}, 300), ({"x-deliver-at": 100}, None), ({"x-deliver-at": 99}, None),
    ({"x-delay": 5, "x-deliver-at": 300}, 300), ({"x-delay": 5, "x-deliver-at": 1}, None),
    ({"x-delay": 5, "x-deliver-at": None}, 105), ({"x-delay": 1 << 62}, (1 << 62) + 100),
    ({"x-delay": DUE_MS_MAX}, DUE_MS_MAX),
])
def test_a_message_is_due_when_its_headers_say_so(headers, due):
    assert due_of(headers, 100) == due


# --- the exchange

@pytest.mark.parametrize("arguments", [{}, {"x-delayed-type": 5}, {"x-delayed-type": None}])
def test_a_delayed_exchange_needs_an_inner_type(arguments):
    with pytest.raises(PreconditionFailed, match="^Invalid argument, 'x-delayed-type' must be an existing"):
        DelayedExchange("x", arguments=arguments)


def test_an_unknown_inner_type_is_refused_as_any_unknown_type():
    with pytest.raises(PreconditionFailed, match="unknown exchange type 'nope'"):
        DelayedExchange("x", arguments={"x-delayed-type": "nope"})


def test_the_inner_type_routes_and_checks_bindings():
    direct = DelayedExchange("x", arguments={"x-delayed-type": "direct"})
    queue = Queue("a")
    binding = direct.bind(queue, "k")
    assert list(direct.destinations("k", Properties)) == [queue]
    assert not direct.destinations("other", Properties)
    assert binding in direct.bindings()
    direct.unbind(queue, "k")
    assert not direct.destinations("k", Properties)
    headers = DelayedExchange("x", arguments={"x-delayed-type": "headers"})
    with pytest.raises(PreconditionFailed):
        headers.bind(queue, "", {"x-match": "some"})
    assert (direct.matches_keys, headers.matches_keys) == (DirectExchange.matches_keys, HeadersExchange.matches_keys)
    assert direct.intercepts.names == ("x-delay", "x-deliver-at")
    assert (direct.key_decides, direct.asked) == (True, None)
    assert (headers.key_decides, headers.asked) != (True, None)


def test_the_same_type_has_two_names_and_any_type_can_be_made_to_delay():
    assert (DelayedExchange.type, DelayedExchangeByItsOtherName.type) == ("x-delayed-message", "x-delayed-exchange")
    cls = delayed_class(TopicExchange)
    assert cls is delayed_class(TopicExchange)
    assert delayed_class(DelayedExchange) is DelayedExchange
    topic = cls("t", arguments={"x-delayed-exchange": True})
    queue = Queue("a")
    topic.bind(queue, "a.*")
    assert (topic.type, list(topic.destinations("a.b", Properties))) == ("topic", [queue])
    assert isinstance(topic, DelayedExchange)
    assert list(topic.destinations_of_keys(("a.b", "a.c", "b"), Properties)) == [queue]


def test_an_inner_type_remembers_as_much_of_its_patterns_as_an_exchange_of_that_type():
    delayed, plain = DelayedExchange("x", arguments={"x-delayed-type": "topic"}), TopicExchange("y")
    for exchange in (delayed, plain):
        for number in range(3**4):
            exchange.bind(Queue("a"), ".".join("#*a"[number // 3**at % 3] for at in range(4)))
        exchange.destinations(".".join("a" * 50), Properties)
    assert delayed._inner._memory._most == plain._memory._most


def test_without_a_holder_nothing_is_held_back():
    exchange = DelayedExchange("x", arguments={"x-delayed-type": "fanout"})
    assert exchange.intercept("k", lambda: Properties(headers={"x-delay": 5})) is None


def test_the_holder_is_asked_for_every_message_with_its_key():
    asked = []

    class Holder:
        def hold(self, *question):
            asked.append(question)
            return Intercepted(("somewhere",))

    exchange = DelayedExchange("x", arguments={"x-delayed-type": "fanout"})
    exchange.holder = Holder()
    assert exchange.intercept("k", Properties) == Intercepted(("somewhere",), None)
    assert asked == [(exchange, "k", Properties)]
