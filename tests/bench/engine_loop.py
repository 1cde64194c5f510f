"""A plain hand-written generation loop: one static batch, equal prompts lengths, no scheduler.

What a careful author writes for one model on an afternoon: a static cache, attention over the part
in use, sampling by `multinomial`, log-probs gathered. It can do nothing but this; the engine, which
can, is measured against it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import (
    embedding,
    linear,
    rms_norm,
    scaled_dot_product_attention,
    silu,
)

from milepost.actors.engine.embedded.shape import ModelShape

Weights = dict[str, Tensor]


class StaticLoop:
    """Generates for a whole batch at once.

    Args:
        shape: a dense Qwen3 decoder with default RoPE.
        weights: float32 by Hugging Face names.
    """

    def __init__(self, shape: ModelShape, weights: dict[str, NDArray[np.float32]]) -> None:
        self._shape = shape
        self._weights = {name: torch.from_numpy(values) for name, values in weights.items()}

    @torch.inference_mode()
    def generate(
        self, prompts: NDArray[np.int32], new_tokens: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        """Sample `new_tokens` after each prompt; ids and log-probs [B, new_tokens]."""
        shape = self._shape
        batch, length = prompts.shape
        total = length + new_tokens
        sizes = (shape.num_layers, 2, batch, shape.num_kv_heads, total, shape.head_dim)
        cache = torch.zeros(sizes)
        table = self._rope_table(total)
        generator = torch.Generator().manual_seed(seed)
        ids = torch.empty(batch, new_tokens, dtype=torch.long)
        logprobs = torch.empty(batch, new_tokens)
        tokens = torch.from_numpy(prompts.astype(np.int64))
        positions = torch.arange(length)
        for index in range(new_tokens):
            logits = self._forward(tokens, positions, cache, table)
            distribution = torch.log_softmax(logits, dim=-1)
            tokens = torch.multinomial(distribution.exp(), 1, generator=generator)
            ids[:, index] = tokens[:, 0]
            logprobs[:, index] = distribution.gather(1, tokens)[:, 0]
            positions = torch.tensor([length + index])
        return ids, logprobs

    def _forward(
        self, tokens: Tensor, positions: Tensor, cache: Tensor, table: tuple[Tensor, Tensor]
    ) -> Tensor:
        weights = self._weights
        end = int(positions[-1]) + 1
        mask = torch.arange(end) <= positions[:, None]
        cosine, sine = (part[positions] for part in table)
        state = embedding(tokens, weights["model.embed_tokens.weight"])
        for layer in range(self._shape.num_layers):
            prefix = f"model.layers.{layer}"
            normed = self._norm(state, f"{prefix}.input_layernorm.weight")
            queries, keys, values = (
                linear(normed, weights[f"{prefix}.self_attn.{name}_proj.weight"])
                .view(*normed.shape[:2], -1, self._shape.head_dim)
                .transpose(1, 2)
                for name in "qkv"
            )
            queries = self._norm(queries, f"{prefix}.self_attn.q_norm.weight")
            keys = self._norm(keys, f"{prefix}.self_attn.k_norm.weight")
            cache[layer, 0, :, :, positions] = _rotated(keys, cosine, sine)
            cache[layer, 1, :, :, positions] = values
            mixed = scaled_dot_product_attention(
                _rotated(queries, cosine, sine),
                cache[layer, 0, :, :, :end],
                cache[layer, 1, :, :, :end],
                attn_mask=mask,
                enable_gqa=True,
            )
            mixed = mixed.transpose(1, 2).flatten(2)
            state = state + linear(mixed, weights[f"{prefix}.self_attn.o_proj.weight"])
            normed = self._norm(state, f"{prefix}.post_attention_layernorm.weight")
            gate = linear(normed, weights[f"{prefix}.mlp.gate_proj.weight"])
            up = linear(normed, weights[f"{prefix}.mlp.up_proj.weight"])
            state = state + linear(silu(gate) * up, weights[f"{prefix}.mlp.down_proj.weight"])
        last = self._norm(state[:, -1], "model.norm.weight")
        return linear(last, weights["model.embed_tokens.weight"])

    def _norm(self, state: Tensor, name: str) -> Tensor:
        return rms_norm(state, state.shape[-1:], self._weights[name], self._shape.norm_epsilon)

    def _rope_table(self, length: int) -> tuple[Tensor, Tensor]:
        head_dim, theta = self._shape.head_dim, self._shape.rope.theta
        inverse = theta ** -(torch.arange(0, head_dim, 2).float() / head_dim)
        angles = torch.arange(length).float()[:, None] * inverse
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()


def _rotated(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    low, high = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat((-high, low), dim=-1) * sine


def quick_start_config(vocab_size: int = 400, **changes: Any) -> dict[str, Any]:
    """`config.json` of the quick start's decoder: 0.13 M parameters."""
    return {
        "model_type": "qwen3",
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 192,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        **changes,
    }
