"""How per-token terms become one number, the same one however the batch is split.

The loss of a minibatch is `sum_t weight_t x_t`, and every weight is made from counts over the
whole minibatch, all micro-batches and ranks included. So the sum over any split, and with it the
gradient, is that of the undivided minibatch. A mean of means has no place here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Aggregation: TypeAlias = Literal["per_token", "per_sample"]


def token_weights(
    loss_tokens: Sequence[int],
    *,
    aggregation: Aggregation,
    minibatch_loss_tokens: int,
    minibatch_trajectories: int,
    denominators: Sequence[int] | None = None,
) -> Tensor:
    """Weight of every loss token of some rows of a minibatch.

    - `per_token`: `1 / minibatch_loss_tokens`; long rows weigh more (DAPO).
    - `per_sample`: `1 / (denominator_row * minibatch_trajectories)`; each row weighs the same.

    Args:
        loss_tokens: for each row here, its number of loss tokens.
        aggregation: see above.
        minibatch_loss_tokens: over all ranks.
        minibatch_trajectories: over all ranks.
        denominators: `per_sample` only: loss tokens of the whole trajectory each row belongs to,
            when several rows come from one trajectory; by default the row's own.

    Returns:
        float32 [sum(loss_tokens)], rows one after the other.
    """
    counts = torch.tensor(loss_tokens, dtype=torch.int64)
    if aggregation == "per_token":
        weight = 1.0 / max(minibatch_loss_tokens, 1)
        return torch.full((int(counts.sum()),), weight, dtype=torch.float32)
    of_rows = counts if denominators is None else torch.tensor(denominators, dtype=torch.int64)
    scale = of_rows.clamp(min=1).double() * max(minibatch_trajectories, 1)
    return (1.0 / scale).float().repeat_interleave(counts)
