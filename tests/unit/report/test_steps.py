"""metrics.jsonl while it grows: what was read is not read again, and nothing half is taken."""

from __future__ import annotations

import json
from pathlib import Path

from milepost.launch.report.steps import TAIL_BYTES, StepsFile, last_lines


def line(step: int, **metrics: float) -> bytes:
    named = {name.replace("_", "/", 1): value for name, value in metrics.items()}
    return json.dumps({"step": step, "time": 10.0 + step, **named}).encode() + b"\n"


def test_each_look_reads_only_what_was_added(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    steps = StepsFile(path)
    assert steps.read() == []
    path.write_bytes(line(1, train_loss=1.0) + line(2, train_loss=0.5)[:-5])
    assert [step.done for step in steps.read()] == [1]
    with path.open("ab") as file:
        file.write(line(2, train_loss=0.5)[-5:] + line(3, train_loss=0.25))
    first = steps.read()[0]
    assert [(step.done, step.wall_s) for step in steps.read()] == [(1, 0.0), (2, 1.0), (3, 2.0)]
    assert steps.read()[0] is first


def test_a_resumed_run_takes_steps_out_and_the_reader_begins_again(tmp_path: Path) -> None:
    """It replaces the file: what was read of the old one is void."""
    path = tmp_path / "metrics.jsonl"
    steps = StepsFile(path)
    path.write_bytes(b"".join(line(step, train_loss=1.0) for step in range(1, 6)))
    assert len(steps.read()) == 5
    draft = tmp_path / "draft"
    draft.write_bytes(b"".join(line(step, train_loss=2.0) for step in range(1, 6)))
    draft.replace(path)
    assert [step.metrics["train/loss"] for step in steps.read()] == [2.0] * 5
    path.unlink()
    assert steps.read() == []


def test_only_the_metrics_that_are_asked_for_stay_in_memory(tmp_path: Path) -> None:
    """A step has a hundred metrics, a run ten thousand steps; one step is looked up on disk."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(1, train_loss=1.0, train_lr=0.1) + line(2, train_lr=0.2))
    steps = StepsFile(path, {"train/lr"})
    assert [step.metrics for step in steps.read()] == [{"train/lr": 0.1}, {"train/lr": 0.2}]
    assert steps.whole(1) == {"train/loss": 1.0, "train/lr": 0.1}
    assert steps.whole(7) == {}


def test_the_last_lines_of_a_long_file_are_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert last_lines(path) == []
    path.write_bytes(line(1, a_b=1.0))
    assert [each["step"] for each in last_lines(path)] == [1]
    lines = [line(step, **{f"a_{name}": 1.0 for name in range(50)}) for step in range(2000)]
    path.write_bytes(b"".join(lines) + b'{"half')
    found = last_lines(path)
    assert found[-1]["step"] == 1999
    assert 0 < len(found) * len(lines[0]) <= TAIL_BYTES
