"""assert_fifo against what real consumers did, and against lives that are written down here."""

import pika
import pytest
from tests.testing.conftest import connect

from brokerd.errors import BrokerError
from brokerd.testing.order import Event, Message, find_faults


def declare(channel, *keys, queue="q", **arguments):
    """A queue with a message for each key, in this order; the bodies are 1, 2, ..."""
    channel.queue_declare(queue, durable=True, arguments=arguments)
    for number, key in enumerate(keys, 1):
        headers = {} if key is None else {"customer": key}
        channel.basic_publish("", queue, str(number), pika.BasicProperties(headers=headers))


def take(channel, queue="q"):
    method, _, body = channel.basic_get(queue)
    return method.delivery_tag, body


def test_messages_that_are_acked_in_order_hold(shared, channel):
    declare(channel, "a", "b", "a")
    for _ in range(3):
        channel.basic_ack(take(channel)[0])
    assert shared.order.assert_fifo("q", key="customer") == 3
    assert shared.order.assert_fifo("q") == 3
    assert shared.order.assert_fifo("q", key=lambda message: message.headers["customer"]) == 3


def test_one_consumer_may_hold_several_and_ack_them_at_once(shared, channel):
    declare(channel, "a", "a", "a")
    tags = [take(channel)[0] for _ in range(3)]
    channel.basic_ack(tags[-1], multiple=True)
    assert shared.order.assert_fifo("q", key="customer") == 3


def test_a_later_message_that_is_acked_first_is_told_with_both_lives(shared, channel, vhost):
    declare(channel, 7, 8, 7)
    tags = [take(channel)[0] for _ in range(3)]
    channel.basic_ack(tags[2])
    channel.basic_ack(tags[1])
    channel.basic_ack(tags[0])
    with pytest.raises(AssertionError) as caught:
        shared.order.assert_fifo("q", key="customer")
    text = str(caught.value)
    assert text.startswith(f"queue 'q' in vhost '{vhost}': message 3 was settled before message 1 with the header "
                           "'customer' = 7 (1 fault among 3 messages with 2 keys)")
    assert "message 1: b'1', routing key 'q', headers {'customer': 7}" in text
    assert "delivered to a basic.get" in text
    assert text.count(": acked") == 2
    assert "What keeps the order" in text


def test_keys_do_not_mind_each_other(shared, channel):
    declare(channel, "a", "b")
    one, other = take(channel)[0], take(channel)[0]
    channel.basic_ack(other)
    channel.basic_ack(one)
    assert shared.order.assert_fifo("q", key="customer") == 2
    with pytest.raises(AssertionError, match="message 2 was settled before message 1"):
        shared.order.assert_fifo("q")


def test_a_message_that_comes_back_may_be_done_again_before_the_next(shared, channel):
    declare(channel, "a", "a")
    first, second = take(channel)[0], take(channel)[0]
    channel.basic_nack(second)
    channel.basic_nack(first)
    for body in (b"1", b"2"):
        tag, found = take(channel)
        assert found == body
        channel.basic_ack(tag)
    assert shared.order.assert_fifo("q", key="customer") == 2


def test_a_message_that_comes_back_and_is_overtaken_is_found(shared, channel):
    declare(channel, "a", "a")
    first, second = take(channel)[0], take(channel)[0]
    channel.basic_nack(first)
    channel.basic_ack(second)
    channel.basic_ack(take(channel)[0])
    with pytest.raises(AssertionError, match=r"(?s)message 2 was settled before message 1.*returned \(nack\)"):
        shared.order.assert_fifo("q", key="customer")


def test_two_consumers_at_a_time_are_found_even_if_they_end_in_order(shared, channel):
    declare(channel, "a", "a")
    got = []
    with connect(shared) as other:
        second = other.channel()
        for each in (channel, second):
            each.basic_qos(prefetch_count=1)
            each.basic_consume("q", lambda ch, method, _, body: got.append((ch, method.delivery_tag, body)))
        while len(got) < 2:
            channel.connection.process_data_events(time_limit=0.05)
            other.process_data_events(time_limit=0.05)
        for ch, tag, _ in sorted(got, key=lambda each: each[2]):
            ch.basic_ack(tag)
            ch.queue_declare("q", passive=True)
        with pytest.raises(AssertionError) as caught:
            shared.order.assert_fifo("q", key="customer")
        assert "message 2 was with another consumer at the same time as message 1" in str(caught.value)
        one, two = (life.events[0] for life in shared.order.messages("q"))
        assert one.consumer != two.consumer
        assert one.whom.startswith(f"consumer {one.consumer}")


def test_consumers_without_acks_keep_the_order(shared, channel):
    declare(channel, "a", "a", "a")
    for number in (b"1", b"2", b"3"):
        assert channel.basic_get("q", auto_ack=True)[2] == number
    assert shared.order.assert_fifo("q", key="customer") == 3


def test_messages_that_have_expired_hold_up_nobody(shared, channel):
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"1", pika.BasicProperties(expiration="1000"))
    channel.basic_publish("", "q", b"2")
    channel.queue_declare("q", passive=True)
    shared.clock.advance(seconds=2)
    channel.basic_ack(take(channel)[0])
    assert shared.order.assert_fifo("q") == 1


def test_messages_with_another_priority_are_judged_apart(shared, channel):
    channel.queue_declare("q", durable=True, arguments={"x-max-priority": 5})
    for body, priority in (("low", 1), ("high", 4)):
        channel.basic_publish("", "q", body, pika.BasicProperties(priority=priority))
    assert take(channel)[1] == b"high"
    assert take(channel)[1] == b"low"
    assert shared.order.assert_fifo("q") == 2


def test_a_crash_ends_what_was_out(shared, channel):
    declare(channel, "a", "a")
    take(channel), take(channel)
    shared.crash()
    with connect(shared) as again:
        channel = again.channel()
        for _ in range(2):
            channel.basic_ack(take(channel)[0])
        assert shared.order.assert_fifo("q", key="customer") == 2
    lives = shared.order.messages("q")
    assert [event.what for event in lives[0].events] == ["delivered", "returned", "delivered", "acked"]
    assert lives[0].events[1].why == "broker ended"


def test_messages_have_what_was_published(shared, channel):
    channel.queue_declare("q", durable=True)
    channel.basic_publish("amq.direct", "nowhere", b"")
    channel.queue_bind("q", "amq.direct", "a key")
    headers = {"text": "ü", "number": 5, "table": {"x": [1, 2]}}
    channel.basic_publish("amq.direct", "a key", b"octets", pika.BasicProperties(headers=headers, message_id="1"))
    channel.basic_publish("amq.direct", "a key", bytes(70_000))
    one, other = shared.order.messages("q")
    assert (one.routing_key, one.headers, one.body, one.events) == ("a key", headers, b"octets", ())
    assert (other.headers, other.body) == ({}, bytes(70_000))


def test_nothing_to_judge_is_no_success(shared, channel):
    declare(channel, None, "a")
    with pytest.raises(AssertionError, match="it has 2 messages, and none has gone out"):
        shared.order.assert_fifo("q")
    take(channel)
    with pytest.raises(AssertionError, match="none of those with the header 'customer' has gone out"):
        shared.order.assert_fifo("q", key="customer")
    with pytest.raises(BrokerError, match="no durable queue 'other'"):
        shared.order.assert_fifo("other")


def test_a_queue_without_a_journal_cannot_tell():
    from brokerd.testing import Broker

    with Broker(order_journal=False) as broker, connect(broker) as connection:
        channel = connection.channel()
        declare(channel, "a")
        channel.basic_ack(take(channel)[0])
        declare(channel, "a")
        with pytest.raises(BrokerError, match="does not have the whole life"):
            broker.order.assert_fifo("q")


# --- lives written down

def message(seq, *events):
    return Message(seq, 0, "q", {}, b"", 0, tuple(Event((at, 0), what, consumer, "") for at, what, consumer in events))


def test_going_out_before_an_earlier_one_is_a_fault():
    never = message(1)
    later = message(2, (5, "delivered", 1))
    (fault,) = find_faults([never, later])
    assert (fault.text, fault.earlier, fault.later) == ("went out before", never, later)


def test_what_has_expired_before_it_went_out_holds_up_nobody():
    assert not find_faults([message(1, (3, "expired", 0)), message(2, (5, "delivered", 1), (6, "acked", 1))])
    assert find_faults([message(1, (7, "expired", 0)), message(2, (5, "delivered", 1), (6, "acked", 1))])


def test_consumers_one_after_the_other_are_no_fault():
    assert not find_faults([message(1, (1, "delivered", 1), (2, "acked", 1)),
                            message(2, (2, "delivered", 2), (3, "acked", 2))])


def test_the_fault_names_the_message_that_was_overtaken():
    slow = message(1, (1, "delivered", 1), (9, "acked", 1))
    quick = message(2, (2, "delivered", 1), (3, "acked", 1))
    also = message(3, (3, "delivered", 1), (4, "acked", 1))
    faults = find_faults([slow, quick, also])
    assert [(fault.earlier.seq, fault.later.seq) for fault in faults] == [(1, 2), (1, 3)]
