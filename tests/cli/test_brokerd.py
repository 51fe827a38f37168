"""The command line of brokerd: its flags are the options, and what cannot be used is told and ends with status 2."""

import errno
import os

import pytest
from click.testing import CliRunner
from tests.broker import run

from brokerd import __version__
from brokerd.cli.brokerd import command
from brokerd.config import OPTIONS, Config
from brokerd.errors import StoreError
from brokerd.server import launch


class Launched:
    """Stands for the server: keeps the configuration, and ends as it is told."""

    def __init__(self):
        self.config = None
        self.reload = None
        self.ending = 0

    def serve(self, config, *, reload):
        self.config, self.reload = config, reload
        if isinstance(self.ending, Exception):
            raise self.ending
        return self.ending


@pytest.fixture
def launched(monkeypatch):
    launched = Launched()
    monkeypatch.setattr(launch, "serve", launched.serve)
    for name in os.environ:
        if name.startswith("BROKERD_"):
            monkeypatch.delenv(name)
    return launched


def invoke(*flags, env=None):
    return CliRunner().invoke(command(), list(map(str, flags)), env=env, prog_name="brokerd")


def another(row):
    """A value of the option that is allowed and not its default, with the flags that give it."""
    if row.type is bool:
        return not row.default, [("--no-" if row.default else "--") + row.flag[2:]]
    if row.choices:
        value = next(choice for choice in row.choices if choice != row.default)
    elif row.type is int:
        value = row.option.low if row.default != row.option.low else row.option.high
    else:
        value = "something else"
    return value, [row.flag, value]


# --- each option has its flag

@pytest.mark.parametrize("row", OPTIONS.values(), ids=OPTIONS)
def test_an_option_can_be_given_by_its_flag_and_nothing_else_changes(launched, row):
    value, flags = another(row)
    assert invoke(*flags).exit_code == 0
    given = {name: getattr(launched.config, name) for name in OPTIONS}
    assert given == {name: each.default for name, each in OPTIONS.items()} | {row.name: value}


@pytest.mark.parametrize("row", [row for row in OPTIONS.values() if row.option.short], ids=lambda row: row.name)
def test_a_short_flag_is_the_long_one(launched, row):
    value, (_, text) = another(row)
    assert invoke(row.option.short, text).exit_code == 0
    assert getattr(launched.config, row.name) == value


@pytest.mark.parametrize("row", [row for row in OPTIONS.values() if row.type is bool], ids=lambda row: row.name)
@pytest.mark.parametrize("value", [True, False])
def test_a_switch_can_be_put_on_and_off(launched, row, value):
    assert invoke(("--" if value else "--no-") + row.flag[2:], env={row.environment: str(not value)}).exit_code == 0
    assert getattr(launched.config, row.name) is value


def test_without_flags_all_is_as_by_default(launched):
    assert invoke().exit_code == 0
    assert launched.config == Config()


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_names_every_option_with_its_default_and_starts_nothing(launched, flag):
    result = invoke(flag)
    assert (result.exit_code, launched.config) == (0, None)
    text = " ".join(result.stdout.split())
    for row in OPTIONS.values():
        assert row.flag in text
        assert row.option.help in text
        shown = text.partition(f"{row.option.help} [default: ")[2].partition("]")[0]
        if row.option.secret:
            assert shown == "hidden"
        elif row.default:
            assert shown == str(row.default).replace("True", "true")
        else:
            assert shown in ("0", "false", "none")
    for flag_of_its_own in ("-c, --config FILE", "-v, --version", "-h, --help"):
        assert flag_of_its_own in text


@pytest.mark.parametrize("flag", ["-v", "--version"])
def test_the_version_is_one_line(launched, flag):
    assert invoke(flag).stdout == f"brokerd {__version__}\n"


# --- what cannot be used

@pytest.mark.parametrize("row", [row for row in OPTIONS.values() if row.type is int], ids=lambda row: row.name)
def test_a_number_out_of_bounds_or_none_at_all_is_refused_by_name(launched, row):
    for bad in (row.option.low - 1, row.option.high + 1, "many", "", "1.5"):
        result = invoke(f"{row.flag}={bad}")
        assert (result.exit_code, launched.config, result.stdout) == (2, None, "")
        (last,) = result.stderr.splitlines()
        assert last.startswith("brokerd: Invalid value for ")
        assert row.flag in last


@pytest.mark.parametrize(("flags", "told"), [
    (["--log-level", "loud"], "brokerd: Invalid value for '--log-level' / '-l': 'loud' is not one of"),
    (["--amqp-prot", "1"], "brokerd: No such option"),
    (["--amqp-port"], "brokerd: Option '--amqp-port' requires an argument (see brokerd --help)"),
    (["start"], "brokerd: Got unexpected extra argument (start)"),
    (["--data-dir", ""], "brokerd: --data-dir: must be a text that is not empty"),
    (["--default-password", ""], "brokerd: --default-password: must be a text of 1 to 255 characters"),
])
def test_a_flag_that_cannot_be_used_is_told_in_a_line_with_status_2(launched, flags, told):
    result = invoke(*flags)
    assert (result.exit_code, launched.config, result.stdout) == (2, None, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(told)


@pytest.mark.parametrize(("text", "told"), [
    ("amqp_prot = 1", "unknown option amqp_prot; did you mean amqp_port?"),
    ("amqp_port = 99999", "amqp_port = 99999: must be a whole number from 0 to 65535"),
    ("[ampq]", "unknown section [ampq]; did you mean amqp?"),
    (None, "No such file or directory"),
])
def test_a_file_that_cannot_be_used_is_told_in_one_line_with_status_2(launched, tmp_path, text, told):
    path = tmp_path / "brokerd.toml"
    if text is not None:
        path.write_text(text)
    for result in (invoke("-c", path), invoke(env={"BROKERD_CONFIG": str(path)})):
        assert (result.exit_code, launched.config, result.stdout) == (2, None, "")
        assert result.stderr == f"brokerd: {path}: {told}\n"


def test_a_variable_that_cannot_be_used_is_told_in_one_line_with_status_2(launched):
    result = invoke(env={"BROKERD_AMQP_PRT": "1"})
    assert (result.exit_code, launched.config) == (2, None)
    assert result.stderr == (
        "brokerd: environment: unknown option BROKERD_AMQP_PRT; did you mean BROKERD_AMQP_PORT?\n")


@pytest.mark.parametrize(("error", "told"), [
    (StoreError("msgs.1 at 5: bad"), "msgs.1 at 5: bad"),
    (OSError(errno.EACCES, "Permission denied", "/var/x"), "/var/x: Permission denied"),
    (OSError("no more"), "no more"),
])
def test_what_fails_at_the_start_is_told_in_one_line_with_status_1(launched, error, told):
    launched.ending = error
    result = invoke()
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"brokerd: {told}\n")


@pytest.mark.parametrize("status", [0, 1])
def test_the_status_is_the_servers(launched, status):
    launched.ending = status
    assert invoke().exit_code == status


# --- which source wins

@pytest.fixture
def file(tmp_path):
    path = tmp_path / "brokerd.toml"
    path.write_text("heartbeat_seconds = 1\nchannel_max = 1\nconnection_max = 1\nsync = false")
    return path


def test_flags_win_over_the_environment_and_that_over_the_file(launched, file):
    env = {"BROKERD_HEARTBEAT_SECONDS": "2", "BROKERD_CHANNEL_MAX": "2"}
    assert invoke("-c", file, "--heartbeat-seconds", 3, env=env).exit_code == 0
    config = launched.config
    assert (config.heartbeat_seconds, config.channel_max, config.connection_max, config.sync) == (3, 2, 1, False)
    assert config.frame_max_octets == Config().frame_max_octets


def test_a_flag_wins_also_when_it_says_the_default(launched, file):
    assert invoke("-c", file, "--sync", "--heartbeat-seconds", Config().heartbeat_seconds).exit_code == 0
    assert (launched.config.sync, launched.config.heartbeat_seconds) == (True, Config().heartbeat_seconds)


def test_the_file_named_by_a_flag_wins_over_the_one_of_the_environment(launched, file, tmp_path):
    (tmp_path / "other.toml").write_text("heartbeat_seconds = 9")
    assert invoke("-c", file, env={"BROKERD_CONFIG": str(tmp_path / "other.toml")}).exit_code == 0
    assert launched.config.heartbeat_seconds == 1


def test_a_reload_reads_the_file_again_and_flags_still_win(launched, file):
    assert invoke("-c", file, "--heartbeat-seconds", 3).exit_code == 0
    file.write_text("heartbeat_seconds = 5\nchannel_max = 5")
    new = launched.reload()
    assert (new.heartbeat_seconds, new.channel_max, new.sync) == (3, 5, True)


@pytest.mark.parametrize("value", ["abc", "70000", "-1", "1.5", ""])
def test_a_number_that_cannot_be_is_refused_with_what_it_must_be(value):
    said = invoke("--amqp-port", value)
    assert (said.exit_code, said.stderr) == (
        2, f"brokerd: Invalid value for '--amqp-port' / '-p': {value!r}: must be a whole number from 0 to 65535 "
           "(see brokerd --help)\n")


# --- the program itself

def test_the_program_answers_without_a_server():
    assert run("--version") == (0, f"brokerd {__version__}\n", "")
    status, out, told = run("-p", "70000")
    assert (status, out, "Traceback" in told, told.count("\n")) == (2, "", False, 1)
