"""Whole runs of every actor, to their ends: what a person finds afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from proc.system.conftest import Launch
from proc.system.harness import (
    GROUPS,
    Start,
    SystemRun,
    check_balance,
    check_metrics,
    check_order,
)

pytestmark = pytest.mark.timeout(400)
STEPS = 4


def test_an_asynchronous_run_ends_with_everything_a_person_wants(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    run = launch(Start(tmp_path, checkpoint, steps=STEPS))
    assert run.end() == 0, run.text
    assert f"step {STEPS}/{STEPS}" in run.text
    summary = run.summary
    assert (summary["status"], summary["cause"]) == ("done", None)
    assert (summary["steps"], summary["steps_done"]) == (STEPS, STEPS)
    check_metrics(run, STEPS)
    ledger = check_balance(run, STEPS)
    assert ledger.num_trained == STEPS * GROUPS


def test_a_synchronous_run_trains_only_fresh_tokens_in_the_order_of_the_prompts(
    unbroken: SystemRun,
) -> None:
    """The slow and plain way, to which the asynchronous one is compared."""
    check_metrics(unbroken, unbroken.num_steps)
    check_balance(unbroken, unbroken.num_steps)
    check_order(unbroken)
    for line in unbroken.steps():
        assert line["train/staleness/max"] == 0.0, line
        assert line["rollout/weight_version/max"] == line["step"], line
        assert line["rollout/weight_version/mixed_version_ratio"] == 0.0
