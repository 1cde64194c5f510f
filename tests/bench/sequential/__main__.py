"""Warm-up and GRPO of a quick-start task in one plain loop.

`PYTHONPATH=tests python -P -m bench.sequential --task lookup --seeds 0 1 2`

Prints what the quick start is measured against: CPU seconds for one step (64 episodes and two
optimizer steps), held-out success before and after, and the seconds of training until the mean
success of the last five batches passed 0.9.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from bench.sequential.learning import (
    Learner,
    grpo_step,
    supervised_rows,
    warm_up,
    warmup_stable_decay,
)
from bench.sequential.policy import Policy
from bench.sequential.rollouts import Rollouts
from bench.sequential.tasks import TASKS, Task
from tokenizers import Tokenizer

from milepost.messages.shared import Prompt

GROUPS, SAMPLES, MINIBATCHES = 8, 8, 2
RL_LR, RL_WARMUP, RL_BETAS, RL_EPSILON = 1e-3, 5, (0.9, 0.98), 1e-6
SUCCESS = 0.9
WINDOW = 5


class Loop:
    """One run of one task."""

    def __init__(self, task: Task, folder: Path, seed: int) -> None:
        task.create(str(folder), seed, {})
        self.task = task
        self.seed = seed
        self.policy = Policy(folder)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.rollouts = Rollouts(self.policy, self.tokenizer, task.environment)

    def warm_up(self) -> float:
        """Train on the clerk; the last loss."""
        task = self.task
        schedule = warmup_stable_decay(task.warmup_lr, task.warmup_steps, 20, 0.3)
        demonstrations = list(task.demonstrations("train", self.seed, task.clerk))
        rows = supervised_rows(self.tokenizer, demonstrations)
        learner = Learner(self.policy, schedule, (0.9, 0.95), 1e-8)
        return warm_up(learner, rows, task.warmup_batch, task.warmup_steps, self.seed)

    def evaluate(self) -> dict[str, float]:
        """Share of held-out questions solved, sampled and greedily, and the mean reward."""
        prompts = list(self.task.prompts("held_out", self.seed, {}))
        sampled = self.rollouts.run(prompts)
        greedy = self.rollouts.run(prompts, greedy=True)
        return {
            "sampled": sum(row.environment.solved for row in sampled) / len(prompts),
            "greedy": sum(row.environment.solved for row in greedy) / len(prompts),
            "reward": sum(row.environment.reward for row in sampled) / len(prompts),
        }

    def reinforce(self) -> dict[str, object]:
        """GRPO; the curve and the clocks."""
        schedule = warmup_stable_decay(RL_LR, 10**9, RL_WARMUP, 0.0)
        learner = Learner(self.policy, schedule, RL_BETAS, RL_EPSILON)
        stream = cycle(self.task.prompts("train", self.seed, {}))
        solved: list[float] = []
        reached: float | None = None
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(self.task.steps):
            prompts: list[Prompt] = [p for p in islice(stream, GROUPS) for _ in range(SAMPLES)]
            rows = self.rollouts.run(prompts)
            grpo_step(learner, rows, SAMPLES, MINIBATCHES)
            solved.append(sum(row.environment.solved for row in rows) / len(rows))
            window = solved[-WINDOW:]
            if reached is None and sum(window) / WINDOW >= SUCCESS:
                reached = time.process_time() - cpu
        steps = self.task.steps
        return {
            "cpu_s_per_step": round((time.process_time() - cpu) / steps, 4),
            "wall_s_per_step": round((time.perf_counter() - wall) / steps, 4),
            "cpu_s_to_0.9": reached,
            "curve": [
                round(sum(solved[i : i + 8]) / len(solved[i : i + 8]), 2)
                for i in range(0, steps, 8)
            ],
        }


def main() -> None:
    """Run the seeds asked for, one JSON object a line."""
    parser = argparse.ArgumentParser(prog="python -m bench.sequential", description=__doc__)
    parser.add_argument("--task", choices=sorted(TASKS), default="lookup")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for seed in arguments.seeds:
        torch.manual_seed(seed)
        with TemporaryDirectory(prefix="milepost-sequential-") as folder:
            loop = Loop(TASKS[arguments.task], Path(folder), seed)
            cpu = time.process_time()
            loss = loop.warm_up()
            warmed = time.process_time() - cpu
            before = loop.evaluate()
            curve = loop.reinforce()
            after = loop.evaluate()
        result = {
            "task": arguments.task,
            "seed": seed,
            "warmup_cpu_s": round(warmed, 1),
            "warmup_loss": round(loss, 3),
            "before": before,
            "after": after,
            **curve,
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
