"""What shows a run to a person, as the supervisor knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from milepost.messages.supervisor import EventReported, Snapshot


class Display(Protocol):
    """Told what happens, on the supervisor's event loop; must return at once.

    An exception ends the showing, never the run.
    """

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """The state of the whole run, once a second."""
        ...

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Figures of one step, from one actor."""
        ...

    def on_event(self, event: EventReported) -> None:
        """One line of events.jsonl."""
        ...
