"""The requests that tools send, as their public sources have them, and the types that they decode answers into.

rabbit-hole is the Go client of Terraform's provider and of RabbitMQ's Kubernetes operators: Go refuses an answer in
which a field has another type than its struct's, and takes null and missing fields for zeros.
"""

from urllib.parse import quote, unquote

import pika
import pytest
from tests.server.clients import close_all, connect

TEXT, WHOLE, NUMBER, TRUTH, TABLE, TEXTS, TABLES = str, int, (int, float), bool, dict, [str], [dict]
RATE = {"rate": NUMBER}
NAMED = [{"name": TEXT, "description": TEXT, "enabled": TRUTH}]
CONTEXTS = [{"node": TEXT, "description": TEXT, "path": TEXT, "port": (int, str)}]
QUEUE = {
    "name": TEXT, "vhost": TEXT, "durable": TRUTH, "auto_delete": TRUTH, "arguments": TABLE, "node": TEXT,
    "status": TEXT, "state": TEXT, "type": TEXT, "memory": WHOLE, "consumers": WHOLE, "consumer_utilisation": NUMBER,
    "policy": TEXT,
    "exclusive_consumer_tag": TEXT, "message_bytes": WHOLE, "message_bytes_persistent": WHOLE, "messages": WHOLE,
    "messages_details": RATE, "messages_persistent": WHOLE, "messages_ram": WHOLE, "messages_ready": WHOLE,
    "messages_ready_details": RATE, "messages_unacknowledged": WHOLE, "messages_unacknowledged_details": RATE,
    "message_stats": {"publish": WHOLE, "publish_details": RATE, "deliver_get": WHOLE, "deliver_get_details": RATE,
                      "ack": WHOLE, "redeliver": WHOLE},
    "owner_pid_details": {"name": TEXT, "peer_port": (int, str), "peer_host": TEXT}, "active_consumers": WHOLE,
    "leader": TEXT, "members": TEXTS, "online": TEXTS, "effective_policy_definition": TABLE,
}
NODE = {
    "name": TEXT, "type": TEXT, "running": TRUTH, "os_pid": TEXT, "fd_used": WHOLE, "fd_total": WHOLE,
    "sockets_used": WHOLE, "sockets_total": WHOLE, "mem_used": WHOLE, "mem_limit": WHOLE, "mem_alarm": TRUTH,
    "disk_free": WHOLE, "disk_free_limit": WHOLE, "disk_free_alarm": TRUTH, "run_queue": WHOLE, "processors": WHOLE,
    "uptime": WHOLE, "exchange_types": NAMED, "auth_mechanisms": NAMED,
    "applications": [{"name": TEXT, "description": TEXT, "version": TEXT}], "contexts": CONTEXTS, "partitions": TEXTS,
    "rates_mode": TEXT, "db_dir": TEXT, "config_files": TEXTS, "log_files": TEXTS, "enabled_plugins": TEXTS,
}
OVERVIEW = {
    "management_version": TEXT, "rates_mode": TEXT, "rabbitmq_version": TEXT, "erlang_version": TEXT,
    "erlang_full_version": TEXT, "cluster_name": TEXT, "exchange_types": NAMED, "node": TEXT, "contexts": CONTEXTS,
    "message_stats": {"publish": WHOLE, "publish_details": RATE},
    "queue_totals": {"messages": WHOLE, "messages_details": RATE, "messages_ready": WHOLE},
    "object_totals": dict.fromkeys(("consumers", "queues", "exchanges", "connections", "channels"), WHOLE),
    "listeners": [{"node": TEXT, "protocol": TEXT, "ip_address": TEXT, "port": (int, str)}],
    "statistics_db_event_queue": WHOLE,
    "churn_rates": {"connection_created": WHOLE, "connection_created_details": RATE},
}
CONNECTION = {
    "name": TEXT, "node": TEXT, "channels": WHOLE, "state": TEXT, "type": TEXT, "port": (int, str),
    "peer_port": (int, str), "host": TEXT, "peer_host": TEXT, "ssl": TRUTH, "protocol": TEXT, "user": TEXT,
    "vhost": TEXT, "timeout": WHOLE, "frame_max": WHOLE, "client_properties": TABLE, "recv_oct": WHOLE,
    "send_oct": WHOLE, "send_pend": WHOLE, "recv_oct_details": RATE, "send_oct_details": RATE, "channel_max": WHOLE,
    "connected_at": WHOLE, "auth_mechanism": TEXT,
}
CHANNEL = {
    "name": TEXT, "node": TEXT, "number": WHOLE, "vhost": TEXT, "user": TEXT, "state": TEXT, "consumer_count": WHOLE,
    "prefetch_count": WHOLE, "global_prefetch_count": WHOLE, "confirm": TRUTH, "transactional": TRUTH,
    "messages_unacknowledged": WHOLE, "messages_unconfirmed": WHOLE, "messages_uncommitted": WHOLE,
    "acks_uncommitted": WHOLE, "connection_details": {"name": TEXT, "peer_host": TEXT, "peer_port": (int, str)},
}
EXCHANGE = {"name": TEXT, "vhost": TEXT, "type": TEXT, "durable": TRUTH, "auto_delete": TRUTH, "internal": TRUTH,
            "arguments": TABLE}
BINDING = {"source": TEXT, "vhost": TEXT, "destination": TEXT, "destination_type": TEXT, "routing_key": TEXT,
           "arguments": TABLE, "properties_key": TEXT}
POLICY = {"vhost": TEXT, "pattern": TEXT, "apply-to": TEXT, "name": TEXT, "priority": WHOLE, "definition": TABLE}
VHOST = {"name": TEXT, "tracing": TRUTH, "description": TEXT, "tags": TEXTS, "default_queue_type": TEXT,
         "messages": WHOLE, "messages_ready": WHOLE, "messages_unacknowledged": WHOLE, "cluster_state": TABLE}
USER = {"name": TEXT, "password_hash": TEXT, "hashing_algorithm": TEXT, "tags": TEXTS}
CONSUMER = {"consumer_tag": TEXT, "queue": {"name": TEXT, "vhost": TEXT}, "ack_required": TRUTH, "active": TRUTH,
            "activity_status": TEXT, "exclusive": TRUTH, "prefetch_count": WHOLE, "arguments": TABLE,
            "channel_details": {"name": TEXT, "number": WHOLE, "connection_name": TEXT}}


def misfits(shape, value, place="$"):
    """What does not fit the shape: a field that is there, is not null, and has another type."""
    if value is None:
        return []
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return [f"{place}: {value!r}"]
        return [each for name in shape if name in value
                for each in misfits(shape[name], value[name], f"{place}.{name}")]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{place}: {value!r}"]
        return [each for item in value for each in misfits(shape[0], item, f"{place}[]")]
    fits = isinstance(value, shape) and (shape is TRUTH or not isinstance(value, bool))
    return [] if fits else [f"{place}: {value!r}"]


@pytest.fixture(scope="module")
def filled(shared):
    """A broker with something of everything."""
    channel = connect(shared).channel()
    channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_declare("mine", exclusive=True)
    channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
    channel.basic_consume("mine", print)
    assert shared.http.ask("PUT", "/api/policies/%2F/p", {
        "pattern": "^q$", "definition": {"max-length": 9}, "apply-to": "queues", "priority": 1}).status == 201
    yield shared
    close_all()


@pytest.mark.parametrize(("path", "shape"), [
    ("overview", OVERVIEW), ("nodes", [NODE]), ("queues", [QUEUE]), ("queues/%2F", [QUEUE]), ("queues/%2F/q", QUEUE),
    ("queues/%2F/mine", QUEUE), ("queues?page=1&page_size=100", {"items": [QUEUE], "page": WHOLE, "page_count": WHOLE,
                                                                 "total_count": WHOLE, "filtered_count": WHOLE}),
    ("queues/%2F/q?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5", QUEUE),
    ("connections", [CONNECTION]), ("channels", [CHANNEL]), ("exchanges", [EXCHANGE]),
    ("exchanges/%2F/amq.topic", EXCHANGE), ("bindings", [BINDING]), ("bindings/%2F", [BINDING]),
    ("policies", [POLICY]), ("policies/%2F/p", POLICY),
    ("vhosts", [VHOST]), ("vhosts/%2F", VHOST), ("users", [USER]), ("users/guest", USER), ("consumers", [CONSUMER]),
    ("permissions", [{"user": TEXT, "vhost": TEXT, "configure": TEXT, "write": TEXT, "read": TEXT}]),
    ("whoami", {"name": TEXT, "tags": TEXTS}), ("feature-flags", TABLES), ("deprecated-features", TABLES),
    ("extensions", TABLES), ("definitions", {"rabbit_version": TEXT, "users": [USER], "queues": TABLES}),
    ("vhost-limits", [{"vhost": TEXT, "value": TABLE}]), ("user-limits", [{"user": TEXT, "value": TABLE}]),
    ("global-parameters", [{"name": TEXT}]), ("parameters", [{"name": TEXT, "vhost": TEXT, "component": TEXT}]),
    ("vhosts/%2F/connections", [CONNECTION]), ("vhosts/%2F/channels", [CHANNEL]), ("cluster-name", {"name": TEXT}),
])
def test_answers_have_the_types_of_clients_in_typed_languages(filled, path, shape):
    assert misfits(shape, filled.http.get(f"/api/{path}")) == []


# --- Terraform's provider: each resource is made, read, changed, and deleted; a deleted one is a 404.

MADE = [  # path, body, body of a change, what a reading must have then
    ("vhosts/t%2F1",
     {"description": "d", "default_queue_type": "", "tracing": False, "max_connections": "", "tags": []},
     {"description": "e", "default_queue_type": "quorum", "tracing": False}, {"description": "e"}),
    ("users/t1", {"password": "secret", "tags": "management,policymaker"}, {"password": "other", "tags": ""},
     {"name": "t1", "tags": []}),
    ("permissions/t%2F1/t1", {"configure": ".*", "write": ".*", "read": ".*"},
     {"configure": "", "write": "^x", "read": ".*"}, {"user": "t1", "write": "^x"}),
    ("exchanges/t%2F1/x", {"type": "topic", "durable": True, "auto_delete": False, "arguments": {}}, None,
     {"type": "topic"}),
    ("queues/t%2F1/q", {"durable": True, "auto_delete": False, "arguments": {"x-queue-type": "quorum"}}, None,
     {"type": "quorum", "durable": True}),
    ("policies/t%2F1/p", {"vhost": "t/1", "pattern": ".*", "apply-to": "all", "name": "p", "priority": 0,
                          "definition": {"dead-letter-exchange": "x"}},
     {"vhost": "t/1", "pattern": "^q", "apply-to": "queues", "name": "p", "priority": 3,
      "definition": {"max-length": 3}},
     {"pattern": "^q", "priority": 3, "definition": {"max-length": 3}}),
    ("operator-policies/t%2F1/o", {"vhost": "t/1", "pattern": ".*", "apply-to": "queues", "name": "o", "priority": 0,
                                   "definition": {"max-length": 9}},
     {"pattern": ".*", "apply-to": "queues", "priority": 1, "definition": {"expires": 60000}}, {"priority": 1}),
    ("parameters/federation-upstream/t%2F1/up",
     {"name": "up", "vhost": "t/1", "component": "federation-upstream",
      "value": {"uri": "amqp://127.0.0.1:1", "prefetch-count": 1000, "reconnect-delay": 5, "ack-mode": "on-confirm",
                "trust-user-id": False, "max-hops": 1}},
     {"value": {"uri": "amqp://127.0.0.1:1", "prefetch-count": 1, "ack-mode": "on-publish"}}, {"name": "up"}),
    ("parameters/shovel/t%2F1/s",
     {"component": "shovel", "name": "s", "vhost": "t/1",
      "value": {"src-uri": "amqp://127.0.0.1:1", "src-queue": "a", "dest-uri": "amqp://127.0.0.1:1", "dest-queue": "b",
                "ack-mode": "on-confirm", "src-delete-after": "never", "src-prefetch-count": 1000, "reconnect-delay": 1,
                "dest-add-forward-headers": False, "src-protocol": "amqp091", "dest-protocol": "amqp091"}},
     {"value": {"src-uri": "amqp://127.0.0.1:1", "src-queue": "a2", "dest-uri": "amqp://127.0.0.1:1",
                "dest-queue": "b"}}, {"name": "s"}),
]


def test_terraforms_provider_makes_changes_and_deletes_each_of_its_resources(shared):
    http = shared.http
    assert http.ask("GET", "/api/vhosts/t%2F1").status == 404
    for path, body, change, shown in MADE:
        assert http.ask("PUT", f"/api/{path}", body).status == 201, path
        if change is not None:
            assert http.ask("PUT", f"/api/{path}", change).status == 204, path
        else:
            assert http.ask("PUT", f"/api/{path}", body).status == 204, path
        assert shown.items() <= http.get(f"/api/{path}").items(), path
    for key, arguments in (("#", {}), ("a b/%", {}), ("", {"k": "v", "n": 1})):
        bind(http, key, arguments)
    topic = {"exchange": "x", "write": ".*", "read": "^a"}
    assert http.ask("PUT", "/api/topic-permissions/t%2F1/t1", topic).status == 201
    assert http.get("/api/topic-permissions/t%2F1/t1") == [{"user": "t1", "vhost": "t/1", **topic}]
    assert http.ask("DELETE", "/api/topic-permissions/t%2F1/t1").status == 204
    assert http.ask("GET", "/api/topic-permissions/t%2F1/t1").status == 404
    for path, *_ in reversed(MADE):
        assert http.ask("DELETE", f"/api/{path}").status == 204, path
        assert http.ask("GET", f"/api/{path}").status == 404, path
        assert http.ask("DELETE", f"/api/{path}").status == 404, path


def bind(http, key, arguments):
    """Bind, find the binding by the last part of Location among those between the two, and unbind."""
    body = {"source": "x", "vhost": "t/1", "destination": "q", "destination_type": "queue", "routing_key": key,
            "arguments": arguments, "properties_key": ""}
    answer = http.ask("POST", "/api/bindings/t%2F1/e/x/q/q", body)
    assert answer.status == 201
    properties_key = unquote(answer.headers["location"].split("/")[-1])
    rows = http.get("/api/bindings/t%2F1/e/x/q/q")
    assert [(row["routing_key"], row["arguments"]) for row in rows if row["properties_key"] == properties_key] \
        == [(key, arguments)]
    assert http.ask("DELETE", f"/api/bindings/t%2F1/e/x/q/q/{quote(properties_key, safe='')}").status == 204
    assert properties_key not in [row["properties_key"] for row in http.get("/api/bindings/t%2F1/e/x/q/q")]


# --- others


@pytest.mark.parametrize("path", [
    "queues/%2F/q", "queues?page=1&use_regex=true&pagination=false&name=%5Eq%24&page_size=100",
    "queues/%2F?page=1&use_regex=true&pagination=false&name=%5Eq%24&page_size=100",
])
def test_keda_finds_length_and_rates(filled, path):
    found = filled.http.get(f"/api/{path}")
    row = found["items"][0] if "items" in found else found
    assert (row["name"], row["messages"], row["messages_ready"], row["messages_unacknowledged"]) == ("q", 1, 1, 0)
    for name in ("publish_details", "deliver_get_details"):
        assert isinstance(row["message_stats"][name]["rate"], NUMBER)


def test_flower_finds_its_queues_by_their_names(filled):
    rows = {row["name"]: row for row in filled.http.get("/api/queues/%2F")}
    wanted = {"messages": 1, "messages_unacknowledged": 0, "messages_ready": 1, "consumers": 0}
    assert {name: rows["q"][name] for name in wanted} == wanted


def test_rabbitmqadmin_2_works_with_queues_and_messages(shared):
    http = shared.http
    for path in ("overview", "nodes", "connections", "channels", "health/checks/alarms", "health/checks/local-alarms",
                 "health/checks/node-is-quorum-critical", "health/checks/port-listener/" + str(shared.port),
                 "health/checks/protocol-listener/amqp091", "definitions", "users/without-permissions",
                 "queues/detailed?page=1&page_size=100", "shovels", "federation-links", "auth", "feature-flags",
                 "deprecated-features/used"):
        assert http.ask("GET", f"/api/{path}").status == 200, path
    node = http.get("/api/nodes")[0]["name"]
    assert http.ask("GET", f"/api/nodes/{quote(node, safe='')}/memory").status == 200
    declared = {"name": "two", "vhost": "/", "durable": True, "auto_delete": False, "exclusive": False,
                "arguments": {"x-max-length": 100}}
    assert http.ask("PUT", "/api/queues/%2F/two", declared).status == 201
    exchange = {"name": "x2", "type": "fanout", "durable": True, "auto_delete": False, "internal": False,
                "arguments": None}
    assert http.ask("PUT", "/api/exchanges/%2F/x2", exchange).status == 201
    assert http.ask("POST", "/api/bindings/%2F/e/x2/q/two", {"routing_key": "k", "arguments": None}).status == 201
    sent = {"routing_key": "k", "payload": "text", "payload_encoding": "string", "properties": {"message_id": "m"}}
    assert http.ask("POST", "/api/exchanges/%2F/x2/publish", sent).body == {"routed": True}
    got = http.ask("POST", "/api/queues/%2F/two/get",
                   {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}).body[0]
    assert (got["payload"], got["redelivered"], got["properties"]["message_id"]) == ("text", False, "m")
    assert http.ask("DELETE", "/api/queues/%2F/two/contents").status == 204
    assert http.ask("DELETE", "/api/queues/%2F/two").status == 204
    assert http.ask("DELETE", "/api/exchanges/%2F/x2").status == 204
