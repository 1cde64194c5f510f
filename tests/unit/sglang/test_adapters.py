"""Adapters before a server sees them, and how a server spreads: all without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from milepost.actors.engine.sglang.adapters import (
    AdapterError,
    adapter_faults,
    require_fitting,
)
from milepost.actors.engine.sglang.capabilities import UnsupportedServerError
from milepost.actors.engine.sglang.launch import lora_options
from milepost.actors.engine.sglang.ranks import Parallel, parallel_of, require_adapters, require_way
from milepost.actors.engine.sglang.started import Needs, adapter_differences, refuse_unfit
from milepost.configs.actors import EngineConfig

SHAPES = {
    "model.layers.0.self_attn.q_proj.weight": (16, 8),
    "model.layers.0.mlp.down_proj.weight": (8, 12),
    "model.layers.0.mlp.experts.0.down_proj.weight": (8, 12),
    "model.norm.weight": (8,),
}
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "down_proj"]}
HEAD = "base_model.model.model.layers.0"


def pair(module: str, out: int, into: int, rank: int = 2) -> dict[str, np.ndarray]:
    shapes = {"A": (rank, into), "B": (out, rank)}
    return {
        f"{HEAD}.{module}.lora_{half}.weight": np.zeros(shape, np.float32)
        for half, shape in shapes.items()
    }


def write(folder: Path, tensors: dict[str, np.ndarray], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    return folder


GOOD = {**pair("self_attn.q_proj", 16, 8), **pair("mlp.down_proj", 8, 12)}


def test_an_adapter_of_the_model_is_left_alone(tmp_path: Path) -> None:
    """PEFT writes many settings; those that change nothing may stand there."""
    folder = write(tmp_path, GOOD, bias="none", use_dora=False, modules_to_save=None)
    assert list(adapter_faults(folder, SHAPES)) == []
    assert list(adapter_faults(folder, None)) == []
    require_fitting({"good": str(folder)}, SHAPES)


@pytest.mark.parametrize(
    ("tensors", "config", "told"),
    [
        (GOOD, {"use_dora": True}, "use_dora = True is not served"),
        (GOOD, {"use_rslora": True}, "use_rslora = True is not served"),
        (GOOD, {"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
        (GOOD, {"modules_to_save": ["lm_head"]}, "modules_to_save"),
        (GOOD, {"bias": "all"}, "bias = 'all'"),
        (GOOD, {"peft_type": "IA3"}, "LORA is served"),
        (GOOD, {"r": 0}, "a rank of 1 or more"),
        (GOOD, {"r": 4}, "(4, 8) fits"),
        (GOOD, {"lora_alpha": None}, "a number is needed"),
        (GOOD, {"target_modules": "all-linear"}, "a list out of"),
        (GOOD, {"target_modules": ["embed_tokens"]}, "a list out of"),
        (GOOD, {"target_modules": [["q_proj"]]}, "a list out of"),
        ({}, {}, "no tensors"),
        (pair("self_attn.q_proj", 8, 8), {}, "(16, 2) fits the model's"),
        (pair("self_attn.v_proj", 8, 8), {}, "which the model has not"),
        (pair("mlp.experts.0.down_proj", 8, 12), {}, "which no adapter may"),
        (pair("self_attn.wide", 8, 8), {}, "which no adapter may"),
        ({"lm_head.weight": np.zeros(3, np.float32)}, {}, "no half of a LoRA pair"),
        (dict(list(GOOD.items())[1:]), {}, "has no counterpart"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_server_would_load_wrongly_is_named(
    tensors: dict[str, np.ndarray], config: dict[str, Any], told: str, tmp_path: Path
) -> None:
    """Servers skip tensors that they do not know, and say nothing of it."""
    folder = write(tmp_path, tensors, **config)
    assert told in " ".join(adapter_faults(folder, SHAPES))
    with pytest.raises(AdapterError, match="bad: "):
        require_fitting({"bad": str(folder)}, SHAPES)


def test_a_folder_that_is_no_adapter_is_named(tmp_path: Path) -> None:
    assert "is no adapter" in " ".join(adapter_faults(tmp_path / "absent", None))
    write(tmp_path, GOOD)
    for text in ("{", "[]", "null", '{"a":' * 50_000):
        (tmp_path / "adapter_config.json").write_text(text)
        assert "is no adapter" in " ".join(adapter_faults(tmp_path, None))


def test_a_long_list_of_faults_is_cut(tmp_path: Path) -> None:
    """A whole adapter of another model: three of its tensors tell that."""
    tensors: dict[str, np.ndarray] = {}
    for number in range(9):
        tensors |= pair(f"self_attn.other{number}", 8, 8)
    faults = list(adapter_faults(write(tmp_path, tensors), SHAPES))
    assert len(faults) == 4
    assert faults[-1] == "and 15 tensors more"


def test_a_server_is_told_names_and_whole_paths(tmp_path: Path) -> None:
    """Its working folder is not the user's; on a CPU it needs kernels of torch."""
    told = lora_options({"b": str(tmp_path), "a": "relative"}, "cuda")
    assert told["lora-paths"] == [f"a={Path('relative').resolve()}", f"b={tmp_path.resolve()}"]
    assert "lora-backend" not in told
    assert lora_options({}, "cpu")["lora-backend"] == "torch_native"


def test_adapters_of_somebody_elses_server_are_compared(tmp_path: Path) -> None:
    """The same name for another folder would answer in another voice, and nobody would know."""
    loaded = [{"lora_name": "a", "lora_path": str(tmp_path)}]
    assert adapter_differences({"a": str(tmp_path)}, loaded) == []
    assert "loaded from" in adapter_differences({"a": "/elsewhere"}, loaded)[0]
    assert "absent" in adapter_differences({"b": str(tmp_path)}, None)[0]


def test_somebody_elses_server_may_not_take_drafts_that_the_model_would_not_draw() -> None:
    """Of a server that we start, the same options are refused by name."""
    told: dict[str, Any] = {
        "dtype": "float32",
        "skip_tokenizer_init": True,
        "allow_auto_truncate": False,
        "enable_deterministic_inference": False,
        "enable_return_routed_experts": False,
    }
    needs = Needs(dtype="float32", context_tokens=8, pause="", is_cut=False)
    refuse_unfit(told | {"speculative_accept_threshold_acc": 1.0}, EngineConfig(), needs)
    with pytest.raises(UnsupportedServerError, match=r"threshold_single = 0\.5, 1\.0 is needed"):
        refuse_unfit(told | {"speculative_accept_threshold_single": 0.5}, EngineConfig(), needs)


def test_ranks_are_counted_as_the_server_lays_them_out() -> None:
    """A payload or a place in a broadcast too few, and the server waits for it for ever."""
    assert parallel_of({"tp_size": 2, "dp_size": 1}) == Parallel(2, 1, 1)
    assert parallel_of({"tp_size": 2, "pp_size": 2, "dp_size": 2}) == Parallel(4, 2, 2, 2)
    attention = {"tp_size": 4, "dp_size": 2, "enable_dp_attention": True}
    assert parallel_of(attention) == Parallel(4, 2, 1)


def test_ways_that_reach_one_copy_are_refused_for_several() -> None:
    """SGLang itself fails an assertion there, at the first publication."""
    require_way("disk", Parallel(1, 2, 2))
    require_way("tensors", Parallel(4, 2, 1))
    with pytest.raises(UnsupportedServerError, match="one copy of the model, this server has 2"):
        require_way("tensors", Parallel(1, 2, 2))


def test_the_disk_is_refused_for_stages_of_a_pipeline() -> None:
    """SGLang says that it serves the version, and its log-probs are of none."""
    require_way("tensors", Parallel(2, 1, 1, 2))
    with pytest.raises(UnsupportedServerError, match="when 2 stages of a pipeline hold the model"):
        require_way("disk", Parallel(2, 1, 1, 2))


def test_adapters_of_a_model_in_parts_are_refused_on_a_cpu() -> None:
    """Such a server starts, serves the policy, and dies of the first request under an adapter."""
    require_adapters(Parallel(1, 2, 2), "cpu")
    require_adapters(Parallel(2, 1, 1), "cuda:0")
    with pytest.raises(UnsupportedServerError, match="when 2 ranks of a CPU hold one copy"):
        require_adapters(Parallel(2, 1, 1), "cpu")
