"""The whole objective of some loss tokens, and the sums its metrics are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from milepost.actors.trainer.losses.correction import CorrectionKind, correction_weights
from milepost.actors.trainer.losses.kl import kl_estimate
from milepost.actors.trainer.losses.metrics import (
    MAXIMA,
    SUMS,
    LossTokens,
    count,
    measure,
    named_sums,
    sum_of_row_means,
)
from milepost.actors.trainer.losses.policy import policy_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What is optimised; see `[algorithm]` of the topology."""

    estimator: Literal["grpo", "sft"]
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 0.0
    correction: CorrectionKind = "tis"
    correction_low: float = 0.0
    correction_high: float = 2.0
    entropy_coef: float = 0.0
    kl_coef: float = 0.0


class Terms(NamedTuple):
    """Loss of one micro-batch, to be summed, and what its metrics need."""

    loss: Tensor
    sums: Tensor
    """float64 [len(SUMS)]"""
    maxima: Tensor
    """float64 [len(MAXIMA)]"""


def sft_terms(logprobs: Tensor, tokens: LossTokens) -> Terms:
    """Negative log-likelihood of recorded tokens: `-sum_t weight_t logprob_t`."""
    loss = -(tokens.weights * logprobs).sum()
    constant = logprobs.detach()
    sums = named_sums(
        loss=loss,
        tokens=count(constant),
        rows=loss.new_tensor(tokens.num_rows),
        nonfinite=(~constant.isfinite()).sum(),
        nll=-constant.sum(),
    )
    return Terms(loss, sums, torch.zeros(len(MAXIMA), dtype=torch.float64, device=loss.device))


def policy_terms(
    objective: Objective,
    logprobs: Tensor,
    old_logprobs: Tensor,
    entropy: Tensor,
    tokens: LossTokens,
    *,
    version: int,
    reference_logprobs: Tensor | None = None,
) -> Terms:
    """GRPO: corrected and clipped policy loss, minus entropy bonus, plus KL to a reference.

    `sum_t weight_t (correction_t policy_t - entropy_coef H_t + kl_coef k3_t)`

    Args:
        objective: clips and coefficients.
        logprobs: float [N], with gradient.
        old_logprobs: float [N], of the policy at the batch's start, constant.
        entropy: float [N]; with gradient when `entropy_coef` is not 0.
        tokens: constants of the same tokens.
        version: being trained; tokens of this version were sampled from the very same weights.
        reference_logprobs: float [N], needed when `kl_coef` is not 0.

    Raises:
        ValueError: `kl_coef` without reference log-probs.
    """
    policy = policy_loss(
        logprobs,
        old_logprobs,
        tokens.advantages,
        clip_low=objective.clip_low,
        clip_high=objective.clip_high,
        dual_clip=objective.dual_clip,
    )
    correction = correction_weights(
        old_logprobs,
        tokens.rollout_logprobs,
        kind=objective.correction,
        low=objective.correction_low,
        high=objective.correction_high,
    )
    pg_loss = (tokens.weights * correction.weights * policy.loss).sum()
    entropy_loss = (tokens.weights * entropy).sum()
    loss = pg_loss
    if objective.entropy_coef:
        loss = loss - objective.entropy_coef * entropy_loss
    kl_loss = torch.zeros_like(pg_loss)
    if objective.kl_coef:
        if reference_logprobs is None:
            raise ValueError(f"kl_coef is {objective.kl_coef} without reference log-probs")
        kl_loss = (tokens.weights * kl_estimate(logprobs, reference_logprobs, "k3")).sum()
        loss = loss + objective.kl_coef * kl_loss
    with torch.no_grad():
        sums, maxima = measure(logprobs, old_logprobs, tokens, policy, correction, version)
        sums[:4] = torch.stack([loss, pg_loss, entropy_loss, kl_loss]).double()
        sums[SUMS.index("entropy")] = entropy.sum()
        sums[SUMS.index("row_entropy")] = sum_of_row_means(entropy, tokens)
    return Terms(loss, sums, maxima)
