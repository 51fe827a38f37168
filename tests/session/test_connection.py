import pytest
from tests.session.harness import Client

from brokerd.wire import methods
from brokerd.wire.frames import FRAME_HEARTBEAT


def test_connection_close_is_answered_and_the_socket_closed(client):
    assert client.send(methods.ConnectionClose(reply_code=200)) == [methods.ConnectionCloseOk()]
    assert client.transport.closed


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
    (2048, methods.ChannelOpen(), 530, "number of channels opened (1) has reached the negotiated channel_max (2047)"),
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
    node.commit.end()
    assert len(client.read()) == 2
    assert client.transport.closed


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
