"""A real run, recorded whole: frozen under load, traced during it and afterwards, replayed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest
from proc.system import harness
from proc.system.conftest import Launch
from proc.system.harness import RUN_S, Start, SystemRun, check_balance
from proc.test_supervisor_attach import milepost

from milepost.actors.recorder.lines import Line
from milepost.actors.recorder.reading import read_recordings

pytestmark = pytest.mark.timeout(400)
STEPS_MAX = 1000
WHOLE = """
[system.recorder]
payloads = true
ring_bytes = 33554432
"""
REPLAYED = ("buffer", "rollout", "publisher", "agent-0", "session-0", "evaluator")


def replay(run: SystemRun, actor: str, *words: str) -> tuple[int, str]:
    command = [harness.milepost(), "replay", str(run.folder), "--actor", actor, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    return done.returncode, done.stdout + done.stderr


def moments_of(run: SystemRun, trajectory: str) -> list[dict[str, object]]:
    done = milepost("trace", str(run.folder), trajectory, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)["moments"]
    return found


def trained_trajectory(lines: list[Line]) -> str:
    """One of the first batch that the trainer got."""
    batch = next(line for line in lines if line.type == "Batch")
    return str(batch.facts["trajectory_ids"][0])


def test_a_run_is_frozen_traced_and_replayed(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """Nothing is lost by a hold of every actor under load; one trajectory is seen from its prompt
    to its gradient, by the actors and by what they left; every core decides as it did."""
    run = launch(Start(tmp_path, checkpoint, steps=STEPS_MAX, more=WHOLE))
    run.until("step 1/")
    frozen = milepost("freeze", str(run.folder), "--seconds", "25")
    assert frozen.returncode == 0, frozen.stderr
    assert "rollout" in frozen.stdout
    assert "engine-0" in frozen.stdout
    (trainer,) = read_recordings(run.folder / "recorder", "trainer-0")
    name = trained_trajectory(trainer.lines)
    asked = moments_of(run, name)
    thawed = milepost("thaw", str(run.folder))
    assert thawed.returncode == 0, thawed.stderr
    step = int(re.findall(r"step (\d+)/", run.text)[-1])
    run.until(f"step {step + 2}/")
    run.signal(signal.SIGINT)
    assert run.end() == 1, run.text
    assert run.summary["status"] == "stopped"
    check_balance(run, run.newest())
    assert not [event for event in run.events("episode_failed") if "deadline" in event["text"]]

    read = moments_of(run, name)
    keys = {(each["actor"], each["number"]) for each in read}
    assert {(each["actor"], each["number"]) for each in asked} <= keys
    types = [(each["actor"], each["type"]) for each in read]
    life = [
        ("agent-0", "RunEpisode"),
        ("session-0", "ChatTurn"),
        ("engine-0", "Generate"),
        ("session-0", "Generated"),
        ("rollout", "EpisodeEnded"),
        ("session-0", "FinishTrajectory"),
        ("buffer", "TrajectoryFinished"),
        ("trainer-0", "Batch"),
        ("buffer", "StepTrained"),
        ("rollout", "GroupsTrained"),
    ]
    places = [types.index(moment) for moment in life]
    assert places == sorted(places), "causes stand before their effects"

    for actor in REPLAYED:
        code, told = replay(run, actor)
        assert code == 0, told
        assert "every one the same" in told
    code, told = replay(run, "trainer-0", "--until", "step=2")
    assert code == 0, told
    assert "trained 1 steps again from the checkpoint of step 2" in told
    assert re.search(r"step 2: train/loss (\S+) \(recorded \1\)", told), told
    code, told = replay(run, "engine-0")
    assert code == 2
    assert "rests on its backend" in told
