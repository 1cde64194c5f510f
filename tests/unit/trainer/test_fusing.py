"""Layers that are replaced on the CPU compute what those of transformers compute."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from unit.trainer.kit import VOCABULARY, write_model

from milepost.actors.trainer.fsdp.attention import make_layout, padded_attention
from milepost.actors.trainer.fsdp.fusing import fuse
from milepost.actors.trainer.fsdp.group import RankGroup
from milepost.actors.trainer.fsdp.model import PackedPolicy, load_model
from milepost.actors.trainer.fsdp.norms import FusedRMSNorm
from milepost.actors.trainer.fsdp.packing import Packed, pack
from milepost.actors.trainer.fsdp.rotary import rotate, widened
from milepost.actors.trainer.fsdp.shard import ShardedPolicy
from milepost.actors.trainer.rows import Row

CPU = torch.device("cpu")
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
NAMES = {"qwen3": "Qwen3", "llama": "Llama", "qwen3_moe": "Qwen3Moe"}


def classes_of(architecture: str) -> Any:
    return import_module(f"transformers.models.{architecture}.modeling_{architecture}")


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()


def tables(num_tokens: int, size: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Cosines and sines of transformers: [1, T, D], both halves alike."""
    angles = torch.arange(num_tokens, dtype=dtype)[:, None] / (1 + torch.arange(size // 2))
    angles = torch.cat((angles, angles), dim=-1)[None]
    return angles.cos(), angles.sin()


def packed_rows(lengths: tuple[int, ...] = (9, 30, 2, 31)) -> Packed:
    generator = np.random.default_rng(1)
    rows = [
        Row(
            token_ids=generator.integers(0, VOCABULARY, length).astype(np.int32),
            loss_positions=np.arange(1, length),
            rollout_logprobs=np.zeros(length - 1, np.float32),
            versions=np.zeros(length - 1, np.int64),
        )
        for length in lengths
    ]
    return pack(rows, torch.zeros(sum(lengths) - len(lengths)), CPU)


@pytest.mark.parametrize("shape", [(1, 7, 16), (1, 7, 4, 8)], ids=["states", "heads"])
def test_a_norm_is_that_of_transformers_bit_for_bit_and_so_is_its_gradient_to_rounding(
    shape: tuple[int, ...],
) -> None:
    """A gradient that comes through a transposition lies in memory in another order than x."""
    theirs = classes_of("qwen3").Qwen3RMSNorm(shape[-1], eps=1e-6)
    nn.init.normal_(theirs.weight)
    ours = FusedRMSNorm(theirs.weight, theirs.variance_epsilon)
    states = random(*shape)
    gradient = random(*shape, seed=1).detach()
    turned = gradient.transpose(1, -2).contiguous().transpose(1, -2)
    assert torch.equal(ours(states), theirs(states))
    inputs = (states, theirs.weight)
    expected = torch.autograd.grad(theirs(states), inputs, gradient)
    for each in (gradient, turned):
        for found, right in zip(
            torch.autograd.grad(ours(states), inputs, each), expected, strict=True
        ):
            assert torch.allclose(found, right, rtol=1e-5, atol=1e-5)


def test_a_norm_keeps_its_input_and_one_number_for_each_row() -> None:
    """Activations are most of what a trainer holds."""
    norm, states = FusedRMSNorm(nn.Parameter(torch.ones(8)), 1e-6), random(1, 5, 8)
    kept: list[Tensor] = []

    def keep(saved: Tensor) -> Tensor:
        kept.append(saved)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, keep):
        norm(states)
    assert sum(each.numel() for each in kept if each is not norm.weight) == 5 * 8 + 5


def test_gradients_are_those_of_small_differences() -> None:
    double = torch.float64
    norm = FusedRMSNorm(nn.Parameter(random(4, seed=2, dtype=double).detach()), 1e-6)
    states = random(5, 3, 4, dtype=double)
    assert torch.autograd.gradcheck(lambda x, _: norm(x), (states, norm.weight))
    cos, sin = widened(3)(nn.Identity(), None, tables(5, 4, double))
    assert torch.autograd.gradcheck(lambda x: rotate(x, cos, sin), (states,))
    layout = make_layout((3, 2), CPU)
    assert layout.blocks[0].gather is not None, "two rows in one block are padded"
    assert torch.autograd.gradcheck(
        lambda x, y, z: padded_attention(x, y, z, layout=layout, scaling=None, dropout=0.0),
        (states, *(random(5, 1, 4, seed=seed, dtype=double) for seed in (3, 4))),
    )


def test_a_rotation_is_that_of_transformers() -> None:
    """Keys have fewer heads than queries and share their tables."""
    query, key = random(5, 4, 8), random(5, 2, 8, seed=1)
    cos, sin = tables(5, 8)
    expected = classes_of("qwen3").apply_rotary_pos_emb(
        *(each[None].transpose(1, 2) for each in (query, key)), cos, sin
    )
    wide = widened(4)(nn.Identity(), None, (cos, sin))
    for each, right in zip((query, key), expected, strict=True):
        assert torch.allclose(rotate(each, *wide), right[0].transpose(0, 1), atol=1e-6)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "computed_again"])
@pytest.mark.parametrize("architecture", NAMES)
def test_a_fused_model_has_the_log_probs_gradients_and_names_of_the_loaded_one(
    architecture: str, tmp_path: Path, *, checkpointing: bool
) -> None:
    sizes = MIXTURE if architecture == "qwen3_moe" else {}
    folder = write_model(tmp_path / "model", architecture=architecture, **sizes)
    untouched, fused = (
        PackedPolicy(load_model(folder, gradient_checkpointing=checkpointing)) for _ in range(2)
    )
    name = NAMES[architecture]
    assert fuse(fused.lm) == (f"{name}Attention", f"{name}RMSNorm")
    assert list(fused.state_dict()) == list(untouched.state_dict())
    packed = packed_rows()
    logprobs = []
    for policy in (untouched, fused):
        found, _ = policy(packed, "none")
        found.sum().backward()
        logprobs.append(found.detach())
    assert torch.allclose(logprobs[0], logprobs[1], atol=2e-5)
    theirs = dict(untouched.named_parameters())
    for parameter_name, ours in fused.named_parameters():
        right = theirs[parameter_name].grad
        assert right is not None
        assert ours.grad is not None
        assert torch.allclose(ours.grad, right, rtol=1e-3, atol=1e-3), parameter_name


def test_a_known_name_that_computes_something_else_stays_as_it_is(model_folder: Path) -> None:
    """A release of transformers may change a layer; then the run is slower, not wrong."""

    class Qwen3RMSNorm(classes_of("qwen3").Qwen3RMSNorm):  # type: ignore[misc]
        def forward(self, hidden_states: Tensor) -> Tensor:
            normal: Tensor = super().forward(hidden_states)
            return normal / 2

    class Qwen3Attention(classes_of("qwen3").Qwen3Attention):  # type: ignore[misc]
        def forward(self, *states: Any, **told: Any) -> tuple[Tensor, None]:
            mixed, nothing = super().forward(*states, **told)
            return mixed / 2, nothing

    lm = load_model(model_folder, gradient_checkpointing=False)
    for changed in (Qwen3RMSNorm, Qwen3Attention):
        for layer in lm.modules():
            if type(layer).__name__ == changed.__name__:
                layer.__class__ = changed
        policy = PackedPolicy(lm)
        with torch.no_grad():
            before, _ = policy(packed_rows(), "none")
            assert changed.__name__ not in fuse(lm)
            after, _ = policy(packed_rows(), "none")
        assert torch.allclose(before, after, atol=2e-5)
        assert any(isinstance(layer, changed) for layer in lm.modules())
        lm = load_model(model_folder, gradient_checkpointing=False)


def rename(layer: nn.Module, name: str) -> None:
    setattr(layer, f"new_{name}", getattr(layer, name))
    delattr(layer, name)


def kinds_of(lm: nn.Module) -> set[type[nn.Module]]:
    return {type(layer) for layer in lm.modules()}


@pytest.mark.parametrize(
    "name", ["head_dim", "scaling", "attention_dropout", "o_proj", "rotary_emb"]
)
def test_an_attention_whose_attribute_has_another_name_stays_as_it_is(
    name: str, model_folder: Path
) -> None:
    """A release of transformers that renames one would otherwise end every run while it loads."""
    lm = load_model(model_folder, gradient_checkpointing=False)
    attentions = [layer for layer in lm.modules() if type(layer).__name__ == "Qwen3Attention"]
    for layer in [lm.base_model] if name == "rotary_emb" else attentions:
        rename(layer, name)
    assert fuse(lm) == ("Qwen3RMSNorm",)
    assert type(attentions[0]) in kinds_of(lm)


def test_an_attention_that_wants_to_be_told_more_stays_as_it_is(model_folder: Path) -> None:
    """And in the mode that it was in."""

    class Qwen3Attention(classes_of("qwen3").Qwen3Attention):  # type: ignore[misc]
        def forward(self, *states: Any, cache: object, **told: Any) -> tuple[Tensor, None]:
            mixed: tuple[Tensor, None] = super().forward(*states, cache=cache, **told)
            return mixed

    lm = load_model(model_folder, gradient_checkpointing=False).train()
    for layer in lm.modules():
        if type(layer).__name__ == "Qwen3Attention":
            layer.__class__ = Qwen3Attention
    assert fuse(lm) == ("Qwen3RMSNorm",)
    assert Qwen3Attention in kinds_of(lm)
    assert all(layer.training for layer in lm.modules())


def test_a_norm_whose_attribute_has_another_name_stays_as_it_is(model_folder: Path) -> None:
    class Qwen3RMSNorm(classes_of("qwen3").Qwen3RMSNorm):  # type: ignore[misc]
        def forward(self, hidden_states: Tensor) -> Tensor:
            epsilon = self.new_variance_epsilon
            return nn.functional.rms_norm(hidden_states, self.weight.shape, self.weight, epsilon)

    lm = load_model(model_folder, gradient_checkpointing=False)
    for layer in lm.modules():
        if type(layer).__name__ == "Qwen3RMSNorm":
            layer.__class__ = Qwen3RMSNorm
            rename(layer, "variance_epsilon")
    assert fuse(lm) == ("Qwen3Attention",)
    assert Qwen3RMSNorm in kinds_of(lm)


@pytest.mark.parametrize("changed", [0, -1], ids=["first", "last"])
def test_attention_layers_of_two_classes_are_replaced_when_both_are_known(
    changed: int, model_folder: Path
) -> None:
    """A model may mix them; what one of them computes says nothing of the other."""

    class LlamaAttention(classes_of("qwen3").Qwen3Attention):  # type: ignore[misc]
        share = 1.0

        def forward(self, *states: Any, **told: Any) -> tuple[Tensor, None]:
            mixed, nothing = super().forward(*states, **told)
            return mixed * self.share, nothing

    for share, fused in ((1.0, ("LlamaAttention", "Qwen3Attention")), (0.5, ())):
        lm = load_model(model_folder, gradient_checkpointing=False)
        attentions = [one for one in lm.modules() if type(one).__name__ == "Qwen3Attention"]
        assert len(attentions) > 1
        LlamaAttention.share = share
        attentions[changed].__class__ = LlamaAttention
        assert fuse(lm) == (*fused, "Qwen3RMSNorm")


@pytest.mark.parametrize(
    ("compute", "fused"),
    [(torch.float32, ("Qwen3Attention", "Qwen3RMSNorm")), (torch.bfloat16, ())],
)
def test_only_models_in_float32_are_fused(
    compute: torch.dtype, fused: tuple[str, ...], rank_group: RankGroup, model_folder: Path
) -> None:
    """In half precision transformers rounds between the steps that are one here."""
    lm = load_model(model_folder, gradient_checkpointing=False)
    assert ShardedPolicy(PackedPolicy(lm), rank_group, compute=compute).fused == fused
