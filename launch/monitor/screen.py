"""The only file that knows Textual: paints the lines of `view`, hands keys to `ui`.

Little travels to the terminal: a frame is compared with the one before, cell by cell, and only the
stretch of each line that changed is painted again, at most once in `every_s` seconds, less often
where that takes too much (`pace`), and at once after a key. Nothing moves by itself.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key, Resize
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from milepost.launch.exits import Exit
from milepost.launch.monitor.feed import Feed
from milepost.launch.monitor.lines import Ink, Line
from milepost.launch.monitor.model import Model
from milepost.launch.monitor.pace import Pace
from milepost.launch.monitor.records import Records
from milepost.launch.monitor.ui import Place, press, resized
from milepost.launch.monitor.updates import Update
from milepost.launch.monitor.view import num_lines, view

GROUND: Final = "#10141a"
LIT: Final = "#1d2a3a"
COLOURS: Final = {
    Ink.PLAIN: "#c3ccd8",
    Ink.DIM: "#76828f",
    Ink.STRONG: "#f2f5f9",
    Ink.GOOD: "#63c384",
    Ink.WARN: "#e3b341",
    Ink.BAD: "#f47067",
    Ink.FIRST: "#5cb8d6",
    Ink.SECOND: "#b59be0",
    Ink.FIRST_FILL: "#1f4a5c",
    Ink.SECOND_FILL: "#443a63",
    Ink.TRACK: "#39434f",
}
BANDS: Final = {
    Ink.BAND: Style.parse("#dbe7f3 on #24506b"),
    Ink.BAND_TOO: Style.parse("#dbe7f3 on #2d3a56"),
}
STYLES: Final = BANDS | {
    ink: Style.parse(f"{colour} on {GROUND}") for ink, colour in COLOURS.items()
}
LIT_STYLES: Final = BANDS | {
    ink: Style.parse(f"{colour} on {LIT}") for ink, colour in COLOURS.items()
}


def strip_of(one: Line) -> Strip:
    """A line in colours."""
    styles = LIT_STYLES if one.lit else STYLES
    return Strip([Segment(span.text, styles[span.ink]) for span in one.spans])


def changed(before: Line, after: Line) -> tuple[int, int] | None:
    """First cell and number of cells that differ; None when none does.

    Both lines are equally wide. A line with wide characters counts as changed as a whole.
    """
    if before == after:
        return None
    old, new = _cells(before), _cells(after)
    width = after.width
    if len(old) != len(new) or len(new) != width:
        return 0, width
    first = next((place for place in range(width) if old[place] != new[place]), width)
    if first == width:
        return None
    last = next(place for place in range(width - 1, -1, -1) if old[place] != new[place])
    return first, last - first + 1


def _cells(one: Line) -> list[tuple[str, Ink, bool]]:
    return [(letter, span.ink, one.lit) for span in one.spans for letter in span.text]


class Canvas(Widget):
    """The whole screen as lines."""

    DEFAULT_CSS = "Canvas { width: 1fr; height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[Line] = []
        self.num_cells_painted = 0
        """Since the start; for whoever measures what a frame costs."""

    def show(self, lines: list[Line]) -> None:
        """Paint what differs from the lines before."""
        before, self._lines = self._lines, lines
        if [one.width for one in before] != [one.width for one in lines]:
            self.num_cells_painted += sum(one.width for one in lines)
            self.refresh()
            return
        regions = []
        for row, (old, new) in enumerate(zip(before, lines, strict=True)):
            if (found := changed(old, new)) is not None:
                regions.append(Region(found[0], row, found[1], 1))
        self.num_cells_painted += sum(region.width for region in regions)
        if regions:
            self.refresh(*regions)

    def render_line(self, y: int) -> Strip:
        """One line, as Textual asks for it."""
        if y < len(self._lines):
            return strip_of(self._lines[y])
        return Strip([Segment(" " * self.size.width, STYLES[Ink.PLAIN])])


class MonitorApp(App[None]):
    """One screen.

    Args:
        model: what is shown.
        every_s: between two frames that nobody asked for.
    """

    CSS = f"Screen {{ background: {GROUND}; overflow: hidden; }}"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c,ctrl+q", "quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]

    def __init__(self, model: Model, every_s: float) -> None:
        super().__init__()
        self.animation_level = "none"
        self.model = model
        self._every_s = every_s
        self._is_stale = True
        self._pace = Pace()
        self._canvas = Canvas()
        self.place = Place()
        self.feed: Feed | None = None
        """Fills the model while the screen is there."""

    def compose(self) -> ComposeResult:
        """One widget."""
        yield self._canvas

    def on_mount(self) -> None:
        """Begin to listen and to draw."""
        self.set_interval(self._every_s, self._tick)
        if self.feed is not None:
            self.run_worker(self.feed.run(), name="feed", exit_on_error=True)

    def on_resize(self, event: Resize) -> None:
        """Another size: everything is painted again."""
        self.place = resized(self.place, event.size.width, event.size.height)
        self.draw()

    def on_key(self, event: Key) -> None:
        """A key: another place, and a frame at once."""
        lines = num_lines(self.model, self.place)
        self.place = press(self.place, event.key, self.model, lines)
        self.model.trajectories.follow(self.place.wanted.trajectory)
        self.draw()

    def take(self, update: Update) -> None:
        """Merge what the feed heard; it is shown with the next frame, and the first of it now."""
        knew = self.model.is_known
        self.model.take(update)
        self._is_stale = True
        if not knew and self.model.is_known:
            self.draw()

    def draw(self) -> None:
        """Show this moment."""
        self._is_stale = False
        if self.place.width > 0 and self.place.height > 0:
            began_s, cpu_s = time.monotonic(), time.process_time()
            self._canvas.show(view(self.model, self.place))
            # More than half of it is painting, which Textual does later.
            self.call_after_refresh(lambda: self._pace.drew(began_s, time.process_time() - cpu_s))

    def _tick(self) -> None:
        # A clock that ticks a little early must not cost a whole turn.
        if self._pace.is_due(time.monotonic() + self._every_s / 10):
            self.draw_if_stale()

    def draw_if_stale(self) -> None:
        """The frame of this second, if there is anything new to show."""
        if self._is_stale:
            self.draw()


def show(folder: Path, records: Records, model: Model, every_s: float) -> int:
    """Run until the person leaves; the return value is the exit code."""
    app = MonitorApp(model, every_s)
    app.feed = Feed(folder, records, app.take, lambda: app.place.wanted, stay=True)
    # Without the mouse the terminal can select text, and a slow link carries no movements.
    asyncio.run(app.run_async(mouse=False))
    return Exit.FAILED if app.return_code else Exit.DONE
