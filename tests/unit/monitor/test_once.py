"""One look at a run that may be beyond reach: what its folder holds is told all the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from unit.monitor.kit import event, step

from milepost.configs.dump import dump_topology
from milepost.configs.load import load_topology
from milepost.launch.cli import run_command
from milepost.launch.exits import Exit


def write(folder: Path, name: str, *objects: dict[str, Any]) -> None:
    (folder / name).write_text("".join(json.dumps(each) + "\n" for each in objects))


def test_a_run_that_cannot_be_heard_is_shown_as_far_as_its_folder_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error sends whoever reads it to this very command, which said nothing else."""
    (tmp_path / "topology.toml").write_text(dump_topology(load_topology("lookup")))
    (tmp_path / ".milepost").mkdir()
    (tmp_path / ".milepost" / "run.json").write_text('{"run_id": "a", "endp')
    write(tmp_path, "metrics.jsonl", step(1), step(2))
    write(tmp_path, "events.jsonl", event("begun", "all are ready"))
    assert run_command("monitor", [str(tmp_path), "--json"]) == Exit.UNREACHABLE
    told = capsys.readouterr()
    facts = json.loads(told.out)
    assert facts["run"]["step"] == 2
    assert [each["kind"] for each in facts["events"]] == ["begun"]
    assert facts["run"]["silent"].startswith(f"nobody can attach to the run in {tmp_path}")
    assert told.err == f"error: {facts['run']['silent']}\n"
