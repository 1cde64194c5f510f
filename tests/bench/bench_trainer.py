"""The trainer's learner beside a plain padded loop on the same model, rows and core.

    pytest tests/bench/bench_trainer.py -s

Rows and model are those of the quick start: 0.12 M parameters, 64 rows of 50 to 150 tokens, a third
of them with loss, two optimizer steps a batch. The plain loop is what one writes first: the Hugging
Face model on right-padded rows with a mask, whole logits, AdamW, gradient clipping; with the
recorded log-probs as the old ones, so it has no second forward pass. Rounds alternate and the best
of each side counts, in CPU time: a busy machine disturbs both alike.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from unit.trainer.kit import model_classes

from milepost.actors.trainer.fsdp.group import RankGroup, open_group
from milepost.actors.trainer.fsdp.learner import Learner, LearnerSettings
from milepost.actors.trainer.fsdp.model import PackedPolicy, load_model
from milepost.actors.trainer.fsdp.optimizer import Optimizer
from milepost.actors.trainer.fsdp.shard import ShardedPolicy
from milepost.actors.trainer.losses.objective import Objective
from milepost.actors.trainer.rows import Minibatch, Row
from milepost.configs.actors import TrainerConfig

Estimator = Literal["grpo", "sft"]
ESTIMATORS: tuple[Estimator, ...] = ("sft", "grpo")
VOCABULARY = 430
ROUNDS = 12
RATIO_MIN = 1.0
"""Trained tokens a CPU second, ours over the plain loop's."""


def write_model(folder: Path) -> Path:
    config_class, model_class = model_classes("qwen3")
    config = config_class(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
        max_position_embeddings=256,
    )
    model_class(config).save_pretrained(folder)
    return folder


def make_rows(count: int, seed: int) -> Minibatch:
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        length = int(generator.integers(50, 150))
        loss = np.sort(generator.choice(np.arange(1, length), length // 3, replace=False))
        rows.append(
            Row(
                token_ids=generator.integers(0, VOCABULARY, length).astype(np.int32),
                loss_positions=loss,
                rollout_logprobs=-6 - generator.random(len(loss)).astype(np.float32),
                versions=np.zeros(len(loss), np.int64),
                advantage=float(generator.normal()),
            )
        )
    return Minibatch(
        rows=tuple(rows),
        loss_tokens=sum(len(row.loss_positions) for row in rows),
        trajectories=count,
    )


class Plain:
    """The loop one writes first."""

    def __init__(self, folder: Path, estimator: Estimator) -> None:
        self.model: Any = model_classes("qwen3")[1].from_pretrained(folder, dtype=torch.float32)
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.estimator = estimator

    def train(self, minibatch: Minibatch) -> None:
        ids, mask, loss, old, advantages = _padded(minibatch)
        output = self.model(input_ids=ids, attention_mask=mask, use_cache=False)
        logprobs = output.logits[:, :-1].float().log_softmax(-1)
        logprobs = logprobs.gather(-1, ids[:, 1:, None]).squeeze(-1)
        terms = -logprobs
        if self.estimator == "grpo":
            ratio = (logprobs - old).exp()
            clipped = ratio.clamp(0.8, 1.28)
            terms = torch.maximum(-ratio * advantages, -clipped * advantages)
        ((terms * loss).sum() / loss.sum()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def _padded(minibatch: Minibatch) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows = minibatch.rows
    width = max(len(row.token_ids) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    mask = torch.zeros(len(rows), width, dtype=torch.int64)
    loss = torch.zeros(len(rows), width - 1)
    old = torch.zeros(len(rows), width - 1)
    for number, row in enumerate(rows):
        length = len(row.token_ids)
        ids[number, :length] = torch.from_numpy(row.token_ids.astype(np.int64))
        mask[number, :length] = 1
        loss[number, row.loss_positions - 1] = 1.0
        old[number, row.loss_positions - 1] = torch.from_numpy(row.rollout_logprobs)
    advantages = torch.tensor([row.advantage for row in rows])[:, None]
    return ids, mask, loss, old, advantages


def make_learner(folder: Path, group: RankGroup, estimator: Estimator) -> Learner:
    policy = ShardedPolicy(
        PackedPolicy(load_model(folder, gradient_checkpointing=False)),
        group,
        compute=torch.float32,
    )
    settings = LearnerSettings(
        objective=Objective(estimator=estimator),
        aggregation="per_token",
        microbatch_tokens_max=8192,
    )
    return Learner(policy, Optimizer(policy, group, TrainerConfig(lr=1e-3), 100), group, settings)


def cpu_s(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def compare(folder: Path, group: RankGroup, estimator: Estimator) -> float:
    plain, learner = Plain(folder, estimator), make_learner(folder, group, estimator)
    batch = [make_rows(32, 1), make_rows(32, 2)]
    tokens = sum(len(row.token_ids) for each in batch for row in each.rows)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        theirs.append(sum(cpu_s(partial(plain.train, each)) for each in batch))
        ours.append(cpu_s(partial(learner.train, batch, 0)))
    ratio = min(theirs) / min(ours)
    sys.stdout.write(
        f"\ntrainer, {estimator}: {tokens / min(ours):,.0f} tokens a CPU second, plain padded loop "
        f"{tokens / min(theirs):,.0f}: {ratio:.2f}x"
    )
    return ratio


def test_the_learner_trains_more_tokens_a_cpu_second_than_a_plain_padded_loop() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="mp-") as name:
        folder = write_model(Path(name) / "model")
        group = open_group(
            rank=0, world_size=1, device="cpu", rendezvous=Path(name) / "store", deadline_s=30
        )
        try:
            ratios = [compare(folder, group, each) for each in ESTIMATORS]
        finally:
            group.close()
    assert min(ratios) > RATIO_MIN, ratios
