"""The monitor for a pipe: a line every few seconds, and one for whatever happens. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from milepost.launch.accounts import USED
from milepost.launch.display.words import freshness, results, seconds, speed
from milepost.launch.monitor.contracts import Colour
from milepost.launch.monitor.lines import clean
from milepost.launch.monitor.model import Model
from milepost.launch.monitor.pages.figures import HELD
from milepost.launch.monitor.pages.words import clock

VERDICTS: Final = {
    Colour.GREY: "not measured",
    Colour.GREEN: "ok",
    Colour.YELLOW: "yellow",
    Colour.RED: "RED",
}
EVENTS_AT_FIRST: Final = 10


class PlainLines:
    """Says what is new since the last time it was asked.

    Args:
        model: merged by somebody else.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._event = -1
        self._silent = ""
        self._reading = ""

    def news(self) -> Iterator[str]:
        """Events and silences since the last call; of what was before the first, the newest."""
        model = self._model
        if self._event < 0 and model.events:
            self._event = max(0, model.events[-1].number - EVENTS_AT_FIRST)
        for event in model.events:
            if event.number > self._event:
                self._event = event.number
                text = f"{event.source} {event.kind}: {event.text}"
                yield f"{clock(event.wall_s)}  {clean(text)}"
        if model.silent and model.silent != self._silent:
            yield f"{clock(model.wall_s)}  {clean(model.silent)}"
        self._silent = model.silent

    def picture(self) -> Iterator[str]:
        """The run in one line; a second one when another side has become the bottleneck."""
        yield status_line(self._model)
        said = self._model.progress.reading
        side = said.partition(" (")[0]
        if said and side != self._reading:
            yield f"{clock(self._model.wall_s)}  {said}"
        self._reading = side

    def ending(self) -> Iterator[str]:
        """How it ended, and its last figures."""
        yield status_line(self._model)
        yield f"{clock(self._model.wall_s)}  {clean(self._model.ending)}"


def status_line(model: Model) -> str:
    """Everything that is known now, as far as it is known."""
    head = f"{clock(model.wall_s)}  {model.phase} {seconds(model.elapsed_s)}"
    words = [head, f"step {model.step}/{model.about.steps}", *results(model.progress)]
    words += [*speed(model.progress), *freshness(model.progress)]
    words += [
        f"{lamp.name} {VERDICTS[lamp.colour] if lamp.needed else 'not needed'}"
        for lamp in model.lamps
    ]
    account = model.account
    if account is not None:
        words.append(f"balance {account.balance:+}" if account.balance else "balanced")
        total = sum(account.tokens.values())
        kept = sum(each for name, each in account.tokens.items() if name in USED | HELD)
        words += [f"wasted {(total - kept) / total:.1%}"] if total else []
    slowest = max((row for row in model.actors if row.loop_ms), key=_loop, default=None)
    if slowest is not None:
        words.append(f"slowest loop {slowest.name} {slowest.loop_ms:.0f} ms")
    return "  ".join(words)


def _loop(row: object) -> float:
    return float(getattr(row, "loop_ms", None) or 0.0)
