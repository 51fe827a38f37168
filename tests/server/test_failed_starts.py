"""A start that fails: its reason is on standard error and in the log file, and the next start notices nothing."""

import json
import re
import shutil
import socket

import pytest
from tests.broker import run

BAD_POLICY = '[{"name": "p", "pattern": "^a", "definition": {"max-lenght": 5}}]'
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"


def spoil(broker, name, text):
    """Write a file of the data directory, and return what undoes that; ``*`` is the folder of the vhost."""
    path = next(iter(broker.directory.glob("????????????????????????????????????????"))) / name[2:] if (
        name.startswith("*/")) else broker.directory / name
    before = path.read_bytes() if path.is_file() else None
    if text is None:
        shutil.rmtree(path)
        path.write_text("no folder")
    else:
        path.write_text(text)
    return (lambda: path.write_bytes(before)) if before is not None else path.unlink


def failing(directory, *flags, log):
    """Start a broker that cannot start.  Returns what it says on standard error."""
    status, out, told = run("-D", directory, "-p", 0, "--log-file", log, *flags)
    assert (status, out, told.count("\n")) == (1, "", 1), told
    return told


@pytest.mark.parametrize(("name", "text"), [
    ("users.json", '[{"name": "x"}]'), ("users.json", '[{"name"'), ("permissions.json", "{}"),
    ("topic_permissions.json", "5"), ("vhosts.json", '[{"name": 5}]'), ("*/policies.json", BAD_POLICY),
    ("*/operator-policies.json", BAD_POLICY), ("spare", None),
])
def test_a_start_that_a_bad_file_ends_leaves_no_mark_and_says_why_in_the_log_file(make_broker, tmp_path, name, text):
    broker = make_broker().start()
    broker.stop()
    repair = spoil(broker, name, text)
    for times in (1, 2):
        told = failing(broker.directory, log=tmp_path / "log")
        lines = (tmp_path / "log").read_text().splitlines()
        assert len(lines) == times
        reason = re.escape(told.strip().removeprefix("brokerd: "))
        assert re.fullmatch(rf"{TIME} CRITICAL start failed: {reason}", lines[-1])
        assert name.rpartition("/")[2] in lines[-1]
        assert not (broker.directory / "running").exists()
    repair()
    begin = len(broker.lines)
    broker.start()
    assert "recovering" not in "\n".join(broker.lines[begin:])


@pytest.mark.parametrize("flags", [
    ("-p", "taken"), ("--unix-path", "/proc/none/socket"), ("--pid-file", "/proc/none/pid"),
])
@pytest.mark.parametrize("former", [True, False], ids=["used before", "new"])
def test_a_start_that_cannot_listen_leaves_no_mark_and_says_why_in_the_log_file(make_broker, tmp_path, flags, former):
    broker = make_broker()
    if former:
        broker.start()
        broker.stop()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = failing(broker.directory, *(port if flag == "taken" else flag for flag in flags), log=tmp_path / "log")
    reason = told.strip().removeprefix("brokerd: ")
    # What opened before the failure has its lines, too.
    assert (tmp_path / "log").read_text().splitlines()[-1].endswith(f" CRITICAL start failed: {reason}")
    assert not (broker.directory / "running").exists()
    assert former or [entry.name for entry in broker.directory.iterdir()] == [".lock"]
    broker.start()
    assert "recovering" not in broker.log_text()


def test_after_a_first_start_that_failed_the_next_makes_the_default_user_of_its_own_options(make_broker, tmp_path):
    broker = make_broker("--default-user", "alice")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        failing(broker.directory, "-p", taken.getsockname()[1], log=tmp_path / "log")
    broker.start()
    assert [user["name"] for user in json.loads((broker.directory / "users.json").read_text())] == ["alice"]


def test_a_start_that_fails_after_a_crash_lets_the_next_one_recover(make_broker, tmp_path):
    broker = make_broker().start()
    broker.kill()
    repair = spoil(broker, "users.json", "{")
    failing(broker.directory, log=tmp_path / "log")
    repair()
    begin = len(broker.lines)
    broker.start()
    assert "did not stop cleanly (crashed): recovering" in broker.lines[begin]


def test_unusable_certificates_are_in_the_log_file(tmp_path):
    status, _, told = run("-D", tmp_path / "data", "-p", 0, "--log-file", tmp_path / "log", "--cert", "/proc/none/cert")
    assert (status, told) == (2, "brokerd: tls_cert /proc/none/cert: No such file or directory\n")
    line, = (tmp_path / "log").read_text().splitlines()
    assert line.endswith(" CRITICAL start failed: tls_cert /proc/none/cert: No such file or directory")


def test_without_a_log_file_the_reason_is_told_once(tmp_path):
    status, _, told = run("-D", tmp_path / "none" / "data", "-p", 0)
    assert (status, told.count("\n")) == (1, 1)


@pytest.mark.parametrize(("path", "reason"), [
    ("none/deep/data", "data directory {0}/none/deep/data cannot be made: {0}/none does not exist: "
                       "make it first, or mount the disk that holds it"),
    ("none/data", "data directory {0}/none/data cannot be made: {0}/none does not exist: "
                  "make it first, or mount the disk that holds it"),
    ("file", "data directory {0}/file is a file: name a folder"),
    ("file/data", "data directory {0}/file/data cannot be made: a part of its path is no folder"),
])
def test_a_data_directory_that_cannot_be_made_is_told_with_what_is_missing(tmp_path, path, reason):
    (tmp_path / "file").write_text("")
    status, _, told = run("-D", tmp_path / path, "-p", 0)
    assert (status, told) == (1, f"brokerd: {reason.format(tmp_path)}\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
