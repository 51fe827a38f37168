"""A feature that decides what goes out of a queue, to whom and when: what the plane asks it and tells it.

The features here are those of gates.pxi.  What holds for them, any other feature can have without another file of the
plane: a message that waits holds up no other group, is counted, moves with its segment, and is there after a kill.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plane.harness import Bench, ack, consume, nack, publish, reject

from brokerd import plane
from brokerd.store import compaction
from brokerd.store.disk import Disk

pytestmark = pytest.mark.skipif(not hasattr(plane, "TrialGate"), reason="it is in the build with assertions")
GROUPS = (b"red", b"green", b"blue")


def gated(bench, *, retry_ms=-1, owned=False, tells=False, **rules):
    queue = bench.queue(**rules)
    queue.gate = plane.TrialGate(retry_ms=retry_ms, owned=owned, tells=tells)
    bind(bench)
    return queue


def bind(bench):
    for group in GROUPS:
        bench.bound[b"", group] = (b"q",)


def send(connection, text, size=0):
    """One message for each word; its first letter says its group."""
    by_letter = {chr(group[0]): group for group in GROUPS}
    connection.feed(b"".join(publish(1, word.encode() + bytes(size), by_letter[word[0]]) for word in text.split()))


def received(bench, connection):
    bench.turns()
    return [(one.tag, one.body.rstrip(b"\0").decode()) for one in connection.delivered()]


def words(deliveries):
    return " ".join(word for _, word in deliveries)


@pytest.fixture
def queue(bench):
    return gated(bench)


@pytest.fixture
def connection(bench):
    return bench.connection(1, 2, 3)


def test_a_group_that_waits_holds_up_no_other(bench, connection, queue):
    send(connection, "r1 r2 r3 g1 b1 g2")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 g1 b1"
    queue.check()
    assert (queue.ready, queue.unacked, queue.aside) == (0, 3, 3)
    connection.feed(ack(2, 1))
    assert words(received(bench, connection)) == "r2"
    connection.feed(ack(2, 2) + ack(2, 3))
    assert words(received(bench, connection)) == "g2"
    connection.feed(ack(2, 0, multiple=True))
    assert words(received(bench, connection)) == "r3"


def test_a_message_that_returns_goes_before_all_that_wait_behind_it(bench, connection, queue):
    send(connection, "r1 r2 r3")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1"
    for tag in (1, 2, 3):
        connection.feed(nack(2, tag))
        assert words(received(bench, connection)) == "r1"
    connection.feed(ack(2, 4))
    assert words(received(bench, connection)) == "r2"
    assert queue.returned == 3


def test_basic_get_obeys_the_gate(bench, connection, queue):
    send(connection, "r1 r2 g1")
    channel = connection.channels[2]
    assert [channel.get(queue, False) for _ in range(3)] == [True, True, False]
    assert words(received(bench, connection)) == "r1 g1"
    connection.feed(ack(2, 1))
    assert channel.get(queue, True)
    assert words(received(bench, connection)) == "r2"


def test_more_messages_wait_than_the_gate_looks_at_in_one_turn(bench, connection, queue):
    send(connection, "r0 " * 200 + "g1")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r0 g1"
    assert queue.gate.waiting == 199
    connection.channels[2].flow = False
    send(connection, "r0 " * 100 + "b1")
    assert connection.channels[3].get(queue, False)     # It looks on until it has an answer,
    assert words(received(bench, connection)) == "b1"
    send(connection, "r0 " * 1000 + "b2")
    connection.feed(ack(3, 1))
    assert not connection.channels[3].get(queue, False)     # but not for ever.
    assert 400 < queue.ready < 600
    assert connection.channels[3].get(queue, False)
    assert words(received(bench, connection)) == "b2"


def test_without_acks_a_group_goes_on_at_once(bench, connection, queue):
    send(connection, "r1 r2 g1 r3")
    consume(connection.channels[2], queue, no_ack=True)
    assert sorted(words(received(bench, connection)).split()) == ["g1", "r1", "r2", "r3"]
    assert (queue.ready, queue.aside, queue.unacked) == (0, 0, 0)


def test_the_next_of_a_group_waits_until_the_dead_letter_of_the_one_before_is_stored(bench, connection, queue):
    queue.set_rules(dead_letters=True, delivery_limit=2)
    queue.keeps = True
    send(connection, "r1 r2 g1")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 g1"
    connection.feed(reject(2, 1, requeue=False))
    assert received(bench, connection) == []
    queue.settle_aside(1)
    assert words(received(bench, connection)) == "r2"
    connection.feed(nack(2, 3))
    assert words(received(bench, connection)) == "r2"
    connection.feed(nack(2, 4))                 # Its limit.
    assert [reason for reason, _ in queue.died] == ["rejected", "delivery_limit"]


@pytest.mark.parametrize("out_before", [False, True])
def test_the_next_of_a_group_waits_also_for_the_letter_of_one_that_died_while_it_was_ready(
        bench, connection, queue, out_before):
    queue.set_rules(dead_letters=True)
    queue.keeps = True
    bench.at(1000)
    connection.feed(publish(1, b"r1", b"red", properties=b"\x01\x00\x0250"))
    send(connection, "r2 g1")
    if out_before:
        connection.channels[3].get(queue, False)
        bench.turns()
        connection.delivered()
        connection.feed(nack(3, 1))
    bench.at(1060)
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "g1"
    assert queue.died == [("expired", b"r1")]
    queue.settle_aside(1)
    assert words(received(bench, connection)) == "r2"


def test_limits_of_length_count_what_waits(bench, connection, queue):
    queue.set_rules(max_length=3, overflow=1)
    connection.channels[1].select_confirm()
    consume(connection.channels[2], queue)
    send(connection, "r1 r2 r3 r4 r5 r6")
    bench.turns()
    queue.check()
    assert (queue.refused, queue.aside, queue.ready) == (2, 3, 0)      # r1 is out, three wait.
    queue.gate = None
    queue.set_rules(max_length=3)
    bench.turns()
    assert queue.discarded == 0


def test_what_a_limit_drops_does_not_drag_down_what_waits_behind_it(bench, connection, queue):
    send(connection, "r1 r2 r3 r4")
    consumer = consume(connection.channels[2], queue)
    bench.turns()
    connection.channels[2].cancel(consumer)
    queue.set_rules(max_length=3)
    connection.feed(nack(2, 1))
    bench.turns()
    assert (queue.discarded, queue.ready + queue.aside) == (1, 3)


def test_a_publish_that_the_gate_does_not_admit_is_refused(bench, connection, queue):
    connection.channels[1].select_confirm()
    connection.feed(publish(1, b"!", b"red") + publish(1, b"r1", b"red"))
    bench.sync()
    bench.turns()
    assert connection.said() == [("nack", 1, 1, 0), ("ack", 1, 2, False)]
    assert (queue.refused, queue.ready) == (1, 1)


def test_a_gate_adds_headers_to_what_is_delivered_as_far_as_a_frame_has_room(bench):
    connection = bench.connection(1, 2, frame_max=4096)
    queue = gated(bench, tells=True, delivery_counts=True, delivery_limit=9)
    table = b"\x01ai\0\0\0\x07"
    big = b"\x04longS" + (4045).to_bytes(4, "big") + bytes(4045)
    for group, properties in (("red", b"\x10\x00\x02"), ("green", b"\x20\x00" + len(table).to_bytes(4, "big") + table),
                              ("blue", b"\x20\x00" + len(big).to_bytes(4, "big") + big)):
        connection.feed(publish(1, b"x", group.encode(), properties=properties, frame_max=4096))
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 2))
    bench.turns()
    one, two, three, again = connection.delivered()
    seq = b"\x05x-seql"
    assert one.properties == b"\x30\x00" + (15).to_bytes(4, "big") + seq + (1).to_bytes(8, "big") + b"\x02"
    assert two.properties == b"\x20\x00" + (22).to_bytes(4, "big") + table + seq + (2).to_bytes(8, "big")
    assert three.properties.endswith(big)
    assert again.properties[2:6] == (22 + 52).to_bytes(4, "big")


def test_a_message_that_expires_lets_its_group_go_on(bench, connection, queue):
    queue.set_rules(ttl_ms=50)
    bench.at(1000)
    send(connection, "r1 r2")
    consumer = consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1"
    bench.at(1020)
    send(connection, "r3")
    connection.channels[2].cancel(consumer)
    connection.feed(nack(2, 1))
    bench.at(1060)                              # r1 expires as the head, and r2 behind it, but not r3.
    assert queue.expired == 2
    consume(connection.channels[3], queue)
    assert words(received(bench, connection)) == "r3"


def test_a_returned_message_waits_for_its_time_and_its_group_behind_it(bench, connection):
    queue = gated(bench, retry_ms=100)
    bench.at(1000)
    send(connection, "r1 r2 g1")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 g1"
    connection.feed(nack(2, 1) + ack(2, 2))
    send(connection, "g2")
    assert words(received(bench, connection)) == "g2"
    assert bench.deadlines[-1] == 1_100_000_000
    bench.at(1099)
    assert received(bench, connection) == []
    queue.check()
    bench.at(1100)
    assert [(one.body, one.redelivered) for one in connection.delivered()] == [(b"r1", True)]
    connection.feed(ack(2, 4))
    assert words(received(bench, connection)) == "r2"


def test_a_group_stays_with_its_consumer_until_that_leaves(bench, connection):
    queue = gated(bench, owned=True)
    connection.channels[2].prefetch = connection.channels[3].prefetch = 1
    first = consume(connection.channels[2], queue, b"first")
    consume(connection.channels[3], queue, b"second")
    send(connection, "r1 g1")
    bench.turns()
    assert [(one.consumer, one.body) for one in connection.delivered()] == [(b"first", b"r1"), (b"second", b"g1")]
    send(connection, "r2 g2 r3")
    assert received(bench, connection) == []
    connection.feed(ack(3, 1))
    bench.turns()
    assert [(one.consumer, one.body) for one in connection.delivered()] == [(b"second", b"g2")]
    queue.check()
    connection.feed(ack(2, 1))
    bench.turns()
    assert [(one.consumer, one.body) for one in connection.delivered()] == [(b"first", b"r2")]
    assert queue.gate.joined == 2
    connection.channels[2].cancel(first)
    connection.feed(ack(2, 2) + ack(3, 2))
    bench.turns()
    assert [(one.consumer, one.body) for one in connection.delivered()] == [(b"second", b"r3")]
    assert queue.gate.joined == 1


def test_a_consumer_that_got_nothing_is_asked_again_when_something_comes(bench, connection):
    queue = gated(bench, owned=True)
    connection.channels[2].prefetch = 1
    first = consume(connection.channels[2], queue, b"first")
    send(connection, "r1")
    assert words(received(bench, connection)) == "r1"
    consume(connection.channels[3], queue, b"second")
    send(connection, "r2 r3")                   # They wait for the first.
    assert received(bench, connection) == []
    send(connection, "g1")
    assert words(received(bench, connection)) == "g1"
    connection.channels[2].cancel(first)
    assert words(received(bench, connection)) == ""         # r1 is still out.
    connection.feed(ack(2, 1))
    assert words(received(bench, connection)) == "r2"


def test_a_new_gate_knows_what_is_out(bench, connection):
    queue = bench.queue()
    bind(bench)
    send(connection, "r1 r2 g1")
    assert connection.channels[2].get(queue, False)
    queue.gate = plane.TrialGate()
    consume(connection.channels[3], queue)
    assert words(received(bench, connection)) == "r1 g1"
    connection.feed(ack(2, 1))
    assert words(received(bench, connection)) == "r2"


def test_what_waits_is_settled_by_no_number_of_a_dead_letter(bench, connection, queue):
    send(connection, "r1 r2")
    consume(connection.channels[2], queue)
    bench.turns()
    queue.settle_aside(2)
    assert (queue.aside, queue.dead_lettered) == (1, 0)


def test_a_purge_takes_what_waits_as_well(bench, connection, queue):
    send(connection, "r1 r2 r3 g1")
    consume(connection.channels[2], queue)
    bench.turns()
    assert (queue.aside, queue.ready) == (2, 0)
    assert queue.purge() == 2
    queue.check()
    send(connection, "r4")
    assert words(received(bench, connection)) == "r1 g1"
    connection.feed(ack(2, 1))
    assert words(received(bench, connection)) == "r4"


def test_without_its_gate_a_queue_is_in_sequence_order_again(bench, connection, queue):
    send(connection, "r1 r2 g1 r3")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 g1"
    gate, queue.gate = queue.gate, None
    assert words(received(bench, connection)) == "r2 r3"
    queue.check()
    assert (queue.gate, gate.joined) == (None, 0)
    queue.gate = gate
    assert (queue.gate, gate.joined) == (gate, 1)


def test_a_gate_of_another_queue_is_refused(bench, queue):
    other = bench.queue(b"other")
    with pytest.raises(ValueError, match="another queue"):
        other.gate = queue.gate
    with pytest.raises(ValueError, match="no feature"):
        other.gate = plane.Gate()
    queue.gate = queue.gate
    assert other.gate is None


def test_a_deleted_queue_lets_go_of_what_waits(bench, connection, queue):
    send(connection, "r1 r2 r3")
    consume(connection.channels[2], queue)
    bench.turns()
    queue.drop()
    connection.feed(ack(2, 1))
    assert connection.errors == []
    assert (queue.ready, queue.aside, queue.unacked, queue.gate) == (0, 0, 0, None)


@pytest.mark.parametrize("retry_ms", [-1, 100])
def test_after_a_kill_what_waited_is_ready_at_its_place(bench, connection, make_bench, retry_ms):
    bench.at(1000)
    queue = gated(bench, retry_ms=retry_ms, delivery_limit=5)
    send(connection, "r1 r2 g1 r3")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))
    bench.turns()
    after = make_bench()
    found = after.recovered(delivery_limit=5)
    assert [(row[6], row[2]) for row in found.browse(1, 9)] == [
        (b"r1", True), (b"r2", False), (b"g1", True), (b"r3", False)]
    found.gate = plane.TrialGate()
    reader = after.connection(1, 2)
    consume(reader.channels[2], found)
    assert words(received(after, reader)) == "r1 g1"


def test_compaction_moves_what_waits_in_the_table_and_in_the_gate_itself(bench, connection, monkeypatch):
    monkeypatch.setattr(compaction, "LIVE_PERCENT_MAX", 100)
    bench.at(1000)
    queue = gated(bench, retry_ms=100)
    send(connection, "r1 " + "g0 " * 80 + "r2 r3", size=500)
    send(connection, " ".join(f"b{n}" for n in range(100)), size=500)
    consume(connection.channels[2], queue)
    while True:
        out = received(bench, connection)
        if not out:
            break
        connection.feed(b"".join(nack(2, tag) if word[0] == "r" else ack(2, tag) for tag, word in out))
    assert (queue.aside, queue.gate.waiting) == (3, 2)
    assert queue.segments()[0]["number"] == 1
    prepared = compaction.prepare(queue.directory, compaction.Sparse(1), Disk())
    assert prepared is not None
    assert prepared.finish(queue)
    queue.check()
    assert queue.segments()[0]["generation"] == 1
    bench.at(1100)
    (tag, word), = received(bench, connection)
    assert word == "r1"
    connection.feed(ack(2, tag))
    assert words(received(bench, connection)) == "r2"


def test_readers_of_a_log_each_get_every_message_and_it_stays(bench, connection, make_bench):
    queue = bench.queue()
    queue.gate = plane.TrialLog()
    bind(bench)
    send(connection, "r1 r2 g1")
    connection.channels[2].prefetch = 2
    consume(connection.channels[2], queue, b"slow")
    fast = consume(connection.channels[3], queue, b"fast")

    def read():
        bench.turns()
        by = {b"slow": [], b"fast": []}
        for one in connection.delivered():
            by[one.consumer].append(one.body.rstrip(b"\0").decode())
        return [" ".join(by[tag]) for tag in (b"slow", b"fast")]

    assert read() == ["r1 r2", "r1 r2 g1"]
    queue.check()
    connection.feed(nack(2, 1) + ack(3, 0, multiple=True))
    assert read() == ["r1", ""]                 # It reads on from what it gave back.
    connection.feed(ack(2, 0, multiple=True))
    assert read() == ["r2 g1", ""]
    send(connection, " ".join(["b1"] * 300), size=1000)         # Several segments.
    connection.feed(ack(2, 0, multiple=True))
    assert read() == ["b1 b1", " ".join(["b1"] * 300)]
    assert len(queue.segments()) > 3
    connection.channels[3].cancel(fast)
    send(connection, "g2")
    connection.channels[2].prefetch = 0
    connection.channels[2].cancel(connection.channels[2].consumers[b"slow"])
    consume(connection.channels[2], queue, b"slow")
    assert read() == ["r1 r2 g1 " + " ".join(["b1"] * 300) + " g2", ""]
    queue.check()
    assert (queue.ready, queue.ready_octets) == (304, 8 + 300 * 1002)
    assert make_bench().recovered().ready == 304
    queue.set_rules(dead_letters=True)
    connection.feed(reject(2, 307, requeue=False) + reject(2, 308, requeue=False))
    assert (connection.errors, queue.died) == ([], [])
    with pytest.raises(ValueError, match="its gate removes them"):
        queue.purge()
    send(connection, "r9")
    assert read() == ["r9", ""]


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from([-1, 30]))
def test_in_each_group_first_settlements_come_in_sequence_order(tmp_path_factory, seed, owned, retry_ms):
    """Consumers come and go, take, acknowledge, return and get in any order; nothing is lost, and no group overtakes
    itself."""
    dice = random.Random(seed)
    bench = Bench(tmp_path_factory.mktemp("gate"))
    try:
        queue = gated(bench, retry_ms=-1 if owned else retry_ms, owned=owned)
        connection = bench.connection(1, 2, 3)
        now, n, out, settled, consumers = 1000, 0, {}, [], {}
        bench.at(now)

        def settle(number, tag, give_back):
            body = out.pop((number, tag))
            if not give_back:
                settled.append(body)
            connection.feed(nack(number, tag) if give_back else ack(number, tag))

        def take_in():
            bench.turns()
            for one in connection.delivered():
                assert one.body[:1] not in {body[:1] for body in out.values()}, "two of a group are out"
                out[one.channel, one.tag] = one.body

        for _ in range(60):
            step = dice.randrange(6)
            if step < 2:
                send(connection, " ".join(f"{dice.choice('rgb')}{n + k:03}" for k in range(5)))
                n += 5
            elif step == 2 and out:
                settle(*dice.choice(list(out)), give_back=dice.random() < 0.4)
            elif step == 3:
                number = dice.choice((2, 3))
                if number in consumers:
                    connection.channels[number].cancel(consumers.pop(number))
                else:
                    connection.channels[number].prefetch = dice.choice((0, 1))
                    consumers[number] = consume(connection.channels[number], queue)
            elif step == 4 and not owned:
                connection.channels[dice.choice((2, 3))].get(queue, False)
            else:
                now += 17
                bench.at(now)
            take_in()
            queue.check()
        for number in (2, 3):
            connection.channels[number].prefetch = 0
            if number in consumers:
                connection.channels[number].cancel(consumers.pop(number))
        consume(connection.channels[2], queue, b"last")
        while len(settled) < n:
            now += 100
            bench.at(now)
            take_in()
            assert out, f"{n - len(settled)} messages never come"
            for number, tag in list(out):
                settle(number, tag, give_back=False)
        for letter in (b"r", b"g", b"b"):
            assert [one for one in settled if one[:1] == letter] == sorted(one for one in settled if one[:1] == letter)
        queue.check()
        assert (queue.ready, queue.unacked, queue.aside) == (0, 0, 0)
    finally:
        bench.close()
