"""Charts of the audit's report as SVG inside the page: no script, no picture file, no colours.

Each drawn part has a class, to which the page's style gives its colour, light or dark. Sizes are those of a narrow
screen (``WIDTH`` units), so that people can read the text on a phone; wider places stretch them.

Knows the numbers that it draws, and nothing of queues, audits or the origin of the numbers.
"""

from collections.abc import Callable, Iterable, Sequence
from math import floor, log2, log10
from typing import Any

from markupsafe import Markup, escape

WIDTH, HEIGHT = 400, 206
LEFT, RIGHT, TOP, BOTTOM = 54, 8, 26, 44    # margins around the drawing, for the axes
NARROWEST_BAR = 4.0                         # units; buckets that would be narrower are drawn together
SPAN_FITS = 90                              # units of a group of bars under which "15:00 to 16:00" fits
BARS_AT_MOST = 12                           # hours drawn as bars; more are drawn as lines
POINTS_AT_MOST = 400                        # more hours are added up to longer spans
HOUR = 3_600_000_000_000

UNITS = ((1, "ns"), (1_000, "µs"), (1_000_000, "ms"), (1_000_000_000, "s"), (60_000_000_000, "min"), (HOUR, "h"),
         (24 * HOUR, "d"))
# The lines of a logarithmic axis of time: decades up to a second, then the units of clocks.
TICKS = (*(10 ** power for power in range(10)), 10_000_000_000, 60_000_000_000, 600_000_000_000, HOUR, 10 * HOUR,
         100 * HOUR, 1_000 * HOUR, 10_000 * HOUR)
# The lines of an axis on which those would be fewer than three.
FINE_TICKS = (*(step * 10 ** power for power in range(10) for step in (1, 2, 5)),
              *(step * 10 ** 9 for step in (10, 20, 30)), *(step * 60 * 10 ** 9 for step in (1, 2, 5, 10, 20, 30)),
              *(step * HOUR for step in (1, 2, 5, 10)),
              *(step * 10 ** power * 24 * HOUR for power in range(6) for step in (1, 2, 5)))
TICKS_AT_LEAST = 3


def duration(ns: float | None) -> str:
    """A span of ns in words, three digits: ``1.23 ms``; ``–`` for None."""
    if ns is None:
        return "–"
    size, unit = next(((size, unit) for size, unit in reversed(UNITS) if abs(ns) >= size), UNITS[0])
    value = ns / size
    return f"{value:.3g} {unit}" if abs(value) < 1000 else f"{value:,.0f} {unit}"


def count(value: float) -> str:
    """A count for an axis: ``1.5k``, ``20M``."""
    for size, unit in ((10 ** 9, "G"), (10 ** 6, "M"), (10 ** 3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def round_up(value: float) -> float:
    """The end of an axis: the first of 1, 2, 4, 5, 10, 20 … that is not below ``value``."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(step * power for step in (1, 2, 4, 5, 10) if step * power >= value * (1 - 1e-9))


def _text(x: float, y: float, said: str, names: str = "tick", anchor: str = "middle") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" class="{}" text-anchor="{}">{}</text>').format(x, y, names, anchor, said)


def _axis_titles(x: str, y: str) -> list[Markup]:
    """The titles of the axes: below the one across, and along the one upwards."""
    middle = (TOP + HEIGHT - BOTTOM) / 2
    along = Markup('<text x="11" y="{0:.1f}" class="axis" text-anchor="middle" transform="rotate(-90 11 {0:.1f})">{1}'
                   "</text>").format(middle, y)
    return [_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x, "axis"), along]


def _line(x1: float, y1: float, x2: float, y2: float, names: str) -> Markup:
    return Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>').format(x1, y1, x2, y2, names)


def _bar(x: float, y: float, width: float, height: float, names: str, said: str) -> Markup:
    return Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="{}"><title>{}</title></rect>'
                  ).format(x, y, width, height, names, said)


def _picture(parts: Iterable[Markup], label: str, width: float = WIDTH, height: float = HEIGHT,
             names: str = "chart") -> Markup:
    return Markup('<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        names, width, height, label, Markup("").join(parts))


def _count_axis(top: float) -> list[Markup]:
    """Three horizontal lines, at 0, half of ``top`` and ``top``; no half of an odd number."""
    parts = []
    for share in (0.0, 0.5, 1.0) if top % 2 == 0 else (0.0, 1.0):
        y = HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
        parts += [_line(LEFT, y, WIDTH - RIGHT, y, "base" if not share else "grid"),
                  _text(LEFT - 5, y + 3.5, count(top * share), anchor="end")]
    return parts


class LogAxis:
    """Places of times on a logarithmic scale between two edges, in units."""

    __slots__ = ("_first", "_from", "_scale")

    def __init__(self, low: float, high: float, start: float, stop: float) -> None:
        first, last = log2(max(low, 1)), log2(max(high, 2))
        short = max(3.4 - (last - first), 0.0)  # At least a decade, so that one bucket does not fill the axis.
        first = max(first - short / 2, 0.0)
        last = max(last + short / 2, first + 3.4)
        self._first, self._from, self._scale = first, start, (stop - start) / (last - first)

    def __call__(self, ns: float) -> float:
        """Where ``ns`` is drawn."""
        return self._from + (log2(max(ns, 1)) - self._first) * self._scale

    def octave(self) -> float:
        """The width of a doubling of time, in units."""
        return self._scale

    def ticks(self, start: float, stop: float, apart: float) -> list[tuple[float, str]]:
        """(place, text) of the axis' lines, which are at least ``apart`` from each other."""
        chosen: list[tuple[float, str]] = []
        for ticks in (TICKS, FINE_TICKS):
            chosen = []
            for ns in ticks:
                at = self(ns)
                if start - 0.5 <= at <= stop + 0.5 and (not chosen or at - chosen[-1][0] >= apart):
                    chosen.append((at, duration(ns)))
            if len(chosen) >= TICKS_AT_LEAST:
                break
        return chosen


def latency(histogram: Sequence[Sequence[int]], marks: Sequence[tuple[str, float | None]], label: str,
            title: str = "time") -> Markup:
    """How many messages took how long, on a logarithmic scale, with percentiles marked.  ``title`` says which time.

    ``histogram`` has (lowest ns, messages) of each bucket, eight buckets to a doubling; ``marks`` has (name, ns).
    """
    buckets = sorted((max(int(low), 1), int(number)) for low, number in histogram if number)
    if not buckets:
        return Markup("")
    axis = LogAxis(buckets[0][0], buckets[-1][0] * 1.125, LEFT + 2, WIDTH - RIGHT)
    # On a logarithmic axis the last part of an octave is the narrowest.
    per_octave = next((n for n in (8, 4, 2) if axis.octave() * log2(2 * n / (2 * n - 1)) >= NARROWEST_BAR), 1)
    bars: dict[int, int] = {}
    for low, number in buckets:
        octave = low.bit_length() - 1
        place = octave * per_octave + ((low - (1 << octave)) * per_octave >> octave)
        bars[place] = bars.get(place, 0) + number
    top, floor_at, tall = round_up(max(bars.values())), HEIGHT - BOTTOM, HEIGHT - TOP - BOTTOM
    parts = _count_axis(top) + _axis_titles(title, "messages")
    for place, number in sorted(bars.items()):
        low, high = (2 ** (edge // per_octave) * (1 + edge % per_octave / per_octave) for edge in (place, place + 1))
        x, height = axis(low), max(number / top * tall, 1.5)
        said = f"{duration(low)} to {duration(high)}: {number:,}"
        parts.append(_bar(x, floor_at - height, max(axis(high) - x - 1, 1.0), height, "bar", said))
    parts += [_text(x, HEIGHT - BOTTOM + 15, said) for x, said in axis.ticks(LEFT, WIDTH - RIGHT - 8, 44)]
    reach = -100.0
    for name, ns in marks:
        if ns is None:
            continue
        x = min(max(axis(ns), LEFT), WIDTH - RIGHT)
        parts.append(_line(x, TOP - 4, x, floor_at, "mark"))
        reach = max(x, reach + 26)              # Text that would overlap moves to the right.
        if reach <= WIDTH - 10:
            parts.append(_text(reach, TOP - 9, name, "marked"))
    return _picture(parts, label)


def _spans(rows: Sequence[dict[str, Any]], names: Sequence[str], at_most: int) -> tuple[int, list[tuple[int, ...]]]:
    """(ns per span, [(begin, number of each name)]) without holes; a span has enough hours for ``at_most`` spans."""
    first, last = min(int(row["hour"]) for row in rows), max(int(row["hour"]) for row in rows)
    hours = (last - first) // HOUR + 1
    step = next((n for n in (1, 2, 3, 6, 12, 24) if hours <= n * at_most), 24 * -(-hours // (24 * at_most)))
    sums = [[0] * len(names) for _ in range(-(-hours // step))]
    for row in rows:
        place = sums[(int(row["hour"]) - first) // HOUR // step]
        for index, name in enumerate(names):
            place[index] += int(row.get(name) or 0)
    return step * HOUR, [(first + index * step * HOUR, *numbers) for index, numbers in enumerate(sums)]


def _when(ns: int, long: bool) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ns / 10 ** 9, UTC).strftime("%d %b" if long else "%H:%M")


SERIES = ("published", "delivered", "settled")


def throughput(rows: Sequence[dict[str, Any]], label: str) -> Markup:
    """Messages published, delivered and settled in each hour: bars for few hours, lines for many."""
    if not rows:
        return Markup("")
    span, places = _spans(rows, SERIES, POINTS_AT_MOST)
    top, floor_at, tall = (round_up(max(max(place[1:]) for place in places)), HEIGHT - BOTTOM, HEIGHT - TOP - BOTTOM)
    wide, each = WIDTH - RIGHT - LEFT - 4, len(places)
    parts = _count_axis(top) + _axis_titles("time (UTC)", "messages")
    bars, slot = each <= BARS_AT_MOST, min(wide / each, 96.0)
    if bars:
        for index, (at, *numbers) in enumerate(places):
            for series, number in enumerate(numbers):
                height = number / top * tall
                x = LEFT + 4 + index * slot + slot * (0.1 + series * 0.27)
                said = f"{_when(at, True)} {_when(at, False)} UTC: {number:,} {SERIES[series]}"
                parts.append(_bar(x, floor_at - height, max(slot * 0.27 - 1, 1.0), height, f"s{series}", said))
        centres = [LEFT + 4 + (index + 0.5) * slot for index in range(each)]
    else:
        centres = [LEFT + 4 + index * wide / (each - 1) for index in range(each)]
        for series in range(len(SERIES)):
            points = [f"{x:.1f},{floor_at - place[series + 1] / top * tall:.1f}"
                      for x, place in zip(centres, places, strict=True)]
            if not series:
                edges = f"{centres[0]:.1f},{floor_at} {' '.join(points)} {centres[-1]:.1f},{floor_at}"
                parts.append(Markup('<polygon points="{}" class="area"/>').format(edges))
            parts.append(Markup('<polyline points="{}" class="l{}"/>').format(" ".join(points), series))
    reach, days = -100.0, span * each > 30 * HOUR
    for x, place in zip(centres, places, strict=True):
        if x - reach >= 46 and x <= WIDTH - 14:
            until = f" to {_when(place[0] + span, days)}" if bars and slot >= SPAN_FITS else ""
            parts.append(_text(x, floor_at + 15, _when(place[0], days) + until))
            reach = x
    for series, x in enumerate((LEFT, LEFT + 92, LEFT + 184)):
        drawn = (_bar(x + 3, TOP - 18, 10, 10, f"s{series} key", SERIES[series]) if bars else
                 _line(x, TOP - 13, x + 14, TOP - 13, f"l{series}"))
        parts += [drawn, _text(x + 19, TOP - 9, SERIES[series], "legend", "start")]
    return _picture(parts, label)


def over_seconds(series: Sequence[tuple[str, Sequence[tuple[float, float]]]], label: str, title: str,
                 say: Callable[[float], str] = count) -> Markup:
    """Up to three lines over the seconds of a run: (name, points of (second, value)) of each.

    ``title`` says what the values are, and ``say`` puts one into words for the axis.
    """
    drawn = [(name, points) for name, points in series if points]
    if not drawn:
        return Markup("")
    last = max(max(at for at, _ in points) for _, points in drawn) or 1.0
    top = round_up(max(max(value for _, value in points) for _, points in drawn))
    floor_at, tall, wide = HEIGHT - BOTTOM, HEIGHT - TOP - BOTTOM, WIDTH - RIGHT - LEFT - 4
    parts = [part for share in (0.0, 0.5, 1.0) for part in (
        _line(LEFT, floor_at - share * tall, WIDTH - RIGHT, floor_at - share * tall, "grid" if share else "base"),
        _text(LEFT - 5, floor_at - share * tall + 3.5, say(top * share), anchor="end"))]
    parts += _axis_titles("seconds", title)
    step = round_up(last / 5)
    parts += [_text(LEFT + 4 + turn * step / last * wide, floor_at + 15, f"{turn * step:g}")
              for turn in range(floor(last / step) + 1)]
    for index, (name, points) in enumerate(drawn):
        places = [(LEFT + 4 + at / last * wide, floor_at - value / top * tall) for at, value in points]
        if len(places) == 1:        # A single sample is drawn as a level.
            places = [(LEFT + 4, places[0][1]), (LEFT + 4 + wide, places[0][1])]
        drawing = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(Markup('<polyline points="{}" class="l{}"/>').format(drawing, index))
        x = LEFT + index * 92
        parts += [_line(x, TOP - 13, x + 14, TOP - 13, f"l{index}"), _text(x + 19, TOP - 9, name, "legend", "start")]
    return _picture(parts, label)


def spark(rows: Sequence[dict[str, Any]], label: str, name: str = "published") -> Markup:
    """A line chart of ``name`` by hour, as high as a line of text."""
    if not rows:
        return Markup("")
    _span, places = _spans(rows, (name,), 60)
    if len(places) == 1:
        places = [places[0], places[0]]
    top = max(place[1] for place in places) or 1
    points = " ".join(f"{1 + index * 94 / (len(places) - 1):.1f},{20 - place[1] / top * 17:.1f}"
                      for index, place in enumerate(places))
    parts = [Markup('<polygon points="1,21 {} 95,21" class="area"/>').format(points),
             Markup('<polyline points="{}" class="l0"/>').format(points)]
    return _picture(parts, label, 96, 22, "spark")


def span_axis(latencies: Iterable[dict[str, Any]]) -> LogAxis | None:
    """One axis for the latencies of several queues; None if no queue has latencies."""
    found = [row for row in latencies if row.get("count")]
    if not found:
        return None
    return LogAxis(min(float(row["p50"]) for row in found), max(float(row["p99"]) for row in found), 6, 134)


def span(axis: LogAxis, row: dict[str, Any], label: str) -> Markup:
    """A bar from the median to the 99th percentile, on an axis that all queues share."""
    if not row.get("count"):
        return Markup("")
    p50, p90, p99 = (axis(float(row[name])) for name in ("p50", "p90", "p99"))
    parts = [_line(6, 11, 134, 11, "grid"), _line(p50, 11, p99, 11, "range"),
             Markup('<circle cx="{:.1f}" cy="11" r="4" class="dot"/>').format(p50),
             _line(p90, 7, p90, 15, "stroke"), _line(p99, 5, p99, 17, "stroke")]
    return _picture(parts, label, 140, 22, "spark")


def icon(verdict: str) -> Markup:
    """The sign of a verdict: each has its own shape, so that colour is not needed to tell them apart."""
    shapes = {
        "held": '<circle cx="8" cy="8" r="7.2"/><path d="M4.6 8.3l2.3 2.3 4.5-4.9"/>',
        "violated": '<path d="M5 .8h6l4.2 4.2v6L11 15.2H5L.8 11V5z"/><path d="M5.4 5.4l5.2 5.2m0-5.2l-5.2 5.2"/>',
        "effects": '<rect x="1" y="1" width="14" height="14" rx="3.5"/><path d="M4.6 8.3l2.3 2.3 4.5-4.9"/>',
        "undecidable": '<path d="M8 .5L15.5 8 8 15.5.5 8z"/>'
                       '<path d="M6 6.3c.2-2.4 4-2.2 4 0 0 1.5-2 1.5-2 3M8 11v.9"/>',
    }
    name = verdict.split(" ", maxsplit=1)[0]
    shape = Markup(shapes.get(name, '<circle cx="8" cy="8" r="7.2"/><path d="M4.5 8h7"/>'))
    return Markup('<svg class="icon {}" viewBox="0 0 16 16" aria-hidden="true">{}</svg>').format(escape(name), shape)
