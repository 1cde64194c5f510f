"""Monte Carlo estimates of KL divergence (J. Schulman, "Approximating KL divergence", 2020)."""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import Tensor

KLKind: TypeAlias = Literal["k1", "k2", "k3"]

LOG_RATIO_MAX = 20.0
ESTIMATE_MAX = 10.0


def kl_estimate(logprobs: Tensor, base_logprobs: Tensor, kind: KLKind) -> Tensor:
    """Per-token estimate of KL(policy || base) from tokens drawn from the policy.

    With `d = logprobs - base_logprobs`: k1 is `d` (unbiased, may be negative), k2 is `d^2 / 2`
    (biased, low variance), k3 is `exp(-d) - 1 + d` (unbiased, never negative). k3 clamps `d` to
    +-20 and the estimate to +-10, so that one token cannot outweigh a batch.

    Args:
        logprobs: float [N]; differentiable.
        base_logprobs: float [N].
        kind: which estimate.
    """
    difference = logprobs - base_logprobs
    match kind:
        case "k1":
            return difference
        case "k2":
            return difference.square() / 2
        case "k3":
            bounded = difference.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
            return ((-bounded).exp() - 1 + bounded).clamp(-ESTIMATE_MAX, ESTIMATE_MAX)
