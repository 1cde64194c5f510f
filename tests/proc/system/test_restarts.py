"""Actors that are started again while the run goes on, and runs that end themselves."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from proc.system.conftest import Launch
from proc.system.harness import Start, check_balance, check_metrics, check_order

pytestmark = pytest.mark.timeout(400)
SLOW = "proc.system.agents:Slow"
SAME_NATS_MAX = 1e-3
"""Engine and trainer on one CPU compute the same log-probs but for rounding."""


def test_a_killed_engine_agent_or_session_comes_back_and_nothing_is_lost(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """The new engine serves nothing before it has the version that the others count on.

    In a synchronous run every token of a step is of the newest version. Had the new engine given
    out one token of its starting weights, the step would show it, and so would the log-probs. What
    a session actor held dies with it: each trajectory is lost by name, and sampled again.
    """
    steps = 7
    start = Start(
        tmp_path, checkpoint, base="lookup_sync", steps=steps, agent=SLOW, options={"seconds": 0.3}
    )
    run = launch(start)
    run.until(f"step 2/{steps}")
    run.kill("engine-0")
    run.until(f"step 4/{steps}")
    run.kill("agent-0")
    run.until(f"step 5/{steps}")
    run.kill("session-0")
    assert run.end() == 0, run.text
    assert run.summary["restarts"] == {"engine-0": 1, "agent-0": 1, "session-0": 1}
    check_metrics(run, steps)
    check_balance(run, steps)
    check_order(run)
    for line in run.steps():
        versions = [line[f"rollout/weight_version/{name}"] for name in ("min", "max")]
        assert versions == [line["train/step"]] * 2, line
        assert line["train/train_rollout_logprob_abs_diff_max"] < SAME_NATS_MAX, line


def test_a_run_without_any_reward_spread_stops_and_says_so(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """Every gradient is zero: the run would go on for days and learn nothing.

    Or it has learned all there is, with no other checkpoint: the version reached is saved, said,
    and gone on from.
    """
    words = ("--set", "guard.batches_without_spread_max=3", "--set", "run.checkpoint_every_steps=0")
    start = Start(tmp_path, checkpoint, steps=50, agent="proc.system.agents:Same", words=words)
    run = launch(start)
    assert run.end() == 1, run.text
    summary = run.summary
    assert (summary["status"], summary["steps_done"]) == ("guard", 3)
    assert "no group of the last 3 batches had different rewards" in summary["cause"]["text"]
    assert "no_spread" in run.text
    assert f"to go on from step 3: milepost run --resume {run.folder}" in run.text
    assert (run.folder / "checkpoints/step_000003/hf/model.safetensors").is_file()
    check_balance(run, 3)
    run = launch(replace(start, steps=4, words=()), resume=True)
    assert run.end() == 0, run.text
    assert (run.summary["status"], run.summary["steps_done"]) == ("done", 4)
    check_metrics(run, 4)


def test_ctrl_c_while_the_actors_start_leaves_nothing(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """The impatient person's first habit."""
    run = launch(Start(tmp_path, checkpoint))
    run.until("starting, waits for")
    asked_s = time.time()
    run.signal(signal.SIGINT)
    assert run.end() == 1, run.text
    assert run.summary["status"] == "stopped"
    assert run.summary["ended_at"] - asked_s < 8.0
