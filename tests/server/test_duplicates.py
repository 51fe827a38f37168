"""Deduplication in queues and exchanges of a real broker."""

from pathlib import Path

import pika
import pytest
from tests.conversations.peer import eventually
from tests.server.clients import close_all, connect, count, drain
from tests.store.old_directories import unpack
from tests.store.old_keys import send

from brokerd.cli.perfclient import Address, Client
from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame
from brokerd.wire.properties import Properties, encode_header


@pytest.fixture(autouse=True)
def closed(broker):
    """The broker need not wait for its clients to close."""
    yield
    close_all()


DEDUPLICATES = {"x-message-deduplication": True}


def message(key, **headers):
    return pika.BasicProperties(delivery_mode=2, headers={"x-deduplication-header": key, **headers})


@pytest.fixture
def channel(broker):
    channel = connect(broker).channel()
    channel.confirm_delivery()
    return channel


def test_a_duplicate_is_confirmed_and_not_stored(channel):
    channel.queue_declare("q", durable=True, arguments=DEDUPLICATES)
    for key, body in (("a", b"1"), ("a", b"2"), ("b", b"3"), ("a", b"4")):
        channel.basic_publish("", "q", body, message(key), mandatory=True)
    channel.basic_publish("", "q", b"no key")
    channel.basic_publish("", "q", b"no key")
    assert drain(channel, "q") == [b"1", b"3", b"no key", b"no key"]


def test_other_queues_have_it_all_the_same(channel):
    channel.queue_declare("q", arguments=DEDUPLICATES)
    channel.queue_declare("plain")
    for queue in ("q", "plain"):
        channel.queue_bind(queue, "amq.fanout")
    for _ in range(3):
        channel.basic_publish("amq.fanout", "", b"1", message("a"))
    assert (count(channel, "q"), count(channel, "plain")) == (1, 3)


def test_an_exchange_routes_duplicates_nowhere(channel):
    channel.exchange_declare("x", "fanout", arguments=DEDUPLICATES)
    channel.queue_declare("q")
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError):  # Nobody has it, so that it is not remembered.
        channel.basic_publish("x", "", b"0", message("a"), mandatory=True)
    channel.queue_bind("q", "x")
    for body in (b"1", b"2"):
        channel.basic_publish("x", "", body, message("a"), mandatory=True)
    channel.basic_publish("x", "", b"3", message("b"))
    assert drain(channel, "q") == [b"1", b"3"]


@pytest.mark.parametrize("kill", [True, False])
def test_keys_outlast_a_restart(broker, channel, kill):
    channel.queue_declare("q", durable=True, arguments=DEDUPLICATES)
    channel.exchange_declare("x", "fanout", durable=True, arguments=DEDUPLICATES)
    channel.queue_declare("other", durable=True)
    channel.queue_bind("other", "x")
    for exchange, key in (("", "q"), ("x", "")):
        channel.basic_publish(exchange, key, b"1", message("a"))
    close_all()
    broker.restart(kill=kill)
    channel = connect(broker).channel()
    channel.confirm_delivery()
    for exchange, key in (("", "q"), ("x", "")):
        channel.basic_publish(exchange, key, b"2", message("a"))
        channel.basic_publish(exchange, key, b"3", message("b"))
    assert drain(channel, "q") == drain(channel, "other") == [b"1", b"3"]
    channel.queue_delete("q")
    channel.exchange_delete("x")
    channel.queue_declare("q", durable=True, arguments=DEDUPLICATES)
    channel.exchange_declare("x", "fanout", durable=True, arguments=DEDUPLICATES)
    channel.queue_bind("other", "x")
    for exchange, key in (("", "q"), ("x", "")):
        channel.basic_publish(exchange, key, b"4", message("a"))
    assert drain(channel, "q") == drain(channel, "other") == [b"4"]


def test_what_a_full_queue_refused_is_no_duplicate_afterwards(channel):
    channel.queue_declare("q", arguments={**DEDUPLICATES, "x-max-length": 1, "x-overflow": "reject-publish"})
    channel.basic_publish("", "q", b"1", message("a"))
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", "q", b"2", message("b"))
    assert drain(channel, "q") == [b"1"]
    channel.basic_publish("", "q", b"3", message("b"))
    assert drain(channel, "q") == [b"3"]


def test_a_message_that_comes_back_over_another_queue_is_not_its_own_duplicate(channel):
    channel.queue_declare("q", arguments={**DEDUPLICATES, "x-dead-letter-exchange": "",
                                          "x-dead-letter-routing-key": "wait"})
    channel.queue_declare("wait", arguments={"x-message-ttl": 1, "x-dead-letter-exchange": "",
                                             "x-dead-letter-routing-key": "q"})
    channel.basic_publish("", "q", b"1", message("a"))
    method, _, _ = channel.basic_get("q")
    channel.basic_reject(method.delivery_tag, requeue=False)
    assert eventually(lambda: drain(channel, "q")) == [b"1"]


def test_delayed_messages_are_looked_at_when_they_come_by_their_exchange_and_when_due_by_queues(channel):
    channel.exchange_declare("x", "x-delayed-message", arguments={**DEDUPLICATES, "x-delayed-type": "fanout"})
    channel.exchange_declare("plain", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    channel.queue_declare("all")
    channel.queue_declare("q", arguments=DEDUPLICATES)
    channel.queue_bind("all", "x")
    channel.queue_bind("q", "plain")
    for body in (b"1", b"2"):
        for exchange in ("x", "plain"):
            channel.basic_publish(exchange, "", body, message("a", **{"x-delay": 50}))
    got = {queue: eventually(lambda queue=queue: drain(channel, queue)) for queue in ("all", "q")}
    channel.basic_publish("plain", "", b"3", message("a"))
    channel.basic_publish("plain", "", b"4", message("b"))
    got["q"] += drain(channel, "q")
    assert got == {"all": [b"1"], "q": [b"1", b"4"]}


def test_transactions_are_compared_with_all_before_them(broker, channel):
    channel.queue_declare("q", durable=True, arguments=DEDUPLICATES)
    tx = connect(broker).channel()
    tx.tx_select()
    for body in (b"1", b"2"):
        tx.basic_publish("", "q", body, message("a"))
        tx.tx_commit()
    channel.basic_publish("", "q", b"3", message("a"))
    assert drain(channel, "q") == [b"1"]


def test_publishes_of_one_transaction_are_compared_with_each_other(broker, channel):
    channel.queue_declare("q", durable=True, arguments=DEDUPLICATES)
    channel.exchange_declare("x", "fanout", arguments=DEDUPLICATES)
    channel.queue_declare("other")
    channel.queue_bind("other", "x")
    tx = connect(broker).channel()
    tx.tx_select()
    for body in (b"1", b"2"):
        for key in ("a", "b"):
            tx.basic_publish("", "q", body + key.encode(), message(key))
            tx.basic_publish("x", "", body + key.encode(), message(key))
    tx.tx_commit()
    assert drain(channel, "q") == drain(channel, "other") == [b"1a", b"1b"]


def test_a_pipelined_duplicate_is_seen_too_and_headers_may_set_a_time(broker):
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("q", arguments=DEDUPLICATES)
    for number in range(100):
        channel.basic_publish("", "q", b"%d" % number, message(number // 2))
    channel.basic_publish("", "q", b"short", message("short", **{"x-cache-ttl": 0}))
    channel.basic_publish("", "q", b"short", message("short", **{"x-cache-ttl": 0}))
    assert count(channel, "q") == 52


def test_keys_of_a_broker_of_before_are_known(make_broker, tmp_path):
    """Of waiting and of acked messages, in a queue and in an exchange; and after one more start."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()      # It was killed; no power was lost.
    directory = unpack("keys-1", tmp_path / "before", boot)
    broker = make_broker(directory=directory)
    for _ in range(2):
        broker.start()
        channel = connect(broker).channel()
        channel.confirm_delivery()
        for number in range(10):
            send(channel, "", "keyed", f"q{number}")
        for number in range(5):
            send(channel, "once", "", f"e{number}")
        assert (count(channel, "keyed"), count(channel, "plain")) == (5, 5)
        close_all()
        broker.stop()
    assert not list(directory.rglob("dedup*"))
    broker.start()
    channel = connect(broker).channel()
    channel.confirm_delivery()
    send(channel, "", "keyed", "new")
    assert count(channel, "keyed") == 6
    close_all()


def test_a_body_is_a_key_in_a_transaction(broker):
    channel = connect(broker).channel()
    channel.queue_declare("q", durable=True, arguments={**DEDUPLICATES, "x-deduplication-content": True})
    channel.tx_select()
    for body in (b"a", b"b", b"a"):
        channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))
    channel.basic_publish("", "q", b"a", message(True))
    channel.tx_commit()
    assert drain(channel, "q") == [b"a", b"b", b"a"]


def test_a_transaction_with_a_refused_duplicate_is_not_whole(broker):
    channel = connect(broker).channel()
    channel.queue_declare("q", durable=True, arguments={**DEDUPLICATES, "x-deduplication-action": "nack"})
    channel.tx_select()
    channel.basic_publish("", "q", b"1", message("a"))
    channel.tx_commit()
    channel.basic_publish("", "q", b"2", message("a"))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="partial tx completion"):
        channel.tx_commit()


@pytest.mark.parametrize("key", ["a", True])
def test_a_duplicate_can_be_dead_lettered(channel, key):
    channel.queue_declare("dead", durable=True)
    channel.queue_declare("q", durable=True, arguments={
        **DEDUPLICATES, "x-deduplication-action": "dead-letter", "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead"})
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", "q", body, message(key))
    eventually(lambda: count(channel, "dead") == 2)
    _, properties, body = channel.basic_get("dead", auto_ack=True)
    assert (body, properties.headers["x-death"][0]["reason"]) == (b"2", "duplicate")
    assert drain(channel, "q") == [b"1"]


@pytest.mark.parametrize("key", ["a", True])
def test_a_newer_message_takes_the_place_of_the_one_that_waits(broker, channel, key):
    channel.queue_declare("q", durable=True, arguments={
        **DEDUPLICATES, "x-deduplication-action": "replace", "x-deduplication-scope": "waiting"})
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", "q", body, message(key))
    channel.basic_publish("", "q", b"other", message("b"))
    close_all()
    broker.restart(kill=True)
    channel = connect(broker).channel()
    eventually(lambda: count(channel, "q") == 2)
    assert drain(channel, "q") == [b"3", b"other"]


def test_a_duplicate_is_nacked_where_the_queue_says_so(channel):
    channel.queue_declare("q", durable=True, arguments={**DEDUPLICATES, "x-deduplication-action": "nack"})
    channel.basic_publish("", "q", b"1", message("a"))
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", "q", b"2", message("a"))
    assert drain(channel, "q") == [b"1"]


@pytest.mark.parametrize(("name", "value", "allowed"), [
    ("x-deduplication-scope", "waiting", "exchange or group"), ("x-deduplication-action", "replace", "ack or nack")])
def test_an_exchange_refuses_what_only_queues_can(channel, name, value, allowed):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as told:
        channel.exchange_declare("x", "fanout", arguments={**DEDUPLICATES, name: value})
    assert told.value.args == (406, f"PRECONDITION_FAILED - invalid arg '{name}' for exchange 'x' in vhost '/': "
                                    f"\"'{value}' is not {allowed}\"")


def publish(queue, body, headers):
    """The frames of a publish."""
    method = methods.BasicPublish(exchange="", routing_key=queue).frame(1)
    return method + header_frame(1, encode_header(len(body), Properties(headers=headers))) + body_frames(1, body, 4096)


def test_among_many_known_keys_each_is_found_whatever_publishes_stand_behind_one_another(broker):
    """A key is looked for while the publish before is at work: of one without a body, for another queue, a number."""
    client = Client(Address("127.0.0.1", broker.port, "guest", "guest", "/"))
    known = 40_000  # so many that their index does not stay in the processor's caches
    for queue in ("many", "other"):
        client.declare_queue(queue, durable=True, arguments={**DEDUPLICATES, "x-cache-size": 100_000})
    client._send(b"".join(publish("many", b"", {"x-deduplication-header": f"k{n}"}) for n in range(known)))
    frames, new, others = [], 0, 0
    for n in range(5000):
        key = f"k{n}" if n % 2 else f"new{n}"
        body = b"b" * (n % 3)
        frames.append(publish("many", body, {"other": n, "x-deduplication-header": key}))
        new += not n % 2
        if n % 5 == 0:
            frames.append(publish("other", body, {"x-deduplication-header": f"k{n}"}))
            others += 1
        if n % 7 == 0:
            frames.append(publish("many", body, {"x-deduplication-header": -n - 1, "x-cache-ttl": 3_600_000}))
            frames.append(publish("many", body, {"x-deduplication-header": -n - 1}))
            new += 1
        if n % 11 == 0:
            frames.append(publish("many", body, {}))
            new += 1
    client._send(b"".join(frames))
    assert client.declare_queue("many", durable=True, passive=True) == known + new
    assert client.declare_queue("other", durable=True, passive=True) == others
    client.drop()
