"""The display of a run: what stands on the terminal after each report."""

import io
import re
import sys

import pytest

from brokerd.cli.perflive import Teller, details, duration, sparkline
from brokerd.cli.perfsample import Sample, Waits


class Terminal(io.StringIO):
    """Standard error that is a terminal; ``screen`` is what a person sees then."""

    def isatty(self):
        return True

    def screen(self):
        lines, row, column = [""], 0, 0
        for part in re.findall(r"\x1b\[\d*[AJ]|[\r\n]|[^\x1b\r\n]+", self.getvalue()):
            if part.endswith("A") and part[0] == "\x1b":
                row -= int(part[2:-1])
            elif part == "\x1b[J":
                lines[row:] = [lines[row][:column]]
            elif part == "\r":
                column = 0
            elif part == "\n":
                row, column = row + 1, 0
                if row == len(lines):
                    lines.append("")
            else:
                lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part):]
                column += len(part)
        return lines


@pytest.fixture
def make_terminal(monkeypatch):
    """Makes a terminal of a kind and width; called in the test, because pytest sets standard error for each anew."""
    def make(kind="xterm", columns=100):
        made = Terminal()
        monkeypatch.setattr(sys, "stderr", made)
        monkeypatch.setenv("TERM", kind)
        monkeypatch.setenv("COLUMNS", str(columns))
        return made

    return make


def sample(at, rate):
    return Sample(at, 1.0, {"publish": rate}, {"latency": Waits(118.0, 2100.0, 3_400_000.0)}, 0.5, 2048)


def test_each_report_stands_where_the_last_one_stood(make_terminal):
    terminal = make_terminal()
    with Teller(False, "plain") as teller:
        for at, rate in ((1, 400), (2, 800)):
            teller.sample(sample(at, rate))
            teller.at(at / 4, f"publish {rate}/s")
        assert terminal.screen() == [
            "plain  [############            ]  50%  publish 800/s",
            "  publish         ▅█  800/s  mean 600/s",
            "  latency         ██  p50 118 µs  p99 2.1 ms  longest 3.4 s",
            "  broker          ██  50 % of a core  2 MiB"]
        teller.line("said once")
        teller.at(0.75, "publish 1/s")
        assert terminal.screen()[:2] == ["brokerperf: said once",
                                         "plain  [##################      ]  75%  publish 1/s"]
    assert terminal.screen() == ["brokerperf: said once", ""]
    assert [one.at for one in teller.record.all()] == [1, 2]


def test_no_line_is_wider_than_the_terminal(make_terminal):
    terminal = make_terminal(columns=30)
    with Teller(False) as teller:
        teller.sample(sample(1, 400))
        teller.at(0.5, "publish 400/s  consume 400/s")
        assert max(map(len, terminal.screen())) == 29


def test_a_terminal_that_cannot_move_its_cursor_shows_the_bar_alone(make_terminal):
    terminal = make_terminal("dumb")
    with Teller(False) as teller:
        teller.sample(sample(1, 400))
        teller.at(0.5, "publish 400/s")
        assert terminal.screen() == ["[############            ]  50%  publish 400/s"]
    assert "\x1b" not in terminal.getvalue()
    assert terminal.screen()[0].strip() == ""


def test_a_quiet_run_shows_nothing_and_keeps_its_samples(make_terminal):
    terminal = make_terminal()
    with Teller(True) as teller:
        teller.sample(sample(1, 400))
        teller.at(0.5, "publish 400/s")
        teller.line("said once")
    assert (terminal.getvalue(), len(teller.record.all())) == ("", 1)


def test_a_line_shows_the_last_samples_and_the_mean_of_all():
    lines = details([sample(at, at) for at in range(1, 101)])
    assert re.fullmatch(r"  publish +[▁-█]{40}  100/s  mean 50/s", lines[0])
    assert details([]) == []


def test_the_highest_value_has_the_highest_block_and_nothing_has_the_lowest():
    assert sparkline([0, 50, 100]) == "▁▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert [duration(us) for us in (0.5, 118, 2100, 3_400_000)] == ["0.5 µs", "118 µs", "2.1 ms", "3.4 s"]
