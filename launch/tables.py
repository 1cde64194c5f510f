"""Plain tables for a terminal, a pipe or a test: no colours, no frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from milepost.launch.visible import visible_line

RIGHT: Final = ">"
LEFT: Final = "<"


def table(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table.

    Args:
        columns: (head, `LEFT` or `RIGHT`) of each column.
        rows: cells; the last column is never padded.
    """
    heads = [head for head, _ in columns]
    rows = [[visible_line(cell) for cell in cells] for cells in rows]
    widths = [max(map(len, cells)) for cells in zip(heads, *rows, strict=True)]
    return [_line(cells, columns, widths) for cells in (heads, *rows)]


def seconds(value: float | None) -> str:
    """`4.1s`, `12m`, `3h`, or `-` for none: three digits are enough to act on."""
    if value is None:
        return "-"
    if value < 100:
        return f"{value:.1f}s"
    if value < 6000:
        return f"{value / 60:.0f}m"
    return f"{value / 3600:.1f}h"


def _line(cells: Sequence[str], columns: Sequence[tuple[str, str]], widths: Sequence[int]) -> str:
    padded = [
        f"{cell:{side}{width}}"
        for cell, (_, side), width in zip(cells, columns, widths, strict=True)
    ]
    return "  ".join(padded).rstrip()
