"""brokerperf churn, against a real broker: each kind does what it says, and leaves nothing behind."""

import json
import re

import pytest
from click.testing import CliRunner
from tests.broker import Broker
from tests.cli.fakebroker import FakeBroker
from tests.conversations.peer import eventually

from brokerd.cli.brokerperf import main
from brokerd.cli.perfchurn import KINDS
from brokerd.cli.perfclient import Address, Client, Refused


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Broker(tmp_path_factory.mktemp("churn") / "data") as broker:
        yield broker


def churn(uri, *arguments):
    return CliRunner().invoke(main, ["churn", "--uri", uri, "--json", "-q", *map(str, arguments)])


def uri_of(broker):
    return f"amqp://guest:guest@127.0.0.1:{broker.port}/"


@pytest.mark.parametrize("kind", list(KINDS))
def test_so_many_rounds_are_done_as_were_asked_for_and_nothing_stays(broker, kind):
    begin = len(broker.lines)
    result = churn(uri_of(broker), "-w", kind, "-n", 25, "-x", 3, "--messages", 4)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["what"], found["workers"], found["rounds"], found["round_us"]["samples"]) == (kind, 3, 25, 25)
    assert found["round_us"]["max"] > 0
    control = Client(Address.parse(uri_of(broker)))
    with pytest.raises(Refused, match="404 NOT_FOUND"):
        control.declare_queue("brokerperf.churn.0", passive=True)
    control.drop()
    opened = re.findall(r" opened", "\n".join(broker.lines[begin:]))
    assert len(opened) >= (28 if kind in ("connection", "session") else 3)


def test_a_rate_spreads_the_rounds_over_the_time(broker):
    found = json.loads(churn(uri_of(broker), "-w", "channel", "-n", 20, "-r", 100, "-x", 2).stdout)
    assert (found["rounds"], found["seconds"] >= 0.19) == (20, True)
    found = json.loads(churn(uri_of(broker), "-w", "channel", "-z", 0.2, "-r", 50, "-x", 2).stdout)
    assert 1 <= found["rounds"] <= 10


def test_a_broker_that_refuses_ends_the_run_with_one_line():
    with FakeBroker(refuse=(403, "ACCESS_REFUSED - no")) as fake:
        result = churn(fake.uri, "-w", "queue", "-n", 5)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "brokerperf: the broker answered 403 ACCESS_REFUSED - no\n"


def test_connections_are_gone_when_the_run_is(broker):
    begin = len(broker.lines)
    assert churn(uri_of(broker), "-w", "connection", "-n", 10).exit_code == 0

    def ended():
        text = "\n".join(broker.lines[begin:])
        return len(re.findall(r": opened", text)) == len(re.findall(r": closed", text)) >= 14

    eventually(ended)
    assert [line for line in broker.lines[begin:] if " INFO " not in line] == []
