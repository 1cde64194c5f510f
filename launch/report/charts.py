"""What a chart is, and its drawing as SVG: for the report's page and for `milepost view`.

The SVG carries no colour and no font: its classes take them from the page (base.css), dark or
light. `milepost.launch.report.picture` draws the same charts as PNG.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final, NamedTuple

from msgspec import Struct

SMOOTH_STEPS: Final = 5
RAW_MIN: Final = 3 * SMOOTH_STEPS
"""Points from which on a curve is smoothed; the raw one stays behind it."""
POINTS_MAX: Final = 400
"""Of one line: there are no more pixels."""
WIDTH, HEIGHT = 480.0, 290.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 14.0, 24.0, 40.0
TICKS: Final = 5


class Series(Struct, frozen=True, kw_only=True):
    """One line of a chart."""

    name: str
    x: list[float]
    y: list[float]


class Mark(Struct, frozen=True, kw_only=True):
    """One point with words: an evaluation."""

    name: str
    x: float
    y: float


class Panel(Struct, frozen=True, kw_only=True):
    """One chart."""

    title: str
    x_name: str
    series: list[Series]
    marks: list[Mark] = []
    unit: bool = False
    """Values lie between 0 and 1."""


class _Scale(NamedTuple):
    """From a value to a place on one axis."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def smooth(values: Sequence[float], width: int = SMOOTH_STEPS) -> list[float]:
    """Mean over the last `width` values."""
    windows = (values[max(0, end - width) : end] for end in range(1, len(values) + 1))
    return [sum(window) / len(window) for window in windows]


def thinned(xs: Sequence[float], ys: Sequence[float]) -> Iterator[tuple[float, float]]:
    """At most `POINTS_MAX` points of a line: of each share of it the lowest and the highest."""
    shares = POINTS_MAX // 2
    if len(xs) <= POINTS_MAX:
        yield from zip(xs, ys, strict=True)
        return
    for share in range(shares):
        places = range(len(xs) * share // shares, len(xs) * (share + 1) // shares)
        for at in sorted({min(places, key=ys.__getitem__), max(places, key=ys.__getitem__)}):
            yield xs[at], ys[at]


def ticks(low: float, high: float, count: int = TICKS) -> list[float]:
    """Round numbers between two values: steps of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def svg(panel: Panel) -> str:
    """One chart as an `<svg>` element; its words are its title, for whoever cannot see it."""
    x, y = _scales(panel)
    lines = [_line(panel, number, x, y) for number in range(len(panel.series))]
    parts = [*_frame(panel, x, y), *lines, *_names(panel), *_marks(panel, x, y)]
    words = f"{panel.title}: " + "; ".join(_in_words(each) for each in panel.series)
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img">'
        f"<title>{escape(words)}</title>{''.join(parts)}</svg>"
    )


def _in_words(series: Series) -> str:
    if not series.y:
        return f"{series.name} has no value"
    return f"{series.name} from {series.y[0]:.3g} to {series.y[-1]:.3g}"


def _scales(panel: Panel) -> tuple[_Scale, _Scale]:
    xs = [each for series in panel.series for each in series.x] + [m.x for m in panel.marks]
    ys = [each for series in panel.series for each in series.y] + [m.y for m in panel.marks]
    low, high = (0.0, 1.0) if panel.unit else (min([0.0, *ys]), max([0.0, *ys]))
    if high == low:
        high = low + 1.0
    if not panel.unit:
        high += (high - low) * 0.05
    left, right = min(xs, default=0.0), max(xs, default=1.0)
    if right == left:
        left, right = left - 0.5, right + 0.5
    return (
        _Scale(left, right, LEFT, WIDTH - RIGHT),
        _Scale(low, high, HEIGHT - BOTTOM, TOP),
    )


def _frame(panel: Panel, x: _Scale, y: _Scale) -> Iterator[str]:
    bottom = HEIGHT - BOTTOM
    for value in ticks(y.low, y.high):
        at = y(value)
        yield f'<path class="grid" d="M{LEFT:g} {at:.1f}H{WIDTH - RIGHT:g}"/>'
        yield _text(LEFT - 7, at + 3.5, "tick end", _number(value))
    for value in ticks(x.low, x.high):
        yield _text(x(value), bottom + 16, "tick mid", _number(value))
    yield f'<path class="axis" d="M{LEFT:g} {bottom:g}H{WIDTH - RIGHT:g}"/>'
    yield _text(WIDTH - RIGHT, HEIGHT - 5, "tick end", panel.x_name)


def _line(panel: Panel, number: int, x: _Scale, y: _Scale) -> str:
    series = panel.series[number]
    if len(series.x) <= RAW_MIN:
        return _path(series.x, series.y, f"line c{number}", x, y)
    raw = _path(series.x, series.y, f"line raw c{number}", x, y)
    return raw + _path(series.x, smooth(series.y), f"line c{number}", x, y)


def _path(xs: Sequence[float], ys: Sequence[float], kind: str, x: _Scale, y: _Scale) -> str:
    if len(xs) == 1:
        return f'<circle class="{kind} dot" cx="{x(xs[0]):.1f}" cy="{y(ys[0]):.1f}" r="3"/>'
    points = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in thinned(xs, ys))
    return f'<path class="{kind}" d="M{points}"/>' if points else ""


def _names(panel: Panel) -> Iterator[str]:
    """The names of the lines, in their colours; alone, a line needs none beside the title."""
    if len(panel.series) > 1:
        spans = (
            f'<tspan class="c{number}" dx="{12 if number else 0}">{escape(series.name)}</tspan>'
            for number, series in enumerate(panel.series)
        )
        yield f'<text class="name" x="{LEFT:g}" y="{TOP - 10:g}">{"".join(spans)}</text>'


def _marks(panel: Panel, x: _Scale, y: _Scale) -> Iterator[str]:
    for mark in panel.marks:
        at_x, at_y = x(mark.x), y(mark.y)
        is_left = at_x < WIDTH / 2
        # A curve that rises runs above its marks: their words stand below, where there is room.
        below = at_y + 18 if at_y < HEIGHT - BOTTOM - 30 else at_y - 9
        yield f'<circle class="mark" cx="{at_x:.1f}" cy="{at_y:.1f}" r="4"/>'
        words = "name" if is_left else "name end"
        yield _text(at_x + (8 if is_left else -4), below, words, mark.name)


def _text(x: float, y: float, kind: str, words: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _number(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.6g}"
