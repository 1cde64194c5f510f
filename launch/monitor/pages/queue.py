"""The queues: all of them in a list, and one with its history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from milepost.launch.monitor.drawings import bar, curve
from milepost.launch.monitor.lines import (
    Column,
    Ink,
    Line,
    Span,
    clean,
    head_of,
    line,
    row_of,
    rule,
)
from milepost.launch.monitor.model import Model
from milepost.launch.monitor.pages.words import short
from milepost.launch.monitor.ui import Place, cursor_of, names_on, window
from milepost.launch.queues import Queue

STATE_LEAST: Final = 6
CHART_LINES: Final = 6
BAR_CELLS: Final = 40


def queues(model: Model, place: Place) -> list[Line]:
    """All of them; those that block stand out."""
    if not model.queues:
        return [line(Span("no queue was used yet", Ink.DIM))]
    cursor = cursor_of(place, names_on(place.page, model))
    return queue_table(model.queues, cursor, place.width, place.body_lines)


def queue_table(found: Sequence[Queue], cursor: int, width: int, height: int) -> list[Line]:
    """Head and as many queues as there is room for; a cursor of -1 marks none."""
    name = min(32, max([len(queue.name) for queue in found] or [5]))
    columns = [
        Column("queue", max(5, name)),
        Column("depth", 5, right=True),
        Column("max", 5, right=True),
        Column("peak", 5, right=True),
        Column("oldest", 6, right=True),
        Column("in/s", 6, right=True),
        Column("out/s", 6, right=True),
    ]
    used = sum(column.width + 2 for column in columns)
    columns.append(Column("state", max(STATE_LEAST, width - used)))
    lines = [head_of(columns)]
    for place in window(len(found), max(0, cursor), height - 1):
        queue = found[place]
        full = queue.max and queue.depth * 2 > queue.max
        cells = [
            Span(clean(queue.name)),
            Span(str(queue.depth), Ink.WARN if full else Ink.PLAIN),
            Span(str(queue.max), Ink.DIM),
            Span(str(queue.peak), Ink.DIM),
            Span(short(queue.oldest_s)),
            Span(f"{queue.in_per_s:.1f}"),
            Span(f"{queue.out_per_s:.1f}"),
            Span(clean(queue.state), _state_ink(queue.state)),
        ]
        lines.append(row_of(columns, cells, lit=place == cursor))
    return lines[:height]


def queue(model: Model, place: Place) -> list[Line]:
    """One of them: how full it was while this monitor watched."""
    found = model.queue(place.opened)
    if found is None:
        return [line(Span(f"no queue {clean(place.opened)} any more", Ink.WARN))]
    width = place.width
    depths = list(model.depths.get(found.name, ()))
    share = found.depth / found.max if found.max else 0.0
    chart = curve(depths, width, CHART_LINES, Ink.SECOND)
    return [
        line(
            Span(f"{clean(found.name)}  ", Ink.STRONG),
            Span(clean(found.state), _state_ink(found.state)),
        ),
        line(
            *bar(share, min(BAR_CELLS, width // 2), Ink.SECOND),
            Span(f"  {found.depth} of {found.max} messages, {found.peak} at most so far"),
        ),
        line(
            Span("oldest ", Ink.DIM),
            Span(short(found.oldest_s)),
            Span("   in ", Ink.DIM),
            Span(f"{found.in_per_s:.1f}/s, {found.num_in:,} in all"),
            Span("   out ", Ink.DIM),
            Span(f"{found.out_per_s:.1f}/s, {found.num_out:,} in all"),
        ),
        rule(f"depth, last {len(depths)} s", width, f"up to {max(depths, default=0.0):.0f}"),
        *chart,
        rule("see its messages", width),
        line(Span(_tap(found.name, model.about.folder), Ink.DIM)),
    ]


def _tap(name: str, folder: str) -> str:
    edge = f"* -> {name.removeprefix('inbox of ')}" if name.startswith("inbox of ") else name
    return f"milepost tap '{edge}' --decode --run {folder}"


def _state_ink(state: str) -> Ink:
    if state == "ok":
        return Ink.DIM
    return Ink.BAD if state.startswith(("BLOCKED", "BROKEN")) else Ink.WARN
