"""AdamW over the shards of this rank, with its state complete from the start."""

from __future__ import annotations

from math import isfinite, sqrt

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.optim.adamw import adamw

from milepost.actors.trainer.fsdp.group import RankGroup
from milepost.actors.trainer.fsdp.shard import ShardedPolicy
from milepost.actors.trainer.schedule import learning_rate
from milepost.configs.actors import TrainerConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """AdamW (arXiv 1711.05101) with global gradient clipping and a schedule in closed form.

    Weight decay is for matrices only: norms and biases are left alone. Everything is elementwise
    but the norm, so each rank works on its own shards as plain tensors: on small models the
    bookkeeping of sharded tensors would cost more than the arithmetic.

    Args:
        policy: whose parameters move.
        group: the ranks, for the norm.
        config: learning rate, betas, decay, clip, schedule.
        steps: optimizer steps of the whole run, for the schedule.
    """

    def __init__(
        self, policy: ShardedPolicy, group: RankGroup, config: TrainerConfig, steps: int
    ) -> None:
        self._group = group
        self._config = config
        self._steps = steps
        self._parameters = policy.parameters()
        self._moments = {
            moment: {name: torch.zeros_like(each) for name, each in self._parameters.items()}
            for moment in MOMENTS
        }
        self._step = torch.zeros((), dtype=torch.float32, device=group.device)
        self.step_count = 0

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        return learning_rate(self._config.schedule, self._config.lr, self.step_count, self._steps)

    @torch.no_grad()
    def step(self) -> float:
        """Clip the gradients, move the parameters, and forget the gradients.

        Returns:
            The global gradient norm before clipping. When it is not finite nothing has moved.
        """
        moving = {name: each for name, each in self._parameters.items() if each.grad is not None}
        gradients = {
            name: local(each.grad) for name, each in moving.items() if each.grad is not None
        }
        norm = self._norm(list(gradients.values()))
        if isfinite(norm):
            if norm > self._config.grad_norm_max:
                scale = self._config.grad_norm_max / (norm + 1e-6)
                for gradient in gradients.values():
                    gradient.mul_(scale)
            self._move(moving, gradients)
            self.step_count += 1
        for parameter in moving.values():
            parameter.grad = None
        return norm

    def _norm(self, gradients: list[Tensor]) -> float:
        """Global 2-norm; every rank gets the same number."""
        squares = torch.zeros((), dtype=torch.float32, device=self._group.device)
        if gradients:
            squares = torch.nn.utils.get_total_norm(gradients).square()
        return sqrt(float(self._group.total(squares)))

    def _move(self, moving: dict[str, Parameter], gradients: dict[str, Tensor]) -> None:
        config = self._config
        matrices = [name for name, each in moving.items() if each.ndim >= 2]
        others = [name for name, each in moving.items() if each.ndim < 2]
        for names, decay in ((matrices, config.weight_decay), (others, 0.0)):
            if not names:
                continue
            averages, squares = (
                [local(self._moments[moment][name]) for name in names] for moment in MOMENTS
            )
            # One counter for each tensor: the kernel counts it up.
            counters = [torch.full_like(self._step, self.step_count) for _ in names]
            adamw(
                [local(moving[name]) for name in names],
                [gradients[name] for name in names],
                averages,
                squares,
                [],
                counters,
                fused=True,
                amsgrad=False,
                beta1=config.beta1,
                beta2=config.beta2,
                lr=self.lr,
                weight_decay=decay,
                eps=config.epsilon,
                maximize=False,
            )

    def state(self) -> dict[str, Tensor]:
        """Moments by parameter name: `exp_avg/NAME`, `exp_avg_sq/NAME`. The tensors themselves."""
        return {
            f"{moment}/{name}": tensor
            for moment, tensors in self._moments.items()
            for name, tensor in tensors.items()
        }


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor, sharing its memory; a plain tensor is its own shard."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
