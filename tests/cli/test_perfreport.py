"""The page of brokerperf's runs: what stands in it, and that it needs nothing from outside."""

import re
from html.parser import HTMLParser

from brokerd.cli._perf import Histogram
from brokerd.cli.perfreport import Done, write
from brokerd.cli.perfsample import Record, Sample, Waits

EVIL = '<script>alert("x")</script>'


class Page(HTMLParser):
    """The page's tags in order; fails on a tag that is not closed."""

    VOID = ("meta",)

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open, self.text = [], [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def record(samples=3):
    made = Record()
    for at in range(1, samples + 1):
        made.add(Sample(at, 1.0, {"publish": 100 * at, "consume": 90 * at},
                        {"latency": Waits(100.0, 2000.0, 5000.0 * at)}, 0.5, 20_000))
    if samples:
        made.spreads["latency"] = Histogram()
        for ns in (90_000, 100_000, 3_000_000):
            made.spreads["latency"].record(ns)
    return made


def page_of(tmp_path, *runs):
    write(str(tmp_path / "report.html"), runs)
    text = (tmp_path / "report.html").read_text()
    return text, Page(text)


def test_a_run_has_its_figures_and_a_plot_of_each_thing_measured(tmp_path):
    figures = {"command": "latency", "published": 12345, "latency_us": {"p50": 1.5, "p99": 2.5}, "interrupted": True}
    text, page = page_of(tmp_path, Done("plain", "brokerperf latency", figures, record()))
    assert re.findall(r"<h3>(.*?)</h3>", text) == [
        "Rates", "Latency by second", "Latency: all", "Broker: processor", "Broker: memory"]
    assert page.tags.count("svg") == 5
    assert "12,345" in text
    assert "latency us" in text
    assert "latency in ms" in text
    assert '<polyline points="' in text


def test_the_page_asks_nobody_for_anything(tmp_path):
    text, page = page_of(tmp_path, Done("a", "b", {}, record()))
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not [value for name, value in page.attributes if name in ("src", "href") and not value.startswith("#")]
    assert "url(" not in text
    assert "default-src 'none'" in text


def test_what_people_wrote_is_text(tmp_path):
    text, page = page_of(tmp_path, Done(EVIL, EVIL, {"queue": EVIL}, record(0), EVIL), Done("two", "", {}, record(1)))
    assert "script" not in page.tags
    assert page.text.count(EVIL) == 6     # title, list of runs, heading, command, error, figure
    assert text.count("<section") == 2


def test_a_run_that_failed_at_once_has_its_error_and_no_plots(tmp_path):
    text, page = page_of(tmp_path, Done("a", "b", {"command": "churn"}, record(0), "127.0.0.1:1: Connection refused"))
    assert "127.0.0.1:1: Connection refused" in text
    assert "svg" not in page.tags


def test_the_former_page_stays_where_the_new_one_cannot_be_written(tmp_path):
    (tmp_path / "report.html.partial").mkdir()
    (tmp_path / "report.html").write_text("former")
    try:
        write(str(tmp_path / "report.html"), [Done("a", "b", {}, record())])
    except OSError:
        pass
    else:
        raise AssertionError("a folder was written to")
    assert (tmp_path / "report.html").read_text() == "former"
