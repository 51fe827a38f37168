"""The firehose of a real broker, switched by vhosts.json."""

import json
import signal

import pytest
from tests.server.clients import close_all, connect, drain, write_json


@pytest.fixture(autouse=True)
def closed(broker):
    """The broker need not wait for its clients to close."""
    yield
    close_all()


TRACE = "amq.rabbitmq.trace"


def reload(broker, text=": reloaded|reloaded$"):
    begin = len(broker.lines)
    broker.process.send_signal(signal.SIGHUP)
    broker.wait_for_log(text, begin)


def switch(broker, on):
    write_json(broker.directory / "vhosts.json", [{"name": "/", "tracing": True}] if on else [{"name": "/"}])
    if broker.running:
        reload(broker)


def take(channel, queue="trace"):
    """(routing key, redelivered, body) of all that was traced."""
    seen = []
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return seen
        seen.append((method.routing_key, properties.headers.get("redelivered"), body))


def test_messages_are_seen_coming_and_going_while_it_is_on(broker):
    channel = connect(broker).channel()
    for queue in ("trace", "q"):
        channel.queue_declare(queue)
    channel.queue_bind("trace", TRACE, "#")
    channel.basic_publish("", "q", b"before")
    assert drain(channel, "q") == [b"before"]
    switch(broker, True)
    channel.basic_publish("", "q", b"1")
    method, _, _ = channel.basic_get("q")
    channel.basic_nack(method.delivery_tag)
    assert drain(channel, "q") == [b"1"]
    channel.queue_declare("new")
    channel.basic_publish("", "new", b"2")
    assert drain(channel, "new") == [b"2"]
    switch(broker, False)
    channel.basic_publish("", "q", b"after")
    assert drain(channel, "q") == [b"after"]
    assert take(channel) == [
        ("publish.", None, b"1"), ("deliver.q", 0, b"1"), ("deliver.q", 1, b"1"),
        ("publish.", None, b"2"), ("deliver.new", 0, b"2")]


def test_consumers_of_both_get_all_of_many(broker):
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("q")
    channel.queue_declare("trace")
    channel.queue_bind("trace", TRACE, "#")
    switch(broker, True)
    had = {"q": 0, "trace": 0}

    def count(channel, method, properties, body):
        had["trace" if method.exchange == TRACE else "q"] += 1

    for queue in had:
        channel.basic_consume(queue, count, auto_ack=True)
    for number in range(500):
        channel.basic_publish("", "q", b"%d" % number)
    while had["q"] < 500 or had["trace"] < 1000:
        connection.process_data_events(20)
    assert had == {"q": 500, "trace": 1000}


def test_it_is_on_again_after_a_start(make_broker):
    broker = make_broker()
    broker.start()
    broker.stop()
    switch(broker, True)
    for _ in range(2):
        broker.start()
        channel = connect(broker).channel()
        channel.queue_declare("trace")
        channel.queue_bind("trace", TRACE, "#")
        channel.basic_publish("", "nowhere", b"1")
        assert take(channel) == [("publish.", None, b"1")]
        assert json.loads((broker.directory / "vhosts.json").read_text()) == [{"name": "/", "tracing": True}]
        close_all()
        broker.stop()


def test_limits_are_read_again_too_and_new_vhosts_wait_for_the_next_start(broker):
    write_json(broker.directory / "vhosts.json", [{"name": "/", "limits": {"max-queues": 1}}, {"name": "two"}])
    reload(broker, "WARNING reload: vhosts.json: vhosts are made at the next start: 'two'")
    channel = connect(broker).channel()
    channel.queue_declare("a")
    with pytest.raises(Exception, match="queue limit in vhost '/' \\(1\\) is reached"):
        channel.queue_declare("b")


@pytest.mark.parametrize(("on", "tracing"), [(False, 1), (False, "on"), (True, 0), (True, "off"), (True, None)])
def test_what_is_no_switch_changes_nothing(broker, on, tracing):
    channel = connect(broker).channel()
    channel.queue_declare("trace")
    channel.queue_bind("trace", TRACE, "#")
    switch(broker, on)
    write_json(broker.directory / "vhosts.json", [{"name": "/", "tracing": tracing, "limits": {"max-queues": 1}}])
    reload(broker, "vhosts.json: entry 1: tracing is neither true nor false")
    channel.basic_publish("", "nowhere", b"1")
    channel.queue_declare("another")            # The limits beside it are not taken either.
    assert take(channel) == [("publish.", None, b"1")] * on
