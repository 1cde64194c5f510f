"""A whole run whose agent is a program that knows nothing of us: bash, curl and jq over HTTP."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest
from proc.system.conftest import Launch
from proc.system.harness import Start, check_balance, check_metrics

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="no curl, no jq"),
]
STEPS: Final = 2
SCRIPT: Final = Path(__file__).parents[3] / "clients" / "bash" / "agent.sh"
JUDGE: Final = """
def judge(given):
    roles = [message["role"] for message in given.messages]
    assert roles[0] in ("system", "user") and roles[-1] == "assistant", roles
    assert given.text == (given.messages[-1].get("content") or ""), given.text
    assert given.reported is not None, "the script prints a reward of its own"
    return float(len(given.text) % 3), {"solved": float(1 <= roles.count("assistant") <= 2)}
"""


def test_the_bash_example_is_trained_on_and_its_conversations_are_judged(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """The reward function sees the messages that went past us, as the session has them."""
    (tmp_path / "my_task.py").write_text(JUDGE)
    start = Start(
        tmp_path, checkpoint, steps=STEPS, words=("--set", "data.reward=my_task:judge"),
        agent="milepost.actors.agent.connectors.command:CommandAgent",
        options={"command": ["bash", str(SCRIPT)]}, more="[actors.session.http]\n",
    )  # fmt: skip
    run = launch(start)
    assert run.end() == 0, run.text
    check_metrics(run, STEPS)
    check_balance(run, STEPS)
    for line in run.steps():
        assert line["rollout/solved"] == 1.0, "the function's own number, of what it was shown"
    assert run.events("episode_failed") == [], run.text
