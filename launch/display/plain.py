"""One line a step, one line an event: for pipes, files and `--plain`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TextIO

from milepost.launch.display.progress import Progress
from milepost.launch.display.words import plain_line
from milepost.messages.supervisor import EventReported, Snapshot

SUPERVISED_LINE_S = 2.0
"""Supervised steps take hundredths of a second; a line at most this often is enough."""


class PlainDisplay:
    """Writes lines; says during start-up who is waited for, once for each change.

    Args:
        progress: merged from what it is told.
        out: where the lines go.
        clock: monotonic seconds.
    """

    def __init__(
        self, progress: Progress, out: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._progress = progress
        self._out = out
        self._clock = clock
        self._written_s = -SUPERVISED_LINE_S
        self._missing = ""

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """The state of the whole run, once a second."""
        self._progress.take_snapshot(snapshot)
        missing = ", ".join(
            str(actor["actor"])
            for actor in snapshot.actors
            if actor.get("state") in {"new", "greeted"}
        )
        if missing and missing != self._missing:
            self._line(f"starting, waits for {missing}")
        self._missing = missing

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Figures of one step; of a quick supervised run, not every one is shown."""
        del step  # counts from 0; the metrics say how many batches are trained
        now_s, before = self._clock(), self._progress.step
        self._progress.take_step(metrics, now_s)
        if self._progress.step == before:
            return
        last = self._progress.step >= self._progress.steps
        every = not self._progress.supervised
        if every or last or now_s - self._written_s >= SUPERVISED_LINE_S:
            self._written_s = now_s
            self._line(plain_line(self._progress))

    def on_event(self, event: EventReported) -> None:
        """One line of events.jsonl."""
        if self._progress.take_event(event):
            line = self._progress.lines[-1]
            self._line(f"{line.source} {line.kind}: {line.text}")

    def _line(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()
