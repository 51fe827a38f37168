"""Memory over its watermark: publishers wait, alone or with those of the disk, and are told once of both."""

import os
import signal

import pytest
from tests.conversations.peer import Peer, publish

from brokerd.wire import methods

LOW_MEMORY, LOW_DISK = "memory_high_watermark_octets = 1\n", f"free_disk_min_octets = {1 << 50}\n"
RAISED = "WARNING low on memory: [0-9]+ octets used, limit 1; publishers are blocked"


@pytest.fixture
def configured(make_broker, tmp_path):
    """A broker, and what gives it other options: returns when ``until`` stands in the log."""
    file = tmp_path / "brokerd.toml"
    file.write_text("")
    broker = make_broker("-c", file).start()

    def put(text, until):
        begin = len(broker.lines)
        file.write_text(text)
        os.kill(broker.pid, signal.SIGHUP)
        return broker.wait_for_log(until, begin)

    return broker, put


def blocked(peer, queue):
    """Publish; the reason why that must wait."""
    peer.send(publish(queue))
    method = peer.read()
    assert isinstance(method, methods.ConnectionBlocked), method
    return method.reason


def test_publishers_wait_while_memory_is_over_its_watermark(configured):
    broker, put = configured
    with Peer(broker.port).open() as peer, Peer(broker.port).open() as other:
        name = peer.ask(methods.QueueDeclare(queue="q")).queue
        put(LOW_MEMORY, RAISED)
        assert blocked(peer, name) == "low on memory"
        peer.send(publish(name))
        assert other.ask(methods.QueueDeclare(queue="q", passive=True)).message_count == 1  # The one that began it.
        put("", "no longer low on memory: [0-9]+ octets used; publishers go on")
        assert peer.read() == methods.ConnectionUnblocked()  # Blocked was said once.
        assert peer.ask(methods.QueueDeclare(queue="q", passive=True)).message_count == 2
        peer.close()
        other.close()


def test_with_both_alarms_both_must_end(configured):
    broker, put = configured
    with Peer(broker.port).open() as early, Peer(broker.port).open() as late:
        name = early.ask(methods.QueueDeclare(queue="q")).queue
        put(LOW_MEMORY, RAISED)
        assert blocked(early, name) == "low on memory"
        put(LOW_MEMORY + LOW_DISK, "WARNING low on disk: .* publishers are blocked")
        assert blocked(late, name) == "low on disk & memory"
        put(LOW_DISK, "no longer low on memory: [0-9]+ octets used; still low on disk")
        with Peer(broker.port).open() as other:
            assert blocked(other, name) == "low on disk"
        put("", "no longer low on disk: [0-9]+ octets free; publishers go on")
        for peer in (early, late):
            assert peer.read() == methods.ConnectionUnblocked()
            peer.close()


def test_who_does_not_publish_notices_nothing(configured):
    broker, put = configured
    with Peer(broker.port).open() as publisher, Peer(broker.port).open() as consumer:
        name = publisher.ask(methods.QueueDeclare(queue="q")).queue
        publisher.send(publish(name, b"before"))
        assert isinstance(consumer.ask(methods.BasicConsume(queue=name, consumer_tag="t")), methods.BasicConsumeOk)
        deliver, body = consumer.delivery()
        assert body == b"before"
        put(LOW_MEMORY, RAISED)
        consumer.send(methods.BasicReject(delivery_tag=deliver.delivery_tag, requeue=True))
        deliver, body = consumer.delivery()  # Acks, rejects and deliveries go on.
        assert deliver.redelivered
        consumer.close()
        publisher.close()  # It has not published since: it is not stopped yet (RabbitMQ).


def test_a_percentage_of_all_memory_is_a_watermark_too(make_broker):
    broker = make_broker("--memory-high-watermark-percent", 1).start()  # Far more than an empty broker uses.
    with Peer(broker.port).open() as peer:
        name = peer.ask(methods.QueueDeclare(exclusive=True)).queue
        peer.send(publish(name, b"m"))
        assert peer.get(name) == (False, b"m")
        peer.close()


def test_no_watermark_is_no_alarm(configured):
    _, put = configured
    put(LOW_MEMORY, RAISED)
    put("memory_high_watermark_percent = 0\n", "no longer low on memory")
