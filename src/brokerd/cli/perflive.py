"""The display of a run of the load generator while it goes on: a bar, and under it the last minute of each figure.

    [########                ]  33%  publish 301,000/s  consume 300,900/s
      publish         ▅▆▇█▇▇█▇  301,000/s  mean 290,104/s
      latency         ▁▁▂▁▁▁█▁  p50 118 µs  p99 2.1 ms  longest 3.4 ms
      broker          ▆▆▇▇▇▇█▇  97 % of a core  31 MiB

A terminal that cannot move its cursor shows the bar alone; an output that is not a terminal shows nothing.  Keeps the
samples for the report of the run.  Knows nothing of the meaning of the figures.
"""

import os
import shutil
import sys
from collections.abc import Sequence

import click

from brokerd.cli._perf import Histogram
from brokerd.cli.perfsample import Record, Sample

BAR = 24        # characters
SHOWN = 40      # samples in a line, at most
NAME = 15       # characters of a line's name
STEPS = "▁▂▃▄▅▆▇█"


class Teller:
    """Shows a run on a terminal, with what is said once as lines; with ``quiet`` nothing.  `record`: the samples."""

    def __init__(self, quiet: bool, name: str = "") -> None:
        self.record = Record()
        self._quiet, self._name = quiet, name
        self._terminal = sys.stderr.isatty() and not quiet
        self._moves = os.environ.get("TERM", "") not in ("", "dumb")
        self._below = 0         # lines under the bar that are drawn
        self._drawn = False

    def __enter__(self) -> "Teller":
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def line(self, text: str) -> None:
        """Say something once."""
        if not self._quiet:
            self._clear()
            click.echo(f"brokerperf: {text}", err=True)

    def sample(self, sample: Sample) -> None:
        """Keep a sample; the next `at` shows it."""
        self.record.add(sample)

    def spread(self, name: str, histogram: Histogram) -> None:
        """Keep a histogram."""
        self.record.spreads[name] = histogram

    def at(self, share: float | None, text: str) -> None:
        """Draw the bar and the lines anew; without a share there is no bar."""
        if not self._terminal:
            return
        columns = shutil.get_terminal_size().columns - 1
        filled = round(BAR * share) if share is not None else 0
        done = f"[{'#' * filled:{BAR}}] {share:4.0%}  " if share is not None else ""
        name = f"{self._name}  " if self._name else ""
        self._clear()
        sys.stderr.write(f"\r{name}{done}{text}"[:columns])
        lines = details(self.record.all()) if self._moves else []
        for line in lines:
            sys.stderr.write(f"\n{line[:columns]}")
        self._drawn, self._below = True, len(lines)
        sys.stderr.flush()

    def _clear(self) -> None:
        """Clear the drawing, and leave the cursor where the bar began."""
        if not self._drawn:
            return
        if self._moves:
            up = f"\x1b[{self._below}A" if self._below else ""
            sys.stderr.write(f"{up}\r\x1b[J")
        else:
            sys.stderr.write(f"\r{' ' * (shutil.get_terminal_size().columns - 1)}\r")
        sys.stderr.flush()
        self._drawn, self._below = False, 0


def sparkline(values: Sequence[float]) -> str:
    """The values as a line of blocks; the highest value has the highest block."""
    top = max(values, default=0) or 1
    return "".join(STEPS[min(len(STEPS) - 1, int(value / top * len(STEPS)))] for value in values)


def duration(us: float) -> str:
    """Microseconds in the unit that suits them, three digits."""
    for size, unit in ((1e6, "s"), (1e3, "ms")):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} µs"


def details(samples: Sequence[Sample]) -> list[str]:
    """A line for each figure of the samples."""
    if not samples:
        return []
    last, shown = samples[-1], samples[-SHOWN:]
    over = sum(sample.seconds for sample in samples)
    lines = []
    for name in last.counts:
        mean = sum(sample.counts.get(name, 0) for sample in samples) / over
        lines.append(_line(name, [sample.rate(name) for sample in shown],
                           f"{last.rate(name):,.0f}/s  mean {mean:,.0f}/s"))
    for name in dict.fromkeys(name for sample in shown for name in sample.waits):
        waits = [sample.waits[name] for sample in shown if name in sample.waits]
        now = waits[-1]
        lines.append(_line(name, [wait.p99 for wait in waits],
                           f"p50 {duration(now.p50)}  p99 {duration(now.p99)}  longest {duration(now.longest)}"))
    if last.cpu is not None and last.rss_kb is not None:
        lines.append(_line("broker", [sample.cpu or 0.0 for sample in shown],
                           f"{last.cpu:.0%} of a core  {last.rss_kb / 1024:,.0f} MiB".replace("%", " %")))
    return lines


def _line(name: str, values: Sequence[float], told: str) -> str:
    return f"  {name:{NAME}} {sparkline(values)}  {told}"
