"""A purge in pieces: whole files and single messages go, and what came after it began stays."""

import pytest
from tests.plane.harness import consume, publish, read

from brokerd import plane


def purged(queue, most, between=lambda: None):
    """Purge to the end; how many each piece dropped."""
    below, dropped, whole = queue.next_seq, [], False
    while not whole:
        some, whole = plane.purge_some(queue, below, most)
        dropped.append(some)
        queue.check()
        between()
    return dropped


@pytest.mark.parametrize("octets", [10, 3000])
def test_pieces_drop_all_that_was_there_and_nothing_that_comes(bench, octets):
    queue, connection = bench.queue(), bench.connection(1, 2)
    for _ in range(100):
        connection.feed(publish(1, bytes(octets)))
    dropped = purged(queue, 7, lambda: connection.feed(publish(1, b"later")))
    assert sum(dropped) == 100
    assert (max(dropped) == 7) is (octets == 10)        # Whole files go at once.
    assert {one.body for one in read(bench, queue)} == {b"later"}


def test_what_is_out_stays_out(bench):
    queue, connection = bench.queue(), bench.connection(1, 2)
    connection.channels[2].prefetch = 2
    consume(connection.channels[2], queue)
    for _ in range(5):
        connection.feed(publish(1, b"m"))
    bench.turns()
    assert purged(queue, 100) == [3]
    assert (queue.unacked, queue.ready, queue.ready_octets) == (2, 0, 0)


def test_with_priorities_all_levels_go(bench):
    queue, connection = bench.queue(b"q", max_priority=2), bench.connection(1)
    for level in (0, 1, 2):
        connection.feed(publish(1, b"m", properties=b"\x08\x00" + bytes([level])))
    assert sum(purged(queue, 1)) == 3
