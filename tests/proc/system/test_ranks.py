"""Two trainer ranks in a whole run: each gets its own part, and together they train the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from proc.system.conftest import Launch
from proc.system.harness import GROUPS, Start, check_balance, check_metrics

from milepost.launch.accounts import account_of
from milepost.launch.commands.account import read_statistics

pytestmark = pytest.mark.timeout(400)
STEPS = 3


def test_two_ranks_train_what_was_sampled_once_and_agree_on_every_micro_batch(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """Parts of unequal rows and few tokens a micro-batch: ranks that disagree would hang here."""
    words = (
        *("--set", "actors.trainer.ranks=2"),
        *("--set", "actors.trainer.microbatch_tokens_max=256"),
    )
    run = launch(Start(tmp_path, checkpoint, steps=STEPS, words=words))
    assert run.end() == 0, run.text
    check_metrics(run, STEPS)
    ledger = check_balance(run, STEPS)
    assert ledger.num_trained == STEPS * GROUPS
    account = account_of(read_statistics(run.folder))
    assert account is not None
    trained = sum(int(line["train/loss_tokens"]) for line in run.steps())
    assert account.tokens["trained"] == trained, "a row on two ranks, or on none"
