import pytest
from tests.session.harness import Client, Log, Node
from tests.session.test_basic import publish
from tests.vhost.test_events import Puts

from brokerd import plane
from brokerd.vhost.firehose import EXCHANGE, Firehose
from brokerd.vhost.vhost import VHost
from brokerd.wire import methods
from brokerd.wire.properties import Properties, decode_header, encode_header
from brokerd.wire.values import DEPTH_MAX


class Channel:
    number, peer, user = 2, "1.2.3.4:5", "ann"

    def __init__(self):
        self.connection = self


@pytest.fixture
def vhost(tmp_path):
    core = plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=lambda number: None,
                      damaged=lambda *_: None)
    vhost = VHost("/", str(tmp_path), core, Log())
    for name in ("q", "firehose"):
        vhost.add_queue(name, durable=False, auto_delete=False, arguments={})
    vhost.core = Puts()
    return vhost


@pytest.fixture
def firehose(vhost):
    vhost.exchanges[EXCHANGE].bind(vhost.queues["firehose"], "#")
    firehose = Firehose(vhost, "brokerd@here")
    firehose.on = True
    return firehose


PROPERTIES = Properties(headers={"h": 1, "CC": ["c1", 5]}, content_type="text/x", priority=3)
OCTETS = encode_header(0, PROPERTIES)[12:]
COMMON = {
    "exchange_name": "amq.topic", "routing_keys": ["a.b", "c1"],
    "properties": {"content_type": "text/x", "headers": {"h": 1, "CC": ["c1", 5]}, "priority": 3},
    "node": "brokerd@here", "vhost": "/", "connection": "1.2.3.4:5", "channel": 2, "user": "ann",
}


def test_a_publish_is_shown_with_where_it_went(vhost, firehose):
    shown = firehose.participant()
    assert shown.before_storing((vhost.queues["q"],)) == (vhost.queues["q"],)
    assert not shown.counts_as_routed
    shown.after_storing(plane.Message(b"amq.topic", b"a.b", OCTETS, b"body"), Channel(), ())  # The queue was full.
    assert vhost.core.messages == [(["firehose"], b"amq.rabbitmq.trace", b"publish.amq.topic",
                                    Properties(headers={**COMMON, "routed_queues": ["q"]}), b"body")]


def test_a_delivery_is_shown_with_its_queue(vhost, firehose):
    for redelivered in (False, True):
        firehose.delivered(Channel(), vhost.queues["q"], b"amq.topic", b"a.b", OCTETS, b"body", redelivered)
    assert [(key, properties.headers) for _, _, key, properties, _ in vhost.core.messages] == [
        (b"deliver.q", {**COMMON, "redelivered": 0}), (b"deliver.q", {**COMMON, "redelivered": 1})]


def test_no_route_is_remembered_from_before_a_switch_and_none_is_forgotten_for_nothing(vhost, monkeypatch):
    forgotten = []
    monkeypatch.setattr(VHost, "forget_routes", lambda self: forgotten.append(self))
    for on in (False, True, True, False):
        vhost.firehose.switch(on)
        assert vhost.firehose.on is on
    assert forgotten == [vhost, vhost]


def test_queues_there_are_and_those_to_come_are_told_of(tmp_path):
    vhost = Node(tmp_path).vhost
    vhost.add_queue("old", durable=False, auto_delete=False, arguments={})
    for on in (True, False):
        vhost.firehose.switch(on)
        vhost.add_queue(f"new {on}", durable=False, auto_delete=False, arguments={})
        assert [queue.reports_deliveries for queue in vhost.queues.values()] == [on] * len(vhost.queues)


def test_what_a_client_publishes_is_seen(tmp_path):
    node = Node(tmp_path)
    client = Client(node).open()
    for method in (methods.QueueDeclare(queue="firehose"), methods.QueueDeclare(queue="q"),
                   methods.QueueBind(queue="firehose", exchange=EXCHANGE, routing_key="publish.#")):
        client.ask(method)
    publish(client, "q", b"before")
    node.vhost.firehose.switch(True)
    publish(client, "q", b"1")
    publish(client, "nowhere", b"2")
    node.vhost.firehose.switch(False)
    publish(client, "q", b"after")
    assert node.vhost.queue("q").ready == 3
    seen = node.vhost.queue("firehose").browse(1, 10)
    assert [(row[4], row[6]) for row in seen] == [(b"publish.", b"1"), (b"publish.", b"2")]
    headers = decode_header(b"\0\x3c\0\0" + bytes(8) + seen[0][5])[1].headers
    assert (headers["routed_queues"], headers["routing_keys"], headers["user"]) == (["q"], ["q"], "guest")


def test_off_or_unread_nothing_is_published(vhost, firehose):
    firehose.on = False
    firehose.delivered(Channel(), vhost.queues["q"], b"", b"k", b"\0\0", b"", False)
    firehose.on = True
    vhost.exchanges[EXCHANGE].unbind_all(vhost.queues["firehose"])
    firehose.delivered(Channel(), vhost.queues["q"], b"", b"k", b"\0\0", b"", False)
    assert vhost.core.messages == []


def test_what_the_trace_queue_itself_delivers_is_not_traced(vhost, firehose):
    firehose.delivered(Channel(), vhost.queues["firehose"], EXCHANGE.encode(), b"publish.x", b"\0\0", b"", False)
    assert vhost.core.messages == []


def test_a_header_table_that_nobody_can_read_and_a_full_disk_are_no_fault(vhost, firehose):
    firehose.delivered(Channel(), vhost.queues["q"], b"", b"k", b"\x20\0\0\0\0\x05\x01a?xx", b"", False)
    assert vhost.core.messages[0][3].headers["properties"] == {}
    vhost.core.full = True
    firehose.delivered(Channel(), vhost.queues["q"], b"", b"k", b"\0\0", b"", False)
    assert len(vhost.core.messages) == 1


def test_headers_that_lie_too_deep_in_a_copy_are_shown_as_empty(vhost, firehose):
    deep = {}
    for _ in range(DEPTH_MAX):
        deep = {"k": deep}
    octets = encode_header(0, Properties(headers=deep))[12:]
    firehose.participant().after_storing(plane.Message(b"x", b"k", octets, b"body"), Channel(), ())
    ((_, _, _, properties, body),) = vhost.core.messages
    assert (properties.headers["properties"], body) == ({}, b"body")


def test_a_key_of_the_firehose_is_as_long_as_a_key_may_be(vhost, firehose):
    firehose.participant().after_storing(plane.Message(b"x" * 250, b"k", OCTETS, b""), Channel(), ())
    assert [key for _, _, key, _, _ in vhost.core.messages] == [b"publish." + b"x" * 247]
