"""What corrects a mismatch between the policy that sampled and the policy at the batch's start."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

CorrectionKind: TypeAlias = Literal["none", "tis", "clip_or_pop"]


class Correction(NamedTuple):
    """Constant factors of the per-token policy loss, float [N] each."""

    weights: Tensor
    raw: Tensor
    """`exp(old - rollout)`, before any bound."""
    bounded: Tensor
    """bool [N]: a bound changed the factor."""


def correction_weights(
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    *,
    kind: CorrectionKind,
    low: float,
    high: float,
) -> Correction:
    """Importance weight of each token between sampler and trainer, `w = exp(old - rollout)`.

    - `tis`: truncated importance sampling, `clamp(w, low, high)`.
    - `clip_or_pop`: IcePop (arXiv 2510.18855), `w` inside [low, high], else 0: the token is left
      out. Normalisers keep counting it.
    - `none`: 1; `raw` is still measured.

    Args:
        old_logprobs: float [N], of the trainer at the batch's start.
        rollout_logprobs: float [N], recorded beside the token by the engine.
        kind: see above.
        low: lower bound.
        high: upper bound.

    Returns:
        Weights without a gradient.
    """
    raw = (old_logprobs.detach() - rollout_logprobs).exp()
    match kind:
        case "none":
            return Correction(torch.ones_like(raw), raw, torch.zeros_like(raw, dtype=torch.bool))
        case "tis":
            weights = raw.clamp(low, high)
        case "clip_or_pop":
            inside = (raw >= low) & (raw <= high)
            weights = torch.where(inside, raw, torch.zeros_like(raw))
    return Correction(weights, raw, weights != raw)
