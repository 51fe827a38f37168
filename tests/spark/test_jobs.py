import json
import os
import re
import runpy
import shlex
import subprocess
import sys

import pytest
from tests.audit.writer import Options, simple_level, write_queue
from tests.broker import ROOT

from brokerd.spark.java import JavaError, java_home

START = 1_780_000_000_000_000_000
SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    level = simple_level(30, start=START, step=SECOND)
    return write_queue(tmp_path_factory.mktemp("jobs") / "data", level, Options(segment_messages=10), queue="orders")


@pytest.fixture
def run(spark, monkeypatch, capsys):
    """Run a job in this process, with the session that is there; what it printed."""
    def job(name, *arguments):
        monkeypatch.setattr(type(spark), "stop", lambda self: None)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(ROOT / "spark_jobs" / name), run_name="__main__")
        return capsys.readouterr().out
    return job


def test_throughput_is_told_by_hour_and_written(run, spark, root, tmp_path):
    out = str(tmp_path / "out")
    said = run("throughput_report.py", root, "--out", out, "--format", "parquet")
    assert "orders" in said
    row, = spark.read.parquet(out).collect()
    assert (row.queue, row.published, row.delivered, row.settled, row.body_octets) == ("orders", 30, 30, 30, 3000)


def test_redeliveries_are_told_where_there_are_none(run, root, tmp_path):
    said = run("redelivery_report.py", root, "--queues", "ord*", "--out", str(tmp_path / "out"))
    assert "returns by cause" in said
    assert next((tmp_path / "out").glob("*.csv")).read_text().startswith("vhost,queue,priority,seq")


@pytest.mark.parametrize("name", ["throughput_report.py", "redelivery_report.py"])
def test_a_path_with_nothing_of_ours_is_told_in_one_line(run, tmp_path, name, capsys):
    with pytest.raises(SystemExit) as ended:
        run(name, str(tmp_path / "none"))
    assert ended.value.code == 2
    assert "no such folder" in capsys.readouterr().err


PAGE = (ROOT / "docs" / "prove.md").read_text("utf-8").partition("## With more machines")[2]
COMMANDS = re.findall(r"^    (.*spark_jobs/ordering_audit\.py.*)$", PAGE, re.MULTILINE)


def test_the_page_names_both_ways_to_start_the_job():
    kinds = [("spark-submit" in command, "--master" in command) for command in COMMANDS]
    assert kinds == [(False, True), (True, False)]


@pytest.mark.parametrize("command", COMMANDS, ids=["python", "spark-submit"])
def test_the_job_starts_as_the_page_says_where_no_environment_is_activated(root, tmp_path, command):
    """In place of the page's cluster, bucket and checkout stand this process, a folder, and what runs the tests."""
    try:
        environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1",
                   "PYTHONPATH": str(ROOT / "src"), "JAVA_HOME": java_home(dict(os.environ)),
                   "SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"]}
    except JavaError as error:
        pytest.skip(str(error))
    told = command.replace("spark://HOST:7077", "local[1]").replace("s3://bucket/today", root).replace(
        ".venv/bin/", os.path.dirname(sys.executable) + "/")
    *given, program = shlex.split(told.partition("spark_jobs/")[0] + "END")
    variables = dict(word.split("=", 1) for word in given if "=" in word)
    words = [*(word for word in given if "=" not in word), str(ROOT / "spark_jobs" / "ordering_audit.py")]
    words += shlex.split(told.partition("ordering_audit.py")[2])
    done = subprocess.run(words, env=environ | variables, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert program == "END"
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["verdict"], summary["inputs"]["messages"]) == ("held", 30)
    assert "starting Spark" in [stage["name"] for stage in summary["stages"]]
