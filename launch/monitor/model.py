"""What is known of a run: a pure merge of everything a monitor is told.

No terminal, no clock, no file: times come with the updates. Whatever arrives twice, late or not at
all, the picture is that of what is known; all of it is bounded, however long the run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, assert_never

from msgspec import Struct, ValidationError

from milepost.launch.accounts import Account, account_of
from milepost.launch.display.progress import QUIET, REWARD, Progress, scores
from milepost.launch.monitor.actors import ActorRow, rows_of, rows_of_ended
from milepost.launch.monitor.contracts import ANY_VERSION, S_OLD_MAX, Lamp, Refusals, lamps
from milepost.launch.monitor.curves import Curve
from milepost.launch.monitor.trajectories import Trajectories
from milepost.launch.monitor.updates import (
    About,
    Attached,
    Copied,
    Ended,
    Heard,
    Logged,
    Recorded,
    Silent,
    Update,
)
from milepost.launch.queues import Queue, Since
from milepost.supervisor.cleanup.unfinished import BEGUN, EVALUATION

EVENTS_MAX: Final = 500
VERSIONS_MAX: Final = 512
"""Changes of version kept for each engine, and of what was published."""
ENGINES_MAX: Final = 256
ENGINES: Final = frozenset({"engine", "evaluation_engine"})
DEPTHS_MAX: Final = 240
"""Depths kept of each queue: one a second."""
QUEUES_MAX: Final = 1024
LIVES_MAX: Final = 64
CURVES: Final = (
    "success",
    "reward",
    "rollout",
    "trainer",
    "loss",
    "entropy",
    "staleness",
    "difference",
)
PUBLISHED: Final = "perf/update_weights_time"
SAMPLED: Final = "perf/tokens_per_gpu_per_sec"
TRAINED_TOKENS: Final = "train/loss_tokens"
STEP_TIME: Final = "perf/step_time"
VERSION: Final = "train/version"


class Event(Struct, frozen=True, kw_only=True):
    """One line of events.jsonl."""

    number: int
    """Counted from 1."""
    wall_s: float
    source: str
    kind: str
    text: str
    values: dict[str, Any]


class Model:
    """The run as far as it was told.

    Args:
        about: what its topology says.
    """

    def __init__(self, about: About) -> None:
        self.about = about
        self.trajectories = Trajectories()
        self.log: Logged | None = None
        self.run: dict[str, Any] = {}
        self.actors: tuple[ActorRow, ...] = ()
        self.queues: tuple[Queue, ...] = ()
        self.depths: dict[str, deque[float]] = {}
        self.account: Account | None = None
        self.silent = ""
        """Why nothing is heard now; empty while snapshots come."""
        self.summary: dict[str, Any] | None = None
        """How the run ended; None while it goes on."""
        self.run_id = ""
        self.wall_s = 0.0
        self.clock_s = 0.0
        self.served: dict[str, deque[tuple[float, int]]] = {}
        self.buffer: dict[str, Any] = {}
        self._snapshot_metrics: dict[str, float] = {}
        self._since = Since()
        self._forget_records()

    def _forget_records(self) -> None:
        about = self.about
        self.progress = Progress(
            about.name,
            about.steps,
            about.success.removeprefix("rollout/"),
            supervised=about.supervised,
            sync=about.sync,
        )
        self.curves = {name: Curve() for name in CURVES}
        self.events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._num_events = 0
        self._last_step = 0
        self._begun: deque[float] = deque(maxlen=LIVES_MAX)
        """When lives of the run began of which no step was told yet."""
        self.refusals = Refusals()
        self.published: deque[tuple[float, int]] = deque(maxlen=VERSIONS_MAX)
        self.recorded: dict[str, float] = {}

    # ---- what it is told -----------------------------------------------------------------

    def take(self, update: Update) -> None:
        """Merge one update."""
        match update:
            case Attached(run_id=run_id):
                self._attached(run_id)
            case Heard():
                self._heard(update)
            case Recorded(steps=steps, events=events, anew=anew):
                if anew:
                    self._forget_records()
                self._events(events)
                self._steps(steps)
            case Silent(reason=reason):
                self.silent = reason
            case Ended(summary=summary):
                self._ended(summary)
            case Copied(seen=seen, dropped=dropped):
                self.trajectories.take_copies(seen, dropped)
            case Logged():
                self.log = update
            case _ as unreachable:
                assert_never(unreachable)

    def _attached(self, run_id: str) -> None:
        if self.run_id and run_id != self.run_id:
            # Resumed: other processes under the same names, and their counters begin again. The
            # records do not: the feed tells them anew.
            self.served.clear()
            self.depths.clear()
            self._since = Since()
            self._snapshot_metrics = {}
        self.run_id, self.silent, self.summary = run_id, "", None

    def _heard(self, update: Heard) -> None:
        snapshot = update.snapshot
        self.silent = ""
        self.wall_s, self.clock_s = update.wall_s, update.clock_s
        self.run = snapshot.run
        self.actors = tuple(rows_of(snapshot))
        self.queues = tuple(self._since.queues(snapshot))
        self._snapshot_metrics = snapshot.last_metrics
        self.progress.take_snapshot(snapshot)
        statistics = {row.name: row.statistics for row in self.actors}
        self.account = account_of(statistics) or self.account
        self.buffer = statistics.get("buffer", {})
        self.trajectories.take_snapshot(statistics.get("rollout", {}))
        self._note_versions()
        self._note_depths()

    def _note_versions(self) -> None:
        for row in self.actors:
            version = row.statistics.get("version")
            if row.kind not in ENGINES or not isinstance(version, int) or version < 0:
                continue
            if row.name not in self.served and len(self.served) >= ENGINES_MAX:
                continue
            changes = self.served.setdefault(row.name, deque(maxlen=VERSIONS_MAX))
            if not changes or changes[-1][1] != version:
                changes.append((self.wall_s - (row.heard_s or 0.0), version))

    def _note_depths(self) -> None:
        for queue in self.queues:
            if queue.name in self.depths or len(self.depths) < QUEUES_MAX:
                depths = self.depths.setdefault(queue.name, deque(maxlen=DEPTHS_MAX))
                depths.append(float(queue.depth))

    def _steps(self, steps: Iterable[Mapping[str, Any]]) -> None:
        for row in steps:
            step, wall_s = int(_number(row, "step")), _number(row, "time")
            metrics = {name: float(value) for name, value in row.items() if _is_metric(name, value)}
            self.recorded.update(metrics)
            self._last_step = max(self._last_step, step)
            if PUBLISHED in metrics and (not self.published or step > self.published[-1][1]):
                self.published.append((wall_s, step))
            if metrics.get(VERSION) == step and step > 0:
                while self._begun and self._begun[0] <= wall_s:
                    self._begun.popleft()
                    self.progress.begin_life()
                self.progress.take_step(metrics, wall_s)
                self._curves(step, metrics)

    def _curves(self, step: int, metrics: Mapping[str, float]) -> None:
        seconds, tokens = metrics.get(STEP_TIME, 0.0), metrics.get(TRAINED_TOKENS)
        sampled = metrics.get(SAMPLED)
        values = {
            "success": metrics.get(self.about.success),
            "reward": None if self.about.supervised else metrics.get(REWARD),
            "loss": metrics.get("train/nll", metrics.get("train/loss")),
            "entropy": metrics.get("train/entropy"),
            "staleness": metrics.get(S_OLD_MAX),
            "difference": metrics.get(ANY_VERSION),
            "trainer": tokens / seconds if tokens is not None and seconds > 0 else None,
            "rollout": None if sampled is None else sampled * max(1, self.about.engines),
        }
        for name, value in values.items():
            if value is not None:
                self.curves[name].add(step, value)

    def _events(self, events: Iterable[Mapping[str, Any]]) -> None:
        for event in events:
            self.refusals.note(event)
            values = event.get("values")
            kind = str(event.get("kind", ""))
            if kind == BEGUN:
                self._begun.append(_number(event, "time"))
            if kind in QUIET:
                continue
            self._num_events += 1
            values = values if isinstance(values, dict) else {}
            text = str(event.get("text", ""))
            self.events.append(
                Event(
                    number=self._num_events,
                    wall_s=_number(event, "time"),
                    source=str(event.get("source", "")),
                    kind=kind,
                    text=_scores(values, text) if kind == EVALUATION else text,
                    values=values,
                )
            )

    def _ended(self, summary: dict[str, Any]) -> None:
        self.summary, self.silent = summary, ""
        self.wall_s = _number(summary, "ended_at") or self.wall_s
        told = summary.get("statistics")
        if isinstance(told, dict):
            statistics = {name: each for name, each in told.items() if isinstance(each, dict)}
            self.account = account_of(statistics) or self.account
            self.buffer = statistics.get("buffer", {}) or self.buffer
            self.actors = tuple(rows_of_ended(statistics, self.actors))
            self._note_versions()

    # ---- what it knows -------------------------------------------------------------------

    @property
    def is_known(self) -> bool:
        """Whether anything of the run itself was heard yet."""
        return bool(self.run) or self.summary is not None

    @property
    def metrics(self) -> dict[str, float]:
        """Latest value of each metric."""
        return {**self.recorded, **self._snapshot_metrics}

    @property
    def step(self) -> int:
        """Batches trained."""
        latest = self.metrics.get(VERSION, 0.0)
        trained = int(latest) if math.isfinite(latest) else 0
        # The object of a step, and the supervisor, name it in a run without a trainer, too.
        return max(self._last_step, trained, int(self.run.get("step", 0)))

    @property
    def phase(self) -> str:
        """`running`, `silent`, or how the run ended."""
        if self.summary is not None:
            return str(self.summary.get("status", "ended"))
        if self.silent:
            return "silent"
        return str(self.run.get("phase", "attaching"))

    @property
    def elapsed_s(self) -> float:
        """Since the run began."""
        if self.summary is not None:
            return float(self.summary.get("seconds", {}).get("total", 0.0))
        return float(self.run.get("elapsed_s", 0.0))

    @property
    def ending(self) -> str:
        """How the run ended, in a sentence; empty while it goes on."""
        if self.summary is None:
            return ""
        status = str(self.summary.get("status", "ended"))
        cause = self.summary.get("cause") or {}
        done = f"after {self.summary.get('steps_done', self.step)} steps"
        if not cause:
            return f"the run has ended: {status} {done}"
        first = f"{cause.get('actor', '')}: {cause.get('text', '')}"
        return f"the run has ended: {status} {done}; {first}"

    @property
    def lamps(self) -> tuple[Lamp, ...]:
        """The four contracts."""
        summary = self.summary or {}
        cause = str((summary.get("cause") or {}).get("text", ""))
        guarded = summary.get("status") == "guard" and "log-prob" in cause
        return lamps(
            self.about,
            self.metrics,
            self.refusals,
            step=self.step,
            groups_trained=self._groups_trained(),
            guard=cause if guarded else "",
        )

    def _groups_trained(self) -> int:
        leader = self.actor("trainer-0")
        return int(leader.statistics.get("groups_trained", 0)) if leader else 0

    def actor(self, name: str) -> ActorRow | None:
        """The actor of this name."""
        return next((row for row in self.actors if row.name == name), None)

    def queue(self, name: str) -> Queue | None:
        """The queue of this name."""
        return next((queue for queue in self.queues if queue.name == name), None)


def _number(row: Mapping[str, Any], name: str) -> float:
    """A number of a line of a file, which may have been damaged; 0 where it is none."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if math.isfinite(value) else 0.0


def _scores(values: dict[str, Any], text: str) -> str:
    """An evaluation in a few words; as the event says it where it is of another shape."""
    try:
        return scores(values)
    except ValidationError:
        return text


def _is_metric(name: str, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return "/" in name and math.isfinite(value)
