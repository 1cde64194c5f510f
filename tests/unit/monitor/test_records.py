"""Files that grow while they are read, are cut back by a resume, or were never written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from unit.monitor.kit import event, step

from milepost.configs.dump import dump_topology
from milepost.configs.load import load_topology
from milepost.launch.attach import Unreachable
from milepost.launch.monitor.feed import find
from milepost.launch.monitor.records import PIECE_BYTES, Records


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".milepost").mkdir()
    return tmp_path


def write(folder: Path, name: str, *objects: dict[str, Any], mode: str = "a") -> None:
    with (folder / name).open(mode) as file:
        file.writelines(json.dumps(each) + "\n" for each in objects)


def told(records: Records) -> list[tuple[str, str]]:
    found = records.read()
    return [] if found is None else [(each["kind"], each["text"]) for each in found.events]


def steps_of(records: Records) -> list[int]:
    found = records.read()
    return [] if found is None else [each["step"] for each in found.steps]


def test_each_line_is_read_once_as_the_files_grow(folder: Path) -> None:
    records = Records.of(folder)
    assert records.read() is None
    write(folder, "metrics.jsonl", step(1), step(2))
    write(folder, "events.jsonl", event("begun", "all are ready"))
    found = records.read()
    assert found is not None
    assert [each["step"] for each in found.steps] == [1, 2]
    assert [each["kind"] for each in found.events] == ["begun"]
    assert records.read() is None
    write(folder, "metrics.jsonl", step(3))
    assert steps_of(records) == [3]


def test_a_line_that_is_half_written_waits_for_its_end(folder: Path) -> None:
    records = Records.of(folder)
    text = json.dumps(step(1))
    (folder / "metrics.jsonl").write_text(text[:40])
    assert steps_of(records) == []
    (folder / "metrics.jsonl").write_text(text + "\n")
    assert steps_of(records) == [1]


def test_the_step_that_is_still_open_is_read_too(folder: Path) -> None:
    """It is written when the next one begins, which may be minutes later."""
    records = Records.of(folder)
    write(folder, "metrics.jsonl", step(1))
    (folder / ".milepost/open_step.json").write_text(json.dumps(step(2)))
    assert steps_of(records) == [1, 2]
    assert steps_of(records) == []
    (folder / ".milepost/open_step.json").write_text(json.dumps(step(2, 0.7)))
    assert steps_of(records) == [2]


def test_files_that_a_resume_cut_back_are_read_anew(folder: Path) -> None:
    """The steps after the checkpoint are done again; the old ones must not stay in the curves."""
    records = Records.of(folder)
    write(folder, "metrics.jsonl", *(step(number) for number in range(1, 9)))
    assert len(steps_of(records)) == 8
    write(folder, "draft", *(step(number) for number in range(1, 4)))
    (folder / "draft").replace(folder / "metrics.jsonl")
    found = records.read()
    assert found is not None
    assert found.anew
    assert [each["step"] for each in found.steps] == [1, 2, 3]


def test_a_resumed_run_is_told_from_its_beginning(folder: Path) -> None:
    """Its clock begins again, its history does not: steps and events of both lives are shown."""
    records = Records.of(folder)
    write(folder, "metrics.jsonl", step(1), step(2))
    write(folder, "events.jsonl", event("begun", "first"))
    (folder / ".milepost/open_step.json").write_text(json.dumps(step(3)))
    records.read()
    records.rewind()
    write(folder, "events.jsonl", event("begun", "second"))
    found = records.read()
    assert found is not None
    assert found.anew
    assert [each["step"] for each in found.steps] == [1, 2, 3]
    assert [each["text"] for each in found.events] == ["first", "second"]
    assert records.read() is None


def test_events_are_told_anew_when_only_the_steps_were_cut_back(folder: Path) -> None:
    """What was read before is void as a whole; half of it would be lost for good."""
    records = Records.of(folder)
    write(folder, "metrics.jsonl", step(1), step(2))
    write(folder, "events.jsonl", event("begun", "first"))
    records.read()
    write(folder, "draft", step(1))
    (folder / "draft").replace(folder / "metrics.jsonl")
    found = records.read()
    assert found is not None
    assert found.anew
    assert [each["step"] for each in found.steps] == [1]
    assert [each["text"] for each in found.events] == ["first"]


def test_a_line_that_is_no_object_is_passed_over(folder: Path) -> None:
    """A disk that was full in the middle of a line leaves one behind."""
    write(folder, "metrics.jsonl", step(1))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "ti\n[3]\n')
    write(folder, "metrics.jsonl", step(4))
    assert steps_of(Records.of(folder)) == [1, 4]


def test_a_line_that_is_too_long_to_be_read_is_passed_over_and_said(folder: Path) -> None:
    """An agent may put anything into an event; what came behind this one was never seen."""
    records = Records.of(folder)
    write(folder, "metrics.jsonl", step(1))
    write(folder, "events.jsonl", event("begun", "all are ready"))
    write(folder, "events.jsonl", event("odd", "x" * 3 * PIECE_BYTES), event("odd", "y"))
    assert told(records) == [("begun", "all are ready")]
    left_out = ("left_out", "a line of events.jsonl is longer than 4 MiB and is not shown")
    assert told(records) == [("odd", "y"), left_out]
    assert records.read() is None
    with (folder / "events.jsonl").open("a") as file:
        file.write("x" * (PIECE_BYTES + 1))
    assert told(records) == [left_out]
    with (folder / "events.jsonl").open("a") as file:
        file.write("x\n")
    write(folder, "events.jsonl", event("odd", "z"))
    assert told(records) == [("odd", "z")]
    records.rewind()
    kinds = [kind for _ in range(3) for kind, _ in told(records)]
    assert kinds == ["begun", "odd", "left_out", "odd", "left_out"]


def test_a_line_that_is_just_short_enough_is_read(folder: Path) -> None:
    records = Records.of(folder)
    text = "x" * (PIECE_BYTES - len(json.dumps(event("odd", ""))) - 1)
    write(folder, "events.jsonl", event("odd", text), event("odd", "y"))
    assert [len(found) for _, found in (*told(records), *told(records))] == [len(text), 1]


def test_the_summary_of_an_earlier_life_is_not_the_end_of_this_one(folder: Path) -> None:
    """A resumed run has the old summary beside it until it ends itself."""
    records = Records.of(folder)
    assert records.ended() is None
    (folder / ".milepost/run.json").write_text(json.dumps({"run_id": "second", "ended": False}))
    (folder / "summary.json").write_text(json.dumps({"run_id": "first", "status": "stopped"}))
    assert records.ended() is None
    (folder / "summary.json").write_text(json.dumps({"run_id": "second", "status": "done"}))
    found = records.ended()
    assert found is not None
    assert found.summary["status"] == "done"


def test_the_limits_of_the_lamps_come_from_the_topology_that_runs(folder: Path) -> None:
    topology = load_topology(
        "lookup",
        [
            "actors.buffer.max_weight_staleness=3",
            "actors.buffer.staleness_policy=drop",
            "actors.engine.replicas=2",
            "guard.logprob_difference_max=0.05",
        ],
    )
    (folder / "topology.toml").write_text(dump_topology(topology))
    about = Records.of(folder).about()
    assert (about.name, about.steps, about.engines) == ("lookup", 80, 2)
    assert (about.staleness_max, about.stale_is_corrected) == (3, False)
    assert (about.guard_max, about.difference_max) == (0.05, 1e-4)
    assert about.success == "rollout/solved"


@pytest.mark.parametrize(
    ("config", "routes"),
    [
        ('{"num_experts": 8}', "not replayed"),
        ('{"vision_config": {}, "text_config": {"num_experts": 8}}', "not replayed"),
        ('{"text_config": {"hidden_size": 8, "num_experts": 0}}', "dense"),
        ('[{"num_experts": 8}]', ""),
        ("null", ""),
        ("{", ""),
        ("[" * 200_000, ""),
    ],
)
def test_whether_the_model_has_routes_is_read_from_its_checkpoint(
    folder: Path, config: str, routes: str
) -> None:
    """A model of text and images has a table for each; a broken file is no end of the monitor."""
    (folder / "config.json").write_text(config)
    topology = load_topology("lookup", [f"model.path={folder}"])
    (folder / "topology.toml").write_text(dump_topology(topology))
    assert Records.of(folder).about().routes == routes


def test_a_folder_that_vanished_or_broke_is_a_reason_and_no_crash(folder: Path) -> None:
    """A disk that went away ends neither the run nor the monitor; it says what it cannot read."""
    with pytest.raises(Unreachable, match="holds no run"):
        find(folder)
    for text in ("", "{}", "[1"):
        (folder / ".milepost/run.json").write_text(text)
        with pytest.raises(Unreachable, match="cannot be read"):
            find(folder)


def test_a_log_that_is_not_there_is_no_error(folder: Path) -> None:
    assert Records.of(folder).log("engine-0").lines == ()
    (folder / "logs").mkdir()
    (folder / "logs/engine-0.log").write_text("one\ntwo\n")
    assert Records.of(folder).log("engine-0").lines == ("one", "two")


def test_a_summary_that_cannot_be_read_is_an_end_nobody_knows_more_of(folder: Path) -> None:
    """The screen says so, in place of pointing at that very file."""
    (folder / "summary.json").write_text('{"status": "do')
    ended = Records.of(folder).ended()
    assert ended is not None
    assert "summary.json cannot be read" in ended.summary["cause"]["text"]
    assert ended.summary["ended_at"] > 0
