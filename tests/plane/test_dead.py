"""Messages that died: told in order, settled when those above are done with them."""

import gc
import os

import pytest
from tests.plane.harness import ack, consume, nack, publish, reject
from tests.plane.test_journal import journals
from tests.plane.test_journal import read as read_journal

from brokerd.store import format as layout
from brokerd.store import reading


@pytest.fixture
def connection(bench):
    return bench.connection(1, 2)


@pytest.fixture
def queue(bench):
    return bench.queue(dead_letters=True)


def three(connection, queue):
    connection.feed(publish(1, b"one") + publish(1, b"two") + publish(1, b"three"))
    consume(connection.channels[2], queue)


def test_a_rejected_message_is_told_of_with_all_it_has(bench, connection, queue):
    bench.bound[b"ex", b"key"] = (b"q",)
    connection.feed(publish(1, b"body", b"key", exchange=b"ex", persistent=True))
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(reject(2, 1, requeue=False))
    from tests.plane.harness import PERSISTENT

    assert queue.dead == [("rejected", 1, b"ex", b"key", PERSISTENT, b"body", 0)]
    assert (queue.ready, queue.unacked, queue.dead_lettered) == (0, 0, 1)


def test_an_ack_kills_nothing_and_without_dead_letters_nobody_is_told(bench, connection, queue):
    three(connection, queue)
    bench.turns()
    connection.feed(ack(2, 1))
    assert queue.died == []
    queue.set_rules()
    connection.feed(nack(2, 3, multiple=True, requeue=False))
    assert (queue.died, queue.unacked) == ([], 0)


def test_what_dies_in_a_chunk_is_told_in_that_order_before_the_next_method(bench, connection, queue):
    three(connection, queue)
    bench.turns()
    connection.feed(reject(2, 2, requeue=False) + reject(2, 1, requeue=False) + nack(2, 3, requeue=False))
    assert [body for _, body in queue.died] == [b"two", b"one", b"three"]


def test_deaths_are_finished_in_their_order_up_to_a_bound(bench, connection):
    bench.at(1000)
    queue = bench.queue(dead_letters=True, ttl_ms=10)
    connection.feed(b"".join([publish(1, b"%d" % number) for number in range(1500)]))
    bench.core.clock = lambda: 1011 * 1_000_000
    assert not queue.finish_deaths(1024)        # So many expire at a time; few are told of, as that costs more.
    assert (queue.expired, queue.ready) == (1024, 476)
    assert 0 < len(queue.died) == 1024 - queue.aside < 1024
    assert queue.finish_deaths(1 << 20)
    assert queue.died == [("expired", b"%d" % number) for number in range(1500)]
    assert (queue.ready, queue.aside, queue.dead_lettered) == (0, 0, 1500)
    assert queue.finish_deaths(1 << 20)


def test_a_queue_without_rules_has_no_deaths_to_finish(bench, connection):
    queue = bench.queue()
    connection.feed(publish(1, b"one"))
    assert queue.finish_deaths(1)
    assert queue.ready == 1


def test_a_message_that_is_kept_is_in_no_count_and_settled_when_done(bench, connection, queue, make_bench):
    queue.keeps = True
    three(connection, queue)
    bench.turns()
    connection.feed(nack(2, 3, multiple=True, requeue=False))
    assert (queue.ready, queue.unacked, queue.aside) == (0, 0, 3)
    queue.settle_aside(2)
    queue.settle_aside(1)
    queue.settle_aside(17)
    assert queue.aside == 1
    after = make_bench().recovered()
    assert after.ready == 1             # The third, as if it had not died.


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_raises_when_told_keeps_the_message(bench, connection, queue):
    def fail(*_):
        raise RuntimeError("no")

    queue.after_death = fail
    three(connection, queue)
    bench.turns()
    connection.feed(reject(2, 1, requeue=False))
    assert (queue.aside, queue.unacked) == (1, 2)


def test_long_headers_count_for_many_dead_letters_so_that_others_have_their_turn(bench, connection, queue):
    """A publisher decides how long on_dead() takes."""
    headers = b"\x01aS" + (50_000).to_bytes(4) + bytes(50_000)
    for _ in range(40):
        connection.feed(publish(1, b"x", properties=b"\x20\x00" + len(headers).to_bytes(4) + headers))
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 0, multiple=True, requeue=False))
    told = len(queue.died)
    assert 1 <= told < 10
    bench.core.turn()
    assert told < len(queue.died) < told + 10
    bench.turns()
    assert (len(queue.died), queue.aside) == (40, 0)


def test_what_on_dead_stores_counts_for_each_queue_so_that_others_have_their_turn(bench, connection, queue):
    targets = tuple(bench.queue(b"%d" % number) for number in range(100))
    queue.after_death = lambda *message: bench.core.put(targets, *message)
    connection.feed(publish(1, b"x") * 40)
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 0, multiple=True, requeue=False))
    assert len(queue.died) == 5         # Of 108 each.
    bench.core.turn()
    assert len(queue.died) == 10
    bench.turns()
    assert [target.ready for target in targets] == [40] * 100


def test_a_dead_letter_may_go_to_any_queue_even_its_own(bench, connection, queue):
    target = bench.queue(b"target", max_length=1, dead_letters=True)

    def again(exchange, key, properties, body):
        bench.core.put((target, queue) if len(queue.dead) < 4 else (target,), exchange, key, properties, body)

    queue.after_death = again
    connection.feed(publish(1, b"x"))
    consume(connection.channels[2], queue)
    bench.turns()
    for tag in range(1, 5):
        connection.feed(reject(2, tag, requeue=False))
    assert len(queue.dead) == 4
    assert target.died == [("maxlen", b"x")] * 3
    assert (queue.ready, queue.unacked, target.ready) == (0, 0, 1)


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_message_dies_when_so_many_deliveries_have_failed(bench, connection, limit):
    queue = bench.queue(delivery_limit=limit, dead_letters=True)
    connection.feed(publish(1, b"x"))
    consume(connection.channels[2], queue)
    bench.turns()
    tag = 1
    while queue.unacked:
        connection.feed(nack(2, tag))
        tag += 1
    assert tag - 1 == max(limit, 1)
    assert queue.died == [("delivery_limit", b"x")]
    assert queue.dead[0][-1] == max(limit, 1)


def test_failed_deliveries_are_counted_over_a_restart(bench, connection, make_bench):
    queue = bench.queue(delivery_limit=3)
    connection.feed(publish(1, b"x"))
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))         # One failed, another under way: the crash fails it.
    again = make_bench()
    queue = again.recovered(delivery_limit=3, dead_letters=True)
    reader = again.connection(1)
    consume(reader.channels[1], queue)
    again.turns()
    reader.feed(nack(1, 1))
    assert queue.died == [("delivery_limit", b"x")]


def test_a_limit_that_drops_tells_nobody(bench, connection):
    queue = bench.queue(delivery_limit=1, limit_drops=True, dead_letters=True)
    connection.feed(publish(1, b"x"))
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))
    assert (queue.died, queue.ready, queue.unacked, queue.limited) == ([], 0, 0, 1)


def test_a_queue_deleted_with_dead_ones_kept_lets_go_of_them(bench, connection, queue):
    queue.keeps = True
    three(connection, queue)
    bench.turns()
    connection.feed(reject(2, 1, requeue=False))
    queue.drop()
    queue.settle_aside(1)
    connection.feed(nack(2, 3, multiple=True, requeue=False))
    assert len(queue.dead) == 1


@pytest.mark.parametrize("headers", [b"", b"\x01kS\0\0\0\x01v"])
@pytest.mark.parametrize("content_type", [b"", b"\x04text"])
def test_redeliveries_carry_their_count_where_asked(bench, connection, headers, content_type):
    import struct

    from brokerd.wire.properties import decode_header

    queue = bench.queue(delivery_counts=True)
    flags = 1 << 12 | (1 << 13 if headers else 0) | (1 << 15 if content_type else 0)
    properties = (struct.pack(">H", flags) + content_type
                  + (struct.pack(">I", len(headers)) + headers if headers else b"") + b"\x02")
    connection.feed(publish(1, b"x", properties=properties))
    consume(connection.channels[2], queue)
    bench.turns()
    assert connection.delivered()[0].properties == properties
    for count in (1, 2):
        connection.feed(nack(2, count))
        got, = connection.delivered()
        _, decoded = decode_header(struct.pack(">HHQ", 60, 0, 1) + got.properties)
        assert decoded.headers == {**({"k": "v"} if headers else {}), "x-delivery-count": count,
                                   "x-acquired-count": count}
        assert (decoded.delivery_mode, decoded.content_type) == (2, "text" if content_type else None)
        assert got.body == b"x"


def test_no_frame_of_a_redelivery_is_larger_than_the_connection_allows(bench):
    connection = bench.connection(1, 2, frame_max=4096)
    queue = bench.queue(delivery_counts=True)
    consume(connection.channels[2], queue)
    added = 52                          # Octets of the two headers, in a table that is there.
    counted = {}
    for tag, room in enumerate(range(120), 1):
        value = b"v" * (4096 - 8 - 12 - room - 2 - 4 - 7)
        table = b"\x01kS" + len(value).to_bytes(4) + value
        properties = (1 << 13).to_bytes(2) + len(table).to_bytes(4) + table
        connection.feed(publish(1, b"x" * 5000, properties=properties, frame_max=4096))
        connection.feed(nack(2, 2 * tag - 1))
        connection.feed(ack(2, 2 * tag))
        frames = connection.frames()
        assert all(len(payload) + 8 <= 4096 for _, _, payload in frames), room
        counted[room] = [b"x-delivery-count" in payload for kind, _, payload in frames if kind == 2]
        assert len(counted[room]) == 2
    assert all(counted[room] == [False, False] for room in range(added))
    assert all(counted[room] == [False, True] for room in range(added + 4, 120))


def test_dead_ones_that_are_done_with_make_room_for_those_that_follow(bench, connection, queue, make_bench):
    queue.keeps = True
    connection.feed(b"".join(publish(1, b"%d" % number) for number in range(1, 41)))
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(b"".join(reject(2, tag, requeue=False) for tag in range(1, 17)))
    for seq in range(1, 6):
        queue.settle_aside(seq)
    connection.feed(b"".join(reject(2, tag, requeue=False) for tag in range(17, 31)))
    assert queue.aside == 25
    for seq in range(6, 31):
        queue.settle_aside(seq)
    assert queue.aside == 0
    assert [row[0] for row in make_bench().recovered().browse(1, 100)] == list(range(31, 41))


def test_a_queue_that_goes_while_its_dead_wait_to_be_told_of_takes_no_other_along(bench, connection):
    bench.at(1_000_000)
    names = [b"many", b"second", b"third", b"expiring"]
    many, second, third, expiring = (bench.queue(name, dead_letters=True) for name in names)
    expiring.set_rules(dead_letters=True, ttl_ms=100)
    for name, count in zip(names, (600, 1, 1, 1), strict=True):
        connection.feed(publish(1, name, key=name) * count)
        if name != b"expiring":
            consume(connection.channels[2], bench.queues[name], name)
            bench.turns()
    connection.feed(nack(2, 0, multiple=True, requeue=False))
    assert len(many.died) < 600         # The rest is for the next turns.
    assert third.aside == 1
    third.drop()
    assert third.aside == 0
    bench.at(1_000_200)
    assert (len(many.died), second.died) == (600, [("rejected", b"second")])
    assert (third.died, expiring.died) == ([], [("expired", b"expiring")])


@pytest.mark.parametrize(("keeps", "done"), [(False, ()), (True, (1,))])
def test_a_dead_letter_is_settled_with_the_reason_of_its_death(bench, connection, queue, keeps, done):
    queue.keeps = keeps
    three(connection, queue)
    bench.turns()
    connection.feed(reject(2, 1, requeue=False))
    for seq in done:
        queue.settle_aside(seq)
    with open(f"{queue.directory}/acks.0000000001", "rb") as file:
        entries = reading.read_entries(file.read(), 1).entries
    assert [int(kind) for kind in entries["kind"] if kind & 15 == layout.DEAD_LETTERED] == [
        layout.DEAD_LETTERED | 1 << 4]


def test_a_delivery_limit_set_later_is_asked_at_the_next_return(bench, connection, queue):
    connection.feed(publish(1, b"x"))
    for tag in (1, 2):
        assert connection.channels[2].get(queue, False)
        connection.feed(nack(2, tag))
    queue.set_rules(delivery_limit=1)
    bench.turns()
    assert connection.channels[2].get(queue, False)
    assert queue.limited == 0
    connection.feed(nack(2, 3))
    assert (queue.limited, queue.ready) == (1, 0)


def test_a_limit_of_zero_lets_a_message_out_once_though_it_may_have_been_out_before(bench, connection, make_bench):
    """After a loss of power it is not known whether it failed."""
    bench.queue(b"plain")
    connection.feed(publish(1, b"x", key=b"plain", persistent=True))
    after = make_bench()
    found = after.recovered(b"plain", suspect=True, delivery_limit=0)
    reader = after.connection(1)
    assert reader.channels[1].get(found, False)
    after.turns()
    assert [(one.body, one.redelivered) for one in reader.delivered()] == [(b"x", True)]


def test_a_limit_beyond_what_is_counted_is_no_limit(bench, connection):
    queue = bench.queue(delivery_limit=1 << 40)
    connection.feed(publish(1, b"x"))
    for tag in (1, 2, 3):
        assert connection.channels[2].get(queue, False)
        connection.feed(nack(2, tag))
    assert (queue.limited, queue.ready) == (0, 1)


def test_many_that_die_while_others_wait_to_be_told_of_are_told_of_once_and_in_order(bench, connection, queue):
    connection.feed(b"".join(publish(1, b"%d" % n) for n in range(1100)))
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 600, multiple=True, requeue=False))
    assert 0 < len(queue.died) < 600            # The rest of them is for the next turns.
    connection.feed(nack(2, 1100, multiple=True, requeue=False))
    bench.turns()
    assert [int(body) for _, body in queue.died] == list(range(1100))
    assert (queue.aside, queue.dead_lettered) == (0, 1100)


def test_redeliveries_carry_no_count_where_none_was_asked_for(bench, connection):
    queue = bench.queue(max_length=5)
    connection.feed(publish(1, b"x"))
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))
    assert [one.properties for one in connection.delivered()] == [b"\0\0"] * 2


def test_queues_whose_messages_die_in_one_order_and_then_in_the_other_are_told_each_once(bench, connection):
    queues = {name: bench.queue(name, dead_letters=True) for name in (b"a", b"b")}
    connection.feed(b"".join(publish(1, b"x", key=name) for name in (b"a", b"b", b"b", b"a")))
    for name in (b"a", b"b", b"b", b"a"):
        assert connection.channels[2].get(queues[name], False)
    connection.feed(nack(2, 1, requeue=False) + nack(2, 2, requeue=False))
    connection.feed(nack(2, 3, requeue=False) + nack(2, 4, requeue=False))
    assert [len(queue.died) for queue in queues.values()] == [2, 2]


def test_a_dead_letter_that_cannot_be_read_is_not_settled(bench, connection):
    queue = bench.queue(b"gone", dead_letters=True)
    connection.feed(publish(1, bytes(30_000), key=b"gone") * 5)
    assert connection.channels[2].get(queue, False)
    assert queue.rest()
    os.unlink(f"{queue.directory}/msgs.0000000001")
    connection.feed(nack(2, 1, requeue=False))
    assert (queue.died, queue.dead_lettered, queue.aside) == ([], 0, 1)


def test_a_queue_may_go_before_its_dead_are_told_of(bench, connection, queue):
    gone = bench.queue(b"gone", dead_letters=True)
    connection.feed(publish(1, b"x", key=b"gone"))
    assert connection.channels[2].get(gone, False)
    assert connection.channels[2].settle(1, False, reject=True)
    assert gone.aside == 1
    gone.drop()
    assert gone.aside == 0
    del gone, bench.queues[b"gone"]
    bench.routes.clear()
    connection.feed(publish(1, b"y"))
    gc.collect()
    assert connection.channels[2].get(queue, False)
    connection.feed(nack(2, 2, requeue=False))
    assert queue.died == [("rejected", b"y")]


@pytest.mark.parametrize("dead_letters", [False, True])
def test_octets_of_what_died_at_the_head_are_gone_with_it(bench, connection, dead_letters):
    queue = bench.queue(max_length=2, dead_letters=dead_letters)
    for size in (1, 10, 100, 1000):
        connection.feed(publish(1, bytes(size)))
    assert (queue.ready, queue.ready_octets, queue.discarded) == (2, 1100, 2)


@pytest.mark.parametrize("settled", [False, True])
def test_a_dead_letter_that_was_settled_while_it_was_told_of_is_settled_once(bench, connection, queue, settled):
    queue.after_death = lambda *message: queue.settle_aside(1) if settled else None
    connection.feed(publish(1, b"x"))
    assert connection.channels[2].get(queue, False)
    connection.feed(nack(2, 1, requeue=False))
    assert (len(queue.died), queue.dead_lettered, queue.aside) == (1, 1, 0)
    queue.check()


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize(("kill", "events"), [
    (lambda channel: reject(2, 1, requeue=False), [(layout.DEAD_LETTERED, layout.REASON_REJECTED)]),
    (lambda channel: nack(2, 1, requeue=False), [(layout.DEAD_LETTERED, layout.REASON_REJECTED)]),
    (lambda channel: channel.settle(1, False, reject=True), [(layout.DEAD_LETTERED, layout.REASON_REJECTED)]),
    (lambda channel: nack(2, 1), [(layout.RETURNED, layout.CAUSE_NACK),
                                  (layout.DEAD_LETTERED, layout.REASON_LIMIT)]),
    (lambda channel: channel.return_unacked(), [(layout.RETURNED, layout.CAUSE_CHANNEL),
                                                (layout.DEAD_LETTERED, layout.REASON_LIMIT)]),
])
def test_the_event_of_a_death_names_the_consumer_that_caused_it_however_late_it_is_settled(
        bench, connection, kill, events, keeps):
    queue = bench.queue(dead_letters=True, delivery_limit=0)
    queue.set_journal(True)
    queue.keeps = keeps
    connection.feed(publish(1, b"one"))
    consumer = consume(connection.channels[2], queue, consumer_number=77)
    bench.turns()
    octets = kill(connection.channels[2])
    if isinstance(octets, bytes):
        connection.feed(octets)
    bench.turns()
    connection.channels[2].cancel(consumer)
    connection.feed(publish(1, b"another"))         # It is delivered to nobody, and settles nothing.
    queue.settle_aside(1)
    _, found = read_journal(journals(queue.directory)[0])
    assert [(int(e["type"]), int(e["reason"]), int(e["consumer"])) for e in found] == [
        (layout.DELIVERED, 0, 77), *[(*event, 77) for event in events]]


def test_nobody_caused_a_death_by_age_even_if_a_consumer_settles_another_message_then(bench, connection):
    bench.at(1000)
    queue = bench.queue(dead_letters=True, ttl_ms=10)
    queue.set_journal(True)
    connection.feed(publish(1, b"one") + publish(1, b"two"))
    connection.channels[2].get(queue, no_ack=False)
    bench.at(2000)
    connection.feed(reject(2, 1, requeue=False))
    bench.turns()
    _, found = read_journal(journals(queue.directory)[0])
    assert {(int(e["seq"]), int(e["type"]), int(e["reason"])): int(e["consumer"]) for e in found} == {
        (1, layout.DELIVERED, layout.BY_GET): connection.number,
        (1, layout.DEAD_LETTERED, layout.REASON_REJECTED): connection.number,
        (2, layout.DEAD_LETTERED, layout.REASON_EXPIRED): 0}


@pytest.mark.parametrize("cause", [layout.CAUSE_NACK, layout.CAUSE_REJECT, layout.CAUSE_RECOVER])
def test_a_message_that_the_session_gives_back_has_the_cause_that_it_names(bench, connection, cause):
    queue = bench.queue()
    connection.feed(publish(1, b"one"))
    connection.channels[2].get(queue, no_ack=False)
    assert connection.channels[2].settle(1, False, requeue=cause)
    counts = dict(zip(layout.ORDER_COUNTERS, queue.order_counts()[1], strict=True))
    assert {name: count for name, count in counts.items() if count} == {
        {1: "returned_nack", 2: "returned_reject", 3: "returned_recover"}[cause]: 1}
