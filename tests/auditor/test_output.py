"""What an audit writes and prints."""

import pyarrow.parquet
from tests.auditor import samples

from brokerd.auditor.output import disagreements, show, where, write_findings


def test_findings_replace_those_of_an_earlier_run_and_keep_names_that_are_no_utf_8(tmp_path):
    (tmp_path / "part-00007.parquet").write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    write_findings(str(tmp_path), [samples.finding("a\udcff", "fifo", 7, "late")])
    row, = pyarrow.parquet.read_table(tmp_path / "part-00000.parquet").to_pylist()
    assert (row["queue"], row["audit"], row["seq"], row["detail"]) == ("a\ufffd", "fifo", 7, "late")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "part-00000.parquet"]


def test_two_lists_of_verdicts_are_compared_by_what_both_have():
    ours = [samples.audit_row("q", "fifo", found=1), samples.audit_row("q", "overtaking", overtakings=3),
            samples.audit_row("q", "unacked", found=4)]
    theirs = [samples.audit_row("q", "fifo", found=2), samples.audit_row("q", "overtaking", overtakings=3)]
    assert disagreements(ours, theirs) == ["fifo of 'q' in '/': found is 1 by a, 2 by b"]


def test_what_did_not_hold_is_printed_before_the_line_about_all(capsys):
    document, _ = samples.summary(["one", "two"], violated=[("two", "fifo", 5)], undecided=[("one", "holes")])
    show(document)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("undecidable    holes                 /: one")
    assert lines[1].startswith("violated       fifo                  /: two 5 of ")
    assert lines[2].startswith("violated: 28 held, 1 violated, 1 undecidable; 2 queues, 260 segments, ")
    assert where({"vhost": "/", "queue": "\u202eq"}) == "/: \\u202eq"


def test_queues_without_a_hash_chain_are_counted_behind_the_verdict_and_have_no_line_among_the_faults(capsys):
    document, _ = samples.summary(["one", "two"])
    document["audits"] += [samples.audit_row(name, "chain") | {"verdict": "covers nothing"} for name in ("one", "two")]
    show(document)
    line, = capsys.readouterr().out.splitlines()
    assert line.startswith("held: ")
    assert line.endswith(" events, 2 queues without a hash chain")
