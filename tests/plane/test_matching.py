"""Headers exchanges whose bindings the data plane reads itself, for messages whose headers were never seen before."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exchanges.naive import headers_match
from tests.plane.harness import Bench, publish
from tests.plane.test_answer import Feature

from brokerd import plane
from brokerd.exchanges import FanoutExchange, HeadersExchange, route
from brokerd.wire.properties import Properties, decode_header, encode_header
from brokerd.wire.values import Float32, Int8, Timestamp, encode_table


class Exchange:
    """A headers exchange whose answers say that its bindings decide, and a connection that publishes to it."""

    def __init__(self, bench):
        self.bench = bench
        self.exchange = HeadersExchange("h")
        self.participants = ()
        self.asked = []                     # the headers for which routing was asked
        self.tally = plane.Tally()
        self.routes = plane.Routes(bench.core, self.resolve)
        self.connection = bench.connection(1)
        self.connection.routes = self.routes

    def resolve(self, exchange, key, header, channel):
        _, properties = decode_header(header)
        self.asked.append(properties.headers)
        found = route(self.exchange, "", lambda: properties)
        return plane.Answer(found.queues, tally=self.tally, cacheable=found.cacheable, by_headers=found.by_headers,
                            participants=self.participants,
                            decided_by=self.exchange.decides if not self.participants else None)

    def bind(self, name, arguments):
        queue = self.bench.queues.get(name) or self.bench.queue(name)
        if not hasattr(queue, "bindings"):
            queue.bindings = []
        self.exchange.bind(queue, "", arguments)
        self.routes.clear()
        return queue

    def send(self, headers, key=b"", **properties):
        octets = encode_header(0, Properties(headers=headers, **properties))[12:]
        self.connection.feed(publish(1, b"", key, exchange=b"h", properties=octets))

    def counts(self):
        return {name.decode(): queue.ready for name, queue in self.bench.queues.items()}


@pytest.fixture
def exchange(bench):
    return Exchange(bench)


def test_routing_is_asked_for_the_first_message_of_a_key_and_for_no_other_headers_of_it(exchange):
    for number in range(50):
        exchange.bind(b"even" if number % 2 == 0 else b"odd", {"n": number})
    for number in range(50):
        exchange.send({"n": number, "other": number})
    assert (len(exchange.asked), exchange.counts()) == (1, {"even": 25, "odd": 25})
    assert (exchange.tally.published, exchange.tally.routed) == (50, 50)
    exchange.send({"n": 7}, key=b"another key")
    assert len(exchange.asked) == 2


def test_routing_is_asked_where_no_queue_is_bound_for_the_headers(exchange):
    """The message may have to go to an alternate exchange."""
    exchange.bind(b"q", {"n": 1})
    for number in (1, 2, 2, 3):
        exchange.send({"n": number})
    assert exchange.asked == [{"n": 1}, {"n": 2}]       # 2 and 3 are both what no binding asks for
    assert exchange.counts() == {"q": 1}


def test_routing_is_asked_where_an_exchange_is_bound_for_the_headers(exchange):
    other = FanoutExchange("other")
    queue = exchange.bind(b"q", {"n": 1})
    other.bind(queue, "", {})
    exchange.exchange.bind(other, "", {"n": 2})
    exchange.routes.clear()
    for number in (1, 2, 1):
        exchange.send({"n": number})
    assert exchange.asked == [{"n": 1}, {"n": 2}]
    assert exchange.counts() == {"q": 3}


def test_routing_is_not_asked_again_because_some_headers_lead_to_another_exchange_of_headers(exchange):
    other = HeadersExchange("other")
    other.bind(exchange.bind(b"q", {"n": 1}), "", {"m": 1})
    exchange.exchange.bind(other, "", {"n": 2})
    exchange.routes.clear()
    for number in range(3, 9):
        exchange.bind(b"q", {"n": number})
    for headers in ({"n": 1}, {"n": 2, "m": 1}, *({"n": number, "m": 1} for number in range(3, 9))):
        exchange.send(headers)
    assert exchange.asked == [{"n": 1}, {"n": 2, "m": 1}]
    assert exchange.counts() == {"q": 8}


def test_routing_is_asked_where_what_is_asked_of_headers_is_too_long_to_be_remembered(exchange):
    for letter in "ab":
        exchange.bind(b"q", {"n": letter * 2000})
    for letter in "abab":
        exchange.send({"n": letter * 2000})
    assert (len(exchange.asked), exchange.counts()) == (4, {"q": 4})


def test_routing_is_asked_where_a_queue_looks_for_duplicates(exchange):
    exchange.bind(b"q", {"n": 1})
    exchange.bind(b"once", {"n": 2}).window = plane.Window(128, -1)
    for number in (1, 2, 1):
        exchange.send({"n": number})
    assert exchange.asked == [{"n": 1}, {"n": 2}]


def test_routing_is_asked_for_each_message_that_asks_for_more(exchange):
    for number in range(4):
        exchange.bind(b"q", {"n": number})
    for number in range(4):
        exchange.send({"n": number}, user_id="guest")
    assert len(exchange.asked) == 4


def test_routing_is_asked_where_features_take_part(exchange):
    for number in range(3):
        exchange.bind(b"q", {"n": number})
    feature = Feature()
    exchange.participants = (feature,)
    for number in range(3):
        exchange.send({"n": number})
    assert len(exchange.asked) == 3


def test_a_binding_that_is_made_or_goes_counts_from_the_next_message_on(exchange):
    queue = exchange.bind(b"q", {"n": 1})
    exchange.bind(b"all", {})
    exchange.send({"n": 1})
    exchange.send({"n": 2})
    exchange.bind(b"q", {"n": 2})
    exchange.send({"n": 1})
    exchange.send({"n": 2})
    exchange.exchange.unbind(queue, "", {"n": 1})
    exchange.routes.clear()
    exchange.send({"n": 2})
    exchange.send({"n": 1})
    assert exchange.counts() == {"q": 4, "all": 6}


def test_a_message_goes_once_to_a_queue_that_several_bindings_lead_to(exchange):
    exchange.bind(b"q", {"n": 0})
    exchange.bind(b"q", {"n": 1})
    exchange.bind(b"q", {"n": None})
    exchange.bind(b"q", {"n": 1, "x-match": "any"})
    exchange.send({"n": 0})
    exchange.send({"n": 1})
    assert (len(exchange.asked), exchange.counts()) == (1, {"q": 2})


def test_of_two_headers_with_one_name_the_first_counts(exchange):
    exchange.bind(b"first", {"n": 1})
    exchange.bind(b"second", {"n": 2})
    exchange.send({"n": 3})
    items = b"".join(encode_table({"n": n})[4:] for n in (1, 2))
    octets = b"\x20\0" + len(items).to_bytes(4, "big") + items
    exchange.connection.feed(publish(1, b"", exchange=b"h", properties=octets))
    assert exchange.counts() == {"first": 1, "second": 0}


NUMBERS = [1, 1.0, True, Int8(1), Float32(1.0), Timestamp(1)]
OTHERS = [None, 0, False, 0.0, -0.0, float("nan"), "", "1", "S", b"1", b"", -(1 << 63), 1 << 62,
          2.0**62, -(2.0**63)]
PLAIN = st.sampled_from([*NUMBERS, *OTHERS])
NESTED = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
    st.sampled_from(["", "a", "V"]), inner, max_size=2), max_leaves=4)
TABLES = st.dictionaries(st.sampled_from(["", "a", "b", "c", "x-a", "é", "n" * 255]), NESTED, max_size=5)
MATCHES = st.sampled_from([{}, *({"x-match": match} for match in ("all", "any", "all-with-x", "any-with-x"))])


@settings(max_examples=200)
@given(bindings=st.lists(st.tuples(MATCHES, TABLES), min_size=1, max_size=10), messages=st.lists(TABLES, max_size=6),
       gone=st.sets(st.integers(0, 9)))
def test_each_message_goes_where_each_binding_alone_would_say(tmp_path_factory, bindings, messages, gone):
    bench = Bench(tmp_path_factory.mktemp("matching"))
    exchange = Exchange(bench)
    for number, (match, table) in enumerate(bindings):
        exchange.bind(b"%d" % number, match | table)
    left = [(number, match | table) for number, (match, table) in enumerate(bindings) if number not in gone]
    for number in gone & set(range(len(bindings))):
        match, table = bindings[number]
        exchange.exchange.unbind(bench.queues[b"%d" % number], "", match | table)
    exchange.routes.clear()
    expected = {str(number): 0 for number in range(len(bindings))}
    for headers in ({}, *messages):
        exchange.send(headers)
        for number, arguments in left:
            expected[str(number)] += headers_match(arguments, headers)
    assert exchange.counts() == expected
    bench.close()


@pytest.mark.parametrize("octets", [b"", b"\0\0\0\1", b"\0\0\0\3\1a?", b"\0\0\0\2\1a"])
def test_what_is_no_table_is_refused(octets):
    bindings = plane.HeaderBindings(bytes)
    for verb in (bindings.values, bindings.find):
        with pytest.raises(ValueError, match="not a field table"):
            verb(octets)


def test_values_are_told_by_name_and_compound_ones_by_the_control_plane():
    bindings = plane.HeaderBindings(lambda octets: b"<" + octets + b">")
    table = encode_table({"n": Int8(1), "text": "x", "void": None, "list": [1]})
    assert bindings.values(table) == {
        b"\1n": b"l" + (1).to_bytes(8, "big"), b"\4text": b"S\0\0\0\1x", b"\4void": b"V",
        b"\4list": b"<A\0\0\0\5I\0\0\0\1>"}
