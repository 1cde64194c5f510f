"""What a Hugging Face `config.json` says about a decoder, and which decoders are understood."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from milepost.actors.routes import RoutesShape

MODEL_TYPES: Final = ("llama", "qwen3", "qwen3_moe")
ROPE_TYPES: Final = ("default", "linear", "llama3", "yarn")


class UnsupportedModelError(ValueError):
    """The checkpoint's architecture is not one that this engine computes exactly."""


@dataclass(frozen=True, slots=True)
class RopeShape:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864) and its long-context variants.

    Attributes:
        kind: one of `ROPE_TYPES`.
        theta: base wavelength.
        factor: how many times the context was stretched (linear, llama3, yarn).
        original_context: context length before stretching (llama3, yarn).
        low_freq_factor: llama3; wavelengths above original_context / this are stretched in full.
        high_freq_factor: llama3; wavelengths below original_context / this stay as they are.
        beta_fast: yarn; rotations above which a dimension is left alone.
        beta_slow: yarn; rotations below which a dimension is stretched in full.
        attention_factor: yarn; multiplies cosine and sine. None: 0.1 ln(factor) + 1.
        truncate: yarn; round the ramp's bounds to whole dimensions.
    """

    kind: str
    theta: float
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class ExpertsShape:
    """Mixture of experts of the sparse layers.

    Attributes:
        num_experts: routed experts of one layer.
        experts_per_token: experts that compute each token.
        width: inner size of one expert.
        normalize: rescale the chosen experts' probabilities to sum to 1.
    """

    num_experts: int
    experts_per_token: int
    width: int
    normalize: bool


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of one decoder. `sparse_layers[l]` says whether layer l is a mixture of experts."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    width: int
    norm_epsilon: float
    tied_embeddings: bool
    qk_norm: bool
    rope: RopeShape
    experts: ExpertsShape | None
    sparse_layers: tuple[bool, ...]

    @property
    def routes(self) -> RoutesShape | None:
        """What routes look like; None where no layer is a mixture of experts."""
        if self.experts is None or not any(self.sparse_layers):
            return None
        return RoutesShape(
            num_layers=sum(self.sparse_layers),
            experts_per_token=self.experts.experts_per_token,
            num_experts=self.experts.num_experts,
        )


def read_shape(folder: Path) -> ModelShape:
    """The shape of the checkpoint in `folder`, from its `config.json`.

    Raises:
        UnsupportedModelError: an architecture or option that this engine does not compute.
        FileNotFoundError: no `config.json`.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return shape_from_config(config)


def shape_from_config(config: dict[str, Any]) -> ModelShape:
    """As `read_shape`, from the decoded `config.json`."""
    model_type = config.get("model_type")
    if model_type not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        raise UnsupportedModelError(f"model_type {model_type!r} is not one of {known}")
    for key, wanted in _WANTED.items():
        if config.get(key, wanted) != wanted:
            raise UnsupportedModelError(
                f"{model_type} with {key} = {config[key]!r} is not computed"
            )
    num_heads = int(config["num_attention_heads"])
    hidden_size = int(config["hidden_size"])
    num_layers = int(config["num_hidden_layers"])
    experts, sparse_layers = _experts(config, num_layers)
    return ModelShape(
        model_type=model_type,
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=int(config.get("head_dim") or hidden_size // num_heads),
        width=int(config["intermediate_size"]),
        norm_epsilon=float(config.get("rms_norm_eps", 1e-6)),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qk_norm=model_type != "llama",
        rope=_rope(config),
        experts=experts,
        sparse_layers=sparse_layers,
    )


_WANTED: Final[dict[str, Any]] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
}
"""Options that would change the arithmetic, with the one value that is implemented."""


def _experts(
    config: dict[str, Any], num_layers: int
) -> tuple[ExpertsShape | None, tuple[bool, ...]]:
    # The key was renamed between versions of the format; a checkpoint has one or the other.
    count = int(config.get("num_experts") or config.get("num_local_experts") or 0)
    if config["model_type"] != "qwen3_moe" or count == 0:
        return None, (False,) * num_layers
    step = int(config.get("decoder_sparse_step", 1))
    dense = set(config.get("mlp_only_layers") or ())
    experts = ExpertsShape(
        num_experts=count,
        experts_per_token=int(config["num_experts_per_tok"]),
        width=int(config["moe_intermediate_size"]),
        normalize=bool(config.get("norm_topk_prob", False)),
    )
    return experts, tuple(
        layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers)
    )


def _rope(config: dict[str, Any]) -> RopeShape:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in ROPE_TYPES:
        raise UnsupportedModelError(f"rope type {kind!r} is not one of {', '.join(ROPE_TYPES)}")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError(
            f"partial_rotary_factor {rope['partial_rotary_factor']} is not 1"
        )
    if rope.get("mscale") or rope.get("mscale_all_dim"):
        raise UnsupportedModelError("yarn with mscale is not computed, use attention_factor")
    theta = rope.get("rope_theta") or config.get("rope_theta") or 10000.0
    original = rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
    return RopeShape(
        kind=kind,
        theta=float(theta),
        factor=float(rope.get("factor") or 1.0),
        original_context=int(original),
        low_freq_factor=float(rope.get("low_freq_factor") or 1.0),
        high_freq_factor=float(rope.get("high_freq_factor") or 4.0),
        beta_fast=float(rope.get("beta_fast") or 32.0),
        beta_slow=float(rope.get("beta_slow") or 1.0),
        attention_factor=rope.get("attention_factor"),
        truncate=bool(rope.get("truncate", True)),
    )
