"""Pictures made of characters: bars, curves, stacked shares, a time line. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from statistics import fmean
from typing import Final

from milepost.launch.monitor.lines import Ink, Line, Span, line

FULL, HALF, EMPTY = "━", "╸", "─"
RISING: Final = " ▁▂▃▄▅▆▇█"
FILLS: Final = {Ink.FIRST: Ink.FIRST_FILL, Ink.SECOND: Ink.SECOND_FILL}
"""Colours of what lies under a curve."""


def bar(share: float, width: int, ink: Ink = Ink.FIRST) -> tuple[Span, ...]:
    """A bar that is filled to `share` of `width` cells, in steps of half a cell."""
    halves = round(min(1.0, max(0.0, share)) * width * 2)
    text = FULL * (halves // 2) + HALF * (halves % 2)
    return (Span(text, ink), Span(EMPTY * (width - len(text)), Ink.TRACK))


def resampled(values: Sequence[float], width: int) -> list[float]:
    """Means of equal shares of the values, `width` of them; fewer values are drawn wider."""
    if not values or width < 1:
        return []
    if len(values) < width:
        return [values[place * len(values) // width] for place in range(width)]
    edges = [len(values) * number // width for number in range(width + 1)]
    return [fmean(values[a:b]) for a, b in pairwise(edges)]


def bounds(values: Iterable[float], low: float | None, high: float | None) -> tuple[float, float]:
    """The scale: what is asked for, stretched where the values go beyond it."""
    found = list(values)
    lowest = min([*found, *([] if low is None else [low])], default=0.0)
    highest = max([*found, *([] if high is None else [high])], default=1.0)
    return lowest, highest if highest > lowest else lowest + max(1.0, abs(lowest))


def curve(
    values: Sequence[float],
    width: int,
    height: int,
    ink: Ink,
    *,
    low: float | None = 0.0,
    high: float | None = None,
) -> list[Line]:
    """An area of `height` rows, eight steps each; the newest value is at its right end.

    Args:
        values: oldest first; they fill the whole width, averaged where they are more.
        width: cells.
        height: rows.
        ink: colour, one of `FILLS`.
        low: the scale reaches down to it, or to the smallest value.
        high: the scale reaches up to it, or to the largest value.
    """
    means = resampled(values, width)
    lowest, highest = bounds(means, low, high)
    steps = height * 8
    levels = [round((mean - lowest) / (highest - lowest) * steps) for mean in means]
    # A value at the bottom of the scale is not the same as no value.
    levels = [max(1, level) for level in levels]
    rows = []
    for row in range(height):
        floor = (height - 1 - row) * 8
        # The edge is bright and what lies under it is not: a curve, not a wall.
        cells = [(RISING[min(8, max(0, level - floor))], level - floor > 8) for level in levels]
        spans = [
            Span("".join(text for text, _ in run), FILLS[ink] if under else ink)
            for under, run in groupby(cells, key=itemgetter(1))
        ]
        rows.append(line(*spans, Span(" " * (width - len(levels)))))
    return rows


def shares(parts: Sequence[tuple[float, Ink]], width: int) -> tuple[Span, ...]:
    """Stacked shares of one whole; what is there has at least one cell where there is room."""
    total = sum(value for value, _ in parts)
    if total <= 0 or width < 1:
        return (Span(EMPTY * max(0, width), Ink.TRACK),)
    cells = [int(value / total * width) or (value > 0) for value, _ in parts]
    while sum(cells) > width:
        largest = max(range(len(cells)), key=lambda number: cells[number])
        cells[largest] -= 1
    if any(cells):
        largest = max(range(len(cells)), key=lambda number: cells[number])
        cells[largest] += width - sum(cells)
    inks = (ink for _, ink in parts)
    return tuple(Span(FULL * count, ink) for count, ink in zip(cells, inks, strict=True) if count)


def time_line(
    changes: Sequence[tuple[float, int]], since_s: float, now_s: float, width: int
) -> tuple[Span, ...]:
    """Which version was served when: a band for each, with its number where there is room.

    Args:
        changes: (second, version), oldest first; each holds until the next.
        since_s: the left end.
        now_s: the right end.
        width: cells.
    """
    scale = width / max(now_s - since_s, 1e-9)

    def cell(at_s: float) -> int:
        return max(0, min(width, round((at_s - since_s) * scale)))

    first = cell(changes[0][0]) if changes else width
    spans = [Span("·" * first, Ink.TRACK)]
    ends = [cell(at_s) for at_s, _ in changes[1:]] + [width]
    drawn = first
    for (_, version), end in zip(changes, ends, strict=False):
        name, room = str(version), end - drawn
        if room > 0:
            text = f"{name:^{room}}" if len(name) < room else " " * room
            spans.append(Span(text, Ink.BAND if version % 2 else Ink.BAND_TOO))
            drawn = end
    return tuple(span for span in spans if span.text)
