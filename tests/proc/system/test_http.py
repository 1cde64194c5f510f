"""The quick start's task, with an agent that knows nothing of the bus: HTTP from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from proc.system.conftest import Launch
from proc.system.harness import GROUPS, MEMBERS, Start, check_balance, check_metrics

from milepost.supervisor.cleanup.registry import registry_path

pytestmark = pytest.mark.timeout(300)
STEPS = 2
SESSIONS = """
[actors.session]
replicas = 2
http = {}
"""


def test_episodes_over_two_doors_are_trained_and_each_address_leads_to_its_own(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """A session lives on one replica. Its address must lead there, and no other door may know it:
    a client that is sent to the wrong one would begin another conversation without a word.
    """
    book = tmp_path / "doors"
    start = Start(
        tmp_path,
        checkpoint,
        base="lookup_sync",
        steps=STEPS,
        agent="proc.system.agents:ByHttp",
        options={"book": str(book)},
        more=SESSIONS,
    )
    run = launch(start)
    assert run.end() == 0, run.text
    check_metrics(run, STEPS)
    check_balance(run, STEPS)
    assert not run.events("refused_at_door")
    told = [line.split() for line in book.read_text().splitlines()]
    facts = {event["source"]: event["values"]["facts"] for event in run.events("ready")}
    doors = {facts[f"session-{index}"]["http"] for index in range(2)}
    assert {door for door, status in told if status == "0"} == doors
    written = map(json.loads, registry_path(run.folder).read_bytes().splitlines())
    ports = {one["actor"]: one["endpoint"] for one in written if one["kind"] == "listener"}
    assert set(ports) == {"session-0", "session-1"}
    assert set(ports.values()) == doors
    strangers = [status for _, status in told if status != "0"]
    assert strangers
    assert set(strangers) == {"404"}
    assert len(told) - len(strangers) >= STEPS * GROUPS * MEMBERS
    for line in run.steps():
        assert line["rollout/tito_session_mismatch_rate/v1/non_assistant_text"] == 0
        assert line["train/train_rollout_logprob_abs_diff_max"] < 1e-3, line
