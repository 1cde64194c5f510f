"""HTML from templates, of the report and of `milepost view`: escaped, strict, and alike.

Whatever a template prints is first made visible (no terminal control, no hidden character), then
escaped. What is HTML already says so by its type, `Markup`, and is made in this file alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from milepost.launch.display.words import seconds
from milepost.launch.report.charts import Panel, svg
from milepost.launch.report.words import number
from milepost.launch.visible import visible

HERE: Final = Path(str(files(__package__)))


@cache
def environment(*folders: Path) -> Environment:
    """Templates of these folders and of the report; a name that is not given is an error."""
    found = Environment(
        loader=FileSystemLoader([*folders, HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters |= FILTERS
    return found


def render(environment: Environment, name: str, facts: Mapping[str, Any]) -> str:
    """One page."""
    return environment.get_template(name).render(facts)


def _shown(value: Any) -> Any:
    return value if isinstance(value, Markup) or not isinstance(value, str) else visible(value)


def chart(panel: Panel) -> Markup:
    """A chart as SVG; its words were escaped where it was drawn."""
    return Markup(svg(panel))  # noqa: S704


def figure(value: float | None) -> str:
    """Up to four digits that matter, or a dash."""
    if value is None:
        return "-"
    if float(value).is_integer() and abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.3f}" if 0.001 <= abs(value) < 1000 else f"{value:.4g}"


def clock(unix_s: float | None) -> str:
    """`2026-11-30 02:50`, local time, or a dash."""
    if unix_s is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "seconds": seconds,
    "score": number,
    "figure": figure,
    "whole": "{:,}".format,
    "clock": clock,
    "chart": chart,
}


def style(*names: str) -> Markup:
    """Style sheets of the report, to stand inside a page: our own words, not escaped."""
    return Markup("".join((HERE / name).read_text(encoding="utf-8") for name in names))  # noqa: S704
