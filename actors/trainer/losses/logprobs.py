"""Log-probs of given tokens from hidden states, in float32, without the whole logit matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import nll_loss
from torch.utils.checkpoint import checkpoint

Head: TypeAlias = Callable[[Tensor], Tensor]
EntropyUse: TypeAlias = Literal["none", "metric", "loss"]

LOGIT_ELEMENTS_MAX = 1 << 26
"""Logits held at once (256 MiB in float32); more tokens than that go in chunks."""


def token_logprobs(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    *,
    temperatures: Tensor | None,
    entropy: EntropyUse,
    vocabulary: int,
    elements_max: int = LOGIT_ELEMENTS_MAX,
) -> tuple[Tensor, Tensor | None]:
    """`log_softmax(head(hidden) / temperature)[target]` of each token, and the entropy there.

    Args:
        hidden: [N, H], the state that predicts each target.
        head: [n, H] to logits [n, V].
        targets: int64 [N].
        temperatures: float32 [N] of the recorded sampling parameters, or None when all are 1.
        entropy: leave it out, measure it, or give it a gradient.
        vocabulary: V, to size the chunks.
        elements_max: logits held at once. Chunks are computed again in the backward pass.

    Returns:
        float32 [N] nats each; the second is None when entropy is left out.
    """
    rows = max(1, elements_max // max(vocabulary, 1))
    if hidden.shape[0] <= rows:
        return _chunk(hidden, head, targets, temperatures, entropy)
    logprobs: list[Tensor] = []
    entropies: list[Tensor] = []
    for start in range(0, hidden.shape[0], rows):
        part = slice(start, start + rows)
        warm = None if temperatures is None else temperatures[part]
        arguments = (hidden[part], head, targets[part], warm, entropy)
        chunk_logprobs, chunk_entropy = (
            checkpoint(_chunk, *arguments, use_reentrant=False)
            if torch.is_grad_enabled()
            else _chunk(*arguments)
        )
        logprobs.append(chunk_logprobs)
        if chunk_entropy is not None:
            entropies.append(chunk_entropy)
    return torch.cat(logprobs), torch.cat(entropies) if entropies else None


def _chunk(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    temperatures: Tensor | None,
    entropy: EntropyUse,
) -> tuple[Tensor, Tensor | None]:
    logits = head(hidden).float()
    if temperatures is not None:
        logits = logits / temperatures[:, None]
    every = torch.log_softmax(logits, dim=-1)
    # A gather, but its result is no view: FSDP hooks the outputs of the module this ends up in.
    logprobs = -nll_loss(every, targets, reduction="none")
    if entropy == "none":
        return logprobs, None
    if entropy == "metric":
        every = every.detach()
    return logprobs, -(every.exp() * every).sum(-1)
