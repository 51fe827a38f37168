import json
import re

import pytest
from tests.audit.writer import Level, Options, events, simple_level, write_queue
from tests.broker import ROOT

from brokerd.audit import AuditError
from brokerd.audit.scan import Options as Judged
from brokerd.spark.small_tables import NAMES
from brokerd.spark.views import views
from brokerd.store import format as layout

START = 1_780_000_000_000_000_000
SECOND = 1_000_000_000
META = b"\x00\x05plain\x10\x80\x02\x06m-0001"      # exchange, routing key, delivery-mode and message-id
PAGE = (ROOT / "docs" / "audit-recipes.md").read_text("utf-8")
# (paragraph before, query)
RECIPES = [(before.strip().rpartition("\n\n")[2], query) for before, query in re.findall(
    r"(.*?)```sql\n(.*?)```", PAGE, re.DOTALL)]
EMPTY = {"Dead letters that did not", "Segments for which the journal"}   # begin of what finds nothing here


def told():
    """120 messages, one of which returns twice and is overtaken, one is unacked."""
    level = simple_level(120, start=START, step=SECOND, metas=META)
    rows = [(int(e["ts"]), int(e["seq"]), int(e["type"]), int(e["reason"]), 1, 0) for e in level.events
            if int(e["seq"]) not in (40, 120) or (int(e["type"]) == layout.DELIVERED)]
    at = int(level.messages["ts"][39]) + SECOND
    rows += [(at + 9 * SECOND + 1, 40, layout.RETURNED, layout.CAUSE_NACK, 1, 0),
             (at + 9 * SECOND + 2, 40, layout.DELIVERED, layout.REDELIVERED, 1, 1),
             (at + 9 * SECOND + 3, 40, layout.RETURNED, layout.CAUSE_TIMEOUT, 1, 1),
             (at + 9 * SECOND + 4, 40, layout.DELIVERED, layout.REDELIVERED, 1, 2),
             (at + 9 * SECOND + 5, 40, layout.ACKED, 0, 1, 2)]
    return Level(level.messages, events(rows), 100, META)


@pytest.fixture(scope="module")
def made(spark, tmp_path_factory):
    consumer = {"at": START, "what": "consumer", "number": 1, "tag": "ctag", "connection": 1, "channel": 1,
                "peer": "192.0.2.1:5", "user": "guest", "prefetch": 3, "no_ack": False, "priority": 0}
    removed = {"at": START, "what": "removed", "level": 0, "segments": [0], "first_seq": 0, "last_seq": 0,
               "messages": 1, "octets": 100, "why": "age"}
    gone = {"at": START + 9, "what": "consumer_gone", "number": 1}
    options = Options(segment_messages=50, log=[consumer, removed, gone],
                      settings={"delivery_limit": 7, "queue": "plain"})
    root = write_queue(tmp_path_factory.mktemp("views") / "data", told(), options, queue="plain")
    views(spark, root, check=Judged(audits=frozenset({"overtaking"})))
    return spark, root


def one(spark, query):
    return spark.sql(query).collect()


def test_every_view_that_is_promised_is_there(made):
    spark, _ = made
    assert set(NAMES) <= {table.name for table in spark.catalog.listTables()}
    assert {row.queue for row in one(spark, "SELECT DISTINCT queue FROM messages")} == {"plain"}


def test_times_in_ns_have_timestamps_beside_them(made):
    row, = one(made[0], """
        SELECT published, unix_micros(published_time) AS micros, m.ts, unix_micros(m.time) AS of_message
        FROM lifecycle l JOIN messages m USING (queue, seq) WHERE seq = 7""")
    assert row.micros == row.of_message == row.published // 1000 == row.ts // 1000


def test_settings_consumers_and_removals_are_those_of_the_side_file(made):
    spark, _ = made
    queue, = one(spark, "SELECT * FROM queues")
    assert (queue.delivery_limit, queue.journaled, queue.segments, queue.levels) == (7, True, 3, 1)
    assert one(spark, "SELECT delivery_limit, since FROM settings") == [(7, 0)]
    consumer, = one(spark, "SELECT number, tag, prefetch, no_ack, gone, unix_micros(gone_time) AS t FROM consumers")
    assert tuple(consumer) == (1, "ctag", 3, False, START + 9, START // 1000)
    assert one(spark, "SELECT first_seq, last_seq, why FROM removals") == [(0, 0, "age")]


def test_a_path_with_nothing_of_ours_is_refused(spark, tmp_path):
    with pytest.raises(AuditError):
        views(spark, str(tmp_path / "none"))


def test_the_page_of_recipes_is_read_whole():
    assert len(RECIPES) == PAGE.count("```sql") > 12
    assert len({title for title, _ in RECIPES}) == len(RECIPES)


@pytest.mark.parametrize(("title", "query"), RECIPES, ids=[title[:40] for title, _ in RECIPES])
def test_each_recipe_gives_an_answer(made, title, query):
    found = one(made[0], query.replace("seq = 100", "seq = 40"))
    assert bool(found) == (not title.startswith(tuple(EMPTY))), title


def test_the_recipe_of_overtaking_counts_as_the_audit_does(made):
    query = next(query for title, query in RECIPES if title.startswith("The most overtaken messages"))
    row, = one(made[0], query)
    audited = one(made[0], "SELECT seq, count(*) FROM violations WHERE audit = 'overtaking' GROUP BY seq")
    assert [(row.seq, row.redeliveries)] == [tuple(some) for some in audited] == [(40, 2)]


def test_the_consumer_that_caused_overtakings_is_the_one_that_gave_back(made):
    queries = {title[:20]: query for title, query in RECIPES}
    row, = one(made[0], queries["Which consumers caus"])
    assert (row.consumer, row.tag, row.prefetch, row.redeliveries) == (1, "ctag", 3, 2)
    assert row.overtakings == sum(row.overtakings for row in one(made[0], queries["The most overtaken m"])) > 0


# These make the views anew, and so are last.

def test_findings_that_an_audit_wrote_can_stand_for_violations(made, tmp_path):
    spark, root = made
    spark.sql("SELECT * FROM violations WHERE audit = 'overtaking'").write.parquet(str(tmp_path / "findings"))
    assert views(spark, root, findings=str(tmp_path / "findings")) == (*NAMES, "violations")
    assert one(spark, "SELECT DISTINCT audit FROM violations") == [("overtaking",)]
    assert views(spark, root) == NAMES
    assert not spark.catalog.tableExists("violations")


def test_a_dump_says_when_it_was_cut_and_what_was_counted(spark, tmp_path):
    root = write_queue(tmp_path / "dump", simple_level(3, start=START), queue="q")
    cut = {"vhost": "/", "queue": "q", "folder": "vhost/queue", "cut": 5, "counters": {"redelivered": 2}, "next_seq": 4}
    (tmp_path / "dump" / "manifest.json").write_text(json.dumps({"manifest": 1, "queues": [cut]}))
    views(spark, root)
    row, = one(spark, "SELECT cut, next_seq, counters['redelivered'] AS n FROM queues")
    assert tuple(row) == (5, 4, 2)


def test_the_page_of_recipes_begins_with_how_to_get_the_views(made, capsys):
    first = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    assert '"/var/lib/brokerd"' in first
    exec(first.replace("/var/lib/brokerd", str(made[1])), {})
    assert re.search(r"\| *plain\| *120\|", capsys.readouterr().out)
