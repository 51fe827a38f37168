"""What HUP does with the JSON files of the data directory, while clients are there.

Options and certificates: test_launch and test_tls.
"""

import json
import signal
import subprocess
import sys
import time

import pika
import pytest
from tests.broker import ROOT, SECONDS, environment
from tests.server.clients import close_all, connect, drain, permission, user_entry, write_json

from brokerd.server.reload import take_steps
from brokerd.store.format import folder_name


@pytest.fixture
def broker(make_broker):
    """A running broker with the users guest, ann and bob, who may all use /."""
    broker = make_broker().start()
    broker.stop()
    write_json(broker.directory / "users.json", [user_entry("guest", tags=["administrator"]), user_entry("ann"),
                                                 user_entry("bob")])
    write_json(broker.directory / "permissions.json", [permission(name) for name in ("guest", "ann", "bob")])
    yield broker.start()
    close_all()


def reload(broker):
    """Send HUP.  Returns what the log says of it."""
    begin = len(broker.lines)
    broker.process.send_signal(signal.SIGHUP)
    broker.wait_for_log(r"(INFO    reloaded|ERROR   not reloaded.*)$", begin)
    return [line.split(None, 2)[2] for line in broker.lines[begin:] if "reload" in line]


def policies_of(broker, name="policies.json"):
    return broker.directory / folder_name("/") / name


POLICY = {"name": "p", "pattern": "^q$", "definition": {"max-length": 1}}


# --- users

def test_users_come_go_and_change_at_once(broker):
    gone, stays = connect(broker, user="bob"), connect(broker, user="ann")
    write_json(broker.directory / "users.json", [
        user_entry("guest", tags=["administrator"]), user_entry("ann", "new"), user_entry("eve")])
    write_json(broker.directory / "permissions.json", [permission(name) for name in ("guest", "ann", "eve")])
    said = reload(broker)
    # The hash of guest was made anew with another salt.
    assert said == [
        "INFO    reload: users.json: 1 added ('eve'), 1 removed ('bob'), 2 changed ('guest', 'ann')",
        "INFO    reload: permissions.json: 1 added ('eve' in '/'), 1 removed ('bob' in '/')",
        "INFO    reloaded",
    ]
    connect(broker, user="eve")
    connect(broker, user="ann", password="new")
    for user in ("ann", "bob"):
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect(broker, user=user)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        gone.channel()
    assert closed.value.args == (320, "CONNECTION_FORCED - user 'bob' is deleted")
    stays.channel().queue_declare("q")


def test_a_permission_that_is_taken_away_holds_for_connections_that_are_open(broker):
    channel = connect(broker, user="ann").channel()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"allowed")
    write_json(broker.directory / "permissions.json", [
        permission("guest"), permission("bob"), permission("ann", write="")])
    assert reload(broker)[0] == "INFO    reload: permissions.json: 1 changed ('ann' in '/')"
    channel.basic_publish("", "q", b"refused")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
        channel.queue_declare("q")
    assert drain(connect(broker).channel(), "q") == [b"allowed"]


def test_a_consumer_stays_when_its_user_may_no_longer_read_and_the_next_one_is_refused(broker):
    connection = connect(broker, user="ann")
    channel = connection.channel()
    channel.queue_declare("q")
    got = []
    channel.basic_consume("q", lambda *delivery: got.append(delivery[-1]), auto_ack=True)
    write_json(broker.directory / "permissions.json", [
        permission("guest"), permission("bob"), permission("ann", read="")])
    assert reload(broker)[0] == "INFO    reload: permissions.json: 1 changed ('ann' in '/')"
    connect(broker).channel().basic_publish("", "q", b"after")
    while not got:
        connection.process_data_events(time_limit=SECONDS)
    assert got == [b"after"]
    other = connect(broker, user="ann").channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="read access to queue 'q'"):
        other.basic_consume("q", lambda *_: None)


def test_topic_permissions_are_read_where_there_was_no_file(broker):
    channel = connect(broker, user="ann").channel()
    channel.basic_publish("amq.topic", "a.b", b"")
    write_json(broker.directory / "topic_permissions.json", [
        {"user": "ann", "vhost": "/", "exchange": "amq.topic", "write": "^b", "read": ""}])
    assert reload(broker)[0] == "INFO    reload: topic_permissions.json: 1 added ('ann' in '/' for 'amq.topic')"
    channel.basic_publish("amq.topic", "a.b", b"")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="access to topic 'a.b'"):
        channel.queue_declare("q")


def test_many_names_do_not_fill_the_log(broker):
    password_hash = user_entry("x")["password_hash"]
    users = json.loads((broker.directory / "users.json").read_text())
    write_json(broker.directory / "users.json", users + [
        {"name": f"user {number}", "password_hash": password_hash} for number in range(1000)])
    assert reload(broker)[0] == ("INFO    reload: users.json: 1000 added ('user 0', 'user 1', 'user 2', 'user 3', "
                                 "'user 4' and 995 more)")


def test_events_tell_of_users_and_permissions(broker):
    channel = connect(broker).channel()
    channel.queue_declare("heard")
    for key in ("user.created", "user.deleted", "user.password.*", "user.tags.set", "permission.*"):
        channel.queue_bind("heard", "amq.rabbitmq.event", key)
    users = json.loads((broker.directory / "users.json").read_text())
    users[1] |= {"tags": ["monitoring"], "password_hash": ""}
    write_json(broker.directory / "users.json", [*users[:2], user_entry("eve")])
    write_json(broker.directory / "permissions.json", [permission("guest"), permission("eve")])
    reload(broker)
    heard = []
    while (message := channel.basic_get("heard", auto_ack=True))[0] is not None:
        heard.append((message[0].routing_key, message[1].headers.get("name") or message[1].headers.get("user")))
    assert heard == [
        ("user.password.cleared", "ann"), ("user.tags.set", "ann"), ("user.deleted", "bob"), ("user.created", "eve"),
        ("permission.created", "eve"), ("permission.deleted", "ann"), ("permission.deleted", "bob")]


# --- files that cannot be used

@pytest.mark.parametrize(("name", "text", "told"), [
    ("users.json", "", "line 1, column 1: not JSON: Expecting value"),
    ("users.json", '[\n  {"name": "guest", "passw', "line 2, column 21: not JSON: Unterminated string starting at"),
    ("users.json", '[{"name": "guest"}]', "entry 1 has no password_hash"),
    ("users.json", None, "is missing; an empty list, [], would be none of them"),
    ("permissions.json", '[{"user": "guest"}]', "entry 1 has no vhost"),
    ("permissions.json", None, "is missing; an empty list, [], would be none of them"),
    ("topic_permissions.json", "{}", "not a list of objects"),
    ("topic_permissions.json", "null", "not a list of objects"),
    ("users.json", "null", "not a list of objects"),
    ("*/policies.json", "null", "not a list of objects"),
    ("vhosts.json", '[{"name": "/", "tracing": 5}]', "entry 1: tracing is neither true nor false"),
    ("vhosts.json", None, "is missing; an empty list, [], would be none of them"),
    ("*/policies.json", json.dumps([POLICY | {"definition": {"max-lenght": 1}}]),
     "policy 'p': 'max-lenght' is no setting of a policy; did you mean 'max-length'?"),
    ("*/operator-policies.json", "[5]", "entry 1 is not an object"),
])
def test_a_file_that_cannot_be_used_keeps_everything_as_it_was(broker, name, text, told):
    folder, _, base = name.rpartition("/")
    path = policies_of(broker, base) if folder else broker.directory / name
    # Good news in another file waits, too.
    other = broker.directory / ("permissions.json" if name == "users.json" else "users.json")
    before = json.loads(other.read_text())
    write_json(other, before[:-1])
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    assert reload(broker) == [f"ERROR   not reloaded, nothing changed: {path}: {told}"]
    assert drain(connect(broker, user="bob").channel(), declared(broker)) == []
    assert (path.read_text() if path.exists() else None) == text
    assert json.loads(other.read_text()) == before[:-1]


def declared(broker):
    """The name of a queue that is there."""
    connect(broker).channel().queue_declare("q")
    return "q"


def test_each_bad_file_is_named(broker):
    (broker.directory / "users.json").write_text("[")
    policies_of(broker).write_text("[")
    reload(broker)
    broker.wait_for_log("ERROR   not reloaded, nothing changed: .*/users.json: line 1")
    broker.wait_for_log("ERROR   not reloaded, nothing changed: .*/policies.json: line 1")


def test_the_next_reload_takes_what_a_bad_file_held_back(broker):
    users = json.loads((broker.directory / "users.json").read_text())
    (broker.directory / "users.json").write_text(json.dumps([*users, user_entry("eve")])[:-9])
    policies_of(broker).write_text(json.dumps([POLICY]))
    assert "not reloaded" in reload(broker)[0]
    write_json(broker.directory / "users.json", [*users, user_entry("eve")])
    assert reload(broker) == [
        "INFO    reload: users.json: 1 added ('eve')", "INFO    reload: policies of vhost '/': 1 added ('p')",
        "INFO    reloaded"]
    channel = connect(broker).channel()
    channel.queue_declare("q")
    for body in (b"1", b"2"):
        channel.basic_publish("", "q", body)
    assert drain(channel, "q") == [b"2"]


def test_a_signal_during_a_reload_leads_to_one_more(broker):
    users = json.loads((broker.directory / "users.json").read_text())
    many = [user_entry(f"user {number}") for number in range(500)]
    write_json(broker.directory / "users.json", users + many)
    broker.process.send_signal(signal.SIGHUP)
    for number in range(20):    # Whenever the file was read, the last signal comes after the last change.
        write_json(broker.directory / "users.json", [*users, *many, user_entry(f"last {number}")])
        broker.process.send_signal(signal.SIGHUP)
    broker.wait_for_log(r"reload: users.json: .*\('last 19'\)")
    broker.wait_for_log("INFO    reloaded$")
    assert drain(connect(broker, user="guest").channel(), declared(broker)) == []


def test_policies_take_effect_a_queue_at_a_time_on_each_of_many(broker):
    channel = connect(broker).channel()
    for number in range(300):
        channel.queue_declare(f"q{number}")
    write_json(policies_of(broker), [{"name": "p", "pattern": "^q", "definition": {"max-length": 1}}])
    broker.process.send_signal(signal.SIGHUP)
    channel.queue_delete("q299")
    channel.queue_declare("q300")
    broker.wait_for_log("INFO    reloaded$")
    for name in ("q0", "q298", "q300"):
        for body in (b"1", b"2"):
            channel.basic_publish("", name, body)
        assert drain(channel, name) == [b"2"]


def test_policies_of_users_and_operators_are_told_apart(broker):
    write_json(policies_of(broker), [POLICY])
    write_json(policies_of(broker, "operator-policies.json"), [POLICY, POLICY | {"name": "o"}])
    assert reload(broker) == [
        "INFO    reload: policies of vhost '/': 1 added ('p')",
        "INFO    reload: operator policies of vhost '/': 2 added ('p', 'o')",
        "INFO    reloaded"]
    assert reload(broker) == ["INFO    reloaded"]
    policies_of(broker).unlink()
    assert reload(broker)[0] == "INFO    reload: policies of vhost '/': 1 removed ('p')"


# --- vhosts

def test_vhosts_that_come_or_go_in_their_file_are_named_and_wait(broker):
    write_json(broker.directory / "vhosts.json", [{"name": "new", "limits": {"max-queues": 3}}])
    assert reload(broker) == [
        "WARNING reload: vhosts.json: vhosts are made at the next start: 'new'",
        "WARNING reload: vhosts.json: vhosts stay open until the next start, and their folders stay after it: '/'",
        "INFO    reloaded"]
    connect(broker).channel().queue_declare("q")
    assert json.loads((broker.directory / "vhosts.json").read_text()) == [
        {"name": "new", "limits": {"max-queues": 3}}]


def test_limits_of_vhosts_are_told(broker):
    write_json(broker.directory / "vhosts.json", [{"name": "/", "limits": {"max-queues": 3}}])
    assert reload(broker)[0] == "INFO    reload: the limits of vhost '/' are now {'max-queues': 3}"


def test_a_reload_that_takes_long_says_so_from_time_to_time(monkeypatch):
    now, said = [100.0], []
    monkeypatch.setattr("brokerd.server.reload.log.info", lambda text, *values: said.append(text % values))
    monkeypatch.setattr("brokerd.server.reload.monotonic", lambda: now[0])
    for _ in take_steps([lambda: iter(range(3)), lambda: iter(range(4))]):
        now[0] += 2.0
    assert said == [f"reload: still under way after {seconds} s" for seconds in (6, 12)]


def test_the_log_says_at_once_that_files_are_read_again(broker):
    begin = len(broker.lines)
    reload(broker)
    assert broker.lines[begin].endswith("INFO    SIGHUP: reading options and files again")


# --- the log file

def wait_for_text(path, text, process):
    deadline = time.monotonic() + SECONDS
    while not (path.exists() and text in path.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_log_file_that_was_moved_away_is_opened_anew_although_a_file_is_bad(make_broker, tmp_path):
    broker = make_broker().start()
    broker.stop()
    log = tmp_path / "log"
    process = subprocess.Popen(
        [sys.executable, "-m", "brokerd", "-D", str(broker.directory), "-p", "0", "--log-file", str(log)],
        env=environment(), cwd=ROOT)
    try:
        wait_for_text(log, "listening", process)
        (broker.directory / "users.json").write_text("")
        log.rename(tmp_path / "log.1")
        process.send_signal(signal.SIGHUP)
        wait_for_text(log, "not reloaded", process)
        process.terminate()
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    assert "not reloaded" not in (tmp_path / "log.1").read_text()
