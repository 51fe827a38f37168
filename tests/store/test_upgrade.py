"""Data directories of older brokers are opened as they are: each message comes once, with its mark and its count.

The directories were written by those brokers and ended by kill -9: ``old_directories``.
"""

import struct

import pytest
from tests.faults.power import Machine
from tests.plane.harness import Deliver, nack
from tests.store import old_directories

from brokerd.audit.files import open_source
from brokerd.audit.lifecycle import lifecycle
from brokerd.audit.segment import read_triple
from brokerd.audit.trace import trace
from brokerd.errors import StoreError
from brokerd.store import format as layout
from brokerd.store.disk import Disk
from brokerd.wire import methods
from brokerd.wire.properties import decode_header

TOLD = old_directories.told("acks-1")
BOOT = "this-boot"
CONTENT_METHODS = (struct.pack(">HH", 60, 60), struct.pack(">HH", 60, 71))      # deliver, get-ok


class Opened:
    """A broker of today on a directory; ``boot`` another one: power was lost."""

    def __init__(self, directory, boot=BOOT):
        self.machine = Machine(str(directory), boot, Disk())
        self.client = self.machine.client()
        self.client.tell(methods.ChannelOpen().frame(1))
        self.client.frames()

    def contents(self):
        """Body's number -> (redelivered, failed deliveries, tag) of all that came."""
        self.machine.node.core.turn()
        came, content, headers = {}, None, None
        for kind, _, payload in self.client.frames():
            if kind == 1 and payload[:4] in CONTENT_METHODS:
                content = Deliver(1, payload)
            elif kind == 2 and content is not None:
                headers = decode_header(payload)[1].headers or {}
            elif kind == 3 and content is not None:
                number = int(payload.rstrip(b"\0"))
                assert number not in came, "twice"
                came[number] = content.redelivered, headers.get("x-delivery-count", 0), content.tag
                content = None
        return came

    def drain(self, queue):
        """Body's number -> (redelivered, failed deliveries), in the order in which they came."""
        self.client.tell(methods.BasicConsume(queue=queue, no_ack=True).frame(1))
        return {number: told[:2] for number, told in self.contents().items()}

    def get(self, queue):
        """The next message: (body's number, redelivered, failed deliveries, tag)."""
        self.client.tell(methods.BasicGet(queue=queue).frame(1))
        (number, told), = self.contents().items()
        return number, *told

    def kill(self):
        self.machine.vanish()
        self.machine.bury()


@pytest.fixture
def directory(tmp_path):
    return old_directories.unpack("acks-1", tmp_path, BOOT)


def expected(queue):
    """What the rule of store.format says of each message: a start counts nothing for those that had an entry."""
    return {one["body"]: (one["kind"] != "waiting", max(one["count"], 1) if one["kind"] != "waiting" else 0)
            for one in sorted(TOLD[queue], key=lambda one: (-one.get("priority", 0), one["seq"]))}


def acks_files(directory):
    return sorted(directory.rglob("acks.*"))


def version_of(path):
    return int.from_bytes(path.read_bytes()[4:8], "little")


def test_each_way_of_standing_is_in_the_directory(directory):
    assert {one["kind"] for messages in TOLD.values() for one in messages} == set(old_directories.KINDS)
    assert {version_of(path) for path in acks_files(directory)} == {1}
    generations = [layout.SEGMENT_HEADER.unpack(path.read_bytes()[:64])[5] for path in directory.rglob("msgs.*")]
    assert sorted(set(generations)) == [0, 1]       # One was compacted.


@pytest.mark.parametrize("starts", [1, 2, 3])
def test_each_message_comes_in_order_with_its_mark_and_its_count_after_any_number_of_starts(directory, starts):
    for _ in range(starts - 1):
        Opened(directory).kill()
    opened = Opened(directory)
    try:
        for queue in TOLD:
            came = opened.drain(queue)
            assert list(came.items()) == list(expected(queue).items()), queue
    finally:
        opened.kill()


def test_after_a_loss_of_power_all_are_marked_and_counts_are_those_on_disk(directory):
    Opened(directory, "another-boot").kill()
    opened = Opened(directory, "another-boot")      # A crash now: it knows no more than the start before.
    try:
        for queue in TOLD:
            came = opened.drain(queue)
            assert came == {body: (True, count) for body, (_, count) in expected(queue).items()}, queue
    finally:
        opened.kill()


def test_a_message_counts_once_for_each_start_at_which_it_was_out(directory):
    opened = Opened(directory)
    assert opened.get("untouched")[:3] == (1, False, 0)
    opened.kill()
    for failed in (1, 2):
        opened = Opened(directory)
        assert opened.get("untouched")[:3] == (1, True, failed)
        assert opened.get("untouched")[:3] == (2, failed > 1, failed - 1)
        opened.kill()
    opened = Opened(directory)
    number, redelivered, failed, tag = opened.get("untouched")
    assert (number, redelivered, failed) == (1, True, 3)
    opened.client.tell(nack(1, tag))
    opened.kill()
    for _ in range(3):              # It lay ready: no start counts that.
        Opened(directory).kill()
    opened = Opened(directory)
    try:
        assert opened.drain("untouched") == {1: (True, 4), 2: (True, 2), 3: (False, 0)}
    finally:
        opened.kill()


def test_a_start_raises_every_acks_file_so_that_an_older_broker_refuses_it(directory):
    Opened(directory).kill()
    assert {version_of(path) for path in acks_files(directory)} == {3}
    for path in acks_files(directory):
        octets = path.read_bytes()
        assert layout.crc32c(octets[:20]) == int.from_bytes(octets[20:24], "little")


def test_an_acks_file_of_a_later_version_is_refused_by_name(directory):
    path = acks_files(directory)[0]
    octets = bytearray(path.read_bytes())
    octets[4:8] = (4).to_bytes(4, "little")
    octets[20:24] = layout.crc32c(bytes(octets[:20])).to_bytes(4, "little")
    path.write_bytes(octets)
    with pytest.raises(StoreError, match=f"{path} has version 4 at offset 4"):
        Machine(str(directory), BOOT, Disk())


@pytest.mark.parametrize("opened", [False, True])
def test_an_auditor_reads_both_versions(directory, opened):
    if opened:
        Opened(directory).kill()
    source = open_source(str(directory))
    queues = {queue.queue: queue for queue in source.queues()}
    for name, messages in TOLD.items():
        ended = {}
        for triple in queues[name].triples:
            data = read_triple(source, triple)
            assert data.damage == []
            rows = lifecycle(data)
            ended |= dict(zip(rows["seq"].tolist(), rows["ended"].tolist(), strict=True))
        settled = {"acked", "rejected", "dead-lettered", "dropped"}
        assert {seq for seq, how in ended.items() if how not in settled} == {one["seq"] for one in messages}, name
        for one in messages:
            if name != "journaled" and one["kind"] != "again":      # Version 1 does not tell those from the returned.
                assert ended[one["seq"]] == ("unacked" if one["kind"] in ("out", "kept") and not one["count"]
                                             else "ready"), (name, one)
    life = trace(source, queues["plain"], 5)
    assert [event["what"] for event in life["events"]] == ["enqueued", "returned", "returned"]
