"""What the log and the events say of links: each change once, and no password."""

import logging
from types import SimpleNamespace

import pytest

from brokerd.links.state import LinkState
from brokerd.server.link_events import tell_change, tell_end


@pytest.fixture
def node():
    told = []
    return SimpleNamespace(events=SimpleNamespace(wanted=True), told=told,
                           tell=lambda name, fields: told.append((name, fields)))


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "brokerd")
    return caplog


def shovel(state, **fields):
    return LinkState("shovel", "/", "s", state=state, source_uri="amqp://bob:s3cret@a", dest_uri="amqp://:s3cret@b",
                     **fields)


def test_a_change_is_told_once_and_figures_are_not(node, lines):
    running = shovel("running")
    tell_change(node, None, running)
    tell_change(node, running, shovel("running", messages=5, unconfirmed=3))
    assert node.told == [("shovel.worker.status", {"vhost": "/", "name": "s", "status": "running",
                                                   "src_uri": "amqp://a", "dest_uri": "amqp://b"})]
    assert lines.messages == ["shovel 's' in vhost '/': running, from amqp://a to amqp://b"]


def test_another_reason_is_an_event_but_the_log_has_had_the_state(node, lines):
    first, second = shovel("blocked", reason="low on disk"), shovel("blocked", reason="the queue is full")
    tell_change(node, None, first)
    tell_change(node, first, second)
    assert [fields["error"] for _, fields in node.told] == ["low on disk", "the queue is full"]
    assert lines.messages == ["shovel 's' in vhost '/': blocked: low on disk"]


def test_a_federation_link_is_named_by_what_it_federates(node, lines):
    link = LinkState("queue", "v", "orders", "old", state="running", source_uri="amqp://u:s3cret@h/v", messages=7)
    tell_change(node, None, link)
    tell_end(node, link)
    assert node.told == [
        ("federation.link.status", {"vhost": "v", "type": "queue", "queue": "orders", "upstream": "old",
                                    "status": "running", "uri": "amqp://h/v"}),
        ("federation.link.removed", {"vhost": "v", "type": "queue", "queue": "orders", "upstream": "old"}),
    ]  # fmt: skip
    assert lines.messages[1] == (
        "federation of queue 'orders' in vhost 'v' with upstream 'old': ended after 7 messages")
    assert "s3cret" not in lines.text


def test_no_event_is_made_where_nobody_listens(node):
    node.events.wanted = False
    tell_change(node, None, shovel("running"))
    assert node.told == []
