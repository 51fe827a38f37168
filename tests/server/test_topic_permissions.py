"""Which routing keys a user may use with a topic exchange, in a broker."""

import pika
import pytest
from tests.conversations.peer import eventually
from tests.server.clients import close_all, connect, drain, permission, user_entry, write_json


@pytest.fixture
def broker(make_broker):
    """ann may publish to amq.topic what begins with her name, and bind to what begins with news."""
    broker = make_broker()
    broker.start()
    broker.stop()
    write_json(broker.directory / "users.json", [user_entry("guest"), user_entry("ann")])
    write_json(broker.directory / "permissions.json", [permission("guest"), permission("ann")])
    write_json(broker.directory / "topic_permissions.json", [
        {"user": "ann", "vhost": "/", "exchange": "amq.topic", "write": "^{username}\\.", "read": "^news\\."}])
    broker.start()
    yield broker
    close_all()     # Else the broker waits for them when it stops.


def refused(broker, what):
    """The text with which ann's channel is closed."""
    connection = connect(broker, user="ann")
    channel = connection.channel()
    channel.queue_declare("anns")
    channel.exchange_declare("inner", "topic")
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        what(channel)
    assert closed.value.reply_code == 403
    connection.close()
    return closed.value.reply_text


def text(operation, key):
    return (f"ACCESS_REFUSED - {operation} access to topic '{key}' in exchange 'amq.topic' in vhost '/' refused for "
            "user 'ann'")


@pytest.mark.parametrize("key", ["bert.x", "xann.x", ""])
def test_a_key_that_is_not_allowed_is_refused_at_publish(broker, key):
    for _ in range(2):
        assert refused(broker, lambda channel: channel.basic_publish("amq.topic", key, b"")) == text("write", key)


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_further_keys_must_be_allowed_too(broker, header):
    properties = pika.BasicProperties(headers={header: ["ann.y", "bert.x"]})
    assert refused(broker, lambda channel: channel.basic_publish("amq.topic", "ann.x", b"", properties)) == text(
        "write", "bert.x")


def test_a_key_that_is_not_allowed_is_refused_in_a_transaction(broker):
    def publish(channel):
        channel.tx_select()
        channel.basic_publish("amq.topic", "bert.x", b"")
        channel.tx_commit()

    connection = connect(broker, user="ann")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        publish(connection.channel())
    assert closed.value.reply_text == text("write", "bert.x")


@pytest.mark.parametrize("verb", ["queue_bind", "queue_unbind", "exchange_bind", "exchange_unbind"])
def test_a_key_that_is_not_allowed_is_refused_at_bind_and_unbind(broker, verb):
    def bind(channel):
        target = "anns" if verb.startswith("queue") else "inner"
        getattr(channel, verb)(target, "amq.topic", routing_key="#")

    assert refused(broker, bind) == text("read", "#")


def test_what_is_allowed_and_what_others_and_other_exchanges_do_goes_through(broker):
    ann, guest = connect(broker, user="ann").channel(), connect(broker).channel()
    ann.queue_declare("news")
    ann.queue_bind("news", "amq.topic", "news.*")
    ann.queue_bind("news", "amq.direct", "anything")
    guest.queue_bind("news", "amq.topic", "ann.*")
    ann.confirm_delivery()
    for _ in range(2):
        ann.basic_publish("amq.topic", "ann.x", b"ann's")
        ann.basic_publish("amq.direct", "anything", b"direct")
    guest.confirm_delivery()
    guest.basic_publish("amq.topic", "news.y", b"news")
    assert drain(ann, "news") == [b"ann's", b"direct"] * 2 + [b"news"]


def test_a_dead_letter_goes_with_a_key_that_its_declarer_may_not_use(broker):
    channel = connect(broker, user="ann").channel()
    channel.confirm_delivery()
    guests = connect(broker).channel()
    guests.queue_declare("all")
    guests.queue_bind("all", "amq.topic", "#")
    channel.queue_declare("dies", arguments={"x-dead-letter-exchange": "amq.topic", "x-max-length": 0,
                                             "x-dead-letter-routing-key": "bob.secret"})  # fmt: skip
    channel.basic_publish("", "dies", b"dead")
    delivered = eventually(lambda: guests.basic_get("all", auto_ack=True), lambda answer: answer[0])
    assert (delivered[0].routing_key, delivered[2]) == ("bob.secret", b"dead")
