"""Class basic: publish, return, consume, cancel, get, qos, ack, nack, reject, recover."""

import pytest
from tests.conversations.peer import Peer, content, differs, publish

from brokerd.wire import methods

UNKNOWN = (406, "PRECONDITION_FAILED - unknown delivery tag {}")


@pytest.fixture
def five(peer, queue):
    """A queue with the messages 0 to 4."""
    peer.send(*[publish(queue, b"%d" % n) for n in range(5)])
    return queue


def consume(peer, queue, tag="t", channel=1, **fields):
    reply = peer.ask(methods.BasicConsume(queue=queue, consumer_tag=tag, **fields), channel)
    assert reply == methods.BasicConsumeOk(consumer_tag=tag), reply


def bodies(peer, count):
    return [peer.delivery()[1] for _ in range(count)]


def nothing_came(peer):
    """A round trip, in which nothing else arrives."""
    assert peer.ask(methods.BasicQos(prefetch_count=0)) == methods.BasicQosOk()
    return True


# --- publish and return


@pytest.mark.parametrize("size", [0, 1, 4096, 131064, 131065, 1_000_000])
def test_a_body_of_any_size_arrives_whole(peer, queue, size):
    body = bytes(n * 7 % 256 for n in range(1000)) * (size // 1000 + 1)
    peer.send(publish(queue, body[:size]))
    assert peer.get(queue) == (False, body[:size])


def test_properties_arrive_as_they_were_sent(peer, queue):
    sent = {"content_type": "text/plain", "content_encoding": "utf-8", "headers": {"a": 1, "t": {"x": [True, None]}},
            "delivery_mode": 2, "priority": 9, "correlation_id": "c", "reply_to": "r", "expiration": "60000",
            "message_id": "m", "timestamp": 1234567890, "type": "t", "user_id": "guest", "app_id": "a"}
    peer.send(publish(queue, **sent))
    peer.ask(methods.BasicGet(queue=queue, no_ack=True))
    properties, _ = peer.message()
    assert {name: getattr(properties, name) for name in sent} == sent


def test_frames_cut_anywhere_arrive_the_same(peer, queue):
    octets = publish(queue, b"whole", content_type="x")
    for octet in octets:
        peer.raw(bytes([octet]))
    for at in range(1, len(octets)):
        peer.raw(octets[:at])
        peer.raw(octets[at:])
    assert peer.get(queue) == (False, b"whole")
    peer.send(methods.QueueDeclare(queue=queue, passive=True))
    assert peer.read().message_count == len(octets) - 1


def test_a_body_may_come_in_frames_of_any_size(peer, queue):
    method = methods.BasicPublish(routing_key=queue).frame(1)
    header = content(b"", size=6)
    pieces = b"".join(b"\x03\x00\x01" + len(part).to_bytes(4) + part + b"\xce" for part in (b"a", b"bc", b"", b"def"))
    peer.raw(method + header + pieces)
    assert peer.get(queue) == (False, b"abcdef")


def test_publishing_to_an_exchange_that_is_not_there_closes_the_channel(peer):
    peer.send(publish("k", exchange="missing"))
    assert peer.channel_close() == (404, "NOT_FOUND - no exchange 'missing' in vhost '/'")


def test_a_mandatory_message_that_goes_nowhere_comes_back(peer):
    peer.send(publish("nowhere", b"back", exchange="amq.direct", mandatory=True, message_id="7"))
    back = peer.read()
    assert back == methods.BasicReturn(
        reply_code=312, reply_text="NO_ROUTE", exchange="amq.direct", routing_key="nowhere")
    properties, body = peer.message()
    assert (properties.message_id, body) == ("7", b"back")


def test_a_message_that_goes_nowhere_is_dropped_without_a_word(peer):
    peer.send(publish("nowhere"), publish("nowhere", exchange="amq.topic"))
    assert nothing_came(peer)


@differs("`immediate`")
def test_an_immediate_message_nobody_takes_at_once_comes_back(peer, queue):
    peer.send(publish(queue, b"back", immediate=True))
    back = peer.read()
    assert back == methods.BasicReturn(reply_code=313, reply_text="NO_CONSUMERS", exchange="", routing_key=queue)
    assert peer.message()[1] == b"back"
    assert peer.get(queue) is None


@differs("`immediate`")
def test_an_immediate_message_somebody_takes_at_once_is_taken(peer, queue):
    consume(peer, queue, no_ack=True)
    peer.send(publish(queue, b"now", immediate=True))
    assert bodies(peer, 1) == [b"now"]


def test_a_user_id_must_be_the_users(peer, queue):
    peer.send(publish(queue, user_id="guest"))
    assert peer.get(queue) == (False, b"m")
    peer.send(publish(queue, user_id="somebody"))
    assert peer.channel_close() == (
        406, "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'guest'")


@differs("a message that is too large")
def test_a_message_over_the_limit_is_refused(peer, queue):
    peer.send(methods.BasicPublish(routing_key=queue), content(b"", size=1 << 40))
    code, text = peer.channel_close()
    assert code == 406
    assert text.startswith(f"PRECONDITION_FAILED - message size {1 << 40} is larger than configured max size ")


@differs("several channels of one connection", always=False)
def test_publishing_is_seen_by_what_follows_it_on_any_channel(peer, queue):
    peer.open_channel(2)
    peer.send(publish(queue, b"1"), publish(queue, b"2", channel=2), (2, methods.BasicGet(queue=queue, no_ack=True)))
    assert isinstance(peer.read(), methods.BasicGetOk)
    assert peer.message()[1] == b"1"


@differs("several channels of one connection", always=False)
def test_contents_of_several_channels_may_be_interleaved(peer, queue):
    peer.open_channel(2)
    first = publish(queue, b"first", channel=1)
    second = publish(queue, b"second", channel=2)
    cut = len(methods.BasicPublish(routing_key=queue).frame(1))
    peer.raw(first[:cut] + second[:cut] + first[cut:] + second[cut:])
    assert [peer.get(queue), peer.get(queue)] == [(False, b"first"), (False, b"second")]


# --- get


def test_get_tells_how_many_are_left(peer, five):
    reply = peer.ask(methods.BasicGet(queue=five))
    assert reply == methods.BasicGetOk(
        delivery_tag=1, redelivered=False, exchange="", routing_key=five, message_count=4)
    assert peer.message()[1] == b"0"


def test_get_of_nothing_is_empty(peer, queue):
    assert isinstance(peer.ask(methods.BasicGet(queue=queue)), methods.BasicGetEmpty)


def test_get_of_a_queue_that_is_not_there_is_not_found(peer):
    assert peer.refusal(methods.BasicGet(queue="missing")) == (404, "NOT_FOUND - no queue 'missing' in vhost '/'")


# --- consume and cancel


def test_deliveries_come_in_order_with_rising_tags(peer, five):
    consume(peer, five)
    for n in range(5):
        deliver, body = peer.delivery()
        assert deliver == methods.BasicDeliver(
            consumer_tag="t", delivery_tag=n + 1, redelivered=False, exchange="", routing_key=five)
        assert body == b"%d" % n


def test_a_server_makes_consumer_tags(peer, queue):
    tags = {peer.ask(methods.BasicConsume(queue=queue)).consumer_tag for _ in range(10)}
    assert len(tags) == 10
    assert all(tag.startswith("amq.ctag-") for tag in tags)


def test_consume_of_a_queue_that_is_not_there_is_not_found(peer):
    assert peer.refusal(methods.BasicConsume(queue="missing")) == (
        404, "NOT_FOUND - no queue 'missing' in vhost '/'")


def test_a_consumer_tag_is_used_once_on_a_channel(peer, queue):
    consume(peer, queue)
    peer.open_channel(2)
    consume(peer, queue, channel=2)
    peer.send(methods.BasicConsume(queue=queue, consumer_tag="t"))
    assert peer.connection_close() == (530, "NOT_ALLOWED - attempt to reuse consumer tag 't'")


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
def test_an_exclusive_consumer_is_alone(peer, first, second):
    peer.ask(methods.QueueDeclare(queue="alone", exclusive=True))
    consume(peer, "alone", exclusive=first)
    peer.open_channel(2)
    method = methods.BasicConsume(queue="alone", consumer_tag="u", exclusive=second)
    assert peer.refusal(method, 2) == (403, "ACCESS_REFUSED - queue 'alone' in vhost '/' in exclusive use")


def test_after_an_exclusive_consumer_there_may_be_others(peer, queue):
    consume(peer, queue, exclusive=True)
    peer.ask(methods.BasicCancel(consumer_tag="t"))
    consume(peer, queue, "a")
    consume(peer, queue, "b")


def test_cancel_stops_deliveries_and_keeps_unacked_ones(peer, five):
    peer.ask(methods.BasicQos(prefetch_count=2))
    consume(peer, five)
    assert bodies(peer, 2) == [b"0", b"1"]
    assert peer.ask(methods.BasicCancel(consumer_tag="t")) == methods.BasicCancelOk(consumer_tag="t")
    peer.send(methods.BasicAck(delivery_tag=1))
    assert nothing_came(peer)
    peer.send(methods.BasicAck(delivery_tag=2))
    assert peer.get(five) == (False, b"2")


def test_cancelling_what_does_not_consume_is_no_fault(peer):
    assert peer.ask(methods.BasicCancel(consumer_tag="nobody")) == methods.BasicCancelOk(consumer_tag="nobody")


def test_no_wait_has_no_reply(peer, five):
    peer.send(methods.BasicConsume(queue=five, consumer_tag="t", no_wait=True, no_ack=True))
    assert bodies(peer, 5) == [b"0", b"1", b"2", b"3", b"4"]
    peer.send(methods.BasicCancel(consumer_tag="t", no_wait=True), publish(five))
    assert nothing_came(peer)


def test_what_is_consumed_without_acks_is_gone(peer, five):
    consume(peer, five, no_ack=True)
    bodies(peer, 5)
    peer.ask(methods.BasicRecover(requeue=True))
    assert nothing_came(peer)
    assert peer.refusal(methods.BasicAck(delivery_tag=1)) == (UNKNOWN[0], UNKNOWN[1].format(1))


def test_equals_take_turns(peer, queue):
    for tag in "abc":
        consume(peer, queue, tag, no_ack=True)
    peer.send(*[publish(queue, b"%d" % n) for n in range(9)])
    tags = [peer.delivery()[0].consumer_tag for _ in range(9)]
    assert len(set(tags[:3])) == 3
    assert tags == tags[:3] * 3


def test_turns_are_taken_over_connections_too(port, peer):
    peer.ask(methods.QueueDeclare(queue="shared", auto_delete=True))
    with Peer(port).open() as other:
        consume(peer, "shared", no_ack=True)
        consume(other, "shared", no_ack=True)
        peer.send(*[publish("shared", b"%d" % n) for n in range(10)])
        mine, theirs = bodies(peer, 5), bodies(other, 5)
        assert sorted(mine + theirs) == [b"%d" % n for n in range(10)]
        assert mine in ([b"0", b"2", b"4", b"6", b"8"], [b"1", b"3", b"5", b"7", b"9"])
        other.close()


def test_the_higher_priority_is_served_first(peer, queue):
    peer.ask(methods.BasicQos(prefetch_count=2))
    consume(peer, queue, "low", arguments={"x-priority": -1})
    consume(peer, queue, "high", arguments={"x-priority": 5})
    consume(peer, queue, "plain")
    peer.send(*[publish(queue) for _ in range(6)])
    assert [peer.delivery()[0].consumer_tag for _ in range(6)] == ["high"] * 2 + ["plain"] * 2 + ["low"] * 2


def test_a_priority_is_a_whole_number(peer, queue):
    code, _ = peer.refusal(methods.BasicConsume(queue=queue, arguments={"x-priority": "high"}))
    assert code == 406


# --- qos


def test_prefetch_bounds_what_one_consumer_holds(peer, five):
    assert peer.ask(methods.BasicQos(prefetch_count=2)) == methods.BasicQosOk()
    consume(peer, five)
    assert bodies(peer, 2) == [b"0", b"1"]
    assert nothing_came(peer)
    peer.send(methods.BasicAck(delivery_tag=1))
    assert bodies(peer, 1) == [b"2"]
    peer.send(methods.BasicAck(delivery_tag=3, multiple=True))
    assert bodies(peer, 2) == [b"3", b"4"]


def test_prefetch_is_taken_when_consuming_begins(peer, five):
    peer.ask(methods.BasicQos(prefetch_count=1))
    consume(peer, five)
    assert bodies(peer, 1) == [b"0"]
    peer.ask(methods.BasicQos(prefetch_count=3))
    assert nothing_came(peer)


def test_a_global_prefetch_bounds_all_consumers_of_the_channel(peer, five):
    peer.ask(methods.BasicQos(prefetch_count=3, global_=True))
    consume(peer, five, "a")
    consume_ok_or_delivery = []
    peer.send(methods.BasicConsume(queue=five, consumer_tag="b"))
    for _ in range(4):
        reply = peer.read()
        consume_ok_or_delivery.append(type(reply))
        if isinstance(reply, methods.BasicDeliver):
            peer.message()
    assert consume_ok_or_delivery.count(methods.BasicDeliver) == 3
    assert peer.ask(methods.QueueDeclare(queue=five, passive=True)).message_count == 2


def test_a_prefetch_in_octets_is_not_offered(peer):
    peer.send(methods.BasicQos(prefetch_size=7))
    assert peer.connection_close() == (540, "NOT_IMPLEMENTED - prefetch_size!=0 (7)")


def test_consumers_without_acks_know_no_prefetch(peer, five):
    peer.ask(methods.BasicQos(prefetch_count=1))
    consume(peer, five, no_ack=True)
    assert len(bodies(peer, 5)) == 5


# --- ack, nack, reject


@pytest.mark.parametrize("tag", [1, 99, 1 << 63])
@pytest.mark.parametrize("cls", [methods.BasicAck, methods.BasicNack, methods.BasicReject])
def test_a_tag_that_was_not_delivered_is_unknown(peer, cls, tag):
    assert peer.refusal(cls(delivery_tag=tag)) == (UNKNOWN[0], UNKNOWN[1].format(tag))


def test_a_tag_is_settled_once(peer, five):
    peer.get(five, no_ack=False)
    peer.send(methods.BasicAck(delivery_tag=1))
    assert peer.refusal(methods.BasicAck(delivery_tag=1)) == (UNKNOWN[0], UNKNOWN[1].format(1))


def test_tags_are_the_channels_own(peer, five):
    peer.open_channel(2)
    peer.get(five, no_ack=False)
    assert peer.refusal(methods.BasicAck(delivery_tag=1), 2)[0] == 406


@pytest.mark.parametrize("cls", [methods.BasicAck, methods.BasicNack])
def test_all_of_nothing_is_no_fault(peer, cls):
    peer.send(cls(delivery_tag=0, multiple=True))
    assert nothing_came(peer)


def test_multiple_settles_all_up_to_the_tag(peer, five):
    for _ in range(5):
        peer.get(five, no_ack=False)
    peer.send(methods.BasicAck(delivery_tag=3, multiple=True), methods.BasicNack(delivery_tag=5, requeue=True))
    assert peer.get(five) == (True, b"4")
    assert peer.refusal(methods.BasicAck(delivery_tag=2))[0] == 406
    assert peer.get(five) == (True, b"3")


def test_multiple_with_tag_0_settles_all(peer, five):
    for _ in range(5):
        peer.get(five, no_ack=False)
    peer.send(methods.BasicNack(delivery_tag=0, multiple=True, requeue=True))
    assert [peer.get(five) for _ in range(5)] == [(True, b"%d" % n) for n in range(5)]


@pytest.mark.parametrize("method", [
    methods.BasicReject(delivery_tag=2, requeue=True), methods.BasicNack(delivery_tag=2, requeue=True),
])
def test_what_is_given_back_returns_to_its_own_place(peer, five, method):
    for _ in range(3):
        peer.get(five, no_ack=False)
    peer.send(method)
    assert [peer.get(five) for _ in range(3)] == [(True, b"1"), (False, b"3"), (False, b"4")]


@pytest.mark.parametrize("method", [
    methods.BasicReject(delivery_tag=1, requeue=False), methods.BasicNack(delivery_tag=1, requeue=False),
])
def test_what_is_rejected_for_good_is_gone(peer, five, method):
    peer.get(five, no_ack=False)
    peer.send(method)
    assert peer.get(five) == (False, b"1")


def test_messages_given_back_in_any_order_return_to_their_places(peer, five):
    for _ in range(5):
        peer.get(five, no_ack=False)
    for tag in (4, 1, 5, 2, 3):
        peer.send(methods.BasicReject(delivery_tag=tag, requeue=True))
    assert [peer.get(five) for _ in range(5)] == [(True, b"%d" % n) for n in range(5)]


# --- recover


@pytest.mark.parametrize("sent", [True, False])
def test_recover_brings_all_unacked_back_to_their_places(peer, five, sent):
    for _ in range(4):
        peer.get(five, no_ack=False)
    peer.send(methods.BasicAck(delivery_tag=2))
    if sent:
        assert peer.ask(methods.BasicRecover(requeue=True)) == methods.BasicRecoverOk()
    else:
        peer.send(methods.BasicRecoverAsync(requeue=True))
    assert [peer.get(five) for _ in range(4)] == [(True, b"0"), (True, b"2"), (True, b"3"), (False, b"4")]


def test_recover_without_requeue_is_not_offered(peer):
    peer.send(methods.BasicRecover(requeue=False))
    assert peer.connection_close() == (540, "NOT_IMPLEMENTED - requeue=false")


def test_what_a_lost_connection_held_returns_to_its_places(port, peer, five):
    peer.ask(methods.QueueDeclare(queue="held", auto_delete=True))
    consume(peer, "held", "keeps the queue")
    peer.ask(methods.QueueDeclare(queue="kept"))
    peer.send(*[publish("kept", b"%d" % n) for n in range(3)])
    with Peer(port).open() as other:
        consume(other, "kept")
        assert bodies(other, 3) == [b"0", b"1", b"2"]
        other.send(methods.BasicAck(delivery_tag=2))
        assert nothing_came(other)
    consume(peer, "kept")
    got = [peer.delivery() for _ in range(2)]
    assert [(deliver.redelivered, body) for deliver, body in got] == [(True, b"0"), (True, b"2")]
    peer.ask(methods.QueueDelete(queue="kept"))


# --- contents that are none


@pytest.mark.parametrize("octets", [
    content(b"stray"), b"\x03\x00\x01\x00\x00\x00\x01x\xce",
    methods.BasicPublish(routing_key="q").frame(1) + methods.BasicQos().frame(1),
    methods.BasicPublish(routing_key="q").frame(1) * 2,
    methods.BasicPublish(routing_key="q").frame(1) + b"\x03\x00\x01\x00\x00\x00\x01x\xce",
    methods.BasicPublish(routing_key="q").frame(1) + content(b"", size=3) + methods.BasicQos().frame(1),
    methods.BasicPublish(routing_key="q").frame(1) + content(b"", size=3) + content(b"", size=3),
    methods.BasicPublish(routing_key="q").frame(1) + content(b"x", class_id=61),
], ids=["header", "body", "method before header", "publish before header", "body before header",
        "method before body", "second header", "header of another class"])
def test_contents_out_of_order_are_unexpected_frames(peer, octets):
    peer.raw(octets)
    code, text = peer.connection_close()
    assert (code, text[:19]) == (505, "UNEXPECTED_FRAME - "), text


@differs("content that is not what its header says")
def test_a_body_longer_than_announced_is_a_frame_error(peer):
    peer.send(methods.BasicPublish(routing_key="q"), content(b"abcd", size=3))
    code, text = peer.connection_close()
    assert (code, text) == (501, "FRAME_ERROR - content body is larger than its header said")


@pytest.mark.parametrize("header", [
    b"", b"\x00\x3c", b"\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01",
    *[pytest.param(b"\x00\x3c\x00\x00" + bytes(8) + rest, marks=differs("content that is not what its header says"))
      for rest in (b"\x80\x00", b"\x80\x00\x05ab", b"\x20\x00\xff\xff\xff\xff", b"\x00\x00extra")],
])
def test_a_header_that_cannot_be_read_is_refused(peer, queue, header):
    peer.raw(methods.BasicPublish(routing_key=queue).frame(1)
             + b"\x02\x00\x01" + len(header).to_bytes(4) + header + b"\xce")
    peer.send(methods.BasicGet(queue=queue))
    code, text = peer.connection_close()
    assert code in (501, 502, 505), text
