"""The shape of Qwen3-0.6B with random weights: large enough to measure, made on the spot."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xxhash

from milepost.actors.arrays import to_bulk
from milepost.actors.engine.embedded.parameters import Parameters
from milepost.actors.engine.embedded.shape import shape_from_config
from milepost.messages.bulk import Bulk
from milepost.messages.engine import TensorSpec

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "tie_word_embeddings": True,
    "eos_token_id": 151645,
}
BUCKET_BYTES = 256 << 20


class Weights:
    """One version: tensors on the CPU, as the publisher would send them.

    Args:
        seed: of the values.
        config: of the model.
    """

    def __init__(self, seed: int, config: dict[str, Any]) -> None:
        dtype = torch.bfloat16
        manifest = Parameters(shape_from_config(config), dtype, torch.device("meta")).manifest
        device = "cuda" if torch.cuda.is_available() else "cpu"
        generator = torch.Generator(device).manual_seed(seed)
        self.specs: tuple[TensorSpec, ...] = manifest
        self.tensors: dict[str, torch.Tensor] = {}
        hasher = xxhash.xxh3_128()
        for spec in manifest:
            values = torch.ones(spec.shape, device=device)
            if len(spec.shape) > 1:
                values = torch.randn(spec.shape, generator=generator, device=device) * 0.02
            self.tensors[spec.name] = values.to(dtype).cpu()
            hasher.update(spec.name.encode())
            hasher.update(self.bulk(spec.name).data)
        self.digest = hasher.hexdigest()

    def bulk(self, name: str) -> Bulk:
        return to_bulk(self.tensors[name].view(torch.uint16).numpy(), "bfloat16")

    def buckets(self) -> list[list[str]]:
        """Names of tensors that travel together."""
        found: list[list[str]] = [[]]
        size = 0
        for spec in self.specs:
            num_bytes = self.tensors[spec.name].nbytes
            if found[-1] and size + num_bytes > BUCKET_BYTES:
                found.append([])
                size = 0
            found[-1].append(spec.name)
            size += num_bytes
        return found


def prompts(count: int, length: int, vocabulary: int, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.integers(10, vocabulary, length).astype(np.int32) for _ in range(count)]
