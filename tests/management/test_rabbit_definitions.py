"""Definitions over HTTP: export, import, dry run, forms; a broken file changes nothing."""

import json

import pytest


def import_(http, content, path="definitions", **headers):
    octets = content if isinstance(content, bytes) else json.dumps(content).encode()
    return http.ask("POST", f"/api/{path}", octets, **headers)


def queue(name, vhost="/", **more):
    return {"name": name, "vhost": vhost, "durable": True, "auto_delete": False, "arguments": {}, **more}


def test_an_export_is_imported_again(http):
    assert import_(http, {"vhosts": [{"name": "d"}], "queues": [queue("d1", "d")],
                          "users": [{"name": "dora", "password_hash": "", "tags": ["management"]}],
                          "permissions": [{"user": "dora", "vhost": "d", "configure": "", "write": "", "read": ""}],
                          }).status == 204
    whole = http.get("/api/definitions")
    for name in ("rabbit_version", "users", "vhosts", "permissions", "topic_permissions", "parameters",
                 "global_parameters", "policies", "queues", "exchanges", "bindings"):
        assert name in whole, name
    assert queue("d1", "d").items() <= next(row for row in whole["queues"] if row["vhost"] == "d").items()
    assert http.ask("DELETE", "/api/vhosts/d").status == 204
    assert http.ask("DELETE", "/api/users/dora").status == 204
    assert import_(http, whole).status == 204
    again = http.get("/api/definitions")
    assert again["queues"] == whole["queues"]
    assert again["users"] == whole["users"]
    assert http.get("/api/definitions/d")["queues"][0]["name"] == "d1"


def test_a_dry_run_says_what_would_change(http):
    answer = import_(http, {"queues": [queue("dry")]}, "definitions?dry_run=true")
    assert answer.status == 200
    assert answer.body["changes"] == [{"action": "add", "kind": "queue", "vhost": "/", "name": "dry"}]
    assert http.ask("GET", "/api/queues/%2F/dry").status == 404


def test_a_form_with_a_file_is_imported(http):
    body = (b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.json"\r\n\r\n'
            + json.dumps({"queues": [queue("formed")]}).encode() + b"\r\n--x--\r\n")
    assert import_(http, body, "definitions/upload", content_type="multipart/form-data; boundary=x").status == 204
    assert http.get("/api/queues/%2F/formed")["durable"] is True
    assert import_(http, b"--x--\r\n", content_type="multipart/form-data; boundary=x").status == 400
    assert import_(http, body, content_type="multipart/form-data").status == 400


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"\xff", {"queues": 1}, {"queues": [{"name": 1}]}, {"queues": [queue("a", "none")]},
    {"queues": [queue("fine"), queue("bad", arguments={"x-max-length": "x"})]},
])
def test_a_broken_file_changes_nothing(http, content):
    before = http.get("/api/definitions")
    answer = import_(http, content)
    assert answer.status in (400, 404, 409), answer
    assert answer.body["reason"]
    assert http.get("/api/definitions") == before


def test_only_administrators_see_definitions(http):
    assert http.ask("PUT", "/api/users/mo", {"password": "x", "tags": "monitoring"}).status == 201
    assert http.as_user("mo", "x").ask("GET", "/api/definitions").status == 401
    assert http.ask("DELETE", "/api/users/mo").status == 204


def test_a_download_has_a_safe_name(http):
    answer = http.ask("GET", "/api/definitions?download=a%22%0d%0ab.json")
    assert answer.headers["content-disposition"] == 'attachment; filename="ab.json"'
