"""Why messages come back or die, by real clients: counters, brokerctl, acks, journal and trace name the same cause."""

import contextlib
import io
import json

import numpy as np
import pika
import pytest
from tests.broker import SECONDS, Broker
from tests.conversations.peer import eventually
from tests.server.clients import PERSISTENT, close_all, connect
from tests.server.test_order_report import drop

from brokerd.cli import brokerctl as brokerctl_program
from brokerd.store import format as layout
from brokerd.store import reading
from brokerd.store.format import folder_name
from brokerd.wire import methods

JOURNAL = {"x-order-journal": True}
DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A broker for the tests that do not stop it: each has a queue of its own."""
    with Broker(tmp_path_factory.mktemp("causes") / "data") as broker:
        yield broker
        close_all()


def brokerctl(directory, *words):
    """What a command of brokerctl answers."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert brokerctl_program.run(["-D", str(directory), *words, "--json"]) == 0
    return json.loads(out.getvalue())


def file_of(broker, queue, name):
    """One of the queue's files of its first segment, which need not have the number 1."""
    (path,) = (broker.directory / folder_name("/") / folder_name(queue)).glob(name)
    return path.read_bytes()


def events_of(broker, queue):
    """(type, reason, consumer) of all events in the queue's journal."""
    octets = file_of(broker, queue, "journal.*")
    count = int.from_bytes(octets[32:36], "little")
    events = np.frombuffer(octets, reading.event_dtype(), count, layout.HEADER_OCTETS)
    return [(int(event["type"]), int(event["reason"]), int(event["consumer"])) for event in events]


def entries_of(broker, queue):
    """(type, reason) of all entries in the queue's acks file."""
    octets = file_of(broker, queue, "acks.*")
    number = int.from_bytes(octets[8:16], "little")
    return [(int(kind) & 15, int(kind) >> 4) for kind in reading.read_entries(octets, number).entries["kind"]]


def received(broker, queue, arguments=None, *, tx=False):
    """A channel with a consumer that has the queue's one message."""
    declaring = connect(broker).channel()
    declaring.queue_declare(queue, durable=True, arguments=JOURNAL | (arguments or {}))
    declaring.confirm_delivery()
    declaring.basic_publish("", queue, b"x", PERSISTENT)
    declaring.connection.close()
    channel = connect(broker).channel()
    if tx:
        channel.tx_select()
    got = []
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(queue, lambda _, method, *__: got.append(method.delivery_tag), consumer_tag="worker")
    while not got:
        channel.connection.process_data_events(SECONDS)
    return channel


def cancel_then(act):
    """Without a consumer the message stays in its place, once it is back."""
    def acts(channel):
        channel.basic_cancel("worker")
        act(channel)
    return acts


def in_transaction(act):
    def acts(channel):
        channel.basic_cancel("worker")
        act(channel)
        channel.tx_commit()
    return acts


def refused(channel):
    """The broker closes the channel, because of an error of the client's."""
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        channel.queue_declare("no such queue", passive=True)


def thrown_out(channel):
    """The broker closes the connection, because of an error of the client's."""
    connection = channel.connection
    connection._impl._transport.write(b"no frame at all, but enough octets to look like one")
    with pytest.raises(pika.exceptions.AMQPError):
        while True:
            connection.process_data_events(SECONDS)


def closed(channel):
    """The client closes its connection, without closing its channels before, as pika would."""
    channel.connection._impl._transport._sock.sendall(methods.ConnectionClose(reply_code=200).frame(0))
    drop(channel.connection)


def reset(channel):
    drop(channel.connection)


CAUSES = [
    ("nack", "nack", cancel_then(lambda channel: channel.basic_nack(1)), {}),
    ("reject", "reject", cancel_then(lambda channel: channel.basic_reject(1)), {}),
    ("recover", "recover", cancel_then(lambda channel: channel.basic_recover(requeue=True)), {}),
    ("nack in a transaction", "nack", in_transaction(lambda channel: channel.basic_nack(1)), {"tx": True}),
    ("reject in a transaction", "reject", in_transaction(lambda channel: channel.basic_reject(1)), {"tx": True}),
    ("recover in a transaction", "recover", in_transaction(lambda channel: channel.basic_recover(requeue=True)),
     {"tx": True}),
    ("channel closed by the client", "channel_closed", lambda channel: channel.close(), {}),
    ("transactional channel closed", "channel_closed", lambda channel: channel.close(), {"tx": True}),
    ("channel closed by the broker", "channel_closed", refused, {}),
    ("connection closed by the client", "connection_closed", closed, {}),
    ("connection closed by the broker", "connection_closed", thrown_out, {}),
    ("connection lost", "connection_closed", reset, {}),
    ("consumer timeout", "consumer_timeout", cancel_then(lambda channel: None),
     {"arguments": {"x-consumer-timeout": 1000}}),
]
CODES = {"nack": layout.CAUSE_NACK, "reject": layout.CAUSE_REJECT, "recover": layout.CAUSE_RECOVER,
         "channel_closed": layout.CAUSE_CHANNEL, "connection_closed": layout.CAUSE_CONNECTION,
         "consumer_timeout": layout.CAUSE_TIMEOUT}


def consumer_number(broker, queue):
    path = broker.directory / folder_name("/") / folder_name(queue) / layout.SIDE_FILE

    def numbers():
        lines = map(json.loads, path.read_bytes().splitlines()) if path.exists() else []
        return [line["number"] for line in lines if line["what"] == "consumer"]

    (number,) = eventually(numbers)     # A thread makes that file and writes it.
    return number


@pytest.mark.parametrize(("name", "cause", "act", "how"), CAUSES, ids=[each[0] for each in CAUSES])
def test_a_return_is_told_with_its_cause_everywhere(shared, name, cause, act, how):
    channel = received(shared, name, **how)
    act(channel)
    eventually(lambda: brokerctl(shared.directory, "queue", "ordering", name),
               lambda table: table["messages"]["ready"] == 1)
    check(shared, name, cause)


def test_a_broker_that_stops_closes_connections_and_that_is_the_cause(make_broker):
    broker = make_broker().start()
    channel = received(broker, "q")
    broker.process.terminate()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        while True:
            channel.connection.process_data_events(SECONDS)
    assert broker.wait() == 0
    broker.start()
    check(broker, "q", "connection_closed", restarted=1)
    close_all()


def test_of_a_killed_broker_the_start_is_the_cause_and_no_counter_of_returns_rises(make_broker):
    broker = make_broker().start()
    received(broker, "q")
    broker.restart(kill=True)
    counters = brokerctl(broker.directory, "queue", "ordering", "q")["counters"]["since_declare"]
    assert not any(counters["returned"].values())
    assert [event[:2] for event in events_of(broker, "q")] == [
        (layout.DELIVERED, 0), (layout.STARTED, layout.RESTARTED)]
    trace = brokerctl(broker.directory, "message", "trace", "q", "1")
    assert [event.get("cause") for event in trace["events"] if event["what"] == "returned"] == ["broker started"]
    close_all()


def check(broker, queue, cause, restarted=0):
    """The queue's message was delivered once, and came back for this cause alone."""
    code = CODES[cause]
    counters = brokerctl(broker.directory, "queue", "ordering", queue)["counters"]
    wanted = {each: int(each == cause) for each in counters["since_declare"]["returned"]}
    assert counters["since_declare"]["returned"] == wanted
    number = consumer_number(broker, queue)
    assert events_of(broker, queue) == [
        (layout.DELIVERED, 0, number), (layout.RETURNED, code, number),
        *[(layout.STARTED, layout.RESTARTED, 0)] * restarted]
    assert entries_of(broker, queue) == [(layout.RETURNED, code)]
    trace = brokerctl(broker.directory, "message", "trace", queue, "1")
    (back,) = [event for event in trace["events"] if event["what"] == "returned"]
    assert back["cause"] == cause.replace("_", " ")
    assert (back["consumer"]["number"], back["consumer"]["tag"]) == (number, "worker")


DEATHS = [
    ("rejected", "rejected", {}, lambda channel: channel.basic_reject(1, requeue=False)),
    ("nacked", "rejected", {}, lambda channel: channel.basic_nack(1, requeue=False)),
    ("rejected in a transaction", "rejected", {"tx": True}, lambda channel: channel.basic_nack(1, requeue=False)),
    ("at its limit", "too many failed deliveries", {"arguments": {"x-delivery-limit": 0}},
     lambda channel: channel.basic_nack(1)),
    ("at its limit in a transaction", "too many failed deliveries", {"arguments": {"x-delivery-limit": 0}, "tx": True},
     lambda channel: channel.basic_nack(1)),
    ("at its limit by a close", "too many failed deliveries", {"arguments": {"x-delivery-limit": 0}},
     lambda channel: channel.close()),
]


@pytest.mark.parametrize("strategy", ["at-most-once", "at-least-once"])
@pytest.mark.parametrize(("name", "cause", "how", "act"), DEATHS, ids=[each[0] for each in DEATHS])
def test_a_dead_letter_s_event_names_the_consumer_that_killed_it(shared, name, cause, how, act, strategy):
    name = f"{name} {strategy}"
    connect(shared).channel().queue_declare("dead", durable=True)
    arguments = DEAD | how.get("arguments", {})
    if strategy == "at-least-once":
        arguments |= {"x-queue-type": "quorum", "x-dead-letter-strategy": strategy, "x-overflow": "reject-publish"}
    channel = received(shared, name, arguments, tx=how.get("tx", False))
    act(channel)
    if how.get("tx"):
        channel.tx_commit()
    dead = [event for event in eventually(lambda: events_of(shared, name),
                                          lambda events: any(e[0] == layout.DEAD_LETTERED for e in events))
            if event[0] == layout.DEAD_LETTERED]
    reason = layout.REASON_REJECTED if cause == "rejected" else layout.REASON_LIMIT
    number = consumer_number(shared, name)
    assert dead == [(layout.DEAD_LETTERED, reason, number)]
    trace = brokerctl(shared.directory, "message", "trace", name, "1")
    assert (trace["state"], trace["events"][-1]["consumer"]["tag"]) == ("dead-lettered", "worker")
