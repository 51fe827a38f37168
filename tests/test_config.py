"""The configuration: sources and their order, bounds, and one clear line for what is wrong."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from brokerd.config import FILE_OCTETS_MAX, OPTIONS, Config, changed_options, load
from brokerd.errors import ConfigError

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "config" / "brokerd.toml"


def from_text(tmp_path: Path, text: str | bytes, environ=None, flags=None) -> Config:
    path = tmp_path / "brokerd.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(path, environ or {}, flags or {})


def refusal(tmp_path: Path, text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        from_text(tmp_path, text)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(str(tmp_path))
    return line.partition(": ")[2]


def imported_by(program: str) -> set[str]:
    shown = program + "\nimport sys; print(*sys.modules)"
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{shown}"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_nothing_given_is_the_defaults():
    assert load(None, {}, {}) == Config()


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path):
    text = "amqp_port = 1\nheartbeat_seconds = 1\nchannel_max = 1"
    environ = {"BROKERD_AMQP_PORT": "2", "BROKERD_HEARTBEAT_SECONDS": "2"}
    config = from_text(tmp_path, text, environ, {"amqp_port": 3, "channel_max": None})
    assert (config.amqp_port, config.heartbeat_seconds, config.channel_max) == (3, 2, 1)


@pytest.mark.parametrize("row", OPTIONS.values(), ids=OPTIONS)
def test_an_option_may_stand_in_its_section_or_above_all_sections(row, tmp_path):
    shown = str(row.default).lower() if row.type is bool else repr(row.default)
    for section in ("", f"[{row.option.section}]\n"):
        assert getattr(from_text(tmp_path, f"{section}{row.name} = {shown}"), row.name) == row.default


@pytest.mark.parametrize("row", [row for row in OPTIONS.values() if row.type is int], ids=lambda row: row.name)
def test_a_number_is_held_to_its_bounds_in_file_and_environment(row, tmp_path):
    low, high = row.option.low, row.option.high
    assert low <= row.default <= high
    for good in (low, high):
        assert getattr(from_text(tmp_path, f"{row.name} = {good}"), row.name) == good
        assert getattr(load(None, {row.environment: str(good)}, {}), row.name) == good
    for bad in (low - 1, high + 1):
        assert refusal(tmp_path, f"{row.name} = {bad}") == (
            f"{row.name} = {bad}: must be a whole number from {low} to {high}")
        with pytest.raises(ConfigError, match=f"environment: {row.environment} = .*{low} to {high}$"):
            load(None, {row.environment: str(bad)}, {})


@pytest.mark.parametrize(("text", "told"), [
    ("amqp_port = '5'", "amqp_port = '5': must be a whole number from 0 to 65535"),
    ("amqp_port = true", "amqp_port = True: must be a whole number from 0 to 65535"),
    ("amqp_port = 1.0", "amqp_port = 1.0: must be a whole number from 0 to 65535"),
    (f"amqp_port = {'9' * 100}", f"amqp_port = {'9' * 57}...: must be a whole number from 0 to 65535"),
    ("sync = 1", "sync = 1: must be true or false"),
    ("data_dir = ''", "data_dir = '': must be a text that is not empty"),
    ("bind = 1979-05-27", "bind = datetime.date(1979, 5, 27): must be a text that is not empty"),
    ("log_level = 'loud'", "log_level = 'loud': must be one of debug, info, warning, error"),
    ("default_password = 12345", "default_password = (hidden): must be a text of 1 to 255 characters"),
    ("amqp_prot = 1", "unknown option amqp_prot; did you mean amqp_port?"),
    ("[amqp]\nxyzzy = 1", "unknown option xyzzy"),
    ("[amqpp]", "unknown section [amqpp]; did you mean amqp?"),
    ("[store]\namqp_port = 1", "amqp_port belongs in [amqp], not in [store]"),
    ("amqp_port = 1\n[amqp]\namqp_port = 1", "amqp_port is given twice, at top level and in [amqp]"),
    ("[amqp_port]\na = 1", "amqp_port = {'a': 1}: must be a whole number from 0 to 65535"),
    ("=", "not TOML: Invalid statement (at line 1, column 1)"),
    (b"bind = '\xff'", "not UTF-8 at octet 8"),
])
def test_what_cannot_be_used_in_a_file_is_told_in_one_line(text, told, tmp_path):
    assert refusal(tmp_path, text) == told


def test_a_file_that_cannot_be_read_is_told_by_name(tmp_path):
    with pytest.raises(ConfigError, match=rf"^{re.escape(str(tmp_path))}/none: No such file or directory$"):
        load(tmp_path / "none", {}, {})
    with pytest.raises(ConfigError, match="Is a directory$"):
        load(tmp_path, {}, {})


@pytest.mark.parametrize(("text", "value"), [("true", True), ("YES", True), ("1", True), ("off", False), ("0", False)])
def test_the_environment_says_yes_and_no_in_several_ways(text, value):
    assert load(None, {"BROKERD_SYNC": text}, {}).sync is value


@pytest.mark.parametrize(("variable", "value", "told"), [
    ("BROKERD_AMQP_PRT", "1", "unknown option BROKERD_AMQP_PRT; did you mean BROKERD_AMQP_PORT?"),
    ("BROKERD_amqp_port", "1", "unknown option BROKERD_amqp_port"),
    ("BROKERD_AMQP_PORT", "٣", "BROKERD_AMQP_PORT = '٣': must be a whole number from 0 to 65535"),
    ("BROKERD_AMQP_PORT", "", "BROKERD_AMQP_PORT = '': must be a whole number from 0 to 65535"),
    ("BROKERD_SYNC", "perhaps", "BROKERD_SYNC = 'perhaps': must be true or false"),
    ("BROKERD_DEFAULT_PASSWORD", "", "BROKERD_DEFAULT_PASSWORD = (hidden): must be a text of 1 to 255 characters"),
])
def test_what_cannot_be_used_in_the_environment_is_told_in_one_line(variable, value, told):
    with pytest.raises(ConfigError) as caught:
        load(None, {variable: value}, {})
    assert str(caught.value).startswith("environment: " + told)


def test_variables_that_kubernetes_makes_for_a_service_of_our_name_are_none_of_ours():
    environ = {"BROKERD_PORT": "tcp://10.0.0.1:5672", "BROKERD_PORT_5672_TCP_PORT": "5672",
               "BROKERD_SERVICE_HOST": "10.0.0.1", "BROKERD_CONFIG": "x", "PATH": "/bin"}
    assert load(None, environ, {}) == Config()


def test_a_password_is_not_in_the_text_of_a_config():
    assert "hunter2" not in repr(Config(default_password="hunter2"))


def test_changed_lists_each_option_that_differs_and_whether_a_reload_applies_it():
    rows = changed_options(Config(), Config(log_level="debug", amqp_port=1))
    assert {row.name: row.option.reloadable for row in rows} == {"log_level": True, "amqp_port": False}
    assert changed_options(Config(), Config()) == []


def test_the_example_file_changes_nothing():
    assert load(EXAMPLE, {}, {}) == Config()


def test_the_example_file_shows_every_option_with_help_and_default():
    text = EXAMPLE.read_text()
    lines = text.splitlines()
    shown = tomllib.loads(re.sub(r"(?m)^# (?=\w+ = )", "", text))
    assert {name: value for section in shown.values() for name, value in section.items()} == {
        row.name: row.default for row in OPTIONS.values()}
    for row in OPTIONS.values():
        assert row.name in shown[row.option.section]
        at = next(index for index, line in enumerate(lines) if line.startswith(f"# {row.name} = "))
        above = lines[:at][-2:] if row.type is int or row.choices else lines[at - 1:at]
        assert above[0] == f"# {row.option.help}" + (" (reload)" if row.option.reloadable else "")
        if len(above) == 2:
            assert above[1].lower() == f"# {row.rule}."


def test_flags_and_variables_have_one_name_each():
    for names in ([row.flag for row in OPTIONS.values()], [row.environment for row in OPTIONS.values()],
                  [row.option.short for row in OPTIONS.values() if row.option.short]):
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("program", [
    "import brokerd.config",
    "from brokerd.config import load; load(None, {'PATH': ''}, {'amqp_port': 1})",
])
def test_a_start_by_flags_alone_imports_nothing_heavy(program):
    heavy = {"pydantic", "numpy", "json", "tomllib", "pathlib", "difflib", "hashlib", "click"}
    assert not imported_by(program) & heavy


def test_auth_and_policies_import_nothing_heavy_before_they_need_it():
    program = "import brokerd.auth, brokerd.policies, brokerd.auth.mechanisms, brokerd.store.json_file"
    assert not imported_by(program) & {"pydantic", "numpy", "json", "hashlib", "hmac", "secrets"}


@pytest.mark.parametrize("kind", ["pipe", "device", "large", "folder"])
def test_a_file_that_is_none_of_ours_is_refused_at_once(tmp_path, kind):
    """On a reload, a pipe would hold up all clients, and a device would fill the memory."""
    path = tmp_path / "brokerd.toml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "large":
        path.write_bytes(b"#" * (FILE_OCTETS_MAX + 1))
    else:
        path.mkdir()
    why = "is no regular file|has more than 1048576 octets|Is a directory"
    with pytest.raises(ConfigError, match=f"brokerd.toml: ({why})"):
        load(path, {}, {})


def test_the_options_for_production_can_be_used():
    config = load(ROOT / "config" / "production.toml", {}, {})
    assert config.tls_cert
    assert config.bind == config.http_bind == "127.0.0.1"  # What is not encrypted is not offered to other machines.
