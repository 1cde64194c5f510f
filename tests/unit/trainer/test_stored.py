"""Whether a run can go on from a checkpoint is told from its metadata, before it is begun."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from unit.trainer.kit import write_model

from milepost.actors.session.text.sources import TextHashes
from milepost.actors.trainer.fsdp.checkpoint import (
    checkpoint_faults,
    learner_state,
    load_checkpoint,
    save_checkpoint,
    state_shapes,
)
from milepost.actors.trainer.fsdp.learner import Learner
from milepost.actors.trainer.fsdp.model import parameter_shapes
from milepost.actors.trainer.fsdp.stored import CheckpointDamaged

FAMILY = "qwen3"
TEXT = TextHashes("", "")
MakeLearner = Callable[..., Learner]
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def save(parent: Path, learner: Learner, text: TextHashes = TEXT) -> Path:
    return save_checkpoint(
        parent,
        learner,
        step=1,
        trained_group_ids=(),
        trained_before=0,
        keep=2,
        text=text,
        write_hugging_face=lambda _: None,
    )


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "qwen3_moe"])
def test_what_a_trainer_would_hold_is_known_without_its_weights(
    architecture: str, make_learner: MakeLearner, tmp_path: Path
) -> None:
    """Experts lie fused in memory and tied tensors once: names on disk would not do."""
    for number, tied in enumerate((True, False)):
        sizes: dict[str, Any] = EXPERTS if architecture == "qwen3_moe" else {}
        sizes = {**sizes, "tie_word_embeddings": tied}
        source = write_model(tmp_path / f"{number}", architecture=architecture, **sizes)
        state = learner_state(make_learner(folder=source))
        assert state_shapes(parameter_shapes(source)) == {
            name: tuple(tensor.shape) for name, tensor in state.items()
        }


def test_a_whole_checkpoint_of_the_model_has_no_fault(
    make_learner: MakeLearner, model_folder: Path, tmp_path: Path
) -> None:
    assert list(checkpoint_faults(save(tmp_path, make_learner()), model_folder, FAMILY)) == []


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"num_hidden_layers": 1}, "has model/lm.model.layers.1."),
        ({"num_hidden_layers": 3}, "lacks model/lm.model.layers.2."),
        ({"intermediate_size": 40}, "has model/lm.model.layers.0.mlp.down_proj.weight as (16, 32)"),
        ({"tie_word_embeddings": False}, "lacks model/lm.lm_head.weight, exp_avg/lm.lm_"),
    ],
)
def test_a_checkpoint_of_another_model_is_told_by_its_tensors(
    sizes: dict[str, Any], told: str, make_learner: MakeLearner, tmp_path: Path
) -> None:
    """Parameters before moments: a person looks for layers, not for what Adam keeps of them."""
    folder = save(tmp_path, make_learner())
    ((what, is_damage),) = checkpoint_faults(
        folder, write_model(tmp_path / "other", **sizes), FAMILY
    )
    assert what.startswith(told)
    assert not is_damage


def test_a_shard_that_is_missing_or_cut_is_told_by_its_name(
    make_learner: MakeLearner, model_folder: Path, tmp_path: Path
) -> None:
    folder = save(tmp_path, make_learner())
    (shard,) = folder.glob("*.distcp")
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    ((what, is_damage),) = checkpoint_faults(folder, model_folder, FAMILY)
    assert what.startswith(f"{shard.name} has {len(whole) - 100} bytes, its tensors end at ")
    assert is_damage
    shard.unlink()
    assert list(checkpoint_faults(folder, model_folder, FAMILY)) == [
        (f"{shard.name} is missing", True)
    ]


@pytest.mark.parametrize("content", [None, b"", b"\x80\x04", b"words", b"{}", b"\x80\x04K\x07."])
def test_metadata_that_cannot_be_read_is_damage(
    content: bytes | None, make_learner: MakeLearner, model_folder: Path, tmp_path: Path
) -> None:
    """Whatever a crash of the machine left of it: at the start of a trainer it is named, too."""
    learner = make_learner()
    folder = save(tmp_path, learner)
    (folder / ".metadata").unlink()
    if content is not None:
        (folder / ".metadata").write_bytes(content)
    ((what, is_damage),) = checkpoint_faults(folder, model_folder, FAMILY)
    assert what.startswith(f"{folder / '.metadata'} cannot be read: ")
    assert is_damage
    with pytest.raises(CheckpointDamaged, match=r"\.metadata cannot be read"):
        load_checkpoint(folder, learner, TEXT)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}'])
def test_facts_of_a_checkpoint_that_cannot_be_read_are_damage(
    text: str, make_learner: MakeLearner, model_folder: Path, tmp_path: Path
) -> None:
    folder = save(tmp_path, make_learner())
    (folder / "meta.json").write_text(text, encoding="utf-8")
    ((what, is_damage),) = checkpoint_faults(folder, model_folder, FAMILY)
    assert what.startswith(f"{folder / 'meta.json'} cannot be read: ")
    assert is_damage


@pytest.mark.parametrize(("part", "told"), [(0, "tokenizer aa"), (1, "chat template bb")])
def test_weights_that_were_trained_with_another_tokenizer_or_template_are_refused(
    make_learner: MakeLearner, tmp_path: Path, part: int, told: str
) -> None:
    """Every shape fits; what is not known of one side is no reason."""
    folder = save(tmp_path, make_learner(), hashes := TextHashes("aa", "bb"))
    changed, unknown = (
        TextHashes(*(word if at == part else hashed for at, hashed in enumerate(hashes)))
        for word in ("cc", "")
    )
    with pytest.raises(CheckpointDamaged, match=f"was trained with {told}, and the model has cc"):
        load_checkpoint(folder, make_learner(), changed)
    assert load_checkpoint(folder, make_learner(), unknown).step == 1
