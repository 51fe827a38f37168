"""alternate-exchange: where messages go that an exchange cannot route."""

import pytest
from tests.conversations.peer import publish

from brokerd.wire import methods


@pytest.fixture
def sure(peer):
    """The peer, its channel 1 confirming."""
    return peer.confirming()


@pytest.fixture
def alternate(sure, queue):
    """A fanout exchange to which ``queue`` is bound."""
    name = sure.exchange("fanout")
    sure.bind(queue, name)
    return name


@pytest.fixture
def exchange(sure, alternate):
    """A direct exchange that has ``alternate``."""
    name = sure.exchange("direct", {"alternate-exchange": alternate}, auto_delete=False)
    yield name
    sure.ask(methods.ExchangeDelete(exchange=name))


def test_what_goes_nowhere_goes_to_the_alternate(sure, exchange, queue):
    sure.put("nowhere", b"m", exchange=exchange)
    message = sure.arrived(queue)
    assert (message.body, message.method.exchange, message.method.routing_key) == (b"m", exchange, "nowhere")


def test_what_goes_somewhere_does_not(sure, exchange, queue):
    other = sure.declare()
    sure.bind(other, exchange, "k")
    sure.put("k", b"m", exchange=exchange)
    assert sure.arrived(other).body == b"m"
    assert sure.got(queue) is None


def test_what_the_alternate_routes_is_routed(sure, exchange, queue):
    sure.send(publish("nowhere", b"m", exchange=exchange, mandatory=True))
    assert sure.read() == methods.BasicAck(delivery_tag=1)
    assert sure.arrived(queue).body == b"m"


def test_what_not_even_the_alternate_routes_comes_back(sure, exchange, alternate, queue):
    sure.ask(methods.QueueUnbind(queue=queue, exchange=alternate))
    sure.send(publish("nowhere", b"m", exchange=exchange, mandatory=True))
    assert sure.read() == methods.BasicReturn(
        reply_code=312, reply_text="NO_ROUTE", exchange=exchange, routing_key="nowhere")
    assert sure.message()[1] == b"m"
    assert sure.read() == methods.BasicAck(delivery_tag=1)


def test_an_alternate_may_have_an_alternate(sure, exchange, queue):
    first = sure.exchange("direct", {"alternate-exchange": exchange}, auto_delete=False)
    sure.put("nowhere", b"m", exchange=first)
    assert sure.arrived(queue).body == b"m"
    sure.ask(methods.ExchangeDelete(exchange=first))


def test_alternates_in_a_circle_end(sure):
    for name, other in (("circle.a", "circle.b"), ("circle.b", "circle.a")):
        sure.exchange("direct", {"alternate-exchange": other}, exchange=name, auto_delete=False)
    sure.send(publish("nowhere", b"m", exchange="circle.a", mandatory=True))
    assert sure.read().reply_code == 312
    assert sure.message()[1] == b"m"
    assert isinstance(sure.read(), methods.BasicAck)
    for name in ("circle.a", "circle.b"):
        sure.ask(methods.ExchangeDelete(exchange=name))


def test_an_exchange_may_be_its_own_alternate(sure):
    sure.exchange("direct", {"alternate-exchange": "self"}, exchange="self", auto_delete=False)
    assert sure.put("nowhere", b"m", exchange="self")
    sure.ask(methods.ExchangeDelete(exchange="self"))


def test_an_alternate_that_is_not_there_routes_nothing(sure):
    name = sure.exchange("direct", {"alternate-exchange": "missing"}, auto_delete=False)
    sure.send(publish("nowhere", b"m", exchange=name, mandatory=True))
    assert sure.read().reply_code == 312
    assert sure.message()[1] == b"m"
    assert isinstance(sure.read(), methods.BasicAck)
    sure.ask(methods.ExchangeDelete(exchange=name))


def test_an_alternate_may_be_declared_later(sure, queue, name):
    exchange = sure.exchange("direct", {"alternate-exchange": name}, auto_delete=False)
    sure.put("nowhere", b"early", exchange=exchange)
    sure.exchange("fanout", exchange=name)
    sure.bind(queue, name)
    sure.put("nowhere", b"late", exchange=exchange)
    assert sure.arrived(queue).body == b"late"
    sure.ask(methods.ExchangeDelete(exchange=exchange))


def test_the_alternate_sees_the_key_and_the_headers(sure, queue):
    alternate = sure.exchange("topic")
    sure.bind(queue, alternate, "a.#")
    exchange = sure.exchange("headers", {"alternate-exchange": alternate}, auto_delete=False)
    sure.put("a.b", b"m", exchange=exchange, headers={"h": 1})
    sure.put("b.b", b"no", exchange=exchange, headers={"h": 1})
    assert sure.arrived(queue).headers == {"h": 1}
    assert sure.got(queue) is None
    sure.ask(methods.ExchangeDelete(exchange=exchange))


def test_copies_go_to_the_alternate_only_together(sure, exchange, queue):
    """One key of several that leads somewhere is enough."""
    other = sure.declare()
    sure.bind(other, exchange, "copy")
    sure.put("nowhere", b"m", exchange=exchange, headers={"CC": ["copy"]})
    assert sure.arrived(other).body == b"m"
    assert sure.got(queue) is None


def test_an_exchange_that_is_bound_but_routes_nothing_has_an_alternate_of_its_own(sure, exchange, queue):
    first = sure.exchange("fanout")
    sure.ask(methods.ExchangeBind(destination=exchange, source=first))
    sure.put("nowhere", b"m", exchange=first)
    assert sure.arrived(queue).body == b"m"


def test_an_internal_exchange_may_be_an_alternate(sure, queue):
    inner = sure.exchange("fanout", internal=True)
    sure.bind(queue, inner)
    exchange = sure.exchange("direct", {"alternate-exchange": inner}, auto_delete=False)
    sure.put("nowhere", b"m", exchange=exchange)
    assert sure.arrived(queue).body == b"m"
    sure.ask(methods.ExchangeDelete(exchange=exchange))


def test_the_alternate_is_a_name(peer):
    arguments = {"alternate-exchange": 5}
    assert peer.refusal(methods.ExchangeDeclare(exchange="x", type="direct", arguments=arguments)) == (
        406, "PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'")
