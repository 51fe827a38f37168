"""kill -9 while messages wait for their next try, and while a queue has stopped: a real broker and client, its files
and an audit."""

import time
from contextlib import contextmanager

import pika
from tests.server import clients

from brokerd.cli import brokerctl

DELAY_MS = 4_000
RETRY = {"x-delayed-retry-type": "all", "x-delayed-retry-min": DELAY_MS, "x-delayed-retry-max": DELAY_MS,
         "x-order-journal": True}
STOP = {"x-delivery-limit": 1, "x-delivery-limit-action": "block", "x-order-journal": True}


@contextmanager
def channel_of(broker):
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, heartbeat=0))
    clients.made.append(connection)     # Its sockets are left to the end of the test.
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    if connection.is_open and broker.running:
        connection.close()


def publish(channel, *bodies):
    for body in bodies:
        channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))


def get(channel):
    """The body of the next message, its delivery tag and its properties; Nones: there is none."""
    method, properties, body = channel.basic_get("q")
    return body, method.delivery_tag if method else None, properties


def audit(broker):
    broker.stop()
    assert brokerctl.run(["audit", str(broker.directory)]) == 0


def test_a_retry_time_outlives_kill_9_and_the_audit_finds_no_fault(broker):
    with channel_of(broker) as channel:
        channel.queue_declare("q", durable=True, arguments=RETRY)
        publish(channel, b"first", b"second", b"third")
        returned = time.time()
        channel.basic_nack(get(channel)[1])
        assert get(channel)[0] == b"second"     # The answer comes behind the return: that is done.
        broker.kill()
    broker.start()
    with channel_of(broker) as channel:
        seen = []
        while len(seen) < 3:
            body, _, properties = get(channel)
            at = time.time()
            if body is not None:
                seen.append(body)
            if body == b"first":
                assert at - returned >= DELAY_MS / 1000
                assert properties.headers["x-delivery-count"] == 1
        assert sorted(seen) == [b"first", b"second", b"third"]
        assert seen.index(b"second") < seen.index(b"third")
        channel.basic_ack(0, multiple=True)
    audit(broker)


def test_a_queue_that_has_stopped_stands_still_after_kill_9_and_the_audit_finds_no_fault(broker):
    with channel_of(broker) as channel:
        channel.queue_declare("q", durable=True, arguments=STOP)
        publish(channel, b"first", b"second")
        for _ in range(2):
            body, tag, _ = get(channel)
            assert body == b"first"
            channel.basic_nack(tag)
        assert get(channel)[0] is None
        broker.kill()
    for _ in range(2):
        broker.start()
        with channel_of(broker) as channel:
            assert get(channel)[0] is None
            publish(channel, b"more")
            assert get(channel)[0] is None
            broker.kill()
    broker.start()
    assert brokerctl.run(["-D", str(broker.directory), "queue", "release", "q"]) == 0
    with channel_of(broker) as channel:
        body, tag, properties = get(channel)
        assert (body, properties.headers["x-delivery-count"]) == (b"first", 2)
        assert get(channel)[0] == b"second"
        channel.basic_nack(tag)
        body, tag, _ = get(channel)
        assert body == b"first"
        channel.basic_nack(tag)
        assert get(channel)[0] is None
        assert brokerctl.run(["-D", str(broker.directory), "queue", "skip", "q"]) == 0
        assert get(channel)[0] == b"more"
    audit(broker)
