"""Filters of a stream's readers: exactly what matches goes out, and others have their turn meanwhile."""

import math
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.plane.harness import Bench, consume, publish
from tests.plane.test_stream import Stream, offset_of

from brokerd import plane
from brokerd.exchanges.comparable import comparable
from brokerd.queues.filters import compile_filter
from brokerd.wire.values import encode_table


def valued(value):
    """The properties of a message with that filter value; None: without one."""
    if value is None:
        return b"\x10\x00\x02"
    text = b"S" + len(value).to_bytes(4) + value
    item = b"\x15x-stream-filter-value" + (b"l" + bytes(8) if value == b"int" else text)
    return b"\x30\x00" + len(item).to_bytes(4) + item + b"\x02"


def wants(*values):
    return b"".join(len(value).to_bytes(2) + value for value in values)


VALUES = st.sampled_from([None, b"", b"a", b"b", b"ab", b"int", b"c" * 300])


WANTED = st.lists(st.sampled_from([b"", b"a", b"b", b"ab", b"x"]), min_size=1)


@given(values=st.lists(VALUES, max_size=60), wanted=WANTED, unfiltered=st.booleans())
@settings(deadline=None, max_examples=60)
def test_a_filter_lets_through_what_matches_and_nothing_else(tmp_path_factory, values, wanted, unfiltered):
    bench = Bench(tmp_path_factory.mktemp("stream"))
    stream = Stream(bench)
    stream.connection.feed(b"".join(publish(1, b"m" * 1500, properties=valued(value)) for value in values))
    bench.turns()
    plane.Channel(stream.connection, 2)
    stream.connection.channels[2].prefetch = 1000
    stream.gate.begin("offset", 1, filter=wants(*wanted), unfiltered=unfiltered)
    consume(stream.connection.channels[2], stream.queue, b"r2")
    expected = [i for i, value in enumerate(values, 1)
                if (unfiltered if value in (None, b"int") else value in wanted)]
    assert stream.offsets() == expected
    stream.connection.feed(publish(1, b"m", properties=valued(wanted[0])))
    assert stream.offsets() == [len(values) + 1]
    bench.close()


def test_a_filter_that_matches_little_lets_other_readers_and_queues_have_their_turn(make_bench):
    bench = make_bench(segment_octets=1 << 20)
    stream = Stream(bench)
    stream.publish(*[b"m"] * 20_000)
    for number in (2, 3):
        plane.Channel(stream.connection, number)
        stream.connection.channels[number].prefetch = 10
    stream.gate.begin("offset", 1, filter=wants(b"rare"))
    consume(stream.connection.channels[2], stream.queue, b"r2")
    stream.gate.begin("offset", 1)
    consume(stream.connection.channels[3], stream.queue, b"r3")
    bench.core.turn()
    assert stream.gate.readers()[1][1] < 20_000     # The filter has not looked at all messages
    bench.core.turn()
    first = [offset_of(one) for one in stream.connection.delivered()]
    assert first == list(range(1, len(first) + 1)) != []
    assert first + stream.offsets(3) == list(range(1, 11))
    stream.connection.feed(publish(1, b"m", properties=valued(b"rare")))
    assert stream.offsets(2) == [20_001]


# --- programs, beside a plain evaluation in Python

NAMES = ("a", "b", "c")
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([1 << 62, -(1 << 63), (1 << 63) - 1]),
    st.sampled_from([0.5, -1.5, 2.0, 1e300]), st.sampled_from(["", "x", "xy", "x%", "ü", "yx"]))
HEADERS = st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, SCALARS))
PLAIN = st.one_of(
    st.integers(-3, 3), st.sampled_from([0.5, 2.0]), st.sampled_from(["x", "xy", ""]), st.booleans(), st.none())


def literal(value):
    if value is None or isinstance(value, bool):
        return {None: "NULL", True: "TRUE", False: "FALSE"}[value]
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def order(one, other):
    """Below 0, 0 or above; None: they cannot be compared."""
    if isinstance(one, str) and isinstance(other, str):
        one, other = one.encode(), other.encode()
    elif not (is_number(one) and is_number(other)) and not (isinstance(one, bool) and isinstance(other, bool)):
        return None
    return (one > other) - (one < other)


def compared(sign, one, other):
    by = order(one, other)
    found = {"=": by == 0, "<>": by != 0}
    if by is not None:
        found |= {"<": by < 0, "<=": by <= 0, ">": by > 0, ">=": by >= 0}
    return None if by is None else found[sign]


def listed(value, among):
    found = False
    for one in among:
        found = joined(True, found, compared("=", value, one))
    return found


def joined(decides, one, other):
    one, other = [value if isinstance(value, bool) else None for value in (one, other)]
    return decides if decides in (one, other) and (one is decides or other is decides) \
        else None if None in (one, other) else not decides


def calculated(sign, one, other):
    if not (is_number(one) and is_number(other)):
        return None
    if sign in "/%" and other == 0:
        return None
    whole = isinstance(one, int) and isinstance(other, int)
    if whole and sign in "/%":
        quotient = abs(one) // abs(other) * (1 if (one < 0) == (other < 0) else -1)
        result = quotient if sign == "/" else one - other * quotient
    elif sign == "%":
        result = math.fmod(one, other)
    else:
        one, other = (one, other) if whole else (float(one), float(other))
        result = {"+": lambda: one + other, "-": lambda: one - other, "*": lambda: one * other,
                  "/": lambda: one / other}[sign]()
    return None if whole and not -(1 << 63) <= result < 1 << 63 else result


def like(pattern, text):
    if not isinstance(text, str):
        return None
    regex = "".join(".*" if one == "%" else "." if one == "_" else re.escape(one) for one in pattern)
    return re.fullmatch(regex, text, re.DOTALL) is not None


def negated(value):
    return not value if isinstance(value, bool) else None


VALUE = st.recursive(
    st.sampled_from(NAMES).map(lambda name: (name, lambda h: h.get(name)))
    | PLAIN.map(lambda value: (literal(value), lambda h: value)),
    lambda part: st.tuples(st.sampled_from("+-*/%"), part, part).map(
        lambda t: (f"({t[1][0]} {t[0]} {t[2][0]})", lambda h: calculated(t[0], t[1][1](h), t[2][1](h)))), max_leaves=3)
SIMPLE = st.one_of(
    st.tuples(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), VALUE, VALUE).map(
        lambda t: (f"{t[1][0]} {t[0]} {t[2][0]}", lambda h: compared(t[0], t[1][1](h), t[2][1](h)))),
    VALUE.map(lambda v: (f"{v[0]} IS NOT NULL", lambda h: v[1](h) is not None)),
    st.tuples(VALUE, st.lists(PLAIN, min_size=1, max_size=3)).map(
        lambda t: (f"{t[0][0]} IN ({', '.join(map(literal, t[1]))})",
                   lambda h: listed(t[0][1](h), t[1]))),
    st.tuples(VALUE, st.text("xyü%_", max_size=4)).map(
        lambda t: (f"{t[0][0]} LIKE {literal(t[1])}", lambda h: like(t[1], t[0][1](h)))),
    st.sampled_from(NAMES).map(lambda name: (name, lambda h: h.get(name))))
EXPRESSION = st.recursive(SIMPLE, lambda part: st.one_of(
    part.map(lambda p: (f"NOT ({p[0]})", lambda h: negated(p[1](h)))),
    st.tuples(st.sampled_from(["AND", "OR"]), part, part).map(
        lambda t: (f"({t[1][0]} {t[0]} {t[2][0]})",
                   lambda h: joined(t[0] == "OR", t[1][1](h), t[2][1](h))))), max_leaves=5)


def with_headers(headers):
    """Properties with these headers; a whole number goes in the least type that holds it."""
    table = encode_table(headers)
    return b"\x30\x00" + table + b"\x02"


def passing(bench, arguments, messages, **publishing):
    """Offsets that a reader with this filter gets."""
    stream = Stream(bench)
    stream.connection.feed(b"".join(publish(1, b"m", properties=with_headers(headers)) for headers in messages))
    bench.turns()
    plane.Channel(stream.connection, 2)
    stream.connection.channels[2].prefetch = 1000
    asked = compile_filter(arguments)
    stream.gate.begin("offset", 1, filter=asked.values, unfiltered=asked.unfiltered, program=asked.program)
    consume(stream.connection.channels[2], stream.queue, b"r2")
    return stream.offsets()


@given(expression=EXPRESSION, messages=st.lists(HEADERS, min_size=1, max_size=20))
@settings(deadline=None, max_examples=300)
def test_an_expression_lets_through_what_a_plain_evaluation_does(tmp_path_factory, expression, messages):
    text, evaluate = expression
    bench = Bench(tmp_path_factory.mktemp("stream"))
    expected = [i for i, headers in enumerate(messages, 1) if evaluate(headers) is True]
    assert passing(bench, {"x-stream-filter-sql": text}, messages) == expected, text
    bench.close()


@example(table={"b": 2.0}, messages=[{"b": 2}, {"b": 2.0}], match="all", values=[])
@given(table=st.dictionaries(st.sampled_from(NAMES), SCALARS, min_size=1), messages=st.lists(HEADERS, max_size=20),
       match=st.sampled_from(["all", "any"]), values=st.lists(st.sampled_from(["eu", "us"]), max_size=2))
@settings(deadline=None, max_examples=150)
def test_a_table_agrees_as_with_a_headers_exchange(tmp_path_factory, table, messages, match, values):
    bench = Bench(tmp_path_factory.mktemp("stream"))
    messages = [headers | ({"x-stream-filter-value": "eu"} if i % 3 else {}) for i, headers in enumerate(messages)]

    def agrees(headers, name, value):
        if name not in headers:
            return False
        both = headers[name], value
        return value is None or comparable(headers[name]) == comparable(value) or (
            all(map(is_number, both)) and headers[name] == value)

    def expected(headers):
        found = [agrees(headers, name, value) for name, value in table.items()]
        found += ["x-stream-filter-value" in headers and "eu" in values] if values else []
        return all(found) if match == "all" else any(found)

    arguments = {"x-stream-filter": [*values, table], "x-filter-match-type": match}
    assert passing(bench, arguments, messages) == [i for i, one in enumerate(messages, 1) if expected(one)]
    bench.close()


def test_an_expression_sees_properties_and_places_of_the_message(bench):
    texts = {
        "routing_key = 'q' AND exchange = '' AND size = 1 AND offset = 2": [2],
        "properties.delivery-mode = 2": [1, 2, 3],
        "stored > 0 AND stored < 9000000000000 AND offset BETWEEN 2 AND 3": [2, 3], "p.type IS NULL": [1, 2, 3],
        "header('priority') = 5": [3], "priority = 5": [], "\"x-é\" = 'ü'": [1],
    }
    messages = [{"x-é": "ü"}, {}, {"priority": 5}]
    for at, (text, expected) in enumerate(texts.items()):
        if at == 0:
            assert passing(bench, {"x-stream-filter-sql": text}, messages) == expected
            stream = bench.queues["q"] if "q" in bench.queues else next(iter(bench.queues.values()))
            continue
        connection = bench.connection(1)
        plane.Channel(connection, 2).prefetch = 100
        asked = compile_filter({"x-stream-filter-sql": text})
        stream.gate.begin("offset", 1, program=asked.program)
        consume(connection.channels[2], stream, b"r")
        bench.turns()
        assert [offset_of(one) for one in connection.delivered()] == expected, text


def test_a_costly_pattern_is_bounded_and_others_have_their_turn(make_bench):
    bench = make_bench(segment_octets=1 << 20)
    stream = Stream(bench)
    stream.connection.feed(b"".join(publish(1, b"m", properties=with_headers({"t": "x" * 4000})) for _ in range(600)))
    bench.turns()
    costly = compile_filter({"x-stream-filter-sql": f"t LIKE '%{'x_' * 60}y%'"}).program
    for number, program in ((2, costly), (3, None)):
        plane.Channel(stream.connection, number)
        stream.connection.channels[number].prefetch = 10
        stream.gate.begin("offset", 1, program=program)
        consume(stream.connection.channels[number], stream.queue, b"r%d" % number)
    bench.core.turn()
    bench.core.turn()
    assert stream.gate.readers()[1][1] < 600            # The filter has not looked at all messages
    assert stream.offsets(3) == list(range(1, 11))


def costly(bench, number_of_streams):
    """Streams, each with a reader whose filter costs much, and one without a filter; no message passes the filter."""
    streams = []
    for number in range(number_of_streams):
        queue = bench.queue(b"q%d" % number)
        queue.gate = plane.Stream()
        streams.append(Stream(bench, queue))
        streams[-1].connection.feed(b"".join(
            publish(1, b"m", key=b"q%d" % number, properties=with_headers({"t": "a" * 100})) for _ in range(300)))
        bench.core.turn()
    expression = " OR ".join(f"t LIKE '%a%a%{one}%'" for one in range(100))
    for stream in streams:
        for channel, program in ((2, compile_filter({"x-stream-filter-sql": expression}).program), (3, None)):
            plane.Channel(stream.connection, channel)
            stream.connection.channels[channel].prefetch = 40
            stream.gate.begin("offset", 1, program=program)
            consume(stream.connection.channels[channel], stream.queue, b"r%d" % channel)
    return streams


def places(stream):
    """Where the reader with the filter is."""
    return stream.gate.readers()[1][1]


def test_costly_filters_of_all_streams_share_one_bound_of_a_turn(make_bench):
    alone, together = make_bench(), make_bench()
    [one], several = costly(alone, 1), costly(together, 4)
    alone.core.turn()
    together.core.turn()
    looked = places(one) - 1
    assert 0 < looked < 100
    assert sum(places(stream) - 1 for stream in several) <= looked + 4
    for _ in range(8):
        together.core.turn()
    assert min(places(stream) for stream in several) > 1                    # None of them starves,
    assert [stream.offsets(3) for stream in several] == [list(range(1, 41))] * 4     # nor does a reader beside them


def test_a_reader_that_waits_for_the_next_turn_may_leave(make_bench):
    bench = make_bench()
    streams = costly(bench, 3)
    bench.core.turn()
    for stream in streams:
        stream.connection.channels[2].close()
        bench.core.turn()
    assert [stream.offsets(3) for stream in streams] == [list(range(1, 41))] * 3


def costly_readers(bench, number_of_readers):
    """A stream with readers whose filters cost much, and let the last message through."""
    queue = bench.queue()
    queue.gate = plane.Stream()
    stream = Stream(bench, queue)
    texts = [*["a" * 100] * 299, "a" * 100 + " end"]
    stream.connection.feed(b"".join(publish(1, b"m", properties=with_headers({"t": text})) for text in texts))
    bench.core.turn()
    expression = " OR ".join(f"t LIKE '%a%a%{one}%'" for one in ("end", *range(100)))
    program = compile_filter({"x-stream-filter-sql": expression}).program
    for channel in range(2, 2 + number_of_readers):
        plane.Channel(stream.connection, channel)
        stream.connection.channels[channel].prefetch = 40
        stream.gate.begin("offset", 1, program=program)
        consume(stream.connection.channels[channel], stream.queue, b"r%d" % channel)
    return stream


@pytest.mark.parametrize("leaving", [
    pytest.param(range(2, 40), id="the first ones, in order"),
    pytest.param(range(41, 3, -1), id="the last ones, backwards"),
    pytest.param((*range(20, 30), 10, 41, 2, 40, 3), id="some of the middle and both ends"),
    pytest.param(range(2, 42), id="all"),
])
def test_readers_that_wait_for_the_next_turn_leave_in_any_order_and_the_others_go_on(make_bench, leaving):
    bench = make_bench()
    stream = costly_readers(bench, 40)
    bench.core.turn()
    for number in leaving:
        stream.connection.channels[number].close()
        if number % 4 == 0:
            bench.core.turn()
    stream.gate.begin("offset", 1, program=compile_filter({"x-stream-filter-sql": "t LIKE '%end'"}).program)
    plane.Channel(stream.connection, 50)
    consume(stream.connection.channels[50], stream.queue, b"later")
    came = set()
    stay = {50, *range(2, 42)} - set(leaving)
    for _ in range(2000):
        bench.core.turn()
        came |= {one.channel for one in stream.connection.delivered()}
        if came == stay:
            break
    assert came == stay
    bench.turns()
    stream.queue.check()


def test_readers_at_the_end_leave_in_any_order_and_the_others_hear_of_the_next_message(make_bench):
    bench = make_bench()
    queue = bench.queue()
    queue.gate = plane.Stream()
    stream = Stream(bench, queue)
    for number in range(2, 42):
        stream.read(number, ("next", 0))
    bench.turns()
    stay = set(range(2, 42))
    for number in (*range(20, 30), 10, 41, 2, 40, 3):
        stream.connection.channels[number].close()
        stay.discard(number)
        if number % 8 == 0:
            stream.publish(b"m")
            assert {one.channel for one in stream.connection.delivered()} == stay
    stream.publish(b"m")
    assert {one.channel for one in stream.connection.delivered()} == stay
