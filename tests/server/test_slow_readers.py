"""Clients that do not read what the broker sends them: they cost a bounded amount of memory, and hold up no other."""

import os
import signal

import pytest
from tests.conversations.peer import Peer, publish

from brokerd.wire import methods

MIB = 1 << 20
BODY = bytes(8 * MIB)


@pytest.fixture
def filled(broker):
    """A queue with one large message, and the memory that the broker has then."""
    with Peer(broker.port).open() as peer:
        peer.ask(methods.QueueDeclare(queue="q"))
        peer.send(publish("q", BODY))
        assert peer.ask(methods.QueueDeclare(queue="q", passive=True)).message_count == 1
        peer.close()
    return broker.anonymous_octets()


def gets(number):
    """So many gets of the one message, each given back at once."""
    return [method for tag in range(1, number + 1)
            for method in (methods.BasicGet(queue="q"), methods.BasicReject(delivery_tag=tag, requeue=True))]


def test_a_burst_of_gets_whose_answers_nobody_reads_costs_the_memory_of_two_messages(broker, filled):
    with Peer(broker.port).open() as lazy, Peer(broker.port).open() as other:
        lazy.send(*gets(100))
        for _ in range(20):
            assert isinstance(other.ask(methods.QueueDeclare(queue="q", passive=True)), methods.QueueDeclareOk)
        assert broker.anonymous_octets() - filled < 5 * len(BODY)
        for _ in range(100):  # It gets them all as soon as it reads.
            assert isinstance(lazy.read(), methods.BasicGetOk)
            assert lazy.message()[1] == BODY
        lazy.close()
        other.close()


def test_a_client_that_goes_without_reading_gives_back_what_it_had(broker, filled):
    with Peer(broker.port).open() as lazy:
        lazy.send(*gets(100))
    with Peer(broker.port).open() as other:
        broker.wait_for_log("lost after")
        assert other.ask(methods.QueueDeclare(queue="q", passive=True)).message_count == 1
        other.close()
    assert broker.anonymous_octets() - filled < 4 * len(BODY)


def test_answers_to_a_requester_that_does_not_read_are_bounded_and_the_answerer_goes_on(broker):
    with Peer(broker.port).open() as requester, Peer(broker.port).open() as answerer:
        requester.ask(methods.BasicConsume(queue="amq.rabbitmq.reply-to", consumer_tag="t", no_ack=True))
        answerer.ask(methods.QueueDeclare(queue="requests"))
        requester.send(publish("requests", b"?", reply_to="amq.rabbitmq.reply-to"))
        while not isinstance(answerer.ask(methods.BasicGet(queue="requests", no_ack=True)), methods.BasicGetOk):
            pass
        name = answerer.message()[0].reply_to
        before = broker.anonymous_octets()
        for _ in range(100):
            answerer.send(publish(name, bytes(MIB)))
        assert isinstance(answerer.ask(methods.QueueDeclare(queue="requests", passive=True)), methods.QueueDeclareOk)
        assert broker.anonymous_octets() - before < 64 * MIB
        broker.wait_for_log("WARNING .* direct replies to it are dropped: 16777216 octets wait, and it does not read")
        answerer.close()


def test_while_memory_is_low_who_holds_it_is_cut_off_and_publishers_go_on(make_broker, tmp_path):
    """The watermark lies between what an idle broker has and what it has with a client that does not read."""
    file = tmp_path / "brokerd.toml"
    file.write_text("")
    broker = make_broker("-c", file).start()
    with Peer(broker.port).open() as lazy, Peer(broker.port).open() as publisher:
        publisher.ask(methods.QueueDeclare(queue="q"))
        publisher.send(publish("q", bytes(64 * MIB)))
        assert publisher.ask(methods.QueueDeclare(queue="q", passive=True)).message_count == 1
        idle = broker.anonymous_octets()
        lazy.send(*gets(3))
        publisher.ask(methods.QueueDeclare(queue="q", passive=True))
        while broker.anonymous_octets() < idle + 40 * MIB:
            publisher.ask(methods.QueueDeclare(queue="q", passive=True))
        file.write_text(f"memory_high_watermark_octets = {idle + 32 * MIB}\n")
        os.kill(broker.pid, signal.SIGHUP)
        broker.wait_for_log("WARNING low on memory")
        publisher.send(publish("q", b"waits"))
        assert isinstance(publisher.read(), methods.ConnectionBlocked)
        broker.wait_for_log("cut off: memory is low, and it holds [0-9]+ octets", timeout=60)
        assert isinstance(publisher.read(), methods.ConnectionUnblocked)
        publisher.close()
