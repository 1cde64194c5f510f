"""Drawing tokens from logits, and the log-probs of exactly the distribution drawn from.

Order: temperature, then top-k, then top-p over what top-k left (renormalised), then min-p relative
to the likeliest token; what is left is renormalised. Ties go to the lower token id. Temperature 0
takes the likeliest token and reports its log-prob at temperature 1, untruncated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCALED: Final = 1
"""Bit of `kinds`: temperature is neither 0 nor 1."""
TRUNCATED: Final = 2
"""Bit of `kinds`: top-k, top-p or min-p cuts the distribution."""
GREEDY: Final = 4
"""Bit of `kinds`: temperature 0."""


@dataclass(frozen=True, slots=True)
class SamplerRows:
    """How each of M rows samples; made once for as long as the same rows sample together.

    Attributes:
        kinds: the bits of all rows together.
        temperature: float32 [M, 1], 1 for greedy rows; used when SCALED.
        greedy: bool [M, 1]; used when GREEDY.
        cut: int64 [C], the rows that truncate; used when TRUNCATED, as are the next three.
        top_k: int64 [C, 1], the vocabulary's size when off.
        top_p: float64 [C, 1], above 1 when off.
        min_p: float64 [C, 1].
        num_top: most top log-probs any row wants.
    """

    kinds: int
    temperature: Tensor
    greedy: Tensor
    cut: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    num_top: int


_NONE: Final = torch.empty(0)
PLAIN: Final = SamplerRows(0, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, 0)
"""Rows that all sample at temperature 1 from the whole vocabulary."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """M sampled tokens.

    Attributes:
        ids: int64 [M].
        logprobs: float32 [M], nats.
        top_ids: int64 [M, K] likeliest first, when asked for.
        top_logprobs: float32 [M, K].
    """

    ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    top_ids: NDArray[np.int64] | None = None
    top_logprobs: NDArray[np.float32] | None = None


def sample(logits: Tensor, rows: SamplerRows, uniforms: NDArray[np.float64]) -> Sampled:
    """Draw one token a row.

    Args:
        logits: float32 [M, vocab].
        rows: how to.
        uniforms: float64 [M] in [0, 1).

    Returns:
        The tokens. A row with NaN logits gets any token, with log-prob NaN.
    """
    kinds = rows.kinds
    if kinds & SCALED:
        logits = logits / rows.temperature
    if kinds & TRUNCATED:
        logits = _truncate(logits, rows)
    logprobs = torch.log_softmax(logits, dim=-1)
    # Inverse of the cumulative distribution, in double: rounding must not reach small tails.
    cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    targets = torch.from_numpy(uniforms).to(logits.device)[:, None] * cumulative[:, -1:]
    ids = torch.searchsorted(cumulative, targets, right=True).clamp_(max=logits.shape[-1] - 1)
    if kinds & GREEDY:
        ids = torch.where(rows.greedy, logprobs.argmax(dim=-1, keepdim=True), ids)
    chosen = logprobs.gather(1, ids)
    top_ids = top_logprobs = None
    if rows.num_top:
        best = logprobs.topk(min(rows.num_top, logits.shape[-1]), dim=-1)
        top_ids, top_logprobs = best.indices.cpu().numpy(), best.values.cpu().numpy()
    return Sampled(ids[:, 0].cpu().numpy(), chosen[:, 0].cpu().numpy(), top_ids, top_logprobs)


def token_logprobs(logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
    """float32 [M] log-probs of `ids` int64 [M] under logits [M, vocab] at a temperature.

    As for sampling, temperature 0 reports log-probs at temperature 1.
    """
    if temperature not in (0.0, 1.0):
        logits = logits / temperature
    return torch.log_softmax(logits, dim=-1).gather(1, ids[:, None])[:, 0]


def _truncate(logits: Tensor, rows: SamplerRows) -> Tensor:
    """Logits with -inf wherever a row's top-k, top-p or min-p cuts; other rows untouched."""
    ordered, order = logits.index_select(0, rows.cut).sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(ordered.shape[-1], device=logits.device)
    ordered = ordered.masked_fill(rank >= rows.top_k, float("-inf"))
    probabilities = torch.softmax(ordered, dim=-1, dtype=torch.float64)
    # A token is kept while the mass before it is below top_p: the one that crosses it stays.
    before = probabilities.cumsum(dim=-1) - probabilities
    outside = before >= rows.top_p
    outside |= probabilities < rows.min_p * probabilities[:, :1]
    # The likeliest token always stays, whatever rounding says.
    outside[:, 0] = False
    kept = ordered.masked_fill(outside, float("-inf"))
    restored = torch.empty_like(kept).scatter_(1, order, kept)
    return logits.index_copy(0, rows.cut, restored)
