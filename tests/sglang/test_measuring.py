"""A whole run whose evaluator has an SGLang engine of its own."""

from __future__ import annotations

from pathlib import Path

from contract.servers import FRESH_MODEL, RUN_S, WHOLE_RUN, served_by_sglang
from proc.system.conftest import Launch, launch
from proc.system.harness import Start

__all__ = ["launch"]

pytestmark = WHOLE_RUN


def test_an_evaluation_engine_of_sglang_measures_each_version_as_the_trainer_has_it(
    tmp_path: Path, launch: Launch
) -> None:
    """Training samples elsewhere: the server gets a version only when it is to be measured."""
    words = (
        *served_by_sglang("evaluation_engine"),
        "--set", "actors.evaluator.every_versions=1",
        *FRESH_MODEL,
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
