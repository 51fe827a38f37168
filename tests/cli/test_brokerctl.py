"""brokerctl, on real brokers and on what they leave: what it prints, and how it ends."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pika
import pytest
from tests.audit import writer
from tests.audit.test_signature import write_keys
from tests.broker import ROOT, SECONDS, Broker, environment
from tests.conversations.peer import eventually
from tests.server.clients import PERSISTENT, close_all, connect, publish_confirmed

from brokerd import __version__
from brokerd.auditor import request
from brokerd.cli import brokerctl, ctl_audit, ctl_commands

JOURNALED = {"x-order-journal": True}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """One broker with queues: "orders" has a journal and a message that came back, "plain" has none."""
    with Broker(tmp_path_factory.mktemp("ctl") / "data") as broker:
        channel = connect(broker).channel()
        channel.queue_declare("orders", durable=True, arguments=JOURNALED)
        channel.queue_declare("plain", durable=True)
        channel.queue_declare("lost")
        publish_confirmed(channel, "orders", [b"x" * 100] * 5, PERSISTENT)
        publish_confirmed(channel, "plain", [b"y"], PERSISTENT)
        tags = []
        channel.basic_qos(prefetch_count=3)
        channel.basic_consume("orders", lambda _, method, *__: tags.append(method.delivery_tag), consumer_tag="worker")
        while len(tags) < 3:
            channel.connection.process_data_events(1)
        channel.basic_nack(tags[0])
        channel.basic_ack(tags[1])
        while len(tags) < 5:
            channel.connection.process_data_events(1)
        yield broker
        close_all()


@pytest.fixture
def ctl(broker, capsys, monkeypatch):
    """Run a command line on the broker: (status, standard output, standard error)."""
    for name in ("BROKERD_DATA_DIR", "BROKERD_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments, data_dir=broker.directory):
        given = ["-D", str(data_dir)] if data_dir else []
        status = brokerctl.run([*given, *map(str, arguments)])
        return status, *capsys.readouterr()

    return run


# --- queue ordering

def test_the_order_of_a_queue_is_told_with_reasons_counters_and_consumers(ctl):
    status, out, err = ctl("queue", "ordering", "orders")
    assert (status, err) == (0, "")
    assert out.startswith("queue 'orders' in vhost '/'\n")
    assert re.search(r"guarantee +best-effort\n +because: prefetch 3: up to 2 messages may overtake ", out)
    assert re.search(r"messages +1 ready, 3 unacked; the next one is number 6\n", out)
    assert re.search(r"journal +on: argument x-order-journal\n +on disk from number 1 on", out)
    assert re.search(r"what has disturbed the order +since start +since declare\n", out)
    assert re.search(r"returned: nack +1 +1\n", out)
    assert re.search(r"delivered out of sequence +1 +1\n +messages that overtook a returned one +2 +2\n", out)
    assert "purged" not in out, "only what has happened"
    assert re.search(r"\d+ +worker +3 +3 +1\.1 +127\.0\.0\.1:\d+ +guest\n", out)


def test_a_queue_without_a_past_is_told_in_as_many_words(ctl):
    status, out, _ = ctl("queue", "ordering", "plain", "--vhost", "/")
    assert status == 0
    assert "guarantee   strict-fifo\n" in out
    assert "Nothing has disturbed the order since the queue was declared.\n" in out
    assert "no consumers\n" in out


def test_a_get_weakens_the_order_until_its_channel_closes(ctl, broker):
    channel = connect(broker).channel()
    channel.queue_declare("got", exclusive=True)
    channel.basic_publish("", "got", b"x")
    other = channel.connection.channel()
    assert other.basic_get("got")[0] is not None

    def reasons():
        return json.loads(ctl("queue", "ordering", "got", "--json")[1])["reasons"]

    assert reasons() == ["basic.get takes messages, as many at a time as it likes"]
    other.close()
    assert reasons() == ["no consumer"]
    channel.connection.close()
    eventually(lambda: "got" not in ctl("inspect", broker.directory, data_dir=None)[1])     # Its folder has gone.


def test_json_is_what_the_broker_says(ctl):
    status, out, _ = ctl("queue", "ordering", "orders", "--json")
    table = json.loads(out)
    assert (status, table["queue"], table["counters"]["since_start"]["overtakings"]) == (0, "orders", 2)


def test_watching_says_it_again_until_interrupted(ctl, broker, monkeypatch):
    naps = []

    def nap(seconds):
        naps.append(seconds)
        if len(naps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", nap)
    status, out, err = ctl("queue", "ordering", "orders", "--watch", "--json")
    assert (status, err, len(out.splitlines()), naps) == (130, "", 3, [ctl_commands.WATCH_SECONDS] * 3)


# --- message trace

def check_trace(out):
    assert out.startswith("message 1 of queue 'orders' in vhost '/': unacked\n")
    assert "published by connection 1, channel 1, as its publish 1, to exchange '' with routing key 'orders'\n" in out
    assert "100 octets, persistent, priority 0; segment 1 at 64\n" in out
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{9}"
    worker = r"'worker' \(127\.0\.0\.1:\d+\)"
    lines = out.splitlines()[5:9]
    assert re.fullmatch(rf"  {time} +enqueued", lines[0])
    assert re.fullmatch(rf"  {time} +\+[\d.]+ [µm]?s  delivered  to {worker}, tag 1", lines[1])
    assert re.match(rf"  {time} +\+[\d.]+ [µm]?s  returned +", lines[2])
    assert "nack" in lines[2]
    assert re.fullmatch(rf"  {time} +\+[\d.]+ [µm]?s  delivered  to {worker}, tag 4, redelivered.*", lines[3])


def test_the_life_of_a_message_is_told_event_by_event(ctl):
    status, out, err = ctl("message", "trace", "orders", 1)
    assert (status, err) == (0, "")
    check_trace(out)


def test_a_trace_says_the_same_of_a_running_broker_of_a_dump_and_of_what_is_left(ctl, broker, tmp_path):
    live = ctl("message", "trace", "orders", 1)
    assert ctl("dump", tmp_path / "out")[0] == 0
    assert ctl("message", "trace", "orders", 1, data_dir=tmp_path / "out") == live
    table = json.loads(ctl("message", "trace", "orders", 1, "--json", data_dir=tmp_path / "out")[1])
    assert table == json.loads(ctl("message", "trace", "orders", 1, "--json")[1]) | {"file": table["file"]}
    left = tmp_path / "left"
    subprocess.run(["cp", "-r", broker.directory, left], check=True)
    (left / "control.sock").unlink(missing_ok=True)
    assert ctl("message", "trace", "orders", 1, data_dir=left) == live


def test_without_a_journal_it_is_said_what_is_not_known(ctl):
    status, out, _ = ctl("message", "trace", "plain", 1)
    assert status == 0
    assert "The queue had no order journal: neither its first delivery nor the times of events are known" in out


# --- inspect, dump, audit

def test_what_is_in_a_folder_is_told_queue_by_queue(ctl, broker):
    status, out, err = ctl("inspect", broker.directory, data_dir=None)
    assert (status, err) == (0, "")
    assert re.match(rf"{re.escape(str(broker.directory))}: 2 queues, 2 segments, 6 messages, \d+ events, ", out)
    assert re.search(r"\n  / +orders +1 +5 +1 +3 +1 +1 +5 ", out)
    assert re.search(r"\n  / +plain +1 +1 +1 +0 +0 +1 +1 +no journal ", out)
    assert out.endswith("\n  No damage.\n")
    assert ctl("inspect", broker.directory, "--queues", "zzz*", data_dir=None)[::2] == (
        2, f"brokerctl: {broker.directory}: no queue matches 'zzz*'\n")
    table = json.loads(ctl("inspect", broker.directory, "--json", "--queues", "or*")[1])
    assert [each["queue"] for each in table["queues"]] == ["orders"]


def test_damage_is_told_with_file_and_offset(ctl, tmp_path):
    assert ctl("dump", tmp_path / "out", "--queues", "plain")[0] == 0
    path, = (tmp_path / "out").rglob("msgs.*")
    with open(path, "r+b") as file:
        file.seek(64 + 20)
        file.write(b"\xff")
    status, out, _ = ctl("inspect", tmp_path / "out")
    assert status == 1
    assert re.search(rf"damage: \d+\n +queue \S+ of vhost \S+:\n +\S+/{path.name} at 64: .+", out)


def test_a_dump_says_how_much_it_copied_and_what_it_left_out(ctl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = ctl("dump", "here")
    assert (status, err) == (0, "brokerctl: left out: queue 'lost' in vhost '/': it is not durable\n")
    assert re.fullmatch(rf"2 queues, 2 segments, \d\.\d kB copied to {re.escape(str(tmp_path))}/here\n", out)
    assert (tmp_path / "here" / "manifest.json").exists()
    assert json.loads(ctl("dump", "there", "--queues", "//ord*", "--json")[1])["queues"] == 1


def test_a_dump_is_signed_and_an_audit_verifies_that_before_it_begins(ctl, tmp_path, monkeypatch):
    private, public = write_keys(tmp_path)
    out = tmp_path / "signed"
    status, told, _ = ctl("queue", "dump", "--sign", private, out)
    assert status == 0
    assert told.splitlines()[1] == f"signed: {out}/manifest.json.sig"
    monkeypatch.setattr(ctl_audit, "run", lambda request: 7)
    assert ctl("audit", "--verify", public, out) == (7, "", "")
    (out / "manifest.json").write_text((out / "manifest.json").read_text() + " ")
    assert ctl("audit", "--verify", public, out) == (
        2, "", f"brokerctl audit: {out}/manifest.json: was not signed by the key of {public}, or was changed since\n")


def test_a_key_that_cannot_sign_is_refused_before_anything_is_copied(ctl, tmp_path):
    _, public = write_keys(tmp_path)
    assert ctl("queue", "dump", "--sign", public, tmp_path / "out") == (
        1, "", f"brokerctl: {public}: has no private key for Ed25519 in PEM\n")
    assert not (tmp_path / "out").exists()


def test_an_audit_takes_a_log_of_heads_and_refuses_what_is_none(ctl, tmp_path, monkeypatch):
    log = tmp_path / "log"
    line = {"at": 1, "vhost": "/", "queue": "q", "level": 0, "segment": 1, "begun": 2, "blocks": 3, "head": "ab"}
    log.write_text(json.dumps(line) + "\n")
    seen = []
    monkeypatch.setattr(ctl_audit, "run", lambda request: seen.append(request.options.chain_log) or 0)
    assert ctl("audit", "--chain-log", log, tmp_path)[0] == 0
    assert [head._asdict() | {"file": ""} for head in seen[0]] == [line | {"file": ""}]
    status, out, err = ctl("audit", "--chain-log", tmp_path / "none", tmp_path)
    assert (status, out, err) == (2, "", f"brokerctl audit: {tmp_path}/none: No such file or directory\n")


@pytest.mark.parametrize("arguments", [["DIR", "--report", "OUT"], ["--help"], ["-h"], ["-x", "--", "y"], []])
def test_audit_hands_its_arguments_on_and_ends_as_the_audit_does(ctl, monkeypatch, arguments):
    seen = []
    monkeypatch.setattr(ctl_audit, "main", lambda *given: seen.append(given) or 3)
    assert ctl("audit", *arguments) == (3, "", "")
    ((argv, program),) = seen
    assert program == "brokerctl audit"
    assert [each for each in argv if each != "--"] == [each for each in arguments if each != "--"]


def test_audit_without_spark_says_what_to_install(ctl, monkeypatch, tmp_path):
    writer.write_queue(tmp_path / "data", writer.simple_level(3))
    monkeypatch.setattr(request, "find_spec", lambda name: None)
    status, out, err = ctl("audit", tmp_path / "data", "--master", "local[1]")
    assert (status, out) == (2, "")
    told = err.splitlines()[-1]
    assert told.startswith("brokerctl audit: an audit by Spark needs pyspark, which this Python does not have; ")
    *command, source = shlex.split(told.partition("installs what it needs: ")[2])
    assert command == [sys.executable, "-m", "pip", "install", "-e"]
    project = tomllib.loads((Path(source.removesuffix("[spark]")) / "pyproject.toml").read_text())["project"]
    assert project["name"] == "brokerd"
    assert any(each.startswith("pyspark") for each in project["optional-dependencies"]["spark"])


def test_help_for_the_audit_needs_no_spark():
    code = "import sys; sys.modules.update(dict.fromkeys(('pyspark', 'jinja2', 'pyarrow', 'pandas', 'py4j'))); " \
           "from brokerd.cli.brokerctl import run; sys.exit(run(['audit', sys.argv[1]]))"
    for flag, status, told in (("--help", 0, "Usage: brokerctl audit [OPTIONS] [PATH]"),
                               ("--nosuch", 2, "brokerctl audit: No such option '--nosuch'"),
                               ("/nowhere", 2, "brokerctl audit: /nowhere: no such folder")):
        done = subprocess.run([sys.executable, "-c", code, flag], env=environment(), capture_output=True, text=True,
                              timeout=SECONDS)
        assert done.returncode == status, done.stderr
        assert told in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


# --- which broker

def test_the_data_directory_is_named_by_flag_environment_or_file(ctl, broker, tmp_path, monkeypatch):
    config = tmp_path / "brokerd.toml"
    config.write_text(f'data_dir = "{broker.directory}"\n')
    ask = ("queue", "ordering", "orders", "--json")
    assert ctl("-c", config, *ask, data_dir=None)[0] == 0
    monkeypatch.setenv("BROKERD_CONFIG", str(config))
    assert ctl(*ask, data_dir=None)[0] == 0
    monkeypatch.setenv("BROKERD_DATA_DIR", str(tmp_path))
    assert ctl(*ask, data_dir=None)[0] == 1
    assert ctl(*ask)[0] == 0
    monkeypatch.setenv("BROKERD_DATA_DIR", str(broker.directory))
    assert ctl(*ask, data_dir=None)[0] == 0
    config.write_text("data_dri = 1\n")
    status, _, err = ctl(*ask, data_dir=None)
    assert (status, err) == (0, ""), "the file is not needed"
    monkeypatch.delenv("BROKERD_DATA_DIR")
    status, _, err = ctl(*ask, data_dir=None)
    assert (status, err) == (1, f"brokerctl: {config}: unknown option data_dri; did you mean data_dir?\n")


def test_without_a_broker_the_socket_is_named(ctl, tmp_path):
    for arguments in (["queue", "ordering", "q"], ["dump", tmp_path / "out"]):
        assert ctl(*arguments, data_dir=tmp_path) == (
            1, "",
            f"brokerctl: no broker is running on {tmp_path}: {tmp_path}/control.sock: No such file or directory\n")


def test_a_folder_that_is_not_there_is_told_with_the_option_that_names_one(ctl, tmp_path):
    missing = tmp_path / "none"
    assert ctl("trace", "q", 1, data_dir=missing) == (
        1, "", f"brokerctl: {missing}: no such folder; -D names a data directory, a dump or an archive\n")


# --- how it ends

@pytest.mark.parametrize(("arguments", "told"), [
    (["queue", "ordering", "none"], "no queue 'none' in vhost '/'"),
    (["queue", "ordering", "orders", "--vhost", "none"], "no vhost 'none'"),
    (["message", "trace", "orders", "6"],
     "no message 6 in queue 'orders' in vhost '/': they are numbered 1 to 5 so far"),
    (["dump", "/proc/none/out"], "/proc/none: No such file or directory"),
    (["dump", "/proc/self"], "/proc/self is not empty"),
])
def test_what_fails_is_one_line_with_status_1(ctl, arguments, told):
    assert ctl(*arguments) == (1, "", f"brokerctl: {told}\n")


@pytest.mark.parametrize(("arguments", "told"), [
    (["nonsense"], "No such command 'nonsense'.* (see brokerctl --help)"),
    (["queue", "ordering"], "Missing argument 'QUEUE' (see brokerctl queue ordering --help)"),
    (["queue", "ordering", "q", "--jsno"], "No such option.* (see brokerctl queue ordering --help)"),
    (["message", "trace", "q", "one"], "Invalid value for .*'one' is not a valid .* (see brokerctl message .*)"),
    (["message", "trace", "q", "0"], "Invalid value for .* (see brokerctl message trace --help)"),
    (["--wrong"], "No such option.* (see brokerctl --help)"),
])
def test_a_command_that_cannot_be_understood_is_one_line_with_status_2(ctl, arguments, told):
    status, out, err = ctl(*arguments)
    assert (status, out) == (2, "")
    pattern = re.escape(told).replace(r"\.\*", ".*")
    assert re.fullmatch(f"brokerctl: {pattern}\n", err), err


@pytest.mark.parametrize("arguments", [[], ["queue"], ["message"]])
def test_a_command_in_part_is_answered_with_what_there_is(ctl, arguments):
    status, out, err = ctl(*arguments, data_dir=None)
    assert status == 2
    assert "Usage: brokerctl" in out + err


@pytest.mark.parametrize("arguments", [["--help"], ["queue", "-h"], ["message", "trace", "--help"], ["--version"]])
def test_help_and_version_need_no_broker(ctl, arguments):
    status, out, err = ctl(*arguments, data_dir=None)
    assert (status, err) == (0, "")
    assert out.startswith("Usage: brokerctl") or out == f"brokerctl {__version__}\n"


def program(broker, *arguments, **settings):
    return subprocess.Popen(
        [sys.executable, "-m", "brokerd.cli.brokerctl", "-D", str(broker.directory), *map(str, arguments)],
        env=environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings)


def test_the_program_ends_quietly_when_it_is_interrupted(broker):
    with program(broker, "queue", "ordering", "orders", "--watch", "--json") as process:
        assert json.loads(process.stdout.readline())["queue"] == "orders"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (130, b"")
    assert all(json.loads(line) for line in out.splitlines())


def test_the_program_ends_quietly_when_nobody_reads_it(broker):
    with program(broker, "queue", "ordering", "orders", "--watch", "--json") as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(SECONDS) == 1
        assert process.stderr.read() == b""


def test_the_program_speaks_of_names_that_its_terminal_cannot_show(broker):
    channel = connect(broker).channel()
    channel.queue_declare("grün\x1b[31m", durable=True, auto_delete=True)
    done = subprocess.run(
        [sys.executable, "-m", "brokerd.cli.brokerctl", "-D", str(broker.directory), "queue", "ordering",
         "grün\x1b[31m"],
        env=environment({"PYTHONIOENCODING": "ascii"}), cwd=ROOT, capture_output=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(rb"queue 'gr\xfcn\x1b[31m' in vhost '/'")
    channel.queue_delete("grün\x1b[31m")


# --- while messages come and go

def test_a_dump_under_traffic_holds_every_message_that_was_confirmed_before_it(make_broker, capsys, tmp_path):
    broker = make_broker("--segment-octets", 1 << 20).start()
    publisher, consumer = connect(broker), connect(broker)
    out, channel = publisher.channel(), consumer.channel()
    out.queue_declare("q", durable=True, arguments=JOURNALED)
    out.confirm_delivery()
    received = []
    channel.basic_qos(prefetch_count=10)

    def work(_, method, __, body):
        received.append(int(body[:8]))
        if len(received) % 7 == 3 and not method.redelivered:
            channel.basic_nack(method.delivery_tag)
        else:
            channel.basic_ack(method.delivery_tag)

    channel.basic_consume("q", work)
    count = [0]

    def publish(messages):
        for _ in range(messages):
            count[0] += 1
            out.basic_publish("", "q", b"%08d" % count[0] + bytes(5000), pika.BasicProperties(delivery_mode=2))
            if count[0] % 3 == 0:
                consumer.process_data_events(0)

    publish(600)
    dumps = []
    for number in range(3):
        before = count[0]
        process = program(broker, "dump", tmp_path / f"out{number}", "--json")
        while process.poll() is None:
            publish(20)
        answer, err = process.communicate(timeout=SECONDS)
        assert (process.returncode, err) == (0, b"")
        assert json.loads(answer)["queues"] == 1
        dumps.append((tmp_path / f"out{number}", before, count[0]))
    close_all()
    for path, before, after in dumps:
        entry, = json.loads((path / "manifest.json").read_text())["queues"]
        assert before < entry["next_seq"] <= after + 1
        capsys.readouterr()
        assert brokerctl.run(["inspect", str(path), "--json"]) == 0
        table = json.loads(capsys.readouterr().out)
        assert table["damage_total"] == 0, table["queues"][0]["damage"]
        row, = table["queues"]
        assert (row["first_seq"], row["last_seq"]) == (1, entry["next_seq"] - 1)
        assert row["messages"] == entry["next_seq"] - 1
        assert row["ready"] + row["unacked"] == entry["ready"] + entry["unacked"]
        assert row["unacked"] == entry["unacked"]
        assert row["counters"] == entry["counters"]
    assert os.listdir(broker.directory).count("dumping") == 0
