"""``brokerctl export``: tables as Parquet, and one line for what cannot be done."""

import pyarrow.dataset
import pytest
from tests.audit import writer

from brokerd.auditor import request
from brokerd.cli.brokerctl import run


@pytest.fixture
def root(tmp_path):
    writer.write_queue(tmp_path / "data", writer.simple_level(30), queue="orders")
    return writer.write_queue(tmp_path / "data", writer.simple_level(20), queue="other", folder="q2")


def test_tables_are_written_and_counted(root, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(["export", root, str(out), "--queues", "ord*", "--tables", "messages, events"]) == 0
    assert capsys.readouterr() == (f"{out}: 1 queue; rows: 30 in messages, 60 in events\n", "")
    assert sorted(path.name for path in out.iterdir()) == ["events", "messages"]
    rows = pyarrow.dataset.dataset(out / "messages", partitioning="hive").to_table().to_pylist()
    assert {(row["vhost"], row["queue"], row["day"]) for row in rows} == {("/", "orders", "2023-11-14")}


def test_what_is_damaged_is_told_and_ends_with_status_3(root, tmp_path, capsys):
    (path,) = (tmp_path / "data").glob("*/q2/msgs.0000000001")
    with open(path, "r+b") as file:
        file.seek(64 + 70)
        file.write(b"\xff\xff")
    name = path.relative_to(tmp_path / "data")
    out = tmp_path / "out"
    assert run(["export", root, str(out), "--tables", "messages"]) == 3
    told, remarks = capsys.readouterr()
    assert told.startswith(f"{out}: 2 queues; rows: ")
    first, last = remarks.splitlines()
    assert first.startswith(f"brokerctl: {name} at 64: ")
    assert last == "brokerctl: not all could be exported: 1 damaged place"
    assert run(["export", root, str(tmp_path / "other"), "--tables", "messages", "--queues", "orders"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("arguments", "told"), [
    (["/nowhere/at/all", "{out}"], "/nowhere/at/all: no such folder"),
    (["{root}", "{out}", "--tables", "messages,rows"],
     "no such table: rows (there are messages, events, lifecycle, segments, acks)"),
    (["{root}", "{out}", "--tables", ","],
     "no such table: ',' (there are messages, events, lifecycle, segments, acks)"),
    (["{root}", "{root}"], "{root} is not empty"),
])
def test_what_cannot_be_done_is_said_in_a_line(root, tmp_path, capsys, arguments, told):
    places = {"root": root, "out": tmp_path / "out"}
    assert run(["export", *(argument.format_map(places) for argument in arguments)]) == 2
    assert capsys.readouterr() == ("", f"brokerctl: {told.format_map(places)}\n")
    assert not (tmp_path / "out").exists()


def test_without_pyarrow_it_says_what_installs_it(root, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(request.PACKAGES, "report", ("jinja2", "no_such_package"))
    assert run(["export", root, str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("brokerctl: an export needs no_such_package, which this Python does not")
