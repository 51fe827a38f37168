"""What is followed in the files of a real broker, while it writes them."""

import pika
import pytest
from tests.conversations.peer import eventually
from tests.server.clients import close_all, connect

from brokerd.spans import follow
from brokerd.spans.follow import Follower, Limit
from brokerd.spans.lives import Lives
from brokerd.store.format import SIDE_FILE

JOURNAL = {"x-order-journal": True}


def traceparent(number, flags="01"):
    return f"00-{number:032x}-{7:016x}-{flags}"


def properties(number, flags="01", **more):
    headers = {"other": "x", "traceparent": traceparent(number, flags), "last": 1}
    return pika.BasicProperties(headers=headers, delivery_mode=2, **more)


class Looked:
    """A follower of a broker's files, and the spans of each look."""

    def __init__(self, broker, *limit):
        self.lives, self.limit = Lives(1), Limit(*limit or (1000,))
        self.follower = Follower(str(broker.directory), self.lives, self.limit)
        self.directory = broker.directory

    def look(self):
        """Name and trace of each new span.  A queue's first lines, by which it is known to have a journal, are written
        beside its messages: they are awaited."""
        eventually(lambda: all((queue / SIDE_FILE).exists() for queue in self.directory.glob("*/*")
                               if any(queue.rglob("journal.*"))))
        self.follower._walk_at = 0.0
        self.follower.look()
        spans, self.lives.spans = self.lives.spans, []
        return [(each.name, each.trace) for each in spans]


@pytest.fixture
def channel(broker):
    channel = connect(broker).channel()
    channel.confirm_delivery()
    yield channel
    close_all()


def test_a_message_is_told_from_its_publish_to_its_end(broker, channel):
    looked = Looked(broker)
    channel.queue_declare("q", durable=True, arguments=JOURNAL)
    channel.basic_publish("", "q", b"m", properties(1))
    channel.basic_publish("", "q", b"without a header", pika.BasicProperties(delivery_mode=2))
    channel.basic_publish("", "q", b"not sampled", properties(2, "00"))
    channel.basic_publish("amq.direct", "nowhere", b"m", properties(3))
    assert looked.look() == [("publish q", 1)]
    assert looked.look() == []
    got, _, _ = channel.basic_get("q")
    assert looked.look() == [("deliver q", 1)]
    channel.basic_nack(got.delivery_tag)
    got, _, _ = channel.basic_get("q")
    channel.basic_ack(got.delivery_tag)
    channel.queue_declare("q", passive=True)  # Answered after the ack.
    assert looked.look() == [("settle q", 1), ("deliver q", 1), ("settle q", 1)]


def test_what_was_there_before_is_not_told(broker, channel):
    channel.queue_declare("q", durable=True, arguments=JOURNAL)
    channel.basic_publish("", "q", b"m", properties(1))
    looked = Looked(broker)
    channel.basic_publish("", "q", b"m", properties(2))
    assert looked.look() == [("publish q", 2)]
    channel.basic_get("q", auto_ack=True)
    channel.queue_declare("q", passive=True)
    assert looked.look() == []


def test_a_queue_without_a_journal_has_no_spans(broker, channel):
    looked = Looked(broker)
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"m", properties(1))
    assert looked.look() == []


def test_messages_of_segments_that_came_and_were_settled_between_two_looks_are_told(make_broker):
    broker = make_broker("--segment-octets", str(1 << 20))
    broker.start()
    looked = Looked(broker)
    channel = connect(broker).channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True, arguments=JOURNAL)
    for number in range(1, 9):
        channel.basic_publish("", "q", bytes(300_000), properties(number))
        channel.basic_get("q", auto_ack=True)
    channel.queue_declare("q", passive=True)
    found = looked.look()
    assert sorted(found) == sorted((f"{what} q", number) for number in range(1, 9)
                                   for what in ("publish", "deliver", "settle"))
    assert looked.look() == []
    close_all()


def test_priorities_and_a_queue_that_is_made_anew_are_followed(broker, channel):
    looked = Looked(broker)
    for number in (1, 3):
        channel.queue_declare("q", durable=True, arguments=JOURNAL | {"x-max-priority": 2})
        channel.basic_publish("", "q", b"m", properties(number))
        channel.basic_publish("", "q", b"m", properties(number + 1, priority=2))
        assert sorted(looked.look()) == [("publish q", number), ("publish q", number + 1)]
        channel.queue_delete("q")


def test_more_messages_than_the_limit_are_missed_and_counted(broker, channel):
    now = [100.0]
    looked = Looked(broker, 2, lambda: now[0])
    channel.queue_declare("q", durable=True, arguments=JOURNAL)
    for number in range(1, 6):
        channel.basic_publish("", "q", b"m", properties(number))
    assert looked.look() == [("publish q", 1), ("publish q", 2)]
    assert looked.limit.missed == 3
    now[0] += 0.5
    channel.basic_publish("", "q", b"m", properties(6))
    assert looked.look() == [("publish q", 6)]


def test_a_body_that_is_larger_than_a_piece_is_passed_over_and_counted(broker, channel, monkeypatch):
    monkeypatch.setattr(follow, "PIECE_OCTETS", 1 << 16)
    looked = Looked(broker)
    channel.queue_declare("q", durable=True, arguments=JOURNAL)
    for number, octets in ((1, 10), (2, 1 << 20), (3, 30_000), (4, 30_000), (5, 30_000)):
        channel.basic_publish("", "q", bytes(octets), properties(number))
    assert looked.look() == [("publish q", number) for number in (1, 3, 4, 5)]
    assert looked.limit.missed == 1


def test_a_segment_of_another_generation_is_read_again_and_no_message_told_twice(broker, channel):
    looked = Looked(broker)
    channel.queue_declare("q", durable=True, arguments=JOURNAL)
    for number in range(1, 4):
        channel.basic_publish("", "q", b"m", properties(number))
    assert len(looked.look()) == 3
    [folder] = looked.follower._folders.values()
    [segment] = folder.open.values()
    segment.generation, segment.offset = 9, 1 << 20  # as if the file that stands there now were a later one
    channel.basic_publish("", "q", b"m", properties(4))
    assert looked.look() == [("publish q", 4)]
    channel.basic_get("q", auto_ack=True)
    channel.queue_declare("q", passive=True)
    assert looked.look() == [("deliver q", 1), ("settle q", 1)]


COMPACTED_SOON = """
from brokerd.server import launch
from brokerd.upkeep import upkeep

launch.TICK_SECONDS, upkeep.COMPACT_EVERY_TICKS = 0.02, 1
"""


def generation(path):
    """How often a segment was compacted."""
    return int.from_bytes(path.read_bytes()[32:36], "little")


def test_what_a_compaction_between_two_looks_left_in_a_segment_is_told_once(make_broker):
    broker = make_broker("--segment-octets", str(1 << 20), first=COMPACTED_SOON)
    broker.start()
    looked = Looked(broker)
    channel = connect(broker).channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True, arguments=JOURNAL | {"x-order-journal-retention-bytes": 1})
    for number in range(1, 5):
        channel.basic_publish("", "q", bytes(50_000), properties(number))
    assert looked.look() == [("publish q", number) for number in range(1, 5)]
    for number in range(5, 31):  # More than a segment takes.
        channel.basic_publish("", "q", bytes(50_000), properties(number))
    [first, _] = sorted(broker.directory.glob("*/*/msgs.*"))
    tags = {number: channel.basic_get("q")[0].delivery_tag for number in range(1, 26)}
    for number in tags.keys() - {3, 11}:
        channel.basic_ack(tags[number])
    channel.queue_declare("q", passive=True)
    eventually(lambda: generation(first) == 1)
    assert first.stat().st_size < 300_000
    found = looked.look()
    assert [trace for name, trace in found if name == "publish q"] == [11, *range(21, 31)]  # What the files still have.
    assert [trace for name, trace in found if name == "deliver q"] == [1, 2, 3, 4, 11, *range(21, 26)]
    assert [trace for name, trace in found if name == "settle q"] == [1, 2, 4, *range(21, 26)]
    for number in (3, 11):
        channel.basic_ack(tags[number])
    channel.queue_declare("q", passive=True)
    assert looked.look() == [("settle q", 3), ("settle q", 11)]
    assert looked.look() == []
    close_all()
