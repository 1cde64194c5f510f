"""AdamW over sharded parameters, with its state complete from the start."""

from __future__ import annotations

from math import isfinite
from typing import Any

import torch
from torch import Tensor

from milepost.actors.trainer.fsdp.shard import ShardedPolicy, whole
from milepost.actors.trainer.schedule import learning_rate
from milepost.configs.actors import TrainerConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """AdamW (arXiv 1711.05101) with global gradient clipping and a schedule in closed form.

    Weight decay is for matrices only: norms and biases are left alone.

    Args:
        policy: whose parameters move.
        config: learning rate, betas, decay, clip, schedule.
        steps: optimizer steps of the whole run, for the schedule.
    """

    def __init__(self, policy: ShardedPolicy, config: TrainerConfig, steps: int) -> None:
        self._config = config
        self._steps = steps
        self._parameters = policy.parameters()
        parameters = list(self._parameters.values())
        groups: list[dict[str, Any]] = [
            {"params": [each for each in parameters if each.ndim >= 2]},
            {"params": [each for each in parameters if each.ndim < 2], "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW(
            groups,
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.step_count = 0
        for parameter in parameters:
            # Made here and not by the first step, so that a checkpoint has the same tensors always.
            self._adamw.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                **{name: torch.zeros_like(parameter) for name in MOMENTS},
            }

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        return learning_rate(self._config.schedule, self._config.lr, self.step_count, self._steps)

    def step(self) -> float:
        """Clip the gradients, move the parameters, and forget the gradients.

        Returns:
            The global gradient norm before clipping. When it is not finite nothing has moved.
        """
        parameters = list(self._parameters.values())
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._config.grad_norm_max)
        value = float(whole(norm))
        if isfinite(value):
            for group in self._adamw.param_groups:
                group["lr"] = self.lr
            self._adamw.step()
            self.step_count += 1
        self._adamw.zero_grad()
        return value

    def state(self) -> dict[str, Tensor]:
        """Moments by parameter name: `exp_avg/NAME`, `exp_avg_sq/NAME`. The tensors themselves."""
        return {
            f"{moment}/{name}": self._adamw.state[parameter][moment]
            for moment in MOMENTS
            for name, parameter in self._parameters.items()
        }

    def restore(self, step_count: int) -> None:
        """Go on from `step_count`, once the tensors of `state` have been overwritten."""
        self.step_count = step_count
        for parameter in self._parameters.values():
            self._adamw.state[parameter]["step"].fill_(step_count)
