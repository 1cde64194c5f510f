"""The live display: a few lines that stay in place. Everything it shows comes from `Progress`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from milepost.launch.display.progress import Progress
from milepost.launch.display.words import freshness, results, seconds, speed
from milepost.messages.supervisor import EventReported, Snapshot

FRAME_S: Final = 0.5
"""Two frames a second cost less than one percent of a core."""
CURVE_CHARS: Final = 32
BAR_CHARS: Final = 30
BAD: Final = frozenset(
    {"failed", "guard", "late", "killed", "restarted", "refused", "not_finite", "not_trained"}
)


def picture(progress: Progress) -> Group:
    """The display of this moment."""
    return Group(_head(progress), *_body(progress), *_events(progress))


def _head(progress: Progress) -> Table:
    head = Table.grid(padding=(0, 2))
    left = progress.left_s
    remaining = f"about {seconds(left)} left" if left and progress.phase == "running" else ""
    head.add_row(
        Text(progress.name, style="bold"),
        Text(progress.phase, style="green" if progress.phase == "running" else "yellow"),
        ProgressBar(
            total=progress.steps,
            completed=progress.step,
            width=BAR_CHARS,
            complete_style="cyan",
            finished_style="green",
        ),
        f"step {progress.step}/{progress.steps}",
        seconds(progress.elapsed_s),
        Text(remaining, style="dim"),
    )
    return head


def _body(progress: Progress) -> list[Text]:
    if progress.waiting:
        return [Text(progress.waiting, style="dim", overflow="ellipsis", no_wrap=True)]
    lines = []
    words = "   ".join(results(progress))
    if words:
        curve = Text(progress.sparkline(CURVE_CHARS), style="cyan")
        lines.append(Text.assemble((words, "bold"), "   ", curve))
    # Two lines: together they are wider than the 80 columns of a plain terminal.
    parts = ["   ".join(part) for part in (speed(progress), freshness(progress))]
    parts.append(progress.reading)
    return lines + [Text(words, overflow="ellipsis", no_wrap=True) for words in parts if words]


def _events(progress: Progress) -> list[Text]:
    return [
        Text.assemble(
            ("· ", "dim"),
            (f"{line.source} {line.kind}: ", "bold red" if line.kind in BAD else "dim"),
            line.text,
            overflow="ellipsis",
            no_wrap=True,
        )
        for line in progress.lines
    ]


class Screen:
    """Draws `Progress` in place, at most every `FRAME_S`.

    Args:
        progress: merged from what it is told.
        console: a terminal.
        clock: monotonic seconds.
    """

    def __init__(
        self, progress: Progress, console: Console, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._progress = progress
        self._clock = clock
        self._drawn_s = -FRAME_S
        # It draws when told something, on the caller's time.
        self._live = Live(console=console, auto_refresh=False, redirect_stderr=False)

    def open(self) -> None:
        """Take the lines below the cursor."""
        self._live.start()

    def close(self) -> None:
        """Draw a last time and leave the lines where they are."""
        self._draw(last=True)
        self._live.stop()

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """The state of the whole run, once a second."""
        self._progress.take_snapshot(snapshot)
        self._draw()

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Figures of one step, from one actor."""
        del step  # counts from 0; the metrics say how many batches are trained
        self._progress.take_step(metrics, self._clock())
        self._draw()

    def on_event(self, event: EventReported) -> None:
        """One line of events.jsonl."""
        if self._progress.take_event(event):
            self._draw()

    def _draw(self, *, last: bool = False) -> None:
        now_s = self._clock()
        if last or now_s - self._drawn_s >= FRAME_S:
            self._drawn_s = now_s
            self._live.update(picture(self._progress), refresh=True)
