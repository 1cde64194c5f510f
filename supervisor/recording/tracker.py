"""A process beside the run that copies metrics.jsonl into Weights & Biases or MLflow.

`python -P -m milepost.supervisor.recording.tracker KIND TARGET RUN BEGIN`, with a pipe as standard
input whose other end the supervisor holds; at its end of file the rest of the file is copied and
the process ends. BEGIN is the size that the file had before the run wrote to it: importing a
service's package takes so long that first steps are there already. The tracker reads what is on
disk, so that a slow or dead server delays nothing, loses nothing and can break nothing of the run.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import select
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from milepost.configs.problem import ConfigError, Problem
from milepost.configs.run import TrackingConfig
from milepost.supervisor.cleanup.unfinished import METRICS
from milepost.supervisor.recording.steps import HEAD

POLL_S: Final = 1.0
TOPOLOGY: Final = "topology.toml"
READ_BYTES: Final = 1 << 20
REFUSED: Final = re.compile(r"[^A-Za-z0-9_\-./ ]")
"""Signs that names of MLflow's metrics must not have, on any of its stores."""


class Sink(Protocol):
    """Where metrics go."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Take the metrics of one line; steps may come in any order."""
        ...

    def close(self) -> None:
        """Hand out what is pending."""
        ...


class Follower:
    """Reads a growing metrics.jsonl, whole lines only.

    Args:
        path: of the file.
        sink: gets its lines.
        begin: bytes at its head that are not copied.
    """

    def __init__(self, path: Path, sink: Sink, begin: int) -> None:
        self._path = path
        self._sink = sink
        self._offset = begin
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
        self._run = wandb.init(
            project=project,
            name=run_folder.name,
            dir=str(run_folder),
            config=settings_of(run_folder),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """One call for one line."""
        self._run.log({**metrics, "step": step})

    def close(self) -> None:
        """Upload the rest."""
        self._run.finish()


class Mlflow:
    """MLflow, at the tracking address given. It is not asked to report its use to its makers."""

    def __init__(self, uri: str, run_folder: Path) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        self._mlflow = importlib.import_module("mlflow")
        self._mlflow.set_tracking_uri(uri)
        self._mlflow.set_experiment("milepost")
        self._mlflow.start_run(run_name=run_folder.name)
        self._mlflow.log_params(flat(settings_of(run_folder)))

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """One call for one line, under names that MLflow takes."""
        named = {mlflow_name(name): value for name, value in metrics.items()}
        self._mlflow.log_metrics(named, step=step)

    def close(self) -> None:
        """End the MLflow run."""
        self._mlflow.end_run()


def settings_of(run_folder: Path) -> dict[str, Any]:
    """The resolved topology of the run, as tables in tables."""
    return tomllib.loads((run_folder / TOPOLOGY).read_text(encoding="utf-8"))


def flat(settings: Mapping[str, Any], head: str = "") -> dict[str, str]:
    """`actors.trainer.lr` -> `0.001` for every value; what has no characters is left out."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            found |= flat(value, f"{head}{mlflow_name(name)}.")
        elif text := str(value):
            found[f"{head}{mlflow_name(name)}"] = text
    return found


def mlflow_name(name: str) -> str:
    """`passrate/pass@4` becomes `passrate/pass_at_4`; other signs that it refuses, underscores."""
    return REFUSED.sub("_", name.replace("@", "_at_"))


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


def main(kind: str, target: str, run_folder: Path, begin: int) -> int:
    """Follow the metrics until the supervisor lets go of the pipe."""
    path = run_folder / METRICS
    path.touch()
    sink = SINKS[kind](target, run_folder)
    follower = Follower(path, sink, begin)
    while True:
        readable, _, _ = select.select([0], [], [], POLL_S)
        ended = bool(readable) and not os.read(0, 64)
        follower.catch_up()
        if ended:
            sink.close()
            return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])))
