"""The page that a monitor opens with: everything that matters, on one screen of any size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from milepost.launch.monitor.contracts import Lamp
from milepost.launch.monitor.drawings import curve
from milepost.launch.monitor.lines import (
    Ink,
    Line,
    Span,
    beside,
    block,
    clean,
    fit,
    line,
    rule,
)
from milepost.launch.monitor.model import Model
from milepost.launch.monitor.pages.figures import books, engines, queue, speed, tokens
from milepost.launch.monitor.pages.tables import actor_table
from milepost.launch.monitor.pages.words import LAMPS, event_line, number
from milepost.launch.monitor.ui import Place, cursor_of, names_on

WIDE_LINES_LEAST: Final = 26
GAP: Final = 3
EVENTS_LEAST: Final = 2
EVENTS_WANTED: Final = 5
ENGINE_LINES_MAX: Final = 8
CHART_LINES_MAX: Final = 16
CHART_FRAME: Final = 2
"""Lines of a chart beside the curve: its title and its scale."""
CHART_ROW_LEAST: Final = 8
UNITS: Final = {
    "rollout": "tokens/s, ",
    "trainer": "tokens/s, ",
    "entropy": "nats, ",
    "staleness": "versions, ",
    "difference": "nats, trainer - engine, ",
}


def body(model: Model, place: Place) -> list[Line]:
    """Everything between head and foot."""
    is_high = place.body_lines >= WIDE_LINES_LEAST
    return _wide(model, place) if place.is_wide and is_high else _narrow(model, place)


# ---- 80 columns --------------------------------------------------------------------------


def _narrow(model: Model, place: Place) -> list[Line]:
    width, height = place.width, place.body_lines
    top = [*_lamps_in_two_lines(model.lamps, width)]
    top += [*_small_curves(model, width), speed(model, width)]
    spare = height - len(top) - 3 - (1 + len(model.actors)) - EVENTS_LEAST
    top += engines(model, width, max(1, min(4, 1 + spare)))
    top += [queue(model, width), tokens(model, width), books(model, width)]
    left = height - len(top)
    num_actors = min(len(model.actors) + 1, max(2, left - EVENTS_LEAST))
    table = _actors(model, place, num_actors)
    return [*top, *table, *_events(model, width, left - len(table))]


def _lamps_in_two_lines(lamps: Sequence[Lamp], width: int) -> list[Line]:
    half = (width - 2) // 2
    cells = [[fit(_lamp(lamp), half)] for lamp in lamps]
    first, second, third, fourth = cells
    return [
        *beside([(first, half), (third, half)]),
        *beside([(second, half), (fourth, half)]),
    ]


def _lamp(lamp: Lamp) -> Line:
    sign, ink = LAMPS[lamp.colour]
    return line(
        Span(f"{sign} ", ink),
        Span(f"{lamp.name} {lamp.title} ", Ink.PLAIN),
        Span(clean(lamp.figure), Ink.DIM if ink is Ink.DIM else Ink.STRONG),
    )


def _small_curves(model: Model, width: int) -> list[Line]:
    half = (width - 2) // 2
    names = [name for name in _outcomes(model) if model.curves[name].last is not None]
    cells = [([_small_curve(model, name, half)], half) for name in names[:2]]
    return beside(cells) if cells else [line(Span("no step has been trained yet", Ink.DIM))]


def _small_curve(model: Model, name: str, width: int) -> Line:
    found = model.curves[name]
    label = f"{name:<8} {number(found.last, '.3f'):>6} "
    low, high = _scale(name)
    drawn = curve(found.values, width - len(label), 1, _ink(name), low=low, high=high)
    return line(Span(label[:9], Ink.DIM), Span(label[9:], Ink.STRONG), *drawn[0].spans)


# ---- wide --------------------------------------------------------------------------------


def _wide(model: Model, place: Place) -> list[Line]:
    """From top to bottom; charts get what is left when everybody else has what they need."""
    width, height = place.width, place.body_lines
    lamps = _lamps_wide(model.lamps, width)
    facts = [
        rule("weight versions", width),
        *engines(model, width, ENGINE_LINES_MAX),
        rule("flow", width),
        queue(model, width),
        tokens(model, width),
        books(model, width),
        rule("actors", width, "enter opens one"),
    ]
    events_title = rule("events", width, "e shows all")
    fixed = len(lamps) + len(facts) + 1
    num_actors = len(model.actors) + 1
    charts = _chart_rows(model, width, height - fixed - num_actors - EVENTS_WANTED)
    left = height - fixed - len(charts)
    table = _actors(model, place, max(3, min(num_actors, left - EVENTS_LEAST)))
    events = _events(model, width, left - len(table))
    return [*lamps, *charts, *facts, *table, events_title, *events]


def _chart_rows(model: Model, width: int, height: int) -> list[Line]:
    """One row of charts; two of them on a high screen."""
    first = (*_outcomes(model)[:2], "rollout", "trainer")
    if height < 2 * CHART_ROW_LEAST:
        return _charts(model, first, width, max(2, height - CHART_FRAME))
    lines = min(CHART_LINES_MAX, height // 2 - CHART_FRAME)
    others = ("loss", "entropy", "staleness", "difference")
    second = [name for name in others if name not in first]
    return [*_charts(model, first, width, lines), *_charts(model, second, width, lines)]


def _lamps_wide(lamps: Sequence[Lamp], width: int) -> list[Line]:
    each = (width - GAP * (len(lamps) - 1)) // len(lamps)
    columns = []
    for lamp in lamps:
        sign, ink = LAMPS[lamp.colour]
        title = line(Span(f"{sign} ", ink), Span(f"{lamp.name} {lamp.title}", Ink.PLAIN))
        figure_ink = Ink.DIM if ink is Ink.DIM else Ink.STRONG
        figure = line(Span(f"  {clean(lamp.figure)}", figure_ink))
        note = line(Span(f"  {clean(lamp.note)}", ink if ink in {Ink.BAD, Ink.WARN} else Ink.DIM))
        columns.append(([title, figure, note], each))
    return [rule("contracts", width), *beside(columns, GAP)]


def _charts(model: Model, names: Sequence[str], width: int, height: int) -> list[Line]:
    each = (width - GAP * (len(names) - 1)) // len(names)
    columns = [(_chart(model, name, each, height), each) for name in names]
    return beside(columns, GAP)


def _chart(model: Model, name: str, width: int, height: int) -> list[Line]:
    found = model.curves[name]
    low, high = _scale(name)
    last = "" if found.last is None else _figure(name, found.last)
    values = found.values
    top = max([*values, high or 0.0], default=0.0)
    bottom = min([*values, low or 0.0], default=0.0)
    note = (
        f"{UNITS.get(name, '')}{_figure(name, bottom)} to {_figure(name, top)}"
        if values
        else "not measured"
    )
    drawn = curve(values, width, height, _ink(name), low=low, high=high)
    head = rule(name, width, last)
    return [head, *block(drawn, width, height), line(Span(note, Ink.DIM))]


# ---- both --------------------------------------------------------------------------------


def _outcomes(model: Model) -> tuple[str, ...]:
    if model.about.supervised:
        return ("loss",)
    return ("success", "reward")


def _scale(name: str) -> tuple[float | None, float | None]:
    return (0.0, 1.0) if name == "success" else (0.0, None)


def _ink(name: str) -> Ink:
    return Ink.FIRST if name in {"success", "trainer", "loss"} else Ink.SECOND


def _figure(name: str, value: float) -> str:
    return f"{value:,.0f}" if name in {"rollout", "trainer"} else f"{value:.3g}"


def _actors(model: Model, place: Place, height: int) -> list[Line]:
    cursor = cursor_of(place, names_on(place.page, model))
    return actor_table(model.actors, cursor, place.width, height)


def _events(model: Model, width: int, height: int) -> list[Line]:
    newest = list(model.events)[-height:] if height > 0 else []
    pairs = zip_longest(range(height), newest)
    return [line() if event is None else fit(event_line(event), width) for _, event in pairs]
