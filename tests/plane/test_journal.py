"""The order journal: that every event of a message's life is in it, in order of time, and what a crash leaves of it."""

import os
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest
from tests.plane.harness import ack, consume, nack, publish, reject
from tests.plane.test_store import mounted

from brokerd.store import format as layout
from brokerd.store import reading
from brokerd.store.format import (
    ACKED,
    BEFORE_START,
    BY_GET,
    CAUSE_CHANNEL,
    CAUSE_CONNECTION,
    DEAD_LETTERED,
    DELIVERED,
    DROPPED,
    EXPIRED,
    POWER_LOST,
    PURGED,
    REDELIVERED,
    REJECTED,
    RESTARTED,
    RETURNED,
    STARTED,
    SWITCHED_OFF,
    SWITCHED_ON,
    WITHOUT_ACK,
)

PERSISTENT_1 = b"\x18\x00\x02\x01"      # delivery-mode 2, priority 1


def read(path):
    """(header, events) of a journal, of which each is sound."""
    with open(path, "rb") as file:
        octets = file.read()
    header = np.frombuffer(octets, reading.journal_dtype(), 1)[0]
    assert header["magic"] == layout.JOURNAL_MAGIC
    assert header["crc"] == layout.crc32c(octets[:24])
    assert layout.word_ok(int(header["events"]), int(header["events_complement"]))
    assert layout.word_ok(int(header["lost"]), int(header["lost_complement"]))
    events = np.frombuffer(octets, reading.event_dtype(), int(header["events"]), layout.HEADER_OCTETS)
    for at, one in enumerate(events):
        start = layout.HEADER_OCTETS + at * layout.EVENT_OCTETS
        seeded = layout.crc32c(int(header["number"]).to_bytes(8, "little"))
        assert one["crc"] == layout.crc32c(octets[start:start + 28], seeded)
    rest = octets[layout.HEADER_OCTETS + events.size * layout.EVENT_OCTETS:]
    assert not any(rest[:layout.EVENT_OCTETS])
    return header, events


def journals(directory):
    """Paths of all journals in it, in order of their numbers."""
    found = [os.path.join(folder, name) for folder, _, names in os.walk(directory) for name in names
             if name.startswith("journal.")]
    return sorted(found, key=lambda path: path.rpartition(".")[2])


def life(directory):
    """(seq, type, reason) of all events, in order of time."""
    events = np.concatenate([read(path)[1] for path in journals(directory)])
    assert np.unique(events["ts"]).size == events.size
    events = events[np.argsort(events["ts"])]
    return [(int(e["seq"]), int(e["type"]), int(e["reason"])) for e in events]


@pytest.fixture
def queue(bench):
    queue = bench.queue()
    queue.set_journal(True)
    return queue


@pytest.fixture
def connection(bench, queue):
    return bench.connection(1, 2)


def send(bench, connection, count, **how):
    connection.feed(b"".join(publish(1, b"%d" % at, **how) for at in range(1, count + 1)))
    bench.turns()


def settle(bench, connection, octets):
    connection.feed(octets)
    bench.turns()


def test_a_queue_without_one_writes_none(bench, connection):
    queue = bench.queue(b"plain")
    consume(connection.channels[2], queue)
    send(bench, connection, 10, key=b"plain")
    assert not queue.journaled
    assert not journals(queue.directory)
    assert queue.segments()[0]["events"] == -1


def test_only_a_durable_queue_may_have_one(bench):
    queue = bench.queue(b"t", durable=False)
    with pytest.raises(ValueError, match="durable"):
        queue.set_journal(True)
    assert not queue.journaled


def test_a_delivery_and_its_ack_are_events_with_consumer_and_tag(bench, queue, connection):
    consume(connection.channels[2], queue, consumer_number=77)
    send(bench, connection, 2)
    settle(bench, connection, ack(2, 1))
    _, events = read(journals(queue.directory)[0])
    assert [(int(e["seq"]), int(e["type"]), int(e["consumer"]), int(e["aux"])) for e in events] == [
        (1, DELIVERED, 77, 1), (2, DELIVERED, 77, 2), (1, ACKED, 77, 0)]


@pytest.mark.parametrize(("octets", "events"), [
    (nack(2, 1), [(RETURNED, 1), (DELIVERED, REDELIVERED)]),
    (reject(2, 1), [(RETURNED, 2), (DELIVERED, REDELIVERED)]),
    (reject(2, 1, requeue=False), [(REJECTED, 0)]),
])
def test_what_a_consumer_says_is_an_event_with_its_cause(bench, queue, connection, octets, events):
    consume(connection.channels[2], queue)
    send(bench, connection, 1)
    settle(bench, connection, octets)
    assert life(queue.directory) == [(1, DELIVERED, 0)] + [(1, *event) for event in events]


@pytest.mark.parametrize(("connection_closes", "cause"), [(False, CAUSE_CHANNEL), (True, CAUSE_CONNECTION)])
def test_what_a_channel_that_ends_gives_back_has_the_time_of_its_return(make_bench, connection_closes, cause):
    """The chunk that closes it may have read the clock long before."""
    bench = make_bench()
    bench.core.clock = lambda: 1_000
    queue, connection = bench.queue(), bench.connection(1, 2)
    queue.set_journal(True)
    consume(connection.channels[2], queue)
    send(bench, connection, 1)
    bench.core.clock = lambda: 9_000
    connection.channels[2].return_unacked(connection_closes=connection_closes)
    _, events = read(journals(queue.directory)[0])
    assert [(event["type"], event["reason"]) for event in events] == [(DELIVERED, 0), (RETURNED, cause)]
    assert events["ts"][0] < 2_000
    assert events["ts"][1] == 9_000


def test_the_count_of_failed_deliveries_is_in_the_events(bench, queue, connection):
    consume(connection.channels[2], queue)
    send(bench, connection, 1)
    for tag in (1, 2, 3):
        settle(bench, connection, nack(2, tag))
    _, events = read(journals(queue.directory)[0])
    assert [int(count) for count in events["count"]] == [0, 1, 1, 2, 2, 3, 3]


def test_a_get_and_a_consumer_without_acks_are_told_apart(bench, queue, connection):
    send(bench, connection, 2)
    connection.channels[2].get(queue, no_ack=False)
    consume(connection.channels[2], queue, no_ack=True)
    bench.turns()
    assert life(queue.directory) == [(1, DELIVERED, BY_GET), (2, DELIVERED, WITHOUT_ACK), (2, ACKED, 0)]


def test_what_nobody_asked_for_is_an_event_too(bench, connection):
    bench.at(1)
    queue = bench.queue(b"l", max_length=2, ttl_ms=10, dead_letters=True, delivery_limit=1)
    queue.set_journal(True)
    send(bench, connection, 3, key=b"l")
    bench.at(100)
    consume(connection.channels[2], queue)
    send(bench, connection, 1, key=b"l")
    settle(bench, connection, nack(2, 1))
    send(bench, connection, 1, key=b"m")
    assert life(queue.directory) == [
        (1, DEAD_LETTERED, 3), (2, DEAD_LETTERED, 2), (3, DEAD_LETTERED, 2), (4, DELIVERED, 0), (4, RETURNED, 1),
        (4, DEAD_LETTERED, 4)]


def test_drops_expiries_purges_and_removals_without_dead_letters(bench, connection):
    bench.at(1)
    queue = bench.queue(b"l", max_length=3, ttl_ms=10)
    queue.set_journal(True)
    send(bench, connection, 4, key=b"l")
    queue.remove(3)
    bench.at(100)
    send(bench, connection, 2, key=b"l")
    queue.purge()
    assert life(queue.directory) == [(1, DROPPED, 3), (3, DROPPED, 5), (2, EXPIRED, 0), (4, EXPIRED, 0),
                                     (5, PURGED, 0), (6, PURGED, 0)]


def test_times_rise_strictly_over_records_and_events(bench, queue, connection):
    bench.core.clock = lambda: 5_000
    consume(connection.channels[2], queue)
    send(bench, connection, 5)
    settle(bench, connection, ack(2, 5, multiple=True))
    send(bench, connection, 5)
    _, events = read(journals(queue.directory)[0])
    with open(journals(queue.directory)[0].replace("journal.", "msgs."), "rb") as file:
        octets = file.read()
    end = int(np.frombuffer(octets, reading.segment_dtype(), 1)[0]["end"])
    records = reading.scan_records(octets, end).headers
    times = np.concatenate((records["ts"], events["ts"]))
    assert np.unique(times).size == times.size == 25
    by_seq = {int(r["seq"]): int(r["ts"]) for r in records}
    assert all(by_seq[int(e["seq"])] < int(e["ts"]) for e in events)


def test_settled_segments_are_kept_with_their_journals(bench, queue, connection):
    consume(connection.channels[2], queue, no_ack=True)
    for _ in range(40):
        send(bench, connection, 100)
    kept = bench.core.take_settled_segments()
    assert len(kept) >= 3
    assert bench.core.take_settled_segments() == []
    for folder, number in kept:
        assert folder == queue.directory
        for kind in ("msgs", "acks", "journal"):
            assert os.path.exists(f"{folder}/kept/{kind}.{number:010d}")
            assert not os.path.exists(f"{folder}/{kind}.{number:010d}")
    assert not bench.collect_garbage()
    events = life(queue.directory)
    assert [seq for seq, type_, _ in events if type_ == DELIVERED] == list(range(1, 4001))
    assert [seq for seq, type_, _ in events if type_ == ACKED] == list(range(1, 4001))


def test_levels_have_journals_of_their_own(bench, connection):
    queue = bench.queue(b"p", max_priority=1)
    queue.set_journal(True)
    send(bench, connection, 2, key=b"p")
    send(bench, connection, 2, key=b"p", properties=PERSISTENT_1)
    consume(connection.channels[2], queue)
    bench.turns()
    assert [seq for seq, _, _ in life(queue.directory)] == [3, 4, 1, 2]
    assert [seq for seq, _, _ in life(f"{queue.directory}/prio.001")] == [3, 4]


def test_a_journal_grows_over_many_returns(bench, queue, connection):
    consume(connection.channels[2], queue)
    send(bench, connection, 100)
    for turn in range(30):
        settle(bench, connection, nack(2, 100 * (turn + 1), multiple=True))
    header, events = read(journals(queue.directory)[0])
    assert (events.size, int(header["lost"])) == (100 + 30 * 200, 0)


def crashed(make_bench, count=3, acked=1):
    """A journaled queue, of whose messages one is acked and two are out, whose broker was killed."""
    bench = make_bench()
    queue = bench.queue()
    queue.set_journal(True)
    connection = bench.connection(1, 2)
    consume(connection.channels[2], queue)
    send(bench, connection, count)
    settle(bench, connection, ack(2, acked))
    return queue


def recovered(make_bench, *, journal=True, suspect=False):
    from brokerd.store.disk import Disk
    from brokerd.store.recovery import recover

    bench = make_bench()
    queue = bench.queue()
    queue.set_journal(journal)
    recover(queue, Disk(), suspect, lambda finding: None)
    return bench, queue


def test_kill_loses_no_event_and_the_next_start_is_one(make_bench):
    crashed(make_bench)
    bench, queue = recovered(make_bench)
    connection = bench.connection(1, 2)
    consume(connection.channels[2], queue)
    bench.turns()
    _, events = read(journals(queue.directory)[0])
    assert [(int(e["type"]), int(e["reason"])) for e in events] == [
        (DELIVERED, 0), (DELIVERED, 0), (DELIVERED, 0), (ACKED, 0), (STARTED, RESTARTED),
        (DELIVERED, REDELIVERED | BEFORE_START), (DELIVERED, REDELIVERED | BEFORE_START)]
    assert int(events[4]["seq"]) == int(events[4]["ts"])


def test_an_event_that_was_written_but_not_counted_is_found(make_bench):
    queue = crashed(make_bench)
    path = journals(queue.directory)[0]
    with open(path, "r+b") as file:
        file.seek(32)
        file.write((3).to_bytes(4, "little") + (3 ^ 0xFFFFFFFF).to_bytes(4, "little"))
    recovered(make_bench)
    assert [int(t) for t in read(path)[1]["type"]] == [DELIVERED, DELIVERED, DELIVERED, ACKED, STARTED]


def test_time_goes_on_behind_the_last_event_though_the_clock_was_set_back(make_bench):
    queue = crashed(make_bench)
    last = int(read(journals(queue.directory)[0])[1]["ts"][-1])
    bench = make_bench()
    bench.core.clock = lambda: 1_000
    after = bench.queue()
    after.set_journal(True)
    from brokerd.store.disk import Disk
    from brokerd.store.recovery import recover
    recover(after, Disk(), False, lambda finding: None)
    assert int(read(journals(queue.directory)[0])[1]["ts"][-1]) > last


def test_after_a_loss_of_power_the_journal_says_since_when_events_may_be_missing(make_bench):
    queue = crashed(make_bench)
    begun = int(read(journals(queue.directory)[0])[0]["begun"])
    recovered(make_bench, suspect=True)
    _, events = read(journals(queue.directory)[0])
    assert (int(events[-1]["type"]), int(events[-1]["reason"]), int(events[-1]["seq"])) == (STARTED, POWER_LOST, begun)


def test_what_was_synced_is_known_after_a_loss_of_power(make_bench):
    bench = make_bench()
    queue = bench.queue()
    queue.set_journal(True)
    connection = bench.connection(1, 2)
    consume(connection.channels[2], queue)
    send(bench, connection, 3)
    assert queue.begin_journal_sync() == journals(queue.directory)
    queue.end_journal_sync()
    synced = int(read(journals(queue.directory)[0])[1]["ts"][-1])
    assert queue.begin_journal_sync() == []
    settle(bench, connection, ack(2, 1))
    assert queue.begin_journal_sync() == journals(queue.directory)       # Begun, not ended: not said.
    recovered(make_bench, suspect=True)
    assert int(read(journals(queue.directory)[0])[1]["seq"][-1]) == synced


@pytest.mark.parametrize("count", [bytes(8), struct.pack("<II", 50, 50 ^ 0xFFFFFFFF)])
def test_pages_lost_with_the_power_leave_the_later_ones_to_be_read(make_bench, count):
    """The page of the header may be an older one, too: its count is whole, and too low."""
    queue = crashed(make_bench, count=200)
    path = journals(queue.directory)[0]
    with open(path, "r+b") as file:
        file.seek(64 + 32 * 100)
        file.write(bytes(32 * 50))
        file.seek(32)
        file.write(count)
    recovered(make_bench, suspect=True)
    with open(path, "rb") as file:
        octets = file.read()
    events = np.frombuffer(octets, reading.event_dtype(), -1 + len(octets) // 32 - 1, 64)
    assert int(np.frombuffer(octets, reading.journal_dtype(), 1)["events"][0]) == 202
    assert (int(events[200]["type"]), int(events[201]["type"])) == (ACKED, STARTED)


def test_switched_off_and_on_again_says_what_is_missing(bench, connection, queue):
    consume(connection.channels[2], queue)
    send(bench, connection, 1)
    queue.set_journal(False)
    assert not queue.journaled
    settle(bench, connection, ack(2, 1))
    send(bench, connection, 1)
    queue.set_journal(True)
    settle(bench, connection, ack(2, 2))
    _, events = read(journals(queue.directory)[0])
    assert [(int(e["type"]), int(e["reason"])) for e in events] == [
        (DELIVERED, 0), (STARTED, SWITCHED_OFF), (STARTED, SWITCHED_ON), (ACKED, 0)]
    assert int(events[2]["seq"]) == int(events[1]["ts"])


def test_switched_off_before_a_restart_is_not_forgotten(make_bench):
    queue = crashed(make_bench)
    queue.set_journal(False)
    _, after = recovered(make_bench)
    assert after.journaled
    events = read(journals(queue.directory)[0])[1]
    assert [int(reason) for reason in events["reason"][-2:]] == [SWITCHED_OFF, SWITCHED_ON]


def test_switched_on_late_it_begins_then(bench, connection):
    queue = bench.queue(b"late")
    send(bench, connection, 3, key=b"late")
    queue.set_journal(True)
    send(bench, connection, 3, key=b"late")
    header, events = read(journals(queue.directory)[0])
    assert events.size == 0
    with open(journals(queue.directory)[0].replace("journal.", "msgs."), "rb") as file:
        octets = file.read()
    end = int(np.frombuffer(octets, reading.segment_dtype(), 1)[0]["end"])
    times = reading.scan_records(octets, end).headers["ts"]
    assert [bool(ts > header["begun"]) for ts in times] == [False] * 3 + [True] * 3


def test_a_rest_gives_the_journal_back_and_it_goes_on(bench, queue, connection):
    consume(connection.channels[2], queue)
    send(bench, connection, 2)
    assert queue.rest()
    settle(bench, connection, ack(2, 2, multiple=True))
    assert life(queue.directory) == [(1, DELIVERED, 0), (2, DELIVERED, 0), (1, ACKED, 0), (2, ACKED, 0)]


def test_a_deleted_queue_leaves_its_files_to_the_caller(make_bench, tmp_path):
    (tmp_path / "spare").mkdir()
    bench = make_bench(spare_directory=str(tmp_path / "spare"))
    queue, connection = bench.queue(), bench.connection(1)
    queue.set_journal(True)
    send(bench, connection, 2000)
    before = sorted(os.listdir(queue.directory))
    queue.drop()
    assert sorted(os.listdir(queue.directory)) == before
    assert bench.core.spares == 0


def test_while_a_queue_is_copied_its_segments_are_not_written_over(bench, connection):
    queue = bench.queue(b"c")
    queue.copying = True
    consume(connection.channels[2], queue, no_ack=True)
    for _ in range(40):
        send(bench, connection, 100, key=b"c")
    assert not os.path.exists(f"{queue.directory}/spare.msgs")
    assert len(bench.collect_garbage()) >= 6


FULL = """
import glob, os, sys
import numpy as np
from tests.plane.harness import Bench, ack, consume, nack, publish
from brokerd.store import format as layout, reading

bench = Bench(sys.argv[1])
queue, connection, reader = bench.queue(), bench.connection(1), bench.connection(1)
queue.set_journal(True)
for at in range(400):
    connection.feed(publish(1, b"%d" % at))
with open(sys.argv[1] + "/filler", "wb", 0) as filler:
    for size in (65536, 4096):
        try:
            while True:
                filler.write(bytes(size))
        except OSError:
            pass
consume(reader.channels[1], queue)
bench.turns()
for turn in range(3):
    assert [int(one.body) for one in reader.delivered()] == list(range(400))
    reader.feed(nack(1, 400 * (turn + 1), multiple=True))
    bench.turns()
reader.feed(ack(1, 1600, multiple=True))
assert (queue.ready, queue.unacked, bench.damages) == (0, 0, [])
lost = events = 0
for path in glob.glob(sys.argv[1] + "/q/**/journal.*", recursive=True):
    header = np.fromfile(path, reading.journal_dtype(), 1)[0]
    lost += int(header["lost"])
    events += int(header["events"])
assert 500 <= events < 3200, events
assert len(os.listdir("/proc/self/fd")) < 100           # None is left open by what failed.
print("whole", events + lost)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system is root's")
def test_events_that_find_no_room_are_counted_and_disturb_nobody(tmp_path):
    if mounted(tmp_path):
        pytest.skip("no mounting here")
    try:
        done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        assert (done.stdout, done.returncode) == ("whole 3200\n", 0), done.stderr
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


KILLED_AT_GROWTH = """
import resource, signal, sys
from tests.plane.harness import Bench, nack, publish, reject

bench, last = Bench(sys.argv[1]), sys.argv[2]
queue, connection = bench.queue(), bench.connection(1)
queue.set_journal(True)
connection.feed(publish(1, b"first") + publish(1, b"second"))
channel, tag, events = connection.channels[1], 0, 0
if last != "get":
    channel.get(queue, False)
    tag, events = 1, 1
while events < 510 - (last != "get"):
    channel.get(queue, False)
    tag += 1
    connection.feed(nack(1, tag))
    events += 2
if last != "get":
    channel.get(queue, False)
    tag += 1
bench.turns()
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
if last == "get":
    channel.get(queue, False)
else:
    connection.feed({"nack": nack, "reject": reject}[last](1, tag, requeue=last == "nack"))
print("alive")
"""


@pytest.mark.parametrize("last", ["get", "nack", "reject"])
def test_a_broker_that_is_killed_while_its_journal_grows_has_counted_what_is_in_it(tmp_path, last):
    """The signal for a file that becomes too large ends the process within the growth."""
    done = subprocess.run([sys.executable, "-c", KILLED_AT_GROWTH, str(tmp_path), last], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert (done.returncode, done.stdout) == (-signal.SIGXFSZ, ""), done.stderr
    events = life(tmp_path / "q")
    assert len(events) == 510
    counts = np.fromfile(tmp_path / "q" / layout.ORDER_FILE, "<u8", len(layout.ORDER_COUNTERS), offset=64).tolist()
    counted = dict(zip(layout.ORDER_COUNTERS, counts, strict=True))
    assert counted["returned_nack"] == sum(kind == RETURNED for _, kind, _ in events) > 200
    assert counted["redelivered"] == sum(kind == DELIVERED and reason & REDELIVERED for _, kind, reason in events) > 200
    assert counted["rejected"] == sum(kind == REJECTED for _, kind, _ in events) == 0


def test_a_purge_of_whole_segments_tells_of_each_message(make_bench):
    bench = make_bench(segment_octets=4096)
    queue, connection = bench.queue(), bench.connection(1)
    queue.set_journal(True)
    connection.feed(publish(1, b"b" * 1500) * 7)
    assert queue.purge() == 7
    assert life(queue.directory) == [(seq, PURGED, 0) for seq in range(1, 8)]


def test_lost_events_are_not_forgotten_by_a_start(make_bench):
    queue = crashed(make_bench)
    path = journals(queue.directory)[0]
    with open(path, "r+b") as file:
        file.seek(40)
        file.write(struct.pack("<II", *layout.word(5)))
    recovered(make_bench)
    assert int(read(path)[0]["lost"]) == 5


def test_where_settled_segments_cannot_be_kept_they_go_as_those_of_any_queue(make_bench):
    bench = make_bench(segment_octets=4096)
    queue, connection = bench.queue(), bench.connection(1, 2)
    queue.set_journal(True)
    connection.feed(publish(1, bytes(1500)) * 7)
    with open(f"{queue.directory}/kept", "wb"):
        pass                    # No folder of this name can be made.
    consume(connection.channels[2], queue, no_ack=True)
    bench.turns()
    bench.collect_garbage()
    assert bench.core.take_settled_segments() == []
    assert [name for name in sorted(os.listdir(queue.directory)) if name.startswith(("msgs", "acks"))] == [
        "acks.0000000004", "msgs.0000000004"]


def test_maps_of_journals_are_given_back_by_a_rest_and_with_the_queue(bench, queue, connection):
    for give_back in (queue.rest, queue.drop):
        consumer = consume(connection.channels[2], queue, no_ack=True)
        send(bench, connection, 2)
        with open("/proc/self/maps") as maps:
            assert f"{queue.directory}/journal" in maps.read()
        connection.channels[2].cancel(consumer)
        give_back()
        with open("/proc/self/maps") as maps:
            assert f"{queue.directory}/journal" not in maps.read()
