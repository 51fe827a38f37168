"""Class exchange: declare, delete, bind, unbind."""

import pytest
from tests.conversations.peer import differs, publish

from brokerd.wire import methods


@pytest.fixture
def exchange(peer):
    """A transient direct exchange called x."""
    assert peer.ask(methods.ExchangeDeclare(exchange="x", type="direct")) == methods.ExchangeDeclareOk()
    yield "x"
    peer.send(methods.ExchangeDelete(exchange="x"))
    peer.read()


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_an_exchange_of_every_type_is_declared_and_deleted(peer, kind):
    declare = methods.ExchangeDeclare(exchange=f"x.{kind}", type=kind)
    assert peer.ask(declare) == methods.ExchangeDeclareOk()
    assert peer.ask(declare) == methods.ExchangeDeclareOk()
    passive = methods.ExchangeDeclare(exchange=f"x.{kind}", type="anything", passive=True)
    assert peer.ask(passive) == methods.ExchangeDeclareOk()
    assert peer.ask(methods.ExchangeDelete(exchange=f"x.{kind}")) == methods.ExchangeDeleteOk()
    assert peer.refusal(passive) == (404, f"NOT_FOUND - no exchange 'x.{kind}' in vhost '/'")


@pytest.mark.parametrize(("name", "kind"), [
    ("amq.direct", "direct"), ("amq.fanout", "fanout"), ("amq.topic", "topic"), ("amq.headers", "headers"),
    ("amq.match", "headers"),
])
def test_the_standard_exchanges_are_there(peer, name, kind):
    assert peer.ask(methods.ExchangeDeclare(exchange=name, passive=True)) == methods.ExchangeDeclareOk()
    assert peer.ask(methods.ExchangeDeclare(exchange=name, type=kind, durable=True)) == methods.ExchangeDeclareOk()


@differs("unknown exchange type")
def test_an_unknown_type_is_refused(peer):
    code, text = peer.refusal(methods.ExchangeDeclare(exchange="x", type="roundabout"))
    assert (code, text) == (406, "PRECONDITION_FAILED - unknown exchange type 'roundabout'")


@pytest.mark.parametrize(("fields", "text"), [
    ({"type": "fanout"}, "'type' for exchange 'x' in vhost '/': received 'fanout' but current is 'direct'"),
    ({"durable": True}, "'durable' for exchange 'x' in vhost '/': received 'true' but current is 'false'"),
    ({"auto_delete": True}, "'auto_delete' for exchange 'x' in vhost '/': received 'true' but current is 'false'"),
    ({"internal": True}, "'internal' for exchange 'x' in vhost '/': received 'true' but current is 'false'"),
    ({"arguments": {"alternate-exchange": "y"}},
     "'alternate-exchange' for exchange 'x' in vhost '/': received the value 'y' of type 'longstr' "
     "but current is none"),
])
def test_a_declare_that_differs_names_the_first_difference(peer, exchange, fields, text):
    method = methods.ExchangeDeclare(**{"exchange": "x", "type": "direct"} | fields)
    assert peer.refusal(method) == (406, f"PRECONDITION_FAILED - inequivalent arg {text}")


DEFAULT = (403, "ACCESS_REFUSED - operation not permitted on the default exchange")


@pytest.mark.parametrize("method", [
    methods.ExchangeDeclare(exchange="", type="direct"), methods.ExchangeDeclare(exchange="", passive=True),
    methods.ExchangeDelete(exchange=""),
    methods.ExchangeBind(destination="amq.topic", source="", routing_key="k"),
    methods.ExchangeBind(destination="", source="amq.topic", routing_key="k"),
    methods.ExchangeUnbind(destination="amq.topic", source="", routing_key="k"),
])
def test_the_default_exchange_is_left_alone(peer, method):
    assert peer.refusal(method) == DEFAULT


def test_names_that_begin_with_amq_are_reserved(peer):
    assert peer.refusal(methods.ExchangeDeclare(exchange="amq.mine", type="direct")) == (
        403, "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'")


def test_standard_exchanges_cannot_be_deleted(peer):
    assert peer.refusal(methods.ExchangeDelete(exchange="amq.topic")) == (
        403, "ACCESS_REFUSED - deletion of system exchange 'amq.topic' in vhost '/' not allowed")


def test_deleting_what_is_not_there_is_no_fault(peer):
    assert peer.ask(methods.ExchangeDelete(exchange="missing")) == methods.ExchangeDeleteOk()


def test_an_exchange_with_bindings_is_in_use(peer, queue, exchange):
    peer.ask(methods.QueueBind(queue=queue, exchange="x", routing_key="k"))
    assert peer.refusal(methods.ExchangeDelete(exchange="x", if_unused=True)) == (
        406, "PRECONDITION_FAILED - exchange 'x' in vhost '/' in use")


def test_an_exchange_to_which_others_are_bound_is_not_in_use(peer, exchange):
    peer.ask(methods.ExchangeBind(destination="x", source="amq.topic", routing_key="k"))
    assert peer.ask(methods.ExchangeDelete(exchange="x", if_unused=True)) == methods.ExchangeDeleteOk()


def test_line_ends_in_names_are_dropped(peer):
    assert peer.ask(methods.ExchangeDeclare(exchange="li\r\nne", type="direct")) == methods.ExchangeDeclareOk()
    assert peer.ask(methods.ExchangeDeclare(exchange="line", passive=True)) == methods.ExchangeDeclareOk()
    assert peer.ask(methods.ExchangeDelete(exchange="line")) == methods.ExchangeDeleteOk()


def test_no_wait_has_no_reply(peer):
    peer.send(methods.ExchangeDeclare(exchange="y", type="fanout", no_wait=True),
              methods.ExchangeBind(destination="y", source="amq.topic", routing_key="#", no_wait=True),
              methods.ExchangeUnbind(destination="y", source="amq.topic", routing_key="#", no_wait=True),
              methods.ExchangeDelete(exchange="y", no_wait=True))
    assert peer.refusal(methods.ExchangeDeclare(exchange="y", passive=True))[0] == 404


@pytest.mark.parametrize(("method", "missing"), [
    (methods.ExchangeBind(destination="nowhere", source="amq.topic", routing_key="k"), "nowhere"),
    (methods.ExchangeBind(destination="amq.topic", source="nowhere", routing_key="k"), "nowhere"),
])
def test_both_ends_of_a_binding_must_be_there(peer, method, missing):
    assert peer.refusal(method) == (404, f"NOT_FOUND - no exchange '{missing}' in vhost '/'")


def test_unbinding_what_is_not_bound_is_no_fault(peer):
    assert peer.ask(methods.ExchangeUnbind(destination="amq.topic", source="amq.fanout", routing_key="k")) == (
        methods.ExchangeUnbindOk())
    assert peer.ask(methods.ExchangeUnbind(destination="nowhere", source="neither", routing_key="k")) == (
        methods.ExchangeUnbindOk())


def test_messages_pass_from_exchange_to_exchange_even_in_a_circle(peer, queue, exchange):
    peer.ask(methods.ExchangeBind(destination="x", source="amq.topic", routing_key="a.#"))
    peer.ask(methods.ExchangeBind(destination="amq.topic", source="x", routing_key="a.b"))
    peer.ask(methods.QueueBind(queue=queue, exchange="x", routing_key="a.b"))
    peer.send(publish("a.b", b"round", exchange="amq.topic"))
    assert [peer.get(queue), peer.get(queue)] == [(False, b"round"), None]


def test_an_auto_delete_exchange_goes_with_its_last_binding(peer, queue):
    peer.ask(methods.ExchangeDeclare(exchange="y", type="direct", auto_delete=True))
    for key in ("a", "b"):
        peer.ask(methods.QueueBind(queue=queue, exchange="y", routing_key=key))
    for key in ("a", "b"):
        assert isinstance(peer.ask(methods.ExchangeDeclare(exchange="y", passive=True)), methods.ExchangeDeclareOk)
        peer.ask(methods.QueueUnbind(queue=queue, exchange="y", routing_key=key))
    assert peer.refusal(methods.ExchangeDeclare(exchange="y", passive=True))[0] == 404


def test_an_internal_exchange_takes_messages_of_exchanges_only(peer, queue):
    peer.ask(methods.ExchangeDeclare(exchange="inner", type="fanout", internal=True))
    peer.ask(methods.ExchangeBind(destination="inner", source="amq.direct", routing_key="in"))
    peer.ask(methods.QueueBind(queue=queue, exchange="inner"))
    peer.send(publish("in", b"by way of another", exchange="amq.direct"))
    assert peer.get(queue) == (False, b"by way of another")
    peer.send(publish("in", exchange="inner"))
    assert peer.channel_close() == (
        403, "ACCESS_REFUSED - cannot publish to internal exchange 'inner' in vhost '/'")
    peer.ask(methods.ExchangeDelete(exchange="inner"))


@pytest.mark.parametrize(("kind", "binding", "arguments", "hits", "misses"), [
    ("direct", "a.b", {}, ["a.b"], ["a", "a.b.c", "A.B", ""]),
    ("fanout", "ignored", {}, ["", "a.b"], []),
    ("topic", "a.*.c", {}, ["a.b.c", "a..c"], ["a.c", "a.b.b.c", "b.b.c"]),
    ("topic", "a.#", {}, ["a", "a.b", "a.b.c"], ["b", "ab", ""]),
    ("topic", "#.z", {}, ["z", "y.z", "x.y.z"], ["z.y", ""]),
    ("topic", "#", {}, ["", "a", "a.b"], []),
    ("topic", "*", {}, ["a"], ["a.b"]),
])
def test_routing_keys_match_as_the_type_says(peer, queue, kind, binding, arguments, hits, misses):
    peer.ask(methods.ExchangeDeclare(exchange="t", type=kind))
    peer.ask(methods.QueueBind(queue=queue, exchange="t", routing_key=binding, arguments=arguments))
    for key in hits + misses:
        peer.send(publish(key, key.encode(), exchange="t"))
    got = []
    while (message := peer.get(queue)) is not None:
        got.append(message[1].decode())
    peer.ask(methods.ExchangeDelete(exchange="t"))
    assert got == hits


@pytest.mark.parametrize(("arguments", "headers", "matches"), [
    ({"x-match": "all", "a": 1, "b": "2"}, {"a": 1, "b": "2", "c": 3}, True),
    ({"x-match": "all", "a": 1, "b": "2"}, {"a": 1}, False),
    ({"x-match": "any", "a": 1, "b": "2"}, {"b": "2"}, True),
    ({"x-match": "any", "a": 1, "b": "2"}, {"c": 3}, False),
    ({"a": 1, "b": "2"}, {"a": 1}, False),
    ({"x-match": "all"}, {}, True),
])
def test_headers_match_all_or_any(peer, queue, arguments, headers, matches):
    peer.ask(methods.ExchangeDeclare(exchange="h", type="headers"))
    peer.ask(methods.QueueBind(queue=queue, exchange="h", arguments=arguments))
    peer.send(publish("", b"m", exchange="h", headers=headers))
    got = peer.get(queue)
    peer.ask(methods.ExchangeDelete(exchange="h"))
    assert got == ((False, b"m") if matches else None)
