"""x-single-active-consumer: one consumer is served, the others wait for its end."""

import pytest
from tests.conversations.peer import Peer, differs, publish

from brokerd.wire import methods


@pytest.fixture
def single(peer, name):
    """A queue that serves one consumer at a time."""
    return peer.declare({"x-single-active-consumer": True}, name, exclusive=False)


def send(peer, queue, begin, end):
    peer.send(*[publish(queue, b"%d" % n) for n in range(begin, end)])


def served(peer, count):
    """(consumer tag, body) of each delivery."""
    got = [peer.delivered() for _ in range(count)]
    return [(message.method.consumer_tag, message.body) for message in got]


def test_the_first_consumer_is_served_alone(peer, single):
    for tag in "abc":
        peer.consume(single, tag, no_ack=True)
    send(peer, single, 0, 20)
    assert served(peer, 20) == [("a", b"%d" % n) for n in range(20)]


def test_consumers_follow_in_the_order_in_which_they_came(peer, single):
    for tag in "abc":
        peer.consume(single, tag, no_ack=True)
    for at, tag in enumerate("abc"):
        send(peer, single, at, at + 1)
        assert served(peer, 1) == [(tag, b"%d" % at)]
        assert peer.ask(methods.BasicCancel(consumer_tag=tag)) == methods.BasicCancelOk(consumer_tag=tag)


def test_a_consumer_that_waited_may_go(peer, single):
    for tag in "abc":
        peer.consume(single, tag, no_ack=True)
    peer.ask(methods.BasicCancel(consumer_tag="b"))
    peer.ask(methods.BasicCancel(consumer_tag="a"))
    send(peer, single, 0, 1)
    assert served(peer, 1) == [("c", b"0")]


def test_a_consumer_that_is_full_is_waited_for(peer, single):
    peer.prefetch(1)
    for tag in "ab":
        peer.consume(single, tag)
    send(peer, single, 0, 3)
    for n in range(3):
        assert served(peer, 1) == [("a", b"%d" % n)]
        peer.send(methods.BasicAck(delivery_tag=n + 1))


def test_the_next_gets_what_a_lost_one_held_first_and_in_order(port, peer, single):
    with Peer(port).open() as other:
        other.prefetch(5)
        other.consume(single, "lost")
        peer.consume(single, "next")
        send(peer, single, 0, 10)
        assert served(other, 5) == [("lost", b"%d" % n) for n in range(5)]
        other.send(methods.BasicAck(delivery_tag=2))
        assert served(other, 1) == [("lost", b"5")]
    got = [peer.delivered() for _ in range(9)]
    assert [message.body for message in got] == [b"%d" % n for n in (0, 2, 3, 4, 5, 6, 7, 8, 9)]
    assert [message.method.redelivered for message in got] == [True] * 5 + [False] * 4


@differs("the next single active consumer")
def test_the_next_is_served_when_the_former_holds_nothing_more(peer, single):
    peer.prefetch(2)
    peer.consume(single, "a")
    peer.consume(single, "b")
    send(peer, single, 0, 4)
    assert served(peer, 2) == [("a", b"0"), ("a", b"1")]
    peer.send(methods.BasicCancel(consumer_tag="a", no_wait=True), publish(single, b"4"))
    assert peer.ask(methods.BasicQos(prefetch_count=2)) == methods.BasicQosOk()
    peer.send(methods.BasicReject(delivery_tag=2, requeue=True), methods.BasicAck(delivery_tag=1))
    assert served(peer, 2) == [("b", b"1"), ("b", b"2")]


@differs("`x-priority` of a single active consumer")
def test_a_newcomer_of_higher_priority_takes_over(peer, single):
    peer.consume(single, "first", no_ack=True)
    peer.consume(single, "higher", no_ack=True, arguments={"x-priority": 10})
    send(peer, single, 0, 2)
    assert served(peer, 2) == [("higher", b"0"), ("higher", b"1")]


def test_all_consumers_are_counted(peer, single):
    for tag in "abc":
        peer.consume(single, tag)
    assert peer.count(single) == (0, 3)


def test_an_exclusive_consumer_is_refused(peer, single):
    assert peer.refusal(methods.BasicConsume(queue=single, exclusive=True)) == (
        403, f"ACCESS_REFUSED - queue '{single}' in vhost '/' in exclusive use")


def test_messages_may_be_got_beside_it(peer, single):
    peer.prefetch(1)
    peer.consume(single, "t")
    peer.confirming()
    for body in (b"0", b"1"):
        peer.put(single, body)
    assert peer.delivered().body == b"0"
    assert peer.arrived(single).body == b"1"


def test_it_is_compared(peer, single):
    assert peer.refusal(methods.QueueDeclare(queue=single)) == (
        406, f"PRECONDITION_FAILED - inequivalent arg 'x-single-active-consumer' for queue '{single}' in vhost '/': "
             "received none but current is the value 'true' of type 'bool'")


def test_it_is_true_or_false(peer):
    arguments = {"x-single-active-consumer": "yes"}
    assert peer.refusal(methods.QueueDeclare(queue="q", exclusive=True, arguments=arguments)) == (
        406, "PRECONDITION_FAILED - invalid arg 'x-single-active-consumer' for queue 'q' in vhost '/': "
             "{unacceptable_type,longstr}")


def test_false_is_a_queue_like_any(peer):
    queue = peer.declare({"x-single-active-consumer": False})
    for tag in "ab":
        peer.consume(queue, tag, no_ack=True)
    send(peer, queue, 0, 4)
    assert {tag for tag, _ in served(peer, 4)} == {"a", "b"}
