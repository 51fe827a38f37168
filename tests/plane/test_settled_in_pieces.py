"""A method that settles very many deliveries does so in pieces, and others have their turn between them.

So does the end of a channel.  What a transaction is to settle is claimed, and settled as it was asked.
"""

import pytest
from tests.plane.harness import ack, consume, nack, publish
from tests.plane.test_turns_of_connections import METHOD, Shared

from brokerd import plane
from brokerd.store.format import CAUSE_NACK, CAUSE_RECOVER

AT_ONCE = 4096
COUNTS = [AT_ONCE, AT_ONCE + 1, 2 * AT_ONCE, 2 * AT_ONCE + 1]


@pytest.fixture
def shared(tmp_path):
    return Shared(tmp_path, work_ns=10 ** 9)


def drop(channel, tag, *, multiple):
    return nack(channel, tag, multiple=multiple, requeue=False)


def deliver(shared, count, prefetch=0):
    """A queue of so many messages, the connection and the channel that has got them or the first of them."""
    queue, connection, publisher = shared.queue(), shared.connection(2), shared.connection(1)
    publisher.feed(b"".join(publish(1, b"%d" % at) for at in range(1, count + 1)))
    shared.finish()
    channel = connection.channels[2]
    channel.prefetch = prefetch
    consume(channel, queue)
    shared.turns()
    assert channel.unacked == min(count, prefetch or count)
    return queue, connection, channel


@pytest.mark.parametrize("tag_is_given", [True, False])
@pytest.mark.parametrize("method", [ack, drop])
@pytest.mark.parametrize("count", COUNTS)
def test_others_have_their_turn_while_very_many_deliveries_are_settled(shared, method, tag_is_given, count):
    queue, connection, channel = deliver(shared, count)
    other = shared.connection(1)
    connection.feed(method(2, count if tag_is_given else 0, multiple=True) + METHOD)
    assert (channel.unacked, connection.yielded) == (max(count - AT_ONCE, 0), count > AT_ONCE)
    other.feed(METHOD)
    shared.finish()
    expected = [other.number, connection.number] if count > AT_ONCE else [connection.number, other.number]
    assert shared.order == expected
    assert (channel.unacked, queue.ready, queue.acked) == (0, 0, count)
    assert not connection.errors


@pytest.mark.parametrize(("count", "more"), [(AT_ONCE + 5, 10), (AT_ONCE + 5, 2 * AT_ONCE), (2 * AT_ONCE + 1, 10)])
def test_tag_0_means_no_delivery_that_is_made_while_the_others_are_settled(shared, count, more):
    queue, connection, channel = deliver(shared, count + more, prefetch=count)
    connection.feed(ack(2, 0, multiple=True))
    shared.turns()
    assert channel.unacked == count - AT_ONCE + min(more, AT_ONCE)  # It has got new ones.
    shared.finish()
    shared.turns()
    assert (queue.acked, channel.unacked + queue.ready) == (count, more)
    while channel.unacked:
        connection.feed(ack(2, 0, multiple=True))
        shared.finish()
        shared.turns()
    assert (queue.acked, queue.ready) == (count + more, 0)


def test_what_returns_in_pieces_comes_again_in_its_order(shared):
    count = 2 * AT_ONCE + 5
    queue, connection, _ = deliver(shared, count)
    connection.bodies()
    connection.feed(nack(2, count, multiple=True))
    shared.finish()
    shared.turns()
    assert connection.bodies() == [b"%d" % at for at in range(1, count + 1)]
    assert queue.redelivered == count


def test_an_unknown_tag_behind_very_many_deliveries_settles_nothing(shared):
    queue, connection, channel = deliver(shared, 2 * AT_ONCE)
    connection.feed(ack(2, 2 * AT_ONCE + 1, multiple=True))
    shared.finish()
    assert len(connection.errors) == 1
    assert (channel.unacked, queue.acked) == (2 * AT_ONCE, 0)


def test_a_channel_that_ends_between_two_pieces_gives_the_rest_back(shared):
    count = 2 * AT_ONCE
    queue, connection, channel = deliver(shared, count)
    connection.feed(ack(2, count, multiple=True))
    channel.close()
    shared.finish()
    assert (queue.acked, queue.ready, queue.unacked) == (AT_ONCE, AT_ONCE, 0)


@pytest.mark.parametrize("count", COUNTS)
def test_a_channel_gives_very_many_back_in_pieces(shared, count):
    queue, _, channel = deliver(shared, count)
    channel.cancel(next(iter(channel.consumers.values())))
    pieces = 1
    while not channel.return_unacked():
        assert (queue.unacked, queue.ready) == (count - pieces * AT_ONCE, pieces * AT_ONCE)
        pieces += 1
    assert pieces == -(-count // AT_ONCE)
    assert (queue.unacked, queue.ready) == (0, count)
    assert channel.return_unacked()


@pytest.fixture
def channel(shared):
    """Ten deliveries wait for an answer."""
    return deliver(shared, 10)[2]


ACK, REJECT, BACK = 0, 1, 2


def test_a_delivery_is_claimed_once(channel):
    assert channel.claim(3, False, ACK) == (3, 3, 1)
    assert channel.claim(5, True, BACK) == (1, 5, 4)
    assert channel.claim(0, True, REJECT) == (1, 10, 5)
    assert channel.claim(0, True, REJECT)[2] == 0
    for tag, multiple in ((3, False), (5, True), (0, False), (11, False), (11, True)):
        with pytest.raises(LookupError):
            channel.claim(tag, multiple, ACK)


def test_claimed_deliveries_are_settled_as_each_was_asked(shared, channel):
    queue, = (consumer.queue for consumer in channel.consumers.values())
    channel.claim(3, False, ACK)
    channel.claim(5, True, BACK)
    channel.claim(0, True, REJECT)
    assert channel.claimed(1, 10, ACK) == [(queue, 3)]
    assert [seq for _, seq in channel.claimed(1, 5, BACK)] == [1, 2, 4, 5]
    assert [seq for _, seq in channel.claimed(7, 10, REJECT)] == [7, 8, 9, 10]
    channel.settle_claimed(3, 3, 3, ACK)
    assert (queue.acked, queue.unacked, queue.ready) == (1, 9, 0)
    channel.settle_claimed(1, 5, 5, BACK, requeue=CAUSE_NACK)
    assert (queue.acked, queue.unacked, queue.ready) == (1, 5, 4)
    channel.settle_claimed(1, 10, 10, REJECT, reject=True)
    assert (queue.acked, queue.unacked, queue.ready) == (6, 0, 4)
    assert channel.claimed(1, 10, REJECT) == []


def test_what_is_not_claimed_returns_alone(channel):
    queue, = (consumer.queue for consumer in channel.consumers.values())
    channel.claim(4, True, ACK)
    channel.return_unclaimed(1, 10, 10, CAUSE_RECOVER)
    assert (queue.unacked, queue.ready) == (4, 6)
    channel.disclaim()
    channel.return_unclaimed(1, 10, 10, CAUSE_RECOVER)
    assert (queue.unacked, queue.ready) == (0, 10)
    channel.return_unclaimed(1, 10, 10, CAUSE_RECOVER)


def test_what_was_claimed_and_returns_in_pieces_comes_again_in_its_order(shared):
    count = 2 * AT_ONCE + 5
    queue, connection, channel = deliver(shared, count)
    connection.bodies()
    channel.claim(0, True, BACK)
    for first in range(1, count + 1, AT_ONCE):
        channel.settle_claimed(first, min(first + AT_ONCE - 1, count), count, BACK, requeue=CAUSE_NACK)
    shared.turns()
    assert connection.bodies() == [b"%d" % at for at in range(1, count + 1)]
    assert (queue.redelivered, channel.unacked) == (count, count)


@pytest.mark.parametrize("count", COUNTS)
def test_a_recovery_takes_pieces_and_means_no_delivery_that_is_made_between_them(shared, count):
    more = 2 * AT_ONCE
    queue, connection, channel = deliver(shared, count + more, prefetch=count)
    connection.bodies()
    pieces = 1
    while not channel.recover():
        pieces += 1
        shared.turns()  # The consumer has some of them again, and more.
    assert pieces == -(-count // AT_ONCE)
    shared.turns()
    again = connection.bodies()
    assert sorted(map(int, again))[:count] == list(range(1, count + 1))
    assert len(again) == len(set(again)) == channel.unacked == count
    assert queue.ready == more


def test_no_tag_that_was_never_given_is_settled_or_returned(channel):
    assert channel.outstanding == (1, 10)
    with pytest.raises(ValueError, match="no delivery has this tag"):
        channel.settle_claimed(1, 11, 11, ACK)
    with pytest.raises(ValueError, match="no delivery has this tag"):
        channel.return_unclaimed(1, 11, 11, CAUSE_RECOVER)


def test_a_delivery_that_had_timed_out_before_it_was_claimed_is_counted_late(shared):
    shared.at(1000)
    queue, connection = shared.queue(consumer_timeout_ms=100), shared.connection(2)
    consume(connection.channels[2], queue)
    publisher = shared.connection(1)
    publisher.feed(publish(1, b"x"))
    shared.finish()
    shared.turns()
    connection.channels[2].cancel(next(iter(connection.channels[2].consumers.values())))
    shared.at(1200)
    shared.core.return_overdue()
    channel = connection.channels[2]
    assert channel.claim(1, False, ACK) == (1, 1, 1)
    assert channel.claimed(1, 1, ACK) == []
    channel.disclaim()
    assert channel.claim(1, False, ACK) == (1, 1, 1)
    channel.settle_claimed(1, 1, 1, ACK)
    assert (channel.late, queue.ready) == (1, 1)
    assert isinstance(channel, plane.Channel)
