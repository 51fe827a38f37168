"""Streams give each message and event once, whatever moves, compacts, or starts again in between."""

import os
import re
import shutil

import numpy as np
import pika
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructField, StructType
from tests.audit import writer
from tests.broker import ROOT
from tests.server.clients import close_all, connect

from brokerd.audit import AuditError
from brokerd.spark.follow import STARTS_MAX, TOO_BUSY
from brokerd.spark.source import Settings
from brokerd.spark.stream import stream_reader
from brokerd.store import format as layout

SEQ = StructType([StructField("seq", LongType())])
SEGMENT_MESSAGES = 50
PAGE = (ROOT / "docs" / "audit-recipes.md").read_text("utf-8")


class Live:
    """A queue folder as it is after some of ``count`` messages: each delivered, and acked ``lag`` messages later."""

    def __init__(self, folder, count=400, lag=30):
        self.folder, self.lag = folder, lag
        self.level = writer.simple_level(count)
        happened = self.level.events
        acked = happened["type"] == layout.ACKED
        happened["ts"][acked] += lag * 4000 + 1
        self.level.events = np.sort(happened, order="ts")

    def reach(self, count, *, kept=True, generation=0):
        """Write it as it is when ``count`` messages are there."""
        shutil.rmtree(self.folder / "vhost", ignore_errors=True)
        messages = self.level.messages[:count]
        events = self.level.events[self.level.events["ts"] <= messages["ts"][-1] + 3000]
        writer.write_queue(self.folder, writer.Level(messages, events), writer.Options(
            segment_messages=SEGMENT_MESSAGES, kept=kept, generation=generation))
        return count, len(events)


class Follower:
    """What Spark does of a streaming query: offsets, partitions, reading."""

    def __init__(self, folder, table, **options):
        self.reader = stream_reader(Settings({"path": str(folder), "table": table, **options}), SEQ)
        self.offset = self.reader.initialOffset()

    def batch(self, end=None):
        """The seqs of the next batch, or of that up to ``end``."""
        end = end or self.reader.latestOffset(self.offset, ReadAllAvailable())
        rows = self.between(self.offset, end)
        self.offset = end
        return rows

    def between(self, start, end):
        return [seq for pieces in self.reader.partitions(start, end) for made in self.reader.read(pieces)
                for seq in made.column(0).to_pylist()]


@pytest.fixture
def live(tmp_path):
    return Live(tmp_path)


def test_messages_come_once_while_segments_are_begun_settled_and_moved(live):
    follower, seen = Follower(live.folder, "messages"), []
    for count in (1, 2, 49, 50, 51, 180, 180, 400):
        live.reach(count)
        seen += follower.batch()
        assert seen == list(range(1, count + 1))
    assert follower.batch() == []


def test_events_come_once_though_many_journals_grow(live):
    follower, seen = Follower(live.folder, "events"), []
    for count in (1, 49, 51, 130, 130, 400):
        _, events = live.reach(count)
        seen += follower.batch()
        assert len(seen) == events
    assert sorted(seen) == sorted(live.level.events["seq"][:events].tolist())


def test_journals_read_to_their_end_leave_the_offsets(live):
    follower = Follower(live.folder, "events")
    live.reach(400)
    follower.batch()
    assert follower.batch() == []
    offset, = follower.offset.values()
    assert set(offset) == {"below", "8"}
    assert follower.batch() == []


def test_a_batch_is_the_same_when_it_is_read_again_later(live):
    for table in ("messages", "events"):
        live.reach(120)
        follower = Follower(live.folder, table)
        first = follower.batch()
        start = follower.offset
        live.reach(230)
        second = follower.batch()
        end = follower.offset
        live.reach(400)
        again = Follower(live.folder, table)
        assert sorted(again.between({}, start)) == sorted(first)
        assert sorted(again.between(start, end)) == sorted(second)


def test_a_compaction_between_two_batches_repeats_nothing(live):
    follower = Follower(live.folder, "messages")
    live.reach(120, kept=False)
    follower.batch()
    live.level.messages = live.level.messages[100:]     # What was settled is gone from the same segment.
    os.remove(live.folder / "vhost" / "queue" / layout.segment_name(3))
    shutil.rmtree(live.folder / "vhost")
    writer.write_queue(live.folder, writer.Level(live.level.messages[10:60], live.level.events[:0]),
                       writer.Options(segment_messages=50, first_number=3, generation=1))
    assert follower.batch() == list(range(121, 161))


def test_segments_that_move_between_planning_and_reading_are_found(live):
    live.reach(120, kept=False)
    follower = Follower(live.folder, "messages")
    end = follower.reader.latestOffset({}, ReadAllAvailable())
    pieces = follower.reader.partitions({}, end)
    live.reach(150, kept=True)
    found = [seq for p in pieces for made in follower.reader.read(p) for seq in made.column(0).to_pylist()]
    assert found == list(range(1, 121))


def test_messages_removed_before_they_were_read_are_told_or_end_the_query(live, capsys):
    live.reach(120)
    saying, failing = (Follower(live.folder, "messages", missing=missing) for missing in ("say", "fail"))
    assert len(saying.batch()) == len(failing.batch()) == 120
    live.reach(400)
    for kind in ("msgs", "acks", "journal"):
        for number in range(1, 6):
            os.remove(live.folder / "vhost" / "queue" / "kept" / f"{kind}.{number:010d}")
    with pytest.raises(AuditError, match="messages 121 to 250 were removed before they were read"):
        failing.batch()
    assert saying.batch() == list(range(251, 401))
    assert "messages 121 to 250 were removed" in capsys.readouterr().err


def test_what_was_read_may_go_and_nothing_is_said(live):
    live.reach(120)
    followers = [Follower(live.folder, table, missing="fail") for table in ("messages", "events")]
    for follower in followers:
        follower.batch()
    live.reach(400)
    for kind in ("msgs", "acks", "journal"):
        os.remove(live.folder / "vhost" / "queue" / "kept" / f"{kind}.0000000001")
    assert followers[0].batch() == list(range(121, 401))
    assert len(followers[1].batch()) > 500


def test_tables_of_states_are_no_streams(live):
    live.reach(3)
    with pytest.raises(AuditError, match="table lifecycle is no stream"):
        Follower(live.folder, "lifecycle")


def run_started_again(run):
    """Call ``run`` again if its query did not begin: a busy machine may need longer than Spark waits (spark/follow)."""
    for starts_left in reversed(range(STARTS_MAX)):
        try:
            run()
            break
        except Exception as error:
            if not starts_left or TOO_BUSY not in str(error):
                raise


def test_a_query_goes_on_from_its_checkpoint_without_gap_or_repeat(spark, live, tmp_path):
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    for count in (70, 240):
        live.reach(count)
        stream = spark.readStream.format("brokerd").schema("queue string, seq bigint").load(str(live.folder))
        written = stream.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        run_started_again(lambda written=written: written.start(out, format="parquet").awaitTermination())
        assert sorted(row.seq for row in spark.read.parquet(out).collect()) == list(range(1, count + 1))


@pytest.fixture
def orders(broker):
    """A channel on which ``orders``, a queue with a journal, is declared; closed before the broker stops."""
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("orders", durable=True, arguments={"x-order-journal": True})
    channel.confirm_delivery()
    yield channel
    close_all()


def test_what_a_running_broker_does_is_followed_as_the_recipe_shows(spark, broker, orders, tmp_path):
    recipe = re.search(r"## Following a live broker.*?```python\n(.*?)```", PAGE, re.DOTALL)[1]
    for place, there in (("/var/lib/brokerd", broker.directory), ("/var/lib/follow", tmp_path / "follow")):
        assert place in recipe
        recipe = recipe.replace(place, str(there))
    recipe = recipe.replace('processingTime="2 seconds"', "availableNow=True")
    for number in range(3):
        for _ in range(50):
            orders.basic_publish("", "orders", b"an order", pika.BasicProperties(delivery_mode=2))
        for back in range(5):
            method, _, _ = orders.basic_get("orders")
            (orders.basic_nack if back % 2 else orders.basic_reject)(method.delivery_tag, requeue=True)
        orders.queue_declare("orders", passive=True)    # All of it is done.
        run_started_again(lambda: exec(recipe, {}))
        rows = {row.reason: row["count"] for row in spark.table("returned").collect()}
        assert rows == {"reject": 3 * (number + 1), "nack": 2 * (number + 1)}
