"""A whole run with SGLang as its engine learns."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from contract.servers import RUN_S, WHOLE_RUN, served_by_sglang
from proc.system.harness import environment, milepost

pytestmark = WHOLE_RUN
WORDS = ("--set", "run.steps=20", *served_by_sglang("engine"))


def lines_with(file: Path, name: str) -> list[dict[str, Any]]:
    """Objects of a file of lines that have this key."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [row for row in rows if name in row]


def test_the_quick_start_learns_with_sglang_as_its_engine(tmp_path: Path) -> None:
    """Reward is all it gets: it rises only if tokens, log-probs and versions are what they say."""
    folder = tmp_path / "run"
    done = subprocess.run(
        [milepost(), "run", "lookup", "--plain", "--out", str(folder), *WORDS],
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
    assert len(steps) == 20
    # Tokens of the version being trained have the trainer's own log-probs.
    assert steps[0]["train/train_rollout_logprob_abs_diff"] < 1e-4
