"""Priority levels: higher first, in order within a level, made when first used."""

import os
import struct

import pytest
from tests.plane.harness import ack, consume, nack, publish


def message(priority, body, key=b"q", persistent=False):
    properties = struct.pack(">H", 1 << 12 | 1 << 11) + bytes([2 if persistent else 1, priority])
    return publish(1, body, key, properties=properties)


@pytest.fixture
def connection(bench):
    return bench.connection(1, 2)


def drain(bench, queue):
    reader = bench.connection(1)
    consume(reader.channels[1], queue, no_ack=True)
    bench.turns()
    return reader.bodies()


def test_higher_priorities_go_first_and_in_order_within_each(bench, connection):
    queue = bench.queue(max_priority=5)
    connection.feed(publish(1, b"none") + message(3, b"3a") + message(0, b"0") + message(9, b"9") + message(3, b"3b")
                    + message(5, b"5"))
    assert queue.ready == 6
    assert drain(bench, queue) == [b"9", b"5", b"3a", b"3b", b"none", b"0"]


def test_levels_are_made_when_first_used(bench, connection):
    queue = bench.queue(max_priority=255)
    connection.feed(message(7, b"x") + message(255, b"y"))
    assert sorted(os.listdir(queue.directory)) == ["prio.007", "prio.255"]
    assert sorted({segment["level"] for segment in queue.segments()}) == [7, 255]


def test_what_returns_keeps_its_level_and_its_place(bench, connection):
    queue = bench.queue(max_priority=3)
    connection.feed(message(1, b"1a") + message(2, b"2a") + message(1, b"1b") + message(2, b"2b"))
    connection.channels[2].prefetch = 3
    consume(connection.channels[2], queue)
    bench.turns()
    assert connection.bodies() == [b"2a", b"2b", b"1a"]
    connection.channels[2].cancel(connection.channels[2].consumers[b"c"])
    connection.feed(nack(2, 3, multiple=True))
    assert drain(bench, queue) == [b"2a", b"2b", b"1a", b"1b"]


def test_a_higher_one_that_comes_late_goes_before_what_waits(bench, connection):
    queue = bench.queue(max_priority=3)
    connection.channels[2].prefetch = 1
    consume(connection.channels[2], queue)
    connection.feed(message(1, b"first") + message(1, b"second") + message(3, b"urgent"))
    connection.feed(ack(2, 1))
    connection.feed(ack(2, 2))
    assert connection.bodies() == [b"urgent", b"first", b"second"]


def test_the_lowest_are_dropped_first_when_there_are_too_many(bench, connection):
    queue = bench.queue(max_priority=3, max_length=2)
    connection.feed(message(3, b"urgent") + message(0, b"a") + message(0, b"b") + message(1, b"c"))
    assert drain(bench, queue) == [b"urgent", b"c"]


def test_each_level_s_head_expires(bench, connection):
    queue = bench.queue(max_priority=2, ttl_ms=100)
    bench.at(1000)
    connection.feed(message(0, b"low"))
    bench.at(1050)
    connection.feed(message(2, b"high"))
    bench.at(1100)
    assert queue.ready == 1
    bench.at(1150)
    assert queue.ready == 0


def test_all_levels_survive_a_crash_in_order(bench, connection, make_bench):
    queue = bench.queue(max_priority=4)
    connection.feed(b"".join(message(n % 5, b"%d" % n) for n in range(50)))
    consume(connection.channels[2], queue, no_ack=True)
    connection.channels[2].cancel(connection.channels[2].consumers[b"c"])
    again = make_bench()
    findings = []
    recovered = again.recovered(max_priority=4, findings=findings)
    assert findings == []
    assert (recovered.ready, recovered.next_seq) == (50, 51)
    assert drain(again, recovered) == [b"%d" % n for level in (4, 3, 2, 1, 0) for n in range(50) if n % 5 == level]


def test_a_purge_takes_all_levels(bench, connection):
    queue = bench.queue(max_priority=4)
    connection.feed(b"".join(message(n % 5, b"%d" % n) for n in range(50)))
    assert queue.purge() == 50
    assert (queue.ready, drain(bench, queue)) == (0, [])


def test_confirms_wait_for_every_level_s_files(bench, connection):
    bench.queue(max_priority=4)
    connection.channels[1].select_confirm()
    connection.feed(message(0, b"x", persistent=True) + message(4, b"y", persistent=True))
    paths = bench.begin_sync()
    assert sum(path.endswith(("msgs.0000000001", "msgs.0000000002")) for path in paths) == 2
    assert any("prio.004" in path for path in paths)


def test_a_deleted_queue_s_unacked_messages_of_all_levels_are_nobody_s(bench, connection):
    queue = bench.queue(max_priority=2)
    connection.feed(message(2, b"x") + message(1, b"y"))
    consume(connection.channels[2], queue)
    bench.turns()
    queue.drop()
    connection.feed(ack(2, 2, multiple=True))
    assert connection.channels[2].unacked == 0


def test_a_sparse_segment_of_a_level_is_compacted_in_its_own_folder(make_bench):
    from brokerd.store.compaction import compact
    from brokerd.store.disk import Disk

    bench = make_bench(segment_octets=8192)
    connection = bench.connection(1, 2)
    queue = bench.queue(max_priority=2)
    connection.feed(b"".join(message(2, b"%d" % n) for n in range(200)))
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(b"".join(ack(2, tag) for tag in range(1, 201) if tag % 20))
    before = [segment["capacity"] for segment in queue.segments()]
    assert compact(queue, Disk())
    after = [segment["capacity"] for segment in queue.segments()]
    assert len(after) == len(before)
    assert sum(after) < sum(before)
    connection.frames()
    connection.feed(nack(2, 0, multiple=True))
    assert [one.body for one in connection.delivered()] == [b"%d" % n for n in range(19, 200, 20)]


def test_a_level_whose_messages_cannot_be_read_is_nothing_to_get_and_no_hang(bench, connection):
    queue = bench.queue(max_priority=2)
    connection.feed(message(2, b"gone") + message(1, b"there"))
    queue.rest()
    os.unlink(f"{queue.directory}/prio.002/msgs.0000000001")
    assert not connection.channels[2].get(queue, True)
