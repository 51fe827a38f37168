"""Class queue: declare, bind, unbind, purge, delete."""

import pytest
from tests.conversations.peer import Peer, differs, publish, rabbitmq

from brokerd.wire import methods


@pytest.fixture
def durable(peer):
    """A durable queue called q."""
    reply = peer.ask(methods.QueueDeclare(queue="q", durable=True, arguments={"x-expires": 60000}))
    assert reply == methods.QueueDeclareOk(queue="q")
    yield "q"
    peer.send(methods.QueueDelete(queue="q"))
    peer.read()


def count(peer, queue):
    reply = peer.ask(methods.QueueDeclare(queue=queue, passive=True))
    return reply.message_count, reply.consumer_count


# --- declare


def test_a_server_names_a_queue_that_has_no_name(peer):
    names = {peer.ask(methods.QueueDeclare(exclusive=True)).queue for _ in range(20)}
    assert len(names) == 20
    assert all(name.startswith("amq.gen-") for name in names)


@differs("passive `queue.declare` without a name", always=False)
def test_no_name_means_the_queue_declared_last_on_the_channel(peer):
    name = peer.ask(methods.QueueDeclare(exclusive=True)).queue
    peer.send(publish(name, b"1"))
    assert peer.ask(methods.QueueDeclare(passive=True)).queue == name
    assert peer.get("") == (False, b"1")
    assert peer.ask(methods.QueueBind(exchange="amq.direct")) == methods.QueueBindOk()
    peer.send(publish(name, b"2", exchange="amq.direct"))  # neither queue nor key: both are the name
    assert peer.get("") == (False, b"2")
    assert peer.ask(methods.QueuePurge()) == methods.QueuePurgeOk()
    assert peer.ask(methods.QueueDelete()) == methods.QueueDeleteOk()


@pytest.mark.parametrize("method", [
    methods.QueueDeclare(passive=True), methods.QueueBind(exchange="amq.direct", routing_key="k"),
    methods.QueueUnbind(exchange="amq.direct", routing_key="k"), methods.QueuePurge(), methods.QueueDelete(),
    methods.BasicGet(), methods.BasicConsume(),
])
def test_no_name_on_a_channel_that_declared_none_is_not_found(request, peer, method):
    if isinstance(method, methods.QueueDeclare):
        request.applymarker(differs("passive `queue.declare` without a name", always=False))
    assert peer.refusal(method) == (404, "NOT_FOUND - no previously declared queue")


def test_the_queue_declared_last_is_the_channels_own(peer, queue):
    peer.open_channel(2)
    assert peer.refusal(methods.QueuePurge(), 2)[0] == 404


@rabbitmq("may count messages that were just routed a little later")
def test_declaring_again_tells_messages_and_consumers(peer, durable):
    peer.send(publish("q"), publish("q"), publish("q"))
    assert count(peer, "q") == (3, 0)
    peer.ask(methods.BasicGet(queue="q"))
    peer.message()
    assert count(peer, "q") == (2, 0)
    peer.ask(methods.BasicConsume(queue="q"))
    assert [peer.delivery()[1] for _ in range(2)] == [b"m"] * 2
    assert count(peer, "q") == (0, 1)


@pytest.mark.parametrize(("fields", "text"), [
    ({"durable": False}, "'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'"),
    ({"auto_delete": True}, "'auto_delete' for queue 'q' in vhost '/': received 'true' but current is 'false'"),
    ({"arguments": {}}, "'x-expires' for queue 'q' in vhost '/': received none but current is the value "
                        "'60000' of type 'signedint'"),
    ({"arguments": {"x-expires": 5}}, "'x-expires' for queue 'q' in vhost '/': received '5' but current is '60000'"),
    ({"arguments": {"x-expires": 60000, "x-max-length": 5}},
     "'x-max-length' for queue 'q' in vhost '/': received the value '5' of type 'signedint' but current is none"),
])
def test_a_declare_that_differs_names_the_first_difference(peer, durable, fields, text):
    method = methods.QueueDeclare(**{"queue": "q", "durable": True, "arguments": {"x-expires": 60000}} | fields)
    assert peer.refusal(method) == (406, f"PRECONDITION_FAILED - inequivalent arg {text}")


def test_arguments_nobody_knows_are_not_compared(peer, durable):
    arguments = {"x-expires": 60000, "x-unheard-of": "of"}
    reply = peer.ask(methods.QueueDeclare(queue="q", durable=True, arguments=arguments))
    assert reply == methods.QueueDeclareOk(queue="q")


LOCKED = (405, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be "
               "originally declared on another connection or the exclusive property value does not match that of the "
               "original declaration.")


def test_a_queue_that_was_not_exclusive_does_not_become_so(peer, durable):
    method = methods.QueueDeclare(queue="q", exclusive=True, durable=True, arguments={"x-expires": 60000})
    assert peer.refusal(method) == LOCKED


@pytest.mark.parametrize("method", [
    methods.QueueDeclare(queue="q"), methods.QueueDeclare(queue="q", exclusive=True),
    methods.QueueDeclare(queue="q", passive=True), methods.QueuePurge(queue="q"), methods.QueueDelete(queue="q"),
    methods.QueueBind(queue="q", exchange="amq.direct", routing_key="k"), methods.BasicGet(queue="q"),
    methods.BasicConsume(queue="q"),
])
def test_an_exclusive_queue_is_its_connections_own(port, peer, method):
    with Peer(port).open() as owner:
        assert owner.ask(methods.QueueDeclare(queue="q", exclusive=True)) == methods.QueueDeclareOk(queue="q")
        assert peer.refusal(method) == LOCKED
        owner.close()


@pytest.mark.parametrize("goes", [Peer.close, Peer.hang_up])
def test_an_exclusive_queue_goes_with_its_connection(port, witness, peer, goes):
    with Peer(port).open() as owner:
        owner.ask(methods.QueueDeclare(queue="q", exclusive=True))
        goes(owner)
    method = methods.QueueDeclare(queue="q", passive=True)
    while (refusal := peer.refusal(method)) == LOCKED:
        pass  # A socket that was closed without a word is noticed a little later.
    assert refusal == (404, "NOT_FOUND - no queue 'q' in vhost '/'")


def test_an_auto_delete_queue_goes_with_its_last_consumer(peer):
    peer.ask(methods.QueueDeclare(queue="q", auto_delete=True))
    for tag in ("a", "b"):
        peer.ask(methods.BasicConsume(queue="q", consumer_tag=tag))
    assert peer.ask(methods.BasicCancel(consumer_tag="a")) == methods.BasicCancelOk(consumer_tag="a")
    assert count(peer, "q") == (0, 1)
    peer.ask(methods.BasicCancel(consumer_tag="b"))
    assert peer.refusal(methods.QueueDeclare(queue="q", passive=True))[0] == 404


def test_an_auto_delete_queue_goes_with_the_channel_of_its_consumer(peer):
    peer.open_channel(2)
    peer.ask(methods.QueueDeclare(queue="q", auto_delete=True))
    peer.ask(methods.BasicConsume(queue="q"), 2)
    peer.ask(methods.ChannelClose(reply_code=200), 2)
    assert peer.refusal(methods.QueueDeclare(queue="q", passive=True))[0] == 404


def test_an_auto_delete_queue_that_never_had_a_consumer_stays(peer):
    peer.ask(methods.QueueDeclare(queue="q", auto_delete=True))
    assert peer.ask(methods.QueueDeclare(queue="q", auto_delete=True)) == methods.QueueDeclareOk(queue="q")
    peer.ask(methods.QueueDelete(queue="q"))


def test_names_that_begin_with_amq_are_reserved(peer):
    assert peer.refusal(methods.QueueDeclare(queue="amq.mine")) == (
        403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'")


@pytest.mark.parametrize(("argument", "value", "reason"), [
    ("x-expires", 0, "{value_zero,0}"), ("x-expires", -1, "{value_negative,-1}"),
    ("x-message-ttl", -1, "{value_negative,-1}"), ("x-max-length", -5, "{value_negative,-5}"),
    ("x-max-priority", 300, "{max_value_exceeded,300}"), ("x-max-priority", -1, "{value_negative,-1}"),
    ("x-overflow", "spill", "invalid_overflow"),
    ("x-dead-letter-routing-key", "k", "routing_key_but_no_dlx_defined"),
])
def test_arguments_no_queue_can_have_are_refused(peer, argument, value, reason):
    method = methods.QueueDeclare(queue="q", arguments={argument: value})
    assert peer.refusal(method) == (
        406, f"PRECONDITION_FAILED - invalid arg '{argument}' for queue 'q' in vhost '/': {reason}")


@pytest.mark.parametrize("name", ["q" * 255, "ключ", "with space", "../../etc", "a/b", "\x01", "."])
def test_any_name_is_a_name(peer, name):
    assert peer.ask(methods.QueueDeclare(queue=name, exclusive=True)) == methods.QueueDeclareOk(queue=name)
    peer.send(publish(name, b"there"))
    assert peer.get(name) == (False, b"there")


def test_line_ends_in_names_are_dropped(peer):
    assert peer.ask(methods.QueueDeclare(queue="li\r\nne", exclusive=True)).queue == "line"


def test_no_wait_has_no_reply(peer):
    peer.send(methods.QueueDeclare(queue="q", exclusive=True, no_wait=True),
              methods.QueueBind(queue="q", exchange="amq.direct", routing_key="k", no_wait=True),
              publish("k", exchange="amq.direct"), methods.QueuePurge(queue="q", no_wait=True),
              methods.QueueDelete(queue="q", no_wait=True))
    assert peer.refusal(methods.QueueDeclare(queue="q", passive=True))[0] == 404


# --- bind and unbind


@pytest.mark.parametrize(("method", "text"), [
    (methods.QueueBind(queue="missing", exchange="amq.direct", routing_key="k"), "queue 'missing'"),
    (methods.QueueBind(queue="q", exchange="missing", routing_key="k"), "exchange 'missing'"),
])
def test_both_ends_of_a_binding_must_be_there(peer, durable, method, text):
    assert peer.refusal(method) == (404, f"NOT_FOUND - no {text} in vhost '/'")


def test_the_default_exchange_has_the_bindings_it_has(peer, durable):
    refusal = (403, "ACCESS_REFUSED - operation not permitted on the default exchange")
    assert peer.refusal(methods.QueueBind(queue="q", routing_key="k")) == refusal
    assert peer.refusal(methods.QueueUnbind(queue="q", routing_key="q")) == refusal


@rabbitmq("may count a message that was just routed a little later")
def test_a_binding_made_twice_is_one(peer, queue):
    for _ in range(2):
        assert peer.ask(methods.QueueBind(queue=queue, exchange="amq.direct", routing_key="k")) == (
            methods.QueueBindOk())
    peer.send(publish("k", exchange="amq.direct"))
    assert count(peer, queue) == (1, 0)
    assert peer.ask(methods.QueueUnbind(queue=queue, exchange="amq.direct", routing_key="k")) == (
        methods.QueueUnbindOk())
    peer.send(publish("k", exchange="amq.direct"))
    assert count(peer, queue) == (1, 0)


@rabbitmq("may count a message that was just routed a little later")
def test_bindings_of_other_keys_and_arguments_are_other_bindings(peer, queue):
    for key in ("a", "b"):
        peer.ask(methods.QueueBind(queue=queue, exchange="amq.direct", routing_key=key))
    peer.ask(methods.QueueUnbind(queue=queue, exchange="amq.direct", routing_key="a"))
    peer.send(publish("a", exchange="amq.direct"), publish("b", exchange="amq.direct"))
    assert count(peer, queue) == (1, 0)


@rabbitmq("may count a message that was just routed a little later")
def test_a_message_comes_once_to_a_queue_that_is_bound_twice(peer, queue):
    for key in ("#", "a.*"):
        peer.ask(methods.QueueBind(queue=queue, exchange="amq.topic", routing_key=key))
    peer.send(publish("a.b", exchange="amq.topic"))
    assert count(peer, queue) == (1, 0)


@pytest.mark.parametrize("method", [
    methods.QueueUnbind(queue="missing", exchange="amq.direct", routing_key="k"),
    methods.QueueUnbind(queue="q", exchange="missing", routing_key="k"),
    methods.QueueUnbind(queue="q", exchange="amq.direct", routing_key="unbound"),
])
def test_unbinding_what_is_not_bound_is_no_fault(peer, durable, method):
    assert peer.ask(method) == methods.QueueUnbindOk()


# --- purge and delete


def test_purge_tells_how_many_and_leaves_unacked_ones(peer, durable):
    peer.send(*[publish("q", b"%d" % n) for n in range(5)])
    assert peer.get("q", no_ack=False) == (False, b"0")
    assert peer.ask(methods.QueuePurge(queue="q")) == methods.QueuePurgeOk(message_count=4)
    assert peer.ask(methods.QueuePurge(queue="q")) == methods.QueuePurgeOk(message_count=0)
    peer.send(methods.BasicReject(delivery_tag=1, requeue=True))
    assert peer.get("q") == (True, b"0")


def test_what_is_not_there_cannot_be_purged(peer):
    assert peer.refusal(methods.QueuePurge(queue="missing")) == (404, "NOT_FOUND - no queue 'missing' in vhost '/'")


def test_delete_tells_how_many_went(peer, durable):
    peer.send(publish("q"), publish("q"))
    assert peer.ask(methods.QueueDelete(queue="q")) == methods.QueueDeleteOk(message_count=2)
    assert peer.ask(methods.QueueDelete(queue="q")) == methods.QueueDeleteOk(message_count=0)


def test_a_queue_is_deleted_only_if_unused_or_empty_when_so_asked(peer, durable):
    peer.send(publish("q"))
    assert peer.refusal(methods.QueueDelete(queue="q", if_empty=True)) == (
        406, "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty")
    peer.ask(methods.QueuePurge(queue="q"))
    peer.open_channel(2)
    peer.ask(methods.BasicConsume(queue="q"), 2)
    assert peer.refusal(methods.QueueDelete(queue="q", if_unused=True)) == (
        406, "PRECONDITION_FAILED - queue 'q' in vhost '/' in use")
    peer.ask(methods.ChannelClose(reply_code=200), 2)
    assert peer.ask(methods.QueueDelete(queue="q", if_unused=True, if_empty=True)) == methods.QueueDeleteOk()


def test_consumers_of_a_deleted_queue_are_cancelled(peer):
    peer.ask(methods.QueueDeclare(queue="q"))
    peer.open_channel(2)
    peer.ask(methods.BasicConsume(queue="q", consumer_tag="t"), 2)
    peer.send(methods.QueueDelete(queue="q"))
    replies = {}
    for _ in range(2):  # in either order: they are of different channels
        reply = peer.read()
        replies[peer.channel] = reply
    assert replies == {1: methods.QueueDeleteOk(), 2: methods.BasicCancel(consumer_tag="t", no_wait=True)}


def test_a_cancel_of_the_server_names_channel_and_consumer(port, peer):
    peer.ask(methods.QueueDeclare(queue="q"))
    with Peer(port).open() as consumer:
        consumer.open_channel(3)
        consumer.ask(methods.BasicConsume(queue="q", consumer_tag="t"), 3)
        peer.ask(methods.QueueDelete(queue="q"))
        assert consumer.read() == methods.BasicCancel(consumer_tag="t", no_wait=True)
        assert consumer.channel == 3
        consumer.close()


def test_a_client_without_the_capability_is_not_told_of_a_cancel(port, peer):
    peer.ask(methods.QueueDeclare(queue="q"))
    with Peer(port).open(capabilities={}) as consumer:
        consumer.ask(methods.BasicConsume(queue="q", consumer_tag="t"))
        peer.ask(methods.QueueDelete(queue="q"))
        assert consumer.ask(methods.BasicQos(prefetch_count=1)) == methods.BasicQosOk()
        consumer.close()
