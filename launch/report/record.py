"""What a run left in its folder, read back: steps, evaluations, transcripts, the outcome."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson
from msgspec import Struct, convert
from msgspec.json import Decoder

from milepost.configs.load import load_topology
from milepost.configs.topology import Topology
from milepost.messages.evaluator import Evaluation, Transcript

EVALUATION: Final = "evaluation"
TRANSCRIPTS: Final = "transcripts.jsonl"


class Step(Struct, frozen=True, kw_only=True):
    """Metrics of one step from all their sources."""

    done: int
    """Batches trained, this one included; 0 is before the first."""
    wall_s: float
    """Seconds since training could begin: since the evaluation before it, else the first step."""
    metrics: dict[str, float]


class Record(Struct, frozen=True, kw_only=True):
    """A run that has ended."""

    folder: Path
    topology: Topology
    summary: dict[str, Any]
    steps: tuple[Step, ...]
    evaluations: tuple[Evaluation, ...]
    """In order of their versions' evaluation."""
    transcripts: tuple[Transcript, ...]

    @property
    def before(self) -> Evaluation | None:
        """The evaluation of version 0, before anything was trained, if there is one."""
        return next((each for each in self.evaluations if each.version == 0), None)

    @property
    def after(self) -> Evaluation | None:
        """The last evaluation of a version that was trained, if there is one."""
        trained = (each for each in reversed(self.evaluations) if each.version > 0)
        return next(trained, None)

    @property
    def is_supervised(self) -> bool:
        """No rewards: recorded conversations were imitated."""
        return self.topology.algorithm.estimator == "sft"

    @property
    def steps_done(self) -> int:
        """Batches trained."""
        return max((step.done for step in self.steps), default=0)

    @property
    def success_name(self) -> str:
        """Metric of a step that counts successes."""
        data = self.topology.data
        return f"rollout/{data.success_metric if data else 'solved'}"

    def curve(self, name: str) -> list[tuple[int, float, float]]:
        """(batches trained, seconds, value) of every step that has the metric."""
        return [(s.done, s.wall_s, s.metrics[name]) for s in self.steps if name in s.metrics]


def read_record(folder: Path) -> Record:
    """Read a run's folder.

    Raises:
        FileNotFoundError: no summary.json or topology.toml: no run has ended here.
        ConfigError: topology.toml cannot be read.
        msgspec.ValidationError: an evaluation or a transcript is of another shape.
    """
    summary = orjson.loads((folder / "summary.json").read_bytes())
    return Record(
        folder=folder,
        topology=load_topology(str(folder.absolute() / "topology.toml")),
        summary=summary,
        steps=tuple(steps_of(read_lines(folder / "metrics.jsonl"))),
        evaluations=tuple(_read_evaluations(folder / "events.jsonl")),
        transcripts=tuple(_read_transcripts(folder / TRANSCRIPTS)),
    )


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Objects of a JSONL file; a last line that a killed run left half written is skipped."""
    if not path.is_file():
        return
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n") and line.strip():
            yield orjson.loads(line)


def steps_of(lines: Iterator[dict[str, Any]]) -> Iterator[Step]:
    """One `Step` for each object; its time counts from the first one's."""
    start: float | None = None
    for line in lines:
        start = float(line["time"]) if start is None else start
        values = {name: float(value) for name, value in line.items() if _is_metric(name, value)}
        yield Step(done=int(line["step"]), wall_s=float(line["time"]) - start, metrics=values)


def _is_metric(name: str, value: object) -> bool:
    return "/" in name and isinstance(value, int | float) and not isinstance(value, bool)


def _read_evaluations(path: Path) -> Iterator[Evaluation]:
    # Of a version that a resumed run evaluated once more, the last evaluation counts.
    events = (event for event in read_lines(path) if event["kind"] == EVALUATION)
    found = (convert(event["values"], Evaluation) for event in events)
    yield from {each.version: each for each in found}.values()


def _read_transcripts(path: Path) -> Iterator[Transcript]:
    decoder = Decoder(Transcript)
    if path.is_file():
        lines = path.read_bytes().splitlines(keepends=True)
        yield from (decoder.decode(line) for line in lines if line.endswith(b"\n"))
