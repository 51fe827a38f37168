"""Vhosts, users and permissions, edited while the broker is stopped."""

import pika
import pytest
from tests.broker import run
from tests.server.clients import connect, drain, permission, publish_confirmed, user_entry, write_json


@pytest.fixture
def broker(make_broker):
    """A broker with the vhosts / and two, and users with different rights."""
    broker = make_broker()
    broker.start()
    broker.stop()
    write_json(broker.directory / "vhosts.json", [{"name": "/"}, {"name": "two"}])
    write_json(broker.directory / "users.json", [
        user_entry("guest", tags=["administrator"]), user_entry("ann"), user_entry("bob"), user_entry("nobody")])
    write_json(broker.directory / "permissions.json", [
        permission("guest"), permission("guest", "two"), permission("ann", "two"),
        permission("bob", "/", configure="^bob\\.", write="^(bob\\.|amq\\.default$)", read="^bob\\."),
    ])
    return broker.start()


def test_vhosts_know_nothing_of_each_other(broker):
    here, there = connect(broker), connect(broker, vhost="two")
    for connection, body in ((here, b"here"), (there, b"there")):
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.exchange_declare("x", "fanout" if body == b"here" else "direct", durable=True)
        publish_confirmed(channel, "q", [body])
    here.close()
    there.close()
    broker.restart()
    for vhost, body in (("/", b"here"), ("two", b"there")):
        connection = connect(broker, vhost=vhost)
        channel = connection.channel()
        assert drain(channel, "q") == [body]
        channel.exchange_declare("x", "fanout" if body == b"here" else "direct", durable=True)
        channel.queue_delete("q")
        connection.close()


@pytest.mark.parametrize(("user", "vhost", "text"), [
    ("ann", "/", "NOT_ALLOWED - access to vhost '/' refused for user 'ann'"),
    ("nobody", "two", "NOT_ALLOWED - access to vhost 'two' refused for user 'nobody'"),
    ("ann", "three", "NOT_ALLOWED - vhost three not found"),
])
def test_only_who_may_enters_a_vhost(broker, user, vhost, text):
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as refused:
        connect(broker, user=user, vhost=vhost)
    assert text in str(refused.value)


def test_a_user_that_was_taken_out_does_not_come_in(broker):
    connect(broker, user="ann", vhost="two").close()
    broker.stop()
    write_json(broker.directory / "users.json", [user_entry("guest"), user_entry("bob", "new password")])
    broker.start()
    connect(broker, user="bob", password="new password").close()
    for user in ("ann", "bob"):
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect(broker, user=user, vhost="two")


@pytest.mark.parametrize(("call", "text"), [
    (lambda c: c.queue_declare("q"), "configure access to queue 'q'"),
    (lambda c: c.queue_delete("q"), "configure access to queue 'q'"),
    (lambda c: c.exchange_declare("x"), "configure access to exchange 'x'"),
    (lambda c: c.exchange_delete("x"), "configure access to exchange 'x'"),
    (lambda c: c.queue_bind("q", "bob.x", "k"), "write access to queue 'q'"),
    (lambda c: c.queue_bind("bob.q", "amq.topic", "k"), "read access to exchange 'amq.topic'"),
    (lambda c: c.queue_unbind("q", "bob.x", "k"), "write access to queue 'q'"),
    (lambda c: c.exchange_bind("x", "bob.x", "k"), "write access to exchange 'x'"),
    (lambda c: c.exchange_bind("bob.x", "x", "k"), "read access to exchange 'x'"),
    (lambda c: c.basic_get("q"), "read access to queue 'q'"),
    (lambda c: c.basic_consume("q", lambda *_: None), "read access to queue 'q'"),
    (lambda c: c.queue_purge("q"), "read access to queue 'q'"),
    (lambda c: c.basic_publish("amq.topic", "k", b""), "write access to exchange 'amq.topic'"),
    (lambda c: c.exchange_declare("bob.y", arguments={"alternate-exchange": "x"}), "write access to exchange 'x'"),
    (lambda c: c.queue_declare("bob.d", arguments={"x-dead-letter-exchange": "x"}), "write access to exchange 'x'"),
])
def test_each_verb_asks_for_its_own_permission(broker, call, text):
    connection = connect(broker, user="bob")
    channel = connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        call(channel)
        channel.queue_declare("bob.q")
    assert closed.value.args == (403, f"ACCESS_REFUSED - {text} in vhost '/' refused for user 'bob'")
    channel = connection.channel()
    channel.queue_declare("bob.q")
    channel.basic_publish("", "bob.q", b"allowed")
    assert drain(channel, "bob.q") == [b"allowed"]
    connection.close()


@pytest.mark.parametrize("name", ["users.json", "permissions.json", "vhosts.json"])
@pytest.mark.parametrize("content", ["", "{", "[1]", '[{"name": 5}]', '{"a": 1}'])
def test_a_file_that_was_edited_badly_is_named_and_nothing_starts(broker, name, content):
    broker.stop()
    (broker.directory / name).write_text(content)
    status, _, text = run("-D", broker.directory, "-p", 0)
    assert status == 1
    errors = [line for line in text.splitlines() if " INFO " not in line]
    assert len(errors) == 1, text
    assert name in errors[0]
    assert not (broker.directory / "running").exists()


def test_a_failed_start_in_between_hides_no_crash_and_feigns_none(broker):
    good = (broker.directory / "vhosts.json").read_text()
    for kill in (False, True):
        if kill:
            broker.kill()
        else:
            broker.stop()
        (broker.directory / "vhosts.json").write_text("{")
        assert run("-D", broker.directory, "-p", 0)[0] == 1
        (broker.directory / "vhosts.json").write_text(good)
        begin = len(broker.lines)
        broker.start()
        assert ("did not stop cleanly (crashed)" in "\n".join(broker.lines[begin:])) == kill


def test_a_definition_of_each_kind_survives_a_kill(broker):
    connection = connect(broker)
    channel = connection.channel()
    for kind in ("direct", "fanout", "topic", "headers"):
        channel.exchange_declare(f"x.{kind}", kind, durable=True)
    channel.exchange_declare("gone", "fanout")
    channel.queue_declare("kept", durable=True, arguments={"x-max-length": 1000})
    channel.queue_declare("transient")
    channel.queue_bind("kept", "x.direct", "k")
    channel.queue_bind("kept", "x.topic", "a.#")
    channel.queue_bind("kept", "x.headers", arguments={"x-match": "any", "a": 1})
    channel.exchange_bind("x.direct", "x.fanout", "")
    channel.queue_bind("kept", "x.topic", "unbound")
    channel.queue_unbind("kept", "x.topic", "unbound")
    channel.queue_declare("deleted", durable=True)
    channel.queue_delete("deleted")
    broker.restart(kill=True)
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("kept", durable=True, arguments={"x-max-length": 1000})
    channel.basic_publish("x.direct", "k", b"direct")
    channel.basic_publish("x.fanout", "k", b"fanout")
    channel.basic_publish("x.topic", "a.b", b"topic")
    channel.basic_publish("x.topic", "unbound", b"lost")
    channel.basic_publish("x.headers", "", b"headers", pika.BasicProperties(headers={"a": 1}))
    assert drain(channel, "kept") == [b"direct", b"fanout", b"topic", b"headers"]
    for kind, name in (("exchange", "gone"), ("queue", "transient"), ("queue", "deleted")):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
            getattr(channel, f"{kind}_declare")(name, passive=True)
        channel = connection.channel()
    connection.close()
