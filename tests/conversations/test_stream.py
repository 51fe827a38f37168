"""Streams as clients see them: what is declared, who may read, where reading begins, what a delivery says."""

import pytest
from tests.conversations.peer import Peer, differs, eventually, rabbitmq

from brokerd.wire import methods
from brokerd.wire.values import Timestamp

STREAM = {"x-queue-type": "stream"}


@pytest.fixture
def stream(peer, name):
    """A stream with the messages 1 to 5."""
    peer.confirming()
    peer.declare(STREAM, name, durable=True, exclusive=False)
    for i in range(1, 6):
        peer.put(name, b"%d" % i, delivery_mode=2)
    return name


def read(peer, stream, offset=None, tag="t", prefetch=100, channel=1, **arguments):
    if offset is not None:
        arguments["x-stream-offset"] = offset
    peer.prefetch(prefetch, channel)
    peer.consume(stream, tag, channel, no_ack=False, arguments=arguments)


def came(peer, n):
    messages = [peer.delivered() for _ in range(n)]
    return [(message.headers["x-stream-offset"], message.body) for message in messages]


def expected(first, last=5):
    return [(i, b"%d" % i) for i in range(first, last + 1)]


@pytest.mark.parametrize(("fields", "property_"), [
    ({"durable": False}, "non-durable"), ({"durable": True, "auto_delete": True}, "auto-delete"),
    ({"durable": True, "exclusive": True}, "exclusive-owner"),
])
def test_a_stream_is_durable_and_belongs_to_no_one(peer, fields, property_):
    method = methods.QueueDeclare(queue="q", arguments=STREAM, **fields)
    assert peer.refusal(method) == (
        406, f"PRECONDITION_FAILED - invalid property '{property_}' for queue 'q' in vhost '/'")


@rabbitmq("3.10 names them; later ones refuse", always=True)
def test_a_stream_has_a_name(peer):
    assert peer.refusal(methods.QueueDeclare(queue="", durable=True, arguments=STREAM)) == (
        406, 'PRECONDITION_FAILED - Cannot declare a server-named queue for type <<"stream">>')


@pytest.mark.parametrize(("argument", "value"), [
    ("x-expires", 5), ("x-message-ttl", 5), ("x-overflow", "drop-head"), ("x-max-priority", 5),
    ("x-dead-letter-exchange", "e"),
])
def test_what_a_stream_cannot_have(peer, argument, value):
    method = methods.QueueDeclare(queue="q", durable=True, arguments=STREAM | {argument: value})
    assert peer.refusal(method) == (
        406, f"PRECONDITION_FAILED - invalid arg '{argument}' for queue 'q' in vhost '/' of queue type "
        "rabbit_stream_queue")


@rabbitmq("3.10 fails on it: 541", always=True)
def test_the_age_is_a_number_with_its_unit(peer):
    method = methods.QueueDeclare(queue="q", durable=True, arguments=STREAM | {"x-max-age": "a week"})
    assert peer.refusal(method) == (
        406, "PRECONDITION_FAILED - invalid arg 'x-max-age' for queue 'q' in vhost '/': invalid_max_age")


def test_a_segment_has_a_greatest_size(peer):
    arguments = STREAM | {"x-stream-max-segment-size-bytes": 3_000_000_001}
    assert peer.refusal(methods.QueueDeclare(queue="q", durable=True, arguments=arguments)) == (
        406, "PRECONDITION_FAILED - Exceeded max value for x-stream-max-segment-size-bytes")


@differs("offsets of a stream", always=False)
@pytest.mark.parametrize(("offset", "first"), [
    ("first", 1), (0, 1), (1, 1), (3, 3), (-2, 4), (-99, 1), ("1h", 1), (Timestamp(1), 1), ("last", 1),
])
def test_reading_begins_where_it_is_asked_to(peer, stream, offset, first):
    read(peer, stream, offset)
    assert came(peer, 6 - first) == expected(first)


@differs("offsets of a stream", always=False)
@pytest.mark.parametrize("offset", [None, "next", Timestamp(4_000_000_000), 6])
def test_reading_may_begin_with_what_is_to_come(peer, stream, offset):
    read(peer, stream, offset)
    peer.put(stream, b"6")
    if not isinstance(offset, Timestamp):
        assert came(peer, 1) == [(6, b"6")]
    read(peer, stream, "first", "other")
    assert came(peer, 6) == expected(1, 6)


@differs("offsets of a stream", always=False)
def test_two_readers_get_all_messages_and_acknowledge_for_themselves(peer, stream):
    read(peer, stream, "first", "one", 2)
    assert came(peer, 2) == expected(1, 2)
    peer.open_channel(2)
    read(peer, stream, "first", "two", 5, channel=2)
    assert came(peer, 5) == expected(1)
    peer.send(methods.BasicAck(delivery_tag=2, multiple=True))
    assert came(peer, 2) == expected(3, 4)
    assert peer.count(stream) == (5, 2)


@differs("offsets of a stream", always=False)
def test_a_message_given_back_comes_again_to_its_reader(peer, stream):
    read(peer, stream, "first", prefetch=2)
    assert came(peer, 2) == expected(1, 2)
    peer.send(methods.BasicNack(delivery_tag=1, requeue=True))
    again = peer.delivered()
    assert (again.headers["x-stream-offset"], again.body, again.method.redelivered) == (1, b"1", True)
    peer.send(methods.BasicReject(delivery_tag=2, requeue=False))
    assert came(peer, 1) == expected(3, 3)


@rabbitmq("3.10's text has no word stream")
def test_a_reader_has_a_prefetch(peer, stream):
    assert peer.refusal(methods.BasicConsume(queue=stream)) == (
        406, f"PRECONDITION_FAILED - consumer prefetch count is not set for stream queue '{stream}' in vhost '/'")


@rabbitmq("3.10 has 'stream queues' in its text, and does not speak of global qos", always=True)
@pytest.mark.parametrize(("global_", "no_ack", "text"), [
    (False, True, "automatic acknowledgement not supported by stream {}"),
    (True, False, "{} does not support global qos"),
])
def test_a_reader_has_a_prefetch_of_its_own_and_acknowledges(peer, stream, global_, no_ack, text):
    peer.ask(methods.BasicQos(prefetch_count=5, global_=global_))
    peer.send(methods.BasicConsume(queue=stream, no_ack=no_ack))
    text = text.format(f"queue '{stream}' in vhost '/'")
    assert peer.connection_close() == (540, f"NOT_IMPLEMENTED - {text}")


@pytest.mark.parametrize("offset", [
    "5w", *[pytest.param(offset, marks=differs("refusals of a stream's readers"))
            for offset in ("third", "", True, 1.5, b"x", [1], {"a": 1})],
])
def test_another_offset_is_refused(peer, stream, offset):
    peer.prefetch(5)
    code, text = peer.refusal(methods.BasicConsume(queue=stream, arguments={"x-stream-offset": offset}))
    assert code == 406
    assert text.startswith(f"PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue '{stream}' in vhost '/': ")


def test_no_message_is_taken_out_of_a_stream(peer, stream):
    peer.send(methods.BasicGet(queue=stream))
    assert peer.connection_close() == (
        540, f"NOT_IMPLEMENTED - basic.get not supported by stream queues queue '{stream}' in vhost '/'")


@differs("`queue.purge` of a stream")
def test_a_purge_takes_all_that_is_there(peer, stream):
    assert peer.ask(methods.QueuePurge(queue=stream)).message_count == 5
    read(peer, stream, "first")
    peer.put(stream, b"6")
    assert came(peer, 1) == [(6, b"6")]


def test_a_stream_that_is_deleted_cancels_its_readers(peer, stream, port):
    read(peer, stream, "first")
    came(peer, 5)
    with Peer(port) as other:
        other.open()
        assert isinstance(other.ask(methods.QueueDelete(queue=stream)), methods.QueueDeleteOk)
    assert peer.read().consumer_tag == "t"
    peer.send(methods.BasicAck(delivery_tag=5, multiple=True))
    assert eventually(lambda: peer.ask(methods.BasicQos(prefetch_count=1)))


@differs("`queue.delete-ok` of a stream")
def test_the_answer_to_a_delete_says_how_many_messages_the_stream_had(peer, stream):
    assert peer.ask(methods.QueueDelete(queue=stream)).message_count == 5


# --- offsets that the stream keeps

NAMED = {"x-stream-reader": "billing"}


@rabbitmq("it keeps offsets over its own protocol only")
def test_a_named_reader_goes_on_behind_its_last_ack(peer, stream, port):
    read(peer, stream, "first", **NAMED)
    assert came(peer, 5) == expected(1)
    peer.send(methods.BasicAck(delivery_tag=3, multiple=True))
    peer.ask(methods.BasicCancel(consumer_tag="t"))
    with Peer(port) as other:
        other.open()
        read(other, stream, **NAMED)
        assert came(other, 2) == expected(4)


@rabbitmq("it keeps offsets over its own protocol only")
def test_a_named_reader_that_never_acknowledged_begins_where_it_began(peer, stream):
    read(peer, stream, **NAMED)
    peer.put(stream, b"6")
    assert came(peer, 1) == expected(6, 6)
    peer.ask(methods.BasicCancel(consumer_tag="t"))
    read(peer, stream, **NAMED)
    assert came(peer, 1) == expected(6, 6)


@rabbitmq("it keeps offsets over its own protocol only")
def test_a_first_offset_counts_until_one_is_kept(peer, stream):
    read(peer, stream, **NAMED, **{"x-stream-first-offset": "first"})
    assert came(peer, 5) == expected(1)
    peer.send(methods.BasicAck(delivery_tag=3, multiple=True))
    peer.ask(methods.BasicCancel(consumer_tag="t"))
    read(peer, stream, **NAMED, **{"x-stream-first-offset": "first"})
    assert came(peer, 2) == expected(4)


@rabbitmq("it keeps offsets over its own protocol only")
def test_an_offset_that_is_given_counts_more_than_the_one_that_is_kept(peer, stream):
    read(peer, stream, "first", **NAMED)
    assert came(peer, 5) == expected(1)
    peer.send(methods.BasicAck(delivery_tag=5, multiple=True))
    peer.ask(methods.BasicCancel(consumer_tag="t"))
    read(peer, stream, 2, **NAMED)
    assert came(peer, 4) == expected(2)
    peer.send(methods.BasicAck(delivery_tag=6))
    peer.ask(methods.BasicCancel(consumer_tag="t"))
    read(peer, stream, **NAMED)
    assert came(peer, 3) == expected(3)


@rabbitmq("it keeps offsets over its own protocol only")
@pytest.mark.parametrize("more", [{}, {"x-stream-filter-sql": "TRUE"}, {"x-single-active-consumer": True}])
def test_a_named_reader_that_waited_for_an_offset_far_off_begins_with_the_next_message(peer, stream, more):
    read(peer, stream, 1_000_000, **NAMED, **more)
    peer.put(stream, b"6")                              # Before its offset: it goes to no one.
    peer.ask(methods.BasicCancel(consumer_tag="t"))
    read(peer, stream, **NAMED, **more)
    assert came(peer, 1) == expected(6, 6)


@rabbitmq("it keeps offsets over its own protocol only")
def test_one_reader_of_a_name_reads_at_a_time(peer, stream):
    read(peer, stream, **NAMED)
    peer.open_channel(2)
    peer.prefetch(5, 2)
    method = methods.BasicConsume(queue=stream, consumer_tag="u", arguments=NAMED)
    assert peer.refusal(method, 2) == (
        403, f"ACCESS_REFUSED - reader 'billing' of queue '{stream}' in vhost '/' in exclusive use")


# --- readers of one name together

PARTS = NAMED | {"x-stream-partitions": "hash"}
SINGLE = NAMED | {"x-single-active-consumer": True}


@rabbitmq("only its own protocol has a single active consumer of a stream")
@pytest.mark.parametrize(("of_queue", "arguments"), [({}, SINGLE), ({"x-single-active-consumer": True}, NAMED),
                                                     ({"x-single-active-consumer": True}, {})])
def test_the_next_single_active_reader_goes_on_when_the_former_holds_nothing(peer, name, of_queue, arguments):
    peer.confirming()
    peer.declare(STREAM | of_queue, name, durable=True, exclusive=False)
    for i in range(1, 6):
        peer.put(name, b"%d" % i, delivery_mode=2)
    read(peer, name, "first", "one", prefetch=2, **arguments)
    assert came(peer, 2) == expected(1, 2)
    peer.open_channel(2)
    read(peer, name, "first", "two", channel=2, **arguments)
    peer.ask(methods.BasicCancel(consumer_tag="one"))
    peer.send(methods.BasicAck(delivery_tag=1))
    assert peer.ask(methods.BasicQos(prefetch_count=2)) is not None     # The second waits: 2 is out.
    peer.send(methods.BasicNack(delivery_tag=2, requeue=True))
    assert came(peer, 4) == expected(2)


@rabbitmq("it has no such readers")
def test_readers_of_a_name_share_a_stream_and_each_key_has_one_of_them(peer, name):
    peer.confirming()
    peer.declare(STREAM | {"x-message-group-header": "customer"}, name, durable=True, exclusive=False)
    for channel in (1, 2, 3):
        if channel > 1:
            peer.open_channel(channel)
        read(peer, name, "first", f"t{channel}", channel=channel, **PARTS)
    for i in range(90):
        peer.put(name, b"%d" % i, delivery_mode=2, headers={"customer": f"c{i % 30}"})
    by_key, bodies = {}, []
    for message in [peer.delivered() for _ in range(90)]:
        by_key.setdefault(message.headers["customer"], set()).add(message.method.consumer_tag)
        bodies.append(int(message.body))
    assert sorted(bodies) == list(range(90))
    assert all(len(tags) == 1 for tags in by_key.values())
    assert set.union(*by_key.values()) == {"t1", "t2", "t3"}


@rabbitmq("it has no such readers")
def test_readers_of_a_name_that_ask_otherwise_are_refused(peer, stream):
    read(peer, stream, **PARTS)
    for channel, arguments, code, text in (
        (2, SINGLE, 406, "PRECONDITION_FAILED - readers 'billing' of {} share by key; one more must do the same"),
        (3, PARTS | {"x-stream-filter": "eu"}, 406,
         "PRECONDITION_FAILED - readers 'billing' of {} have another filter; one more must have the same"),
        (4, NAMED, 403, "ACCESS_REFUSED - reader 'billing' of {} in exclusive use"),
    ):
        peer.open_channel(channel)
        peer.prefetch(5, channel)
        method = methods.BasicConsume(queue=stream, consumer_tag="u", arguments=arguments)
        assert peer.refusal(method, channel) == (code, text.format(f"queue '{stream}' in vhost '/'"))


# --- filters

@pytest.mark.parametrize(("wanted", "arguments", "bodies"), [
    ("eu", {}, [b"1", b"4"]), (["eu", "us"], {}, [b"1", b"2", b"4"]),
    (["us"], {"x-stream-match-unfiltered": True}, [b"2", b"3"]),
])
@rabbitmq("its filter lets through more")
def test_a_filter_is_exact(peer, name, wanted, arguments, bodies):
    peer.confirming()
    peer.declare(STREAM, name, durable=True, exclusive=False)
    for body, value in ((b"1", "eu"), (b"2", "us"), (b"3", None), (b"4", "eu"), (b"5", "e")):
        peer.put(name, body, delivery_mode=2, headers={"x-stream-filter-value": value} if value else {})
    read(peer, name, "first", **({"x-stream-filter": wanted} | arguments))
    assert [body for _, body in came(peer, len(bodies))] == bodies
    peer.put(name, b"6", headers={"x-stream-filter-value": "eu" if "eu" in wanted else "us"})
    assert came(peer, 1) == [(6, b"6")]


@pytest.mark.parametrize(("arguments", "bodies"), [
    ({"x-stream-filter": {"kind": "order", "n": 2}}, [b"2"]),
    ({"x-stream-filter": {"kind": "bill", "n": 1}, "x-filter-match-type": "any"}, [b"1", b"3", b"4"]),
    ({"x-stream-filter-sql": "kind = 'order' AND n + 1 > 2 OR routing_key <> '' AND n IS NULL"}, [b"2", b"4"]),
    ({"x-stream-filter": {"geo-bbox": {"min_lat": 0, "max_lat": 1, "min_lon": 0, "max_lon": 1}}}, [b"3"]),
])
@rabbitmq("its filters are by value alone", always=True)
def test_a_reader_gets_what_its_table_or_its_expression_asks_for(peer, name, arguments, bodies):
    peer.confirming()
    peer.declare(STREAM, name, durable=True, exclusive=False)
    for body, headers in ((b"1", {"kind": "order", "n": 1}), (b"2", {"kind": "order", "n": 2}),
                          (b"3", {"kind": "bill", "n": 3, "x-geo-lat": 0.5, "x-geo-lon": 1}), (b"4", {"kind": "bill"})):
        peer.put(name, body, delivery_mode=2, headers=headers)
    read(peer, name, "first", **arguments)
    assert [body for _, body in came(peer, len(bodies))] == bodies


@rabbitmq("its filters are by value alone")
def test_an_expression_that_is_wrong_says_where(peer, stream):
    peer.prefetch(5)
    arguments = {"x-stream-filter-sql": "kind = 'a' AND\n(n >"}
    assert peer.refusal(methods.BasicConsume(queue=stream, consumer_tag="t", arguments=arguments)) == (
        406, f"PRECONDITION_FAILED - invalid arg 'x-stream-filter-sql' for queue '{stream}' in vhost '/': "
        "line 2, column 5: a value is wanted, but it ends")


# --- what is refused

@pytest.mark.parametrize(("argument", "value", "text"), [
    ("x-stream-filter", 5, "it must be a text, a table, or a list of these"),
    ("x-stream-filter", [], "0 values, but a filter has 1 to 64"),
    ("x-stream-filter", ["v"] * 65, "65 values, but a filter has 1 to 64"),
    ("x-stream-filter", "v" * 256, "a value of 256 octets, at most 255"),
    ("x-stream-filter", {}, "a table without a condition"),
    ("x-stream-filter", {"geo-circle": {}},
     "'geo-circle' is unknown: there are geo-within-radius, geo-bbox, geo-polygon"),
    ("x-stream-match-unfiltered", "yes", "it must be true or false"),
    ("x-filter-match-type", "some", "it must be 'all' or 'any'"),
    ("x-stream-filter-sql", "", None), ("x-stream-filter-sql", 5, None), ("x-stream-filter-sql", "a = ", None),
    ("x-stream-filter-sql", "a" * 4097, None),
    ("x-stream-reader", "", '"empty"'), ("x-stream-reader", 5, None), ("x-stream-reader", None, None),
    ("x-stream-partitions", "range", "it must be 'hash'"),
    ("x-single-active-consumer", "yes", "it must be true or false"),
    ("x-stream-automatic-offset-tracking", "often", "it must be true or false"),
    ("x-stream-automatic-offset-tracking", 1, "it must be true or false"),
])
@rabbitmq("it has fewer arguments, and other words")
def test_a_wrong_argument_of_a_reader_is_refused_in_words_and_costs_the_channel_alone(
        peer, stream, argument, value, text):
    peer.prefetch(5)
    method = methods.BasicConsume(queue=stream, arguments={"x-stream-offset": "first", argument: value})
    code, said = peer.refusal(method)
    begins = f"PRECONDITION_FAILED - invalid arg '{argument}' for queue '{stream}' in vhost '/': "
    assert (code, said[:len(begins)]) == (406, begins)
    assert text is None or said == begins + text
    assert len(said) > len(begins)
    peer.open_channel(2)
    read(peer, stream, "first", channel=2)
    assert came(peer, 5) == expected(1)


def test_a_reader_has_no_priority(peer, stream):
    check_is_not_for_readers(peer, stream, "x-priority", 5)


def test_a_reader_is_not_cancelled_on_a_failover(peer, stream):
    check_is_not_for_readers(peer, stream, "x-cancel-on-ha-failover", True)


def check_is_not_for_readers(peer, stream, argument, value):
    peer.prefetch(5)
    assert peer.refusal(methods.BasicConsume(queue=stream, arguments={argument: value})) == (
        406, f"PRECONDITION_FAILED - invalid arg '{argument}' for queue '{stream}' in vhost '/' of queue type "
        "rabbit_stream_queue")


@differs("an `exclusive` reader of a stream")
@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
def test_an_exclusive_reader_is_the_only_one(peer, stream, first, second):
    peer.prefetch(5)
    peer.ask(methods.BasicConsume(queue=stream, consumer_tag="first", exclusive=first))
    assert peer.refusal(methods.BasicConsume(queue=stream, consumer_tag="second", exclusive=second)) == (
        403, f"ACCESS_REFUSED - queue '{stream}' in vhost '/' in exclusive use")


@differs("offsets of a stream", always=False)
def test_a_reader_that_never_acknowledges_holds_its_own_credit_alone(peer, name):
    peer.confirming()
    arguments = STREAM | {"x-max-length-bytes": 20_000, "x-stream-max-segment-size-bytes": 4096}
    peer.declare(arguments, name, durable=True, exclusive=False)
    read(peer, name, "next", "lazy", 2)
    peer.open_channel(2)
    read(peer, name, "next", "busy", 50, channel=2)
    bodies = {"lazy": [], "busy": []}
    for i in range(60):
        assert peer.put(name, b"%d" % i + b"." * 1000, delivery_mode=2)     # The publisher is confirmed.
        for _ in range(2 if i < 2 else 1):
            message = peer.delivered()
            bodies[message.method.consumer_tag].append(int(message.body.rstrip(b".")))
            if message.method.consumer_tag == "busy":
                peer.send((2, methods.BasicAck(delivery_tag=message.method.delivery_tag)))
    assert bodies == {"lazy": [0, 1], "busy": list(range(60))}
    assert peer.count(name)[0] < 40                     # Retention has gone on.
    peer.send(methods.BasicAck(delivery_tag=2, multiple=True))
    message = peer.delivered()                          # What is kept, from the first one on.
    assert (message.method.consumer_tag, int(message.body.rstrip(b"."))) == (
        "lazy", message.headers["x-stream-offset"] - 1)
    assert message.headers["x-stream-offset"] > 20
