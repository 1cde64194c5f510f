"""Reading a run's folder back: it must survive resumes, kills, and metrics without a value."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from milepost.launch.report import report_lines, write_report
from milepost.launch.report.record import read_record
from milepost.launch.report.steps import Step, StepsFile, read_lines


def line(step: int, time: float, **metrics: Any) -> dict[str, Any]:
    named = {name.replace("_", "/", 1): value for name, value in metrics.items()}
    return {"step": step, "time": time, **named}


def steps_of(folder: Path, *lines: dict[str, Any]) -> list[Step]:
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return StepsFile(path).read()


def test_a_record_has_the_curve_the_evaluations_and_the_conversations(run_folder: Path) -> None:
    record = read_record(run_folder)
    curve = record.curve(record.success_name)
    assert len(curve) == 80
    assert curve[0][0] == 1
    assert record.before is not None
    assert record.after is not None
    assert (record.before.version, record.after.version) == (0, 80)
    assert [talk.version for talk in record.transcripts] == [0, 80]


def test_time_counts_from_the_evaluation_before_and_not_from_the_one_after(
    run_folder: Path,
) -> None:
    """The last version is evaluated after its step: that must not stretch the last step."""
    curve = read_record(run_folder).curve("rollout/solved")
    assert curve[0][1] == pytest.approx(0.6)
    assert curve[-1][1] == pytest.approx(24.3)


def test_an_object_is_a_step_whose_time_counts_from_the_first(tmp_path: Path) -> None:
    lines = [line(1, 10.0, train_version=1, train_loss=1.0), line(2, 60.0, train_loss=0.8)]
    first, second = steps_of(tmp_path, *lines)
    assert (first.done, second.done) == (1, 2)
    assert first.metrics == {"train/version": 1, "train/loss": 1.0}
    assert (second.metrics["train/loss"], second.wall_s) == (0.8, 50.0)


def test_the_time_between_two_lives_is_no_time_of_training(run_folder: Path) -> None:
    """Stopped after step 40, resumed a day later at the second try, stopped and resumed once more:
    the curve goes on where it was."""
    path = run_folder / "metrics.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    for each in lines:
        each["time"] += 86_400.0 * sum(each["step"] > last for last in (40, 60))
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    with (run_folder / "events.jsonl").open("a") as file:
        for time in (999.0, 50_000.0, 87_412.1, 173_818.1, "soon"):
            begun: dict[str, object] = {
                "time": time,
                "source": "supervisor",
                "kind": "begun",
                "values": {},
            }
            file.write(json.dumps(begun) + "\n")
    seconds = {done: wall_s for done, wall_s, _ in read_record(run_folder).curve("rollout/solved")}
    assert seconds[40] == pytest.approx(12.3)
    assert seconds[41] == pytest.approx(12.3 + 0.2)
    assert seconds[60] == pytest.approx(18.2)
    assert seconds[61] == pytest.approx(18.2 + 0.2)
    assert seconds[80] == pytest.approx(24.1)


def test_a_metric_without_a_value_is_left_out_of_curves(tmp_path: Path) -> None:
    (step,) = steps_of(tmp_path, line(1, 1.0, train_loss=None, train_lr=0.1))
    assert step.metrics == {"train/lr": 0.1}


def test_half_a_last_line_is_what_a_killed_run_leaves(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n\n{"step": 2}\n{"ste')
    assert list(read_lines(path)) == [{"step": 1}, {"step": 2}]
    assert list(read_lines(tmp_path / "no such file")) == []


def test_evaluations_of_a_resumed_run_begin_with_its_first_start(run_folder: Path) -> None:
    """summary.json of the second part knows nothing of the evaluation before the first."""
    summary = json.loads((run_folder / "summary.json").read_text())
    (run_folder / "summary.json").write_text(json.dumps({**summary, "scores": {"all": []}}))
    record = read_record(run_folder)
    assert record.before is not None
    assert record.before.version == 0


def test_of_a_version_evaluated_again_after_a_resume_the_last_evaluation_counts(
    run_folder: Path,
) -> None:
    """Else a run resumed before its first step would compare version 0 with itself."""
    events = run_folder / "events.jsonl"
    before = read_record(run_folder).evaluations
    events.write_bytes(events.read_bytes() * 2)
    assert read_record(run_folder).evaluations == before


def test_a_folder_without_a_run_is_no_record(tmp_path: Path) -> None:
    reading: Callable[[Path], object] = read_record
    with pytest.raises(FileNotFoundError):
        reading(tmp_path)


def spoil(path: Path, number: int, text: bytes) -> None:
    """Another line in place of one, counted from 1."""
    lines = path.read_bytes().split(b"\n")
    lines[number - 1] = text
    path.write_bytes(b"\n".join(lines))


def test_a_damaged_line_is_left_out_and_told_and_all_others_are_there(run_folder: Path) -> None:
    """A disk that was full, or a bit that flipped, must not hide a week of training."""
    whole = read_record(run_folder)
    assert whole.damaged == ()
    spoil(run_folder / "metrics.jsonl", 7, b'{"step": 6, "time": 1')
    spoil(run_folder / "metrics.jsonl", 9, b'{"stdp": 8, "time": 1.0}')
    spoil(run_folder / "metrics.jsonl", 11, b"[]")
    spoil(run_folder / "events.jsonl", 1, b"\xff")
    spoil(run_folder / "transcripts.jsonl", 1, b'{"version": 0}')
    record = read_record(run_folder)
    assert len(record.steps) == len(whole.steps) - 3
    assert len(record.transcripts) == len(whole.transcripts) - 1
    places = [text.partition(" is damaged and left out: ")[0] for text in record.damaged]
    assert places == [
        "metrics.jsonl, line 7",
        "metrics.jsonl, line 9",
        "metrics.jsonl, line 11",
        "events.jsonl, line 1",
        "transcripts.jsonl, line 1",
    ]
    assert "KeyError: 'step'" in record.damaged[1]
    told = list(report_lines(run_folder))
    assert set(record.damaged) <= set(told), "the words at the end of the run say it, too"
    write_report(run_folder)
    assert "metrics.jsonl, line 7 is damaged" in (run_folder / "report.html").read_text()


def test_an_evaluation_of_another_shape_is_left_out_and_told(run_folder: Path) -> None:
    whole = read_record(run_folder)
    events = run_folder / "events.jsonl"
    text = events.read_bytes()
    events.write_bytes(text.replace(b'"version"', b'"vershon"', 1))
    record = read_record(run_folder)
    assert len(record.evaluations) == len(whole.evaluations) - 1
    assert "an evaluation is damaged and left out: " in record.damaged[0]


@pytest.mark.parametrize("text", ["[1]", '{"status": "do', "{}", '{"status": "done"}'])
def test_a_summary_that_is_none_is_said_to_be_damaged(run_folder: Path, text: str) -> None:
    """`no run has ended here` would send somebody looking for another folder."""
    (run_folder / "summary.json").write_text(text)
    with pytest.raises(FileNotFoundError, match=r"summary\.json is damaged: "):
        read_record(run_folder)


def _event(kind: str, time: object) -> str:
    return json.dumps({"time": time, "source": "supervisor", "kind": kind, "values": {}})
