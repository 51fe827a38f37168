import gc
import weakref
from types import SimpleNamespace

import pytest
from tests.session.harness import Client
from tests.session.test_basic import publish

from brokerd import pieces
from brokerd.errors import NotFound
from brokerd.session.channel import Channel
from brokerd.session.connection import Connection
from brokerd.store.disk import Disk, Room
from brokerd.vhost import deletions
from brokerd.wire import methods
from brokerd.wire.frames import FRAME_HEARTBEAT, body_frames, header_frame


def test_connection_close_is_answered_and_it_is_left_to_the_client_to_end_its_side_first(client, node):
    assert client.send(methods.ConnectionClose(reply_code=200)) == [methods.ConnectionCloseOk()]
    client.connection.tick(node.clock.now + 5)
    assert not client.transport.closed
    assert not client.transport.aborted


def test_a_second_close_is_answered_too(client):
    client.send(methods.ConnectionClose(reply_code=200))
    assert client.send(methods.ConnectionClose(reply_code=200)) == [methods.ConnectionCloseOk()]


def test_a_client_that_does_not_end_its_side_is_cut_off(client, node):
    client.send(methods.ConnectionClose(reply_code=200))
    client.connection.tick(node.clock.now + 12)
    assert client.transport.aborted


def test_a_broker_that_stops_does_not_leave_it_to_the_client(client, node):
    node.stopping = True
    client.send(methods.ConnectionClose(reply_code=200))
    assert client.transport.closed


def test_channel_numbers_may_be_higher_than_channel_max(client):
    """Some clients number upwards for ever, and close each channel before they open the next."""
    for number in (2047, 2048, 30_000, 65_535):
        assert isinstance(client.ask(methods.ChannelOpen(), number), methods.ChannelOpenOk)
        client.ask(methods.ChannelClose(), number)


def test_after_our_close_only_close_ok_counts(client):
    client.send((1, methods.ChannelOpen()))
    assert client.send((1, methods.QueueDeclare(queue="q")), (2, methods.ChannelOpen())) == []
    assert not client.transport.closed
    client.send(methods.ConnectionCloseOk())
    assert client.transport.closed


def test_a_client_that_does_not_answer_our_close_is_cut_off(client, node):
    client.send((1, methods.ChannelOpen()))
    node.clock.now += 11
    client.connection.tick(node.clock.now)
    assert client.transport.aborted


@pytest.mark.parametrize(("channel", "method", "code", "text"), [
    (1, methods.ChannelOpen(), 504, "second 'channel.open' seen"),
    (7, methods.QueueDeclare(queue="q"), 504, "expected 'channel.open'"),
    (7, methods.BasicAck(delivery_tag=1), 504, "expected 'channel.open'"),
    (1, methods.QueueDeclareOk(queue="q"), 503, "unimplemented method"),
    (0, methods.ConnectionOpen(), 504, "unexpected method in connection state running"),
    (1, methods.ConnectionUpdateSecret(), 503, "unimplemented method"),
])
def test_what_cannot_be_forgiven_ends_the_connection(client, channel, method, code, text):
    close = client.ask(method, channel)
    assert isinstance(close, methods.ConnectionClose)
    assert (close.reply_code, close.reply_text.partition(" - ")[2]) == (code, text)


def test_a_new_secret_is_taken_and_changes_nothing(client):
    """RabbitMQ 3.10 does so where users are its own."""
    update = methods.ConnectionUpdateSecret(new_secret=b"wrong", reason="r")
    assert client.send(update) == [methods.ConnectionUpdateSecretOk()]
    assert client.ask(methods.QueueDeclare(queue="q")).queue == "q"


def test_a_channel_error_ends_the_channel_only(client):
    close = client.ask(methods.QueueDeclare(queue="nope", passive=True))
    assert (close.reply_code, close.class_id, close.method_id) == (404, 50, 10)
    assert client.ask(methods.QueueDeclare(queue="q")) is None
    client.send((1, methods.ChannelCloseOk()), (1, methods.ChannelOpen()))
    assert client.ask(methods.QueueDeclare(queue="q")).queue == "q"


def test_a_close_ok_that_comes_late_is_no_fault(client):
    client.ask(methods.ChannelClose())
    assert client.ask(methods.ChannelCloseOk()) is None


def test_a_name_that_is_not_utf_8_can_be_refused(client):
    close = client.ask(methods.QueueDeclare(queue="\udcff", passive=True))
    assert close.reply_code == 404


def test_a_queue_that_another_client_declared_is_not_confirmed_before_it_is_on_disk(node):
    first, second = Client(node).open(), Client(node).open()
    node.commit.at_once = False
    declare = methods.QueueDeclare(queue="shared", durable=True)
    assert first.ask(declare) is None
    assert second.ask(declare) is None
    node.commit.end()
    assert [len(client.read()) for client in (first, second)] == [1, 1]
    assert second.ask(declare) == methods.QueueDeclareOk(queue="shared", message_count=0, consumer_count=0)


def test_a_durable_declare_is_answered_when_it_is_on_disk_and_not_before(client, node):
    node.commit.at_once = False
    assert client.ask(methods.QueueDeclare(queue="q", durable=True)) is None
    assert client.ask(methods.BasicQos(prefetch_count=1)) is None
    node.commit.end()
    assert [method.NAME for _, method in client.read()] == ["queue.declare-ok", "basic.qos-ok"]


def test_a_transient_declare_waits_for_nothing(client, node):
    node.commit.at_once = False
    assert client.ask(methods.QueueDeclare(queue="q")).queue == "q"


def test_close_ok_waits_behind_a_definition(client, node):
    node.commit.at_once = False
    client.send((1, methods.QueueDeclare(queue="q", durable=True)), methods.ConnectionClose())
    assert not client.transport.closed
    assert client.read() == []
    node.commit.end()
    assert len(client.read()) == 2


def test_exclusive_queues_end_with_their_connection(client, node):
    name = client.ask(methods.QueueDeclare(exclusive=True)).queue
    assert name in node.vhost.queues
    client.connection.lost()
    assert name not in node.vhost.queues


def test_an_auto_delete_queue_goes_when_its_last_consumer_is_lost(client, node):
    other = Client(node).open()
    client.ask(methods.QueueDeclare(queue="q", auto_delete=True))
    client.ask(methods.BasicConsume(queue="q"))
    other.ask(methods.BasicConsume(queue="q"))
    client.connection.lost()
    assert "q" in node.vhost.queues
    other.send(methods.ConnectionClose())
    assert "q" not in node.vhost.queues


@pytest.mark.parametrize("asked", [True, False])
def test_a_consumer_whose_queue_is_deleted_is_told_if_it_asked(node, asked):
    client = Client(node, properties={"capabilities": {"consumer_cancel_notify": asked}}).open()
    client.ask(methods.QueueDeclare(queue="q"))
    client.ask(methods.BasicConsume(queue="q", consumer_tag="t"))
    Client(node).open().ask(methods.QueueDelete(queue="q"))
    assert client.read() == ([(1, methods.BasicCancel(consumer_tag="t", no_wait=True))] if asked else [])


def test_heartbeats_are_sent_at_half_the_interval_and_missed_after_two(node):
    client = Client(node).open(heartbeat=4)
    frames = []
    for _ in range(8):
        client.connection.tick(node.clock.now)
        frames += client.read()
    assert [frame.kind for frame in frames].count(FRAME_HEARTBEAT) >= 2
    assert not client.transport.aborted
    client.connection.tick(node.clock.now)
    client.connection.tick(node.clock.now)
    assert client.transport.aborted


def test_a_publisher_is_told_of_an_alarm_once_and_of_its_end(client, node):
    client.connection.on_publisher_blocked()
    client.connection.on_publisher_blocked()
    assert client.read() == [methods.ConnectionBlocked(reason="low on disk")]
    assert client.connection in node.blocked
    client.connection.unblock()
    assert client.read() == [methods.ConnectionUnblocked()]
    assert not node.blocked


def test_a_mistake_of_ours_is_541_and_not_the_end_of_the_process(client, node, monkeypatch):
    monkeypatch.setattr(type(node.vhost), "queue", lambda *_: 1 / 0)
    assert client.ask(methods.QueueDeclare(queue="q", passive=True)).reply_code == 541


# --- requests that take long

@pytest.fixture
def many_bindings(client, node, monkeypatch):
    """A queue q with many bindings to the durable exchange x; each piece is one step."""
    monkeypatch.setattr(pieces, "PIECE_NS", 0)
    client.send((1, methods.QueueDeclare(queue="q", durable=True)),
                (1, methods.ExchangeDeclare(exchange="x", type="direct", durable=True)))
    for number in range(deletions.BINDINGS_AT_ONCE + 10):
        client.send((1, methods.QueueBind(queue="q", exchange="x", routing_key=str(number))))
    return node.vhost.queue("q")


def feed(client, *asked):
    """Give octets to the broker, which gets no turn for what it puts off."""
    client.connection.feed(b"".join(method.frame(1) for method in asked))
    return client.read()


def turns(client, count):
    """What the client has got after so many turns."""
    for _ in range(count):
        client.node.core.go_on()
    return client.read()


@pytest.mark.parametrize(("asked", "answer"), [
    (methods.QueueDelete(queue="q"), methods.QueueDeleteOk(message_count=0)),
    (methods.ExchangeDelete(exchange="x"), methods.ExchangeDeleteOk()),
])
def test_a_long_deletion_is_answered_when_it_is_done_before_what_came_behind_it(client, many_bindings, asked, answer):
    assert feed(client, asked, methods.BasicQos(prefetch_count=1)) == []
    assert turns(client, 5) == []
    assert turns(client, 200) == [(1, answer), (1, methods.BasicQosOk())]
    assert not many_bindings.bindings


def test_a_long_deletion_without_wait_is_not_answered(client, many_bindings):
    assert feed(client, methods.QueueDelete(queue="q", no_wait=True), methods.BasicQos(prefetch_count=1)) == []
    assert turns(client, 200) == [(1, methods.BasicQosOk())]


def test_a_long_deletion_is_answered_when_it_is_on_disk(client, many_bindings, node):
    node.commit.at_once = False
    feed(client, methods.QueueDelete(queue="q"))
    assert turns(client, 200) == []
    node.commit.end()
    assert client.read() == [(1, methods.QueueDeleteOk(message_count=0))]


def test_a_long_deletion_that_fails_in_a_later_piece_closes_its_channel(client, many_bindings, node):
    feed(client, methods.QueueDelete(queue="q"))
    turns(client, 5)
    node.vhost.log.full = True
    ((channel, close),) = turns(client, 400)
    assert (channel, close.reply_code, close.class_id, close.method_id) == (1, 406, 50, 40)
    assert len(many_bindings.bindings) == deletions.BINDINGS_AT_ONCE + 10


def message(body, exchange="", key=""):
    """The octets of a publish."""
    return (methods.BasicPublish(exchange=exchange, routing_key=key).frame(1)
            + header_frame(1, b"\0\x3c\0\0" + len(body).to_bytes(8) + b"\0\0") + body_frames(1, body, 4096))


def test_a_destination_has_the_history_and_what_comes_meanwhile_in_order_when_it_is_bound(client, node, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_NS", 0)
    other = Client(node).open()
    client.send((1, methods.ExchangeDeclare(exchange="h", type="x-recent-history")),
                (1, methods.QueueDeclare(queue="q")))
    sent = [b"%d" % number for number in range(12)]
    client.feed(b"".join(message(body, "h") for body in sent[:8]))
    assert feed(client, methods.QueueBind(queue="q", exchange="h"), methods.BasicQos(prefetch_count=1)) == []
    turns(client, 3)
    assert 0 < node.vhost.queue("q").message_count < 8
    other.connection.feed(message(sent[8], "h") + message(sent[9], "h"))
    assert turns(client, 40) == [(1, methods.QueueBindOk()), (1, methods.BasicQosOk())]
    other.connection.feed(message(sent[10], "h") + message(sent[11], "h"))
    assert [row[6] for row in node.vhost.queue("q").browse(1, 20)] == sent


@pytest.mark.parametrize("gone", [methods.QueueDelete(queue="q"), methods.ExchangeDelete(exchange="h")])
def test_an_end_that_is_deleted_while_history_is_delivered_has_no_binding(client, node, monkeypatch, gone):
    monkeypatch.setattr(pieces, "PIECE_NS", 0)
    other = Client(node).open()
    client.send((1, methods.ExchangeDeclare(exchange="h", type="x-recent-history", durable=True)),
                (1, methods.QueueDeclare(queue="q", durable=True)))
    exchange = node.vhost.exchanges["h"]
    client.feed(b"".join(message(b"x", "h") for _ in range(8)))
    assert feed(client, methods.QueueBind(queue="q", exchange="h")) == []
    other.send((1, gone))
    assert turns(client, 40) == [(1, methods.QueueBindOk())]
    assert (exchange.binding_count, [q.bindings for q in node.vhost.queues.values()]) in ((0, []), (0, [[]]))
    assert not any(payload.startswith(methods.QueueBind.INDEX.to_bytes(4)) for payload in node.vhost.log.payloads)


def test_an_unbind_is_answered_when_its_auto_delete_exchange_has_lost_what_led_to_it(client, node, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_NS", 0)
    client.send((1, methods.QueueDeclare(queue="q")),
                (1, methods.ExchangeDeclare(exchange="x", type="fanout", auto_delete=True)),
                (1, methods.QueueBind(queue="q", exchange="x")),
                *((1, methods.ExchangeBind(destination="x", source="amq.topic", routing_key=f"k{number}"))
                  for number in range(100)))
    assert feed(client, methods.QueueUnbind(queue="q", exchange="x"), methods.BasicQos(prefetch_count=1)) == []
    turns(client, 20)
    assert 0 < node.vhost.exchanges["amq.topic"].binding_count < 100
    assert turns(client, 200) == [(1, methods.QueueUnbindOk()), (1, methods.BasicQosOk())]
    assert node.vhost.exchanges["amq.topic"].binding_count == 0


@pytest.fixture
def transactional(client, node, many_bindings):
    """A client whose commits store messages in the durable queue t."""
    node.disk = Disk()
    node.room = Room(node.disk)
    assert client.send((1, methods.TxSelect()), (1, methods.QueueDeclare(queue="t", durable=True))) == [
        (1, methods.TxSelectOk()), (1, methods.QueueDeclareOk(queue="t", message_count=0, consumer_count=0))]
    node.commit.at_once = False
    return client


def test_what_came_behind_a_commit_is_done_in_pieces_and_answered_in_order(transactional, node, many_bindings):
    client = transactional
    client.connection.feed(message(b"1", key="t") + b"".join(method.frame(1) for method in (
        methods.TxCommit(), methods.QueueDelete(queue="q"), methods.QueueDeclare(queue="q2"),
        methods.ExchangeDelete(exchange="x"), methods.BasicQos(prefetch_count=3))))
    for _ in range(5):
        node.core.go_on()
    node.commit.end()
    node.commit.at_once = True
    assert client.read() == [(1, methods.TxCommitOk())]
    turns(client, 5)
    assert len(many_bindings.bindings) > 0
    assert "q2" not in node.vhost.queues
    assert turns(client, 200) == [
        (1, methods.QueueDeleteOk(message_count=0)),
        (1, methods.QueueDeclareOk(queue="q2", message_count=0, consumer_count=0)),
        (1, methods.ExchangeDeleteOk()), (1, methods.BasicQosOk())]
    assert not client.connection.yielded


def test_a_channel_is_closed_when_what_came_behind_its_commit_is_done(transactional, node):
    client = transactional
    client.connection.feed(message(b"1", key="t") + b"".join(method.frame(1) for method in (
        methods.TxCommit(), methods.QueueDelete(queue="q"), methods.BasicConsume(queue="t", consumer_tag="c"),
        methods.ChannelClose(reply_code=200, reply_text="", class_id=0, method_id=0))))
    node.commit.end()
    node.commit.at_once = True
    got = [frame[1] for frame in turns(client, 300) if isinstance(frame, tuple)]
    assert [type(method) for method in got][:3] == [methods.TxCommitOk, methods.QueueDeleteOk, methods.BasicConsumeOk]
    assert got[-1] == methods.ChannelCloseOk()
    assert (node.vhost.queue("t").message_count, node.vhost.queue("t").consumer_count) == (1, 0)


def test_a_long_deletion_goes_on_when_its_client_goes(client, many_bindings, node):
    feed(client, methods.QueueDelete(queue="q"))
    client.connection.lost()
    assert turns(client, 400) == []
    assert "q" not in node.vhost.queues
    assert node.vhost.deletions_under_way == 0


def test_a_cancel_is_answered_when_its_auto_delete_queue_has_lost_its_many_bindings(client, node, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_NS", 0)
    client.send((1, methods.QueueDeclare(queue="q", auto_delete=True)),
                (1, methods.BasicConsume(queue="q", consumer_tag="t")),
                *((1, methods.QueueBind(queue="q", exchange="amq.topic", routing_key=f"k{number}"))
                  for number in range(300)))
    assert feed(client, methods.BasicCancel(consumer_tag="t"), methods.BasicQos(prefetch_count=1)) == []
    assert "q" in node.vhost.queues
    assert turns(client, 400) == [(1, methods.BasicCancelOk(consumer_tag="t")), (1, methods.BasicQosOk())]
    assert node.vhost.queues == {}


@pytest.fixture
def exclusive_queues(client, node, monkeypatch):
    """Names of exclusive queues, some with consumers and bindings; each piece is one step."""
    monkeypatch.setattr(pieces, "PIECE_NS", 0)
    names = [f"e{number}" for number in range(20)]
    for name in names:
        client.send((1, methods.QueueDeclare(queue=name, exclusive=True)), (1, methods.BasicConsume(queue=name)),
                    (1, methods.QueueBind(queue=name, exchange="amq.topic", routing_key="#")))
    return names


def test_a_connections_close_is_answered_when_its_many_queues_are_gone(client, node, exclusive_queues):
    client.connection.feed(methods.ConnectionClose().frame(0) + methods.QueueDeclare(queue="no").frame(1))
    assert turns(client, 25) == []
    assert 0 < len(node.vhost.queues) < len(exclusive_queues)
    assert turns(client, 100) == [methods.ConnectionCloseOk()]
    assert node.vhost.queues == {}


@pytest.mark.parametrize("end", [
    lambda connection: connection.lost(),
    lambda connection: connection.cut_off(),
    lambda connection: connection.shut(NotFound("no longer")),
], ids=["lost", "cut off", "shut"])
def test_a_connection_that_ends_lets_its_many_queues_go_one_by_one(client, node, exclusive_queues, end):
    end(client.connection)
    assert len(node.vhost.queues) == len(exclusive_queues)
    turns(client, 25)
    assert 0 < len(node.vhost.queues) < len(exclusive_queues)
    turns(client, 100)
    assert node.vhost.queues == {}


def test_a_connection_that_is_lost_while_it_closes_is_gone_when_all_its_queues_are(
        client, node, exclusive_queues, monkeypatch):
    gone = []
    monkeypatch.setattr(Connection, "on_gone", lambda *_: gone.append(len(node.vhost.queues)))
    client.connection.feed(methods.ConnectionClose().frame(0))
    client.connection.lost()
    turns(client, 100)
    assert gone == [0]


def test_a_connection_that_is_cut_off_while_it_closes_gets_no_answer(client, node, exclusive_queues):
    client.connection.feed(methods.ConnectionClose().frame(0))
    turns(client, 3)
    client.connection.cut_off()
    assert turns(client, 100) == []
    assert node.vhost.queues == {}


def test_consumers_that_wait_for_their_turn_to_go_get_nothing_more(client, node, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_NS", 0)
    client.send((1, methods.QueueDeclare(queue="q")),
                *((1, methods.BasicConsume(queue="q", consumer_tag=str(number))) for number in range(20)))
    other = Client(node).open()
    feed(client, methods.ChannelClose())
    publish(other, "q")
    assert turns(client, 3) == []
    assert (node.vhost.queue("q").ready, node.vhost.queue("q").unacked) == (1, 0)
    assert turns(client, 50) == [(1, methods.ChannelCloseOk())]
    assert node.vhost.queue("q").consumer_count == 0


def test_a_consumer_whose_queue_is_deleted_while_its_channel_closes_is_cancelled_once(client, node, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_NS", 0)
    for number in range(20):
        client.send((1, methods.QueueDeclare(queue=f"q{number}")), (1, methods.BasicConsume(queue=f"q{number}")))
    other = Client(node).open()
    cancelled = []
    cancel = Channel.cancel
    monkeypatch.setattr(Channel, "cancel", lambda self, consumer: (cancelled.append(consumer.queue.name),
                                                                   cancel(self, consumer)))
    feed(client, methods.ChannelClose())
    other.ask(methods.QueueDelete(queue="q19"))
    assert turns(client, 50) == [(1, methods.ChannelCloseOk())]
    assert sorted(cancelled) == sorted(f"q{number}" for number in range(19))
    assert {queue.consumer_count for queue in node.vhost.queues.values()} == {0}


@pytest.fixture
def auto_delete_queues(client, node, monkeypatch):
    """Names of auto-delete queues with a consumer each, all on channel 1; each piece is one step."""
    monkeypatch.setattr(pieces, "PIECE_NS", 0)
    names = [f"a{number}" for number in range(20)]
    for name in names:
        client.send((1, methods.QueueDeclare(queue=name, auto_delete=True)), (1, methods.BasicConsume(queue=name)))
    return names


def test_a_channels_close_is_answered_when_its_many_auto_delete_queues_are_gone(client, node, auto_delete_queues):
    assert feed(client, methods.ChannelClose(), methods.ChannelOpen()) == []
    assert turns(client, 25) == []
    assert 0 < len(node.vhost.queues) < len(auto_delete_queues)
    assert turns(client, 100) == [(1, methods.ChannelCloseOk()), (1, methods.ChannelOpenOk())]
    assert node.vhost.queues == {}


def test_an_error_closes_a_channel_at_once_and_its_many_auto_delete_queues_go_then(client, node, auto_delete_queues):
    ((_, close),) = feed(client, methods.QueueBind(queue="a0", exchange="none"))
    assert close.reply_code == 404
    assert node.vhost.queues
    turns(client, 100)
    assert node.vhost.queues == {}


def test_a_client_that_goes_while_its_channel_closes_takes_its_auto_delete_queues_with_it(
        client, node, auto_delete_queues):
    feed(client, methods.ChannelClose())
    client.connection.lost()
    assert turns(client, 100) == []
    assert node.vhost.queues == {}


def test_a_channel_that_closes_is_not_answered_behind_the_connections_close(client, node, auto_delete_queues):
    feed(client, methods.ChannelClose())
    client.connection.shut(NotFound("no longer"))
    (close,) = turns(client, 200)
    assert isinstance(close, methods.ConnectionClose)
    assert node.vhost.queues == {}


def test_an_auto_delete_queue_that_is_consumed_again_before_its_turn_stays(client, node, auto_delete_queues):
    other = Client(node).open()
    feed(client, methods.ChannelClose())
    feed(other, methods.BasicConsume(queue="a19"))
    turns(client, 50)
    assert set(node.vhost.queues) == {"a19"}


@pytest.fixture
def no_collector():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_a_connection_that_ends_leaves_nothing_to_the_collector_of_cycles(node):
    client = Client(node).open()
    client.send((1, methods.QueueDeclare(queue="q", exclusive=True)),
                (1, methods.BasicConsume(queue="q", consumer_tag="t")))
    publish(client, "q")
    client.send((1, methods.BasicCancel(consumer_tag="t")), (1, methods.BasicConsume(queue="q")),
                (2, methods.ChannelOpen()), (2, methods.QueueDeclare(queue="missing", passive=True)),
                (3, methods.ChannelOpen()), (3, methods.QueueDeclare(queue="p")), (3, methods.QueueDelete(queue="p")))
    client.connection.channels[3].transaction = SimpleNamespace(  # A transaction names its channel.
        channel=client.connection.channels[3], leave=lambda connection_closes: iter(()), under_way=False,
        going_on=False)  # fmt: skip
    channels = [weakref.ref(channel) for channel in client.connection.channels.values()]
    assert len(channels) == 3
    client.connection.lost()
    del client
    assert [channel() for channel in channels] == [None, None, None]
