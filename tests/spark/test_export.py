"""Tables as Parquet: every row once, in the folder of its vhost, queue and day, as other programs read them."""

import os
import urllib.parse

import numpy as np
import pyarrow.dataset
import pyarrow.parquet
import pytest
from tests.audit import writer

from brokerd.audit import AuditError
from brokerd.audit.files import open_source
from brokerd.spark import export as module
from brokerd.spark import tables
from brokerd.spark.export import NO_DAY, export, folder, write_tables

DAY = 86_400 * 10 ** 9
START = 19_800 * DAY - 100 * 4 * 10 ** 9        # 100 messages, 4 s each, before a midnight
NAMES = ["orders", "a/b c=d%ä", "ж" * 120, "x\udcff", "."]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    cut = writer.Options(segment_messages=64, kept=True)
    for index, name in enumerate(NAMES):
        level = writer.simple_level(150, start=START, step=10 ** 9)
        writer.write_queue(root, level, cut, queue="q", folder=f"q{index}")
        (root / "vhost" / f"q{index}" / ".queue").write_bytes(name.encode("utf-8", "surrogateescape"))
    return str(root)


def rows_of(path):
    return pyarrow.dataset.dataset(path, partitioning="hive").to_table().to_pylist()


@pytest.mark.parametrize("workers", [1, 2])
def test_every_row_is_written_once_to_the_folder_of_its_day(root, tmp_path, monkeypatch, workers):
    monkeypatch.setattr(module, "PACK_OCTETS", 10_000)
    queues, read = open_source(root).queues(), []
    counts = export(root, queues, str(tmp_path / "out"), workers=workers, progress=read.append)
    assert counts == {"messages": 750, "events": 1500, "lifecycle": 750, "segments": 15, "acks": 750}
    assert sum(read) == sum(triple.octets for queue in queues for triple in queue.triples)
    assert not (tmp_path / "out.partial").exists()
    for table, time in module.DAY_OF.items():
        rows = rows_of(tmp_path / "out" / table)
        assert len(rows) == counts[table]
        assert {str(np.datetime64(row[time] // DAY, "D")) for row in rows} == {"2024-03-17", "2024-03-18"}
        assert all(str(row["day"]) == str(np.datetime64(row[time] // DAY, "D")) for row in rows)
        expected = []
        for queue in queues:
            for triple in queue.triples:
                names = [name for name in tables.TABLES[table] if name not in ("vhost", "queue")]
                schema = tables.pa.schema([tables.pa.field(n, tables.ARROW[tables.TABLES[table][n]]) for n in names])
                for batch in tables.batches(table, open_source(root), triple, schema):
                    expected += [sorted(row.items()) for row in batch.to_pylist()]
        mine = [sorted((k, v) for k, v in row.items() if k not in ("vhost", "queue", "day")) for row in rows]
        assert sorted(map(repr, mine)) == sorted(map(repr, expected))


def test_readers_find_the_names_of_queues_in_the_folders(root, tmp_path):
    write_tables(root, open_source(root).queues(), str(tmp_path), ["segments"])
    rows = rows_of(tmp_path / "segments")
    assert {row["vhost"] for row in rows} == {"/"}
    found = {row["queue"] for row in rows}
    assert found >= {"orders", "a/b c=d%ä", "."}
    assert len(found) == len(NAMES)


def test_a_name_that_no_folder_can_hold_is_cut_and_remains_its_own():
    long = folder("queue", "ж" * 120)
    assert len(long) <= 255
    assert urllib.parse.unquote(long).startswith("queue=" + "ж" * 39 + "~"), long
    assert long != folder("queue", "ж" * 121)
    assert folder("queue", "x\udcff") != folder("queue", "x\udcfe")
    assert folder("vhost", "/") == "vhost=%2F"


def test_rows_without_a_time_have_a_folder_of_their_own(tmp_path):
    root = writer.write_queue(tmp_path / "data", writer.simple_level(0))
    assert export(root, open_source(root).queues(), str(tmp_path / "out"), ["segments"]) == {"segments": 1}
    path, = (tmp_path / "out").rglob("*.parquet")
    assert path.parent.name == f"day={NO_DAY}"


def test_nothing_is_written_over_what_an_export_did_not_make(root, tmp_path):
    queues = open_source(root).queues("orders")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(AuditError, match="out is not empty"):
        export(root, queues, str(tmp_path / "out"))
    with pytest.raises(AuditError, match=r"mine\.txt is not a folder"):
        export(root, queues, str(tmp_path / "out" / "mine.txt"))
    assert os.listdir(tmp_path / "out") == ["mine.txt"]
    tables_of_audit = tmp_path / "tables"
    for _ in range(2):                  # --to-parquet replaces what it wrote before.
        write_tables(root, queues, str(tables_of_audit))
    assert len(rows_of(tables_of_audit / "messages")) == 150
