"""The event exchange and the log exchange of a real broker."""

import signal
import socket
import time

import pika
import pytest
from tests.broker import SECONDS
from tests.server.clients import close_all, connect, parameters, write_json


@pytest.fixture(autouse=True)
def closed(broker, make_broker):
    """No broker need wait for its clients to close."""
    yield
    close_all()


EVENTS = "amq.rabbitmq.event"


@pytest.fixture
def heard(broker):
    """``heard(n)``: the next n events, as (routing key, headers), in the order in which they were told."""
    channel = connect(broker).channel()
    channel.queue_declare("heard", durable=True)
    channel.queue_bind("heard", EVENTS, "#")

    def take(count):
        found = []
        end = time.monotonic() + SECONDS
        while len(found) < count and time.monotonic() < end:
            method, properties, body = channel.basic_get("heard", auto_ack=True)
            if method is not None:
                assert (body, properties.delivery_mode) == (b"", 2)
                assert properties.headers["timestamp_in_ms"] // 1000 == properties.timestamp
                found.append((method.routing_key, properties.headers))
        return found

    take(1)  # of its own binding
    return take


def keys(told):
    return [key for key, _ in told]


def test_a_connection_and_all_it_does_is_told_of(broker, heard):
    connection = connect(broker)
    channel = connection.channel()
    channel.exchange_declare("x", "topic")
    channel.queue_declare("q", auto_delete=True, arguments={"x-max-length": 5})
    channel.queue_declare("q", auto_delete=True, arguments={"x-max-length": 5})  # is there already
    channel.queue_bind("q", "x", "k")
    tag = channel.basic_consume("q", lambda *_: None)
    channel.queue_unbind("q", "x", "k")
    channel.queue_bind("q", "x", "again")
    told = heard(9)
    assert keys(told) == [
        "user.authentication.success", "connection.created", "channel.created", "exchange.created", "queue.created",
        "binding.created", "consumer.created", "binding.deleted", "binding.created"]
    fields = told[4][1]
    assert (fields["name"], fields["vhost"], fields["user_who_performed_action"]) == ("q", "/", "guest")
    assert fields["arguments"] == ['{<<"x-max-length">>,signedint,5}']
    assert (told[5][1]["source_name"], told[5][1]["destination_name"], told[5][1]["routing_key"]) == ("x", "q", "k")
    assert told[6][1]["consumer_tag"] == tag
    channel.basic_cancel(tag)  # and the queue goes with it, and its binding
    channel.exchange_delete("x")
    channel.close()
    connection.close()
    assert keys(heard(6)) == [
        "consumer.deleted", "binding.deleted", "queue.deleted", "exchange.deleted", "channel.closed",
        "connection.closed"]


def test_what_goes_with_a_lost_client_is_told_of(broker, heard):
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("own", exclusive=True)
    channel.basic_consume("own", lambda *_: None)
    assert keys(heard(5))[3:] == ["queue.created", "consumer.created"]
    connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
    told = heard(4)
    assert keys(told) == ["consumer.deleted", "channel.closed", "queue.deleted", "connection.closed"]
    assert told[2][1]["user_who_performed_action"] == "rmq-internal"


def test_a_channel_that_is_closed_for_a_fault_is_told_of_once(broker, heard):
    channel = connect(broker).channel()
    assert len(heard(3)) == 3
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        channel.queue_declare("nowhere", passive=True)
    channel.connection.close()
    assert keys(heard(2)) == ["channel.closed", "connection.closed"]


def test_a_refused_login_is_told_of(broker, heard):
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(parameters(broker, "ann", "wrong"))
    (key, fields), = heard(1)
    assert (key, fields["name"], fields["auth_mechanism"]) == ("user.authentication.failure", "ann", "PLAIN")
    assert "invalid credentials" in fields["error"]


def test_policies_are_told_of(broker, heard):
    folder = next(path.parent for path in broker.directory.glob("*/.vhost"))
    policy = {"name": "p", "pattern": "^q$", "definition": {"max-length": 1}}
    for rows in ([policy], [{**policy, "priority": 3}], []):
        begin = len(broker.lines)
        write_json(folder / "policies.json", rows)
        broker.process.send_signal(signal.SIGHUP)
        broker.wait_for_log("reloaded$", begin)
    told = heard(3)
    assert keys(told) == ["policy.set", "policy.set", "policy.cleared"]
    assert (told[1][1]["name"], told[1][1]["priority"], told[1][1]["vhost"]) == ("p", 3, "/")


def test_alarms_are_told_of(tmp_path, make_broker):
    config = tmp_path / "brokerd.toml"
    config.write_text("memory_high_watermark_octets = 1\nmemory_high_watermark_percent = 0\n")
    broker = make_broker("--config", config)
    broker.start()
    broker.wait_for_log("low on memory")
    channel = connect(broker).channel()
    channel.queue_declare("heard")
    channel.queue_bind("heard", EVENTS, "alarm.#")
    for octets, key in ((0, "alarm.cleared"), (1, "alarm.set")):
        begin = len(broker.lines)
        config.write_text(f"memory_high_watermark_octets = {octets}\nmemory_high_watermark_percent = 0\n")
        broker.process.send_signal(signal.SIGHUP)
        broker.wait_for_log("low on memory", begin)
        while (message := channel.basic_get("heard", auto_ack=True))[0] is None:
            pass
        assert (message[0].routing_key, message[1].headers["source"]) == (key, "memory")


def test_bindings_to_events_outlast_a_restart(broker, heard):
    close_all()
    broker.restart(kill=True)
    channel = connect(broker).channel()
    channel.queue_declare("q")
    found = []
    while "queue.created" not in found:
        method, _, _ = channel.basic_get("heard", auto_ack=True)
        assert method is not None, found
        found.append(method.routing_key)
    close_all()
    broker.restart()
    channel = connect(broker).channel()
    assert channel.queue_declare("heard", passive=True).method.message_count


def test_what_is_logged_is_published_where_it_is_asked_for(make_broker):
    broker = make_broker("--log-exchange")
    broker.start()
    channel = connect(broker).channel()
    channel.queue_declare("log", durable=True)
    channel.queue_bind("log", "amq.rabbitmq.log", "warning")
    for _ in range(2):
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            pika.BlockingConnection(parameters(broker, "ann", "wrong"))
        for _ in range(20_000):
            method, properties, body = channel.basic_get("log", auto_ack=True)
            if method is not None and b"login refused" in body:
                break
        assert b"login refused: user 'ann'" in body
        assert (method.exchange, method.routing_key) == ("amq.rabbitmq.log", "warning")
        assert properties.headers["node"].startswith("brokerd@")
        begin = len(broker.lines)
        broker.process.send_signal(signal.SIGHUP)
        broker.wait_for_log("reloaded$", begin)


def test_without_the_option_there_is_no_log_exchange(broker):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no exchange 'amq.rabbitmq.log'"):
        connect(broker).channel().exchange_declare("amq.rabbitmq.log", passive=True)
