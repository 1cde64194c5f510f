"""What a step reports: sums that add up exactly over micro-batches and ranks, and their means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from milepost.actors.trainer.losses.correction import Correction
from milepost.actors.trainer.losses.kl import kl_estimate
from milepost.actors.trainer.losses.policy import PolicyLoss


class LossTokens(NamedTuple):
    """Constants of N loss tokens, [N] each, rows one after the other."""

    weights: Tensor
    """float32, from `token_weights`."""
    advantages: Tensor
    """float32"""
    rollout_logprobs: Tensor
    """float32, recorded by the engine."""
    versions: Tensor
    """int64, weight version each token was sampled under."""
    row_of: Tensor
    """int64, number of the token's row within this micro-batch."""
    num_rows: int


SUMS = (
    "loss",
    "pg_loss",
    "entropy_loss",
    "kl_loss",
    "tokens",
    "rows",
    "nonfinite",
    "entropy",
    "nll",
    "clipped",
    "ppo_kl",
    "ratio",
    "ess",
    "tis",
    "tis_clipped",
    "tis_abs",
    "abs_diff",
    "abs_diff_same",
    "tokens_same",
    "rollout_kl",
    "staleness",
    "advantage_abs",
    "row_old",
    "row_rollout",
    "row_entropy",
    "row_advantage",
    "routes",
    "routes_differing",
)
"""What a micro-batch adds up, in this order; sums over micro-batches and ranks are exact."""

MAXIMA = ("abs_diff", "staleness")
"""What a micro-batch takes the maximum of."""


def measure(
    logprobs: Tensor,
    old_logprobs: Tensor,
    tokens: LossTokens,
    policy: PolicyLoss,
    correction: Correction,
    version: int,
) -> tuple[Tensor, Tensor]:
    """Sums and maxima over the tokens; the four losses at the head are the caller's."""
    difference = old_logprobs - tokens.rollout_logprobs
    absolute = difference.abs()
    same = tokens.versions == version
    staleness = (version - tokens.versions).double()
    sums = named_sums(
        tokens=count(logprobs),
        rows=logprobs.new_tensor(tokens.num_rows),
        nonfinite=(~logprobs.isfinite()).sum(),
        nll=-logprobs.sum(),
        clipped=policy.clipped.sum(),
        ppo_kl=(old_logprobs - logprobs).sum(),
        ratio=policy.ratio.sum(),
        ess=effective_sample_ratios(policy.ratio, tokens.row_of, tokens.num_rows).sum(),
        tis=correction.raw.sum(),
        tis_clipped=correction.bounded.sum(),
        tis_abs=(correction.raw - 1).abs().sum(),
        abs_diff=absolute.sum(),
        abs_diff_same=torch.where(same, absolute, torch.zeros_like(absolute)).sum(),
        tokens_same=same.sum(),
        # KL(sampler || trainer): the tokens were drawn from the sampler.
        rollout_kl=kl_estimate(tokens.rollout_logprobs, old_logprobs, "k3").sum(),
        staleness=staleness.sum(),
        advantage_abs=tokens.advantages.abs().sum(),
        row_old=sum_of_row_means(old_logprobs, tokens),
        row_rollout=sum_of_row_means(tokens.rollout_logprobs, tokens),
        row_advantage=sum_of_row_means(tokens.advantages, tokens),
    )
    if not len(logprobs):
        return sums, torch.zeros(len(MAXIMA), dtype=torch.float64, device=logprobs.device)
    return sums, torch.stack([absolute.max().double(), staleness.max()])


def effective_sample_ratios(ratio: Tensor, row_of: Tensor, num_rows: int) -> Tensor:
    """`(sum w)^2 / (n sum w^2)` of each row: the share of its tokens that still count.

    Args:
        ratio: float [N], importance ratio of each loss token.
        row_of: int64 [N].
        num_rows: R.

    Returns:
        float [R]; 0 for a row without loss tokens.
    """
    zeros = ratio.new_zeros(num_rows)
    sums = zeros.index_add(0, row_of, ratio)
    squares = zeros.index_add(0, row_of, ratio.square())
    counts = zeros.index_add(0, row_of, torch.ones_like(ratio))
    return sums.square() / (counts.clamp(min=1) * squares.clamp(min=1e-8))


def sum_of_row_means(values: Tensor, tokens: LossTokens) -> Tensor:
    """Mean over the loss tokens of each row, summed; a row without any adds 0. float [N] in."""
    zeros = values.new_zeros(tokens.num_rows)
    sums = zeros.index_add(0, tokens.row_of, values)
    counts = zeros.index_add(0, tokens.row_of, torch.ones_like(values))
    return (sums / counts.clamp(min=1)).sum()


def count(logprobs: Tensor) -> Tensor:
    """Number of tokens, as float64 on their device."""
    return logprobs.new_tensor(len(logprobs), dtype=torch.float64)


def named_sums(**named: Tensor) -> Tensor:
    """The vector of `SUMS`, zero where a name is not given. Scalars in, float64 [len(SUMS)] out."""
    assert named.keys() <= set(SUMS), f"unknown sums {named.keys() - set(SUMS)}"
    zero = torch.zeros((), dtype=torch.float64, device=next(iter(named.values())).device)
    return torch.stack([named[name].detach().double() if name in named else zero for name in SUMS])


def finish_metrics(
    estimator: Literal["grpo", "sft"],
    sums: Sequence[float],
    maxima: Sequence[float],
    *,
    num_minibatches: int,
) -> dict[str, float]:
    """Metrics of a whole step from the sums over its minibatches, micro-batches and ranks.

    Losses are means over the optimizer steps, the others means over loss tokens (`ess_ratio`
    and `rollout/...`: over rows). Names are those of the field where they exist.
    """
    total = dict(zip(SUMS, sums, strict=True))
    tokens, rows = max(total["tokens"], 1.0), max(total["rows"], 1.0)
    if estimator == "sft":
        return {
            "train/loss": total["loss"] / num_minibatches,
            "train/nll": total["nll"] / tokens,
            "train/loss_tokens": total["tokens"],
        }
    highest = dict(zip(MAXIMA, maxima, strict=True))
    metrics = {
        f"train/{name}": total[name] / num_minibatches
        for name in ("loss", "pg_loss", "entropy_loss", "kl_loss")
    }
    metrics |= {
        "train/loss_tokens": total["tokens"],
        "train/entropy": total["entropy"] / tokens,
        "train/pg_clipfrac": total["clipped"] / tokens,
        "train/ppo_kl": total["ppo_kl"] / tokens,
        "train/ois": total["ratio"] / tokens,
        "train/ess_ratio": total["ess"] / rows,
        "train/tis": total["tis"] / tokens,
        "train/tis_clipfrac": total["tis_clipped"] / tokens,
        "train/tis_abs": total["tis_abs"] / tokens,
        "train/train_rollout_logprob_abs_diff": total["abs_diff"] / tokens,
        "train/train_rollout_logprob_abs_diff_max": highest["abs_diff"],
        "train/same_version_ratio": total["tokens_same"] / tokens,
        "train/train_rollout_kl": total["rollout_kl"] / tokens,
        "train/staleness/mean": total["staleness"] / tokens,
        "train/staleness/max": highest["staleness"],
        "train/advantage_abs": total["advantage_abs"] / tokens,
    }
    metrics |= {
        "rollout/log_probs": total["row_old"] / rows,
        "rollout/rollout_log_probs": total["row_rollout"] / rows,
        "rollout/entropy": total["row_entropy"] / rows,
        "rollout/advantages": total["row_advantage"] / rows,
    }
    if total["tokens_same"]:
        name = "train/train_rollout_logprob_abs_diff_same_version"
        metrics[name] = total["abs_diff_same"] / total["tokens_same"]
    if total["routes"]:
        metrics["train/route_mismatch_ratio"] = total["routes_differing"] / total["routes"]
    return metrics
