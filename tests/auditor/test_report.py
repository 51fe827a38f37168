import html.parser
import re

import pytest
from tests.auditor import samples

from brokerd.audit import octets
from brokerd.audit.verdicts import OF_USE
from brokerd.auditor import report

VOID = {"meta", "line", "rect", "circle", "path", "polyline", "polygon", "br"}


class Page(html.parser.HTMLParser):
    """What a page holds: ids, links, elements, text; fails on elements that are not closed."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.tags, self.text, self.open = [], [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append((tag, values))
        if "id" in values:
            self.ids.append(values["id"])
        if "href" in values:
            self.links.append(values["href"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


def page(made):
    return Page(report.render(*made))


def test_the_report_is_one_file_that_needs_nothing_from_outside(tmp_path):
    path = report.write(str(tmp_path / "made" / "here"), *samples.orders())
    assert path == str(tmp_path / "made" / "here" / "report.html")
    assert [file.name for file in (tmp_path / "made" / "here").iterdir()] == ["report.html"]
    text = (tmp_path / "made" / "here" / "report.html").read_text("utf-8")
    found = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "form"} & {tag for tag, _ in found.tags}
    assert "@import" not in text
    assert "url(" not in text
    assert all(link.startswith("#") for link in found.links)


@pytest.mark.parametrize("made", [samples.orders, samples.forty, lambda: samples.summary([]),
                                  lambda: samples.summary(["a", "b", "c"], hours=1)])
def test_every_link_leads_somewhere_and_no_place_is_named_twice(made):
    found = page(made())
    assert len(set(found.ids)) == len(found.ids)
    assert {link.removeprefix("#") for link in found.links} <= set(found.ids)


@pytest.mark.parametrize("names", [["orders"], [f"queue-{n}" for n in range(40)]])
def test_every_cell_of_the_table_leads_to_a_reason_and_says_its_verdict_in_a_word(names):
    violated, undecided = [(names[0], "fifo", 3)], [(names[0], "holes")]
    summary, findings = samples.summary(names, violated=violated, undecided=undecided, hours=3)
    text = report.render(summary, findings)
    cells = re.findall(r'<a class="cell (\w+)" href="#(q\d+-rule\d+)".*?</a>', text)
    assert len(cells) == len(names) * len(samples.AUDITS)
    assert all(f"<span>{verdict}</span>" in cell for verdict, cell in
               re.findall(r'<a class="cell (\w+)" (.*?)</a>', text))
    assert {anchor for _, anchor in cells} <= set(Page(text).ids)


def test_names_that_a_stranger_chose_are_text():
    text = report.render(*samples.forty())
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert not [values for _, values in Page(text).tags if any(key.startswith("on") for key in values)]


def test_details_reasons_and_options_are_text_too():
    bad = "<img src=x onerror=alert(1)>"
    summary, _ = samples.orders()
    summary["options"][bad] = bad
    summary["audits"][0].update(reason=bad)
    summary["queues"][0]["consumers"][0].update(tag=bad, peer=bad, user=bad)
    summary["stages"][0]["name"] = summary["source"] = bad
    finding = samples.finding("orders", "publish_order", 17, bad) | {"file": bad}
    assert "<img" not in report.render(summary, [finding])


def test_marks_that_turn_writing_around_are_written_out():
    assert report.shown("a\u202eb\x00\ud800é ü") == "a\\u202eb\\u0000\\ud800é ü"
    assert "\u202e" not in report.render(*samples.forty())


def test_the_headline_tells_broken_promises_from_consequences_of_use():
    def said(violated, undecided=()):
        return report.headline(samples.summary(["a", "b"], violated=violated, undecided=undecided, hours=1)[0])

    count = 2 * len(samples.AUDITS)

    assert said([]) == f"All {count} judgements over 2 queues held."
    assert said([("a", "fifo", 2)]) == (f"1 of {count} judgements over 2 queues found a promise of the broker broken: "
                                        "first in, first out in a (2 found).")
    assert said([("b", "overtaking", 2)]).startswith(
        f"The broker kept every promise. What 1 of {count}")
    assert said([], [("a", "holes")]) == (
        f"Nothing was violated, but 1 of {count} judgements over 2 queues cannot be decided: no holes in a.")
    assert report.headline(samples.summary([])[0]) == "There was nothing to judge."


def test_overtaking_is_explained_by_the_consumers_there_were():
    words = page(samples.summary(["orders"], violated=[("orders", "overtaking", 212)], hours=1)).words
    assert "212 found with 1,908 overtakings" in words
    assert "This queue had 1 consumer with a prefetch of up to 50." in words


def test_what_is_undecidable_says_what_is_missing():
    words = page(samples.summary(["orders"], undecided=[("orders", "fifo")], hours=1)).words
    assert "the broker started after a loss of power" in words
    assert "To decide it needs the order journal of the queue over the whole life of its messages" in words


def test_a_hundred_findings_of_each_audit_are_shown_with_their_place():
    found = page(samples.summary(["orders"], violated=[("orders", "fifo", 212)], hours=1))
    assert "100 findings, the first of 212" in found.words
    rows = [text for text in found.text if text == "kept/msgs.0000000003"]
    assert len(rows) == report.FINDINGS_EACH


def test_very_many_findings_still_are_a_page_and_no_queue_is_left_without():
    names = [f"queue-{n}" for n in range(60)]
    made = samples.summary(names, violated=[(name, "fifo", 200) for name in names], hours=1)
    kept = report._findings(made[1])
    assert len(kept) == 60
    assert sum(map(len, kept.values())) <= report.FINDINGS_IN_ALL


def test_queues_with_violations_come_first():
    summary, findings = samples.forty()
    pages = report._queues(report.ranked(summary), findings)
    ranks = [report.SEVERITY[page["verdict"]] for page in pages]
    assert ranks == sorted(ranks)


def test_a_queue_without_anything_measured_is_shown():
    summary = {"schema": 1, "brokerd": "0.1.0", "made": samples.AT, "source": "x", "cut": None, "inputs": {}, "exit": 3,
               "verdict": "violated", "queues": [],
               "audits": [samples.audit_row("bare", "fifo", "undecidable", reason="no journal"),
                          samples.audit_row("bare", "new_audit", "violated", 3)]}
    words = page((summary, [])).words
    assert "bare" in words
    assert "New audit" in words


def test_a_queue_without_a_journal_has_no_counters_instead_of_zeros():
    made = samples.summary(["orders", "bare"], hours=1)
    made[0]["queues"][1] |= {"journaled": False, "counters": None}
    words = page(made).words
    assert words.count("Not known: the queue has no order journal, from which it could be counted.") == 1


def test_times_that_damage_made_are_shown_as_they_are():
    assert report.moment(2 ** 63 - 1) == "2262-04-11 23:47:16.854775"
    assert report.moment(2 ** 70) == f"{2 ** 70} ns"
    assert report.moment(0) == report.moment(None) == "–"
    assert report.moment(samples.AT + 1_500) == "2026-01-01 00:00:00.000001"


def test_every_audit_has_its_rule_in_words():
    for audit in samples.AUDITS:
        rule = report.RULES[audit]
        assert rule.rule.endswith(".")
        assert rule.broken.endswith(".")
        assert rule.origin in report.ORIGINS


def test_what_an_audit_finds_is_an_effect_of_use_where_its_rule_says_so():
    for audit, rule in report.RULES.items():
        assert (rule.origin == report.PROMISE) == (audit not in OF_USE), audit


def test_effects_of_use_are_a_state_of_their_own_with_its_own_colour():
    made = samples.summary(["orders"], violated=[("orders", "overtaking", 2)], hours=1)
    assert (made[0]["verdict"], made[0]["exit"]) == ("effects of use", 0)
    text = report.render(*made)
    assert '<section class="banner effects"' in text
    assert "kept, with effects of use</strong>" in text
    assert "violated 0" in Page(text).words
    for scheme in text.split("@media (prefers-color-scheme: dark)")[:2]:
        colours = re.findall(r"--(held|violated|undecidable|effects): (#\w+)", scheme.split("@media print")[0])
        assert len(set(colours[:4])) == 4
        assert len({colour for _, colour in colours[:4]}) == 4


def test_the_head_says_when_of_what_and_by_which_version():
    text = report.render(*samples.orders())
    head = Page(text[text.index('<dl class="head">'):text.index("</dl>")] + "</dl>").words
    assert head == ("Made 2026-01-02 16:00:00 UTC Path /var/lib/brokerd-dump/2026-01-02 "
                    "Period 2026-01-01 00:00:00 to 2026-01-02 06:00:00 UTC Version brokerd 0.1.0")


def test_no_number_of_nanoseconds_and_no_name_of_a_folder_is_left_for_people_to_read():
    words = page(samples.orders()).words
    assert not re.search(r"\b\d{16,}\b", words)
    assert not re.search(r"\b[0-9a-f]{40}\b", words)


def test_options_are_said_in_words():
    summary, findings = samples.orders()
    summary["options"] |= {"audits": ["fifo"], "from_ns": samples.AT, "to_ns": 0, "fail_on": "any", "engine": "a",
                           "queues": None, "delivery_limit": None, "findings_max": 100_000, "later": 7}
    words = page((summary, findings)).words
    for said in ("Checksums checked", "A message may stay with a consumer for 30 min", "Audits First in, first out",
                 "Equal message-ids are duplicates within 5 min", "Messages published before any time", "later 7",
                 "Messages published since 2026-01-01 00:00:00 UTC", "Delivery limit as in the queues' settings",
                 "Findings written at most 100,000 of each audit of a queue", "Queues all"):
        assert said in words, said
    assert "_ns" not in words
    assert "None" not in words


@pytest.mark.parametrize(("vhost", "queue", "rest"), [
    ("/", "orders", "message trace orders 17"),
    ("a b", "it's", "message trace --vhost 'a b' 'it'\"'\"'s' 17"),
    ("/", "-x", "message trace -- -x 17"),
])
def test_beside_a_finding_stands_the_command_that_shows_the_messages_life(vhost, queue, rest, monkeypatch):
    found = samples.finding(queue, "fifo", 17, "") | {"vhost": vhost}
    monkeypatch.setattr(report.shutil, "which", lambda name: f"/bin/{name}")
    assert report.trace_line("/a dump", found) == f"brokerctl -D '/a dump' {rest}"
    assert report.trace_line("s3://bucket/a", found) == report.trace_line("/x", found | {"seq": 0}) == ""
    assert report.trace_line("/x", found | {"queue": "a\u202eb"}) == ""


def test_each_finding_that_is_shown_has_its_command():
    text = report.render(*samples.summary(["orders"], violated=[("orders", "fifo", 7)], hours=1))
    assert text.count('<code class="trace">') == 7
    assert "message trace orders 35</code>" in text


def test_a_program_that_no_shell_finds_is_named_by_its_path(monkeypatch, tmp_path):
    monkeypatch.setattr(report.shutil, "which", lambda name: None)
    monkeypatch.setattr(report.sys, "executable", str(tmp_path / "python"))
    assert report.brokerctl() == "brokerctl"
    (tmp_path / "brokerctl").touch()
    assert report.brokerctl() == str(tmp_path / "brokerctl")


@pytest.mark.parametrize(("number", "said"), [
    (None, "–"), (0, "0 B"), (999, "999 B"), (1_000, "1 kB"), (16_600, "16.6 kB"), (999_600, "1 MB"),
    (999_400, "999 kB"), (2_820_114_227, "2.82 GB"), (5.4 * 10 ** 13, "54 TB")])
def test_sizes_have_three_digits(number, said):
    assert octets(number) == said
