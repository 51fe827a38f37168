"""What disturbed the order is counted: which events count, and that no crash forgets them."""

import os

import pytest
from tests.plane.harness import ack, consume, nack, publish, reject

from brokerd import plane
from brokerd.store.format import ORDER_COUNTERS, order_header


def counts(queue, which=0):
    """What was counted, by name; 1: since the start."""
    return {name: n for name, n in zip(ORDER_COUNTERS, queue.order_counts()[which], strict=True) if n}


@pytest.fixture
def queue(bench):
    return bench.queue()


@pytest.fixture
def connection(bench, queue):
    return bench.connection(1, 2, 3)


def send(bench, connection, count, **how):
    connection.feed(b"".join(publish(1, b"%d" % at, **how) for at in range(1, count + 1)))
    bench.turns()


def settle(bench, connection, octets):
    connection.feed(octets)
    bench.turns()


def test_acks_in_any_order_disturb_nothing_and_make_no_file(bench, queue, connection):
    consume(connection.channels[2], queue)
    send(bench, connection, 10)
    settle(bench, connection, ack(2, 7) + ack(2, 3) + ack(2, 10, multiple=True))
    assert (queue.unacked, counts(queue)) == (0, {})
    assert not os.path.exists(f"{queue.directory}/order")


@pytest.mark.parametrize(("octets", "cause"), [
    (nack(2, 1), "returned_nack"), (reject(2, 1), "returned_reject"), (nack(2, 1, multiple=True), "returned_nack"),
])
def test_a_return_is_counted_by_its_cause(bench, queue, connection, octets, cause):
    consume(connection.channels[2], queue)
    send(bench, connection, 1)
    settle(bench, connection, octets)
    assert counts(queue) == {cause: 1, "redelivered": 1}


@pytest.mark.parametrize(("end", "cause"), [
    (lambda connection: connection.channels[2].recover(), "returned_recover"),
    (lambda connection: connection.channels[2].close(), "returned_channel_closed"),
    (lambda connection: connection.detach(), "returned_connection_closed"),
])
def test_what_is_out_returns_by_the_cause_that_ended_it(bench, queue, connection, end, cause):
    consume(connection.channels[2], queue)
    send(bench, connection, 3)
    end(connection)
    assert counts(queue)[cause] == 3


def test_a_delivery_that_timed_out_is_counted(bench, queue, connection):
    bench.at(1)
    consume(connection.channels[2], queue, timeout_ms=5)
    send(bench, connection, 2)
    bench.core.clock = lambda: 10_000_000
    bench.core.return_overdue()
    assert counts(queue) == {"returned_consumer_timeout": 2}


def test_a_message_that_comes_back_to_a_prefetch_of_1_overtakes_nobody(bench, queue, connection):
    connection.channels[2].prefetch = 1
    consume(connection.channels[2], queue)
    send(bench, connection, 5)
    settle(bench, connection, nack(2, 1))
    settle(bench, connection, nack(2, 2))
    assert counts(queue) == {"returned_nack": 2, "redelivered": 2}


@pytest.mark.parametrize(("tag", "behind"), [(1, 9), (4, 6), (9, 1), (10, 0)])
def test_overtakings_are_the_later_messages_that_were_out_before(bench, queue, connection, tag, behind):
    consume(connection.channels[2], queue)
    send(bench, connection, 10)
    settle(bench, connection, nack(2, tag))
    expected = {"returned_nack": 1, "redelivered": 1}
    assert counts(queue) == expected | ({"out_of_sequence": 1, "overtakings": behind} if behind else {})


def test_a_second_return_counts_all_that_were_out_since_the_first_delivery(bench, queue, connection):
    consume(connection.channels[2], queue)
    send(bench, connection, 3)
    settle(bench, connection, nack(2, 1))           # 2 and 3 were out before it
    send(bench, connection, 2)
    settle(bench, connection, nack(2, 4))           # the same message: 2, 3 and the two new ones
    assert counts(queue) == {"returned_nack": 2, "redelivered": 2, "out_of_sequence": 2, "overtakings": 2 + 4}


def test_messages_never_handed_out_overtook_nobody(bench, queue, connection):
    connection.channels[2].prefetch = 2
    consume(connection.channels[2], queue)
    send(bench, connection, 10)
    settle(bench, connection, nack(2, 1))
    assert counts(queue)["overtakings"] == 1


def test_each_priority_is_a_sequence_of_its_own(bench, connection):
    queue = bench.queue(b"p", max_priority=2)
    consume(connection.channels[2], queue)
    send(bench, connection, 4, key=b"p", properties=b"\x08\x00\x01")
    send(bench, connection, 3, key=b"p", properties=b"\x08\x00\x02")
    settle(bench, connection, nack(2, 1))           # of priority 1: three of its level are later
    assert counts(queue) == {"returned_nack": 1, "redelivered": 1, "out_of_sequence": 1, "overtakings": 3}


def test_basic_get_counts_as_a_delivery(bench, queue, connection):
    send(bench, connection, 3)
    for _ in range(3):
        connection.channels[2].get(queue, no_ack=False)
    settle(bench, connection, nack(2, 1))
    connection.channels[2].get(queue, no_ack=False)
    assert counts(queue) == {"returned_nack": 1, "redelivered": 1, "out_of_sequence": 1, "overtakings": 2}


@pytest.mark.parametrize(("rules", "octets", "expected"), [
    ({}, nack(2, 1, requeue=False), {"rejected": 1}),
    ({"dead_letters": True}, reject(2, 1, requeue=False), {"dead_lettered_rejected": 1}),
    ({"dead_letters": True, "delivery_limit": 1}, nack(2, 1), {"dead_lettered_delivery_limit": 1, "returned_nack": 1}),
    ({"delivery_limit": 1}, nack(2, 1), {"dropped_delivery_limit": 1, "returned_nack": 1}),
])
def test_what_ends_otherwise_than_by_an_ack_is_counted_by_its_reason(bench, connection, rules, octets, expected):
    queue = bench.queue(b"r", **rules)
    consume(connection.channels[2], queue)
    send(bench, connection, 1, key=b"r")
    settle(bench, connection, octets)
    assert counts(queue) == expected


@pytest.mark.parametrize(("dead_letters", "names"), [
    (True, ("dead_lettered_maxlen", "dead_lettered_expired")), (False, ("dropped_maxlen", "expired"))])
def test_what_is_dropped_and_what_expires_is_counted(bench, connection, dead_letters, names):
    bench.at(1)
    queue = bench.queue(b"l", max_length=3, ttl_ms=10, dead_letters=dead_letters)
    send(bench, connection, 5, key=b"l")
    assert counts(queue) == {names[0]: 2}
    bench.at(100)
    assert counts(queue) == {names[0]: 2, names[1]: 3}


@pytest.mark.parametrize("count", [10, 3000])
def test_a_purge_counts_every_message_also_of_whole_segments(bench, queue, connection, count):
    send(bench, connection, count)
    queue.purge()
    assert counts(queue) == {"purged": count}


def test_a_message_taken_out_by_its_number_is_counted(bench, queue, connection):
    send(bench, connection, 3)
    queue.remove(2)
    assert counts(queue) == {"removed": 1}


def test_a_queue_that_is_not_durable_counts_without_a_file(bench, connection):
    queue = bench.queue(b"t", durable=False)
    consume(connection.channels[2], queue)
    send(bench, connection, 2, key=b"t")
    settle(bench, connection, nack(2, 1))
    assert counts(queue)["overtakings"] == 1
    assert not os.path.exists(f"{queue.directory}/order")


def test_counts_survive_a_crash_and_a_rest(make_bench, tmp_path):
    bench = make_bench()
    queue, connection = bench.queue(), bench.connection(1, 2)
    consume(connection.channels[2], queue)
    send(bench, connection, 4, persistent=True)
    settle(bench, connection, nack(2, 2))
    before = counts(queue)
    queue.rest()
    assert counts(queue) == before
    settle(bench, connection, nack(2, 5) + ack(2, 4))
    before = counts(queue)
    after = make_bench().recovered()                # The first one was never closed: as with kill -9.
    assert (counts(after), counts(after, 1)) == (before, {})
    assert before["overtakings"] == 4


def test_what_was_out_at_a_crash_is_counted_when_it_goes_out_again(make_bench):
    bench = make_bench()
    queue, connection = bench.queue(), bench.connection(1, 2)
    connection.channels[2].prefetch = 3
    consume(connection.channels[2], queue)
    send(bench, connection, 5)
    settle(bench, connection, ack(2, 2))
    again = make_bench()
    queue, connection = again.recovered(), again.connection(1, 2)
    consume(connection.channels[2], queue)
    again.turns()
    # 1, 3 and 4, of which the first two were out; 4 had been when 2 was acked.  Nobody knows what overtook them.
    assert counts(queue) == {"redelivered": 3, "redelivered_after_restart": 3}
    settle(again, connection, nack(2, 1))
    assert counts(queue, 1) == {"redelivered": 4, "redelivered_after_restart": 3, "returned_nack": 1,
                                "out_of_sequence": 1, "overtakings": 3}


@pytest.mark.parametrize("content", [b"", b"\xff" * 4096, bytes(4096), order_header()])
def test_counters_that_cannot_be_read_begin_again(make_bench, content):
    bench = make_bench()
    queue, connection = bench.queue(), bench.connection(1, 2)
    consume(connection.channels[2], queue)
    send(bench, connection, 2)
    settle(bench, connection, nack(2, 1))
    with open(f"{queue.directory}/order", "wb") as file:
        file.write(content)
    again = make_bench()
    queue, connection = again.recovered(), again.connection(1, 2)
    assert counts(queue) == {}
    consume(connection.channels[2], queue)
    again.turns()
    assert counts(queue) == {"redelivered": 2, "redelivered_after_restart": 2}


def test_the_compiled_counters_are_those_that_are_written_down(queue):
    assert len(queue.order_counts()[0]) == len(ORDER_COUNTERS)
    assert plane.Queue.order_counts is not None
