"""Priority queues: x-max-priority, and the property priority."""

import pytest
from tests.conversations.peer import differs, eventually

from brokerd.wire import methods


@pytest.fixture
def sure(peer):
    """The peer, its channel 1 confirming."""
    return peer.confirming()


@pytest.fixture
def ranks(sure):
    """A queue of ten priorities."""
    return sure.declare({"x-max-priority": 9})


def put(peer, queue, priorities, **fields):
    for n, priority in enumerate(priorities):
        properties = {} if priority is None else {"priority": priority}
        peer.put(queue, f"{priority}.{n}".encode(), **properties, **fields)


def test_the_greatest_comes_first_and_equals_in_order(sure, ranks):
    put(sure, ranks, [1, 5, 1, 9, 5, 0])
    assert sure.bodies(ranks) == [b"9.3", b"5.1", b"5.4", b"1.0", b"1.2", b"0.5"]


def test_none_is_the_least(sure, ranks):
    put(sure, ranks, [None, 0, 1, None])
    assert sure.bodies(ranks) == [b"1.2", b"None.0", b"0.1", b"None.3"]


def test_more_than_the_queue_knows_is_its_most(sure):
    queue = sure.declare({"x-max-priority": 2})
    put(sure, queue, [1, 2, 200, 2, 3])
    assert sure.bodies(queue) == [b"2.1", b"200.2", b"2.3", b"3.4", b"1.0"]


def test_priorities_are_delivered_as_they_were_sent(sure, ranks):
    put(sure, ranks, [200])
    assert sure.got(ranks).properties.priority == 200


def test_another_queue_knows_none(sure, queue):
    put(sure, queue, [1, 9, 5])
    assert sure.bodies(queue) == [b"1.0", b"9.1", b"5.2"]


def test_consumers_get_the_greatest_of_what_waits(sure, ranks):
    put(sure, ranks, [0, 9, 5])
    sure.prefetch(1)
    sure.consume(ranks)
    for body in (b"9.1", b"5.2", b"0.0"):
        message = sure.delivered()
        assert message.body == body
        sure.send(methods.BasicAck(delivery_tag=message.method.delivery_tag))


def test_what_is_given_back_returns_to_its_place_among_equals(sure, ranks):
    put(sure, ranks, [5, 5, 5, 7])
    assert [sure.got(ranks, no_ack=False).body for _ in range(3)] == [b"7.3", b"5.0", b"5.1"]
    sure.send(methods.BasicNack(delivery_tag=0, multiple=True, requeue=True))
    got = [sure.arrived(ranks) for _ in range(4)]
    assert [(message.method.redelivered, message.body) for message in got] == [
        (True, b"7.3"), (True, b"5.0"), (True, b"5.1"), (False, b"5.2")]


def test_all_priorities_are_counted_and_purged(sure, ranks):
    put(sure, ranks, [0, 4, 9])
    assert sure.count(ranks) == (3, 0)
    assert sure.ask(methods.QueuePurge(queue=ranks)) == methods.QueuePurgeOk(message_count=3)


def test_get_tells_how_many_are_left_of_all_priorities(sure, ranks):
    put(sure, ranks, [0, 4, 9])
    assert [sure.got(ranks).method.message_count for _ in range(3)] == [2, 1, 0]


@differs("`x-max-priority` with a length")
def test_the_least_go_first_where_there_are_too_many(sure):
    queue = sure.declare({"x-max-priority": 5, "x-max-length": 2})
    put(sure, queue, [1, 5, 3])
    assert sure.bodies(queue) == [b"5.1", b"3.2"]


def test_expired_messages_of_every_priority_go(sure, ranks):
    put(sure, ranks, [0, 5, 9], expiration="30")
    eventually(lambda: sure.count(ranks)[0], lambda ready: ready == 0)


def test_a_message_that_stays_holds_up_only_its_equals(sure, ranks):
    sure.put(ranks, b"goes", priority=5, expiration="60")
    sure.put(ranks, b"stays", priority=1, expiration="60000")
    sure.put(ranks, b"held up", priority=1, expiration="1")
    eventually(lambda: sure.count(ranks)[0], lambda ready: ready == 2)
    assert sure.bodies(ranks) == [b"stays"]


def test_dead_letters_of_a_priority_queue_keep_their_priority(sure, queue):
    ranks = sure.declare({"x-max-priority": 9, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue})
    put(sure, ranks, [7])
    message = sure.got(ranks, no_ack=False)
    sure.send(methods.BasicReject(delivery_tag=message.method.delivery_tag, requeue=False))
    assert sure.arrived(queue).properties.priority == 7


@pytest.mark.parametrize(("value", "reason"), [
    (256, "{max_value_exceeded,256}"), (-1, "{value_negative,-1}"), ("9", '"expected integer, got longstr"'),
])
def test_a_queue_has_at_most_255_priorities(peer, value, reason):
    assert peer.refusal(methods.QueueDeclare(queue="q", exclusive=True, arguments={"x-max-priority": value})) == (
        406, f"PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue 'q' in vhost '/': {reason}")


@pytest.mark.parametrize("most", [0, 1, 255])
def test_a_queue_may_have_any_number_of_priorities_up_to_it(sure, most):
    queue = sure.declare({"x-max-priority": most})
    put(sure, queue, [0, most])
    assert sure.bodies(queue) == ([b"0.0", b"0.1"] if most == 0 else [f"{most}.1".encode(), b"0.0"])


def test_the_number_of_priorities_is_compared(sure, name):
    sure.declare({"x-max-priority": 3}, name, exclusive=False)
    method = methods.QueueDeclare(queue=name, arguments={"x-max-priority": 4})
    assert sure.refusal(method) == (
        406, f"PRECONDITION_FAILED - inequivalent arg 'x-max-priority' for queue '{name}' in vhost '/': "
             "received '4' but current is '3'")
