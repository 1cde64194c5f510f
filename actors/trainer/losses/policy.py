"""The clipped policy-gradient loss of one token."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LOG_RATIO_MAX = 20.0
"""Log ratios are clamped to +-20 before `exp`: a ratio of 5e8 is as clipped as one of infinity."""


class PolicyLoss(NamedTuple):
    """Per-token terms, float [N] each."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
    """bool: the clipped branch was the larger one (the dual clip does not count)."""


def policy_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """`exp(logprobs - old_logprobs)`, finite for every finite or infinite pair; NaN becomes 1.

    A NaN log-prob is not hidden by that: whoever trains counts and refuses it (see the guard of
    the trainer). Here it only must not turn the terms of other tokens into NaN.
    """
    log_ratio = torch.nan_to_num(logprobs - old_logprobs, nan=0.0, posinf=None, neginf=None)
    return log_ratio.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX).exp()


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> PolicyLoss:
    """`max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A)` with `r = exp(logprobs - old)`.

    PPO (arXiv 1707.06347), with the upper clip of its own of DAPO (clip-higher, arXiv 2503.14476)
    and, for negative advantages, the bound `-dual_clip A` of dual-clip PPO (arXiv 1912.09729).

    Args:
        logprobs: float [N], of the policy being trained; the only input with a gradient.
        old_logprobs: float [N], of the policy at the start of the batch, constant.
        advantages: float [N].
        clip_low: lower clip range, e.g. 0.2.
        clip_high: upper clip range, e.g. 0.28.
        dual_clip: c > 1, or 0 for none.
    """
    ratio = policy_ratio(logprobs, old_logprobs)
    unclipped = -ratio * advantages
    clipped = -ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    loss = torch.maximum(unclipped, clipped)
    if dual_clip > 0:
        bounded = torch.minimum(loss, -dual_clip * advantages)
        loss = torch.where(advantages < 0, bounded, loss)
    return PolicyLoss(loss, ratio, clipped > unclipped)
