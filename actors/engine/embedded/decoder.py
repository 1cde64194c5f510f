"""The forward pass of a decoder-only transformer over packed tokens and a static cache.

Written for few, small operations: on one core the time of a small model is their number. The
arithmetic and its roundings are those of the Hugging Face modules of the same checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, rms_norm
from torch.nn.functional import embedding, linear, silu

from milepost.actors.engine.embedded.attention import DecodeGroup, PrefillGroup, attend
from milepost.actors.engine.embedded.cache import KeyValueCache
from milepost.actors.engine.embedded.experts import mix_experts, route
from milepost.actors.engine.embedded.parameters import (
    DenseWeights,
    LayerWeights,
    Parameters,
)
from milepost.actors.engine.embedded.rope import half_swaps, rope_table, rotate_
from milepost.actors.engine.embedded.shape import ModelShape


@dataclass(frozen=True, slots=True)
class Batch:
    """N tokens of one forward pass; first those of the decode group, then prefill.

    Attributes:
        ids: int64 [N].
        positions: int64 [N], position of each token in its row.
        write_index: int64 [N], where keys and values go in the flattened cache.
        decode: rows that decode, if any.
        prefill: rows in prefill.
    """

    ids: Tensor
    positions: Tensor
    write_index: Tensor
    decode: DecodeGroup | None
    prefill: tuple[PrefillGroup, ...]


class Decoder:
    """Qwen3, Qwen3-MoE and Llama decoders.

    Args:
        shape: sizes.
        cache: keys and values are written to and read from it.
    """

    def __init__(self, shape: ModelShape, cache: KeyValueCache) -> None:
        self._shape, self._cache = shape, cache
        dtype, device = cache.values.dtype, cache.values.device
        self._table = rope_table(shape.rope, shape.head_dim, cache.num_positions, dtype).to(device)
        self._is_single = dtype == torch.float32
        self._turning = shape.num_heads + shape.num_kv_heads
        self._swaps = half_swaps(self._turning, device)

    @property
    def is_dense(self) -> bool:
        """No layer is a mixture of experts, whose work depends on what the router picks."""
        return not any(self._shape.sparse_layers)

    def hidden(
        self, weights: Parameters, batch: Batch, routes: list[Tensor] | None = None
    ) -> Tensor:
        """Last hidden states [N, hidden], before the final norm.

        Args:
            weights: one whole version.
            batch: the tokens; their keys and values are in the cache afterwards.
            routes: when given, gets int64 [N, k] expert ids of each sparse layer.
        """
        cosine, signed_sine = self._table.index_select(0, batch.positions).unbind(1)
        state = embedding(batch.ids, weights.embedding)
        for index, layer in enumerate(weights.layers):
            mixed = self._attention(index, layer, state, batch, cosine, signed_sine)
            self._add_product(state, mixed, layer.output_t)
            self._feed_forward(layer, state, routes)
        return state

    def logits(self, weights: Parameters, states: Tensor) -> Tensor:
        """float32 [M, vocab] of hidden states [M, hidden]."""
        return linear(self._norm(states, weights.final_norm), weights.head).float()

    def _attention(
        self,
        index: int,
        layer: LayerWeights,
        state: Tensor,
        batch: Batch,
        cosine: Tensor,
        signed_sine: Tensor,
    ) -> Tensor:
        shape = self._shape
        qkv = linear(self._norm(state, layer.input_norm), layer.qkv)
        turning = qkv[:, : self._turning * shape.head_dim].view(-1, self._turning, shape.head_dim)
        heads = turning if layer.qk_norm is None else self._head_norm(turning, layer.qk_norm)
        # Back into place, so that keys lie beside values and one write caches both.
        rotate_(heads, cosine, signed_sine, self._swaps, out=turning)
        self._cache.flat[index].index_copy_(
            0, batch.write_index, qkv[:, shape.num_heads * shape.head_dim :]
        )
        queries = turning[:, : shape.num_heads]
        return attend(batch.decode, batch.prefill, self._cache, index, queries)

    def _feed_forward(
        self, layer: LayerWeights, state: Tensor, routes: list[Tensor] | None
    ) -> None:
        normed = self._norm(state, layer.post_norm)
        weights = layer.feed_forward
        if isinstance(weights, DenseWeights):
            gate, up = linear(normed, weights.gate_up).chunk(2, dim=-1)
            self._add_product(state, silu(gate).mul_(up), weights.down_t)
            return
        assert self._shape.experts is not None, "experts without a shape"
        chosen, shares = route(normed, weights.router, self._shape.experts)
        if routes is not None:
            routes.append(chosen)
        state.add_(mix_experts(normed, chosen, shares, weights))

    def _add_product(self, state: Tensor, inputs: Tensor, weight_t: Tensor) -> None:
        if self._is_single:
            state.addmm_(inputs, weight_t)
        else:
            # The reference rounds the product to bfloat16 before it adds.
            state.add_(inputs @ weight_t)

    def _norm(self, state: Tensor, weight: Tensor) -> Tensor:
        """Root mean square norm (Zhang and Sennrich 2019, arXiv:1910.07467)."""
        epsilon = self._shape.norm_epsilon
        if self._is_single:
            return rms_norm(state, weight.shape, weight, epsilon)
        # The reference rounds to bfloat16 before it applies the weight.
        return rms_norm(state, weight.shape, None, epsilon) * weight

    def _head_norm(self, heads: Tensor, weight: Tensor) -> Tensor:
        normed = rms_norm(heads, heads.shape[-1:], None, self._shape.norm_epsilon)
        return normed * weight
