"""Large bodies go into a file as they come, and the file becomes a segment of the queue."""

import os
import random
import resource
import shutil

import pytest
from tests.plane.harness import PERSISTENT, content_header, frame, publish, publish_method, read
from tests.plane.test_turns_of_connections import Shared

SIZE = (5 << 20) + 3
BODY = random.Random(1).randbytes(SIZE)
HALF = SIZE // 2
LONG = b"\x20\x00" + (70_011).to_bytes(4) + b"\x01hS" + (70_004).to_bytes(4) + bytes(70_004)   # a header


@pytest.fixture
def spare(tmp_path):
    path = tmp_path / "spare"
    path.mkdir()
    return path


@pytest.fixture
def bench(make_bench, spare):
    return make_bench(spare_directory=str(spare))


def halves(channel=1, key=b"q", body=BODY):
    """The octets of a publish, in two parts."""
    octets = publish(channel, body, key, persistent=True)
    return octets[:len(octets) // 2], octets[len(octets) // 2:]


def bodies(bench, name=b"q"):
    return [one.body for one in read(bench, bench.queues[name])]


def files(spare):
    return [name for name in os.listdir(spare) if name.startswith("large.")]


def segments(queue):
    return [os.stat(os.path.join(queue.directory, name)).st_ino for name in os.listdir(queue.directory)
            if name.startswith("msgs.")]


@pytest.mark.parametrize("durable", [True, False])
def test_the_file_of_a_body_becomes_a_segment_of_its_queue(bench, spare, durable):
    queue = bench.queue(durable=durable)
    connection = bench.connection(1)
    first, second = halves()
    connection.feed(publish(1, b"before", persistent=True))
    connection.feed(first)
    (name,) = files(spare)
    inode = os.stat(spare / name).st_ino
    assert bench.core.unfinished >= HALF - 300_000
    assert connection.held_octets < 300_000            # of memory
    connection.feed(second + publish(1, b"behind", persistent=True))
    assert (files(spare), bench.core.unfinished) == ([], 0)
    assert inode in segments(queue)
    assert bodies(bench) == [b"before", BODY, b"behind"]


@pytest.mark.parametrize("size", [4 << 20, (4 << 20) + 3917, (4 << 20) + 3918, (4 << 20) + 3925])
@pytest.mark.parametrize("properties", [PERSISTENT, LONG])
def test_the_record_is_whole_for_a_start_that_checks_it(bench, make_bench, size, properties):
    queue = bench.queue()
    connection = bench.connection(1)
    octets = publish(1, BODY[:size], properties=properties)
    for at in range(0, len(octets), 300_001):
        connection.feed(octets[at:at + 300_001])
    queue.close()
    findings = []
    after = make_bench()
    after.recovered(suspect=True, findings=findings)
    assert findings == []
    assert bodies(after) == [BODY[:size]]
    assert after.damages == []


def test_each_queue_gets_a_file_of_its_own(bench, make_bench, spare):
    for name in (b"q", b"r", b"s"):
        bench.queue(name)
    bench.bound = {(b"", b"q"): (b"q", b"r", b"s")}
    connection = bench.connection(1)
    for part in halves():
        connection.feed(part)
    inodes = [inode for queue in bench.queues.values() for inode in segments(queue)]
    assert (len(inodes), len(set(inodes)), files(spare)) == (3, 3, [])
    for queue in bench.queues.values():
        queue.close()
    after = make_bench()
    for name in (b"q", b"r", b"s"):
        after.recovered(name, suspect=True)
        assert bodies(after, name) == [BODY]


def test_others_publish_while_copies_are_made(tmp_path, spare):
    bench = Shared(tmp_path, spare_directory=str(spare))
    for name in (b"q", b"r"):
        bench.queue(name)
    bench.bound = {(b"", b"q"): (b"q", b"r")}
    connection, other = bench.connection(1), bench.connection(1)
    for part in halves():
        connection.feed(part)
    other.feed(publish(1, b"between", b"r"))
    assert bench.queues[b"q"].ready == 0
    while connection.yielded:
        bench.core.go_on()
    assert (bodies(bench), bodies(bench, b"r")) == ([BODY], [b"between", BODY])
    bench.close()


@pytest.mark.parametrize("how", ["channel", "connection", "refused"])
def test_the_file_of_a_message_that_is_not_stored_goes(bench, spare, how):
    bench.queue(**({"max_length": 0, "overflow": 1} if how == "refused" else {}))
    connection = bench.connection(1)
    first, second = halves()
    connection.feed(first)
    if how == "channel":
        connection.channels[1].close()
    elif how == "connection":
        connection.detach()
    else:
        connection.feed(second)
    bench.collect_garbage()
    assert (files(spare), bench.core.unfinished, bench.queues[b"q"].ready) == ([], 0, 0)


def test_a_client_that_announces_a_large_body_gets_no_file_for_that(bench, spare):
    bench.queue()
    bench.connection(1).feed(frame(1, 1, publish_method(b"q")) + frame(2, 1, content_header(SIZE))
                             + frame(3, 1, bytes(100_000)))
    assert files(spare) == []


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_body_that_no_file_takes_stays_in_memory(bench, spare, when):
    bench.queue()
    connection = bench.connection(1)
    first, second = halves()
    if when == "before":
        shutil.rmtree(spare)
    connection.feed(first)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if when == "meanwhile":
        resource.setrlimit(resource.RLIMIT_FSIZE, (HALF + 200_000, before[1]))
    try:
        connection.feed(second[:1_000_000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert connection.held_octets > HALF
    connection.feed(second[1_000_000:])
    bench.collect_garbage()
    assert (bodies(bench), connection.errors) == ([BODY], [])
    assert when == "before" or files(spare) == []


def test_a_publish_that_finds_no_room_in_its_second_queue_comes_again(bench):
    first_queue, second_queue = bench.queue(b"q"), bench.queue(b"r")
    bench.bound = {(b"", b"q"): (b"q", b"r"), (b"", b"one"): (b"q",)}
    connection, other = bench.connection(1), bench.connection(1)
    second_queue.make_directory = first_queue.make_directory        # There is no folder: its file finds no place.
    for part in halves():
        connection.feed(part)
    assert (connection.told_blocked, first_queue.ready) == (1, 0)
    other.feed(publish(1, b"first", b"one"))
    del second_queue.make_directory
    connection.unblock()
    assert (bodies(bench), bodies(bench, b"r")) == ([b"first", BODY], [BODY])


def test_a_transaction_keeps_the_file(bench, committer, spare):
    for part in halves():
        committer.feed(part)
    assert (len(files(spare)), committer.went_up, bench.core.unfinished) == (1, [], 0)
    kept = committer.channels[1].take_kept()
    assert kept.route(committer.channels[1])
    (place,) = kept.places(0, 10)
    log = kept.log_messages()
    assert (place[:2], log[-SIZE:] == BODY, log[-SIZE - 8:-SIZE]) == ((0, len(log)), True, SIZE.to_bytes(8, "little"))
    assert b"".join(kept.log_messages(at, 1_000_000) for at in range(0, len(log), 1_000_000)) == log
    kept.put(bench.core, 1, 1, sync=True)
    del kept
    assert (bodies(bench), files(spare)) == ([BODY], [])


def test_a_transaction_copies_a_large_body_for_further_queues_in_pieces_before_it_stores(tmp_path, spare):
    bench = Shared(tmp_path, spare_directory=str(spare))
    for name in (b"q", b"r", b"s"):
        bench.queue(name)
    bench.bound = {(b"", b"q"): (b"q", b"r", b"s")}
    connection = bench.connection(1)
    connection.channels[1].tx = connection.channels[1].keeps = True
    for part in halves():
        connection.feed(part)
    bench.finish()
    kept = connection.channels[1].take_kept()
    assert kept.route(connection.channels[1])
    turns = 0
    while not kept.copy_large():
        turns += 1
    assert turns > 3
    assert len(files(spare)) == 3
    kept.put(bench.core, 1, 1, sync=True)
    assert files(spare) == []
    assert [bodies(bench, name) for name in (b"q", b"r", b"s")] == [[BODY]] * 3


@pytest.mark.parametrize("more", ["publish", "rollback"])
def test_the_file_of_a_transaction_goes_with_it(bench, committer, spare, more):
    for part in halves():
        committer.feed(part)
    if more == "publish":
        committer.feed(publish(1, b"x"))
        assert [publish[3] for publish in committer.went_up] == [b"x"]
        kept = committer.channels[1].take_kept()
        assert kept.log_messages()[-SIZE:] == BODY
        kept.drop_octets()
    else:
        committer.channels[1].take_kept()
    bench.collect_garbage()
    assert files(spare) == []


def test_a_fault_in_a_large_body_tells_the_octets_of_its_frame(bench):
    bench.queue()
    connection = bench.connection(1)
    octets = publish(1, bytes(2 << 20) + b"~" * (3 << 20), frame_max=100_000)
    connection.feed(octets[:-1] + b"\0")
    assert connection.fault[3] == 'type 3, first 16 octets = <<"~~~~~~~~~~~~~~~~">>: {invalid_frame_end_marker,0}'
