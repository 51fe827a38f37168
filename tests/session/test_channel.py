import pytest
from tests.session.test_basic import publish

from brokerd.errors import NotFound
from brokerd.store import format as layout
from brokerd.vhost.deletions import finish
from brokerd.wire import methods


@pytest.fixture
def channel(client):
    return client.connection.channels[1]


def test_a_queue_without_name_is_the_one_declared_last(client, channel):
    with pytest.raises(NotFound, match="^no previously declared queue$"):
        channel.queue_name("")
    client.ask(methods.QueueDeclare(queue="a"))
    client.ask(methods.QueueDeclare(queue="b"))
    assert channel.queue_name("") == "b"
    assert channel.queue_name("a") == "a"


def test_whoever_leaves_has_no_consumers_and_nothing_unacked_any_more(client, channel, node):
    client.ask(methods.QueueDeclare(queue="q"))
    client.ask(methods.BasicConsume(queue="q"))
    client.ask(methods.BasicConsume(queue="amq.rabbitmq.reply-to", no_ack=True))
    publish(client, "q")
    queue = node.vhost.queue("q")
    assert finish(channel.leave()) == [queue]
    assert (queue.ready, queue.unacked, queue.consumer_count) == (1, 0, 0)
    assert node.vhost.replies.tag(channel) is None
    assert finish(channel.leave()) == []


@pytest.mark.parametrize("end", [
    lambda client: client.ask(methods.ChannelClose(reply_code=200)),
    lambda client: client.ask(methods.QueueDeclare(queue="missing", passive=True)),
    lambda client: client.connection.leave(),
])
def test_a_channel_that_took_messages_by_get_counts_until_it_ends(client, node, end):
    client.ask(methods.QueueDeclare(queue="q"))
    queue = node.vhost.queue("q")
    client.ask(methods.BasicGet(queue="q"))
    assert queue.getter_count == 0      # It took none.
    publish(client, "q")
    client.send((1, methods.BasicGet(queue="q")))
    assert queue.getter_count == 1
    end(client)
    assert queue.getter_count == 0


@pytest.mark.parametrize(("end", "cause"), [
    (lambda client: client.ask(methods.ChannelClose(reply_code=200)), "channel_closed"),
    (lambda client: client.ask(methods.QueueDeclare(queue="missing", passive=True)), "channel_closed"),
    (lambda client: client.connection.leave(), "connection_closed"),
    (lambda client: client.send((1, methods.BasicRecover(requeue=True))), "recover"),
])
def test_what_ends_names_itself_as_the_cause_of_returns(client, node, end, cause):
    client.ask(methods.QueueDeclare(queue="q"))
    client.ask(methods.BasicConsume(queue="q"))
    publish(client, "q")
    queue = node.vhost.queue("q")
    assert queue.unacked == 1
    end(client)
    counts = dict(zip(layout.ORDER_COUNTERS, queue.order_counts()[1], strict=True))
    returned = {name: counts[f"returned_{name}"] for name in ("recover", "channel_closed", "connection_closed")}
    assert returned == {"recover": 0, "channel_closed": 0, "connection_closed": 0} | {cause: 1}


def test_an_open_transaction_ends_before_deliveries_return(client, channel, monkeypatch):
    order = []

    class Transaction:
        def leave(self, *, connection_closes):
            order.append(("transaction", channel.unacked, connection_closes))
            return iter(())

    client.ask(methods.QueueDeclare(queue="q"))
    client.ask(methods.BasicConsume(queue="q"))
    publish(client, "q")
    channel.transaction = Transaction()
    finish(channel.leave(connection_closes=True))
    assert order == [("transaction", 1, True)]
    assert channel.unacked == 0
