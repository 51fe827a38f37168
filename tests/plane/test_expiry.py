"""Messages whose time is over."""

import random
import struct

import pytest
from tests.plane.harness import consume, nack, publish, shortstr

T = 1_000_000                   # ms: when each test begins


def expiring(ms, body, **options):
    return publish(1, body, properties=struct.pack(">H", 1 << 8) + shortstr(str(ms).encode()), **options)


@pytest.fixture
def connection(bench):
    bench.at(T)
    return bench.connection(1, 2)


def drain(bench, queue):
    reader = bench.connection(1)
    consume(reader.channels[1], queue, no_ack=True)
    bench.turns()
    return reader.bodies()


def test_a_message_expires_to_the_millisecond_with_nobody_there(bench, connection):
    queue = bench.queue(ttl_ms=100, dead_letters=True)
    connection.feed(publish(1, b"one"))
    bench.at(T + 60)
    connection.feed(publish(1, b"two"))
    assert bench.deadlines[-1] == (T + 100) * 1_000_000
    bench.at(T + 99)
    assert (queue.ready, queue.died) == (2, [])
    bench.at(T + 100)
    assert (queue.ready, queue.died) == (1, [("expired", b"one")])
    assert bench.deadlines[-1] == (T + 160) * 1_000_000
    bench.at(T + 161)
    assert (queue.ready, queue.expired, len(queue.died)) == (0, 2, 2)


@pytest.mark.parametrize(("ttl", "own", "over"), [(-1, 50, 50), (100, 50, 50), (50, 100, 50)])
def test_the_lower_of_queue_and_message_counts(bench, connection, ttl, own, over):
    queue = bench.queue(ttl_ms=ttl) if ttl >= 0 else bench.queue()
    connection.feed(expiring(own, b"x"))
    bench.at(T + over - 1)
    assert queue.ready == 1
    bench.at(T + over)
    assert queue.ready == 0


def test_only_the_head_is_looked_at(bench, connection):
    queue = bench.queue()
    connection.feed(expiring(1000, b"long") + expiring(10, b"short") + publish(1, b"for ever"))
    bench.at(T + 500)
    assert queue.ready == 3
    bench.at(T + 1000)
    assert drain(bench, queue) == [b"for ever"]


def test_what_is_behind_a_head_that_was_taken_expires_in_time(bench, connection):
    queue = bench.queue(dead_letters=True)
    connection.feed(expiring(1000, b"long") + expiring(10, b"short"))
    assert connection.channels[2].get(queue, True)
    bench.at(T + 11)
    assert queue.died == [("expired", b"short")]


def test_a_time_of_zero_reaches_a_consumer_that_waits_and_nobody_else(bench, connection):
    queue = bench.queue(ttl_ms=0)
    connection.feed(publish(1, b"nobody"))
    assert queue.ready == 0
    consume(connection.channels[2], queue, no_ack=True)
    connection.feed(publish(1, b"somebody"))
    assert connection.bodies() == [b"somebody"]


def test_what_is_over_is_not_delivered_though_no_timer_ran(bench, connection):
    queue = bench.queue(ttl_ms=100)
    connection.feed(publish(1, b"one"))
    bench.core.clock = lambda: (T + 1000) * 1_000_000
    consume(connection.channels[2], queue)
    connection.feed(publish(1, b"two"))
    assert connection.bodies() == [b"two"]
    assert not connection.channels[2].get(queue, True)


def test_a_message_that_returns_late_expires(bench, connection):
    queue = bench.queue(ttl_ms=100, dead_letters=True)
    consume(connection.channels[2], queue)
    connection.feed(publish(1, b"one"))
    connection.channels[2].cancel(connection.channels[2].consumers[b"c"])
    bench.at(T + 200)
    assert queue.died == []
    connection.feed(nack(2, 1))
    assert queue.died == [("expired", b"one")]


def test_a_time_set_later_counts_from_when_the_message_came(bench, connection):
    queue = bench.queue()
    connection.feed(publish(1, b"one"))
    bench.at(T + 50)
    queue.set_rules(ttl_ms=60)
    bench.turns()
    assert queue.ready == 1
    bench.at(T + 60)
    assert queue.ready == 0


def test_after_a_restart_times_go_on(bench, connection, make_bench):
    bench.queue()
    connection.feed(expiring(100, b"short") + publish(1, b"kept"))
    again = make_bench()
    queue = again.recovered()
    again.at(T + 99)
    assert queue.ready == 2
    again.at(T + 100)
    assert drain(again, queue) == [b"kept"]


def test_many_queues_expire_in_the_order_of_their_deadlines(bench, connection):
    queues = [bench.queue(b"q%d" % n, ttl_ms=(n * 37) % 101) for n in range(100)]
    connection.feed(b"".join(publish(1, b"x", b"q%d" % n) for n in range(100)))
    for ms in (10, 50, 77, 101):
        bench.at(T + ms)
        assert [queue.ready for queue in queues] == [int((n * 37) % 101 > ms) for n in range(100)]


def test_a_thousand_expire_without_starving_the_others(bench, connection):
    queue = bench.queue(ttl_ms=10)
    connection.feed(publish(1, b"x") * 5000)
    bench.core.clock = lambda: (T + 20) * 1_000_000
    bench.core.expire()
    assert 0 < queue.ready < 5000
    bench.turns()
    assert queue.ready == 0


def test_what_comes_to_the_head_by_a_limit_expires_on_time(bench, connection):
    queue = bench.queue(max_length=1, dead_letters=True)
    connection.feed(publish(1, b"for ever") + expiring(100, b"short"))
    assert queue.died == [("maxlen", b"for ever")]
    bench.at(T + 99)
    assert queue.ready == 1
    bench.at(T + 101)
    assert queue.died[1:] == [("expired", b"short")]


def test_a_message_with_no_time_at_all_reaches_a_consumer_that_waits(bench, connection):
    queue = bench.queue(ttl_ms=0)
    consume(connection.channels[2], queue)
    connection.feed(publish(1, b"x"))
    assert connection.bodies() == [b"x"]
    assert queue.expired == 0


def test_octets_of_what_expired_behind_a_head_are_gone_with_it(bench, connection):
    queue = bench.queue()
    for ms, body in ((9000, b"1" * 10), (10, b"2" * 100), (9000, b"3" * 1000), (9000, b"4" * 10_000)):
        connection.feed(expiring(ms, body))
    bench.at(T + 500)
    assert (queue.ready, queue.ready_octets) == (4, 11_110)
    connection.channels[2].prefetch = 2
    consume(connection.channels[2], queue)
    bench.turns()
    assert [len(body) for body in connection.bodies()] == [10, 1000]
    assert (queue.ready, queue.ready_octets, queue.expired) == (1, 10_000, 1)


def test_octets_of_what_expires_are_gone_with_it(bench, connection):
    queue = bench.queue()
    connection.feed(expiring(10, b"1" * 10) + publish(1, b"2" * 100))
    bench.at(T + 10)
    assert (queue.ready, queue.ready_octets) == (1, 100)


@pytest.mark.parametrize("first", [0, 1])
def test_the_earliest_of_all_levels_heads_is_waited_for(bench, connection, first):
    queue = bench.queue(max_priority=1)
    for priority, ms in ((first, 10), (first, 9000), (1 - first, 50)):
        own = str(ms).encode()
        connection.feed(publish(1, b"x", properties=b"\x09\x00" + bytes([priority]) + shortstr(own)))
    bench.at(T + 11)
    assert queue.ready == 2
    bench.at(T + 51)
    assert queue.ready == 1


@pytest.mark.parametrize("ttl_ms", [-1, 100])
def test_after_a_start_what_is_at_the_head_expires_with_nobody_there(bench, connection, make_bench, ttl_ms):
    bench.queue()
    connection.feed(expiring(100, b"x") + publish(1, b"y"))
    after = make_bench()
    after.at(T + 50)
    queue = after.recovered(ttl_ms=ttl_ms)
    assert queue.ready == 2
    after.at(T + 51)
    after.at(T + 101)
    assert queue.ready == (1 if ttl_ms < 0 else 0)


@pytest.mark.parametrize(("late_ns", "expired"), [(0, 0), (1, 1)])
def test_in_the_instant_in_which_its_time_is_over_a_message_still_goes_to_a_consumer_and_not_after_it(
        bench, connection, late_ns, expired):
    queue = bench.queue(ttl_ms=100)
    connection.feed(publish(1, b"x"))
    bench.core.clock = lambda: (T + 100) * 1_000_000 + late_ns
    consume(connection.channels[2], queue, no_ack=True)
    connection.feed(b"")                # A chunk, and no timer before it.
    assert (len(connection.bodies()), queue.ready, queue.expired) == (1 - expired, 0, expired)


def test_many_queues_that_are_due_at_once_are_worked_in_shares(bench, connection):
    queues = [bench.queue(b"q%d" % n, ttl_ms=10) for n in range(500)]
    connection.feed(b"".join(publish(1, b"x", b"q%d" % n) for n in range(500)))
    bench.core.clock = lambda: (T + 20) * 1_000_000
    bench.core.expire()
    assert 0 < sum(queue.ready for queue in queues) < 500
    bench.turns()
    assert sum(queue.ready for queue in queues) == 0


@pytest.mark.parametrize("on_time", [False, True])
def test_after_a_start_what_is_behind_the_head_expires_by_its_own_time(bench, connection, make_bench, on_time):
    bench.queue()
    connection.feed(publish(1, b"for ever") + expiring(100, b"short"))
    after = make_bench()
    after.at(T + 50)
    queue = after.recovered()
    after.at(T + 51)
    reader = after.connection(1)
    assert reader.channels[1].get(queue, True)
    if on_time:
        after.at(T + 101)
        assert (queue.ready, queue.expired) == (0, 1)
    else:
        after.core.clock = lambda: (T + 101) * 1_000_000
        after.core.turn()
        reader.feed(b"")
        assert not reader.channels[1].get(queue, True)


def test_a_connection_that_writes_again_gets_nothing_that_is_over_by_then(bench, connection):
    queue = bench.queue(ttl_ms=100)
    consume(connection.channels[2], queue, no_ack=True)
    connection.pause_writing()
    connection.feed(publish(1, b"x"))
    bench.core.clock = lambda: (T + 101) * 1_000_000
    connection.resume_writing()
    assert (connection.bodies(), queue.expired) == ([], 1)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_comes_and_goes_no_queue_is_forgotten_when_its_head_is_over(bench, connection, seed):
    rng = random.Random(seed)
    queues = [bench.queue(b"q%d" % n) for n in range(60)]
    heads = [[] for _ in queues]
    for ms in range(1, 150):
        bench.at(T + ms)
        for over in heads:
            while over and over[0] <= T + ms:
                del over[0]
        assert [queue.ready for queue in queues] == [len(over) for over in heads]
        for _ in range(3):
            n = rng.randrange(60)
            if heads[n] and rng.random() < 0.5:
                assert connection.channels[2].get(queues[n], True)
                del heads[n][0]
            elif not heads[n]:
                own = rng.randrange(2, 60)
                connection.feed(expiring(own, b"x", key=b"q%d" % n))
                heads[n].append(T + ms + own)
        connection.out.octets = b""


def test_what_a_lost_connection_had_and_is_over_by_then_goes_to_nobody_else(bench, connection):
    queue, other = bench.queue(ttl_ms=100), bench.connection(1)
    consume(connection.channels[2], queue)
    connection.feed(publish(1, b"x"))
    consume(other.channels[1], queue)
    bench.core.clock = lambda: (T + 101) * 1_000_000
    connection.detach()
    assert (other.bodies(), queue.expired) == ([], 1)
