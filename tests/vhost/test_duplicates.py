import os

import pytest
from tests.plane.test_store import no_larger_than
from tests.session.harness import Client, Node
from tests.vhost.stand_in import Clock

from brokerd.queues.deduplication import Rule, distrust
from brokerd.store.disk import Disk
from brokerd.vhost.features import DelaysOnDemand, Doors, DuplicatesOnDemand
from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame
from brokerd.wire.properties import Properties, encode_header

DEDUPLICATES = {"x-message-deduplication": True}


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path)
    clock = Clock()
    node.vhost.duplicates = DuplicatesOnDemand(node.vhost.directory, clock)
    node.vhost.delays = DelaysOnDemand(node.vhost, Doors(clock, node.commit.wait, clock.call_at))
    return node


@pytest.fixture
def client(node):
    return Client(node).open()


def publish(client, key, *, exchange="", routing_key="q", bits=None, number=1):
    header = encode_header(1, Properties(headers={"x-deduplication-header": key}, delivery_mode=2))
    method = methods.BasicPublish(exchange=exchange, routing_key=routing_key, **(bits or {}))
    return client.raw(method.frame(number) + header_frame(number, header) + body_frames(number, b"m", 4096))


def queue(node, name="q", **arguments):
    return node.vhost.add_queue(name, durable=True, auto_delete=False, arguments={**DEDUPLICATES, **arguments})


def at_once(work, done):
    work()
    done(None)


def test_duplicates_are_counted_once_and_no_file_is_made_before_the_first_key(node, client):
    q = queue(node)
    publish_plain = Properties(delivery_mode=2)
    client.raw(methods.BasicPublish(routing_key="q").frame(1) + header_frame(1, encode_header(0, publish_plain)))
    assert not os.path.exists(f"{q.directory}/dedup")
    for key in ("a", "a", "b", "a"):
        publish(client, key)
    assert (q.ready, q.duplicates) == (3, 2)
    assert os.path.exists(f"{q.directory}/dedup")


def test_keys_are_safe_from_a_power_cut_once_their_messages_were_synced(node, client):
    q = queue(node)
    node.vhost.add_exchange("x", "fanout", durable=True, auto_delete=False, internal=False, arguments=DEDUPLICATES)
    other = node.vhost.add_queue("other", durable=True, auto_delete=False, arguments={})
    node.vhost.exchanges["x"].bind(other, "")
    synced = []

    class Watched(Disk):
        def fdatasync(self, fd, path):
            synced.append(path)
            super().fdatasync(fd, path)

    for exchange in ("", "x"):
        publish(client, "safe", exchange=exchange)
    assert node.vhost.duplicates.made().unsafe
    node.vhost.duplicates.settle(at_once, Watched())
    assert not node.vhost.duplicates.made().unsafe
    assert sorted(os.path.dirname(path) for path in synced) == sorted([q.directory, other.directory])
    for exchange in ("", "x"):
        publish(client, "late", exchange=exchange)
    windows = (q.deduplication.window, node.vhost.duplicates.made().exchanges["x"].window)
    for window in windows:
        window.close()
        distrust(window.path, print)
    for exchange in ("", "x"):
        for key in ("safe", "late"):
            publish(client, key, exchange=exchange)
    assert (q.ready, other.ready) == (3, 3)


def test_after_a_sync_that_failed_no_key_becomes_safe(node, client):
    q = queue(node)
    publish(client, "a")
    node.vhost.duplicates.settle(lambda work, done: done(OSError(5, "Input/output error")), Disk())
    node.vhost.duplicates.settle(at_once, Disk())
    q.deduplication.window.close()
    distrust(q.deduplication.window.path, print)
    publish(client, "a")
    assert q.ready == 2


def test_distrust_of_what_is_not_there_or_damaged_is_no_fault(tmp_path):
    said = []
    distrust(str(tmp_path / "dedup"), said.append)
    assert said == []
    (tmp_path / "dedup").write_bytes(b"BDUP and nothing more")
    distrust(str(tmp_path / "dedup"), said.append)
    assert "damaged" in said[0]
    assert not (tmp_path / "dedup").exists()


def test_what_was_to_be_delivered_at_once_and_was_not_is_not_known(node, client):
    q = queue(node)
    publish(client, "a", bits={"immediate": True})
    publish(client, "a")
    assert (q.ready, q.duplicates) == (1, 0)


def test_another_rule_keeps_the_keys_and_none_forgets_them(node, client):
    q = queue(node)
    publish(client, "a")
    q._deduplicate(Rule(size=4))
    q.rest()
    publish(client, "a")
    assert (q.ready, q.duplicates) == (1, 1)
    q._deduplicate(None)
    publish(client, "a")
    assert q.ready == 2
    assert not os.path.exists(f"{q.directory}/dedup")


def test_what_is_published_elsewhere_is_still_remembered_as_before(node, client):
    queue(node)
    plain = node.vhost.add_queue("plain", durable=False, auto_delete=False, arguments={})
    access = node.vhost.accesses["guest"]
    header = encode_header(0, Properties(headers={"x-deduplication-header": "a"}))
    assert access.resolve(b"", b"plain", header).cacheable
    assert not access.resolve(b"", b"q", header).cacheable
    assert plain.duplicates == 0


def test_an_exchange_knows_what_its_queues_have_had_by_another_way(node, client):
    q = queue(node)
    plain = node.vhost.add_queue("plain", durable=False, auto_delete=False, arguments={})
    node.vhost.add_exchange("x", "fanout", durable=False, auto_delete=False, internal=False, arguments=DEDUPLICATES)
    node.vhost.bind(node.vhost.exchanges["x"], q, "", {})
    publish(client, "a")
    publish(client, "a", exchange="x")
    node.vhost.bind(node.vhost.exchanges["x"], plain, "", {})
    publish(client, "a", exchange="x")
    assert (q.ready, q.duplicates, plain.ready) == (1, 1, 0)
    assert node.vhost.duplicates.made().exchanges["x"].duplicates == 1


def test_a_message_that_waited_for_room_is_compared_with_those_that_came_meanwhile(node, client):
    q = queue(node)
    other = Client(node).open()
    with no_larger_than(1000):
        publish(client, "a")
        publish(other, "a")
        assert q.ready == 0
    for each in (client, other):
        each.connection.unblock()
    assert (q.ready, q.duplicates) == (1, 1)
