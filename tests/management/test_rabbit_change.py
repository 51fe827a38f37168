"""RabbitMQ's PUT, POST and DELETE: 201 for what is new, 204 for what was there or is gone, 4xx for what cannot be."""

import pika
import pytest
from tests.broker import SECONDS
from tests.server.clients import close_all, connect


def put(http, path, **body):
    return http.ask("PUT", f"/api/{path}", {name.replace("_to", "-to"): value for name, value in body.items()}).status


def delete(http, path):
    return http.ask("DELETE", f"/api/{path}").status


def test_a_user_is_made_changed_and_deleted(http):
    assert put(http, "users/ann", password="secret", tags="management, x") == 201
    ann = http.as_user("ann", "secret")
    assert ann.get("/api/whoami") == {"name": "ann", "tags": ["management", "x"]}
    assert put(http, "users/ann", password="other", tags=["monitoring"]) == 204
    assert ann.ask("GET", "/api/whoami").status == 401
    assert http.as_user("ann", "other").get("/api/whoami")["tags"] == ["monitoring"]
    assert delete(http, "users/ann") == 204
    assert http.as_user("ann", "other").ask("GET", "/api/whoami").status == 401
    assert delete(http, "users/ann") == 404


def test_a_user_may_come_with_a_hash_and_many_may_go_at_once(http):
    hashed = http.get("/api/auth/hash_password/secret")
    assert put(http, "users/bob", password_hash=hashed["password_hash"], tags="management",
               hashing_algorithm=hashed["hashing_algorithm"]) == 201
    assert http.as_user("bob", "secret").get("/api/whoami")["name"] == "bob"
    assert put(http, "users/cat", password="x", tags="") == 201
    assert http.ask("POST", "/api/users/bulk-delete", {"users": ["bob", "cat", "none"]}).status == 204
    assert [row["name"] for row in http.get("/api/users")] == ["guest"]


def test_permissions_bite_at_the_next_request(http):
    assert put(http, "users/dan", password="x", tags="management") == 201
    dan = http.as_user("dan", "x")
    assert dan.ask("GET", "/api/queues/%2F").status == 401
    assert dan.get("/api/queues") == []
    assert put(http, "permissions/%2F/dan", configure="^d", write="", read=".*") == 201
    assert put(http, "permissions/%2F/dan", configure="^dd", write="", read=".*") == 204
    assert put(dan, "queues/%2F/dd1") == 201
    assert put(dan, "queues/%2F/other") == 401
    assert dan.ask("GET", "/api/users").body == {"error": "not_authorized", "reason": "Not administrator user"}
    assert dan.ask("POST", "/api/v2/user/list", {}).status == 403
    assert put(http, "topic-permissions/%2F/dan", exchange="amq.topic", write="^a", read="") == 201
    assert len(http.get("/api/topic-permissions/%2F/dan")) == 1
    assert delete(http, "topic-permissions/%2F/dan/amq.topic") == 204
    assert delete(http, "permissions/%2F/dan") == 204
    assert dan.ask("GET", "/api/queues/%2F").status == 401
    assert delete(http, "queues/%2F/dd1") == 204
    assert delete(http, "users/dan") == 204


def test_a_vhost_has_limits_and_goes(http):
    assert put(http, "vhosts/a%2Fb") == 201
    assert put(http, "vhosts/a%2Fb") == 204
    assert put(http, "vhosts/a%2Fb", description="for tests", tags="x, y") == 204
    assert http.get("/api/vhosts/a%2Fb")["metadata"] == {"description": "for tests", "tags": ["x", "y"]}
    assert put(http, "vhost-limits/a%2Fb/max-queues", value=3) == 201
    assert http.get("/api/vhost-limits/a%2Fb") == [{"vhost": "a/b", "value": {"max-queues": 3}}]
    assert delete(http, "vhost-limits/a%2Fb/max-queues") == 204
    assert http.get("/api/vhost-limits") == []
    assert put(http, "user-limits/guest/max-connections", value=100) == 201
    assert http.get("/api/user-limits/guest") == [{"user": "guest", "value": {"max-connections": 100}}]
    assert delete(http, "user-limits/guest/max-connections") == 204
    assert delete(http, "vhosts/a%2Fb") == 204
    assert http.ask("GET", "/api/vhosts/a%2Fb").status == 404


def declared(shared, **options):
    """The type of a queue that a client declares in vhost typed without a type."""
    url = f"amqp://guest:guest@127.0.0.1:{shared.port}/typed"
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        connection.channel().queue_declare(**options)


def test_a_vhost_has_a_default_type_of_queues(http, shared):
    assert put(http, "vhosts/typed") == 201
    assert http.get("/api/vhosts/typed")["default_queue_type"] == "undefined"
    assert put(http, "permissions/typed/guest", configure=".*", write=".*", read=".*") == 204
    declared(shared, queue="before", durable=True)
    assert put(http, "vhosts/typed", description="kept") == 204
    assert put(http, "vhosts/typed", default_queue_type="quorum") == 204
    shown = http.get("/api/vhosts/typed")
    assert (shown["default_queue_type"], shown["metadata"]["default_queue_type"], shown["description"]) == (
        "quorum", "quorum", "kept")
    for name, options in (
        ("before", {"durable": True}), ("after", {"durable": True}), ("transient", {}),
        ("auto", {"durable": True, "auto_delete": True}),
        ("named", {"durable": True, "arguments": {"x-queue-type": "classic"}}),
    ):
        for _ in range(2):      # Declared again it is the same.
            declared(shared, queue=name, **options)
    assert put(http, "queues/typed/web", durable=True) == 201
    types = {row["name"]: row["type"] for row in http.get("/api/queues/typed")}
    assert types == {"before": "classic", "after": "quorum", "transient": "classic", "auto": "classic",
                     "named": "classic", "web": "quorum"}
    refused = http.ask("PUT", "/api/vhosts/typed", {"default_queue_type": "fast"})
    assert (refused.status, "classic, quorum, stream" in str(refused.body)) == (400, True)
    exported = http.get("/api/definitions")
    (vhost,) = [each for each in exported["vhosts"] if each["name"] == "typed"]
    assert vhost["default_queue_type"] == vhost["metadata"]["default_queue_type"] == "quorum"
    assert delete(http, "vhosts/typed") == 204
    imported = {"vhosts": [vhost], "permissions": [], "queues": []}
    assert http.ask("POST", "/api/definitions", imported).status == 204
    assert http.get("/api/vhosts/typed")["default_queue_type"] == "quorum"
    assert put(http, "permissions/typed/guest", configure=".*", write=".*", read=".*") == 201
    declared(shared, queue="anew", durable=True)
    assert http.get("/api/queues/typed/anew")["type"] == "quorum"
    assert put(http, "vhosts/typed", default_queue_type="undefined") == 204
    declared(shared, queue="anew", durable=True, arguments={"x-queue-type": "quorum"})
    declared(shared, queue="last", durable=True)
    assert http.get("/api/queues/typed/last")["type"] == "classic"
    assert http.ask("POST", "/api/definitions", {"vhosts": [{"name": "b", "default_queue_type": "x"}]}).status == 400
    assert delete(http, "vhosts/typed") == 204


def test_queues_exchanges_and_bindings_come_and_go(http):
    assert put(http, "exchanges/%2F/e%2F1", type="topic", durable="true", arguments={}) == 201
    assert put(http, "exchanges/%2F/e%2F1", type="topic", auto_delete=False, arguments=[]) == 204
    assert put(http, "exchanges/%2F/e%2F1", type="fanout") == 400
    assert put(http, "exchanges/%2F/amq.mine", type="fanout") == 401    # As RabbitMQ: ACCESS_REFUSED
    assert put(http, "queues/%2F/q%2F1", auto_delete="false", arguments={"x-max-length": 5}, node="any") == 201
    assert put(http, "queues/%2F/q%2F1", arguments={"x-max-length": 6}) == 400
    answer = http.ask("POST", "/api/bindings/%2F/e/e%2F1/q/q%2F1", {"routing_key": "a.#", "arguments": {"n": 1}})
    assert answer.status == 201
    place = answer.headers["location"]
    assert place.startswith("q%2F1/a.%2523~")
    assert http.get(f"/api/bindings/%2F/e/e%2F1/q/{place}")["arguments"] == {"n": 1}
    assert delete(http, f"bindings/%2F/e/e%2F1/q/{place}") == 204
    assert delete(http, f"bindings/%2F/e/e%2F1/q/{place}") == 404
    assert http.ask("POST", "/api/bindings/%2F/e/e%2F1/e/amq.fanout", {}).headers["location"] == "amq.fanout/~"
    assert delete(http, "exchanges/%2F/e%2F1?if-unused=true") == 400
    assert delete(http, "bindings/%2F/e/e%2F1/e/amq.fanout/~") == 204
    assert delete(http, "exchanges/%2F/e%2F1?if-unused=true") == 204
    assert delete(http, "queues/%2F/q%2F1/contents") == 204
    assert delete(http, "queues/%2F/q%2F1?if-empty=true&if-unused=true") == 204
    assert delete(http, "queues/%2F/q%2F1") == 404


def test_policies_and_parameters_come_and_go(http):
    for kind in ("policies", "operator-policies"):
        assert put(http, f"{kind}/%2F/p", pattern="^x", definition={"max-length": 5}, apply_to="queues",
                   priority="1") == 201
        assert put(http, f"{kind}/%2F/p", pattern="^x", definition={"max-length": 6}) == 204
        assert http.get(f"/api/{kind}/%2F/p")["definition"] == {"max-length": 6}
        assert delete(http, f"{kind}/%2F/p") == 204
        assert http.ask("GET", f"/api/{kind}/%2F/p").status == 404
    assert put(http, "policies/%2F/p", pattern="^x", definition={"max-lenght": 5}) == 400
    assert put(http, "cluster-name", name="north") == 204
    assert http.get("/api/cluster-name") == {"name": "north"}
    assert http.get("/api/overview")["cluster_name"] == "north"
    assert http.get("/api/global-parameters/cluster_name")["value"] == "north"
    assert http.get("/api/definitions")["original_cluster_name"] == "north"
    assert http.ask("PUT", "/api/cluster-name", {"nam": "x"}).body["reason"] == "key_missing: name"
    for wrong in ("", 5, None, {}):
        answer = http.ask("PUT", "/api/cluster-name", {"name": wrong})
        assert (answer.status, answer.body["reason"]) == (
            400, "global parameter 'cluster_name' is a text that is not empty")
    assert delete(http, "global-parameters/cluster_name") == 204
    assert http.get("/api/cluster-name")["name"] == http.get("/api/overview")["node"]
    assert put(http, "global-parameters/cluster", value={"a": 1}) == 201
    assert http.get("/api/global-parameters/cluster") == {"name": "cluster", "value": {"a": 1}}
    assert delete(http, "global-parameters/cluster") == 204


@pytest.mark.parametrize(("method", "path", "body"), [
    ("PUT", "users/x", {}), ("PUT", "users/x", {"tags": 1}), ("PUT", "users/x", {"tags": "a", "password": 1}),
    ("PUT", "permissions/%2F/guest", {"configure": "x"}), ("PUT", "permissions/%2F/guest", b"nonsense"),
    ("PUT", "permissions/%2F/guest", {"configure": "(", "write": "", "read": ""}),
    ("PUT", "exchanges/%2F/x", {}), ("PUT", "exchanges/%2F/x", {"type": "none"}), ("PUT", "exchanges/%2F/x", []),
    ("PUT", "queues/%2F/x", {"durable": "maybe"}),
    ("PUT", "queues/%2F/x", {"durable": 1}), ("PUT", "queues/%2F/x", {"arguments": "x"}),
    ("PUT", "queues/%2F/x", {"arguments": {"x-max-length": "many"}}), ("PUT", "queues/%2F/" + "x" * 300, {}),
    ("PUT", "policies/%2F/x", {"pattern": "x"}), ("PUT", "policies/%2F/x", {"pattern": "(", "definition": {}}),
    ("PUT", "vhost-limits/%2F/none", {"value": 1}), ("PUT", "vhost-limits/%2F/max-queues", {"value": "x"}),
    ("PUT", "user-limits/guest/max-channels", {}), ("POST", "users/bulk-delete", {"users": "guest"}),
    ("POST", "bindings/%2F/e/amq.direct/q/none", {"routing_key": 1}),
])
def test_a_request_that_is_wrong_is_told_so_and_changes_nothing(http, method, path, body):
    answer = http.ask(method, f"/api/{path}", body)
    assert answer.status == 400, answer
    assert answer.body["error"] == "bad_request"
    assert answer.body["reason"]


@pytest.mark.parametrize(("method", "path", "body"), [
    ("PUT", "queues/none/x", {}), ("PUT", "exchanges/none/x", {"type": "direct"}), ("DELETE", "vhosts/none", None),
    ("PUT", "policies/none/x", {"pattern": "x", "definition": {"max-length": 1}}), ("DELETE", "users/none", None),
    ("DELETE", "policies/%2F/none", None), ("DELETE", "queues/%2F/none/contents", None),
    ("POST", "bindings/%2F/e/none/q/none", {"routing_key": ""}), ("DELETE", "connections/none", None),
    ("DELETE", "bindings/%2F/e/amq.direct/q/none/~", None), ("DELETE", "exchanges/%2F/none", None),
])
def test_what_is_not_there_cannot_be_changed(http, method, path, body):
    assert http.ask(method, f"/api/{path}", body).status == 404


def test_a_connection_is_closed_with_a_reason(shared):
    connection = connect(shared)
    connection.channel()
    (row,) = shared.http.get("/api/connections")
    assert shared.http.ask("DELETE", f"/api/connections/{row['name']}", x_reason="enough").status == 204
    with pytest.raises(Exception, match="enough"):
        connection.process_data_events(SECONDS)
    close_all()


def test_a_changed_user_outlives_kill_9(make_broker):
    from tests.management.http import Http, reserve_http

    port = reserve_http()
    broker = make_broker("--http-port", port).start()
    broker.wait_for_log(r"\(HTTP\)")
    http = Http(port)
    assert put(http, "users/eve", password="x", tags="administrator") == 201
    assert put(http, "vhosts/kept") == 201
    assert put(http, "queues/%2F/kept") == 201
    broker.kill()
    begin = len(broker.lines)
    broker.start()
    broker.wait_for_log(r"\(HTTP\)", begin)
    eve = http.as_user("eve", "x")
    assert eve.get("/api/vhosts/kept")["name"] == "kept"
    assert http.get("/api/queues/%2F/kept")["durable"] is True
