"""The source brokerd: its tables hold what brokerd.audit reads, and only what was asked for is produced."""

import importlib
import json
import os
import random
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as f
from tests.audit import writer
from tests.broker import ROOT

from brokerd.audit import AuditError
from brokerd.audit.files import Source, open_source
from brokerd.audit.lifecycle import lifecycle
from brokerd.audit.properties import Texts
from brokerd.audit.segment import read_triple
from brokerd.spark import tables
from brokerd.spark.java import JavaError, java_home
from brokerd.spark.packs import make_packs
from brokerd.spark.query import where
from brokerd.spark.source import Settings, read, register
from brokerd.store import format as layout
from brokerd.store import reading

START = 1_700_000_000_000_000_000


def meta(exchange, key, message_id=None):
    head = bytes([len(exchange)]) + exchange + bytes([len(key)]) + key
    if message_id is None:
        return head + b"\x10\x00\x02"
    return head + b"\x90\x80" + b"\x04text" + b"\x02" + bytes([len(message_id)]) + message_id


METAS = [meta(b"", b"q"), meta(b"amq.topic", b"a.b", b"id-1"), meta("börse".encode(), b"", b""), meta(b"\xff", b"\xfe")]


def level(count, seed, first_seq=1):
    """Messages of which some are returned, rejected, dead-lettered, or never delivered; a start in the midst."""
    rng = random.Random(seed)
    rows, seqs = [], range(first_seq, first_seq + count)
    at = {seq: START + (seq - first_seq) * 1000 for seq in seqs}
    for seq in seqs:
        end = rng.choice(("ack", "ack", "return", "dead", "ready", "unacked"))
        if end == "ready":
            continue
        rows.append((at[seq] + 100, seq, layout.DELIVERED, 0, 7))
        if end == "return":
            rows.append((at[seq] + 200, seq, layout.RETURNED, layout.CAUSE_NACK, 7, 1))
            rows.append((at[seq] + 300, seq, layout.DELIVERED, layout.REDELIVERED | layout.BY_GET, 7, 1))
        if end in ("ack", "return"):
            rows.append((at[seq] + 400, seq, layout.ACKED, 0, 7))
        if end == "dead":
            rows.append((at[seq] + 400, seq, layout.DEAD_LETTERED, layout.REASON_REJECTED, 7))
    rows.append((START + count * 500 + 50, START + count * 500, layout.STARTED, layout.RESTARTED, 0))
    made = writer.messages(np.array(seqs, np.uint64), np.array([at[seq] for seq in seqs]), connection=3, channel=2)
    made["flags"][::3] = 0
    return writer.Level(made, writer.events(rows), [rng.randrange(300) for _ in seqs],
                        [rng.choice(METAS) for _ in seqs])


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    cut = writer.Options(segment_messages=64, kept=True)
    writer.write_queue(folder, {0: level(300, 1), 4: level(200, 2, 301)}, cut, queue="orders", folder="q1")
    writer.write_queue(folder, level(50, 3), writer.Options(segment_messages=20, journal=False), queue="plain",
                       folder="q2")
    return str(folder)


def triples(root):
    return [(source, triple) for source in [open_source(root)] for queue in source.queues() for triple in queue.triples]


def rows_of(frame):
    return sorted(tuple(row) for row in frame.collect())


def test_messages_are_the_records_of_all_segments(spark, root):
    columns = ("queue", "priority", "segment", "position", "seq", "ts", "connection", "channel", "publish_seq",
               "body_octets", "persistent", "sound")
    expected = []
    for source, triple in triples(root):
        data = read_triple(source, triple)
        bodies = reading.body_octets(data.octets, data.records).tolist()
        expected += [(triple.queue, triple.priority, triple.number, position, int(h["seq"]), int(h["ts"]),
                      int(h["connection"]), int(h["channel"]), int(h["publish_seq"]), body, bool(h["flags"] & 1), True)
                     for position, h, body in zip(data.positions.tolist(), data.headers, bodies, strict=True)]
    assert rows_of(read(spark, root, columns=columns)) == sorted(expected)


def test_exchange_routing_key_and_message_id_are_texts_of_the_record(spark, root):
    found = {tuple(row) for row in read(spark, root, columns=("exchange", "routing_key", "message_id")).collect()}
    assert found == {("", "q", None), ("amq.topic", "a.b", "id-1"), ("börse", "", ""), ("\ufffd", "\ufffd", None)}


def test_events_are_those_of_the_journals_and_starts_have_no_seq(spark, root):
    frame = read(spark, root, "events")
    expected = []
    for source, triple in triples(root):
        data = read_triple(source, triple)
        expected += [(triple.priority, triple.number, int(e["seq"]), int(e["ts"]), tables.EVENT_TYPES[e["type"]],
                      int(e["consumer"]), int(e["count"])) for e in data.events]
    told = frame.where("type <> 'started'")
    assert rows_of(told.select("priority", "segment", "seq", "ts", "type", "consumer", "count")) == sorted(expected)
    assert {tuple(row) for row in frame.where("type = 'started'").select("seq", "reason", "queue").collect()} == {
        (None, "restarted", "orders")}
    again = told.where("redelivered").agg(f.count("*"), f.count_if("by_get"), f.count_if("before_start")).first()
    returns = told.where("type = 'returned' AND reason = 'nack'").count()
    assert tuple(again) == (returns, returns, 0)
    assert returns > 0
    assert {row[0] for row in told.where(f"ts > {START + 300 * 500 + 50} AND priority = 0 AND segment < 3")
            .select("run").distinct().collect()} <= {1}


def test_lifecycle_is_that_of_brokerd_audit_with_nulls_for_what_did_not_happen(spark, root):
    columns = ("queue", "priority", "segment", "position", "seq", "published", "first_delivered", "last_delivered",
               "settled", "deliveries", "returns", "ended", "reason", "connection", "channel", "publish_seq",
               "body_octets", "covered")
    nullable = {"first_delivered", "last_delivered", "settled", "reason"}
    expected = []
    for source, triple in triples(root):
        life = lifecycle(read_triple(source, triple))
        values = [[value or None if name in nullable else value for value in life[name].tolist()] for name in columns]
        expected += list(zip(*values, strict=True))
    found = read(spark, root, "lifecycle", columns=columns).collect()
    assert sorted(map(repr, map(tuple, found))) == sorted(map(repr, expected))
    assert {row.ended for row in found} == {"acked", "ready", "unacked", "dead-lettered"}


def test_segments_say_what_is_in_them_and_what_is_wrong_with_them(spark, tmp_path):
    root = writer.write_queue(tmp_path, writer.simple_level(30), writer.Options(segment_messages=10, kept=True))
    path = tmp_path / "vhost" / "queue" / "kept" / layout.segment_name(2)
    octets = bytearray(path.read_bytes())
    octets[64 + 100] ^= 1
    path.write_bytes(octets)
    rows = read(spark, root, "segments").orderBy("segment").collect()
    assert [(r.file, r.kept, r.records, r.first_seq, r.last_seq, r.settled, r.events, r.lost) for r in rows] == [
        ("vhost/queue/kept/msgs.0000000001", True, 10, 1, 10, 10, 20, 0),
        ("vhost/queue/kept/msgs.0000000002", True, 10, 12, 20, 10, 20, 0),
        ("vhost/queue/msgs.0000000003", False, 10, 21, 30, 10, 20, 0)]
    assert [r.damage for r in rows] == [None, "msgs.0000000002 a record with a wrong CRC", None]
    assert read(spark, root, columns=("seq", "sound")).where("NOT sound").collect() == [(11, False)]
    assert read(spark, root, columns=("sound",), crc="false").where("NOT sound").count() == 0


def test_entries_of_acks_are_rows_in_their_order_and_name_their_messages(spark, tmp_path):
    rows = [(41, 1, layout.DELIVERED), (42, 1, layout.RETURNED, layout.CAUSE_NACK),
            (43, 1, layout.DELIVERED, layout.REDELIVERED), (44, 2, layout.DROPPED, layout.REASON_LENGTH),
            (45, 1, layout.ACKED)]
    made = writer.Level(writer.messages([1, 2, 3], [10, 20, 30]), writer.events(rows))
    root = writer.write_queue(tmp_path, made, writer.Options())
    found = read(spark, root, "acks").orderBy("entry").collect()
    assert [(r.entry, r.seq, r.type, r.reason, r.last) for r in found] == [
        (0, 1, "returned", "nack", False), (1, 1, "handed out", None, False), (2, 2, "dropped", "maxlen", False),
        (3, 1, "acked", None, False)]
    assert read(spark, root, "acks").where("seq = 2").count() == 1


def test_what_is_later_than_a_cut_is_left_out_of_every_table(spark, tmp_path):
    root = writer.write_queue(tmp_path, writer.simple_level(10, start=START), writer.Options())
    cut = json.dumps({"vhost/queue": START + 4 * 4000 - 1})     # Four messages, of which each was delivered and acked.
    counts = {table: read(spark, root, table, cut=cut).count() for table in ("messages", "events", "lifecycle", "acks")}
    assert counts == {"messages": 4, "events": 8, "lifecycle": 4, "acks": 4}
    assert [row.last for row in read(spark, root, "acks", cut=cut).orderBy("entry").collect()] == [False] * 3 + [True]
    assert read(spark, root, cut='{"another": 1}').count() == 0


def test_a_task_reads_several_segments_and_a_small_split_makes_more_tasks(spark, root):
    frame = read(spark, root, columns=("seq",))
    assert (frame.rdd.getNumPartitions(), frame.count()) == (1, 550)
    frame = read(spark, root, columns=("seq",), split="30000")
    assert 2 < frame.rdd.getNumPartitions() < len(triples(root))
    assert frame.count() == 550
    assert make_packs([5, 5, 5, 50, 1], int, 10) == [[5, 5], [5, 50], [1]]


def test_only_columns_that_are_asked_for_are_produced(root):
    source, triple = triples(root)[0]
    schema = pa.schema([("seq", pa.int64()), ("queue", pa.string())])
    batch, = tables.batches("messages", source, triple, schema)
    assert batch.schema == schema
    wanted = pa.schema([("file", pa.string()), ("octets", pa.int64())])
    cheap, = tables.batches("segments", None, triple, wanted)       # Without a source nothing could be read.
    assert cheap.to_pylist() == [{"file": triple.msgs, "octets": triple.octets}]


@pytest.mark.parametrize(("condition", "partitions", "count"), [
    ("queue = 'plain'", 3, 50),
    ("priority > 0 AND segment IN (1, 2)", 2, 128),
    ("priority = 0 AND queue = 'orders' AND seq > 290", 1, 10),
    ("queue = 'orders' AND seq BETWEEN 60 AND 70", None, 11),
    ("queue = 'nobody'", 1, 0),
])
def test_filters_leave_out_files_and_rows(spark, root, condition, partitions, count):
    frame = where(spark, root, "messages", condition, columns=("queue", "priority", "segment", "seq"), split="1")
    assert frame.count() == count
    if partitions is not None:
        assert frame.rdd.getNumPartitions() == partitions


def test_queues_are_chosen_by_a_glob(spark, root):
    assert read(spark, root, columns=("seq",), queues="or*").count() == 500
    assert read(spark, root, columns=("seq",), queues="*/plain").count() == 50
    assert read(spark, root, columns=("seq",), queues="none").count() == 0


@pytest.mark.parametrize(("options", "said"), [
    ({"path": "/nowhere/at/all"}, "/nowhere/at/all: no such folder"),
    ({"table": "message"}, "no such table: message"),
    ({"columns": ["sequence"]}, "table messages has no column sequence"),
    ({"crc": "perhaps"}, "option crc is true or false, not perhaps"),
    ({"split": "64M"}, "option split is a number of octets, not 64M"),
    ({"cut": "[1]"}, "option cut is a JSON object of folders and times in ns"),
    ({"quues": "x"}, "no such option of the source brokerd: quues"),
])
def test_what_is_asked_wrongly_is_said_in_a_line(root, options, said):
    given = {"path": root} | options
    with pytest.raises(AuditError, match=said):
        read(None, given.pop("path"), given.pop("table", "messages"), columns=given.pop("columns", None), **given)


def test_a_folder_with_nothing_of_ours_is_refused(tmp_path):
    (tmp_path / "msgs.txt").write_text("hello")
    with pytest.raises(AuditError, match="no data directory"):
        read(None, str(tmp_path))
    with pytest.raises(AuditError, match="needs a path"):
        Settings({})


def test_the_error_of_a_query_of_ones_own_names_the_fault(spark):
    with pytest.raises(Exception, match="AuditError: /nowhere: no such folder"):
        spark.read.format("brokerd").load("/nowhere").count()


@pytest.mark.skipif(os.environ.get("BROKERD_TEST_S3") is None, reason="BROKERD_TEST_S3=s3://bucket/prefix is not set")
def test_s3_is_read_as_a_folder_is(spark, root):
    from pyarrow import fs

    where = os.environ["BROKERD_TEST_S3"]
    store = fs.S3FileSystem(endpoint_override=os.environ.get("AWS_ENDPOINT_URL"), allow_bucket_creation=True)
    store.create_dir(where[5:])
    fs.copy_files(root, where[5:], destination_filesystem=store)
    columns = ("queue", "seq", "ts", "body_octets")
    assert rows_of(read(spark, where, columns=columns)) == rows_of(read(spark, root, columns=columns))


OWN_SESSION = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.read.format("brokerd").option("columns", "queue, seq").load(sys.argv[1])
print("rows", frame.count(), frame.columns)
spark.stop()
"""


def test_a_session_of_ones_own_knows_the_source_without_an_import(root, tmp_path):
    pytest.importorskip("pyspark")
    try:
        environ = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
                                "PYTHONPATH": str(ROOT / "src"), "JAVA_HOME": java_home(dict(os.environ))}
    except JavaError as error:
        pytest.skip(str(error))
    done = subprocess.run([sys.executable, "-c", OWN_SESSION, root], env=environ, cwd=tmp_path, capture_output=True,
                          text=True, check=False)
    assert done.stdout == "rows 550 ['queue', 'seq']\n", done.stderr[-3000:]


def test_workers_that_cannot_read_the_files_are_named_when_the_source_is_registered(tmp_path):
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'brokerd'\" >&2; exit 1\n")
    python.chmod(0o755)
    context = SimpleNamespace(pythonExec=str(python), master="local[*]", environment={})
    with pytest.raises(AuditError) as told:
        register(SimpleNamespace(sparkContext=context))
    assert str(told.value) == (
        f"the workers of this session are {python}, which cannot read the files (ModuleNotFoundError: No module named "
        f"'brokerd'): start Python with PYSPARK_PYTHON={sys.executable}")


def test_importing_the_package_registers_the_source_in_the_session_that_runs(spark, root, monkeypatch):
    seen = []
    monkeypatch.setattr("brokerd.spark.source.register", seen.append)
    importlib.reload(importlib.import_module("brokerd.spark"))
    assert [type(session).__name__ for session in seen] == ["SparkSession"]


@pytest.mark.parametrize(("columns", "names"), [("queue,seq", ["queue", "seq"]), (" seq ", ["seq"])])
def test_columns_can_be_named_as_an_option(spark, root, columns, names):
    assert spark.read.format("brokerd").option("columns", columns).load(root).columns == names
    with pytest.raises(Exception, match="table messages has no column sequence"):
        spark.read.format("brokerd").option("columns", "sequence").load(root)


@pytest.mark.parametrize("texts", [
    [b"same"] * 9, [b"m-%014d" % n for n in range(40)], [b"%064d" % n for n in range(5)], [b"x" * 65] * 3,
    [b"\xff\xfe"] * 4, [b"ok", b"\xc3\xa4", b"\xffx"], [b"", b""], [b"a", b"bc", b""],
    [b"eightcha"] * 2 + [b"eightchb"],
])
def test_strings_are_gathered_from_where_they_stand(texts):
    octets = b"".join(b"\x00" * (3 + n % 5) + text for n, text in enumerate(texts))
    starts, at = [], 0
    for n, text in enumerate(texts):
        at += 3 + n % 5
        starts.append(at)
        at += len(text)
    where_ = Texts(np.arange(len(texts)), np.array(starts), np.array([len(text) for text in texts]))
    assert tables.strings(octets, where_, len(texts)).to_pylist() == [text.decode("utf-8", "replace") for text in texts]
    some = where_.chosen(np.arange(1, len(texts)))
    assert tables.strings(octets, some, len(texts))[0].as_py() is None


def test_only_the_files_that_a_table_is_made_of_are_read(root):
    class Counting(Source):
        def read(self, rel, *given):
            seen.add(rel.rpartition("/")[2].partition(".")[0])
            return super().read(rel, *given)

    for table, files in (("messages", {"msgs"}), ("events", {"journal"}), ("lifecycle", {"msgs", "acks", "journal"})):
        seen = set()
        triple = open_source(root).queues("orders")[0].triples[0]
        schema = pa.schema([pa.field(name, tables.ARROW[kind]) for name, kind in tables.TABLES[table].items()])
        assert sum(batch.num_rows for batch in tables.batches(table, Counting(root), triple, schema)) >= 64
        assert seen == files, table
