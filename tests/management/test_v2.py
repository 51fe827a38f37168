"""/api/v2: operations by their names, errors as problem+json, limits, live samples."""

import asyncio
import json
from http.client import HTTPConnection

import pytest
from tests.broker import SECONDS
from tests.management.http import Http, basic

from brokerd.management import app
from brokerd.management.routes import Routes
from brokerd.operations import table


def test_an_operation_is_asked_by_noun_and_verb(http):
    found = http.do("exchange", "list", vhost="/", name="amq.", page=1, page_size=2)
    assert [row["name"] for row in found["items"]] == ["amq.direct", "amq.fanout"]


@pytest.mark.parametrize("row", table.by_name().values(), ids=lambda row: row.name)
def test_every_operation_refuses_a_field_that_it_does_not_know(http, row):
    answer = http.ask("POST", f"/api/v2/{row.noun}/{row.verb}", {"no such field": 1})
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.body["status"] == 400
    assert "no such field" in answer.body["detail"]


@pytest.mark.parametrize(("method", "path", "body", "status"), [
    ("GET", "/api/v2/queue/list", None, 405),
    ("POST", "/api/v2/queue/nothing", {}, 404),
    ("POST", "/api/v2/queue/list", b"{", 400),
    ("POST", "/api/v2/queue/list", b"[]", 400),
    ("POST", "/api/v2/queue/list", b"\xff", 400),
    ("POST", "/api/v2/queue/list", b"[" * 100_000, 400),
    ("POST", "/api/v2/queue/list", {"verb": "user list"}, 400),
    ("POST", "/api/v2/queue/list", {"as": "guest"}, 400),
    ("POST", "/api/v2/queue/list", {"as_user": None}, 400),
    ("POST", "/api/v2/queue/list", {"page": "1"}, 400),
    ("POST", "/api/v2/queue/list", {"vhost": "none"}, 404),
    ("POST", "/api/v2/queue/list", {"name": "(", "use_regex": True}, 400),
    ("POST", "/api/v2/queue/list", b'{"name": "\\ud800"}', 400),
    ("POST", "/api/v2/queue/show", {"queue": "none"}, 404),
    ("POST", "/api/v2/queue/list", b"", 200),
])
def test_what_is_wrong_is_told_as_a_problem(http, method, path, body, status):
    answer = http.ask(method, path, body)
    assert answer.status == status, answer
    if status != 200:
        assert answer.body["status"] == status
        assert answer.body["detail"]


def test_a_method_that_is_not_possible_names_those_that_are(http):
    assert http.ask("GET", "/api/v2/queue/list").headers["allow"] == "OPTIONS, POST"
    answer = Http(http.port, None).ask("OPTIONS", "/api/queues")
    assert (answer.status, answer.headers["allow"]) == (200, "OPTIONS, GET")


def test_a_body_that_is_too_large_is_refused_before_it_is_read(http):
    answer = http.ask("POST", "/api/v2/queue/list", b"", content_length=str(app.BODY_OCTETS_MAX + 1))
    assert answer.status == 413


def test_a_stranger_learns_nothing(http):
    stranger = Http(http.port, None)
    assert stranger.ask("POST", "/api/v2/queue/list", {}).status == 401
    assert stranger.ask("GET", "/api/v2/openapi.json").status == 401
    assert stranger.ask("GET", "/metrics").status == 401


def test_answers_have_the_headers_that_protect_pages(http):
    headers = http.ask("GET", "/api/overview").headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "server" not in headers


def test_head_is_get_without_a_body(http):
    answer = http.ask("HEAD", "/api/overview")
    assert (answer.status, answer.body) == (200, b"")


def test_the_change_log_names_the_user_of_http_and_from_where(http):
    assert http.ask("POST", "/api/v2/queue/declare", {"queue": "noted"}).status == 200
    assert http.ask("PUT", "/api/queues/%2F/noted2", {}).status == 201
    rows = http.ask("POST", "/api/v2/change/list", {"contains": "noted"}).body["items"]
    assert [(row["request"]["queue"], row["user"], row["face"], row["address"], row["operation"]) for row in rows] == [
        (name, "guest", "HTTP", "127.0.0.1", "queue declare") for name in ("noted2", "noted")]
    assert http.ask("POST", "/api/v2/queue/list", {"by": {"face": "x", "address": "y"}}).status == 400


def test_live_samples_come_as_events(http):
    client = HTTPConnection("127.0.0.1", http.port, timeout=SECONDS)
    client.request("GET", "/api/v2/live", headers={"authorization": basic("guest", "guest")})
    answer = client.getresponse()
    assert answer.getheader("content-type").startswith("text/event-stream")
    lines = [answer.readline().decode().rstrip("\n") for _ in range(3)]
    assert lines[0].startswith("id: ")
    assert lines[1] == "event: overview"
    sample = json.loads(lines[2].removeprefix("data: "))
    assert sample["totals"]["queues"] >= 0
    client.close()



@pytest.mark.parametrize(("text", "is_raised"), [
    ("unable to perform operation on <TCPTransport closed=True>; the handler is closed", False), ("another", True),
])
def test_a_client_that_goes_before_its_answer_is_no_fault(text, is_raised):
    serve = app.App(None, Routes([]))
    scope = {"type": "http", "method": "GET", "raw_path": b"/none", "path": "/none", "headers": [], "query_string": b""}

    async def send(message):
        raise RuntimeError(text)

    async def receive():
        return {"type": "http.request"}

    if is_raised:
        with pytest.raises(RuntimeError, match=text):
            asyncio.run(serve(scope, receive, send))
    else:
        asyncio.run(serve(scope, receive, send))
