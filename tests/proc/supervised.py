"""`python -P -m proc.supervised TOPOLOGY RUN [RESUME_STEP]`: one supervisor in its own process."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import uvloop

from milepost.configs.load import load_topology
from milepost.launch.display.threaded import ThreadedDisplay
from milepost.messages.supervisor import EventReported, Snapshot
from milepost.supervisor.folder import RunFolder
from milepost.supervisor.run import supervise


class Lines:
    """A line a step and a line an event, for the test that reads them."""

    def on_snapshot(self, snapshot: Snapshot) -> None:
        pass

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        told = (f"{name} {value:.4g}" for name, value in sorted(metrics.items())[:4])
        self._line("  ".join([f"step {step}", *told]))

    def on_event(self, event: EventReported) -> None:
        self._line(f"{event.source} {event.kind}: {event.text}")

    def _line(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


async def main() -> int:
    topology = load_topology(sys.argv[1])
    step = int(sys.argv[3]) if len(sys.argv) > 3 else None
    with (
        closing(RunFolder(Path(sys.argv[2]))) as folder,
        closing(ThreadedDisplay(Lines(), at_end=sys.stdout.flush)) as display,
    ):
        outcome = await supervise(topology, folder=folder, resume_step=step, display=display)
    sys.stdout.write(f"end {outcome.status}\n")
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
