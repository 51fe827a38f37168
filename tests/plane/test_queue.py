"""Purge, drop, close, recovery: a queue found again on the disk."""

import os
from pathlib import Path

import pytest
from tests.plane.harness import Bench, ack, consume, nack, publish

from brokerd.store import format as layout
from brokerd.store import reading


@pytest.fixture
def bench(make_bench):
    return make_bench(segment_octets=4096)


@pytest.fixture
def queue(bench):
    return bench.queue()


@pytest.fixture
def connection(bench, queue):
    return bench.connection(1, 2)


def numbered(first, last, size=1000):
    return b"".join(publish(1, b"%d:" % at + b"b" * size, persistent=True) for at in range(first, last + 1))


def order(deliveries):
    return [int(one.body.partition(b":")[0]) for one in deliveries]


def flags(deliveries):
    return [(int(one.body.partition(b":")[0]), one.redelivered) for one in deliveries]


@pytest.fixture
def again(make_bench, bench):
    """Close all and start anew on the same directory: the new bench and its queue."""
    def again(**how):
        for name in [name for name in bench.queues if name != b"q"]:
            del bench.queues[name]
        connections, bench.connections = bench.connections, []
        queues, bench.queues = bench.queues, {}
        for queue in queues.values():
            queue.close()       # before the connections: kill -9 returns nothing to its place
        again.kept = connections, queues
        after = make_bench(segment_octets=4096)
        return after, after.recovered(**how)

    yield again
    for connection in again.kept[0] if hasattr(again, "kept") else ():
        connection.detach()


def everything(bench, queue):
    reader = bench.connection(1)
    consume(reader.channels[1], queue, no_ack=True)
    bench.turns()
    return reader.delivered()


# ---- purge


def test_purge_settles_what_is_ready_and_nothing_else(bench, queue, connection):
    connection.channels[2].prefetch = 5
    connection.feed(numbered(1, 20))
    consume(connection.channels[2], queue)
    bench.turns()
    assert queue.purge() == 15
    assert (queue.ready, queue.ready_octets, queue.unacked) == (0, 0, 5)
    connection.feed(nack(2, 3) + numbered(21, 21))
    connection.feed(ack(2, 0, multiple=True))
    got = order(connection.delivered())
    assert got == [1, 2, 3, 4, 5, 3, 21]
    assert queue.purge() == 0


@pytest.mark.parametrize("way", ["purge", "length"])
def test_no_start_takes_for_handed_out_what_was_removed_before(bench, queue, connection, way):
    """The entry says that it is settled.  The watermark must not pass it earlier: a kill may come in between."""
    if way != "purge":
        queue.set_rules(max_length=0)
    connection.feed(numbered(1, 3))
    bench.turns()
    assert queue.purge() == (3 if way == "purge" else 0)
    octets = Path(f"{queue.directory}/acks.0000000001").read_bytes()
    assert int.from_bytes(octets[24:28], "little") in (0, 64)
    assert int.from_bytes(octets[32:36], "little") == 3
    queue.set_rules()
    connection.feed(numbered(4, 4))
    consume(connection.channels[2], queue)
    bench.turns()
    assert order(connection.delivered()) == [4]


def test_purge_takes_returned_messages_too(bench, queue, connection):
    connection.feed(numbered(1, 10))
    consumer = consume(connection.channels[2], queue)
    bench.turns()
    connection.channels[2].cancel(consumer)
    connection.feed(nack(2, 6, multiple=True))
    assert queue.purge() == 6
    assert (queue.ready, queue.unacked, queue.ready_octets) == (0, 4, 0)
    connection.feed(nack(2, 0, multiple=True))
    connection.delivered()
    assert order(everything(bench, queue)) == [7, 8, 9, 10]


@pytest.mark.parametrize("before", [0, 1, 2, 3, 4, 7])
def test_purge_of_many_segments_takes_whole_files(bench, queue, connection, before):
    connection.feed(numbered(1, 30))
    for _ in range(before):
        connection.channels[1].get(queue, True)
    assert queue.purge() == 30 - before
    assert len(queue.segments()) == 1
    bench.collect_garbage()
    assert len([name for name in os.listdir(queue.directory) if name.startswith("msgs.")]) == 1
    connection.feed(numbered(31, 33))
    connection.frames()
    assert order(everything(bench, queue)) == [31, 32, 33]


def test_what_was_purged_does_not_come_back(bench, queue, connection, again):
    connection.feed(numbered(1, 10))
    queue.purge()
    connection.feed(numbered(11, 12))
    after, found = again()
    assert found.ready == 2
    assert order(everything(after, found)) == [11, 12]


def test_purge_of_a_last_segment_that_is_full_to_its_last_octet(bench, queue, connection, again):
    connection.feed(publish(1, b"f" * (2016 - 69)) * 2)
    assert queue.segments()[0]["end"] == 4096
    after, found = again()
    assert found.purge() == 2
    publisher = after.connection(1)
    publisher.feed(publish(1, b"new"))
    assert [one.body for one in everything(after, found)] == [b"new"]
    assert (found.ready, found.unacked) == (0, 0)


# ---- recovery


def test_a_queue_is_found_as_it_was_left(bench, queue, connection, again):
    connection.feed(numbered(1, 20))
    after, found = again()
    assert (found.ready, found.unacked, found.next_seq) == (20, 0, 21)
    publisher = after.connection(1)
    publisher.feed(numbered(21, 25))
    assert flags(everything(after, found)) == [(at, False) for at in range(1, 26)]
    assert after.damages == []
    assert (found.ready, found.ready_octets) == (0, 0)


def test_an_empty_directory_and_none_at_all_are_an_empty_queue(bench, queue, again, tmp_path):
    os.makedirs(tmp_path / "q")
    _, found = again()
    assert (found.ready, found.next_seq, found.segments()) == (0, 1, [])


def test_sequence_numbers_go_on_though_all_was_settled(bench, queue, connection, again):
    consume(connection.channels[2], queue, no_ack=True)
    connection.feed(numbered(1, 9))
    bench.collect_garbage()
    _, found = again()
    assert (found.ready, found.next_seq) == (0, 10)


def test_a_start_has_the_names_of_the_files_synced_that_it_found(bench, queue, connection, again):
    """The broker before it may have died before it synced them."""
    connection.feed(numbered(1, 1))
    after, found = again()
    publisher = after.connection(1)
    publisher.channels[1].select_confirm()
    publisher.feed(numbered(2, 2))
    assert {f"{found.directory}/", f"{os.path.dirname(found.directory)}/"} <= set(after.sync())


def test_sequence_numbers_go_on_after_a_power_cut_though_all_was_settled(bench, queue, connection, again, make_bench):
    connection.feed(numbered(1, 2))
    consume(connection.channels[2], queue, no_ack=True)
    bench.turns()
    _, found = again(suspect=True)
    assert (found.ready, found.next_seq) == (0, 3)
    assert make_bench(segment_octets=4096).recovered().next_seq == 3


def test_what_had_been_handed_out_comes_as_redelivered(bench, queue, connection, again):
    connection.channels[2].prefetch = 7
    connection.feed(numbered(1, 12))
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(ack(2, 2) + ack(2, 5))
    after, found = again()
    assert found.ready == 10
    settled, handed_out = {2, 5}, 9
    expected = [(at, at <= handed_out) for at in range(1, 13) if at not in settled]
    assert flags(everything(after, found)) == expected


def test_after_a_power_cut_everything_counts_as_handed_out(bench, queue, connection, again):
    connection.feed(numbered(1, 12))
    after, found = again(suspect=True)
    assert flags(everything(after, found)) == [(at, True) for at in range(1, 13)]


def test_settled_messages_of_any_kind_stay_settled(bench, queue, connection, again):
    connection.feed(numbered(1, 12))
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(ack(2, 1) + nack(2, 3, requeue=False) + nack(2, 5, requeue=True) + ack(2, 7))
    queue.paused = True
    after, found = again()
    assert order(everything(after, found)) == [2, 4, 5, 6, 8, 9, 10, 11, 12]


def test_counts_of_failed_deliveries_are_kept(bench, queue, connection, again):
    connection.feed(numbered(1, 3))
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 2))
    for tag in (4, 5, 6):
        connection.feed(nack(2, tag))
    after, found = again()
    reader = after.connection(1)
    consume(reader.channels[1], found)
    after.turns()
    reader.feed(nack(1, 2) + nack(1, 3))
    found.close()
    octets = Path(f"{found.directory}/acks.0000000001").read_bytes()
    entries = reading.read_entries(octets, 1).entries
    first = 64 + layout.round_up(64 + 3 + 3 + 1002)
    said = [(int(entry["kind"]) & 15, int(entry["count"])) for entry in entries if entry["position"] == first]
    out, returned = 8, layout.RETURNED
    # Four returns, each handed out again; the delivery that the restart ended; a return, and out once more.
    assert said == [(returned, 1), (out, 1), (returned, 2), (out, 2), (returned, 3), (out, 3), (returned, 4), (out, 4),
                    (out, 5), (returned, 6), (out, 6)]


def test_many_restarts_lose_nothing_and_double_nothing(bench, queue, connection, again):
    connection.feed(numbered(1, 30))
    bench_now, queue_now = again()
    left = list(range(1, 31))
    keep = []
    for turn in range(6):
        reader = bench_now.connection(1)
        reader.channels[1].prefetch = 10
        consume(reader.channels[1], queue_now)
        bench_now.turns()
        got = reader.delivered()
        assert order(got) == left[:10]
        for one in got[turn % 3::3]:
            reader.feed(ack(1, one.tag))
            left.remove(order([one])[0])
            reader.frames()
        bench_now.collect_garbage()
        keep.append((reader, bench_now, queue_now))
        queue_now.close()
        bench_now.queues, bench_now.connections = {}, []
        bench_now = Bench(bench_now.directory, segment_octets=4096)
        queue_now = bench_now.recovered()
        assert queue_now.ready == len(left)
    assert order(everything(bench_now, queue_now)) == left
    bench_now.close()


def test_what_was_not_read_before_a_restart_is_read_after_two(bench, queue, connection, again):
    connection.feed(numbered(1, 10))
    after, found = again()
    after.connection(1).feed(numbered(11, 14))
    reader = after.connection(1)
    reader.channels[1].prefetch = 3
    consume(reader.channels[1], found)
    after.turns()
    found.close()
    third = Bench(after.directory, segment_octets=4096)
    last = third.recovered()
    assert flags(everything(third, last)) == [(at, at <= 3) for at in range(1, 15)]
    third.close()


def test_a_second_restart_forgets_no_delivery(bench, queue, connection, again):
    connection.feed(numbered(1, 3))
    connection.channels[2].prefetch = 2
    consume(connection.channels[2], queue)
    bench.turns()
    after, found = again()
    assert after.connection(1).channels[1].get(found, False)
    found.close()
    third = Bench(after.directory, segment_octets=4096)
    last = third.recovered()
    assert flags(everything(third, last)) == [(1, True), (2, True), (3, False)]
    third.close()


def spoil(path, at, octets=None):
    """Write octets somewhere; else change the one that is there, whatever it is."""
    with open(path, "r+b") as file:
        file.seek(at)
        if octets is None:
            octets = bytes([file.read(1)[0] ^ 0xFF])
            file.seek(at)
        file.write(octets)


RECORD = layout.round_up(64 + 3 + 3 + 1002)     # of numbered(), one digit


@pytest.mark.parametrize("at", [0, 4, 5, 7, 8, 12, 13, 16, 40, 64, 66, 500, RECORD - 16])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_damaged_record_is_skipped_and_told(bench, queue, connection, again, at, index):
    connection.feed(numbered(1, 9))
    after, found = again()
    spoil(f"{queue.directory}/msgs.0000000001", 64 + RECORD * index + at)
    assert found.ready == 9
    assert order(everything(after, found)) == [number for number in range(1, 10) if number != index + 1]
    assert after.damages == [(f"{found.directory}/msgs.0000000001", 64 + RECORD * index, RECORD)]
    assert found.ready == 0
    after.core.take_garbage()
    assert "msgs.0000000001.damaged" in os.listdir(found.directory)


def test_all_records_damaged_is_an_empty_segment_and_no_end_of_the_queue(bench, queue, connection, again):
    connection.feed(numbered(1, 9))
    after, found = again()
    spoil(f"{queue.directory}/msgs.0000000002", 64, b"\xee" * 4000)
    assert order(everything(after, found)) == [1, 2, 3, 7, 8, 9]
    assert len(after.damages) == 1
    assert found.ready == 0


def test_damage_in_the_last_segment_does_not_stop_new_messages(bench, queue, connection, again):
    connection.feed(numbered(1, 2))
    after, found = again()
    spoil(f"{queue.directory}/msgs.0000000001", 64 + RECORD + 70)
    reader = after.connection(1)
    consume(reader.channels[1], found, no_ack=True)
    reader.feed(numbered(3, 6))
    assert order(reader.delivered()) == [1, 3, 4, 5, 6]
    assert found.ready == 0


def test_a_damaged_record_may_be_met_by_get_and_by_purge(bench, queue, connection, again):
    connection.feed(numbered(1, 6))
    after, found = again()
    for number in (1, 2):
        spoil(f"{queue.directory}/msgs.{number:010d}", 64 + 70)
    reader = after.connection(1)
    assert reader.channels[1].get(found, True)
    after.turns()
    assert order(reader.delivered()) == [2]
    found.purge()
    assert found.ready == 0
    assert not reader.channels[1].get(found, True)


def test_spoiled_acks_entries_settle_nothing(bench, queue, connection, again):
    connection.feed(numbered(1, 3))
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(ack(2, 1) + ack(2, 2))
    spoil(f"{queue.directory}/acks.0000000001", 64 + 5)
    after, found = again()
    assert order(everything(after, found)) == [1, 3]
    assert found.ready == 0
    assert after.damages == [(f"{queue.directory}/acks.0000000001", 64, 8)]


def test_after_a_power_cut_what_may_not_have_been_out_has_not_failed(bench, queue, connection, again):
    connection.feed(numbered(1, 2))
    after, found = again(suspect=True, delivery_limit=1)
    assert flags(everything(after, found)) == [(1, True), (2, True)]
    assert found.limited == 0


def test_an_entry_for_a_place_behind_the_records_is_damage_and_settles_nothing(bench, queue, connection, again):
    connection.feed(numbered(1, 2))
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(ack(2, 1))
    spoil(f"{queue.directory}/acks.0000000001", 64, layout.entry(1, 1 << 20, layout.ACKED, 0))
    after, found = again()
    assert order(everything(after, found)) == [1, 2]
    assert after.damages == [(f"{queue.directory}/acks.0000000001", 64, 8)]


def test_a_start_reads_more_entries_than_a_segment_has_room_for_at_first(bench, queue, connection, again):
    connection.feed(numbered(1, 1))
    for tag in range(1, 701):
        assert connection.channels[2].get(queue, False)
        connection.feed(nack(2, tag))
    connection.frames()
    assert queue.segments()[0]["entries"] > 4096 // 8
    after, found = again()
    reader = after.connection(1)
    assert reader.channels[1].get(found, False)
    reader.feed(ack(1, 1))
    assert (found.ready, found.unacked, after.damages) == (0, 0, [])


def test_a_file_that_is_written_over_begins_without_the_entries_of_the_old_one(bench, queue, connection, again):
    consume(connection.channels[2], queue, no_ack=True)
    connection.feed(numbered(1, 9))         # Its spare has had entries.
    connection.channels[2].cancel(next(iter(queue.consumers)))
    connection.frames()
    before = queue.segments()[-1]["number"]
    connection.feed(numbered(10, 15))
    assert queue.segments()[-1]["number"] > before
    reader = bench.connection(1)
    while reader.channels[1].get(queue, False):
        pass
    reader.feed(ack(1, 5))
    after, found = again()
    assert order(everything(after, found)) == [at for at in range(10, 16) if at != 14]
    assert after.damages == []


def test_a_segment_that_counts_more_records_than_it_has_is_put_aside_and_not_written_over(bench, queue, connection):
    connection.feed(numbered(1, 7))
    rows = queue.segments()
    queue.close()
    found = bench.queue(b"again", folder="q")
    for row in rows:
        found.attach_segment(row["number"], end=row["end"], records=row["records"] + (row is rows[0]), settled=0,
                             base_seq=row["base_seq"], delivered=0, acks=0, capacity=row["capacity"], ready_octets=0,
                             synced=False)
    found.finish_recovery(8, suspect=False)
    assert order(everything(bench, found)) == list(range(1, 8))
    assert "msgs.0000000001.damaged" in os.listdir(found.directory)
    assert found.ready == 0


@pytest.mark.parametrize("at", [0, 4])
@pytest.mark.parametrize("octets", [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x40\0\0\0"])
def test_where_the_mark_of_what_was_handed_out_cannot_be_read_all_may_have_been(
        bench, queue, connection, again, at, octets):
    connection.feed(numbered(1, 3))
    connection.channels[2].prefetch = 2
    consume(connection.channels[2], queue)
    bench.turns()
    spoil(f"{queue.directory}/acks.0000000001", layout.ACKS_WORDS_AT + at, octets)
    after, found = again()
    assert flags(everything(after, found)) == [(1, True), (2, True), (3, True)]


def test_a_segment_that_vanished_is_no_crash(bench, queue, connection, again):
    connection.feed(numbered(1, 9))
    after, found = again()
    os.unlink(f"{found.directory}/msgs.0000000002")
    reader = after.connection(1)
    consume(reader.channels[1], found, no_ack=True)
    after.turns()
    assert order(reader.delivered())[:3] == [1, 2, 3]


@pytest.mark.parametrize("what", [
    {"records": 0}, {"records": 1000}, {"settled": 1000}, {"settled": 1}, {"end": 64}, {"end": 72}, {"end": 2000},
    {"end": 4096}, {"acks": 100}, {"acks": 500_000}, {"delivered": 0xFFFFFFFF}, {"capacity": 0}, {"capacity": 65_536},
    {"ready_octets": 0}, {"ready_octets": 1 << 60}, {"base_seq": 0}, {"generation": 7}, {"end": 1 << 20},
])
def test_wrong_numbers_given_to_attach_are_no_crash(bench, queue, connection, what):
    connection.feed(numbered(1, 3))
    told = {"end": queue.segments()[0]["end"], "records": 3, "settled": 0, "base_seq": 1, "delivered": 0, "acks": 0,
            "capacity": 4096, "ready_octets": 3000, "synced": False, **what}
    queue.close()
    after = Bench(bench.directory, segment_octets=4096)
    found = after.queue()
    found.attach_segment(1, **told)
    found.finish_recovery(4, suspect=False)
    publisher = after.connection(1)
    publisher.feed(numbered(4, 6))
    everything(after, found)
    found.purge()
    publisher.feed(numbered(7, 7))
    after.close()


# ---- drop and close


def test_drop_makes_consumers_leave_and_forgets_messages(bench, queue, connection):
    connection.feed(numbered(1, 5))
    consume(connection.channels[2], queue, b"a")
    consume(connection.channels[1], queue, b"b", no_ack=True)
    bench.turns()
    queue.drop()
    assert (queue.ready, queue.consumer_count, queue.consumers) == (0, 0, {})
    assert connection.channels[2].consumers == {}
    connection.feed(nack(2, 0, multiple=True))
    assert (queue.ready, queue.unacked) == (0, 0)


def test_a_queue_dropped_while_it_waits_for_a_turn_leaves_it(bench, connection):
    queues = [bench.queue(b"%d" % at) for at in range(5)]
    for queue in queues:
        queue.paused = True
        consume(connection.channels[2], queue, queue.directory[-1:].encode(), no_ack=True)
        connection.feed(publish(1, b"x", queue.directory[-1:].encode()))
    for queue in queues:
        queue.paused = False
    for at in (0, 4, 2):
        queues[at].drop()
        del bench.queues[b"%d" % at]
    del queues, queue
    bench.routes.clear()
    bench.turns()
    assert sorted(one.consumer for one in connection.delivered()) == [b"1", b"3"]


def test_counters_say_what_happened(bench, queue, connection):
    connection.feed(numbered(1, 5))
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(ack(2, 1) + nack(2, 2) + nack(2, 3, requeue=False))
    assert (queue.published, queue.delivered, queue.acked, queue.redelivered, queue.returned, queue.got) == (
        5, 6, 2, 1, 1, 0)


def test_ready_octets_are_those_of_bodies(bench, queue, connection):
    connection.feed(publish(1, b"x" * 10) + publish(1, b"") + publish(1, b"x" * 5000))
    assert queue.ready_octets == 5010
    connection.channels[1].get(queue, False)
    assert queue.ready_octets == 5000
    connection.feed(nack(1, 1))
    assert queue.ready_octets == 5010


def test_touched_is_the_time_of_the_last_delivery(bench, queue, connection):
    bench.core.clock = lambda: 12345
    connection.feed(publish(1, b"x"))
    consume(connection.channels[2], queue, no_ack=True)
    bench.core.clock = lambda: 23456
    connection.feed(b"")
    assert queue.touched == 23456
    bench.core.clock = None


def test_a_path_too_long_is_refused(bench):
    with pytest.raises(ValueError, match="too long"):
        bench.queue(folder="d" * 5000)


def test_a_count_of_failed_deliveries_stops_at_what_its_field_holds(bench, queue, connection, again, make_bench):
    connection.feed(numbered(1, 1))
    assert connection.channels[2].get(queue, False)
    connection.feed(nack(2, 1))
    path = f"{queue.directory}/acks.0000000001"
    after, found = again()
    with open(path, "r+b") as file:
        octets = file.read()
        position, kind, _, count = layout.ENTRY.unpack_from(octets, 64)
        assert count == 1
        file.seek(64)
        file.write(layout.ENTRY.pack(position, kind, layout.entry_check(1, position, kind, 0xFFFE), 0xFFFE))
    reader = after.connection(1)
    for tag in (1, 2):
        assert reader.channels[1].get(found, False)
        reader.feed(nack(1, tag))
    assert reader.channels[1].get(found, False)
    with open(path, "rb") as file:
        entries = reading.read_entries(file.read(), 1).entries
    assert [int(entry["count"]) for entry in entries][-3:] == [0xFFFF] * 3
    found.close()
    last = make_bench(segment_octets=4096)      # It was out when that broker ended: one failure more.
    assert last.connection(1).channels[1].get(last.recovered(), False)
    with open(path, "rb") as file:
        assert int(reading.read_entries(file.read(), 1).entries["count"][-1]) == 0xFFFF


def test_a_sealed_segment_whose_records_are_all_settled_goes_at_the_start(bench, queue, connection, tmp_path):
    connection.feed(numbered(1, 7))
    rows = queue.segments()
    queue.close()
    found = bench.queue(b"again", folder="q")
    for row in rows:
        found.attach_segment(row["number"], end=row["end"], records=row["records"],
                             settled=row["records"] if row is rows[0] else 0, base_seq=row["base_seq"], delivered=0,
                             acks=0, capacity=row["capacity"], ready_octets=0, synced=False)
    found.finish_recovery(8, suspect=False)
    assert [row["number"] for row in found.segments()] == [row["number"] for row in rows[1:]]
    assert not os.path.exists(f"{found.directory}/msgs.0000000001")
    assert order(everything(bench, found)) == [4, 5, 6, 7]


def test_new_segments_have_numbers_above_those_of_files_that_are_left_of_others(bench, connection):
    found = bench.queue(b"q", folder="again")
    found.finish_recovery(1, suspect=True, last_number=7)
    connection.feed(numbered(1, 1))
    assert [row["number"] for row in found.segments()] == [8]


def test_times_of_records_go_on_behind_those_of_the_broker_before_though_the_clock_was_set_back(
        bench, queue, connection, make_bench):
    bench.at(9000)
    connection.feed(numbered(1, 2))
    after = make_bench(segment_octets=4096)
    after.core.clock = lambda: 5_000_000_000
    found = after.recovered()
    after.connection(1).feed(numbered(3, 3))
    assert [row[1] for row in found.browse(1, 9)] == [9_000_000_000, 9_000_000_001, 9_000_000_002]


def test_a_publish_uses_its_queue(bench, queue, connection):
    for ms in (5000, 7000):
        bench.at(ms)
        connection.feed(numbered(1, 1))
        assert queue.touched == ms * 1_000_000


def test_more_settled_than_there_are_records_is_all_of_them(bench, queue, connection):
    connection.feed(numbered(1, 2))
    row = queue.segments()[0]
    queue.close()
    found = bench.queue(b"again", folder="q")
    found.attach_segment(1, end=row["end"], records=2, settled=3, base_seq=1, delivered=0, acks=0,
                         capacity=row["capacity"], ready_octets=0, synced=False)
    found.finish_recovery(3, suspect=False)
    assert (found.ready, found.segments()[0]["settled"]) == (0, 2)
