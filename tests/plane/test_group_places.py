"""Where a redriven message stands in its group: where it stood before it died, also after a crash."""

import pytest
from tests.plane.harness import Bench, ack, consume, nack
from tests.plane.test_groups import grouped, headers, properties, received, send, words

from brokerd import plane


@pytest.fixture
def connection(bench):
    return bench.connection(1, 2, 3)


def redrive(bench, queue, group, place, body):
    """Put a message back that stood there; its number now."""
    bench.core.put((queue,), b"", b"q", properties({b"group-id": group, b"x-group-seq": place}), body, redriven=True)
    seq = queue.next_seq - 1
    assert queue.set_aside(seq)
    return seq


def test_a_redriven_message_goes_before_the_later_ones_of_its_group_and_returns_there(bench, connection):
    queue = grouped(bench)
    consume(connection.channels[2], queue)
    send(connection, "r1 r2 r3 g1")
    assert words(received(bench, connection)) == "r1 g1"
    connection.feed(ack(2, 1))
    assert received(bench, connection) == [(3, "r2")]
    again = redrive(bench, queue, b"r", 1, b"r1-again")
    assert received(bench, connection) == []
    assert queue.gate.put_back(again)
    assert not queue.gate.put_back(again)
    queue.check()
    connection.feed(ack(2, 3))
    assert received(bench, connection) == [(4, "r1-again")]
    connection.feed(nack(2, 4))
    assert received(bench, connection) == [(5, "r1-again")]
    connection.feed(ack(2, 5))
    assert received(bench, connection) == [(6, "r3")]
    queue.check()


def test_several_go_back_by_their_places_and_fresh_messages_behind_them(bench, connection):
    queue = grouped(bench)
    queue.paused = True
    send(connection, "r1 r2 r3 r4 r5")
    for seq in (1, 3):
        queue.remove(seq)
    third, first = redrive(bench, queue, b"r", 3, b"r3-again"), redrive(bench, queue, b"r", 1, b"r1-again")
    queue.gate.scan(2)
    assert queue.gate.put_back(third)
    assert queue.gate.put_back(first)
    queue.check()
    queue.paused = False
    consume(connection.channels[2], queue)
    got = []
    for tag in range(1, 6):
        got += received(bench, connection)
        connection.feed(ack(2, tag))
    assert words(got) == "r1-again r2 r3-again r4 r5"


def test_a_place_that_is_no_number_or_not_before_its_own_is_the_last(bench, connection):
    queue = grouped(bench)
    queue.paused = True
    send(connection, "r1 r2")
    for place in (b"text", 99):
        assert queue.gate.put_back(redrive(bench, queue, b"r", place, b"again"))
    queue.paused = False
    consume(connection.channels[2], queue)
    got = []
    for tag in range(1, 5):
        got += received(bench, connection)
        connection.feed(ack(2, tag))
    assert words(got) == "r1 r2 again again"


def test_without_a_group_it_is_ready_at_its_own_place(bench, connection):
    queue = grouped(bench)
    consume(connection.channels[2], queue)
    bench.core.put((queue,), b"", b"q", properties({b"x-group-seq": 1}), b"free", redriven=True)
    assert queue.set_aside(1)
    assert queue.gate.put_back(1)
    assert words(received(bench, connection)) == "free"
    queue.check()


@pytest.mark.parametrize("parked", [False, True])
def test_after_a_crash_it_stands_there_again(tmp_path, parked):
    bench = Bench(tmp_path)
    connection, queue = bench.connection(1, 2), grouped(bench)
    consume(connection.channels[2], queue)
    send(connection, "r1 r2 r3")
    assert words(received(bench, connection)) == "r1"
    connection.feed(ack(2, 1))
    assert words(received(bench, connection)) == "r2"
    if parked:
        assert queue.gate.park(b"r")
    again = redrive(bench, queue, b"r", 1, b"r1-again")
    assert queue.gate.put_back(again)
    queue.check()

    second = Bench(tmp_path)
    other = second.connection(1, 2)
    recovered = grouped(second, recovered=True)
    assert recovered.gate.put_back(again)
    consume(other.channels[2], recovered)
    if parked:
        assert received(second, other) == []
        assert recovered.gate.release(b"r")
    got = []
    for tag in range(1, 4):
        got += received(second, other)
        other.feed(ack(2, tag))
    assert words(got) == "r1-again r2 r3"
    recovered.check()
    second.close()


def test_a_dead_letter_tells_its_group_and_its_number(bench, connection):
    queue = grouped(bench, dead_letters=True)
    queue.keeps = True
    consume(connection.channels[2], queue)
    send(connection, "r1 r2 _1")
    received(bench, connection)
    connection.feed(nack(2, 1, requeue=False) + nack(2, 2, requeue=False))
    bench.turns()
    assert plane.letter_headers(queue, 1) == headers({b"x-group-id": b"r", b"x-group-seq": 1})
    assert plane.letter_headers(queue, 3) == b""        # It has no group.
    assert plane.letter_headers(queue, 2) == b""        # It is not dead.


def test_a_dead_letter_of_the_one_group_without_a_name_tells_its_number(bench, connection):
    queue = grouped(bench, dead_letters=True, keyless="single")
    queue.keeps = True
    consume(connection.channels[2], queue)
    send(connection, "_1")
    received(bench, connection)
    connection.feed(nack(2, 1, requeue=False))
    bench.turns()
    assert plane.letter_headers(queue, 1) == headers({b"x-group-id": b"", b"x-group-seq": 1})


def test_what_is_parked_is_found_in_the_acks_of_a_segment(tmp_path):
    bench = Bench(tmp_path)
    connection, queue = bench.connection(1, 2), grouped(bench)
    consume(connection.channels[2], queue)
    send(connection, "r1 r2 g1 g2 b1 b2")
    received(bench, connection)
    for group in (b"r", b"g", b"b"):
        assert queue.gate.park(group)
    assert queue.gate.release(b"g")
    second = Bench(tmp_path)
    recovered = grouped(second, recovered=True)
    assert plane.parked_in_segment(recovered, recovered.segments()[0]["number"]) == [2, 6]
    for seq in (2, 6):
        assert recovered.gate.put_back(seq)
    assert recovered.gate.find(b"b")["states"] == ["parked"]
    assert recovered.gate.find(b"g") is None
    recovered.check()
    second.close()


def test_a_redriven_message_that_is_out_at_each_crash_dies_of_its_limit(make_bench):
    first = make_bench()
    connection, queue = first.connection(1, 2), grouped(first)
    send(connection, "r1 r2 r3")
    queue.remove(1)
    assert redrive(first, queue, b"r", 1, b"r1-again") == 4
    got = []
    for _ in range(3):
        bench = make_bench()
        queue = grouped(bench, recovered=True, delivery_limit=2, dead_letters=True)
        assert queue.gate.put_back(4)
        connection = bench.connection(1, 2)
        consume(connection.channels[2], queue)
        got.append((words(received(bench, connection)), queue.died))
        queue.check()
    assert got == [("r1-again", []), ("r1-again", []), ("r2", [("delivery_limit", b"r1-again")])]


def test_before_a_redriven_message_all_earlier_ones_go_that_a_start_found(tmp_path):
    first = Bench(tmp_path)
    connection, queue = first.connection(1, 2), grouped(first)
    send(connection, "r1 " + "g " * 200 + "r2")
    queue.remove(202)
    redrive(first, queue, b"r", 202, b"r2-again")
    bench = Bench(tmp_path)
    connection, queue = bench.connection(1, 2), grouped(bench, recovered=True, most=2)
    queue.gate.pause(b"g")
    assert queue.gate.put_back(203)
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 r2-again"
    queue.check()
    bench.close()


def test_what_was_redriven_and_is_out_when_the_rule_changes_returns_to_its_place(bench, connection):
    queue = grouped(bench, most=2)
    send(connection, "r1 r2 r3")
    queue.remove(1)
    assert queue.gate.put_back(redrive(bench, queue, b"r", 1, b"r1-again"))
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1-again r2"
    gate, queue.gate = queue.gate, None
    queue.gate = gate
    connection.feed(nack(2, 2, multiple=True))
    queue.check()
    assert words(received(bench, connection)) == "r1-again r2"


@pytest.mark.parametrize("redriven", [False, True])
def test_what_an_operator_released_after_a_start_is_not_parked_again_when_the_rule_changes(tmp_path, redriven):
    first = Bench(tmp_path)
    connection, queue = first.connection(1, 2), grouped(first)
    if redriven:
        assert queue.gate.put_back(redrive(first, queue, b"r", 1, b"r1"))
    else:
        send(connection, "r1")
    consume(connection.channels[2], queue)
    assert words(received(first, connection)) == "r1"

    bench = Bench(tmp_path)
    queue = grouped(bench, recovered=True, delivery_limit=1, limit_stops=True)
    for released in (False, True):
        assert queue.gate.put_back(1) if redriven else queue.gate.scan(10)
        if not released:
            assert queue.gate.find(b"r")["states"] == ["parked"]    # It was out at the crash: its last try.
            assert queue.gate.release(b"r")
            gate, queue.gate = queue.gate, None
            queue.gate = gate
    assert queue.gate.find(b"r")["states"] == []
    connection = bench.connection(1, 2)
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1"
    queue.check()
    bench.close()


def test_a_redriven_message_says_its_group_and_its_place_there_once(bench, connection):
    queue = grouped(bench)
    connection.channels[2].consume(queue, b"c", no_ack=False, arguments={"x-group-info": True})
    bench.core.put((queue,), b"", b"q", properties({b"x-group-id": b"r", b"group-id": b"r", b"x-group-seq": 1}), b"r1",
                   redriven=True)
    assert queue.gate.put_back(1) or queue.gate.scan(10)
    bench.turns()
    one, = connection.delivered()
    names = [b"x-group-id", b"x-group-seq", b"x-group-token", b"x-group-first"]
    assert [one.properties.count(bytes([len(name)]) + name) for name in names] == [1, 1, 1, 1]


def test_a_redriven_message_without_a_group_makes_no_queue_longer_than_its_limit(bench, connection):
    queue = grouped(bench)
    send(connection, "_1")
    bench.core.put((queue,), b"", b"q", properties({b"x-group-seq": 1}), b"free", redriven=True)
    seq = queue.next_seq - 1
    assert queue.set_aside(seq)
    queue.set_rules(max_length=1)
    bench.turns()
    assert (queue.ready, queue.discarded) == (1, 0)
    assert queue.gate.put_back(seq)
    bench.turns()
    assert (queue.ready, queue.discarded) == (1, 1)
    queue.check()
