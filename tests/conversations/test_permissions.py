"""What a user without the right is told.  ``limited`` may configure c…, write w… and read r…."""

import pytest
from tests.conversations.peer import OTHER, Peer, differs, publish

from brokerd.wire import methods


def refused(right, kind, name):
    right = "" if OTHER else f"{right} "    # 3.10 does not say which
    return 403, f"ACCESS_REFUSED - {right}access to {kind} '{name}' in vhost '/' refused for user 'limited'"


@pytest.fixture
def limited(limited_port):
    """A connection of the user with few rights; what it meets is there."""
    with Peer(limited_port).open() as maker:
        for name in ("c.q", "w.q", "r.q", "x.q"):
            maker.declare(queue=name, exclusive=False)
        for name in ("c.x", "w.x", "r.x", "x.x"):
            maker.exchange("fanout", exchange=name, auto_delete=False)
        with Peer(limited_port).open(response=b"\0limited\0limited") as limited:
            yield limited
        for name in ("c.q", "w.q", "r.q", "x.q"):
            maker.ask(methods.QueueDelete(queue=name))
        for name in ("c.x", "w.x", "r.x", "x.x"):
            maker.ask(methods.ExchangeDelete(exchange=name))


@pytest.mark.parametrize(("method", "refusal"), [
    (methods.QueueDeclare(queue="w.q"), ("configure", "queue", "w.q")),
    (methods.QueueDelete(queue="w.q"), ("configure", "queue", "w.q")),
    (methods.ExchangeDeclare(exchange="w.x", type="fanout"), ("configure", "exchange", "w.x")),
    (methods.ExchangeDelete(exchange="w.x"), ("configure", "exchange", "w.x")),
    (methods.QueueBind(queue="r.q", exchange="r.x"), ("write", "queue", "r.q")),
    (methods.QueueBind(queue="w.q", exchange="w.x"), ("read", "exchange", "w.x")),
    (methods.QueueUnbind(queue="r.q", exchange="r.x"), ("write", "queue", "r.q")),
    (methods.QueueUnbind(queue="w.q", exchange="w.x"), ("read", "exchange", "w.x")),
    (methods.ExchangeBind(destination="r.x", source="r.x"), ("write", "exchange", "r.x")),
    (methods.ExchangeBind(destination="w.x", source="w.x"), ("read", "exchange", "w.x")),
    (methods.ExchangeUnbind(destination="r.x", source="r.x"), ("write", "exchange", "r.x")),
    (methods.BasicConsume(queue="w.q"), ("read", "queue", "w.q")),
    (methods.BasicGet(queue="w.q"), ("read", "queue", "w.q")),
    (methods.QueuePurge(queue="w.q"), ("read", "queue", "w.q")),
])
def test_a_right_that_is_missing_is_named(limited, method, refusal):
    assert limited.refusal(method) == refused(*refusal)


def test_publishing_needs_the_right_to_write(limited):
    limited.send(publish("k", exchange="r.x"))
    assert limited.channel_close() == refused("write", "exchange", "r.x")
    limited.send(publish("k", exchange="w.x"))
    assert limited.ask(methods.BasicQos()) == methods.BasicQosOk()


def test_the_default_exchange_is_called_amq_default(limited):
    limited.send(publish("w.q"))
    assert limited.channel_close() == refused("write", "exchange", "amq.default")


@pytest.mark.parametrize(("arguments", "refusal"), [
    ({"x-dead-letter-exchange": "r.x"}, ("read", "queue", "c.new")),
    ({"x-dead-letter-exchange": "w.x"}, ("read", "queue", "c.new")),
])
def test_dead_letters_need_rights_on_both_ends(limited, arguments, refusal):
    assert limited.refusal(methods.QueueDeclare(queue="c.new", arguments=arguments)) == refused(*refusal)


def test_an_alternate_exchange_needs_rights_on_both_ends(limited):
    method = methods.ExchangeDeclare(exchange="c.new", type="fanout", arguments={"alternate-exchange": "w.x"})
    assert limited.refusal(method) == refused("read", "exchange", "c.new")


def test_what_is_allowed_is_done(limited):
    assert limited.ask(methods.QueueDeclare(queue="c.q")) == methods.QueueDeclareOk(queue="c.q")
    assert limited.ask(methods.QueueBind(queue="w.q", exchange="r.x")) == methods.QueueBindOk()
    assert isinstance(limited.ask(methods.BasicGet(queue="r.q")), methods.BasicGetEmpty)


@differs("passive `queue.declare`")
def test_looking_at_a_queue_needs_some_right_on_it(limited):
    assert limited.refusal(methods.QueueDeclare(queue="x.q", passive=True))[0] == 403


def test_passive_declares_of_what_one_may_use_are_answered(limited):
    for name in ("c.q", "w.q", "r.q"):
        assert limited.ask(methods.QueueDeclare(queue=name, passive=True)) == methods.QueueDeclareOk(queue=name)


def test_a_vhost_without_any_right_is_closed(port, limited_port):
    with Peer(limited_port) as stranger:
        stranger.start()
        stranger.start_ok(response=b"\0limited\0limited")
        stranger.tune_ok()
        stranger.send((0, methods.ConnectionOpen(virtual_host="elsewhere")))
        assert stranger.connection_close()[0] == 530
