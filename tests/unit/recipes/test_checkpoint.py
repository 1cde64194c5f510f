"""The fresh checkpoint: a plain Hugging Face folder whose tokenizer keeps conversations short."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from msgspec import ValidationError
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from milepost.configs.recipes.hunt import clerk as hunt_clerk
from milepost.configs.recipes.hunt import island
from milepost.configs.recipes.lookup import clerk as lookup_clerk
from milepost.configs.recipes.lookup import directory
from milepost.configs.recipes.lookup.model import create
from milepost.configs.recipes.tiny.checkpoint import write_checkpoint
from milepost.configs.recipes.tiny.tokenizer import STOP, render, train_tokenizer
from milepost.messages.shared import Prompt

DEMONSTRATIONS = {"lookup": lookup_clerk.demonstrations, "hunt": hunt_clerk.demonstrations}
VALUES = {"lookup": directory.VALUES, "hunt": island.VALUES}
CALL_TOKENS_MAX = {"lookup": 8, "hunt": 8}


def conversations(checkpoint: Path, split: str, size: int) -> list[Prompt]:
    return list(islice(DEMONSTRATIONS[checkpoint.name](split, 3, {}), size))


def test_a_fresh_checkpoint_starts_every_layer_as_the_identity(checkpoint: Path) -> None:
    """Without this the warm-up rests on a plateau for most of the quick start's time."""
    weights = load_file(checkpoint / "model.safetensors")
    config = json.loads((checkpoint / "config.json").read_text())
    closed = [name for name in weights if name.endswith(("o_proj.weight", "down_proj.weight"))]
    assert len(closed) == 2 * config["num_hidden_layers"]
    assert not any(weights[name].any() for name in closed)
    embedding = weights["model.embed_tokens.weight"]
    assert embedding.shape == (config["vocab_size"], config["hidden_size"])
    assert embedding.std() == pytest.approx(config["hidden_size"] ** -0.5, rel=0.05)


def test_the_model_has_an_entry_for_each_token_and_no_other(checkpoint: Path) -> None:
    """A spare entry could be sampled and would decode to nothing."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    config = json.loads((checkpoint / "config.json").read_text())
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    assert config["eos_token_id"] == tokenizer.token_to_id(STOP)
    stops = json.loads((checkpoint / "generation_config.json").read_text())
    assert stops["eos_token_id"] == config["eos_token_id"]


def test_every_value_of_the_task_is_one_token_and_text_survives_the_round_trip(
    checkpoint: Path,
) -> None:
    """A name that is spelled in pieces costs tokens, and the model cannot copy it in one step."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    for value in VALUES[checkpoint.name]:
        assert len(tokenizer.encode(value).ids) == 1, value
    for prompt in conversations(checkpoint, "held_out", 30):
        text = render(prompt)
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_a_tool_call_is_a_handful_of_tokens(checkpoint: Path) -> None:
    """This is what fits a whole training run of multi-turn episodes into a minute of one core."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    for prompt in conversations(checkpoint, "train", 30):
        for reply in render(prompt).split("<|im_start|>assistant\n")[1:]:
            call, _, _ = reply.partition(STOP)
            assert len(tokenizer.encode(call + STOP).ids) <= CALL_TOKENS_MAX[checkpoint.name]


def test_the_same_seed_writes_the_same_bytes_and_another_seed_other_weights(
    tmp_path: Path,
) -> None:
    """The warm-up is cached by what made it: that must not depend on the day it was made."""
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        create(str(tmp_path / name), seed, {})
    for file in (tmp_path / "one").iterdir():
        same = file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()
        assert same, f"{file.name} differs between two runs of one seed"
        kept = file.read_bytes() == (tmp_path / "other" / file.name).read_bytes()
        assert kept == (file.name != "model.safetensors"), file.name


def test_an_option_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="hiden"):
        create(str(tmp_path), 0, {"hiden": 128})


def test_a_vocabulary_that_cannot_be_filled_is_refused_with_its_size(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"yield \d+ entries, not 5000: lower size"):
        write_checkpoint(tmp_path, 0, ["a short text"] * 3, ["kai"], {"vocabulary": 5000})


def test_a_vocabulary_without_room_for_merges_is_refused() -> None:
    with pytest.raises(ValueError, match="has no room: 266 are fixed"):
        train_tokenizer(["text"], ["kai"], size=266)
