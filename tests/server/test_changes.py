"""Changes of a running broker: each outlives kill -9 once it is answered, holds at once, and has its event."""

import json
import threading

import pika
import pytest
from tests.broker import Broker
from tests.conversations.peer import eventually
from tests.server.clients import close_all, connect, publish_confirmed
from tests.server.clients import made as made_by_clients
from tests.server.test_control import Peer
from tests.server.test_operations import ask

from brokerd.auth.passwords import SHA256, hash_password

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


@pytest.fixture
def broker(broker):
    """Need not wait for its clients to close."""
    yield broker
    close_all()


@pytest.fixture
def peer(broker):
    peer = Peer(broker)
    yield peer
    peer.close()


def names(peer, verb, **fields):
    return [row["name"] for row in ask(peer, verb, **fields)["items"]]


# --- one table: the change, and the question whose answer shows it

CHANGES = [  # (operation, its fields), (question, its fields), what the answer's rows, or the one thing, must have
    (("user add", {"user": "ann", "password": "pw", "tags": ["monitoring"]}), ("user show", {"user": "ann"}),
     {"tags": ["monitoring"], "hashing_algorithm": "lavinmq_bcrypt"}),
    (("user set_tags", {"user": "ann", "tags": ["management"]}),
     ("user show", {"user": "ann"}), {"tags": ["management"]}),
    (("user set_limits", {"user": "ann", "limits": {"max-channels": 3}}), ("user show", {"user": "ann"}),
     {"limits": {"max-channels": 3}}),
    (("user set_password", {"user": "ann", "password": "new"}),
     ("user authenticate", {"user": "ann", "password": "new"}),
     {"name": "ann"}),
    (("permission set", {"user": "ann", **EVERYTHING}),
     ("permission list", {"user": "ann"}), {"vhost": "/", **EVERYTHING}),
    (("topic_permission set", {"user": "ann", "exchange": "amq.topic", "write": "^a", "read": "^b"}),
     ("topic_permission list", {}), {"exchange": "amq.topic", "write": "^a", "read": "^b"}),
    (("topic_permission clear", {"user": "ann"}), ("topic_permission list", {}), None),
    (("permission clear", {"user": "ann"}), ("permission list", {"user": "ann"}), None),
    (("user clear_password", {"user": "ann"}), ("user show", {"user": "ann"}), {"password_hash": ""}),
    (("user delete", {"user": "ann"}), ("user list", {"name": "ann"}), None),
    (("vhost add", {"vhost": "v"}), ("vhost show", {"vhost": "v"}), {"name": "v", "limits": {}}),
    (("vhost set_limits", {"vhost": "v", "limits": {"max-queues": 2}}), ("vhost show", {"vhost": "v"}),
     {"limits": {"max-queues": 2}}),
    (("vhost trace", {"vhost": "v", "on": True}), ("vhost show", {"vhost": "v"}), {"tracing": True}),
    (("queue declare", {"queue": "q", "vhost": "v", "arguments": {"x-max-length": 5}}),
     ("queue show", {"queue": "q", "vhost": "v"}), {"durable": True, "arguments": {"x-max-length": 5}}),
    (("exchange declare", {"exchange": "x", "vhost": "v", "type": "topic"}),
     ("exchange show", {"exchange": "x", "vhost": "v"}),
     {"type": "topic", "durable": True}),
    (("binding add", {"source": "x", "destination": "q", "vhost": "v", "routing_key": "a.#"}),
     ("binding list", {"source": "x", "vhost": "v"}), {"routing_key": "a.#", "destination": "q"}),
    (("policy set", {"name": "p", "vhost": "v", "pattern": "^q", "definition": {"max-length": 3}}),
     ("queue show", {"queue": "q", "vhost": "v"}), {"policy": "p", "effective_arguments": {"x-max-length": 3}}),
    (("operator_policy set", {"name": "o", "vhost": "v", "pattern": "^q", "definition": {"max-length": 2}}),
     ("queue show", {"queue": "q", "vhost": "v"}),
     {"operator_policy": "o", "effective_arguments": {"x-max-length": 2}}),
    (("message publish", {"exchange": "x", "routing_key": "a.b", "payload": "hello", "vhost": "v"}),
     ("message get", {"queue": "q", "vhost": "v"}), {"payload": "hello", "exchange": "x", "routing_key": "a.b"}),
    (("queue declare", {"queue": "r", "vhost": "v"}), ("queue show", {"queue": "r", "vhost": "v"}), {"messages": 0}),
    (("message move", {"queue": "q", "to": "r", "vhost": "v"}), ("message get", {"queue": "r", "vhost": "v"}),
     {"payload": "hello", "routing_key": "a.b"}),
    (("message copy", {"queue": "r", "to": "q", "vhost": "v"}), ("message get", {"queue": "q", "vhost": "v"}),
     {"payload": "hello"}),
    (("queue purge", {"queue": "q", "vhost": "v"}), ("message browse", {"queue": "q", "vhost": "v"}), None),
    (("message delete", {"queue": "r", "vhost": "v"}), ("message browse", {"queue": "r", "vhost": "v"}), None),
    (("operator_policy delete", {"name": "o", "vhost": "v"}), ("operator_policy list", {}), None),
    (("policy delete", {"name": "p", "vhost": "v"}), ("policy list", {}), None),
    (("binding delete", {"source": "x", "destination": "q", "vhost": "v", "routing_key": "a.#"}),
     ("binding list", {"source": "x", "vhost": "v"}), None),
    (("exchange delete", {"exchange": "x", "vhost": "v"}),
     ("exchange list", {"name": "x", "use_regex": False, "vhost": "v"}),
     None),
    (("queue delete", {"queue": "q", "vhost": "v"}), ("queue list", {"name": "q", "vhost": "v"}), None),
    (("parameter set", {"component": "mine", "name": "s", "value": {"a": 1}, "vhost": "v"}), ("parameter list", {}),
     {"component": "mine", "name": "s", "vhost": "v", "value": {"a": 1}}),
    (("global_parameter set", {"name": "g", "value": [1]}), ("global_parameter list", {}), {"name": "g", "value": [1]}),
    (("global_parameter clear", {"name": "g"}), ("global_parameter list", {}), None),
    (("vhost delete", {"vhost": "v"}), ("vhost list", {"name": "v"}), None),
    (("vhost add", {"vhost": "v"}), ("queue list", {"vhost": "v"}), None),
]


def shows(peer, question, wanted):
    verb, fields = question
    answer = ask(peer, verb, **fields)
    rows = answer.get("items", [answer])
    if wanted is None:
        assert rows == []
    else:
        assert any(wanted.items() <= row.items() for row in rows), rows


@pytest.mark.parametrize("first", range(3))
def test_every_change_holds_at_once_and_after_kill_9(broker, first):
    """Each third change is followed by kill -9 as soon as it is answered; in three runs each one is."""
    peer = Peer(broker)
    for number, ((verb, fields), question, wanted) in enumerate(CHANGES):
        ask(peer, verb, **fields)
        if number % 3 == first:
            peer.close()
            broker.restart(kill=True)
            peer = Peer(broker)
        shows(peer, question, wanted)
    peer.close()


REFUSED = [  # what cannot be, its text and its code
    ("user add", {"user": "guest", "password": "x"}, "user 'guest' already exists", 409),
    ("user add", {"user": "a\nb"}, "user name 'a\\nb' is not 1 to 255 octets of printable text", 400),
    ("user add", {"user": "u", "password": "x", "password_hash": "y"},
     "either password or password_hash can be given, not both", 400),
    ("user delete", {"user": "no"}, "no user 'no'", 404),
    ("user set_limits", {"user": "guest", "limits": {"max": 1}},
     "limits of user 'guest' are max-connections and max-channels, not 'max'", 400),
    ("permission set", {"user": "no", **EVERYTHING}, "no user 'no'", 404),
    ("permission set", {"user": "guest", "vhost": "no", **EVERYTHING}, "no vhost 'no'", 404),
    ("permission set", {"user": "guest", "configure": "(", "write": "", "read": ""},
     "configure is no regular expression: missing ): (: '('", 400),
    ("permission clear", {"user": "guest", "vhost": "no"}, "no vhost 'no'", 404),
    ("vhost add", {"vhost": "/"}, "vhost '/' already exists", 409),
    ("vhost delete", {"vhost": "no"}, "no vhost 'no'", 404),
    ("policy set", {"name": "p", "pattern": "x", "definition": {"max-lenght": 1}},
     "policy 'p': 'max-lenght' is no setting of a policy; did you mean 'max-length'?", 400),
    ("policy set", {"name": "p", "pattern": "x", "definition": {"max-length": -1}},
     "policy 'p': max-length must be a whole number from 0, not -1", 400),
    ("policy delete", {"name": "no"}, "no policy 'no' in vhost '/'", 404),
    ("queue declare", {"queue": "q", "arguments": {"x-max-length": "a"}},
     "invalid arg 'x-max-length' for queue 'q' in vhost '/': \"expected integer, got longstr\"", 400),
    ("queue declare", {"queue": "amq.q"}, "queue name 'amq.q' contains reserved prefix 'amq.*'", 403),
    ("queue delete", {"queue": "no"}, "no queue 'no' in vhost '/'", 404),
    ("queue purge", {"queue": "no"}, "no queue 'no' in vhost '/'", 404),
    ("exchange delete", {"exchange": "amq.topic"},
     "deletion of system exchange 'amq.topic' in vhost '/' not allowed", 403),
    ("exchange declare", {"exchange": "x", "type": "no"}, "unknown exchange type 'no'", 400),
    ("binding add", {"source": "no", "destination": "no"}, "no exchange 'no' in vhost '/'", 404),
    ("message publish", {"exchange": "no", "routing_key": "a"}, "no exchange 'no' in vhost '/'", 404),
    ("message publish", {"exchange": "", "routing_key": "a", "properties": {"hedders": {}}},
     "properties: unknown property 'hedders'; did you mean 'headers'?", 400),
    ("message publish", {"exchange": "", "routing_key": "a", "payload": "%", "payload_encoding": "base64"},
     "payload is not base64: Only base64 data is allowed", 400),
    ("parameter clear", {"component": "a", "name": "b"}, "no parameter 'b' of component 'a' in vhost '/'", 404),
    ("connection close", {"connection": "no"}, "no connection 'no'", 404),
    ("definitions import", {}, "either file or text must be given", 400),
]


def test_what_cannot_be_is_refused_in_one_line_and_changes_nothing(broker, peer):
    before = ask(peer, "definitions export")
    for verb, fields, text, code in REFUSED:
        assert peer.ask(verb=verb, **fields) == {"error": text, "code": code}, verb
    assert ask(peer, "definitions export") == before


# --- who may change what

def test_rights_are_rabbitmqs(broker, peer):
    for name, tags in (("polly", ["policymaker"]), ("ann", ["management"]), ("plain", [])):
        ask(peer, "user add", user=name, password="pw", tags=tags)
        ask(peer, "permission set", user=name, configure="^own", write="^own", read="^own")
    policy = {"name": "p", "pattern": "x", "definition": {"max-length": 1}}
    ask(peer, "policy set", as_user="polly", **policy)
    assert peer.ask(verb="policy set", as_user="ann", **policy)["code"] == 403
    assert peer.ask(verb="operator_policy set", as_user="polly", **policy)["code"] == 403
    ask(peer, "queue declare", as_user="ann", queue="own")
    assert peer.ask(verb="queue declare", as_user="ann", queue="other") == {
        "error": "configure access to queue 'other' in vhost '/' refused for user 'ann'", "code": 403}
    assert peer.ask(verb="message publish", as_user="ann", exchange="", routing_key="own")["code"] == 403
    assert peer.ask(verb="queue declare", as_user="plain", queue="own")["code"] == 403
    for verb in ("user add", "user delete", "vhost add", "definitions export"):
        fields = {"vhost": "x"} if verb == "vhost add" else {"user": "x"} if verb.startswith("user") else {}
        assert peer.ask(verb=verb, as_user="polly", **fields)["code"] == 403


# --- open connections

def test_a_deleted_users_connections_are_closed_and_a_lost_permission_bites_at_the_next_method(broker, peer):
    ask(peer, "user add", user="ann", password="pw")
    ask(peer, "permission set", user="ann", **EVERYTHING)
    connection = connect(broker, user="ann", password="pw")
    channel = connection.channel()
    channel.queue_declare("q")
    ask(peer, "permission set", user="ann", configure="", write="", read="")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="queue 'r' in vhost '/' refused"):
        channel.queue_declare("r")
    ask(peer, "user delete", user="ann")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="user 'ann' is deleted"):
        connection.channel()
    eventually(lambda: names(peer, "connection list"), lambda open_: open_ == [])


def test_a_vhost_that_is_deleted_closes_its_connections_and_no_other_client_waits(broker, peer):
    ask(peer, "vhost add", vhost="v")
    ask(peer, "permission set", user="guest", vhost="v", **EVERYTHING)
    ask(peer, "topic_permission set", user="guest", vhost="v", exchange="amq.topic", write="^a", read="^b")
    there = connect(broker, vhost="v")
    channel = there.channel()
    for number in range(50):
        channel.queue_declare(f"q{number}", durable=True)
    here = connect(broker).channel()
    here.queue_declare("mine")
    ask(peer, "vhost delete", vhost="v")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="vhost 'v' is down"):
        there.channel()
    publish_confirmed(here, "mine", [b"x"])
    ask(peer, "vhost add", vhost="v")
    assert names(peer, "queue list", vhost="v") == names(peer, "permission list", vhost="v") == []
    assert ask(peer, "topic_permission list", vhost="v")["items"] == []


def test_a_connection_is_closed_and_a_consumer_cancelled_by_an_operator(broker, peer):
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("q")
    channel.basic_consume("q", lambda *_: None, consumer_tag="tag")
    (row,) = ask(peer, "connection list")["items"]
    ask(peer, "consumer cancel", connection=row["name"], channel=1, tag="tag")
    assert ask(peer, "consumer list")["items"] == []
    ask(peer, "connection close", connection=str(row["number"]), reason="go away")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="go away"):
        connection.channel()


def test_all_connections_of_a_user_or_in_a_vhost_are_closed(broker, peer):
    ask(peer, "vhost add", vhost="two")
    for user in ("ann", "bob"):
        ask(peer, "user add", user=user, password="x", tags=["management"])
        for vhost in ("/", "two"):
            ask(peer, "permission set", user=user, configure=".*", write=".*", read=".*", vhost=vhost)
    for user, path in (("ann", "%2F"), ("bob", "%2F"), ("bob", "two"), ("guest", "%2F")):
        password = "guest" if user == "guest" else "x"
        made = pika.BlockingConnection(pika.URLParameters(f"amqp://{user}:{password}@127.0.0.1:{broker.port}/{path}"))
        made_by_clients.append(made)

    def left():
        rows = ask(peer, "connection list")["items"]    # A client may not have answered yet.
        return sorted((row["user"], row["vhost"]) for row in rows if row["state"] == "running")

    assert ask(peer, "connection close_all", as_user="ann", user="bob") == {"connections": 0}
    assert ask(peer, "connection close_all", vhost="two") == {"connections": 1}
    assert left() == [("ann", "/"), ("bob", "/"), ("guest", "/")]
    assert ask(peer, "connection close_all", as_user="ann") == {"connections": 1}
    assert ask(peer, "connection close_all", user="bob", reason="go away") == {"connections": 1}
    assert left() == [("guest", "/")]
    assert ask(peer, "connection close_all") == {"connections": 1}
    assert left() == []


# --- logins

def test_a_password_counts_as_those_of_amqp_logins_do(broker, peer):
    # A hash that is checked at once: a failure is forgotten in a second, and bcrypt may take as long on a busy machine.
    ask(peer, "user add", user="ann", password_hash=hash_password("right"), hashing_algorithm=SHA256)
    assert ask(peer, "user authenticate", user="ann", password="right") == {
        "name": "ann", "tags": [], "grant": "", "expires": None}
    for _ in range(100):
        refused = peer.ask(verb="user authenticate", user="ann", password="wrong", address="10.0.0.9")
        assert refused["code"] == 401
        if "too many failed logins" in refused["error"]:
            break
    else:
        pytest.fail("never too many")
    ask(peer, "user authenticate", user="ann", password="right", address="10.0.0.8")
    assert peer.ask(verb="user authenticate", user="guest", password="guest", address="10.0.0.8") == {
        "error": "user 'guest' can only connect via localhost", "code": 401}


def test_a_wrong_password_of_a_user_with_a_slow_hash_is_refused_by_amqp_too(broker, peer):
    ask(peer, "user add", user="ann", password="right")
    ask(peer, "permission set", user="ann", **EVERYTHING)
    for user in ("ann", "nobody"):
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect(broker, user=user, password="wrong")
    for _ in range(2):  # The second time it is remembered.
        connect(broker, user="ann", password="right").close()
    ask(peer, "user set_password", user="ann", password="other")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(broker, user="ann", password="right")


# --- events

def test_changes_have_their_events_which_name_the_user_who_asked(broker, peer):
    channel = connect(broker).channel()
    channel.queue_declare("events")
    for key in ("user.#", "vhost.#", "permission.#", "policy.#", "parameter.#"):
        channel.queue_bind("events", "amq.rabbitmq.event", key)
    ask(peer, "user add", user="ann", password="pw", tags=["management"], as_user="guest")
    ask(peer, "vhost add", vhost="v", as_user="guest")
    ask(peer, "permission set", user="ann", vhost="v", as_user="guest", **EVERYTHING)
    ask(peer, "policy set", name="p", vhost="/", pattern="x", definition={"max-length": 1}, as_user="guest")
    ask(peer, "global_parameter set", name="g", value=1, as_user="guest")
    ask(peer, "vhost delete", vhost="v", as_user="guest")
    ask(peer, "user delete", user="ann", as_user="guest")
    seen = []
    while (found := channel.basic_get("events", auto_ack=True))[0] is not None:
        assert found[1].headers["user_who_performed_action"] == "guest"
        seen.append(found[0].routing_key)
    # Who makes a vhost may do everything there.
    assert seen == ["user.created", "user.tags.set", "vhost.created", "permission.created", "permission.created",
                    "policy.set", "parameter.set", "vhost.deleted", "user.deleted"]


# --- definitions

def definitions(queues=200):
    """Of everything something."""
    return {
        "users": [{"name": "ann", "password_hash": "", "hashing_algorithm": "rabbit_password_hashing_sha256",
                   "tags": "management,monitoring"}],
        "vhosts": [{"name": "/"}, {"name": "v", "limits": []}],
        "permissions": [{"user": "ann", "vhost": "v", **EVERYTHING}],
        "topic_permissions": [{"user": "ann", "vhost": "v", "exchange": "amq.topic", "write": "a", "read": "b"}],
        "parameters": [
            {"component": "operator_policy", "vhost": "v", "name": "o",
             "value": {"pattern": "^q", "definition": {"max-length": 7}, "priority": 1, "apply-to": "queues"}},
            {"component": "vhost-limits", "vhost": "v", "name": "limits", "value": {"max-connections": 9}},
            {"component": "mine", "vhost": "v", "name": "s", "value": {"src-uri": "amqp://"}}],
        "global_parameters": [{"name": "cluster_name", "value": "here"}],
        "policies": [{"vhost": "v", "name": "p", "pattern": "^q", "definition": {"max-length": 8}, "priority": 0,
                      "apply-to": "all"}],
        "queues": [{"name": f"q{number}", "vhost": "v", "durable": True, "auto_delete": False, "arguments": {}}
                   for number in range(queues)],
        "exchanges": [{"name": "x", "vhost": "v", "type": "fanout", "durable": True, "auto_delete": False,
                       "internal": False, "arguments": {}}],
        "bindings": [{"source": "x", "vhost": "v", "destination": f"q{number}", "destination_type": "queue",
                      "routing_key": "", "arguments": {}} for number in range(queues)],
    }


def test_an_import_is_whole_or_not_at_all_whenever_the_broker_is_killed(broker, peer):
    text = json.dumps(definitions())
    before, seen = ask(peer, "definitions export"), set()
    for wait_ms in (0, 4, 8, 12, 20, 40, 80, 160, 400):
        done = threading.Event()
        importer = Peer(broker)
        importer.send(json.dumps({"verb": "definitions import", "text": text}).encode() + b"\n")
        done.wait(wait_ms / 1000)
        broker.restart(kill=True)
        importer.close()
        again = Peer(broker)
        now = ask(again, "definitions export")
        whole = len(now["queues"]) == len(now["bindings"]) == 200 and "ann" in [user["name"] for user in now["users"]]
        assert whole or now == before, wait_ms
        seen.add(whole)
        if whole:
            assert [user["name"] for user in now["users"]] == ["guest", "ann"]
            assert ask(again, "queue show", queue="q1", vhost="v")["effective_arguments"] == {"x-max-length": 7}
            again.close()
            break
        again.close()
    assert True in seen


def test_what_is_exported_is_imported_again_and_the_file_of_the_options_too(broker, peer, tmp_path):
    ask(peer, "definitions import", text=json.dumps(definitions(3)))
    exported = ask(peer, "definitions export")
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(exported, indent=1))
    assert ask(peer, "definitions import", file=str(file))["changes"] == []
    with Broker(tmp_path / "other", "--load-definitions", file) as other:
        there = Peer(other)
        assert ask(there, "definitions export") == exported
        there.close()


def test_a_dry_run_says_what_would_change_and_changes_nothing(broker, peer):
    before = ask(peer, "definitions export")
    found = ask(peer, "definitions import", text=json.dumps(definitions(2)), dry_run=True)
    assert [f"{row['action']} {row['kind']} {row['name']}" for row in found["changes"]] == [
        "add vhost v", "replace limits v", "add user ann", "add permission ann", "add topic_permission ann amq.topic",
        "add parameter mine s", "add global_parameter cluster_name", "add policy p", "add operator_policy o",
        "add exchange x", "add queue q0", "add queue q1", "add binding x -> q0 ''", "add binding x -> q1 ''"]
    assert ask(peer, "definitions export") == before


@pytest.mark.parametrize(("broken", "text"), [
    ('{"queues": [\n {"name": 1, "vhost": "/"}]}', "line 2: queues[0].name: must be a text, not 1"),
    ('{"queues": [\n {"name": "a"}]}', "line 2: queues[0].vhost: is missing"),
    ('{"users": [\n\n {"name": "a", "password_hash": "x", "hashing_algorithm": "lavinmq_bcrypt"}]}',
     "line 3: users[0]: password_hash of user 'a' is no hash of bcrypt"),
    ('{"bindings": [{"vhost": "/", "source": "no", "destination": "q", "destination_type": "queue"}]}',
     "line 1: bindings[0].source: no exchange 'no' in vhost '/' here or in the file"),
    ('{"queues": {}}', "line 1: queues: must be a list"),
    ("[]", "line 1: definitions must be an object with lists such as queues and users"),
    ('{"queues": [}', "line 1, column 13: not JSON: Expecting value"),
])
def test_a_broken_file_changes_nothing_and_its_fault_has_line_and_field(broker, peer, broken, text):
    good = json.dumps(definitions(1))[:-1]
    before = ask(peer, "definitions export")
    assert peer.ask(verb="definitions import", text=broken) == {"error": text, "code": 400}
    mixed = good + ', "more": 1}'
    assert ask(peer, "definitions import", text=mixed, dry_run=True)["count"] > 0
    assert ask(peer, "definitions export") == before
