"""Quorum queues as clients see them: x-queue-type, x-delivery-limit, x-delivery-count."""

import pytest
from tests.conversations.peer import Peer, differs, eventually, rabbitmq

from brokerd.wire import methods


@pytest.fixture
def sure(peer):
    """The peer, its channel 1 confirming."""
    return peer.confirming()


@pytest.fixture
def limited(sure, queue, name):
    """A queue from which a message is handed out three times at most; dead letters come to ``queue``."""
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 2,
                 "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    return sure.declare(arguments, name, durable=True, exclusive=False)


def reject(peer, message, requeue=True):
    peer.send(methods.BasicReject(delivery_tag=message.method.delivery_tag, requeue=requeue))


@rabbitmq("3.10 tells of the first, too, that none was before", always=True)
def test_earlier_deliveries_are_counted_in_a_header(sure, limited):
    sure.put(limited, b"m", delivery_mode=2)
    counts = []
    for _ in range(3):
        message = sure.arrived(limited, no_ack=False)
        counts.append(message.headers.get("x-delivery-count"))
        reject(sure, message)
    assert counts == [None, 1, 2]


def test_redelivered_is_told_of_every_delivery_but_the_first(sure, limited):
    sure.put(limited, b"m")
    flags = []
    for _ in range(3):
        message = sure.arrived(limited, no_ack=False)
        flags.append(message.method.redelivered)
        reject(sure, message)
    assert flags == [False, True, True]


def test_over_the_limit_a_message_is_a_dead_letter(sure, limited, queue):
    sure.put(limited, b"poison", delivery_mode=2)
    for _ in range(3):
        reject(sure, sure.arrived(limited, no_ack=False))
    letter = sure.arrived(queue)
    assert letter.body == b"poison"
    (death,) = letter.headers["x-death"]
    assert (death["reason"], death["queue"], death["count"]) == ("delivery_limit", limited, 1)
    assert letter.headers["x-first-death-reason"] == "delivery_limit"
    assert sure.got(limited) is None


def test_over_the_limit_without_an_exchange_for_it_a_message_is_gone(sure, name):
    sure.declare({"x-queue-type": "quorum", "x-delivery-limit": 0}, name, durable=True, exclusive=False)
    sure.put(name, b"once")
    reject(sure, sure.arrived(name, no_ack=False))
    eventually(lambda: sure.count(name)[0], lambda ready: ready == 0)
    sure.put(name, b"next")
    assert sure.arrived(name).body == b"next"


def test_a_lost_channel_counts(sure, limited):
    sure.put(limited, b"m")
    sure.arrived(limited, no_ack=False)
    assert sure.ask(methods.ChannelClose(reply_code=200)) == methods.ChannelCloseOk()
    sure.open_channel(1)
    assert sure.arrived(limited, no_ack=False).headers["x-delivery-count"] == 1


def test_a_lost_connection_counts(port, sure, limited):
    sure.put(limited, b"m")
    with Peer(port).open() as other:
        assert other.arrived(limited, no_ack=False).body == b"m"
    assert sure.arrived(limited, no_ack=False).headers["x-delivery-count"] == 1


def test_consumers_are_told_too(sure, limited):
    sure.consume(limited)
    sure.put(limited, b"m")
    for count in (None, 1, 2):
        message = sure.delivered()
        assert (message.headers.get("x-delivery-count"), message.method.redelivered) == (count, count is not None)
        reject(sure, message)


def test_what_was_rejected_for_good_is_not_over_the_limit(sure, limited, queue):
    sure.put(limited, b"m")
    reject(sure, sure.arrived(limited, no_ack=False), requeue=False)
    assert sure.arrived(queue).headers["x-death"][0]["reason"] == "rejected"


def test_a_count_does_not_go_with_a_dead_letter_to_the_next_queue(sure, limited, queue):
    sure.put(limited, b"m")
    for _ in range(3):
        reject(sure, sure.arrived(limited, no_ack=False))
    letter = sure.arrived(queue, no_ack=False)
    reject(sure, letter)
    assert sure.arrived(queue).method.redelivered is True


def test_a_classic_queue_tells_no_counts(sure, queue):
    sure.put(queue, b"m")
    reject(sure, sure.arrived(queue, no_ack=False))
    assert "x-delivery-count" not in sure.arrived(queue).headers


@pytest.mark.parametrize(("fields", "text"), [
    ({"durable": False}, "invalid property 'non-durable' for queue 'q' in vhost '/'"),
    ({"exclusive": True}, "invalid property 'exclusive-owner' for queue 'q' in vhost '/'"),
    ({"auto_delete": True}, "invalid property 'auto-delete' for queue 'q' in vhost '/'"),
])
def test_a_quorum_queue_is_durable_and_everybodys(peer, fields, text):
    method = methods.QueueDeclare(**{"queue": "q", "durable": True, "arguments": {"x-queue-type": "quorum"}} | fields)
    assert peer.refusal(method) == (406, f"PRECONDITION_FAILED - {text}")


@rabbitmq("3.10 names them; later ones refuse", always=True)
def test_a_quorum_queue_has_a_name(peer):
    method = methods.QueueDeclare(queue="", durable=True, arguments={"x-queue-type": "quorum"})
    assert peer.refusal(method) == (
        406, 'PRECONDITION_FAILED - Cannot declare a server-named queue for type <<"quorum">>')


@pytest.mark.parametrize("argument", ["x-max-priority"])
def test_a_quorum_queue_takes_no_arguments_of_classic_ones(peer, argument):
    method = methods.QueueDeclare(queue="q", durable=True, arguments={"x-queue-type": "quorum", argument: 5})
    assert peer.refusal(method) == (
        406, f"PRECONDITION_FAILED - invalid arg '{argument}' for queue 'q' in vhost '/' of queue type "
             "rabbit_quorum_queue")


@differs("`x-delivery-limit` of a classic queue")
def test_a_classic_queue_may_have_a_limit(sure, queue):
    limited = sure.declare({"x-delivery-limit": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue})
    sure.put(limited, b"m")
    for _ in range(2):
        reject(sure, sure.arrived(limited, no_ack=False))
    assert sure.arrived(queue).headers["x-first-death-reason"] == "delivery_limit"


@rabbitmq("3.10 has other words for it", always=True)
def test_the_type_of_a_queue_is_compared(sure, name):
    sure.declare({"x-queue-type": "quorum"}, name, durable=True, exclusive=False)
    assert sure.refusal(methods.QueueDeclare(queue=name, durable=True)) == (
        406, f"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue '{name}' in vhost '/': "
             "received 'classic' but current is 'quorum'")


@pytest.mark.parametrize("value", ["unheard-of", 5])
def test_a_type_nobody_knows_is_refused(peer, value):
    code, text = peer.refusal(methods.QueueDeclare(queue="q", exclusive=True, arguments={"x-queue-type": value}))
    assert (code, text[:67]) == (
        406, "PRECONDITION_FAILED - invalid arg 'x-queue-type' for queue 'q' in v")
