"""Federated exchanges whose upstream is Debian's RabbitMQ."""

import pika
import pytest
from tests.carriers.ends import QUICK, ask, await_true, bodies, take
from tests.carriers.test_federation import bound
from tests.rabbitmq import RabbitMQ, installed
from tests.server import clients

pytestmark = pytest.mark.skipif(not installed(), reason="RabbitMQ is not there: apt-get install rabbitmq-server")


def test_an_exchange_gets_what_is_published_at_a_rabbitmq(make_broker, tmp_path):
    here = make_broker().start()
    with RabbitMQ(tmp_path / "rabbit", plugins=("rabbitmq_federation",)) as peer:
        bound(here, "amq.topic", "a.#").connection.close()
        ask(here, "parameter set", component="federation-upstream", name="up", value={
            "uri": f"amqp://guest:guest@127.0.0.1:{peer.port}/", "reconnect-delay": QUICK, "max-hops": 2})
        ask(here, "policy set", name="fed", pattern="^amq.topic$", definition={"federation-upstream": "up"})
        await_true(lambda: [(row["state"], row["reason"]) for row in ask(here, "federation_link list")["items"]]
                   == [("running", "")])
        there = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", peer.port, heartbeat=0))
        for key in ("a.1", "b.1", "a.2"):
            there.channel().basic_publish("amq.topic", key, key.encode())
        assert bodies(take(here, "q", 2)) == [b"a.1", b"a.2"]
        there.close()
    clients.close_all()
