"""The runs of a folder: which there are, how each of them stands, and its files, kept open."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson
from msgspec import Struct

from milepost.actors.archive.index import discard
from milepost.actors.archive.reader import Archive, NoArchive
from milepost.configs.problem import ConfigError
from milepost.launch.display.progress import LOSS, QUEUE, REWARD, STALENESS, TOKENS
from milepost.launch.reading import AGE_MAX, AGE_MEAN, STALE, WAIT
from milepost.launch.report.record import RunFiles
from milepost.launch.report.steps import last_lines
from milepost.supervisor.cleanup.registry import read_registry

OPEN_MAX: Final = 8
"""Runs whose files are kept open and in memory."""
LISTED_MAX: Final = 512
"""Runs whose topology and summary are kept in memory for the list."""
TOPOLOGY: Final = "topology.toml"


class NoSuchRun(LookupError):
    """No folder of that name holds a run."""


class RunLine(Struct, frozen=True, kw_only=True):
    """One run in a list."""

    name: str
    """Of its folder."""
    title: str
    state: str
    """`running`, how it ended, or `killed` when nobody could say."""
    step: int
    steps: int
    reward: float | None
    success: float | None
    started_s: float | None
    """Unix time."""
    took_s: float | None
    """Of its last life."""
    resumed_from: int
    """Step from which that one went on; 0 when it is the only one."""
    problem: str
    """Why its files cannot be read; empty when they can."""


class OpenRun:
    """One run's files and archive.

    Args:
        folder: of the run.
        open_archive: how its archive is opened.
    """

    def __init__(self, folder: Path, open_archive: Callable[[Path], Archive]) -> None:
        self.folder, self.name = folder, folder.name
        self.made_of = _stamp(folder)
        """Which topology it was opened with."""
        self.files = RunFiles(folder, _kept(folder))
        self._open_archive = open_archive
        self._archive: Archive | None = None
        self._told: dict[str, Any] = {}

    @property
    def archive(self) -> Archive | None:
        """Its trajectories; None as long as none were kept.

        At the end of each life of a run it is opened once more: what had no place in its index
        then, has now. So it is when its files are others, since the run was made anew.
        """
        # It is another object whenever the file is another one.
        summary = self.files.summary
        has_ended = bool(summary) and summary is not self._told
        if self._archive is not None and (has_ended or not self._archive.is_in_place):
            self.close()
        if self._archive is None:
            with contextlib.suppress(NoArchive):
                self._archive = self._open_archive(self.folder)
        self._told = summary
        return self._archive

    def close(self) -> None:
        """Close its archive."""
        if self._archive is not None:
            self._archive.close()
            self._archive = None


class Runs:
    """The runs of one folder, or the one run that it is.

    Args:
        folder: a run's, or one with runs in it.
        open_archive: how the archive of a run is opened.
    """

    def __init__(
        self, folder: Path, open_archive: Callable[[Path], Archive] = Archive.open
    ) -> None:
        self.folder = folder.resolve()
        self.is_one = (self.folder / TOPOLOGY).is_file()
        self._open_archive = open_archive
        self._open: OrderedDict[str, OpenRun] = OrderedDict()
        self._listed: OrderedDict[str, RunFiles] = OrderedDict()

    def names(self) -> list[str]:
        """Of the folders that hold a run, the one that began last first."""
        if self.is_one:
            return [self.folder.name]
        found: list[tuple[int, str]] = []
        for path in self._folders():
            # One that is removed while we look is none.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found.append(((path / TOPOLOGY).stat().st_mtime_ns, path.name))
        return [name for _, name in sorted(found, reverse=True)]

    def _folders(self) -> list[Path]:
        try:
            return list(self.folder.iterdir())
        except FileNotFoundError:  # it was removed, with all that was in it
            return []

    def is_there(self, name: str) -> bool:
        """Whether its folder holds a run now."""
        return name in self.names()

    def open(self, name: str) -> OpenRun:
        """The run of this name, which is compared with those that there are, never walked to.

        Raises:
            NoSuchRun: see there.
        """
        if name not in self.names():
            raise NoSuchRun(f"no run {name!r} in {self.folder}")
        found = self._open.get(name)
        if found is not None and found.made_of != _stamp(found.folder):
            # Another run lies there, or this one goes on with other settings.
            self._open.pop(name).close()
        if name not in self._open:
            self._open[name] = OpenRun(self._path(name), self._open_archive)
            if len(self._open) > OPEN_MAX:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(name)
        return self._open[name]

    def discard_index(self, name: str) -> None:
        """Remove the broken index of a run; it is made again when the run is opened next.

        Raises:
            IndexLocked: the run goes on, and keeps it.
            OSError: the folder cannot be written.
        """
        if name in self._open:
            self._open[name].close()
        discard(self._path(name))

    def line(self, name: str) -> RunLine:
        """One run in short: its last metrics are read, never all of them."""
        folder = self._path(name)
        files = self._listed.setdefault(name, RunFiles(folder, ()))
        self._listed.move_to_end(name)
        if len(self._listed) > LISTED_MAX:
            self._listed.popitem(last=False)
        try:
            return self._line(name, folder, files)
        except (ConfigError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            # What somebody else wrote there must not hide the other runs.
            return _unread(name, str(error))

    def _line(self, name: str, folder: Path, files: RunFiles) -> RunLine:
        topology, summary = files.topology, files.summary
        last = _last_metrics(folder / "metrics.jsonl")
        success = topology.data.success_metric if topology.data else "solved"
        return RunLine(
            name=name,
            title=topology.run.name,
            state="unreadable" if files.problem else state_of(folder, summary),
            step=int(last.get("step", 0)),
            steps=topology.run.steps,
            reward=None if topology.algorithm.estimator == "sft" else last.get(REWARD),
            success=last.get(f"rollout/{success}"),
            started_s=_started(folder),
            took_s=summary.get("seconds", {}).get("total"),
            resumed_from=int(summary.get("resumed_from") or 0),
            problem=files.problem,
        )

    def close(self) -> None:
        """Close all archives."""
        for run in self._open.values():
            run.close()
        self._open.clear()

    def _path(self, name: str) -> Path:
        return self.folder if self.is_one else self.folder / name


def state_of(folder: Path, summary: dict[str, Any]) -> str:
    """`running`, the status of its summary, or `killed` when there is neither.

    `unreadable` when that cannot be known.
    """
    if summary:
        return str(summary["status"])
    try:
        return "running" if read_registry(folder).in_use else "killed"
    except FileNotFoundError:
        return "killed"
    except ValueError:
        return "unreadable"


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Another one when somebody wrote another topology."""
    try:
        found = (folder / TOPOLOGY).stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _unread(name: str, problem: str) -> RunLine:
    return RunLine(
        name=name,
        title=name,
        state="unreadable",
        step=0,
        steps=0,
        reward=None,
        success=None,
        started_s=None,
        took_s=None,
        resumed_from=0,
        problem=problem,
    )


def _last_metrics(path: Path) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for line in last_lines(path):
        merged |= {name: value for name, value in line.items() if value is not None}
    return merged


def _started(folder: Path) -> float | None:
    path = folder / "versions.json"
    if not path.is_file():
        return None
    started: float | None = orjson.loads(path.read_bytes()).get("started_at")
    return started


def _kept(folder: Path) -> set[str]:
    """Metrics that curves, tables and the reading of the flow are made of."""
    try:
        data = RunFiles(folder).topology.data
    except ConfigError:
        data = None
    success = f"rollout/{data.success_metric if data else 'solved'}"
    flow = (WAIT, QUEUE, AGE_MEAN, AGE_MAX, STALE)
    return {success, REWARD, TOKENS, *LOSS, *STALENESS, *flow}
