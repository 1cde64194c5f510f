"""One process group of one rank and one tiny model for all tests of the learner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from unit.trainer.kit import write_model

from milepost.configs.actors import TrainerConfig

if TYPE_CHECKING:
    from milepost.actors.routes import RoutesShape
    from milepost.actors.trainer.fsdp.group import RankGroup
    from milepost.actors.trainer.fsdp.learner import Learner


@pytest.fixture(scope="session")
def rank_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankGroup]:
    from milepost.actors.trainer.fsdp.group import open_group

    folder = tmp_path_factory.mktemp("rendezvous")
    opened = open_group(
        rank=0, world_size=1, device="cpu", rendezvous=folder / "store", deadline_s=30
    )
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def make_learner(rank_group: RankGroup, model_folder: Path) -> Callable[..., Learner]:
    """A fresh learner on the tiny model; keywords as in `TrainerConfig` and below."""
    import torch

    from milepost.actors.trainer.fsdp.learner import Learner, LearnerSettings
    from milepost.actors.trainer.fsdp.model import PackedPolicy, load_model
    from milepost.actors.trainer.fsdp.optimizer import Optimizer
    from milepost.actors.trainer.fsdp.replay import RoutesReplay
    from milepost.actors.trainer.fsdp.shard import ShardedPolicy
    from milepost.actors.trainer.losses.objective import Objective

    torch.set_num_threads(1)

    def make(
        *,
        folder: Path = model_folder,
        objective: Objective | None = None,
        aggregation: Any = "per_token",
        tokens_max: int = 8192,
        sharding: Any = None,
        checkpointing: bool = False,
        steps: int = 100,
        keeps_logprobs: bool = False,
        compute: torch.dtype = torch.float32,
        routes: RoutesShape | None = None,
        **config: Any,
    ) -> Learner:
        lm = load_model(folder, gradient_checkpointing=checkpointing)
        packed = PackedPolicy(lm, None if routes is None else RoutesReplay(lm, routes))
        policy = ShardedPolicy(packed, rank_group, compute=compute, sharding=sharding)
        settings = LearnerSettings(
            objective=objective or Objective(estimator="grpo"),
            aggregation=aggregation,
            microbatch_tokens_max=tokens_max,
            keeps_logprobs=keeps_logprobs,
        )
        trainer = TrainerConfig(**{"lr": 1e-2, **config})
        return Learner(policy, Optimizer(policy, rank_group, trainer, steps), rank_group, settings)

    return make
