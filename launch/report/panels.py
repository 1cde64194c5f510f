"""Which curves a run has: success, reward and staleness, or the loss of a supervised run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from milepost.launch.display.progress import LOSS, REWARD, STALENESS
from milepost.launch.report.charts import Mark, Panel, Series
from milepost.launch.report.record import Record

STEP, WALL = "step", "seconds of training"


def panels(record: Record) -> list[Panel]:
    """The charts, most important first; empty when no step was recorded."""
    if record.curve(REWARD) and not record.is_supervised:
        return [*_outcome(record), *_staleness(record)]
    name = next((name for name in LOSS if record.curve(name)), None)
    if name is None:
        return []
    title = "loss, nats a token" if name == LOSS[0] else "loss"
    return [
        Panel(title=title, x_name=axis, series=[_series(record, name, "loss", axis)])
        for axis in (STEP, WALL)
    ]


def _outcome(record: Record) -> Iterator[Panel]:
    solved = record.success_name
    named = [("success", solved)] if record.curve(solved) else []
    named.append(("reward", REWARD))
    unit = all(0 <= value <= 1 for _, name in named for _, _, value in record.curve(name))
    what = " and ".join(name for name, _ in named)
    for axis in (STEP, WALL):
        yield Panel(
            title=f"{what} of each batch over {'steps' if axis == STEP else 'time'}",
            x_name=axis,
            series=[_series(record, name, label, axis) for label, name in named],
            marks=_marks(record) if axis == STEP and len(named) > 1 else [],
            unit=unit,
        )


def _marks(record: Record) -> list[Mark]:
    """Held-out success before and after, at the steps that they belong to."""
    found = [("before", record.before), ("after", record.after)]
    return [
        Mark(
            name=f"held out, {when}: {evaluation.sampled.success:.2f}",
            x=float(evaluation.version),
            y=evaluation.sampled.success,
        )
        for when, evaluation in found
        if evaluation and evaluation.sampled and evaluation.sampled.success is not None
    ]


def _staleness(record: Record) -> Iterator[Panel]:
    mean, highest = STALENESS
    if record.curve(mean):
        series = [_series(record, mean, "mean", STEP), _series(record, highest, "oldest", STEP)]
        title = "staleness: versions behind, when trained"
        yield Panel(title=title, x_name=STEP, series=series)


def _series(record: Record, name: str, label: str, axis: str) -> Series:
    points: Sequence[tuple[int, float, float]] = record.curve(name)
    xs = [float(step) if axis == STEP else wall_s for step, wall_s, _ in points]
    return Series(name=label, x=xs, y=[value for _, _, value in points])
