"""Direct reply-to: answers without a queue, by the name amq.rabbitmq.reply-to."""

import pytest
from tests.conversations.peer import Peer, eventually, publish, rabbitmq

from brokerd.wire import methods

REPLY_TO = "amq.rabbitmq.reply-to"


@pytest.fixture
def asker(peer):
    """The peer, which consumes replies on channel 1."""
    peer.consume(REPLY_TO, "replies", no_ack=True)
    return peer


@pytest.fixture
def server(port):
    """Another connection."""
    with Peer(port).open() as server:
        yield server


def request(asker, server, body=b"?", **fields):
    """A request as the server gets it."""
    queue = server.declare(exclusive=False, auto_delete=True, queue="")
    asker.send(publish(queue, body, reply_to=REPLY_TO, **fields))
    return server.arrived(queue)


def test_a_reply_comes_to_who_asked(asker, server):
    got = request(asker, server, correlation_id="7")
    address = got.properties.reply_to
    assert address.startswith(f"{REPLY_TO}.")
    server.send(publish(address, b"!", correlation_id="7", headers={"h": 1}))
    reply = asker.delivered()
    assert (reply.method.consumer_tag, reply.method.delivery_tag, reply.method.redelivered) == ("replies", 1, False)
    assert (reply.method.exchange, reply.method.routing_key) == ("", address)
    assert (reply.body, reply.properties.correlation_id, reply.headers) == (b"!", "7", {"h": 1})


def test_there_may_be_many_replies_in_order(asker, server):
    address = request(asker, server).properties.reply_to
    server.send(*[publish(address, b"%d" % n) for n in range(100)])
    assert [asker.delivered().body for _ in range(100)] == [b"%d" % n for n in range(100)]


def test_an_address_stays_good_while_the_consumer_is_there(asker, server):
    first = request(asker, server).properties.reply_to
    second = request(asker, server).properties.reply_to
    assert first == second
    server.send(publish(first, b"late"))
    assert asker.delivered().body == b"late"


def test_every_channel_has_an_address_of_its_own(asker, server):
    asker.open_channel(2)
    asker.consume(REPLY_TO, "replies", channel=2, no_ack=True)
    one = request(asker, server).properties.reply_to
    two = request(asker, server, channel=2).properties.reply_to
    assert one != two
    server.send(publish(two, b"two"))
    assert asker.delivered().body == b"two"
    assert asker.channel == 2 or asker.frames == []


def test_replies_are_seen_as_routed(asker, server):
    address = request(asker, server).properties.reply_to
    server.confirming()
    assert server.put(address, b"!", mandatory=True)
    assert asker.delivered().body == b"!"


def test_a_reply_to_nobody_is_unroutable(asker, server):
    address = request(asker, server).properties.reply_to
    assert asker.ask(methods.BasicCancel(consumer_tag="replies")) == methods.BasicCancelOk(consumer_tag="replies")
    server.send(publish(address, b"too late", mandatory=True))
    assert server.read() == methods.BasicReturn(
        reply_code=312, reply_text="NO_ROUTE", exchange="", routing_key=address)
    assert server.message()[1] == b"too late"


def test_whether_somebody_waits_can_be_asked(asker, server):
    address = request(asker, server).properties.reply_to
    passive = methods.QueueDeclare(queue=address, passive=True)
    assert server.ask(passive) == methods.QueueDeclareOk(queue=address, message_count=0, consumer_count=1)
    asker.ask(methods.BasicCancel(consumer_tag="replies"))
    assert server.refusal(passive) == (404, f"NOT_FOUND - no queue '{address}' in vhost '/'")


@pytest.mark.parametrize("goes", [
    lambda asker: asker.ask(methods.ChannelClose(reply_code=200)), Peer.close, Peer.hang_up,
], ids=["channel", "connection", "socket"])
def test_the_address_goes_with_channel_and_connection(asker, server, goes):
    address = request(asker, server).properties.reply_to
    goes(asker)
    passive = methods.QueueDeclare(queue=address, passive=True)

    def refused():
        reply = server.ask(passive)
        if isinstance(reply, methods.QueueDeclareOk):
            return None
        server.send(methods.ChannelCloseOk())
        server.open_channel(1)
        return reply.reply_code

    assert eventually(refused) == 404


def test_cancelled_it_may_be_consumed_again(asker, server):
    asker.ask(methods.BasicCancel(consumer_tag="replies"))
    asker.consume(REPLY_TO, "again", no_ack=True)
    server.send(publish(request(asker, server).properties.reply_to, b"!"))
    assert asker.delivered().method.consumer_tag == "again"


@rabbitmq("3.10 answers 541", always=True)
def test_an_unknown_address_is_no_queue(peer):
    address = f"{REPLY_TO}.g2dkAA.nonsense"
    assert peer.refusal(methods.QueueDeclare(queue=address, passive=True)) == (
        404, f"NOT_FOUND - no queue '{address}' in vhost '/'")
    peer.send(publish(address, b"nobody", mandatory=True))
    assert peer.read().reply_code == 312


# --- what is refused


def test_replies_are_not_acked(peer):
    assert peer.refusal(methods.BasicConsume(queue=REPLY_TO)) == (
        406, "PRECONDITION_FAILED - reply consumer cannot acknowledge")


def test_a_channel_has_one_consumer_of_replies(asker):
    assert asker.refusal(methods.BasicConsume(queue=REPLY_TO, no_ack=True)) == (
        406, "PRECONDITION_FAILED - reply consumer already set")


def test_who_asks_must_listen_first(peer, queue):
    peer.send(publish(queue, reply_to=REPLY_TO))
    assert peer.channel_close() == (406, "PRECONDITION_FAILED - fast reply consumer does not exist")


def test_who_asks_must_listen_on_the_same_channel(asker, queue):
    asker.open_channel(2)
    asker.send(publish(queue, reply_to=REPLY_TO, channel=2))
    assert asker.channel_close(2) == (406, "PRECONDITION_FAILED - fast reply consumer does not exist")


def test_another_reply_to_is_nobodys_business(peer, queue):
    peer.confirming().put(queue, reply_to="my.queue")
    assert peer.got(queue).properties.reply_to == "my.queue"


@pytest.mark.parametrize("passive", [True, False])
def test_the_name_itself_may_be_declared(peer, passive):
    reply = peer.ask(methods.QueueDeclare(queue=REPLY_TO, passive=passive))
    assert reply == methods.QueueDeclareOk(queue=REPLY_TO, consumer_count=1)


@rabbitmq("3.10 has other words for it", always=True)
@pytest.mark.parametrize("cls", [methods.QueueBind, methods.QueueUnbind])
def test_it_is_bound_to_nothing(asker, cls):
    assert asker.refusal(cls(queue=REPLY_TO, exchange="amq.direct", routing_key="k")) == (
        403, "ACCESS_REFUSED - cannot bind or unbind to a volatile (direct reply-to) queue")


@pytest.mark.parametrize("method", [
    methods.BasicGet(queue=REPLY_TO), methods.QueuePurge(queue=REPLY_TO),
])
def test_there_is_no_such_queue_for_anything_else(peer, method):
    assert peer.refusal(method) == (404, f"NOT_FOUND - no queue '{REPLY_TO}' in vhost '/'")
