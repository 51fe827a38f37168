"""kill -9 while groups wait for a retry and are parked: a real broker and client, and an audit of its files."""

import json

import pika
import pytest
from tests.server.clients import close_all, connect

from brokerd.cli import brokerctl

DELAY_MS = 3_600_000
ARGUMENTS = {
    "x-message-group": "exclusive", "x-message-group-header": "customer", "x-order-journal": True,
    "x-delayed-retry-type": "failed", "x-delayed-retry-min": DELAY_MS, "x-delayed-retry-max": DELAY_MS,
    "x-delivery-limit": 1, "x-delivery-limit-action": "park-group",
}  # fmt: skip


@pytest.fixture
def open_channel(broker):
    yield lambda: connect(broker).channel()
    close_all()


def get(channel):
    """The next message's body and delivery tag; Nones: there is none."""
    method, _, body = channel.basic_get("orders")
    return body and body.decode(), method and method.delivery_tag


def ask(broker, capsys, *arguments):
    assert brokerctl.run(["-D", str(broker.directory), *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def states(broker, capsys):
    return {each["group"]: each["state"] for each in ask(broker, capsys, "group", "list", "orders")["items"]}


def test_retries_and_parks_of_groups_outlive_kill_9_and_the_audit_finds_no_fault(broker, open_channel, capsys):
    channel = open_channel()
    channel.queue_declare("orders", durable=True, arguments=ARGUMENTS)
    channel.confirm_delivery()
    for body in ("parked1", "waits1", "free1", "parked2", "waits2", "free2"):
        channel.basic_publish("", "orders", body, pika.BasicProperties(
            delivery_mode=2, headers={"customer": body.rstrip("12")}))
    for _ in range(2):                          # By nack it comes again at once; the second failure is one too many.
        body, tag = get(channel)
        assert body == "parked1"
        channel.basic_nack(tag)
    body, tag = get(channel)
    assert body == "waits1"
    channel.basic_reject(tag)
    body, tag = get(channel)
    assert body == "free1"
    channel.basic_ack(tag)
    assert states(broker, capsys) == {"parked": "parked", "waits": "retrying", "free": "waiting"}
    for _ in range(2):
        broker.kill()
        broker.start()
        assert states(broker, capsys) == {"parked": "parked", "waits": "retrying", "free": "waiting"}
    channel = open_channel()
    body, tag = get(channel)
    assert body == "free2"
    channel.basic_ack(tag)
    for group in ("waits", "parked"):
        assert get(channel) == (None, None)
        assert ask(broker, capsys, "group", "release", "orders", group)["changed"]
        for number in (1, 2):
            body, tag = get(channel)
            assert body == f"{group}{number}"
            channel.basic_ack(tag)
    assert get(channel) == (None, None)
    broker.stop()
    assert brokerctl.run(["audit", str(broker.directory), "--group-header", "customer"]) == 0
