"""A paused queue of a real broker: over restarts and kill -9, with messages that expire, for readers of a stream, and
by each way to ask for it."""

import json

import pika
import pytest
from tests.carriers.ends import ask, await_true, fill, numbered
from tests.management.http import Http, reserve_http
from tests.server import clients
from tests.server.clients import connect

from brokerd.cli import brokerctl


@pytest.fixture
def close():
    yield
    clients.close_all()


def state(broker, queue="q"):
    return ask(broker, "queue show", queue=queue)["state"]


def got(broker, queue="q"):
    return connect(broker).channel().basic_get(queue, auto_ack=True)[2]


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("count", [0, 3])
def test_a_pause_outlasts_the_broker(broker, close, kill, count):
    fill(broker, "q", numbered(count))
    ask(broker, "queue pause", queue="q")
    broker.restart(kill=kill)
    assert state(broker) == "paused"
    fill(broker, "q", [b"later"])
    assert got(broker) is None
    ask(broker, "queue resume", queue="q")
    broker.restart(kill=kill)
    assert state(broker) == "running"
    assert got(broker) == [*numbered(count), b"later"][0]


def test_messages_of_a_paused_queue_expire(broker, close):
    channel = connect(broker).channel()
    channel.queue_declare("q", durable=True)
    ask(broker, "queue pause", queue="q")
    channel.basic_publish("", "q", b"x", pika.BasicProperties(expiration="50"))
    await_true(lambda: ask(broker, "queue show", queue="q")["messages"] == 0)


def test_a_reader_of_a_paused_stream_gets_nothing_until_it_is_resumed(broker, close):
    channel = connect(broker).channel()
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    ask(broker, "queue pause", queue="s")
    for body in numbered(3):
        channel.basic_publish("", "s", body)
    await_true(lambda: ask(broker, "queue show", queue="s")["messages"] == 3)
    channel.basic_qos(prefetch_count=10)
    channel.basic_consume("s", lambda *_: None, arguments={"x-stream-offset": "first"})
    assert ask(broker, "consumer list", queue="s")["items"][0]["messages_unacknowledged"] == 0
    ask(broker, "queue resume", queue="s")
    await_true(lambda: ask(broker, "consumer list", queue="s")["items"][0]["messages_unacknowledged"] == 3)


def test_a_queue_of_the_same_name_is_not_paused(broker, close):
    fill(broker, "q", numbered(1))
    ask(broker, "queue pause", queue="q")
    ask(broker, "queue delete", queue="q")
    fill(broker, "q", numbered(1))
    assert state(broker) == "running"
    broker.restart()
    assert state(broker) == "running"


def test_a_backup_has_the_pause(broker, make_broker, close, tmp_path, capsys):
    fill(broker, "q", numbered(3))
    ask(broker, "queue pause", queue="q")
    ask(broker, "node backup", out=str(tmp_path / "backup"))
    assert brokerctl.run(["restore", str(tmp_path / "backup"), str(tmp_path / "restored")]) == 0
    other = make_broker(directory=tmp_path / "restored").start()
    assert state(other) == "paused"
    assert got(other) is None


def test_brokerctl_pauses_under_both_names_and_lists_the_state(broker, close, capsys):
    fill(broker, "q", numbered(1))
    directory = ["-D", str(broker.directory)]
    for command, told in ((["queue", "pause", "q"], "paused"), (["resume_queue", "q"], "running"),
                          (["pause_queue", "q"], "paused"), (["queue", "resume", "q"], "running")):
        assert brokerctl.run([*directory, *command]) == 0
        capsys.readouterr()
        assert brokerctl.run([*directory, "list_queues", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["items"][0]["state"] == told


def test_lavinmqs_calls_pause_resume_and_restart(make_broker, close):
    port = reserve_http()
    broker = make_broker("--http-port", port).start()
    broker.wait_for_log(rf"listening on 127\.0\.0\.1:{port} \(HTTP\)")
    http = Http(port)
    fill(broker, "q", numbered(1))
    for verb, told in (("pause", "paused"), ("pause", "paused"), ("resume", "running"), ("resume", "running")):
        assert http.ask("PUT", f"/api/queues/%2F/q/{verb}").status == 204
        assert http.get("/api/queues/%2F/q")["state"] == told
        assert http.get("/api/queues/%2F")[0]["state"] == told
    assert http.ask("PUT", "/api/queues/%2F/none/pause").status == 404
    refused = http.ask("PUT", "/api/queues/%2F/q/restart")
    assert (refused.status, refused.body["reason"]) == (400, "the queue was not restarted: it is in service")
    assert http.ask("PUT", "/api/users/ann", {"password": "x", "tags": "management"}).status == 201
    assert http.ask("PUT", "/api/permissions/%2F/ann", {"configure": "^a", "write": ".*", "read": ".*"}).status == 201
    assert http.as_user("ann", "x").ask("PUT", "/api/queues/%2F/q/pause").status == 401
    changes = [row["operation"] for row in http.do("change", "list")["items"]]
    assert changes.count("queue pause") == 4  # one was refused
