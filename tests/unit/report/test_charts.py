"""Charts as SVG: right places, round numbers, few points, and nothing that a page would obey."""

from __future__ import annotations

import re
from random import Random
from xml.etree import ElementTree as ET

import pytest

from milepost.launch.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    POINTS_MAX,
    RIGHT,
    TOP,
    WIDTH,
    Mark,
    Panel,
    Series,
    smooth,
    svg,
    thinned,
    ticks,
)


def places(text: str) -> list[tuple[float, float]]:
    """Every point of the first line of a chart."""
    (path,) = re.findall(r'class="line c0" d="M([^"]+)"', text)
    return [tuple(map(float, point.split())) for point in path.split("L")]  # type: ignore[misc]


def test_a_line_goes_from_corner_to_corner_of_its_frame() -> None:
    panel = Panel(
        title="t", x_name="step", series=[Series(name="a", x=[0.0, 10.0], y=[0.0, 1.0])], unit=True
    )
    assert places(svg(panel)) == [(LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, TOP)]


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 80, [0, 20, 40, 60, 80]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (3, 97, [20, 40, 60, 80]),
        (0, 3e-5, [0, 1e-5, 2e-5, 3e-5]),
    ],
)
def test_ticks_are_round_and_inside(low: float, high: float, found: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(found)


def test_a_long_line_keeps_its_peaks() -> None:
    """A run of 100,000 steps must not become a page of megabytes, nor lose the step that failed."""
    random = Random(0)
    xs = [float(number) for number in range(100_000)]
    ys = [random.random() for _ in xs]
    ys[54_321], ys[76_543] = 9.0, -9.0
    points = list(thinned(xs, ys))
    assert len(points) <= POINTS_MAX
    assert {(54_321.0, 9.0), (76_543.0, -9.0)} <= set(points)
    assert points == sorted(points)


@pytest.mark.parametrize(
    "series",
    [
        [],
        [Series(name="none", x=[], y=[])],
        [Series(name="one", x=[3.0], y=[0.5])],
        [Series(name="flat", x=[1.0, 2.0], y=[0.0, 0.0])],
        [Series(name="below", x=[1.0, 2.0], y=[-3.0, -1.0]), Series(name="b", x=[1.0], y=[1e9])],
    ],
)
def test_every_shape_of_data_makes_a_chart_whose_points_are_inside(series: list[Series]) -> None:
    """The first step of a run has one point; a loss may be negative; a metric may be missing."""
    text = svg(Panel(title="t", x_name="x", series=series, marks=[Mark(name="m", x=1.0, y=0.0)]))
    ET.fromstring(text)
    assert "nan" not in text
    for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", text):
        assert LEFT - 0.1 <= float(x) <= WIDTH - RIGHT + 0.1
        assert TOP - 0.1 <= float(y) <= HEIGHT - BOTTOM + 0.1


def test_names_are_escaped_and_the_title_says_the_chart_in_words() -> None:
    evil = "</svg><script>alert(1)</script>"
    series = [Series(name=evil, x=[1.0, 2.0], y=[0.25, 0.75]), Series(name="b", x=[], y=[])]
    text = svg(Panel(title=evil, x_name=evil, series=series, marks=[Mark(name=evil, x=1, y=0)]))
    assert "<script" not in text
    title = ET.fromstring(text).findtext("title") or ""
    assert title.endswith("from 0.25 to 0.75; b has no value")


def test_smoothing_looks_back_only() -> None:
    assert smooth([0.0, 2.0, 4.0, 6.0], width=2) == [0.0, 1.0, 3.0, 5.0]
    assert smooth([]) == []
