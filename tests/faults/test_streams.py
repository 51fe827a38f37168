"""Streams over kill -9: confirmed messages are there, and a named reader goes on exactly behind its acks."""

import json
import random

from tests.broker import SECONDS, Broker
from tests.conversations.peer import Peer

from brokerd import local_socket
from brokerd.wire import methods

STREAM = {"x-queue-type": "stream"}
KILLS, MESSAGES = 6, 60


def test_kill_9_costs_no_reader_a_message_or_an_order(tmp_path):
    chance = random.Random(11)
    published, acknowledged = 0, {"slow": 0, "fast": 0}
    with Broker(tmp_path / "data") as broker:
        with Peer(broker.port) as peer:
            peer.open()
            peer.declare(STREAM, "events", durable=True, exclusive=False)
            for name in acknowledged:       # Their offsets are kept from the first message on.
                read(peer, name)
        for _ in range(KILLS):
            with Peer(broker.port) as peer:
                peer.open()
                peer.confirming()
                for _ in range(MESSAGES):
                    published += 1
                    assert peer.put("events", b"%d" % published, delivery_mode=2)
            for name, done in acknowledged.items():
                with Peer(broker.port) as peer:
                    peer.open()
                    read(peer, name)
                    tag = 0
                    for offset in range(done + 1, published + 1):
                        message = peer.delivered()
                        tag += 1
                        assert (message.headers["x-stream-offset"], message.body) == (offset, b"%d" % offset)
                    acked = chance.randrange(tag + 1)
                    if acked:
                        peer.send(methods.BasicAck(delivery_tag=acked, multiple=True))
                    peer.prefetch(7)        # Its answer says that the broker has read the ack.
                    acknowledged[name] = done + acked
            broker.restart(kill=True)
            with Peer(broker.port) as peer:
                peer.open()
                assert peer.count("events")[0] == published
    broker.check_log()


def test_kill_9_costs_readers_that_share_no_message_and_no_order_of_a_key(tmp_path):
    chance = random.Random(12)
    published, acknowledged = 0, set()
    shared = {"x-stream-reader": "billing", "x-stream-partitions": "hash"}
    with Broker(tmp_path / "data") as broker:
        for round_ in range(3):
            with Peer(broker.port) as peer:
                peer.open()
                peer.declare(STREAM, "events", durable=True, exclusive=False)
                peer.confirming()
                for _ in range(MESSAGES):
                    published += 1
                    assert peer.put("events", b"%d" % published, delivery_mode=2,
                                    headers={"group-id": f"k{published % 7}"})
                peer.open_channel(2)
                begins = {} if round_ else {"x-stream-offset": "first"}
                for channel in (1, 2):
                    peer.prefetch(1000, channel)
                peer.send(*[(channel, methods.BasicConsume(queue="events", consumer_tag=f"t{channel}", no_wait=True,
                                                           arguments=shared | begins)) for channel in (1, 2)])
                first = min(set(range(1, published + 1)) - acknowledged)
                last, acknowledged = {}, set(range(1, first))     # Acks behind the lowest are not kept.
                for _ in range(first, published + 1):   # from the lowest that no reader acknowledged
                    message = peer.delivered()
                    offset, key = message.headers["x-stream-offset"], message.headers["group-id"]
                    assert offset > last.get(key, 0), f"round {round_}: key {key}"
                    last[key] = offset
                    if chance.random() < 0.7:
                        channel = int(message.method.consumer_tag[1:])
                        peer.send((channel, methods.BasicAck(delivery_tag=message.method.delivery_tag)))
                        acknowledged.add(offset)
                for channel in (1, 2):
                    peer.prefetch(7, channel)
            broker.restart(kill=True)
    broker.check_log()


def test_kill_9_costs_no_reader_the_count_of_what_it_missed(tmp_path):
    arguments = STREAM | {"x-max-length": 10, "x-stream-max-segment-size-bytes": 4096}
    acknowledged = firsts = 0
    with Broker(tmp_path / "data") as broker:
        for round_ in range(4):
            with Peer(broker.port) as peer:
                peer.open()
                peer.declare(arguments, "events", durable=True, exclusive=False)
                peer.confirming()
                if round_:
                    read(peer, "slow", prefetch=1)
                    came = peer.delivered().headers["x-stream-offset"]
                    if round_ > 1:
                        peer.send(methods.BasicAck(delivery_tag=1))
                        acknowledged += 1
                        assert peer.delivered().headers["x-stream-offset"] == came + 1
                else:                           # Its offset is kept from the first message on.
                    read(peer, "slow", prefetch=1)
                for _ in range(60):
                    assert peer.put("events", b"." * 600, delivery_mode=2)
            broker.restart(kill=True)
            listed = told(broker, "stream readers", queue="events")
            (row,) = listed["items"]
            assert listed["first_offset"] > firsts
            firsts = listed["first_offset"]
            # All that it did not acknowledge is gone: before its place, or what it held.
            assert (row["reads"], row["missed"]) == (False, firsts - 1 - acknowledged), f"round {round_}"
    broker.check_log()


def told(broker, operation, **fields):
    with local_socket.connect(str(broker.directory), SECONDS) as control, control.makefile("rb") as lines:
        control.sendall(json.dumps({"verb": operation, **fields}).encode() + b"\n")
        answer = json.loads(lines.readline())
    return answer["result"]


def read(peer, name, prefetch=1000):
    peer.prefetch(prefetch)
    peer.consume("events", name, no_ack=False, arguments={"x-stream-reader": name})


WINDOW = 40


def test_a_stream_knows_its_publishers_keys_over_kill_9_restarts_and_retention(tmp_path):
    arguments = STREAM | {"x-message-deduplication": True, "x-cache-size": WINDOW, "x-max-length": 10,
                          "x-stream-max-segment-size-bytes": 4096}
    keys, offsets = [], 0
    with Broker(tmp_path / "data") as broker:
        for round_ in range(4):
            with Peer(broker.port) as peer:
                peer.open()
                peer.declare(arguments, "events", durable=True, exclusive=False)
                peer.confirming()
                if keys:                # What was stored before is known: also the keys of messages that are removed.
                    for key in keys[-WINDOW:]:
                        assert put(peer, key)
                for key in [f"{round_}-{i}" for i in range(30)]:
                    assert put(peer, key)
                    assert put(peer, key)
                    keys.append(key)
                    offsets += 1
                assert kept_offsets(peer)[-1] == offsets, f"round {round_}"
                assert len(kept_offsets(peer)) < 30         # Retention has taken segments.
            broker.restart(kill=round_ % 2 == 0)
        with Peer(broker.port) as peer:
            peer.open()
            peer.confirming()
            assert put(peer, keys[-WINDOW - 1])             # The window has forgotten it: it is stored once more.
            assert kept_offsets(peer)[-1] == offsets + 1
    broker.check_log()


def put(peer, key):
    return peer.put("events", b"." * 900, delivery_mode=2, headers={"x-deduplication-header": key})


def kept_offsets(peer):
    """The offsets of all messages that are kept."""
    count = peer.count("events")[0]
    peer.prefetch(1000)
    peer.consume("events", "all", no_ack=False, arguments={"x-stream-offset": "first"})
    offsets = [peer.delivered().headers["x-stream-offset"] for _ in range(count)]
    peer.ask(methods.BasicCancel(consumer_tag="all"))
    return offsets
