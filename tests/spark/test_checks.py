import json

import numpy as np
import pytest
from tests.audit import plant
from tests.audit.faulty import by_audit
from tests.audit.writer import Level, events, messages, put_word, simple_level, write_queue
from tests.audit.writer import Options as WriterOptions
from tests.spark import planted

from brokerd.audit import words
from brokerd.audit.cut import find_queues
from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import OF_USE, UNCOVERED, audit
from brokerd.spark import checks, checks_cases
from brokerd.spark.views import views
from brokerd.store.format import (
    ACKED,
    DELIVERED,
    HEADER_OCTETS,
    ORDER_COUNTERS,
    RESTARTED,
    RETURNED,
    RUNNING_FILE,
    STARTED,
    folder_name,
    order_header,
)

pytestmark = pytest.mark.timeout(900)       # One fixture runs all audits: 70 s of a processor that many may share.
FIGURES = ("verdict", "found", "checked", "overtakings")
OPTIONS = Options(group_by="routing-key")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = str(tmp_path_factory.mktemp("planted") / "data")
    return root, planted.build(root)


@pytest.fixture(scope="module")
def in_sql(spark, made):
    return rows(checks.run(spark, made[0], OPTIONS))


@pytest.fixture(scope="module")
def in_arrays(made):
    return rows(row | {"found": row.get("by_rule", row["found"])}
                for one in audit(open_source(made[0]), OPTIONS) for row in one.audits)


def rows(found):
    return {(row["queue"], row["audit"]): row for row in found}


def test_both_engines_judge_the_same_queues_and_come_to_the_same_figures(in_sql, in_arrays):
    assert set(in_sql) == set(in_arrays)
    figures = [{key: [row.get(name) for name in FIGURES] for key, row in engine.items()}
               for engine in (in_sql, in_arrays)]
    assert {key: (row, figures[1][key]) for key, row in figures[0].items() if row != figures[1][key]} == {}


def test_each_fault_is_found_as_often_as_it_was_planted(in_sql, made):
    for name, faults in made[1].items():
        row = in_sql[name, name]
        verdict = "effects of use" if name in OF_USE else "violated"
        assert (name, row["verdict"], row["found"]) == (name, verdict, len(faults.seqs))


@pytest.mark.parametrize("engine", ["in_sql", "in_arrays"])
@pytest.mark.parametrize("name", planted.OTHERWISE)
def test_a_fault_that_no_single_record_shows_is_found_by_its_audit_alone(request, engine, name):
    said = {audit: row for (queue, audit), row in request.getfixturevalue(engine).items() if queue == name}
    said.pop("group_fifo")
    assert said.pop("chain")["verdict"] == UNCOVERED
    found = {audit: row["found"] for audit, row in said.items() if row["found"]}
    assert found == planted.OTHERWISE[name].found
    unsure = {audit for audit, row in said.items() if row["verdict"] == "undecidable"}
    assert unsure == planted.OTHERWISE[name].undecidable
    assert {row["verdict"] for audit, row in said.items() if audit not in found and audit not in unsure} == {"held"}


def test_a_fault_is_seen_by_no_audit_that_it_does_not_touch(in_sql, made):
    for (queue, name), row in in_sql.items():
        if queue in made[1] and name not in (queue, "group_fifo"):
            assert row["found"] == 0 or name in made[1][queue].touches, (queue, name)


def test_each_broken_promise_about_deliveries_is_found_and_no_other(in_sql):
    for name, story in by_audit().items():
        said = {audit: (row["verdict"], row["found"]) for (queue, audit), row in in_sql.items()
                if queue == f"broken {name}"}
        said.pop("group_fifo")
        assert said.pop("chain")[0] == UNCOVERED
        said.pop("dead_letters")            # They go to an exchange of which the files know nothing.
        assert said.pop(name) == ("violated", len(story.seqs))
        assert {verdict for verdict, _ in said.values()} == {"held"}, (name, said)


def test_messages_that_stand_in_wrong_places_are_found(in_sql):
    said = {audit: row["found"] for (queue, audit), row in in_sql.items() if queue == "misplaced" and row["found"]}
    assert said == {"channel_order": 58, "publish_order": 19, "time_order": 10, "wrong_level": 2, "damage": 2}


def test_without_a_journal_the_acks_tell_what_was_settled_again(in_sql):
    row = in_sql["settled again", "double_settle"]
    assert (row["verdict"], row["found"]) == ("violated", 3)


def test_who_holds_too_much_or_beside_another_is_found(in_sql):
    said = {audit: row["found"] for (queue, audit), row in in_sql.items() if queue == "held" and row["found"]}
    said.pop("group_fifo")
    assert said == {"single_active": 1, "prefetch": 1, "consumers": 2}


def test_what_a_dump_says_of_itself_is_compared_with_its_files_by_both_engines(spark, tmp_path):
    root = tmp_path / "dump"
    level = simple_level(50, start=planted.START)
    at = int(level.events["ts"][-1]) + 10
    level.events = np.concatenate((level.events, events([(at, at - 1, STARTED, RESTARTED, 0, 0)])))
    write_queue(root, level, WriterOptions(segment_messages=20))
    said = plant.manifest(str(root), {("/", "vhost/queue"): {"journal": True}}, int(level.messages["ts"][-2]))
    said["queues"][0] |= {"next_seq": 49, "ready": 1, "unacked": 0}
    said["queues"][0]["counters"] = dict.fromkeys(ORDER_COUNTERS, 0)
    (root / "manifest.json").write_text(json.dumps(said))
    counted = np.arange(len(ORDER_COUNTERS), dtype="<u8").tobytes()
    (root / "vhost/queue/order").write_bytes(order_header().ljust(64, b"\0")[:64] + counted)
    put_word(root / "vhost/queue/msgs.0000000001", words.RECORDS_AT, 21)
    put_word(root / "vhost/queue/msgs.0000000001", words.SEALED_AT, 0)
    put_word(root / "vhost/queue/msgs.0000000002", words.SEALED_AT, 7)
    put_word(root / "vhost/queue/acks.0000000002", words.ENTRIES_AT, 19)
    put_word(root / "vhost/queue/acks.0000000003", words.SETTLED_AT, 3)
    put_word(root / "vhost/queue/acks.0000000003", words.PASSED_AT, HEADER_OCTETS)
    names = ("after_cut", "numbers", "counters", "words", "overtaking")
    options = Options(audits=frozenset(names))
    ours = {row["audit"]: row for one in audit(open_source(str(root)), options) for row in one.audits}
    theirs = {row["audit"]: row for row in checks.run(spark, str(root), options)}
    assert [[row[name].get(figure) for figure in FIGURES] for row in (ours, theirs) for name in names[:4]] == [
        ["violated", 8, 150, None], ["violated", 2, 50, None], ["violated", len(ORDER_COUNTERS), 42, None],
        ["violated", 6, 3, None]] * 2


def test_the_words_of_a_stopped_directory_are_judged_without_a_journal_by_both_engines(spark, tmp_path):
    root, folder = tmp_path / "data", folder_name("q")
    write_queue(root, simple_level(50, start=planted.START), WriterOptions(segment_messages=20, journal=False),
                folder=folder)
    for number in (1, 3):
        put_word(root / "vhost" / folder / f"msgs.{number:010d}", words.RECORDS_AT, 21)
    options = Options(audits=frozenset({"words"}))
    for listed, found, checked in (('[{"name": "/"}]', 2, 3), ("[]", 0, 0)):
        (root / "vhosts.json").write_text(listed)
        ours = [row for one in audit(open_source(str(root)), options) for row in one.audits]
        theirs = checks.run(spark, str(root), options)
        assert [[row["found"], row["checked"]] for row in (*ours, *theirs)] == [[found, checked]] * 2


def test_the_last_event_of_all_is_a_doubt_of_both_engines_while_a_broker_may_be_at_work(spark, tmp_path):
    """The entry of the last return may be about to be written; perhaps it is the first of its segment."""
    ts, root = planted.START, tmp_path / "data"
    rows = [(ts + 10, 1, DELIVERED), (ts + 20, 1, RETURNED, 1, 1, 1)]
    for name, more in (("first", []), ("later", [(ts + 12, 2, DELIVERED), (ts + 15, 2, ACKED)])):
        made = Level(messages(range(1, 4), [ts, ts + 1, ts + 2]), events([*rows, *more]))
        write_queue(root, made, WriterOptions(), queue=name, folder=name)
        story = plant.Story(root / "vhost" / name)
        story.parts[0].forget(0)
        story.save()
    options = Options(audits=frozenset({"agreement"}))
    for is_open, verdict, found in ((True, "undecidable", 0), (False, "violated", 1)):
        if is_open:
            (root / RUNNING_FILE).write_text("boot\n")
        else:
            (root / RUNNING_FILE).unlink()
        source = open_source(str(root))
        cuts = {queue.folder: triple.cut for queue in find_queues(source) for triple in queue.triples if is_open}
        ours = [row for one in audit(source, options) for row in one.audits]
        theirs = checks.run(spark, str(root), options, cut=json.dumps(cuts))
        assert [[row[name] for name in ("verdict", "found", "checked")] for row in (*ours, *theirs)] == [
            [verdict, found, 3]] * 4


def test_of_queues_in_order_every_audit_holds_but_that_of_groups(in_sql):
    for queue in ("plain", "levels"):
        said = {row["audit"]: row["verdict"] for key, row in in_sql.items() if key[0] == queue}
        said.pop("group_fifo")
        assert said.pop("chain") == UNCOVERED
        assert set(said.values()) == {"held"}


def test_a_queue_without_a_journal_is_judged_by_its_records_alone(in_sql):
    said = {row["audit"]: row["verdict"] for key, row in in_sql.items() if key[0] == "unjournaled"}
    assert {said[name] for name in ("publish_order", "duplicates", "double_settle", "damage", "holes")} == {"held"}
    assert {said[name] for name in ("fifo", "returned_first", "overtaking", "unacked")} == {"undecidable"}
    assert in_sql["settled and gone", "holes"]["verdict"] == "undecidable"


def test_findings_are_rows_with_the_place_of_their_message(spark, in_sql, made):
    views(spark, made[0], check=Options(audits=frozenset({"fifo", "damage"})))
    rows = spark.sql("SELECT * FROM violations WHERE queue = 'fifo'").collect()
    assert sorted(row.seq for row in rows) == sorted(made[1]["fifo"].seqs)
    for row in rows:
        with open(f"{made[0]}/{row.file}", "rb") as file:
            file.seek(row.offset + 16)
            assert int.from_bytes(file.read(8), "little") == row.seq


def test_what_an_audit_needs_is_asked_for_by_name():
    assert checks.chosen(Options(audits=frozenset({"fifo", "holes"}))) == ["fifo", "holes"]
    assert "group_fifo" not in checks.chosen(Options())
    assert "group_fifo" not in checks.chosen(Options(group_header="x-group"))


def test_only_the_views_that_the_chosen_audits_need_are_computed(spark, made, monkeypatch):
    kept = []
    monkeypatch.setattr(checks, "helpers", lambda spark, options, *, keep, _make=checks.helpers: (
        kept.append(checks._needed(keep)), _make(spark, options, keep=keep)))
    found = rows(checks.run(spark, made[0], Options(audits=frozenset({"publish_order"})), queues="plain"))
    assert kept == [{"messages", "events", "segments", "wrong", "orphans"}]
    assert [(key, row["verdict"], row["checked"] > 0) for key, row in found.items()] == [
        (("plain", "publish_order"), "held", True)]


@pytest.mark.parametrize("name", checks.CHECKS)
def test_an_audit_alone_has_all_facts_that_its_verdict_depends_on(name):
    """With all facts that there are, each saying that something is in doubt, no other doubt arises."""
    needs = checks.CHECKS[name].needs
    every = {fact: {"spoiled": ["msgs", "acks", "journal"]}.get(fact, 7) for facts in checks_cases.FACTS
             for fact in facts.columns}
    query = checks_cases.query({name: needs})
    mine = {fact: value for fact, value in every.items() if f" AS {fact}" in query.partition("FROM")[0]}
    assert checks_cases.verdict(name, needs, mine, 0) == checks_cases.verdict(name, needs, every, 0)
    assert checks_cases.applies(name, mine, Options())
    for fact in mine.keys() & {checks_cases.NEEDED.get(name)}:
        assert not checks_cases.applies(name, mine | {fact: False}, Options())


def test_a_view_that_an_audit_needs_brings_those_that_it_reads_itself():
    for name, check in checks.CHECKS.items():
        needed = checks._needed([checks_cases.query({name: check.needs}), check.found, check.checked])
        for helper in needed & set(checks.HELPERS):
            assert checks._read(checks.HELPERS[helper]) & {*checks.TABLES, *checks.HELPERS} <= needed, (name, helper)


def test_every_kind_of_fault_that_can_be_planted_has_a_rule():
    assert set(plant.PLANTS) <= set(checks.CHECKS)


def test_gaps_are_judged_as_ranges_however_far_a_damaged_number_lies(spark, tmp_path):
    """Some lie near, some far; retention explains a part of one gap."""
    root, level = tmp_path / "data", simple_level(50, start=planted.START)
    seqs = np.arange(1, 51)
    for first, far in ((20, 1 << 21), (30, 1 << 40), (40, 1 << 61)):
        seqs[first:] += far
    level.messages["seq"], level.events["seq"] = seqs, np.repeat(seqs, 2)
    write_queue(root, level, WriterOptions(segment_messages=25))
    with open(root / "vhost/queue/order.jsonl", "a") as file:
        file.write(json.dumps({"at": planted.START, "what": "removed", "level": 0, "first_seq": 101,
                               "last_seq": 200}) + "\n")
    options = Options(audits=frozenset({"holes"}))
    ours = [row for one in audit(open_source(str(root)), options) for row in one.audits]
    assert [[row[name] for name in FIGURES[:3]] for row in (*ours, *checks.run(spark, str(root), options))] == [
        ["violated", (1 << 21) + (1 << 40) + (1 << 61) - 100, (1 << 21) + (1 << 40) + (1 << 61) - 50]] * 2
    views(spark, str(root))
    first, second = 31 + (1 << 21), 41 + (1 << 21) + (1 << 40)
    assert [row.detail for row in checks.violations(spark, options).sort("seq").collect()] == [
        f"{start} to {end - 1} are missing" for start, end in (
            (21, 101), (201, 21 + (1 << 21)), (first, first + (1 << 40)), (second, second + (1 << 61)))]


def test_a_span_touches_few_pieces_of_time_however_long_it_is(spark):
    ends = [(0, 0), (5, 6), (planted.START, planted.START + 86_400_000_000_000), (1, 1 << 62), (-(1 << 62), 1 << 62),
            ((1 << 45) - 1, (1 << 46)), ((1 << 62) - 1, (1 << 62) + 1), (0, (1 << 63) - 1)]
    spark.createDataFrame(ends, "since long, until long").createOrReplaceTempView("ends_of_spans")
    rows_ = spark.sql(f"""
        WITH spans AS (SELECT *, {checks.GRAIN.format(since="since", until="until")} AS grain FROM ends_of_spans)
        SELECT *, {checks.PIECES.format(since="since", until="until")} FROM spans""").collect()
    pieces = {end: [row.piece for row in rows_ if (row.since, row.until) == end] for end in ends}
    grain = {(row.since, row.until): row.grain for row in rows_}
    assert max(map(len, pieces.values())) <= 3
    for since, until in ends:
        for moment in (since, (since + until) // 2, until):
            assert pieces[since, until].count(moment >> grain[since, until]) == 1
