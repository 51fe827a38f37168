"""The command: its flags, exit statuses for what it cannot use, and what its log says of clients."""

from pathlib import Path

import pika
import pytest
from tests.broker import ROOT, run
from tests.server.clients import PERSISTENT, connect, count

from brokerd import __version__


def one_line(text):
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize("flag", ["-v", "--version"])
def test_the_version_is_told(flag):
    assert run(flag) == (0, f"brokerd {__version__}\n", "")


def test_help_names_the_flags():
    status, text, _ = run("--help")
    assert status == 0
    for flag in ("-D", "-c", "-b", "-p", "-l", "-v", "--amqp-port", "--http-port", "--no-sync"):
        assert flag in text


@pytest.mark.parametrize("content", [
    "amqp_prot = 5672\n", "[amqp]\namqp_port = \"many\"\n", "amqp_port = 70000\n", "= 1\n",
])
def test_a_configuration_that_is_wrong_is_one_line_and_status_2(tmp_path, content):
    file = tmp_path / "brokerd.toml"
    file.write_text(content)
    status, _, text = run("-c", file, "-D", tmp_path / "data")
    assert status == 2
    assert str(file) in one_line(text)
    assert not (tmp_path / "data").exists()


def test_a_wrong_variable_of_the_environment_is_status_2(tmp_path):
    status, _, text = run("-D", tmp_path / "data", env={"BROKERD_AMQP_PROT": "1"})
    assert status == 2
    assert "BROKERD_AMQP_PORT" in one_line(text)


def test_a_wrong_flag_is_status_2(tmp_path):
    assert run("--amqp-prot", 1)[0] == 2
    assert run("-p", 70000)[0] == 2


def test_a_data_directory_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "precious").write_text("x")
    status, _, text = run("-D", tmp_path, "-p", 0)
    assert status == 1
    assert "precious" in one_line(text)
    assert sorted(entry.name for entry in tmp_path.iterdir() if not entry.name.startswith(".")) == ["precious"]


def test_it_listens_on_loopback_alone(broker):
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{broker.port:04X}")]
    assert listening == [f"0100007F:{broker.port:04X}"]


def test_the_example_configuration_is_taken(make_broker):
    with make_broker("-c", ROOT / "config" / "brokerd.toml") as broker:
        connect(broker).close()


def test_what_operators_want_to_know_of_connections_is_logged(broker):
    connection = connect(broker, client_properties={"connection_name": "billing"})
    broker.wait_for_log(r"INFO    127.0.0.1:\d+ guest /: opened \(billing\)")
    connection.close()
    broker.wait_for_log(r"INFO    127.0.0.1:\d+ guest /: closed after")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(broker, password="wrong")
    broker.wait_for_log(r"WARNING 127.0.0.1:\d+: login refused: user 'guest' - invalid credentials")


def test_connection_numbers_are_not_used_again(broker):
    for _ in range(3):
        connection = connect(broker)
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"x", PERSISTENT)
        assert count(channel, "q") > 0
        connection.close()
        broker.restart(kill=True)
    number = int((broker.directory / "connection_numbers").read_text().split()[0])
    assert number > 20000
