"""Queues that hold no more than so many messages or octets: x-max-length, x-max-length-bytes, x-overflow."""

import pytest
from tests.conversations.peer import eventually, publish

from brokerd.wire import methods


@pytest.fixture
def sure(peer):
    """The peer, its channel 1 confirming."""
    return peer.confirming()


@pytest.fixture
def dead(peer, queue):
    """Arguments of a queue whose dead letters come to ``queue``."""
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


def fill(peer, queue, count, size=1):
    """Whether each of ``count`` messages, numbered from 0, was acked."""
    return [peer.put(queue, b"%d" % n * size) for n in range(count)]


# --- the oldest goes


@pytest.mark.parametrize("overflow", [{}, {"x-overflow": "drop-head"}])
def test_the_oldest_go_when_there_are_too_many(sure, overflow):
    queue = sure.declare({"x-max-length": 3} | overflow)
    assert fill(sure, queue, 5) == [True] * 5
    assert sure.bodies(queue) == [b"2", b"3", b"4"]


def test_the_oldest_go_when_there_are_too_many_octets(sure):
    queue = sure.declare({"x-max-length-bytes": 25})
    fill(sure, queue, 5, size=10)
    assert sure.bodies(queue) == [b"3" * 10, b"4" * 10]


@pytest.mark.parametrize(("limits", "left"), [
    ({"x-max-length": 2, "x-max-length-bytes": 1000}, 2), ({"x-max-length": 100, "x-max-length-bytes": 30}, 3),
])
def test_of_two_limits_the_one_that_is_reached_counts(sure, limits, left):
    queue = sure.declare(limits)
    fill(sure, queue, 6, size=10)
    assert len(sure.bodies(queue)) == left


def test_only_bodies_count_as_octets(sure):
    queue = sure.declare({"x-max-length-bytes": 4})
    for n in range(4):
        sure.put(queue, b"%d" % n, headers={"long": "x" * 100}, content_type="application/octet-stream")
    assert sure.bodies(queue) == [b"0", b"1", b"2", b"3"]


def test_a_message_greater_than_all_octets_goes_at_once(sure):
    queue = sure.declare({"x-max-length-bytes": 5})
    sure.put(queue, b"123456")
    assert sure.bodies(queue) == []


def test_length_0_holds_nothing(sure):
    queue = sure.declare({"x-max-length": 0})
    fill(sure, queue, 3)
    assert sure.bodies(queue) == []


def test_length_0_is_enough_for_a_consumer_that_waits(sure):
    queue = sure.declare({"x-max-length": 0})
    sure.consume(queue, no_ack=True)
    sure.put(queue, b"now")
    assert sure.delivered().body == b"now"


def test_what_is_held_does_not_count(sure):
    queue = sure.declare({"x-max-length": 2})
    fill(sure, queue, 2)
    for _ in range(2):
        sure.got(queue, no_ack=False)
    fill(sure, queue, 2)
    assert sure.count(queue)[0] == 2
    assert sure.bodies(queue) == [b"0", b"1"]


def test_what_is_given_back_counts_again(sure):
    queue = sure.declare({"x-max-length": 2})
    sure.put(queue, b"first")
    assert sure.got(queue, no_ack=False).body == b"first"
    fill(sure, queue, 2)
    sure.send(methods.BasicReject(delivery_tag=1, requeue=True))
    eventually(lambda: sure.count(queue)[0], lambda ready: ready == 2)
    assert sure.bodies(queue) == [b"0", b"1"]


def test_the_oldest_become_dead_letters_in_order(sure, queue, dead):
    short = sure.declare({"x-max-length": 1} | dead)
    fill(sure, short, 4)
    letters = [sure.arrived(queue) for _ in range(3)]
    assert [letter.body for letter in letters] == [b"0", b"1", b"2"]
    assert {letter.headers["x-death"][0]["reason"] for letter in letters} == {"maxlen"}


def test_octets_are_a_length_too_for_dead_letters(sure, queue, dead):
    short = sure.declare({"x-max-length-bytes": 1} | dead)
    fill(sure, short, 2)
    assert sure.arrived(queue).headers["x-first-death-reason"] == "maxlen"


# --- the newest is refused


def test_a_full_queue_refuses(sure):
    queue = sure.declare({"x-max-length": 3, "x-overflow": "reject-publish"})
    assert fill(sure, queue, 5) == [True, True, True, False, False]
    assert sure.bodies(queue) == [b"0", b"1", b"2"]
    assert sure.put(queue, b"5")


def test_a_queue_full_of_octets_refuses(sure):
    queue = sure.declare({"x-max-length-bytes": 20, "x-overflow": "reject-publish"})
    acks = fill(sure, queue, 4, size=10)
    assert acks[:2] == [True, True]
    assert acks[3] is False
    assert sure.count(queue)[0] == acks.count(True)


def test_without_confirms_what_is_refused_is_gone_without_a_word(peer, queue):
    full = peer.declare({"x-max-length": 1, "x-overflow": "reject-publish"})
    peer.confirming().put(full, b"in")
    peer.open_channel(2)
    peer.send(publish(full, b"out", channel=2, mandatory=True))
    assert peer.ask(methods.BasicQos(), 2) == methods.BasicQosOk()
    assert peer.bodies(full) == [b"in"]


def test_one_full_queue_of_several_is_enough_for_a_nack(sure):
    full = sure.declare({"x-max-length": 0, "x-overflow": "reject-publish"})
    other = sure.declare()
    exchange = sure.exchange("fanout")
    sure.bind(full, exchange)
    sure.bind(other, exchange)
    assert not sure.put("", b"m", exchange=exchange)
    assert sure.arrived(other).body == b"m"


def test_what_is_held_frees_a_place(sure):
    queue = sure.declare({"x-max-length": 1, "x-overflow": "reject-publish"})
    assert fill(sure, queue, 2) == [True, False]
    sure.got(queue, no_ack=False)
    assert sure.put(queue, b"2")


def test_a_refused_message_may_become_a_dead_letter(sure, queue, dead):
    full = sure.declare({"x-max-length": 1, "x-overflow": "reject-publish-dlx"} | dead)
    assert fill(sure, full, 3) == [True, False, False]
    letters = [sure.arrived(queue) for _ in range(2)]
    assert [letter.body for letter in letters] == [b"1", b"2"]
    assert {letter.headers["x-death"][0]["reason"] for letter in letters} == {"maxlen"}
    assert sure.bodies(full) == [b"0"]


def test_a_refused_message_becomes_no_dead_letter_otherwise(sure, queue, dead):
    full = sure.declare({"x-max-length": 1, "x-overflow": "reject-publish"} | dead)
    assert fill(sure, full, 2) == [True, False]
    sure.put(queue, b"fence")
    assert sure.bodies(queue) == [b"fence"]


# --- what is no limit


@pytest.mark.parametrize(("argument", "value", "reason"), [
    ("x-max-length", "5", '"expected integer, got longstr"'), ("x-max-length-bytes", -1, "{value_negative,-1}"),
    ("x-overflow", 7, "{unacceptable_type,signedint}"), ("x-overflow", "", "invalid_overflow"),
])
def test_limits_no_queue_can_have_are_refused(peer, argument, value, reason):
    method = methods.QueueDeclare(queue="q", exclusive=True, arguments={argument: value})
    assert peer.refusal(method) == (
        406, f"PRECONDITION_FAILED - invalid arg '{argument}' for queue 'q' in vhost '/': {reason}")
