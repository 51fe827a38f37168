"""The one door to a vhost: what it compares, and that what is declared has its rules in force.

Permissions and equivalence are told through a session too: tests/session/test_topology.py.
"""

import gc
from collections import Counter

import pytest
from tests.session.harness import Client

from brokerd.errors import AMQPError
from brokerd.vhost.deletions import finish
from brokerd.wire.properties import Properties


@pytest.fixture
def access(node):
    return node.enter("/", "guest")


def test_a_queue_has_its_rules_from_the_moment_it_is_declared(access):
    queue = access.declare_queue("q", object(), arguments={"x-max-length": 5, "x-single-active-consumer": True})
    assert (queue.rules.max_length, queue.rules.single_active) == (5, True)


# --- exchanges

def refusal(access, name, type_="direct", **more):
    with pytest.raises(AMQPError) as refused:
        access.declare_exchange(name, type_, **more)
    return refused.value.reply_text


@pytest.mark.parametrize(("type_", "first", "second", "text"), [
    ("x-consistent-hash", {"hash-header": "a"}, {"hash-header": "b"},
     "'hash-header' for exchange 'x' in vhost '/': received 'b' but current is 'a'"),
    ("x-consistent-hash", {}, {"x-algorithm": "jump"},
     "'x-algorithm' for exchange 'x' in vhost '/': received the value 'jump' of type 'longstr' but current is none"),
    ("x-recent-history", {"x-recent-history-length": 5}, {},
     "'x-recent-history-length' for exchange 'x' in vhost '/': received none but current is the value '5' of type "
     "'signedint'"),
    ("direct", {"x-alternate-exchange": "a"}, {"x-alternate-exchange": "b"},
     "'x-alternate-exchange' for exchange 'x' in vhost '/': received 'b' but current is 'a'"),
])
def test_an_exchange_is_not_declared_again_with_other_arguments_that_count(access, type_, first, second, text):
    made = access.declare_exchange("x", type_, arguments=first)
    assert access.declare_exchange("x", type_, arguments=first | {"unknown": 1}) is made
    assert refusal(access, "x", type_, arguments=second) == f"PRECONDITION_FAILED - inequivalent arg {text}"


def test_a_type_with_hyphens_is_shown_in_quotes_of_its_own(access):
    access.declare_exchange("x", "x-random")
    assert refusal(access, "x", "direct") == (
        "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'x' in vhost '/': received 'direct' but current "
        "is ''x-random''")


@pytest.mark.parametrize("argument", ["alternate-exchange", "x-alternate-exchange"])
@pytest.mark.parametrize(("operation", "name"), [("read", "x"), ("write", "y")])
def test_an_alternate_exchange_asks_for_two_permissions_more(access, node, argument, operation, name):
    node.refused.add((operation, name))
    assert refusal(access, "x", arguments={argument: "y"}) == (
        f"ACCESS_REFUSED - {operation} access to exchange '{name}' in vhost '/' refused for user 'guest'")
    assert "x" not in access.vhost.exchanges


def test_the_alternate_exchanges_type_is_looked_at_before_permissions_and_the_rest_after(access, node):
    node.refused.add(("write", "y"))
    assert "invalid type 'signedint'" in refusal(access, "x", arguments={"alternate-exchange": 5})
    arguments = {"alternate-exchange": "y", "hash-property": "foo"}
    assert refusal(access, "x", "x-consistent-hash", arguments=arguments).startswith("ACCESS_REFUSED")
    node.refused.clear()
    assert refusal(access, "x", "x-consistent-hash", arguments=arguments) == (
        "PRECONDITION_FAILED - Unsupported property: foo")


# --- consumers

class Channel:
    """What of a channel is used; its own connection."""

    def __init__(self):
        self.connection = self
        self.consumers = None
        self.left = False
        self.asked = []

    def consume(self, queue, tag, **wishes):
        self.asked.append(("consume", queue.name, tag))

    def get(self, queue, no_ack):
        self.asked.append(("get", queue.name, no_ack))
        return True


def test_a_queue_knows_who_takes_messages_by_get_until_the_channel_has_left(access):
    access.declare_queue("q", object())
    queue = access.vhost.queues["q"]
    channels = [Channel(), Channel(), Channel()]
    channels[2].get = lambda *_: False      # The queue is empty by then.
    for channel in channels:
        enter(access, channel, "get")
        enter(access, channel, "get")
    assert queue.getter_count == 2
    channels[0].left = True
    assert queue.getter_count == 1
    channels.clear()
    del channel
    gc.collect()
    assert (queue.getter_count, len(queue.getters)) == (0, 0)


def enter(access, channel, verb):
    if verb == "get":
        return access.pull("q", channel.connection, no_ack=True).get(channel)
    return access.consume(channel, "q", "tag", no_ack=True, exclusive=False, arguments={}, next_number=lambda: 7)


@pytest.mark.parametrize(("verb", "asked"), [("get", ("get", "q", True)), ("consume", ("consume", "q", b"tag"))])
def test_who_may_not_read_a_queue_gets_no_message_of_it(access, node, verb, asked):
    access.declare_queue("q", object())
    channel = Channel()
    enter(access, channel, verb)
    assert channel.asked == [asked]
    node.refused.add(("read", "q"))
    with pytest.raises(AMQPError, match="read access to queue 'q' in vhost '/' refused for user 'guest'"):
        enter(access, channel, verb)
    assert channel.asked == [asked]


@pytest.mark.parametrize("verb", ["get", "consume"])
def test_an_exclusive_queue_gives_messages_to_its_owner_only(access, verb):
    owner, other = Channel(), Channel()
    access.declare_queue("q", owner, exclusive=True)
    enter(access, owner, verb)
    with pytest.raises(AMQPError, match="cannot obtain exclusive access to locked queue 'q'"):
        enter(access, other, verb)


def test_a_tag_is_taken_by_a_consumer_of_answers_too(access):
    channel = Channel()
    assert not access.has_consumer(channel, "tag")
    access.consume_replies(channel, "tag", no_ack=True)
    assert access.has_consumer(channel, "tag")
    finish(access.cancel(channel, "tag"))
    assert not access.has_consumer(channel, "tag")


def test_events_name_who_asked(access, node):
    told = []

    class Events:
        wanted = True
        counts = Counter()

        def __getattr__(self, name):
            return lambda *fields: told.append((name, fields[-1]))

    node.vhost.events = Events()
    access.declare_queue("q", object())
    access.declare_exchange("x", auto_delete=True)
    finish(access.bind_queue_in_pieces("q", "x", "k", {}, None))
    access.delete_queue("q", None)
    access.vhost.delete_queue(access.vhost.add_queue("own", durable=False, auto_delete=False, arguments={}))
    assert told == [
        *((name, "guest") for name in ("queue_created", "exchange_created", "binding_created", "exchange_deleted",
                                       "binding_deleted", "queue_deleted")),
        ("queue_created", ""), ("queue_deleted", "")]


def test_nobody_takes_a_reserved_name_or_deletes_what_has_one(access):
    assert refusal(access, "amq.x") == "ACCESS_REFUSED - exchange name 'amq.x' contains reserved prefix 'amq.*'"
    with pytest.raises(AMQPError) as refused:
        access.declare_queue("amq.q", object())
    assert refused.value.reply_text == "ACCESS_REFUSED - queue name 'amq.q' contains reserved prefix 'amq.*'"
    with pytest.raises(AMQPError) as refused:
        access.delete_exchange("amq.direct")
    assert refused.value.reply_text == (
        "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed")
    assert "amq.q" not in access.vhost.queues
    assert "amq.direct" in access.vhost.exchanges
    access.declare_exchange("x")
    access.delete_exchange("x")
    assert "x" not in access.vhost.exchanges


@pytest.mark.parametrize("verb", ["bind_exchange_in_pieces", "unbind_exchange_in_pieces"])
def test_the_default_exchange_is_the_destination_of_no_binding(access, verb):
    with pytest.raises(AMQPError) as refused:
        finish(getattr(access, verb)("", "amq.direct", "k", {}))
    assert refused.value.reply_text == "ACCESS_REFUSED - operation not permitted on the default exchange"


def test_one_exchange_is_bound_to_another_and_unbound(access):
    x = access.declare_exchange("x")
    for _ in range(2):
        finish(access.bind_exchange_in_pieces("x", "amq.direct", "k", {}))
        assert [(binding.source.name, binding.routing_key) for binding in x.bindings_to] == [("amq.direct", "k")]
    finish(access.unbind_exchange_in_pieces("x", "amq.direct", "k", {}))
    assert not x.bindings_to


# --- direct reply-to

def test_a_name_of_replies_is_there_while_its_client_waits(access, node):
    client = Client(node).open()
    channel = client.connection.channels[1]
    access.consume_replies(channel, "t", no_ack=True)
    name = access.vhost.replies.rewrite(channel, Properties(reply_to="amq.rabbitmq.reply-to")).reply_to
    access.declare_replies("amq.rabbitmq.reply-to")
    access.declare_replies(name)
    access.cancel_replies(channel)
    with pytest.raises(AMQPError) as refused:
        access.declare_replies(name)
    assert refused.value.reply_text == f"NOT_FOUND - no queue '{name}' in vhost '/'"
