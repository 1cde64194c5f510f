"""A whole run with SGLang engines: it learns, and the loss of an engine does not stop it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from contract.kit import PYTHON
from proc.system.conftest import Launch, launch
from proc.system.harness import Start, environment, milepost

__all__ = ["launch"]

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON, reason="MILEPOST_SGLANG_PYTHON names no interpreter"),
]
SERVERS = (
    "--set", "actors.engine.kind=sglang",
    "--set", f"actors.engine.sglang.python={PYTHON}",
    "--set", "actors.engine.slots=64",
)  # fmt: skip
RUN_S = 800.0


def steps_with(folder: Path, name: str) -> list[dict[str, Any]]:
    """Objects of metrics.jsonl that have this metric."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if name in row]


def test_the_quick_start_learns_with_sglang_as_its_engine(tmp_path: Path) -> None:
    """Reward is all it gets: it rises only if tokens, log-probs and versions are what they say."""
    folder = tmp_path / "run"
    words = ["run", "lookup", "--plain", "--out", str(folder), "--set", "run.steps=30", *SERVERS]
    done = subprocess.run(
        [milepost(), *words],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, *_, last = steps_with(folder, "eval/sampled/reward")
    assert last["eval/sampled/reward"] > first["eval/sampled/reward"] + 0.1
    steps = steps_with(folder, "train/version")
    assert len(steps) == 30
    # Tokens of the version being trained have the trainer's own log-probs.
    assert steps[0]["train/train_rollout_logprob_abs_diff"] < 1e-4


def test_a_run_goes_on_when_one_of_two_engines_is_killed(tmp_path: Path, launch: Launch) -> None:
    """Its requests are asked again of the other; the new one serves nothing before its weights."""
    checkpoint = tmp_path / "checkpoint"
    create = "milepost.configs.recipes.lookup.model:create"
    words = (*SERVERS, "--set", "actors.engine.replicas=2", "--set", f"model.create={create}",
             "--set", "model.path=")  # fmt: skip
    run = launch(Start(tmp_path, checkpoint, steps=8, words=words))
    run.until("step 2/8", RUN_S)
    run.kill("engine-0")
    assert run.end(RUN_S) == 0, run.text
    assert run.summary["status"] == "done", run.summary
    assert run.summary["restarts"].get("engine-0", 0) <= 1
    assert len(run.steps()) == 8


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
