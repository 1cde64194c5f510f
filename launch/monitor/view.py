"""The picture of this moment: the model and the place of a person in, lines out. Pure."""

from __future__ import annotations

from typing import Final, assert_never

from milepost.launch.monitor.lines import Ink, Line, Span, block, line
from milepost.launch.monitor.model import Model
from milepost.launch.monitor.pages import overview
from milepost.launch.monitor.pages.words import head, reading
from milepost.launch.monitor.ui import OPENS, Page, Place

GOES: Final = (("a", "actors"), ("u", "queues"), ("t", "trajectories"), ("e", "events"))
LAST: Final = (("?", "help"), ("q", "quit"))


def view(model: Model, place: Place) -> list[Line]:
    """Exactly `place.height` lines of exactly `place.width` cells."""
    name = "" if place.page is Page.OVERVIEW else place.page.value
    lines = [head(model, place.width, name)]
    lines += reading(model, place.width, place.head_lines - 1)
    lines += block(_shown(model, place), place.width, place.body_lines)
    lines.append(_foot(place))
    return block(lines, place.width, place.height)


def num_lines(model: Model, place: Place) -> int:
    """Lines that the page in front has, shown or not."""
    return len(_body(model, place))


def _shown(model: Model, place: Place) -> list[Line]:
    lines = _body(model, place)
    if place.page in OPENS:
        return lines
    most = max(0, len(lines) - place.body_lines)
    return lines[min(place.scroll, most) :]


def _body(model: Model, place: Place) -> list[Line]:
    """The page in front; what nobody opens is never loaded."""
    match place.page:
        case Page.OVERVIEW:
            return overview.body(model, place)
        case Page.ACTORS | Page.ACTOR:
            from milepost.launch.monitor.pages import actor

            one, several = actor.actor, actor.actors
        case Page.QUEUES | Page.QUEUE:
            from milepost.launch.monitor.pages import queue

            one, several = queue.queue, queue.queues
        case Page.TRAJECTORIES | Page.TRAJECTORY:
            from milepost.launch.monitor.pages import trajectory

            one, several = trajectory.trajectory, trajectory.trajectories
        case Page.EVENTS | Page.EVENT | Page.HELP:
            from milepost.launch.monitor.pages import event

            one = event.helping if place.page is Page.HELP else event.event
            several = event.events
        case _ as unreachable:
            assert_never(unreachable)
    return (several if place.page in OPENS else one)(model, place)


def _foot(place: Place) -> Line:
    """The keys that mean something here; all of them fit into 80 cells."""
    match place.page:
        case Page.OVERVIEW:
            keys = (("↑↓", "choose"), ("⏎", "open"), *GOES, *LAST)
        case page if page in OPENS:
            keys = (("↑↓", "choose"), ("⏎", "open"), ("esc", "back"), *GOES, LAST[1])
        case _:
            keys = (("↑↓", "scroll"), ("esc", "back"), ("o", "overview"), *GOES, LAST[1])
    pieces: list[Span] = []
    for key, meaning in keys:
        pieces += [Span(f"{'  ' if pieces else ''}{key} ", Ink.FIRST), Span(meaning, Ink.DIM)]
    return line(*pieces)
