"""A whole run with SGLang engines loses a server, and goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
from contract.kit import PYTHON
from proc.system.conftest import Launch, launch
from proc.system.harness import Start

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
