"""What shows a run to a person: the interface, and one plain line a step."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final, Protocol, TextIO

from milepost.messages.supervisor import EventReported, Snapshot

SHOWN: Final = (
    ("rollout/solved", "solved"),
    ("rollout/raw_reward", "reward"),
    ("train/nll", "nll"),
    ("train/loss", "loss"),
    ("train/grad_norm", "grad norm"),
    ("train/lr-pg_0", "lr"),
)
"""Metrics of a plain line, where a run reports them."""
QUIET: Final = frozenset({"ready", "work_finished"})
"""Kinds of events that a plain display leaves to events.jsonl."""


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


class PlainDisplay:
    """One line a step and one an event; for files, pipes and logs.

    Args:
        out: where the lines go; standard output when left out.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stdout if out is None else out

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """A plain display shows what happens, not how things stand."""

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """`step 12  success 0.41  reward 0.39  loss 0.012`."""
        words = [f"{short} {metrics[name]:.4g}" for name, short in SHOWN if name in metrics]
        if not words:
            words = [f"{name} {value:.4g}" for name, value in sorted(metrics.items())[:4]]
        self._line("  ".join([f"step {step}", *words]))

    def on_event(self, event: EventReported) -> None:
        """`engine-0 restarted: ...`."""
        if event.kind not in QUIET:
            self._line(f"{event.source} {event.kind}: {event.text}")

    def _line(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()
