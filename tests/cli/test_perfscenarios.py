"""Files of scenarios: what they may say, what is wrong with others, and runs of them against a broker."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.cli.fakebroker import FakeBroker

from brokerd.cli.brokerperf import RunCommand, main
from brokerd.cli.perfout import shown
from brokerd.cli.perfscenarios import ScenarioError, read

COMMANDS = {name: command for name, command in main.commands.items() if isinstance(command, RunCommand)}


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "load.toml"
        path.write_text(text)
        return str(path)

    return write


def run(path, *arguments):
    return CliRunner().invoke(main, ["run", path, "-q", *arguments])


def test_options_become_the_arguments_that_a_shell_would_give(file):
    path = file('''
        [defaults]
        seconds = 2.5
        durable = true
        warmup = 1
        [[scenario]]
        name = "one"
        run = "throughput"
        queue_args = { x-max-length = 9 }
        routing-key = ["a", "b"]
        exchange = "e"
        ack = "multi:10"
        durable = false
        [[scenario]]
        name = "two"
        run = "queues"
        durable = false
        bind = true
    ''')
    one, two = read(path, COMMANDS)
    assert (one.name, one.run) == ("one", "throughput")
    assert one.arguments == ["--seconds", "2.5", "--queue-args", '{"x-max-length": 9}', "--routing-key", "a",
                             "--routing-key", "b", "--exchange", "e", "--ack", "multi:10"]
    assert (two.run, two.arguments) == ("queues", ["--transient", "--bind"])


SCENARIO = '[[scenario]]\nname = "a"\nrun = "throughput"\n'


@pytest.mark.parametrize(("text", "error"), [
    ("", "0 scenarios; a file has 1 to 1000"),
    ("[[scenario]\n", "Expected ']]' at the end of an array declaration (at line 1, column 1"),
    ("scenarios = 1\n" + SCENARIO, "unknown key 'scenarios'; a file has [defaults] and [[scenario]]"),
    ("scenario = 1", "scenario is not an array of tables: write [[scenario]]"),
    ("defaults = 1\n" + SCENARIO, "defaults is not a table"),
    ("[defaults]\nsecond = 1\n" + SCENARIO, "defaults: no such option 'second'; did you mean 'seconds'?"),
    ('[[scenario]]\nrun = "latency"', "scenario 1 has no name"),
    (SCENARIO + SCENARIO, "two scenarios have the name 'a'"),
    ('[[scenario]]\nname = "a"\nrun = "run"', "scenario 'a': run is 'run'; it is one of throughput, latency, "),
    (SCENARIO + "consumer = 1", "scenario 'a': no such option 'consumer'; did you mean 'consumers'?"),
    (SCENARIO + "json = true", "scenario 'a': no such option 'json'"),
    (SCENARIO + "keep = 1", "scenario 'a': keep is true or false, not 1"),
    (SCENARIO + "size = true", "scenario 'a': size is text, a number or a table, not True"),
    (SCENARIO + "size = [1]", "scenario 'a': size is text, a number or a table, not [1]"),
    (SCENARIO + "queue-args = { at = 2026-01-01 }", "scenario 'a': queue-args holds a value that JSON has not"),
])
def test_what_is_wrong_with_a_file_is_said_in_one_line(file, text, error):
    path = file(text)
    with pytest.raises(ScenarioError) as raised:
        read(path, COMMANDS)
    assert str(raised.value).startswith(f"{path}: {error}")
    result = run(path)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)


def test_a_file_that_cannot_be_read_is_said_so(tmp_path, file):
    for path, error in ((str(tmp_path / "none"), "No such file or directory"), (str(tmp_path), "Is a directory"),
                        (file(f"# {'x' * (1 << 20)}"), "more than 1 MiB")):
        assert run(path).stderr.startswith(f"brokerperf run: {path}: {error}") or error in run(path).stderr
    (tmp_path / "latin").write_bytes(b"\xff")
    assert "not UTF-8" in run(str(tmp_path / "latin")).stderr


def test_nothing_runs_before_all_scenarios_are_right(file):
    path = file(SCENARIO + 'count = 5\n[[scenario]]\nname = "b"\nrun = "latency"\nsize = 8')
    with FakeBroker() as broker:
        result = run(path, "--uri", broker.uri)
        assert broker.queues == {}
    assert (result.exit_code, result.stdout) == (2, "")
    assert "scenario 'b': latency needs messages of 16 octets or more" in result.stderr


SCENARIOS = '''
[defaults]
uri = "amqp://nobody:secret@127.0.0.1:1/"
stall = 0.2
[[scenario]]
name = "plain"
run = "throughput"
count = 20
verify-order = true
[[scenario]]
name = "confirmed"
run = "confirm"
seconds = 0.1
rate = 200
[[scenario]]
name = "churned"
run = "churn"
what = "channel"
count = 3
'''


def test_scenarios_run_one_after_the_other_and_print_a_line_each(file, tmp_path):
    report = tmp_path / "report.html"
    with FakeBroker() as broker:
        result = run(file(SCENARIOS.replace('"channel"', '"connection"')), "--uri", broker.uri, "--json", "--report",
                     str(report))
    assert result.exit_code == 0, result.output
    plain, confirmed, churned = map(json.loads, result.stdout.splitlines())
    assert (plain["name"], plain["command"], plain["consumed"]) == ("plain", "throughput", 20)
    assert confirmed["confirm_us"]["samples"] == confirmed["confirmed"] == confirmed["published"] > 0
    assert (churned["name"], churned["rounds"]) == ("churned", 3)
    page = report.read_text()
    assert re.findall(r"<h2 .*?>(.*?)</h2>", page) == ["plain", "confirmed", "churned"]
    assert page.count("<svg") >= 7
    assert "guest:guest" not in page


def test_chosen_scenarios_run_alone_and_an_unknown_name_is_refused(file):
    path = file(SCENARIOS)
    with FakeBroker() as broker:
        result = run(path, "--uri", broker.uri, "--only", "plain", "--json")
        assert [json.loads(line)["name"] for line in result.stdout.splitlines()] == ["plain"]
    refused = run(path, "--only", "plane")
    assert (refused.exit_code, refused.stderr.count("has no scenario 'plane'")) == (2, 1)


def test_a_scenario_that_fails_does_not_stop_the_next_and_the_first_failure_is_the_exit_code(file):
    with FakeBroker(swap=True) as broker:
        result = run(file(SCENARIOS.replace('"channel"', '"connection"')), "--uri", broker.uri, "--json")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 3, result.output
    assert "brokerperf: plain: the order of messages was violated" in result.stderr
    assert [one["name"] for one in found] == ["plain", "confirmed", "churned"]
    result = run(file(SCENARIOS), "--json")
    assert (result.exit_code, result.stdout.count('"error": "127.0.0.1:1: Connection refused"')) == (1, 3)


def test_a_report_that_could_not_be_written_is_refused_before_anything_runs(file, tmp_path):
    with FakeBroker() as broker:
        for where in (tmp_path, tmp_path / "none" / "report.html"):
            result = run(file(SCENARIOS), "--uri", broker.uri, "--report", str(where))
            assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        assert broker.queues == {}


def test_the_scenarios_of_the_documentation_are_right(file):
    docs = (Path(__file__).parents[2] / "docs/running.md").read_text()
    scenarios = re.search(r"```toml\n(\[defaults\]\nuri.*?)```", docs, re.DOTALL)[1]
    found = read(file(scenarios), COMMANDS)
    assert {scenario.run for scenario in found} == {"throughput", "confirm", "latency", "churn"}
    for scenario in found:
        assert COMMANDS[scenario.run].order(COMMANDS[scenario.run].make_context(scenario.run, scenario.arguments)).plan


def test_no_password_is_shown():
    assert shown(["latency", "--uri", "amqps://me:p@ss@host:1/v"]) == "brokerperf latency --uri amqps://me:…@host:1/v"
