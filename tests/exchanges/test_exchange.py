"""What every type of exchange does with its bindings."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exchanges.destinations import Queue, queues
from tests.exchanges.naive import matches

from brokerd.errors import PreconditionFailed
from brokerd.exchanges import EXCHANGE_TYPES, DirectExchange, Exchange, FanoutExchange, TopicExchange, exchange_type
from brokerd.exchanges.delayed import DelayedExchange
from brokerd.wire.properties import Properties

MATCHING = ["direct", "fanout", "headers", "topic", "x-recent-history"]
TYPES = sorted(name for name in EXCHANGE_TYPES if not issubclass(exchange_type(name), DelayedExchange))
KEYS = st.sampled_from(["", "a", "a.b", "*", "#", "a.*", "#.b", "a.#.b", "*.*"])
ARGUMENTS = st.sampled_from([
    {}, {"k": 1}, {"k": True}, {"k": "v", "x-match": "any"}, {"k": None, "x-match": "all"}, {"x-match": "any"},
    {"k": "v", "j": [1, {"n": 1.5}], "x-match": "all"}, {"x-k": 2, "x-match": "all-with-x"},
    {"x-k": 2, "k": 1, "x-match": "any-with-x"},
])  # fmt: skip
HEADERS = st.dictionaries(st.sampled_from(["k", "j", "x-k"]), st.sampled_from([1, 2, True, "v", None, [1, {"n": 1.5}]]))
ENDS = st.integers(0, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("bind"), ENDS, KEYS, ARGUMENTS),
        st.tuples(st.just("unbind"), ENDS, KEYS, ARGUMENTS),
        st.tuples(st.just("unbind_all"), ENDS),
        st.tuples(st.just("clear")),
    ),
    max_size=40,
)


def tagged(arguments):
    """Arguments that are equal only if RabbitMQ says so: True is not 1."""
    return repr(sorted(arguments.items()))


@pytest.mark.parametrize("kind", MATCHING)
@pytest.mark.parametrize("collection", [list, dict])
@settings(max_examples=150)
@given(steps=STEPS, key=st.sampled_from(["", "a", "a.b", "a.x.b", "b", "a.b.c"]), headers=HEADERS)
def test_any_row_of_binds_and_unbinds_leaves_what_a_plain_list_would_hold(kind, collection, steps, key, headers):
    exchange, ends, model = exchange_type(kind)("x"), [*queues(3), DirectExchange("further")], []
    for end in ends[:3]:
        end.bindings = collection()
    for verb, *what in steps:
        if verb == "clear":
            assert len(exchange.unbind_everything()) == len(model)
            model = []
            continue
        end = ends[what[0]]
        if verb == "unbind_all":
            assert len(exchange.unbind_all(end)) == sum(row[0] is end for row in model)
            model = [row for row in model if row[0] is not end]
            continue
        row = next((r for r in model if r[0] is end and r[1] == what[1] and tagged(r[2]) == tagged(what[2])), None)
        binding = getattr(exchange, verb)(end, what[1], what[2])
        assert (binding is None) == ((row is not None) == (verb == "bind"))
        if verb == "bind" and row is None:
            model.append((end, what[1], what[2]))
        elif verb == "unbind" and row is not None:
            model.remove(row)
    assert [(b.destination, b.routing_key, b.arguments) for b in exchange.bindings()] == model
    assert exchange.binding_count == len(model)
    for end in ends:
        held = end.bindings_to if isinstance(end, Exchange) else end.bindings
        assert set(held) == {b for b in exchange.bindings() if b.destination is end}
    found = set(exchange.destinations(key, lambda: Properties(headers=headers)))
    assert found == {r[0] for r in model if matches(kind, r[1], r[2], key, headers)}


@pytest.mark.parametrize("kind", TYPES)
def test_an_exchange_without_bindings_keeps_nothing_in_its_index(kind):
    exchange, (one, two) = exchange_type(kind)("x", arguments={"x-delayed-type": "topic"}), queues(2)
    for key in ("1", "2") if kind == "x-consistent-hash" else ("a", "a.*", "#.#.b", "a.*.c"):
        for end in (one, two):
            exchange.bind(end, key, {"x-match": "any", "k": key, "j": 1})
            exchange.bind(end, key, {"k": key, "j": 1})
    exchange.unbind_all(one)
    exchange.unbind_all(two)
    assert exchange.destinations("a.b", Properties) in ((), [])
    for slot in set(type(exchange).__slots__) - {"key_decides"}:
        assert not getattr(exchange, slot), slot


def test_binding_the_same_again_gives_none_and_routes_once():
    exchange, (queue,) = DirectExchange("x"), queues(1)
    assert exchange.bind(queue, "k", {"a": 1}).arguments == {"a": 1}
    assert exchange.bind(queue, "k", {"a": 1}) is None
    assert len(queue.bindings) == 1


def test_true_and_one_make_different_bindings():
    exchange, (queue,) = DirectExchange("x"), queues(1)
    for value in (True, 1, 1.0, "1", b"1"):
        assert exchange.bind(queue, "k", {"a": value}) is not None
    assert exchange.binding_count == 5


def test_a_binding_with_not_a_number_can_be_unbound():
    exchange, (queue,) = DirectExchange("x"), queues(1)
    exchange.bind(queue, "k", {"a": float("nan")})
    assert exchange.unbind(queue, "k", {"a": float("nan")}) is not None


def test_of_two_bindings_that_differ_in_arguments_one_keeps_the_route():
    for exchange in (DirectExchange("d"), FanoutExchange("f"), TopicExchange("t")):
        (queue,) = queues(1)
        exchange.bind(queue, "k")
        exchange.bind(queue, "k", {"a": 1})
        exchange.unbind(queue, "k")
        assert list(exchange.destinations("k", Properties)) == [queue]


def test_refused_arguments_leave_no_trace():
    exchange, (queue,) = exchange_type("headers")("x"), queues(1)
    with pytest.raises(PreconditionFailed):
        exchange.bind(queue, "", {"x-match": "some"})
    assert (exchange.binding_count, queue.bindings) == (0, [])


def test_an_exchange_bound_to_itself_can_be_emptied():
    exchange = FanoutExchange("x")
    exchange.bind(exchange, "")
    exchange.unbind_everything()
    assert (exchange.binding_count, exchange.bindings_to) == (0, [])


def test_unbinding_from_one_exchange_keeps_the_bindings_to_others():
    one, two, (queue,) = DirectExchange("one"), DirectExchange("two"), queues(1)
    one.bind(queue, "k")
    kept = two.bind(queue, "k")
    one.unbind_all(queue)
    assert queue.bindings == [kept]


def test_an_unknown_exchange_type_is_refused_in_rabbitmqs_words():
    with pytest.raises(PreconditionFailed) as refusal:
        exchange_type("x-nothing")
    assert refusal.value.reply_text == "PRECONDITION_FAILED - unknown exchange type 'x-nothing'"


@pytest.mark.parametrize(
    ("routing_key", "expected"),
    [("", "~"), ("a.b", "a.b"), ("a b~*#", "a+b%7E%2A%23"), ("é/", "%C3%A9%2F")],
)
def test_properties_key_quotes_the_routing_key_as_rabbitmq_does(routing_key, expected):
    assert DirectExchange("x").bind(Queue("q"), routing_key).properties_key == expected


def test_properties_key_tells_arguments_apart_and_does_not_see_their_order():
    exchange, (queue,) = DirectExchange("x"), queues(1)
    first = exchange.bind(queue, "k", {"a": 1, "b": {"c": [1], "d": 2}}).properties_key
    exchange.unbind_all(queue)
    assert first == exchange.bind(queue, "k", {"b": {"d": 2, "c": [1]}, "a": 1}).properties_key
    assert first != exchange.bind(queue, "k", {"a": 2}).properties_key
    assert first.startswith("k~")
    assert len(first) == 8
    assert exchange.bind(queue, "", {"a": 2}).properties_key.startswith("~")


@pytest.mark.parametrize("name", EXCHANGE_TYPES)
def test_a_type_is_listed_under_its_own_name(name):
    assert exchange_type(name).type == name


def test_types_that_few_have_are_not_imported_with_the_others():
    code = "import sys, brokerd.vhost.vhost; print(*[m for m in sys.modules if m.startswith('brokerd.exchanges.')])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    late = {name.partition(".")[0] for name in EXCHANGE_TYPES.values() if isinstance(name, str)}
    assert late == {"consistent_hash", "modulus_hash", "delayed", "federation_upstream"}
    assert late.isdisjoint(name.rpartition(".")[2] for name in answer)
