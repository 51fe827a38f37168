import pytest
from tests.audit import plant
from tests.spark import planted

from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import audit
from brokerd.spark import checks
from brokerd.spark.views import views

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
    return rows(row for one in audit(open_source(made[0]), OPTIONS) for row in one.audits)


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
        assert (name, row["verdict"], row["found"]) == (name, "violated", len(faults.seqs))


def test_a_fault_is_seen_by_no_audit_that_it_does_not_touch(in_sql, made):
    for (queue, name), row in in_sql.items():
        if queue in made[1] and name not in (queue, "group_fifo"):
            assert row["found"] == 0 or name in made[1][queue].touches, (queue, name)


def test_of_queues_in_order_every_audit_holds_but_that_of_groups(in_sql):
    for queue in ("plain", "levels"):
        said = {row["audit"]: row["verdict"] for key, row in in_sql.items() if key[0] == queue}
        said.pop("group_fifo")
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


def test_every_kind_of_fault_that_can_be_planted_has_a_rule():
    assert set(plant.PLANTS) <= set(checks.CHECKS)
