"""A resumed run is the run that it was: same data order, a whole checkpoint, steps left."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milepost.configs.dump import dump_topology
from milepost.configs.load import decode
from milepost.configs.problem import Problem
from milepost.configs.read import merge, parse_override
from milepost.configs.run import ModelConfig
from milepost.supervisor.checkpoints import checkpoint_folder, last_checkpoint, whole_checkpoints
from milepost.supervisor.checks import Machine, Subject
from milepost.supervisor.checks.check import Finding, Note
from milepost.supervisor.checks.resume import resume_goes_on
from milepost.supervisor.cleanup.processes import identity_of
from milepost.supervisor.cleanup.registry import PRIVATE, Registry, identity_record
from milepost.supervisor.initial_model import INITIAL_MODEL, NOTE, note_made

DOCUMENT: dict[str, Any] = {
    "run": {"name": "tiny", "steps": 10},
    "model": {"path": "/models/tiny"},
    "data": {"prompts": "task:prompts", "options": {"level": 1}},
    "actors": {"trainer": {"lr": 1e-3}},
}
AT_END = ("actors.evaluator.at_end=true",)


def meta(step: int, **fields: object) -> str:
    """As much of a checkpoint's meta.json as is read before anything starts."""
    return json.dumps({"step": step, "trained_group_ids": [], **fields})


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run that ended at step 4, while it saved step 6."""
    (tmp_path / "topology.toml").write_text(dump_topology(decode(DOCUMENT)), encoding="utf-8")
    for step in (2, 4, 6):
        checkpoint_folder(tmp_path, step).mkdir(parents=True)
    for step in (2, 4):
        (checkpoint_folder(tmp_path, step) / "meta.json").write_text(meta(step))
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
        ("algorithm.minibatches_per_step=2", "$.algorithm.minibatches_per_step"),
        ("algorithm.estimator=sft", "$.algorithm.estimator"),
        ("model.dtype=bfloat16", "$.model.dtype"),
    ],
)
def test_what_decides_what_a_step_is_cannot_change(
    run_folder: Path, override: str, where: str
) -> None:
    (problem,) = problems(run_folder, override)
    assert f" at {where}, set it back" in problem


MADE = ("model.path=", "model.create=task:tiny", "model.create_options.layers=1")


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("model.create=task:other", "create = 'task:tiny', and not 'task:other' at $.model.create"),
        ("model.create_options.layers=3", "{'layers': 1}, and not {'layers': 3}"),
        ("model.create_options.more=1", "{'layers': 1}, and not {'layers': 1, 'more': 1}"),
    ],
)
def test_a_fresh_checkpoint_that_was_made_otherwise_is_not_gone_on_from(
    run_folder: Path, override: str, told: str
) -> None:
    """It is made once: the run would train what it was first told, and say nothing."""
    made = ModelConfig(create="task:tiny", create_options={"layers": 1})
    assert problems(run_folder, *MADE, override) == [], "none was made yet"
    (run_folder / INITIAL_MODEL).mkdir()
    (note,) = [each for each in findings(run_folder, *MADE) if isinstance(each, Note)]
    assert "does not say how it was made" in str(note)
    note_made(run_folder, made)
    assert findings(run_folder, *MADE) == []
    (problem,) = problems(run_folder, *MADE, override)
    assert told in problem
    assert problem.endswith("set it back, or start a run of its own")
    (run_folder / NOTE).write_text("{", encoding="utf-8")
    (problem,) = problems(run_folder, *MADE)
    assert "how initial_model was made cannot be read" in problem


def test_a_run_without_a_whole_checkpoint_begins_again_in_its_folder(run_folder: Path) -> None:
    """Killed before its first checkpoint: that is a stop like every other, and a person is told."""
    for step in (2, 4):
        (checkpoint_folder(run_folder, step) / "meta.json").unlink()
    assert problems(run_folder) == []
    (note,) = findings(run_folder)
    assert "no whole checkpoint yet" in str(note)


def test_a_run_that_goes_on_and_a_checkpoint_without_its_name_are_told(run_folder: Path) -> None:
    """What `milepost run --resume` would say, and do, before it looks at anything."""
    newest = checkpoint_folder(run_folder, 4)
    aside = newest.rename(newest.with_name(f".{newest.name}.replaced"))
    (note,) = findings(run_folder)
    assert str(note).startswith(f"{aside}: was being replaced when the run was killed; to resume")
    (run_folder / PRIVATE).mkdir()
    alive = identity_of(os.getpid())
    assert alive is not None
    begun = {"kind": "run", "run_id": "alive", "supervisor": identity_record(alive)}
    Registry(run_folder).append(begun)
    (problem,) = problems(run_folder)
    assert problem.startswith(f"the run goes on: its supervisor is process {os.getpid()} at ")


def ended(folder: Path, status: str, *, measured: int | None = None) -> None:
    """The summary of a run that is over."""
    cause = None
    if status != "done":
        cause = {"actor": "evaluator", "text": "it ended with SIGKILL", "log_tail": []}
    after = None if measured is None else {"version": measured, "seconds": 1.0}
    scores: dict[str, Any] = {"before": None, "after": after, "all": []}
    summary = {"status": status, "cause": cause, "scores": scores, "steps_done": 4}
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")


def test_a_run_that_is_complete_has_nothing_left_to_do(run_folder: Path) -> None:
    ended(run_folder, "done", measured=4)
    for evaluation in ((), AT_END):
        (problem,) = problems(run_folder, "run.steps=4", *evaluation)
        assert problem == (
            "the run is complete: steps = 4, all of them are trained, and nothing is open "
            "at $.run.steps, set more than 4 to train on"
        )


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("failed", "it ended as failed: evaluator: it ended with SIGKILL"),
        ("stopped", "it ended as stopped: evaluator: it ended with SIGKILL"),
        ("", "it was killed before its end"),
    ],
)
def test_a_run_that_ended_after_its_last_step_goes_on_with_what_is_open(
    run_folder: Path, status: str, said: str
) -> None:
    """Its scores are what it was trained for; and nobody wants to train a step more for them."""
    if status:
        ended(run_folder, status, measured=2)
    (note,) = findings(run_folder, "run.steps=4")
    assert isinstance(note, Note)
    assert note.text == f"all 4 steps are trained; goes on with what is open: {said}"


def test_a_run_that_was_done_goes_on_for_a_score_that_nobody_had_asked_for(
    run_folder: Path,
) -> None:
    """An evaluator that is added when all steps are trained measures the last version."""
    ended(run_folder, "done", measured=2)
    assert problems(run_folder, "run.steps=4") != []
    (note,) = findings(run_folder, "run.steps=4", *AT_END)
    assert str(note).endswith("open: version 4, the last one, has no score")


def test_fewer_steps_than_were_trained_are_refused_by_both_numbers(run_folder: Path) -> None:
    (problem,) = problems(run_folder, "run.steps=3")
    assert problem == (
        "steps = 3, but the run to resume has a checkpoint of step 4 at $.run.steps, "
        "set more than 4 to train on"
    )


@pytest.mark.parametrize("text", ["", '{"status": "do', '{"status": 3}', "{}"])
def test_a_summary_that_a_crash_left_half_written_is_named(run_folder: Path, text: str) -> None:
    """The machine went down while it was written; whether something is open is anybody's guess."""
    path = run_folder / "summary.json"
    path.write_text(text, encoding="utf-8")
    (problem,) = problems(run_folder, "run.steps=4")
    assert problem.startswith("how the run ended cannot be read: ")
    assert problem.endswith(f" at {path}, remove it: the run then goes on as one that was killed")


@pytest.mark.parametrize("text", ["", '{"step": 4', "[]"])
def test_a_checkpoint_that_a_crash_of_the_machine_damaged_is_told_before_anything_starts(
    run_folder: Path, text: str
) -> None:
    """Its name was on the disk before its bytes were; the one before it is whole."""
    folder = checkpoint_folder(run_folder, 4)
    (folder / "meta.json").write_text(text, encoding="utf-8")
    (problem,) = problems(run_folder)
    assert problem.startswith("the newest checkpoint is damaged, its meta.json cannot be read: ")
    remedy = "remove its folder: the run then goes on from step 2"
    assert problem.endswith(f" at {folder}, {remedy}")


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
