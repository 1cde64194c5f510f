"""A whole run whose every episode is played by agents from outside, those of evaluations, too."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from proc.system.conftest import Launch
from proc.system.harness import (
    Start,
    SystemRun,
    check_balance,
    check_metrics,
    environment,
    milepost,
)

pytestmark = pytest.mark.timeout(400)
STEPS: Final = 2
LOOKUP: Final = "milepost.configs.recipes.lookup.agent:LookupAgent"
NO_AGENTS: Final = """
[actors]
agent = false
[actors.guests]
silence_s = 4.0
"""


@pytest.fixture
def guests() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Guests that are gone at the end of the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for guest in started:
        with guest:
            guest.kill()


def join(run: SystemRun, guests: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """One more agent, from another terminal."""
    guest = subprocess.Popen(
        [milepost(), "agent", LOOKUP, "--connect", str(run.folder), "--episodes", "8", "--json"],
        stdout=subprocess.PIPE,
        env=environment(run.folder.parent),
    )
    guests.append(guest)
    return guest


def test_guests_alone_train_and_evaluate_and_one_of_them_may_die(
    tmp_path: Path, checkpoint: Path, launch: Launch, guests: list[subprocess.Popen[bytes]]
) -> None:
    """The run waits for them, loses nothing with one, and says goodbye to the other at its end."""
    run = launch(Start(tmp_path, checkpoint, steps=STEPS, more=NO_AGENTS))
    run.until("all actors are ready")
    first = join(run, guests)
    run.until("version 0: ")
    second = join(run, guests)
    run.until("step 1")
    first.kill()
    assert run.end() == 0, run.text
    stdout, _ = second.communicate()
    assert second.returncode == 0
    assert json.loads(stdout)["reported"] > 0
    check_metrics(run, STEPS)
    check_balance(run, STEPS)
    scores = run.summary["scores"]
    assert scores["before"]["sampled"]["num_episodes"] == 8
    assert scores["after"]["sampled"]["num_episodes"] == 8
