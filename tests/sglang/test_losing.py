"""A whole run with SGLang engines loses a server, and goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
from contract.servers import FRESH_MODEL, RUN_S, WHOLE_RUN, served_by_sglang
from proc.system.conftest import Launch, launch
from proc.system.harness import Start

__all__ = ["launch"]

pytestmark = WHOLE_RUN


def test_a_run_goes_on_when_the_server_of_one_of_two_engines_dies(
    tmp_path: Path, launch: Launch
) -> None:
    """Its actor ends by name; its requests are asked again of the other engine.

    The new one serves nothing before it has weights.
    """
    checkpoint = tmp_path / "checkpoint"
    two = ("--set", "actors.engine.replicas=2")
    words = (*served_by_sglang("engine"), *two, *FRESH_MODEL)
    run = launch(Start(tmp_path, checkpoint, steps=8, words=words))
    run.until("step 2/8", RUN_S)
    server = run.children()["engine-0"].children(recursive=True)
    scheduler = next(each for each in server if "scheduler" in " ".join(each.cmdline()))
    scheduler.send_signal(signal.SIGKILL)
    assert run.end(RUN_S) == 0, run.text
    assert run.summary["status"] == "done", run.summary
    (restarted,) = run.events("restarted")
    assert restarted["source"] == "engine-0"
    assert "server" in restarted["text"] or "http://127.0.0.1" in restarted["text"], restarted
    assert not psutil.wait_procs(server, timeout=30)[1]
    assert len(run.steps()) == 8
