"""More groups than a step needs, in real runs that take turns: dropped, or carried over."""

from __future__ import annotations

from pathlib import Path

import pytest
from proc.system.conftest import Launch
from proc.system.harness import GROUPS, Start, check_balance, check_metrics

pytestmark = pytest.mark.timeout(400)
STEPS = 4
MORE = ("--set", "actors.rollout.over_sampling_groups=1")


def test_a_step_takes_the_first_groups_that_are_whole_and_the_rest_is_dropped_by_name(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """No batch waits for its slowest group; every token trained is still of the newest version."""
    run = launch(Start(tmp_path, checkpoint, base="lookup_sync", steps=STEPS, words=MORE))
    assert run.end() == 0, run.text
    check_metrics(run, STEPS)
    ledger = check_balance(run, STEPS)
    assert ledger.num_trained == STEPS * GROUPS
    assert ledger.dropped.keys() == {"over_sampled"}
    assert 1 <= ledger.dropped["over_sampled"] <= STEPS
    for line in run.steps():
        assert line["train/staleness/max"] == 0.0, line
        assert line["rollout/weight_version/max"] == line["train/step"], line


def test_a_partial_rollout_goes_on_under_the_next_version_and_is_in_the_next_batch(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """Nothing that was sampled is thrown away before the end of the run, and ages are exact."""
    words = (*MORE, "--set", "actors.rollout.partial_rollout=true")
    run = launch(Start(tmp_path, checkpoint, base="lookup_sync", steps=STEPS, words=words))
    assert run.end() == 0, run.text
    check_metrics(run, STEPS)
    ledger = check_balance(run, STEPS)
    assert ledger.num_trained == STEPS * GROUPS
    assert sum(ledger.dropped.values()) <= 1, "only what is left over at the end"
    behind = [line["train/step"] - line["rollout/weight_version/min"] for line in run.steps()]
    assert behind[0] == 0
    assert set(behind) == {0, 1}, "some group was carried over, and none by more than a version"
