"""Routing replay from the engine's router to the trainer's experts, in real processes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pytest
from proc.system.conftest import Launch
from proc.system.harness import (
    GROUPS,
    MEMBERS,
    Start,
    SystemRun,
    check_balance,
    check_metrics,
    environment,
    milepost,
)
from proc.system.mixture import EXPERTS, PER_TOKEN, upcycle

from milepost.actors.archive.reader import Archive, Query
from milepost.actors.arrays import from_bulk, to_bulk
from milepost.actors.routes import RoutesShape
from milepost.actors.seal import sealed
from milepost.actors.trainer.door import check_batch
from milepost.actors.trainer.works import DoorRules, ModelFacts
from milepost.messages.buffer import Batch
from milepost.messages.trajectory import Trajectory

pytestmark = pytest.mark.timeout(400)
STEPS = 3
LAYERS = 2
SHAPE = RoutesShape(num_layers=LAYERS, experts_per_token=PER_TOKEN, num_experts=EXPERTS)
RULES = DoorRules(
    sft=False,
    model=ModelFacts(vocabulary=1 << 20, tokenizer_hash="", template_hash="", routes=SHAPE),
    version=STEPS,
    digests={},
    keeps_caches=False,
    routes=SHAPE,
)


def command(start: Start, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [milepost(), *words],
        cwd=start.folder,
        env=environment(start.folder),
        capture_output=True,
        text=True,
        timeout=200.0,
        check=False,
    )


def trained_rows(run: SystemRun) -> list[Trajectory]:
    """Rows that were trained, whose archive says that C2 was looked at and held."""
    with Archive.open(run.folder) as archive:
        entries = [e for e in archive.select(Query(), limit=10_000) if e.step is not None]
        found = [archive.read(entry.trajectory_id, entry.attempt) for entry in entries]
    for each in found:
        assert each.training is not None
        assert each.training.contracts["C2"] == "passed"
    return [each.trajectory for each in found]


def refusals(row: Trajectory) -> list[str]:
    """What the trainer's door says of a row of this run."""
    alone = msgspec.structs.replace(row, group_rewards=(row.reward,), group_size=1)
    batch = Batch(
        step=STEPS,
        trajectories=(alone,),
        group_ids=(row.group_id,),
        num_trajectories=1,
        num_loss_tokens=1,
        minibatch_of=(0,),
        minibatch_loss_tokens=(1,),
        minibatch_trajectories=(1,),
        metrics={},
        wait_s=0.0,
    )
    return [refusal.reason for refusal in check_batch(batch, RULES).refusals]


def _set(*settings: str) -> tuple[str, ...]:
    return tuple(word for each in settings for word in ("--set", each))


def test_a_mixture_is_trained_through_the_experts_that_sampled(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """Conversations of several turns, weights that change under them, two ranks that train.

    Every row that was trained brought the routes of all its tokens but the last, and the trainer,
    which computes in float32 as the engine does, would hardly ever have chosen otherwise for tokens
    of its own version. A row of this very run with one expert changed is refused.
    """
    # With a second minibatch the first step's own update would lie between engine and trainer.
    settings = "algorithm.replay_routes=true", "actors.trainer.ranks=2"
    words = _set(*settings, "algorithm.minibatches_per_step=1")
    start = Start(tmp_path, upcycle(checkpoint, tmp_path / "mixture"), steps=STEPS, words=words)
    run = launch(start)
    assert run.end() == 0, run.text
    check_metrics(run, STEPS, minibatches=1)
    check_balance(run, STEPS)
    assert not run.events("refused_at_door")
    for line in run.steps():
        assert 0 <= line["train/route_mismatch_ratio"] < 0.2, line
    assert run.steps()[0]["train/route_mismatch_ratio"] < 1e-3
    rows = trained_rows(run)
    assert len(rows) == STEPS * GROUPS * MEMBERS
    assert any(len(row.turns) > 1 for row in rows)
    taken = []
    for row in rows:
        assert row.routes is not None
        taken.append(from_bulk(row.routes))
        assert taken[-1].shape == (row.token_ids.shape[0] - 1, LAYERS, PER_TOKEN)
        assert refusals(row) == []
    assert len(np.unique(np.concatenate([routes.ravel() for routes in taken]))) == EXPERTS
    told = command(start, "audit", str(run.folder))
    assert told.returncode == 0, told.stdout
    routes = taken[0].copy()
    routes[3, 1] = [expert for expert in range(EXPERTS) if expert not in routes[3, 1]]
    forged = sealed(msgspec.structs.replace(rows[0], routes=to_bulk(routes)))
    (reason,) = refusals(forged)
    assert reason.startswith("C2 same routes: routes of positions [0, ")


def test_routes_of_a_dense_model_are_refused_before_anything_starts(
    tmp_path: Path, checkpoint: Path
) -> None:
    """By name and with what to do, not by engines that die one after the other."""
    start = Start(tmp_path, checkpoint)
    (tmp_path / "small.toml").write_text(start.topology())
    told = command(start, "check", "small.toml", "--set", "algorithm.replay_routes=true")
    assert told.returncode != 0
    assert "$.algorithm.replay_routes" in told.stdout + told.stderr
    assert "has no mixture of experts" in told.stdout + told.stderr
