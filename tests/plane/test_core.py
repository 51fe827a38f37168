"""The turn, alarms, and objects that go away in any order."""

import gc
import os

import pytest
from tests.plane.harness import HEADER, Bench, Connection, consume, frame, publish

from brokerd import plane


def test_an_alarm_stops_who_publishes_and_nobody_else(bench):
    queue, publisher, reader = bench.queue(), bench.connection(1), bench.connection(1)
    consume(reader.channels[1], queue, no_ack=True)
    bench.core.blocked = True
    publisher.feed(publish(1, b"the last"))
    reader.feed(frame(8, 0, b""))
    assert (publisher.told_blocked, publisher.stopped, publisher.out.reading) == (1, True, False)
    assert (reader.told_blocked, reader.stopped, reader.out.reading) == (0, False, True)
    assert reader.bodies() == [b"the last"]
    bench.core.blocked = False
    publisher.unblock()
    assert (publisher.stopped, publisher.out.reading) == (False, True)
    publisher.feed(publish(1, b"goes on"))
    assert publisher.told_blocked == 1
    assert reader.bodies() == [b"goes on"]


def test_an_alarm_forgets_what_was_published_before_it_also_by_a_connection_whose_channels_are_gone(bench):
    connection = bench.connection(1)
    bench.queue()
    connection.feed(publish(1, b"x"))
    assert connection.publishes
    connection.channels[1].close()
    bench.core.blocked = True
    assert not connection.publishes


def test_a_blocked_publisher_is_told_once(bench):
    bench.queue()
    publisher = bench.connection(1)
    bench.core.blocked = True
    for _ in range(3):
        publisher.feed(publish(1, b"x"))
    assert publisher.told_blocked == 1


def test_a_turn_inside_a_turn_is_harmless(bench):
    queue, connection = bench.queue(), bench.connection(1)
    connection.out.on_write = bench.core.turn
    consume(connection.channels[1], queue, no_ack=True)
    connection.feed(publish(1, b"x" * 100_000) * 5)
    assert len(connection.bodies()) == 5


def test_upcalls_may_use_the_plane(bench):
    queue = bench.queue()

    class Busy(Connection):
        def on_method(self, channel, payload):
            self.channels[1].get(queue, True)
            bench.core.turn()
            queue.purge()
            self.channels[1].recover()

    connection = Busy(bench.core)
    connection.routes = bench.routes
    connection.feed(HEADER)
    plane.Channel(connection, 1)
    connection.feed(publish(1, b"1") + publish(1, b"2") + frame(1, 1, b"\0\x3c\0\x46") + publish(1, b"3"))
    assert [one.body for one in connection.said()] == [b"1"]
    assert queue.ready == 1
    connection.detach()


@pytest.mark.parametrize("there", [True, False])
def test_the_plane_knows_of_one_filesystem_until_a_segment_lies_elsewhere(make_bench, tmp_path, there):
    device = os.stat(tmp_path).st_dev + (not there)
    bench = make_bench(device=device)
    queue = bench.queue()
    assert bench.core.device == device
    bench.core.put((queue,), b"", b"q", b"\0\0", b"")
    assert bench.core.device == (device if there else 0)


def test_begin_and_end_of_sync_with_nothing_to_do_are_harmless(bench):
    assert bench.core.begin_sync(64) == []
    bench.core.end_sync()
    assert bench.core.take_garbage() == []


def test_the_broker_s_own_messages_may_be_larger_than_what_clients_may_publish_now(make_bench):
    """One that a transaction had decided on, before the limit was lowered, is not lost."""
    bench = make_bench(message_octets_max=1000)
    queue = bench.queue()
    bench.core.put((queue,), b"", b"q", b"\0\0", b"b" * 5000)
    assert queue.ready == 1
    assert b"b" * 5000 in queue.browse(0, 1)[0]


@pytest.mark.parametrize("seed", range(8))
def test_objects_may_go_in_any_order_without_being_closed(tmp_path, seed):
    bench = Bench(tmp_path, segment_octets=4096)
    queue, connection = bench.queue(), bench.connection(1, 2)
    connection.channels[1].select_confirm()
    connection.feed(publish(1, b"x" * 1000, persistent=True) * 10)
    consumer = consume(connection.channels[2], queue)
    if seed & 1:
        bench.turns()
    if seed & 2:
        queue.drop()
    if seed & 4:
        connection.feed(publish(1, b"in parts")[:-14])
        connection.write(b"x" * 400_000)
    bench.cycle = bench
    del bench, queue, connection, consumer
    gc.collect()
