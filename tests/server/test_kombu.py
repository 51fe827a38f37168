"""kombu, and py-amqp below it: producers, consumers, simple queues, mailboxes, what comes back, heartbeats."""

import contextlib
import itertools
import socket
import threading
import time

import kombu
import kombu.pidbox
import pytest
from amqp.exceptions import ChannelError, NotFound, PreconditionFailed
from kombu.exceptions import MessageStateError
from tests.broker import SECONDS
from tests.conversations.peer import Pace, unless_stalled
from tests.rabbitmq import either

COUNT = 100
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with either(tmp_path_factory.mktemp("kombu") / "data") as broker:
        yield broker


@pytest.fixture
def connection(broker):
    with kombu.Connection(f"amqp://guest:guest@127.0.0.1:{broker.port}//") as connection:
        yield connection


@pytest.fixture
def channel(connection):
    return connection.channel()


@pytest.fixture
def queue(connection, channel):
    """A durable queue on a direct exchange of its own."""
    name = f"kombu.{next(numbers)}"
    queue = kombu.Queue(name, kombu.Exchange(name, "direct"), routing_key=name, channel=channel)
    queue.declare()
    yield queue
    connection.default_channel.queue_delete(name)
    connection.default_channel.exchange_delete(name)


def drain(connection, enough):
    while not enough():
        connection.drain_events(timeout=SECONDS)


def test_messages_arrive_in_order_and_are_acked(connection, channel, queue):
    producer = kombu.Producer(channel, queue.exchange, queue.name)
    for n in range(COUNT):
        producer.publish({"n": n}, serializer="json", delivery_mode=2)
    got = []

    def on_message(body, message):
        got.append(body["n"])
        message.ack()
        with pytest.raises(MessageStateError):
            message.ack()

    with kombu.Consumer(channel, [queue], callbacks=[on_message], prefetch_count=7):
        drain(connection, lambda: len(got) == COUNT)
    assert got == list(range(COUNT))
    assert queue.get() is None


def test_confirmed_publishes_return_when_they_are_confirmed(broker, queue):
    options = {"confirm_publish": True}
    with kombu.Connection(f"amqp://127.0.0.1:{broker.port}//", transport_options=options) as connection:
        producer = connection.Producer(exchange=queue.exchange, routing_key=queue.name)
        for n in range(20):
            producer.publish(n, mandatory=True)
        assert queue(connection.default_channel).queue_declare(passive=True).message_count == 20


def test_rejected_messages_come_again_or_not(channel, queue):
    producer = kombu.Producer(channel, queue.exchange, queue.name)
    for body in ("again", "never"):
        producer.publish(body)
    again, never = queue.get(), queue.get()
    never.reject()
    again.requeue()
    message = queue.get()
    assert message.payload == "again"
    assert message.delivery_info["redelivered"] is True
    message.ack()
    assert queue.get() is None


def test_recovered_messages_come_again(connection, channel, queue):
    kombu.Producer(channel, queue.exchange, queue.name).publish("m")
    got = []
    with kombu.Consumer(channel, [queue], on_message=got.append) as consumer:
        drain(connection, lambda: len(got) == 1)
        consumer.recover(requeue=True)
        drain(connection, lambda: len(got) == 2)
        assert [message.delivery_info["redelivered"] for message in got] == [False, True]
        got[-1].ack()


def test_what_goes_nowhere_comes_back(connection, channel):
    back = []
    producer = kombu.Producer(channel, on_return=lambda error, exchange, key, message: back.append((error, key)))
    producer.publish("m", routing_key="nowhere", mandatory=True)
    drain(connection, lambda: back)
    ((error, key),) = back
    assert (error.reply_code, key) == (312, "nowhere")


@pytest.mark.parametrize("serializer", ["json", "pickle"])
@pytest.mark.parametrize("compression", [None, "zlib", "bzip2"])
def test_bodies_arrive_as_they_were(channel, queue, serializer, compression):
    producer = kombu.Producer(channel, queue.exchange, queue.name)
    producer.publish({"text": "ключ", "big": "x" * 300_000}, serializer=serializer, compression=compression)
    message = queue.get(accept=[serializer])
    assert message.payload == {"text": "ключ", "big": "x" * 300_000}
    message.ack()


@pytest.mark.parametrize(("kind", "binding", "key", "headers"), [
    ("direct", "k", "k", {}), ("fanout", "", "any", {}), ("topic", "a.#", "a.b.c", {}),
    ("headers", "", "", {"h": 1}),
])
def test_exchanges_of_every_type_route(channel, kind, binding, key, headers):
    exchange = kombu.Exchange(f"kombu.{kind}", kind, durable=False, auto_delete=True)
    arguments = headers | {"x-match": "all"} if headers else None
    queue = kombu.Queue("", exchange, binding, exclusive=True, durable=False, binding_arguments=arguments)(channel)
    queue.declare()
    kombu.Producer(channel, exchange).publish("m", routing_key=key, headers=headers)
    assert queue.get().payload == "m"
    queue.delete()


def test_exchanges_bound_to_exchanges_route(channel):
    source = kombu.Exchange("kombu.source", "topic", durable=False, auto_delete=True)(channel)
    target = kombu.Exchange("kombu.target", "fanout", durable=False, auto_delete=True)(channel)
    source.declare()
    queue = kombu.Queue("", target, exclusive=True, durable=False)(channel)
    queue.declare()
    target.bind_to("kombu.source", "a.*")
    kombu.Producer(channel, source).publish("m", routing_key="a.b")
    assert queue.get().payload == "m"


def test_a_simple_queue_is_a_queue(connection):
    queue = connection.SimpleQueue("kombu.simple")
    for n in range(3):
        queue.put(n)
    got = []
    for _ in range(3):
        message = queue.get(timeout=SECONDS)
        got.append(message.payload)
        message.ack()
    assert got == [0, 1, 2]
    with pytest.raises(queue.Empty):
        queue.get_nowait()
    assert queue.clear() == 0
    queue.close()
    connection.default_channel.queue_delete("kombu.simple")


def test_a_simple_buffer_keeps_nothing(connection):
    queue = connection.SimpleBuffer("kombu.buffer")
    queue.put("m")
    assert queue.get(timeout=SECONDS).payload == "m"
    queue.close()


def test_a_mailbox_is_answered(broker, connection, channel):
    """What Celery's remote control is made of: a fanout exchange, a queue for each node and one for replies."""
    mailbox = kombu.pidbox.Mailbox("test", type="fanout", accept=["json"])
    node = mailbox(connection).Node("node@host", channel=channel, state={"n": 7})
    node.handlers["seven"] = lambda state, **_: state["n"]
    consumer = node.listen(channel)
    done = threading.Event()

    def serve():
        while not done.is_set():
            try:
                connection.drain_events(timeout=0.1)
            except TimeoutError:
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with kombu.Connection(f"amqp://127.0.0.1:{broker.port}//") as asker:
            replies = mailbox(asker).multi_call("seven", timeout=SECONDS, limit=1)
        assert replies == [{"node@host": 7}]
    finally:
        done.set()
        thread.join()
        consumer.cancel()


def test_refusals_are_the_exceptions_they_should_be(connection, queue):
    with pytest.raises(NotFound, match="no queue 'missing'"):
        connection.channel().queue_declare("missing", passive=True)
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'durable'"):
        connection.channel().queue_declare(queue.name, durable=False, auto_delete=False)
    with pytest.raises(ChannelError):
        connection.channel().basic_get("missing")
    assert connection.channel().queue_declare(queue.name, passive=True).message_count == 0


def test_a_lost_socket_is_mended(connection, queue):
    """ensure() connects again, and what was published before is there."""
    connection.transport_options["confirm_publish"] = True
    connection.Producer(exchange=queue.exchange, routing_key=queue.name).publish("before")
    connection.connection.sock.shutdown(socket.SHUT_RDWR)
    producer = connection.Producer(exchange=queue.exchange, routing_key=queue.name)
    publish = connection.ensure(producer, producer.publish, max_retries=3, interval_start=0.05)
    publish("after")
    bound = queue(connection.default_channel)
    got = []
    while (message := bound.get()) is not None:
        got.append(message.payload)
        message.ack()
    assert got == ["before", "after"]


def test_heartbeats_go_both_ways(broker):
    def attempt():
        pace = Pace(3)      # After more than 4 s each side takes the other for lost.
        with kombu.Connection(f"amqp://127.0.0.1:{broker.port}//", heartbeat=2) as connection:
            pace.step(connection.connect)
            assert connection.get_heartbeat_interval() == 2
            received, end = connection.connection.bytes_recv, time.monotonic() + 6.5

            def beat():
                connection.heartbeat_check(rate=2)
                with contextlib.suppress(TimeoutError):
                    connection.drain_events(timeout=0.4)

            while time.monotonic() < end:
                pace.step(beat)
            assert connection.connection.bytes_recv > received
            assert pace.step(lambda: connection.default_channel.queue_declare("", exclusive=True)).queue

    unless_stalled(attempt)


def test_the_same_queue_is_served_in_turns(connection, queue):
    got = {1: [], 2: []}
    channels = [connection.channel(), connection.channel()]
    consumers = []
    for number, channel in enumerate(channels, 1):
        consumers.append(kombu.Consumer(channel, [queue], no_ack=True,
                                        on_message=lambda message, number=number: got[number].append(message.payload)))
        consumers[-1].consume()
    producer = connection.Producer(exchange=queue.exchange, routing_key=queue.name)
    for n in range(10):
        producer.publish(n)
    drain(connection, lambda: len(got[1]) + len(got[2]) == 10)
    assert sorted(got[1] + got[2]) == list(range(10))
    assert len(got[1]) == len(got[2]) == 5
    for consumer in consumers:
        consumer.cancel()


def test_transactions(channel, queue):
    """py-amqp's own verbs: kombu has none for it."""
    channel.tx_select()
    producer = kombu.Producer(channel, queue.exchange, queue.name)
    producer.publish("rolled back")
    channel.tx_rollback()
    producer.publish("committed")
    channel.tx_commit()
    message = queue.get()
    assert message.payload == "committed"
    message.ack()
    channel.tx_commit()
    assert queue.get() is None
