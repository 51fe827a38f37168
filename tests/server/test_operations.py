"""Every operation at a real broker: what it answers is as its model says, and who may ask."""

import json

import pytest
from tests.broker import Broker
from tests.server.clients import connect, permission, user_entry, write_json
from tests.server.test_control import Peer

from brokerd.operations import table

USERS = [user_entry("guest", tags=["administrator"]), user_entry("ann", tags=["management"]),
         user_entry("mona", tags=["monitoring"]), user_entry("polly", tags=["policymaker"]), user_entry("plain")]


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker with two vhosts, users of every kind, a queue with a consumer, and policies."""
    broker = Broker(tmp_path_factory.mktemp("operations") / "data")
    with broker:
        broker.stop()
        write_json(broker.directory / "vhosts.json", [{"name": "/"}, {"name": "two"}])
        write_json(broker.directory / "users.json", USERS)
        write_json(broker.directory / "permissions.json", [
            permission("guest"), permission("guest", "two"), permission("ann"), permission("polly"),
            permission("plain")])
        broker.start()
        channel = connect(broker).channel()
        channel.queue_declare("q", durable=True, arguments={"x-max-length": 5})
        channel.queue_bind("q", "amq.topic", "a.#")
        channel.basic_consume("q", lambda *_: None, consumer_tag="tag")
        yield broker
        channel.connection.close()  # Between tests the clients forget which connections there are.


@pytest.fixture
def peer(broker):
    peer = Peer(broker)
    yield peer
    peer.close()


def ask(peer, verb, **fields):
    """The result; the answer is checked by the model of its row."""
    answer = peer.ask(verb=verb, **fields)
    assert "result" in answer, (verb, answer)
    row = table.find(verb)
    json.dumps(table.adapter(row.answer).validate_python(answer["result"], strict=True))
    return answer["result"]


# --- lists

LISTS = {  # what the first row of each list has, as the administrator sees it
    "binding list": {"source": "", "destination": "q", "routing_key": "q", "destination_type": "queue"},
    "channel list": {"number": 1, "user": "guest", "consumer_count": 1, "vhost": "/"},
    "connection list": {"user": "guest", "vhost": "/", "state": "running", "channels": 1},
    "consumer list": {"consumer_tag": "tag", "queue": "q", "ack_required": True, "active": True},
    "exchange list": {"name": "", "type": "direct", "vhost": "/"},
    "permission list": {"user": "ann", "vhost": "/", "configure": ".*"},
    "queue list": {"name": "q", "arguments": {"x-max-length": 5}, "effective_arguments": {"x-max-length": 5},
                   "consumers": 1, "messages": 0, "bindings": 1},
    "user list": {"name": "ann", "tags": ["management"], "limits": {}},
    "vhost list": {"name": "/", "tracing": False, "queues": 1},
}


@pytest.mark.parametrize("verb", LISTS)
def test_a_list_has_rabbitmqs_words(peer, verb):
    found = ask(peer, verb)
    assert LISTS[verb].items() <= found["items"][0].items()
    assert found["total_count"] == found["filtered_count"] == len(found["items"])
    assert ask(peer, verb, name="no such name")["items"] == []


def test_the_broker_says_what_it_has(peer):
    shown = ask(peer, "status")
    assert (shown["vhosts"], shown["users"], shown["totals"]["queues"], shown["totals"]["consumers"]) == (2, 5, 1, 1)
    assert shown["listeners"][0]["protocol"] == "amqp"
    assert shown["mem_used"] > 1 << 20
    assert shown["disk_free"] > 0


def test_one_thing_is_shown_as_in_its_list(peer):
    for verb, name in (("queue", "q"), ("exchange", "amq.topic"), ("vhost", "/"), ("user", "ann")):
        rows = {row["name"]: row for row in ask(peer, f"{verb} list")["items"] if row.get("vhost", "/") == "/"}
        assert ask(peer, f"{verb} show", **{verb: name}) == rows[name]
    (row,) = ask(peer, "connection list")["items"]
    shown = ask(peer, "connection show", connection=row["name"])
    assert shown["number"] == row["number"] == ask(peer, "connection show", connection=str(row["number"]))["number"]


@pytest.mark.parametrize(("verb", "fields", "text"), [
    ("queue show", {"queue": "no"}, "no queue 'no' in vhost '/'"),
    ("queue show", {"queue": "q", "vhost": "no"}, "no vhost 'no'"),
    ("exchange show", {"exchange": "no"}, "no exchange 'no' in vhost '/'"),
    ("vhost show", {"vhost": "no"}, "no vhost 'no'"),
    ("user show", {"user": "no"}, "no user 'no'"),
    ("connection show", {"connection": "no"}, "no connection 'no'"),
    ("queue list", {"vhost": "no"}, "no vhost 'no'"),
])
def test_what_is_not_there_is_named(peer, verb, fields, text):
    assert peer.ask(verb=verb, **fields) == {"error": text, "code": 404}


# --- who may see what

def test_a_user_sees_only_its_own_vhosts_and_connections(peer):
    assert [row["name"] for row in ask(peer, "vhost list", as_user="ann")["items"]] == ["/"]
    assert [row["name"] for row in ask(peer, "vhost list", as_user="mona")["items"]] == ["/", "two"]
    assert ask(peer, "connection list", as_user="ann")["items"] == []
    assert len(ask(peer, "connection list", as_user="mona")["items"]) == 1
    assert {row["vhost"] for row in ask(peer, "exchange list", as_user="ann")["items"]} == {"/"}
    assert {row["vhost"] for row in ask(peer, "exchange list", as_user="mona")["items"]} == {"/", "two"}
    refused = peer.ask(verb="exchange list", as_user="ann", vhost="two")
    assert refused == {"error": "exchange list refused: user 'ann' has no permissions in vhost 'two'", "code": 403}


@pytest.mark.parametrize("verb", ["user list", "permission list", "topic_permission list"])
def test_only_an_administrator_sees_users(peer, verb):
    for name in ("ann", "mona", "polly", "plain", "nobody"):
        assert peer.ask(verb=verb, as_user=name)["code"] == 403
    ask(peer, verb, as_user="guest")
