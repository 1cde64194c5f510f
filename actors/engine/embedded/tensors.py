"""What a checkpoint of a decoder is made of: names and shapes, told from sizes alone."""

from __future__ import annotations

from collections.abc import Iterator

from milepost.actors.engine.embedded.shape import ModelShape


def tensors_of(shape: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Hugging Face name and shape of each tensor; of tied embeddings, the one that is stored."""
    hidden = shape.hidden_size
    yield "model.embed_tokens.weight", (shape.vocab_size, hidden)
    for index in range(shape.num_layers):
        prefix = f"model.layers.{index}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}.{name}.weight", (hidden,)
        yield from _attention(shape, f"{prefix}.self_attn")
        yield from _feed_forward(shape, index, f"{prefix}.mlp")
    yield "model.norm.weight", (hidden,)
    if not shape.tied_embeddings:
        yield "lm_head.weight", (shape.vocab_size, hidden)


def _attention(shape: ModelShape, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, head_dim = shape.hidden_size, shape.head_dim
    q_rows, kv_rows = shape.num_heads * head_dim, shape.num_kv_heads * head_dim
    for name, rows in (("q_proj", q_rows), ("k_proj", kv_rows), ("v_proj", kv_rows)):
        yield f"{prefix}.{name}.weight", (rows, hidden)
    yield f"{prefix}.o_proj.weight", (hidden, q_rows)
    if shape.qk_norm:
        for name in ("q_norm", "k_norm"):
            yield f"{prefix}.{name}.weight", (head_dim,)


def _feed_forward(
    shape: ModelShape, index: int, prefix: str
) -> Iterator[tuple[str, tuple[int, ...]]]:
    experts = shape.experts if shape.sparse_layers[index] else None
    if experts is None:
        yield from _gated(prefix, shape.hidden_size, shape.width)
        return
    yield f"{prefix}.gate.weight", (experts.num_experts, shape.hidden_size)
    for expert in range(experts.num_experts):
        yield from _gated(f"{prefix}.experts.{expert}", shape.hidden_size, experts.width)


def _gated(prefix: str, hidden: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name in ("gate_proj", "up_proj"):
        yield f"{prefix}.{name}.weight", (width, hidden)
    yield f"{prefix}.down_proj.weight", (hidden, width)
