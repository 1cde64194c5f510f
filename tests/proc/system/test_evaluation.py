"""Scores of real runs by other engines than the rollout's, and by no engine of the run at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from proc.system.conftest import Launch
from proc.system.harness import Start, SystemRun, check_balance, check_metrics

pytestmark = pytest.mark.timeout(400)
STEPS = 3
EVERY = ("--set", "actors.evaluator.every_versions=1")


def evaluated(run: SystemRun) -> dict[int, dict[str, Any]]:
    """Version -> its score."""
    return {event["values"]["version"]: event["values"] for event in run.events("evaluation")}


def test_engines_of_the_evaluators_own_measure_every_version_while_training_goes_on(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """One of them is killed on the way: it comes back, and to the version being measured.

    A publication never waits for a score: with shared engines each of them waits for the hold.
    """
    words = (*EVERY, "--set", "actors.evaluation_engine.replicas=2")
    run = launch(Start(tmp_path, checkpoint, steps=STEPS, words=words))
    run.until(f"step 1/{STEPS}")
    run.kill("evaluation_engine-0")
    assert run.end() == 0, run.text
    assert run.summary["restarts"] == {"evaluation_engine-0": 1}
    check_metrics(run, STEPS)
    check_balance(run, STEPS)
    found = evaluated(run)
    assert sorted(found) == list(range(STEPS + 1))
    for score in found.values():
        for mode in ("sampled", "greedy"):
            assert score[mode]["num_mixed"] == score[mode]["num_missing"] == 0, score
            assert score[mode]["num_episodes"] == 8
    assert run.events("evaluation_skipped") == []
    names = ((name, value) for line in run.lines("metrics.jsonl") for name, value in line.items())
    steps = {value for name, value in names if name.partition("@")[0] == "eval/step"}
    assert steps == set(found), "a score that came late, beside another one's, is lost"


def test_a_class_of_the_users_measures_every_checkpoint_while_the_trainer_removes_older_ones(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """The folder that it is given stays as it is; afterwards nothing of it is left."""
    words = (
        *EVERY,
        *("--set", "actors.evaluator.external=proc.evaluations:Counts"),
        *("--set", "run.checkpoints_keep=1"),
    )
    run = launch(Start(tmp_path, checkpoint, steps=STEPS, words=words))
    assert run.end() == 0, run.text
    check_metrics(run, STEPS)
    found = evaluated(run)
    assert sorted(found) == list(range(STEPS + 1))
    sizes = {score["external"]["bytes"] for score in found.values()}
    assert len(sizes) >= 1
    assert min(sizes) > 10_000
    assert list((run.folder / "evaluation").iterdir()) == []
    assert run.events("evaluation_skipped") == []
