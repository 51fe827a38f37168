"""kill -9 at random moments under confirmed load, and what is found after it."""

import pytest
from tests.broker import Broker
from tests.faults.client import Client, Gone
from tests.faults.rounds import Rounds
from tests.plane import harness

from brokerd.wire import methods

ENVIRONMENT = {"BROKERD_SEGMENT_OCTETS": str(1 << 20), "BROKERD_FREE_DISK_MIN_OCTETS": "0"}
ROUNDS = 12


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_was_confirmed_is_there_in_order_and_marked_after_each_kill(tmp_path, seed):
    with Broker(tmp_path, env=ENVIRONMENT) as broker:
        rounds = Rounds(broker, seed)
        for _ in range(ROUNDS):
            rounds.run()
        rounds.finish()
        assert rounds.looks > ROUNDS


def test_a_purge_that_was_answered_holds_though_the_broker_dies_the_next_moment(tmp_path):
    with Broker(tmp_path, env=ENVIRONMENT) as broker:
        for _ in range(3):
            with Client(broker.port) as client:
                client.ask(methods.QueueDeclare(queue="q", durable=True), methods.QueueDeclareOk)
                client.sock.sendall(b"".join(harness.publish(1, bytes(5000)) for _ in range(1000)))
                assert client.ask(methods.QueuePurge(queue="q"), methods.QueuePurgeOk).message_count == 1000
                broker.restart(kill=True)
            with Client(broker.port) as client:
                passive = methods.QueueDeclare(queue="q", passive=True)
                assert client.ask(passive, methods.QueueDeclareOk).message_count == 0


def test_what_is_deleted_stays_deleted_though_the_broker_dies_the_next_moment(tmp_path):
    with Broker(tmp_path, env=ENVIRONMENT) as broker:
        for again in range(3):
            with Client(broker.port) as client:
                client.ask(methods.QueueDeclare(queue="q", durable=True), methods.QueueDeclareOk)
                client.sock.sendall(b"".join(harness.publish(1, bytes(5000)) for _ in range(600)))
                assert client.ask(methods.QueueDelete(queue="q"), methods.QueueDeleteOk).message_count == 600
                if again:       # Made anew under the same name: the old one's messages are not its own.
                    client.ask(methods.QueueDeclare(queue="q", durable=True), methods.QueueDeclareOk)
                broker.restart(kill=True)
            with Client(broker.port) as client:
                passive = methods.QueueDeclare(queue="q", passive=True)
                if again:
                    assert client.ask(passive, methods.QueueDeclareOk).message_count == 0
                    continue
                with pytest.raises(Gone, match="404"):
                    client.ask(passive, methods.QueueDeclareOk)
