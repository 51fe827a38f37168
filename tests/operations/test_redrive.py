"""Dead letters go back where they died, in order and as they were; what cannot go stays, and is told."""

import contextlib

import pika
import pytest
from tests.broker import Broker

from brokerd.cli.ctl_client import Client
from brokerd.errors import BrokerError


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Broker(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker
    broker.check_log()


@pytest.fixture
def channel(broker):
    """Queue "work", whose rejected messages go to "dead"; three have died, and one came to "dead" by itself."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("dead", durable=True)
    channel.queue_declare("work", durable=True, arguments={"x-dead-letter-exchange": "",
                                                           "x-dead-letter-routing-key": "dead"})
    channel.queue_bind("work", "amq.topic", "order.#")
    for number in range(3):
        channel.basic_publish("amq.topic", f"order.{number}", b"%d" % number, pika.BasicProperties(
            delivery_mode=2, headers={"mine": number}, message_id=f"id-{number}"))
    for _ in range(3):
        method, _, _ = channel.basic_get("work")
        channel.basic_reject(method.delivery_tag, requeue=False)
    while channel.queue_declare("dead", passive=True).method.message_count < 3:
        pass  # A reject has no answer, but the broker goes on with each declare.
    channel.basic_publish("", "dead", b"stranger", pika.BasicProperties(delivery_mode=2))
    yield channel
    channel.queue_delete("work")
    channel.queue_delete("dead")
    connection.close()


def redrive(broker, **fields):
    with Client(str(broker.directory)) as client:
        return client.ask("message redrive", {"queue": "dead", **fields})


def taken(channel, queue):
    """All messages of the queue, in order."""
    found = []
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append((method.exchange, method.routing_key, properties.headers, properties.message_id, body))


def test_dead_letters_go_back_in_order_as_they_were_published(broker, channel):
    answer = redrive(broker)
    assert (answer["messages"], answer["left"]) == (3, 1)
    assert "it is no dead letter" in answer["reasons"][0]["why"]
    assert taken(channel, "work") == [
        ("amq.topic", f"order.{number}", {"mine": number}, f"id-{number}", b"%d" % number) for number in range(3)]
    assert [row[4] for row in taken(channel, "dead")] == [b"stranger"]


def test_a_dry_run_moves_nothing_and_chosen_ones_alone_go(broker, channel):
    assert redrive(broker, dry_run=True)["messages"] == 3
    seqs = redrive(broker, dry_run=True)["seqs"]
    assert redrive(broker, seqs=str(seqs[1]))["seqs"] == [seqs[1]]
    assert [row[4] for row in taken(channel, "work")] == [b"1"]


def test_a_queue_that_is_gone_keeps_them_where_they_are(broker, channel):
    channel.queue_delete("work")
    answer = redrive(broker)
    assert (answer["messages"], answer["left"]) == (0, 4)
    assert "no queue 'work' in vhost '/'" in {reason["why"] for reason in answer["reasons"]}
    channel.queue_declare("other", durable=True)
    assert redrive(broker, to="other")["messages"] == 4
    assert len(taken(channel, "other")) == 4
    channel.queue_delete("other")


@pytest.mark.parametrize(("fields", "text"), [
    ({"to": "dead"}, "its own messages cannot be put into it again"), ({"to": "none"}, "no queue 'none'"),
    ({"queue": "none"}, "no queue 'none'"),
])
def test_what_cannot_be_is_refused(broker, channel, fields, text):
    with pytest.raises(BrokerError, match=text):
        redrive(broker, **fields)


# --- message groups


@pytest.fixture
def orders(broker):
    """Queue "orders" with groups; its dead letters go to "late", which keeps the order of groups too."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("late", durable=True, arguments={
        "x-message-group": "exclusive", "x-message-group-header": "x-group-id"})
    channel.queue_declare("orders", durable=True, arguments={
        "x-message-group": "exclusive", "x-message-group-header": "customer", "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "late", "x-order-journal": True})
    for number in range(1, 5):
        for customer in ("ann", "bob"):
            channel.basic_publish("", "orders", f"{customer} {number}".encode(), pika.BasicProperties(
                delivery_mode=2, headers={"customer": customer}))
    yield channel
    with contextlib.suppress(pika.exceptions.AMQPError):  # The broker may have been killed.
        channel.queue_delete("orders")
        channel.queue_delete("late")
        connection.close()


def reject_first(channel, count):
    """Let the first messages of the queue die."""
    for _ in range(count):
        method, _, _ = channel.basic_get("orders")
        channel.basic_reject(method.delivery_tag, requeue=False)
        channel.queue_declare("late", passive=True)


def worked_off(channel, queue):
    """Bodies of all messages of the queue, one after the other."""
    found = []
    while True:
        method, _, body = channel.basic_get(queue)
        if method is None:
            return found
        found.append(body.decode())
        channel.basic_ack(method.delivery_tag)


def test_dead_letters_of_a_group_keep_its_order_and_say_where_they_stood(broker, orders):
    reject_first(orders, 4)
    seen = []
    for _ in range(2):
        _, properties, body = orders.basic_get("late")
        seen.append((body, properties.headers["x-group-id"], properties.headers["x-group-seq"]))
    orders.basic_recover(requeue=True)
    assert sorted(seen) == [(b"ann 1", "ann", 1), (b"bob 1", "bob", 2)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")    # pika leaves lost sockets open.
@pytest.mark.parametrize("kill", [False, True])
def test_redriven_messages_go_before_the_later_ones_of_their_group(broker, orders, kill):
    reject_first(orders, 4)
    if kill:                    # Letters that wait in groups of their queue go, too.
        orders.basic_get("late")
        orders.basic_recover(requeue=True)
    with Client(str(broker.directory)) as client:
        answer = client.ask("message redrive", {"queue": "late", "group": "ann"})
    assert (answer["messages"], answer["left"]) == (2, 0)
    if kill:
        broker.restart(kill=True)
        again = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        orders = again.channel()
    done = worked_off(orders, "orders")
    assert [one for one in done if one.startswith("ann")] == ["ann 1", "ann 2", "ann 3", "ann 4"]
    assert [one for one in done if one.startswith("bob")] == ["bob 3", "bob 4"]
    assert worked_off(orders, "late") == ["bob 1", "bob 2"]
    orders.queue_delete("orders")
    orders.queue_delete("late")
    if kill:
        again.close()
