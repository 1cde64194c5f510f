"""A whole run whose evaluator has an SGLang engine of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract.kit import PYTHON
from proc.system.conftest import Launch, launch
from proc.system.harness import Start

__all__ = ["launch"]

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON, reason="MILEPOST_SGLANG_PYTHON names no interpreter"),
]
RUN_S = 800.0


def test_an_evaluation_engine_of_sglang_measures_each_version_as_the_trainer_has_it(
    tmp_path: Path, launch: Launch
) -> None:
    """Training samples elsewhere: the server gets a version only when it is to be measured."""
    create = "milepost.configs.recipes.lookup.model:create"
    words = (
        "--set", "actors.evaluation_engine.kind=sglang",
        "--set", f"actors.evaluation_engine.sglang.python={PYTHON}",
        "--set", "actors.evaluation_engine.slots=64",
        "--set", "actors.evaluator.every_versions=1",
        "--set", f"model.create={create}", "--set", "model.path=",
    )  # fmt: skip
    run = launch(Start(tmp_path, tmp_path / "checkpoint", steps=2, words=words))
    assert run.end(RUN_S) == 0, run.text
    told = {event["values"]["version"]: event["values"] for event in run.events("evaluation")}
    assert sorted(told) == [0, 1, 2]
    assert run.events("evaluation_skipped") == []
    for score in told.values():
        for mode in ("sampled", "greedy"):
            assert score[mode]["num_episodes"] == 8, score
            assert score[mode]["num_mixed"] == score[mode]["num_missing"] == 0, score
