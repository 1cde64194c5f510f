"""A hand-written Qwen3 for float32 on one CPU thread: full passes to train, a cache to generate."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

# Shape suffixes: B rows, T positions, D hidden, H query heads, K key/value heads, G = H / K, C head
# size, V vocabulary, N selected positions.


class Cache:
    """Keys and values of B rows, up to `length` positions each."""

    def __init__(self, policy: Policy, rows: int, length: int) -> None:
        shape = (rows, policy.kv_heads, length, policy.head)
        self.keys = [torch.zeros(shape) for _ in range(policy.layers)]
        self.values = [torch.zeros(shape) for _ in range(policy.layers)]
        self.length = length


class Policy:
    """The parameters of one checkpoint and the forward passes over them."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        self.layers: int = config["num_hidden_layers"]
        self.heads: int = config["num_attention_heads"]
        self.kv_heads: int = config["num_key_value_heads"]
        self.head: int = config["head_dim"]
        self.epsilon: float = config["rms_norm_eps"]
        self.weights = {
            name: tensor.requires_grad_()
            for name, tensor in load_file(folder / "model.safetensors").items()
        }
        angles = _angles(config["rope_theta"], self.head, config["max_position_embeddings"])
        self._cos, self._sin = angles.cos(), angles.sin()

    def save(self, path: Path) -> None:
        """Write the parameters as safetensors."""
        tensors = {name: tensor.detach() for name, tensor in self.weights.items()}
        save_file(tensors, path, metadata={"format": "pt"})

    def hidden_btd(self, ids_bt: Tensor) -> Tensor:
        """Final hidden states of right-padded rows, int64 [B, T] -> float32 [B, T, D]."""
        positions = torch.arange(ids_bt.shape[1])
        x = self.weights["model.embed_tokens.weight"][ids_bt]
        for layer in range(self.layers):
            q, k, v = self._project(layer, x, positions)
            k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (k, v))
            mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
            x = self._finish(layer, x, mixed)
        return self._norm(x, "model.norm")

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V]."""
        return linear(hidden, self.weights["model.embed_tokens.weight"])

    def extend(self, cache: Cache, rows: Tensor, ids_bt: Tensor, starts_b: Tensor) -> Tensor:
        """Append right-padded tokens to cached rows; final hidden states [B, T, D].

        What lies behind a row's own tokens is overwritten by the row's next call, before any
        query can see it.
        """
        num_rows, num_new = ids_bt.shape
        groups = self.heads // self.kv_heads
        positions_bt = starts_b[:, None] + torch.arange(num_new)
        # The cache never needs to be read beyond the longest row.
        end = int(positions_bt.max()) + 1
        seen = torch.arange(end) <= positions_bt[:, :, None]
        seen = seen[:, None, None].expand(-1, -1, groups, -1, -1).reshape(num_rows, 1, -1, end)
        x = self.weights["model.embed_tokens.weight"][ids_bt]
        for layer in range(self.layers):
            q, k, v = self._project(layer, x, positions_bt)
            index = (rows[:, None], slice(None), positions_bt)
            cache.keys[layer][index] = k.transpose(1, 2)
            cache.values[layer][index] = v.transpose(1, 2)
            keys = cache.keys[layer][rows, :, :end]
            values = cache.values[layer][rows, :, :end]
            # The query heads that share a key head stand side by side as further queries of it.
            q = q.reshape(num_rows, self.kv_heads, groups * num_new, self.head)
            mixed = scaled_dot_product_attention(q, keys, values, attn_mask=seen)
            mixed = mixed.reshape(num_rows, self.heads, num_new, self.head)
            x = self._finish(layer, x, mixed)
        return self._norm(x, "model.norm")

    def _project(self, layer: int, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        name = f"model.layers.{layer}"
        x = self._norm(x, f"{name}.input_layernorm")
        rows, length, _ = x.shape
        q, k, v = (
            linear(x, self.weights[f"{name}.self_attn.{part}_proj.weight"]).view(
                rows, length, -1, self.head
            )
            for part in "qkv"
        )
        cos, sin = (t[positions].unsqueeze(-2) for t in (self._cos, self._sin))
        q = _rotate(self._norm(q, f"{name}.self_attn.q_norm"), cos, sin)
        k = _rotate(self._norm(k, f"{name}.self_attn.k_norm"), cos, sin)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def _finish(self, layer: int, x: Tensor, mixed_bhtc: Tensor) -> Tensor:
        name = f"model.layers.{layer}"
        mixed = mixed_bhtc.transpose(1, 2).flatten(2)
        x = x + linear(mixed, self.weights[f"{name}.self_attn.o_proj.weight"])
        y = self._norm(x, f"{name}.post_attention_layernorm")
        gate = silu(linear(y, self.weights[f"{name}.mlp.gate_proj.weight"]))
        up = linear(y, self.weights[f"{name}.mlp.up_proj.weight"])
        return x + linear(gate * up, self.weights[f"{name}.mlp.down_proj.weight"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.epsilon)


def _angles(theta: float, head: int, length: int) -> Tensor:
    frequencies = theta ** -(torch.arange(0, head, 2).float() / head)
    angles = torch.arange(length)[:, None] * frequencies
    return torch.cat([angles, angles], dim=-1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin
