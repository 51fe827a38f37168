"""kill -9 while large messages come in: each that was confirmed or committed is whole in each of its queues."""

import os
import random
import signal
import threading

import pytest
from tests.broker import Broker
from tests.conversations.peer import Peer, publish

from brokerd.wire import methods

OCTETS = 5 << 20
KEYS = ("one", "two")
ROUNDS = 4


def body_of(number):
    return number.to_bytes(4) + random.Random(number).randbytes(1000) + bytes(OCTETS)


def answers(peer, wanted):
    """How many such methods came before the broker was gone."""
    count = 0
    while (method := peer.read()) is not None:
        assert isinstance(method, wanted), method
        count += 1 if wanted is methods.TxCommitOk else method.delivery_tag - count
    return count


@pytest.mark.parametrize("way", ["confirms", "commits"])
def test_large_messages_that_were_promised_are_whole_after_a_kill(tmp_path, way):
    chance = random.Random(way)
    with Broker(tmp_path / "data") as broker:
        with Peer(broker.port).open() as peer:
            for name in KEYS:
                peer.ask(methods.QueueDeclare(queue=name, durable=True))
                peer.ask(methods.QueueBind(queue=name, exchange="amq.fanout"))
        for attempt in range(ROUNDS):
            exchange, key = ("amq.fanout", "") if attempt % 2 else ("", "one")
            peer = Peer(broker.port).open()
            peer.ask(methods.ConfirmSelect() if way == "confirms" else methods.TxSelect())
            sent = b"".join(publish(key, body_of(number), exchange, delivery_mode=2)
                            + (b"" if way == "confirms" else methods.TxCommit().frame(1)) for number in range(8))
            sender = threading.Thread(target=peer.raw, args=(sent,))
            sender.start()
            threading.Timer(chance.uniform(0.02, 0.3), os.kill, (broker.pid, signal.SIGKILL)).start()
            promised = answers(peer, methods.BasicAck if way == "confirms" else methods.TxCommitOk)
            sender.join()
            peer.socket.close()
            broker.wait()
            broker.start()
            assert not [name for name in (tmp_path / "data" / "spare").iterdir() if name.name.startswith("large.")]
            with Peer(broker.port).open() as peer:
                for name in KEYS:
                    found = []
                    while (got := peer.get(name)) is not None:
                        found.append(got[1])
                    assert [body[:1004] for body in found] == [body_of(number)[:1004] for number in range(len(found))]
                    assert all(len(body) == 1004 + OCTETS and not any(body[1004:]) for body in found)
                    assert len(found) >= (promised if name == "one" or exchange else 0)
