"""Operations that receive messages of a real broker, and settle them by receipt."""

import json
import threading

import pika
import pytest
from tests.server.clients import close_all, connect, count
from tests.server.test_control import Peer
from tests.server.test_operations import ask


@pytest.fixture
def peer(broker):
    peer = Peer(broker)
    yield peer
    peer.close()
    close_all()


@pytest.fixture
def channel(broker, peer):
    channel = connect(broker).channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    return channel


def publish(channel, *bodies):
    for body in bodies:
        channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2, type="order"))


def receive(peer, **fields):
    return ask(peer, "message receive", queue="q", **fields)["items"]


def test_messages_are_received_and_settled_by_receipt(channel, peer):
    publish(channel, b"1", b"2", b"3")
    rows = receive(peer, count=10)
    assert [row["payload"] for row in rows] == ["1", "2", "3"]
    assert rows[0]["properties"] == {"delivery_mode": 2, "type": "order"}
    assert receive(peer) == []
    receipts = ",".join(row["receipt"] for row in rows[:2])
    assert ask(peer, "message ack", queue="q", receipts=receipts) == {"messages": 2}
    assert ask(peer, "message nack", queue="q", receipts=rows[2]["receipt"]) == {"messages": 1}
    assert count(channel, "q") == 1
    (again,) = receive(peer)
    assert (again["payload"], again["redelivered"]) == ("3", True)


def test_a_message_that_is_not_settled_in_time_comes_back(channel, peer):
    publish(channel, b"1")
    (row,) = receive(peer, visibility=0.05)
    (again,) = receive(peer, wait=20)
    assert (again["payload"], again["redelivered"]) == ("1", True)
    assert again["receipt"] != row["receipt"]
    assert ask(peer, "message extend", queue="q", receipts=again["receipt"], visibility=60) == {"messages": 1}


@pytest.mark.parametrize("visibility", [0, 43_201, True, "1"])
def test_a_time_out_of_its_bounds_is_refused(peer, channel, visibility):
    answer = peer.ask(verb="message receive", queue="q", visibility=visibility)
    assert "visibility must be a number from 0.01 to 43200" in answer["error"]


def test_a_receiver_waits_until_a_message_comes(channel, peer):
    found = []
    thread = threading.Thread(target=lambda: found.extend(receive(peer, wait=20)))
    thread.start()
    publish(channel, b"late")
    thread.join()
    assert [row["payload"] for row in found] == ["late"]


def test_what_is_out_is_ready_after_kill_9(broker, channel, peer):
    publish(channel, b"1")
    receive(peer, attempt="a")
    close_all()
    broker.restart(kill=True)
    channel = connect(broker).channel()
    method, _, body = channel.basic_get("q", auto_ack=True)
    assert (body, method.redelivered) == (b"1", True)


def test_a_receipt_that_is_named_twice_is_one_message(channel, peer):
    publish(channel, b"1")
    (row,) = receive(peer)
    assert ask(peer, "message ack", queue="q", receipts=f"{row['receipt']}, {row['receipt']}") == {"messages": 1}


def test_a_trace_shows_what_is_received(broker, channel, peer):
    ask(peer, "tracer start", name="t", pattern="deliver.q", format="json")
    publish(channel, b"1")
    (row,) = receive(peer)
    assert ask(peer, "tracer stop", name="t") == {"messages": 1, "missed": 0}
    (record,) = map(json.loads, (broker.directory / "traces" / "t.log").read_text().splitlines())
    assert (record["queue"], record["user"], record["connection"]) == ("q", "", "")
    assert ask(peer, "message ack", queue="q", receipts=row["receipt"]) == {"messages": 1}
