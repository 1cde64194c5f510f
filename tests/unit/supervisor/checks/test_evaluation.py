"""Evaluations that would have no engine, no checkpoint or no effect are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from unit.supervisor.checks.test_reading import GRPO, MACHINE, SFT, problems, topology

from milepost.supervisor.checks import Subject, code
from milepost.supervisor.probe import Target


@pytest.mark.parametrize(
    ("overrides", "where", "what"),
    [
        (["actors.evaluator=false", "actors.evaluation_engine={}"], "evaluation_engine", "none"),
        (["actors.evaluator.overflow=skip"], "evaluator.overflow", "without effect"),
        (["actors.evaluator.external_options.a=1"], "evaluator.external_options", "without"),
        (
            ["actors.evaluation_engine={}", "actors.evaluator.external=m:C"],
            "evaluation_engine",
            "without any engine",
        ),
        (
            ["actors.evaluation_engine={}", "actors.publisher.transport=broadcast"],
            "evaluation_engine",
            "lag behind",
        ),
        (["actors.evaluation_engine.requests_max=1"], "evaluation_engine.requests_max", "64"),
        (["actors.evaluation_engine.slots=1"], "evaluation_engine.slots", "a row each"),
        (["actors.evaluation_engine.device=gpu"], "evaluation_engine.device", "no device"),
    ],
)
def test_an_evaluation_without_its_engines_or_with_too_many_is_refused(
    overrides: list[str], where: str, what: str
) -> None:
    """A score that never comes, an engine that nobody asks, a policy that never applies."""
    (found,) = problems(GRPO, *overrides)
    assert found.where == f"$.actors.{where}"
    assert what in found.what


@pytest.mark.parametrize(
    ("every", "saves", "where"),
    [(2, 0, "$.run.checkpoint_every_steps"), (3, 2, "$.actors.evaluator.every_versions")],
)
def test_an_external_evaluation_has_checkpoints_to_measure(
    every: int, saves: int, where: str
) -> None:
    given = [
        "actors.evaluator.external=m:C",
        f"actors.evaluator.every_versions={every}",
        f"run.checkpoint_every_steps={saves}",
    ]
    (found,) = problems(GRPO, *given)
    assert found.where == where
    assert not problems(GRPO, *given, "run.checkpoint_every_steps=1")


def test_supervised_training_is_measured_by_a_class_of_the_users_or_not_at_all() -> None:
    """There are no agents and no engines, but there are checkpoints."""
    (found,) = problems(SFT, "actors.evaluator={}")
    assert found.where == "$.actors.evaluator"
    assert not problems(SFT, "actors.evaluator={}", "actors.evaluator.external=m:C")


@pytest.mark.parametrize("external", [False, True])
def test_prompts_that_nobody_is_asked_need_no_room(
    *, external: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class of the user's has prompts of its own: there need be no held-out ones at all."""
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    looked: list[str] = []

    def probe(targets: tuple[Target, ...], deadline_s: float, _limit: str) -> list[Any]:
        assert deadline_s > 0
        looked.extend(each.where for each in targets)
        return []

    monkeypatch.setattr(code, "probe", probe)
    given = [f"model.path={tmp_path}", *(["actors.evaluator.external=m:C"] if external else [])]
    assert not list(code.prompts_have_room(Subject(topology(GRPO, *given), MACHINE)))
    assert looked == ["$.data.prompts", *([] if external else ["$.data.held_out_prompts"])]
