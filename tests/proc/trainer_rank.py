"""One rank of a learner in a process of its own, without any actor around it.

    python -P -m proc.trainer_rank RANK RANKS DEVICE MODEL OUT whole|layered

Trains one batch and, on rank 0, leaves the weights in OUT.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from unit.trainer.kit import batch_of, group

from milepost.actors.trainer.fsdp.export import export_tensors
from milepost.actors.trainer.fsdp.group import RankGroup, open_group
from milepost.actors.trainer.fsdp.learner import Learner, LearnerSettings
from milepost.actors.trainer.fsdp.model import PackedPolicy, load_model
from milepost.actors.trainer.fsdp.optimizer import Optimizer
from milepost.actors.trainer.fsdp.shard import ShardedPolicy, Sharding
from milepost.actors.trainer.losses.objective import Objective
from milepost.actors.trainer.rows import read_batch
from milepost.configs.actors import TrainerConfig
from milepost.configs.run import AlgorithmConfig


def learner_on(
    group: RankGroup,
    folder: Path,
    *,
    compute: torch.dtype,
    sharding: Sharding | None = None,
    tokens_max: int = 16384,
) -> Learner:
    lm = load_model(folder, gradient_checkpointing=False)
    policy = ShardedPolicy(PackedPolicy(lm), group, compute=compute, sharding=sharding)
    settings = LearnerSettings(
        objective=Objective(estimator="grpo"),
        aggregation="per_token",
        microbatch_tokens_max=tokens_max,
    )
    # A large epsilon: AdamW would blow the last bits of a tiny gradient up to whole steps.
    config = TrainerConfig(lr=1e-2, epsilon=0.1)
    return Learner(policy, Optimizer(policy, group, config, 100), group, settings)


def trained(folder: Path, out: Path, ranks: int, device: str, sharding: str) -> dict[str, Tensor]:
    """Weights after one batch, trained by so many processes."""
    children = [
        subprocess.Popen(
            [sys.executable, "-P", "-m", "proc.trainer_rank", str(rank), str(ranks), device,
             folder, out, sharding],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for rank in range(ranks)
    ]  # fmt: skip
    codes = [child.wait(120) for child in children]
    assert codes == [0] * ranks, f"the ranks ended with {codes}"
    return load_file(out / f"{ranks}{sharding}.safetensors")


def main(rank: int, ranks: int, device: str, folder: Path, out: Path, sharding: Sharding) -> None:
    torch.set_num_threads(1)
    joined = open_group(
        rank=rank,
        world_size=ranks,
        device=device,
        rendezvous=out / f"store{ranks}{sharding}",
        deadline_s=60,
    )
    learner = learner_on(joined, folder, compute=torch.float32, sharding=sharding, tokens_max=40)
    groups = [group("a", (0.0, 1.0, 0.5)), group("b", (1.0, 0.0, 0.0, 1.0))]
    batch = batch_of(groups, minibatches=2, rank=rank, ranks=ranks)
    learner.train(read_batch(batch, AlgorithmConfig()), 0)
    tensors = export_tensors(learner.policy, joined, torch.float32)
    if joined.leads:
        save_file(tensors, out / f"{ranks}{sharding}.safetensors")
    joined.meet()
    joined.close()


if __name__ == "__main__":
    _, rank, ranks, device, model, out, sharding = sys.argv
    main(int(rank), int(ranks), device, Path(model), Path(out), cast("Sharding", sharding))
    # As actors leave: torch may bring an interpreter down that is taken apart around its threads.
    os._exit(0)
