"""Runs that are broken again and again, each time in another way, and always go on.

In the end each of them is what one unbroken run would have been: the same steps with the same
learning rates, every prompt trained once, nothing lost on the way.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from proc.runs import leftovers, wait_gone
from proc.system.conftest import Launch
from proc.system.harness import (
    GROUPS,
    MEMBERS,
    RUN_S,
    Start,
    SystemRun,
    check_balance,
    check_metrics,
    check_order,
    environment,
    lrs,
    milepost,
)

from milepost.actors.archive.audit import audit
from milepost.actors.archive.query import Query
from milepost.actors.archive.reader import Archive
from milepost.launch.accounts import account_of
from milepost.launch.commands.account import read_statistics

pytestmark = pytest.mark.timeout(900)
HELD = "proc.system.agents:Held"
UNEXAMINED = "proc.system.agents:Unexamined"
EXAMS = 2 * 8
"""Episodes of one evaluation: each held-out prompt, sampled and greedy."""


def run_up_to(step: int, start: Start, launch: Launch) -> SystemRun:
    """Start the run or go on with it, until it stands still after `step`, with work in flight."""
    resume = (start.folder / "run").exists()
    last = SystemRun.of(start).newest() if resume else None
    held = replace(start, agent=HELD, options={"hold_from": step * GROUPS})
    run = launch(held, resume=resume)
    run.until(f"step {step}/{start.steps}")
    assert run.run_facts["resumed_from"] == last
    return run


def run_to_the_end(start: Start, launch: Launch) -> SystemRun:
    """Go on without holding anything, and look at the whole."""
    run = launch(replace(start, agent=HELD, options={"hold_from": 1_000_000}), resume=True)
    assert run.end() == 0, run.text
    summary = run.summary
    assert (summary["status"], summary["steps_done"]) == ("done", start.steps)
    check_metrics(run, start.steps)
    ledger = check_balance(run, start.steps)
    assert ledger.num_trained == start.steps * GROUPS
    check_account(run)
    check_archive(run)
    return run


def check_archive(run: SystemRun) -> None:
    """No batch has members of two lives, and what says so follows from the records."""
    assert audit(run.folder).faults == []
    with Archive.open(run.folder) as archive:
        num_groups = {each.step: each.num_groups for each in archive.steps()}
        assert num_groups.keys() <= set(range(run.num_steps))
        assert max(num_groups.values()) <= GROUPS


def check_account(run: SystemRun) -> None:
    """The books are of the whole run, though each life's processes counted from zero."""
    account = account_of(read_statistics(run.folder))
    assert account is not None
    trained = sum(int(line["train/loss_tokens"]) for line in run.steps())
    assert account.tokens["trained"] == trained
    assert (account.trained, account.balance) == (run.num_steps * GROUPS, 0)


def killed(run: SystemRun, victim: str) -> None:
    """Kill an actor that is never started again: the run ends and says who was first."""
    run.kill(victim)
    assert run.end() == 1, run.text
    cause = run.summary["cause"]
    assert (cause["actor"], cause["signal"]) == (victim, "SIGKILL"), run.text
    check_balance(run, run.newest())


def test_an_asynchronous_run_goes_on_after_every_death(
    tmp_path: Path, checkpoint: Path, launch: Launch, unbroken: SystemRun
) -> None:
    """The supervisor, then each actor that holds state of the data path."""
    start = Start(tmp_path, checkpoint, steps=unbroken.num_steps)
    run = run_up_to(1, start, launch)
    sockets, run_id = run.sockets, run.run_id
    processes = list(run.children().values())
    run.signal(signal.SIGKILL)
    assert wait_gone(processes, 15) == []
    assert leftovers(run_id, sockets) == []
    assert run.summary["status"] == "killed"
    killed(run_up_to(2, start, launch), "trainer-0")
    killed(run_up_to(3, start, launch), "buffer")
    killed(run_up_to(4, start, launch), "rollout")
    run = run_to_the_end(start, launch)
    assert lrs(run) == lrs(unbroken)


def test_what_was_trained_after_the_checkpoint_is_of_no_batch_any_more(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """There was none yet: step 0 is trained twice, and step 1 with what is sampled anew."""
    words = ("--set", "run.checkpoint_every_steps=0")
    start = Start(tmp_path, checkpoint, base="lookup_sync", steps=3, words=words)
    run = run_up_to(2, start, launch)
    # A trainer writes twice a second: it shall not die before it has said what it trained.
    num_rows = 2 * GROUPS * MEMBERS
    assert any(audit(run.folder).num_trained >= num_rows for _ in range(1000))
    run.kill("trainer-0")
    assert run.end() == 1, run.text
    run = launch(replace(start, agent=HELD, options={"hold_from": 1_000_000}), resume=True)
    assert run.end() == 0, run.text
    assert run.run_facts["resumed_from"] == 0
    check_archive(run)
    with Archive.open(run.folder) as archive:
        assert archive.count(Query(is_lost=True)), "step 1 of the first life"


def test_a_synchronous_run_goes_on_after_every_stop(
    tmp_path: Path, checkpoint: Path, launch: Launch, unbroken: SystemRun
) -> None:
    """Actors that hold nothing, Ctrl-C twice and once; the order of prompts stays the same."""
    start = Start(tmp_path, checkpoint, base="lookup_sync", steps=unbroken.num_steps)
    killed(run_up_to(1, start, launch), "publisher")
    killed(run_up_to(3, start, launch), "evaluator")

    run = run_up_to(4, start, launch)
    run.signal(signal.SIGINT)
    run.until("stop_requested")
    again_s = time.time()
    run.signal(signal.SIGINT)
    assert run.end() == 1, run.text
    assert run.summary["status"] == "stopped"
    assert run.summary["ended_at"] - again_s < 8.0, "nothing is waited for; a drain takes 10 s"

    run = run_up_to(5, replace(start, words=("--set", "run.checkpoint_every_steps=0")), launch)
    asked_s = time.time()
    run.signal(signal.SIGINT)
    assert run.end() == 1, run.text
    assert run.summary["status"] == "stopped"
    assert run.summary["ended_at"] - asked_s < 10.0
    assert run.newest() == 5, "what was trained is saved, though no checkpoint was due"
    assert (run.folder / "checkpoints/step_000005/hf/model.safetensors").is_file()
    check_balance(run, 5)

    run = run_to_the_end(start, launch)
    assert lrs(run) == lrs(unbroken)
    check_order(run)


def run_until_examined(start: Start, launch: Launch, *, exams: int, resume: bool) -> SystemRun:
    """Start the run or go on with it, until an evaluation stands still after so many episodes."""
    begun = start.folder / "begun"
    if not resume:
        os.mkfifo(begun)
    pipe = os.open(begun, os.O_RDONLY | os.O_NONBLOCK)
    try:
        run = launch(replace(start, options={**start.options, "exams": exams}), resume=resume)
        assert select.select([pipe], [], [], RUN_S)[0], "the last version is not measured"
    finally:
        os.close(pipe)
    return run


def test_a_run_that_was_trained_to_its_end_goes_on_for_the_score_that_it_died_with(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """The evaluator dies for good while it measures the last version, then the whole run does.

    No step is left to train then, and the checkpoint is whole: it is published and measured.
    """
    options = {"begun": str(tmp_path / "begun")}
    start = Start(tmp_path, checkpoint, steps=2, agent=UNEXAMINED, options=options)
    run = run_until_examined(start, launch, exams=EXAMS, resume=False)
    killed(run, "evaluator")
    assert f"milepost run --resume {run.folder}" in run.text
    scores = run.summary["scores"]
    assert (scores["before"]["version"], scores["after"], run.newest()) == (0, None, 2)
    saved = (run.folder / "checkpoints/step_000002/meta.json").stat().st_mtime_ns

    run = run_until_examined(start, launch, exams=0, resume=True)
    processes = list(run.children().values())
    run.signal(signal.SIGKILL)
    assert wait_gone(processes, 15) == []
    assert run.summary["status"] == "killed"

    run = launch(replace(start, options={**options, "exams": 1_000_000}), resume=True)
    assert run.end() == 0, run.text
    assert "goes on with what is open: it ended as killed" in run.text
    summary = run.summary
    assert (summary["status"], summary["steps_done"], summary["resumed_from"]) == ("done", 2, 2)
    assert summary["scores"]["before"] == scores["before"]
    for mode in ("sampled", "greedy"):
        score = summary["scores"]["after"][mode]
        assert (score["num_episodes"], score["num_mixed"], score["num_missing"]) == (8, 0, 0)
    assert (run.folder / "checkpoints/step_000002/meta.json").stat().st_mtime_ns == saved
    check_metrics(run, 2)
    check_balance(run, 2)
    check_account(run)
    audited = subprocess.run(
        [milepost(), "audit", str(run.folder)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S,
    )
    assert audited.returncode == 0, audited.stdout + audited.stderr

    refused = launch(replace(start, options={**options, "exams": 1_000_000}), resume=True)
    assert refused.end() == 2, refused.text
    assert "the run is complete: steps = 2, all of them are trained" in refused.text
    assert run.summary == summary
