"""The checks of the starting checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from unit.engine.kit import tiny_config
from unit.supervisor.checks.test_files import model, subject, told, write_model

from milepost.actors.weights.manifest import INDEX, SINGLE
from milepost.configs.problem import Problem
from milepost.supervisor.checks.machine import machine_has_room
from milepost.supervisor.checks.model import checkpoint_is_complete, tensors_fit


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def problems(folder: Path | str, context_tokens_max: int = 256) -> list[str]:
    """Of both checks, for a run with an engine of ours."""
    checked = subject(model=model(Path(folder), context_tokens_max), actors={"engine": {}})
    return told([*checkpoint_is_complete(checked), *tensors_fit(checked)])


def test_a_complete_checkpoint_has_no_problem(checkpoint: Path) -> None:
    assert problems(checkpoint) == []


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_each_missing_file_of_a_checkpoint_is_named(checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()
    (problem,) = problems(checkpoint)
    assert name.removeprefix("model") in problem


def test_a_link_that_leads_nowhere_is_no_file(checkpoint: Path) -> None:
    """A cache of models whose files were cleared away: nothing to read, and nothing to weigh."""
    path = checkpoint / SINGLE
    path.unlink()
    path.symlink_to(checkpoint / "cleared")
    (problem,) = problems(checkpoint)
    assert problem.endswith("has no *.safetensors")
    tables: dict[str, Any] = {"model": model(checkpoint), "actors": {"publisher": {}, "engine": {}}}
    assert list(machine_has_room(subject(**tables))) == []


def test_an_unknown_architecture_and_a_short_context_are_both_told(checkpoint: Path) -> None:
    config = {"model_type": "bert", "max_position_embeddings": 100}
    (checkpoint / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert problems(checkpoint) == [
        'model_type "bert" is not supported',
        "context_tokens_max = 256, but the model has 100 positions",
    ]


@pytest.mark.parametrize(
    ("text", "told_of"),
    [("{", "is not JSON"), ("[]", "holds a list"), ("[" * 200_000, "is nested too deep")],
)
def test_a_broken_config_is_told(checkpoint: Path, text: str, told_of: str) -> None:
    (checkpoint / "config.json").write_text(text, encoding="utf-8")
    (broken,) = problems(checkpoint)
    assert told_of in broken


def test_a_missing_folder_is_told(checkpoint: Path) -> None:
    (missing,) = problems(checkpoint / "no")
    assert missing.endswith("is not a folder")


def test_a_checkpoint_of_a_run_is_told_where_its_model_lies(checkpoint: Path) -> None:
    """`RUN/checkpoints/step_000042` holds shards of torch; what is wanted lies one folder below."""
    step = checkpoint.parent / "step_000042"
    step.mkdir()
    (step / "meta.json").touch()
    shutil.move(checkpoint, step / "hf")
    found = list(checkpoint_is_complete(subject(model=model(step))))
    assert {each.remedy for each in found if isinstance(each, Problem)} == {f"set {step / 'hf'}"}
    assert problems(step / "hf") == []


def test_a_checkpoint_that_is_still_to_be_made_is_only_noted() -> None:
    checked = subject(model={"made_by": "lookup_warmup"})
    assert told([*checkpoint_is_complete(checked), *tensors_fit(checked)]) == []


def test_the_home_folder_is_found_by_its_sign(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the checks and by the actors alike; a home that nobody has is a folder that is not."""
    monkeypatch.setenv("HOME", str(checkpoint.parent))
    assert problems("~/model") == []
    table = subject(model=model(Path("~/model"))).topology.model
    assert table is not None
    assert table.folder == checkpoint
    (missing,) = problems("~nobody-of-that-name/model")
    assert missing.endswith("is not a folder")


@pytest.mark.parametrize(
    ("changes", "told_of"),
    [
        ({"hidden_size": "64"}, "hidden_size is '64', not a whole number from 1 to "),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1, not a whole number from 1 to "),
        ({"attention_bias": True}, "attention_bias = True is not computed"),
        ({"architectures": []}, "names architectures [], expected one"),
        (
            {"architectures": ["Qwen3Model"]},
            "names the architecture Qwen3Model, expected Qwen3ForC",
        ),
        ({"architectures": "Qwen3ForCausalLM"}, "names architectures Qwen3ForCausalLM, expected"),
        ({"logit_scale": 2}, "sets logit_scale, which the trainer does not apply"),
        ({"layer_types": ["sliding_attention"]}, "has layers of ['sliding_attention'], only"),
        ({"layer_types": [{}]}, "has layers of ['{}'], only"),
        ({"quantization_config": {"bits": 4}}, "has quantization_config, and quantized weights"),
        ({"layer_types": ["full_attention"]}, "has layer_types of 1 layers, and num_hidden_layers"),
        ({"layer_types": []}, "has layer_types of 0 layers, and num_hidden_layers 2"),
        ({"rms_norm_eps": 1}, "has rms_norm_eps 1, not a number with a point"),
        ({"attention_dropout": None}, "has attention_dropout None, not a number"),
        ({"tie_word_embeddings": 1}, "has tie_word_embeddings 1, not true or false"),
        ({"eos_token_id": "x"}, "has eos_token_id 'x', not a whole number, a list of them or null"),
        ({"pad_token_id": 24}, "has pad_token_id 24, and vocab_size 24"),
        ({"head_dim": None}, "does not say head_dim"),
        ({"rope_scaling": 1.5}, "rope_scaling is 1.5, not a table"),
        (
            {
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
            },
            "rope_parameters and rope_scaling disagree: leave one of them out",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, and qwen3 turns whole"),
        ({"attention_dropout": 1.0}, "has attention_dropout 1.0, not a number from 0 to below 1"),
        ({"attention_dropout": 0.1}, "has attention_dropout 0.1, and only supervised training"),
        ({"dtype": "float99"}, "has dtype 'float99', known are auto, bfloat16"),
    ],
)
def test_what_no_trainer_or_engine_would_take_is_told(
    tmp_path: Path, changes: dict[str, Any], told_of: str
) -> None:
    """Each ended an actor at its start, some of them after minutes of loading."""
    (problem,) = problems(write_model(tmp_path / "m", **changes))
    assert told_of in problem


def test_supervised_training_may_drop_out(tmp_path: Path) -> None:
    """It has no ratio of two passes, which would be one of two random networks."""
    folder = write_model(tmp_path / "m", attention_dropout=0.1)
    alone = subject(model=model(folder), algorithm={"estimator": "sft"})
    assert list(checkpoint_is_complete(alone)) == []
    (found,) = checkpoint_is_complete(subject(model=model(folder)))
    assert isinstance(found, Problem)
    assert found.remedy == "set it to 0 there"


def test_what_only_an_engine_cannot_compute_is_no_fault_of_a_supervised_run(tmp_path: Path) -> None:
    """Its trainer takes the model of transformers; a size that is none is none there, too."""
    folder = write_model(tmp_path / "m", attention_bias=True)
    assert "is not computed" in problems(folder)[0]
    alone = subject(model=model(folder))
    assert told([*checkpoint_is_complete(alone), *tensors_fit(alone)]) == []
    damaged = subject(model=model(write_model(tmp_path / "d", hidden_size="64")))
    (problem,) = told([*checkpoint_is_complete(damaged)])
    assert "hidden_size is '64'" in problem


@pytest.mark.parametrize(
    ("changes", "told_of"),
    [
        ({"num_hidden_layers": 3}, "the checkpoint lacks model.layers.2."),
        ({"num_hidden_layers": 4000}, "the checkpoint lacks model.layers.2."),
        ({"num_hidden_layers": 1}, "the checkpoint has model.layers.1."),
        (
            {"intermediate_size": 40},
            "the checkpoint has model.layers.0.mlp.gate_proj.weight as [48, 32], not [40, 32]",
        ),
        ({"vocab_size": 25}, "the checkpoint has model.embed_tokens.weight as [24, 32], not [25,"),
        ({"tie_word_embeddings": False}, "the checkpoint lacks lm_head.weight"),
    ],
)
def test_tensors_that_the_configuration_does_not_describe_are_told(
    tmp_path: Path, changes: dict[str, Any], told_of: str
) -> None:
    """A layer that nobody wrote would be random; torch says so when all else has started."""
    (problem,) = problems(write_model(tmp_path / "m", **changes))
    assert problem.startswith(told_of)


def test_tensors_that_others_compute_or_tie_are_no_surplus(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / SINGLE)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, "f4")
    save_file(tensors, checkpoint / SINGLE)
    assert problems(checkpoint) == []
    tensors["model.norm.weight"] = np.ones(tensors["model.norm.weight"].shape, "i8")
    save_file(tensors, checkpoint / SINGLE)
    (problem,) = problems(checkpoint)
    assert problem.startswith("the checkpoint has model.norm.weight as int64, not one of bfloat16")


def test_experts_are_told_one_by_one_or_together(tmp_path: Path) -> None:
    """Newer checkpoints may keep the experts of a layer in one tensor; the trainer reads both."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    mixed = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], **experts}
    folder = write_model(tmp_path / "m", **mixed)
    assert problems(folder) != []
    dense = load_file(folder / SINGLE)
    whole = {name: each for name, each in dense.items() if ".mlp." not in name}
    hidden = tiny_config()["hidden_size"]
    for layer in range(2):
        whole[f"model.layers.{layer}.mlp.gate.weight"] = np.zeros((4, hidden), "f4")
        prefix = f"model.layers.{layer}.mlp.experts"
        whole[f"{prefix}.gate_up_proj"] = np.zeros((4, 32, hidden), "f4")
        whole[f"{prefix}.down_proj"] = np.zeros((4, hidden, 16), "f4")
    save_file(whole, folder / SINGLE)
    assert problems(folder) == []


def test_files_that_are_cut_or_not_there_are_told(checkpoint: Path) -> None:
    """An interrupted download has the right names, and not the bytes."""
    path = checkpoint / SINGLE
    content = path.read_bytes()
    path.write_bytes(content[:-8])
    (cut,) = problems(checkpoint)
    assert f"in {path} has offsets" in cut
    path.write_bytes(content[:5])
    (header,) = problems(checkpoint)
    assert header.startswith(f"{path} is no safetensors file")
    deep = b'{"a":' * 50_000
    path.write_bytes(len(deep).to_bytes(8, "little") + deep)
    (nested,) = problems(checkpoint)
    assert nested.startswith(f"{path} is no safetensors file: maximum recursion depth")
    path.write_bytes(content.replace(b'"F32"', b'"F99"', 1))
    (dtype,) = problems(checkpoint)
    assert "is F99, which cannot be moved" in dtype
    names = load_file_names(content)
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00002.safetensors")}
    index["weight_map"]["model.norm.weight"] = "model-00002-of-00002.safetensors"
    (checkpoint / INDEX).write_text(json.dumps(index), encoding="utf-8")
    path.write_bytes(content)
    assert problems(checkpoint) == [], "transformers takes the whole file, too, and no old index"
    path.rename(checkpoint / "model-00001-of-00002.safetensors")
    (checkpoint / "model-00001-of-00002.safetensors").write_bytes(content)
    (shard,) = problems(checkpoint)
    assert shard == f"{checkpoint / 'model-00002-of-00002.safetensors'} does not exist"
    (checkpoint / INDEX).write_bytes(b'{"metadata":' + deep)
    (index_nested,) = problems(checkpoint)
    assert index_nested.startswith(f"{checkpoint / INDEX} is no index of a checkpoint: ")


def load_file_names(content: bytes) -> list[str]:
    length = int.from_bytes(content[:8], "little")
    return [name for name in json.loads(content[8 : 8 + length]) if name != "__metadata__"]
