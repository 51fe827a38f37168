"""Tables of all queues for a report that shows only the worst: every queue once, and nothing from outside."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from tests.auditor import samples

from brokerd.auditor import overview, report
from brokerd.auditor.output import write_report

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def many():
    """2,345 queues; the last but one is violated, and one has a hostile name."""
    names = [*(f"tenant-{number:04}" for number in range(2343)), "bad", HOSTILE]
    summary, findings = samples.summary(names[-3:] + names[:20], violated=[("bad", "fifo", 7)], hours=3)
    for name in names[20:-3]:
        summary["audits"] += [row | {"queue": name} for row in summary["audits"][-2:]]
        summary["queues"].append(summary["queues"][-1] | {"queue": name})
    return summary, findings


def names_in(page):
    table = ElementTree.fromstring(re.search(r"<table>.*?</table>", page, re.DOTALL)[0].replace("&nbsp;", " "))
    return ["".join(row.find("th").itertext()) for row in table.find("tbody")]


def test_each_queue_stands_once_in_the_tables_and_the_worst_in_the_report(many, tmp_path):
    summary, findings = many
    path = write_report(str(tmp_path), summary, findings)
    files = sorted(tmp_path.glob("queues-*.html"), key=lambda file: int(re.search(r"\d+", file.name)[0]))
    assert [file.name for file in files] == ["queues-1.html", "queues-2.html", "queues-3.html"]
    told = [name for file in files for name in names_in(file.read_text())]
    assert sorted(told) == sorted(queue["queue"] for queue in summary["queues"])
    assert told[0] == "bad"
    page = Path(path).read_text()
    assert page.count('<details class="queue card"') == report.QUEUES_IN_FULL
    linked = re.findall(r'<a href="(queues-\d+\.html)">([\d,]+) to ([\d,]+)</a>', page)
    assert linked == [("queues-1.html", "1", "1,000"), ("queues-2.html", "1,001", "2,000"),
                      ("queues-3.html", "2,001", "2,345")]


def test_a_row_says_what_did_not_hold_and_text_of_strangers_stays_text(many):
    pages = dict(overview.render(many[0]))
    first = pages["queues-1.html"]
    assert re.search(r"<bdi>bad</bdi>.*?violated</b>.*?First in, first out</b> 7 messages, the first", first)
    assert any("&lt;script&gt;" in page for page in pages.values())
    for page in pages.values():
        assert "<script" not in page
        assert not re.search(r'(?:src|href)="(?!report\.html|queues-\d\.html)', page)
        assert len(page) < 1_000_000
    assert '<a href="queues-2.html">1,001 to 2,000</a>' in first
    assert '<a href="queues-1.html">1 to 1,000</a>' in pages["queues-2.html"]


def test_tables_of_an_earlier_report_are_removed(many, tmp_path):
    (tmp_path / "queues-mine.html").write_text("mine")
    assert len(overview.write(str(tmp_path), many[0])) == 3
    few, _ = samples.orders()
    assert overview.write(str(tmp_path), few) == []
    assert [file.name for file in tmp_path.iterdir()] == ["queues-mine.html"]


def test_ten_thousand_queues_make_a_report_of_less_than_five_megabytes(many):
    summary, findings = many
    some = summary["queues"][3]
    bulk = [some | {"queue": f"more-{number:05}"} for number in range(7655)]
    rows = [row | {"queue": queue["queue"]} for queue in bulk for row in summary["audits"][14:28]]
    large = summary | {"queues": summary["queues"] + bulk, "audits": summary["audits"] + rows}
    assert len(report.render(large, findings).encode()) < 5_000_000
    pages = dict(overview.render(large))
    assert len(pages) == 10
    assert sum(len(page.encode()) for page in pages.values()) < 5_000_000


def test_a_long_reason_is_cut():
    row = samples.audit_row("q", "holes", "undecidable", reason="x" * 400)
    assert overview._reason(row) == "x" * overview.REASON_MAX + " …"
    assert overview._reason(row | {"reason": None}) == ""
