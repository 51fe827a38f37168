"""brokerperf over TLS: with a real broker, whose certificate it checks unless it is told not to."""

import json

import pytest
from click.testing import CliRunner
from tests.broker import Broker
from tests.server.certificates import Authority

from brokerd.cli.brokerperf import main

LISTENING = r"listening on .*:\d+ \(AMQP over TLS\)"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("perftls") / "ours")


@pytest.fixture(scope="module")
def broker(authority, tmp_path_factory):
    """A broker with TLS; ``tls_port`` is where."""
    cert, key = authority.sign("server", "/CN=localhost", "DNS:localhost")
    flags = ("--amqps-port", 0, "--cert", cert, "--key", key)
    with Broker(tmp_path_factory.mktemp("perftls") / "data", *flags) as broker:
        broker.tls_port = int(broker.wait_for_log(LISTENING).split(":")[-1].split()[0])
        yield broker


def perf(broker, *arguments, host="localhost"):
    uri = f"amqps://guest:guest@{host}:{broker.tls_port}/"
    return CliRunner().invoke(main, ["throughput", "--uri", uri, "-q", "--json", *map(str, arguments)])


@pytest.mark.parametrize("size", [16, 300_000])
def test_messages_go_to_the_broker_and_back_in_order(broker, authority, size):
    begin = len(broker.lines)
    result = perf(broker, "--ca", authority.file, "-n", 300, "-s", size, "-x", 2, "-y", 2, "--queues", 2, "-c", 50,
                  "--ack", "multi:10", "--verify-order")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["published"], found["consumed"], found["confirmed"]) == (600, 600, 600)
    assert not any(found["order"].values())
    broker.wait_for_log("closed", begin)
    assert [line for line in broker.lines[begin:] if " INFO " not in line] == []


def test_a_broker_whose_certificate_nobody_trusts_is_refused_in_one_line(broker):
    result = perf(broker, "-n", 1)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert f"brokerperf: localhost:{broker.tls_port}: the broker's certificate is not trusted: " in result.stderr


def test_a_certificate_with_another_name_is_refused(broker, authority):
    result = perf(broker, "--ca", authority.file, "-n", 1, host="127.0.0.1")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "not trusted: IP address mismatch" in result.stderr


def test_it_is_let_pass_where_it_is_not_to_be_checked(broker):
    result = perf(broker, "--no-verify", "-n", 5, host="127.0.0.1")
    assert (result.exit_code, json.loads(result.stdout)["consumed"]) == (0, 5)


@pytest.mark.parametrize(("ca", "said"), [("none", "No such file"), ("key", "holds no certificate"), ("", "directory")])
def test_a_file_of_cas_that_cannot_be_used_is_named(broker, authority, tmp_path, ca, said):
    (tmp_path / "key").write_text("no certificate\n")
    result = perf(broker, "--ca", tmp_path / ca, "-n", 1)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert said in result.stderr
    assert str(tmp_path) in result.stderr


def test_a_port_without_tls_is_told(broker):
    result = CliRunner().invoke(main, ["throughput", "--uri", f"amqps://localhost:{broker.port}/", "-q"])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"brokerperf: localhost:{broker.port}: no TLS: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("flag", [["--ca", "file"], ["--no-verify"]])
def test_options_of_tls_need_a_uri_with_tls(flag):
    result = CliRunner().invoke(main, ["throughput", *flag], prog_name="brokerperf")
    assert (result.exit_code, result.stderr) == (
        2, "brokerperf: --ca and --no-verify need a URI that begins with amqps:// (see brokerperf throughput --help)\n")
