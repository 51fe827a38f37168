"""The calls of RabbitMQ's plugin for tracing."""

import json

import pytest
from tests.carriers.ends import await_true
from tests.server.clients import close_all, connect

from brokerd.cli import brokerctl


def lines(http, name):
    return [json.loads(line) for line in http.get(f"/api/trace-files/{name}").splitlines()]


def test_a_trace_is_made_listed_read_and_deleted(shared, http):
    body = {"format": "json", "pattern": "publish.#", "tracer_connection_username": "guest"}
    assert http.ask("PUT", "/api/traces/%2F/all", body).status == 201
    assert http.ask("PUT", "/api/traces/%2F/all", body).status == 204
    channel = connect(shared).channel()
    channel.queue_declare("traced")
    channel.confirm_delivery()
    channel.basic_publish("", "traced", b"hello")
    await_true(lambda: http.get("/api/trace-files/all.log") != b"")
    close_all()
    (found,) = lines(http, "all.log")
    assert (found["type"], found["routing_keys"], found["payload"]) == ("published", ["traced"], "aGVsbG8=")
    node = http.get("/api/overview")["node"]
    for path in ("/api/traces", "/api/traces/%2F", f"/api/traces/node/{node}", f"/api/traces/node/{node}/%2F"):
        (row,) = http.get(path)
        assert {key: row[key] for key in ("vhost", "name", "format", "pattern", "state", "messages")} == {
            "vhost": "/", "name": "all", "format": "json", "pattern": "publish.#", "state": "running", "messages": 1}
    assert http.get("/api/traces/%2F/all")["tracer_connection_username"] == "guest"
    assert http.get("/api/trace-files") == http.get(f"/api/trace-files/node/{node}") != []
    assert http.ask("DELETE", "/api/traces/%2F/all").status == 204
    assert http.get("/api/traces") == []
    assert http.ask("DELETE", "/api/trace-files/all.log").status == 204
    assert http.get("/api/trace-files") == []


def test_brokerctl_traces_and_shows_the_file_as_it_is(shared, http, capsys):
    directory = ["-D", str(shared.directory)]
    assert brokerctl.run([*directory, "tracer", "start", "mine", "--pattern", "publish.#"]) == 0
    channel = connect(shared).channel()
    channel.confirm_delivery()
    channel.basic_publish("amq.fanout", "", b"he\x1b[31mllo")
    close_all()
    assert brokerctl.run([*directory, "tracer", "stop", "mine"]) == 0
    assert brokerctl.run([*directory, "trace_file", "list"]) == 0
    assert "mine.log" in capsys.readouterr().out
    assert brokerctl.run([*directory, "trace_file", "read", "mine.log"]) == 0
    shown = capsys.readouterr().out
    assert 'Exchange:     amq.fanout\nRouting keys: [""]\nRouted queues: []\n' in shown
    assert "\x1b" not in shown
    (file,) = http.do("trace_file", "list")["items"]
    assert http.do("trace_file", "read", name="mine.log")["next_offset"] == file["size"]
    assert http.do("trace_file", "delete", name="mine.log") == {"done": True}
    assert [row["operation"] for row in http.do("change", "list")["items"]][:3] == [
        "trace_file delete", "tracer stop", "tracer start"]


@pytest.mark.parametrize(("method", "path", "body", "status"), [
    ("PUT", "/api/traces/%2F/x", {"format": "json"}, 400), ("PUT", "/api/traces/%2F/x", {"pattern": "#"}, 400),
    ("PUT", "/api/traces/%2F/x", {"format": "xml", "pattern": "#"}, 400),
    ("PUT", "/api/traces/%2F/a%2Fb", {"format": "text", "pattern": "#"}, 400),
    ("PUT", "/api/traces/none/x", {"format": "text", "pattern": "#"}, 404),
    ("GET", "/api/traces/none", None, 404), ("GET", "/api/traces/%2F/none", None, 404),
    ("DELETE", "/api/traces/%2F/none", None, 404), ("GET", "/api/traces/node/none", None, 404),
    ("GET", "/api/trace-files/none.log", None, 404), ("DELETE", "/api/trace-files/none.log", None, 404),
    ("GET", "/api/trace-files/..%2Fusers.json", None, 404), ("DELETE", "/api/trace-files/..%2Fusers.json", None, 404),
])
def test_what_cannot_be_is_refused(http, method, path, body, status):
    assert http.ask(method, path, body).status == status


def test_only_administrators_trace(http):
    assert http.ask("PUT", "/api/users/mona", {"password": "x", "tags": "monitoring"}).status == 201
    mona = http.as_user("mona", "x")
    for path in ("/api/traces", "/api/trace-files", "/api/trace-files/x.log"):
        assert mona.ask("GET", path).status == 401
