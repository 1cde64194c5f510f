"""A tracker copies what is on disk: every line once, whole, whatever its server does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from milepost.configs.problem import ConfigError
from milepost.configs.run import TrackingConfig
from milepost.supervisor.recording.tracker import REFUSED, Follower, flat, mlflow_name, trackers_of


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
    follower = Follower(path, kept, 0)
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
    follower = Follower(path, kept, path.stat().st_size)
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


def test_steps_that_came_while_the_service_was_imported_are_sent(tmp_path: Path) -> None:
    """Importing one takes longer than a first step: the file's size before the run counts."""
    path, kept = tmp_path / "metrics.jsonl", Kept()
    path.write_text(line(0, score=0.5) + line(1, loss=0.5))
    Follower(path, kept, 0).catch_up()
    assert [step for step, _ in kept.lines] == [0, 1]


def test_mlflow_takes_every_name_and_none_falls_together_with_another() -> None:
    """It refuses the whole step for one name with a sign that it does not know."""
    names = ["passrate/pass@4", "train/loss@trainer-1", "rollout/zero_std/count_0.5", "my: own"]
    given = [mlflow_name(name) for name in names]
    assert given == [
        "passrate/pass_at_4",
        "train/loss_at_trainer-1",
        "rollout/zero_std/count_0.5",
        "my_ own",
    ]
    assert not any(REFUSED.search(name) for name in given)


def test_settings_become_dotted_names_that_mlflow_takes() -> None:
    """Runs are compared by what they were started with; an empty value is refused as none."""
    settings = {"run": {"steps": 3, "name": ""}, "custom": {"a:b": {"on": True, "of": [1, 2]}}}
    assert flat(settings) == {
        "run.steps": "3",
        "custom.a_b.on": "True",
        "custom.a_b.of": "[1, 2]",
    }


def test_by_default_there_is_none() -> None:
    assert trackers_of(TrackingConfig()) == {}
