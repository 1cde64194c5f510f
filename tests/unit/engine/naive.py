"""The slow, obvious decoder and sampler that the engine is compared with.

One row at a time, one token at a time, float64, no batching, no sharing, no fused weights. A row
remembers keys and values as they were computed, so it can also tell what should come out when the
weights change in the middle of a reply.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from milepost.actors.engine.embedded.shape import ModelShape
from milepost.messages.shared import SamplingParams

Array = NDArray[np.float64]
Weights = dict[str, NDArray[np.float32]]


class NaiveRow:
    """One row of tokens under explicit weights. Default RoPE only.

    `routes` has the experts of each token, sorted: [token][mixture layer].
    """

    def __init__(self, shape: ModelShape) -> None:
        self._shape = shape
        self._keys: list[list[Array]] = [[] for _ in range(shape.num_layers)]
        self._values: list[list[Array]] = [[] for _ in range(shape.num_layers)]
        self.routes: list[list[list[int]]] = []

    def feed(self, token: int, weights: Weights) -> Array:
        """Logits float64 [vocab] after one more token, computed with these weights."""
        shape = self._shape
        position = len(self._keys[0])
        self.routes.append([])
        state = weights["model.embed_tokens.weight"][token].astype(np.float64)
        for layer in range(shape.num_layers):
            prefix = f"model.layers.{layer}"
            normed = self._norm(state, weights[f"{prefix}.input_layernorm.weight"])
            state = state + self._attend(layer, normed, position, weights)
            normed = self._norm(state, weights[f"{prefix}.post_attention_layernorm.weight"])
            state = state + self._feed_forward(f"{prefix}.mlp", normed, weights)
        state = self._norm(state, weights["model.norm.weight"])
        head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
        return as_float64(head @ state)

    def _attend(self, layer: int, normed: Array, position: int, weights: Weights) -> Array:
        shape, prefix = self._shape, f"model.layers.{layer}.self_attn"
        queries = (weights[f"{prefix}.q_proj.weight"] @ normed).reshape(shape.num_heads, -1)
        keys = (weights[f"{prefix}.k_proj.weight"] @ normed).reshape(shape.num_kv_heads, -1)
        values = (weights[f"{prefix}.v_proj.weight"] @ normed).reshape(shape.num_kv_heads, -1)
        if shape.qk_norm:
            queries = self._norm(queries, weights[f"{prefix}.q_norm.weight"])
            keys = self._norm(keys, weights[f"{prefix}.k_norm.weight"])
        self._keys[layer].append(self._rotate(keys, position))
        self._values[layer].append(values)
        queries = self._rotate(queries, position)
        share = shape.num_heads // shape.num_kv_heads
        mixed = []
        for head in range(shape.num_heads):
            seen = np.array([key[head // share] for key in self._keys[layer]])
            known = np.array([value[head // share] for value in self._values[layer]])
            weight = softmax(seen @ queries[head] / math.sqrt(shape.head_dim))
            mixed.append(weight @ known)
        return as_float64(weights[f"{prefix}.o_proj.weight"] @ np.concatenate(mixed))

    def _feed_forward(self, prefix: str, normed: Array, weights: Weights) -> Array:
        if f"{prefix}.gate.weight" not in weights:
            return swiglu(prefix, normed, weights)
        experts = self._shape.experts
        assert experts is not None
        shares = softmax(weights[f"{prefix}.gate.weight"] @ normed)
        chosen = np.argsort(-shares)[: experts.experts_per_token]
        self.routes[-1].append(sorted(chosen.tolist()))
        total = shares[chosen].sum() if experts.normalize else 1.0
        parts = [
            shares[expert] / total * swiglu(f"{prefix}.experts.{expert}", normed, weights)
            for expert in chosen
        ]
        return as_float64(np.sum(parts, axis=0))

    def _norm(self, state: Array, weight: NDArray[np.float32]) -> Array:
        mean = (state**2).mean(axis=-1, keepdims=True)
        return as_float64(state / np.sqrt(mean + self._shape.norm_epsilon) * weight)

    def _rotate(self, heads: Array, position: int) -> Array:
        half = self._shape.head_dim // 2
        angles = position * self._shape.rope.theta ** (-np.arange(half) / half)
        low, high = heads[:, :half], heads[:, half:]
        cosine, sine = np.cos(angles), np.sin(angles)
        return np.concatenate((low * cosine - high * sine, high * cosine + low * sine), axis=1)


def as_float64(values: NDArray[Any]) -> Array:
    return values.astype(np.float64, copy=False)


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max())
    return as_float64(powers / powers.sum())


def swiglu(prefix: str, normed: Array, weights: Weights) -> Array:
    gate = weights[f"{prefix}.gate_proj.weight"] @ normed
    up = weights[f"{prefix}.up_proj.weight"] @ normed
    inner = gate / (1 + np.exp(-gate)) * up
    return as_float64(weights[f"{prefix}.down_proj.weight"] @ inner)


def distribution(logits: Array, sampling: SamplingParams) -> Array:
    """Probabilities [vocab] that a token is drawn from, token by token as the words say it."""
    if sampling.temperature == 0:
        return softmax(logits)
    probabilities = softmax(logits / sampling.temperature)
    ranking = sorted(range(len(probabilities)), key=lambda token: -probabilities[token])
    if sampling.top_k:
        ranking = ranking[: sampling.top_k]
    mass = sum(probabilities[token] for token in ranking)
    kept: list[int] = []
    before = 0.0
    for token in ranking:
        if sampling.top_p < 1 and before >= sampling.top_p and kept:
            break
        kept.append(token)
        before += probabilities[token] / mass
    kept = [t for t in kept if probabilities[t] >= sampling.min_p * probabilities[ranking[0]]]
    result = np.zeros_like(probabilities)
    result[kept] = probabilities[kept]
    return as_float64(result / result.sum())
