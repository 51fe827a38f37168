"""Headers and bodies of messages are columns for who names them; damage makes them null, and no other row."""

import json

import pika
import pyarrow as pa
import pytest
from tests.audit import writer

from brokerd.audit.files import Source, open_source
from brokerd.spark import tables
from brokerd.spark.contents import ASKED
from brokerd.testing import Broker

COLUMNS = pa.schema([("seq", pa.int64()), ("headers", pa.string()), ("body", pa.binary())])


def rows_of(path, **options):
    """Number, headers and body of each message, by number."""
    found = []
    for queue in open_source(str(path)).queues():
        for triple in queue.triples:
            for batch in tables.batches("messages", Source(triple.root), triple, COLUMNS, **options):
                found += batch.to_pylist()
    return [(row["seq"], row["headers"], row["body"]) for row in sorted(found, key=lambda row: row["seq"])]


@pytest.fixture(scope="module")
def files():
    """A stream of a real broker; its third message has a long exchange's name and all properties."""
    with Broker() as broker, pika.BlockingConnection(pika.URLParameters(broker.url())) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
        channel.exchange_declare("x" * 200, "fanout", durable=True)
        channel.queue_bind("log", "x" * 200)
        channel.basic_publish("", "log", b"plain")
        channel.basic_publish("", "log", b"", pika.BasicProperties(headers={"x-stream-filter-value": "europe", "n": 7}))
        channel.basic_publish("x" * 200, "k" * 255, bytes(range(256)) * 300, pika.BasicProperties(
            content_type="a", content_encoding="b", headers={"deep": {"list": [1, "zwölf", None]}}, delivery_mode=2,
            priority=3, correlation_id="c", reply_to="d", expiration="9999", message_id="e", timestamp=5, type="f",
            user_id="guest", app_id="g", cluster_id="h"))
        yield broker.data_dir


def test_headers_and_bodies_are_those_that_were_published(files):
    first, second, third = rows_of(files)
    assert first == (1, None, b"plain")
    assert (second[0], json.loads(second[1]), second[2]) == (2, {"x-stream-filter-value": "europe", "n": 7}, b"")
    assert json.loads(third[1]) == {"deep": {"list": [1, "zwölf", None]}}
    assert third[2] == bytes(range(256)) * 300


def test_who_does_not_name_them_does_not_get_them():
    assert not any(name in tables.ddl("messages") for name in ("headers", "body "))
    assert tables.ddl("messages", ["seq", *ASKED["messages"]]) == "seq bigint, headers string, body binary"


def test_a_damaged_message_is_null_and_the_others_are_whole(tmp_path):
    writer.write_queue(tmp_path, writer.simple_level(20), writer.Options(segment_messages=50))
    before = rows_of(tmp_path)
    path, = [each for each in tmp_path.rglob("*") if each.is_file() and each.name.startswith("msgs")]
    octets = bytearray(path.read_bytes())
    for queue in open_source(str(tmp_path)).queues():
        place = tables.Messages(Source(queue.triples[0].root), queue.triples[0], True, None).column("position")[4]
    octets[place + 64] = 255  # The exchange's name has 255 octets now.
    path.write_bytes(octets)
    after = rows_of(tmp_path, crc=False)
    assert len(after) == len(before)
    assert [row for row in after if row[0] != 5] == [row for row in before if row[0] != 5]
