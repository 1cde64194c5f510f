"""The picture of this moment: the model and the place of a person in, lines out. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from milepost.launch.monitor.lines import Ink, Line, Span, block, line
from milepost.launch.monitor.model import Model
from milepost.launch.monitor.pages import actor, event, overview, queue, trajectory
from milepost.launch.monitor.pages.words import head, reading
from milepost.launch.monitor.ui import OPENS, Page, Place

BODIES: Final[dict[Page, Callable[[Model, Place], list[Line]]]] = {
    Page.OVERVIEW: overview.body,
    Page.ACTORS: actor.actors,
    Page.ACTOR: actor.actor,
    Page.QUEUES: queue.queues,
    Page.QUEUE: queue.queue,
    Page.TRAJECTORIES: trajectory.trajectories,
    Page.TRAJECTORY: trajectory.trajectory,
    Page.EVENTS: event.events,
    Page.EVENT: event.event,
    Page.HELP: event.helping,
}
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
    return len(BODIES[place.page](model, place))


def _shown(model: Model, place: Place) -> list[Line]:
    lines = BODIES[place.page](model, place)
    if place.page in OPENS:
        return lines
    most = max(0, len(lines) - place.body_lines)
    return lines[min(place.scroll, most) :]


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
