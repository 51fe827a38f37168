"""Queue.check() finds counts that do not agree; that it finds nothing wrong is asked in all tests of the plane."""

from tests.plane.harness import consume, nack, publish


def busy(bench):
    queue = bench.queue(max_priority=2)
    connection = bench.connection(1, 2)
    for number in range(40):
        connection.feed(publish(1, b"%d" % number + b"x" * 3000, properties=b"\x08\x00" + bytes([number % 3])))
    connection.channels[2].prefetch = 7
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 3) + nack(2, 5, requeue=False))
    queue.set_aside(queue.browse(1, 1)[0][0])
    return queue, connection


def test_a_busy_queue_agrees_with_itself(bench):
    queue, connection = busy(bench)
    queue.check()
    connection.detach()
    queue.check()
    queue.purge()
    queue.check()


def test_a_queue_that_rests_agrees_with_itself(bench):
    queue, connection = busy(bench)
    connection.detach()
    queue.rest()
    queue.check()


def test_a_deleted_queue_has_nothing_to_compare(bench):
    queue, _ = busy(bench)
    queue.drop()
    queue.check()


def test_a_queue_that_waits_for_a_turn_agrees_with_itself(bench):
    queue, connection = bench.queue(), bench.connection(1)
    consume(connection.channels[1], queue)
    for _ in range(3):
        bench.core.put((queue,), b"", b"q", b"\0\0", b"x")
        queue.check()
    bench.turns()
    assert queue.unacked == 3
