"""Pages of mapped files that are gone: zeros in their place, and nothing of the queue goes out."""

import os
import signal
import subprocess
import sys

import pytest
from tests.plane.harness import ack, consume, nack, publish, reject
from tests.plane.test_groups import grouped, received, send, words

from brokerd import plane

COUNT, OCTETS = 30, 3000


class Lost:
    """A queue of a few pages, whose files are cut off."""

    def __init__(self, make_bench, **rules):
        self.told = []
        self.bench = make_bench(lost=self.told.append)
        self.queue = self.bench.queue(**rules)
        self.connection = self.bench.connection(1, 2)
        self.connection.channels[2].select_confirm()
        self.connection.feed(b"".join(publish(1, b"%04d" % n + bytes(OCTETS), persistent=True) for n in range(COUNT)))

    def cut_off(self, kind, octets=0):
        for name in os.listdir(self.queue.directory):
            if name.startswith(kind):
                os.truncate(f"{self.queue.directory}/{name}", octets)


@pytest.fixture
def lost(make_bench):
    return Lost(make_bench)


@pytest.mark.parametrize("octets", [0, 64, 4096, 4097, 8192 + 64, 12288])
def test_what_is_handed_out_is_whole_and_the_queue_is_told_once(lost, octets):
    lost.cut_off("msgs", octets)
    consume(lost.connection.channels[1], lost.queue)
    lost.bench.turns()
    for one in lost.connection.delivered():
        assert one.body == one.body[:4] + bytes(OCTETS)
        assert one.body[:4].isdigit()
    assert lost.told == [lost.queue]
    assert (lost.queue.lost, lost.queue.paused) == (True, True)
    lost.bench.turns()
    assert lost.told == [lost.queue]


def test_a_store_into_a_lost_page_refuses_all_that_is_not_confirmed(lost):
    other = lost.bench.queue(b"other")
    lost.cut_off("msgs")
    lost.connection.feed(publish(2, b"to the other", key=b"other") + publish(2, b"x") + publish(2, b"y", key=b"other"))
    lost.bench.turns()
    assert lost.connection.said() == [("nack", 2, number, 0) for number in (1, 2, 3)]
    assert lost.told == [lost.queue]
    assert other.ready == 2


@pytest.mark.parametrize("settle", [ack, nack, reject])
@pytest.mark.parametrize("kind", ["msgs", "acks"])
def test_what_was_handed_out_before_may_be_settled(lost, settle, kind):
    consume(lost.connection.channels[1], lost.queue)
    lost.bench.turns()
    tags = [one.tag for one in lost.connection.delivered()]
    lost.cut_off(kind)
    for tag in tags:
        lost.connection.feed(settle(1, tag))
    lost.bench.turns()
    assert lost.queue.unacked == 0


def test_a_closed_gate_lets_nothing_in_or_out(lost):
    lost.queue.gate = plane.ClosedGate()
    lost.connection.feed(publish(2, b"x"))
    consume(lost.connection.channels[1], lost.queue)
    lost.bench.turns()
    assert lost.connection.said() == [("nack", 2, 1, 0)]
    assert lost.connection.channels[1].get(lost.queue, True) == 0
    assert lost.queue.ready == COUNT
    lost.queue.check()


def test_a_group_whose_next_message_is_gone_ends_its_queue(make_bench):
    """Zeros stand where it stood, in the last page of the file."""
    told = []
    bench = make_bench(lost=told.append)
    queue, connection = grouped(bench), bench.connection(1, 2)
    send(connection, "r1")
    (segment,) = queue.segments()
    send(connection, "r2")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1"
    os.truncate(f"{queue.directory}/msgs.{segment['number']:010d}", segment["end"])
    connection.feed(ack(2, 1))
    assert received(bench, connection) == []
    assert (told, queue.lost) == ([queue], True)


def test_other_queues_go_on(lost):
    other = lost.bench.queue(b"other")
    lost.connection.feed(publish(1, b"x", key=b"other"))
    lost.cut_off("msgs")
    for queue in (lost.queue, other):
        consume(lost.connection.channels[1], queue, queue.directory.encode())
    lost.bench.turns()
    assert lost.connection.bodies() == [b"x"]
    other.check()


def test_a_dead_letter_of_a_lost_queue_goes_nowhere(make_bench):
    """Python would get zeros for a message."""
    lost = Lost(make_bench, dead_letters=True)
    consume(lost.connection.channels[1], lost.queue)
    lost.bench.turns()
    tags = [one.tag for one in lost.connection.delivered()]
    lost.cut_off("msgs")
    for tag in tags[:3]:
        lost.connection.feed(reject(1, tag, requeue=False))
    lost.bench.turns()
    assert lost.queue.died == []
    assert lost.told == [lost.queue]


def test_an_access_to_any_other_memory_still_ends_the_process(tmp_path):
    done = subprocess.run([sys.executable, "-c", f"""
import mmap, os
from brokerd.plane import Core
core = Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=print, damaged=print)
fd = os.open({str(tmp_path / "file")!r}, os.O_RDWR | os.O_CREAT)
os.truncate(fd, 8192)
map = mmap.mmap(fd, 8192)
os.truncate(fd, 0)
map[5000]
"""], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, check=False, capture_output=True, timeout=60)
    assert done.returncode in (-signal.SIGBUS, -signal.SIGABRT)     # The latter: a sanitizer says more about it.


@pytest.mark.parametrize("octets", [4096, 8192, 12288, 20480])
def test_a_write_behind_the_end_of_a_file_that_was_cut_off_is_refused(lost, octets):
    """It would make the file longer again, with zeros between: no page is lost then, and nobody notices."""
    lost.bench.sync()
    lost.connection.feed(publish(2, b"a confirm waits for it", persistent=True))
    lost.bench.sync()
    lost.bench.turns()
    lost.connection.said()
    lost.cut_off("msgs", octets)
    lost.connection.feed(publish(2, b"behind", persistent=True))
    lost.bench.sync()
    lost.bench.turns()
    assert lost.connection.said() == [("nack", 2, 2, 0)]
    assert lost.told == [lost.queue]


def test_a_lost_queue_refuses_before_anybody_has_closed_its_gate(lost):
    lost.cut_off("msgs")
    consume(lost.connection.channels[1], lost.queue)
    lost.bench.turns()
    lost.connection.said()
    assert lost.told == [lost.queue]
    lost.connection.feed(publish(2, b"x", persistent=True) + publish(2, b"y"))
    lost.bench.sync()
    lost.bench.turns()
    assert [one[:3] for one in lost.connection.said()] == [("nack", 2, 1), ("nack", 2, 2)]


@pytest.mark.parametrize("octets", [5000, 20000])
def test_no_dead_letter_has_the_octets_of_a_lost_page(make_bench, octets):
    """The header of the message is whole, and its body ends in a page that is lost."""
    lost = Lost(make_bench, dead_letters=True)
    lost.connection.feed(publish(1, b"x" * octets, persistent=True) * 8)
    lost.queue.purge()
    lost.connection.feed(publish(1, b"x" * octets, persistent=True) * 8)
    consume(lost.connection.channels[1], lost.queue)
    lost.bench.turns()
    tags = [one.tag for one in lost.connection.delivered()]
    lost.cut_off("msgs", 4096)
    for tag in tags:
        lost.connection.feed(reject(1, tag, requeue=False))
    lost.bench.turns()
    assert all(b"\0" not in body for _, body in lost.queue.died)


@pytest.mark.parametrize("octets", [0, 4096])
def test_no_file_that_was_cut_off_waits_for_another_queue(make_bench, tmp_path, octets):
    spares = tmp_path / "spares"
    spares.mkdir()
    bench = make_bench(lost=lambda queue: None, spare_directory=str(spares))
    queue, other, connection = bench.queue(), bench.queue(b"other"), bench.connection(1)
    connection.feed(b"".join(publish(1, b"x" * 3000, persistent=True) for _ in range(100)))
    for name in os.listdir(queue.directory):
        if name.startswith("msgs"):
            os.truncate(f"{queue.directory}/{name}", octets)
    consume(connection.channels[1], queue)
    bench.turns()
    connection.said()
    assert queue.lost
    del bench.queues[b"q"]
    bench.routes.clear()
    queue.drop()
    connection.feed(b"".join(publish(1, b"y" * 3000, key=b"other", persistent=True) for _ in range(50)))
    bench.turns()
    assert (bench.storage_errors, other.ready) == ([], 50)
    assert [path.name for path in spares.iterdir() if path.stat().st_size != 1 << 16] == []


def test_a_queue_that_is_cut_off_while_its_files_are_closed_stops_no_publisher(lost):
    other = lost.bench.queue(b"other")
    lost.queue.rest()
    lost.cut_off("msgs")
    lost.connection.feed(publish(2, b"x") + publish(2, b"y", key=b"other"))
    lost.bench.turns()
    assert (lost.bench.storage_errors, lost.told, other.ready) == ([], [lost.queue], 1)
    assert lost.connection.said()[0] == ("nack", 2, 1, 0)


@pytest.mark.parametrize("how", ["removed", "a folder", "a link"])
def test_a_queue_whose_file_is_gone_is_lost(lost, how):
    """It would stand still without a word."""
    lost.queue.rest()
    path = min(f"{lost.queue.directory}/{name}" for name in os.listdir(lost.queue.directory) if name.startswith("msgs"))
    os.rename(path, path + ".away")
    if how == "a folder":
        os.mkdir(path)
    elif how == "a link":
        os.symlink(path + ".away", path)
    consume(lost.connection.channels[1], lost.queue)
    lost.bench.turns()
    assert (lost.told, lost.connection.bodies()) == ([lost.queue], [])
