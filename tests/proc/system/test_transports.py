"""Whole runs whose weights travel another way than through messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from proc.system.conftest import Launch
from proc.system.harness import (
    Start,
    SystemRun,
    check_balance,
    check_metrics,
    published_versions,
)

from milepost.actors.weights.arena import Arena
from milepost.actors.weights.manifest import Layout, read_checkpoint

pytestmark = pytest.mark.timeout(400)
STEPS = 3
WORDS = (
    *("--set", "actors.publisher.check_weight_update_equal=true"),
    *("--set", "actors.engine.replicas=2"),
    # Rewards of so short a warm-up are often all equal; this moves the weights all the same.
    *("--set", "algorithm.entropy_coef=0.01"),
    *("--set", "actors.publisher.canary_turn_every=1"),
)
KEEP = ("--set", "actors.publisher.delta.keep=2")


def publications(run: SystemRun) -> list[dict[str, float]]:
    return [line for line in run.lines("metrics.jsonl") if "perf/update_weights_time" in line]


def check(run: SystemRun) -> list[dict[str, float]]:
    """The run ended well, and every publication was proven with the trainer's own numbers."""
    assert run.end() == 0, run.text
    assert run.events("canary") == run.events("epoch_failed") == run.events("killed") == []
    published = publications(run)
    assert [published[at]["step"] for at in (0, -1)] == [0, STEPS]
    for line in published:
        assert line["perf/canary_logprob_difference"] <= 1e-4
        # Every version here: as agents meet it, through a session.
        assert line["perf/canary_turn_logprob_difference"] <= 1e-4
        assert line["perf/canary_turn_missed"] == 0.0
        assert line["perf/update_weights_pause_time"] < line["perf/update_weights_time"]
    return published


def test_a_run_whose_weights_travel_over_a_disk(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """Only what changed is written, and the host's copy ends as the served version."""
    words = ("--set", 'actors.publisher.transport="disk-delta"', *KEEP, *WORDS)
    run = launch(Start(tmp_path, checkpoint, steps=STEPS, words=words))
    published = check(run)
    assert published[0]["perf/update_weights_density"] == 0.0, (
        "both sides begin with one checkpoint"
    )
    assert 0.0 < published[-1]["perf/update_weights_density"] < 1.0
    assert published[-1]["perf/update_weights_wire_bytes"] > 0.0
    confirmed = run.json("weights/confirmed.json")
    (copy,) = (run.folder / "weights_local").iterdir()
    assert run.json(str((copy / "state.json").relative_to(run.folder))) == confirmed
    assert confirmed["version"] == STEPS


def test_a_run_whose_weights_are_broadcast(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """Trainer and both engines meet once for each version, over gloo."""
    words = ("--set", 'actors.publisher.transport="broadcast"', *WORDS)
    published = check(launch(Start(tmp_path, checkpoint, steps=STEPS, words=words)))
    assert all(line["perf/update_weights_wire_bytes"] > 0.0 for line in published)


@pytest.mark.parametrize("transport", ["disk-delta", "broadcast"])
def test_an_engine_dies_then_the_publisher_and_the_resumed_run_goes_on_with_proof(
    tmp_path: Path, checkpoint: Path, launch: Launch, transport: str
) -> None:
    """Every second version travels. The new engine loads the last confirmed one before it serves;
    the publisher's death ends the run and leaves nobody paused; and the resumed run begins with the
    weights of its checkpoint, whatever the engines or the disk had last."""
    words = (
        *("--set", f'actors.publisher.transport="{transport}"'),
        *("--set", "actors.trainer.publish_every_steps=2"),
        *(KEEP if transport == "disk-delta" else ()),
        *WORDS,
    )
    slow = "proc.system.agents:Slow"
    start = Start(tmp_path, checkpoint, steps=8, agent=slow, options={"seconds": 0.3}, words=words)
    run = launch(start)
    run.until("step 2/8")
    run.kill("engine-0")
    run.until("step 4/8")
    assert run.events("killed") == []
    run.kill("publisher")
    assert run.end() == 1, run.text
    assert run.summary["restarts"] == {"engine-0": 1}
    assert run.summary["cause"]["actor"] == "publisher"

    resumed = launch(start, resume=True)
    assert resumed.end() == 0, resumed.text
    assert resumed.events("canary") == []
    check_metrics(resumed, 8)
    check_balance(resumed, 8)
    published = publications(resumed)
    first = resumed.run_facts["resumed_from"]
    name = "perf/update_weights_version"
    versions = sorted(line[key] for line in published for key in line if key.startswith(name))
    assert versions[0] == 0
    assert versions[-1] == 8
    assert first in versions, "the policy of the checkpoint, before the first prompt"
    # One that is due while another is on its way becomes the newest at its end.
    assert len(versions) <= 6, versions
    for line in published:
        found = [line[key] for key in line if key.startswith("perf/canary_logprob_difference")]
        assert max(found) <= 1e-4, line


DISK = ("--set", 'actors.publisher.transport="disk-delta"')


def same_weights(one: Path, other: Path) -> bool:
    """Two Hugging Face folders hold the same tensors, byte for byte."""
    found = []
    for folder in (one, other):
        layout = Layout(place.spec for place in read_checkpoint(folder).values())
        arena = Arena(layout)
        for name, place in read_checkpoint(folder).items():
            with place.file.open("rb") as file:
                file.seek(place.offset)
                file.readinto(arena.view(name).data)
        found.append(arena.digest())
        arena.close()
    return found[0] == found[1]


def test_engines_of_the_evaluators_own_follow_over_the_disk_in_a_copy_of_theirs(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """One is killed on the way, and differences go soon: what is being measured stays all the same,
    and no publication waits for it."""
    words = (
        *(*DISK, *WORDS),
        *("--set", "actors.publisher.delta.keep=1"),
        *("--set", "actors.evaluator.every_versions=1"),
        *("--set", "actors.evaluation_engine.replicas=1"),
    )
    run = launch(Start(tmp_path, checkpoint, steps=STEPS, words=words))
    run.until(f"step 1/{STEPS}")
    run.kill("evaluation_engine-0")
    assert run.end() == 0, run.text
    assert run.events("canary") == []
    # A slow start, and it was killed while it took its first version, which nobody else waits for.
    left = [each["text"] for each in run.events("epoch_failed")]
    assert all("every engine left" in text for text in left), left
    assert len(left) <= 1, left
    scores = {each["values"]["version"]: each["values"] for each in run.events("evaluation")}
    # One that waits while an older one is measured may give way to the next; the last does to none.
    assert sorted(scores) == published_versions(run)
    assert {0, STEPS} <= scores.keys()
    for score in scores.values():
        assert score["sampled"]["num_mixed"] == score["sampled"]["num_missing"] == 0, score
    copies = sorted((run.folder / "weights_local").iterdir())
    assert [path.name.endswith("-evaluation") for path in copies] == [False, True]
    trained = run.folder / "checkpoints" / f"step_{STEPS:06d}" / "hf"
    assert all(same_weights(copy / "checkpoint", trained) for copy in copies)


def test_many_versions_over_the_disk_while_engines_are_killed_end_as_the_trainers_bytes(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """An engine dies wherever it is: while it patches, or between two versions. The copy that it
    shares with the other one is whole afterwards, or made anew."""
    steps = 10
    slow = "proc.system.agents:Slow"
    words = (*DISK, *KEEP, *WORDS)
    options = {"seconds": 0.1}
    run = launch(Start(tmp_path, checkpoint, "lookup", steps, slow, options, words=words))
    for step, victim in ((2, "engine-0"), (5, "engine-1"), (7, "session-0")):
        run.until(f"step {step}/{steps}")
        run.kill(victim)
    assert run.end() == 0, run.text
    assert run.events("canary") == []
    assert run.summary["restarts"] == {"engine-0": 1, "engine-1": 1, "session-0": 1}
    check_metrics(run, steps)
    check_balance(run, steps)
    assert run.json("weights/confirmed.json")["version"] == steps
    assert len(list((run.folder / "weights").glob("weight_v*"))) <= 2 * 2 + 1
    (copy,) = (run.folder / "weights_local").iterdir()
    trained = run.folder / "checkpoints" / f"step_{steps:06d}" / "hf"
    assert same_weights(copy / "checkpoint", trained)
