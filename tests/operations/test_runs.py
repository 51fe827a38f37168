"""Dumps and audits that go on by themselves, asked for over HTTP of a real broker."""

import os

import pytest
from tests.broker import Broker
from tests.management.http import Http, basic, reserve_http

MESSAGES = 30
# In place of the process that judges: one that goes on until its input ends.
ENDLESS = "import brokerd.operations.runs as runs; runs.JUDGE = ('-c', 'import os; os.read(0, 1)')"


def start(folder, **options):
    port = reserve_http()
    broker = Broker(folder / "data", "--http-port", port, **options).start()
    broker.wait_for_log(r"\(HTTP\)")
    broker.http = Http(port)
    return broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker whose queue has a journal; message 3 came back after four later ones had gone out."""
    broker = start(tmp_path_factory.mktemp("runs"))
    http = broker.http
    http.do("queue", "declare", queue="q", arguments={"x-order-journal": True})
    http.do("queue", "declare", queue="other", durable=True)
    for number in range(MESSAGES):
        http.do("message", "publish", exchange="", routing_key="q", payload=str(number),
                properties={"delivery_mode": 2})
    taken = http.do("message", "receive", queue="q", count=7)["items"]
    http.do("message", "nack", queue="q", receipts=taken[2]["receipt"])
    (again,) = http.do("message", "receive", queue="q", count=1)["items"]
    receipts = [row["receipt"] for row in [*taken[:2], *taken[3:], again]]
    http.do("message", "ack", queue="q", receipts=",".join(receipts))
    yield broker
    broker.stop()
    broker.check_log()


def folder_of(broker, *names):
    return os.path.join(broker.directory, "runs", *names)


def test_an_audit_goes_on_by_itself_and_tells_what_it_has_found(broker):
    http = broker.http
    begun = http.do("run", "audit", queues="q")
    assert (begun["kind"], begun["state"], begun["user"]) == ("audit", "copying", "guest")
    shown = http.do("run", "show", id=begun["id"], wait=3600)
    assert (shown["state"], shown["why"], shown["findings"]) == ("done", "", 1)
    assert shown["verdict"] == shown["told"]["verdict"] == "effects of use"
    assert shown["told"]["inputs"]["messages"] == MESSAGES
    assert shown["told"]["verdicts"]["held"] > 10
    (finding,) = shown["told"]["findings"]
    assert (finding["queue"], finding["audit"], finding["seq"]) == ("q", "overtaking", 3)
    (row,) = [row for row in http.do("run", "list")["items"] if row["id"] == begun["id"]]
    assert row == {name: value for name, value in shown.items() if name != "told"}
    assert not os.path.exists(folder_of(broker, str(begun["id"]), "dump"))
    (noted,) = [line for line in http.do("change", "list")["items"] if line["operation"] == "run audit"]
    assert noted["request"] == {"queues": "q"}


def test_the_report_of_an_audit_is_a_page_that_may_do_nothing(broker):
    http = broker.http
    number = http.do("run", "audit", audits="fifo,overtaking", keep_dump=True)["id"]
    shown = http.do("run", "show", id=number, wait=3600)
    assert os.path.exists(os.path.join(shown["out"], "manifest.json"))
    path = f"/api/v2/run/{number}/report"
    if shown["report"]:  # Jinja and pyarrow are there.
        page = http.ask("GET", f"{path}/report.html")
        assert page.status == 200
        assert b"overtak" in page.body.lower()
        assert page.headers["content-type"].startswith("text/html")
        assert page.headers["content-security-policy"].count("sandbox") == 1
        assert "script-src" not in page.headers["content-security-policy"]
    assert http.get(f"{path}/told.json") == shown["told"]
    for wrong in ("none.html", "..%2frun.json", "findings", "run.json", ".html"):
        assert http.ask("GET", f"{path}/{wrong}").status == 404
    assert http.ask("GET", "/api/v2/run/99/report/report.html").status == 404
    http.do("user", "add", user="ann", password="ann", tags=["monitoring"])
    assert http.ask("GET", f"{path}/told.json", authorization=basic("ann", "ann")).status == 403
    assert http.do("run", "delete", id=number) == {"done": True}
    assert not os.path.exists(folder_of(broker, str(number)))
    assert http.ask("POST", "/api/v2/run/show", {"id": number}).status == 404


def test_a_dump_goes_on_by_itself_and_stays_when_its_run_is_deleted(broker, tmp_path):
    http, out = broker.http, str(tmp_path / "dump")
    number = http.do("run", "dump", out=out)["id"]
    shown = http.do("run", "show", id=number, wait=3600)
    assert (shown["state"], shown["kind"], shown["told"]) == ("done", "dump", None)
    http.do("run", "delete", id=number)
    assert os.path.exists(os.path.join(out, "manifest.json"))


@pytest.mark.parametrize(("verb", "fields", "text"), [
    ("audit", {"queues": "none*"}, "no queue is called like 'none*'"),
    ("audit", {"audits": "fifo,none"}, "no such audit: 'none'"),
    ("dump", {"out": "here"}, "'here' is not an absolute path"),
    ("cancel", {"id": 99}, "run 99 is not under way"),
    ("delete", {"id": 99}, "no run 99"),
])
def test_what_cannot_be_is_refused_and_leaves_nothing(broker, verb, fields, text):
    before = broker.http.do("run", "list")
    answer = broker.http.ask("POST", f"/api/v2/run/{verb}", fields)
    assert text in answer.body["detail"]
    assert broker.http.do("run", "list") == before


def test_one_run_is_under_way_and_ends_when_it_is_cancelled_or_the_broker_dies(tmp_path):
    broker = start(tmp_path, first=ENDLESS)
    http = broker.http
    http.do("queue", "declare", queue="q")
    number = http.do("run", "audit")["id"]
    for verb, fields, text in (
        ("audit", {}, f"run {number} is under way"), ("delete", {"id": number}, "cancel it first"),
    ):  # fmt: skip
        answer = http.ask("POST", f"/api/v2/run/{verb}", fields)
        assert answer.status == 409
        assert text in answer.body["detail"]
    http.do("run", "cancel", id=number)
    shown = http.do("run", "show", id=number, wait=3600)
    assert (shown["state"], shown["why"]) == ("interrupted", "it was cancelled")
    second = http.do("run", "audit")["id"]
    while http.do("run", "show", id=second)["state"] != "judging":
        pass
    broker.kill()
    begin = len(broker.lines)
    broker.start()
    broker.wait_for_log(r"\(HTTP\)", begin)
    shown = http.do("run", "show", id=second)
    assert (shown["state"], shown["why"]) == ("interrupted", "the broker ended before the run did")
    assert os.path.exists(folder_of(broker, str(second), "dump"))
    third = http.do("run", "audit")["id"]
    assert not os.path.exists(folder_of(broker, str(second), "dump"))
    begin = len(broker.lines)
    broker.stop()
    broker.start()
    broker.wait_for_log(r"\(HTTP\)", begin)
    assert http.do("run", "show", id=third)["state"] == "interrupted"
    broker.stop()
    broker.check_log()
