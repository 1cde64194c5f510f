"""A process beside the run that copies metrics.jsonl into Weights & Biases or MLflow.

`python -P -m milepost.supervisor.recording.tracker KIND TARGET RUN`, with a pipe as standard
input whose other end the supervisor holds; at its end of file the rest of the file is copied and
the process ends. It reads what is on disk, so that a slow or dead server delays nothing, loses
nothing and can break nothing of the run.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from milepost.configs.problem import ConfigError, Problem
from milepost.configs.run import TrackingConfig
from milepost.supervisor.recording.steps import HEAD

POLL_S: Final = 1.0
READ_BYTES: Final = 1 << 20


class Sink(Protocol):
    """Where metrics go."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Take the metrics of one line; steps may come in any order."""
        ...

    def close(self) -> None:
        """Hand out what is pending."""
        ...


class Follower:
    """Reads a growing metrics.jsonl, whole lines only."""

    def __init__(self, path: Path, sink: Sink) -> None:
        self._path = path
        self._sink = sink
        self._offset = path.stat().st_size if path.exists() else 0
        self._rest = b""

    def catch_up(self) -> int:
        """Copy every complete line that is new; returns how many."""
        count = 0
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while data := file.read(READ_BYTES):
                self._offset += len(data)
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._copy(orjson.loads(line))
                    count += 1
        return count

    def _copy(self, line: dict[str, Any]) -> None:
        metrics = {name: x for name, x in line.items() if name not in HEAD and x is not None}
        self._sink.log(int(line["step"]), metrics)


class Wandb:
    """Weights & Biases. Steps are a metric of their own: its counter drops what comes late."""

    def __init__(self, project: str, run_folder: Path) -> None:
        wandb = importlib.import_module("wandb")
        self._run = wandb.init(project=project, name=run_folder.name, dir=str(run_folder))
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """One call for one line."""
        self._run.log({**metrics, "step": step})

    def close(self) -> None:
        """Upload the rest."""
        self._run.finish()


class Mlflow:
    """MLflow, at the tracking address given."""

    def __init__(self, uri: str, run_folder: Path) -> None:
        self._mlflow = importlib.import_module("mlflow")
        self._mlflow.set_tracking_uri(uri)
        self._mlflow.set_experiment("milepost")
        self._mlflow.start_run(run_name=run_folder.name)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """One call for one line; a slash is allowed in its names, other signs are not ours."""
        self._mlflow.log_metrics(metrics, step=step)

    def close(self) -> None:
        """End the MLflow run."""
        self._mlflow.end_run()


SINKS: Final[dict[str, Callable[[str, Path], Sink]]] = {"wandb": Wandb, "mlflow": Mlflow}


def trackers_of(tracking: TrackingConfig) -> dict[str, str]:
    """Kind -> target of every tracker that is asked for.

    Raises:
        ConfigError: one of them is not installed.
    """
    wanted = {
        "wandb": (tracking.wandb_project, "wandb_project"),
        "mlflow": (tracking.mlflow_uri, "mlflow_uri"),
    }
    problems = [
        Problem(f"{kind} is not installed", f"$.tracking.{key}", f"pip install {kind}")
        for kind, (target, key) in wanted.items()
        if target and importlib.util.find_spec(kind) is None
    ]
    if problems:
        raise ConfigError(problems)
    return {kind: target for kind, (target, _) in wanted.items() if target}


def main(kind: str, target: str, run_folder: Path) -> int:
    """Follow the metrics until the supervisor lets go of the pipe."""
    follower_path = run_folder / "metrics.jsonl"
    follower_path.touch()
    sink = SINKS[kind](target, run_folder)
    follower = Follower(follower_path, sink)
    while True:
        readable, _, _ = select.select([0], [], [], POLL_S)
        ended = bool(readable) and not os.read(0, 64)
        follower.catch_up()
        if ended:
            sink.close()
            return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
