"""Short runs of the recipes with real packages of other projects (`make test-connectors`).

Each package has an environment of its own, since their dependencies exclude one another; a test
file is run by the interpreter of its package. The models are fresh ones: what is tried is the way
from the package to the trainer and back, and learning is the recipes' business.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

RUN_S: Final = 400.0
SMALL: Final = """
base = "{recipe}"
[run]
steps = 2
[model]
made_by = ""
create = "{create}"
create_options = {{ {options} }}
[algorithm]
prompts_per_step = 2
samples_per_prompt = 2
minibatches_per_step = 1
[guard]
batches_without_spread_max = 0
[actors.rollout]
trajectories_in_flight_max = 8
[actors.evaluator]
prompts_max = 2
greedy = false
{more}
"""
"""Two steps and two evaluations."""
MILEPOST: Final = (
    sys.executable,
    "-P",
    "-c",
    "from milepost.launch.cli import main; raise SystemExit(main())",
)


def milepost(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command, by the interpreter that has the package."""
    return subprocess.run(
        [*MILEPOST, *words],
        cwd=cwd,
        env={**os.environ, "MILEPOST_CACHE": str(cwd / "cache")},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Runs a recipe in small: its summary, and a line for each step."""

    def go(recipe: str, *, create: str, options: str = "", more: str = "") -> Any:
        file = tmp_path / "small.toml"
        text = SMALL.format(recipe=recipe, create=create, options=options, more=more)
        file.write_text(text)
        done = milepost("run", str(file), "--plain", "--out", str(tmp_path / "run"), cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
        steps = [line for line in map(json.loads, lines) if "train/version" in line]
        return json.loads((tmp_path / "run" / "summary.json").read_bytes()), steps

    return go
