"""What is written where; progress on a terminal and nowhere else."""

import io
import sys

from brokerd.cli.ctl_output import Progress, remark, show


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(octets):
    """What stands on the line in the end."""
    line, at = [], 0
    for letter in octets:
        if letter == "\r":
            at = 0
        else:
            line[at:at + 1] = letter
            at += 1
    return "".join(line).rstrip()


def test_the_line_is_written_over_and_taken_away(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress() as progress:
        progress.at("a long text")
        progress.at("short")
        assert shown(sys.stderr.getvalue()) == "short"
    assert shown(sys.stderr.getvalue()) == ""
    assert "\n" not in sys.stderr.getvalue()


def test_nothing_is_written_where_nobody_watches(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Progress() as progress:
        progress.at("text")
    assert sys.stderr.getvalue() == ""


def test_without_progress_nothing_is_written(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress():
        pass
    assert sys.stderr.getvalue() == ""


def test_answers_and_remarks_go_to_their_own_streams(capsys):
    show("an answer\nof two lines")
    remark("a remark\nof two lines")
    assert capsys.readouterr() == ("an answer\nof two lines\n", "brokerctl: a remark of two lines\n")
