"""Settled segments kept for whichever queue needs one next: what was in them never comes back."""

import os
import shutil

import pytest
from tests.plane.harness import Bench, ack, consume, nack, publish

from brokerd.store import format as layout
from brokerd.store import reading

BODY = b"b" * 1500          # two to a segment of 4096 octets


@pytest.fixture
def spare(tmp_path):
    folder = tmp_path / "spare"
    folder.mkdir()
    return str(folder)


@pytest.fixture
def bench(make_bench, spare):
    return make_bench(segment_octets=4096, spare_directory=spare)


@pytest.fixture
def connection(bench):
    return bench.connection(1, 2)


def drained(bench, connection, name, messages):
    """A queue that had so many messages, all delivered and settled."""
    queue = bench.queue(name)
    connection.feed(publish(1, BODY, key=name) * messages)
    consume(connection.channels[2], queue, name)
    bench.turns()
    connection.feed(ack(2, 0, multiple=True))
    return queue


def numbers(queue):
    return [segment["number"] for segment in queue.segments()]


@pytest.fixture
def crashed(bench, tmp_path_factory):
    """Another bench over a copy of the files as they are."""
    made = []

    def crash(**options):
        copy = tmp_path_factory.mktemp("crashed") / "copy"
        shutil.copytree(bench.directory, copy)
        made.append(Bench(copy, segment_octets=4096, **options))
        return made[-1]

    yield crash
    for again in made:
        again.close()


def test_another_queue_goes_on_in_the_files_of_one_that_is_settled(bench, connection, spare):
    first = drained(bench, connection, b"first", 10)
    kept = {os.stat(f"{spare}/{name}").st_ino for name in os.listdir(spare)}
    assert len(kept) == 3               # of four settled segments one is the queue's own spare
    second = bench.queue(b"second")
    connection.feed(publish(1, BODY, key=b"second") * 6)
    assert {os.stat(f"{second.directory}/msgs.{n:010d}").st_ino for n in numbers(second)} == kept
    assert os.listdir(spare) == []
    assert min(numbers(second)) > max(numbers(first))


def test_files_of_a_deleted_queue_are_used_again(bench, connection, spare):
    queue = bench.queue(b"gone")
    connection.feed(publish(1, BODY, key=b"gone") * 8)
    queue.drop()
    assert len(os.listdir(spare)) == 4
    assert not [name for name in os.listdir(queue.directory) if name != ".queue"]
    after = drained(bench, connection, b"after", 2)
    assert len(os.listdir(spare)) == 3
    assert after.ready == after.unacked == 0


def test_old_records_in_such_a_file_are_none_after_a_crash(bench, connection, crashed):
    drained(bench, connection, b"first", 10)
    second = bench.queue(b"second")
    connection.feed(publish(1, b"only", key=b"second"))
    again = crashed()
    found = again.recovered(b"second")
    assert (found.ready, found.next_seq) == (1, 2)
    peer = again.connection(1)
    consume(peer.channels[1], found, no_ack=True)
    again.turns()
    assert peer.bodies() == [b"only"]
    assert second.ready == 1


def test_numbers_go_on_above_those_of_every_queue_that_was_recovered(bench, connection, crashed, spare):
    drained(bench, connection, b"high", 40)
    again = crashed(spare_directory=spare)
    high = again.recovered(b"high")
    low = again.queue(b"low")
    again.connection(1).feed(publish(1, BODY, key=b"low"))
    assert numbers(low)[0] > numbers(high)[-1]


def test_while_the_disk_is_full_nothing_is_kept(bench, connection, spare):
    drained(bench, connection, b"first", 10)
    bench.core.blocked = True
    assert sorted(path for path in bench.collect_garbage() if path.startswith(spare)) != []
    assert os.listdir(spare) == []
    drained(bench, connection, b"second", 10)
    assert os.listdir(spare) == []
    bench.core.blocked = False
    drained(bench, connection, b"third", 10)
    assert os.listdir(spare) != []


def test_no_more_are_kept_than_sixty_four(bench, connection, spare):
    drained(bench, connection, b"many", 200)
    assert len(os.listdir(spare)) == bench.core.spares == 64


def test_a_spare_that_somebody_took_away_is_done_without(bench, connection, spare):
    drained(bench, connection, b"first", 10)
    for name in os.listdir(spare):
        os.unlink(f"{spare}/{name}")
    second = drained(bench, connection, b"second", 10)
    assert second.acked == 10
    assert bench.storage_errors == []


def open_files(folder):
    """What this process holds open of a folder, by name or without one."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith(folder):
            found.append(target)
    return found


def test_a_transient_queue_s_messages_have_no_names_and_are_all_there(bench, connection, spare):
    queue = bench.queue(b"t", durable=False)
    bodies = [b"%d" % n + BODY for n in range(40)]
    connection.feed(b"".join(publish(1, body, key=b"t") for body in bodies))
    assert len(numbers(queue)) == 20
    assert os.listdir(queue.directory) == []
    assert queue.rest()
    consume(connection.channels[2], queue, b"t")
    bench.turns()
    assert connection.bodies() == bodies
    connection.feed(nack(2, 20, multiple=True) + ack(2, 40, multiple=True))
    assert connection.bodies() == bodies[:20]
    connection.feed(ack(2, 0, multiple=True))
    assert (queue.ready, queue.unacked) == (0, 0)
    assert len(open_files(queue.directory)) == 2 + 8    # The one appended to, its spare, and the core's.
    assert os.listdir(spare) == []
    assert bench.core.spares == 8
    queue.drop()
    assert len(open_files(queue.directory)) == 8
    bench.core.release_spares()                         # One at a time: it may take a millisecond or two.
    assert len(open_files(queue.directory)) == 7
    bench.core.blocked = True
    assert (open_files(queue.directory), bench.core.spares) == ([], 0)


def test_a_transient_queue_goes_on_in_what_another_transient_one_has_settled(bench, connection, spare):
    first = bench.queue(b"first", durable=False)
    consume(connection.channels[2], first, b"first")
    connection.feed(b"".join(publish(1, b"f%d" % n + bytes(1400), key=b"first") for n in range(20)))
    bench.turns()
    connection.feed(ack(2, 0, multiple=True))
    assert bench.core.spares == 8
    connection.frames()
    second = bench.queue(b"second", durable=False)
    bodies = [b"s%d" % n + BODY for n in range(20)]
    connection.feed(b"".join(publish(1, body, key=b"second") for body in bodies))
    assert (bench.core.spares, bench.core.spares_used) == (0, 0)
    consume(connection.channels[2], second, b"second")
    bench.turns()
    assert connection.bodies() == bodies
    assert os.listdir(second.directory) == os.listdir(spare) == []


def test_a_durable_queue_takes_no_file_without_a_name(bench, connection, spare):
    first = bench.queue(b"first", durable=False)
    consume(connection.channels[2], first, b"first")
    connection.feed(publish(1, BODY, key=b"first") * 20)
    bench.turns()
    connection.feed(ack(2, 0, multiple=True))
    second = bench.queue(b"second")
    connection.feed(publish(1, BODY, key=b"second") * 10)
    assert bench.core.spares == 8
    names = [name for name in os.listdir(second.directory) if name.startswith("msgs.")]
    assert len(names) == len(numbers(second)) == 5


def test_a_transient_queue_goes_on_in_what_another_has_settled(bench, connection, spare):
    drained(bench, connection, b"first", 10)
    kept = len(os.listdir(spare))
    queue = bench.queue(b"t", durable=False)
    connection.feed(publish(1, BODY, key=b"t") * 4)
    assert (len(os.listdir(spare)), os.listdir(queue.directory)) == (kept - 2, [])
    consume(connection.channels[2], queue, b"t")
    connection.frames()
    bench.turns()
    assert connection.bodies() == [BODY] * 4


def test_a_spare_file_that_was_cut_off_meanwhile_is_not_used(bench, connection, spare):
    drained(bench, connection, b"first", 10)
    assert os.listdir(spare) != []
    for name in os.listdir(spare):
        os.truncate(f"{spare}/{name}", 0)
    queue = bench.queue(b"second")
    connection.feed(publish(1, BODY, key=b"second") * 4)
    assert (queue.lost, [row[6] for row in queue.browse(1, 9)]) == (False, [BODY] * 4)


def test_what_somebody_copies_is_not_written_over_by_other_queues_either(bench, connection, spare, tmp_path):
    queue = bench.queue(b"first")
    consume(connection.channels[2], queue, b"first")
    connection.feed(publish(1, BODY, key=b"first") * 10)
    connection.feed(ack(2, 2, multiple=True))       # Its own spare is there: what else is settled is too much for it.
    assert os.path.exists(f"{queue.directory}/spare.msgs")
    queue.copying = True
    copies = []
    for number in numbers(queue):
        copies.append(tmp_path / f"copied.{number}")
        os.link(f"{queue.directory}/msgs.{number:010d}", copies[-1])
    before = [copy.read_bytes()[64:] for copy in copies]
    connection.feed(ack(2, 0, multiple=True))
    assert len(numbers(queue)) == 1
    assert os.listdir(spare) == []
    bench.queue(b"second")
    connection.feed(publish(1, b"S" * 1500, key=b"second") * 20)
    assert [copy.read_bytes()[64:] for copy in copies] == before
    queue.copying = False
    connection.feed(publish(1, BODY, key=b"first") * 10)
    connection.feed(ack(2, 0, multiple=True))
    assert os.listdir(spare) != []


def test_nothing_of_an_older_message_is_left_between_the_records_of_a_newer(bench, connection, spare):
    queue = bench.queue(b"first")
    consume(connection.channels[2], queue, b"first")
    connection.feed(publish(1, b"\xff" * 3800, key=b"first") * 8)
    connection.feed(ack(2, 0, multiple=True))
    assert os.listdir(spare) != []
    second = bench.queue(b"second")
    for size in range(1, 24):
        connection.feed(publish(1, b"n" * size, key=b"second") * 2)
    pads = set()
    for row in second.segments():
        with open(f"{second.directory}/msgs.{row['number']:010d}", "rb") as file:
            octets = file.read()
        found = reading.scan_records(octets, row["end"])
        for position, length in zip(found.positions.tolist(), found.headers["length"].tolist(), strict=True):
            pads.add(octets[position + length:position + layout.round_up(length)])
        assert not found.headers["kind"].any()
        assert not found.headers["group_hash"].any()
        assert not found.headers["dedup_hash"].any()
    assert pads == {bytes(size) for size in range(8)}


def test_a_damaged_segment_is_no_spare_though_its_queue_is_deleted(bench, connection, crashed, spare):
    queue = bench.queue(b"q")
    connection.feed(publish(1, b"b" * 1947) * 5)        # two fill a segment to its last octet
    assert [segment["end"] for segment in queue.segments()][:2] == [4096, 4096]
    again = crashed(spare_directory=spare)
    found = again.recovered()
    with open(f"{found.directory}/msgs.0000000001", "r+b") as file:
        file.seek(64 + 2016 + 100)
        file.write(b"?")
    reader = again.connection(1)
    assert reader.channels[1].get(found, False)
    assert reader.channels[1].get(found, False)
    reader.feed(nack(1, 0, multiple=True))
    assert [segment["damaged"] for segment in found.segments()] == [True, False, False]
    found.drop()
    assert os.listdir(spare) == ["0000000002"]


def removable(bench, connection, name, size):
    """A queue of small messages, some of which are taken out of the middle."""
    queue = bench.queues.get(name) or bench.queue(name)
    connection.feed(b"".join(publish(1, b"%d" % n + bytes(size), key=name) for n in range(200)))
    for seq in range(queue.next_seq - 1, queue.next_seq - 200, -3):
        assert queue.remove(seq)[0] == seq
    return queue


def settle_all(bench, connection, queue, name):
    consume(connection.channels[2], queue, name, no_ack=True)
    bench.turns()
    connection.frames()


@pytest.mark.parametrize("again", [b"first", b"second"])
def test_where_records_of_an_older_message_began_is_forgotten(make_bench, spare, again):
    """Taking a message out of the middle notes where records begin, and the file is used again."""
    bench = make_bench(segment_octets=32768, spare_directory=spare)
    connection = bench.connection(1, 2)
    if again == b"second":
        bench.queue(b"first")
        connection.feed(publish(1, bytes(30_000), key=b"first"))    # The first that is settled stays with its queue.
    first = removable(bench, connection, b"first", 60)
    connection.feed(publish(1, bytes(20_000), key=b"first") * 4)
    settle_all(bench, connection, first, b"first")
    assert bench.core.spares > 0
    connection.channels[2].cancel(connection.channels[2].consumers[b"first"])
    if again == b"second":
        removable(bench, connection, again, 500)
        assert bench.core.spares == 0
        return
    connection.feed(b"".join(publish(1, b"%d" % n + bytes(150), key=again) for n in range(400)))
    last = first.next_seq - 1
    for seq in range(last, last - 390, -7):
        assert first.remove(seq)[0] == seq


def test_no_spare_is_mapped(bench, connection, spare):
    drained(bench, connection, b"first", 10)
    with open("/proc/self/maps") as maps:
        assert spare not in maps.read()
    for name in os.listdir(spare):
        os.unlink(f"{spare}/{name}")


def test_a_transient_queue_is_read_again_after_each_rest(bench, connection):
    queue = bench.queue(b"t", durable=False)
    connection.feed(publish(1, BODY, key=b"t") * 7)
    for _ in range(3):
        assert len(queue.browse(1, 9)) == 7
        assert queue.rest()


@pytest.mark.parametrize("whose", [b"q", b"other"])
def test_what_a_former_broker_said_of_older_messages_is_forgotten(bench, connection, crashed, tmp_path_factory, whose):
    """A start reads what became of the messages, and then the file is used again, by its queue or by another."""
    queue = bench.queue()
    full = b"f" * (2016 - 69)       # Two fill a segment to its last octet.
    connection.feed(publish(1, full) * 6)
    consume(connection.channels[2], queue, b"t")
    bench.turns()
    connection.feed(nack(2, 0, multiple=True))
    after = crashed(spare_directory=str(tmp_path_factory.mktemp("spare")))
    found = after.recovered()
    publisher = after.connection(1)
    publisher.feed(publish(1, BODY))
    assert [found.remove(seq)[0] for seq in range(1, 7)] == [*range(1, 7)]
    assert after.core.spares == 2       # The first that is settled stays with its queue.
    other = found if whose == b"q" else after.queue(whose)
    publisher.feed(publish(1, BODY, key=whose) * 6)
    assert after.core.spares < 2
    first = other.next_seq - 5
    assert [other.remove(seq)[0] for seq in range(first, first + 4)] == [*range(first, first + 4)]


def descriptors_below(directory):
    """Of files in a directory, how many are open."""
    links = (os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd"))
    return sum(os.readlink(link).startswith(f"{directory}/") for link in links if os.path.islink(link))


def test_a_dropped_queue_of_many_levels_gives_its_files_up_in_pieces(bench):
    queue = bench.queue(max_priority=100)
    connection = bench.connection(1)
    for priority in range(101):
        # The content header's flags: a priority.
        connection.feed(publish(1, b"%d" % priority, properties=b"\x08\0" + bytes([priority])))
    before = descriptors_below(bench.directory)
    queue.drop()
    left = descriptors_below(bench.directory)
    pieces = 1
    while not queue.free_some():
        assert 0 < left - descriptors_below(bench.directory) <= 16
        left, pieces = descriptors_below(bench.directory), pieces + 1
    assert (before - descriptors_below(bench.directory), pieces) == (101, 6)
