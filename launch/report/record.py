"""What a run left in its folder, read back: steps, evaluations, transcripts, the outcome.

The report at its end and `milepost view` are both made from this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final, TypeAlias

import orjson
from msgspec import MsgspecError, Struct, ValidationError, convert
from msgspec.json import Decoder
from msgspec.structs import replace

from milepost.configs.load import load_topology
from milepost.configs.topology import Topology
from milepost.launch.report.steps import (
    BROKEN,
    Step,
    StepsFile,
    at_work,
    damage,
    read_lines,
)
from milepost.messages.evaluator import Evaluation, Transcript
from milepost.supervisor.cleanup.unfinished import BEGUN, EVALUATION

TRANSCRIPTS: Final = "transcripts.jsonl"
_Stamp: TypeAlias = tuple[int, int, int]
_Summary: TypeAlias = tuple[dict[str, Any], tuple[str, ...]]
"""And what cannot be read of it."""


class Record(Struct, frozen=True, kw_only=True):
    """A run, as far as its files tell."""

    folder: Path
    topology: Topology
    summary: dict[str, Any]
    """Empty while it goes on."""
    steps: tuple[Step, ...]
    evaluations: tuple[Evaluation, ...]
    """In order of their versions' evaluation."""
    transcripts: tuple[Transcript, ...] = ()
    damaged: tuple[str, ...] = ()
    """What of its files cannot be read, and is missing here."""

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
    def resumed_from(self) -> int:
        """Step from which its last life went on, whose seconds the summary has; 0: its only one."""
        return int(self.summary.get("resumed_from") or 0)

    @property
    def success_name(self) -> str:
        """Metric of a step that counts successes."""
        data = self.topology.data
        return f"rollout/{data.success_metric if data else 'solved'}"

    def curve(self, name: str) -> list[tuple[int, float, float]]:
        """(batches trained, seconds, value) of every step that has the metric."""
        return [(s.done, s.wall_s, s.metrics[name]) for s in self.steps if name in s.metrics]


class RunFiles:
    """The files of one run, each read again only when it has changed.

    Args:
        folder: of the run.
        names: metrics that are kept in memory; None for all of them.
    """

    def __init__(self, folder: Path, names: Collection[str] | None = None) -> None:
        self.folder = folder
        self.steps = StepsFile(folder / "metrics.jsonl", names)
        self._read: dict[str, tuple[_Stamp | None, Any]] = {}

    def record(self) -> Record:
        """The run as of now, without its transcripts.

        Raises:
            ConfigError: there is no topology.toml, or it cannot be read.
        """
        summary, broken = self._summary()
        evaluations, begun, unread = self._fresh("events.jsonl", _read_events)
        steps = self.steps.read()
        return Record(
            folder=self.folder,
            topology=self.topology,
            summary=summary,
            steps=tuple(at_work(steps, [when - self.steps.start_s for when in begun])),
            evaluations=evaluations,
            damaged=(*broken, *self.steps.damaged, *unread),
        )

    @property
    def topology(self) -> Topology:
        """What the run was told; raises as `record`."""
        topology: Topology = self._fresh(
            "topology.toml", lambda path: load_topology(str(path.absolute()))
        )
        return topology

    @property
    def summary(self) -> dict[str, Any]:
        """How it ended; empty while it goes on, or when nobody could write it."""
        return self._summary()[0]

    @property
    def problem(self) -> str:
        """Why nobody knows how it ended; empty when somebody does, or it goes on."""
        return "".join(self._summary()[1])

    def _summary(self) -> _Summary:
        found: _Summary = self._fresh("summary.json", _read_summary)
        return found

    def _fresh(self, name: str, read: Callable[[Path], Any]) -> Any:
        path = self.folder / name
        stamp = _stamp(path)
        if name not in self._read or self._read[name][0] != stamp:
            self._read[name] = stamp, read(path)
        return self._read[name][1]


def read_record(folder: Path) -> Record:
    """Read the folder of a run that has ended.

    Raises:
        FileNotFoundError: no summary.json: no run has ended here.
        ConfigError: topology.toml cannot be read.
    """
    files = RunFiles(folder)
    if not files.summary:
        why = files.problem or "no run has ended here"
        raise FileNotFoundError(f"no summary.json in {folder}: {why}")
    record = files.record()
    transcripts, unread = _read_transcripts(folder / TRANSCRIPTS)
    return replace(record, transcripts=transcripts, damaged=(*record.damaged, *unread))


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _read_summary(path: Path) -> _Summary:
    if not path.is_file():
        return {}, ()
    try:
        summary: dict[str, Any] = orjson.loads(path.read_bytes())
        # What every summary has, whoever wrote it, and what pages are made of.
        str(summary["status"]), float(summary["seconds"]["total"])
    except BROKEN as error:
        return {}, (f"{path.name} is damaged: {type(error).__name__}: {error}",)
    return summary, ()


def _read_events(path: Path) -> tuple[tuple[Evaluation, ...], list[float], tuple[str, ...]]:
    """Evaluations, when each life of the run began its work, and what cannot be read."""
    # What an evaluator says again, since it may not have been heard, counts once: the last word.
    damaged: list[str] = []
    found: dict[int, Evaluation] = {}
    begun: list[float] = []
    for event in read_lines(path, damaged):
        if event.get("kind") == BEGUN and isinstance(event.get("time"), int | float):
            begun.append(float(event["time"]))
        if event.get("kind") != EVALUATION:
            continue
        try:
            each = convert(event.get("values"), Evaluation)
        except ValidationError as error:
            damaged.append(f"{path.name}, an evaluation is damaged and left out: {error}")
            continue
        found[each.version] = each
    return tuple(found.values()), begun, tuple(damaged)


def _read_transcripts(path: Path) -> tuple[tuple[Transcript, ...], tuple[str, ...]]:
    decoder = Decoder(Transcript)
    damaged: list[str] = []
    found: list[Transcript] = []
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(decoder.decode(line))
        except (MsgspecError, UnicodeDecodeError) as error:
            damaged.append(damage(path.name, number, error))
    return tuple(found), tuple(damaged)
