"""A fresh, untrained checkpoint as a Hugging Face folder, without the library that reads it.

The architecture is exactly Qwen3's (query/key norms, grouped-query attention, rotary positions,
SwiGLU, tied embeddings), so `Qwen3ForCausalLM` loads the folder.

The initialisation is what makes so small a model learn to copy from its context within a minute:
embeddings with standard deviation d^-0.5, and output projections of attention and feed-forward at
zero, so that each layer starts as the identity. With the usual 0.02 the loss rests on a plateau
("knows the format, ignores the last tool result") for most of the quick start's budget.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, convert
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from milepost.configs.recipes.tiny.tokenizer import PADDING, STOP, train_tokenizer, write_tokenizer
from milepost.configs.seeds import derive_seed


class Shape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of the model. The defaults are 0.12 M parameters."""

    vocabulary: int = 400
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head: int = 16
    feed_forward: int = 192
    context_tokens_max: int = 1024


ROPE_THETA = 10000.0


def config_of(shape: Shape, tokenizer: Tokenizer) -> dict[str, Any]:
    """config.json of the model."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": ROPE_THETA,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "max_position_embeddings": shape.context_tokens_max,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": tokenizer.token_to_id(STOP),
        "pad_token_id": tokenizer.token_to_id(PADDING),
    }


def initial_weights(shape: Shape, seed: int) -> dict[str, NDArray[np.float32]]:
    """All parameters, float32, under their Hugging Face names; the tied output head is left out."""
    generator = np.random.Generator(np.random.PCG64(derive_seed(seed, "weights")))
    hidden, wide = shape.hidden, shape.feed_forward
    query, key = shape.heads * shape.head, shape.kv_heads * shape.head

    def normal(rows: int, columns: int) -> NDArray[np.float32]:
        values = generator.standard_normal((rows, columns), dtype=np.float32)
        return values * np.float32(hidden**-0.5)

    def ones(size: int) -> NDArray[np.float32]:
        return np.ones(size, dtype=np.float32)

    weights = {"model.embed_tokens.weight": normal(shape.vocabulary, hidden)}
    for layer in range(shape.layers):
        name = f"model.layers.{layer}"
        weights |= {
            f"{name}.input_layernorm.weight": ones(hidden),
            f"{name}.self_attn.q_proj.weight": normal(query, hidden),
            f"{name}.self_attn.k_proj.weight": normal(key, hidden),
            f"{name}.self_attn.v_proj.weight": normal(key, hidden),
            f"{name}.self_attn.o_proj.weight": np.zeros((hidden, query), dtype=np.float32),
            f"{name}.self_attn.q_norm.weight": ones(shape.head),
            f"{name}.self_attn.k_norm.weight": ones(shape.head),
            f"{name}.post_attention_layernorm.weight": ones(hidden),
            f"{name}.mlp.gate_proj.weight": normal(wide, hidden),
            f"{name}.mlp.up_proj.weight": normal(wide, hidden),
            f"{name}.mlp.down_proj.weight": np.zeros((hidden, wide), dtype=np.float32),
        }
    weights["model.norm.weight"] = ones(hidden)
    return weights


def write_checkpoint(
    folder: Path, seed: int, texts: Iterable[str], values: Sequence[str], options: dict[str, Any]
) -> None:
    """Write config, generation config, weights, tokenizer and chat template into `folder`.

    The same arguments write the same bytes.

    Args:
        folder: made when it is missing.
        seed: of the weights.
        texts: rendered conversations the tokenizer is trained on.
        values: words of the task that are one token each.
        options: fields of `Shape`.

    Raises:
        msgspec.ValidationError: an option that is no field of `Shape`.
        ValueError: the texts do not yield a vocabulary of the size asked for.
    """
    shape = convert(options, Shape)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(texts, values, size=shape.vocabulary)
    write_tokenizer(folder, tokenizer, context_tokens_max=shape.context_tokens_max)
    config = config_of(shape, tokenizer)
    stops = {key: config[key] for key in ("eos_token_id", "pad_token_id")}
    for file, content in (("config.json", config), ("generation_config.json", stops)):
        (folder / file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    save_file(initial_weights(shape, seed), folder / "model.safetensors", metadata={"format": "pt"})
