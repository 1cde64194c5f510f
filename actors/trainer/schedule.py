"""Learning rate over optimizer steps, in closed form: no state, so a resume needs none."""

from __future__ import annotations

from math import cos, pi

from milepost.configs.actors import ScheduleConfig


def learning_rate(schedule: ScheduleConfig, lr: float, step: int, steps: int) -> float:
    """Learning rate of optimizer step `step` of `steps`.

    With W warm-up steps, `lr (step + 1) / W` for step < W; the first step already moves. From
    then on, with `t = (step - W) / max(steps - W - 1, 1)` in [0, 1]:

    - constant: `lr`
    - linear: from `lr` to `lr_min`
    - cosine: `lr_min + (lr - lr_min) (1 + cos(pi t)) / 2`
    - warmup_stable_decay: `lr`, then over the last D = `decay_fraction` x steps, linearly down:
      `lr_min + (lr - lr_min) (steps - step) / D`

    A step past the end has the last one's rate.

    Args:
        schedule: shape and bounds.
        lr: highest rate.
        step: 0-based.
        steps: all optimizer steps of the run.
    """
    step = min(step, steps - 1)
    if step < schedule.warmup_steps:
        return lr * (step + 1) / schedule.warmup_steps
    low = schedule.lr_min
    match schedule.kind:
        case "constant":
            return lr
        case "linear":
            return lr + (low - lr) * _progress(schedule, step, steps)
        case "cosine":
            return low + (lr - low) * (1 + cos(pi * _progress(schedule, step, steps))) / 2
        case "warmup_stable_decay":
            decay_steps = schedule.decay_fraction * steps
            left = steps - step
            return low + (lr - low) * left / decay_steps if left < decay_steps else lr


def _progress(schedule: ScheduleConfig, step: int, steps: int) -> float:
    return (step - schedule.warmup_steps) / max(steps - schedule.warmup_steps - 1, 1)
