"""Sessions that branch, from the agent's forks to the trainer's steps, in real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from proc.system.conftest import Launch
from proc.system.harness import Start, check_balance, check_metrics

pytestmark = pytest.mark.timeout(300)
TREE = """
[actors.session]
history = "tree"
tree = { leaf_picker = "keep_all" }
"""


def test_every_branch_of_a_session_is_trained_and_its_group_counts_its_members(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """Three rows for each trajectory: two forks, one of which shares its first reply, a sub-agent.

    Were a row no member's, or a member counted for each of its rows, groups would never be
    complete, or rewards be told for siblings that do not exist; the trainer's door refuses both.
    """
    steps = 2
    agent = "proc.system.agents:Forking"
    words = ("--set", "limits.reply_tokens_max=12")
    start = Start(
        tmp_path, checkpoint, "lookup_sync", steps=steps, agent=agent, more=TREE, words=words
    )
    run = launch(start)
    assert run.end() == 0, run.text
    check_metrics(run, steps)
    check_balance(run, steps)
    assert not run.events("refused_at_door")
    for line in run.steps():
        assert 1 < line["rollout/rows_per_trajectory"] <= 3, line
        assert 0 <= line["rollout/raw_reward"] <= 1
        assert line["rollout/tito_session_mismatch_rate/v2/non_assistant_text"] == 0
        assert line["train/train_rollout_logprob_abs_diff_max"] < 1e-3, line
