import os

import pytest
from tests.plane.harness import Bench, ack, consume, nack, publish, reject
from tests.store.segments import Files

from brokerd import plane
from brokerd.store import format as layout
from brokerd.store import reading
from brokerd.store.compaction import Sparse, compact, find_sparse, prepare
from brokerd.store.disk import Disk
from brokerd.store.recovery import recover

BODIES = [b"body %d " % i * (i % 7 + 1) for i in range(100)]
LIVE = (3, 50, 99)


class Queue:
    """Stands for plane.Queue."""

    def __init__(self, files, **changes):
        self.directory = files.directory
        self.rows = [{"number": 1, "level": 0, "records": 100, "settled": 97, "sealed": 2} | changes,
                     {"number": 2, "level": 0, "records": 1, "settled": 0, "sealed": 0}]
        self.allowed = True
        self.copying = False
        self.replaced = None

    def segments(self):
        return self.rows

    def can_drop_records(self, number, level=0):
        return True

    def can_compact(self, number, level=0):
        return self.allowed and number != self.rows[-1]["number"]

    def replace_segment(self, number, old, new, end, capacity, generation, entries, level=0):
        self.replaced = (number, old.tolist(), new.tolist(), end, capacity, generation, entries)


@pytest.fixture
def files(tmp_path):
    files = Files(str(tmp_path / "q"))
    files.segment(1, BODIES)
    files.segment(2, [b"next"], base_seq=101, sealed=layout.OPEN)
    returned = [(50, layout.RETURNED, 1), (7, layout.RETURNED, 9), (50, layout.RETURNED, 2)]
    files.ack(1, returned + [(i, layout.ACKED, 0) for i in range(100) if i not in LIVE], delivered=9000)
    return files


def live_of(files):
    octets, acks = files.read(files.msgs(1)), files.read(files.acks(1))
    found = reading.scan_records(octets, int.from_bytes(octets[40:44], "little"))
    assert reading.record_checks(octets, found, 1).all()
    assert found.gaps == []
    settled = set(reading.settled_positions(reading.read_entries(acks, 1).entries).tolist())
    return {int(seq): octets[p + 71:p + length] for seq, p, length in zip(
        found.headers["seq"], found.positions.tolist(), found.headers["length"].tolist(), strict=True)
        if p not in settled}


def test_live_records_keep_number_order_and_octets_and_the_rest_is_gone(files):
    before, size = live_of(files), os.path.getsize(files.msgs(1))
    queue = Queue(files)
    assert compact(queue, Disk())
    assert live_of(files) == before == {i + 1: BODIES[i] for i in LIVE}
    assert os.path.getsize(files.msgs(1)) < size / 4
    number, old, new, end, capacity, generation, entries = queue.replaced
    assert (number, generation, entries) == (1, 1, 3)
    assert old == [files.positions[1][i] for i in LIVE]
    assert new[0] == 64
    assert end == capacity == os.path.getsize(files.msgs(1))
    assert sorted(os.listdir(files.directory)) == [f"{kind}.{n:010d}" for kind, n in
                                                   (("acks", 1), ("msgs", 1), ("msgs", 2))]


def test_what_is_known_of_each_live_record_moves_along_in_one_entry(files):
    returned = [(50, layout.RETURNED, 1), (7, layout.RETURNED, 9), (50, layout.RETURNED | 0x10, 2),
                (99, layout.SET_ASIDE | 0x10, 4), (50, layout.HANDED_OUT, 2)]
    files.ack(1, returned + [(i, layout.ACKED, 0) for i in range(100) if i not in LIVE], delivered=9000)
    queue = Queue(files)
    compact(queue, Disk())
    octets = files.read(files.acks(1))
    entries = reading.read_entries(octets, 1).entries
    assert [(int(e["position"]), int(e["kind"]), int(e["count"])) for e in entries] == [
        (queue.replaced[2][0], layout.HANDED_OUT, 0),           # Out since the cursor passed it: no entry said so.
        (queue.replaced[2][1], layout.HANDED_OUT, 2), (queue.replaced[2][2], layout.SET_ASIDE | 0x10, 4)]
    words = layout.ACKS_HEADER.unpack(octets[:64])
    assert (words[1], words[5], words[7], words[9], words[11]) == (layout.ACKS_VERSION, queue.replaced[3], 3, 0, 0)


def test_the_acks_file_is_at_least_a_page(files):
    compact(Queue(files), Disk())
    assert os.path.getsize(files.acks(1)) == 4096


@pytest.mark.parametrize("changes", [{"settled": 70}, {"settled": 100}, {"sealed": 0}, {"number": 1, "records": 0,
                                                                                      "settled": 0}])
def test_segments_not_sealed_or_not_sparse_are_left_alone(files, changes):
    assert find_sparse(Queue(files, **changes)) is None
    assert not compact(Queue(files, **changes), Disk())


def test_just_less_than_a_quarter_is_sparse_and_the_sparsest_goes_first(files):
    queue = Queue(files, records=1000, settled=751)
    assert find_sparse(queue) == Sparse(1)
    for live, chosen in ((100, 3), (249, 1), (300, 1)):
        other = {"number": 3, "level": 0, "records": 1000, "settled": 1000 - live, "sealed": 2}
        queue.rows[1:] = [other, queue.rows[-1]]
        assert find_sparse(queue) == Sparse(chosen)


@pytest.mark.parametrize(("at", "octets"), [(8, b"\x07"), (40, b"\xff\xff\xff\x7f")])
def test_a_file_of_another_segment_or_cut_short_is_left_as_it_is(files, at, octets):
    files.poke(files.msgs(1), at, octets)
    assert prepare(files.directory, Sparse(1), Disk()) is None
    assert not [name for name in os.listdir(files.directory) if name.endswith(".new")]


def test_the_last_segment_is_never_chosen(files):
    queue = Queue(files)
    del queue.rows[1]
    assert find_sparse(queue) is None


def test_few_records_that_are_most_of_the_octets_are_not_copied(tmp_path):
    files = Files(str(tmp_path / "q"))
    files.segment(1, [b"x"] * 99 + [b"x" * 100_000])
    files.ack(1, [(i, layout.ACKED, 0) for i in range(99)])
    assert not compact(Queue(files), Disk())
    assert sorted(os.listdir(files.directory)) == ["acks.0000000001", "msgs.0000000001"]


@pytest.mark.parametrize("kind", [layout.ACKED, layout.RETURNED, layout.HANDED_OUT, layout.SET_ASIDE])
def test_a_change_after_the_copy_throws_the_copy_away(files, kind):
    before = files.read(files.msgs(1))
    queue = Queue(files)
    compaction = prepare(files.directory, Sparse(1), Disk())
    files.poke(files.acks(1), 64 + 8 * 100, layout.entry(1, files.positions[1][3], kind, 1))
    assert not compaction.finish(queue)
    assert (queue.replaced, files.read(files.msgs(1))) == (None, before)
    assert not [name for name in os.listdir(files.directory) if name.endswith(".new")]


def test_a_queue_deleted_after_the_copy_is_no_error(files):
    queue = Queue(files)
    compaction = prepare(files.directory, Sparse(1), Disk())
    queue.allowed = False
    for name in os.listdir(files.directory):
        os.unlink(files.path(name))
    assert not compaction.finish(queue)
    assert prepare(files.directory, Sparse(1), Disk()) is None


def test_a_damaged_segment_is_left_as_it_is(files):
    files.poke(files.msgs(1), files.positions[1][10], b"?")
    assert prepare(files.directory, Sparse(1), Disk()) is None
    assert not os.path.exists(files.msgs(1) + ".new")


def test_a_full_disk_leaves_no_half_copy(files):
    class Full(Disk):
        def pwrite(self, fd, octets, position):
            super().pwrite(fd, octets[:100], position)
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        compact(Queue(files), Full())
    assert not [name for name in os.listdir(files.directory) if name.endswith(".new")]


@pytest.mark.parametrize("stop_after", range(4))
def test_a_crash_at_any_step_loses_nothing(files, stop_after):
    class Crash(Exception):
        pass

    class Stopping(Disk):
        steps = 0

        def step(self):
            if self.steps == stop_after:
                raise Crash
            self.steps += 1

        def fdatasync(self, fd, path):
            super().fdatasync(fd, path)
            self.step()

        def rename(self, old, new):
            super().rename(old, new)
            self.step()

        def unlink(self, path):
            raise Crash     # A dead broker tidies nothing up.

    expected = live_of(files)
    with pytest.raises(Crash):
        compact(Queue(files), Stopping())
    core = plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=print, damaged=print)
    queue = plane.Queue(core, files.directory, durable=True)
    recover(queue, Disk(), False, lambda finding: None)
    assert live_of(files) == expected
    assert queue.ready == len(LIVE) + 1


def test_what_was_compacted_is_recovered(files):
    compact(Queue(files), Disk())
    for suspect in (False, True):
        core = plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=print, damaged=print)
        queue, findings = plane.Queue(core, files.directory, durable=True), []
        recover(queue, Disk(), suspect, findings.append)
        assert (queue.ready, queue.next_seq, findings) == (4, 102, [])


def test_the_plane_goes_on_with_the_moved_records(tmp_path):
    files = Files(str(tmp_path / "q"))
    files.segment(1, BODIES)
    files.segment(2, [b"next"], base_seq=101, sealed=layout.OPEN)
    core = plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=print, damaged=print)
    queue = plane.Queue(core, files.directory, durable=True)
    recover(queue, Disk(), False, print)

    class Client(plane.Connection):
        def on_protocol_header(self, octets):
            pass

    class Transport:
        def write(self, octets):
            pass

    connection = Client(core)
    connection.attach(Transport(), -1)
    connection.feed(b"AMQP\0\0\x09\x01")
    channel = plane.Channel(connection, 1)
    assert all(channel.get(queue, False) for _ in range(101))

    def settle(method, tag, rest):
        payload = b"\x00\x3c" + method.to_bytes(2, "big") + tag.to_bytes(8, "big") + rest
        connection.feed(b"\x01\x00\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce")

    for index in range(100):
        if index not in LIVE:
            settle(80, index + 1, b"\0")
    assert compact(queue, Disk())
    assert queue.segments()[0]["records"] == len(LIVE)
    settle(120, LIVE[1] + 1, b"\x02")           # basic.nack, requeue: comes again from where it is now.
    assert queue.ready == 1
    assert channel.get(queue, False)
    assert queue.ready == 0
    for tag in (LIVE[0] + 1, LIVE[2] + 1, 102):
        settle(80, tag, b"\0")
    assert queue.unacked == 1
    assert [row["number"] for row in queue.segments()] == [2]


# --- beside an order journal

def test_a_segment_that_is_to_stay_whole_is_no_candidate(files):
    queue = Queue(files)
    assert find_sparse(queue) == Sparse(1)
    assert find_sparse(queue, lambda segment: segment["number"] == 1) is None
    assert find_sparse(queue, lambda segment: False) == Sparse(1)


def test_nothing_is_put_in_place_while_somebody_copies_the_files(files):
    queue, before = Queue(files), files.read(files.msgs(1))
    copy = prepare(files.directory, Sparse(1), Disk())
    queue.copying = True
    assert not copy.finish(queue)
    assert (queue.replaced, files.read(files.msgs(1)) == before) == (None, True)
    assert not os.path.exists(files.msgs(1) + ".new")


def test_a_journal_stays_as_it_is(files):
    octets = layout.journal_header(1, begun=1, events=1) + layout.event(1, 4, 5, layout.ACKED)
    files.write(files.path(layout.journal_name(1)), octets)
    assert compact(Queue(files), Disk())
    assert files.read(files.path(layout.journal_name(1))) == octets


# --- what the plane holds positions for follows

@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    bench.close()


@pytest.fixture
def found_again(tmp_path):
    """(seq, body) of what a broker that starts now finds ready."""
    made = []

    def find():
        made.append(Bench(tmp_path))
        return [(row[0], row[6]) for row in made[-1].recovered().browse(1, 10_000)]

    yield find
    for bench in made:
        bench.close()


def several_segments(bench, **rules):
    """(queue, connection): some 4000 messages whose body is their number, all of them unacked on channel 2."""
    queue, connection = bench.queue(**rules), bench.connection(1, 2)
    consume(connection.channels[2], queue)
    connection.feed(b"".join(publish(1, b"%d" % number, persistent=True) for number in range(1, 4001)))
    bench.turns()
    connection.frames()
    assert queue.unacked == 4000
    assert len(queue.segments()) > 4
    return queue, connection


def compact_all(queue):
    """How many segments were compacted."""
    n = 0
    while compact(queue, Disk()):
        n += 1
    return n


@pytest.mark.parametrize("order", [1, -1])
def test_dead_letters_that_are_kept_are_settled_where_they_lie_now(bench, found_again, order):
    queue, connection = several_segments(bench, dead_letters=True)
    queue.keeps = True
    connection.feed(b"".join(reject(2, tag, requeue=False) for tag in (5, 300, 700)))
    connection.feed(b"".join(ack(2, tag) for tag in range(1, 4000) if tag not in (5, 300, 700, 44)))
    assert (queue.aside, queue.unacked) == (3, 2)
    assert compact_all(queue) == 1
    for seq in (5, 300)[::order]:
        queue.settle_aside(seq)
    assert queue.aside == 1
    assert found_again() == [(44, b"44"), (700, b"700"), (4000, b"4000")]


def test_dead_letters_that_nobody_was_told_of_yet_are_told_from_where_they_lie_now(bench, found_again):
    queue, connection = several_segments(bench, dead_letters=True)
    few = {5, 300, 700}
    connection.feed(b"".join(nack(2, tag) for tag in sorted(few)))      # They come again, with tags above all others.
    connection.feed(b"".join(ack(2, tag) for tag in range(1, 4000) if tag not in few and not 2500 <= tag < 3100))
    connection.feed(nack(2, 4003, multiple=True, requeue=False))        # More than are told of in one turn.
    assert not {5, 300, 700} & {one[1] for one in queue.dead}
    assert compact_all(queue) >= 1
    bench.turns()
    told = [(one[1], one[5]) for one in queue.dead]
    assert told[-3:] == [(5, b"5"), (300, b"300"), (700, b"700")]
    assert len(told) == 604
    assert found_again() == []


def test_returned_and_unacked_messages_are_handed_out_and_settled_where_they_lie_now(bench, found_again):
    queue, connection = several_segments(bench)
    connection.channels[2].flow = False
    connection.feed(nack(2, 5) + nack(2, 700))
    connection.feed(b"".join(ack(2, tag) for tag in range(1, 4000) if tag not in (5, 300, 400, 700)))
    assert compact_all(queue) == 1
    connection.feed(ack(2, 400))
    reader = bench.connection(1)
    consume(reader.channels[1], queue)
    bench.turns()
    assert reader.bodies() == [b"5", b"700"]
    reader.feed(ack(1, 2))
    assert found_again() == [(5, b"5"), (300, b"300"), (4000, b"4000")]


def test_a_segment_of_a_priority_level_is_compacted_in_its_folder(tmp_path):
    bench = Bench(tmp_path)
    queue, connection = bench.queue(max_priority=5), bench.connection(1, 2)
    consume(connection.channels[2], queue)
    urgent = b"\x18\x00\x02\x05"
    connection.feed(b"".join(publish(1, b"%d" % number, properties=urgent) for number in range(1, 2001)))
    bench.turns()
    connection.feed(b"".join(ack(2, tag) for tag in range(1, 2000) if tag not in (5, 300)))
    assert compact_all(queue) == 1
    rows = queue.segments()
    assert (rows[0]["level"], rows[0]["generation"], rows[0]["records"]) == (5, 1, 2)
    connection.feed(ack(2, 5))
    again, findings = Bench(tmp_path), []
    found = again.recovered(max_priority=5, findings=findings)
    assert [row[6] for row in found.browse(1, 9)] == [b"300", b"2000"]
    assert (findings, again.damages) == ([], [])
    again.close()
    bench.close()


# --- what must be on disk when

def test_both_files_are_on_disk_before_either_is_renamed_and_their_names_after(files):
    class Watched(Disk):
        def __init__(self):
            self.done = []

        def fdatasync(self, fd, path):
            super().fdatasync(fd, path)
            self.done.append(("sync", os.path.basename(path)))

        def rename(self, old, new):
            super().rename(old, new)
            self.done.append(("rename", os.path.basename(new)))

        def sync_directory(self, path):
            super().sync_directory(path)
            self.done.append(("names", os.path.basename(path)))

    disk = Watched()
    assert compact(Queue(files), disk)
    assert [what for what, _ in disk.done] == ["sync", "sync", "rename", "rename", "names"]
    assert {name for what, name in disk.done if what == "rename"} == {"msgs.0000000001", "acks.0000000001"}
    assert disk.done[-1] == ("names", "q")


def test_an_acks_file_that_is_gone_after_the_copy_throws_the_copy_away(files):
    queue = Queue(files)
    compaction = prepare(files.directory, Sparse(1), Disk())
    os.unlink(files.acks(1))
    assert not compaction.finish(queue)
    assert queue.replaced is None
    assert sorted(os.listdir(files.directory)) == ["msgs.0000000001", "msgs.0000000002"]
