"""Keys of messages in records: stored with them, read from them, and kept until they are in a file of their own."""

import os
import shutil
import struct

import pytest
from tests.plane.harness import PERSISTENT, ack, consume

from brokerd import plane

FOR_EVER = (1 << 63) - 1
NOW_MS = 1_700_000_000_000
BODY = b"b" * 1200          # three to a segment of 4096 octets


@pytest.fixture
def bench(make_bench):
    return make_bench(segment_octets=4096)


def keyed_queue(bench, name=b"q", size=100, ttl_ms=-1, **options):
    queue = bench.queue(name, **options)
    queue.window = plane.Window(size, ttl_ms)
    return queue


def put(bench, queues, hash_, *, of_exchange=0, ttl_ms=-1, body=BODY, **options):
    queues = queues if isinstance(queues, tuple) else (queues,)
    keys = plane.Keys({queue: hash_ for queue in queues if queue.window is not None}, of_exchange, ttl_ms)
    return bench.core.put(queues, b"x", b"key", PERSISTENT, body, keys=keys, **options)


def rows(octets):
    return list(struct.iter_unpack("<QQq", octets))


def on_disk(queue, number=1, ttl_ms=-1):
    with open(f"{queue.directory}/msgs.{number:010d}", "rb") as file:
        octets = file.read()
    end = struct.unpack_from("<I", octets, 40)[0]
    return plane.keys_in_segment(octets[:end], number, ttl_ms)


def settle_all(bench, queue):
    """All that is ready is delivered and acknowledged."""
    connection = bench.connection(1)
    consumer = consume(connection.channels[1], queue)
    bench.turns()
    connection.feed(ack(1, 0, multiple=True))
    connection.channels[1].cancel(consumer)


def numbers(queue):
    return [segment["number"] for segment in queue.segments()]


def files(queue, prefix="msgs."):
    return sorted(int(name[5:]) for name in os.listdir(queue.directory) if name.startswith(prefix))


# --- into the record and the window

def test_a_key_is_in_the_record_and_in_the_window_of_its_queue_alone(bench):
    queue, plain = keyed_queue(bench), bench.queue(b"plain")
    bench.core.clock = lambda: NOW_MS * 1_000_000
    bench.core.turn()
    put(bench, (queue, plain), 77)
    assert queue.window.knows(77, NOW_MS)
    assert [(seq, hash_) for seq, hash_, _ in rows(on_disk(queue)[0])] == [(1, 77)]
    assert on_disk(plain) == (b"", [], [])


def test_a_message_without_keys_enters_none(bench):
    queue = keyed_queue(bench)
    bench.core.put((queue,), b"", b"q", PERSISTENT, BODY)
    put(bench, queue, 0)
    assert (queue.ready, len(queue.window)) == (2, 0)


def test_what_was_refused_or_found_no_room_is_not_known(bench, monkeypatch):
    queue = keyed_queue(bench, max_length=1, overflow=1)
    put(bench, queue, 1)
    assert put(bench, queue, 2) == ()
    assert [queue.window.knows(hash_, 0) for hash_ in (1, 2)] == [True, False]
    other = keyed_queue(bench, b"other")
    monkeypatch.setattr(type(other), "make_directory", lambda self: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="No space left"):
        put(bench, other, 3)
    assert not other.window.knows(3, 0)


def test_the_key_of_an_exchange_is_in_the_records_of_queues_that_have_none(bench):
    queue, plain = keyed_queue(bench), bench.queue(b"plain")
    put(bench, (queue, plain), 5, of_exchange=9, ttl_ms=4)
    assert [hash_ for _, hash_, _ in rows(on_disk(queue)[0])] == [5]
    assert on_disk(queue)[2] == []
    found, own, of_exchanges = on_disk(plain)
    assert (found, own) == (b"", [])
    assert [(hash_, name, said) for _, hash_, name, said in of_exchanges] == [(9, b"x", PERSISTENT)]
    put(bench, plain, 0, of_exchange=10)
    assert [(hash_, said) for _, hash_, _, said in on_disk(plain)[2]] == [(9, PERSISTENT), (10, None)]


def test_each_queue_has_its_own_key_whatever_the_order_of_the_targets(bench):
    queues = [keyed_queue(bench, b"%d" % n) for n in range(5)]
    keys = plane.Keys({queue: 100 + n for n, queue in enumerate(queues)})
    chosen = (queues[3], queues[0], queues[4])
    bench.core.put(chosen, b"", b"q", PERSISTENT, BODY, keys=keys)
    assert [rows(on_disk(queue)[0])[0][1] for queue in chosen] == [103, 100, 104]
    assert len(queues[1].window) == 0


def test_the_time_of_a_key_is_the_windows_or_the_messages_own(bench):
    queue = keyed_queue(bench, ttl_ms=1000)
    bench.core.clock = lambda: NOW_MS * 1_000_000
    bench.core.turn()
    bench.core.expire()
    put(bench, queue, 1)
    put(bench, queue, 2, ttl_ms=50)
    put(bench, queue, 3, ttl_ms=FOR_EVER)
    assert [queue.window.knows(hash_, NOW_MS + 49) for hash_ in (1, 2, 3)] == [True, True, True]
    assert [queue.window.knows(hash_, NOW_MS + 999) for hash_ in (1, 2, 3)] == [True, False, True]
    assert [queue.window.knows(hash_, NOW_MS + 1000) for hash_ in (1, 2, 3)] == [False, False, True]
    found, own, _ = on_disk(queue, ttl_ms=1000)
    assert [expires for _, _, expires in rows(found)] == [NOW_MS + 1000] * 3
    assert own == [(1, NOW_MS, PERSISTENT), (2, NOW_MS, PERSISTENT)]


def test_records_that_are_not_whole_have_no_keys(bench):
    queue = keyed_queue(bench)
    for hash_ in (1, 2, 3):
        put(bench, queue, hash_)
    with open(f"{queue.directory}/msgs.0000000001", "rb") as file:
        octets = bytearray(file.read())
    second = octets.index(b"BSGM", 65 + 64)
    octets[second + 70] ^= 1
    assert [hash_ for _, hash_, _ in rows(plane.keys_in_segment(octets, 1)[0])] == [1, 3]
    assert plane.keys_in_segment(octets, 2) == plane.keys_in_segment(b"", 1) == (b"", [], [])


# --- settled segments

def test_a_settled_segment_stays_until_its_keys_are_kept(bench):
    queue = keyed_queue(bench)
    for hash_ in range(1, 8):
        put(bench, queue, hash_)
    settle_all(bench, queue)
    assert bench.core.take_unwritten_keys() == [(queue, 0, 1), (queue, 0, 2)]
    assert bench.core.take_unwritten_keys() == []
    assert numbers(queue) == [3]
    assert files(queue) == [1, 2, 3]
    assert [hash_ for _, hash_, _ in rows(queue.key_rows(1))] == [1, 2, 3]
    queue.mark_keys_written(1)
    bench.collect_garbage()
    assert files(queue) == [2, 3]
    assert not os.path.exists(f"{queue.directory}/acks.0000000001")
    assert queue.key_rows(1) == b""
    queue.mark_keys_written(1)
    queue.mark_keys_written(99)


def test_a_file_that_is_written_over_waits_for_its_own_keys(bench):
    queue = keyed_queue(bench)
    for hash_ in range(1, 8):
        put(bench, queue, hash_)
    queue.mark_keys_written(1)
    settle_all(bench, queue)
    assert os.path.exists(f"{queue.directory}/spare.msgs")
    bench.core.take_unwritten_keys()
    for hash_ in range(8, 14):
        put(bench, queue, hash_)
    settle_all(bench, queue)
    assert [number for _, _, number in bench.core.take_unwritten_keys()] == [3, 4]
    assert [hash_ for _, hash_, _ in rows(queue.key_rows(4))] == [10, 11, 12]


def test_keys_that_are_over_or_out_of_the_window_hold_no_segment(bench):
    small, short, none = (keyed_queue(bench, b"small", size=2), keyed_queue(bench, b"short", ttl_ms=0),
                          keyed_queue(bench, b"none"))
    for hash_ in range(1, 8):
        put(bench, (small, short), hash_)
        bench.core.put((none,), b"", b"none", PERSISTENT, BODY)
    for queue in (small, short, none):
        settle_all(bench, queue)
    assert bench.core.take_unwritten_keys() == [(small, 0, 2)]       # 6 of 7 is in the third: it has not fallen out
    assert [hash_ for _, hash_, _ in rows(small.key_rows(2))] == [6]


def test_rows_say_what_the_window_knows(bench):
    queue = keyed_queue(bench, size=5, ttl_ms=10**12)
    for hash_ in (1, 2, 3, 4, 5, 2, 6):
        put(bench, queue, hash_)
    settle_all(bench, queue)
    assert [(seq, hash_) for seq, hash_, _ in rows(queue.key_rows(1))] == [(2, 2), (3, 3)]
    assert [(seq, hash_) for seq, hash_, _ in rows(queue.key_rows(2))] == [(4, 4), (5, 5), (6, 2)]


def test_a_crash_finds_the_keys_of_settled_segments_and_waits_for_them_again(bench, make_bench, tmp_path):
    queue = keyed_queue(bench)
    for hash_ in range(1, 8):
        put(bench, queue, hash_)
    settle_all(bench, queue)
    shutil.copytree(queue.directory, tmp_path / "copy")
    again = make_bench(segment_octets=4096)
    found = again.queue(b"copy")
    from brokerd.store.disk import Disk
    from brokerd.store.recovery import recover

    found.window = plane.Window(100)
    found.window.load(b"".join(on_disk(found, number)[0] for number in (1, 2, 3)), 0)
    recover(found, Disk(), False, print)
    assert found.ready == 0
    assert all(found.window.knows(hash_, 0) for hash_ in range(1, 8))
    assert again.core.take_unwritten_keys() == [(found, 0, 1), (found, 0, 2)]


def test_a_purge_settles_message_by_message_so_that_no_crash_takes_it_back(bench, make_bench, tmp_path):
    queue = keyed_queue(bench)
    for hash_ in range(1, 8):
        put(bench, queue, hash_)
    assert queue.purge() == 7
    assert files(queue) == [1, 2, 3]
    shutil.copytree(queue.directory, tmp_path / "copy")
    again = make_bench(segment_octets=4096).recovered(b"copy")
    assert again.ready == 0


def test_a_settled_segment_that_a_confirm_waits_for_is_synced_all_the_same(bench):
    queue = keyed_queue(bench)
    for hash_ in range(1, 5):
        put(bench, queue, hash_, sync=True)
    settle_all(bench, queue)
    assert numbers(queue) == [2]
    assert f"{queue.directory}/msgs.0000000001" in bench.sync()
    put(bench, queue, 5, sync=True)
    put(bench, queue, 6, sync=True)
    put(bench, queue, 7, sync=True)
    settle_all(bench, queue)
    queue.mark_keys_written(2)          # They are on disk in their file: the records are not needed for the promise.
    assert bench.begin_sync() == [f"{queue.directory}/msgs.0000000003", queue.directory + "/"]


def test_without_its_window_a_queue_keeps_no_segments(bench):
    queue = keyed_queue(bench)
    for hash_ in range(1, 8):
        put(bench, queue, hash_)
    settle_all(bench, queue)
    queue.window = None
    bench.collect_garbage()
    assert files(queue) == [3]
    for _ in range(6):
        bench.core.put((queue,), b"", b"q", PERSISTENT, BODY)
    settle_all(bench, queue)
    bench.collect_garbage()
    assert len(files(queue)) == 1


def test_a_window_that_comes_later_keeps_the_segments_that_are_there(bench):
    queue = bench.queue()
    for _ in range(7):
        bench.core.put((queue,), b"", b"q", PERSISTENT, BODY)
    queue.window = plane.Window(10)
    settle_all(bench, queue)
    assert bench.core.take_unwritten_keys() == [(queue, 0, 1), (queue, 0, 2)]
    assert queue.key_rows(1) == b""


def test_a_deleted_queue_keeps_nothing(bench):
    queue = keyed_queue(bench)
    for hash_ in range(1, 8):
        put(bench, queue, hash_)
    settle_all(bench, queue)
    queue.drop()
    queue.mark_keys_written(1)
    del bench.queues[b"q"]


def test_a_queue_that_is_not_durable_keeps_its_keys_in_memory_alone(bench):
    queue = keyed_queue(bench, durable=False)
    for hash_ in range(1, 8):
        put(bench, queue, hash_)
    settle_all(bench, queue)
    assert bench.core.take_unwritten_keys() == []
    assert all(queue.window.knows(hash_, 0) for hash_ in range(1, 8))
    assert not any(name.startswith("msgs.") for name in os.listdir(queue.directory))


# --- segments that are to be compacted

def test_a_segment_may_be_compacted_once_its_keys_are_kept(bench):
    queue = keyed_queue(bench)
    for hash_ in range(1, 8):
        put(bench, queue, hash_)
    assert not queue.can_drop_records(1)
    assert bench.core.take_unwritten_keys() == [(queue, 0, 1)]
    queue.mark_keys_written(1)
    assert queue.can_drop_records(1)
    assert not queue.can_drop_records(3)       # the last one is still written to
    assert queue.can_drop_records(99)
    assert bench.core.take_unwritten_keys() == []
    settle_all(bench, queue)            # and then it needs no other file
    assert bench.core.take_unwritten_keys() == [(queue, 0, 2)]


def test_priority_levels_have_their_own_segments_and_one_window(bench):
    queue = keyed_queue(bench, max_priority=3)
    for hash_ in range(1, 9):
        keys = plane.Keys({queue: hash_})
        bench.core.put((queue,), b"", b"q", b"\x18\x00\x02" + bytes([hash_ % 2 * 3]), BODY, keys=keys)
    settle_all(bench, queue)
    assert sorted(bench.core.take_unwritten_keys(), key=lambda each: each[1:]) == [(queue, 0, 1), (queue, 3, 1)]
    assert [hash_ for _, hash_, _ in rows(queue.key_rows(1, 3))] == [1, 3, 5]
    queue.mark_keys_written(1, 3)
    bench.collect_garbage()
    assert not os.path.exists(f"{queue.directory}/prio.003/msgs.0000000001")
    assert os.path.exists(f"{queue.directory}/msgs.0000000001")


def test_a_journaled_segment_moves_to_the_kept_ones_when_its_keys_are_kept(bench):
    queue = keyed_queue(bench)
    queue.set_journal(True)
    for hash_ in range(1, 5):
        put(bench, queue, hash_)
    settle_all(bench, queue)
    assert bench.core.take_settled_segments() == []
    queue.mark_keys_written(1)
    assert bench.core.take_settled_segments() == [(queue.directory, 1)]


def test_rows_say_of_each_key_until_when_it_counts(bench):
    queue = keyed_queue(bench)
    bench.at(NOW_MS)
    for hash_, ttl_ms in ((1, 5000), (2, -1), (3, 7000)):
        put(bench, queue, hash_, ttl_ms=ttl_ms)
    assert rows(queue.key_rows(1)) == [(1, 1, NOW_MS + 5000), (2, 2, FOR_EVER), (3, 3, NOW_MS + 7000)]
