"""A stop, a close or a loss among transactions that a client sends without waiting: each is whole, or never was."""

import pytest
from tests.broker import Broker
from tests.conversations.peer import Peer, frame, publish

from brokerd.wire import methods

MOVES = 40      # transactions: each moves one message from one queue to another


@pytest.fixture
def broker(tmp_path):
    broker = Broker(tmp_path / "data", "--stop-timeout-seconds", 1).start()
    yield broker
    broker.stop()


def begin(broker):
    """A client that has all messages of the queue "from", and has sent all its transactions; the first is answered."""
    with Peer(broker.port).open() as peer:
        for name in ("from", "to"):
            peer.ask(methods.QueueDeclare(queue=name, durable=True))
        peer.confirming()
        peer.put_all([publish("from", b"%d" % n, delivery_mode=2) for n in range(MOVES)])
    mover = Peer(broker.port).open()
    mover.ask(methods.TxSelect())
    mover.consume("from", no_ack=False)
    found = [mover.delivered() for _ in range(MOVES)]
    mover.send(*[part for one in found for part in (
        publish("to", one.body, delivery_mode=2), methods.BasicAck(delivery_tag=one.method.delivery_tag),
        methods.TxCommit())])
    assert mover.read() == methods.TxCommitOk()
    return mover


def end(broker, mover, how):
    if how == "stop":
        broker.stop()
        broker.start()
    elif how == "close":
        mover.send((0, methods.ConnectionClose(reply_code=200, reply_text="", class_id=0, method_id=0)))
        while mover.read() != methods.ConnectionCloseOk():
            pass
    elif how == "fault":
        mover.send(frame(9, 1, b""))
        while not isinstance(mover.read(), methods.ConnectionClose):
            pass
    lines = len(broker.lines)
    mover.hang_up()
    if how == "loss":
        broker.wait_for_log("lost after", lines)


@pytest.mark.parametrize("how", ["stop", "close", "fault", "loss"])
def test_a_message_that_transactions_move_is_in_one_place(broker, how):
    mover = begin(broker)
    end(broker, mover, how)
    with Peer(broker.port).open() as peer:
        left, moved = [peer.bodies(name) for name in ("from", "to")]
    assert sorted(moved + left, key=int) == [b"%d" % n for n in range(MOVES)]
    assert moved == [b"%d" % n for n in range(len(moved))]
    if how == "close":
        assert left == []
