"""The single active consumer, and deliveries that are unacked for too long."""

import os
import sys

import pytest
from tests.plane.harness import ack, consume, nack, publish


@pytest.fixture
def queue(bench):
    return bench.queue(single_active=True)


@pytest.fixture
def connection(bench):
    return bench.connection(1, 2, 3)


def served(connection):
    return [(one.consumer, one.body) for one in connection.delivered()]


def numbered(first, last):
    return b"".join(publish(1, b"%d" % at) for at in range(first, last + 1))


def test_only_the_first_consumer_is_served(bench, queue, connection):
    for tag in (b"a", b"b"):
        consume(connection.channels[2], queue, tag)
    connection.feed(numbered(1, 3))
    assert served(connection) == [(b"a", b"1"), (b"a", b"2"), (b"a", b"3")]
    assert queue.active.tag == b"a"


def test_the_next_one_waits_until_all_of_the_former_is_settled(bench, queue, connection):
    first = consume(connection.channels[2], queue, b"a")
    consume(connection.channels[3], queue, b"b")
    connection.feed(numbered(1, 2))
    assert len(served(connection)) == 2
    connection.channels[2].cancel(first)
    connection.feed(numbered(3, 3))
    assert served(connection) == []
    connection.feed(ack(2, 1))
    assert served(connection) == []
    connection.feed(nack(2, 2))
    assert served(connection) == [(b"b", b"2"), (b"b", b"3")]


def test_a_channel_that_closes_hands_over_with_everything_returned(bench, queue, connection):
    consume(connection.channels[2], queue, b"a")
    consume(connection.channels[3], queue, b"b")
    connection.feed(numbered(1, 2))
    connection.frames()
    connection.channels[2].close()
    bench.turns()
    assert served(connection) == [(b"b", b"1"), (b"b", b"2")]


def test_a_higher_priority_takes_over_when_the_former_has_nothing_left(bench, queue, connection):
    consume(connection.channels[2], queue, b"low")
    connection.feed(numbered(1, 1))
    consume(connection.channels[3], queue, b"high", priority=5)
    connection.feed(numbered(2, 2))
    assert served(connection) == [(b"low", b"1")]
    connection.feed(ack(2, 1))
    assert served(connection) == [(b"high", b"2")]
    connection.feed(numbered(3, 3))
    assert served(connection) == [(b"high", b"3")]


def test_an_idle_active_one_gives_way_at_once(bench, queue, connection):
    consume(connection.channels[2], queue, b"low")
    consume(connection.channels[3], queue, b"high", priority=5)
    connection.feed(numbered(1, 1))
    assert served(connection) == [(b"high", b"1")]


def test_the_active_one_keeps_its_credit_rules(bench, queue, connection):
    connection.channels[2].prefetch = 1
    consume(connection.channels[2], queue, b"a")
    consume(connection.channels[3], queue, b"b")
    connection.feed(numbered(1, 3))
    assert served(connection) == [(b"a", b"1")]
    connection.feed(ack(2, 1))
    assert served(connection) == [(b"a", b"2")]


def test_without_consumers_nobody_is_active(bench, queue, connection):
    one = consume(connection.channels[2], queue, b"a")
    connection.channels[2].cancel(one)
    assert queue.active is None
    consume(connection.channels[2], queue, b"b")
    connection.feed(numbered(1, 1))
    assert served(connection) == [(b"b", b"1")]


# --- unacked for too long

@pytest.fixture
def clocked(bench):
    bench.at(1000)
    return bench


def test_a_delivery_unacked_for_too_long_returns_alone_and_its_late_ack_means_nothing(clocked):
    queue = clocked.queue(consumer_timeout_ms=100)
    connection = clocked.connection(1, 2)
    connection.channels[2].prefetch = 2
    consume(connection.channels[2], queue, b"slow")
    connection.feed(numbered(1, 1))
    clocked.at(1050)
    connection.feed(numbered(2, 2))
    clocked.at(1100)
    assert clocked.core.return_overdue() == []
    clocked.turns()
    assert [(one.tag, one.body, one.redelivered) for one in connection.delivered()] == [
        (1, b"1", False), (2, b"2", False), (3, b"1", True)]
    connection.feed(ack(2, 1))          # Late: ignored, counted.
    assert (queue.unacked, connection.channels[2].late, connection.errors) == (2, 1, [])
    connection.feed(ack(2, 3, multiple=True))
    assert (queue.unacked, queue.timed_out) == (0, 1)
    connection.feed(ack(2, 1))
    assert connection.fault[1] == 406


def test_a_late_ack_after_everything_else_is_settled_is_no_fault(clocked):
    queue = clocked.queue(consumer_timeout_ms=100)
    connection = clocked.connection(1, 2)
    one = consume(connection.channels[2], queue, b"slow")
    connection.feed(numbered(1, 2))
    connection.channels[2].cancel(one)
    connection.feed(ack(2, 2))
    clocked.at(1200)
    clocked.core.return_overdue()
    assert (connection.channels[2].unacked, queue.ready) == (0, 1)
    connection.feed(ack(2, 0, multiple=True) + ack(2, 0, multiple=True))
    assert (connection.channels[2].late, connection.errors) == (1, [])


def timed_out(bench, connection):
    """A channel 2 with one delivery, of tag 1, that timed out and is acknowledged by nobody yet."""
    queue = bench.queue(consumer_timeout_ms=100)
    one = consume(connection.channels[2], queue, b"slow")
    connection.feed(numbered(1, 1))
    connection.channels[2].cancel(one)
    bench.at(1200)
    bench.core.return_overdue()
    assert (queue.ready, connection.channels[2].unacked) == (1, 0)
    connection.frames()


def test_deliveries_that_need_no_ack_leave_the_tag_of_a_timed_out_one_known(clocked):
    connection = clocked.connection(1, 2)
    timed_out(clocked, connection)
    other = clocked.queue(b"other")
    consume(connection.channels[2], other, b"fast", no_ack=True)
    for _ in range(200):
        connection.feed(publish(1, b"x", key=b"other"))
    assert [one.tag for one in connection.delivered()] == list(range(2, 202))
    assert clocked.queues[b"q"].remove(1) is not None
    connection.feed(publish(1, b"y") + ack(2, 1))
    assert (connection.channels[2].late, connection.errors) == (1, [])
    connection.feed(ack(2, 1))
    assert connection.fault[1] == 406


def test_tags_that_the_session_takes_leave_that_of_a_timed_out_delivery_known(clocked):
    connection = clocked.connection(1, 2)
    timed_out(clocked, connection)
    assert [connection.channels[2].take_tag() for _ in range(200)] == list(range(2, 202))
    connection.feed(ack(2, 1))
    assert (connection.channels[2].late, connection.errors) == (1, [])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer keeps what was freed")
def test_once_late_acks_have_come_deliveries_that_need_none_take_no_memory(clocked):
    connection = clocked.connection(1, 2)
    timed_out(clocked, connection)
    connection.feed(ack(2, 1))
    assert connection.channels[2].late == 1
    consume(connection.channels[2], clocked.queue(b"other"), b"fast", no_ack=True)
    thousand = publish(1, b"x", key=b"other") * 1000
    for round_ in range(200):
        if round_ == 20:
            before = own_memory()
        connection.feed(thousand)
        connection.out.octets = b""
    assert clocked.queues[b"other"].delivered == 200_000
    assert own_memory() - before < 4 << 20      # As entries of unacked deliveries they would take some 10 MiB.


def own_memory():
    """Octets of this process' that are in no file."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))


def test_a_consumer_whose_channel_is_to_close_is_named_and_nothing_returns(clocked):
    queue = clocked.queue(consumer_timeout_ms=100, timeout_closes=True)
    connection = clocked.connection(1, 2)
    one = consume(connection.channels[2], queue, b"slow")
    connection.feed(numbered(1, 1))
    clocked.at(1100)
    assert clocked.core.return_overdue() == [one]
    assert queue.unacked == 1


def test_a_consumer_s_own_timeout_goes_before_the_queue_s(clocked):
    queue = clocked.queue(consumer_timeout_ms=100)
    connection = clocked.connection(1, 2)
    connection.channels[2].consume(queue, b"c", no_ack=False, timeout_ms=5000)
    connection.feed(numbered(1, 1))
    clocked.at(2000)
    clocked.core.return_overdue()
    assert queue.unacked == 1
    assert clocked.core.timeouts == 1
    connection.channels[2].close()
    assert clocked.core.timeouts == 0


def test_the_active_one_goes_on_when_who_was_to_take_over_leaves(bench, queue, connection):
    connection.channels[2].prefetch = 1
    consume(connection.channels[2], queue, b"a")
    connection.feed(numbered(1, 2))
    assert served(connection) == [(b"a", b"1")]
    better = consume(connection.channels[3], queue, b"b", priority=1)
    connection.channels[3].cancel(better)
    connection.feed(ack(2, 1))
    assert served(connection) == [(b"a", b"2")]


def test_no_consumer_is_active_in_a_deleted_queue(bench, queue, connection):
    consume(connection.channels[2], queue)
    queue.drop()
    assert queue.active is None


def test_the_active_one_gets_what_it_has_credit_for_when_who_was_to_take_over_leaves(bench, queue, connection):
    consume(connection.channels[2], queue, b"a")
    connection.feed(numbered(1, 1))
    assert served(connection) == [(b"a", b"1")]
    better = consume(connection.channels[3], queue, b"b", priority=1)
    connection.feed(numbered(2, 2))
    assert served(connection) == []
    connection.channels[3].cancel(better)
    bench.turns()
    assert served(connection) == [(b"a", b"2")]


def test_what_a_timed_out_delivery_held_of_the_channel_s_prefetch_is_free_for_others(clocked):
    connection = clocked.connection(1, 2)
    connection.channels[2].global_prefetch = 1
    other = clocked.queue(b"other")
    one = consume(connection.channels[2], clocked.queue(consumer_timeout_ms=100), b"slow")
    consume(connection.channels[2], other, b"waits")
    connection.feed(numbered(1, 1))
    connection.feed(publish(1, b"2", key=b"other"))
    assert served(connection) == [(b"slow", b"1")]
    connection.channels[2].cancel(one)
    clocked.at(1200)
    clocked.core.return_overdue()
    clocked.turns()
    assert served(connection) == [(b"waits", b"2")]


def test_single_active_may_be_asked_for_and_given_up_while_consumers_are_there(bench, connection):
    queue = bench.queue()
    for channel, tag in ((2, b"a"), (3, b"b")):
        consume(connection.channels[channel], queue, tag)
    queue.set_rules(single_active=True)
    assert queue.active.tag == b"a"
    connection.feed(numbered(1, 3))
    assert served(connection) == [(b"a", b"1"), (b"a", b"2"), (b"a", b"3")]
    queue.set_rules()
    assert queue.active is None
    connection.feed(numbered(4, 5))
    assert {consumer for consumer, _ in served(connection)} == {b"a", b"b"}


def test_a_timeout_of_0_is_one_too(clocked):
    queue = clocked.queue()
    connection = clocked.connection(1, 2)
    consumer = consume(connection.channels[2], queue, timeout_ms=0)
    assert clocked.core.timeouts == 1
    connection.channels[2].cancel(consumer)
    assert clocked.core.timeouts == 0


def test_deliveries_that_a_tag_names_are_those_not_settled_and_those_timed_out(clocked):
    queue = clocked.queue()
    connection = clocked.connection(1, 2)
    channel = connection.channels[2]
    connection.feed(publish(1, b"x") * 5)
    consume(channel, queue, timeout_ms=100)
    clocked.turns()
    queue.paused = True
    connection.feed(ack(2, 2) + ack(2, 4))
    assert channel.deliveries(5, True) == channel.deliveries(0, True) == [(1, queue, 1), (3, queue, 3), (5, queue, 5)]
    assert (channel.deliveries(3, False), channel.deliveries(4, False)) == ([(3, queue, 3)], [])
    clocked.at(5000)
    clocked.core.return_overdue()
    assert channel.deliveries(5, True) == [(1, None, 0), (3, None, 0), (5, None, 0)]


def test_a_full_queue_refuses_while_its_active_consumer_only_settles_what_it_has(bench, connection):
    queue = bench.queue(single_active=True, max_length=0, overflow=1)
    consume(connection.channels[2], queue, b"one")
    connection.feed(publish(1, b"1"))
    consume(connection.channels[2], queue, b"two", priority=1)
    connection.feed(publish(1, b"2"))
    assert (queue.unacked, queue.ready, queue.refused) == (1, 0, 1)


def test_a_full_queue_refuses_while_who_took_over_has_no_credit(bench, connection):
    queue = bench.queue(single_active=True, max_length=0, overflow=1)
    consume(connection.channels[2], queue, b"one")
    connection.channels[1].flow = False
    two = consume(connection.channels[1], queue, b"two", priority=1)
    assert queue.active is two
    connection.feed(publish(1, b"x"))
    assert (queue.ready, queue.refused) == (0, 1)


def test_what_a_consumer_that_was_cancelled_holds_times_out_too(clocked):
    queue = clocked.queue(consumer_timeout_ms=100)
    connection = clocked.connection(1, 2)
    one = consume(connection.channels[2], queue, b"slow")
    connection.feed(numbered(1, 1))
    connection.channels[2].cancel(one)
    assert clocked.core.timeouts == 1       # The node asks for late deliveries while this is not 0.
    clocked.at(1200)
    assert clocked.core.return_overdue() == []
    assert (queue.ready, queue.unacked, clocked.core.timeouts) == (1, 0, 0)
