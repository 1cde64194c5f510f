"""Attention of the tokens of one forward pass to the rows of the static cache.

The tokens of a pass fall into groups, one after the other: all rows that decode (one query each),
then rows in prefill, those with similar numbers of queries together. Queries of decoding rows that
share a key/value head attend as one block: grouped-query attention (Ainslie et al. 2023,
arXiv:2305.13245) needs no copy of keys and values.
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
    """R rows with P queries each, short ones padded; they are tokens [first, end) of the pass.

    Attributes:
        rows: int64 [R] of the cache.
        first: first token of the pass.
        end: first + R * P.
        length: keys in use, over all rows.
        bias: [R, 1, P, length]; None when every row starts at position 0 (then plain causal).
    """

    rows: Tensor
    first: int
    end: int
    length: int
    bias: Tensor | None

    def attend(self, cached: Tensor, queries: Tensor) -> Tensor:
        """Attention of the group; [R * P, heads * head_dim] comes back.

        Args:
            cached: [slots, positions, 2, kv_heads, head_dim] of one layer.
            queries: [N, heads, head_dim] of the whole pass.
        """
        heads, head_dim = queries.shape[1:]
        blocks = queries[self.first : self.end].view(self.rows.shape[0], -1, heads, head_dim)
        window = cached[:, : self.length].index_select(0, self.rows)
        keys, values = window.transpose(1, 3).unbind(2)
        if blocks.is_cuda and keys.shape[1] != heads:
            # The fused CUDA kernels that take a bias want one key head for each query head.
            share = heads // keys.shape[1]
            keys, values = (x.repeat_interleave(share, dim=1) for x in (keys, values))
        mixed = scaled_dot_product_attention(
            blocks.transpose(1, 2),
            keys,
            values,
            attn_mask=self.bias,
            is_causal=self.bias is None,
            enable_gqa=keys.shape[1] != heads,
        )
        return mixed.transpose(1, 2).reshape(-1, heads * head_dim)


def attend(
    decode: DecodeGroup | None,
    prefill: tuple[PrefillGroup, ...],
    cache: KeyValueCache,
    layer: int,
    queries: Tensor,
) -> Tensor:
    """All attention of one layer: queries [N, heads, head_dim] to [N, heads * head_dim]."""
    parts = []
    if decode is not None:
        parts.append(decode.attend(layer, queries[: decode.num_tokens]))
    parts += [group.attend(cache.values[layer], queries) for group in prefill]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
