"""A process that measures one checkpoint with the user's class, and ends.

Started as `python -P -m milepost.actors.evaluator.external_worker` with a `Task` as JSON on its
standard input; it writes one `Measured` as JSON to its standard output. What the user's code prints
goes to the evaluator's log.
"""

from __future__ import annotations

import math
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from milepost.actors.agent.outcome import tell_error
from milepost.actors.evaluator.external import EvaluationSkipped, make_evaluation
from milepost.actors.lifeline import tie_to_parent

CRASHED = "crashed"


class Task(Struct, frozen=True, kw_only=True):
    """What to measure, with what."""

    path: str
    """`module:Class`."""
    options: dict[str, Any]
    checkpoint: str
    version: int


class Measured(Struct, frozen=True, kw_only=True):
    """The scores, or why there are none."""

    metrics: dict[str, float] = {}
    skipped: str = ""
    """One word; empty when there are scores."""
    text: str = ""


def main() -> None:
    """Measure, say what came of it."""
    tie_to_parent()
    sink = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    with os.fdopen(sink, "wb") as answer:
        answer.write(msgspec.json.encode(measure(task)))


def measure(task: Task) -> Measured:
    """Call the user's code; whatever it does is an answer."""
    try:
        evaluation = make_evaluation(task.path, task.options)
        returned = evaluation.evaluate(Path(task.checkpoint), task.version)
        metrics = {str(name): _finite(str(name), value) for name, value in returned.items()}
    except EvaluationSkipped as skipped:
        return Measured(skipped=_word(skipped.reason), text=str(skipped))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the top of a user's code
        traceback.print_exc()
        return Measured(skipped=CRASHED, text=tell_error(error))
    if not metrics:
        return Measured(skipped="empty", text="evaluate returned no number")
    return Measured(metrics=metrics)


def _finite(name: str, value: float) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"metric {name} is {number}, which is not finite")
    return number


def _word(reason: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "_", reason.lower()).strip("_") or "unnamed"


if __name__ == "__main__":
    main()
