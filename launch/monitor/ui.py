"""Where the person is: page, cursor, scroll. Pure: a key in, another place out."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from milepost.launch.monitor.model import Model
from milepost.launch.monitor.updates import Wanted


class Page(StrEnum):
    """What fills the screen."""

    OVERVIEW = "overview"
    ACTORS = "actors"
    ACTOR = "actor"
    QUEUES = "queues"
    QUEUE = "queue"
    TRAJECTORIES = "trajectories"
    TRAJECTORY = "trajectory"
    EVENTS = "events"
    EVENT = "event"
    HELP = "help"


OPENS: Final = {
    Page.OVERVIEW: Page.ACTOR,
    Page.ACTORS: Page.ACTOR,
    Page.QUEUES: Page.QUEUE,
    Page.TRAJECTORIES: Page.TRAJECTORY,
    Page.EVENTS: Page.EVENT,
}
"""Lists, and what Enter opens there."""
GOES: Final = {
    "o": Page.OVERVIEW,
    "a": Page.ACTORS,
    "u": Page.QUEUES,
    "t": Page.TRAJECTORIES,
    "e": Page.EVENTS,
    "question_mark": Page.HELP,
}
CYCLE: Final = (Page.OVERVIEW, Page.ACTORS, Page.QUEUES, Page.TRAJECTORIES, Page.EVENTS)
MOVES: Final = {"up": -1, "k": -1, "down": 1, "j": 1}
BACK: Final = frozenset({"escape", "backspace", "left", "h"})
OPEN: Final = frozenset({"enter", "right", "l"})
WIDE: Final = 120
"""From this width on, what takes two lines on a narrow screen takes one."""
FOOT_LINES: Final = 1


class Place(Struct, frozen=True, kw_only=True):
    """The place of one person on one screen."""

    page: Page = Page.OVERVIEW
    opened: str = ""
    """Name of what a detail page shows."""
    chosen: dict[Page, str] = {}
    """Of each list, what the cursor is on; empty: its first line."""
    scroll: int = 0
    """First line of a detail page that is shown."""
    behind: Page = Page.OVERVIEW
    """The list that Escape goes back to."""
    width: int = 80
    height: int = 24

    @property
    def is_wide(self) -> bool:
        """Room for columns side by side."""
        return self.width >= WIDE

    @property
    def head_lines(self) -> int:
        """The run in one line, and the sentence of the moment in one or two."""
        return 2 if self.is_wide else 3

    @property
    def body_lines(self) -> int:
        """Lines between head and foot."""
        return max(0, self.height - self.head_lines - FOOT_LINES)

    @property
    def wanted(self) -> Wanted:
        """What this page needs beside the snapshots."""
        match self.page:
            case Page.ACTOR if self.opened != "supervisor":
                return Wanted(log=self.opened)
            case Page.TRAJECTORIES:
                return Wanted(finished=True)
            case Page.TRAJECTORY:
                return Wanted(finished=True, trajectory=self.opened)
            case _:
                return Wanted()


def names_on(page: Page, model: Model) -> list[str]:
    """What a list shows, from top to bottom; empty for other pages."""
    match page:
        case Page.OVERVIEW | Page.ACTORS:
            return [row.name for row in model.actors]
        case Page.QUEUES:
            return [queue.name for queue in model.queues]
        case Page.TRAJECTORIES:
            return model.trajectories.known()
        case Page.EVENTS:
            return [str(event.number) for event in reversed(model.events)]
        case _:
            return []


def cursor_of(place: Place, names: list[str]) -> int:
    """Line of the cursor; the first when what it was on is gone."""
    chosen = place.chosen.get(place.page, "")
    return names.index(chosen) if chosen in names else 0


def resized(place: Place, width: int, height: int) -> Place:
    """The screen has another size."""
    return replace(place, width=width, height=height)


def press(place: Place, key: str, model: Model, num_lines: int) -> Place:
    """The place after a key; keys that mean nothing here change nothing.

    Args:
        place: before.
        key: as Textual calls it.
        model: the run.
        num_lines: of the detail page in front, shown or not.
    """
    if key in GOES:
        return _to(place, GOES[key])
    if key in {"tab", "shift+tab"}:
        here = CYCLE.index(place.page) if place.page in CYCLE else 0
        step = 1 if key == "tab" else -1
        return _to(place, CYCLE[(here + step) % len(CYCLE)])
    if key in BACK:
        return replace(place, page=_behind(place), opened="", scroll=0)
    if place.page in OPENS:
        return _in_list(place, key, names_on(place.page, model))
    most = max(0, num_lines - place.body_lines)
    moved = _moved(place.scroll, key, most + 1, place.body_lines)
    return replace(place, scroll=moved)


def _to(place: Place, page: Page) -> Place:
    return replace(place, page=page, opened="", scroll=0, behind=Page.OVERVIEW)


def _behind(place: Place) -> Page:
    return Page.OVERVIEW if place.page in OPENS else place.behind


def _in_list(place: Place, key: str, names: list[str]) -> Place:
    if not names:
        return place
    cursor = cursor_of(place, names)
    if key in OPEN:
        page = OPENS[place.page]
        return replace(place, page=page, opened=names[cursor], scroll=0, behind=place.page)
    moved = _moved(cursor, key, len(names), place.body_lines - 1)
    chosen: Mapping[Page, str] = {**place.chosen, place.page: names[moved]}
    return replace(place, chosen=dict(chosen))


def _moved(at: int, key: str, count: int, leap: int) -> int:
    match key:
        case "home" | "g":
            there = 0
        case "end" | "G":
            there = count - 1
        case "pageup":
            there = at - max(1, leap)
        case "pagedown" | "space":
            there = at + max(1, leap)
        case _:
            there = at + MOVES.get(key, 0)
    return max(0, min(count - 1, there))


def window(count: int, cursor: int, rows: int) -> range:
    """Which of `count` lines are shown in `rows`, so that the cursor's is among them."""
    first = max(0, min(cursor - rows // 2, count - rows))
    return range(first, min(count, first + max(0, rows)))
