"""A clean stop while messages die: what it has begun it ends."""

import shutil

import pytest
from tests.conversations.peer import Peer, eventually, publish

from brokerd.wire import methods

MESSAGES = 300


@pytest.mark.parametrize("ready_at_stop", [250, 100, 1])
def test_letters_of_messages_that_die_while_the_broker_stops_come_once(broker, ready_at_stop):
    """At least once: each message dies of its time.  The stop comes while so many have not died yet."""
    with Peer(broker.port).open() as peer:
        peer.ask(methods.QueueDeclare(queue="dead", durable=True))
        peer.ask(methods.QueueDeclare(queue="source", durable=True, arguments={
            "x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead",
            "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}))
        for n in range(MESSAGES):
            peer.raw(publish("source", b"%04d" % n, delivery_mode=2, expiration=str(300 + n)))
        look = methods.QueueDeclare(queue="source", passive=True)
        eventually(lambda: peer.ask(look).message_count <= ready_at_stop)
        peer.close()
    broker.stop()
    broker.start()
    with Peer(broker.port).open() as peer:
        eventually(lambda: peer.ask(methods.QueueDeclare(queue="source", passive=True)).message_count == 0)
        look = methods.QueueDeclare(queue="dead", passive=True)
        eventually(lambda: peer.ask(look).message_count >= MESSAGES)
        came = []
        while isinstance(peer.ask(methods.BasicGet(queue="dead", no_ack=True)), methods.BasicGetOk):
            came.append(peer.message()[1])
        assert sorted(came) == [b"%04d" % n for n in range(MESSAGES)]
        peer.close()


def test_a_client_whose_queue_cannot_be_deleted_is_gone_all_the_same(make_broker):
    """rename() fails, as on a disk that has become read-only: the broker must forget the connection, and stop."""
    broker = make_broker().start()
    with Peer(broker.port).open() as peer:
        name = peer.ask(methods.QueueDeclare(exclusive=True)).queue
        peer.ask(methods.ConfirmSelect())
        peer.raw(publish(name, b"x"))
        peer.read()
        shutil.rmtree(broker.directory / "garbage")
        (broker.directory / "garbage").write_text("")
    broker.wait_for_log("ERROR   queue '.*' of a connection that has gone cannot be deleted: .*Not a directory")
    broker.wait_for_log("lost after .*: the client went without connection.close")
    (broker.directory / "garbage").unlink()
    broker.stop()
