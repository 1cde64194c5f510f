"""What the evaluator tells the supervisor: scores, their absence, transcripts to save."""

from __future__ import annotations

from typing import Any

import msgspec

from milepost.actors.effects import Tell
from milepost.actors.evaluator.scores import recorded, text
from milepost.messages.evaluator import Evaluation
from milepost.messages.supervisor import EventReported, StepRecorded


def event(kind: str, said: str, values: dict[str, Any] | None = None) -> Tell:
    """A line of events.jsonl."""
    message = EventReported(source="evaluator", kind=kind, text=said, values=values or {})
    return Tell("supervisor", message)


def score_words(measured: Evaluation, success_metric: str) -> list[Tell]:
    """A score, at the step of the version that it is of."""
    line = StepRecorded(source="evaluator", step=measured.version, metrics=recorded(measured))
    said = text(measured, success_metric)
    return [event("evaluation", said, msgspec.to_builtins(measured)), Tell("supervisor", line)]


def skip_words(version: int, reason: str, why: str = "") -> list[Tell]:
    """A version that was due gets no score, and the reason is a metric at its step."""
    metrics = {f"eval/skipped_{reason}": 1.0}
    line = StepRecorded(source="evaluator", step=version, metrics=metrics)
    said = f"version {version} is not measured ({reason})" + (f": {why}" if why else "")
    values = {"version": version, "reason": reason}
    return [event("evaluation_skipped", said, values), Tell("supervisor", line)]
