"""Classes channel and access: open, close, flow, and methods on channels that are not open."""

import pytest
from tests.conversations.peer import OTHER, Peer, content, differs, publish, rabbitmq

from brokerd.wire import methods
from brokerd.wire.frames import HEARTBEAT_FRAME


def test_channels_of_any_number_up_to_the_limit_open(peer):
    for number in (2, 3, 1000, 2047):
        assert peer.ask(methods.ChannelOpen(), number) == methods.ChannelOpenOk()


def test_a_channel_may_have_a_number_over_the_limit(peer):
    """Open channels are counted, not their numbers: some clients number upwards for ever."""
    for number in (2048, 65_535):
        assert peer.ask(methods.ChannelOpen(), number) == methods.ChannelOpenOk()
        assert peer.ask(methods.ChannelClose(reply_code=200), number) == methods.ChannelCloseOk()


def test_no_more_channels_open_than_agreed(stranger):
    stranger.open(channel_max=2).open_channel(2)
    stranger.send((3, methods.ChannelOpen()))
    assert stranger.connection_close()[0] in (504, 530)


def test_a_number_is_free_again_after_close(peer):
    for _ in range(5):
        assert peer.ask(methods.ChannelOpen(), 2) == methods.ChannelOpenOk()
        assert peer.ask(methods.ChannelClose(reply_code=200), 2) == methods.ChannelCloseOk()


def test_a_channel_opens_once(peer):
    peer.send(methods.ChannelOpen())
    assert peer.connection_close() == (504, "CHANNEL_ERROR - second 'channel.open' seen")


@pytest.mark.parametrize("method", [
    methods.QueueDeclare(queue="q"), methods.BasicQos(), methods.BasicAck(delivery_tag=1), methods.ConfirmSelect(),
    methods.ChannelFlow(active=True), methods.TxSelect(),
])
def test_nothing_is_done_on_a_channel_before_open(peer, method):
    peer.send((7, method))
    assert peer.connection_close() == (504, "CHANNEL_ERROR - expected 'channel.open'")


def test_publishing_on_a_channel_before_open_is_refused_once(peer):
    peer.send(publish("x", channel=7) * 3)
    assert peer.connection_close() == (504, "CHANNEL_ERROR - expected 'channel.open'")


def test_a_channel_that_is_closed_is_not_open(peer):
    peer.ask(methods.ChannelClose(reply_code=200))
    peer.send(methods.BasicQos())
    assert peer.connection_close() == (504, "CHANNEL_ERROR - expected 'channel.open'")


def test_until_close_ok_all_that_comes_on_the_channel_is_dropped(peer, queue):
    missing = methods.QueueDeclare(queue="missing", passive=True)
    peer.send(missing, missing, publish(queue), methods.BasicAck(delivery_tag=9), publish(queue), b"")
    assert peer.channel_close()[0] == 404
    assert peer.get(queue) is None


def test_the_other_channels_of_the_connection_go_on(peer, queue):
    peer.open_channel(2)
    peer.send(methods.QueueDeclare(queue="missing", passive=True))
    assert peer.read().reply_code == 404
    assert peer.ask(methods.QueueDeclare(queue=queue, passive=True), 2) == methods.QueueDeclareOk(queue=queue)
    peer.send(methods.ChannelCloseOk())
    peer.open_channel(1)


def test_both_sides_may_close_a_channel_at_once(peer):
    peer.send(methods.QueueDeclare(queue="missing", passive=True), methods.ChannelClose(reply_code=200))
    assert isinstance(peer.read(), methods.ChannelClose)
    assert isinstance(peer.read(), methods.ChannelCloseOk)
    peer.send(methods.ChannelCloseOk())
    peer.open_channel(1)


def test_unacked_messages_of_a_closed_channel_return(peer, queue):
    peer.open_channel(2)
    peer.send(publish(queue, b"1"), publish(queue, b"2"))
    assert peer.get(queue, no_ack=False) == (False, b"1")
    assert peer.ask(methods.ChannelClose(reply_code=200)) == methods.ChannelCloseOk()
    peer.open_channel(1)
    assert [peer.get(queue), peer.get(queue)] == [(True, b"1"), (False, b"2")]


@rabbitmq("may take a close-ok out of nowhere for the end of the connection")
def test_a_close_ok_out_of_nowhere_harms_nobody_else(peer, queue):
    peer.open_channel(2)
    peer.send(publish(queue, b"1", channel=2), publish(queue, b"2", channel=2))
    peer.consume(queue, channel=2)
    assert [peer.delivery()[1], peer.delivery()[1]] == [b"1", b"2"]
    peer.send(methods.ChannelCloseOk(), (3, methods.ChannelCloseOk()), HEARTBEAT_FRAME)
    answer = peer.ask(methods.BasicQos())
    assert OTHER or answer == methods.BasicQosOk()  # RabbitMQ says nothing, or refuses.
    peer.send((2, methods.BasicAck(delivery_tag=1)), (2, methods.BasicNack(delivery_tag=2, requeue=True)))
    deliver, body = peer.delivery()
    assert (peer.channel, deliver.redelivered, body) == (2, True, b"2")
    assert peer.ask(methods.QueueDeclare(queue=queue, passive=True), 2).consumer_count == 1


@differs("`channel.flow` from a client")
def test_flow_holds_deliveries_back_and_lets_them_go_again(peer, queue):
    assert peer.ask(methods.ChannelFlow(active=False)) == methods.ChannelFlowOk(active=False)
    assert isinstance(peer.ask(methods.BasicConsume(queue=queue, consumer_tag="t", no_ack=True)),
                      methods.BasicConsumeOk)
    peer.send(publish(queue, b"held"))
    assert peer.ask(methods.QueueDeclare(queue=queue, passive=True)) == methods.QueueDeclareOk(
        queue=queue, message_count=1, consumer_count=1)
    assert peer.ask(methods.ChannelFlow(active=True)) == methods.ChannelFlowOk(active=True)
    assert peer.delivery()[1] == b"held"


def test_flow_that_is_on_may_be_put_on(peer):
    assert peer.ask(methods.ChannelFlow(active=True)) == methods.ChannelFlowOk(active=True)


def test_access_is_granted_to_everybody(peer):
    assert isinstance(peer.ask(methods.AccessRequest(realm="/data", active=True)), methods.AccessRequestOk)


@pytest.mark.parametrize("method", [
    methods.ChannelOpenOk(), methods.QueueDeclareOk(), methods.BasicDeliver(), methods.BasicGetOk(),
    methods.ConfirmSelectOk(),
])
def test_methods_of_servers_are_refused(peer, method):
    peer.send(method)
    if isinstance(method, methods.BasicDeliver | methods.BasicGetOk):
        peer.raw(content(b"x"))
    code, text = peer.connection_close()
    assert code in (503, 505, 540), text


def test_methods_of_connections_are_refused_on_channels(peer):
    peer.send(methods.ConnectionTuneOk())
    assert peer.connection_close()[0] in (503, 504)


def test_hundreds_of_channels_close_with_their_connection(port):
    with Peer(port).open() as peer:
        for number in range(2, 300):
            peer.send((number, methods.ChannelOpen()))
        for _ in range(2, 300):
            assert isinstance(peer.read(), methods.ChannelOpenOk)
        peer.close()
