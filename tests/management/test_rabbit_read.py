"""RabbitMQ's lists and single things, seen by those who may."""

from urllib.parse import quote

import pytest
from tests.server.clients import close_all, connect


@pytest.fixture(scope="module")
def filled(shared):
    channel = connect(shared).channel()
    channel.exchange_declare("ex/a", "topic", durable=True)
    channel.queue_declare("q/1", durable=True, arguments={"x-max-length": 100})
    channel.queue_declare("q2", durable=True)
    channel.queue_bind("q/1", "ex/a", "a.#", {"x": 1})
    channel.exchange_bind("amq.fanout", "ex/a", "k")
    channel.basic_publish("ex/a", "a.b", b"hello")
    channel.basic_consume("q2", lambda *_: None, consumer_tag="me")
    yield shared
    close_all()


def test_queues_have_rabbitmqs_fields(filled):
    found = filled.http.get("/api/queues/%2F/q%2F1")
    assert found["arguments"] == {"x-max-length": 100}
    assert (found["messages"], found["messages_ready"], found["consumers"]) == (1, 1, 0)
    for name in ("node", "state", "type", "message_stats", "messages_details", "memory", "consumer_capacity",
                 "effective_policy_definition", "policy", "consumer_details", "exclusive", "auto_delete", "durable"):
        assert name in found, name
    assert found["message_stats"]["publish_details"] == {"rate": 0.0}
    assert [row["name"] for row in filled.http.get("/api/queues")] == ["q/1", "q2"]
    assert [row["name"] for row in filled.http.get("/api/queues/%2F")] == ["q/1", "q2"]


def test_pages_filters_and_columns_work_as_keda_asks(filled):
    found = filled.http.get("/api/queues?page=1&use_regex=true&pagination=false&name=%5Eq2%24&page_size=100")
    assert [row["name"] for row in found["items"]] == ["q2"]
    found = filled.http.get("/api/queues?columns=name,message_stats.publish_details.rate&sort=name&sort_reverse=true")
    assert found[0] == {"name": "q2", "message_stats": {"publish_details": {"rate": 0.0}}}


def test_of_what_clients_hold_the_unacked_list_and_the_channel_tell(shared):
    channel = connect(shared).channel()
    channel.queue_declare("held")
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", "held", b"x")
    channel.basic_consume("held", lambda *_: None, consumer_tag="me")
    channel.connection.process_data_events(0)
    rows = shared.http.get("/api/queues/%2F/held/unacked")
    assert [(row["delivery_tag"], row["consumer_tag"], row["seq"]) for row in rows] == [
        (1, "me", 1), (2, "me", 2), (3, "me", 3)]
    assert rows[0]["unacked_for_seconds"] >= 0
    shown = shared.http.get(f"/api/channels/{rows[0]['channel_name'].replace(' ', '%20')}")
    assert (shown["messages_unacknowledged"], shown["messages_unconfirmed"]) == (3, 0)
    assert {name: count for name, count in shown["message_stats"].items() if not name.endswith("_details")} == {
        "publish": 3, "confirm": 3, "deliver": 3, "get": 0, "deliver_get": 3, "ack": 0}
    assert shown["message_stats"]["deliver_get_details"] == {"rate": 0.0}
    channel.connection.close()


def test_a_consumer_is_shown_with_its_channel(filled):
    (consumer,) = filled.http.get("/api/consumers/%2F")
    assert (consumer["consumer_tag"], consumer["queue"]) == ("me", {"name": "q2", "vhost": "/"})
    channel = filled.http.get(f"/api/channels/{consumer['channel_details']['name'].replace(' ', '%20')}")
    assert channel["consumer_details"][0]["consumer_tag"] == "me"
    name = consumer["channel_details"]["connection_name"]
    assert filled.http.get(f"/api/connections/{name}")["user"] == "guest"
    assert len(filled.http.get(f"/api/connections/{name}/channels")) == 1
    assert len(filled.http.get("/api/connections/username/guest")) == 1
    assert filled.http.get("/api/queues/%2F/q2")["consumer_details"][0]["consumer_tag"] == "me"


def test_bindings_are_found_from_all_sides(filled):
    get = filled.http.get
    (one,) = get("/api/bindings/%2F/e/ex%2Fa/q/q%2F1")
    assert (one["routing_key"], one["arguments"]) == ("a.#", {"x": 1})
    key = one["properties_key"].replace("%", "%25")
    assert get(f"/api/bindings/%2F/e/ex%2Fa/q/q%2F1/{key}") == one
    assert get(f"/api/bindings/%2F/e/ex%2Fa/q/q%2F1/{one['properties_key']}") == one
    assert one in get("/api/queues/%2F/q%2F1/bindings")
    assert one in get("/api/exchanges/%2F/ex%2Fa/bindings/source")
    assert [row["source"] for row in get("/api/exchanges/%2F/amq.fanout/bindings/destination")] == ["ex/a"]
    assert one in get("/api/bindings")
    assert get("/api/bindings/%2F/e/ex%2Fa/e/amq.fanout")[0]["destination_type"] == "exchange"


@pytest.mark.parametrize("path", [
    "exchanges/%2F/none", "queues/%2F/none", "queues/none", "queues/none/q", "vhosts/none", "users/none",
    "permissions/%2F/none", "policies/%2F/none", "operator-policies/%2F/none", "connections/none", "channels/none",
    "bindings/%2F/e/ex%2Fa/q/none", "bindings/%2F/e/none/q/q2", "bindings/%2F/e/ex%2Fa/q/q%2F1/none",
    "queues/%2F/none/bindings", "exchanges/%2F/none/bindings/source", "users/none/permissions",
    "vhosts/none/permissions", "topic-permissions/%2F/guest", "nothing", "",
])
def test_what_is_not_there_is_a_404(filled, path):
    answer = filled.http.ask("GET", f"/api/{path}")
    assert answer.status == 404
    assert answer.body["error"] == "Object Not Found"


@pytest.mark.parametrize("path", ["vhosts", "vhosts/%2F", "users", "users/guest", "permissions",
                                  "permissions/%2F/guest", "users/guest/permissions", "vhosts/%2F/permissions",
                                  "exchanges/%2F/amq.default",
                                  "users/without-permissions", "policies", "operator-policies", "policies/%2F"])
def test_what_is_there_is_shown(filled, path):
    filled.http.get(f"/api/{path}")


def test_a_queue_and_a_channel_tell_who_got_how_many_of_which_messages(shared):
    channel, other = connect(shared).channel(), connect(shared).channel()
    channel.confirm_delivery()
    for name, count in (("mine", 3), ("both", 4)):
        channel.queue_declare(name)
        for _ in range(count):
            channel.basic_publish("", name, b"x")
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("mine", lambda *_: None)
    other.basic_consume("both", lambda *_: None, auto_ack=True)
    channel.basic_consume("both", lambda *_: None)
    other.connection.process_data_events(0)
    name = shared.http.get("/api/queues/%2F/mine")["consumer_details"][0]["channel_details"]["name"]
    found = shared.http.get("/api/queues/%2F/both")["deliveries"]
    rows = {row["channel_details"]["name"]: row["stats"] for row in found}
    assert rows.pop(name)["deliver_get"] == 0
    (stats,) = rows.values()
    assert {key: stats[key] for key in ("deliver", "deliver_no_ack", "deliver_get")} == {
        "deliver": 0, "deliver_no_ack": 4, "deliver_get": 4}
    assert stats["deliver_get_details"] == {"rate": 0.0}
    found = shared.http.get(f"/api/channels/{quote(name)}")
    assert [(row["queue"], row["stats"]["deliver"], row["stats"]["deliver_get"]) for row in found["deliveries"]] == [
        ({"name": "both", "vhost": "/"}, 0, 0), ({"name": "mine", "vhost": "/"}, 1, 1)]
    assert found["publishes"] == []
    close_all()
