"""Cleaning up after a run whose files are damaged: what it owned goes, whatever they say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from unit.supervisor.test_cleanup import RUN, begin

from milepost.launch.cli import run_command
from milepost.launch.exits import Exit
from milepost.messages.supervisor import EventReported
from milepost.supervisor.cleanup.reaper import MARK, reap
from milepost.supervisor.cleanup.registry import PRIVATE, read_registry
from milepost.supervisor.cleanup.unfinished import (
    EVENTS,
    METRICS,
    OPEN_STEP,
    RUN_FILE,
    SUMMARY,
    write_open_step,
)
from milepost.supervisor.recording.recorder import Files
from milepost.supervisor.recording.resume import earlier_events


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run" / PRIVATE).mkdir(parents=True)
    return tmp_path / "run"


@pytest.fixture
def sockets(tmp_path: Path) -> Path:
    """Something that a run owns."""
    path = tmp_path / "milepost-sockets"
    path.mkdir()
    (path / MARK).write_text(RUN)
    return path


@pytest.mark.parametrize("name", [METRICS, EVENTS, OPEN_STEP, RUN_FILE, SUMMARY])
@pytest.mark.parametrize("text", ["{nonsense\n", "[]\n", "{}\n", "\xff\n"])
def test_no_damaged_file_keeps_what_a_killed_run_owned(
    folder: Path, sockets: Path, name: str, text: str
) -> None:
    """The janitor died at a bad line of metrics.jsonl, with all processes of the run behind it."""
    begin(folder, {"kind": "folder", "path": str(sockets)})
    good = [json.dumps({"step": step, "time": 100.0 + step}) for step in (1, 2)]
    (folder / METRICS).write_text("\n".join([*good, ""]))
    event = {"time": 103.0, "source": "supervisor", "kind": "begun", "values": {}}
    (folder / EVENTS).write_text(json.dumps(event) + "\n")
    write_open_step(folder, {"step": 3, "time": 103.0})
    path = folder / name
    before = path.read_bytes() if name in (METRICS, EVENTS) else b""
    path.write_bytes(text.encode("latin-1") + before)
    reaped = reap(folder)
    assert (reaped.problems, reaped.folders) == ([], [str(sockets)])
    assert not sockets.exists()
    summary = json.loads((folder / SUMMARY).read_text())
    assert summary["status"] == "killed"
    assert summary["steps_done"] == (2 if name == OPEN_STEP else 3)


@pytest.mark.parametrize("value", ["null", '"2"', "true", "[2]", "1e999", "NaN", "1" + "0" * 400])
@pytest.mark.parametrize(
    ("name", "key"),
    [
        (METRICS, "step"),
        (OPEN_STEP, "step"),
        (EVENTS, "time"),
        (EVENTS, "version"),
        (RUN_FILE, "started_at"),
        (RUN_FILE, "resumed_from"),
    ],
)
def test_no_field_of_another_type_keeps_what_a_killed_run_owned(
    folder: Path, sockets: Path, name: str, key: str, value: str
) -> None:
    """A step that is null was compared with the one that grew, and nothing behind that was done."""
    begin(folder, {"kind": "folder", "path": str(sockets)})
    about = {"run_id": RUN, "name": "x", "folder": "x", "pid": 1, "steps": 9}
    event = {"time": 103.0, "source": "evaluator", "kind": "evaluation"}
    lines: dict[str, dict[str, Any]] = {
        METRICS: {"step": 2, "time": 102.0},
        OPEN_STEP: {"step": 3, "time": 103.0},
        EVENTS: {**event, "values": {"version": 2}},
        RUN_FILE: {**about, "started_at": 100.0, "resumed_from": 1},
    }
    for path, fields in lines.items():
        text = json.dumps(fields)
        if path == name:
            damaged = re.sub(rf'("{key}": )[0-9.]+', lambda found: found[1] + value, text)
            assert damaged != text
            text = f"{text}\n{damaged}" if path == METRICS else damaged
        (folder / path).write_text(f"{text}\n")
    assert (reap(folder).problems, sockets.exists()) == ([], False)
    summary = json.loads((folder / SUMMARY).read_text(), parse_constant=pytest.fail)
    assert summary["steps_done"] == (2 if name == OPEN_STEP else 3)


def test_a_disk_that_takes_no_summary_keeps_nothing_alive_and_is_tried_again(
    folder: Path, sockets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(folder, {"kind": "folder", "path": str(sockets)})
    (folder / SUMMARY).mkdir()  # no file can be written there
    assert run_command("reap", [str(folder)]) == Exit.FAILED
    assert "the end of its files could not be written: " in capsys.readouterr().out
    assert not sockets.exists()
    assert not read_registry(folder).closed
    (folder / SUMMARY).rmdir()
    assert reap(folder).problems == []
    assert json.loads((folder / SUMMARY).read_text())["status"] == "killed"


def test_a_run_is_resumed_over_damaged_lines_and_writes_none_of_its_own_into_them(
    folder: Path,
) -> None:
    """A power cut leaves half a line; an event behind it would be a part of that."""
    (folder / METRICS).write_text(
        '{"step": 1, "time": 1.0}\n{"st\n[]\n{"stdp": 2}\n{"step": null}\n'
    )
    (folder / EVENTS).write_text('{"kind": "a"}\nnonsense\n{"ki')
    files = Files(folder, tensorboard=False, resume_step=3)
    files.event(EventReported(source="rollout", kind="b", text=""), 2.0)
    files.close()
    assert [event["kind"] for event in earlier_events(folder)] == ["a", "b"]
    kept = (folder / METRICS).read_text().splitlines()
    assert [json.loads(line)["step"] for line in kept] == [1]
    superseded = (folder / PRIVATE / "superseded.jsonl").read_text().splitlines()
    assert superseded == ['{"st', "[]", '{"stdp": 2}', '{"step": null}']
