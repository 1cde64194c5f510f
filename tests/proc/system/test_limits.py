"""Bounds of episodes and fixed verdicts in a whole run: each by name, and nobody waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from proc.system.conftest import Launch
from proc.system.harness import Start, check_metrics

pytestmark = pytest.mark.timeout(400)
AT_END = "actors.evaluator.at_start=false"


def test_each_bound_ends_the_episode_under_its_own_name(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """Turns and time in the first step, tokens of a reply and of all in the second; all trained."""
    settings = (AT_END, "limits.turns_max=2", "limits.seconds_max=4.0")
    words = tuple(word for setting in settings for word in ("--set", setting))
    start = Start(
        tmp_path, checkpoint, base="lookup_sync", steps=2, words=words,
        agent="proc.system.agents:Bounded",
    )  # fmt: skip
    run = launch(start)
    assert run.end() == 0, run.text
    check_metrics(run, 2)
    first, second = run.steps()
    assert first["rollout/truncated_ratio"] == second["rollout/truncated_ratio"] == 1.0
    name = "rollout/truncated_by"
    assert {key: value for key, value in first.items() if key.startswith(name)} == {
        f"{name}/turns_max": 0.5,
        f"{name}/seconds_max": 0.5,
    }
    assert {key: value for key, value in second.items() if key.startswith(name)} == {
        f"{name}/reply_tokens_max": 0.5,
        f"{name}/tokens_max": 0.5,
    }


def test_members_of_a_dropped_group_are_told_at_once(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """They would have waited for the whole time of an episode, and the run with them."""
    settings = (
        AT_END,
        "actors.rollout.failed=drop_group",
        "actors.rollout.lease_s=1000.0",
        "limits.seconds_max=600.0",
    )
    words = tuple(word for setting in settings for word in ("--set", setting))
    start = Start(
        tmp_path, checkpoint, base="lookup_sync", steps=1, words=words,
        agent="proc.system.agents:Fragile",
    )  # fmt: skip
    run = launch(start)
    assert run.end() == 0, run.text
    log = (run.folder / "logs" / "agent-0.log").read_text()
    told = [line for line in log.splitlines() if line.endswith("was told")]
    assert sorted(told) == [f"member {member} was told" for member in (1, 2, 3)], log
    [event] = [event for event in run.events("episode_failed") if "world is gone" in event["text"]]
    assert event
