import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest
from tests.auditor import samples

from brokerd.auditor import charts

MINUTE = 60_000_000_000
HOUR = samples.HOUR


def numbers(svg, names, attribute):
    """An attribute of all elements of a class, as numbers; the picture must be well formed."""
    root = ElementTree.fromstring(svg)
    return [float(element.get(attribute)) for element in root.iter() if element.get("class") == names]


def hours(*published, first=samples.AT):
    return [{"hour": first + index * HOUR, "published": number, "delivered": number, "settled": 0}
            for index, number in enumerate(published)]


@pytest.mark.parametrize(("ns", "said"), [
    (0, "0 ns"), (999, "999 ns"), (1_500, "1.5 µs"), (20_700_000, "20.7 ms"), (90_000_000_000, "1.5 min"),
    (30 * HOUR, "1.25 d"), (None, "–"), (400 * 24 * HOUR, "400 d"), (5_000 * 24 * HOUR, "5,000 d"),
])
def test_durations_are_said_with_three_digits(ns, said):
    assert charts.duration(ns) == said


@pytest.mark.parametrize(("value", "top"), [(0, 1), (1, 1), (3, 4), (101, 200), (4_001, 5_000), (999, 1_000)])
def test_an_axis_ends_at_a_round_number_that_is_not_too_low(value, top):
    assert charts.round_up(value) == top


def test_every_bucket_of_a_histogram_is_a_bar_and_taller_where_more_messages_are():
    svg = charts.latency([[1_000_000, 5], [2_000_000, 10], [4_000_000, 1]], [], "waiting")
    heights = numbers(svg, "bar", "height")
    assert len(heights) == 3
    assert heights[1] > heights[0] > heights[2] > 0


def test_a_wide_histogram_has_bars_that_can_be_seen():
    svg = charts.latency([[int(2 ** (n // 8) * (1 + n % 8 / 8)), 3] for n in range(32, 44 * 8)], [], "waiting")
    assert min(numbers(svg, "bar", "width")) >= charts.NARROWEST_BAR - 1


def test_percentiles_are_marked_inside_the_drawing_even_where_they_coincide():
    svg = charts.latency([[1_000, 5]], [("p50", 1_000), ("p90", 1_000), ("p99", 1_050), ("p0", None)], "waiting")
    marks = numbers(svg, "mark", "x1")
    assert len(marks) == 3
    said = numbers(svg, "marked", "x")
    assert all(later - earlier > 25.8 for earlier, later in pairwise(said))


@pytest.mark.parametrize("low", [0, 1, 10 ** 18])
def test_a_histogram_of_one_bucket_is_a_picture(low):
    svg = charts.latency([[low, 1]], [("p50", low)], "waiting")
    (x,), (width,) = numbers(svg, "bar", "x"), numbers(svg, "bar", "width")
    assert charts.LEFT <= x <= x + width <= charts.WIDTH


def test_nothing_measured_is_no_picture():
    assert charts.latency([], [], "") == charts.throughput([], "") == charts.spark([], "") == ""
    assert charts.span_axis([{}, {"count": 0}]) is None


def test_few_hours_are_bars_and_many_are_lines():
    assert len(numbers(charts.throughput(hours(5, 6), ""), "s0", "height")) == 2
    many = charts.throughput(hours(*range(100)), "")
    assert not numbers(many, "s0", "height")
    assert len(re.search(r'polyline points="([^"]+)" class="l0"', many).group(1).split()) == 100


def test_an_hour_without_messages_is_drawn_as_none():
    svg = charts.throughput([*hours(5), *hours(7, first=samples.AT + 2 * HOUR)], "")
    assert [height > 0 for height in numbers(svg, "s0", "height")] == [True, False, True]


def test_years_of_hours_are_added_up_and_no_message_is_left_out():
    rows = hours(*[1] * 20_000)
    span, places = charts._spans(rows, ("published",), 400)
    assert len(places) <= 400
    assert span % (24 * HOUR) == 0
    assert sum(number for _, number in places) == 20_000


def test_a_label_is_text_whatever_it_holds():
    svg = charts.throughput(hours(1), '"><script>alert(1)</script>')
    assert "<script>" not in svg
    assert ElementTree.fromstring(svg).get("aria-label") == '"><script>alert(1)</script>'


def test_each_verdict_has_its_own_shape():
    icons = {charts.icon(verdict).split(">", 1)[1]
             for verdict in ("held", "violated", "effects of use", "undecidable", "other")}
    assert len(icons) == 5


def test_ranges_of_several_queues_share_one_axis():
    fast = {"count": 1, "p50": 1_000, "p90": 2_000, "p99": 3_000}
    slow = {"count": 1, "p50": 1_000_000, "p90": 2_000_000, "p99": 9_000_000}
    axis = charts.span_axis([fast, slow])
    assert numbers(charts.span(axis, fast, ""), "dot", "cx") < numbers(charts.span(axis, slow, ""), "dot", "cx")
    assert charts.span(axis, {}, "") == ""


@pytest.mark.parametrize(("low", "high"), [(1, 2), (200_000_000, 2_100_000_000), (90_000_000_000, 400_000_000_000),
                                           (30 * HOUR, 90 * HOUR), (400 * 24 * HOUR, 900 * 24 * HOUR)])
def test_an_axis_of_time_has_several_lines_with_their_units(low, high):
    svg = charts.latency([[low, 5], [high, 3]], [], "", "from enqueued to settled")
    root = ElementTree.fromstring(svg)
    ticks = [element.text for element in root.iter() if element.get("class") == "tick" and
             element.get("text-anchor") == "middle"]
    assert len(ticks) >= 2
    assert all(re.fullmatch(r"[\d.,]+ (ns|µs|ms|s|min|h|d)", tick) for tick in ticks), ticks
    titles = [element.text for element in root.iter() if element.get("class") == "axis"]
    assert titles == ["from enqueued to settled", "messages"]


def test_an_axis_of_counts_has_no_half_messages():
    for number in (1, 5, 3, 999):
        root = ElementTree.fromstring(charts.latency([[1_000, number]], [], ""))
        ends = [element.text for element in root.iter() if element.get("text-anchor") == "end"]
        assert not [end for end in ends if "." in end], ends


def test_the_legend_is_drawn_as_the_series_are():
    few, many = charts.throughput(hours(5, 6), ""), charts.throughput(hours(*range(100)), "")
    assert [len(numbers(few, f"s{series} key", "x")) for series in range(3)] == [1, 1, 1]
    assert 'class="l0"' not in few
    assert 'key"' not in many
    assert [many.count(f'class="l{series}"') for series in range(3)] == [2, 2, 2], "a line, and its sign in the legend"


def test_an_hour_alone_is_said_from_when_to_when():
    assert "00:00 to 01:00" in charts.throughput(hours(5), "")
