"""The change log names each change and each refusal, who asked and from where; and no password."""

import json

import pytest
from tests.broker import Broker

from brokerd.cli.ctl_client import Client
from brokerd.errors import BrokerError
from brokerd.operations import changes, table
from brokerd.operations.rows import LOCAL


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Broker(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker
    broker.check_log()


def ask(broker, verb, **fields):
    with Client(str(broker.directory)) as client:
        return client.ask(verb, fields)


def listed(broker, **fields):
    return ask(broker, "change list", **fields)["items"]


def test_a_change_is_there_when_it_is_answered_also_after_kill_9(broker):
    ask(broker, "queue declare", queue="q1")
    broker.kill()
    broker.start()
    [row] = listed(broker, operation="queue declare", contains="q1")
    assert (row["user"], row["face"], row["address"], row["done"], row["code"]) == ("", "brokerctl", "", True, 0)
    assert row["request"] == {"queue": "q1"}


def test_a_refusal_says_who_was_refused_where_and_why(broker):
    by = {"face": "HTTP", "address": "10.0.0.7"}
    with pytest.raises(BrokerError, match="no user 'mallory'"):
        ask(broker, "queue declare", queue="q2", **{"as": "mallory", "by": by})
    [row] = listed(broker, user="mallory", failed=True)
    assert (row["face"], row["address"], row["operation"], row["done"], row["code"]) == (
        "HTTP", "10.0.0.7", "queue declare", False, 403)
    assert "no user 'mallory'" in row["text"]


def test_a_change_that_fails_in_its_job_is_there_too(broker):
    with pytest.raises(BrokerError):
        ask(broker, "user delete", user="nobody")
    assert [row["request"]["user"] for row in listed(broker, operation="user delete")] == ["nobody"]


def test_questions_and_traffic_are_not_in_it(broker):
    ask(broker, "queue declare", queue="q3")
    before = len(listed(broker, count=10_000))
    ask(broker, "queue list")
    ask(broker, "message publish", exchange="", routing_key="q3", payload="x")
    ask(broker, "message get", queue="q3")
    assert len(listed(broker, count=10_000)) == before
    ask(broker, "message delete", queue="q3")
    assert listed(broker, count=1)[0]["operation"] == "message delete"


def test_a_change_of_messages_has_the_number_that_undoes_it(broker):
    ask(broker, "queue declare", queue="q4")
    ask(broker, "message publish", exchange="", routing_key="q4", payload="x")
    number = ask(broker, "message delete", queue="q4")["undo"]
    assert number
    assert listed(broker, count=1)[0]["undo"] == number


def test_no_password_is_in_the_file(broker):
    ask(broker, "user add", user="ann", password="s3cret-1")
    ask(broker, "parameter set", component="mine", name="s", vhost="/", value={
        "src-uri": "amqp://bob:s3cret-2@host",
        "dest-uri": ["amqp://x:s3cret-3@h", "amqp://x:s3/cret@h?password=s3cret-4", "amqp://x:/s3cret-5@h"]})
    texts = [(broker.directory / "changes.jsonl").read_text()]
    assert all("s3cret" not in text for text in texts)
    assert "amqp://***@host" in texts[0]


def test_long_values_and_deep_ones_are_cut():
    row = table.find("parameter set")
    deep = value = {}
    for _ in range(50):
        value["x"] = value = {}
    line = changes.line_of(row, LOCAL, changes.ON_MACHINE, {"value": deep, "name": "n" * 5000}, 1, None)
    assert len(json.dumps(line)) < 2000
    assert line["request"]["name"] == "5000 characters"
    for _ in range(100_000):
        deep = [deep]
    line = changes.line_of(row, LOCAL, changes.ON_MACHINE, {"value": deep, "name": list(range(5000))}, 1, None)
    assert line["request"] == {"value": "JSON that is nested too deeply", "name": "28890 characters of JSON"}


@pytest.mark.parametrize("by", [1, {"face": "x"}, {"face": "x", "address": "y", "z": 1}])
def test_a_wrong_by_is_refused(broker, by):
    with pytest.raises(BrokerError, match="by must be an object"):
        ask(broker, "queue list", by=by)
