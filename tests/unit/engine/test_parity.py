"""The hand-written decoder against the Hugging Face modules of the same checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding
from unit.engine.kit import generate, make_engine, order, random_row, score

from milepost.actors.arrays import to_bulk
from milepost.actors.engine.embedded.engine import EmbeddedEngine
from milepost.actors.engine.embedded.parameters import Parameters
from milepost.actors.engine.embedded.rope import inverse_frequencies
from milepost.actors.engine.embedded.shape import (
    UnsupportedModelError,
    read_shape,
    shape_from_config,
)
from milepost.actors.engine.settings import SettingsDamaged
from milepost.actors.weights.manifest import read_checkpoint
from milepost.messages.engine import PauseMode

COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 192,
    "max_position_embeddings": 256,
}
STRETCHED = {"rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
DEFAULT = {"rope_type": "default", "rope_theta": 1e6}
LLAMA3 = {**STRETCHED, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
    "qwen3_untied": ("Qwen3", {"tie_word_embeddings": False}),
    "qwen3_yarn": ("Qwen3", {"rope_parameters": {**STRETCHED, "rope_type": "yarn"}}),
    "llama": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama_linear": ("Llama", {"rope_parameters": {**STRETCHED, "rope_type": "linear"}}),
    "moe": ("Qwen3Moe", {**EXPERTS, "norm_topk_prob": True}),
    "moe_mixed": ("Qwen3Moe", {**EXPERTS, "norm_topk_prob": False, "mlp_only_layers": [0]}),
}
DENSE = [name for name in MODELS if not name.startswith("moe")]


def make_model(name: str) -> Any:
    """A model of transformers, every weight random, norms included."""
    family, changes = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**{**COMMON, **changes})
    torch.manual_seed(7)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    return model


def load(folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> EmbeddedEngine:
    """An engine that serves the checkpoint in `folder` as version 0."""
    shape = read_shape(folder)
    engine = make_engine(shape, dtype=dtype, context_tokens=128, **changes)
    engine.staging.open(Parameters(shape, dtype, torch.device("meta")).manifest)
    name = str(dtype).removeprefix("torch.")
    for file in sorted(folder.glob("*.safetensors")):
        for tensor, value in load_file(file).items():
            bits = value.view(torch.uint16) if dtype == torch.bfloat16 else value
            engine.staging.write((tensor,), (to_bulk(bits.numpy(), name),))
    engine.switch(0, PauseMode.RETRACT)
    return engine


def logprobs_of(model: Any, row: NDArray[np.int32]) -> NDArray[np.float32]:
    """float32 [T - 1] log-probs of each token after the first."""
    ids = torch.from_numpy(row.astype(np.int64))
    with torch.no_grad():
        table = torch.log_softmax(model(ids[None]).logits[0].float(), dim=-1)
    return table[:-1].gather(1, ids[1:, None])[:, 0].numpy()


@pytest.fixture(params=MODELS)
def named_model(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return request.param, make_model(request.param)


def test_log_probs_are_those_of_transformers(named_model: tuple[str, Any], tmp_path: Path) -> None:
    """The trainer runs these modules: what the engine adds to the gap must be rounding only."""
    name, model = named_model
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    row = random_row(1, 100, 96)
    expected = logprobs_of(model, row)
    scored = score(load(tmp_path, prefill_tokens_max=128), row).logprobs[0][1:]
    np.testing.assert_allclose(scored, expected, atol=3e-6)
    if name in DENSE:
        # Whole rows are computed by the same kernels in the same order: not a bit may differ.
        assert np.array_equal(scored, expected)


def test_decoding_in_company_agrees_with_transformers(
    named_model: tuple[str, Any], tmp_path: Path
) -> None:
    """Chunks, prefixes and the static cache, against one whole forward pass."""
    _, model = named_model
    model.save_pretrained(tmp_path)
    engine = load(tmp_path, prefill_tokens_max=24)
    prompt = random_row(2, 50, 96)
    asked = [order(f"r{n}", prompt[: 50 - 7 * n], tokens_max=20, seed=n) for n in range(5)]
    for each, reply in zip(asked, generate(engine, *asked).values(), strict=True):
        row = np.concatenate((each.token_ids, reply.token_ids))
        expected = logprobs_of(model, row)[len(each.token_ids) - 1 :]
        np.testing.assert_allclose(reply.logprobs, expected, atol=1e-5)


def test_bfloat16_agrees_with_transformers_in_bfloat16(tmp_path: Path) -> None:
    """The same roundings in the same places: far closer to it than either is to float32."""
    make_model("qwen3").bfloat16().save_pretrained(tmp_path)
    # Loaded, not converted: a conversion would round the rotary frequencies, too.
    model = transformers.Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    row = random_row(3, 90, 96)
    expected = logprobs_of(model, row)
    engine = load(tmp_path, torch.bfloat16, prefill_tokens_max=128)
    difference = np.abs(score(engine, row).logprobs[0][1:] - expected)
    assert difference.mean() < 2e-3, "float32 weights rounded to bfloat16 differ by 8e-3"


def test_a_checkpoint_holds_exactly_the_names_of_the_manifest(
    named_model: tuple[str, Any], tmp_path: Path
) -> None:
    """Publications are checked against these names: one too few would serve uninitialised rows."""
    _, model = named_model
    model.save_pretrained(tmp_path)
    shape = read_shape(tmp_path)
    manifest = Parameters(shape, torch.float32, torch.device("meta")).manifest
    found = [place.spec for place in read_checkpoint(tmp_path).values()]
    assert sorted(manifest, key=lambda spec: spec.name) == found


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not one of llama, qwen3, qwen3_moe"),
        ({"attention_bias": True}, "attention_bias = True is not computed"),
        ({"use_sliding_window": True}, "use_sliding_window = True is not computed"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not computed"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic' is not one of"),
        ({"rope_parameters": {"rope_type": "yarn", "mscale": 1.0}}, "yarn with mscale"),
        (
            {"rope_parameters": {"full_attention": DEFAULT, "sliding_attention": DEFAULT}},
            "rope tables of their own for full_attention, sliding_attention",
        ),
        ({"rope_scaling": {"rope_type": "yarn", "factor": None}}, "rope type 'yarn' has no factor"),
    ],
)
def test_what_is_not_computed_exactly_is_refused_by_name(
    changes: dict[str, Any], reason: str
) -> None:
    """An ignored option would sample from another model than the one that is trained."""
    config = {**COMMON, "model_type": "qwen3", **changes}
    with pytest.raises(UnsupportedModelError, match=reason.replace("'", ".")):
        shape_from_config(config)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"rope_parameters": {**DEFAULT, "rope_theta": None}}, "rope_theta is null: give a number"),
        ({"rope_theta": None, "rope_parameters": DEFAULT}, "rope_theta is null"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, and qwen3 turns whole"),
        (
            {"rope_parameters": DEFAULT, "rope_scaling": {**STRETCHED, "type": "yarn"}},
            "rope_parameters and rope_scaling disagree: leave one of them out",
        ),
        (
            {"rope_parameters": DEFAULT, "rope_scaling": {"rope_type": "default"}},
            "rope_parameters and rope_scaling disagree",
        ),
    ],
)
def test_positions_that_engine_and_trainer_would_read_apart_are_damaged_settings(
    changes: dict[str, Any], reason: str
) -> None:
    """transformers goes by `rope_scaling`, its newest files by `rope_parameters`."""
    with pytest.raises(SettingsDamaged, match=reason):
        shape_from_config({**COMMON, "model_type": "qwen3", **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": DEFAULT, "rope_scaling": None},
        {"rope_parameters": {}, "rope_scaling": DEFAULT},
        {"rope_theta": 1e6, "rope_parameters": DEFAULT, "rope_scaling": {"type": "default"}},
        {"rope_parameters": DEFAULT, "partial_rotary_factor": 1},
        {
            "rope_parameters": {"partial_rotary_factor": 1.0, **DEFAULT},
            "partial_rotary_factor": 0.5,
        },
        {"rope_parameters": LLAMA3, "rope_scaling": LLAMA3, "partial_rotary_factor": None},
    ],
)
def test_positions_are_turned_as_transformers_turns_them(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    """However the file says it."""
    config = {**COMMON, "model_type": "qwen3", **changes}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    theirs = Qwen3RotaryEmbedding(transformers.Qwen3Config.from_pretrained(tmp_path))
    inverse, scale = inverse_frequencies(shape_from_config(config).rope, COMMON["head_dim"])
    assert torch.equal(inverse, theirs.inv_freq)
    assert scale == theirs.attention_scaling


def test_old_configurations_are_read_as_new_ones() -> None:
    """`rope_theta` beside `rope_scaling`, `num_local_experts`: earlier versions of the format."""
    old = {
        **COMMON,
        "model_type": "llama",
        "rope_theta": 500000.0,
        "rope_scaling": {"type": "linear", "factor": 2.0},
    }
    shape = shape_from_config(old)
    assert (shape.rope.kind, shape.rope.theta, shape.rope.factor) == ("linear", 500000.0, 2.0)
    moe = {**COMMON, **EXPERTS, "model_type": "qwen3_moe"}
    moe["num_local_experts"] = moe.pop("num_experts")
    assert shape_from_config(moe).experts is not None
