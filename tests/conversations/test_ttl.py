"""Messages and queues that expire: x-message-ttl, the property expiration, x-expires."""

import itertools
import time

import pytest
from tests.conversations.peer import Pace, Peer, eventually, publish, unless_stalled

from brokerd.wire import methods

LONG = 60000


@pytest.fixture
def sure(peer):
    """The peer, its channel 1 confirming."""
    return peer.confirming()


@pytest.fixture
def dead(peer, queue):
    """Arguments of a queue whose dead letters come to ``queue``."""
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


def empties(peer, queue):
    eventually(lambda: peer.count(queue)[0], lambda ready: ready == 0)


# --- messages


def test_a_message_lives_no_longer_than_its_queue_lets_it(sure):
    queue = sure.declare({"x-message-ttl": 150})
    begin = time.monotonic()
    sure.put(queue, b"short")
    empties(sure, queue)
    assert time.monotonic() - begin > 0.12
    assert sure.got(queue) is None


def test_a_message_lives_no_longer_than_it_says_itself(sure, queue):
    begin = time.monotonic()
    sure.put(queue, b"short", expiration="150")
    empties(sure, queue)
    assert time.monotonic() - begin > 0.12
    sure.put(queue, b"long", expiration=str(LONG))
    assert sure.got(queue).properties.expiration == str(LONG)


@pytest.mark.parametrize(("queues", "own"), [(LONG, "1"), (1, str(LONG))])
def test_the_shorter_of_both_counts(sure, dead, queue, queues, own):
    mortal = sure.declare({"x-message-ttl": queues} | dead)
    sure.put(mortal, b"m", expiration=own)
    assert sure.arrived(queue).body == b"m"


def test_time_0_is_over_at_once_without_a_consumer(sure):
    queue = sure.declare({"x-message-ttl": 0})
    sure.put(queue)
    assert sure.got(queue) is None
    assert sure.count(queue) == (0, 0)


@pytest.mark.parametrize("arguments", [{"x-message-ttl": 0}, {}])
def test_time_0_is_enough_for_a_consumer_that_waits(sure, arguments):
    queue = sure.declare(arguments)
    sure.consume(queue, no_ack=True)
    sure.put(queue, b"now", **{} if arguments else {"expiration": "0"})
    assert sure.delivered().body == b"now"


def test_time_0_is_not_enough_for_a_consumer_that_holds_all_it_may(sure):
    queue = sure.declare({"x-message-ttl": 0})
    sure.prefetch(1)
    sure.consume(queue)
    sure.put(queue, b"held")
    assert sure.delivered().body == b"held"
    sure.put(queue, b"over")
    empties(sure, queue)
    sure.send(methods.BasicAck(delivery_tag=1))
    sure.put(queue, b"next")
    assert sure.delivered().body == b"next"


def test_only_the_head_expires(sure, queue, dead):
    """What a message with time left stands before waits for it: an order that is kept is worth more."""
    watched = sure.declare({"x-message-ttl": 100} | dead)
    mixed = sure.declare()
    sure.put(mixed, b"stays", expiration=str(LONG))
    sure.put(mixed, b"short", expiration="1")
    sure.put(watched, b"clock")
    assert sure.arrived(queue).body == b"clock"
    assert sure.count(mixed)[0] == 2
    assert sure.got(mixed).body == b"stays"
    assert sure.got(mixed) is None


def test_what_is_held_does_not_expire_and_what_is_given_back_does(sure, dead, queue):
    mortal = sure.declare({"x-message-ttl": 80} | dead)
    sure.prefetch(1)
    sure.consume(mortal)        # It waits, so that it has the message in time however slow this client is.
    sure.put(mortal, b"held")
    assert sure.delivered().body == b"held"
    sure.put(mortal, b"clock")
    assert sure.arrived(queue).body == b"clock"
    assert sure.ask(methods.BasicCancel(consumer_tag="t")) == methods.BasicCancelOk(consumer_tag="t")
    sure.send(methods.BasicReject(delivery_tag=1, requeue=True))
    message = sure.arrived(queue)
    assert message.body == b"held"
    assert message.headers["x-death"][0]["reason"] == "expired"


def test_expired_messages_come_in_their_order(peer, dead, queue):
    mortal = peer.declare({"x-message-ttl": 50} | dead)
    peer.send(*[publish(mortal, b"%d" % n) for n in range(100)])
    peer.consume(queue, no_ack=True)
    assert [peer.delivered().body for _ in range(100)] == [b"%d" % n for n in range(100)]


@pytest.mark.parametrize(("expiration", "reason"), [
    ("abc", "no_integer"), ("", "no_integer"), ("12s", "{leftover_string,\"s\"}"), ("-1", "{value_negative,-1}"),
    ("1.5", "{leftover_string,\".5\"}"), ("99999999999999", "{value_too_large,99999999999999}"),
])
def test_an_expiration_is_a_time_in_digits(peer, queue, expiration, reason):
    peer.send(publish(queue, expiration=expiration))
    assert peer.channel_close() == (
        406, f"PRECONDITION_FAILED - invalid expiration '{expiration}': {reason}")


@pytest.mark.parametrize(("value", "reason"), [
    (-1, "{value_negative,-1}"), (1 << 40, f"{{value_too_large,{1 << 40}}}"),
    ("100", '"expected integer, got longstr"'), (True, '"expected integer, got bool"'),
])
@pytest.mark.parametrize("argument", ["x-message-ttl", "x-expires"])
def test_a_time_is_a_whole_number_that_is_not_too_great(peer, argument, value, reason):
    assert peer.refusal(methods.QueueDeclare(queue="q", exclusive=True, arguments={argument: value})) == (
        406, f"PRECONDITION_FAILED - invalid arg '{argument}' for queue 'q' in vhost '/': {reason}")


# --- queues


def gone(peer, queue):
    """Whether the queue is no more: looking does not lengthen its life, a passive declare does."""
    peer.send(publish(queue, mandatory=True))
    while not isinstance(method := peer.read(), methods.BasicAck):
        if isinstance(method, methods.BasicReturn):
            peer.message()
            peer.read()
            return True
    return False


def test_a_queue_nobody_uses_goes(sure, name):
    begin = time.monotonic()
    sure.declare({"x-expires": 150}, name, exclusive=False)
    eventually(lambda: gone(sure, name))
    assert time.monotonic() - begin > 0.12
    assert sure.refusal(methods.QueueDeclare(queue=name, passive=True)) == (
        404, f"NOT_FOUND - no queue '{name}' in vhost '/'")


def test_a_queue_with_a_consumer_stays_and_goes_some_time_after_it(sure, name):
    sure.send(methods.QueueDeclare(queue=name, arguments={"x-expires": 100}),
              methods.BasicConsume(queue=name, consumer_tag="t"))
    assert isinstance(sure.read(), methods.QueueDeclareOk)
    assert sure.read() == methods.BasicConsumeOk(consumer_tag="t")
    sure.declare({"x-expires": 200}, f"{name}.clock", exclusive=False)
    eventually(lambda: gone(sure, f"{name}.clock"))
    assert sure.count(name)[1] == 1
    assert sure.ask(methods.BasicCancel(consumer_tag="t")) == methods.BasicCancelOk(consumer_tag="t")
    eventually(lambda: gone(sure, name))


@pytest.mark.parametrize("use", [
    methods.QueueDeclare(passive=True), methods.QueueDeclare(arguments={"x-expires": 1000}), methods.BasicGet(),
])
def test_a_queue_that_is_used_stays(port, sure, name, use):
    numbers = itertools.count()

    def attempt():
        use.queue, pace = f"{name}.{next(numbers)}", Pace(0.9)
        with Peer(port).open() as user:
            pace.step(lambda: user.declare({"x-expires": 1000}, use.queue, exclusive=False))
            end = time.monotonic() + 1.6
            while time.monotonic() < end:
                answer = pace.step(lambda: user.ask(use))
                assert isinstance(answer, methods.QueueDeclareOk | methods.BasicGetEmpty), answer

    unless_stalled(attempt)
    eventually(lambda: gone(sure, use.queue))


def test_publishing_is_not_use(sure, name):
    sure.declare({"x-expires": 150}, name, exclusive=False)
    eventually(lambda: gone(sure, name))


def test_messages_of_a_queue_that_goes_are_no_dead_letters(sure, dead, queue, name):
    sure.declare({"x-expires": 1000} | dead, name, exclusive=False)
    sure.put(name, b"gone")
    eventually(lambda: gone(sure, name))
    assert sure.got(queue) is None


def test_a_consumer_elsewhere_keeps_a_queue_too(port, sure, name):
    with Peer(port).open() as other:
        other.send(methods.QueueDeclare(queue=name, arguments={"x-expires": 100}),
                   methods.BasicConsume(queue=name, consumer_tag="t"))
        assert isinstance(other.read(), methods.QueueDeclareOk)
        assert other.read() == methods.BasicConsumeOk(consumer_tag="t")
        sure.declare({"x-expires": 250}, f"{name}.clock", exclusive=False)
        eventually(lambda: gone(sure, f"{name}.clock"))
        assert sure.count(name)[1] == 1
    eventually(lambda: gone(sure, name))
