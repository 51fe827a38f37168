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
