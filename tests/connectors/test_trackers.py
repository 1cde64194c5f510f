"""W&B and MLflow as they come: a run beside them, and what they have of it afterwards."""

from __future__ import annotations

import importlib
import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from connectors.conftest import milepost
from proc.runs import custom, environment, topology

from milepost.supervisor.recording.tracker import mlflow_name

pytestmark = [
    pytest.mark.timeout(300),
    # What one of their packages says of another is not ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
STEPS: Final = 4
WORKER: Final = custom(
    "worker", "worker", f'steps = {STEPS}\nmetrics = ["passrate/pass@4"]', significant=True
)
BLOCK: Final = 32768
WHOLE: Final = 1
LAST: Final = 4
Line = dict[str, Any]


@pytest.fixture
def tracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run that was copied to both services; nothing left this machine."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_MODE", "offline")
    file = tmp_path / "mine.toml"
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    both = f'[tracking]\nwandb_project = "mine"\nmlflow_uri = "{uri}"\n'
    file.write_text(topology(WORKER, steps=STEPS) + both)
    folder = tmp_path / "run"
    done = milepost("run", str(file), "--plain", "--out", str(folder), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tracker_ended" not in [event["kind"] for event in written(folder, "events.jsonl")]
    return folder


def written(folder: Path, name: str) -> list[Line]:
    """The objects of a file of the run."""
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def metrics_of(line: Line) -> dict[str, float]:
    """Without what is no metric."""
    return {name: x for name, x in line.items() if name not in ("step", "time") and x is not None}


def offline_records(folder: Path) -> Iterator[Any]:
    """What W&B keeps of a run until it is synced, decoded by its own types.

    The file is a LevelDB log behind 7 bytes of its own: blocks of 32 KiB with pieces of records,
    each with a head of checksum, length and kind.
    """
    types = importlib.import_module("wandb.proto.wandb_internal_pb2")
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (room := BLOCK - at % BLOCK) < 7:
            at += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (WHOLE, LAST):
            record = types.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def test_both_services_have_every_step_under_its_number(tracked: Path) -> None:
    """The first step came while their packages were imported, the last one as the run ended."""
    lines = written(tracked, "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    check_wandb(tracked, lines)
    check_mlflow(tracked, lines)


def check_wandb(folder: Path, lines: list[Line]) -> None:
    rows: list[Line] = []
    settings: dict[str, Any] = {}
    names = []
    for record in offline_records(folder):
        if record.HasField("history"):
            items = record.history.item
            rows.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items})
        if record.HasField("run"):
            names.append((record.run.project, record.run.display_name))
            settings |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
    assert names[0] == ("mine", folder.name)
    assert settings["run"]["steps"] == STEPS
    for row, line in zip(rows, lines, strict=True):
        given = {name: value for name, value in row.items() if not name.startswith("_")}
        assert given == {"step": line["step"], **metrics_of(line)}


def check_mlflow(folder: Path, lines: list[Line]) -> None:
    mlflow = importlib.import_module("mlflow")
    client = mlflow.MlflowClient(f"sqlite:///{folder.parent}/mlflow.db")
    experiment = client.get_experiment_by_name("milepost")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == (folder.name, "FINISHED")
    assert run.data.params["run.steps"] == str(STEPS)
    wanted: dict[str, dict[int, float]] = {}
    for line in lines:
        for name, value in metrics_of(line).items():
            wanted.setdefault(mlflow_name(name), {})[line["step"]] = value
    assert "passrate/pass_at_4" in wanted
    assert set(run.data.metrics) == set(wanted)
    for name, values in wanted.items():
        found = {each.step: each.value for each in client.get_metric_history(run.info.run_id, name)}
        assert found.keys() == values.keys(), name
        assert all(math.isclose(found[step], values[step]) for step in values), name


def test_a_service_that_cannot_be_reached_costs_the_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told by name, with the last words of the package; the run is done all the same."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    file = tmp_path / "mine.toml"
    file.write_text(
        topology(WORKER, steps=STEPS) + '[tracking]\nmlflow_uri = "http://127.0.0.1:9"\n'
    )
    folder = tmp_path / "run"
    done = milepost("run", str(file), "--plain", "--out", str(folder), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    events = written(folder, "events.jsonl")
    (told,) = [event["text"] for event in events if event["kind"] == "tracker_ended"]
    assert told.startswith("metrics do not reach mlflow any more: "), told
