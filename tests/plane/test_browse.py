"""Ready messages looked at where they stand, and taken out of the middle."""

import os
import random
import struct

import pytest
from tests.plane.harness import consume, nack, publish

from brokerd.store.reading import scan_records


@pytest.fixture
def connection(bench):
    return bench.connection(1, 2)


def drain(bench, queue):
    reader = bench.connection(1)
    consume(reader.channels[1], queue, no_ack=True)
    bench.turns()
    return reader.bodies()


def numbered(first, last, size=0):
    return b"".join(publish(1, b"%d" % at + bytes(size)) for at in range(first, last + 1))


def seqs(rows):
    return [row[0] for row in rows]


def test_browsing_changes_nothing_and_tells_all(bench, connection):
    queue = bench.queue()
    bench.bound[b"ex", b"key"] = (b"q",)
    bench.at(5000)
    connection.feed(publish(1, b"one", b"key", exchange=b"ex", persistent=True) + publish(1, b"two"))
    from tests.plane.harness import PERSISTENT

    first, second = queue.browse(0, 10)
    assert first == (1, 5_000_000_000, False, b"ex", b"key", PERSISTENT, b"one")
    assert (second[0], second[6]) == (2, b"two")
    assert seqs(queue.browse(2, 10)) == [2]
    assert seqs(queue.browse(0, 1)) == [1]
    assert queue.ready == 2
    assert drain(bench, queue) == [b"one", b"two"]
    assert queue.browse(0, 10) == []


def test_returned_ones_are_seen_at_their_place_and_unacked_ones_not(bench, connection):
    queue = bench.queue()
    connection.channels[2].prefetch = 3
    one = consume(connection.channels[2], queue)
    connection.feed(numbered(1, 5))
    connection.channels[2].cancel(one)
    connection.feed(nack(2, 2))
    rows = queue.browse(0, 10)
    assert [(row[0], row[2]) for row in rows] == [(2, True), (4, False), (5, False)]


def test_browsing_goes_over_segments(bench, connection):
    queue = bench.queue()
    connection.feed(numbered(1, 300, 2000))
    assert len(queue.segments()) > 5
    assert seqs(queue.browse(0, 1000)) == list(range(1, 301))
    assert seqs(queue.browse(250, 3)) == [250, 251, 252]


def test_what_is_removed_is_gone_and_the_rest_stays_in_order(bench, connection):
    queue = bench.queue()
    connection.feed(numbered(1, 5))
    assert queue.remove(3)[6] == b"3"
    assert queue.remove(3) is None
    assert queue.remove(99) is None
    assert queue.remove(1)[0] == 1
    assert queue.ready == 3
    assert seqs(queue.browse(0, 10)) == [2, 4, 5]
    connection.feed(numbered(6, 6))
    assert drain(bench, queue) == [b"2", b"4", b"5", b"6"]


def test_a_returned_message_can_be_removed(bench, connection):
    queue = bench.queue()
    connection.channels[2].prefetch = 4
    one = consume(connection.channels[2], queue)
    connection.feed(numbered(1, 5))
    connection.channels[2].cancel(one)
    connection.feed(nack(2, 4, multiple=True))
    assert queue.remove(2)[2] is True
    assert queue.ready == 4
    assert drain(bench, queue) == [b"1", b"3", b"4", b"5"]


@pytest.mark.parametrize("seed", range(20))
def test_any_removed_in_any_order_over_a_crash(bench, connection, make_bench, seed):
    rng = random.Random(seed)
    queue = bench.queue()
    connection.feed(numbered(1, 200, rng.choice((0, 700, 3000))))
    left = list(range(1, 201))
    for _ in range(rng.randrange(200)):
        seq = rng.choice(left)
        left.remove(seq)
        assert queue.remove(seq)[0] == seq
    assert queue.ready == len(left)
    assert seqs(queue.browse(0, 1000)) == left
    again = make_bench()
    findings = []
    queue = again.recovered(findings=findings)
    assert findings == []
    assert [int(body.rstrip(b"\0")) for body in drain(again, queue)] == left


def test_levels_are_browsed_the_highest_first(bench, connection):
    queue = bench.queue(max_priority=2)
    for priority in (0, 2, 1):
        connection.feed(publish(1, b"%d" % priority, properties=struct.pack(">H", 1 << 11) + bytes([priority])))
    assert [row[6] for row in queue.browse(0, 9)] == [b"2", b"1", b"0"]
    assert queue.remove(3)[6] == b"1"
    assert drain(bench, queue) == [b"2", b"0"]


def test_taking_out_of_the_middle_of_a_long_segment_does_not_read_it_all(make_bench):
    bench = make_bench(segment_octets=4 << 20)
    connection = bench.connection(1)
    queue = bench.queue()
    connection.feed(numbered(1, 20_000))
    rng = random.Random(1)
    left = list(range(1, 20_001))
    rng.shuffle(left)
    for seq in left[:3000]:
        assert queue.remove(seq)[6] == b"%d" % seq
    connection.feed(numbered(20_001, 20_100))
    assert queue.remove(20_050)[0] == 20_050
    assert queue.ready == 17_099
    assert [int(body) for body in drain(bench, queue)] == sorted(left[3000:] + list(range(20_001, 20_050))
                                                                  + list(range(20_051, 20_101)))


def test_any_place_of_a_long_segment_is_browsed_from(make_bench):
    bench = make_bench(segment_octets=4 << 20)
    connection = bench.connection(1)
    queue = bench.queue()
    connection.feed(numbered(1, 5000))
    gone = set(range(7, 5000, 7)) | set(range(2000, 2100))
    for seq in gone:
        queue.remove(seq)
    left = [seq for seq in range(1, 5001) if seq not in gone]
    for start in (*range(0, 5001, 31), *range(1990, 2110), 5001):
        assert seqs(queue.browse(start, 3)) == [seq for seq in left if seq >= start][:3]


def test_octets_of_what_is_taken_out_of_the_middle_are_gone_with_it(bench):
    queue, connection = bench.queue(), bench.connection(1)
    for size in (1, 10, 100):
        connection.feed(publish(1, b"x" * size))
    assert queue.remove(2) is not None
    assert (queue.ready, queue.ready_octets) == (2, 101)


def test_what_comes_to_the_head_by_a_removal_expires_on_time(bench):
    queue = bench.queue()
    bench.at(1000)
    bench.core.put((queue,), b"", b"q", b"\x01\0\x0510000", b"later")
    bench.core.put((queue,), b"", b"q", b"\x01\0\x03500", b"sooner")
    assert queue.remove(1)[6] == b"later"
    bench.deadlines.clear()
    bench.at(1499)
    assert queue.ready == 1
    bench.at(1501)
    assert (queue.ready, queue.expired) == (0, 1)


@pytest.mark.parametrize("count", range(1, 8))
def test_what_came_back_before_the_cursor_reached_it_is_browsed_at_its_place(bench, connection, count):
    queue = bench.queue()
    connection.feed(numbered(1, 6))
    for seq in (5, 2, 4):
        assert queue.set_aside(seq)
    queue.release(5)
    queue.release(2)
    assert seqs(queue.browse(1, count)) == [1, 2, 3, 5, 6][:count]
    assert seqs(queue.browse(3, count)) == [3, 5, 6][:count]


def test_what_vanished_from_the_disk_is_passed_over_by_browsing(bench, connection):
    queue = bench.queue()
    connection.feed(numbered(1, 90, 2000))
    queue.rest()
    second = queue.segments()[1]
    os.unlink(f"{queue.directory}/msgs.{second['number']:010d}")
    gone = range(second["base_seq"], second["base_seq"] + second["records"])
    assert seqs(queue.browse(1, 90)) == [seq for seq in range(1, 91) if seq not in gone]
    assert queue.remove(gone[0]) is None


def test_what_is_settled_cannot_be_told_without_its_acks_and_is_passed_over(bench, connection, make_bench):
    queue = bench.queue()
    connection.feed(numbered(1, 90, 2000))
    assert queue.remove(1) is not None
    after = make_bench()
    found = after.recovered()
    os.unlink(f"{found.directory}/acks.0000000001")
    os.mkdir(f"{found.directory}/acks.0000000001")
    first = found.segments()[0]["records"]
    assert seqs(found.browse(1, 90)) == list(range(first + 1, 91))


def test_a_record_of_the_files_former_use_hides_no_message_before_it(bench, connection, make_bench):
    """A page that a power cut took may hold such records: with lower numbers, and with a CRC that is wrong here."""
    queue = bench.queue()
    connection.feed(numbered(1, 200))
    queue.close()
    with open(f"{queue.directory}/msgs.0000000001", "r+b") as file:
        records = scan_records(file.read(), queue.segments()[0]["end"])
        stale = 96
        file.seek(int(records.positions[stale]) + records.headers.dtype.fields["seq"][1])
        file.write((1).to_bytes(8, "little"))
    found = make_bench().recovered(suspect=True)
    left = [seq for seq in range(1, 201) if seq != stale + 1]
    assert seqs(found.browse(1, 200)) == left
    assert [seq for seq in left if not found.set_aside(seq)] == []


def test_browsing_leaves_mapped_what_was_and_nothing_else(bench, connection):
    def maps():
        with open("/proc/self/maps") as file:
            return sorted(line.split()[-1] for line in file if queue.directory in line)

    queue = bench.queue()
    connection.feed(numbered(1, 150, 2000))
    assert connection.channels[2].get(queue, True)
    before = maps()
    assert len(queue.browse(1, 200)) == 149
    assert maps() == before


def test_levels_that_were_never_used_are_browsed_as_empty(bench, connection):
    queue = bench.queue(max_priority=9)
    connection.feed(publish(1, b"x", properties=struct.pack(">H", 1 << 11) + bytes([4])))
    assert seqs(queue.browse(0, 9)) == [1]
    assert queue.remove(2) is None
    assert queue.remove(1) is not None
