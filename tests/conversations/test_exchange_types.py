"""Exchange types beside the four: what headers exchanges compare, and the types RabbitMQ has as plugins."""

import pytest
from tests.conversations.peer import publish, rabbitmq

from brokerd.wire import methods


@pytest.fixture
def sure(peer):
    """The peer, its channel 1 confirming."""
    return peer.confirming()


def drained(peer, queues):
    return [peer.bodies(queue) for queue in queues]


# --- headers


@pytest.mark.parametrize(("arguments", "headers", "matches"), [
    ({"x-match": "any"}, {}, False), ({"x-match": "any"}, {"a": 1}, False), ({"x-match": "all"}, {"a": 1}, True),
    ({"x-match": "all", "a": None}, {"a": 5}, True), ({"x-match": "all", "a": None}, {"b": 5}, False),
    ({"x-match": "all", "a": 1}, {"a": "1"}, False), ({"x-match": "all", "a": 1}, {"a": True}, False),
    ({"x-match": "all", "x-a": 1, "b": 2}, {"b": 2}, True), ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
    ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"b": 2}, False),
    ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"x-a": 1, "b": 2}, True),
    ({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"x-a": 1}, True),
    ({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"x-a": 2}, False),
    ({"x-match": "all", "t": {"k": [1, "2"]}}, {"t": {"k": [1, "2"]}}, True),
    ({"x-match": "all", "t": {"k": [1, "2"]}}, {"t": {"k": [1, "3"]}}, False),
])
def test_headers_are_compared_by_presence_and_value(sure, queue, arguments, headers, matches):
    exchange = sure.exchange("headers")
    sure.bind(queue, exchange, **arguments)
    sure.put("", b"m", exchange=exchange, headers=headers)
    assert sure.bodies(queue) == ([b"m"] if matches else [])


@pytest.mark.parametrize(("value", "reason"), [
    ("some", "Invalid x-match field value <<\"some\">>; expected all, any, all-with-x, or any-with-x"),
    (5, "Invalid x-match field type signedint (value 5); expected longstr"),
])
def test_x_match_is_one_of_four_words(peer, queue, value, reason):
    exchange = peer.exchange("headers", auto_delete=False)
    try:
        method = methods.QueueBind(queue=queue, exchange=exchange, arguments={"x-match": value})
        assert peer.refusal(method) == (406, f"PRECONDITION_FAILED - {reason}")
    finally:
        peer.ask(methods.ExchangeDelete(exchange=exchange))


def test_a_message_without_headers_meets_bindings_without_conditions(sure, queue):
    exchange = sure.exchange("headers")
    sure.bind(queue, exchange)
    sure.put("", b"m", exchange=exchange)
    assert sure.bodies(queue) == [b"m"]


def test_headers_seen_before_go_the_way_of_the_bindings_of_now(sure, queue):
    exchange, other = sure.exchange("headers", auto_delete=False), sure.declare()
    sure.bind(queue, exchange, **{"x-match": "any", "a": 1, "b": None})
    sure.bind(other, exchange, a=2)

    def put_all():
        for number in range(3):
            for headers in ({"a": 1, "n": number}, {"a": 2, "n": number}, {"a": 2, "b": number}, {"a": 3}):
                sure.put("", repr(sorted(headers)).encode(), exchange=exchange, headers=headers)
        return [len(bodies) for bodies in drained(sure, (queue, other))]

    assert put_all() == [6, 6]
    sure.bind(queue, exchange, a=3)
    assert put_all() == [9, 6]
    sure.ask(methods.QueueUnbind(queue=other, exchange=exchange, arguments={"a": 2}))
    assert put_all() == [9, 0]
    sure.ask(methods.ExchangeDelete(exchange=exchange))


# --- x-consistent-hash


@pytest.fixture
def hashed(sure):
    """A function: an exchange by hash with its two queues of equal weight."""
    def make(arguments=None, weights=("10", "10")):
        exchange = sure.exchange("x-consistent-hash", arguments)
        queues = [sure.declare() for _ in weights]
        for queue, weight in zip(queues, weights, strict=True):
            sure.bind(queue, exchange, weight)
        return exchange, queues
    return make


def test_a_key_goes_to_one_queue_and_always_the_same(sure, hashed):
    exchange, queues = hashed()
    sure.put_all([publish(f"key {n % 100}", b"%d" % (n % 100), exchange=exchange) for n in range(400)])
    one, other = drained(sure, queues)
    assert len(one) + len(other) == 400
    assert not set(one) & set(other)
    assert min(len(set(one)), len(set(other))) >= 15


def test_a_greater_weight_gets_more(sure, hashed):
    exchange, queues = hashed(weights=("1", "9"))
    sure.put_all([publish(f"key {n}", exchange=exchange) for n in range(1000)])
    one, other = drained(sure, queues)
    assert len(other) > 3 * len(one)


@pytest.mark.parametrize(("arguments", "fields"), [
    ({"hash-header": "h"}, lambda n: {"headers": {"h": f"h{n}"}}),
    ({"hash-property": "message_id"}, lambda n: {"message_id": f"m{n}"}),
    ({"hash-property": "correlation_id"}, lambda n: {"correlation_id": f"c{n}"}),
    ({"hash-property": "timestamp"}, lambda n: {"timestamp": 1_700_000_000 + n * 7919}),
], ids=["header", "message_id", "correlation_id", "timestamp"])
def test_something_else_than_the_key_may_be_hashed(sure, hashed, arguments, fields):
    exchange, queues = hashed(arguments)
    sure.put_all([publish("one key", b"%d" % (n % 50), exchange=exchange, **fields(n % 50)) for n in range(100)])
    one, other = drained(sure, queues)
    assert len(one) + len(other) == 100
    assert not set(one) & set(other)
    assert one
    assert other


def test_a_weight_is_a_number(peer, queue):
    exchange = peer.exchange("x-consistent-hash", auto_delete=False)
    method = methods.QueueBind(queue=queue, exchange=exchange, routing_key="heavy")
    assert peer.refusal(method) == (406, "PRECONDITION_FAILED - The binding key must be an integer: <<\"heavy\">>")
    peer.ask(methods.ExchangeDelete(exchange=exchange))


def test_header_and_property_are_not_hashed_both(peer):
    arguments = {"hash-header": "h", "hash-property": "message_id"}
    assert peer.refusal(methods.ExchangeDeclare(exchange="h", type="x-consistent-hash", arguments=arguments)) == (
        406, "PRECONDITION_FAILED - hash-header and hash-property are mutually exclusive")


def test_a_property_that_cannot_be_hashed_is_refused(peer):
    arguments = {"hash-property": "app_id"}
    assert peer.refusal(methods.ExchangeDeclare(exchange="h", type="x-consistent-hash", arguments=arguments)) == (
        406, "PRECONDITION_FAILED - Unsupported property: app_id")


def test_without_a_queue_nothing_is_routed(sure):
    exchange = sure.exchange("x-consistent-hash", auto_delete=False)
    sure.send(publish("k", exchange=exchange, mandatory=True))
    assert sure.read().reply_code == 312
    sure.message()
    sure.read()
    sure.ask(methods.ExchangeDelete(exchange=exchange))


def test_the_keys_of_a_queue_that_goes_are_shared_out(sure, hashed):
    exchange, (one, other) = hashed()
    sure.ask(methods.QueueDelete(queue=one))
    sure.put_all([publish(f"key {n}", exchange=exchange) for n in range(50)])
    assert len(sure.bodies(other)) == 50


# --- x-random


def test_random_takes_one_of_its_queues_each_time(sure):
    exchange = sure.exchange("x-random")
    queues = [sure.declare() for _ in range(3)]
    for queue in queues:
        sure.bind(queue, exchange)
    sure.put_all([publish("k", exchange=exchange) for _ in range(200)])
    shares = [len(bodies) for bodies in drained(sure, queues)]
    assert sum(shares) == 200
    assert min(shares) > 20


# --- x-recent-history


def test_recent_history_tells_newcomers_of_the_last_messages(sure, queue):
    exchange = sure.exchange("x-recent-history", {"x-recent-history-length": 3}, auto_delete=False)
    for n in range(5):
        sure.put("", b"%d" % n, exchange=exchange)
    sure.bind(queue, exchange)
    assert [sure.arrived(queue).body for _ in range(3)] == [b"2", b"3", b"4"]
    sure.put("", b"5", exchange=exchange)
    assert sure.arrived(queue).body == b"5"
    sure.ask(methods.ExchangeDelete(exchange=exchange))


def test_recent_history_is_twenty_messages_long(sure, queue):
    exchange = sure.exchange("x-recent-history", auto_delete=False)
    for n in range(25):
        sure.put("", b"%d" % n, exchange=exchange)
    sure.bind(queue, exchange)
    assert [sure.arrived(queue).body for _ in range(20)] == [b"%d" % n for n in range(5, 25)]
    sure.ask(methods.ExchangeDelete(exchange=exchange))


def test_a_message_may_ask_not_to_be_remembered(sure, queue):
    exchange = sure.exchange("x-recent-history", auto_delete=False)
    sure.put("", b"secret", exchange=exchange, headers={"x-recent-history-no-store": True})
    sure.put("", b"open", exchange=exchange)
    sure.bind(queue, exchange)
    assert sure.arrived(queue).body == b"open"
    assert sure.got(queue) is None
    sure.ask(methods.ExchangeDelete(exchange=exchange))


@pytest.mark.parametrize(("value", "shown"), [("three", '<<"three">>'), (0, "0"), (-1, "-1")])
def test_the_length_of_a_history_is_a_number(peer, value, shown):
    arguments = {"x-recent-history-length": value}
    method = methods.ExchangeDeclare(exchange="h", type="x-recent-history", arguments=arguments)
    assert peer.refusal(method) == (
        406, f"PRECONDITION_FAILED - Invalid argument {shown}, 'x-recent-history-length' must be a positive integer")


# --- x-modulus-hash


def test_modulus_hash_takes_one_queue_for_a_key(sure):
    exchange = sure.exchange("x-modulus-hash")
    queues = [sure.declare() for _ in range(2)]
    for queue in queues:
        sure.bind(queue, exchange)
    sure.put_all([publish(f"key {n % 100}", b"%d" % (n % 100), exchange=exchange) for n in range(200)])
    one, other = drained(sure, queues)
    assert len(one) + len(other) == 200
    assert not set(one) & set(other)
    assert min(len(set(one)), len(set(other))) >= 15


# --- x-local-random


@rabbitmq("of 4.x", always=True)
def test_local_random_takes_one_of_its_queues_each_time(sure):
    method = methods.ExchangeDeclare(exchange="x.local", type="x-local-random", auto_delete=True)
    assert sure.ask(method) == methods.ExchangeDeclareOk()
    queues = [sure.declare() for _ in range(2)]
    for queue in queues:
        sure.bind(queue, "x.local")
    sure.put_all([publish("", exchange="x.local") for _ in range(100)])
    shares = [len(bodies) for bodies in drained(sure, queues)]
    assert sum(shares) == 100
    assert min(shares) > 15


# --- amq.rabbitmq.*


@pytest.mark.parametrize("name", ["amq.rabbitmq.trace", "amq.rabbitmq.event"])
def test_exchanges_of_the_broker_itself_are_there_and_its_own(peer, name):
    assert peer.ask(methods.ExchangeDeclare(exchange=name, passive=True)) == methods.ExchangeDeclareOk()
    peer.send(publish("k", exchange=name))
    assert peer.channel_close() == (
        403, f"ACCESS_REFUSED - cannot publish to internal exchange '{name}' in vhost '/'")


def test_events_tell_what_was_made_and_deleted(peer, queue, name):
    peer.bind(queue, "amq.rabbitmq.event", "queue.#")
    peer.declare(queue=name, exclusive=False)
    peer.ask(methods.QueueDelete(queue=name))
    told = []
    while len(told) < 2:
        message = peer.arrived(queue)
        if message.headers.get("name") == name:
            told.append((message.method.routing_key, message.headers["vhost"], message.body))
    assert told == [("queue.created", "/", b""), ("queue.deleted", "/", b"")]
