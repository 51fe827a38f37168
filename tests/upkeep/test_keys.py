"""Keys of segments that are about to go: written in a thread, tried again, and only then are the records given up."""

import os

import pytest
from tests.upkeep.test_upkeep import FullDisk, Place

from brokerd.clock import Clock
from brokerd.store import compaction
from brokerd.store.disk import Disk
from brokerd.upkeep import keys
from brokerd.vhost.features import DuplicatesOnDemand
from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame
from brokerd.wire.properties import Properties, encode_header

BODY = b"b" * 8000      # some eight to a segment


class KeyPlace(Place):
    """A queue that drops duplicates, with a client."""

    def reopen(self):
        super().reopen()
        self.vhost.duplicates = DuplicatesOnDemand(self.vhost.directory, Clock().epoch_ns)

    def queue(self, name="q", **arguments):
        return self.vhost.queues.get(name) or self.vhost.add_queue(
            name, durable=True, auto_delete=False,
            arguments={"x-message-deduplication": True, "x-cache-size": 1000, **arguments})

    def publish(self, *numbers, key="q"):
        octets = b""
        for number in numbers:
            header = encode_header(len(BODY), Properties(headers={"x-deduplication-header": number}, delivery_mode=2))
            octets += methods.BasicPublish(routing_key=key).frame(1) + header_frame(1, header)
            octets += body_frames(1, BODY, 4096)
        return self.client.raw(octets)

    def settle(self, name="q"):
        """All that is ready is taken and acknowledged."""
        self.client.send((1, methods.BasicConsume(queue=name, consumer_tag=name, no_ack=True)))
        self.client.send((1, methods.BasicCancel(consumer_tag=name)))

    def files(self, prefix, name="q"):
        return sorted(int(each[5:]) for each in os.listdir(self.vhost.queues[name].directory)
                      if each.startswith(prefix) and each[5:].isdigit())


@pytest.fixture
def place(tmp_path):
    place = KeyPlace(tmp_path)
    yield place
    place.close()


def test_records_go_when_their_keys_are_in_a_file_of_their_own(place):
    queue = place.queue()
    place.publish(*range(30))
    place.settle()
    before = place.files("msgs.")
    assert len(before) > 3
    place.ticks(1)
    assert (place.files("msgs."), place.files("keys.")) == (before, [])     # the thread has not written yet
    place.thread.run()
    assert place.files("keys.") == before[:-1]
    place.ticks(1)
    assert place.files("msgs.") == before[-1:]
    place.publish(*range(31))
    assert queue.ready == 1


def test_keys_of_records_that_are_gone_are_known_after_a_start(place):
    place.queue()
    place.publish(*range(30))
    place.settle()
    for _ in range(3):
        place.ticks(1)
        place.thread.run()
    assert len(place.files("msgs.")) == 1
    place.close()
    place.reopen()
    place.publish(*range(31))
    assert place.vhost.queues["q"].ready == 1


def test_a_full_disk_keeps_the_records_and_is_tried_again_and_told_once(place, caplog, monkeypatch):
    queue = place.queue()
    place.publish(*range(30))
    place.settle()
    files, before = place.vhost.duplicates.key_files(), place.files("msgs.")
    files.disk = FullDisk()
    for _ in range(3):
        place.ticks(1)
        place.thread.run()
    assert place.files("msgs.") == before
    assert sum("cannot be written" in each.getMessage() for each in caplog.records) <= 1
    files.disk = Disk()
    for _ in range(2):
        place.ticks(1)
        place.thread.run()
    assert len(place.files("msgs.")) == 1
    place.publish(*range(31))
    assert queue.ready == 1


def test_each_second_looks_at_a_bounded_number_of_segments(place, monkeypatch):
    monkeypatch.setattr(keys, "SEGMENTS_PER_TICK", 1)
    place.queue()
    place.publish(*range(30))
    place.settle()
    for count in (1, 2, 3):
        place.ticks(1)
        place.thread.run()
        assert len(place.files("keys.")) == count


def test_key_files_go_with_their_keys(place):
    place.queue(**{"x-cache-size": 20})
    place.publish(*range(30))
    place.settle()
    place.ticks(1)
    place.thread.run()
    assert place.files("keys.")
    place.publish(*range(30, 60))
    place.settle()
    for _ in range(40):
        place.ticks(1)
        place.thread.run()
    assert place.files("keys.")[0] > 4
    place.publish(*range(41, 61))
    assert place.vhost.queues["q"].ready == 1


def test_a_sparse_segment_is_compacted_when_its_keys_are_kept(place):
    queue = place.queue()
    place.publish(*range(30))
    out = place.client.send((1, methods.BasicConsume(queue="q")))
    tags = [frame[1].delivery_tag for frame in out if isinstance(frame, tuple) and isinstance(
        frame[1], methods.BasicDeliver)]
    for tag in tags[1:]:
        place.client.send((1, methods.BasicAck(delivery_tag=tag)))
    sparse = compaction.find_sparse(queue)
    assert sparse is not None
    prepared = compaction.prepare(queue.directory, sparse, Disk())
    assert not prepared.finish(queue)       # its keys are nowhere else
    for _ in range(100):
        place.ticks(1)
        place.thread.run()
    assert queue.segments()[0]["generation"] == 1
    place.close()
    place.reopen()
    place.publish(*range(31))
    assert place.vhost.queues["q"].ready == 2       # the one that was unacked, and a new one


def test_a_queue_deleted_meanwhile_is_no_fault(place):
    queue = place.queue()
    place.publish(*range(30))
    place.settle()
    place.ticks(1)
    place.vhost.delete_queue(queue)
    place.thread.run()
    place.queue("other")
    place.publish(*range(30), key="other")
    place.settle("other")
    place.vhost.delete_queue(place.vhost.queues["other"])
    place.ticks(1)
    place.thread.run()


def test_a_rule_that_ends_meanwhile_gives_the_records_up(place):
    queue = place.queue()
    place.publish(*range(30))
    place.settle()
    place.ticks(1)
    queue._deduplicate(None)
    place.thread.run()
    place.ticks(2)
    assert len(place.files("msgs.")) == 1
