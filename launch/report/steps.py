"""metrics.jsonl, read as it grows: each look reads only what was added since the last one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from msgspec import Struct
from msgspec.structs import replace

BROKEN: Final = (ValueError, KeyError, TypeError, AttributeError)
"""What a line that bits rotted in raises when it is read."""
TAIL_BYTES: Final = 1 << 16
"""Enough for the last few objects of any run."""


class Step(Struct, frozen=True, kw_only=True):
    """Metrics of one step from all their sources."""

    done: int
    """Batches trained, this one included; 0 is before the first."""
    wall_s: float
    """Seconds since training could begin: since the evaluation before it, else the first step.

    In a `StepsFile` those are of the clock; `at_work` takes out what lies between two lives.
    """
    metrics: dict[str, float]


class StepsFile:
    """One metrics.jsonl.

    Args:
        path: need not exist yet.
        names: metrics that are kept in memory; None for all of them.
    """

    def __init__(self, path: Path, names: Collection[str] | None = None) -> None:
        self._path = path
        self._names = None if names is None else frozenset(names)
        self._forget()

    def _forget(self) -> None:
        self._steps: list[Step] = []
        self._places: dict[int, tuple[int, int]] = {}
        self._start_s: float | None = None
        self._end = 0
        self._file = 0
        self._num_lines = 0
        self.damaged: list[str] = []
        """Lines that cannot be read, with the reason; their steps are missing."""

    def read(self) -> list[Step]:
        """Every step so far, in the order of the file.

        A resumed run takes steps out again, by a new file: that one is read from its beginning. A
        last line that is not whole yet is left for the next look.
        """
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._forget()
            return []
        if found.st_ino != self._file or found.st_size < self._end:
            self._forget()
            self._file = found.st_ino
        if found.st_size > self._end:
            with self._path.open("rb") as file:
                file.seek(self._end)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._take(line)
        return self._steps

    @property
    def start_s(self) -> float:
        """Unix time from which the seconds of its steps count; 0 without one."""
        return self._start_s or 0.0

    def whole(self, done: int) -> dict[str, float]:
        """Every metric of one step, as the last `read` found it; empty without such a step."""
        place = self._places.get(done)
        if place is None:
            return {}
        with self._path.open("rb") as file:
            file.seek(place[0])
            return metrics_of(orjson.loads(file.read(place[1])))

    def _take(self, line: bytes) -> None:
        start, self._end = self._end, self._end + len(line)
        self._num_lines += 1
        if not line.strip():
            return
        try:
            fields = orjson.loads(line)
            start_s = float(fields["time"]) if self._start_s is None else self._start_s
            step = _step(fields, start_s, self._names)
        except BROKEN as error:
            self.damaged.append(damage(self._path.name, self._num_lines, error))
            return
        self._start_s = start_s
        self._steps.append(step)
        self._places[step.done] = start, len(line)


def at_work(steps: Sequence[Step], begun: Iterable[float]) -> Sequence[Step]:
    """The steps, without the time in which the run stood still: it was stopped, and resumed later.

    Args:
        steps: in order.
        begun: when each of its lives began to work, in the seconds of the steps.
    """
    if not steps:
        return steps
    lives = sorted(when for when in begun if steps[0].wall_s < when <= steps[-1].wall_s)
    if not lives:
        return steps
    found: list[Step] = []
    still_s, at, last_s = 0.0, 0, steps[0].wall_s
    for step in steps:
        # Of lives between two steps only the last one made a step that is still there.
        while at < len(lives) and lives[at] <= step.wall_s:
            if lives[at] > last_s:
                still_s += lives[at] - last_s
                last_s = lives[at]
            at += 1
        last_s = step.wall_s
        found.append(replace(step, wall_s=step.wall_s - still_s) if still_s else step)
    return found


def damage(name: str, line: int, error: Exception) -> str:
    """What is said of a line that cannot be read."""
    return f"{name}, line {line} is damaged and left out: {type(error).__name__}: {error}"


def read_lines(path: Path, damaged: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Objects of a JSONL file; a last line that a killed run left half written is skipped.

    Args:
        path: of the file; it may be missing.
        damaged: gets a line for each one that cannot be read.
    """
    if path.is_file():
        yield from _objects(path.read_bytes(), path.name, damaged)


def last_lines(path: Path) -> list[dict[str, Any]]:
    """The last objects of a JSONL file, however long it is; empty when there are none."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        size = file.seek(0, 2)
        start = max(0, size - TAIL_BYTES)
        file.seek(start)
        tail = file.read(TAIL_BYTES)
    whole = tail if start == 0 else tail.partition(b"\n")[2]
    return list(_objects(whole, path.name, None))


def _objects(text: bytes, name: str, damaged: list[str] | None) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        if not line.strip():
            continue
        try:
            found = orjson.loads(line)
            if not isinstance(found, dict):
                raise TypeError(f"{type(found).__name__} is no object")
        except BROKEN as error:
            if damaged is not None:
                damaged.append(damage(name, number, error))
            continue
        yield found


def metrics_of(line: dict[str, Any]) -> dict[str, float]:
    """The metrics in one object that have a value."""
    return {name: float(value) for name, value in line.items() if _is_metric(name, value)}


def _step(line: dict[str, Any], start_s: float, names: frozenset[str] | None) -> Step:
    metrics = metrics_of(line if names is None else {n: line[n] for n in names if n in line})
    return Step(done=int(line["step"]), wall_s=float(line["time"]) - start_s, metrics=metrics)


def _is_metric(name: str, value: object) -> bool:
    return "/" in name and isinstance(value, int | float) and not isinstance(value, bool)
