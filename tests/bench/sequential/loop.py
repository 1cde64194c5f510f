"""One run of one task in one plain loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

import torch
from bench.sequential.learning import Learner, grpo_step, supervised_rows, warm_up
from bench.sequential.policy import Policy
from bench.sequential.rollouts import Rollouts, Row
from bench.sequential.tasks import Task, trainer_of
from msgspec import Struct
from tokenizers import Tokenizer

from milepost.messages.shared import Prompt

SUCCESS = 0.9
WINDOW = 5


class Trained(Struct, kw_only=True):
    """The reinforcement part of a run."""

    cpu_s_per_step: float
    wall_s_per_step: float
    wall_s_to_success: float | None
    """Until the mean success of the last five batches passed 0.9."""
    solved: list[float]
    """Share of each batch's episodes."""


class Loop:
    """A policy with its tokenizer.

    Args:
        task: what it is trained on.
        folder: of the checkpoint that it starts from.
        seed: of the order of prompts.
    """

    def __init__(self, task: Task, folder: Path, seed: int) -> None:
        self.task = task
        self.seed = seed
        self.policy = Policy(folder)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.rollouts = Rollouts(self.policy, self.tokenizer, task.environment)

    def warm_up(self) -> float:
        """Train on the clerk's conversations; the last loss in nats a token."""
        recipe = self.task.warmup
        rows = supervised_rows(self.tokenizer, list(self.task.demonstrations(self.seed)))
        learner = Learner(self.policy, trainer_of(recipe), recipe.run.steps)
        return warm_up(learner, rows, recipe, self.seed)

    def evaluate(self) -> dict[str, float]:
        """Held-out success, sampled and greedy, and the sampled reward."""
        prompts = list(self.task.prompts("held_out", self.seed))
        sampled = self.rollouts.run(prompts)
        greedy = self.rollouts.run(prompts, greedy=True)
        return {
            "sampled": success_of(sampled),
            "greedy": success_of(greedy),
            "reward": sum(row.environment.reward for row in sampled) / len(sampled),
        }

    def reinforce(
        self, steps: int | None = None, watch: Callable[[int, list[Row]], None] | None = None
    ) -> Trained:
        """GRPO for `steps`, by default the recipe's."""
        recipe = self.task.recipe
        algorithm, steps = recipe.algorithm, steps or recipe.run.steps
        minibatches = algorithm.minibatches_per_step
        learner = Learner(self.policy, trainer_of(recipe), recipe.run.steps * minibatches)
        stream = cycle(self.task.prompts("train", self.seed))
        solved: list[float] = []
        reached: float | None = None
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        for step in range(steps):
            prompts: list[Prompt] = [
                prompt
                for prompt in islice(stream, algorithm.prompts_per_step)
                for _ in range(algorithm.samples_per_prompt)
            ]
            rows = self.rollouts.run(prompts)
            grpo_step(learner, rows, algorithm)
            solved.append(success_of(rows))
            if reached is None and sum(solved[-WINDOW:]) / WINDOW >= SUCCESS:
                reached = time.perf_counter() - wall_s
            if watch is not None:
                watch(step, rows)
        return Trained(
            cpu_s_per_step=(time.process_time() - cpu_s) / steps,
            wall_s_per_step=(time.perf_counter() - wall_s) / steps,
            wall_s_to_success=reached,
            solved=solved,
        )


def success_of(rows: list[Row]) -> float:
    """Share of the episodes that were solved."""
    return sum(row.environment.solved for row in rows) / len(rows)


def one_thread() -> None:
    """As every process of a run: a second OpenMP thread makes decoding slower."""
    torch.set_num_threads(1)
