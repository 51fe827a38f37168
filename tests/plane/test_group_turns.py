"""Whose turn it is among groups, and what holds a group."""

import pytest
from tests.plane.harness import ack, consume, nack, reject
from tests.plane.test_groups import NAMES, grouped, received, send, words

from brokerd import plane


@pytest.fixture
def connection(bench):
    return bench.connection(1, 2, 3, 4)


def test_groups_that_wait_and_messages_that_come_take_turns(bench, connection):
    queue = grouped(bench)
    connection.channels[2].prefetch = 1
    send(connection, "r1 r2 g1 g2")
    assert connection.channels[3].get(queue, False)
    assert connection.channels[3].get(queue, False)
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 g1"
    send(connection, "b1 c1 d1 e1")
    connection.feed(ack(3, 1) + ack(3, 2))
    got = []
    for tag in range(1, 7):
        got += received(bench, connection)
        connection.feed(ack(2, tag))
    assert sorted(words(got).split()) == ["b1", "c1", "d1", "e1", "g2", "r2"]
    assert {"r2", "b1"} <= set(words(got).split()[:3])


def test_messages_that_come_go_out_while_many_groups_wait(bench, connection):
    queue = grouped(bench)
    connection.channels[2].prefetch = 1
    send(connection, "a1 b1 c1 d1 e1 f1")
    queue.gate.scan(6)
    send(connection, "u1 v1 w1")
    consume(connection.channels[2], queue)
    got = []
    for tag in range(1, 7):
        got += received(bench, connection)
        connection.feed(ack(2, tag))
    assert sorted(words(got).split()) == ["a1", "b1", "c1", "u1", "v1", "w1"]


def test_a_new_consumer_gets_no_group_of_one_that_left_and_has_not_settled(bench, connection):
    queue = grouped(bench, sticky=True)
    tag = consume(connection.channels[2], queue, b"2")
    send(connection, "r1")
    assert words(received(bench, connection)) == "r1"
    connection.channels[2].cancel(tag)
    consume(connection.channels[3], queue, b"3")
    send(connection, "r2 g1")
    assert words(received(bench, connection)) == "g1"
    connection.feed(ack(2, 1))
    assert words(received(bench, connection)) == "r2"


def test_what_has_returned_or_is_set_aside_locks_no_group_when_the_rule_comes(bench, connection):
    queue = bench.queue()
    send(connection, "r1 r2 g1 g2")
    assert connection.channels[2].get(queue, False)
    assert words(received(bench, connection)) == "r1"
    connection.feed(nack(2, 1))
    assert queue.set_aside(3)
    queue.gate = plane.Groups(sticky=False, by="header", names=NAMES)
    consume(connection.channels[3], queue)
    assert words(received(bench, connection)) == "r1 g2"
    queue.check()


def test_the_next_of_a_group_waits_until_the_dead_letter_of_the_one_before_is_stored(bench, connection):
    queue = grouped(bench, dead_letters=True, delivery_limit=2)
    queue.keeps = True
    send(connection, "r1 r2 g1")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 g1"
    connection.feed(reject(2, 1, requeue=False))
    assert received(bench, connection) == []
    queue.settle_aside(1)
    assert words(received(bench, connection)) == "r2"


def test_groups_of_a_consumer_that_leaves_go_to_the_others(bench, connection):
    queue = grouped(bench, sticky=True)
    connection.channels[2].prefetch = 1
    consume(connection.channels[2], queue, b"2")
    send(connection, "r1 r2 r3")
    assert words(received(bench, connection)) == "r1"
    consume(connection.channels[3], queue, b"3")
    assert received(bench, connection) == []
    connection.channels[2].close()
    assert words(received(bench, connection)) == "r1 r2 r3"


def test_groups_that_wait_take_turns_and_none_comes_twice_before_another(bench, connection):
    queue = grouped(bench)
    send(connection, "a1 a2 a3 b1 b2 b3 c1 c2 c3")
    queue.gate.scan(100)
    connection.channels[2].prefetch = 1
    consume(connection.channels[2], queue)
    got = []
    for tag in range(1, 10):
        got += received(bench, connection)
        connection.feed(ack(2, tag))
    assert words(got) == "a1 b1 c1 a2 b2 c2 a3 b3 c3"


def test_with_too_many_waiting_no_more_are_looked_at_until_some_have_gone_out(bench, connection):
    queue = grouped(bench)
    queue.gate = plane.Groups(sticky=False, by="header", names=NAMES, waiting_most=10)
    send(connection, "r " * 30 + "g1")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r"
    assert (queue.gate.waiting, queue.ready) == (10, 20)
    got = []
    for tag in range(1, 31):
        connection.feed(ack(2, tag))
        got += words(received(bench, connection)).split()
    assert sorted(got) == ["g1"] + ["r"] * 29
    queue.check()


def test_new_sticky_groups_go_to_the_one_of_three_that_has_the_fewest(bench, connection):
    queue = grouped(bench, sticky=True)
    for number in (2, 3):
        consume(connection.channels[number], queue, b"%d" % number)
    send(connection, "a1 b1 c1 d1 e1 f1")
    bench.turns()
    assert sorted(one.channel for one in connection.delivered()) == [2, 2, 2, 3, 3, 3]
    consume(connection.channels[4], queue, b"4")
    for group in "ghi":
        send(connection, f"{group}1")
        bench.turns()
        assert [one.channel for one in connection.delivered()] == [4]


def test_a_sticky_group_that_has_waited_goes_to_the_one_with_the_fewest_too(bench, connection):
    queue = grouped(bench, sticky=True)
    consume(connection.channels[2], queue, b"2")
    send(connection, "a1 b1 c1 d1 e1")
    assert words(received(bench, connection)) == "a1 b1 c1 d1 e1"
    consume(connection.channels[4], queue, b"4")
    send(connection, "w1 x1 y1 z1")
    bench.turns()
    assert [one.channel for one in connection.delivered()] == [4, 4, 4, 4]
    consume(connection.channels[3], queue, b"3")
    connection.channels[4].close()
    bench.turns()
    found = [(one.channel, one.body.decode()) for one in connection.delivered()]
    assert found == [(3, "w1"), (3, "x1"), (3, "y1"), (3, "z1")]
    queue.check()


def test_an_owners_groups_and_those_without_an_owner_take_turns(bench, connection):
    queue = grouped(bench, most=2)
    connection.channels[2].prefetch = 2
    consume(connection.channels[2], queue)
    send(connection, "r1 r2 r3 r4 r5 g1 h1 i1 j1")
    assert words(received(bench, connection)) == "r1 r2"
    queue.gate.scan(100)
    connection.feed(ack(2, 1))
    got = received(bench, connection)       # r2 stays out: r has an owner, and may have one more.
    for _ in range(3):
        connection.feed(ack(2, got[-1][0]))
        got += received(bench, connection)
    assert sorted(words(got).split()) == ["g1", "h1", "r3", "r4"]


def test_the_next_of_a_group_waits_until_the_dead_letter_of_one_that_was_never_out_is_stored(bench, connection):
    bench.at(1)
    queue = grouped(bench, ttl_ms=1000, dead_letters=True)
    queue.keeps = True
    send(connection, "r1")
    bench.at(900)
    send(connection, "r2 g1")
    bench.at(1500)
    assert queue.died == [("expired", b"r1")]
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "g1"
    queue.settle_aside(1)
    assert words(received(bench, connection)) == "r2"


def test_octets_of_what_waits_in_its_group_are_not_ready(bench, connection):
    queue = grouped(bench)
    send(connection, "r1 r2 r3", size=1000)
    queue.gate.scan(2)
    assert (queue.ready, queue.ready_octets, queue.gate.waiting) == (1, 1002, 2)
