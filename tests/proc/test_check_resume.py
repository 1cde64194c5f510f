"""A checkpoint that no trainer could go on from is refused before anything starts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save
from unit.trainer.kit import write_model

from milepost.actors.rollout.promptset import PromptSet, note
from milepost.actors.session.text.sources import text_hashes
from milepost.actors.trainer.fsdp.checkpoint import CheckpointMeta, state_shapes
from milepost.actors.trainer.fsdp.model import parameter_shapes
from milepost.configs.dump import dump_topology
from milepost.configs.load import decode
from milepost.configs.problem import Problem
from milepost.messages.shared import Prompt
from milepost.supervisor.checkpoints import META, checkpoint_folder
from milepost.supervisor.checks import CHECKS, Machine, Stage, Subject
from milepost.supervisor.checks.check import Note
from milepost.supervisor.checks.kept import functions_yield_the_same
from milepost.supervisor.checks.resume import checkpoint_fits

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),  # one rank needs none
]

STEPS = (2, 4)


@pytest.fixture
def resumed(tmp_path: Path) -> Subject:
    """A run with two checkpoints, about to go on."""
    model, run = write_model(tmp_path / "model"), tmp_path / "run"
    document: dict[str, Any] = {
        "run": {"name": "tiny", "steps": 10},
        "model": {"path": str(model)},
        "data": {"prompts": "task:prompts"},
        "actors": {"trainer": {"lr": 1e-3}},
    }
    topology = decode(document)
    run.mkdir()
    (run / "topology.toml").write_text(dump_topology(topology), encoding="utf-8")
    shapes = state_shapes(parameter_shapes(model))
    state = {name: torch.zeros(shape) for name, shape in shapes.items()}
    for step in STEPS:
        folder = checkpoint_folder(run, step)
        save(state, storage_writer=FileSystemWriter(folder), no_dist=True)
        facts: dict[str, Any] = {"step": step, "optimizer_step": step, "lr": 1e-3, "world_size": 1}
        text = text_hashes(model)
        facts |= {"tokenizer_hash": text.tokenizer, "template_hash": text.template}
        meta = CheckpointMeta(**facts, trained_group_ids=(), rng_states=("",))
        (folder / META).write_bytes(msgspec.json.encode(meta))
    return Subject(topology, Machine.look(run), run, resuming=True)


def problems(subject: Subject) -> list[Problem]:
    return [each for each in checkpoint_fits(subject) if isinstance(each, Problem)]


def test_what_is_missing_of_the_newest_checkpoint_is_named_with_the_way_out(
    resumed: Subject,
) -> None:
    """The supervisor does not load torch for it: a child process does."""
    assert resumed.run_folder is not None
    assert any(check.find is checkpoint_fits and check.stage is Stage.CODE for check in CHECKS)
    assert problems(resumed) == []
    newest = checkpoint_folder(resumed.run_folder, STEPS[-1])
    (shard,) = newest.glob("*.distcp")
    shard.unlink()
    (problem,) = problems(resumed)
    assert problem.what == f"the newest checkpoint is damaged: {shard.name} is missing"
    assert problem.where == str(newest)
    assert problem.remedy == "remove its folder: the run then goes on from step 2"
    assert problems(replace(resumed, resuming=False)) == [], "a new run is not asked about it"


def test_a_checkpoint_of_another_model_is_told_at_the_path_that_names_it(
    resumed: Subject, tmp_path: Path
) -> None:
    """A path that was set to another model, and a run that would go on with half of each."""
    other = write_model(tmp_path / "other", num_hidden_layers=3)
    model = resumed.topology.model
    assert model is not None
    table = msgspec.structs.replace(model, path=str(other))
    topology = msgspec.structs.replace(resumed.topology, model=table)
    (problem,) = problems(replace(resumed, topology=topology))
    assert "/step_000004 is no checkpoint of this model: it lacks model/lm." in problem.what
    assert problem.where == "$.model.path"
    assert problem.remedy == (
        f'the run to resume started from "{model.path}": set that again, '
        "or start a run of its own from its hf folder"
    )
    (other / "config.json").write_text("{}", encoding="utf-8")
    (problem,) = problems(replace(resumed, topology=topology))
    assert "raised ModelRefused: " in problem.what


@pytest.mark.parametrize(
    ("file", "name"), [("tokenizer.json", "tokenizer"), ("chat_template.jinja", "chat template")]
)
def test_old_weights_do_not_go_on_with_another_tokenizer_or_template(
    resumed: Subject, tmp_path: Path, file: str, name: str
) -> None:
    """The shapes are the same, and every token means something else: nothing would have failed."""
    model = resumed.topology.model
    assert model is not None
    before = text_hashes(model.folder)
    other = write_model(tmp_path / "other")
    (other / file).write_text('{"other": 1}', encoding="utf-8")
    table = msgspec.structs.replace(model, path=str(other))
    topology = msgspec.structs.replace(resumed.topology, model=table)
    (problem,) = problems(replace(resumed, topology=topology))
    at = 0 if name == "tokenizer" else 1
    assert problem.what.endswith(
        f"/step_000004 is no checkpoint of this model: it was trained with {name} {before[at]}, "
        f"and the model has {text_hashes(other)[at]}"
    )
    assert problem.where == "$.model.path"
    assert f'started from "{model.path}": set that again' in problem.remedy
    (model.folder / file).write_text('{"changed": 1}', encoding="utf-8")
    (problem,) = problems(resumed)
    assert f"it was trained with {name} {before[at]}, and the model has " in problem.what
    assert problem.remedy.startswith(f"put back what was changed in {model.path}, or start")


def test_a_checkpoint_that_says_nothing_of_how_text_was_read_goes_on_with_a_note(
    resumed: Subject,
) -> None:
    """Runs that were begun before it was written down go on all the same."""
    assert resumed.run_folder is not None
    newest = checkpoint_folder(resumed.run_folder, STEPS[-1])
    meta = msgspec.json.decode((newest / META).read_bytes())
    assert list(checkpoint_fits(resumed)) == []
    for key in ("tokenizer_hash", "template_hash"):
        del meta[key]
    (newest / META).write_bytes(msgspec.json.encode(meta))
    (note,) = checkpoint_fits(resumed)
    assert isinstance(note, Note)
    assert note.text == (
        "does not say with which tokenizer and chat template: whether they are the same is not "
        "known"
    )


FUNCTION = """
from milepost.messages.shared import Prompt

def prompts(split, seed, options):
    for index in range(COUNT):
        yield Prompt(prompt_id=f"{split} {index}", messages=[{"role": "user", "content": "x"}])
"""


def test_a_function_whose_code_has_changed_is_told_before_anything_starts(
    resumed: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more prompts than a check asks for, the rollout actor finds out; none is asked for."""
    assert resumed.run_folder is not None
    module = tmp_path / "task.py"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    given = [
        Prompt(prompt_id=f"train {index}", messages=[{"role": "user", "content": "x"}])
        for index in range(1001)
    ]
    assert list(functions_yield_the_same(resumed)) == [], "a run that noted nothing"
    note(resumed.run_folder, "train", PromptSet.of("task:prompts", given[:3]))
    for count, told in (
        (3, ""),
        (40, "are 40 with digest"),
        (2000, "are more than 1000 from task"),
    ):
        module.write_text(FUNCTION.replace("COUNT", str(count)), encoding="utf-8")
        found = list(functions_yield_the_same(resumed))
        assert len(found) == bool(told)
        for problem in found:
            assert isinstance(problem, Problem)
            assert told in problem.what
            assert "they were 3 with digest" in problem.what
            assert problem.where == "$.data.prompts"
    module.write_text("raise SystemExit\n", encoding="utf-8")
    note(resumed.run_folder, "train", PromptSet.of("task:prompts", given))
    assert list(functions_yield_the_same(resumed)) == []
