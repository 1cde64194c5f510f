"""The charts of a run as PNG, drawn by matplotlib in a process of its own.

Nothing in `launch` may load numpy, and matplotlib does. Run as `python -P -m
milepost.launch.report.picture`, this file is the process that draws: its order comes on stdin.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from milepost.launch.report.charts import RAW_MIN, Mark, Panel, smooth

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAW_S: Final = 60.0
INK, PALE = "#1d2330", "#8a93a6"
COLORS: Final = ("#2563c9", "#c2571a", "#0f7b63")


class Order(Struct, frozen=True, kw_only=True):
    """What is to be drawn, and where the PNG of all of it goes."""

    title: str
    panels: list[Panel]
    png: str


class DrawingFailed(RuntimeError):
    """The drawing process ended without a picture; the text is its last words."""


def draw(order: Order) -> None:
    """Write the PNG.

    Raises:
        DrawingFailed: matplotlib failed, or took longer than `DRAW_S`.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "milepost.launch.report.picture"],
            input=msgspec.json.encode(order),
            capture_output=True,
            timeout=DRAW_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DrawingFailed(f"no picture after {DRAW_S:g} s: {error.cmd}") from error
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-3:]
        raise DrawingFailed(f"exit code {done.returncode}: {' / '.join(last)}")


# ---- the drawing process -----------------------------------------------------------------


def main() -> None:
    """Carry out the order on stdin."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update(
        {
            "font.family": "DejaVu Sans",
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": PALE,
            "axes.labelcolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
        }
    )
    _write_png(msgspec.json.decode(sys.stdin.buffer.read(), type=Order))


def _write_png(order: Order) -> None:
    from matplotlib.figure import Figure

    count = max(1, len(order.panels))
    figure = Figure(figsize=(4.8 * count, 3.8), layout="constrained")
    figure.suptitle(order.title, x=0.01, ha="left", color=INK, fontweight="bold")
    for axes, panel in zip(_axes(figure, count), order.panels, strict=False):
        _draw_panel(axes, panel)
    figure.savefig(order.png, dpi=160, facecolor="white")


def _axes(figure: Any, count: int) -> list[Axes]:
    grid: list[list[Axes]] = figure.subplots(1, count, squeeze=False).tolist()
    return grid[0]


def _draw_panel(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left", color=INK, fontsize=10.5)
    axes.set_xlabel(panel.x_name)
    axes.grid(visible=True, axis="y", color="#e3e6ec", linewidth=0.8)
    axes.set_axisbelow(True)
    for color, series in zip(COLORS, panel.series, strict=False):
        raw = len(series.x) > RAW_MIN
        if raw:
            axes.plot(series.x, series.y, color=color, alpha=0.25, linewidth=1)
        line = smooth(series.y) if raw else series.y
        axes.plot(series.x, line, color=color, linewidth=2, label=series.name)
    for mark in panel.marks:
        axes.plot([mark.x], [mark.y], marker="o", color=INK, markersize=6, linestyle="none")
        left = mark.x <= _middle(panel)
        axes.annotate(
            mark.name,
            (mark.x, mark.y),
            xytext=(8 if left else -8, _clear_of_lines(mark, panel)),
            textcoords="offset points",
            ha="left" if left else "right",
            color=INK,
            fontsize=9,
        )
    if panel.unit:
        axes.set_ylim(0, 1.03)
    else:
        axes.set_ylim(bottom=min([0.0, *(y for series in panel.series for y in series.y)]))
    if len(panel.series) > 1:
        axes.legend(frameon=False, loc="lower right" if panel.unit else "best", fontsize=9)


def _clear_of_lines(mark: Mark, panel: Panel) -> int:
    """Points between a mark and its words: a curve that rises runs above the marks."""
    if not panel.unit or mark.y < 0.1:
        return 8
    return -26 if mark.y > 0.5 else -16


def _middle(panel: Panel) -> float:
    xs: Iterable[float] = [x for series in panel.series for x in series.x]
    return (min(xs, default=0.0) + max(xs, default=0.0)) / 2


if __name__ == "__main__":
    main()
