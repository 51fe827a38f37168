"""The audit by Spark: the verdicts are those made without it, what fails is a line, a session of others stays."""

import json
import signal
import threading

import pyarrow.parquet
import pytest
from tests.audit import writer

from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import audit
from brokerd.auditor.request import Request, judged_by_spark
from brokerd.cli.ctl_audit import main, run
from brokerd.spark import audit as program
from brokerd.spark import engine

CUT = writer.Options(segment_messages=100, kept=True)
MASTER = ["--master", "local[2]"]


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Data directories: the order held in one, and did not in the other, where one swap lies over a boundary."""
    folder = tmp_path_factory.mktemp("roots")
    writer.write_queue(folder / "good", writer.simple_level(450), CUT, queue="fine")
    writer.write_queue(folder / "bad", writer.simple_level(450), CUT, queue="fine")
    writer.write_queue(folder / "bad", writer.swapped(450, 20, 199), CUT, queue="swapped", folder="q2")
    return {name: str(folder / name) for name in ("good", "bad")}


def test_spark_and_this_machine_write_and_print_the_same(spark, roots, tmp_path, capsys):
    documents, told, findings = [], [], []
    for name, more in (("here", []), ("spark", MASTER)):
        out = tmp_path / name
        assert main([roots["bad"], "--report", str(out), "--to-parquet", str(out / "tables"), *more]) == 1
        document = json.loads((out / "summary.json").read_text())
        stages = [stage["name"] for stage in document.pop("stages")]
        assert ("starting Spark" in stages) == bool(more), stages
        assert document.pop("made")
        documents.append(document)
        told.append(capsys.readouterr().out.splitlines()[:-1])
        findings.append(pyarrow.parquet.read_table(out / "findings").to_pylist())
        assert "swapped" in (out / "report.html").read_text()
        for table, count in (("messages", 900), ("events", 1800), ("lifecycle", 900), ("segments", 10)):
            assert spark.read.parquet(str(out / "tables" / table)).count() == count
    assert documents[0] == documents[1]
    assert told[0] == told[1]
    assert findings[0] == findings[1] != []


def test_spark_judges_from_a_size_on_or_when_it_is_asked(monkeypatch):
    small, large = 10, 5 << 30
    assert not judged_by_spark(Request("there"), small)
    assert judged_by_spark(Request("there"), large)
    for asked in ({"master": "local[1]"}, {"engine": "b"}, {"engine": "both"}, {"follow": True}):
        assert judged_by_spark(Request("there", **asked), small), asked
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert judged_by_spark(Request("there"), small)


def test_it_is_the_same_judged_by_the_executors(spark, roots):
    queues = open_source(roots["bad"]).queues()
    work = engine.work_of(queues)
    rows = engine.summaries(spark, work, Options())
    here = engine.judge_here(roots["bad"], queues, rows.collect(), Options())
    there = engine.judge_in_tasks(spark, roots["bad"], queues, rows, Options())
    assert here == there == audit(open_source(roots["bad"]))


def test_many_segments_are_judged_where_they_are_read(spark, roots, capsys):
    assert run(Request(roots["bad"], master="local[2]", judged_here_max=3)) == 1
    assert " reading and judging took " in capsys.readouterr().err


def test_engines_that_disagree_are_told(spark, roots, monkeypatch, capsys):
    rows = [row for judged in audit(open_source(roots["good"])) for row in judged.audits]
    monkeypatch.setattr(program, "engine_b", lambda *_: rows)
    assert main([roots["good"], "--engine", "both"]) == 0
    rows[1] |= {"found": 7, "verdict": "violated"}
    assert main([roots["good"], "--engine", "both"], "brokerctl audit") == 2
    told = f"brokerctl audit: the engines disagree: {rows[1]['audit']} of 'fine' in '/': found is 0 by a, 7 by b"
    assert told in capsys.readouterr().err


def test_what_a_worker_raises_is_told_in_its_own_words(spark, roots, monkeypatch, capsys):
    def fail(*_):
        raise ValueError("two\nlines")

    frame = spark.sparkContext.parallelize([1])
    monkeypatch.setattr(program.engine, "summaries", lambda *_: frame.map(fail))
    assert main([roots["good"], *MASTER]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "ordering_audit: ValueError: two"
    monkeypatch.undo()
    monkeypatch.setattr(program.engine, "work_of", lambda queues: [
        engine.Work(0, 0, queues[0].triples[0]._replace(root="/not/on/this/worker"))])
    assert main([roots["good"], *MASTER]) == 2
    assert "/not/on/this/worker: no such folder on worker" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_audit_that_is_interrupted_ends_quietly_with_status_130(spark, roots, monkeypatch, capsys, number):
    monkeypatch.setattr(program, "audited", lambda *_: signal.raise_signal(number))
    assert main([roots["good"], *MASTER]) == 130
    told = capsys.readouterr()
    assert told.out == ""
    assert all(" took " in line or " segments, " in line for line in told.err.splitlines()), told.err
    assert spark.sparkContext.parallelize([1]).count() == 1, "the session of the caller was stopped"


def test_a_session_whose_java_was_ended_too_is_no_fault():
    class Gone:
        def stop(self):
            raise ConnectionError("the JVM is gone")

    class Told:
        arrived = threading.Event()

    with pytest.raises(ConnectionError):
        program._stop(Gone(), Told)
    Told.arrived.set()
    program._stop(Gone(), Told)
