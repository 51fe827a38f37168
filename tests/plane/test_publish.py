"""A message on its way in: its frames, its properties, its routes, and what comes back."""

import struct

import pytest
from tests.plane.harness import (
    PERSISTENT,
    TRANSIENT,
    consume,
    content_header,
    frame,
    publish,
    publish_method,
    read,
    shortstr,
)

from brokerd import plane
from brokerd.errors import NotFound

METHOD, BODY = frame(1, 1, publish_method(b"q")), frame(3, 1, b"body")


@pytest.fixture
def queue(bench):
    return bench.queue()


@pytest.fixture
def connection(bench, queue):
    return bench.connection(1)


@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 8176, 8177, 60_000, 300_000])
def test_a_body_comes_out_as_it_went_in_cut_to_the_readers_frames(bench, queue, size):
    writer, reader = bench.connection(1, frame_max=4096), bench.connection(1, frame_max=8192)
    body = bytes(at * 7 & 0xFF for at in range(size))
    properties = b"\x80\x00" + shortstr(b"text/plain")
    writer.feed(publish(1, body, properties=properties, frame_max=4096))
    consume(reader.channels[1], queue, no_ack=True)
    bench.turns()
    got, = reader.delivered()
    assert (got.body, got.properties, got.exchange, got.key) == (body, properties, b"", b"q")
    assert got.pieces == [8184] * (size // 8184) + ([size % 8184] if size % 8184 else [])


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_body_frames_may_be_of_any_size(bench, queue, connection, piece):
    connection.feed(publish(1, b"b" * 3001, piece=piece))
    assert [one.body for one in read(bench, queue)] == [b"b" * 3001]


def test_empty_body_frames_are_allowed(bench, queue, connection):
    connection.feed(METHOD + frame(2, 1, content_header(4)) + frame(3, 1, b"") + BODY)
    assert [one.body for one in read(bench, queue)] == [b"body"]


def test_channels_may_interleave_their_frames(bench, queue):
    connection = bench.connection(1, 2, 3)
    bodies = {number: bytes([number]) * 2500 for number in (1, 2, 3)}
    streams = {}
    for number in bodies:
        parts = [frame(1, number, publish_method(b"q")), frame(2, number, content_header(2500))]
        streams[number] = parts + [frame(3, number, bodies[number][at:at + 500]) for at in range(0, 2500, 500)]
    connection.feed(b"".join(part for parts in zip(*streams.values(), strict=True) for part in parts))
    assert [one.body for one in read(bench, queue)] == list(bodies.values())
    assert not connection.errors


FRAMES = {
    "header first": (frame(2, 1, content_header(4)), 505, "expected method frame, got non method frame instead", 0),
    "body first": (BODY, 505, "expected method frame, got non method frame instead", 0),
    "body after method": (METHOD + BODY, 505,
                          "expected content header for class 60, got non content header frame instead", 40),
    "method after method": (METHOD + METHOD, 505,
                            "expected content header for class 60, got non content header frame instead", 40),
    "second header": (METHOD + frame(2, 1, content_header(4)) * 2, 505,
                      "expected content body, got non content body frame instead", 40),
    "method after header": (METHOD + frame(2, 1, content_header(4)) + METHOD, 505,
                            "expected content body, got non content body frame instead", 40),
    "class of header": (METHOD + frame(2, 1, content_header(4, class_id=61)), 505,
                        "expected content header for class 60, got one for class 61 instead", 40),
    "too much body": (METHOD + frame(2, 1, content_header(3)) + BODY, 501,
                      "content body is larger than its header said", 0),
    "too much body at last": (METHOD + frame(2, 1, content_header(7)) + BODY + BODY, 501,
                              "content body is larger than its header said", 0),
    "short header": (METHOD + frame(2, 1, content_header(4)[:13]), 501, "content header frame is too short", 0),
    "empty header": (METHOD + frame(2, 1, b""), 501, "content header frame is too short", 0),
}


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("whole", [True, False])
def test_content_out_of_order_is_a_hard_error(queue, connection, name, whole):
    octets, code, text, method = FRAMES[name]
    for at in range(0, len(octets), len(octets) if whole else 1):
        connection.feed(octets[at:at + len(octets)] if whole else octets[at:at + 1])
    class_id = 60 if method else 0
    assert connection.fault == (1, code, True, text, class_id, method)
    assert queue.ready == 0


@pytest.mark.parametrize("over", [-1, 0, 1, 1 << 40])
@pytest.mark.parametrize("in_parts", [True, False])
def test_a_message_larger_than_the_limit_closes_the_channel(make_bench, over, in_parts):
    bench = make_bench(message_octets_max=1000)
    queue, connection = bench.queue(), bench.connection(1, 2)
    octets = METHOD + frame(2, 1, content_header(1000 + over)) + frame(3, 1, b"b" * min(1000 + over, 5000))
    for at in range(len(octets)) if in_parts else (0,):
        connection.feed(octets[at:at + 1] if in_parts else octets)
    if over <= 0:
        assert not connection.errors
        assert queue.ready == 1
        return
    assert connection.fault == (
        1, 406, False, f"message size {1000 + over} is larger than configured max size 1000", 60, 40)
    connection.feed(publish(2, b"others go on") + publish(1, b"this one not"))
    assert queue.ready == 1


def table(octets):
    return len(octets).to_bytes(4) + octets


def nested(depth, kind=b"F"):
    """A headers property with `depth` tables (or arrays) in one another, the headers table not counted."""
    octets = b""
    for level in range(depth):
        inner = kind + table(octets)
        octets = inner if kind == b"A" and level < depth - 1 else b"\1k" + inner
    return b"\x20\x00" + table(octets)


VALUES = [b"t\1", b"b\xff", b"B\xff", b"s\0\1", b"u\0\1", b"U\0\1", b"I\0\0\0\1", b"i\0\0\0\1", b"f\0\0\0\0",
          b"D\2\0\0\0\1", b"l" + bytes(8), b"L" + bytes(8), b"d" + bytes(8), b"T" + bytes(8), b"V",
          b"S" + table(b"text"), b"x" + table(b"octets"), b"F" + table(b"\1kV"), b"A" + table(b"VVt\0"),
          b"F" + table(b""), b"A" + table(b""), b"S" + table(b"")]
EVERYTHING = struct.pack(">H", 0xFFFC) + shortstr(b"text/plain") + shortstr(b"utf-8") + table(b"\1kV") + b"\2\x09" + \
    shortstr(b"corr") + shortstr(b"reply") + shortstr(b"1000") + shortstr(b"id") + bytes(8) + shortstr(b"type") + \
    shortstr(b"user") + shortstr(b"app") + shortstr(b"cluster")


@pytest.mark.parametrize("properties", [
    TRANSIENT, PERSISTENT, EVERYTHING, nested(0), nested(1), nested(64), nested(64, b"A"),
    *(b"\x20\x00" + table(b"\3key" + value) for value in VALUES),
    b"\x20\x00" + table(b"".join(bytes([3]) + b"k%02d" % at + value for at, value in enumerate(VALUES))),
])
def test_whole_properties_pass_untouched(bench, queue, connection, properties):
    connection.feed(publish(1, b"body", properties=properties))
    assert not connection.errors
    got, = read(bench, queue)
    assert got.properties == properties


@pytest.mark.parametrize("properties", [
    b"\x00\x01", b"\x00\x02", b"\x00\x03\x00\x00", b"\x80\x00", b"\x80\x00\x05text", b"\x10\x00", b"\x10\x00\x02\x00",
    b"\x00\x40" + bytes(7), b"\x00\x00\x00", b"\x20\x00", b"\x20\x00\0\0\0", b"\x20\x00\0\0\0\1", EVERYTHING[:-1],
    EVERYTHING + b"\0", nested(65), nested(65, b"A"), nested(1000), nested(10_000, b"A"),
    b"\x20\x00" + table(b"\1kA\xff\xff\xff\xff"), b"\x20\x00\xff\xff\xff\xff", b"\x20\x00" + table(b"\1k"),
    b"\x20\x00" + table(b"\xffk"), b"\x20\x00" + table(b"\1kZ"), b"\x20\x00" + table(b"\1kAZ"),
    *(b"\x20\x00" + table((b"\3key" + value)[:-1]) for value in VALUES if value != b"V"),
])
def test_properties_that_do_not_end_where_they_should_are_a_syntax_error(queue, connection, properties):
    connection.feed(publish(1, b"body", properties=properties))
    assert connection.fault == (1, 502, True, "malformed properties in content header of class 60", 60, 40)
    assert queue.ready == 0


@pytest.mark.parametrize("at", range(2, len(EVERYTHING)))
def test_properties_cut_off_anywhere_are_a_syntax_error(connection, at):
    connection.feed(publish(1, b"", properties=EVERYTHING[:at]))
    assert connection.fault[1] == 502


@pytest.mark.parametrize("size", [65_500, 65_535, 65_536, 100_000])
def test_headers_longer_than_a_short_length_are_stored_whole(bench, queue, connection, size):
    properties = b"\x20\x00" + table(b"\1kS" + table(b"h" * size))
    connection.feed(publish(1, b"body", properties=properties, frame_max=131072))
    got, = read(bench, queue)
    assert (got.properties, got.body) == (properties, b"body")


METHODS = {
    "no exchange": (struct.pack(">HHH", 60, 40, 0), 502, "basic.publish ends before its fields do"),
    "cut in the exchange": (struct.pack(">HHH", 60, 40, 0) + b"\xffabc", 502,
                            "basic.publish ends before its fields do"),
    "no key": (struct.pack(">HHH", 60, 40, 0) + b"\0", 502, "basic.publish ends before its fields do"),
    "key beyond the end": (struct.pack(">HHH", 60, 40, 0) + b"\0\x05q\0", 502,
                           "basic.publish is not of the length of its fields"),
    "no bits": (publish_method(b"q")[:-1], 502, None),
    "more": (publish_method(b"q") + b"\0", 502, "basic.publish is not of the length of its fields"),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("whole", [True, False])
def test_a_publish_that_is_not_of_its_length_is_a_hard_error(queue, connection, name, whole):
    method, code, text = METHODS[name]
    octets = frame(1, 1, method) + frame(2, 1, content_header(4)) + BODY
    for at in range(0, len(octets), len(octets) if whole else 1):
        connection.feed(octets[at:at + (len(octets) if whole else 1)])
    assert connection.fault[:3] == (1, code, True)
    assert text is None or connection.fault[3] == text
    assert connection.fault[4:] == (60, 40)
    assert queue.ready == 0


def test_what_resolve_raises_closes_the_channel_and_the_rest_goes_on(bench, queue):
    def resolve(exchange, key, header, channel):
        if exchange == b"missing":
            raise NotFound("no exchange 'missing' in vhost '/'")
        return plane.Answer((queue,), cacheable=True)

    connection = bench.connection(1, 2)
    connection.routes = plane.Routes(bench.core, resolve)
    connection.feed(publish(1, b"lost", exchange=b"missing") + publish(1, b"dropped") + publish(2, b"kept"))
    assert connection.fault == (1, 404, False, "no exchange 'missing' in vhost '/'", 60, 40)
    assert [one.body for one in read(bench, queue)] == [b"kept"]


def test_a_message_goes_to_every_queue_of_its_route(bench, connection):
    queues = [bench.queue(name) for name in (b"a", b"b", b"c")]
    bench.bound[b"fan", b"k"] = (b"a", b"b", b"c")
    bench.tallies[b"fan"] = tally = plane.Tally()
    connection.feed(publish(1, b"all", b"k", exchange=b"fan") * 2)
    for queue in queues:
        assert [(one.exchange, one.key, one.body) for one in read(bench, queue)] == [(b"fan", b"k", b"all")] * 2
    assert (tally.published, tally.routed) == (2, 6)


def test_a_route_is_asked_for_once_until_routes_are_cleared(bench, queue, connection):
    connection.feed(publish(1, b"1") * 3 + publish(1, b"2", exchange=b"x") + publish(1, b"1"))
    assert [(exchange, key) for exchange, key, _ in bench.resolved] == [(b"", b"q"), (b"x", b"q")]
    other = bench.queue(b"other")
    bench.bound[b"", b"q"] = (b"other",)
    bench.routes.clear()
    connection.feed(publish(1, b"moved"))
    assert other.ready == 1
    assert len(bench.resolved) == 3


def test_a_message_whose_route_is_cleared_in_the_middle_goes_the_new_way(bench, queue, connection):
    connection.feed(publish(1, b"before"))
    octets = publish(1, b"after")
    connection.feed(octets[:-2])
    other = bench.queue(b"other")
    bench.bound[b"", b"q"] = (b"other",)
    bench.routes.clear()
    connection.feed(octets[-2:])
    assert (queue.ready, other.ready) == (1, 1)


def test_thousands_of_keys_find_their_queues(bench, connection):
    for at in range(300):
        bench.queue(b"q%d" % at)
    for _ in range(2):
        connection.feed(b"".join(publish(1, b"", b"q%d" % at) for at in range(300)))
    assert all(bench.queues[b"q%d" % at].ready == 2 for at in range(300))
    assert len(bench.resolved) == 300


def test_more_routes_than_are_remembered_are_learnt_anew(bench, queue, connection):
    connection.feed(b"".join(publish(1, b"", b"%d" % at) for at in range(17_000)))
    connection.feed(publish(1, b"", b"q"))
    assert queue.ready == 1


def test_a_route_that_depends_on_headers_is_asked_for_every_time(bench, queue, connection):
    bench.cacheable = False
    connection.feed(publish(1, b"1") + publish(1, b"2", persistent=True) + publish(1, b"2", persistent=True))
    assert [header for _, _, header in bench.resolved] == [
        content_header(1), content_header(1, PERSISTENT), content_header(1, PERSISTENT)]
    assert [one.body for one in read(bench, queue)] == [b"1", b"2", b"2"]


@pytest.mark.parametrize("step", [1, 10_000])
def test_a_message_that_names_its_user_is_asked_for_every_time(bench, queue, connection, step):
    named = publish(1, b"named", properties=b"\x00\x10" + shortstr(b"guest"))
    octets = publish(1, b"plain") + named + publish(1, b"plain") + named + named
    for at in range(0, len(octets), step):
        connection.feed(octets[at:at + step])
    assert len(bench.resolved) == 4
    assert [header[12:14] for _, _, header in bench.resolved if header[12:14] != TRANSIENT] == [b"\x00\x10"] * 3
    assert [one.body for one in read(bench, queue)] == [b"plain", b"named", b"plain", b"named", b"named"]


def test_routes_for_once_on_several_channels_do_not_mix(bench):
    bench.cacheable = False
    connection = bench.connection(1, 2)
    for name in (b"a", b"b"):
        bench.queue(name)
    a, b = publish(1, b"for a", b"a"), publish(2, b"for b", b"b")
    connection.feed(a[:-13])                # all but the body's frame
    connection.feed(b)
    connection.feed(a[-13:])
    connection.feed((a + b) * 2)
    assert {one.body for one in read(bench, bench.queues[b"a"])} == {b"for a"}
    assert [one.body for one in read(bench, bench.queues[b"b"])] == [b"for b"] * 3


def test_an_unroutable_mandatory_message_returns_and_then_is_confirmed(bench, connection):
    channel = connection.channels[1]
    channel.select_confirm()
    connection.feed(publish(1, b"back" * 5000, b"nowhere", exchange=b"x", mandatory=True, persistent=True))
    returned, confirm = connection.said()
    assert (returned.method, returned.reply, returned.reply_text) == (50, 312, b"NO_ROUTE")
    assert (returned.exchange, returned.key, returned.properties) == (b"x", b"nowhere", PERSISTENT)
    assert returned.body == b"back" * 5000
    assert confirm == ("ack", 1, 1, 0)


def test_an_unroutable_message_that_is_not_mandatory_is_gone(bench, connection):
    bench.tallies[b"x"] = tally = plane.Tally()
    connection.feed(publish(1, b"gone", b"nowhere", exchange=b"x"))
    assert connection.frames() == []
    assert (tally.published, tally.routed) == (1, 0)


def test_a_mandatory_message_that_is_routed_does_not_return(bench, queue, connection):
    connection.feed(publish(1, b"here", mandatory=True))
    assert connection.frames() == []
    assert queue.ready == 1


def test_a_remembered_queue_that_was_deleted_takes_nothing(bench, queue, connection):
    connection.feed(publish(1, b"1"))
    queue.drop()
    connection.feed(publish(1, b"2"))
    assert queue.ready == 0
    assert not connection.errors


def test_publishes_are_counted_by_channel_number_for_the_life_of_a_connection(bench, queue):
    connection = bench.connection(1, 2)
    assert not connection.publishes
    connection.feed(publish(1, b"") * 3 + publish(2, b""))
    assert connection.publishes
    connection.channels[1].close()
    assert plane.Channel(connection, 1).publishes == 3
    connection.feed(publish(1, b""))
    assert (connection.channels[1].publishes, connection.channels[2].publishes) == (4, 1)


def test_a_channel_closed_in_the_middle_of_a_message_forgets_it(bench, queue, connection):
    octets = publish(1, b"never whole")
    connection.feed(octets[:-19])           # all but the body's frame
    connection.channels[1].close()
    plane.Channel(connection, 1)
    connection.feed(publish(1, b"whole"))
    assert not connection.errors
    assert [one.body for one in read(bench, queue)] == [b"whole"]


def test_a_queue_is_touched_by_what_is_published_to_it(bench):
    bench.at(1000)
    queue, connection = bench.queue(), bench.connection(1)
    bench.at(5000)
    connection.feed(publish(1, b"x"))
    assert queue.touched == 5000 * 1_000_000


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_names_and_properties_of_sixty_four_ki_octets_less_one_are_where_the_long_form_begins(bench, queue, more):
    connection = bench.connection(1, 2)
    value = b"v" * (0xFFFF + more - len(b"\0\1q") - 2 - 4 - 7)
    table = b"\x01kS" + len(value).to_bytes(4) + value
    properties = (1 << 13).to_bytes(2) + len(table).to_bytes(4) + table
    connection.feed(publish(1, b"body", properties=properties) + publish(1, b"next"))
    assert [(one.properties, one.body) for one in read(bench, queue)] == [(properties, b"body"), (TRANSIENT, b"next")]


def test_what_is_learnt_while_every_route_is_forgotten_is_known_to_every_channel(bench):
    bench.queue()
    connection = bench.connection(1, 2)
    asked = []

    def resolve(exchange, key, header, channel):
        asked.append(key)
        bench.routes.clear()
        return plane.Answer((bench.queues[key],), cacheable=True)

    connection.routes = plane.Routes(bench.core, resolve)
    bench.routes = connection.routes
    connection.feed(publish(1, b"x") + publish(2, b"y") + publish(1, b"z"))
    assert asked == [b"q"]
    assert bench.queues[b"q"].ready == 3
