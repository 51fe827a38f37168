"""The memory of groups and of messages that wait: what is found, forgotten, and what it costs."""

import random

from tests.plane.harness import ack, consume, publish
from tests.plane.test_groups import grouped, properties, received

GROUP_OCTETS, NODE_OCTETS = 100, 16     # at most, for each


def test_thousands_of_groups_come_and_go_and_each_is_found_by_its_key(bench):
    connection = bench.connection(1, 2)
    queue = grouped(bench)
    keys = [b"%d" % n if n % 3 else b"a-long-key-of-a-customer-%d" % n for n in range(5000)]
    for key in keys:
        connection.feed(publish(1, key, properties=properties({b"group-id": key})))
    consume(connection.channels[2], queue)
    tags = {body.encode(): tag for tag, body in received(bench, connection)}
    assert len(tags) == len(queue.gate) == 5000
    assert queue.gate.octets <= GROUP_OCTETS * 5000 + 16 * 1024
    random.Random(7).shuffle(keys)
    for key in keys[:4000]:
        assert queue.gate.find(key)["unacked"] == 1
        connection.feed(ack(2, tags[key]))
        assert queue.gate.find(key) is None
    assert all(queue.gate.find(key)["unacked"] == 1 for key in keys[4000:])
    shown, start = [], 0
    while True:
        some, start = queue.gate.groups(start, 700)
        shown += [one["key"] for one in some]
        if not start:
            break
    assert sorted(shown) == sorted(keys[4000:])


def test_a_message_that_waits_costs_16_octets(bench):
    connection = bench.connection(1, 2)
    queue = grouped(bench)
    one = publish(1, b"m", properties=properties({b"group-id": b"r"}))
    connection.feed(one * 60_000)
    consume(connection.channels[2], queue)
    assert len(received(bench, connection)) == 1
    assert queue.gate.waiting == 59_999
    assert queue.gate.octets < NODE_OCTETS * 62_000 + 100_000


def test_a_key_is_found_whether_or_not_it_needs_memory_of_its_own(bench):
    connection = bench.connection(1, 2)
    queue = grouped(bench)
    keys = [b"k" * n for n in (15, 16, 17)]
    for key in keys * 2:
        connection.feed(publish(1, b"%d" % len(key), properties=properties({b"group-id": key})))
    consume(connection.channels[2], queue)
    assert [body for _, body in received(bench, connection)] == ["15", "16", "17"]      # One of each group is out.
    assert [queue.gate.find(key)["waiting"] for key in keys] == [1, 1, 1]
    queue.check()


def test_what_comes_after_the_last_that_waited_was_taken_out_is_the_last(bench):
    connection = bench.connection(1, 2)
    queue = grouped(bench)
    one = publish(1, b"m", properties=properties({b"group-id": b"r"}))
    connection.feed(one * 3)
    consume(connection.channels[2], queue)
    assert len(received(bench, connection)) == 1
    assert queue.set_aside(3)
    connection.feed(one * 2)
    assert received(bench, connection) == []
    assert [number for number, _, _ in queue.gate.messages(b"r", 0, 9)] == [2, 4, 5]
    queue.check()
