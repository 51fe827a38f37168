"""Dead letters of a real broker whose policies are changed while queues live."""

import json
import os
import signal

import pytest
from tests.server.clients import close_all, connect, drain, publish_confirmed

from brokerd.store.format import folder_name


@pytest.fixture
def channel(broker):
    yield connect(broker).channel()
    close_all()


@pytest.fixture
def policies(broker):
    """Put these policies in force, by file and reload."""
    def put(*rows):
        path = broker.directory / folder_name("/") / "policies.json"
        path.write_text(json.dumps(rows))
        begin = len(broker.lines)
        os.kill(broker.pid, signal.SIGHUP)
        broker.wait_for_log("reloaded", begin)

    return put


def die(channel, *bodies):
    """Publish to the queue "q" and reject."""
    publish_confirmed(channel, "q", bodies)
    for _ in bodies:
        method, _, _ = channel.basic_get("q")
        channel.basic_reject(method.delivery_tag, requeue=False)
    channel.queue_declare("q", passive=True)


def to(key):
    return {"name": "dead", "pattern": "^q$",
            "definition": {"dead-letter-exchange": "", "dead-letter-routing-key": key}}


def test_a_reload_of_policies_changes_where_the_next_dead_letters_go(channel, policies):
    for name in ("q", "one", "two"):
        channel.queue_declare(name, durable=True)
    die(channel, b"before")
    policies(to("one"))
    die(channel, b"1", b"2")
    policies(to("two"))
    die(channel, b"3")
    policies()
    die(channel, b"between")
    policies(to("one"))
    die(channel, b"4")
    assert (drain(channel, "one"), drain(channel, "two")) == ([b"1", b"2", b"4"], [b"3"])


def test_a_reload_of_policies_changes_the_alternate_exchange_of_a_dead_letter_exchange(channel, policies):
    def by(name):
        return {"name": "alternate", "pattern": "^dlx$", "apply-to": "exchanges",
                "definition": {"alternate-exchange": name}}

    channel.queue_declare("q", durable=True, arguments={"x-dead-letter-exchange": "dlx"})
    channel.exchange_declare("dlx", "direct", durable=True)
    for name in ("one", "two"):
        channel.exchange_declare(name, "fanout", durable=True)
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, name)
    die(channel, b"before")
    for name in ("one", "two"):
        policies(by(name))
        die(channel, name.encode())
    policies()
    die(channel, b"after")
    assert (drain(channel, "one"), drain(channel, "two")) == ([b"one"], [b"two"])
