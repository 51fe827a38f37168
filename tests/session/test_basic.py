import re

import pytest
from tests.session.harness import Client

from brokerd.store.disk import Disk, Room
from brokerd.wire import methods
from brokerd.wire.frames import FRAME_BODY, Frame, body_frames, header_frame, method_frame
from brokerd.wire.properties import Properties, decode_header, encode_header


def publish(client, key, body=b"x", exchange="", channel=1, header=None, **flags):
    """Publish one message; what comes back."""
    header = header or b"\0\x3c\0\0" + len(body).to_bytes(8) + b"\0\0"
    return client.raw(methods.BasicPublish(exchange=exchange, routing_key=key, **flags).frame(channel)
                      + header_frame(channel, header) + body_frames(channel, body, 4096))


def deliveries(out):
    return [frame[1] for frame in out if isinstance(frame, tuple) and isinstance(frame[1], methods.BasicDeliver)]


@pytest.fixture
def queue(client):
    client.ask(methods.QueueDeclare(queue="q"))
    return client.connection.access.vhost.queue("q")


def test_a_message_published_is_delivered(client, queue):
    client.ask(methods.BasicConsume(queue="q", consumer_tag="t"))
    (deliver,) = deliveries(publish(client, "q"))
    assert (deliver.consumer_tag, deliver.delivery_tag, deliver.routing_key) == ("t", 1, "q")


def test_consume_ok_comes_before_the_first_delivery(client, queue):
    publish(client, "q")
    out = client.send((1, methods.BasicConsume(queue="q", consumer_tag="t")))
    assert [out[0][1].NAME, out[1][1].NAME] == ["basic.consume-ok", "basic.deliver"]


def test_a_consumer_without_a_tag_gets_one(client, queue):
    assert re.fullmatch(r"amq\.ctag-[\w-]{22}", client.ask(methods.BasicConsume(queue="q")).consumer_tag)


def test_a_consumer_tag_used_again_ends_the_connection(client, queue):
    client.ask(methods.BasicConsume(queue="q", consumer_tag="t"))
    assert client.refusal(methods.BasicConsume(queue="q", consumer_tag="t")) == (
        530, "attempt to reuse consumer tag 't'")


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
def test_exclusive_consumers_stay_alone(client, node, queue, first, second):
    client.ask(methods.BasicConsume(queue="q", exclusive=first))
    assert Client(node).open().refusal(methods.BasicConsume(queue="q", exclusive=second)) == (
        403, "queue 'q' in vhost '/' in exclusive use")
    client.ask(methods.ChannelClose())
    assert Client(node).open().ask(methods.BasicConsume(queue="q", exclusive=second)).NAME == "basic.consume-ok"


def test_prefetch_is_taken_at_consume(client, queue):
    client.ask(methods.BasicQos(prefetch_count=2))
    client.ask(methods.BasicConsume(queue="q"))
    client.ask(methods.BasicQos(prefetch_count=5))
    out = [frame for _ in range(4) for frame in publish(client, "q")]
    assert len(deliveries(out)) == 2


def test_what_is_unacked_returns_when_the_channel_closes(client, node, queue):
    client.ask(methods.BasicConsume(queue="q"))
    publish(client, "q")
    assert (queue.ready, queue.unacked) == (0, 1)
    client.ask(methods.ChannelClose())
    assert (queue.ready, queue.unacked, queue.consumer_count) == (1, 0, 0)


def test_what_is_unacked_returns_at_once_when_the_channel_is_closed_for_an_error(client, queue):
    client.ask(methods.BasicConsume(queue="q"))
    publish(client, "q")
    client.ask(methods.QueuePurge(queue="nope"))
    assert (queue.ready, queue.unacked, queue.consumer_count) == (1, 0, 0)


def test_cancel_leaves_unacked_where_they_are_and_an_unknown_tag_is_no_fault(client, queue):
    client.ask(methods.BasicConsume(queue="q", consumer_tag="t"))
    publish(client, "q")
    for tag in ("t", "t", "other"):
        assert client.ask(methods.BasicCancel(consumer_tag=tag)) == methods.BasicCancelOk(consumer_tag=tag)
    assert (queue.ready, queue.unacked) == (0, 1)


def test_get_from_an_empty_queue_is_get_empty(client, queue):
    assert client.ask(methods.BasicGet(queue="q")) == methods.BasicGetEmpty()
    publish(client, "q")
    out = client.send((1, methods.BasicGet(queue="q")))
    assert out[0][1].NAME == "basic.get-ok"


GET = methods.BasicGet(queue="q", no_ack=True)


def bodies(out):
    return [frame.payload for frame in out if isinstance(frame, Frame) and frame.kind == FRAME_BODY]


def test_a_basic_get_that_is_repeated_is_refused_once_the_right_to_read_is_taken(client, node, queue):
    publish(client, "q")
    publish(client, "q")
    assert len(bodies(client.send((1, GET)))) == 1
    node.refused.add(("read", "q"))
    client.connection.access.permission_changed()
    for _ in range(2):
        assert client.refusal(GET) == (403, "read access to queue 'q' in vhost '/' refused for user 'guest'")
    node.refused.clear()
    assert len(bodies(client.send((1, GET)))) == 1


def test_a_basic_get_that_is_repeated_goes_to_the_queue_that_has_the_name_now(client, queue):
    publish(client, "q")
    assert len(bodies(client.send((1, GET)))) == 1
    client.ask(methods.QueueDelete(queue="q"))
    assert client.refusal(GET) == (404, "no queue 'q' in vhost '/'")
    client.ask(methods.QueueDeclare(queue="q"))
    assert client.ask(GET) == methods.BasicGetEmpty()
    publish(client, "q", body=b"new")
    assert bodies(client.send((1, GET))) == [b"new"]


def test_a_basic_get_without_a_name_follows_the_queue_declared_last(client):
    for name in ("a", "b", "a"):
        client.ask(methods.QueueDeclare(queue=name))
        publish(client, name, body=name.encode())
        assert bodies(client.send((1, methods.BasicGet(no_ack=True)))) == [name.encode()]


def test_basic_gets_that_differ_in_one_octet_are_told_apart(client, queue):
    client.ask(methods.QueueDeclare(queue="r"))
    for name in "qrqqr":
        for no_ack in (True, False):
            publish(client, name, body=name.encode())
            assert bodies(client.send((1, methods.BasicGet(queue=name, no_ack=no_ack)))) == [name.encode()]
    assert queue.unacked == 3


def test_a_basic_get_is_remembered_by_its_own_channel_alone(client, node, queue):
    publish(client, "q")
    assert len(bodies(client.send((1, GET)))) == 1
    client.send((2, methods.ChannelOpen()))
    assert client.ask(GET, channel=2) == methods.BasicGetEmpty()
    other = Client(node).open()
    client.ask(methods.QueueDeclare(queue="mine", exclusive=True))
    mine = methods.BasicGet(queue="mine")
    assert client.ask(mine) == client.ask(mine) == methods.BasicGetEmpty()
    assert other.refusal(mine)[0] == 405


def test_a_malformed_basic_get_is_502_also_behind_a_good_one(client, queue):
    client.ask(GET)
    close = client.raw(method_frame(1, GET.encode() + b"\0"))[0]
    assert (close.reply_code, close.reply_text) == (
        502, "SYNTAX_ERROR - basic.get: 1 octets too many, from octet 9 on")


def test_recover_returns_all_and_they_come_again_redelivered(client, queue):
    client.ask(methods.BasicConsume(queue="q"))
    publish(client, "q")
    out = client.send((1, methods.BasicRecover(requeue=True)))
    assert (1, methods.BasicRecoverOk()) in out
    assert [deliver.redelivered for deliver in deliveries(out)] == [True]


def test_flow_stops_and_starts_deliveries(client, queue):
    client.ask(methods.BasicConsume(queue="q"))
    assert client.ask(methods.ChannelFlow(active=False)) == methods.ChannelFlowOk(active=False)
    assert publish(client, "q") == []
    assert deliveries(client.send((1, methods.ChannelFlow(active=True))))


@pytest.mark.parametrize(("method", "text"), [
    (methods.BasicQos(prefetch_size=9), "prefetch_size!=0 (9)"),
    (methods.BasicRecover(requeue=False), "requeue=false"),
])
def test_what_is_not_offered_is_540(client, method, text):
    assert client.refusal(method) == (540, text)


def test_access_request_gets_its_ticket(client):
    assert client.ask(methods.AccessRequest()) == methods.AccessRequestOk(reserved_1=1)


@pytest.mark.parametrize(("exchange", "code", "text"), [
    ("nope", 404, "no exchange 'nope' in vhost '/'"),
    ("amq.rabbitmq.trace", 403, "cannot publish to internal exchange 'amq.rabbitmq.trace' in vhost '/'"),
])
def test_publishing_where_it_cannot_be_ends_the_channel(client, exchange, code, text):
    ((_, close),) = publish(client, "k", exchange=exchange)
    assert (close.reply_code, close.reply_text.partition(" - ")[2]) == (code, text)


def test_a_publisher_whose_right_is_taken_is_refused_from_then_on(client, node, queue):
    assert publish(client, "q") == []
    node.refused.add(("write", "amq.default"))
    client.connection.routes.clear()
    ((_, close),) = publish(client, "q")
    assert close.reply_text == (
        "ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' refused for user 'guest'")


def test_confirm_select_is_answered_and_publishes_are_confirmed(client, queue):
    assert client.ask(methods.ConfirmSelect()) == methods.ConfirmSelectOk()
    assert publish(client, "q") == [(1, methods.BasicAck(delivery_tag=1, multiple=False))]


# --- basic.consume: what its arguments may be


@pytest.mark.parametrize(("arguments", "reason"), [
    ({"x-priority": "a"}, '"expected integer, got longstr"'),
    ({"x-priority": True}, '"expected integer, got bool"'),
    ({"x-cancel-on-ha-failover": "a"}, "{unacceptable_type,longstr}"),
    ({"x-consumer-timeout": -1}, "{value_negative,-1}"),
    ({"x-consumer-timeout": "1"}, '"expected integer, got longstr"'),
    ({"x-consumer-timeout": 1 << 50}, f"{{value_too_large,{1 << 50}}}"),
])
def test_a_consumers_argument_that_cannot_be_is_406(client, queue, arguments, reason):
    (name,) = arguments
    assert client.refusal(methods.BasicConsume(queue="q", arguments=arguments)) == (
        406, f"invalid arg '{name}' for queue 'q' in vhost '/': {reason}")


def test_a_queue_that_is_not_there_comes_before_an_argument_that_cannot_be(client):
    assert client.refusal(methods.BasicConsume(queue="q", arguments={"x-priority": "a"}))[0] == 404


@pytest.mark.parametrize("arguments", [
    {"x-priority": 1 << 40}, {"x-priority": -(1 << 40)}, {"x-cancel-on-ha-failover": True}, {"x-any": "thing"},
    {"x-stream-offset": "first"},
])
def test_other_arguments_of_a_consumer_are_taken(client, queue, arguments):
    assert client.ask(methods.BasicConsume(queue="q", arguments=arguments)).NAME == "basic.consume-ok"
    assert next(iter(queue.consumers)).arguments == arguments
    assert abs(next(iter(queue.consumers)).priority) <= 1 << 31


def test_no_local_is_taken_and_means_nothing(client, queue):
    client.ask(methods.BasicConsume(queue="q", no_local=True))
    assert deliveries(publish(client, "q"))


def test_a_single_active_consumer_cannot_be_exclusive(client, queue):
    queue.arguments = {"x-single-active-consumer": True}
    assert client.refusal(methods.BasicConsume(queue="q", exclusive=True)) == (
        403, "queue 'q' in vhost '/' in exclusive use")


@pytest.mark.parametrize(("type_", "refused"), [("quorum", True), ("classic", False)])
def test_get_goes_past_no_single_active_consumer_of_a_quorum_queue(client, queue, type_, refused):
    queue.arguments = {"x-single-active-consumer": True, "x-queue-type": type_}
    if refused:
        assert client.refusal(methods.BasicGet(queue="q")) == (
            405, "cannot obtain access to locked queue 'q' in vhost '/'. "
                 "basic.get operations are not supported by quorum queues with single active consumer")
    else:
        assert client.ask(methods.BasicGet(queue="q")) == methods.BasicGetEmpty()


def test_a_consumers_timeout_reaches_its_consumer(client, node, queue):
    assert node.core.timeouts == 0
    client.ask(methods.BasicConsume(queue="q", arguments={"x-consumer-timeout": 60000}))
    assert node.core.timeouts == 1


# --- basic.consume of replies

REPLY_TO = "amq.rabbitmq.reply-to"


@pytest.fixture(params=[REPLY_TO, "amq.direct.reply-to"])
def consume_replies(request):
    return methods.BasicConsume(queue=request.param, consumer_tag="r", no_ack=True)


def test_replies_are_consumed_without_a_queue(client, node, consume_replies):
    assert client.ask(consume_replies) == methods.BasicConsumeOk(consumer_tag="r")
    assert node.vhost.replies.tag(client.connection.channels[1]) == "r"


def test_replies_are_consumed_once_a_channel_and_without_acknowledgement(client, consume_replies):
    client.ask(consume_replies)
    consume_replies.consumer_tag, consume_replies.no_ack = "other", False
    assert client.refusal(consume_replies) == (406, "reply consumer already set")
    assert client.refusal(consume_replies) == (406, "reply consumer cannot acknowledge")


def test_a_consumer_of_replies_is_cancelled_like_any_other(client, node, consume_replies):
    for _ in range(2):
        client.ask(consume_replies)
        assert client.ask(methods.BasicCancel(consumer_tag="r")) == methods.BasicCancelOk(consumer_tag="r")
        assert node.vhost.replies.tag(client.connection.channels[1]) is None


@pytest.mark.parametrize("first", ["q", REPLY_TO])
def test_a_tag_is_used_once_among_consumers_of_queues_and_replies(client, queue, first):
    client.ask(methods.BasicConsume(queue=first, consumer_tag="t", no_ack=True))
    other = "q" if first == REPLY_TO else REPLY_TO
    assert client.refusal(methods.BasicConsume(queue=other, consumer_tag="t", no_ack=True)) == (
        530, "attempt to reuse consumer tag 't'")


def test_a_consumer_of_replies_that_wants_no_answer_gets_none(client, consume_replies):
    consume_replies.no_wait = True
    assert client.ask(consume_replies) is None
    assert client.ask(methods.BasicCancel(consumer_tag="r", no_wait=True)) is None


# --- transactions: what the data plane need not know of


@pytest.mark.parametrize("method", [methods.TxCommit(), methods.TxRollback()])
def test_a_channel_is_not_transactional_by_itself(client, method):
    assert client.refusal(method) == (406, "channel is not transactional")


def test_a_confirming_channel_cannot_become_transactional(client):
    client.ask(methods.ConfirmSelect())
    assert client.refusal(methods.TxSelect()) == (406, "cannot switch from confirm to tx mode")


def test_a_transaction_over_the_real_data_plane(client, queue, monkeypatch):
    monkeypatch.setattr(client.node, "disk", Disk(), raising=False)
    monkeypatch.setattr(client.node, "room", Room(Disk()), raising=False)
    client.ask(methods.TxSelect())
    assert publish(client, "q", b"1") == []
    publish(client, "q", b"2")
    assert queue.ready == 0
    assert client.ask(methods.TxCommit()) == methods.TxCommitOk()
    assert queue.ready == 2
    for _ in range(2):
        client.send((1, methods.BasicGet(queue="q")))
    assert client.ask(methods.BasicAck(delivery_tag=0, multiple=True)) is None
    assert queue.unacked == 2
    client.ask(methods.TxRollback())
    client.ask(methods.BasicNack(delivery_tag=1, requeue=True))
    client.ask(methods.BasicAck(delivery_tag=2))
    assert client.ask(methods.TxCommit()) == methods.TxCommitOk()
    assert (queue.ready, queue.unacked) == (1, 0)
    assert client.refusal(methods.BasicAck(delivery_tag=2)) == (406, "unknown delivery tag 2")


def test_recover_leaves_what_a_transaction_has_settled(client, queue, monkeypatch):
    monkeypatch.setattr(client.node, "disk", Disk(), raising=False)
    monkeypatch.setattr(client.node, "room", Room(Disk()), raising=False)
    publish(client, "q", b"1")
    publish(client, "q", b"2")
    client.ask(methods.TxSelect())
    for _ in range(2):
        client.send((1, methods.BasicGet(queue="q")))
    client.ask(methods.BasicAck(delivery_tag=1))
    client.ask(methods.BasicRecover(requeue=True))
    assert (queue.ready, queue.unacked) == (1, 1)
    client.ask(methods.TxCommit())
    assert (queue.ready, queue.unacked) == (1, 0)


def test_an_answer_reaches_its_requester_over_the_real_data_plane(client, node, queue):
    client.ask(methods.BasicConsume(queue=REPLY_TO, consumer_tag="r", no_ack=True))
    publish(client, "q", header=encode_header(1, Properties(reply_to=REPLY_TO)))
    other = Client(node).open()
    _, header, _ = other.send((1, methods.BasicGet(queue="q", no_ack=True)))
    name = decode_header(header.payload)[1].reply_to
    assert publish(other, name, b"answer", mandatory=True) == []
    (deliver,) = deliveries(client.read())
    assert (deliver.consumer_tag, deliver.delivery_tag, deliver.routing_key) == ("r", 1, name)
    client.ask(methods.BasicCancel(consumer_tag="r"))
    assert publish(other, name, b"late") == []
    assert publish(other, name, b"late", mandatory=True)[0][1].reply_code == 312


def test_each_consumer_has_a_number_of_its_own(client, node, queue):
    number = node.data.number
    client.ask(methods.BasicConsume(queue="q", consumer_tag="a"))
    client.ask(methods.BasicConsume(queue="q", consumer_tag="b"))
    assert [consumer.number for consumer in queue.consumers] == [number + 1, number + 2]


def test_a_full_disk_that_gives_no_number_keeps_nobody_from_consuming(client, node, queue):
    def full():
        raise OSError(28, "No space left on device")

    node.data.next_connection_number = full
    client.ask(methods.BasicConsume(queue="q", consumer_tag="a"))
    assert [consumer.number for consumer in queue.consumers] == [0]


class SideFile:
    def __init__(self):
        self.told = []

    def note_consumer(self, consumer):
        self.told.append(("there", consumer.tag))

    def note_consumer_gone(self, consumer):
        self.told.append(("gone", consumer.tag))


def test_where_there_is_an_order_journal_consumers_are_told_of_however_they_leave(client, queue):
    queue.side_file = log = SideFile()
    for tag in "ab":
        client.ask(methods.BasicConsume(queue="q", consumer_tag=tag))
    client.ask(methods.BasicCancel(consumer_tag="a"))
    client.ask(methods.ChannelClose())
    assert log.told == [("there", b"a"), ("there", b"b"), ("gone", b"a"), ("gone", b"b")]


def reply_name(client, channel):
    """The reply-to of a request that the channel publishes to the queue."""
    publish(client, "q", channel=channel, header=encode_header(1, Properties(reply_to="amq.rabbitmq.reply-to")))
    return decode_header(client.send((1, GET))[1].payload)[1].reply_to


def test_an_answer_behind_the_end_of_its_requester_is_returned_also_where_its_way_is_remembered(client, node, queue):
    client.ask(methods.BasicConsume(queue="amq.rabbitmq.reply-to", no_ack=True))
    name, other = reply_name(client, 1), Client(node).open()
    other.ask(methods.ConfirmSelect())
    for tag in (1, 2):
        assert publish(other, name, mandatory=True) == [(1, methods.BasicAck(delivery_tag=tag))]
        (deliver,) = deliveries(client.read())
        assert (deliver.delivery_tag, deliver.routing_key) == (tag + 1, name)
    client.send((1, methods.ChannelClose()))
    for tag in (3, 4):
        out = publish(other, name, mandatory=True)
        assert (out[0][1].reply_text, out[-1]) == ("NO_ROUTE", (1, methods.BasicAck(delivery_tag=tag)))
    assert client.read() == []


def test_requests_of_two_channels_in_turns_have_each_their_own_name(client, queue):
    client.send((2, methods.ChannelOpen()))
    for channel in (1, 2):
        client.send((channel, methods.BasicConsume(queue="amq.rabbitmq.reply-to", no_ack=True)))
    names = [reply_name(client, channel) for channel in (1, 2, 1, 2)]
    assert names[:2] == names[2:]
    assert names[0] != names[1]
