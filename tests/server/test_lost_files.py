"""Files that are cut off under a running broker: one queue ends, with a reason; all else goes on."""

import os
import pathlib

import pytest
from tests.conversations.peer import Peer, eventually, publish

from brokerd.wire import methods

COUNT, OCTETS = 40, 5000


@pytest.fixture
def filled(broker):
    """A broker with two queues of the same messages."""
    with Peer(broker.port).open() as peer:
        for name in ("broken", "sound"):
            peer.ask(methods.QueueDeclare(queue=name, durable=True))
        peer.ask(methods.ConfirmSelect())
        for name in ("broken", "sound"):
            peer.raw(b"".join(publish(name, b"%05d" % n + bytes(OCTETS), delivery_mode=2) for n in range(COUNT)))
        tag = 0
        while tag < 2 * COUNT:
            tag = peer.read().delivery_tag
        peer.close()
    return broker


def files_of(broker, kind, name="broken"):
    [queue] = [path.parent for path in broker.directory.rglob(".queue") if path.read_text().strip() == name]
    return sorted(queue.glob(f"{kind}.*"))


def cut_off(broker, kind):
    """Linux has the pages beyond the new end raise SIGBUS."""
    [path] = files_of(broker, kind)
    os.truncate(path, 0)


def assert_sound(broker):
    """The other queue, and connections, are as ever."""
    with Peer(broker.port).open() as peer:
        peer.consume("sound", no_ack=True)
        assert [peer.delivery()[1][:5] for _ in range(COUNT)] == [b"%05d" % n for n in range(COUNT)]
        peer.close()


def get(peer):
    peer.ask(methods.BasicGet(queue="broken", no_ack=False))


def consume(peer):
    peer.ask(methods.BasicConsume(queue="broken"))
    peer.read()


def purge(peer):
    peer.ask(methods.QueuePurge(queue="broken"))


def put(peer):
    peer.ask(methods.ConfirmSelect())
    peer.raw(publish("broken", b"new", delivery_mode=2))
    assert isinstance(peer.read(), methods.BasicNack)


@pytest.mark.parametrize("act", [get, consume, put])
def test_a_queue_whose_messages_are_cut_off_ends_and_nothing_else(filled, act):
    cut_off(filled, "msgs")
    with Peer(filled.port).open() as peer:
        try:
            act(peer)
        except (AssertionError, OSError, AttributeError):
            assert act is not put  # A connection with octets of a lost page in its output is cut off.
    filled.wait_for_log("CRITICAL queue 'broken' in vhost '/' is out of service: its files in .* were cut off")
    assert_sound(filled)


def test_no_octet_of_a_lost_page_reaches_a_client(filled):
    """The first messages are whole; the file ends within one of the others."""
    [path] = files_of(filled, "msgs")
    os.truncate(path, 3 * 8192)
    with Peer(filled.port).open() as peer:
        peer.ask(methods.BasicConsume(queue="broken", no_ack=True))
        came = []
        try:
            while True:
                came.append(peer.delivery()[1])
        except (AssertionError, OSError, AttributeError):
            pass
    filled.wait_for_log("CRITICAL queue 'broken'")
    for n, body in enumerate(came):
        assert body == b"%05d" % n + bytes(OCTETS)
    assert_sound(filled)


def test_whoever_asks_for_a_queue_that_has_ended_learns_why_and_its_consumers_are_cancelled(filled):
    with Peer(filled.port).open() as waiting, Peer(filled.port).open() as peer:
        waiting.ask(methods.BasicQos(prefetch_count=1))
        waiting.ask(methods.BasicConsume(queue="broken", consumer_tag="t"))
        tag = waiting.delivery()[0].delivery_tag
        cut_off(filled, "msgs")
        waiting.send(methods.BasicAck(delivery_tag=tag))
        filled.wait_for_log("CRITICAL queue 'broken'")
        for method in (methods.QueueDeclare(queue="broken", passive=True), methods.BasicGet(queue="broken"),
                       methods.QueueDeclare(queue="broken", durable=True), methods.BasicConsume(queue="broken"),
                       methods.QueuePurge(queue="broken")):
            code, text = peer.refusal(method)
            assert code == 404
            assert "queue 'broken' in vhost '/' is out of service: its files were cut off" in text
        peer.ask(methods.ConfirmSelect())
        peer.raw(publish("broken", b"x", delivery_mode=2) + publish("sound", b"y", delivery_mode=2))
        first, second = peer.read(), peer.read()
        assert isinstance(first, methods.BasicNack)
        assert isinstance(second, methods.BasicAck)
        assert isinstance(peer.ask(methods.QueueDelete(queue="broken")), methods.QueueDeleteOk)
        assert isinstance(peer.ask(methods.QueueDeclare(queue="broken", durable=True)), methods.QueueDeclareOk)
        peer.close()


@pytest.mark.parametrize("kind", ["msgs", "acks"])
def test_the_next_start_finds_what_is_left_and_does_not_take_the_stop_for_a_clean_one(filled, kind):
    cut_off(filled, kind)
    with Peer(filled.port).open() as peer:
        try:
            peer.ask(methods.BasicGet(queue="broken"))
        except (AssertionError, OSError, AttributeError):
            pass
    filled.wait_for_log("CRITICAL queue 'broken'")
    filled.stop()
    filled.start()
    filled.wait_for_log("the former broker did not stop cleanly .power lost.: recovering")
    with Peer(filled.port).open() as peer:
        look = methods.QueueDeclare(queue="broken", passive=True)
        assert peer.ask(look).message_count == (0 if kind == "msgs" else COUNT)
        peer.raw(publish("broken", b"again", delivery_mode=2))
        eventually(lambda: peer.ask(look).message_count >= 1)
        peer.close()
    assert_sound(filled)


def test_a_publish_into_a_page_that_is_lost_is_refused(broker):
    """The publisher's confirm would say that the message is on disk."""
    with Peer(broker.port).open() as peer:
        peer.ask(methods.QueueDeclare(queue="broken", durable=True))
        peer.ask(methods.ConfirmSelect())
        peer.raw(publish("broken", b"first", delivery_mode=1))
        assert isinstance(peer.read(), methods.BasicAck)
        cut_off(broker, "msgs")
        peer.raw(publish("broken", b"second", delivery_mode=1))
        assert isinstance(peer.read(), methods.BasicNack)
        broker.wait_for_log("CRITICAL queue 'broken'")
        peer.close()


def test_a_queue_that_rested_is_lost_too_and_no_publisher_waits(make_broker):
    """Its files are not mapped, so nothing raises SIGBUS."""
    broker = make_broker("--idle-queue-seconds", "1").start()
    with Peer(broker.port).open() as peer:
        for name in ("broken", "sound"):
            peer.ask(methods.QueueDeclare(queue=name, durable=True))
        peer.ask(methods.ConfirmSelect())
        peer.raw(publish("broken", bytes(5000), delivery_mode=2))
        peer.read()
        [path] = files_of(broker, "msgs")
        maps = pathlib.Path(f"/proc/{broker.pid}/maps")
        eventually(lambda: str(path) not in maps.read_text())
        os.truncate(path, 0)
        peer.raw(publish("broken", b"new", delivery_mode=2))
        assert isinstance(peer.read(), methods.BasicNack)
        peer.raw(publish("sound", b"y", delivery_mode=2))
        assert isinstance(peer.read(), methods.BasicAck)
        broker.wait_for_log("CRITICAL queue 'broken'")
        assert "low on disk" not in broker.log_text()
        peer.close()
