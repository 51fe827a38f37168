"""Message groups: what goes out of a queue, to whom, and in what order within each group."""

import struct

import pytest
from tests.plane.harness import Bench, ack, consume, nack, publish, reject, shortstr

from brokerd import plane
from brokerd.store import compaction
from brokerd.store.disk import Disk

NAMES = (b"JMSXGroupID", b"x-message-group-id", b"MessageGroupId", b"group-id")


def grouped(bench, *, sticky=False, most=1, by="header", names=NAMES, keyless="free", idle_ms=60_000, name=b"q",
            max_priority=0, recovered=False, **rules):
    make = bench.recovered if recovered else bench.queue
    queue = make(name, max_priority=max_priority)
    if rules:
        queue.set_rules(**rules)
    queue.gate = plane.Groups(sticky=sticky, by=by, names=names, keyless=keyless, most=most, idle_ms=idle_ms,
                              max_priority=max_priority)
    return queue


def headers(table):
    """The properties of a message with these headers: texts and whole numbers."""
    items = b""
    for name, value in table.items():
        items += shortstr(name)
        items += (b"l" + struct.pack(">q", value) if isinstance(value, int)
                  else b"S" + struct.pack(">I", len(value)) + value)
    return items


def properties(table, priority=None):
    items = headers(table)
    flags = 1 << 13 | (priority is not None) << 11
    return struct.pack(">HI", flags, len(items)) + items + (bytes([priority]) if priority is not None else b"")


def send(connection, text, header=b"group-id", channel=1, size=0):
    """One message for each word: its letters say its group, and its last digit its priority after a colon."""
    for word in text.split():
        body, _, level = word.partition(":")
        group = body.rstrip("0123456789").encode()
        table = {header: group} if group != b"_" else {}
        connection.feed(publish(channel, body.encode() + bytes(size),
                                properties=properties(table, int(level) if level else None)))


def received(bench, connection):
    bench.turns()
    return [(one.tag, one.body.rstrip(b"\0").decode()) for one in connection.delivered()]


def words(deliveries):
    return " ".join(word for _, word in deliveries)


@pytest.fixture
def connection(bench):
    return bench.connection(1, 2, 3, 4)


# --- exclusive


def test_one_message_of_a_group_is_out_at_a_time_and_no_group_holds_up_another(bench, connection):
    queue = grouped(bench)
    send(connection, "r1 r2 r3 g1 _1 g2 _2")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 g1 _1 _2"
    queue.check()
    assert (queue.ready, queue.unacked, queue.gate.waiting, queue.aside) == (0, 4, 3, 3)
    connection.feed(ack(2, 1))
    assert words(received(bench, connection)) == "r2"
    connection.feed(ack(2, 2) + ack(2, 5))
    assert words(received(bench, connection)) == "g2 r3"
    connection.feed(ack(2, 0, multiple=True))
    assert received(bench, connection) == []
    queue.check()
    assert len(queue.gate) == 0
    assert (queue.ready, queue.unacked, queue.aside) == (0, 0, 0)


def test_a_message_that_returns_goes_before_the_later_ones_of_its_group(bench, connection):
    queue = grouped(bench)
    send(connection, "r1 r2 r3")
    consume(connection.channels[2], queue)
    for tag in (1, 2, 3):
        assert received(bench, connection) == [(tag, "r1")]
        connection.feed(nack(2, tag))
    assert received(bench, connection) == [(4, "r1")]
    connection.feed(ack(2, 4))
    assert received(bench, connection) == [(5, "r2")]
    assert queue.returned == 3


def test_a_group_that_its_consumer_left_waits_until_its_delivery_is_settled_or_returns(bench, connection):
    queue = grouped(bench)
    send(connection, "r1 r2")
    first = consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1"
    connection.channels[2].cancel(first)
    consume(connection.channels[3], queue, b"other")
    assert received(bench, connection) == []
    connection.feed(ack(2, 1))
    assert words(received(bench, connection)) == "r2"
    connection.channels[3].close()
    consume(connection.channels[4], queue, b"third")
    assert words(received(bench, connection)) == "r2"


def test_up_to_so_many_of_a_group_are_out_in_order_and_all_with_one_consumer(bench, connection):
    queue = grouped(bench, most=2)
    send(connection, "r1 g1 r2 r3 g2 g3")
    connection.channels[2].prefetch = connection.channels[3].prefetch = 3
    consume(connection.channels[2], queue, b"two")
    consume(connection.channels[3], queue, b"three")
    bench.turns()
    by_consumer = {}
    for one in connection.delivered():
        by_consumer.setdefault(one.consumer, []).append(one.body.decode())
    assert by_consumer == {b"two": ["r1", "r2"], b"three": ["g1", "g2"]}
    connection.feed(ack(3, 1))
    assert words(received(bench, connection)) == "g3"


def test_later_deliveries_of_a_group_return_with_an_earlier_one_but_do_not_die_with_it(bench, connection):
    queue = grouped(bench, most=3, delivery_limit=3, dead_letters=True)
    send(connection, "r1 r2 r3 r4")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 r2 r3"
    connection.feed(nack(2, 2))                             # r3 returns with it, r1 stays out.
    assert words(received(bench, connection)) == "r2 r3"
    connection.feed(ack(2, 3))                              # Too late.
    assert queue.gate.fenced == 1
    connection.feed(nack(2, 4))
    assert words(received(bench, connection)) == "r2 r3"
    connection.feed(nack(2, 6))
    bench.turns()
    assert [body for _, body in queue.died] == [b"r2"]      # r3 stays with its consumer.
    connection.feed(ack(2, 1))
    assert words(received(bench, connection)) == "r4"


def test_a_return_fences_no_delivery_of_another_queue_nor_one_whose_settlement_waits_for_its_commit(bench, connection):
    queue, other = grouped(bench, sticky=True), grouped(bench, sticky=True, name=b"other")
    channel = connection.channels[2]
    send(connection, "r1 r2 r3")
    connection.feed(publish(1, b"o1", b"other", properties=properties({b"group-id": b"o"})))
    consume(channel, queue)
    assert words(received(bench, connection)) == "r1 r2 r3"
    consume(channel, other, b"other")
    assert received(bench, connection) == [(4, "o1")]
    channel.claim(2, False, 0)
    connection.feed(nack(2, 1))
    channel.settle_claimed(2, 2, 2, 0)
    assert words(received(bench, connection)) == "r1 r3"
    assert (queue.acked, queue.unacked, other.unacked) == (1, 2, 1)


def test_deliveries_that_return_by_one_nack_are_not_fenced(bench, connection):
    queue = grouped(bench, most=3)
    send(connection, "r1 r2 r3")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 r2 r3"
    connection.feed(nack(2, 3, multiple=True))
    assert words(received(bench, connection)) == "r1 r2 r3"
    assert connection.channels[2].late == queue.gate.fenced == 0
    assert [queue.gate.find(b"r")[name] for name in ("unacked", "waiting")] == [3, 0]


def test_basic_get_obeys_the_groups(bench, connection):
    queue = grouped(bench)
    send(connection, "r1 r2 g1")
    channel = connection.channels[2]
    assert [channel.get(queue, False) for _ in range(3)] == [True, True, False]
    assert words(received(bench, connection)) == "r1 g1"
    connection.feed(ack(2, 1))
    assert channel.get(queue, True)
    assert words(received(bench, connection)) == "r2"
    send(connection, "r3")
    assert channel.get(queue, True)
    assert words(received(bench, connection)) == "r3"


def test_without_acks_a_group_goes_on_at_once(bench, connection):
    queue = grouped(bench)
    send(connection, "r1 r2 g1 r3")
    consume(connection.channels[2], queue, no_ack=True)
    assert words(received(bench, connection)) == "r1 r2 g1 r3"
    assert (queue.ready, queue.aside, queue.unacked, len(queue.gate)) == (0, 0, 0, 0)


def test_a_hot_group_in_front_does_not_hide_the_others(bench, connection):
    queue = grouped(bench)
    consume(connection.channels[2], queue)
    send(connection, "r " * 5000 + "g1 b1")
    assert words(received(bench, connection)) == "r g1 b1"
    assert queue.gate.waiting == 4999
    assert queue.gate.octets < 16 * 6000 + 200_000
    for tag in (1, *range(4, 40)):
        connection.feed(ack(2, tag))
        assert words(received(bench, connection)) == "r"


def test_each_of_many_groups_goes_on_when_its_dead_letter_is_stored(bench, connection):
    queue = grouped(bench, dead_letters=True)
    queue.keeps = True
    names = "abcdefg"
    send(connection, " ".join([f"{name}1" for name in names] + [f"{name}2" for name in names]))
    consume(connection.channels[2], queue)
    bench.turns()
    tags = {one.body.decode(): one.tag for one in connection.delivered()}
    for name in names:
        connection.feed(reject(2, tags[f"{name}1"], requeue=False))
    bench.turns()
    assert connection.delivered() == []
    for at, name in enumerate(names):
        queue.settle_aside(at + 1)
        bench.core.turn()
        bench.turns()
        assert words(received(bench, connection)) == f"{name}2"
    queue.check()


def test_no_two_owners_have_one_token_though_the_clock_stands_still(bench, connection):
    bench.at(1000)
    queue = grouped(bench)
    send(connection, "a1 b1 c1")
    consume(connection.channels[2], queue)
    bench.turns()
    assert len({queue.gate.find(key)["token"] for key in (b"a", b"b", b"c")}) == 3


# --- sticky


def test_a_sticky_group_stays_with_its_consumer_which_may_hold_many_of_it(bench, connection):
    queue = grouped(bench, sticky=True)
    connection.channels[2].prefetch = connection.channels[3].prefetch = 3
    two, three = consume(connection.channels[2], queue, b"2"), consume(connection.channels[3], queue, b"3")
    send(connection, "r1 g1 r2 r3 r4 g2")
    bench.turns()
    got = {}
    for one in connection.delivered():
        got.setdefault(one.consumer, []).append(one.body.decode())
    assert got == {b"2": ["r1", "r2", "r3"], b"3": ["g1", "g2"]}
    connection.feed(ack(2, 1))
    assert words(received(bench, connection)) == "r4"
    connection.feed(ack(2, 0, multiple=True) + ack(3, 0, multiple=True))
    send(connection, "g3 r5")
    bench.turns()
    assert [(one.consumer, one.body) for one in connection.delivered()] == [(b"3", b"g3"), (b"2", b"r5")]
    assert queue.gate.find(b"r")["owner"] is two
    assert queue.gate.find(b"g")["owner"] is three


def test_a_sticky_group_without_messages_has_a_new_owner_after_its_idle_time(bench, connection):
    queue = grouped(bench, sticky=True, idle_ms=1000)
    bench.at(1)
    consume(connection.channels[2], queue, b"2")
    send(connection, "r1")
    assert words(received(bench, connection)) == "r1"
    connection.feed(ack(2, 1))
    assert len(queue.gate) == 1
    bench.at(900)
    assert len(queue.gate) == 1
    bench.at(1002)
    assert len(queue.gate) == 0


def test_what_waits_for_a_consumer_whose_group_was_idle_goes_out_as_soon_as_that_has_credit(bench, connection):
    queue = grouped(bench, sticky=True)
    connection.channels[2].prefetch = 1
    consume(connection.channels[2], queue)
    send(connection, "r1")
    assert words(received(bench, connection)) == "r1"
    connection.feed(ack(2, 1))              # r is idle, and its owner's.
    send(connection, "g1")
    assert words(received(bench, connection)) == "g1"
    assert not connection.channels[3].get(queue, False)
    send(connection, "r2")
    assert not connection.channels[3].get(queue, False)
    connection.feed(ack(2, 2))
    assert words(received(bench, connection)) == "r2"


def test_groups_that_a_consumer_has_lost_do_not_count_when_new_ones_are_shared_out(bench, connection):
    bench.at(1000)
    queue = grouped(bench, sticky=True, idle_ms=10)
    consume(connection.channels[2], queue)
    send(connection, "a1 b1 c1 d1")
    bench.turns()
    connection.feed(ack(2, 0, multiple=True))
    connection.frames()
    bench.at(2000)
    consume(connection.channels[3], queue)
    send(connection, "e1 f1 g1 h1")
    bench.turns()
    assert sorted(one.channel for one in connection.delivered()) == [2, 2, 3, 3]


def test_a_sticky_group_ends_with_its_closing_message(bench, connection):
    queue = grouped(bench, sticky=True)
    connection.feed(publish(1, b"r1", properties=properties({b"JMSXGroupID": b"r"})))
    connection.feed(publish(1, b"r2", properties=properties({b"JMSXGroupID": b"r", b"JMSXGroupSeq": -1})))
    connection.feed(publish(1, b"r3", properties=properties({b"JMSXGroupID": b"r"})))
    consume(connection.channels[2], queue, b"2")
    assert words(received(bench, connection)) == "r1 r2"
    token = queue.gate.find(b"r")["token"]
    connection.feed(ack(2, 1))
    assert received(bench, connection) == []
    connection.feed(ack(2, 2))
    assert words(received(bench, connection)) == "r3"
    assert queue.gate.find(b"r")["token"] > token


def test_a_closing_message_that_has_waited_ends_a_sticky_group_too(bench, connection):
    queue = grouped(bench, sticky=True)
    connection.channels[2].prefetch = 2
    consume(connection.channels[2], queue, b"2")
    send(connection, "r1 x1")
    assert words(received(bench, connection)) == "r1 x1"
    connection.feed(publish(1, b"r2", properties=properties({b"group-id": b"r", b"JMSXGroupSeq": -1})))
    send(connection, "r3")
    queue.gate.scan(10)
    connection.feed(ack(2, 2, multiple=True))
    assert words(received(bench, connection)) == "r2"
    connection.feed(ack(2, 3))
    assert words(received(bench, connection)) == "r3"


def test_another_number_than_minus_one_ends_no_sticky_group(bench, connection):
    queue = grouped(bench, sticky=True)
    connection.feed(publish(1, b"r1", properties=properties({b"group-id": b"r", b"JMSXGroupSeq": 1})))
    send(connection, "r2")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 r2"


def test_of_a_long_key_1024_octets_say_which_group_it_is(bench, connection):
    queue = grouped(bench)
    for end in (b"a", b"b", b"ax"):
        connection.feed(publish(1, end, properties=properties({b"group-id": b"k" * 1023 + end})))
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "a b"      # The third one is of the first one's group.


def test_a_closing_message_ends_no_exclusive_group(bench, connection):
    queue = grouped(bench, most=2)
    connection.feed(publish(1, b"r1", properties=properties({b"group-id": b"r", b"JMSXGroupSeq": -1})))
    send(connection, "r2")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 r2"


def test_a_new_sticky_group_goes_to_no_consumer_without_credit(bench, connection):
    queue = grouped(bench, sticky=True)
    connection.channels[2].prefetch = 1
    consume(connection.channels[2], queue, b"2")
    send(connection, "a1")
    bench.turns()
    consume(connection.channels[3], queue, b"3")
    send(connection, "b1 c1")
    bench.turns()
    assert [one.consumer for one in connection.delivered()] == [b"2", b"3", b"3"]
    send(connection, "d1")
    bench.turns()
    assert [one.consumer for one in connection.delivered()] == [b"3"]


def test_what_waits_for_a_consumer_that_leaves_goes_to_another_in_each_level(bench, connection):
    queue = grouped(bench, sticky=True, max_priority=5)
    connection.channels[2].prefetch = 1
    leaving = consume(connection.channels[2], queue, b"2")
    send(connection, "r1:5")
    assert words(received(bench, connection)) == "r1"
    send(connection, "x1:5")
    connection.feed(ack(2, 1))
    assert words(received(bench, connection)) == "x1"
    send(connection, "r2:5")
    queue.gate.scan(10)
    assert received(bench, connection) == []
    connection.channels[2].cancel(leaving)
    consume(connection.channels[3], queue, b"3")
    assert words(received(bench, connection)) == "r2"


# --- what deliveries say


def test_a_consumer_that_asks_is_told_group_number_token_and_change_of_owner(bench, connection):
    queue = grouped(bench)
    connection.channels[2].consume(queue, b"c", no_ack=False, arguments={"x-group-info": True})
    send(connection, "r1 r2")
    bench.turns()
    first, = connection.delivered()
    assert b"\x0ax-group-idS\0\0\0\1r" in first.properties
    assert b"\x0bx-group-seql" + struct.pack(">q", 1) in first.properties
    assert b"\x0dx-group-firstt\1" in first.properties
    connection.feed(ack(2, 1))
    bench.turns()
    second, = connection.delivered()
    tokens = [struct.unpack(">q", one.properties.split(b"x-group-tokenl")[1][:8])[0] for one in (first, second)]
    assert tokens[0] < tokens[1]


def test_the_first_delivery_to_an_owner_alone_says_so_and_tokens_begin_with_the_time(bench, connection):
    bench.at(1_700_000_000_000)
    queue = grouped(bench, sticky=True)
    connection.channels[2].consume(queue, b"c", no_ack=False, arguments={"x-group-info": True})
    send(connection, "r1 r2")
    bench.turns()
    first, second = connection.delivered()
    assert b"\x0dx-group-firstt\1" in first.properties
    assert b"\x0dx-group-firstt\0" in second.properties
    token = struct.unpack(">q", first.properties.split(b"x-group-tokenl")[1][:8])[0]
    assert token >= 1_700_000_000_000_000


def test_a_group_that_is_longer_than_a_header_may_be_is_told_by_its_number_alone(bench, connection):
    queue = grouped(bench)
    connection.channels[2].consume(queue, b"c", no_ack=False, arguments={"x-group-info": True})
    for octets in (255, 256):
        connection.feed(publish(1, b"m", properties=properties({b"group-id": b"k" * octets})))
    bench.turns()
    assert [(b"x-group-id" in one.properties, b"x-group-seq" in one.properties)
            for one in connection.delivered()] == [(True, True), (False, True)]


# --- priorities, expiry, death


def test_priorities_choose_between_groups_and_never_inside_one(bench, connection):
    queue = grouped(bench, max_priority=5)
    connection.channels[2].prefetch = 1
    send(connection, "r1:0 g1:3 r2:5 b1:1 _1:4 g2:5 _2:2")
    consume(connection.channels[2], queue)
    got = []
    for tag in range(1, 8):
        got += received(bench, connection)
        connection.feed(ack(2, tag))
    assert words(got) == "_1 g1 g2 _2 b1 r1 r2"
    queue.check()


def test_an_expired_message_dies_when_it_is_its_groups_first(bench, connection):
    queue = grouped(bench, ttl_ms=1000, dead_letters=True)
    bench.at(1)
    send(connection, "r1 r2 r3")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1"
    bench.at(900)
    send(connection, "r4")
    bench.at(1500)
    assert queue.died == []
    connection.feed(ack(2, 1))
    assert words(received(bench, connection)) == "r4"
    assert queue.died == [("expired", b"r2"), ("expired", b"r3")]


# --- the gate comes and goes, purge, compaction, restart


def test_what_is_out_locks_its_group_when_the_rule_comes(bench, connection):
    queue = bench.queue()
    send(connection, "r1 r2 g1")
    consume(connection.channels[2], queue)
    connection.channels[2].prefetch = 1
    assert words(received(bench, connection)) == "r1 r2 g1"
    connection.feed(nack(2, 1) + ack(2, 3))
    connection.channels[2].flow = False
    queue.gate = plane.Groups(sticky=False, by="header", names=NAMES)
    connection.channels[2].flow = True
    send(connection, "r3 g2")
    assert "g2" in words(received(bench, connection))
    queue.check()
    queue.gate = None
    queue.check()


def test_purge_takes_what_waits(bench, connection):
    queue = grouped(bench)
    send(connection, "r1 r2 r3 g1")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 g1"
    assert queue.purge() == 2
    queue.check()
    send(connection, "r4")
    connection.feed(ack(2, 1))
    assert words(received(bench, connection)) == "r4"


def test_messages_that_wait_move_with_their_segment(bench, connection, monkeypatch):
    monkeypatch.setattr(compaction, "LIVE_PERCENT_MAX", 100)
    queue = grouped(bench)
    send(connection, "r1 _ r2 _ r3 " + "_ " * 200, size=500)
    consume(connection.channels[2], queue)
    for tag, word in received(bench, connection):
        if word == "_":
            connection.feed(ack(2, tag))
    assert queue.segments()[0]["number"] == 1
    prepared = compaction.prepare(queue.directory, compaction.Sparse(1), Disk())
    assert prepared is not None
    assert prepared.finish(queue)
    queue.check()
    assert queue.segments()[0]["generation"] == 1
    connection.feed(ack(2, 1))
    (tag, word), = received(bench, connection)
    assert word == "r2"
    connection.feed(nack(2, tag))
    (tag, word), = received(bench, connection)
    assert word == "r2"
    connection.feed(ack(2, tag))
    assert words(received(bench, connection)) == "r3"


def test_after_a_crash_each_group_goes_on_with_its_first_unsettled(tmp_path):
    bench = Bench(tmp_path)
    connection = bench.connection(1, 2)
    queue = grouped(bench)
    send(connection, "r1 r2 g1 r3 g2")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 g1"
    connection.feed(ack(2, 2) + nack(2, 1))
    assert words(received(bench, connection)) == "g2 r1"
    again = Bench(tmp_path)
    other = again.connection(1, 2)
    recovered = grouped(again, recovered=True)
    consume(other.channels[2], recovered)
    again.turns()
    assert [(one.body, one.redelivered) for one in other.delivered()] == [(b"r1", True), (b"g2", True)]
    other.feed(ack(2, 1))
    again.turns()
    assert [(one.body, one.redelivered) for one in other.delivered()] == [(b"r2", False)]
    again.close()
