"""RabbitMQ's overview, nodes and health checks."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from brokerd.management import rabbit_broker


def test_the_overview_has_what_clients_look_for(http):
    found = http.get("/api/overview")
    for name in ("management_version", "rabbitmq_version", "product_version", "erlang_version", "cluster_name", "node",
                 "rates_mode", "contexts", "listeners", "exchange_types", "statistics_db_event_queue"):
        assert name in found, name
    assert set(found["object_totals"]) == {"connections", "channels", "consumers", "exchanges", "queues"}
    assert {"messages", "messages_ready", "messages_unacknowledged"} <= found["queue_totals"].keys()
    assert {"publish", "publish_details", "deliver_get", "ack"} <= found["message_stats"].keys()
    assert "samples" not in found["queue_totals"]["messages_details"]


def test_samples_come_when_they_are_asked_for(http):
    found = http.get("/api/overview?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5")
    sample = found["queue_totals"]["messages_details"]["samples"][0]
    assert sample.keys() == {"sample", "timestamp"}
    assert sample["timestamp"] > 1e12
    assert http.ask("GET", "/api/overview?lengths_age=x").status == 400


def test_whoami_names_the_user_and_its_tags(http):
    assert http.get("/api/whoami") == {"name": "guest", "tags": ["administrator"]}


def test_the_node_is_shown_by_its_name(http):
    (node,) = http.get("/api/nodes")
    assert http.get(f"/api/nodes/{node['name']}")["name"] == node["name"]
    assert http.get(f"/api/nodes/{node['name']}/memory")["memory"]["total"]["rss"] > 0
    assert http.ask("GET", "/api/nodes/none").status == 404
    for name in ("fd_used", "fd_total", "sockets_used", "mem_used", "mem_limit", "mem_alarm", "disk_free",
                 "disk_free_alarm", "running", "partitions", "uptime"):
        assert name in node, name


@pytest.mark.parametrize("check", ["alarms", "local-alarms", "virtual-hosts", "node-is-quorum-critical",
                                   "is-in-service", "ready-to-serve-clients", "below-node-connection-limit",
                                   "protocol-listener/amqp", "certificate-expiration/99999/years",
                                   "protocol-listener/http"])
def test_a_healthy_broker_passes_its_checks(http, check):
    assert http.get(f"/api/health/checks/{check}")["status"] == "ok"


def test_ports_and_protocols_that_nobody_listens_at_fail(http, shared):
    assert http.get(f"/api/health/checks/port-listener/{shared.port}") == {"status": "ok", "port": shared.port}
    answer = http.ask("GET", "/api/health/checks/port-listener/1")
    assert (answer.status, answer.body["status"], answer.body["missing"]) == (503, "failed", 1)
    assert http.ask("GET", "/api/health/checks/port-listener/x").status == 400
    assert http.ask("GET", "/api/health/checks/protocol-listener/mqtt").status == 503


@pytest.mark.parametrize("path", ["cluster-name", "extensions", "version", "feature-flags", "deprecated-features",
                                  "auth", "vhost-limits", "user-limits"])
def test_small_questions_have_answers(http, path):
    http.get(f"/api/{path}")


def test_a_quorum_queue_without_its_files_has_no_leader():
    asked = []

    async def ask(verb, **fields):
        asked.append((verb, fields))
        return {"items": [{"name": name, "vhost": "/", "type": type_, "state": state} for name, type_, state in (
            ("a", "quorum", "running"), ("b", "quorum", "down"), ("c", "classic", "down"), ("d", "quorum", "paused"))]}

    call = SimpleNamespace(ask=ask, values={"vhost": "/", "pattern": "^."})
    answer = asyncio.run(rabbit_broker._quorum_queues(call))
    assert asked == [("queue list", {"vhost": "/", "name": "^.", "use_regex": True})]
    assert answer.status_code == 503
    assert [row["name"] for row in json.loads(answer.body)["queues"]] == ["b"]
