"""Files a person opens after the run: they hold what was reported, and nothing made up."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from milepost.messages.supervisor import EventReported, StepRecorded
from milepost.supervisor.recording.eventfile import EventFile, masked_crc
from milepost.supervisor.recording.recorder import Files, Recorder
from milepost.supervisor.recording.summary import Scores


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_object_a_step_with_its_source(tmp_path: Path) -> None:
    files = Files(tmp_path, tensorboard=False)
    files.step(StepRecorded(source="trainer-0", step=4, metrics={"train/loss": 0.5}), 12.3456)
    files.close()
    assert lines(tmp_path / "metrics.jsonl") == [
        {"step": 4, "time": 12.346, "source": "trainer-0", "train/loss": 0.5}
    ]


def test_a_metric_without_a_finite_value_is_null_and_named(tmp_path: Path) -> None:
    """JSON has no NaN; a reader must neither choke on it nor find a zero in its place."""
    files = Files(tmp_path, tensorboard=True)
    metrics = {"train/loss": math.nan, "train/grad_norm": math.inf, "train/lr": 1e-3}
    event = files.step(StepRecorded(source="trainer-0", step=7, metrics=metrics), 1.0)
    files.close()
    assert event is not None
    assert event.text == "step 7: train/loss is nan, train/grad_norm is inf"
    (line,) = lines(tmp_path / "metrics.jsonl")
    assert (line["train/loss"], line["train/grad_norm"], line["train/lr"]) == (None, None, 1e-3)


def test_a_resumed_run_appends(tmp_path: Path) -> None:
    for step in (1, 2):
        files = Files(tmp_path, tensorboard=False)
        files.step(StepRecorded(source="trainer-0", step=step, metrics={}), 1.0)
        files.close()
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 2]


def test_the_checksum_is_the_published_one() -> None:
    """CRC-32C of "123456789" is E3069283 (RFC 3720, B.4), here rotated and shifted."""
    crc = 0xE3069283
    expected = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert masked_crc(b"123456789") == expected


def test_tensorboard_itself_reads_the_event_file(tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    board = EventFile(tmp_path / "tensorboard", 1000.5)
    board.scalars(0, {"rollout/reward": 0.25}, 1001.0)
    board.scalars(300, {"rollout/reward": -1.5, "train/é": 3e8}, 1002.0)
    board.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    events = list(loader.LegacyEventFileLoader(str(path)).Load())
    assert [event.file_version for event in events[:1]] == ["brain.Event:2"]
    seen = [
        (event.step, event.wall_time, value.tag, value.simple_value)
        for event in events[1:]
        for value in event.summary.value
    ]
    assert seen == [
        (0, 1001.0, "rollout/reward", 0.25),
        (300, 1002.0, "rollout/reward", -1.5),
        (300, 1002.0, "train/é", 3e8),
    ]


async def test_what_was_taken_is_written_before_close_returns(tmp_path: Path) -> None:
    reasons: list[str] = []
    recorder = Recorder(Files(tmp_path, tensorboard=False))
    recorder.start(reasons.append)
    for step in range(50):
        recorder.record(StepRecorded(source="trainer-0", step=step, metrics={"x": math.nan}))
    recorder.record(EventReported(source="rollout", kind="retry", text="", values={"b": b"\0"}))
    await recorder.close()
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == list(range(50))
    kinds = [line["kind"] for line in lines(tmp_path / "events.jsonl")]
    assert kinds == ["not_finite"] * 50 + ["retry"]
    assert reasons == []


async def test_a_disk_that_is_full_is_said_once() -> None:
    """/dev/full answers every write with ENOSPC, as a full disk does."""

    class Full(Files):
        def __init__(self) -> None:
            self._metrics = Path("/dev/full").open("ab")  # noqa: SIM115
            self._events = Path("/dev/null").open("ab")  # noqa: SIM115
            self._board = None

        def close(self) -> None:
            self._events.close()

    reasons: list[str] = []
    files = Full()
    recorder = Recorder(files)
    recorder.start(reasons.append)
    for step in range(3):
        recorder.record(StepRecorded(source="trainer-0", step=step, metrics={}))
    await recorder.close()
    assert reasons == ["the run folder cannot be written: [Errno 28] No space left on device"]
    with pytest.raises(OSError, match="No space left"):
        files._metrics.close()


def test_an_event_with_values_that_json_has_not_is_kept_as_text(tmp_path: Path) -> None:
    files = Files(tmp_path, tensorboard=False)
    values = {"ids": {7: "a"}, "big": 2**80}
    files.event(EventReported(source="rollout", kind="odd", text="", values=values), 2.0)
    files.event(EventReported(source="rollout", kind="fine", text="", values={"k": {7: 1}}), 2.0)
    files.close()
    first, second = lines(tmp_path / "events.jsonl")
    assert str(2**80) in str(first["values"])
    assert second["values"] == {"k": {"7": 1}}


def test_a_resumed_run_takes_out_the_steps_that_it_does_again(tmp_path: Path) -> None:
    """Stopped at step 5, resumed from the checkpoint after 3 steps: steps 3 and 4 come twice."""
    (tmp_path / ".milepost").mkdir()
    files = Files(tmp_path, tensorboard=False)
    for step in range(5):
        metrics = {"train/version": step + 1.0, "train/loss": 1.0}
        files.step(StepRecorded(source="trainer-0", step=step, metrics=metrics), 1.0)
        files.step(StepRecorded(source="evaluator", step=step + 1, metrics={"eval/x": 1.0}), 1.0)
    files.close()
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 5, "tim')
    Files(tmp_path, tensorboard=False, resume_step=3).close()
    kept = [(line["source"], line["step"]) for line in lines(tmp_path / "metrics.jsonl")]
    assert kept == [
        *[("trainer-0", 0), ("evaluator", 1)],
        *[("trainer-0", 1), ("evaluator", 2)],
        *[("trainer-0", 2), ("evaluator", 3)],
    ]
    superseded = (tmp_path / ".milepost" / "superseded.jsonl").read_text().splitlines()
    assert len(superseded) == 5


def test_a_run_that_begins_again_keeps_no_line(tmp_path: Path) -> None:
    """It had no checkpoint yet; its first version is evaluated and its first step done again."""
    (tmp_path / ".milepost").mkdir()
    files = Files(tmp_path, tensorboard=False)
    files.step(StepRecorded(source="evaluator", step=0, metrics={"eval/x": 1.0}), 1.0)
    files.step(StepRecorded(source="trainer-0", step=0, metrics={"train/version": 1.0}), 1.0)
    files.close()
    Files(tmp_path, tensorboard=False, resume_step=0).close()
    assert lines(tmp_path / "metrics.jsonl") == []


def test_tensorboard_purges_what_a_resumed_run_does_again(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    first = EventFile(tmp_path, 1000.0)
    for step in range(5):
        first.scalars(step, {"loss": 1.0}, 1000.0 + step)
    first.close()
    second = EventFile(tmp_path, 2000.0, purge_step=3)
    second.scalars(3, {"loss": 2.0}, 2001.0)
    second.close()
    board = accumulator.EventAccumulator(str(tmp_path), purge_orphaned_data=True)
    board.Reload()
    assert [(event.step, event.value) for event in board.Scalars("loss")] == [
        (0, 1.0),
        (1, 1.0),
        (2, 1.0),
        (3, 2.0),
    ]


def test_before_is_the_score_before_the_run_not_before_its_resumption() -> None:
    scores = Scores()
    earlier = [
        {"kind": "evaluation", "values": {"version": 0}},
        {"kind": "begun", "values": {}},
        {"kind": "evaluation", "values": {"version": 9}},
    ]
    scores.load(earlier, version_max=4)
    scores.note(EventReported(source="e", kind="evaluation", text="", values={"version": 8}))
    summary = scores.summary()
    assert (summary["before"], summary["after"]) == ({"version": 0}, {"version": 8})
