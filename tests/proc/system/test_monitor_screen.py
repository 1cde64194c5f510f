"""The monitor in a real terminal, beside a whole run with every actor."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from proc.system.conftest import Launch
from proc.system.harness import Start, environment, milepost
from proc.terminal import Terminal

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux"),
]
STEPS = 6
BEGUN = "step 1/"


def test_a_person_watches_a_run_from_its_first_steps_to_its_end(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """Attached with no flag given at its start, in 80 by 24, then in a larger window."""
    run = launch(Start(tmp_path, checkpoint, steps=STEPS))
    run.until(BEGUN)
    command = [milepost(), "monitor", str(run.folder), "--every", "0.5"]
    with Terminal(command, (80, 24), environment(tmp_path)) as terminal:
        terminal.until("C1 same tokens", "C3 same log-probs", "trainer-0", "engine-0", "credit")
        assert run.end() == 0, run.text
        # Everything of the run is there, whatever part of it the monitor came in time for.
        shown = terminal.until(
            f"the run has ended: done after {STEPS} steps",
            f"step {STEPS} of {STEPS}",
            "balances",
            "0 refused",
            "of 1e-04 nats",
            "100% known",
        )
        assert "not needed" in shown, "the model of this run is dense"
        assert len(shown.splitlines()) == 24
        terminal.type("q")
        terminal.until("left with 0")
    # Late, and in a larger window.
    with Terminal(command, (120, 40), environment(tmp_path)) as terminal:
        terminal.until("── success", "── weight versions", "── events", "version 6: held-out")
        terminal.type("u")
        terminal.until("queue", "esc back")
        terminal.type("?")
        terminal.until("Everything is read only")
        terminal.type("q")
        terminal.until("left with 0")
