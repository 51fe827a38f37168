"""What a delayed exchange holds back is listed by due time, sent on before its time, or dropped."""

import pika
import pytest
from tests.broker import Broker

from brokerd.cli.ctl_client import Client
from brokerd.errors import BrokerError

HOUR = 3_600_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Broker(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker
    broker.check_log()


@pytest.fixture
def channel(broker):
    """The exchange "later" holds back what is due in two, in one and in three hours."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"})
    channel.queue_declare("target", durable=True)
    channel.queue_bind("target", "later", "key")
    for hours in (2, 1, 3):
        channel.basic_publish("later", "key", b"%d" % hours, pika.BasicProperties(
            delivery_mode=2, headers={"x-delay": hours * HOUR}))
    yield channel
    channel.queue_delete("target")
    channel.exchange_delete("later")
    connection.close()


def ask(broker, verb, **fields):
    with Client(str(broker.directory)) as client:
        return client.ask(f"exchange {verb}", {"exchange": "later", **fields})


def test_the_next_ones_stand_first(broker, channel):
    answer = ask(broker, "delayed")
    assert answer["waiting"] == 3
    assert [row["payload"] for row in answer["items"]] == ["1", "2", "3"]
    dues = [row["due_at"] for row in answer["items"]]
    assert [round((due - dues[0]) / HOUR) for due in dues] == [0, 1, 2]
    assert [row["payload"] for row in ask(broker, "delayed", count=2)["items"]] == ["1", "2"]


def test_one_is_delivered_now_and_one_is_dropped(broker, channel):
    first, second, third = [row["seq"] for row in ask(broker, "delayed")["items"]]
    ask(broker, "deliver_now", seq=third)
    ask(broker, "cancel_delayed", seq=first)
    assert channel.basic_get("target", auto_ack=True)[2] == b"3"
    assert channel.basic_get("target", auto_ack=True)[2] is None
    assert [row["seq"] for row in ask(broker, "delayed")["items"]] == [second]
    for verb in ("deliver_now", "cancel_delayed"):
        with pytest.raises(BrokerError, match=f"no message {first} of exchange 'later' waits"):
            ask(broker, verb, seq=first)


def test_the_list_of_queues_shows_the_waiting_room_without_an_owner(broker, channel):
    with Client(str(broker.directory)) as client:
        rows = {row["name"]: row for row in client.ask("queue list", {})["items"]}
    assert (rows["amq.delayed.later"]["owner"], rows["amq.delayed.later"]["messages_ready"]) == (None, 3)


def test_an_exchange_that_delays_nothing_is_told(broker, channel):
    with pytest.raises(BrokerError, match="exchange 'amq.topic' in vhost '/' delays nothing"):
        ask(broker, "delayed", exchange="amq.topic")
