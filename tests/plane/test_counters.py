"""What queues have counted."""

from tests.plane.harness import ack, consume, nack, publish

from brokerd import plane

NAMES = ("published", "delivered", "got", "acked", "redelivered", "returned", "expired", "discarded", "dead_lettered",
         "refused", "limited", "timed_out", "delivered_no_ack", "got_no_ack")


def test_the_counters_of_queues_are_those_of_each_by_name_and_their_sums(bench):
    queue, other = bench.queue(), bench.queue(b"other", max_length=2)
    connection = bench.connection(1)
    connection.feed(publish(1, b"x") * 5 + publish(1, b"x", b"other") * 4)
    consume(connection.channels[1], queue)
    bench.turns()
    connection.feed(nack(1, 1) + ack(1, 2))
    for no_ack in (True, False):
        connection.channels[1].get(other, no_ack)
    for each in (queue, other):
        assert plane.counters_of(each) == tuple(getattr(each, name) for name in NAMES)
    both = tuple(map(sum, zip(plane.counters_of(queue), plane.counters_of(other), strict=True)))
    assert both == (9, 6, 2, 2, 1, 1, 0, 2, 0, 0, 0, 0, 0, 1)
    assert plane.sum_counters([queue, other]) == (1, queue.ready + other.ready, queue.unacked + other.unacked, both)
    assert plane.sum_counters([]) == (0, 0, 0, (0,) * len(NAMES))
