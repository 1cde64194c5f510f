"""Mixture of experts: a router picks k experts for each token, their outputs are mixed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from milepost.actors.engine.embedded.parameters import ExpertWeights
from milepost.actors.engine.embedded.shape import ExpertsShape


def route(hidden: Tensor, router: Tensor, shape: ExpertsShape) -> tuple[Tensor, Tensor]:
    """Experts of each token and their shares.

    Args:
        hidden: [N, hidden].
        router: [experts, hidden].
        shape: how many experts, how many a token, rescaled or not.

    Returns:
        int64 [N, k] expert ids, likeliest first, and shares [N, k] in the dtype of `hidden`.
    """
    probabilities = torch.softmax(linear(hidden, router), dim=-1, dtype=torch.float32)
    shares, chosen = torch.topk(probabilities, shape.experts_per_token, dim=-1)
    if shape.normalize:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    return chosen, shares.to(hidden.dtype)


def mix_experts(hidden: Tensor, chosen: Tensor, shares: Tensor, weights: ExpertWeights) -> Tensor:
    """Sum over each token's experts of share times SwiGLU; [N, hidden].

    Token-expert pairs are sorted by expert, so each expert is computed once over its own tokens.
    """
    per_token = chosen.shape[1]
    flat = chosen.flatten()
    order = torch.argsort(flat, stable=True)
    tokens = order // per_token
    counts = torch.bincount(flat, minlength=weights.router.shape[0]).tolist()
    inputs = hidden.index_select(0, tokens)
    outputs = torch.empty_like(inputs)
    start = 0
    for expert, count in enumerate(counts):
        if count == 0:
            continue
        rows = slice(start, start + count)
        gate, up = linear(inputs[rows], weights.gate_up[expert]).chunk(2, dim=-1)
        outputs[rows] = linear(silu(gate) * up, weights.down[expert])
        start += count
    outputs *= shares.flatten().index_select(0, order)[:, None]
    return torch.zeros_like(hidden).index_add_(0, tokens, outputs)
