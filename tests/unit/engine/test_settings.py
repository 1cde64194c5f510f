"""A `config.json` that cannot be read, or says nonsense, is refused by the value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from unit.engine.kit import tiny_config, tiny_shape

from milepost.actors.engine.embedded.parameters import Parameters
from milepost.actors.engine.embedded.shape import shape_from_config
from milepost.actors.engine.embedded.tensors import tensors_of
from milepost.actors.engine.mixture import has_experts
from milepost.actors.engine.settings import SettingsDamaged, read_settings

DEPTH = 200_000
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe{}", "is not JSON"),
        (b"\xef\xbb\xbf{}", "is not JSON"),
        (b"[1]", "holds a list and no JSON object"),
        (b"null", "holds a NoneType and no JSON object"),
        (b"[" * DEPTH + b"]" * DEPTH, "is nested too deep to be read"),
        (b'{"a":' * DEPTH + b"1" + b"}" * DEPTH, "is nested too deep to be read"),
    ],
)
def test_what_is_no_object_is_refused_with_its_path(
    content: bytes, told: str, tmp_path: Path
) -> None:
    """A watcher asks, too: it must not end at the stack of a file that it only looks into."""
    (tmp_path / "config.json").write_bytes(content)
    for read in (read_settings, has_experts):
        with pytest.raises(SettingsDamaged, match=told) as refused:
            read(tmp_path)
        assert str(tmp_path / "config.json") in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hidden_size": "32"}, "hidden_size is '32', not a whole number from 1 to "),
        ({"hidden_size": -32}, "hidden_size is -32, not a whole number from 1 to "),
        ({"hidden_size": 0}, "hidden_size is 0, not a whole number from 1 to "),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"vocab_size": True}, "vocab_size is True, not a whole number from 1 to "),
        ({"vocab_size": 24.5}, "vocab_size is 24.5, not a whole number from 1 to "),
        ({"num_hidden_layers": 1 << 30}, "num_hidden_layers is 1073741824, not a whole number"),
        ({"intermediate_size": [48]}, r"intermediate_size is \[48\], not a whole number"),
        ({"num_key_value_heads": 3}, "num_attention_heads = 4 is no multiple of num_key_value_"),
        ({"head_dim": None, "hidden_size": 30}, "hidden_size = 30 is no multiple of num_attention"),
        ({"head_dim": 7}, "head_dim = 7 is odd"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small', not a number above 0"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0, not a number above 0"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\], not a table"),
        ({"rope_parameters": {"rope_theta": "x"}}, "rope_theta is 'x', not a number above 0"),
        ({"max_position_embeddings": None}, "max_position_embeddings is missing"),
        ({"model_type": "qwen3_moe", **EXPERTS, "num_experts": "4"}, "num_experts is '4', not a"),
        (
            {"model_type": "qwen3_moe", **EXPERTS, "num_experts_per_tok": 5},
            "= 5 of num_experts = 4",
        ),
        ({"model_type": "qwen3_moe", **EXPERTS, "mlp_only_layers": 1}, "mlp_only_layers is 1, not"),
    ],
)
def test_a_size_that_is_none_is_told_by_its_name(changes: dict[str, Any], told: str) -> None:
    """Else an engine ends with a KeyError, or a shape that cannot be multiplied."""
    config = {name: each for name, each in tiny_config(**changes).items() if each is not None}
    with pytest.raises(SettingsDamaged, match=told):
        shape_from_config(json.loads(json.dumps(config)))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False},
        {"model_type": "llama"},
        {"model_type": "qwen3_moe", **EXPERTS},
        {"model_type": "qwen3_moe", **EXPERTS, "mlp_only_layers": [0]},
    ],
)
def test_the_tensors_of_a_decoder_are_those_that_its_engine_takes_in(
    changes: dict[str, Any],
) -> None:
    """Checks know them without torch; an engine makes them of it."""
    shape = tiny_shape(**changes)
    manifest = Parameters(shape, torch.float32, torch.device("meta")).manifest
    assert dict(tensors_of(shape)) == {spec.name: spec.shape for spec in manifest}
