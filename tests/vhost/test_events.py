import logging

import pytest
from tests.session.harness import Clock, Log

from brokerd import plane
from brokerd.vhost.events import (
    EVENT_EXCHANGE,
    LOG_EXCHANGE,
    Events,
    LogExchange,
    format_table,
    install,
    publish_policy_changes,
)
from brokerd.vhost.vhost import VHost
from brokerd.wire.properties import Properties, decode_header
from brokerd.wire.values import Float32, Timestamp


class Puts:
    """Keeps what is put; ``full`` takes nothing."""

    def __init__(self):
        self.messages = []
        self.full = False
        self.turns = 0

    def put(self, queues, exchange, key, properties, body):
        if self.full:
            raise OSError(28, "No space left on device")
        _, properties = decode_header(b"\0\x3c\0\0" + bytes(8) + properties)
        self.messages.append(([queue.name for queue in queues], exchange, key, properties, body))
        return queues

    def turn(self):
        self.turns += 1


@pytest.fixture
def vhost(tmp_path):
    core = plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=lambda number: None,
                      damaged=lambda *_: None)
    vhost = VHost("/", str(tmp_path), core, Log())
    for name in ("q", "other"):
        vhost.add_queue(name, durable=False, auto_delete=False, arguments={})
    vhost.add_queue("limited", durable=False, auto_delete=False, arguments={"x-max-length": 5})
    vhost.core = Puts()
    return vhost


@pytest.fixture
def events(vhost):
    events = Events(Clock(), "brokerd@here")
    assert not events.wanted
    events.begin(vhost, install(vhost, EVENT_EXCHANGE))
    return events


def test_nothing_is_wanted_or_told_once_the_vhost_of_the_exchange_is_gone(vhost, events):
    bind(vhost)
    assert events.wanted
    events.end()
    assert not events.wanted
    events.publish_named("vhost.deleted", {"name": "/"})
    assert vhost.core.messages == []


def bind(vhost, key="#", exchange=EVENT_EXCHANGE, queue="q"):
    vhost.exchanges[exchange].bind(vhost.queues[queue], key)


def told(vhost):
    """(routing key, headers) of what was put, without the time."""
    return [(key.decode(), {name: value for name, value in properties.headers.items() if name != "timestamp_in_ms"})
            for _, _, key, properties, _ in vhost.core.messages]


class Client:
    """A connection, its channel and its consumer at once."""

    number, peer, user, channel_max, frame_max, heartbeat, opened_ns = 5, "1.2.3.4:5", "ann", 7, 4096, 60, 3_000_000
    client_property_table = {"product": "x"}
    tag, no_ack, exclusive, prefetch, arguments = b"t", True, False, 9, {"x-priority": 3}

    def __init__(self, vhost):
        self.vhost = vhost
        self.access = self.channel = self.connection = self
        self.queue = vhost.queues["q"]


def test_events_are_wanted_while_something_is_bound(vhost, events):
    assert not events.wanted
    bind(vhost)
    bind(vhost, queue="other")
    assert events.wanted
    vhost.exchanges[EVENT_EXCHANGE].unbind_all(vhost.queues["q"])
    assert events.wanted
    vhost.exchanges[EVENT_EXCHANGE].unbind_all(vhost.queues["other"])
    assert not events.wanted


def test_an_event_is_a_message_without_body_whose_headers_are_its_fields(vhost, events):
    bind(vhost, "user.*")
    events.publish_named("user.created", {"name": "bob"}, "ann")
    assert vhost.core.messages == [(["q"], b"amq.rabbitmq.event", b"user.created", Properties(
        headers={"name": "bob", "user_who_performed_action": "ann", "timestamp_in_ms": 1_000_000},
        delivery_mode=2, timestamp=1000), b"")]


def test_events_go_only_to_who_asked_for_them(vhost, events):
    bind(vhost, "queue.#")
    events.publish_named("user.created", {"name": "bob"})
    events.queue_deleted(vhost.queues["q"], "")
    assert told(vhost) == [("queue.deleted", {"vhost": "/", "name": "q", "user_who_performed_action": "rmq-internal"})]


def test_an_event_that_cannot_be_stored_is_lost(vhost, events):
    bind(vhost)
    vhost.core.full = True
    events.publish_named("user.created", {"name": "bob"})
    assert vhost.core.messages == []


def test_what_is_declared_is_told_with_all_it_is(vhost, events):
    bind(vhost)
    queue = vhost.queues["limited"]
    events.queue_created(queue, "ann")
    exchange = vhost.add_exchange("x", "topic", durable=False, auto_delete=True, internal=False, arguments={})
    events.exchange_created("/", exchange, "ann")
    binding = exchange.bind(queue, "a.b", {"q": 1})
    events.binding_created("/", binding, "ann")
    events.binding_deleted("/", vhost.exchanges["amq.topic"].bind(exchange, "z"), "")
    events.exchange_deleted("/", "x", "ann")
    by = {"user_who_performed_action": "ann"}
    assert told(vhost) == [
        ("queue.created", {"vhost": "/", "name": "limited", "durable": False, "auto_delete": False, "exclusive": False,
                           "type": "rabbit_classic_queue", "arguments": ['{<<"x-max-length">>,signedint,5}'], **by}),
        ("exchange.created", {"vhost": "/", "name": "x", "type": "topic", "durable": False, "auto_delete": True,
                              "internal": False, "arguments": [], "policy": "", **by}),
        ("binding.created", {"source_name": "x", "source_kind": "exchange", "destination_name": "limited",
                             "destination_kind": "queue", "routing_key": "a.b",
                             "arguments": ['{<<"q">>,signedint,1}'], "vhost": "/", **by}),
        ("binding.deleted", {"source_name": "amq.topic", "source_kind": "exchange", "destination_name": "x",
                             "destination_kind": "exchange", "routing_key": "z", "arguments": [], "vhost": "/",
                             "user_who_performed_action": "rmq-internal"}),
        ("exchange.deleted", {"vhost": "/", "name": "x", **by}),
    ]


def test_clients_are_told_of_from_connection_to_consumer(vhost, events):
    bind(vhost)
    client = Client(vhost)
    events.connection_created(client)
    events.channel_created(client)
    events.consumer_created(client)
    events.consumer_deleted(client)
    events.channel_closed(client)
    events.connection_closed(client)
    found = told(vhost)
    assert [key for key, _ in found] == [
        "connection.created", "channel.created", "consumer.created", "consumer.deleted", "channel.closed",
        "connection.closed"]
    by_key = dict(found)
    assert by_key["connection.created"] == {
        "type": "network", "pid": "<5>", "name": "1.2.3.4:5", "vhost": "/", "user": "ann", "protocol": "{0,9,1}",
        "channel_max": 7, "frame_max": 4096, "timeout": 60, "client_properties": ['{<<"product">>,longstr,<<"x">>}'],
        "node": "brokerd@here", "connected_at": 3, "user_who_performed_action": "ann"}
    assert by_key["consumer.created"] == {
        "consumer_tag": "t", "queue": "q", "vhost": "/", "channel": "<5.5>", "ack_required": False,
        "exclusive": False, "prefetch_count": 9, "arguments": ['{<<"x-priority">>,signedint,3}'],
        "user_who_performed_action": "ann"}
    assert by_key["channel.created"]["name"] == "1.2.3.4:5 (5)"
    assert "user_who_performed_action" not in by_key["connection.closed"]


def test_logins_and_alarms_are_told(vhost, events):
    bind(vhost)
    client = Client(vhost)
    events.publish_login(client, "ann", "PLAIN")
    events.publish_login(client, "bob", "PLAIN", "user 'bob' - invalid credentials")
    events.publish_alarm("memory", raised=True)
    events.publish_alarm("memory", raised=False)
    found = told(vhost)
    assert [key for key, _ in found] == [
        "user.authentication.success", "user.authentication.failure", "alarm.set", "alarm.cleared"]
    assert found[1][1] == {
        "name": "bob", "connection_name": "1.2.3.4:5", "connection_type": "network", "protocol": "{0,9,1}",
        "auth_mechanism": "PLAIN", "error": "user 'bob' - invalid credentials"}
    assert found[2][1] == {"source": "memory", "node": "brokerd@here"}


@pytest.mark.parametrize(("value", "term"), [
    (5, "signedint,5"), (1 << 40, "long,1099511627776"), (True, "bool,true"), (None, "void,undefined"),
    ('a"b', 'longstr,<<"a\\"b">>'), (b"x", 'binary,<<"x">>'), (Float32(1.5), "float,1.5"),
    (Timestamp(9), "timestamp,9"), ({"a": 1}, 'table,[{<<"a">>,signedint,1}]'),
    ([1, "x"], 'array,[{signedint,1},{longstr,<<"x">>}]'),
])
def test_arguments_are_shown_as_erlang_terms(value, term):
    assert format_table({"n": value}) == [f'{{<<"n">>,{term}}}']


# --- the log


@pytest.fixture
def log(vhost):
    soon = []
    handler = LogExchange(vhost, install(vhost, LOG_EXCHANGE), "brokerd@here", soon.append)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    logger.soon = soon
    return logger


def test_lines_are_published_by_level_when_the_loop_comes_round(vhost, log):
    bind(vhost, "warning", LOG_EXCHANGE)
    bind(vhost, "#", LOG_EXCHANGE, "other")
    log.warning("one %s", "é")
    log.info("two")
    assert vhost.core.messages == []
    assert len(log.soon) == 1
    log.soon.pop()()
    found = [(queues, key, properties.content_type, properties.headers, body)
             for queues, _, key, properties, body in vhost.core.messages]
    assert [(sorted(row[0]), *row[1:]) for row in found] == [
        (["other", "q"], b"warning", "text/plain", {"node": "brokerd@here"}, "WARNING one é".encode()),
        (["other"], b"info", "text/plain", {"node": "brokerd@here"}, b"INFO two")]
    assert vhost.core.turns == 1


def test_nothing_is_kept_of_a_log_that_nobody_reads(vhost, log):
    log.warning("one")
    assert log.soon == []


def test_what_is_too_much_of_the_log_is_lost(vhost, log):
    bind(vhost, "#", LOG_EXCHANGE)
    for n in range(1500):
        log.info("%d", n)
    log.soon.pop()()
    assert len(vhost.core.messages) == 1000


def test_a_line_that_cannot_be_formatted_stops_nobody(vhost, log, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    bind(vhost, "#", LOG_EXCHANGE)
    log.info("%d", "no number")
    log.info("next")
    log.soon.pop()()
    assert [body for *_, body in vhost.core.messages] == [b"INFO next"]


def test_a_line_that_cannot_be_formatted_is_told_to_whoever_runs_the_broker(vhost, log, capsys):
    bind(vhost, "#", LOG_EXCHANGE)
    log.info("%d", "no number")
    assert "Logging error" in capsys.readouterr().err


def test_of_policies_what_is_new_or_changed_or_gone_is_told():
    told = []

    class Told:
        @staticmethod
        def publish_named(name, fields):
            told.append((name, fields))

    same, old, new = {"name": "same", "a": 1}, {"name": "other", "a": 1}, {"name": "other", "a": 2}
    gone, more = {"name": "gone"}, {"name": "more"}
    publish_policy_changes(Told, "/", [same, old, gone], [same, new, more])
    assert told == [("policy.set", {"vhost": "/", **new}), ("policy.set", {"vhost": "/", **more}),
                    ("policy.cleared", {"vhost": "/", "name": "gone"})]
