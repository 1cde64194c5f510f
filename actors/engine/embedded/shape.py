"""What a Hugging Face `config.json` says about a decoder, and which decoders are understood."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from milepost.actors.engine.settings import (
    SettingsDamaged,
    number_of,
    read_settings,
    size_of,
    table_of,
)
from milepost.actors.routes import RoutesShape

MODEL_TYPES: Final = ("llama", "qwen3", "qwen3_moe")
ROPE_TYPES: Final = ("default", "linear", "llama3", "yarn")
LAYERS_MAX: Final = 4096
EXPERTS_MAX: Final = 1 << 15
"""Of a layer; routes carry their ids as int16 at most."""


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
        SettingsDamaged: it cannot be read, or says nonsense.
    """
    return shape_from_config(read_settings(folder))


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
    num_heads = size_of(config, "num_attention_heads")
    num_kv_heads = size_of(config, "num_key_value_heads", num_heads)
    hidden_size = size_of(config, "hidden_size")
    num_layers = size_of(config, "num_hidden_layers", most=LAYERS_MAX)
    if num_heads % num_kv_heads:
        raise SettingsDamaged(
            f"num_attention_heads = {num_heads} is no multiple of num_key_value_heads = "
            f"{num_kv_heads}"
        )
    experts, sparse_layers = _experts(config, num_layers)
    return ModelShape(
        model_type=model_type,
        vocab_size=size_of(config, "vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(config, hidden_size, num_heads),
        width=size_of(config, "intermediate_size"),
        norm_epsilon=number_of(config, "rms_norm_eps", 1e-6),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qk_norm=model_type != "llama",
        rope=_rope(config),
        experts=experts,
        sparse_layers=sparse_layers,
    )


def _head_dim(config: dict[str, Any], hidden_size: int, num_heads: int) -> int:
    given = size_of(config, "head_dim", 0)
    if not given and hidden_size % num_heads:
        raise SettingsDamaged(
            f"hidden_size = {hidden_size} is no multiple of num_attention_heads = {num_heads}, and "
            "there is no head_dim"
        )
    head_dim = given or hidden_size // num_heads
    if head_dim % 2:
        raise SettingsDamaged(f"head_dim = {head_dim} is odd: rotary embeddings turn pairs")
    return head_dim


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
    names = ("num_experts", "num_local_experts")
    count = max(size_of(config, name, 0, most=EXPERTS_MAX) for name in names)
    if config["model_type"] != "qwen3_moe" or count == 0:
        return None, (False,) * num_layers
    step = size_of(config, "decoder_sparse_step", 1)
    dense = config.get("mlp_only_layers") or []
    if not (isinstance(dense, list) and all(type(layer) is int for layer in dense)):
        raise SettingsDamaged(f"mlp_only_layers is {dense!r}, not a list of layers")
    experts = ExpertsShape(
        num_experts=count,
        experts_per_token=size_of(config, "num_experts_per_tok"),
        width=size_of(config, "moe_intermediate_size"),
        normalize=bool(config.get("norm_topk_prob", False)),
    )
    if experts.experts_per_token > count:
        raise SettingsDamaged(
            f"num_experts_per_tok = {experts.experts_per_token} of num_experts = {count}"
        )
    return experts, tuple(
        layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers)
    )


def _rope(config: dict[str, Any]) -> RopeShape:
    tables = [table_of(config, name) for name in ("rope_scaling", "rope_parameters")]
    # An empty table is none, as it is for transformers, which goes by the first one.
    first, *others = [_rope_of(config, table) for table in tables if table] or [
        _rope_of(config, {})
    ]
    if any(other != first for other in others):
        raise SettingsDamaged(
            "rope_parameters and rope_scaling disagree: leave one of them out, with all values "
            "in the other"
        )
    return first


def _rope_of(config: dict[str, Any], rope: dict[str, Any]) -> RopeShape:
    """As one of the tables says it; what it leaves out stands beside it, or is the default."""
    nested = [name for name, value in rope.items() if isinstance(value, dict)]
    if nested:
        raise UnsupportedModelError(
            f"rope tables of their own for {', '.join(nested)} are not computed, only one for all"
        )
    if None in (rope.get("rope_theta", 0), config.get("rope_theta", 0)):
        raise SettingsDamaged("rope_theta is null: give a number, or leave it out")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in ROPE_TYPES:
        raise UnsupportedModelError(f"rope type {kind!r} is not one of {', '.join(ROPE_TYPES)}")
    partial = config.get("partial_rotary_factor")
    partial = rope.get("partial_rotary_factor", 1.0 if partial is None else partial)
    if partial != 1.0:
        raise SettingsDamaged(
            f"partial_rotary_factor is {partial}, and {config['model_type']} turns whole heads"
        )
    if rope.get("mscale") or rope.get("mscale_all_dim"):
        raise UnsupportedModelError("yarn with mscale is not computed, use attention_factor")
    if kind != "default" and rope.get("factor") is None:
        raise UnsupportedModelError(f"rope type {kind!r} has no factor")
    theta = number_of(rope, "rope_theta", number_of(config, "rope_theta", 10000.0))
    original = size_of(rope, "original_max_position_embeddings", 0)
    attention_factor = rope.get("attention_factor")
    if attention_factor is not None:
        attention_factor = number_of(rope, "attention_factor", 1.0)
    return RopeShape(
        kind=kind,
        theta=theta,
        factor=number_of(rope, "factor", 1.0),
        original_context=original or size_of(config, "max_position_embeddings"),
        low_freq_factor=number_of(rope, "low_freq_factor", 1.0),
        high_freq_factor=number_of(rope, "high_freq_factor", 4.0),
        beta_fast=number_of(rope, "beta_fast", 32.0),
        beta_slow=number_of(rope, "beta_slow", 1.0),
        attention_factor=attention_factor,
        truncate=bool(rope.get("truncate", True)),
    )
