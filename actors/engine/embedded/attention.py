"""Attention of the tokens of one forward pass to the rows of the static cache.

The tokens of a pass are packed without padding. For attention they fall into groups: all rows that
decode (one query each), and rows in prefill of similar lengths. Queries of one key/value head
attend as one block: grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245) needs no copy
of keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from milepost.actors.engine.embedded.cache import KeyValueCache


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """W rows with one query each; they are tokens [0, W) of the pass.

    Attributes:
        sources: per layer, a view of the part of the cache in use. Without `rows` it is
            [W, kv_heads, 2, L, head_dim], exactly these rows; with them it is
            [slots, L, 2, kv_heads, head_dim], and the rows are copied out of it.
        rows: int64 [W], or None when they lie side by side.
        bias: [W, 1, 1, L], 0 where a key may be seen, -inf elsewhere.
    """

    sources: tuple[Tensor, ...]
    rows: Tensor | None
    bias: Tensor

    @property
    def num_tokens(self) -> int:
        """W."""
        return self.bias.shape[0]

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """Attention of queries [W, heads, head_dim]; [W, heads * head_dim] comes back."""
        source = self.sources[layer]
        if self.rows is not None:
            source = source.index_select(0, self.rows).transpose(1, 3)
        keys, values = source.unbind(2)
        rows, kv_heads, length, head_dim = keys.shape
        blocks = queries.reshape(rows, kv_heads, -1, head_dim)
        bias = self.bias.expand(rows, 1, blocks.shape[2], length)
        mixed = scaled_dot_product_attention(blocks, keys, values, attn_mask=bias)
        return mixed.reshape(rows, -1)


@dataclass(frozen=True, slots=True)
class PrefillGroup:
    """R rows with up to P queries each.

    Attributes:
        rows: int64 [R] of the cache.
        gather: int64 [R * P], the token of each query; short rows repeat any token.
        scatter: int64 [tokens], where in the R * P queries each real one lies.
        tokens: int64 [tokens], where in the pass each real one lies.
        length: keys in use, over all rows.
        bias: [R, 1, P, length]; None when every row starts at position 0 (then plain causal).
    """

    rows: Tensor
    gather: Tensor
    scatter: Tensor
    tokens: Tensor
    length: int
    bias: Tensor | None

    def attend(self, cached: Tensor, queries: Tensor, mixed: Tensor) -> None:
        """Write the group's part of `mixed`.

        Args:
            cached: [slots, positions, 2, kv_heads, head_dim] of one layer.
            queries: [N, heads, head_dim].
            mixed: [N, heads * head_dim].
        """
        num_rows = self.rows.shape[0]
        heads, head_dim = queries.shape[1:]
        blocks = queries.index_select(0, self.gather).view(num_rows, -1, heads, head_dim)
        window = cached[:, : self.length].index_select(0, self.rows)
        keys, values = window.transpose(1, 3).unbind(2)
        if blocks.is_cuda and keys.shape[1] != heads:
            # The fused CUDA kernels that take a bias want one key head for each query head.
            share = heads // keys.shape[1]
            keys, values = (x.repeat_interleave(share, dim=1) for x in (keys, values))
        result = scaled_dot_product_attention(
            blocks.transpose(1, 2),
            keys,
            values,
            attn_mask=self.bias,
            is_causal=self.bias is None,
            enable_gqa=keys.shape[1] != heads,
        )
        flat = result.transpose(1, 2).reshape(-1, heads * head_dim)
        mixed.index_copy_(0, self.tokens, flat.index_select(0, self.scatter))


def attend(
    decode: DecodeGroup | None,
    prefill: tuple[PrefillGroup, ...],
    cache: KeyValueCache,
    layer: int,
    queries: Tensor,
) -> Tensor:
    """All attention of one layer: queries [N, heads, head_dim] to [N, heads * head_dim]."""
    if decode is not None and not prefill:
        return decode.attend(layer, queries)
    mixed = torch.empty_like(queries).view(queries.shape[0], -1)
    if decode is not None:
        mixed[: decode.num_tokens] = decode.attend(layer, queries[: decode.num_tokens])
    for group in prefill:
        group.attend(cache.values[layer], queries, mixed)
    return mixed


def causal_bias(positions: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """0 for keys up to each query's position, -inf after it.

    Args:
        positions: int64 [R, P].
        length: keys.
        dtype: of the result, as the queries'.

    Returns:
        [R, 1, P, length].
    """
    device = positions.device
    hidden = torch.arange(length, device=device) > positions[:, None, :, None]
    seen = torch.zeros((), dtype=dtype, device=device)
    return torch.where(hidden, float("-inf"), seen)
