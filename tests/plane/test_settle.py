"""Deliveries settled by tag, and publishes confirmed."""

import gc
import os
import struct
import weakref

import pytest
from tests.plane.harness import ack, consume, frame, nack, publish, read, reject

from brokerd import plane


@pytest.fixture
def queue(bench):
    return bench.queue()


@pytest.fixture
def connection(bench, queue):
    return bench.connection(1, 2)


def deliver(bench, connection, count):
    connection.feed(b"".join(publish(1, b"%d" % at) for at in range(1, count + 1)))
    bench.turns()
    return connection.bodies()


@pytest.fixture
def channel(bench, queue, connection):
    """Ten deliveries wait for an answer."""
    consume(connection.channels[2], queue)
    deliver(bench, connection, 10)
    return connection.channels[2]


def test_an_ack_settles_one(queue, connection, channel):
    connection.feed(ack(2, 4))
    assert (channel.unacked, queue.unacked, queue.acked, queue.ready) == (9, 9, 1, 0)


def test_a_multiple_ack_settles_all_up_to_its_tag(queue, connection, channel):
    connection.feed(ack(2, 2) + ack(2, 6, multiple=True))
    assert (channel.unacked, queue.acked) == (4, 6)


def test_a_multiple_ack_of_tag_0_settles_all(queue, connection, channel):
    connection.feed(ack(2, 0, multiple=True))
    assert (channel.unacked, queue.acked) == (0, 10)
    connection.feed(ack(2, 0, multiple=True))
    assert not connection.errors


def test_a_channel_tells_what_its_client_holds_of_a_queue_and_since_when(bench, queue, connection, channel):
    connection.feed(ack(2, 1) + nack(2, 2))
    other = bench.queue()
    bench.turns()
    tag, held = channel.held(queue, 0, 4)
    (consumer,) = channel.consumers.values()
    assert tag == 7
    assert [(one[0], one[1], one[2], one[4]) for one in held] == [
        (3, 3, consumer, 0), (4, 4, consumer, 0), (5, 5, consumer, 0), (6, 6, consumer, 0)]
    tag, held = channel.held(queue, tag, 100)
    assert tag == 12
    assert [(one[0], one[1], one[4]) for one in held] == [(7, 7, 0), (8, 8, 0), (9, 9, 0), (10, 10, 0), (11, 2, 1)]
    assert channel.held(other, 0, 100)[1] == []
    again = channel.held(queue, tag - 5, 100)[1]
    assert all(abs(one[3] - other[3]) <= 2 for one, other in zip(held, again, strict=True))     # ms of two clocks
    assert channel.figures == {"publish": 0, "confirm": 0, "deliver": 11, "get": 0, "deliver_get": 11, "ack": 1}
    channel.close()
    assert channel.held(queue, 0, 100)[1] == []


def test_a_channel_counts_what_is_not_confirmed_yet(bench, queue, connection):
    channel = connection.channels[1]
    connection.feed(publish(1, b"before"))
    channel.select_confirm()
    connection.feed(publish(1, b"1", persistent=True) + publish(1, b"2", persistent=True))
    assert (channel.unconfirmed, channel.figures["publish"], channel.figures["confirm"]) == (2, 3, 0)
    bench.sync()
    assert (channel.unconfirmed, channel.figures["confirm"]) == (0, 2)


@pytest.mark.parametrize("octets", [
    ack(2, 0), reject(2, 0), nack(2, 0), ack(2, 11), ack(2, 11, multiple=True), nack(2, 12), reject(2, 1 << 63),
    ack(2, (1 << 64) - 1, multiple=True), ack(2, 1 << 32 | 1),
])
def test_an_unknown_tag_closes_the_channel_and_settles_nothing(queue, connection, channel, octets):
    tag, = struct.unpack_from(">Q", octets, 11)
    connection.feed(octets)
    assert connection.fault == (2, 406, False, f"unknown delivery tag {tag}", 60, octets[10])
    assert queue.acked == 0


@pytest.mark.parametrize("again", [ack(2, 3), ack(2, 3, multiple=True), nack(2, 3), reject(2, 3)])
def test_a_tag_is_settled_once(connection, channel, again):
    connection.feed(ack(2, 3) + again)
    assert connection.fault[:4] == (2, 406, False, "unknown delivery tag 3")


def test_tags_of_another_channel_are_unknown(connection, channel):
    connection.feed(ack(1, 1))
    assert connection.fault[:4] == (1, 406, False, "unknown delivery tag 1")
    connection.feed(ack(2, 1))
    assert len(connection.errors) == 1


@pytest.mark.parametrize(("method", "name"), [(80, "ack"), (90, "reject"), (120, "nack")])
@pytest.mark.parametrize("payload", [b"", bytes(8), bytes(10)])
def test_a_settlement_of_the_wrong_length_is_a_syntax_error(connection, channel, method, name, payload):
    connection.feed(frame(1, 2, struct.pack(">HH", 60, method) + payload))
    assert connection.fault == (2, 502, True, f"basic.{name} is not of the right length", 60, method)


def test_reject_without_requeue_and_nack_without_requeue_settle(queue, connection, channel):
    connection.feed(reject(2, 1, requeue=False) + nack(2, 5, multiple=True, requeue=False))
    assert (channel.unacked, queue.ready, queue.unacked, queue.returned) == (5, 0, 5, 0)


def test_what_returns_comes_again_in_its_own_place(bench, queue, connection, channel):
    queue.paused = True
    connection.feed(nack(2, 7) + reject(2, 2) + nack(2, 9) + publish(1, b"11"))
    assert (queue.ready, queue.unacked, queue.returned) == (4, 7, 3)
    queue.paused = False
    bench.turns()
    got = connection.delivered()
    assert [(one.body, one.redelivered, one.tag) for one in got] == [
        (b"2", True, 11), (b"7", True, 12), (b"9", True, 13), (b"11", False, 14)]


def test_recover_returns_all_of_the_channel_to_its_place(bench, queue, connection, channel):
    connection.feed(ack(2, 3))
    channel.recover()
    assert (channel.unacked, queue.ready, queue.returned) == (0, 9, 9)
    bench.turns()
    got = connection.delivered()
    assert [int(one.body) for one in got] == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert all(one.redelivered for one in got)
    assert [one.tag for one in got] == list(range(11, 20))


def test_closing_a_channel_returns_what_it_had(bench, queue, connection, channel):
    connection.feed(ack(2, 1))
    channel.close()
    channel.close()
    assert (queue.ready, queue.unacked, queue.consumer_count) == (9, 0, 0)
    assert list(connection.channels) == [1]
    consume(connection.channels[1], queue, no_ack=True)
    bench.turns()
    assert [int(one.body) for one in connection.delivered()] == list(range(2, 11))


def test_a_lost_connection_returns_what_it_had(bench, queue, connection, channel):
    connection.detach()
    assert (queue.ready, queue.unacked) == (10, 0)
    assert connection.out.octets == b""


def test_settling_what_came_from_a_deleted_queue_is_harmless(bench, queue, connection, channel):
    other = bench.queue(b"other")
    consume(channel, other, b"other")
    connection.feed(publish(1, b"o", b"other"))
    queue.drop()
    assert (queue.ready, queue.consumer_count) == (0, 0)
    connection.feed(ack(2, 1) + nack(2, 2) + reject(2, 3, requeue=False))
    assert queue.ready == 0
    del bench.queues[b"q"], queue
    connection.feed(nack(2, 10, multiple=True) + ack(2, 11))
    assert not connection.errors
    assert other.acked == 1


def test_a_deleted_queue_outlives_its_last_reference_while_deliveries_name_it(bench, connection):
    for name in (b"a", b"b"):
        queue = bench.queue(name)
        connection.channels[1].get(queue, False)
        connection.feed(publish(1, b"x", name) * 3)
        assert connection.channels[2].get(queue, False)
        queue.drop()
        queue.drop()
        del bench.queues[name], queue
    bench.routes.clear()
    connection.feed(ack(2, 1))
    connection.channels[2].close()
    assert not connection.errors


# ---- confirms


def confirms(connection):
    """Tags of the confirms written, as (tag, multiple)."""
    said = connection.said()
    assert all(one[0] == "ack" for one in said)
    return [(tag, bool(multiple)) for _, _, tag, multiple in said]


@pytest.fixture
def publisher(connection):
    connection.channels[1].select_confirm()
    return connection


@pytest.mark.parametrize("durable", [True, False])
def test_transient_messages_are_confirmed_at_once_in_one_frame_a_chunk(bench, publisher, durable):
    bench.queue(durable=durable)
    publisher.feed(publish(1, b"x"))
    publisher.feed(publish(1, b"x") * 3)
    assert confirms(publisher) == [(1, False), (4, True)]
    assert bench.sync_requests == 0


def test_persistent_messages_in_durable_queues_wait_for_the_sync(bench, queue, publisher):
    publisher.feed(publish(1, b"x", persistent=True) * 2)
    assert confirms(publisher) == []
    assert bench.sync_requests == 1
    paths = bench.sync()
    assert f"{queue.directory}/msgs.0000000001" in paths
    assert f"{queue.directory}/" in paths
    assert confirms(publisher) == [(2, True)]


def test_the_names_of_files_and_folders_are_in_the_sync_that_a_confirm_waits_for(bench, make_bench, publisher):
    queue = bench.queue()
    folder, parent = f"{queue.directory}/", f"{bench.directory}/"
    one = publish(1, b"x" * 30_000, persistent=True)
    publisher.feed(one)
    assert set(bench.sync()) == {f"{queue.directory}/msgs.0000000001", folder, parent}
    publisher.feed(one)
    assert set(bench.sync()) == {f"{queue.directory}/msgs.0000000001"}
    publisher.feed(one)                 # The second segment: a new name.
    assert set(bench.sync()) == {f"{queue.directory}/msgs.0000000002", folder}
    after = make_bench()                # What the broker before made may not have been synced.
    after.recovered()
    again = after.connection(1)
    again.channels[1].select_confirm()
    again.feed(publish(1, b"x", persistent=True))
    assert set(after.sync()) == {f"{queue.directory}/msgs.0000000002", folder, parent}


def test_the_name_of_a_folder_that_was_there_already_is_in_the_first_sync(bench, publisher):
    queue = bench.queue()
    queue.make_directory()
    publisher.feed(publish(1, b"x", persistent=True))
    assert {f"{queue.directory}/", f"{bench.directory}/"} < set(bench.sync())


def test_nothing_is_confirmed_on_a_channel_that_the_broker_closes(bench, queue, publisher):
    publisher.feed(publish(1, b"x", persistent=True))
    publisher.channels[1].closing = True
    bench.sync()
    assert confirms(publisher) == []


@pytest.mark.parametrize(("durable", "persistent"), [(False, True), (True, False)])
def test_what_is_not_both_persistent_and_durable_waits_for_no_sync(bench, publisher, durable, persistent):
    bench.queue(durable=durable)
    publisher.feed(publish(1, b"x", persistent=persistent))
    assert confirms(publisher) == [(1, False)]
    assert bench.begin_sync() == []


def test_without_confirm_mode_nothing_is_synced_or_confirmed(bench, queue, connection):
    connection.feed(publish(1, b"x", persistent=True))
    assert connection.frames() == []
    assert bench.begin_sync() == []
    assert bench.sync_requests == 0


def test_without_sync_confirms_go_at_once(make_bench):
    bench = make_bench(sync=False)
    bench.queue()
    publisher = bench.connection(1)
    publisher.channels[1].select_confirm()
    publisher.feed(publish(1, b"x", persistent=True))
    assert confirms(publisher) == [(1, False)]
    assert bench.sync_requests == 0


def test_confirms_stay_in_order_when_only_some_wait(bench, queue, publisher):
    publisher.feed(publish(1, b"waits", persistent=True) + publish(1, b"does not"))
    publisher.feed(publish(1, b"does not"))
    assert confirms(publisher) == []
    bench.sync()
    assert confirms(publisher) == [(3, True)]


def test_a_publish_after_the_sync_began_waits_for_the_next(bench, queue, publisher):
    publisher.feed(publish(1, b"1", persistent=True))
    bench.begin_sync()
    publisher.feed(publish(1, b"2", persistent=True))
    assert bench.sync_requests == 1
    bench.core.end_sync()
    bench.core.turn()
    assert confirms(publisher) == [(1, False)]
    assert bench.sync_requests == 2
    bench.sync()
    assert confirms(publisher) == [(2, False)]


def test_a_transient_publish_after_the_sync_began_goes_with_it(bench, queue, publisher):
    publisher.feed(publish(1, b"1", persistent=True))
    bench.begin_sync()
    publisher.feed(publish(1, b"2"))
    bench.core.end_sync()
    bench.core.turn()
    assert [tag for tag, _ in confirms(publisher)][-1] == 2
    assert bench.sync_requests == 1


def test_every_segment_that_a_confirm_waits_for_is_synced(make_bench):
    bench = make_bench(segment_octets=4096)
    queue, publisher = bench.queue(), bench.connection(1)
    publisher.channels[1].select_confirm()
    publisher.feed(publish(1, b"p", persistent=True) + publish(1, b"t" * 1500) * 8 + publish(1, b"p", persistent=True))
    numbers = [segment["number"] for segment in queue.segments()]
    assert len(numbers) >= 4
    paths = bench.sync()
    assert {f"{queue.directory}/msgs.{number:010d}" for number in (numbers[0], numbers[-1])} <= set(paths)
    assert confirms(publisher) == [(10, True)]
    assert queue.segments()[0]["sealed"] == 2


def test_several_channels_and_queues_share_one_sync(bench, queue, publisher):
    other = bench.queue(b"other")
    publisher.channels[2].select_confirm()
    publisher.feed(publish(1, b"1", persistent=True) + publish(2, b"2", b"other", persistent=True) * 2)
    paths = bench.sync()
    assert {f"{one.directory}/msgs.0000000001" for one in (queue, other)} <= set(paths)
    assert sorted(publisher.said()) == [("ack", 1, 1, 0), ("ack", 2, 2, 1)]


def test_confirm_tags_count_from_confirm_select(bench, queue, connection):
    connection.feed(publish(1, b"before") * 5)
    connection.channels[1].select_confirm()
    connection.feed(publish(1, b"after"))
    connection.channels[1].select_confirm()
    connection.feed(publish(1, b"after") * 2)
    assert confirms(connection) == [(1, False), (3, True)]


def test_a_channel_opened_again_counts_its_confirms_anew(bench, queue, publisher):
    publisher.feed(publish(1, b"x") * 3)
    publisher.channels[1].close()
    plane.Channel(publisher, 1).select_confirm()
    publisher.feed(publish(1, b"y"))
    assert confirms(publisher) == [(3, True), (1, False)]


def test_a_sync_lends_as_many_descriptors_as_it_was_told_and_names_the_other_files_by_their_paths(bench, publisher):
    for name in ("q1", "q2", "q3"):
        bench.queue(name.encode())
        publisher.feed(publish(1, b"x", key=name.encode(), persistent=True))
    files = bench.core.begin_sync(2)
    assert [fd >= 0 for fd, _ in files] == [True, True] + [False] * (len(files) - 2)
    for fd, path in files:
        if fd >= 0:
            assert os.path.samefile(f"/proc/self/fd/{fd}", path)
            os.close(fd)
    assert all(os.path.exists(path) for _, path in files)
    assert len({path for _, path in files}) == 3 + 3 + 1    # segments, their folders, and the folder of these
    bench.core.end_sync()
    bench.core.turn()
    assert confirms(publisher)[-1][0] == 3


def test_a_channel_closed_while_its_confirms_wait_is_told_nothing(bench, queue, publisher):
    publisher.feed(publish(1, b"x", persistent=True))
    paths = bench.begin_sync()
    publisher.channels[1].close()
    plane.Channel(publisher, 1)
    assert paths
    bench.core.end_sync()
    bench.core.turn()
    assert confirms(publisher) == []


def test_a_queue_deleted_while_confirms_wait_lets_them_go(bench, queue, publisher):
    publisher.feed(publish(1, b"x", persistent=True))
    queue.drop()
    assert bench.sync() == []
    assert confirms(publisher) == [(1, False)]


def test_messages_consumed_before_the_sync_are_confirmed_by_it(make_bench):
    bench = make_bench(segment_octets=4096)
    queue, publisher = bench.queue(), bench.connection(1, 2)
    publisher.channels[1].select_confirm()
    consume(publisher.channels[2], queue, no_ack=True)
    publisher.feed(publish(1, b"x" * 1500, persistent=True) * 10)
    assert len(publisher.delivered()) == 10
    bench.sync()
    assert confirms(publisher) == [(10, True)]


def test_a_deleted_queue_is_let_go_of_with_its_last_unacked_delivery(bench, connection):
    gone = weakref.ref(bench.queue(b"gone"))
    connection.feed(publish(1, b"1", key=b"gone") + publish(1, b"2", key=b"gone"))
    assert connection.channels[2].get(gone(), False)
    assert connection.channels[2].get(gone(), False)
    bench.queues.pop(b"gone").drop()
    bench.routes.clear()
    connection.feed(publish(1, b"nowhere") + ack(2, 1))     # What routes remembered goes with the next publish.
    gc.collect()
    assert gone() is not None
    connection.feed(ack(2, 2))
    gc.collect()
    assert gone() is None


def test_a_full_segment_says_so_in_its_file_and_that_it_is_on_disk_once_it_is(bench, publisher):
    queue = bench.queue()
    publisher.feed(publish(1, b"x" * 30_000, persistent=True) * 5)

    def sealed():
        said = []
        for row in queue.segments():
            with open(f"{queue.directory}/msgs.{row['number']:010d}", "rb") as file:
                said.append(int.from_bytes(file.read(60)[56:], "little"))
        return said

    assert sealed() == [1, 1, 0]
    bench.begin_sync()
    assert sealed() == [1, 1, 0]
    bench.core.end_sync()
    assert sealed() == [2, 2, 0]


@pytest.mark.parametrize("settled", [0, 1, 5, 15, 16, 17, 31, 33])
def test_deliveries_keep_their_tags_where_there_are_ever_more_of_them(bench, settled):
    queue, publisher, connection = bench.queue(), bench.connection(1), bench.connection(1)
    consume(connection.channels[1], queue)
    publisher.feed(b"".join(publish(1, b"%d" % number) for number in range(settled)))
    bench.turns()
    connection.feed(ack(1, 0, multiple=True) if settled else b"")
    publisher.feed(b"".join(publish(1, b"%d" % number) for number in range(settled, settled + 150)))
    bench.turns()
    bodies = {one.tag: one.body for one in connection.delivered()}
    assert bodies == {tag: b"%d" % (tag - 1) for tag in range(1, settled + 151)}
    connection.channels[1].close()
    assert [one.body for one in read(bench, queue)] == [b"%d" % number for number in range(settled, settled + 150)]
