"""Routes that headers decide: what is remembered of a message's headers, for how long, and that it is never wrong.

``Way`` stands for routing: one exchange of headers, whose answers the data plane remembers.
"""

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exchanges.naive import headers_match
from tests.plane.harness import Bench, publish, publish_method
from tests.plane.test_answer import Feature

from brokerd import plane
from brokerd.exchanges import HeadersExchange, route
from brokerd.wire.properties import Properties, decode_header, encode_header
from brokerd.wire.values import Float32, Int8, Int16, Int64, Timestamp, UInt8, UInt16, UInt32, encode_table


class Way:
    """A headers exchange, and a connection that publishes to it."""

    def __init__(self, bench):
        self.bench = bench
        self.exchange = HeadersExchange("h")
        self.participants = ()
        self.asked = 0                      # how often routing was asked
        self.routes = plane.Routes(bench.core, self.resolve)
        self.connection = bench.connection(1)
        self.connection.routes = self.routes

    def resolve(self, exchange, key, header, channel):
        self.asked += 1
        _, properties = decode_header(header)
        found = route(self.exchange, key.decode("latin-1"), lambda: properties)
        return plane.Answer(found.queues, cacheable=found.cacheable, by_headers=found.by_headers,
                            participants=self.participants)

    def queue(self, name):
        queue = self.bench.queues.get(name)
        if queue is None:
            queue = self.bench.queue(name)
            queue.bindings = []
        return queue

    def bind(self, name, arguments, source=None):
        (source or self.exchange).bind(self.queue(name), "", arguments)
        self.routes.clear()

    def send(self, *tables, key=b"", mandatory=False, **properties):
        for table in tables:
            octets = encode_header(0, Properties(headers=table, **properties))[12:]
            self.connection.feed(publish(1, b"", key, exchange=b"h", mandatory=mandatory, properties=octets))

    def counts(self):
        return {name: queue.ready for name, queue in self.bench.queues.items()}


@pytest.fixture
def way(bench):
    return Way(bench)


def test_headers_seen_before_are_not_asked_for_again(way):
    way.bind(b"q", {"a": 1})
    way.send({"a": 1}, {"a": 1}, {"a": 1})
    assert (way.asked, way.counts()) == (1, {b"q": 3})


def test_two_messages_with_equal_key_and_different_headers_go_different_ways(way):
    way.bind(b"one", {"a": 1})
    way.bind(b"two", {"a": 2})
    way.bind(b"both", {"a": None})
    way.send(*[{"a": 1}, {"a": 2}, {"b": 1}, None] * 3)
    assert way.counts() == {b"one": 3, b"two": 3, b"both": 6}
    assert way.asked == 3                       # Nothing that is asked for is in {"b": 1}, nor in no headers.


def test_headers_that_no_binding_asks_for_may_differ_each_time(way):
    way.bind(b"q", {"a": 1})
    way.send(*({"trace": f"t{at}", "a": 1, f"n{at}": at} for at in range(100)))
    assert (way.asked, way.counts()) == (1, {b"q": 100})


def test_values_that_no_binding_asks_for_are_one(way):
    way.bind(b"q", {"a": 1, "x-match": "any", "b": None})
    way.send(*({"a": value} for value in (2, "1", 1.5, True, None, [1], {"a": 1}, Timestamp(1 << 63), b"1")))
    assert (way.asked, way.counts()) == (1, {b"q": 0})


@pytest.mark.parametrize("same", [
    (5, Int8(5), UInt8(5), Int16(5), UInt16(5), UInt32(5), Int64(5), Timestamp(5)),
    (-5, Int8(-5), Int16(-5), Int64(-5)),
    (1.5, Float32(1.5)),
    (5, 5.0, Float32(5.0)),
    (0, 0.0, -0.0),
    (Timestamp(1 << 63), 2.0**63),
    (float("nan"), Float32("nan"), -float("nan")),
])
def test_equal_numbers_of_any_width_are_one(way, same):
    for asked in same:
        way.bind(b"q", {"a": asked})
    way.send(*({"a": value} for value in same))
    assert (way.asked, way.counts()) == (1, {b"q": len(same)})


def test_any_octet_but_zero_is_true(way):
    way.bind(b"q", {"a": True})
    for octet in (b"\1", b"\2", b"\xff"):
        table = b"\0\0\0\4\1at" + octet
        way.connection.feed(publish(1, b"", b"", exchange=b"h", properties=b"\x20\0" + table))
    assert (way.asked, way.counts()) == (1, {b"q": 3})


def test_of_two_headers_with_one_name_the_first_counts(way):
    way.bind(b"q", {"a": True})
    for first in (b"\1", b"\0"):
        table = b"\0\0\0\x08\1at" + first + b"\1at\1"
        for _ in range(2):
            way.connection.feed(publish(1, b"", b"", exchange=b"h", properties=b"\x20\0" + table))
    assert way.counts() == {b"q": 2}


def test_other_properties_and_bodies_make_no_difference(way):
    way.bind(b"q", {"a": 1})
    way.send({"a": 1})
    way.send({"a": 1}, content_type="text/plain", content_encoding="x", timestamp=7, message_id="m", expiration="5000")
    way.connection.feed(publish(1, b"body", b"", exchange=b"h", properties=encode_header(
        0, Properties(headers={"a": 1}))[12:]))
    assert (way.asked, way.counts()) == (1, {b"q": 3})


def test_a_change_of_bindings_forgets_what_was_remembered(way):
    way.bind(b"q", {"a": 1})
    way.send({"a": 1})
    way.bind(b"more", {"a": 1, "b": None})
    way.send({"a": 1}, {"a": 1, "b": 1})
    way.exchange.unbind(way.queue(b"q"), "", {"a": 1})
    way.routes.clear()
    way.send({"a": 1}, {"a": 1, "b": 1})
    assert way.counts() == {b"q": 3, b"more": 2}


def test_what_no_binding_asks_for_any_more_is_not_looked_at(way):
    way.bind(b"q", {"a": 0})
    for at in range(1, 100):
        way.bind(b"gone", {"a": at, f"n{at}": 1})
    way.exchange.unbind_all(way.queue(b"gone"))
    way.routes.clear()
    way.send(*({"a": at, f"n{at}": 1} for at in range(1, 100)))
    assert (way.asked, way.counts()) == (1, {b"q": 0, b"gone": 0})


def test_a_binding_that_goes_leaves_what_another_one_asks_for(way):
    way.bind(b"q", {"a": 1, "b": 1})
    way.bind(b"gone", {"a": 1})
    way.exchange.unbind_all(way.queue(b"gone"))
    way.routes.clear()
    way.send({"a": 2, "b": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 2})
    assert way.counts() == {b"q": 1, b"gone": 0}


def test_routes_in_use_stay_though_other_headers_come_only_once(way):
    way.bind(b"q", {"a": 0})
    way.bind(b"q", {"b": None})
    for at in range(1, 20_000):
        way.exchange.bind(way.queue(b"other"), "", {"a": at})
    for at in range(1, 20_000, 100):
        way.send(*({"a": each} for each in range(at, at + 100)), {"a": 0}, {"b": 1})
    assert way.asked - 19_999 <= 4              # 0 and b; once more if 64 others took the place before they came again
    assert way.counts() == {b"q": 400, b"other": 19_999}
    before = way.asked
    way.send(*({"a": at} for at in range(1, 20_000)))
    assert way.asked > before                   # It cannot remember them all.
    kept = [one for one in gc.get_objects() if type(one) is plane.Answer]
    assert len(kept) <= 16_384 + 2


def test_headers_of_one_key_are_not_taken_for_those_of_another(way):
    way.bind(b"q", {"a": 1})
    for key in (b"k", b"l", b"k"):
        way.send({"a": 1}, key=key)
    assert way.asked == 2


def test_keys_of_one_hash_have_routes_of_their_own(way):
    """A client can choose such keys: one must not lead to what is remembered of the other."""
    one, other = bytes.fromhex("a6b63f56cb57"), bytes.fromhex("a7f403a329e4")
    hashes = {plane.crc32c(publish_method(key, b"h")) for key in (one, other)}
    assert len(hashes) == 1
    way.bind(b"q", {"a": 1})
    way.send({"a": 1}, key=one)
    way.participants = (feature := Feature(),)
    way.send({"a": 1}, key=other)
    assert (way.asked, len(feature.told)) == (2, 1)


@pytest.mark.parametrize("more", [{"headers": {"a": 1, "CC": ["k"]}}, {"user_id": "guest"}])
def test_a_message_that_must_be_asked_for_alone_is(way, more):
    way.bind(b"q", {"a": 1})
    octets = encode_header(0, Properties(**({"headers": {"a": 1}} | more)))[12:]
    way.send({"a": 1})
    way.connection.feed(publish(1, b"", b"", exchange=b"h", properties=octets) * 3)
    way.send({"a": 1})
    assert (way.asked, way.counts()) == (4, {b"q": 5})


def test_a_message_that_asks_for_more_than_can_be_remembered_is_asked_for_each_time(way):
    long = "v" * 1100
    way.bind(b"q", {"a": long})
    way.bind(b"q", {"b": 1})
    way.send({"a": long}, {"a": long}, {"b": 1}, {"b": 1})
    assert (way.asked, way.counts()) == (3, {b"q": 4})


def test_a_route_of_many_queues_is_asked_for_each_time(way):
    for at in range(300):
        way.bind(b"q%d" % at, {"a": 1})
    way.send({"a": 1}, {"a": 1})
    assert way.asked == 2
    assert set(way.counts().values()) == {2}


@pytest.mark.parametrize(("exchanges", "asked"), [(8, 1), (9, 2)])
def test_answers_that_depend_on_many_exchanges_are_not_remembered(way, exchanges, asked):
    last = way.exchange
    for at in range(exchanges - 1):
        last.bind(following := HeadersExchange(f"h{at}"), "", {})
        last = following
    way.bind(b"q", {"a": 1}, last)
    way.send({"a": 1}, {"a": 1})
    assert (way.asked, way.counts()) == (asked, {b"q": 2})


def test_an_exchange_that_only_some_headers_lead_to_is_asked_as_well(way):
    way.exchange.bind(second := HeadersExchange("second"), "", {"a": 1})
    way.bind(b"q", {"b": 1}, second)
    way.send({"b": 1}, {"b": 2})                # These do not reach it: one answer holds for both.
    assert way.asked == 1
    way.send(*[{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"b": 1}] * 2)
    assert way.counts() == {b"q": 2}
    assert way.asked == 4                       # Once more for {"b": 1}: now b matters.


def test_a_mandatory_message_returns_by_a_remembered_route_as_well(way):
    way.bind(b"q", {"a": 1})
    way.send({"a": 1}, {"a": 2}, {"a": 2})
    assert way.connection.said() == []
    way.send({"a": 1}, {"a": 2}, {"a": 2}, mandatory=True)
    assert [returned.reply for returned in way.connection.delivered()] == [312, 312]
    assert way.asked == 4


def test_participants_of_a_remembered_route_see_each_message(way):
    way.bind(b"q", {"a": 1})
    way.participants = (feature := Feature(),)
    way.send({"a": 1}, {"a": 1}, {"a": 1})
    assert (way.asked, len(feature.told), way.counts()) == (1, 3, {b"q": 3})


def test_a_route_that_a_participant_forgets_does_its_publish_to_the_end(way):
    way.bind(b"q", {"a": 1})

    def forget(queues):
        way.routes.clear()
        return queues

    way.participants = (Feature(forget),)
    way.send({"a": 1}, {"a": 1})
    assert (way.asked, way.counts()) == (2, {b"q": 2})


def test_what_is_learnt_while_all_is_forgotten_is_known(bench):
    way = Way(bench)
    way.bind(b"q", {"a": 1})
    resolve = way.resolve

    def forget(*publish):
        way.routes.clear()
        return resolve(*publish)

    way.connection.routes = plane.Routes(bench.core, forget)
    way.send({"a": 1}, {"a": 1})
    assert (way.asked, way.counts()) == (1, {b"q": 2})


def test_more_keys_than_are_remembered_forget_their_headers_too(way):
    way.bind(b"q", {"a": 1})
    octets = encode_header(0, Properties(headers={"a": 1}))[12:]
    way.connection.feed(b"".join(publish(1, b"", b"%d" % at, exchange=b"h", properties=octets) for at in range(17_000)))
    way.send({"a": 1}, key=b"16999")
    assert (way.asked, way.queue(b"q").ready) == (17_000, 17_001)


def test_messages_of_several_channels_share_what_is_remembered(way):
    plane.Channel(way.connection, 2)
    way.bind(b"q", {"a": 1})
    octets = encode_header(0, Properties(headers={"a": 1}))[12:]
    for _ in range(2):
        for channel in (1, 2):
            way.connection.feed(publish(channel, b"", b"", exchange=b"h", properties=octets))
    assert (way.asked, way.counts()) == (1, {b"q": 4})


def test_a_dead_letter_goes_up_where_headers_decide(bench):
    asked = plane.Asked()
    resolved = []

    def resolve(exchange, key, header, channel):
        resolved.append(key)
        return plane.Answer((target,), by_headers=(asked,))

    target = bench.queue(b"target")
    source = bench.queue(b"source", max_length=0, dead_letters=True)
    source.letters = plane.Letters(plane.Routes(bench.core, resolve), b"source", b"h")
    connection = bench.connection(1)
    connection.feed(publish(1, b"m", b"source") * 2)
    assert [body for _, body in source.died] == [b"m", b"m"]
    assert (target.ready, len(resolved)) == (0, 1)


@pytest.mark.parametrize("octets", [b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\0\0", b"\0\0\0\3\1a?", b"\0\0\0\2\5a"])
def test_what_is_no_table_is_refused(octets):
    asked = plane.Asked()
    for verb in (asked.add, asked.remove):
        with pytest.raises(ValueError, match="not a field table"):
            verb(octets)


def test_removing_what_was_never_added_takes_nothing_away(way):
    asked = way.exchange.asked
    asked.remove(encode_table({"a": 1}))
    way.bind(b"q", {"a": 1})
    asked.remove(encode_table({"b": 1}))
    way.send({"a": 2}, {"a": 1})
    assert way.counts() == {b"q": 1}


VALUES = st.sampled_from([
    None, True, False, 1, 0, -1, 200, 1.0, -0.0, 0.0, "1", "", b"1", [1], [True], {"n": 1}, {"n": True}, Int8(1),
    UInt8(200), Int16(-1), UInt16(200), UInt32(1), Int64(1), Int64(1 << 40), 1 << 40, Timestamp(1), Timestamp(1 << 63),
    Float32(1.0), float("nan"), float("inf"),
])
TABLES = st.dictionaries(st.sampled_from(["a", "b", "", "x-a"]), VALUES, max_size=4)
MATCHES = st.sampled_from([{}, *({"x-match": m} for m in ("all", "any", "all-with-x", "any-with-x"))])
BINDINGS = st.lists(st.tuples(MATCHES, TABLES), max_size=6)


@settings(max_examples=150, deadline=None)
@given(rounds=st.lists(st.tuples(BINDINGS, st.lists(TABLES, max_size=12)), max_size=3), remove=st.booleans())
def test_each_message_goes_where_each_binding_alone_would_say(tmp_path_factory, rounds, remove):
    """Also where its like was seen before, and bindings came and went since."""
    bench = Bench(tmp_path_factory.mktemp("headers"))
    try:
        way, bound, number = Way(bench), {}, 0
        expected = {}
        for bindings, tables in rounds:
            if remove:
                for name, (match, table) in bound.items():
                    way.exchange.unbind(way.queue(name), "", match | table)
                bound = {}
            for match, table in bindings:
                name = b"q%d" % number
                number += 1
                way.bind(name, match | table)
                bound[name] = match, table
                expected[name] = 0
            way.routes.clear()
            for table in tables * 2:
                way.send(table)
                for name, (match, asked) in bound.items():
                    expected[name] += headers_match(match | asked, table)
        assert way.counts() == expected
    finally:
        bench.close()
