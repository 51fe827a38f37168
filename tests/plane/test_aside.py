"""Records set aside: neither ready nor out.  Wherever they stood, over compaction, purge, restart and deletion."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plane.harness import ack, consume, nack, publish

from brokerd.store import compaction, reading
from brokerd.store.disk import Disk


def send(connection, *bodies, key=b"q", **more):
    connection.feed(b"".join(publish(1, body, key, **more) for body in bodies))


def ready(queue):
    return [row[6] for row in queue.browse(1, 1000)]


@pytest.fixture
def queue(bench):
    return bench.queue()


@pytest.fixture
def connection(bench):
    return bench.connection(1, 2)


@pytest.fixture
def five(connection, queue):
    send(connection, b"1", b"2", b"3", b"4", b"5")


def received(bench, connection, queue, **more):
    consume(connection.channels[2], queue, **more)
    bench.turns()
    return [(one.body, one.redelivered) for one in connection.delivered()]


@pytest.mark.parametrize("seq", [1, 3, 5])
def test_what_is_aside_is_neither_ready_nor_handed_out(bench, connection, queue, five, seq):
    octets = queue.ready_octets
    assert queue.set_aside(seq)
    queue.check()
    assert (queue.ready, queue.unacked, queue.aside, queue.ready_octets) == (4, 0, 1, octets - 1)
    assert [row[0] for row in queue.browse_aside(1, 10)] == [seq]
    assert b"%d" % seq not in ready(queue)
    assert [body for body, _ in received(bench, connection, queue)] == [
        b"%d" % one for one in range(1, 6) if one != seq]


def test_what_is_not_ready_cannot_be_set_aside(bench, connection, queue, five):
    assert received(bench, connection, queue, no_ack=False)
    connection.feed(ack(2, 1))
    for seq in (0, 1, 2, 6):            # never there, settled, out, not published yet
        assert not queue.set_aside(seq)
    assert queue.aside == 0
    queue.check()


def test_what_is_released_goes_before_every_newer_message_and_was_never_out(bench, connection, queue, five):
    queue.set_aside(2)
    assert queue.release(2)
    assert not queue.release(2)
    queue.check()
    assert (queue.ready, queue.aside, queue.ready_octets) == (5, 0, 5)
    assert received(bench, connection, queue) == [(b"%d" % one, False) for one in range(1, 6)]


def test_what_was_out_and_returned_is_redelivered_after_it_was_aside(bench, connection, queue, five):
    received(bench, connection, queue)
    connection.channels[2].cancel(connection.channels[2].consumers[b"c"])
    connection.feed(nack(2, 0, multiple=True))
    assert queue.set_aside(4)
    queue.check()
    queue.release(4)
    assert received(bench, connection, queue) == [(b"%d" % one, True) for one in range(1, 6)]
    assert queue.order_counts()[1][6] == 5      # redelivered


def test_a_purge_leaves_what_is_aside(queue, five):
    queue.set_aside(3)
    assert queue.purge() == 4
    queue.check()
    assert (queue.ready, queue.aside) == (0, 1)
    queue.release(3)
    assert ready(queue) == [b"3"]


def test_limits_do_not_count_what_is_aside_and_count_it_when_it_comes_back(bench, connection, queue, five):
    queue.set_aside(1)
    queue.set_rules(max_length=4)
    bench.turns()
    assert (queue.ready, queue.discarded) == (4, 0)
    queue.release(1)
    bench.turns()
    queue.check()
    assert (queue.ready, queue.discarded) == (4, 1)
    assert ready(queue) == [b"2", b"3", b"4", b"5"]         # The head is dropped, which came back.


def test_what_is_aside_does_not_expire_before_it_comes_back(bench, connection, queue):
    bench.at(1000)
    send(connection, b"1", b"2")
    queue.set_rules(ttl_ms=50)
    bench.at(1010)
    queue.set_aside(1)
    bench.at(2000)
    assert (queue.ready, queue.aside, queue.expired) == (0, 1, 1)
    queue.release(1)
    bench.at(2001)
    assert (queue.ready, queue.aside, queue.expired) == (0, 0, 2)
    queue.check()


@pytest.mark.parametrize("returned", [False, True])
def test_a_start_finds_it_ready_at_its_place(bench, connection, queue, make_bench, five, returned):
    if returned:
        received(bench, connection, queue)
        connection.feed(nack(2, 0, multiple=True))
        connection.channels[2].close()
    queue.set_aside(2)
    after = make_bench()
    found = after.recovered()
    assert (found.ready, found.aside) == (5, 0)
    reader = after.connection(1, 2)
    assert received(after, reader, found) == [(b"%d" % one, returned) for one in range(1, 6)]


def test_its_segment_stays_until_it_is_settled(bench, connection, queue):
    send(connection, *[b"%d" % one + b"x" * 2000 for one in range(1, 120)])
    queue.set_aside(5)
    received(bench, connection, queue, no_ack=True)
    assert queue.ready == 0
    first = queue.segments()[0]
    assert (first["number"], first["records"] - first["settled"]) == (1, 1)
    queue.release(5)
    bench.turns()
    assert queue.segments()[0]["number"] != 1
    queue.check()


def test_compaction_moves_it(bench, connection, queue, make_bench, monkeypatch):
    monkeypatch.setattr(compaction, "LIVE_PERCENT_MAX", 100)
    send(connection, *[b"%d" % one + b"x" * 2000 for one in range(1, 120)])
    for seq in (5, 6, 9):
        queue.set_aside(seq)
    received(bench, connection, queue, no_ack=True)
    prepared = compaction.prepare(queue.directory, compaction.Sparse(1), Disk())
    assert prepared is not None
    assert prepared.finish(queue)
    queue.check()
    assert queue.segments()[0]["generation"] == 1
    with open("/proc/self/maps") as maps:
        assert f"{queue.directory}/acks.0000000001 (deleted)" not in maps.read()
    assert [row[6][:1] for row in queue.browse_aside(1, 10)] == [b"5", b"6", b"9"]
    queue.release(6)
    queue.release(5)
    bench.turns()
    assert [one.body[:1] for one in connection.delivered()] == [b"5", b"6"]
    after = make_bench().recovered()
    assert [row[6][:1] for row in after.browse(1, 10)] == [b"9"]


def test_a_compaction_that_leaves_out_what_is_held_changes_nothing(bench, connection, queue):
    import numpy as np

    send(connection, *[b"%d" % one + b"x" * 2000 for one in range(1, 120)])
    for seq in (5, 6):
        queue.set_aside(seq)
    received(bench, connection, queue, no_ack=True)
    with open(f"{queue.directory}/msgs.0000000001", "rb") as file:
        octets = file.read()
    records = reading.scan_records(octets, int.from_bytes(octets[40:44], "little"))
    fifth = records.positions[records.headers["seq"] == 5].astype("<u4")
    with pytest.raises(ValueError, match="is in use, but was not moved"):      # The sixth; the fifth stays, too.
        queue.replace_segment(1, fifth, np.array([64], "<u4"), 4096, 4096, 1, 0)
    queue.check()
    assert [row[6][:1] for row in queue.browse_aside(1, 10)] == [b"5", b"6"]


def test_a_queue_that_is_deleted_forgets_it(bench, connection, queue, five):
    queue.set_aside(3)
    queue.drop()
    assert queue.aside == 0
    assert not queue.release(3)


def test_a_dead_letter_that_is_kept_cannot_be_released(bench, connection, queue, five):
    queue.keeps = True
    queue.set_rules(dead_letters=True)
    received(bench, connection, queue)
    connection.feed(nack(2, 1, requeue=False))
    assert queue.aside == 1
    assert not queue.release(1)
    queue.check()
    queue.settle_aside(1)
    assert queue.aside == 0


def test_the_acks_file_tells_of_it_before_the_watermark_passes_it(bench, connection, queue):
    """A message that expires and is kept: the cursor passes it without handing it out."""
    queue.keeps = True
    queue.set_rules(dead_letters=True, ttl_ms=10)
    bench.at(1000)
    send(connection, b"1")
    bench.at(2000)
    assert queue.aside == 1
    with open(f"{queue.directory}/acks.0000000001", "rb") as file:
        entries = reading.read_entries(file.read(), 1).entries
    assert [(int(entry["kind"]), int(entry["count"])) for entry in entries] == [(10, 0)]


def test_a_message_that_died_before_it_was_out_is_not_redelivered_after_a_crash(bench, connection, queue, make_bench):
    queue.keeps = True
    queue.set_rules(dead_letters=True, ttl_ms=10)
    bench.at(1000)
    send(connection, b"1")
    bench.at(2000)
    assert queue.aside == 1
    after = make_bench()
    found = after.recovered()
    assert received(after, after.connection(1, 2), found) == [(b"1", False)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 400), max_size=300), st.randoms(use_true_random=False))
def test_the_table_holds_what_was_put_into_it(tmp_path_factory, seqs, random):
    from tests.plane.harness import Bench

    bench = Bench(tmp_path_factory.mktemp("aside"))
    try:
        queue = bench.queue()
        connection = bench.connection(1)
        send(connection, *[b"%d" % one for one in range(1, 401)])
        aside = set()
        for seq in seqs:
            assert queue.set_aside(seq) == (seq not in aside)
            aside.add(seq)
            if random.random() < 0.4:
                gone = random.choice(sorted(aside))
                assert queue.release(gone)
                aside.discard(gone)
        queue.check()
        assert [row[0] for row in queue.browse_aside(1, 1000)] == sorted(aside)
        assert queue.ready == 400 - len(aside)
    finally:
        bench.close()


def test_a_table_of_many_finds_each_of_them_in_whatever_order_they_came(bench, connection, queue):
    import random

    rng = random.Random(11)
    send(connection, *[b"%d" % one for one in range(1, 1201)])
    seqs = rng.sample(range(1, 1201), 900)
    for seq in seqs:
        assert queue.set_aside(seq)
    assert [row[0] for row in queue.browse_aside(1, 2000)] == sorted(seqs)
    rng.shuffle(seqs)
    for seq in seqs[:450]:
        assert queue.release(seq)
    queue.check()
    assert [row[0] for row in queue.browse_aside(1, 2000)] == sorted(seqs[450:])
    for seq in seqs[450:]:
        assert queue.release(seq)
    assert (queue.aside, queue.ready) == (0, 1200)


@pytest.mark.parametrize("seq", [1, 3])
def test_what_was_handed_out_after_it_was_aside_is_redelivered_after_a_crash(
        bench, connection, queue, make_bench, five, seq):
    """3: the cursor stands at it, and has not passed it."""
    queue.set_aside(seq)
    assert connection.channels[2].get(queue, False)
    queue.release(seq)
    while queue.ready > 2:
        assert connection.channels[2].get(queue, False)
    queue.close()
    after = make_bench()
    found = after.recovered()
    assert [row[2] for row in found.browse(1, 10)] == [True] * 3 + [False] * 2
    assert received(after, after.connection(1, 2), found) == [
        (b"1", True), (b"2", True), (b"3", True), (b"4", False), (b"5", False)]


def test_a_rejected_message_that_is_kept_failed_once_by_what_the_acks_file_says(bench, connection, queue):
    queue.keeps = True
    queue.set_rules(dead_letters=True)
    send(connection, b"1")
    assert connection.channels[2].get(queue, False)
    connection.feed(nack(2, 1, requeue=False))
    with open(f"{queue.directory}/acks.0000000001", "rb") as file:
        entries = reading.read_entries(file.read(), 1).entries
    assert [(int(entry["kind"]), int(entry["count"])) for entry in entries] == [(10 | 1 << 4, 1)]



def test_one_that_comes_back_goes_before_the_next_though_the_cursor_has_reached_neither(
        bench, connection, queue, five):
    """1 to 3 were taken out from before the cursor; what stands there now is 4."""
    for seq in (1, 2, 3):
        assert queue.set_aside(seq)
    queue.release(2)
    assert received(bench, connection, queue) == [(b"2", False), (b"4", False), (b"5", False)]


def test_one_that_comes_back_waits_for_those_before_it_that_the_cursor_has_not_reached(
        bench, connection, queue, five):
    for seq in (1, 4):
        assert queue.set_aside(seq)
    queue.release(4)
    assert received(bench, connection, queue) == [(b"2", False), (b"3", False), (b"4", False), (b"5", False)]


def test_what_the_control_plane_holds_is_settled_as_removed_and_is_no_dead_letter(bench, connection, queue):
    connection.feed(publish(1, b"one"))
    queue.set_rules(dead_letters=True)
    assert queue.set_aside(1)
    queue.settle_aside(1)
    assert (queue.aside, queue.ready, queue.dead_lettered, queue.died) == (0, 0, 0, [])
    queue.check()


@pytest.mark.parametrize("suspect", [False, True])
def test_after_a_power_cut_what_was_aside_may_have_been_handed_out(bench, connection, queue, make_bench, suspect):
    connection.feed(publish(1, b"one", persistent=True))
    assert queue.set_aside(1)
    assert [row[2] for row in make_bench().recovered(suspect=suspect).browse(1, 9)] == [suspect]
