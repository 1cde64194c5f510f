"""RMS norm with a backward pass that reads its input as few times as it can."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class FusedRMSNorm(nn.Module):
    """`y = w x r` with `r = (mean(x^2) + epsilon)^-1/2`.

    Root mean square layer normalisation (Zhang and Sennrich 2019, arXiv:1910.07467). The forward
    pass rounds as that of transformers does, bit for bit. It keeps x and r for the backward pass,
    where autograd would keep the normalised copy of x as well.

    Args:
        weight: w, [D].
        epsilon: keeps r finite where a row is zero.
    """

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self.epsilon = epsilon

    def forward(self, states: Tensor) -> Tensor:
        """[..., D] in and out, of one dtype with the weight: nothing is computed in another."""
        normal = _RMSNorm.apply(states, self.weight, self.epsilon)  # type: ignore[no-untyped-call]
        return cast("Tensor", normal)


class _RMSNorm(Function):
    """`dx = r g w - x r^3 mean_D(g w x)` and `dw = sum_T(g x r)`, g the gradient of y.

    Both reductions are of one product, `g x`, and go as products of a matrix and a vector.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        scale = states.pow(2).mean(-1, keepdim=True).add_(epsilon).rsqrt_()
        ctx.save_for_backward(states, weight, scale)
        return (states * scale).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        states, weight, scale = ctx.saved_tensors
        size = weight.shape[0]
        products = (states * gradient).reshape(-1, size)
        of_weight = torch.mv(products.t(), scale.reshape(-1))
        shares = torch.mv(products, weight).view_as(scale).mul_(scale.pow(3)).div_(size)
        of_states = (gradient * weight).mul_(scale).addcmul_(states, shares, value=-1)
        return of_states, of_weight, None
