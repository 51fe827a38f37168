"""The consistent hash exchange: what is hashed, shares by weight, and who moves when a destination comes or goes."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exchanges.destinations import Queue, queues

from brokerd.errors import PreconditionFailed
from brokerd.exchanges import FanoutExchange
from brokerd.exchanges.consistent_hash import ConsistentHashExchange, jump_hash
from brokerd.exchanges.ring import RING_POINTS_MAX
from brokerd.wire.properties import Properties
from brokerd.wire.values import Timestamp

KEYS = [f"key{number}" for number in range(4000)]
ALGORITHMS = ("ring", "jump")


def bound(weights, algorithm="ring", **arguments):
    """An exchange with q0, q1, ... of these weights."""
    exchange = ConsistentHashExchange("x", arguments={"x-algorithm": algorithm} | arguments)
    for queue, weight in zip(queues(len(weights)), weights, strict=True):
        exchange.bind(queue, str(weight))
    return exchange


def target(exchange, key="", properties=Properties):
    """The name of the only destination."""
    (queue,) = exchange.destinations(key, properties)
    return queue.name


def shares(exchange):
    found = Counter(target(exchange, key) for key in KEYS)
    return [found[name] / len(KEYS) for name in sorted(found)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("weights", [[1, 1], [1, 1, 1, 1], [1, 3], [10, 20, 30], [100] * 10, [2, 5, 1]])
def test_keys_are_shared_out_by_weight(weights, algorithm):
    for share, weight in zip(shares(bound(weights, algorithm)), weights, strict=True):
        assert share == pytest.approx(weight / sum(weights), rel=0.25)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_key_always_goes_to_the_same_destination_after_a_restart_too(algorithm):
    first, second = bound([1, 2, 3], algorithm), bound([1, 2, 3], algorithm)
    assert [target(first, key) for key in KEYS[:300]] == [target(second, key) for key in KEYS[:300]]


def test_the_answer_is_the_same_in_every_version():
    for algorithm, answers in (("ring", "222011113022"), ("jump", "232013022302")):
        exchange = bound([1, 1, 1, 1], algorithm)
        assert [target(exchange, key) for key in KEYS[:12]] == [f"q{number}" for number in answers]


@settings(max_examples=25)
@given(weights=st.lists(st.integers(1, 5), min_size=2, max_size=8), data=st.data())
def test_only_the_keys_of_the_ring_destination_that_leaves_move(weights, data):
    exchange, keys = bound(weights), KEYS[:300]
    before = {key: target(exchange, key) for key in keys}
    gone = data.draw(st.sampled_from([b.destination for b in exchange.bindings()]))
    least, total = min(weights), sum(weights)
    exchange.unbind_all(gone)
    left = [int(b.routing_key) for b in exchange.bindings()]
    if 512 * total > RING_POINTS_MAX * least or min(left) != least:
        return  # The number of points a unit of weight gets has changed.
    for key in keys:
        assert target(exchange, key) == before[key] or before[key] == gone.name


def test_the_order_of_binding_makes_no_difference_to_the_ring():
    one, other = bound([1, 2, 3]), ConsistentHashExchange("x")
    for queue, weight in reversed(list(zip(queues(3), (1, 2, 3), strict=True))):
        other.bind(queue, str(weight))
    assert [target(one, key) for key in KEYS[:300]] == [target(other, key) for key in KEYS[:300]]


def test_one_more_destination_takes_keys_and_moves_none_between_the_others():
    for algorithm in ALGORITHMS:
        exchange = bound([1, 1, 1], algorithm)
        before = {key: target(exchange, key) for key in KEYS}
        exchange.bind(Queue("new"), "1")
        moved = [key for key in KEYS if target(exchange, key) != before[key]]
        assert {target(exchange, key) for key in moved} == {"new"}
        assert len(moved) / len(KEYS) == pytest.approx(1 / 4, rel=0.25)


def test_the_weights_of_a_destination_bound_more_than_once_add_up():
    exchange, (one, two) = ConsistentHashExchange("x"), queues(2)
    for weight in ("1", "2"):
        exchange.bind(one, weight)
    exchange.bind(two, "1")
    assert shares(exchange)[0] == pytest.approx(3 / 4, rel=0.15)
    exchange.unbind(one, "2")
    assert shares(exchange)[0] == pytest.approx(1 / 2, rel=0.15)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_weights_may_be_of_any_size(algorithm):
    exchange = bound([1, 10**200, 10**200], algorithm)
    assert {target(exchange, key) for key in KEYS} >= {"q1", "q2"}
    if algorithm == "ring":
        assert len(exchange._ring) <= RING_POINTS_MAX + 3


def test_a_queue_and_an_exchange_of_one_name_are_two_destinations():
    exchange = ConsistentHashExchange("x")
    exchange.bind(Queue("same"), "1")
    exchange.bind(FanoutExchange("same"), "1")
    kinds = Counter(type(*exchange.destinations(key, Properties)) for key in KEYS)
    assert min(kinds.values()) > len(KEYS) / 3


def test_nothing_bound_is_nowhere_and_one_destination_gets_all():
    exchange, (queue,) = ConsistentHashExchange("x"), queues(1)
    assert exchange.destinations("k", Properties) == ()
    exchange.bind(queue, "1")
    assert exchange.destinations("k", Properties) == (queue,)
    exchange.unbind(queue, "1")
    assert exchange.destinations("k", Properties) == ()


# --- what is hashed

@pytest.mark.parametrize(("arguments", "properties"), [
    ({"hash-header": "h"}, lambda text: Properties(headers={"h": text, "other": "o"})),
    ({"x-hash-on": "h"}, lambda text: Properties(headers={"h": text})),
    ({"hash-property": "message_id"}, lambda text: Properties(message_id=text)),
    ({"hash-property": "correlation_id"}, lambda text: Properties(correlation_id=text)),
    ({"hash-property": "timestamp"}, lambda text: Properties(timestamp=Timestamp(int(text)))),
])
def test_the_header_or_property_decides_and_the_routing_key_does_not(arguments, properties):
    exchange = bound([1, 1, 1, 1], **arguments)
    assert exchange.key_decides is False
    texts = [str(number) for number in range(200)]
    found = {text: target(exchange, "a", lambda text=text: properties(text)) for text in texts}
    assert set(found.values()) == {"q0", "q1", "q2", "q3"}
    assert all(target(exchange, "b", lambda text=text: properties(text)) == found[text] for text in texts)
    assert target(exchange, "a") == target(exchange, "b")  # without it


@pytest.mark.parametrize("value", [5, True, 1.5, None, [1], {"a": 1}, b"\xff"])
def test_a_header_may_be_of_any_type(value):
    exchange = bound([1, 1, 1, 1], **{"hash-header": "h"})
    assert target(exchange, "", lambda: Properties(headers={"h": value})) in {"q0", "q1", "q2", "q3"}


def test_the_routing_key_alone_may_be_remembered():
    assert bound([1, 1]).key_decides is True


# --- binding keys

@pytest.mark.parametrize(("key", "text"), [
    ("abc", 'The binding key must be an integer: <<"abc">>'), ("", "The binding key must be an integer: <<>>"),
    ("1.5", 'The binding key must be an integer: <<"1.5">>'), (" 1", 'The binding key must be an integer: <<" 1">>'),
    ("1_0", 'The binding key must be an integer: <<"1_0">>'), ("٣", "The binding key must be an integer: <<217,163>>"),
    ('a"b', 'The binding key must be an integer: <<"a\\"b">>'), ("-", 'The binding key must be an integer: <<"-">>'),
    ("0", "The binding key must be greater than 0"), ("-1", "The binding key must be greater than 0"),
])
def test_a_key_that_is_no_weight_is_refused_in_rabbitmqs_words(key, text):
    exchange, (queue,) = ConsistentHashExchange("x"), queues(1)
    with pytest.raises(PreconditionFailed) as refusal:
        exchange.bind(queue, key)
    assert refusal.value.reply_text == f"PRECONDITION_FAILED - {text}"
    assert (exchange.binding_count, queue.bindings) == (0, [])


@pytest.mark.parametrize("key", ["1", "+1", "010"])
def test_any_whole_number_above_zero_is_a_weight(key):
    exchange, (queue,) = ConsistentHashExchange("x"), queues(1)
    assert exchange.bind(queue, key) is not None


# --- the jump hash

@given(key=st.integers(0, (1 << 64) - 1), buckets=st.integers(1, 1000))
def test_a_bucket_more_takes_keys_for_itself_only(key, buckets):
    bucket = jump_hash(key, buckets)
    assert 0 <= bucket < buckets
    assert jump_hash(key, buckets + 1) in (bucket, buckets)


@pytest.mark.parametrize(("key", "buckets", "bucket"), [
    (1, 1, 0), (42, 57, 43), (0xDEAD10CC, 1, 0), (0xDEAD10CC, 666, 361), (256, 1024, 520),
])
def test_the_jump_hash_is_that_of_other_implementations(key, buckets, bucket):
    assert jump_hash(key, buckets) == bucket
