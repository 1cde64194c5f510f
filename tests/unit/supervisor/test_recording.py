"""Files a person opens after the run: they hold what was reported, and nothing made up."""

from __future__ import annotations

import errno
import importlib
import json
import math
from io import FileIO
from pathlib import Path

import pytest

from milepost.messages.supervisor import EventReported, StepRecorded
from milepost.supervisor.cleanup.registry import PRIVATE
from milepost.supervisor.cleanup.unfinished import OPEN_STEP, finish_metrics
from milepost.supervisor.recording.eventfile import EventFile, masked_crc
from milepost.supervisor.recording.recorder import PENDING_MAX, Files, Recorder
from milepost.supervisor.recording.resume import earlier_events
from milepost.supervisor.recording.summary import Scores


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / PRIVATE).mkdir()
    return tmp_path


def trained(step: int, **metrics: float) -> StepRecorded:
    named = {f"train/{name}": value for name, value in metrics.items()}
    named["train/version"] = step + 1.0
    return StepRecorded(source="trainer-0", step=step, metrics=named)


def said(source: str, version: int, **metrics: float) -> StepRecorded:
    named = {name.replace("_", "/", 1): value for name, value in metrics.items()}
    return StepRecorded(source=source, step=version, metrics=named)


def test_what_several_actors_say_of_a_step_becomes_one_object(folder: Path) -> None:
    """The trainer counts a step from 0 that makes version 1; others speak of that version."""
    files = Files(folder, tensorboard=False)
    files.step(said("publisher", 0, perf_seconds=0.5), 10.0)
    files.step(said("evaluator", 0, eval_reward=0.1), 11.0)
    files.step(trained(0, loss=0.5), 12.3456)
    files.step(said("publisher", 1, perf_seconds=0.25), 12.5)
    files.step(trained(1, loss=0.4), 13.0)
    assert [line["step"] for line in lines(folder / "metrics.jsonl")] == [0, 1], "2 is open"
    files.step(said("evaluator", 2, eval_reward=0.9), 15.0)
    files.close()
    assert lines(folder / "metrics.jsonl") == [
        {"step": 0, "time": 11.0, "perf/seconds": 0.5, "eval/reward": 0.1},
        {"step": 1, "time": 12.346, "train/loss": 0.5, "train/version": 1.0, "perf/seconds": 0.25},
        {"step": 2, "time": 13.0, "train/loss": 0.4, "train/version": 2.0, "eval/reward": 0.9},
    ]
    assert not (folder / OPEN_STEP).exists()


def test_nothing_is_lost_that_comes_late_or_has_a_name_twice(folder: Path) -> None:
    """A slow evaluation ends many steps after its version; its object is on disk by then."""
    files = Files(folder, tensorboard=False)
    files.step(trained(0), 1.0)
    files.step(trained(6, x=1.0), 2.0)
    files.step(said("other", 7, train_x=2.0), 2.5)
    for version in (2, 3):
        files.step(said("evaluator", version, eval_step=version), 3.0)
    files.close()
    assert lines(folder / "metrics.jsonl")[1:] == [
        {
            "step": 7,
            "time": 2.0,
            "train/x": 1.0,
            "train/version": 7.0,
            "train/x@other": 2.0,
            "eval/step": 2,
            "eval/step@3": 3,
        }
    ]


def test_what_is_of_a_step_takes_its_name_from_what_came_late(folder: Path) -> None:
    """A publication that ends after the next step did is not lost to that step's own."""
    files = Files(folder, tensorboard=False)
    files.step(trained(4), 1.0)
    files.step(trained(5), 2.0)
    for version in (4, 5, 6):
        files.step(said("publisher", version, perf_time=version / 10), 3.0)
    files.close()
    line = lines(folder / "metrics.jsonl")[-1]
    assert line == {
        "step": 6,
        "time": 2.0,
        "train/version": 6.0,
        "perf/time": 0.6,
        "perf/time@4": 0.4,
        "perf/time@5": 0.5,
    }


def test_a_metric_without_a_finite_value_is_null_and_named(folder: Path) -> None:
    """JSON has no NaN; a reader must neither choke on it nor find a zero in its place."""
    files = Files(folder, tensorboard=True)
    event = files.step(trained(7, loss=math.nan, grad_norm=math.inf, lr=1e-3), 1.0)
    files.close()
    assert event is not None
    assert event.text == "step 8: train/loss is nan, train/grad_norm is inf"
    (line,) = lines(folder / "metrics.jsonl")
    assert (line["train/loss"], line["train/grad_norm"], line["train/lr"]) == (None, None, 1e-3)


async def test_the_last_step_is_on_disk_before_those_who_follow_the_file_are_let_go(
    folder: Path,
) -> None:
    """It holds the last score: a dashboard without it shows a run that never was measured."""
    recorder = Recorder(Files(folder, tensorboard=False))
    recorder.start(pytest.fail)
    recorder.record(trained(0))
    recorder.record(trained(1, loss=0.5))
    await recorder.complete_step()
    assert [line["step"] for line in lines(folder / "metrics.jsonl")] == [1, 2]
    assert not (folder / OPEN_STEP).exists()
    recorder.record(EventReported(source="supervisor", kind="tracker_ended", text="late"))
    await recorder.close()
    assert [line["step"] for line in lines(folder / "metrics.jsonl")] == [1, 2]
    assert len(lines(folder / "events.jsonl")) == 1


async def test_a_killed_supervisor_leaves_the_open_object_to_whoever_cleans_up(
    folder: Path,
) -> None:
    """Also when it is killed in the middle of a line, and however often somebody cleans up."""
    recorder = Recorder(Files(folder, tensorboard=False))
    recorder.start(pytest.fail)
    recorder.record(trained(0))
    recorder.record(trained(1, loss=0.5))
    await recorder.settled()
    left = (folder / OPEN_STEP).read_bytes()
    await recorder.close()
    whole = (folder / "metrics.jsonl").read_bytes()
    for cut in (len(whole), len(whole) - 20, whole.index(b"\n") + 1):
        (folder / "metrics.jsonl").write_bytes(whole[:cut])
        (folder / OPEN_STEP).write_bytes(left)
        for _ in range(2):
            finish_metrics(folder)
            found = lines(folder / "metrics.jsonl")
            assert [(line["step"], line.get("train/loss")) for line in found] == [
                (1, None),
                (2, 0.5),
            ]


def test_the_checksum_is_the_published_one() -> None:
    """CRC-32C of "123456789" is E3069283 (RFC 3720, B.4), here rotated and shifted."""
    crc = 0xE3069283
    expected = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert masked_crc(b"123456789") == expected


def test_tensorboard_itself_reads_the_event_file(tmp_path: Path) -> None:
    loader = importlib.import_module("tensorboard.backend.event_processing.event_file_loader")
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


def test_the_board_shows_as_infinite_what_its_32_bits_do_not_hold(tmp_path: Path) -> None:
    """An agent's own number may be any finite one; one of 1e39 ended the writer for good."""
    loader = importlib.import_module("tensorboard.backend.event_processing.event_file_loader")
    board = EventFile(tmp_path, 1000.0)
    largest = 3.4028234663852886e38
    board.scalars(1, {"a": 1e39, "b": -1e39, "c": largest, "d": 0.5}, 1001.0)
    board.close()
    (path,) = tmp_path.iterdir()
    (_, event) = loader.LegacyEventFileLoader(str(path)).Load()
    seen = {value.tag: value.simple_value for value in event.summary.value}
    assert seen == {"a": math.inf, "b": -math.inf, "c": largest, "d": 0.5}


async def test_a_record_that_cannot_be_written_is_said_and_holds_nothing_up(folder: Path) -> None:
    """Only a fault of our own does that: the run ends by it, with every other record on disk."""

    class Faulty(Files):
        def step(self, message: StepRecorded, wall_s: float) -> EventReported | None:
            if message.step == 1:
                raise OverflowError("too large")
            return super().step(message, wall_s)

    reasons: list[str] = []
    recorder = Recorder(Faulty(folder, tensorboard=False))
    recorder.start(reasons.append)
    for _ in range(2):
        for step in range(3):
            recorder.record(trained(step))
        await recorder.settled()
    for _ in range(PENDING_MAX):
        recorder.record(EventReported(source="engine-0", kind="odd", text=""))
    await recorder.room()
    await recorder.complete_step()
    await recorder.close()
    assert reasons == ["the recorder failed: OverflowError: too large"]
    assert [line["step"] for line in lines(folder / "metrics.jsonl")] == [1, 3]
    assert len(lines(folder / "events.jsonl")) == PENDING_MAX


async def test_nobody_waits_for_a_writer_that_is_gone(folder: Path) -> None:
    """Whom it tells of a full disk may fail as well; what it left is written at the end."""

    class Full(Files):
        is_full = True

        def event(self, message: EventReported, wall_s: float) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, "full")
            super().event(message, wall_s)

    def fails(reason: str) -> None:
        raise RuntimeError(reason)

    files = Full(folder, tensorboard=False)
    recorder = Recorder(files)
    recorder.start(fails)
    event = EventReported(source="engine-0", kind="odd", text="")
    for _ in range(2):
        recorder.record(event)
        await recorder.settled()
    for _ in range(PENDING_MAX - 2):
        recorder.record(event)
    await recorder.room()
    await recorder.complete_step()
    files.is_full = False
    with pytest.raises(RuntimeError, match="cannot be written"):
        await recorder.close()
    assert len(lines(folder / "events.jsonl")) == PENDING_MAX


async def test_what_was_taken_is_written_before_close_returns(folder: Path) -> None:
    reasons: list[str] = []
    recorder = Recorder(Files(folder, tensorboard=False))
    recorder.start(reasons.append)
    for step in range(50):
        recorder.record(trained(step, x=math.nan))
    recorder.record(EventReported(source="rollout", kind="retry", text="", values={"b": b"\0"}))
    await recorder.close()
    assert [line["step"] for line in lines(folder / "metrics.jsonl")] == list(range(1, 51))
    kinds = [line["kind"] for line in lines(folder / "events.jsonl")]
    assert kinds == ["not_finite"] * 50 + ["retry"]
    assert reasons == []


async def test_a_full_disk_is_said_once_and_what_it_refused_is_written_when_there_is_room(
    folder: Path,
) -> None:
    """/dev/full answers every write with ENOSPC, as a full disk does."""

    class Full(Files):
        def fill(self) -> None:
            self._room, self._metrics = self._metrics, FileIO("/dev/full", "ab")

        def free(self) -> None:
            self._metrics.close()
            self._metrics = self._room

    reasons: list[str] = []
    files = Full(folder, tensorboard=False)
    recorder = Recorder(files)
    recorder.start(reasons.append)
    files.fill()
    for step in range(3):
        recorder.record(trained(step))
        await recorder.settled()
    recorder.record(EventReported(source="supervisor", kind="failed", text="disk full"))
    await recorder.settled()
    assert reasons == ["the run folder cannot be written: [Errno 28] No space left on device"]
    files.free()
    await recorder.close()
    assert [line["step"] for line in lines(folder / "metrics.jsonl")] == [1, 2, 3]
    assert [line["kind"] for line in lines(folder / "events.jsonl")] == ["failed"]


async def test_a_folder_that_takes_only_the_lines_is_said_once_too(folder: Path) -> None:
    """Saying it makes an event, and writing that event must not say it again, for ever."""
    reasons: list[str] = []
    recorder = Recorder(Files(folder, tensorboard=False))
    recorder.start(reasons.append)
    (folder / PRIVATE).rmdir()
    for step in range(3):
        recorder.record(trained(step))
        await recorder.settled()
    assert len(reasons) == 1
    (folder / PRIVATE).mkdir()
    await recorder.close()
    assert [line["step"] for line in lines(folder / "metrics.jsonl")] == [1, 2, 3]


def test_an_event_with_values_that_json_has_not_is_kept_as_text(folder: Path) -> None:
    files = Files(folder, tensorboard=False)
    values = {"ids": {7: "a"}, "big": 2**80}
    files.event(EventReported(source="rollout", kind="odd", text="", values=values), 2.0)
    files.event(EventReported(source="rollout", kind="fine", text="", values={"k": {7: 1}}), 2.0)
    files.close()
    first, second = lines(folder / "events.jsonl")
    assert str(2**80) in str(first["values"])
    assert second["values"] == {"k": {"7": 1}}


def test_a_resumed_run_takes_out_the_steps_that_it_does_again(folder: Path) -> None:
    """Stopped after step 5, resumed at the checkpoint after 3, whose version comes again."""
    files = Files(folder, tensorboard=False)
    for step in range(5):
        files.step(trained(step, loss=1.0), 1.0)
        files.step(said("publisher", step + 1, perf_seconds=1.0), 1.0)
    files.close()
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 6, "tim')
    files = Files(folder, tensorboard=False, resume_step=3)
    assert json.loads((folder / OPEN_STEP).read_text())["step"] == 3
    files.step(said("publisher", 3, perf_seconds=2.0), 1.0)
    files.step(trained(3, loss=2.0), 1.0)
    files.close()
    kept = [
        (line["step"], line["train/loss"], line.get("perf/seconds"))
        for line in lines(folder / "metrics.jsonl")
    ]
    assert kept == [(1, 1.0, 1.0), (2, 1.0, 1.0), (3, 1.0, 2.0), (4, 2.0, None)]
    superseded = (folder / PRIVATE / "superseded.jsonl").read_text().splitlines()
    assert len(superseded) == 3


def test_a_run_that_begins_again_keeps_no_line(folder: Path) -> None:
    """It had no checkpoint yet; its first version is evaluated and its first step done again."""
    files = Files(folder, tensorboard=False)
    files.step(said("evaluator", 0, eval_x=1.0), 1.0)
    files.step(trained(0), 1.0)
    files.close()
    Files(folder, tensorboard=False, resume_step=0).close()
    assert lines(folder / "metrics.jsonl") == []


def test_tensorboard_purges_what_a_resumed_run_does_again(tmp_path: Path) -> None:
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
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


def test_a_resumed_run_takes_out_the_scores_of_weights_that_are_no_more(folder: Path) -> None:
    """Its version 9 will be another one; the report showed that of the life before."""
    evaluated = {"time": 1.0, "source": "evaluator", "kind": "evaluation", "text": ""}
    told = [{**evaluated, "values": {"version": version}} for version in (0, 3, 9)]
    told.insert(2, {**evaluated, "kind": "begun", "values": {}})
    talks: list[dict[str, object]] = [{"version": version, "messages": []} for version in (0, 3, 9)]
    for name, objects in (("events.jsonl", told), ("transcripts.jsonl", talks)):
        whole = "".join(f"{json.dumps(each)}\n" for each in objects)
        (folder / name).write_text(whole + '{"ver')
    Files(folder, tensorboard=False, resume_step=3).close()
    assert lines(folder / "events.jsonl") == told[:-1]
    assert lines(folder / "transcripts.jsonl") == talks[:-1]
    assert lines(folder / PRIVATE / "superseded.jsonl") == [told[-1], talks[-1]]
    scores = Scores()
    scores.load(earlier_events(folder))
    scores.note(EventReported(source="e", kind="evaluation", text="", values={"version": 8}))
    summary = scores.summary()
    assert (summary["before"], summary["after"]) == ({"version": 0}, {"version": 8})
    Files(folder, tensorboard=False, resume_step=0).close()
    assert lines(folder / "events.jsonl") == [told[2]], "even that of version 0 is measured again"
