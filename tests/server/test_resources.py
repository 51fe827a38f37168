"""What clients cost: memory of slow ones, files of idle queues, many of everything, and great and empty messages."""

import os
import re
import resource
import socket
import time

import pika
import pytest
from tests.conversations.peer import SECONDS, Peer, publish
from tests.server.clients import connect, drain, publish_confirmed

from brokerd.wire import methods

MIB = 1 << 20


def test_a_slow_consumer_costs_bounded_memory(broker):
    """It asks for everything, without acks, and then reads not an octet of it."""
    octets, size = 64 * MIB, 16384
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    with Peer(broker.port) as slow:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        slow.open()
        slow.send(methods.BasicConsume(queue="q", consumer_tag="t", no_ack=True))
        assert isinstance(slow.read(), methods.BasicConsumeOk)
        before = broker.anonymous_octets()
        for n in range(octets // size):
            channel.basic_publish("", "q", b"%08d" % n + bytes(size - 8))
        channel.queue_declare("q", passive=True)
        assert broker.anonymous_octets() - before < 8 * MIB
        for n in range(octets // size):  # All of it is there as soon as it is wanted.
            assert slow.delivery()[1][:8] == b"%08d" % n
    connection.close()


def test_a_hundred_slow_consumers_cost_bounded_memory(broker):
    connection = connect(broker)
    channel = connection.channel()
    channel.exchange_declare("x", "fanout")
    slow = []
    for _ in range(100):
        peer = Peer(broker.port).open()
        queue = peer.ask(methods.QueueDeclare(exclusive=True)).queue
        assert isinstance(peer.ask(methods.QueueBind(queue=queue, exchange="x")), methods.QueueBindOk)
        assert isinstance(peer.ask(methods.BasicConsume(queue=queue, no_ack=True)), methods.BasicConsumeOk)
        slow.append(peer)
    before = broker.anonymous_octets()
    for _ in range(100):
        channel.basic_publish("x", "", bytes(20_000))
    channel.queue_declare("", exclusive=True)
    assert broker.anonymous_octets() - before < 40 * MIB
    for peer in slow:
        peer.hang_up()
    connection.close()


def test_messages_at_rest_cost_no_memory(broker):
    with Peer(broker.port).open() as peer:
        peer.ask(methods.QueueDeclare(queue="q", durable=True))
        before = broker.anonymous_octets()
        hundred = publish("q", b"0123456789abcdef") * 100
        for _ in range(1000):
            peer.send(hundred)
        assert peer.count("q") == (100_000, 0)
        assert broker.anonymous_octets() - before < 4 * MIB
        peer.close()


def queue_files(broker):
    """Open descriptors and maps of files of messages."""
    return [name for name in broker.open_files() + broker.mapped_files() if re.search(r"/(msgs|acks)[^/]*$", name)]


def stored_files(broker):
    """Files of messages.  The broker may remove folders meanwhile: os.walk() does not mind."""
    return [name for _, _, names in os.walk(broker.directory) for name in names if name.startswith("msgs")]


def test_idle_queues_hold_no_files_and_wake_up_again(make_broker):
    with make_broker(env={"BROKERD_IDLE_QUEUE_SECONDS": "1"}) as broker:
        connection = connect(broker)
        channel = connection.channel()
        were_open = False
        for n in range(50):
            channel.queue_declare(f"q{n}", durable=True)
            publish_confirmed(channel, f"q{n}", [b"kept"])
            were_open = were_open or bool(queue_files(broker))
        assert were_open
        end = time.monotonic() + SECONDS
        while left := queue_files(broker):  # It is the passing of time that is tried here.
            assert time.monotonic() < end, left
            time.sleep(0.01)
        assert not any("deleted" in name and str(broker.directory) in name for name in broker.open_files())
        for n in range(50):
            publish_confirmed(channel, f"q{n}", [b"later"])
            assert drain(channel, f"q{n}") == [b"kept", b"later"]
        connection.close()


def test_deleted_queues_leave_no_files(make_broker):
    with make_broker(env={"BROKERD_IDLE_QUEUE_SECONDS": "1"}) as broker:
        connection = connect(broker)
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        publish_confirmed(channel, "q", [b"x" * 1000] * 100)
        channel.queue_delete("q")
        connection.close()
        end = time.monotonic() + SECONDS
        while left := queue_files(broker) + stored_files(broker):
            assert time.monotonic() < end, left
            time.sleep(0.01)


@pytest.mark.parametrize("size", [10_000_000, 0])
def test_messages_of_any_size_survive_a_kill(broker, size):
    body = os.urandom(size)
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    publish_confirmed(channel, "q", [body, b"after", body])
    broker.restart(kill=True)
    connection = connect(broker)
    assert drain(connection.channel(), "q") == [body, b"after", body]
    connection.close()


def test_a_thousand_connections_at_once(broker):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("no more than 4096 files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    broker.restart()
    before = broker.anonymous_octets()
    peers = [Peer(broker.port).open() for _ in range(1000)]
    name = peers[0].ask(methods.QueueDeclare(queue="shared", auto_delete=True)).queue
    for peer in peers:
        assert isinstance(peer.ask(methods.BasicConsume(queue=name, no_ack=True)), methods.BasicConsumeOk)
    assert (broker.anonymous_octets() - before) / 1000 < 32_000
    with Peer(broker.port).open() as publisher:
        publisher.send(*[publish(name, b"%d" % n) for n in range(1000)])
        bodies = [peer.delivery()[1] for peer in peers]
        assert bodies == [b"%d" % n for n in range(1000)]  # strict turns, in order of subscription
    for peer in peers:
        peer.hang_up()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    connection = connect(broker)
    connection.close()


def test_all_channels_of_a_connection(broker):
    with Peer(broker.port).open() as peer:
        for number in range(2, 2048):
            peer.send((number, methods.ChannelOpen()))
        for _ in range(2, 2048):
            assert isinstance(peer.read(), methods.ChannelOpenOk)
        name = peer.ask(methods.QueueDeclare(exclusive=True)).queue
        for number in range(1, 2048):
            peer.send((number, methods.BasicConsume(queue=name, no_ack=True, no_wait=True)))
        assert peer.ask(methods.QueueDeclare(queue=name, passive=True)).consumer_count == 2047
        peer.send(*[publish(name, b"m", channel=number) for number in range(1, 2048)])
        channels = set()
        for _ in range(1, 2048):
            peer.delivery()
            channels.add(peer.channel)
        assert channels == set(range(1, 2048))
        peer.close()


def test_ten_thousand_queues_come_back(broker):
    with Peer(broker.port).open() as peer:
        for n in range(10_000):
            peer.send(methods.QueueDeclare(queue=f"q{n}", durable=True, no_wait=True))
        assert peer.ask(methods.QueueDeclare(queue="last", durable=True)) == methods.QueueDeclareOk(queue="last")
        peer.close()
    broker.restart(kill=True)
    with Peer(broker.port).open() as peer:
        for n in (0, 5000, 9999):
            name = f"q{n}"
            assert peer.ask(methods.QueueDeclare(queue=name, passive=True)) == methods.QueueDeclareOk(queue=name)
        peer.close()


def test_connections_over_the_limit_are_refused_and_the_others_stay(make_broker):
    with make_broker(env={"BROKERD_CONNECTION_MAX": "2"}) as broker:
        first, second = connect(broker), connect(broker)
        with pytest.raises(pika.exceptions.AMQPConnectionError, match=r"node connection limit \(2\) is reached"):
            connect(broker)
        second.close()
        connect(broker).close()
        first.close()
