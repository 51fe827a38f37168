import runpy
import sys

import pytest
from tests.audit.writer import Options, simple_level, write_queue
from tests.broker import ROOT

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
