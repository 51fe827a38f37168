"""Who gets the next message: round robin, priorities, credit."""

import gc
import os
import subprocess
import sys

import pytest
from tests.plane.harness import PERSISTENT, Queue, ack, consume, frame, nack, publish

from brokerd import plane


@pytest.fixture
def queue(bench):
    return bench.queue()


@pytest.fixture
def connection(bench, queue):
    return bench.connection(1, 2, 3)


def numbered(first, last):
    return b"".join(publish(1, b"%d" % at) for at in range(first, last + 1))


def by_tag(deliveries):
    tags = {}
    for one in deliveries:
        tags.setdefault(one.consumer, []).append(int(one.body))
    return tags


def test_a_delivery_says_who_what_and_where_from(bench, queue, connection):
    channel = connection.channels[2]
    consume(channel, queue, b"some tag")
    bench.bound[b"ex", b"the key"] = (b"q",)
    connection.feed(publish(1, b"hello", b"the key", exchange=b"ex", persistent=True))
    bench.turns()
    got, = connection.delivered()
    assert (got.method, got.channel, got.consumer, got.tag, got.redelivered) == (60, 2, b"some tag", 1, False)
    assert (got.exchange, got.key, got.properties, got.body) == (b"ex", b"the key", PERSISTENT, b"hello")
    assert (queue.ready, queue.unacked, channel.unacked) == (0, 1, 1)


@pytest.mark.parametrize("tag", [b"", b"t" * 255])
def test_a_consumer_tag_may_be_empty_or_255_octets(bench, queue, connection, tag):
    consume(connection.channels[1], queue, tag)
    connection.feed(publish(1, b"x"))
    assert connection.delivered()[0].consumer == tag


def test_a_consumer_tag_of_256_octets_is_refused(queue, connection):
    with pytest.raises(ValueError, match="255"):
        consume(connection.channels[1], queue, b"t" * 256)
    assert queue.consumer_count == 0


def test_round_robin_is_strict_over_chunks_and_turns(bench, queue, connection):
    for tag in (b"a", b"b", b"c"):
        consume(connection.channels[2], queue, tag, no_ack=True)
    served = []
    for at in range(10):
        connection.feed(publish(1, b"%d" % at))
        served += [one.consumer for one in connection.delivered()]
    connection.feed(numbered(1, 20))
    served += [one.consumer for one in connection.delivered()]
    assert served == ([b"a", b"b", b"c"] * 10)


def test_round_robin_goes_on_when_acknowledging_consumers_are_mixed_with_others(bench, queue, connection):
    consume(connection.channels[2], queue, b"acks")
    consume(connection.channels[2], queue, b"none", no_ack=True)
    connection.feed(numbered(1, 6))
    got = connection.delivered()
    assert [one.consumer for one in got] == [b"acks", b"none"] * 3
    assert [one.tag for one in got] == [1, 2, 3, 4, 5, 6]
    assert connection.channels[2].unacked == 3
    connection.feed(ack(2, 3) + ack(2, 5))
    assert not connection.errors
    connection.feed(ack(2, 2))
    assert connection.fault[:4] == (2, 406, False, "unknown delivery tag 2")


def test_higher_priority_is_served_while_it_has_credit(bench, queue, connection):
    channel = connection.channels[2]
    channel.prefetch = 2
    consume(channel, queue, b"low", priority=-1)
    consume(channel, queue, b"high", priority=10)
    channel.prefetch = 0
    consume(channel, queue, b"middle", priority=5)
    connection.feed(numbered(1, 6))
    got = connection.delivered()
    assert by_tag(got) == {b"high": [1, 2], b"middle": [3, 4, 5, 6]}
    connection.feed(ack(2, 1) + publish(1, b"7"))
    assert by_tag(connection.delivered()) == {b"high": [7]}


def test_within_one_priority_round_robin_holds(bench, queue, connection):
    for tag, priority in ((b"x", 1), (b"y", 0), (b"z", 1)):
        consume(connection.channels[2], queue, tag, no_ack=True, priority=priority)
    connection.feed(numbered(1, 4))
    assert by_tag(connection.delivered()) == {b"x": [1, 3], b"z": [2, 4]}


def test_the_next_priority_has_its_turn_when_the_highest_leaves(bench, queue, connection):
    high = consume(connection.channels[2], queue, b"high", no_ack=True, priority=1)
    consume(connection.channels[2], queue, b"low", no_ack=True)
    connection.feed(numbered(1, 1))
    connection.channels[2].cancel(high)
    connection.feed(numbered(2, 2))
    assert by_tag(connection.delivered()) == {b"high": [1], b"low": [2]}
    assert queue.consumer_count == 1


def test_prefetch_counts_for_each_consumer_alone(bench, queue, connection):
    channel = connection.channels[2]
    channel.prefetch = 2
    first = consume(channel, queue, b"two")
    channel.prefetch = 1
    second = consume(channel, queue, b"one")
    connection.feed(numbered(1, 9))
    assert by_tag(connection.delivered()) == {b"two": [1, 3], b"one": [2]}
    assert (first.prefetch, first.unacked, second.prefetch, second.unacked) == (2, 2, 1, 1)
    connection.feed(ack(2, 2))
    assert by_tag(connection.delivered()) == {b"one": [4]}
    connection.feed(ack(2, 3, multiple=True))
    assert by_tag(connection.delivered()) == {b"two": [5, 6]}
    assert queue.ready == 3


def test_prefetch_does_not_bind_who_does_not_ack(bench, queue, connection):
    connection.channels[2].prefetch = 1
    connection.channels[2].global_prefetch = 1
    consume(connection.channels[2], queue, no_ack=True)
    connection.feed(numbered(1, 9))
    assert len(connection.delivered()) == 9


def test_global_prefetch_counts_all_of_a_channel(bench, queue, connection):
    other = bench.queue(b"other")
    channel = connection.channels[2]
    channel.global_prefetch = 3
    consume(channel, queue, b"a")
    consume(channel, other, b"b")
    connection.feed(numbered(1, 2) + publish(1, b"3", b"other") * 3)
    assert len(connection.delivered()) == 3
    assert channel.unacked == 3
    connection.feed(ack(2, 1))
    assert len(connection.delivered()) == 1
    channel.global_prefetch = 0
    bench.turns()
    assert queue.ready + other.ready == 0


def test_global_prefetch_may_grow_and_shrink(bench, queue, connection):
    channel = connection.channels[2]
    channel.global_prefetch = 1
    consume(channel, queue)
    connection.feed(numbered(1, 9))
    channel.global_prefetch = 4
    bench.turns()
    assert channel.unacked == 4
    channel.global_prefetch = 2
    connection.feed(ack(2, 1))
    assert channel.unacked == 3
    connection.feed(ack(2, 3, multiple=True))
    assert channel.unacked == 2


def test_flow_stops_deliveries_and_starts_them_again(bench, queue, connection):
    channel = connection.channels[2]
    consume(channel, queue, no_ack=True)
    channel.flow = False
    connection.feed(numbered(1, 3))
    assert connection.frames() == []
    assert not channel.flow
    channel.flow = True
    bench.turns()
    assert connection.bodies() == [b"1", b"2", b"3"]


def test_a_channel_without_flow_leaves_messages_to_others(bench, queue, connection):
    consume(connection.channels[1], queue, b"stopped", no_ack=True)
    consume(connection.channels[2], queue, b"going", no_ack=True)
    connection.channels[1].flow = False
    connection.feed(numbered(1, 3))
    assert by_tag(connection.delivered()) == {b"going": [1, 2, 3]}


def test_a_paused_queue_delivers_nothing_and_gives_nothing(bench, queue, connection):
    queue.paused = True
    consume(connection.channels[2], queue, no_ack=True)
    connection.feed(numbered(1, 2))
    assert connection.frames() == []
    assert not connection.channels[1].get(queue, True)
    queue.paused = False
    bench.turns()
    assert connection.bodies() == [b"1", b"2"]


def test_a_turn_has_an_end_and_asks_for_another(make_bench):
    bench = make_bench(deliver_octets_per_turn=300_000)
    queue, connection = bench.queue(), bench.connection(1, 2)
    for _ in range(100):
        connection.feed(publish(1, b"z" * 10_000))
    consume(connection.channels[2], queue, no_ack=True)
    assert bench.scheduled == 0
    bench.core.turn()
    assert bench.scheduled == 1
    assert 0 < len(connection.delivered()) < 100
    assert queue.ready > 0
    bench.turns()
    assert queue.ready == 0


def test_queues_have_turns_in_a_turn(make_bench):
    bench = make_bench(deliver_octets_per_turn=1 << 20)
    connection = bench.connection(1, 2)
    for name in (b"a", b"b"):
        bench.queue(name)
        for _ in range(200):
            connection.feed(publish(1, name * 5_000, name))
    for name in (b"a", b"b"):
        consume(connection.channels[2], bench.queues[name], name, no_ack=True)
    bench.core.turn()
    assert {one.consumer for one in connection.delivered()} == {b"a", b"b"}


def test_deliveries_to_many_connections_reach_each(bench, queue):
    publisher = bench.connection(1)
    readers = [bench.connection(1) for _ in range(20)]
    for reader in readers:
        consume(reader.channels[1], queue, no_ack=True)
    publisher.feed(numbered(1, 100))
    assert [len(reader.delivered()) for reader in readers] == [5] * 20


def test_a_cancelled_consumer_gets_no_more_and_keeps_what_it_has(bench, queue, connection):
    channel = connection.channels[2]
    consumer = consume(channel, queue)
    connection.feed(numbered(1, 2))
    channel.cancel(consumer)
    channel.cancel(consumer)
    connection.feed(numbered(3, 3))
    assert len(connection.delivered()) == 2
    assert (channel.consumers, queue.consumers, queue.consumer_count, channel.unacked) == ({}, {}, 0, 2)
    connection.feed(ack(2, 1) + nack(2, 2))
    assert not connection.errors
    assert (queue.ready, queue.unacked, consumer.unacked) == (2, 0, 0)


def test_the_redelivered_flag_is_set_from_the_second_delivery_on(bench, queue, connection):
    consume(connection.channels[2], queue)
    connection.feed(numbered(1, 1))
    assert not connection.delivered()[0].redelivered
    for tag in (1, 2):
        connection.feed(nack(2, tag))
        assert connection.delivered()[0].redelivered
    assert queue.redelivered == 2
    assert queue.returned == 2


def test_get_gives_the_next_message_with_how_many_remain(bench, queue, connection):
    channel = connection.channels[3]
    assert not channel.get(queue, False)
    connection.feed(numbered(1, 3))
    assert channel.get(queue, False)
    assert channel.get(queue, True)
    bench.turns()
    one, two = connection.delivered()
    assert (one.method, one.channel, one.tag, one.remaining, one.body) == (71, 3, 1, 2, b"1")
    assert (two.tag, two.remaining, two.body, two.redelivered) == (2, 1, b"2", False)
    assert (queue.unacked, queue.got, queue.acked) == (1, 2, 1)
    connection.feed(nack(3, 1))
    assert channel.get(queue, True)
    bench.turns()
    back, = connection.delivered()
    assert (back.body, back.redelivered, back.tag) == (b"1", True, 3)


def test_get_does_not_count_for_a_consumers_prefetch(bench, queue, connection):
    channel = connection.channels[2]
    channel.prefetch = 1
    connection.feed(numbered(1, 3))
    channel.get(queue, False)
    consumer = consume(channel, queue)
    bench.turns()
    assert (consumer.unacked, channel.unacked) == (1, 2)


def test_a_wide_window_of_unacked_deliveries_is_kept_in_order(bench, queue, connection):
    consume(connection.channels[2], queue)
    connection.feed(numbered(1, 5000))
    assert [one.tag for one in connection.delivered()] == list(range(1, 5001))
    for tag in range(5000, 0, -2):
        connection.feed(ack(2, tag))
    assert connection.channels[2].unacked == 2500
    connection.feed(nack(2, 4999, multiple=True))
    assert [int(one.body) for one in connection.delivered()] == list(range(1, 5001, 2))


# ---- basic.get does with a message all that basic.deliver does

def by_get(bench, connection, queue, *, no_ack=False):
    assert connection.channels[2].get(queue, no_ack)
    bench.turns()


def by_consume(bench, connection, queue, *, no_ack=False):
    channel = connection.channels[2]
    channel.prefetch = 1
    queue.paused = True
    one = consume(channel, queue, b"%d" % bench.scheduled, no_ack=no_ack)
    queue.paused = False
    bench.turns()
    channel.cancel(one)


@pytest.fixture(params=[by_get, by_consume])
def hand_out(request):
    """Hand out the next message, on channel 2."""
    return request.param


def test_what_is_handed_out_is_counted(bench, hand_out):
    queue, connection = bench.queue(delivery_counts=True), bench.connection(1, 2)
    connection.feed(publish(1, b"12345") + publish(1, b"123"))
    hand_out(bench, connection, queue)
    assert (queue.ready, queue.unacked, queue.ready_octets, queue.redelivered) == (1, 1, 3, 0)
    connection.feed(nack(2, 1))
    assert (queue.ready, queue.ready_octets) == (2, 8)
    connection.frames()
    hand_out(bench, connection, queue)
    one, = connection.delivered()
    assert (one.redelivered, one.tag, one.body) == (True, 2, b"12345")
    assert b"x-delivery-count" in one.properties
    assert (queue.redelivered, queue.got + queue.delivered, queue.acked) == (1, 2, 0)
    connection.feed(ack(2, 2))
    hand_out(bench, connection, queue, no_ack=True)
    assert (queue.ready, queue.unacked, queue.acked) == (0, 0, 2)


def test_who_is_handed_a_message_uses_its_queue(bench, hand_out):
    bench.at(1000)
    queue, connection = bench.queue(), bench.connection(1, 2)
    connection.feed(publish(1, b"x"))
    bench.at(5000)
    assert queue.unused_since == 1000 * 1_000_000
    hand_out(bench, connection, queue)
    assert queue.unused_since == queue.touched == 5000 * 1_000_000


def test_what_is_handed_out_is_told_where_that_is_asked(bench, hand_out):
    told = []

    class Traced(Queue):
        def on_delivered(self, channel, exchange, key, properties, body, redelivered):
            told.append((channel.number, key, body, redelivered))

    queue = bench.queues[b"q"] = Traced(bench.core, f"{bench.directory}/q", durable=True)
    queue.reports_deliveries = True
    connection = bench.connection(1, 2)
    connection.feed(publish(1, b"x"))
    hand_out(bench, connection, queue)
    connection.feed(nack(2, 1))
    hand_out(bench, connection, queue, no_ack=True)
    assert told == [(2, b"q", b"x", False), (2, b"q", b"x", True)]


def test_what_needs_no_ack_leaves_the_tag_of_a_timed_out_delivery_known(bench, hand_out):
    bench.at(1000)
    queue, connection = bench.queue(consumer_timeout_ms=100), bench.connection(1, 2)
    other = bench.queue(b"other")
    connection.feed(publish(1, b"x") + publish(1, b"y", key=b"other") * 40)
    by_consume(bench, connection, queue)
    bench.at(1200)
    bench.core.return_overdue()
    for _ in range(40):
        hand_out(bench, connection, other, no_ack=True)
    connection.feed(ack(2, 1))
    assert (connection.channels[2].late, connection.errors) == (1, [])


def test_recover_settles_a_delivery_that_timed_out_also_where_no_other_is_out(bench):
    bench.at(1000)
    queue, connection = bench.queue(consumer_timeout_ms=100), bench.connection(1, 2)
    connection.feed(publish(1, b"x"))
    by_consume(bench, connection, queue)
    bench.at(1200)
    bench.core.return_overdue()
    channel = connection.channels[2]
    assert channel.recover()
    assert (channel.late, queue.ready, queue.unacked) == (1, 1, 0)
    connection.feed(ack(2, 1))      # Its tag is not known any more.
    assert (channel.late, connection.fault[1]) == (1, 406)


@pytest.mark.parametrize("closes", [False, True])
def test_a_delivery_that_a_transaction_is_to_settle_does_not_time_out(bench, closes):
    bench.at(1000)
    queue, connection = bench.queue(consumer_timeout_ms=100, timeout_closes=closes), bench.connection(1, 2)
    connection.feed(b"".join(publish(1, body) for body in (b"x", b"y", b"z")))
    channel = connection.channels[2]
    consume(channel, queue)
    bench.turns()
    channel.claim(2, True, 0)
    channel.settle(3, False)
    bench.at(1200)
    assert bench.core.return_overdue() == []
    assert (queue.unacked, queue.timed_out) == (2, 0)
    channel.settle(2, False)
    channel.disclaim()
    assert len(bench.core.return_overdue()) == closes
    assert (queue.unacked, queue.timed_out) == (closes, 1 - closes)


def test_the_next_delivery_in_the_place_of_one_that_was_claimed_times_out(bench):
    bench.at(1000)
    queue, connection = bench.queue(consumer_timeout_ms=100), bench.connection(1, 2)
    channel = connection.channels[2]
    consume(channel, queue)
    for tag in range(1, 200):
        connection.feed(publish(1, b"x"))
        bench.turns()
        channel.claim(tag, False, 3)
        channel.settle(tag, False)
    connection.feed(publish(1, b"last"))
    bench.turns()
    bench.at(1200)
    bench.core.return_overdue()
    assert queue.timed_out == 1


def test_a_message_whose_time_is_over_this_instant_is_not_got(bench):
    bench.at(1000)
    queue, connection = bench.queue(ttl_ms=0), bench.connection(1, 2)
    found = []
    connection.on_method = lambda channel, payload: found.append(connection.channels[2].get(queue, True))
    connection.feed(publish(1, b"x") + frame(1, 1, b"\0\x3c\0\x46"))
    assert (found, queue.expired) == ([False], 1)


def test_what_is_behind_a_message_that_was_handed_out_expires_at_its_own_time(bench, hand_out):
    bench.at(1000)
    queue, connection = bench.queue(), bench.connection(1, 2)
    for ms in (b"9000", b"50"):
        connection.feed(publish(1, ms, properties=b"\x01\x00" + bytes([len(ms)]) + ms))
    hand_out(bench, connection, queue)
    assert queue.ready == 1
    assert bench.deadlines[-1] // 1_000_000 == 1050
    bench.at(1051)
    assert queue.ready == 0


WITHOUT_MEMORY = '''
import resource, sys
from tests.plane.harness import Bench, consume, publish

bench = Bench(sys.argv[1], segment_octets=64 << 20)
queue, connection = bench.queue(), bench.connection(1, 2)
channel = connection.channels[2]
connection.feed(publish(1, b"x" * (40 << 20)) + publish(1, b"next"))
with open("/proc/self/statm") as statm:
    now = int(statm.read().split()[0]) * resource.getpagesize()
limit = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (now + (8 << 20), limit[1]))
if sys.argv[2] == "get":
    try:
        channel.get(queue, False)
        sys.exit("there was memory")
    except MemoryError:
        pass
else:
    consumer = consume(channel, queue)
    bench.turns()
    channel.cancel(consumer)
resource.setrlimit(resource.RLIMIT_AS, limit)

def handed_out():
    return [row[2] for row in Bench(sys.argv[1]).recovered().browse(1, 9)]

queue.check()
assert (queue.ready, queue.unacked, queue.ready_octets) == (2, 0, (40 << 20) + 4)
assert handed_out() == [False, False]
assert channel.get(queue, False)
bench.turns()
one, = connection.delivered()
assert (one.redelivered, one.body == b"x" * (40 << 20)) == (False, True)
assert handed_out() == [True, False]            # It was out when that broker was killed.
'''


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer ends without memory")
@pytest.mark.parametrize("taken", ["get", "deliver"])
def test_what_found_no_memory_on_its_way_out_stays_as_if_it_had_not_been_taken(tmp_path, taken):
    # In a process of its own: in this one, what earlier tests have freed could hold the message.
    done = subprocess.run([sys.executable, "-c", WITHOUT_MEMORY, str(tmp_path), taken], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_tag_of_the_session_stands_among_those_of_deliveries(bench, queue, connection):
    channel = connection.channels[2]
    connection.feed(publish(1, b"x") * 40)
    tags = []
    for _ in range(20):
        assert channel.get(queue, False)
        tags.append(channel.take_tag())
    assert tags == list(range(2, 41, 2))
    connection.feed(ack(2, 39, multiple=True))
    assert (queue.unacked, connection.errors) == (0, [])
    assert channel.take_tag() == 41


def test_a_cancelled_consumer_is_held_while_deliveries_of_it_are_unacked(bench, queue, connection):
    def consumers():
        gc.collect()
        return sum(isinstance(one, plane.Consumer) and one.queue is queue for one in gc.get_objects())

    for tag in (b"one", b"two"):
        consume(connection.channels[2], queue, tag)
        connection.feed(publish(1, b"x"))
        connection.channels[2].cancel(connection.channels[2].consumers[tag])
    assert consumers() == 2
    connection.feed(ack(2, 2, multiple=True))
    connection.channels[2].close()
    assert (queue.unacked, connection.errors) == (0, [])
