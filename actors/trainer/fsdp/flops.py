"""Floating-point operations of a step, and what a device could do at best.

For a row of s tokens and a layer of width h, with n heads and g key-value heads of d each:

    q          2 s h n d            k and v    4 s h g d
    scores     n s^2 d              values     n s^2 d            (causal: half of all)
    out        2 s n d h            mlp        6 s h f
    head       2 s h V, once

f is the width of the MLP; of a mixture of experts, that of all the experts that a token goes to. A
training step counts three times its forward pass; what gradient checkpointing computes again is not
counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch

TRAINING: Final = 3
"""Forward and backward pass together, in forward passes."""
DENSE: Final = frozenset({"llama", "qwen3"})
MIXTURES: Final = frozenset({"qwen3_moe"})
"""Model types whose layers are as above; of others nothing is said."""

PEAK_TFLOPS: Final[Mapping[str, float]] = MappingProxyType(
    {
        "NVIDIA A10": 125.0,
        "NVIDIA A100-PCIE-40GB": 312.0,
        "NVIDIA A100-SXM4-40GB": 312.0,
        "NVIDIA A100 80GB PCIe": 312.0,
        "NVIDIA A100-SXM4-80GB": 312.0,
        "NVIDIA B200": 2250.0,
        "NVIDIA H100 PCIe": 756.0,
        "NVIDIA H100 80GB HBM3": 989.0,
        "NVIDIA H20": 148.0,
        "NVIDIA H200": 989.0,
        "NVIDIA L4": 121.0,
        "NVIDIA L40S": 362.0,
    }
)
"""Dense bfloat16, 10^12 operations a second, from the vendor's data sheets, by the name that the
driver gives the device. A device that is not here has no utilization."""


@dataclass(frozen=True, slots=True)
class ModelFlops:
    """What a forward pass costs: `per_token * s + per_square * s^2` for a row of s tokens."""

    per_token: float
    per_square: float

    @classmethod
    def of(cls, config: Any) -> ModelFlops | None:
        """Of a Hugging Face text configuration; None for a model type that is not known here."""
        if config.model_type not in DENSE | MIXTURES:
            return None
        width, layers = config.hidden_size, config.num_hidden_layers
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        size = config.head_dim
        attention = 4 * width * heads * size + 4 * width * groups * size
        mlps = sum(6 * width * _mlp_width(config, layer) for layer in range(layers))
        head = 2 * width * config.vocab_size
        return cls(layers * attention + mlps + head, 2 * layers * heads * size)

    def forward(self, lengths: Iterable[int]) -> float:
        """Operations of a forward pass over rows of these lengths."""
        return float(sum(self.per_token * s + self.per_square * s**2 for s in lengths))


def _mlp_width(config: Any, layer: int) -> int:
    if config.model_type in MIXTURES:
        sparse = (layer + 1) % config.decoder_sparse_step == 0
        if sparse and layer not in config.mlp_only_layers and config.num_experts > 0:
            return int(config.num_experts_per_tok * config.moe_intermediate_size)
    return int(config.intermediate_size)


def peak_tflops(device: torch.device, compute: torch.dtype) -> float | None:
    """What the device does at best in this dtype, 10^12 operations a second; None: not known."""
    if device.type != "cuda" or compute != torch.bfloat16:
        return None
    return PEAK_TFLOPS.get(torch.cuda.get_device_name(device))


def tflops_metrics(
    forward: float, recomputed: float, *, train_s: float, log_probs_s: float, peak: float | None
) -> dict[str, float]:
    """Speed of a step, for one rank.

    Args:
        forward: operations of one forward pass over all rows, a rank's share.
        recomputed: of those rows whose old log-probs were computed apart, a rank's share.
        train_s: forward, backward and optimizer.
        log_probs_s: computing the old log-probs.
        peak: of the device, if it is known.
    """
    metrics: dict[str, float] = {}
    if recomputed and log_probs_s > 0:
        metrics["perf/log_probs_tflops"] = recomputed / log_probs_s / 1e12
    if forward and train_s > 0:
        trained = TRAINING * forward / train_s / 1e12
        metrics["perf/actor_train_tflops"] = trained
        if peak is not None:
            metrics["perf/mfu_peak_tflops"] = peak
            metrics["perf/actor_train_mfu"] = trained / peak
    return metrics
