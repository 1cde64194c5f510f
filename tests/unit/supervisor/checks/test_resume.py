"""A resumed run is the run that it was: same data order, a whole checkpoint, steps left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milepost.configs.dump import dump_topology
from milepost.configs.load import decode
from milepost.configs.problem import Problem
from milepost.configs.read import merge, parse_override
from milepost.supervisor.checkpoints import checkpoint_folder, last_checkpoint, whole_checkpoints
from milepost.supervisor.checks import Machine, Subject
from milepost.supervisor.checks.check import Finding
from milepost.supervisor.checks.resume import resume_goes_on

DOCUMENT: dict[str, Any] = {
    "run": {"name": "tiny", "steps": 10},
    "model": {"path": "/models/tiny"},
    "data": {"prompts": "task:prompts", "options": {"level": 1}},
    "actors": {"trainer": {"lr": 1e-3}},
}


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run that ended at step 4, while it saved step 6."""
    (tmp_path / "topology.toml").write_text(dump_topology(decode(DOCUMENT)), encoding="utf-8")
    for step in (2, 4, 6):
        checkpoint_folder(tmp_path, step).mkdir(parents=True)
    for step in (2, 4):
        (checkpoint_folder(tmp_path, step) / "meta.json").touch()
    return tmp_path


def findings(folder: Path, *overrides: str) -> list[Finding]:
    document = DOCUMENT
    for override in overrides:
        document = merge(document, parse_override(override))
    subject = Subject(decode(document), Machine.look(folder), folder, resuming=True)
    return list(resume_goes_on(subject))


def problems(folder: Path, *overrides: str) -> list[str]:
    return [str(each) for each in findings(folder, *overrides) if isinstance(each, Problem)]


def test_only_whole_checkpoints_count(run_folder: Path) -> None:
    """The folder of step 6 is there, and its last file is not."""
    (run_folder / "checkpoints" / "step_other").mkdir()
    assert whole_checkpoints(run_folder) == (2, 4)
    assert last_checkpoint(run_folder) == 4
    assert last_checkpoint(run_folder / "nowhere") is None


def test_the_same_run_goes_on_and_may_learn_in_another_way(run_folder: Path) -> None:
    assert problems(run_folder) == []
    assert problems(run_folder, "actors.trainer.lr=1e-4", "run.steps=50") == []


@pytest.mark.parametrize(
    ("override", "where"),
    [
        ("run.seed=1", "$.run.seed"),
        ("data.prompts=task:others", "$.data.prompts"),
        ("data.options.level=2", "$.data.options"),
        ("data.shuffle=false", "$.data.shuffle"),
        ("algorithm.samples_per_prompt=4", "$.algorithm.samples_per_prompt"),
        ("algorithm.prompts_per_step=4", "$.algorithm.prompts_per_step"),
        ("algorithm.estimator=sft", "$.algorithm.estimator"),
        ("model.dtype=bfloat16", "$.model.dtype"),
    ],
)
def test_what_decides_which_prompt_is_next_cannot_change(
    run_folder: Path, override: str, where: str
) -> None:
    (problem,) = problems(run_folder, override)
    assert f" at {where}, set it back" in problem


def test_a_run_without_a_whole_checkpoint_begins_again_in_its_folder(run_folder: Path) -> None:
    """Killed before its first checkpoint: that is a stop like every other, and a person is told."""
    for step in (2, 4):
        (checkpoint_folder(run_folder, step) / "meta.json").unlink()
    assert problems(run_folder) == []
    (note,) = findings(run_folder)
    assert "no whole checkpoint yet" in str(note)


def test_a_run_that_is_done_has_nothing_left_to_train(run_folder: Path) -> None:
    (problem,) = problems(run_folder, "run.steps=4")
    assert problem == (
        "steps = 4, and all of them are trained at $.run.steps, set more than 4 to train on"
    )


def test_a_folder_without_a_run_and_a_broken_one_are_told(run_folder: Path) -> None:
    (run_folder / "topology.toml").write_text("[run]\nstepps = 1\n", encoding="utf-8")
    assert any("unknown key `stepps`" in problem for problem in problems(run_folder))
    (run_folder / "topology.toml").unlink()
    (problem,) = problems(run_folder)
    assert problem.startswith("nothing to resume")


def test_a_new_run_is_not_asked_about_an_old_one(tmp_path: Path) -> None:
    subject = Subject(decode(DOCUMENT), Machine.look(tmp_path), tmp_path, resuming=False)
    assert list(resume_goes_on(subject)) == []
    assert list(resume_goes_on(replace(subject, resuming=True, run_folder=None))) == []
