"""Every call of RabbitMQ's and of LavinMQ's HTTP API is answered, or stands in docs/compatibility.md with a reason."""

import re
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.server.clients import close_all, connect

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "compatibility.md").read_text(encoding="utf-8")

BODIES = {
    "SHOVEL": '{"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}',
    "MESSAGE": '{"properties": {}, "routing_key": "a", "payload": "", "payload_encoding": "string"}',
}
# A call: method, path, and the body of a request that changes something.  {node}, {connection} and {channel} are those
# of the broker and of the client that the fixture connects.
SHARED = """
GET /api/overview
GET /api/whoami
GET /api/aliveness-test/%2F
GET /api/extensions
GET /api/definitions
GET /api/definitions/%2F
POST /api/definitions {"users": []}
POST /api/definitions/%2F {"queues": []}
GET /api/connections
GET /api/vhosts/%2F/connections
GET /api/connections/{connection}
GET /api/connections/username/guest
GET /api/connections/{connection}/channels
GET /api/channels
GET /api/vhosts/%2F/channels
GET /api/channels/{channel}
GET /api/consumers
GET /api/consumers/%2F
DELETE /api/consumers/%2F/{connection}/1/me
GET /api/exchanges
GET /api/exchanges/%2F
GET /api/exchanges/%2F/amq.topic
PUT /api/exchanges/%2F/x {"type": "topic"}
POST /api/exchanges/%2F/x/publish MESSAGE
GET /api/exchanges/%2F/x/bindings/source
GET /api/exchanges/%2F/x/bindings/destination
GET /api/queues
GET /api/queues/%2F
PUT /api/queues/%2F/q {"durable": true}
GET /api/queues/%2F/q
POST /api/queues/%2F/q/get {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
GET /api/queues/%2F/q/bindings
DELETE /api/queues/%2F/q/contents
GET /api/bindings
GET /api/bindings/%2F
POST /api/bindings/%2F/e/x/q/q {"routing_key": "k"}
GET /api/bindings/%2F/e/x/q/q
GET /api/bindings/%2F/e/x/q/q/k
DELETE /api/bindings/%2F/e/x/q/q/k
POST /api/bindings/%2F/e/x/e/amq.fanout {"routing_key": "k"}
GET /api/bindings/%2F/e/x/e/amq.fanout
GET /api/bindings/%2F/e/x/e/amq.fanout/k
DELETE /api/bindings/%2F/e/x/e/amq.fanout/k
GET /api/vhosts
PUT /api/vhosts/v {}
GET /api/vhosts/v
GET /api/vhosts/v/permissions
GET /api/vhost-limits
GET /api/vhost-limits/v
PUT /api/vhost-limits/v/max-queues {"value": 5}
DELETE /api/vhost-limits/v/max-queues
GET /api/users
GET /api/users/without-permissions
PUT /api/users/u {"password": "x", "tags": "management"}
GET /api/users/u
GET /api/users/u/permissions
PUT /api/permissions/v/u {"configure": "", "write": "", "read": ""}
GET /api/permissions
GET /api/permissions/v/u
DELETE /api/permissions/v/u
PUT /api/parameters/shovel/v/s {"value": SHOVEL}
GET /api/parameters
GET /api/parameters/shovel
GET /api/parameters/shovel/v
GET /api/parameters/shovel/v/s
GET /api/shovels
GET /api/shovels/v
DELETE /api/parameters/shovel/v/s
PUT /api/global-parameters/g {"value": 1}
GET /api/global-parameters
GET /api/global-parameters/g
DELETE /api/global-parameters/g
PUT /api/policies/%2F/p {"pattern": "^q$", "definition": {"max-length": 5}}
GET /api/policies
GET /api/policies/%2F
GET /api/policies/%2F/p
DELETE /api/policies/%2F/p
PUT /api/operator-policies/%2F/p {"pattern": "^q$", "definition": {"max-length": 5}}
GET /api/operator-policies
GET /api/operator-policies/%2F
GET /api/operator-policies/%2F/p
DELETE /api/operator-policies/%2F/p
GET /api/federation-links
GET /api/federation-links/%2F
GET /api/nodes
GET /api/nodes/{node}
GET /metrics
GET /metrics/detailed?family=queue_coarse_metrics
"""
RABBITMQS = """
GET /api
GET /api/cluster-name
PUT /api/cluster-name {"name": "here"}
GET /api/nodes/{node}/memory
GET /api/nodes/{node}/memory/ets
GET /api/all-configuration
POST /api/all-configuration {"users": []}
GET /api/queues/detailed
POST /api/queues/%2F/q/actions {"action": "sync"}
POST /api/queues/quorum/%2F/q/replicas/add {"node": "n"}
DELETE /api/queues/quorum/%2F/q/replicas/delete {"node": "n"}
POST /api/queues/quorum/replicas/on/{node}/grow {"strategy": "all"}
DELETE /api/queues/quorum/replicas/on/{node}/shrink
GET /api/queues/quorum/%2F/q/status
POST /api/vhosts/v/start/{node}
GET /api/vhosts/v/topic-permissions
POST /api/vhosts/v/deletion/protection
DELETE /api/vhosts/v/deletion/protection
POST /api/users/bulk-delete {"users": []}
GET /api/users/u/topic-permissions
PUT /api/topic-permissions/v/u {"exchange": "amq.topic", "write": "", "read": ""}
GET /api/topic-permissions
GET /api/topic-permissions/v/u
DELETE /api/topic-permissions/v/u/amq.topic
PUT /api/user-limits/u/max-channels {"value": 5}
GET /api/user-limits
GET /api/user-limits/u
DELETE /api/user-limits/u/max-channels
GET /api/health/checks/alarms
GET /api/health/checks/local-alarms
GET /api/health/checks/virtual-hosts
GET /api/health/checks/port-listener/{port}
GET /api/health/checks/protocol-listener/amqp
GET /api/health/checks/certificate-expiration/1/weeks
GET /api/health/checks/node-is-mirror-sync-critical
GET /api/health/checks/node-is-quorum-critical
GET /api/health/checks/is-in-service
GET /api/health/checks/ready-to-serve-clients
GET /api/health/checks/below-node-connection-limit
GET /api/health/checks/reached-target-cluster-size
GET /api/health/checks/metadata-store/initialized
GET /api/health/checks/metadata-store/initialized/with-data
GET /api/health/checks/quorum-queues-without-elected-leaders/vhost/%2F/pattern/q
GET /api/health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/q
GET /api/healthchecks/node
GET /api/healthchecks/node/{node}
GET /api/feature-flags
PUT /api/feature-flags/f/enable
GET /api/deprecated-features
GET /api/deprecated-features/used
GET /api/auth
GET /api/auth/attempts/{node}
GET /api/auth/attempts/{node}/source
GET /api/auth/hash_password/x
POST /api/login username=guest&password=guest
GET /api/version
DELETE /api/reset
DELETE /api/reset/{node}
POST /api/rebalance/queues
GET /api/config/effective
PUT /api/parameters/shovel/v/s {"value": SHOVEL}
GET /api/shovels/vhost/v/s
DELETE /api/shovels/vhost/v/s/restart
DELETE /api/shovels/vhost/v/s
GET /api/federation-links/state/down
GET /api/federation-links/state/down/%2F
GET /api/traces
GET /api/traces/%2F
GET /api/traces/node/{node}
GET /api/traces/node/{node}/%2F
PUT /api/traces/%2F/t {"format": "text", "pattern": "#"}
GET /api/traces/%2F/t
GET /api/traces/node/{node}/%2F/t
DELETE /api/traces/%2F/t
GET /api/trace-files
GET /api/trace-files/node/{node}
GET /api/trace-files/t.log
GET /api/trace-files/node/{node}/t.log
DELETE /api/trace-files/t.log
GET /api/stream/connections
GET /api/stream/connections/%2F
GET /api/stream/publishers
GET /api/stream/consumers
GET /metrics/per-object
GET /metrics/memory-breakdown
"""
LAVINMQS = """
POST /api/definitions/upload {"users": []}
POST /api/definitions/%2F/upload {"queues": []}
PUT /api/channels/{channel} {"prefetch": 5}
GET /api/queues/%2F/q/unacked
PUT /api/queues/%2F/q/pause
PUT /api/queues/%2F/q/resume
PUT /api/queues/%2F/q/restart
DELETE /api/queues/%2F/q/contents?count=1
POST /api/queues/%2F/stream/stream {"count": 1}
PUT /api/auth/hash_password {"password": "x"}
PUT /api/parameters/shovel/v/s {"value": SHOVEL}
GET /api/shovels/v/s
PUT /api/shovels/v/s/pause
PUT /api/shovels/v/s/resume
DELETE /api/parameters/shovel/v/s
GET /api/nodes/gc_stats
POST /api/nodes/gc_collect
POST /api/nodes/{node}/gc_collect
GET /api/livelog
GET /api/logs
GET /docs/
"""
LAST = """
DELETE /api/connections/username/guest
DELETE /api/queues/%2F/q
DELETE /api/exchanges/%2F/x
DELETE /api/users/u
DELETE /api/vhosts/v
"""
CALLS = [line for text in (SHARED, RABBITMQS, LAVINMQS, LAST) for line in text.strip().splitlines()]


def left_out():
    """The calls that the page names as left out, as expressions for their method and path."""
    table = PAGE.split("\n## HTTP calls that are left out\n", 1)[1].split("\n## ", 1)[0]
    found = []
    for line in table.splitlines():
        if not line.startswith("| "):
            continue
        for words in re.findall(r"`([^`]+)`", line.split("|")[1]):
            method, _, path = words.rpartition(" ")
            expression = re.escape(path).replace(r"\.\.\.", ".*")
            expression = re.sub(r"/[A-Z](?=/|$)", "/[^/]+", expression)
            found.append(re.compile(f"{method or '[A-Z]+'} {expression}"))
    return found


LEFT_OUT = left_out()


def is_left_out(call):
    return any(each.fullmatch(" ".join(call.split(" ", 2)[:2])) for each in LEFT_OUT)


@pytest.fixture(scope="module")
def names(shared):
    channel = connect(shared).channel()
    channel.queue_declare("q", durable=True)
    channel.queue_declare("stream", durable=True, arguments={"x-queue-type": "stream"})
    channel.basic_consume("q", lambda *_: None, consumer_tag="me")
    http = shared.http
    yield {
        "node": http.get("/api/overview")["node"], "port": str(http.port),
        "connection": quote(http.get("/api/connections")[0]["name"]),
        "channel": quote(http.get("/api/channels")[0]["name"]),
    }
    close_all()


def ask(shared, names, call):
    """The answer's status, and the reason in it."""
    method, path, *body = call.split(" ", 2)
    for name, text in names.items():
        path = path.replace(f"{{{name}}}", text)
    if path == "/api/livelog":      # It does not end.
        method = "HEAD"
    octets = "".join(body)
    for name, text in BODIES.items():
        octets = octets.replace(name, text)
    while True:
        answer = shared.http.ask(method, path, octets.encode() or None)
        if answer.status != 409 or "is starting" not in str(answer.body):   # the process of links
            return answer.status, answer.body


@pytest.fixture(scope="module")
def answers(shared, names):
    """What the broker answers to each call, asked in their order."""
    return {call: ask(shared, names, call) for call in CALLS}


@pytest.mark.parametrize("call", [call for call in CALLS if not is_left_out(call)])
def test_each_call_is_answered(answers, call):
    status, body = answers[call]
    assert status in (200, 201, 204), (status, body)


@pytest.mark.parametrize("call", [call for call in CALLS if is_left_out(call)])
def test_what_is_left_out_stands_in_the_page_because_it_is_not_answered(answers, call):
    assert answers[call][0] in (400, 404, 405), answers[call]


def test_each_row_of_the_page_is_about_a_call_of_these_lists():
    asked = [" ".join(call.split(" ", 2)[:2]) for call in CALLS]
    idle = [each.pattern for each in LEFT_OUT if not any(map(each.fullmatch, asked))]
    assert idle == []
