"""Definitions go from RabbitMQ to brokerd and back: a file that a RabbitMQ has exported, and a running one where it is
installed.

``rabbitmq_definitions.json`` is what Debian's RabbitMQ 3.10 answered to ``GET /api/definitions`` after ``fill``.
"""

import json
from pathlib import Path

import pika
import pytest
from tests.broker import Broker
from tests.management.http import Http, reserve_http
from tests.rabbitmq import RabbitMQ, installed
from tests.server.clients import parameters

RECORDED = Path(__file__).with_name("rabbitmq_definitions.json")
KINDS = ("users", "vhosts", "permissions", "topic_permissions", "parameters", "policies", "queues", "exchanges",
         "bindings")
JSON = {"content_type": "application/json"}
LIVE = pytest.mark.skipif(not installed(), reason="Debian's package rabbitmq-server is not installed")


def fill(http):
    """Make one of everything that definitions hold."""
    for path, body in (
        ("vhosts/shop", {}),
        ("users/ann", {"password": "secret", "tags": "management,own"}),
        ("users/bob", {"password_hash": "", "tags": ""}),
        ("permissions/shop/ann", {"configure": "^o", "write": ".*", "read": ""}),
        ("topic-permissions/shop/ann", {"exchange": "news", "write": "^eu", "read": ".*"}),
        ("vhost-limits/shop/max-queues", {"value": 100}),
        ("vhost-limits/shop/max-connections", {"value": 50}),
        ("user-limits/ann/max-channels", {"value": 9}),
        ("exchanges/shop/news", {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "lost"}}),
        ("exchanges/shop/lost", {"type": "fanout", "durable": True, "internal": True}),
        ("exchanges/shop/heads", {"type": "headers", "durable": True, "auto_delete": True}),
        ("queues/shop/orders", {"durable": True, "arguments": {
            "x-max-length": 1000, "x-dead-letter-exchange": "lost", "x-message-ttl": 60000}}),
        ("queues/shop/ranked é", {"durable": True, "arguments": {"x-max-priority": 5}}),
        ("queues/shop/safe", {"durable": True, "arguments": {"x-queue-type": "quorum", "x-delivery-limit": 4}}),
        ("policies/shop/short", {"pattern": "^o", "definition": {"max-length": 10, "overflow": "reject-publish"},
                                 "priority": 3, "apply-to": "queues"}),
        ("operator-policies/shop/least", {"pattern": ".*", "definition": {"expires": 3600000}, "apply-to": "queues"}),
        ("global-parameters/ours", {"value": {"a": [1, "x"]}}),
    ):
        answer = http.ask("PUT", "/api/" + path.replace(" ", "%20").replace("é", "%C3%A9"), body, **JSON)
        assert answer.status in (201, 204), (path, answer)
    for path, body in (
        ("bindings/shop/e/news/q/orders", {"routing_key": "eu.#"}),
        ("bindings/shop/e/news/e/lost", {"routing_key": "x"}),
        ("bindings/shop/e/heads/q/safe", {"arguments": {"x-match": "any", "n": 1, "s": "t", "b": True}}),
    ):
        answer = http.ask("POST", f"/api/{path}", body, **JSON)
        assert answer.status == 201, (path, answer)


def sorted_rows(rows):
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def kept(definitions, kind):
    """The rows of one kind; of each what both brokers know."""
    rows = definitions[kind]
    if kind == "vhosts":
        return sorted(row["name"] for row in rows)
    if kind == "users":
        rows = [{**row, "limits": row.get("limits", {})} for row in rows]
    if kind == "queues":  # Later versions of RabbitMQ tell the type too.
        rows = [{name: value for name, value in row.items() if name != "type"} for row in rows]
    return sorted_rows(rows)


def value_of(definitions, name):
    return [row["value"] for row in definitions["global_parameters"] if row["name"] == name]


@pytest.fixture
def http(tmp_path):
    port = reserve_http()
    with Broker(tmp_path / "data", "--http-port", port) as broker:
        broker.wait_for_log(r"\(HTTP\)")
        made = Http(port)
        made.broker = broker
        yield made


def check_taken_over(http, definitions):
    """Import what RabbitMQ has exported: nothing of it is missing or different afterwards, and logins go on."""
    assert http.ask("POST", "/api/definitions", definitions, **JSON).status == 204
    ours = http.get("/api/definitions")
    for kind in KINDS:
        assert kept(ours, kind) == kept(definitions, kind), kind
    assert value_of(ours, "ours") == value_of(definitions, "ours") == [{"a": [1, "x"]}]
    pika.BlockingConnection(parameters(http.broker, user="ann", password="secret", vhost="shop")).close()
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(parameters(http.broker, user="ann", password="other", vhost="shop"))
    assert http.get("/api/queues/shop/orders")["policy"] == "short"
    return ours


def test_a_file_that_rabbitmq_has_exported_is_taken_over_whole(http):
    definitions = json.loads(RECORDED.read_text())
    assert definitions["rabbit_version"].startswith("3.")
    ours = check_taken_over(http, definitions)
    assert http.ask("POST", "/api/definitions", ours, **JSON).status == 204
    assert kept(http.get("/api/definitions"), "queues") == kept(definitions, "queues")


@LIVE
def test_definitions_go_to_brokerd_and_back_to_an_empty_rabbitmq(http, tmp_path):
    with RabbitMQ(tmp_path / "one", plugins=("rabbitmq_management",)) as peer:
        theirs = Http(peer.http_port)
        fill(theirs)
        exported = theirs.get("/api/definitions")
    ours = check_taken_over(http, exported)
    with RabbitMQ(tmp_path / "two", plugins=("rabbitmq_management",)) as peer:
        theirs = Http(peer.http_port)
        answer = theirs.ask("POST", "/api/definitions", ours, **JSON)
        assert answer.status in (201, 204), answer
        again = theirs.get("/api/definitions")
        for kind in KINDS:
            assert kept(again, kind) == kept(exported, kind), kind
        assert value_of(again, "ours") == value_of(exported, "ours")
        pika.BlockingConnection(parameters(peer, user="ann", password="secret", vhost="shop")).close()
