"""Whole runs of every actor, to their ends: what a person finds afterwards."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from proc.system.conftest import Launch
from proc.system.harness import (
    GROUPS,
    Start,
    SystemRun,
    check_balance,
    check_metrics,
    check_order,
)
from transformers import AutoModelForCausalLM

from milepost.configs.load import load_topology
from milepost.launch.accounts import account_of
from milepost.launch.commands.account import read_statistics

pytestmark = pytest.mark.timeout(400)
STEPS = 4
HELD_OUT = 8
STALENESS_MAX = 1
BOUNDED = (
    *("--set", f"actors.buffer.max_weight_staleness={STALENESS_MAX}"),
    *("--set", "actors.buffer.staleness_policy=pace"),
)


def test_an_asynchronous_run_ends_with_everything_a_person_wants(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """What is on the screen, in the summary and in the files says one and the same."""
    run = launch(Start(tmp_path, checkpoint, steps=STEPS, words=BOUNDED))
    assert run.end() == 0, run.text
    shown = [line.split()[1] for line in run.text.splitlines() if line.startswith("step ")]
    assert shown == [f"{step}/{STEPS}" for step in range(1, STEPS + 1)]
    check_summary(run)
    check_metrics(run, STEPS)
    check_tensorboard(run)
    check_files(run)
    check_account(run)
    ledger = check_balance(run, STEPS)
    assert (ledger.num_trained, ledger.dropped) == (STEPS * GROUPS, {})
    assert not ledger.open
    for line in run.steps():
        assert line["rollout/weight_version/max"] <= line["train/step"], "a token from the future"
        assert line["train/staleness/max"] <= STALENESS_MAX
        assert line["rollout/weight_version/sample_coverage"] == 1.0


def check_summary(run: SystemRun) -> None:
    """The end, the steps, both evaluations, and where the time went."""
    summary = run.summary
    assert (summary["status"], summary["exit_code"], summary["cause"]) == ("done", 0, None)
    assert (summary["steps"], summary["steps_done"], summary["restarts"]) == (STEPS, STEPS, {})
    assert summary["actors"]["trainer-0"]["groups_trained"] == STEPS * GROUPS
    scores = summary["scores"]
    assert [scores[when]["version"] for when in ("before", "after")] == [0, STEPS]
    assert [event["values"] for event in run.events("evaluation")] == scores["all"]
    for score in scores["all"]:
        assert score["sampled"]["num_episodes"] == score["greedy"]["num_episodes"] == HELD_OUT
    seconds = dict(summary["seconds"])
    assert seconds.pop("total") >= sum(seconds.values())
    assert {"starting", "running", "stopping"} <= seconds.keys()
    assert json.loads((run.folder / ".milepost" / "run.json").read_bytes())["ended"] is True


def check_account(run: SystemRun) -> None:
    """The folder alone tells where every group and every sampled token of the run ended."""
    statistics = read_statistics(run.folder)
    account = account_of(statistics)
    assert account is not None
    assert (account.balance, account.open, account.dropped) == (0, 0, {})
    trained = sum(int(line["train/loss_tokens"]) for line in run.steps())
    assert account.tokens["trained"] == trained
    assert account.tokens["evaluated"] > 0
    assert account.tokens.keys() <= {
        *("trained", "evaluated", "probed", "abandoned", "under_way")
    }, account
    assert sum(account.tokens.values()) == statistics["engine-0"]["generated_tokens"]


def check_tensorboard(run: SystemRun) -> None:
    """The trainer's metrics once more, under the same steps."""
    events = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    board = events.EventAccumulator(str(run.folder / "tensorboard"))
    board.Reload()
    for name in ("train/lr-pg_0", "rollout/raw_reward"):
        written = [(event.step, event.value) for event in board.Scalars(name)]
        assert written == [(line["step"], pytest.approx(line[name])) for line in run.steps()]


def check_files(run: SystemRun) -> None:
    """Report, curve, transcripts, logs without a traceback, a checkpoint that loads elsewhere."""
    assert (run.folder / "report.html").read_text().startswith("<!doctype html>")
    assert (run.folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    transcripts = run.lines("transcripts.jsonl")
    assert {line["version"] for line in transcripts} == {0, STEPS}
    assert all(line["messages"][0]["role"] == "user" for line in transcripts)
    logs = {path.stem: path.read_text() for path in (run.folder / "logs").glob("*.log")}
    assert logs.keys() >= {"trainer-0", "engine-0", "session-0", "rollout", "buffer", "agent-0"}
    assert [name for name, text in logs.items() if "Traceback" in text] == []
    assert logs["janitor"] == ""
    folder = run.folder / "checkpoints" / f"step_{STEPS:06d}" / "hf"
    assert AutoModelForCausalLM.from_pretrained(folder).config.model_type == "qwen3"
    assert load_topology(str(run.folder / "topology.toml")).run.steps == STEPS


def test_a_synchronous_run_trains_only_fresh_tokens_in_the_order_of_the_prompts(
    unbroken: SystemRun,
) -> None:
    """The slow and plain way, to which the asynchronous one is compared."""
    check_metrics(unbroken, unbroken.num_steps)
    check_balance(unbroken, unbroken.num_steps)
    check_order(unbroken)
    for line in unbroken.steps():
        assert line["train/staleness/max"] == 0.0, line
        assert line["rollout/weight_version/max"] == line["train/step"], line
        assert line["rollout/weight_version/mixed_version_ratio"] == 0.0
