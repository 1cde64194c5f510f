"""A tracker copies what is on disk: every line once, whole, whatever its server does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from milepost.configs.problem import ConfigError
from milepost.configs.run import TrackingConfig
from milepost.supervisor.recording.tracker import Follower, trackers_of


class Kept:
    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.lines.append((step, metrics))

    def close(self) -> None:
        return


def line(step: int, **metrics: float | None) -> str:
    return json.dumps({"step": step, "time": 1.0, **metrics}) + "\n"


def test_lines_are_copied_once_and_only_when_they_are_whole(tmp_path: Path) -> None:
    path, kept = tmp_path / "metrics.jsonl", Kept()
    path.write_text("")
    follower = Follower(path, kept)
    second = line(2, loss=0.25)
    with path.open("a") as file:
        file.write(line(1, loss=0.5) + second[:9])
        file.flush()
        assert follower.catch_up() == 1
        file.write(second[9:] + line(3, loss=None, lr=1e-3))
        file.flush()
        assert follower.catch_up() == 2
    assert follower.catch_up() == 0
    assert kept.lines == [(1, {"loss": 0.5}), (2, {"loss": 0.25}), (3, {"lr": 1e-3})]


def test_a_resumed_run_does_not_send_the_old_steps_again(tmp_path: Path) -> None:
    path, kept = tmp_path / "metrics.jsonl", Kept()
    path.write_text(line(1, loss=0.5))
    follower = Follower(path, kept)
    with path.open("a") as file:
        file.write(line(2, loss=0.25))
    assert follower.catch_up() == 1
    assert kept.lines == [(2, {"loss": 0.25})]


def test_a_service_that_is_asked_for_and_not_installed_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run of a week without its dashboard is found out too late."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigError) as caught:
        trackers_of(TrackingConfig(wandb_project="mine", mlflow_uri="file:x"))
    assert [str(problem) for problem in caught.value.problems] == [
        "wandb is not installed at $.tracking.wandb_project, pip install wandb",
        "mlflow is not installed at $.tracking.mlflow_uri, pip install mlflow",
    ]


def test_by_default_there_is_none() -> None:
    assert trackers_of(TrackingConfig()) == {}
