"""What happens to queues, exchanges and bindings when another goes; over the real data plane, with a log in memory."""

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.session.harness import Client, Log

from brokerd import plane
from brokerd.errors import NotFound, PreconditionFailed
from brokerd.vhost import deletions
from brokerd.vhost.definitions import replay
from brokerd.vhost.vhost import VHost
from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame


def publish(client, key, exchange="", body=b"x"):
    """Publish one message; True when it was routed nowhere and came back."""
    header = b"\0\x3c\0\0" + len(body).to_bytes(8) + b"\0\0"
    out = client.raw(methods.BasicPublish(exchange=exchange, routing_key=key, mandatory=True).frame(1)
                     + header_frame(1, header) + body_frames(1, body, 4096))
    return any(isinstance(said, tuple) and isinstance(said[1], methods.BasicReturn) for said in out)


def make_queue(vhost, name, durable=True, auto_delete=False, arguments=None):
    return vhost.add_queue(name, durable=durable, auto_delete=auto_delete, arguments=arguments or {})


def make_exchange(vhost, name, type_="fanout", durable=True, auto_delete=False, internal=False):
    return vhost.add_exchange(name, type_, durable=durable, auto_delete=auto_delete, internal=internal, arguments={})


def described(vhost):
    """All that is there, as values."""
    return (
        {(q.name, q.durable, q.auto_delete, str(q.arguments)) for q in vhost.queues.values()},
        {(x.name, x.type, x.durable, x.auto_delete, x.internal) for x in vhost.exchanges.values()},
        {(x.name, type(b.destination).__name__, b.destination.name, b.routing_key, str(b.arguments))
         for x in vhost.exchanges.values() for b in x.bindings()},
    )


def durable_part(vhost):
    """The same of what a restart leaves."""
    queues, exchanges, _ = described(vhost)
    bindings = {(x.name, type(b.destination).__name__, b.destination.name, b.routing_key, str(b.arguments))
                for x in vhost.exchanges.values() if x.durable for b in x.bindings() if b.destination.durable}
    return {q for q in queues if q[1]}, {x for x in exchanges if x[2]}, bindings


# --- finding

@pytest.mark.parametrize(("kind", "name"), [("queue", "q"), ("exchange", "x"), ("queue", ""), ("exchange", "amq.q")])
def test_what_is_unknown_is_404_with_rabbitmqs_words(vhost, kind, name):
    with pytest.raises(NotFound) as caught:
        getattr(vhost, kind)(name)
    assert caught.value.reply_text == f"NOT_FOUND - no {kind} '{name}' in vhost '/'"


@pytest.mark.parametrize(("name", "type_", "internal"), [
    ("", "direct", False), ("amq.direct", "direct", False), ("amq.fanout", "fanout", False),
    ("amq.headers", "headers", False), ("amq.match", "headers", False), ("amq.topic", "topic", False),
    ("amq.rabbitmq.trace", "topic", True),
])
def test_the_exchanges_of_the_house_are_there_from_the_start(vhost, name, type_, internal):
    exchange = vhost.exchange(name)
    assert (exchange.type, exchange.internal, exchange.durable) == (type_, internal, True)


# --- auto-delete queues

@pytest.mark.parametrize("leave", ["cancel", "channel.close", "connection.close", "lost"])
def test_an_auto_delete_queue_goes_with_its_last_consumer_and_not_before(vhost, node, client, leave):
    make_queue(vhost, "q", auto_delete=True)
    other = Client(node).open()
    other.ask(methods.BasicConsume(queue="q"))
    client.ask(methods.BasicConsume(queue="q", consumer_tag="t"))
    other.ask(methods.ChannelClose())
    assert "q" in vhost.queues
    if leave == "cancel":
        client.ask(methods.BasicCancel(consumer_tag="t"))
    elif leave == "channel.close":
        client.ask(methods.ChannelClose())
    elif leave == "connection.close":
        client.send(methods.ConnectionClose())
    else:
        client.connection.lost()
    assert "q" not in vhost.queues


def test_an_auto_delete_queue_without_a_consumer_so_far_stays(vhost, client):
    make_queue(vhost, "q", auto_delete=True)
    publish(client, "q")
    client.send((1, methods.BasicGet(queue="q", no_ack=True)))
    client.send(methods.ConnectionClose())
    assert "q" in vhost.queues


# --- auto-delete exchanges

def test_an_auto_delete_exchange_nothing_was_bound_to_yet_stays(vhost):
    x = make_exchange(vhost, "x", auto_delete=True)
    vhost.unbind(x, make_queue(vhost, "q"), "", {})
    assert vhost.exchange("x") is x


def test_an_auto_delete_exchange_takes_those_with_it_that_fed_it_alone(vhost):
    queue = make_queue(vhost, "q")
    chain = [make_exchange(vhost, name, auto_delete=True) for name in "abc"]
    keeper = make_exchange(vhost, "keeper", auto_delete=True)
    vhost.bind(chain[0], chain[1], "", {})
    vhost.bind(chain[1], chain[2], "", {})
    vhost.bind(chain[2], queue, "", {})
    vhost.bind(keeper, chain[2], "", {})
    vhost.bind(keeper, make_queue(vhost, "other"), "", {})
    vhost.delete_queue(queue)
    assert {"a", "b", "c", "keeper"} & set(vhost.exchanges) == {"keeper"}
    assert keeper.binding_count == 1


def test_a_circle_of_auto_delete_exchanges_can_be_deleted(vhost):
    a, b = make_exchange(vhost, "a", auto_delete=True), make_exchange(vhost, "b", auto_delete=True)
    vhost.bind(a, b, "", {})
    vhost.bind(b, a, "", {})
    vhost.delete_exchange(a)
    assert not {"a", "b"} & set(vhost.exchanges)


# --- exclusive queues

@pytest.mark.parametrize("leave", ["close", "lost", "refused"])
def test_an_exclusive_queue_ends_with_its_connection_and_its_name_is_free(vhost, node, client, leave):
    client.ask(methods.QueueDeclare(queue="q", exclusive=True, durable=True))
    client.ask(methods.QueueBind(queue="q", exchange="amq.fanout"))
    assert not vhost.queue("q").durable
    if leave == "close":
        client.send(methods.ConnectionClose())
    elif leave == "lost":
        client.connection.lost()
    else:
        client.ask(methods.ChannelOpen())     # This channel is open.
    assert vhost.exchange("amq.fanout").binding_count == 0
    assert Client(node).open().ask(methods.QueueDeclare(queue="q", exclusive=True)).queue == "q"
    assert vhost.log.payloads == []


def test_an_exclusive_queue_deleted_and_made_again_by_another_outlives_its_first_owner(vhost, node, client):
    client.ask(methods.QueueDeclare(queue="q", exclusive=True))
    client.ask(methods.QueueDelete(queue="q"))
    Client(node).open().ask(methods.QueueDeclare(queue="q", exclusive=True))
    client.send(methods.ConnectionClose())
    assert "q" in vhost.queues


# --- deleting

def test_a_queue_in_use_or_not_empty_is_kept_when_it_is_to_be(vhost, client):
    queue = make_queue(vhost, "q")
    publish(client, "q")
    with pytest.raises(PreconditionFailed, match=r"^queue 'q' in vhost '/' not empty$"):
        vhost.delete_queue(queue, if_empty=True)
    client.ask(methods.BasicQos(prefetch_count=1))
    client.send((1, methods.BasicConsume(queue="q")))
    with pytest.raises(PreconditionFailed, match=r"^queue 'q' in vhost '/' in use$"):
        vhost.delete_queue(queue, if_unused=True)
    assert vhost.queue("q") is queue
    assert vhost.delete_queue(queue, if_empty=True) == 0        # The one message is out, none is ready.
    assert not vhost.queues


def test_an_exchange_is_in_use_by_bindings_that_leave_it_not_by_those_to_it(vhost):
    x, y = make_exchange(vhost, "x"), make_exchange(vhost, "y")
    vhost.bind(x, y, "", {})
    with pytest.raises(PreconditionFailed, match=r"^exchange 'x' in vhost '/' in use$"):
        vhost.delete_exchange(x, if_unused=True)
    vhost.delete_exchange(y, if_unused=True)
    vhost.delete_exchange(x, if_unused=True)


def test_deleting_a_queue_counts_what_was_ready_and_tells_its_consumers(vhost, node, client):
    queue = make_queue(vhost, "q")
    consumer = Client(node).open()
    consumer.ask(methods.BasicQos(prefetch_count=1))
    consumer.ask(methods.BasicConsume(queue="q", consumer_tag="t"))
    for _ in range(3):
        publish(client, "q")
    consumer.read()
    assert vhost.delete_queue(queue) == 2
    assert consumer.read() == [(1, methods.BasicCancel(consumer_tag="t", no_wait=True))]
    assert consumer.send((1, methods.BasicAck(delivery_tag=1))) == []      # Of what was out: nobody's, and no fault.
    assert consumer.ask(methods.QueueDeclare(queue="q")).message_count == 0


def test_bindings_go_with_either_end(vhost):
    x, y = make_exchange(vhost, "x"), make_exchange(vhost, "y")
    queue, other = make_queue(vhost, "q"), make_queue(vhost, "other")
    for source, destination in ((x, queue), (y, queue), (x, other), (x, y)):
        vhost.bind(source, destination, "", {})
    vhost.delete_exchange(y)
    assert [b.source.name for b in queue.bindings] == ["x"]
    assert [b.destination.name for b in x.bindings()] == ["q", "other"]
    vhost.delete_queue(queue)
    assert [b.destination.name for b in x.bindings()] == ["other"]
    vhost.delete_exchange(x)
    assert other.bindings == []


# --- routes that connections remember

def test_what_was_remembered_of_routes_is_forgotten_when_queues_come_and_go(vhost, client):
    assert publish(client, "q")
    for count in (1, 2):
        queue = make_queue(vhost, "q")
        assert not publish(client, "q")
        assert not publish(client, "q")
        assert queue.ready == 2
        vhost.delete_queue(queue)
        assert publish(client, "q"), count


def test_what_was_remembered_of_routes_is_forgotten_when_bindings_change_anywhere_on_the_way(vhost, client):
    first, second = make_exchange(vhost, "first"), make_exchange(vhost, "second", "topic")
    queue = make_queue(vhost, "q")
    assert publish(client, "k", "first")
    vhost.bind(first, second, "", {})
    assert publish(client, "k", "first")
    vhost.bind(second, queue, "k", {})
    assert not publish(client, "k", "first")
    vhost.unbind(second, queue, "k", {})
    assert publish(client, "k", "first")
    vhost.bind(second, queue, "#", {})
    assert not publish(client, "k", "first")
    vhost.delete_exchange(second)
    assert publish(client, "k", "first")
    assert queue.ready == 2


def test_an_exchange_made_again_does_not_route_as_the_old_one_did(vhost, client):
    queue = make_queue(vhost, "q")
    vhost.bind(make_exchange(vhost, "x"), queue, "", {})
    assert not publish(client, "k", "x")
    vhost.delete_exchange(vhost.exchange("x"))
    make_exchange(vhost, "x")
    assert publish(client, "k", "x")


# --- a disk that takes no more

FULL = {
    "queue": lambda v: make_queue(v, "new"),
    "exchange": lambda v: make_exchange(v, "new"),
    "binding": lambda v: v.bind(v.exchange("x"), v.queue("q"), "new", {}),
    "binding of exchanges": lambda v: v.bind(v.exchange("x"), v.exchange("amq.topic"), "new", {}),
    "unbinding": lambda v: v.unbind(v.exchange("x"), v.queue("q"), "old", {}),
    "unbinding of exchanges": lambda v: v.unbind(v.exchange("amq.topic"), v.exchange("x"), "old", {}),
    "deletion of a queue": lambda v: v.delete_queue(v.queue("q")),
    "deletion of an exchange": lambda v: v.delete_exchange(v.exchange("x")),
}


@pytest.mark.parametrize("change", FULL.values(), ids=FULL)
def test_what_cannot_be_written_down_is_not_done(vhost, client, change):
    vhost.bind(make_exchange(vhost, "x"), make_queue(vhost, "q"), "old", {})
    vhost.bind(vhost.exchange("amq.topic"), vhost.exchange("x"), "old", {})
    before, appended = described(vhost), vhost.appended
    vhost.log.full = True
    with pytest.raises(PreconditionFailed, match=r"^the definition cannot be stored: No space left on device$"):
        change(vhost)
    assert (described(vhost), vhost.appended) == (before, appended)
    assert not publish(client, "old", "amq.topic")
    vhost.log.full = False
    change(vhost)
    assert described(vhost) != before


def test_what_need_not_be_written_down_goes_on_while_the_disk_is_full(vhost):
    vhost.log.full = True
    queue = make_queue(vhost, "q", durable=False)
    x = make_exchange(vhost, "x", durable=False)
    vhost.bind(x, queue, "", {})
    vhost.bind(vhost.exchange("amq.fanout"), queue, "", {})
    vhost.unbind(x, queue, "", {})
    vhost.delete_queue(queue)
    vhost.delete_exchange(x)
    assert not vhost.queues


# --- the definitions log

NAMES = st.sampled_from("abc")
FLAGS = st.booleans()
STEPS = st.one_of(
    st.tuples(st.just("queue"), NAMES, FLAGS, FLAGS),
    st.tuples(st.just("exchange"), NAMES, FLAGS, FLAGS, st.sampled_from(["fanout", "topic", "headers"])),
    st.tuples(st.just("delete queue"), NAMES),
    st.tuples(st.just("delete exchange"), NAMES),
    st.tuples(st.sampled_from(["bind", "unbind"]), NAMES, FLAGS, NAMES, st.sampled_from(["", "k"])),
)


def follow(vhost, step):
    """Do one step, if what it needs is there."""
    verb, name, *rest = step
    if verb == "queue" and name not in vhost.queues:
        make_queue(vhost, name, durable=rest[0], auto_delete=rest[1], arguments={"x-other": 1} if rest[1] else None)
    elif verb == "exchange" and name not in vhost.exchanges:
        make_exchange(vhost, name, rest[2], durable=rest[0], auto_delete=rest[1], internal=rest[1])
    elif verb == "delete queue" and name in vhost.queues:
        vhost.delete_queue(vhost.queue(name))
    elif verb == "delete exchange" and name in vhost.exchanges:
        vhost.delete_exchange(vhost.exchange(name))
    elif verb in ("bind", "unbind"):
        to_queue, destination, key = rest
        destination = (vhost.queues if to_queue else vhost.exchanges).get(destination)
        if name in vhost.exchanges and destination is not None:
            getattr(vhost, verb)(vhost.exchange(name), destination, key, {})


def new_vhost(payloads=()):
    core = plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=print, damaged=print)
    vhost = VHost("/", "never-made", core, Log())
    result = replay(vhost, payloads)
    assert not result.failed
    return vhost


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_the_log_and_its_short_form_both_make_all_that_is_durable_and_nothing_else(steps):
    vhost = new_vhost()
    for step in steps:
        follow(vhost, step)
    wanted = durable_part(vhost)
    short = list(vhost.definitions())
    for payloads in (vhost.log.payloads, short):
        assert described(new_vhost(payloads)) == wanted
    queues, exchanges, bindings = wanted
    assert len(short) == len(queues) + len(exchanges) - 7 + len(bindings)       # one entry for each: the shortest
    assert vhost.appended == len(vhost.log.payloads)


def test_the_short_form_of_a_new_vhost_is_empty(vhost):
    assert list(vhost.definitions()) == []


def test_an_auto_delete_queue_that_cannot_be_unmade_on_a_full_disk_stays_and_fails_nobody(vhost, client):
    client.ask(methods.QueueDeclare(queue="auto", durable=True, auto_delete=True))
    client.ask(methods.BasicConsume(queue="auto", consumer_tag="only"))
    vhost.log.full = True
    assert client.ask(methods.BasicCancel(consumer_tag="only")) == methods.BasicCancelOk(consumer_tag="only")
    assert "auto" in vhost.queues
    vhost.log.full = False
    client.ask(methods.BasicConsume(queue="auto", consumer_tag="again"))
    client.ask(methods.BasicCancel(consumer_tag="again"))
    assert "auto" not in vhost.queues


def test_a_queue_whose_auto_delete_exchange_cannot_go_with_it_goes_all_the_same(vhost, client):
    client.ask(methods.ExchangeDeclare(exchange="auto", type="fanout", durable=True, auto_delete=True))
    client.ask(methods.QueueDeclare(queue="transient"))
    client.ask(methods.QueueBind(queue="transient", exchange="auto"))
    vhost.log.full = True
    assert client.ask(methods.QueueDelete(queue="transient")) == methods.QueueDeleteOk(message_count=0)
    assert "transient" not in vhost.queues
    assert "auto" in vhost.exchanges


def test_a_deleted_queue_has_no_messages_and_takes_none(vhost):
    queue = make_queue(vhost, "q")
    vhost.core.put((queue,), b"", b"q", b"\0\0", b"one")
    vhost.delete_queue(queue)
    vhost.core.put((queue,), b"", b"q", b"\0\0", b"two")
    assert queue.ready == 0


def test_an_exchange_of_an_unknown_type_is_refused_before_its_definition_is_written(vhost):
    before = len(vhost.log.payloads)
    with pytest.raises(PreconditionFailed) as refused:
        make_exchange(vhost, "x", "odd")
    assert refused.value.reply_text == "PRECONDITION_FAILED - unknown exchange type 'odd'"
    assert len(vhost.log.payloads) == before
    assert "x" not in vhost.exchanges


def test_a_deleted_queue_has_no_records_any_more(vhost, client):
    queue = make_queue(vhost, "q")
    publish(client, "q")
    assert len(queue.segments()) == 1
    vhost.delete_queue(queue)
    assert (queue.ready, queue.segments()) == (0, [])


@pytest.mark.parametrize("make", [lambda vhost: make_exchange(vhost, "new"), lambda vhost: make_queue(vhost, "new"),
                                  lambda vhost: vhost.bind(vhost.exchange("amq.fanout"), vhost.queue("q"), "", {})])
def test_dead_letters_without_a_way_are_tried_again_when_there_is_something_new(vhost, make):
    make_queue(vhost, "q")
    tried = []

    class Letters:
        def retry(self):
            tried.append(set(vhost.queues) | set(vhost.exchanges))

        def forget_routes(self):
            pass

    vhost.dead_letters = Letters()
    make(vhost)
    assert len(tried) == 1
    assert ("new" in tried[0]) == ("new" in vhost.queues | vhost.exchanges)     # It is there by then.


@pytest.mark.parametrize(("delayed", "room", "opens"), [
    (False, False, 0), (True, False, 1), (False, True, 1), (True, True, 1),
])
def test_delays_are_opened_where_there_is_a_delayed_exchange_or_a_room_of_one(vhost, delayed, room, opens):
    opened = []

    class Delays:
        def open(self):
            opened.append(self)

        def adopt(self, exchange):
            exchange.holder = None

        def forget_routes(self):
            pass

    vhost.delays = Delays()
    if delayed:
        vhost.add_exchange("x", "x-delayed-message", durable=True, auto_delete=False, internal=False,
                           arguments={"x-delayed-type": "direct"})
    if room:
        make_queue(vhost, "amq.delayed.x")
    vhost.take_up_features()
    assert len(opened) == opens


def test_an_unused_queue_that_the_log_does_not_let_go_stays_and_is_told(vhost, client, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, logger="brokerd")
    client.ask(methods.QueueDeclare(queue="q", durable=True))

    def refuse(*_):
        raise PreconditionFailed("the definition cannot be stored: No space left on device")

    monkeypatch.setattr(VHost, "write", refuse)
    deletions.finish(vhost.delete_unused_queue(vhost.queue("q")))
    assert "q" in vhost.queues
    assert [record.getMessage() for record in caplog.records] == [
        "queue 'q' in vhost '/' stays, though it is unused: "
        "the definition cannot be stored: No space left on device"]


def test_an_unused_queue_with_many_bindings_goes_in_pieces(vhost, client):
    client.ask(methods.QueueDeclare(queue="q"))
    for number in range(300):
        client.ask(methods.QueueBind(queue="q", exchange="amq.topic", routing_key=str(number)))
    steps = sum(1 for _ in vhost.delete_unused_queue(vhost.queue("q")))
    assert steps > 100
    assert "q" not in vhost.queues
