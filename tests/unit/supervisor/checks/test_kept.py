"""A resume with other prompts than those that the run began with is told before it starts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milepost.actors.rollout.prompts import load_prompts
from milepost.actors.rollout.promptset import KEEP, PromptSet, note
from milepost.configs.load import decode
from milepost.configs.problem import Problem
from milepost.supervisor.checks import Machine, Subject
from milepost.supervisor.checks.check import Finding, Note
from milepost.supervisor.checks.files import prompts_are_readable
from milepost.supervisor.checks.kept import prompts_are_noted


def write(path: Path, *words: str) -> None:
    lines = [{"messages": [{"role": "user", "content": word}]} for word in words]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


@pytest.fixture
def resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    """A run that has its prompts from files seen from the folder where it was started."""
    run, home = tmp_path / "run", tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    write(home / "p.jsonl", "a", "b")
    write(home / "h.jsonl", "c", "d")
    for split, source in (("train", "p.jsonl"), ("held_out", "h.jsonl")):
        note(run, split, PromptSet.of(source, load_prompts(source, split, 0, {})))
    (run / "journal" / "rollout").touch()
    document: dict[str, Any] = {
        "run": {"name": "tiny", "steps": 1},
        "data": {"prompts": "p.jsonl", "held_out_prompts": "h.jsonl"},
        "actors": {"evaluator": {}},
    }
    return Subject(decode(document), Machine.look(run), run, resuming=True)


def found(subject: Subject) -> list[Finding]:
    return [*prompts_are_noted(subject), *prompts_are_readable(subject)]


@pytest.mark.parametrize("words", ["abx", "ba", "1234567"])
def test_a_prompt_file_with_another_content_is_refused_with_both_counts(
    resumed: Subject, words: str
) -> None:
    """Its name is the same: that alone was compared."""
    assert found(resumed) == []
    write(Path("p.jsonl"), *words)
    (problem,) = found(resumed)
    assert isinstance(problem, Problem)
    path = Path("p.jsonl").absolute()
    assert problem.what.startswith(
        "the prompts are not those that the run began with: they were 2 with digest "
    )
    assert f" from {path}, are {len(words)} with digest " in problem.what
    assert (problem.where, problem.remedy) == ("$.data.prompts", KEEP)
    assert found(replace(resumed, resuming=False)) == [], "a new run may have any"


def test_a_relative_path_from_another_folder_is_told_with_both_places(
    resumed: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write(elsewhere / "p.jsonl", "other", "prompts")
    write(elsewhere / "h.jsonl", "c", "d")
    monkeypatch.chdir(elsewhere)
    (problem,) = found(resumed)
    for folder in (tmp_path / "home", elsewhere):
        assert f" from {folder / 'p.jsonl'}" in str(problem)


def test_other_held_out_prompts_are_noted(resumed: Subject) -> None:
    """Nothing is trained on them; but scores before and after look as if they were comparable."""
    write(Path("h.jsonl"), "c", "d", "e")
    (told,) = found(resumed)
    assert isinstance(told, Note)
    assert told.where == "$.data.held_out_prompts"
    assert told.text.endswith("scores from now on are of other questions than those before")


def test_a_run_that_was_begun_before_prompts_were_noted_goes_on_with_a_note(
    resumed: Subject,
) -> None:
    assert resumed.run_folder is not None
    (resumed.run_folder / "journal" / "prompts_train").unlink()
    write(Path("p.jsonl"), "x")
    (told,) = found(resumed)
    assert isinstance(told, Note)
    assert str(told) == (
        "$.data.prompts: the run did not note its prompts: whether they are the same is not known"
    )


def test_a_note_that_cannot_be_read_is_a_problem_with_a_way_out(resumed: Subject) -> None:
    assert resumed.run_folder is not None
    path = resumed.run_folder / "journal" / "prompts_train"
    data = bytearray(path.read_bytes() * 2)
    data[20] ^= 1
    path.write_bytes(data)
    (problem,) = found(resumed)
    assert "cannot be read: " in str(problem)
    assert str(problem).endswith(f"at {path}, remove it if you know that they are the same")
