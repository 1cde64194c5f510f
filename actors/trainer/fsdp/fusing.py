"""Which layers of a loaded model are replaced by ones that pass over memory less often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from milepost.actors.trainer.fsdp.attention import make_layout
from milepost.actors.trainer.fsdp.norms import FusedRMSNorm
from milepost.actors.trainer.fsdp.rotary import FusedAttention, Hook, widened

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NORMS: Final = frozenset({"LlamaRMSNorm", "Qwen3RMSNorm", "Qwen3MoeRMSNorm"})
ATTENTIONS: Final = frozenset({"LlamaAttention", "Qwen3Attention", "Qwen3MoeAttention"})
"""Classes of transformers; all of a kind compute the same."""

CHANGED: Final = (AttributeError, TypeError)
"""Of a layer that a release of transformers has given other attributes or arguments."""

PROBE_LENGTHS: Final = (3, 2)
PROBE_TOLERANCE: Final = 1e-5
"""Largest difference to what a replacement computes, as a share of the largest value."""


def fuse(lm: PreTrainedModel) -> tuple[str, ...]:
    """Replace norms and attention layers of a model that computes in float32 on the CPU.

    Small models are bound by memory traffic there, and most of a norm's or a rotation's traffic is
    intermediate results. Names and tensors of parameters stay as they are. Layers of other classes
    stay too, and so do known ones that compute something else than their replacement: a release of
    transformers may change what a name means.

    Args:
        lm: on the CPU, in float32, not sharded. Goes on to be called with packed rows only.

    Returns:
        Names of the classes that were replaced, in sorted order.
    """
    return tuple(sorted(_fuse_attentions(lm) | _fuse_norms(lm)))


def _fuse_norms(lm: PreTrainedModel) -> set[str]:
    replaced: set[str] = set()
    alike: dict[type[Any], bool] = {}
    for parent, name, old in _layers(lm, NORMS):
        kind = type(old)
        if kind not in alike:
            alike[kind] = _is_known_norm(old)
        if alike[kind]:
            setattr(parent, name, _fused_norm(old))
            replaced.add(kind.__name__)
    return replaced


def _fused_norm(old: Any) -> FusedRMSNorm:
    return FusedRMSNorm(old.weight, old.variance_epsilon)


def _is_known_norm(old: Any) -> bool:
    try:
        new = _fused_norm(old)
        states = _probe(new.weight.shape[0])
        return _agree(_computed(old, states), _computed(new, states))
    except CHANGED:
        return False


def _fuse_attentions(lm: PreTrainedModel) -> set[str]:
    """All of them or none: tables of angles are made for all layers at once."""
    found = _layers(lm, ATTENTIONS)
    if not found:
        return set()
    try:
        rotary: Any = lm.base_model.rotary_emb
        replacements = [FusedAttention(old) for _, _, old in found]
        widen = widened(max(each.num_heads for each in replacements))
        one_of_each = {
            type(old): (old, new) for (_, _, old), new in zip(found, replacements, strict=True)
        }
        alike = all(_is_known_attention(*pair, rotary, widen) for pair in one_of_each.values())
    except CHANGED:
        alike = False
    if not alike:
        return set()
    rotary.register_forward_hook(widen)
    for (parent, name, _), replacement in zip(found, replacements, strict=True):
        setattr(parent, name, replacement)
    return {type(each).__name__ for _, _, each in found}


def _is_known_attention(old: Any, new: FusedAttention, rotary: Any, widen: Hook) -> bool:
    states = _probe(new.q_proj.in_features)
    positions = torch.cat([torch.arange(length) for length in PROBE_LENGTHS])
    tables = rotary(states, positions[None])
    layout = make_layout(PROBE_LENGTHS, states.device)
    expected, computed = (
        _computed(layer, states, position_embeddings=each, attention_mask=None, layout=layout)
        for layer, each in ((old, tables), (new, widen(rotary, None, tables)))
    )
    return _agree(expected, computed)


def _layers(lm: nn.Module, names: frozenset[str]) -> list[tuple[nn.Module, str, Any]]:
    """Layers of the classes named, each with its parent and its name there."""
    return [
        (parent, name, child)
        for parent in lm.modules()
        for name, child in parent.named_children()
        if type(child).__name__ in names
    ]


def _probe(size: int) -> Tensor:
    """States of a few tokens, [1, T, size]: values between -1 and 1, no two rows alike."""
    num_tokens = sum(PROBE_LENGTHS)
    return torch.arange(num_tokens * size, dtype=torch.float32).sin().view(1, num_tokens, size)


def _computed(layer: nn.Module, states: Tensor, **told: Any) -> Tensor:
    """What a layer makes of states, dropout aside."""
    training = layer.training
    try:
        with torch.no_grad():
            output = layer.eval()(states, **told)
    finally:
        layer.train(training)
    computed: Tensor = output[0] if isinstance(output, tuple) else output
    return computed


def _agree(expected: Tensor, computed: Tensor) -> bool:
    """Whether they are the same to float32 rounding."""
    if expected.shape != computed.shape:
        return False
    difference = (expected - computed).abs().max()
    return bool(difference <= PROBE_TOLERANCE * expected.abs().max())
