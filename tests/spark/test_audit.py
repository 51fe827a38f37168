"""The program ordering_audit: its verdicts, its exit codes, what it writes, and one line for what cannot be done."""

import json
import os
import signal
import time

import pyarrow.parquet
import pytest
from tests.audit import writer

from brokerd import __version__
from brokerd.audit.files import open_source
from brokerd.audit.scan import AUDITS, Options
from brokerd.audit.verdicts import audit
from brokerd.spark import audit as program
from brokerd.spark import engine
from brokerd.spark.audit import main
from brokerd.store import format as layout

CUT = writer.Options(segment_messages=100, kept=True)
PLAIN = writer.Options(segment_messages=100, journal=False)


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Data directories: the order held in one, did not in another (one swap lies over a boundary of segments), and
    cannot be judged in the third."""
    folder = tmp_path_factory.mktemp("roots")
    writer.write_queue(folder / "good", writer.simple_level(450), CUT, queue="fine")
    writer.write_queue(folder / "bad", writer.simple_level(450), CUT, queue="fine")
    writer.write_queue(folder / "bad", writer.swapped(450, 20, 199), CUT, queue="swapped", folder="q2")
    writer.write_queue(folder / "unknown", writer.simple_level(450), PLAIN, queue="no journal")
    return {name: str(folder / name) for name in ("good", "bad", "unknown")}


@pytest.mark.parametrize(("name", "arguments", "code", "last"), [
    ("good", [], 0, "held: "),
    ("bad", [], 1, "violated: "),
    ("bad", ["--queues", "fine"], 0, "held: "),
    ("bad", ["--fail-on", "fifo,damage"], 0, "violated: "),
    ("bad", ["--fail-on", "none"], 0, "violated: "),
    ("bad", ["--fail-on", "publish_order"], 1, "violated: "),
    ("bad", ["--audits", "damage,holes"], 0, "held: 4 held, 0 violated, 0 undecidable; 2 queues"),
    ("unknown", [], 3, "undecidable: "),
    ("unknown", ["--audits", "publish_order"], 0, "held: 1 held"),
    ("good", ["--queues", "none*"], 0, "held: 0 held, 0 violated, 0 undecidable; 0 queues"),
])
def test_the_exit_code_is_the_verdict(spark, roots, capsys, name, arguments, code, last):
    assert main([roots[name], *arguments]) == code
    assert capsys.readouterr().out.splitlines()[-1].startswith(last)


def test_all_that_is_found_is_written(spark, roots, tmp_path, capsys):
    out, began = tmp_path / "out", time.time_ns()
    assert main(["--segments", roots["bad"], "--report", str(out), "--to-parquet", str(tmp_path / "tables")]) == 1
    document = json.loads((out / "summary.json").read_text())
    expected = audit(open_source(roots["bad"]))
    assert document["audits"] == [row for judged in expected for row in judged.audits]
    assert document["queues"] == json.loads(json.dumps([judged.queue for judged in expected]))
    assert (document["schema"], document["brokerd"], document["exit"]) == (1, __version__, 1)
    assert began <= document["made"] <= time.time_ns()
    assert document["inputs"] == {"queues": 2, "segments": 10, "messages": 900, "events": 1800,
                                  "octets": document["inputs"]["octets"]}
    assert [stage["name"] for stage in document["stages"]][:3] == ["finding files", "starting Spark", "reading"]
    findings = pyarrow.parquet.read_table(out / "findings").to_pylist()
    assert findings == [finding for judged in expected for finding in judged.findings]
    assert [(f["audit"], f["queue"], f["seq"]) for f in findings] == [
        ("publish_order", "swapped", 22), ("publish_order", "swapped", 201)]
    assert "swapped" in (out / "report.html").read_text()
    assert spark.read.parquet(str(tmp_path / "tables" / "messages")).count() == 900
    said = capsys.readouterr()
    assert "violated    publish_order         /: swapped 2 of 450" in said.out
    assert "MB/s" in said.err
    assert main([roots["good"], "--report", str(out)]) == 0
    assert pyarrow.parquet.read_table(out / "findings").num_rows == 0, "findings of an earlier run are left"


def test_it_is_the_same_judged_by_the_executors(spark, roots):
    queues = open_source(roots["bad"]).queues()
    work = engine.work_of(queues)
    rows = engine.summaries(spark, work, Options())
    here = engine.judge_here(roots["bad"], queues, rows.collect(), Options())
    there = engine.judge_in_tasks(spark, roots["bad"], queues, rows, Options())
    assert here == there == audit(open_source(roots["bad"]))


def test_damage_is_a_finding_and_no_failure(spark, tmp_path):
    root = writer.write_queue(tmp_path / "data", writer.simple_level(300), CUT)
    kept = tmp_path / "data" / "vhost" / "queue" / "kept"
    (kept / layout.segment_name(1)).write_bytes(b"\x00" * 10)
    (kept / "msgs.backup").write_text("hello")
    os.truncate(kept / layout.journal_name(2), 999)
    assert main([root, "--report", str(tmp_path / "out"), "--audits", "damage"]) == 1
    findings = pyarrow.parquet.read_table(tmp_path / "out" / "findings").to_pylist()
    named = {finding["file"].rpartition("/")[2] for finding in findings}
    assert named >= {layout.segment_name(1), "msgs.backup", layout.journal_name(2)}


@pytest.mark.parametrize(("arguments", "said"), [
    ([], "name one folder"),
    (["a", "--segments", "b"], "name one folder"),
    (["/nowhere/at/all"], "/nowhere/at/all: no such folder"),
    (["{good}", "--audits", "fivo"], "no such audit: 'fivo'"),
    (["{good}", "--fail-on", "some"], "no such audit: 'some'"),
    (["{good}", "--from", "yesterday"], "'yesterday' is no time"),
    (["{good}", "--engine", "c"], "'c' is not one of 'a', 'b', 'both'"),
    (["{good}", "--group-by", "type", "--group-header", "x"], "exclude each other"),
    (["{good}", "--group-by", "priority"], "'priority' is not one of 'routing-key', 'content-type'"),
    (["{good}", "--report", "/proc/nothing"], "/proc/nothing: "),
    (["{file}"], "is not a folder"),
    (["{empty}"], "no data directory, dump or archive"),
    (["{partial}"], "a dump that was not finished"),
    (["{unfinished}"], "its dump was not finished: there is only "),
    (["{torn}"], "manifest.json: is not a JSON document"),
])
def test_what_cannot_be_done_is_said_in_a_line(roots, tmp_path, capsys, arguments, said):
    (tmp_path / "file").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "dump.partial").mkdir()
    writer.write_queue(tmp_path / "torn", writer.simple_level(3))
    (tmp_path / "torn" / "manifest.json").write_text('{"manifest": 1, ')
    places = {**roots, "file": tmp_path / "file", "empty": tmp_path / "empty", "partial": tmp_path / "dump.partial",
              "unfinished": tmp_path / "dump", "torn": tmp_path / "torn"}
    assert main([argument.format_map(places) for argument in arguments]) == 2
    told = capsys.readouterr()
    assert said in told.err.splitlines()[-1]
    assert told.out == ""


def test_times_are_utc_unless_they_say_otherwise():
    assert program._moment("2026-01-31T12:00") == program._moment("2026-01-31T13:00+01:00") == 1769860800 * 10 ** 9
    assert program._moment("2026-01-31T12:00:00.000123") == 1769860800000123000
    assert program._moment("1769860800000000001") == 1769860800000000001


def test_engines_that_disagree_are_told(spark, roots, monkeypatch, capsys):
    rows = [row for judged in audit(open_source(roots["good"])) for row in judged.audits]
    monkeypatch.setattr(program, "engine_b", lambda *_: rows)
    assert main([roots["good"], "--engine", "both"]) == 0
    rows[1] |= {"found": 7, "verdict": "violated"}
    assert main([roots["good"], "--engine", "both"]) == 2
    told = capsys.readouterr().err
    assert f"the engines disagree: {rows[1]['audit']} of 'fine' in '/': found is 0 by a, 7 by b" in told


def test_the_audits_of_the_help_are_those_that_there_are(capsys):
    assert main(["--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert all(name in told for name in AUDITS)


def test_what_a_worker_raises_is_told_in_its_own_words(spark, roots, monkeypatch, capsys):
    def fail(*_):
        raise ValueError("two\nlines")

    frame = spark.sparkContext.parallelize([1])
    monkeypatch.setattr(program.engine, "summaries", lambda *_: frame.map(fail))
    assert main([roots["good"]]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "ordering_audit: ValueError: two"
    monkeypatch.undo()
    monkeypatch.setattr(program.engine, "work_of", lambda queues: [
        engine.Work(0, 0, queues[0].triples[0]._replace(root="/not/on/this/worker"))])
    assert main([roots["good"]]) == 2
    assert "/not/on/this/worker: no such folder on worker" in capsys.readouterr().err.splitlines()[-1]


def test_an_audit_that_is_interrupted_ends_quietly_with_status_130(spark, roots, monkeypatch, capsys):
    monkeypatch.setattr(program, "_audited", lambda *_: signal.raise_signal(signal.SIGINT))
    assert main([roots["good"]]) == 130
    told = capsys.readouterr()
    assert told.out == ""
    assert all(" took " in line or " segments, " in line for line in told.err.splitlines()), told.err
    assert spark.sparkContext.parallelize([1]).count() == 1, "the session of the caller was stopped"
