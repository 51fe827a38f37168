"""What an operator does to a group: pause, resume, park, release, skip, purge; and what a restart remembers of it."""

import pytest
from tests.plane.harness import Bench, ack, consume, nack
from tests.plane.test_groups import grouped, received, send, words


@pytest.fixture
def connection(bench):
    return bench.connection(1, 2, 3)


@pytest.fixture
def queue(bench):
    return grouped(bench)


def test_a_paused_group_waits_until_it_is_resumed(bench, connection, queue):
    consume(connection.channels[2], queue)
    queue.gate.pause(b"r")
    send(connection, "r1 r2 g1")
    assert words(received(bench, connection)) == "g1"
    assert queue.gate.find(b"r")["states"] == ["paused"]
    assert queue.gate.resume(b"r")
    assert not queue.gate.resume(b"r")
    assert words(received(bench, connection)) == "r1"


def test_a_group_that_is_paused_while_its_first_is_out_waits_after_that(bench, connection, queue):
    consume(connection.channels[2], queue)
    send(connection, "r1 r2")
    assert words(received(bench, connection)) == "r1"
    queue.gate.pause(b"r")
    connection.feed(ack(2, 1))
    assert received(bench, connection) == []
    assert queue.gate.release(b"r")
    assert words(received(bench, connection)) == "r2"


@pytest.mark.parametrize("out", ["settled", "returned", "unsettled"])
def test_a_parked_group_stays_parked_after_a_crash_until_it_is_released(tmp_path, out):
    bench = Bench(tmp_path)
    connection, queue = bench.connection(1, 2), grouped(bench)
    consume(connection.channels[2], queue)
    send(connection, "r1 r2 g1 r3")
    assert words(received(bench, connection)) == "r1 g1"
    assert queue.gate.park(b"r")
    assert not queue.gate.park(b"nobody")
    if out != "unsettled":
        connection.feed(ack(2, 1) if out == "settled" else nack(2, 1))
    connection.feed(ack(2, 2))
    assert received(bench, connection) == []
    queue.check()

    again = Bench(tmp_path)
    other = again.connection(1, 2)
    recovered = grouped(again, recovered=True)
    consume(other.channels[2], recovered)
    send(other, "r4 g2")
    first = [(1, "r1")] if out == "unsettled" else []       # It was out: its group is parked behind it.
    deliveries = received(again, other)
    assert deliveries == [*first, (len(first) + 1, "g2")]
    other.feed(ack(2, 0, multiple=True))
    assert received(again, other) == []
    assert recovered.gate.find(b"r")["states"] == ["parked"]
    assert recovered.gate.release(b"r")
    tag, got = deliveries[-1][0], []
    for _ in range(4 if out == "returned" else 3):
        got += received(again, other)
        tag += 1
        other.feed(ack(2, tag))
    assert words(got) == ("r1 " if out == "returned" else "") + "r2 r3 r4"
    recovered.check()
    again.close()

    third = Bench(tmp_path)
    assert grouped(third, recovered=True).ready == 0
    third.close()


def test_a_released_group_is_not_parked_after_a_crash(tmp_path):
    bench = Bench(tmp_path)
    connection, queue = bench.connection(1, 2), grouped(bench)
    send(connection, "r1 r2")
    queue.gate.scan(100)
    assert queue.gate.park(b"r")
    assert queue.gate.release(b"r")
    again = Bench(tmp_path)
    other = again.connection(1, 2)
    recovered = grouped(again, recovered=True)
    consume(other.channels[2], recovered)
    assert words(received(again, other)) == "r1"
    again.close()


def test_skip_drops_the_first_message_of_a_group_of_which_none_is_out(bench, connection, queue):
    send(connection, "r1 r2 r3")
    queue.gate.scan(100)
    assert queue.gate.park(b"r")
    assert queue.gate.skip(b"r") == 1
    consume(connection.channels[2], queue)
    assert received(bench, connection) == []
    assert queue.gate.release(b"r")
    assert words(received(bench, connection)) == "r2"
    assert queue.gate.skip(b"r") == 0


def test_purge_of_a_group_drops_what_waits_in_it_and_nothing_else(bench, connection, queue):
    send(connection, "r1 g1 r2 g2 r3")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 g1"
    assert queue.gate.purge(b"r", 1) == 1
    assert queue.gate.purge(b"r", 100) == 1
    queue.check()
    connection.feed(ack(2, 1) + ack(2, 2))
    assert words(received(bench, connection)) == "g2"


def test_a_group_shows_its_first_message_owner_and_turn(bench, connection, queue):
    send(connection, "r1 r2 g1")
    owner = consume(connection.channels[2], queue)
    connection.channels[2].prefetch = 1
    assert words(received(bench, connection)) == "r1 g1"
    connection.feed(nack(2, 2))
    assert words(received(bench, connection)) == "g1"
    found = queue.gate.find(b"r")
    assert (found["owner"], found["unacked"], found["waiting"], found["first_seq"]) == (owner, 1, 1, 2)
    assert not found["turn"]
    assert found["states"] == []
    assert found["failed"] == 0
    assert queue.gate.waits == 1
