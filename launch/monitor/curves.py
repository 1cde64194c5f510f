"""A curve that may grow for weeks: all of the run, in a bounded number of points."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

POINTS_MAX: Final = 2048


class Curve(Struct):
    """Values of steps that only go forward; when there are too many, neighbours are averaged.

    Attributes:
        points: means of `stride` values each, oldest first.
        stride: values behind each point.
        step: the last one that was taken.
    """

    points: list[float] = []
    stride: int = 1
    step: int = -1
    last: float | None = None
    _sum: float = 0.0
    _num: int = 0

    def add(self, step: int, value: float) -> None:
        """Take the value of a step; one that was taken already changes nothing."""
        if step <= self.step:
            return
        self.step, self.last = step, value
        self._sum += value
        self._num += 1
        if self._num < self.stride:
            return
        self.points.append(self._sum / self._num)
        self._sum, self._num = 0.0, 0
        if len(self.points) >= POINTS_MAX:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [(first + second) / 2 for first, second in pairs]
            self.stride *= 2

    @property
    def values(self) -> list[float]:
        """All points, the one that still grows included."""
        return [*self.points, self._sum / self._num] if self._num else self.points
