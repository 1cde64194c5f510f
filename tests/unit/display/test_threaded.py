"""A display whose reader stands still: what it is told waits, within bounds, and nobody waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import pytest

from milepost.launch.display import threaded
from milepost.launch.display.threaded import ThreadedDisplay
from milepost.messages.supervisor import EventReported, Snapshot

WAIT_S = 10.0


class Reader:
    """Shows one thing for each time it is let."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.goes_on = threading.Event()
        self.stands = threading.Event()
        self.ended = threading.Event()

    def on_snapshot(self, snapshot: Snapshot) -> None:
        self._show(f"snapshot {snapshot.actors[0]['actor']}")

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._show(f"step {step} {metrics['loss']:g}")

    def on_event(self, event: EventReported) -> None:
        self._show(event.text)

    def end(self) -> None:
        self.shown.append("end")
        self.ended.set()

    def _show(self, text: str) -> None:
        self.stands.set()
        assert self.goes_on.wait(WAIT_S)
        self.shown.append(text)


def snapshot(name: str) -> Snapshot:
    return Snapshot(run={}, actors=[{"actor": name}], last_metrics={}, events=[])


def event(text: str) -> EventReported:
    return EventReported(source="trainer", kind="saved", text=text)


def test_everything_is_shown_in_order_and_of_the_pictures_the_newest() -> None:
    reader = Reader()
    display = ThreadedDisplay(reader, reader.end)
    display.on_event(event("first"))
    assert reader.stands.wait(WAIT_S)
    for number in range(3):
        display.on_snapshot(snapshot(f"s{number}"))
        display.on_step(number, {"loss": 0.5})
    reader.goes_on.set()
    display.close()
    steps = [f"step {number} 0.5" for number in range(3)]
    assert reader.shown == ["first", *steps, "snapshot s2", "end"]


def test_a_reader_who_stands_still_holds_nobody_and_hears_how_much_it_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threaded, "CLOSE_S", 0.01)
    reader = Reader()
    display = ThreadedDisplay(reader, reader.end, kept_max=4)
    display.on_event(event("first"))
    assert reader.stands.wait(WAIT_S)
    for number in range(10):
        display.on_step(number, {"loss": 0.5})
    display.close()
    assert reader.shown == [], "it was not waited for"
    reader.goes_on.set()
    assert reader.ended.wait(WAIT_S)
    told = "6 steps and events were not shown: nobody read what was printed meanwhile"
    kept = [f"step {number} 0.5" for number in range(6, 10)]
    assert reader.shown == ["first", told, *kept, "end"]


@pytest.mark.parametrize(
    "tell",
    [
        lambda display: display.on_snapshot(snapshot("a")),
        lambda display: display.on_step(1, {"loss": 0.5}),
        lambda display: display.on_event(event("next")),
    ],
)
def test_what_it_raises_is_raised_to_whoever_tells_the_next_thing(
    tell: Callable[[ThreadedDisplay], None],
) -> None:
    reader = Reader()
    reader.goes_on.set()
    display = ThreadedDisplay(reader, reader.end)
    display.on_step(0, {})
    assert reader.ended.wait(WAIT_S)
    with pytest.raises(KeyError, match="loss"):
        tell(display)
    display.close()
    assert reader.shown == ["end"]
