"""Scores of real runs by other engines than the rollout's, and by no engine of the run at all."""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import Any

import pytest
from proc.system.conftest import Launch
from proc.system.harness import (
    RUN_S,
    Start,
    SystemRun,
    check_balance,
    check_metrics,
    published_versions,
)

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
    # One that waits while an older one is measured may give way to the next; the last does to none.
    assert sorted(found) == published_versions(run)
    assert {0, STEPS} <= found.keys()
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


def test_a_checkpoint_whose_evaluator_was_killed_gets_its_score_from_the_next_one(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """It is not the last one, so nobody offers it again, and its own files are gone by then."""
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    words = (
        *EVERY,
        *("--set", "actors.evaluator.external=proc.evaluations:Stalls"),
        *("--set", f'actors.evaluator.external_options={{begun = "{begun}"}}'),
        *("--set", "actors.evaluator.restart.policy=permanent"),
        *("--set", "run.checkpoints_keep=1"),
    )
    pipe = os.open(begun, os.O_RDONLY | os.O_NONBLOCK)
    try:
        run = launch(Start(tmp_path, checkpoint, steps=STEPS, words=words))
        run.until(f"step 2/{STEPS}")
        assert select.select([pipe], [], [], RUN_S)[0], "version 1 is not measured"
    finally:
        os.close(pipe)
    assert (run.folder / "evaluation" / "version_000001").is_dir()
    run.kill("evaluator")
    assert run.end() == 0, run.text
    assert run.summary["restarts"] == {"evaluator": 1}
    told = [event["values"] for event in run.events("evaluation")]
    assert [score["version"] for score in told] == list(range(STEPS + 1)), "each of them once"
    assert run.summary["scores"]["all"] == told
    assert told[1]["external"]["bytes"] > 10_000
    assert run.events("evaluation_skipped") == []
    assert list((run.folder / "evaluation").iterdir()) == []
