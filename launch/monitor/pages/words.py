"""Figures in few characters, and the colours that states and events have on every page."""

from __future__ import annotations

import time
from typing import Final

from milepost.launch.display.words import seconds as duration
from milepost.launch.monitor.contracts import Colour
from milepost.launch.monitor.drawings import bar
from milepost.launch.monitor.lines import Ink, Line, Span, block, clean, line, wrap
from milepost.launch.monitor.model import Event, Model

DASH: Final = "-"
LAMPS: Final = {
    Colour.GREY: ("○", Ink.DIM),
    Colour.GREEN: ("●", Ink.GOOD),
    Colour.YELLOW: ("●", Ink.WARN),
    Colour.RED: ("●", Ink.BAD),
}
STATES: Final = {
    "running": Ink.GOOD,
    "done": Ink.GOOD,
    "ready": Ink.GOOD,
    "failed": Ink.BAD,
    "killed": Ink.BAD,
    "guard": Ink.BAD,
    "doomed": Ink.BAD,
    "silent": Ink.WARN,
    "restarting": Ink.WARN,
    "stopped": Ink.WARN,
    "ended": Ink.DIM,
}
TROUBLE: Final = {
    "failed": Ink.BAD,
    "guard": Ink.BAD,
    "late": Ink.BAD,
    "killed": Ink.BAD,
    "died_late": Ink.BAD,
    "refused_at_door": Ink.BAD,
    "canary": Ink.BAD,
    "not_finite": Ink.BAD,
    "not_trained": Ink.BAD,
    "stalled": Ink.BAD,
    "restarted": Ink.WARN,
    "refused": Ink.WARN,
    "not_taken": Ink.WARN,
    "not_drained": Ink.WARN,
    "left_out": Ink.WARN,
    "episode_failed": Ink.WARN,
    "evaluation": Ink.FIRST,
}


def short(value: float | None) -> str:
    """An age in five cells: `0.3s`, `12m`, `3.1h`, `4.0d`."""
    if value is None:
        return DASH
    if value < 99.95:
        return f"{value:.1f}s"
    if value < 6000:
        return f"{value / 60:.0f}m"
    if value < 360_000:
        return f"{value / 3600:.1f}h"
    return f"{value / 86400:.0f}d"


def number(value: float | None, form: str = ".0f") -> str:
    """The number, or a dash where there is none."""
    return DASH if value is None else f"{value:{form}}"


def count(value: float) -> str:
    """A large number in five cells: `812`, `38.6k`, `1.20M`."""
    if value < 10_000:
        return f"{value:.0f}"
    if value < 1e6:
        return f"{value / 1e3:.1f}k"
    return f"{value / 1e6:.2f}M" if value < 1e9 else f"{value / 1e9:.2f}G"


def clock(wall_s: float) -> str:
    """`14:05:31` of this machine's day."""
    return time.strftime("%H:%M:%S", time.localtime(wall_s))


def state_ink(state: str) -> Ink:
    """Quiet for what is as it should be."""
    return STATES.get(state, Ink.WARN)


def event_line(event: Event, *, lit: bool = False) -> Line:
    """Time, who, what."""
    ink = TROUBLE.get(event.kind, Ink.DIM)
    return line(
        Span(f"{clock(event.wall_s)}  ", Ink.DIM),
        f"{clean(event.source)} ",
        Span(f"{clean(event.kind)}  ", ink),
        clean(event.text),
        lit=lit,
    )


def head(model: Model, width: int, page: str = "") -> Line:
    """The first line of every page: which run, how far."""
    about, step = model.about, model.step
    pieces: list[Span] = [
        Span(clean(about.name), Ink.STRONG),
        Span("  "),
        Span(model.phase, state_ink(model.phase)),
        Span(f"  {duration(model.elapsed_s)}  "),
    ]
    ending = f"  step {step:,} of {about.steps:,}"
    left_s = model.progress.left_s
    if left_s and model.phase == "running":
        ending += f", about {duration(left_s)} left"
    room = width - sum(len(span.text) for span in pieces) - len(ending)
    room -= len(page) + 3 if page else 0
    bar_width = max(0, min(60, room))
    if bar_width >= 4:
        pieces += bar(step / max(1, about.steps), bar_width)
    pieces.append(Span(ending))
    if page:
        pieces += [Span("  "), Span(page, Ink.DIM)]
    return line(*pieces)


def reading(model: Model, width: int, height: int) -> list[Line]:
    """The one sentence that matters most now: how it ended, who is waited for, the bottleneck."""
    if model.summary is not None:
        text, ink = model.ending, state_ink(model.phase)
    elif model.silent:
        text, ink = model.silent, Ink.WARN
    elif waiting := str(model.run.get("waiting", "")):
        text, ink = waiting, Ink.WARN
    elif said := model.progress.reading:
        text, ink = said, Ink.PLAIN
    else:
        text, ink = "no step has said yet which side is the bottleneck", Ink.DIM
    return block(wrap(text, width, ink), width, height)
