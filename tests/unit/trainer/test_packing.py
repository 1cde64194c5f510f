"""Packed rows: each sees itself only, and nothing of it changes by what it is packed with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from unit.trainer.kit import VOCABULARY, model_classes, write_model

from milepost.actors.trainer.fsdp.attention import make_layout, packed_attention
from milepost.actors.trainer.fsdp.model import ModelRefused, PackedPolicy, load_model
from milepost.actors.trainer.fsdp.packing import (
    empty_microbatch,
    pack,
    pack_minibatch,
    plan_microbatches,
)
from milepost.actors.trainer.rows import Minibatch, Row

CPU = torch.device("cpu")


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    heads=st.sampled_from([(4, 2), (2, 2), (3, 1)]),
)
def test_packed_attention_is_attention_of_each_row_alone(
    lengths: list[int], heads: tuple[int, int]
) -> None:
    """Rows of every mixture of lengths, in any order, against one plain call for each row.

    Gradients too: what stands in the padding is a copy of a real token, and must give it none.
    """
    query_heads, key_heads = heads
    total = sum(lengths)
    generator = torch.Generator().manual_seed(total)
    query, key, value = states = [
        torch.randn(1, count, total, 8, generator=generator).requires_grad_()
        for count in (query_heads, key_heads, key_heads)
    ]
    layout = make_layout(lengths, CPU)
    found, _ = packed_attention(torch.nn.Identity(), query, key, value, None, layout=layout)
    parts = [torch.split(each, lengths, dim=2) for each in states]
    expected = torch.cat(
        [
            scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
            for q, k, v in zip(*parts, strict=True)
        ],
        dim=1,
    )
    assert torch.allclose(found, expected, atol=1e-5)
    weights = torch.randn(found.shape, generator=generator)
    gradients = [torch.autograd.grad(each, states, weights) for each in (found, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_attention_without_a_layout_is_refused() -> None:
    """Rows that see each other would train on text no policy was ever shown."""
    states = torch.zeros(1, 2, 3, 8)
    with pytest.raises(ValueError, match="needs a layout"):
        packed_attention(torch.nn.Identity(), states, states, states, None)


@given(lengths=st.lists(st.integers(1, 60), max_size=30), tokens_max=st.integers(1, 100))
def test_plans_hold_every_row_once_and_no_more_than_allowed(
    lengths: list[int], tokens_max: int
) -> None:
    plan = plan_microbatches(lengths, tokens_max)
    assert sorted(index for part in plan for index in part) == list(range(len(lengths)))
    for part in plan:
        assert len(part) == 1 or sum(lengths[index] for index in part) <= tokens_max
    assert plan == plan_microbatches(lengths, tokens_max)


def row_of(token_ids: Sequence[int], *, temperature: float = 1.0) -> Row:
    length = len(token_ids)
    return Row(
        token_ids=np.array(token_ids, dtype=np.int32),
        loss_positions=np.arange(1, length),
        rollout_logprobs=np.zeros(length - 1, np.float32),
        versions=np.zeros(length - 1, np.int64),
        temperature=temperature,
    )


def logprobs_of(policy: PackedPolicy, rows: Sequence[Row]) -> list[Tensor]:
    counts = [len(row.loss_positions) for row in rows]
    with torch.no_grad():
        found, _ = policy(pack(rows, torch.zeros(sum(counts)), CPU), "none")
    return list(found.split(counts))


@pytest.mark.parametrize("architecture", ["qwen3", "llama", "qwen3_moe"])
def test_a_row_packed_with_others_has_the_log_probs_it_has_in_the_plain_model(
    architecture: str, tmp_path: Path
) -> None:
    """The plain model, unpacked and with its own attention, is the reference for each row."""
    sizes = (
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
        if architecture == "qwen3_moe"
        else {}
    )
    folder = write_model(tmp_path / "model", architecture=architecture, **sizes)
    policy = PackedPolicy(load_model(folder, gradient_checkpointing=False))
    plain = model_classes(architecture)[1].from_pretrained(folder, dtype=torch.float32)
    generator = np.random.default_rng(1)
    rows = [
        row_of(generator.integers(0, VOCABULARY, length).tolist(), temperature=temperature)
        for length, temperature in ((9, 1.0), (30, 0.7), (2, 1.0), (31, 1.3))
    ]
    packed = logprobs_of(policy, rows)
    for row, found in zip(rows, packed, strict=True):
        ids = torch.from_numpy(row.token_ids.astype(np.int64))[None]
        with torch.no_grad():
            logits = plain(input_ids=ids).logits[0, :-1] / row.temperature
        expected = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        assert torch.allclose(found, expected, atol=2e-5)
    assert torch.cat(packed).std() > 0.1, "a uniform guess would hide a wrong mask"


def test_a_token_of_a_neighbour_changes_nothing(model_folder: Path) -> None:
    policy = PackedPolicy(load_model(model_folder, gradient_checkpointing=False))
    mine, before, after = row_of([1, 2, 3, 4]), row_of([5, 6, 7]), row_of([8, 9, 7])
    one = logprobs_of(policy, [before, mine, before])[1]
    other = logprobs_of(policy, [after, mine, after])[1]
    assert torch.equal(one, other)


def test_an_empty_micro_batch_has_no_loss_tokens_and_counts_for_nothing() -> None:
    packed = empty_microbatch(CPU)
    assert packed.num_tokens == 0
    assert packed.tokens.num_rows == 0
    assert len(packed.targets) == 0
    assert packed.input_ids.shape == (1, 1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["NoSuchModel"]}, "NoSuchModel"),
        ({"architectures": []}, "expected one"),
        ({"model_type": "no_such_type"}, "no_such_type"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"use_sliding_window": True, "sliding_window": 64}, "sliding window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}, "missing_keys"),
        ({"num_hidden_layers": 1, "layer_types": ["full_attention"]}, "unexpected_keys"),
        ({"intermediate_size": 40}, "mismatched"),
    ],
)
def test_models_that_would_be_trained_wrongly_are_refused_by_name(
    change: dict[str, Any], named: str, tmp_path: Path, model_folder: Path
) -> None:
    """A layer that was never loaded is random; a cap that is not applied gives other log-probs."""
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | change), encoding="utf-8")
    with pytest.raises((ModelRefused, RuntimeError), match=named):
        load_model(folder, gradient_checkpointing=False)


@pytest.mark.parametrize("architecture", ["qwen3", "llama", "qwen3_moe"])
def test_only_supervised_training_drops_out(architecture: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", architecture=architecture, attention_dropout=0.1)
    load_model(folder, gradient_checkpointing=False, dropout=True)
    with pytest.raises(ModelRefused, match=r"attention_dropout 0\.1, and only supervised"):
        load_model(folder, gradient_checkpointing=False, dropout=False)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=r"no config\.json"):
        load_model(tmp_path, gradient_checkpointing=False)


def test_rows_of_one_trajectory_weigh_as_one_wherever_they_are_packed() -> None:
    """A session that branched into two rows is one sample: 2 + 3 tokens share its weight."""

    def row(loss: int, whole: int) -> Row:
        nothing = np.zeros(loss)
        return Row(
            token_ids=np.arange(loss + 1, dtype=np.int32),
            loss_positions=np.arange(1, loss + 1),
            rollout_logprobs=nothing.astype(np.float32),
            versions=nothing.astype(np.int64),
            trajectory_loss_tokens=whole,
        )

    rows = (row(2, 5), row(4, 0), row(3, 5))
    for tokens_max in (1, 64):
        minibatch = Minibatch(rows=rows, loss_tokens=9, trajectories=2)
        packed = pack_minibatch(
            minibatch, tokens_max=tokens_max, aggregation="per_sample", device=CPU
        )
        weights = sorted(float(each) for part in packed for each in part.tokens.weights)
        assert weights == pytest.approx(sorted([1 / 10] * 5 + [1 / 8] * 4))
        assert sum(weights) == pytest.approx(1.0)
