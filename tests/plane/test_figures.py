"""What is counted for operators alone."""

import gc

from tests.plane.harness import ack, consume, nack, publish


def test_sizes_are_counted_from_the_moment_on_that_they_are_asked_for(bench):
    bench.queue()
    connection = bench.connection(1)
    connection.feed(publish(1, b"x" * 100))
    assert bench.core.sizes == ((0,) * 9, 0)
    bench.core.count_figures = True
    for size in (0, 100, 101, 1000, 1001, 10_001):
        connection.feed(publish(1, b"x" * size))
    assert bench.core.sizes == ((2, 2, 1, 1, 0, 0, 0, 0, 0), 12_203)
    bench.core.count_figures = False
    connection.feed(publish(1, b"x"))
    assert sum(bench.core.sizes[0]) == 6


def test_a_time_is_in_the_first_bucket_that_is_not_below_it(bench):
    bench.at(1_000_000)
    bench.core.count_figures = True
    queue, connection = bench.queue(), bench.connection(1)
    for at, waited in ((1_000_000, 0), (1_000_000, 1), (1_000_000, 1200)):
        bench.at(at)
        connection.feed(publish(1, b"x"))
        bench.at(at + waited)
        assert connection.channels[1].get(queue, True)
    (waiting, ns), working = queue.times
    assert (waiting[0], waiting[1], waiting[7], sum(waiting)) == (1, 1, 1, 3)  # 0, 1, 1200 ms
    assert 1_200_999_000 < ns <= 1_201_000_000  # Times of records rise by 1 ns at least.
    assert working == ((0,) * 15, 0)  # They needed no ack.


def test_the_time_of_work_ends_with_a_settlement_and_not_with_a_return(bench):
    bench.at(1_000_000)
    bench.core.count_figures = True
    queue, connection = bench.queue(), bench.connection(1)
    consume(connection.channels[1], queue)
    connection.feed(publish(1, b"x"))
    bench.at(1_000_070)
    connection.feed(nack(1, 1))
    assert sum(queue.times[1][0]) == 0
    bench.at(1_000_100)
    connection.feed(ack(1, 2))
    assert queue.times[1][1] == 30_000_000
    assert sum(queue.times[0][0]) == 2  # It was handed out twice.


def test_a_queue_that_goes_leaves_its_times_and_a_channel_its_confirms(bench):
    bench.core.count_figures = True
    queue, connection = bench.queue(), bench.connection(1)
    connection.feed(publish(1, b"x"))
    connection.channels[1].get(queue, True)
    connection.channels[1].select_confirm()
    connection.feed(publish(1, b"x") * 2)
    before = bench.core.times, bench.core.figures()
    assert (before[1]["confirm_in"], before[1]["confirm"], before[1]["publishers"]) == (2, 2, 1)
    connection.channels[1].close()
    queue.close()
    del queue
    bench.queues.clear()
    gc.collect()
    assert (bench.core.times, bench.core.figures()) == (before[0], {**before[1], "publishers": 0})


def test_publishes_without_a_queue_and_gets_without_a_message_are_counted(bench):
    queue, connection = bench.queue(), bench.connection(1)
    connection.feed(publish(1, b"x", b"none") * 3 + publish(1, b"x", b"none", mandatory=True) * 2)
    connection.channels[1].get(queue, True)
    found = bench.core.figures()
    assert (found["drop_unroutable"], found["return_unroutable"], found["get_empty"]) == (3, 2, 1)


def test_deliveries_without_acks_are_counted_apart(bench):
    queue, connection = bench.queue(), bench.connection(1, 2)
    connection.feed(publish(1, b"x") * 5)
    for no_ack in (True, True, False):
        connection.channels[1].get(queue, no_ack)
    consume(connection.channels[2], queue, no_ack=True)
    bench.turns()
    assert (queue.got, queue.got_no_ack, queue.delivered, queue.delivered_no_ack) == (3, 2, 2, 2)
