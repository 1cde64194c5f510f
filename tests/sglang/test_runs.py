"""Whole runs with SGLang engines: one learns, another one loses a server and goes on."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
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
LEARNING = (
    "--set", "run.steps=30",
    "--set", "actors.evaluator.every_versions=15",
    "--set", "actors.evaluation_engine.kind=sglang",
    "--set", f"actors.evaluation_engine.sglang.python={PYTHON}",
    "--set", "actors.evaluation_engine.slots=64",
)  # fmt: skip
RUN_S = 800.0


def lines_with(file: Path, name: str) -> list[dict[str, Any]]:
    """Objects of a file of lines that have this key."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [row for row in rows if name in row]


def test_the_quick_start_learns_with_sglang_as_its_engines(tmp_path: Path) -> None:
    """Reward is all it gets: it rises only if tokens, log-probs and versions are what they say.

    A second server is the evaluator's alone: it gets a version only when that is to be measured,
    and every answer of a measurement is of that one version.
    """
    folder = tmp_path / "run"
    done = subprocess.run(
        [milepost(), "run", "lookup", "--plain", "--out", str(folder), *LEARNING, *SERVERS],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, *_, last = lines_with(folder / "metrics.jsonl", "eval/sampled/reward")
    assert last["eval/sampled/reward"] > first["eval/sampled/reward"] + 0.1
    steps = lines_with(folder / "metrics.jsonl", "train/version")
    assert len(steps) == 30
    # Tokens of the version being trained have the trainer's own log-probs.
    assert steps[0]["train/train_rollout_logprob_abs_diff"] < 1e-4

    events = lines_with(folder / "events.jsonl", "kind")
    told = [event["values"] for event in events if event["kind"] == "evaluation"]
    assert [score["version"] for score in told] == [0, 15, 30]
    assert not [event for event in events if event["kind"] == "evaluation_skipped"]
    for score in told:
        for mode in ("sampled", "greedy"):
            assert score[mode]["num_episodes"] > 0, score
            assert score[mode]["num_mixed"] == score[mode]["num_missing"] == 0, score


def test_a_run_goes_on_when_the_server_of_one_of_two_engines_dies(
    tmp_path: Path, launch: Launch
) -> None:
    """Its actor ends by name; its requests are asked again of the other engine.

    The new one serves nothing before it has weights.
    """
    checkpoint = tmp_path / "checkpoint"
    create = "milepost.configs.recipes.lookup.model:create"
    words = (*SERVERS, "--set", "actors.engine.replicas=2", "--set", f"model.create={create}",
             "--set", "model.path=")  # fmt: skip
    run = launch(Start(tmp_path, checkpoint, steps=8, words=words))
    run.until("step 2/8", RUN_S)
    server = run.children()["engine-0"].children(recursive=True)
    scheduler = next(each for each in server if "scheduler" in " ".join(each.cmdline()))
    scheduler.send_signal(signal.SIGKILL)
    assert run.end(RUN_S) == 0, run.text
    assert run.summary["status"] == "done", run.summary
    assert [event["source"] for event in run.events("restarted")] == ["engine-0"], run.text
    assert not psutil.wait_procs(server, timeout=30)[1]
    assert len(run.steps()) == 8
