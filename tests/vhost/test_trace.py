import pytest
from tests.session.harness import Log
from tests.vhost.test_events import Puts

from brokerd import plane
from brokerd.vhost.trace import EXCHANGE, Trace
from brokerd.vhost.vhost import VHost
from brokerd.wire.properties import Properties, encode_header


class Channel:
    number, peer, user = 2, "1.2.3.4:5", "ann"

    def __init__(self):
        self.connection = self


@pytest.fixture
def vhost(tmp_path):
    core = plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=lambda number: None,
                      damaged=lambda *_: None)
    vhost = VHost("/", str(tmp_path), core, Log())
    for name in ("q", "trace"):
        vhost.add_queue(name, durable=False, auto_delete=False, arguments={})
    vhost.core = Puts()
    return vhost


@pytest.fixture
def trace(vhost):
    vhost.exchanges[EXCHANGE].bind(vhost.queues["trace"], "#")
    trace = Trace(vhost, "brokerd@here")
    trace.on = True
    return trace


PROPERTIES = Properties(headers={"h": 1, "CC": ["c1", 5]}, content_type="text/x", priority=3)
OCTETS = encode_header(0, PROPERTIES)[12:]
COMMON = {
    "exchange_name": "amq.topic", "routing_keys": ["a.b", "c1"],
    "properties": {"content_type": "text/x", "headers": {"h": 1, "CC": ["c1", 5]}, "priority": 3},
    "node": "brokerd@here", "vhost": "/", "connection": "1.2.3.4:5", "channel": 2, "user": "ann",
}


def test_a_publish_is_shown_with_where_it_went(vhost, trace):
    trace.handler((vhost.queues["q"],))(Channel(), b"amq.topic", b"a.b", OCTETS, b"body")
    assert vhost.core.messages == [(["trace"], b"amq.rabbitmq.trace", b"publish.amq.topic",
                                    Properties(headers={**COMMON, "routed_queues": ["q"]}), b"body")]


def test_a_delivery_is_shown_with_its_queue(vhost, trace):
    for redelivered in (False, True):
        trace.delivered(Channel(), vhost.queues["q"], b"amq.topic", b"a.b", OCTETS, b"body", redelivered)
    assert [(key, properties.headers) for _, _, key, properties, _ in vhost.core.messages] == [
        (b"deliver.q", {**COMMON, "redelivered": 0}), (b"deliver.q", {**COMMON, "redelivered": 1})]


def test_who_was_to_have_the_message_anyway_has_it_first(vhost, trace):
    had = []
    trace.handler((), lambda *message: had.append(message))(Channel(), b"", b"k", b"\0\0", b"body")
    assert [message[1:] for message in had] == [(b"", b"k", b"\0\0", b"body")]
    assert vhost.core.messages[0][2] == b"publish."


def test_it_is_off_until_switched_on_and_every_queue_is_told(vhost, monkeypatch):
    forgotten = []
    monkeypatch.setattr(VHost, "forget_routes", lambda self: forgotten.append(self))
    trace = Trace(vhost, "brokerd@here")
    assert not trace.on

    class Queue:
        traced = False

    vhost.queues = {"q": Queue()}
    for on in (True, False):
        trace.switch(on)
        assert (trace.on, vhost.queues["q"].traced) == (on, on)
    assert forgotten == [vhost, vhost]


def test_off_or_unread_nothing_is_published(vhost, trace):
    trace.on = False
    trace.delivered(Channel(), vhost.queues["q"], b"", b"k", b"\0\0", b"", False)
    trace.on = True
    vhost.exchanges[EXCHANGE].unbind_all(vhost.queues["trace"])
    trace.delivered(Channel(), vhost.queues["q"], b"", b"k", b"\0\0", b"", False)
    assert vhost.core.messages == []


def test_what_the_trace_queue_itself_delivers_is_not_traced(vhost, trace):
    trace.delivered(Channel(), vhost.queues["trace"], EXCHANGE.encode(), b"publish.x", b"\0\0", b"", False)
    assert vhost.core.messages == []


def test_a_header_table_that_nobody_can_read_and_a_full_disk_are_no_fault(vhost, trace):
    trace.delivered(Channel(), vhost.queues["q"], b"", b"k", b"\x20\0\0\0\0\x05\x01a?xx", b"", False)
    assert vhost.core.messages[0][3].headers["properties"] == {}
    vhost.core.full = True
    trace.delivered(Channel(), vhost.queues["q"], b"", b"k", b"\0\0", b"", False)
    assert len(vhost.core.messages) == 1
