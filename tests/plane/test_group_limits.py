"""Messages that wait in their groups go without having been handed out: by a length limit, a purge, another rule."""

import pytest
from tests.plane.harness import Bench, ack, consume, nack, publish
from tests.plane.test_groups import grouped, properties, received, send, words

from brokerd import plane


@pytest.fixture
def connection(bench):
    return bench.connection(1, 2, 3)


def kept(bench, queue, connection):
    """What comes out of the queue, one after the other."""
    consume(connection.channels[2], queue)
    got, tag = [], 0
    while some := received(bench, connection):
        got += some
        for _ in some:
            tag += 1
            connection.feed(ack(2, tag))
    return words(got)


def test_a_length_limit_drops_the_oldest_message_that_waits(bench, connection):
    queue = grouped(bench, max_length=4)
    send(connection, "r1 g1 r2 g2")
    queue.gate.scan(10)
    send(connection, "r3 b1")
    bench.turns()
    assert (queue.gate.waiting + queue.ready, queue.discarded) == (4, 2)
    queue.check()
    assert sorted(kept(bench, queue, connection).split()) == ["b1", "g2", "r2", "r3"]


def test_it_goes_on_when_groups_come_and_go(bench, connection):
    queue = grouped(bench, max_length=3)
    for number in range(300):
        send(connection, f"{'abcdefg'[number % 7]}{number}")
        queue.gate.scan(10)
        bench.turns()
        assert queue.gate.waiting + queue.ready <= 3
        queue.check()
    assert queue.discarded == 297
    assert sorted(kept(bench, queue, connection).split()) == ["d297", "e298", "f299"]


def test_with_priorities_the_lowest_level_makes_way(bench, connection):
    queue = grouped(bench, max_length=2, max_priority=2)
    send(connection, "r1:2 g1:0 b1:1 c1:0")
    queue.gate.scan(10)
    bench.turns()
    assert sorted(kept(bench, queue, connection).split()) == ["b1", "r1"]


def test_the_dropped_of_a_group_that_is_out_do_not_unlock_it(bench, connection):
    queue = grouped(bench, max_length=1)
    consume(connection.channels[2], queue)
    send(connection, "r1")
    assert words(received(bench, connection)) == "r1"
    send(connection, "r2 r3")
    assert received(bench, connection) == []
    queue.check()
    connection.feed(ack(2, 1))
    assert words(received(bench, connection)) == "r3"


def test_purge_drops_what_waits_in_pieces_and_leaves_what_came_later(bench, connection):
    queue = grouped(bench)
    send(connection, " ".join(f"{group}{number}" for number in range(10) for group in "abc"))
    queue.gate.scan(20)
    queue.gate.park(b"a")
    below = queue.next_seq
    dropped = []
    while True:
        some, whole = plane.purge_some(queue, below, 7)
        dropped.append(some)
        if len(dropped) == 1:
            send(connection, "d1")
        queue.check()
        if whole:
            break
    assert (sum(dropped), max(dropped)) == (30, 7)
    assert kept(bench, queue, connection) == "d1"
    assert len(queue.gate) == 0


def test_all_that_waits_is_ready_again_in_pieces(bench, connection):
    queue = grouped(bench)
    send(connection, " ".join(f"{group}{number}" for number in range(10) for group in "abc"))
    queue.gate.scan(30)
    queue.paused = True
    while not queue.gate.unlist(7):
        queue.check()
    assert (queue.gate.waiting, queue.ready) == (0, 30)
    queue.check()
    queue.paused = False
    got = kept(bench, queue, connection).split()
    assert [word for word in got if word[0] == "a"] == [f"a{number}" for number in range(10)]
    assert len(got) == 30


def test_a_mandatory_message_without_a_group_is_returned_where_groups_are_asked_for(bench, connection):
    grouped(bench, keyless="reject")
    connection.feed(publish(1, b"none", mandatory=True))
    connection.feed(publish(1, b"some", mandatory=True, properties=properties({b"group-id": b"r"})))
    bench.turns()
    (back,) = connection.said()
    assert (back.method, back.reply, back.reply_text, back.body) == (50, 312, b"NO_ROUTE: no message group", b"none")


@pytest.mark.parametrize("kept", [True, False])
def test_so_it_is_where_a_transaction_is_committed_unless_its_channel_has_gone(bench, kept):
    committer = bench.connection(1)
    committer.channels[1].tx = committer.channels[1].keeps = kept
    grouped(bench, keyless="reject")
    bench.queue(b"taker")
    some = properties({b"group-id": b"r"})
    if kept:
        committer.feed(publish(1, b"none", mandatory=True) + publish(1, b"none either")
                       + publish(1, b"some", mandatory=True, properties=some))
        messages = committer.channels[1].take_kept()
        assert messages.route(committer.channels[1])
        messages.put(bench.core, 1, 1, sync=False, returns=committer.channels[1])
        assert messages.refused
    else:
        put = bench.core.put
        queue, taker = bench.queues[b"q"], bench.queues[b"taker"]
        assert put((queue,), b"", b"q", properties({}), b"none", returns=committer.channels[1]) == ()
        assert put((queue,), b"", b"q", properties({}), b"none either") == ()
        assert put((queue, taker), b"", b"q", properties({}), b"taken", returns=committer.channels[1]) == (taker,)
        assert put((queue,), b"", b"q", some, b"some", returns=committer.channels[1]) == (queue,)
    bench.turns()
    (back,) = committer.said()
    assert (back.method, back.reply, back.reply_text, back.body) == (50, 312, b"NO_ROUTE: no message group", b"none")


# --- one message is taken out of its group, wherever it stands


def test_a_message_that_waits_in_its_group_is_set_aside_and_comes_back_to_its_place(bench):
    queue = grouped(bench)
    connection = bench.connection(1, 2)
    send(connection, "r1 r2 r3 r4")
    consume(connection.channels[2], queue)
    found = words(received(bench, connection))
    for tag in range(1, 5):
        for seq in range(tag + 1, 5):
            assert queue.set_aside(seq)
            queue.check()
            assert not queue.set_aside(seq)
            assert [row[0] for row in queue.browse_aside(seq, 1)] == [seq]
            assert queue.release(seq)
            queue.check()
            bench.turns()
        connection.feed(ack(2, tag))
        found += f" {words(received(bench, connection))}"
    assert found.split() == ["r1", "r2", "r3", "r4"]


@pytest.mark.parametrize("seq", [2, 3, 4])
def test_a_group_goes_on_without_a_message_that_was_set_aside(bench, seq):
    queue = grouped(bench)
    connection = bench.connection(1, 2)
    send(connection, "r1 r2 r3 r4")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1"
    assert queue.set_aside(seq)
    assert not queue.set_aside(1)                               # It is out.
    queue.check()
    send(connection, "r5")
    found = []
    for tag in (1, 2, 3):
        connection.feed(ack(2, tag))
        found += [word for _, word in received(bench, connection)]
    assert found == [f"r{n}" for n in (2, 3, 4, 5) if n != seq]
    connection.feed(ack(2, 4))
    queue.settle_aside(seq)
    queue.check()
    assert (len(queue.gate), queue.unacked, queue.aside) == (0, 0, 0)


def test_a_parked_group_stays_parked_over_kill_9_if_its_first_message_is_set_aside(bench):
    queue = grouped(bench)
    connection = bench.connection(1, 2)
    send(connection, "r1 r2 r3")
    assert queue.gate.scan(10)
    assert queue.gate.park(b"r")
    assert queue.set_aside(1)
    queue.settle_aside(1)
    again = Bench(bench.directory)
    found = grouped(again, recovered=True)
    found.gate.scan(10)
    assert found.gate.find(b"r")["states"] == ["parked"]
    assert found.gate.find(b"r")["first_seq"] == 2
    again.close()


def test_messages_without_a_group_wait_by_priority_and_are_set_aside_too(bench):
    queue = grouped(bench, max_priority=3, keyless="free")
    send(bench.connection(1), "_1:1 _2:3 _3:1")
    assert queue.gate.scan(10)
    assert queue.set_aside(3)
    queue.check()
    assert [row[0] for row in queue.browse_aside(3, 1)] == [3]
    single = grouped(bench, name=b"single", keyless="single")
    bench.connection(1).feed(publish(1, b"x", key=b"single") * 3)
    assert single.gate.scan(10)
    assert single.set_aside(2)
    single.check()


def test_a_message_far_behind_in_its_group_is_not_looked_for(bench):
    queue = grouped(bench)
    bench.connection(1).feed(publish(1, b"", properties=properties({b"group-id": b"r"})) * 16400)
    assert queue.gate.scan(20_000)
    assert not queue.set_aside(16_385)
    assert queue.set_aside(16_384)
    queue.check()


def test_what_waits_makes_way_by_its_level_and_then_by_its_age(bench, connection):
    queue = grouped(bench, max_priority=2)
    send(connection, "r1:2 b1:1 g1:0 c1:0")
    queue.gate.scan(10)
    assert (queue.ready, queue.gate.waiting) == (0, 4)
    queue.set_rules(max_length=2)
    bench.turns()
    queue.check()
    assert kept(bench, queue, connection) == "r1 b1"


def test_groups_that_came_after_the_first_drop_are_dropped_from_too(bench, connection):
    queue = grouped(bench, max_length=2)
    send(connection, "a1 b1")
    queue.gate.scan(10)
    send(connection, "c1")
    bench.turns()
    assert queue.discarded == 1
    queue.set_rules(max_length=9)
    send(connection, "d1 e1 f1")
    queue.gate.scan(10)
    assert (queue.ready, queue.gate.waiting) == (0, 5)
    queue.set_rules(max_length=1)
    bench.turns()
    assert kept(bench, queue, connection) == "f1"


def test_a_message_dropped_from_a_retrying_group_does_not_end_the_groups_wait(bench):
    bench.at(1000)
    connection = bench.connection(1, 2)
    queue = grouped(bench)
    queue.gate.set_rule(causes=0xFF, min_ms=100, max_ms=100)
    send(connection, "r1 r2")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1"
    connection.feed(nack(2, 1))
    queue.set_rules(max_length=1)
    bench.turns()
    assert queue.discarded == 1
    bench.at(1099)
    assert received(bench, connection) == []
    bench.at(1100)
    assert words(received(bench, connection)) == "r2"


def test_the_next_of_a_group_is_dropped_when_the_first_has_gone_out_since(bench, connection):
    queue = grouped(bench, max_length=3)
    send(connection, "a1 b1 a2 b2")
    queue.gate.scan(10)
    bench.turns()                       # One is dropped: the first messages of both groups are known now.
    assert (queue.discarded, queue.gate.waiting) == (1, 3)
    queue.set_rules(max_length=9)
    assert connection.channels[3].get(queue, False)
    assert connection.channels[3].get(queue, False)
    gone = words(received(bench, connection)).split()
    queue.set_rules(max_length=0)
    bench.turns()
    assert (queue.ready, queue.gate.waiting) == (0, 0)
    assert queue.discarded == 4 - len(gone)
    queue.check()


def test_any_message_that_waits_is_found_in_its_segment(make_bench):
    bench = make_bench(segment_octets=4096)
    connection, queue = bench.connection(1, 2), grouped(bench)
    connection.feed(publish(1, bytes(300), properties=properties({b"group-id": b"r"})) * 60)
    queue.gate.scan(100)
    assert len(queue.segments()) > 3
    for seq in range(60, 0, -1):
        assert queue.set_aside(seq), seq
    assert len(queue.gate) == 0
    queue.check()


def test_a_group_whose_only_message_was_taken_out_has_no_turn(bench, connection):
    queue = grouped(bench)
    send(connection, "r1 g1")
    queue.gate.scan(10)
    assert queue.set_aside(1)
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "g1"
    assert queue.gate.find(b"r") is None
    queue.check()


def test_a_second_purge_drops_what_waits_too(bench, connection):
    queue = grouped(bench)
    for _ in range(2):
        send(connection, "a1 a2 b1 b2")
        queue.gate.scan(10)
        assert plane.purge_some(queue, queue.next_seq, 100) == (4, True)
        assert (queue.gate.waiting, len(queue.gate)) == (0, 0)
    queue.check()


@pytest.mark.parametrize("first", ["g", "r"])
def test_a_group_without_messages_goes_on_in_its_time_though_a_purge_came_meanwhile(bench, first):
    bench.at(1000)
    connection = bench.connection(1, 2)
    queue = grouped(bench)
    queue.gate.set_rule(causes=0xFF, min_ms=100, max_ms=100)
    send(connection, "g1 r1" if first == "g" else "r1 g1")
    consume(connection.channels[2], queue)
    tags = {body: tag for tag, body in received(bench, connection)}
    connection.feed(nack(2, tags["r1"]))
    send(connection, "g2")
    assert received(bench, connection) == []
    queue.set_rules(max_length=1)
    bench.turns()
    assert (queue.discarded, queue.gate.waiting) == (1, 1)      # r1 has gone, and r waits for its time.
    assert plane.purge_some(queue, queue.next_seq, 100) == (1, True)
    queue.check()
    bench.at(1100)
    send(connection, "r2")
    assert words(received(bench, connection)) == "r2"
    connection.feed(ack(2, 0, multiple=True))
    bench.turns()
    queue.check()
    assert len(queue.gate) == 0
