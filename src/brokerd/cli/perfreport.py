"""The report of brokerperf's runs: one HTML page with figures and plots, which needs nothing from outside.

Draws what runs have told (`Done`), escapes all text that people or brokers wrote, and measures nothing.  Needs jinja2.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from brokerd import __version__
from brokerd.auditor import charts
from brokerd.cli.perfsample import Record, Sample

TEMPLATE = Path(__file__).with_name("perf.html")
UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))      # of microseconds
MARKS = (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
ELSEWHERE = ("name", "command")         # figures that the heading says


class Done(NamedTuple):
    """A run that is over.  ``command``: its options, as for a shell.  ``error``: one line; empty if all is well."""

    name: str
    command: str
    figures: dict[str, Any]
    record: Record
    error: str = ""


def write(path: str, runs: Sequence[Done]) -> None:
    """Write the page; a page that was there is replaced when the new one is whole.  Raises OSError."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(TEMPLATE.read_text()).render(
        runs=[_view(index, run) for index, run in enumerate(runs)], version=__version__,
        made=time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()), host=os.uname().nodename)
    unfinished = f"{path}.partial"
    with open(unfinished, "w") as file:
        file.write(page)
    os.replace(unfinished, path)


def _view(index: int, run: Done) -> dict[str, Any]:
    figures = {name: value for name, value in run.figures.items() if name not in ELSEWHERE}
    single = {name: value for name, value in figures.items() if not isinstance(value, dict)}
    groups = {name: value for name, value in figures.items() if isinstance(value, dict)}
    return {"id": f"run{index}", "name": run.name, "command": run.command, "error": run.error,
            "facts": [(name.replace("_", " "), _said(value)) for name, value in single.items()],
            "groups": [(name.replace("_", " "), [(key, _said(value)) for key, value in group.items()])
                       for name, group in groups.items()],
            "charts": _charts(run.record)}


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else f"{value:,}" if isinstance(value, int | float) else str(value)


def _charts(record: Record) -> list[tuple[str, Markup]]:
    """(title, drawing) of each figure that was measured."""
    samples = record.all()
    drawn = []
    counted = list(dict.fromkeys(name for sample in samples for name in sample.counts))
    if counted:
        lines = [(name, [(sample.at, sample.rate(name)) for sample in samples]) for name in counted]
        drawn.append(("Rates", charts.over_seconds(lines, "rates over the seconds of the run", "per second")))
    drawn += [(f"{name} by second".capitalize(), _percentiles(samples, name))
              for name in dict.fromkeys(name for sample in samples for name in sample.waits)]
    for name, histogram in record.spreads.items():
        marks = [(mark, float(histogram.quantile(share))) for mark, share in MARKS]
        drawn.append((f"{name}: all".capitalize(), charts.latency(histogram.counts(), marks, f"{name} of all", name)))
    measured = [(sample.at, sample.cpu, sample.rss_kb) for sample in samples
                if sample.cpu is not None and sample.rss_kb is not None]
    if measured:
        drawn.append(("Broker: processor", charts.over_seconds(
            [("CPU", [(at, cpu) for at, cpu, _ in measured])], "processors that the broker kept busy", "cores",
            lambda value: f"{value:.2g}")))
        drawn.append(("Broker: memory", charts.over_seconds(
            [("RSS", [(at, kb / 1024) for at, _, kb in measured])], "memory of the broker in MiB", "MiB")))
    return [(title, drawing) for title, drawing in drawn if drawing]


def _percentiles(samples: Sequence[Sample], name: str) -> Markup:
    found = [(sample.at, sample.waits[name]) for sample in samples if name in sample.waits]
    lines = [("p50", [(at, waits.p50) for at, waits in found]), ("p99", [(at, waits.p99) for at, waits in found]),
             ("longest", [(at, waits.longest) for at, waits in found])]
    top = max((waits.longest for _, waits in found), default=0.0)
    size, unit = next(((size, unit) for size, unit in UNITS if top >= size), UNITS[-1])
    return charts.over_seconds(lines, f"{name} over the seconds of the run", f"{name} in {unit}",
                               lambda us: f"{us / size:.3g}")
