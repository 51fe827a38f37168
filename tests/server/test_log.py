"""Lines of the log: what logging's own records and formats say, in one line."""

import json
import logging
import subprocess
import sys
import time

import pytest
from tests.broker import environment

from brokerd.server.log import FORMAT, LINE_CHARACTERS_MAX, TIME_FORMAT, OneLine, OneObject, Recent, Record


def record_of(cls, message, *args, level=logging.INFO, exc_info=None):
    return cls("brokerd", level, "file.py", 7, message, args, exc_info, None, None)


@pytest.fixture
def stopped_clock(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1700000000.0625)


@pytest.mark.parametrize(("message", "args"), [
    ("plain, 100%", ()), ("%s: %d of %s", ("a", 5, [1])), ("%(a)s", ({"a": 1},)), ("%s", ({},)), ("%s", (None,)),
])
@pytest.mark.parametrize("level", [logging.DEBUG, logging.WARNING, logging.CRITICAL, 17])
def test_a_line_is_as_logging_itself_would_write_it(stopped_clock, message, args, level):
    own, usual = (record_of(cls, message, *args, level=level) for cls in (Record, logging.LogRecord))
    assert OneLine().format(own) == logging.Formatter(FORMAT, TIME_FORMAT).format(usual)


def test_a_line_has_the_time_of_its_own_second(monkeypatch):
    formatter, shown = OneLine(), []
    for now in (1700000000.001, 1700000000.9995, 1700000061.5, 1700000000.0):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        shown.append(formatter.format(record_of(Record, "x")).split()[1][-6:])
    assert shown == ["20.000", "20.999", "21.500", "20.000"]


def test_line_breaks_of_a_peer_begin_no_line():
    assert OneLine().format(record_of(Record, "a\r\n%s", "b\nc")).endswith(" INFO    a\\r\\nb\\nc")


def test_a_traceback_follows_its_line():
    try:
        raise ValueError("wrong")
    except ValueError as error:
        shown = OneLine().format(record_of(Record, "a\nb", exc_info=(type(error), error, error.__traceback__)))
    lines = shown.splitlines()
    assert lines[0].endswith(" a\\nb")
    assert lines[1].startswith("Traceback ")
    assert lines[-1] == "ValueError: wrong"


def test_a_record_that_is_logged_by_the_broker_can_be_shown_by_any_handler():
    shown = logging.Formatter("%(name)s %(levelno)d %(lineno)d %(message)s").format(record_of(Record, "%s", 1))
    assert shown == "brokerd 20 7 1"


@pytest.mark.parametrize(("octets", "shown"), [
    ("\x1b[31mred", "\\x1b[31mred"), ("a\x00b", "a\\x00b"), ("\x7f\x9b", "\\x7f\\x9b"),
    ("\u2028x\u202ey", "\\u2028x\\u202ey"),
    ("tab\t", "tab\\t"), ("Grüße, 世界", "Grüße, 世界"),
])
def test_what_would_change_a_terminal_is_escaped_and_letters_are_not(octets, shown):
    assert OneLine().format(record_of(Record, "%s", octets)).endswith(f" INFO    {shown}")


def test_a_long_line_is_cut_and_says_by_how_much():
    line = OneLine().format(record_of(Record, "%s", "x" * 130_000))
    assert line.endswith(f"x... ({130_000 - LINE_CHARACTERS_MAX} characters more)")
    assert len(line) < LINE_CHARACTERS_MAX + 100
    assert OneLine().format(record_of(Record, "%s", "x" * LINE_CHARACTERS_MAX)).endswith("x")


def test_an_object_says_what_a_line_says(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1700000000.0625)
    shown = OneObject().format(record_of(Record, "a\n%s \u2028", "\x1b[31m", level=logging.WARNING))
    assert shown.isascii()
    assert "\n" not in shown
    assert json.loads(shown) == {"time": "2023-11-14T22:13:20.062500Z", "level": "warning", "logger": "brokerd",
                                 "message": "a\n\x1b[31m \u2028"}


def test_an_object_has_the_traceback_and_is_one_line():
    try:
        raise ValueError("wrong\nhere")
    except ValueError as error:
        shown = OneObject().format(record_of(Record, "x" * 5000, exc_info=(type(error), error, error.__traceback__)))
    assert "\n" not in shown
    line = json.loads(shown)
    assert line["exception"].startswith("Traceback ")
    assert line["exception"].endswith("ValueError: wrong\nhere")
    assert line["message"].endswith(f"({5000 - LINE_CHARACTERS_MAX} characters more)")


def test_a_broker_that_logs_objects_logs_nothing_else(tmp_path):
    command = [sys.executable, "-m", "brokerd", "-D", str(tmp_path / "data"), "-p", "0", "--http-port", "0",
               "--log-format", "json"]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(), cwd=tmp_path) as broker:
        assert broker.stderr is not None
        lines = []
        for text in broker.stderr:
            lines.append(json.loads(text))
            if lines[-1]["message"].startswith("listening on"):
                broker.terminate()
    assert broker.returncode == 0
    assert len(lines) > 2
    assert {line["level"] for line in lines} <= {"info", "warning"}


def test_the_last_lines_are_kept_with_their_numbers(stopped_clock):
    recent = Recent(3)
    for number in range(5):
        recent.handle(record_of(Record, "line %d\n", number, level=logging.WARNING))
    assert recent.after(3) == [(4, 1700000000062, "warning", "line 3\\n"), (5, 1700000000062, "warning", "line 4\\n")]
    assert [line[0] for line in recent.after(0)] == [3, 4, 5]
    assert recent.after(5) == []
