"""Queries read only the columns and rows that they need, and answer what they would answer over all."""

import json

import pytest
from tests.audit import writer
from tests.spark.test_views import RECIPES, told

from brokerd.audit import AuditError
from brokerd.spark.bounds import Condition
from brokerd.spark.query import needs_of, sql, where
from brokerd.spark.source import read
from brokerd.spark.views import views

START = 1_780_000_000_000_000_000
SECOND = 1_000_000_000
CUT = writer.Options(segment_messages=20)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    writer.write_queue(root, told(), CUT, queue="plain")
    level = writer.simple_level(60, start=START, step=SECOND)
    writer.write_queue(root, level, CUT, queue="eu.orders", folder="q2", vhost="/")
    return str(root)


def rows(frame):
    return sorted(map(repr, frame.collect()))


def test_a_condition_of_one_query_is_not_that_of_another(spark, root):
    """Spark 4.3 would mix them up if the source let it push filters down: see brokerd.spark.source."""
    before = spark.conf.get("spark.sql.python.filterPushdown.enabled")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, root, columns=("queue", "seq"))
        assert (frame.where("seq = 1").count(), frame.count()) == (2, 180)
        both = frame.where("seq = 1").union(frame.where("seq = 2"))
        assert sorted(row.seq for row in both.collect()) == [1, 1, 2, 2]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", before)


def test_what_a_query_needs_is_seen_in_its_plan(spark, root):
    views(spark, root)
    needs = needs_of(spark.sql("""
        SELECT m.queue, count(*) AS n FROM messages m JOIN events e ON e.queue = m.queue AND e.seq = m.seq
        WHERE m.queue LIKE 'eu%' AND m.seq > 5 AND e.type IN ('acked', 'returned') AND m.vhost = '/'
          AND m.time >= TIMESTAMP '2026-05-28 20:26:50' AND e.seq + 1 > 2
        GROUP BY m.queue"""))
    assert needs.keys() == {"messages", "events"}
    assert needs["messages"].columns == ["vhost", "queue", "seq", "time"]
    assert needs["events"].columns == ["queue", "seq", "type"]
    messages = {tuple(one) for one in needs["messages"].conditions if one.kind not in ("IsNotNull",)}
    assert messages >= {("queue", "StringStartsWith", "eu", False), ("seq", "GreaterThan", 5, False),
                        ("vhost", "EqualTo", "/", False),
                        ("time", "GreaterThanOrEqual", 1_780_000_010_000_000, False)}
    assert Condition("type", "In", ["acked", "returned"]) in needs["events"].conditions
    assert json.loads(needs["events"].option()["conditions"])


def test_two_readings_of_a_table_share_only_the_conditions_of_both(spark, root):
    query_ = """SELECT a.seq FROM events a JOIN events b USING (queue, priority, seq)
                WHERE a.type = 'returned' AND b.type = 'acked' AND a.queue = 'plain' AND b.queue = 'plain'"""
    views(spark, root)
    kinds = {one.column for one in needs_of(spark.sql(query_))["events"].conditions if one.kind == "EqualTo"}
    assert kinds == {"queue"}
    assert [row.seq for row in sql(spark, root, query_).collect()] == [40, 40]


@pytest.mark.parametrize("title", [title for title, text in RECIPES if "violations" not in text][::3])
def test_a_recipe_has_the_same_answer_over_what_it_needs(spark, root, title):
    text = dict(RECIPES)[title]
    views(spark, root)
    whole = rows(spark.sql(text))
    assert rows(sql(spark, root, text)) == whole


def test_afterwards_the_views_are_whole(spark, root):
    assert sql(spark, root, "SELECT count(*) AS n FROM messages WHERE queue = 'plain'").first().n == 120
    assert spark.sql("SELECT count(*) AS n, count(routing_key) AS k FROM messages").first() == (180, 180)


CONDITIONS = [
    ("messages", "queue = 'plain' AND seq BETWEEN 25 AND 41"), ("messages", "queue LIKE 'eu.%'"),
    ("messages", "queue LIKE '%orders' AND ts > 1780000010000000000"), ("messages", "queue NOT LIKE '%lai%'"),
    ("messages", "time >= '2026-05-28 20:28:00' AND time < '2026-05-28 20:29:00.000001'"),
    ("messages", "ts IN (1780000004000000000, 1780000040000000000)"), ("messages", "vhost <> '/'"),
    ("messages", "message_id LIKE 'm-%' AND persistent"), ("messages", "message_id IS NULL"),
    ("messages", "NOT persistent"), ("messages", "seq NOT IN (1, 2, 3) AND priority = 0 AND segment >= 2"),
    ("messages", "message_id <=> NULL"), ("messages", "seq > 1e30"), ("messages", "seq % 2 = 0 OR queue = 'plain'"),
    ("events", "type = 'returned'"), ("events", "type <> 'delivered' AND reason IS NOT NULL"),
    ("events", "ts BETWEEN 1780000100000000000 AND 1780000200000000000"), ("events", "redelivered AND seq = 40"),
    ("events", "time = TIMESTAMP '2026-05-28 20:26:41'"),
    ("lifecycle", "published >= 1780000200000000000 AND returns = 0"), ("lifecycle", "ended = 'unacked'"),
    ("lifecycle", "settled IS NULL"), ("segments", "kept OR damage IS NOT NULL"), ("segments", "records = 20"),
]


@pytest.mark.parametrize(("table", "condition"), CONDITIONS)
def test_the_rows_of_a_condition_are_those_that_spark_would_choose(spark, root, table, condition):
    whole = read(spark, root, table)
    assert rows(where(spark, root, table, condition)) == rows(whole.where(condition))


def test_files_that_no_wanted_row_can_be_in_are_not_read(spark, root):
    for table, condition, partitions in (
            ("messages", "queue = 'eu.orders'", 3), ("messages", "queue LIKE 'eu%' AND seq <= 20", 1),
            ("messages", f"ts < {START + 10 * SECOND}", 2), ("messages", "time > '2026-05-28 20:33:20'", 2),
            ("lifecycle", f"published >= {START + 80 * 4 * SECOND} AND queue = 'plain'", 2),
            ("events", f"ts > {START + 110 * 4 * SECOND}", 1), ("events", "queue = 'none'", 1)):
        frame = where(spark, root, table, condition, split="1")
        assert frame.rdd.getNumPartitions() == partitions, condition
        assert rows(frame) == rows(read(spark, root, table).where(condition)), condition


def test_what_cannot_be_asked_is_said(spark, root, tmp_path):
    with pytest.raises(AuditError, match="no such folder"):
        sql(spark, str(tmp_path / "none"), "SELECT 1")
    with pytest.raises(AuditError, match="option conditions is a list in JSON"):
        read(spark, root, conditions="[1")
    with pytest.raises(Exception, match="no_such_column"):
        where(spark, root, "messages", "no_such_column = 1")
