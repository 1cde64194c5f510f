"""The table of actors, for the overview and for its own page."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.launch.monitor.actors import ActorRow
from milepost.launch.monitor.lines import (
    Column,
    Ink,
    Line,
    Piece,
    Span,
    clean,
    head_of,
    row_of,
)
from milepost.launch.monitor.pages.words import number, short, state_ink
from milepost.launch.monitor.ui import window

SLOW_LOOP_MS = 250.0
"""A loop that is later than this keeps its peers waiting."""
WIDE = 110
DOING_LEAST = 8


def actor_table(
    rows: Sequence[ActorRow], cursor: int, width: int, height: int, *, lit: bool = True
) -> list[Line]:
    """Head and as many actors as there is room for, those around the cursor.

    Args:
        rows: all of them.
        cursor: number of the chosen one.
        width: cells.
        height: lines, the head included.
        lit: whether the chosen one is marked.
    """
    columns = _columns(rows, width)
    shown = window(len(rows), cursor, height - 1)
    lines = [head_of(columns)]
    for place in shown:
        cells = _cells(rows[place], wide=width >= WIDE)
        lines.append(row_of(columns, cells, lit=lit and place == cursor))
    return lines[:height]


def _columns(rows: Sequence[ActorRow], width: int) -> list[Column]:
    name = min(20, max([len(row.name) for row in rows] or [5]))
    columns = [
        Column("actor", max(5, name)),
        Column("state", 10 if width >= WIDE else 8),
        Column("box", 9 if width >= WIDE else 5, right=True),
        Column("credit", 9 if width >= WIDE else 6, right=True),
        Column("oldest", 6, right=True),
        Column("loop ms", 7, right=True),
        Column("MiB", 6, right=True),
    ]
    if width >= WIDE:
        columns += [Column("cpu", 5, right=True), Column("again", 5, right=True)]
        columns += [Column("heard", 6, right=True)]
    used = sum(column.width + 2 for column in columns)
    return [*columns, Column("doing", max(DOING_LEAST, width - used))]


def _cells(row: ActorRow, *, wide: bool) -> list[Piece]:
    late = row.loop_ms is not None and row.loop_ms > SLOW_LOOP_MS
    full = row.depth is not None and row.depth_max and row.depth * 2 > row.depth_max
    depth = number(row.depth)
    if wide and row.depth is not None:
        depth = f"{row.depth}/{row.depth_max}"
    cells: list[Piece] = [
        Span(row.name, Ink.STRONG if not row.finished else Ink.PLAIN),
        Span(row.state + ("*" if row.finished else ""), state_ink(row.state)),
        Span(depth, Ink.BAD if row.blocked else Ink.WARN if full else Ink.PLAIN),
        _credit(row, wide=wide),
        short(row.oldest_s),
        Span(number(row.loop_ms, ".0f"), Ink.WARN if late else Ink.PLAIN),
        number(row.rss_mib),
    ]
    if wide:
        cells += [number(row.cpu, ".2f"), str(row.restarts), short(row.heard_s)]
    return [*cells, Span(clean(row.doing), Ink.DIM)]


def _credit(row: ActorRow, *, wide: bool) -> Piece:
    tight = row.tight
    if tight is None:
        return number(None)
    text = f"{tight.free}/{tight.window}" if wide else str(tight.free)
    if tight.free <= 0:
        return Span(text, Ink.BAD)
    return Span(text, Ink.WARN if tight.free * 4 < tight.window else Ink.PLAIN)
