"""Warm-up and GRPO of a quick-start task in one plain loop.

`PYTHONPATH=tests python -P -m bench.sequential --task lookup --seeds 0 1 2`

Prints what the quick start is measured against: seconds for one step (64 episodes and two
optimizer steps), held-out success before and after, and the seconds of training until the mean
success of the last five batches passed 0.9. One JSON object for each seed.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from bench.sequential.loop import Loop, one_thread
from bench.sequential.tasks import ENVIRONMENTS, Task

BLOCK = 8
"""Steps whose mean success is one number of the printed curve."""


def measure(task: Task, seed: int) -> dict[str, Any]:
    """Warm up, evaluate, reinforce and evaluate again."""
    torch.manual_seed(seed)
    with TemporaryDirectory(prefix="milepost-sequential-") as folder:
        task.create(folder, seed)
        loop = Loop(task, Path(folder), seed)
        cpu_s = time.process_time()
        loss = loop.warm_up()
        warmed_s = time.process_time() - cpu_s
        before = loop.evaluate()
        trained = loop.reinforce()
        after = loop.evaluate()
    blocks = [trained.solved[at : at + BLOCK] for at in range(0, len(trained.solved), BLOCK)]
    return {
        "task": task.recipe.run.name,
        "seed": seed,
        "warmup_cpu_s": round(warmed_s, 1),
        "warmup_loss": round(loss, 3),
        "before": before,
        "after": after,
        "cpu_s_per_step": round(trained.cpu_s_per_step, 4),
        "wall_s_per_step": round(trained.wall_s_per_step, 4),
        "wall_s_to_0.9": trained.wall_s_to_success,
        "solved": [round(sum(block) / len(block), 2) for block in blocks],
    }


def main() -> None:
    """Measure the seeds asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.sequential")
    parser.add_argument("--task", choices=sorted(ENVIRONMENTS), default="lookup")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    one_thread()
    for seed in arguments.seeds:
        print(json.dumps(measure(Task(arguments.task), seed)), flush=True)


if __name__ == "__main__":
    main()
