"""Shovels and federation over HTTP, as RabbitMQ and LavinMQ have them; what is refused, and who sees a password."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from tests.server.clients import connect

from brokerd.management import rabbit_links

HERE = {"src-uri": "amqp:///", "src-queue": "links-a", "dest-uri": "amqp:///", "dest-queue": "links-b"}
SECRET = {**HERE, "src-uri": ["amqp://u:secret@127.0.0.1:1"]}
SHOVEL = "/api/parameters/shovel/%2F/s"


@pytest.fixture
def shovel(http):
    """A shovel that is paused: nothing of it moves."""
    assert http.ask("PUT", SHOVEL, {"value": SECRET}).status == 201
    assert http.ask("PUT", "/api/shovels/%2F/s/pause").status == 204
    yield
    http.ask("DELETE", SHOVEL)


@pytest.fixture
def people(http):
    """A policymaker and a plain user who may enter "/", and a policymaker who may not."""
    for name, tags in (("polly", "policymaker"), ("mary", "management"), ("paul", "policymaker")):
        assert http.ask("PUT", f"/api/users/{name}", {"password": name, "tags": tags}).status == 201
        if name != "paul":
            everything = {"configure": ".*", "write": ".*", "read": ".*"}
            assert http.ask("PUT", f"/api/permissions/%2F/{name}", everything).status == 201
    yield SimpleNamespace(**{name: http.as_user(name, name) for name in ("polly", "mary", "paul")})
    for name in ("polly", "mary", "paul"):
        http.ask("DELETE", f"/api/users/{name}")


def test_a_shovel_is_refused_with_everything_that_is_wrong(http):
    answer = http.ask("PUT", SHOVEL, {"value": {"src-uri": "amqp://u:secret@h/a/b", "src-queue": 5}})
    assert answer.status == 400
    assert answer.body["reason"] == (
        'shovel \'s\': Key "dest-uri" not found in s; src-queue should be binary, actually was 5; '
        '"amqp://u:***@h/a/b" not a valid URI: {{invalid_vhost,"a/b"},"amqp://u:***@h/a/b"}')
    assert http.get("/api/shovels") == []
    for value in (5, [], None, {"a": [{}] * 50}):
        assert http.ask("PUT", SHOVEL, {"value": value}).status == 400
    assert http.ask("PUT", "/api/parameters/paused-shovel/%2F/s", {"value": True}).status == 400


def test_a_user_sets_up_links_only_between_vhosts_that_they_may_enter(http, people):
    assert http.ask("PUT", "/api/vhosts/other").status == 201
    value = {**HERE, "dest-uri": "amqp:///other"}
    answer = people.polly.ask("PUT", SHOVEL, {"value": value})
    assert (answer.status, answer.body["reason"]) == (
        400, 'shovel \'s\': user "polly" may not connect to vhost "other"')
    assert people.polly.ask("PUT", "/api/parameters/federation-upstream/%2F/u",
                            {"value": {"uri": "amqp:///other"}}).status == 400
    assert people.paul.ask("PUT", SHOVEL, {"value": HERE}).status == 401
    assert people.mary.ask("PUT", SHOVEL, {"value": HERE}).status == 401
    assert http.ask("PUT", SHOVEL, {"value": {**value, "dest-uri": "amqp:///none"}}).status == 400
    assert http.ask("DELETE", "/api/vhosts/other").status == 204


def test_definitions_with_a_shovel_that_cannot_be_are_refused_as_a_whole_and_say_where(http):
    entry = {"vhost": "/", "component": "shovel", "name": "s", "value": {**HERE, "src-queue": 5}}
    body = {"queues": [{"name": "new", "vhost": "/"}], "parameters": [entry]}
    answer = http.ask("POST", "/api/definitions", body)
    assert answer.status == 400
    assert "parameters[0]" in answer.body["reason"]
    assert "src-queue should be binary, actually was 5" in answer.body["reason"]
    assert http.ask("GET", "/api/queues/%2F/new").status == 404


def test_refusals_and_the_list_of_changes_show_no_password_wherever_the_address_stands(http):
    address = "amqp://u:s3cr@h"
    entry = {"vhost": "/", "component": "shovel", "name": "s", "value": {**HERE, "src-url": address}}
    for method, path, body in (
        ("PUT", SHOVEL, {"value": {**HERE, "src-uri": {"a": address}, "src-url": address}}),
        ("PUT", SHOVEL, {"value": address}),
        ("PUT", "/api/parameters/federation-upstream/%2F/u", {"value": {"uri": "u:s3cr@h"}}),
        ("PUT", "/api/parameters/federation-upstream-set/%2F/u", {"value": [{"upstream": "u", "uri": address}]}),
        ("PUT", "/api/policies/%2F/p", {"pattern": ".", "definition": {"federation-upstream": [address]}}),
        ("POST", "/api/definitions", {"parameters": [entry]}),
        ("POST", "/api/definitions", {"parameters": [{**entry, "component": [address]}]}),
        ("POST", "/api/v2/upstream/set", {"name": "u", "definition": {"url": address}}),
    ):
        answer = http.ask(method, path, body)
        assert answer.status == 400
        assert "***" in str(answer.body)
        assert "s3cr" not in str(answer.body)
    assert "s3cr" not in str(http.do("change", "list"))


def test_definitions_go_out_and_in_with_their_passwords_and_without_pauses(http, shovel):
    found = http.get("/api/definitions")["parameters"]
    assert [(each["component"], each["value"]) for each in found] == [("shovel", SECRET)]
    assert http.ask("POST", "/api/definitions", {"parameters": found}).status in (200, 204)
    assert http.get("/api/shovels/%2F/s")["state"] == "paused"


def test_only_who_may_set_a_shovel_sees_its_password(http, shovel, people):
    assert people.polly.get(SHOVEL)["value"] == SECRET  # As with RabbitMQ: tools read it, and write it back.
    assert people.mary.ask("GET", SHOVEL).status == 401
    assert people.paul.ask("GET", SHOVEL).status == 401
    for path in ("/api/shovels", "/api/shovels/%2F", "/api/shovels/vhost/%2F/s", "/api/shovels/%2F/s"):
        answer = people.mary.ask("GET", path)
        assert answer.status == 200
        assert "secret" not in json.dumps(answer.body)
    assert "***" in json.dumps(people.mary.do("shovel", "show", name="s")["definition"])
    assert people.paul.get("/api/shovels") == []
    assert people.paul.ask("GET", "/api/shovels/%2F").status == 401


def test_no_event_has_a_password(shared, http):
    channel = connect(shared).channel()
    channel.queue_declare("links-events", exclusive=True)
    channel.queue_bind("links-events", "amq.rabbitmq.event", "parameter.*")
    assert http.ask("PUT", SHOVEL, {"value": SECRET}).status == 201
    assert http.ask("DELETE", SHOVEL).status == 204
    found = [channel.basic_get("links-events", auto_ack=True) for _ in range(2)]
    channel.connection.close()
    assert [method.routing_key for method, _, _ in found] == ["parameter.set", "parameter.cleared"]
    assert found[0][1].headers["value"] == {**HERE, "src-uri": ["amqp://u:***@127.0.0.1:1"]}


def test_a_shovel_is_paused_and_resumed_once_each_and_restarted_when_it_runs(http, people):
    assert http.ask("PUT", SHOVEL, {"value": SECRET}).status == 201
    assert people.mary.ask("PUT", "/api/shovels/%2F/s/pause").status == 401
    for path in ("/api/shovels/%2F/s", "/api/shovels/vhost/%2F/s"):
        assert people.polly.ask("PUT", f"{path}/pause").status == 204
        again = people.polly.ask("PUT", f"{path}/pause")
        assert (again.status, again.body["reason"]) == (422, "shovel 's' is paused already")
        assert people.polly.ask("DELETE", f"{path}/restart").status == 409
        assert http.get(path)["state"] == "paused"
        assert people.polly.ask("PUT", f"{path}/resume").status == 204
        assert people.polly.ask("PUT", f"{path}/resume").status == 422
        assert http.get(path)["state"] != "paused"
    assert http.ask("DELETE", "/api/shovels/vhost/%2F/none/restart").status == 404
    assert http.ask("PUT", "/api/shovels/%2F/none/pause").status == 404
    assert http.ask("DELETE", "/api/shovels/vhost/%2F/s").status == 204
    assert http.ask("DELETE", "/api/shovels/vhost/%2F/s").status == 404
    assert http.ask("GET", "/api/shovels/nix").status == 404
    assert http.get("/api/shovels") == []


def test_a_pause_goes_with_its_shovel(http, shovel):
    assert http.ask("DELETE", SHOVEL).status == 204
    assert http.ask("PUT", SHOVEL, {"value": SECRET}).status == 201
    assert http.get("/api/shovels/%2F/s")["state"] != "paused"


def test_a_form_sends_a_masked_password_back_and_it_stays(http, shovel):
    shown = http.do("shovel", "show", name="s")["definition"]
    http.do("shovel", "set", name="s", definition={**shown, "src-prefetch-count": 5})
    assert http.get(SHOVEL)["value"] == {**SECRET, "src-prefetch-count": 5}


def test_an_upstream_comes_and_goes_as_parameter_and_as_operation(http):
    path = "/api/parameters/federation-upstream/%2F/u"
    assert http.ask("PUT", path, {"value": {"uri": "amqp://a:b@127.0.0.1:1"}}).status == 201
    assert http.do("upstream", "list")["items"][0]["definition"] == {"uri": "amqp://a:***@127.0.0.1:1"}
    http.do("upstream", "set", name="u", definition={"uri": "amqp://a:***@127.0.0.1:1", "max-hops": 2})
    assert http.get(path)["value"] == {"uri": "amqp://a:b@127.0.0.1:1", "max-hops": 2}
    http.do("upstream", "delete", name="u")
    assert http.ask("GET", path).status == 404
    assert http.get("/api/federation-links") == []
    assert http.get("/api/federation-links/state/down") == []
    assert http.get("/api/federation-links/%2F") == []
    assert http.ask("GET", "/api/federation-links/nix").status == 404
    assert http.ask("DELETE", "/api/federation-links/vhost/%2F/12345678/restart").status == 404


@pytest.mark.parametrize("definition", [
    {"federation-upstream": "a", "federation-upstream-set": "b"}, {"federation-upstream-set": 5},
    {"federation-upstream-pattern": "("},
])
def test_a_policy_has_one_name_of_upstreams(http, definition):
    answer = http.ask("PUT", "/api/policies/%2F/p", {"pattern": "^x", "definition": definition})
    assert answer.status == 400


# --- shapes, as a real RabbitMQ 3.10 answered

ROW = {"vhost": "/", "name": "s", "state": "running", "reason": "", "next_try": 0, "since": 1_795_758_086_000,
       "source_uri": "amqp://guest@localhost:5672", "dest_uri": "amqp://", "messages": 3, "rate": 0.5,
       "unconfirmed": 0, "retried": 0, "rejected": 0, "reconnects": 0, "last_message": 0, "lag": 0,
       "definition": {"src-exchange": "amq.fanout", "src-exchange-key": "k", "src-uri": "amqp://g:***@h",
                      "dest-uri": "amqp://"}}  # fmt: skip
LINK = {**ROW, "id": "627bd053", "type": "queue", "name": "q1", "upstream": "u", "uri": "amqp://guest@localhost/up",
        "source": "q2", "consumer_tag": "federation-link-u"}  # fmt: skip


@pytest.fixture
def shape(monkeypatch):
    async def shapes_of(call):
        return SimpleNamespace(node="peer@localhost")

    monkeypatch.setattr(rabbit_links, "shapes_of", shapes_of)
    return asyncio.run(rabbit_links._shovel_shape(None))


def test_a_running_shovel_has_rabbitmqs_fields(shape):
    shown = shape(ROW)
    del shown["timestamp"]
    assert shown.items() >= {
        "node": "peer@localhost", "name": "s", "vhost": "/", "type": "dynamic", "state": "running",
        "src_uri": "amqp://localhost:5672", "src_protocol": "amqp091", "dest_protocol": "amqp091",
        "dest_uri": "amqp://", "src_exchange": "amq.fanout", "src_exchange_key": "k", "blocked_status": "running",
    }.items()  # fmt: skip
    assert (shown["message_count"], shown["error"]) == (3, None)  # LavinMQ's


def test_a_shovel_that_does_not_run_says_why_and_shows_no_addresses(shape):
    shown = shape({**ROW, "state": "starting", "reason": "connection refused"})
    assert (shown["state"], shown["error"]) == ("starting", "connection refused")
    assert "src_uri" not in shown
    assert shape({**ROW, "state": "blocked"}).items() >= {"state": "running", "blocked_status": "blocked"}.items()


@pytest.mark.parametrize(("state", "reason", "status"), [
    ("running", "", "running"), ("idle", "", "running"), ("blocked", "", "running"), ("starting", "", "starting"),
    ("starting", "refused", "error"), ("terminated", "refused", "error"),
])
def test_a_link_has_rabbitmqs_fields_and_status(state, reason, status):
    shown = rabbit_links._link("peer@localhost", {**LINK, "state": state, "reason": reason})
    assert shown.items() >= {
        "node": "peer@localhost", "queue": "q1", "upstream_queue": "q2", "consumer_tag": "federation-link-u",
        "type": "queue", "vhost": "/", "upstream": "u", "id": "627bd053", "status": status,
        "uri": "amqp://localhost/up", "resource": "q1", "name": "u",
    }.items()  # fmt: skip
    assert shown.get("error") == (reason or None)
    assert "exchange" not in shown
