"""Files are opened only where they are regular ones, and no more of them than the process may have."""

import os

import pytest
from tests.plane.harness import ack, consume, publish


def open_files_of(bench):
    """The files of the bench that this process has open, a path for each descriptor."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # the one that listed the folder
            pass
    return [path for path in found if path.startswith(bench.directory + "/")]


def descriptors_of(bench):
    return len(open_files_of(bench))


def names(number):
    return [b"q%d" % index for index in range(number)]


def filled(bench, number, durable=True):
    """So many queues with a message each."""
    connection = bench.connection(1)
    for name in names(number):
        bench.queue(name, durable=durable)
        connection.feed(publish(1, name, key=name, properties=b"\x10\x00\x02"))
    return connection


def test_each_open_queue_has_a_descriptor_as_long_as_there_are_enough(make_bench):
    bench = make_bench()
    filled(bench, 10)
    assert descriptors_of(bench) == 10


@pytest.mark.parametrize("durable", [True, False])
def test_where_descriptors_run_short_a_segment_more_has_another_one_closed(make_bench, durable):
    first_free = os.dup(0)
    os.close(first_free)
    bench = make_bench(descriptors_most=first_free + 4)
    connection = filled(bench, 40, durable)
    assert descriptors_of(bench) <= 5
    for name, queue in bench.queues.items():
        queue.check()
        consume(connection.channels[1], queue, name, no_ack=True)
    bench.turns()
    assert sorted(connection.bodies()) == sorted(names(40))


def test_segments_that_were_closed_take_messages_and_are_synced(make_bench):
    first_free = os.dup(0)
    os.close(first_free)
    bench = make_bench(descriptors_most=first_free + 2)
    connection = filled(bench, 5)
    connection.channels[1].select_confirm()
    body = b"b" * 40_000  # The segment needs more blocks.
    for name in names(5):
        connection.feed(publish(1, body, key=name, properties=b"\x10\x00\x02"))
    bench.core.turn()
    paths = bench.sync()
    assert sorted(path for path in paths if "/msgs." in path) == sorted(
        f"{bench.directory}/q{index}/msgs.{1:010d}" for index in range(5))
    for name in names(5):
        assert [row[6] for row in bench.queues[name].browse(0, 10)] == [name, body]


def test_the_segment_that_was_used_least_lately_is_closed_first(make_bench):
    bench = make_bench()
    bench.core.clock = lambda: bench.now
    bench.now = 1_000_000_000
    connection = bench.connection(1)
    for name in names(3):
        bench.queue(name)
        bench.now += 1_000_000
        connection.feed(publish(1, b"x", key=name))
    bench.now += 1_000_000
    connection.feed(publish(1, b"again", key=b"q0"))
    assert bench.core.close_files(1) == 1
    assert {os.path.basename(os.path.dirname(path)) for path in open_files_of(bench)} == {"q0", "q2"}


def test_as_many_files_are_closed_as_asked_for_or_as_there_are(make_bench):
    bench = make_bench()
    filled(bench, 5)
    assert bench.core.close_files(3) == 3
    assert bench.core.close_files(3) == 2
    assert bench.core.close_files(3) == 0
    for queue in bench.queues.values():
        queue.check()


def test_files_without_a_name_are_never_closed(make_bench):
    bench = make_bench()
    filled(bench, 5, durable=False)
    assert bench.core.close_files(5) == 0


def with_an_unmapped_spare(make_bench):
    """A bench, a connection, and a queue whose first segment was unmapped before it was settled, and is its spare."""
    bench = make_bench(segment_octets=4096)
    connection = bench.connection(1)
    queue = bench.queue(b"q")
    connection.feed(b"".join(publish(1, b"%d" % n + bytes(1500), key=b"q") for n in range(6)))
    consume(connection.channels[1], queue, b"q")
    bench.turns()
    connection.feed(ack(1, 1) + ack(1, 2))
    assert os.path.exists(f"{queue.directory}/spare.msgs")
    return bench, connection, queue


def fill_on(bench, connection, queue):
    """Publish until the spare was used; all that is not settled must be there."""
    connection.feed(b"".join(publish(1, b"%d" % n + bytes(1500), key=b"q") for n in range(6, 10)))
    bench.turns()
    assert (queue.lost, bench.storage_errors) == (False, [])
    assert [body[:1] for body in connection.bodies()] == [b"%d" % n for n in range(10)]
    assert len(queue.segments()) == 4


def test_a_spare_that_lost_its_descriptor_is_used_all_the_same(make_bench):
    bench, connection, queue = with_an_unmapped_spare(make_bench)
    number = os.stat(f"{queue.directory}/spare.msgs").st_ino
    assert bench.core.close_files(10) > 0
    fill_on(bench, connection, queue)
    assert number in [os.stat(f"{queue.directory}/{name}").st_ino for name in os.listdir(queue.directory)]
    assert not os.path.exists(f"{queue.directory}/spare.msgs")


def test_a_spare_without_descriptor_or_file_is_done_without(make_bench):
    bench, connection, queue = with_an_unmapped_spare(make_bench)
    assert bench.core.close_files(10) > 0
    os.unlink(f"{queue.directory}/spare.msgs")
    fill_on(bench, connection, queue)


def read_ahead_of(folder):
    """{kind of file: whether the kernel reads ahead in its maps}, of all maps of a folder's files."""
    found, kind = {}, None
    with open("/proc/self/smaps") as file:
        for line in file:
            if f" {folder}/" in line:
                kind = line.split()[5].rpartition("/")[2].partition(".")[0]
            elif line.startswith("VmFlags:"):
                if kind is not None:
                    found[kind] = found.get(kind, False) or "rr" not in line.split()
                kind = None
    return found


@pytest.mark.parametrize("journal", [False, True])
def test_the_kernel_does_not_read_ahead_where_the_broker_writes(make_bench, journal):
    """Else a store into a page that is not in memory reads, or zeroes, as much as the disk's read-ahead."""
    bench = make_bench(segment_octets=4096)
    connection = bench.connection(1)
    queue = bench.queue(b"q")
    queue.set_journal(journal)
    consume(connection.channels[1], queue, b"q")
    kinds = {"msgs", "acks"} | ({"journal"} if journal else set())
    for number in range(12):                    # Without a journal, spares are written over.
        connection.feed(publish(1, b"b" * 1500, key=b"q"))
        bench.turns()
        found = read_ahead_of(queue.directory)
        assert kinds <= set(found)
        assert not any(found.values())
        connection.feed(ack(1, number + 1))


@pytest.mark.parametrize("kind", ["msgs", "acks"])
@pytest.mark.parametrize("what", ["link", "pipe", "directory"])
def test_what_is_no_regular_file_is_not_opened(make_bench, tmp_path, kind, what):
    bench = make_bench()
    queue = bench.queue(b"q")
    folder = tmp_path / "q"
    folder.mkdir()
    path, elsewhere = folder / f"{kind}.0000000001", tmp_path / "elsewhere"
    elsewhere.write_bytes(b"precious")
    if what == "link":
        path.symlink_to(elsewhere)
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    bench.connection(1).feed(publish(1, b"x", key=b"q"))
    bench.turns()
    assert len(bench.storage_errors) == 1
    assert queue.ready == 0
    assert elsewhere.read_bytes() == b"precious"
