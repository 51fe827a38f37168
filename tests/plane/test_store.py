"""A queue's segments: rolled, recycled, retired, given back, and a disk without room."""

import gc
import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.plane.harness import ack, consume, nack, publish

BODY = b"b" * 1500          # two to a segment of 4096 octets


@pytest.fixture
def bench(make_bench):
    return make_bench(segment_octets=4096)


@pytest.fixture
def queue(bench):
    return bench.queue()


@pytest.fixture
def connection(bench, queue):
    return bench.connection(1, 2)


def files(queue):
    return sorted(os.listdir(queue.directory))


def numbers(queue):
    return [segment["number"] for segment in queue.segments()]


def numbered(first, last, size=1500):
    return b"".join(publish(1, b"%d:" % at + b"b" * size) for at in range(first, last + 1))


def order(deliveries):
    return [int(one.body.partition(b":")[0]) for one in deliveries]


def test_no_file_is_made_before_the_first_message(bench, queue, connection):
    assert not os.path.exists(queue.directory)
    assert queue.segments() == []
    consume(connection.channels[1], queue)
    assert queue.purge() == 0
    assert not queue.rest()
    connection.feed(publish(1, b""))
    assert "msgs.0000000001" in files(queue)


def test_a_full_segment_is_followed_by_the_next(bench, queue, connection):
    connection.feed(publish(1, BODY) * 7)
    assert numbers(queue) == [1, 2, 3, 4]
    assert [segment["sealed"] for segment in queue.segments()] == [1, 1, 1, 0]
    assert [segment["base_seq"] for segment in queue.segments()] == [1, 3, 5, 7]
    assert queue.next_seq == 8


def test_messages_cross_segments_in_order(bench, queue, connection):
    connection.feed(numbered(1, 100))
    consume(connection.channels[2], queue, no_ack=True)
    bench.turns()
    assert order(connection.delivered()) == list(range(1, 101))
    assert (queue.ready, queue.ready_octets) == (0, 0)


@pytest.mark.parametrize("size", [3900, 3963, 3964, 3965, 3970, 5000, 100_000, 1_000_000])
def test_a_message_larger_than_a_segment_has_one_of_its_own(bench, queue, connection, size):
    connection.feed(publish(1, b"small") + publish(1, b"L" * size) + publish(1, b"small"))
    consume(connection.channels[2], queue, no_ack=True)
    bench.turns()
    assert connection.bodies() == [b"small", b"L" * size, b"small"]
    assert all(segment["end"] <= segment["capacity"] for segment in queue.segments())


@pytest.mark.parametrize("size", range(1930, 1970))
def test_records_may_fill_a_segment_to_its_last_octet(bench, queue, connection, size):
    connection.feed(publish(1, b"f" * size) * 5)
    consume(connection.channels[2], queue, no_ack=True)
    bench.turns()
    assert connection.bodies() == [b"f" * size] * 5


def test_a_settled_segment_becomes_the_spare_and_then_the_next(bench, queue, connection):
    consume(connection.channels[2], queue, no_ack=True)
    connection.feed(publish(1, BODY) * 3)
    assert "spare.msgs" in files(queue)
    inode = os.stat(f"{queue.directory}/spare.msgs").st_ino
    connection.feed(publish(1, BODY) * 2)
    assert numbers(queue) == [3]
    assert os.stat(f"{queue.directory}/msgs.0000000003").st_ino == inode


def test_what_is_settled_and_not_the_spare_is_garbage_in_order(bench, queue, connection):
    connection.feed(publish(1, BODY) * 10)
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(ack(2, 10, multiple=True))
    bench.turns()
    garbage = bench.core.take_garbage()
    assert bench.core.take_garbage() == []
    names = [os.path.basename(path) for path in garbage]
    assert not any(name.startswith("msgs.") for name in names)      # aside already: no crash brings them back
    for number in {name[6:] for name in names if name.startswith("spare.")}:
        assert names.index(f"spare.{number}") < names.index(f"acks.{number}")
    assert numbers(queue) == [5]
    for path in garbage:
        os.unlink(path)
    assert set(files(queue)) <= {"msgs.0000000005", "acks.0000000005", "spare.msgs"}


def test_a_segment_stays_until_its_last_record_is_settled(bench, queue, connection):
    connection.feed(numbered(1, 6))
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(ack(2, 1) + ack(2, 3) + ack(2, 4))
    assert numbers(queue) == [1, 3]
    connection.feed(ack(2, 2))
    assert numbers(queue) == [3]


def test_a_returned_record_keeps_its_segment_and_is_read_again(bench, queue, connection):
    connection.feed(numbered(1, 8))
    consumer = consume(connection.channels[2], queue)
    bench.turns()
    connection.channels[2].cancel(consumer)
    connection.feed(ack(2, 1) + nack(2, 2) + ack(2, 8, multiple=True))
    assert numbers(queue) == [1, 4]
    connection.delivered()
    assert connection.channels[1].get(queue, True)
    bench.turns()
    got, = connection.delivered()
    assert (order([got]), got.redelivered) == ([2], True)
    assert numbers(queue) == [4]


def test_the_last_segment_stays_though_all_is_settled(bench, queue, connection):
    consume(connection.channels[2], queue, no_ack=True)
    connection.feed(publish(1, BODY))
    assert numbers(queue) == [1]
    assert queue.segments()[0]["settled"] == 1


def test_rest_gives_all_back_and_the_queue_goes_on(bench, queue, connection):
    connection.feed(numbered(1, 7))
    consumer = consume(connection.channels[2], queue)
    connection.channels[2].prefetch = 0
    bench.turns()
    connection.channels[2].cancel(consumer)
    assert queue.rest()
    assert not any(segment["mapped"] for segment in queue.segments())
    assert not queue.rest()
    connection.feed(nack(2, 3) + ack(2, 4) + publish(1, b"8:"))
    assert queue.rest()
    connection.feed(nack(2, 7, multiple=True))
    consume(connection.channels[1], queue, no_ack=True)
    bench.turns()
    got = [one for one in connection.delivered() if one.channel == 1]
    assert order(got) == [1, 2, 3, 5, 6, 7, 8]


def test_descriptors_and_maps_are_given_back(bench, queue, connection):
    gc.collect()        # What earlier tests have left behind goes now, and not meanwhile.
    before = len(os.listdir("/proc/self/fd"))
    connection.feed(numbered(1, 40))
    queue.rest()
    assert len(os.listdir("/proc/self/fd")) == before
    assert queue.directory not in Path("/proc/self/maps").read_text()


def test_a_rest_waits_for_the_sync(bench, queue, connection):
    connection.channels[1].select_confirm()
    connection.feed(publish(1, b"x", persistent=True))
    assert not queue.rest()
    bench.sync()
    assert queue.rest()


def test_a_spare_given_back_is_never_unlinked_under_its_successor(bench, queue, connection):
    consume(connection.channels[2], queue, no_ack=True)
    connection.feed(publish(1, BODY) * 9)
    assert "spare.msgs" in files(queue)
    assert queue.rest()
    assert "spare.msgs" not in files(queue)
    connection.feed(publish(1, BODY) * 4)
    bench.collect_garbage()
    connection.feed(publish(1, BODY) * 12)
    assert bench.storage_errors == []
    assert len(connection.delivered()) == 25


def test_a_deleted_queue_makes_no_spare_and_its_files_are_the_callers(bench, queue, connection):
    connection.feed(publish(1, BODY) * 6)
    consume(connection.channels[2], queue)
    bench.turns()
    queue.drop()
    connection.feed(ack(2, 6, multiple=True))
    assert not connection.errors
    assert "spare.msgs" not in files(queue)


def test_time_stamps_rise_strictly_though_the_clock_does_not(make_bench):
    bench = make_bench()
    queue, connection = bench.queue(), bench.connection(1)
    times = iter([1000, 1000, 500, 2000, 100, 100, 100])
    bench.core.monotonic = lambda: 0
    bench.core.clock = lambda: next(times)
    for _ in range(5):
        connection.feed(publish(1, b""))
    octets = Path(f"{queue.directory}/msgs.0000000001").read_bytes()
    stamps, at = [], 64
    for _ in range(5):
        stamps.append(int.from_bytes(octets[at + 24:at + 32], "little"))
        at += int.from_bytes(octets[at + 4:at + 8], "little") + 7 & ~7
    assert stamps == [1000, 1001, 1002, 2000, 2001]
    bench.core.clock = None


# ---- a disk without room


@contextmanager
def no_larger_than(octets):
    """Files of this process cannot grow beyond this size: EFBIG, as Python ignores SIGXFSZ."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (octets, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_publish_without_room_stands_still_and_goes_on_without_loss(bench, queue):
    connection = bench.connection(1)
    connection.channels[1].select_confirm()
    with no_larger_than(1000):
        connection.feed(numbered(1, 3))
        assert len(bench.storage_errors) == 1
        assert connection.stopped
        assert not connection.out.reading
        assert connection.told_blocked == 1
        assert queue.ready == 0
        connection.feed(numbered(4, 5))
        assert (queue.ready, connection.told_blocked) == (0, 1)
        connection.unblock()
        assert connection.stopped
        assert len(bench.storage_errors) == 2
    connection.unblock()
    assert not connection.stopped
    assert connection.out.reading
    assert connection.said() == [("ack", 1, 5, 1)]
    consume(connection.channels[1], queue, no_ack=True)
    bench.turns()
    assert order(connection.delivered()) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("piece", [1, 7, 200])
def test_a_message_in_pieces_stands_still_too(bench, queue, piece):
    connection = bench.connection(1)
    octets = numbered(1, 2, 300)
    with no_larger_than(1000):
        for at in range(0, len(octets), piece):
            connection.feed(octets[at:at + piece])
        assert connection.stopped
    connection.unblock()
    consume(connection.channels[1], queue, no_ack=True)
    bench.turns()
    assert order(connection.delivered()) == [1, 2]


def test_much_may_arrive_while_standing_still(bench, queue):
    connection = bench.connection(1)
    with no_larger_than(1000):
        for at in range(1, 11):
            connection.feed(publish(1, b"%d:" % at + bytes(100_000)))
    assert queue.ready == 0
    connection.unblock()
    consume(connection.channels[1], queue, no_ack=True)
    bench.turns()
    assert order(connection.delivered()) == list(range(1, 11))


def test_consumers_are_served_while_publishers_stand_still(bench, queue, connection):
    connection.feed(numbered(1, 4))
    reader = bench.connection(1)
    with no_larger_than(1000):
        connection.feed(numbered(5, 6))
        assert connection.stopped
        consume(reader.channels[1], queue)
        bench.turns()
        assert order(reader.delivered()) == [1, 2, 3, 4]
        reader.feed(ack(1, 4, multiple=True))
        assert not reader.errors
    connection.unblock()
    assert order(reader.delivered()) == [5, 6]


def test_a_message_for_two_queues_is_stored_in_both_or_waits(bench, queue, connection):
    other = bench.queue(b"other")
    bench.bound[b"both", b""] = (b"q", b"other")
    connection.feed(publish(1, b"1"))
    with no_larger_than(1000):
        connection.feed(publish(1, b"2", b"", exchange=b"both"))
        assert (queue.ready, other.ready) == (1, 0)
    connection.unblock()
    assert (queue.ready, other.ready) == (2, 1)


def test_a_directory_that_cannot_be_made_is_a_storage_error(bench, connection):
    def refuse():
        raise PermissionError(13, "not here")

    class Refused(type(bench.queue())):
        def make_directory(self):
            refuse()

    bench.queues[b"r"] = Refused(bench.core, f"{bench.directory}/none/r", durable=True)
    connection.feed(publish(1, b"x", b"r"))
    assert bench.storage_errors == [13]
    connection.detach()


def test_a_connection_that_goes_while_standing_still_leaves_nothing(bench, queue):
    connection = bench.connection(1)
    with no_larger_than(1000):
        connection.feed(publish(1, b"x"))
        connection.detach()
    connection.unblock()
    assert queue.ready == 0


FULL = """
import os, sys
from tests.plane.harness import Bench, ack, consume, publish
bench = Bench(sys.argv[1], segment_octets=65536)
queue, connection, reader = bench.queue(), bench.connection(1), bench.connection(1)
stored = 0
while not connection.stopped:
    connection.feed(publish(1, b"%d:" % stored + b"b" * 1000))
    stored += 1
stored -= 1
assert queue.ready == stored, (queue.ready, stored)
consume(reader.channels[1], queue)
bench.turns()
got = reader.delivered()
assert [int(one.body.partition(b":")[0]) for one in got] == list(range(stored))
reader.feed(ack(1, stored, multiple=True))
assert not reader.errors
bench.collect_garbage()
connection.unblock()
assert not connection.stopped, bench.storage_errors
assert [int(one.body.partition(b":")[0]) for one in reader.delivered()] == [stored]
print("whole", set(bench.storage_errors))
"""


def mounted(directory):
    return subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", directory], capture_output=True).returncode


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system is root's")
def test_a_full_file_system_loses_nothing_and_goes_on_when_there_is_room(tmp_path):
    if mounted(tmp_path):
        pytest.skip("no mounting here")
    try:
        done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        assert (done.stdout, done.returncode) == ("whole {28}\n", 0), done.stderr
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_the_headers_say_what_is_in_the_files(make_bench):
    from brokerd.store import format as layout

    bench = make_bench(segment_octets=4096)
    bench.at(1234)
    queue, connection = bench.queue(), bench.connection(1, 2)
    connection.feed(publish(1, BODY) * 3)
    acks = layout.ACKS_HEADER.unpack(Path(f"{queue.directory}/acks.0000000001").read_bytes()[:64])
    assert acks[5:] == (*layout.word(0), *layout.word(0), *layout.word(0), 0, 0)
    assert connection.channels[2].get(queue, True)
    msgs = layout.SEGMENT_HEADER.unpack(Path(f"{queue.directory}/msgs.0000000002").read_bytes()[:64])
    assert msgs[:6] == (layout.SEGMENT_MAGIC, layout.SEGMENT_VERSION, 2, 3, 1234 * 1_000_000, 0)
    acks = layout.ACKS_HEADER.unpack(Path(f"{queue.directory}/acks.0000000001").read_bytes()[:64])
    assert acks[:4] == (layout.ACKS_MAGIC, layout.ACKS_VERSION, 1, 0)
    assert acks[7:11] == (*layout.word(1), *layout.word(1))     # entries, settled


def test_maps_of_a_queue_that_is_deleted_are_given_back(bench, queue, connection):
    connection.feed(publish(1, BODY) * 6)
    assert connection.channels[2].get(queue, True)
    assert queue.directory in Path("/proc/self/maps").read_text()
    queue.drop()
    assert queue.directory not in Path("/proc/self/maps").read_text()


def test_a_record_says_which_publish_of_whom_it_was_and_its_key(make_bench):
    from brokerd import plane
    from brokerd.store import format as layout
    from brokerd.store import reading

    bench = make_bench()
    queue = bench.queue(max_priority=3)
    for _ in range(2):
        connection = bench.connection(1, 7)
    connection.feed(publish(7, b"one", properties=b"\x18\x00\x02\x00"))
    connection.feed(publish(7, b"two"))
    queue.window = plane.Window(10)
    bench.core.put((queue,), b"ex", b"q", b"\0\0", b"three", connection=9, channel=4, publish_seq=77,
                   keys=plane.Keys({queue: 0x1122334455667788}))
    octets = Path(f"{queue.directory}/msgs.0000000001").read_bytes()
    said = reading.scan_records(octets, int.from_bytes(octets[40:44], "little")).headers
    assert [[int(one[name]) for name in ("seq", "connection", "channel", "publish_seq", "dedup_hash", "flags")]
            for one in said] == [[1, 2, 7, 1, 0, layout.PERSISTENT], [2, 2, 7, 2, 0, 0],
                                 [3, 9, 4, 77, 0x1122334455667788, 0]]


def test_a_recovered_queue_that_was_looked_at_has_something_to_give_back(bench, queue, connection, make_bench):
    connection.feed(numbered(1, 3))
    after = make_bench(segment_octets=4096)
    found = after.recovered()
    after.core.expire()                 # Its head is read.
    assert (found.rest(), found.rest()) == (True, False)


def test_a_spare_of_its_own_that_somebody_took_away_is_let_go_of(bench, queue, connection):
    connection.feed(numbered(1, 5))
    assert everything_settled(bench, queue)
    os.unlink(f"{queue.directory}/spare.msgs")
    connection.feed(numbered(6, 9))
    assert (queue.ready, bench.storage_errors) == (4, [])
    with open("/proc/self/maps") as maps:
        assert f"{queue.directory}/spare.msgs" not in maps.read()


def everything_settled(bench, queue):
    reader = bench.connection(1)
    consumer = consume(reader.channels[1], queue, no_ack=True)
    bench.turns()
    reader.channels[1].cancel(consumer)
    return "spare.msgs" in files(queue)
