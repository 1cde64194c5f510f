"""Evaluations as users write them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from milepost.actors.evaluator.external import EvaluationSkipped, ExternalEvaluation


class Good(ExternalEvaluation):
    """Gives what it is told to."""

    def __init__(self, value: float = 1.0) -> None:
        self.value = value

    def evaluate(self, checkpoint: Path, version: int) -> Mapping[str, float]:
        del checkpoint
        return {"exam": self.value, "version": version}


class Raises(ExternalEvaluation):
    """Breaks."""

    def evaluate(self, checkpoint: Path, version: int) -> Mapping[str, float]:
        del checkpoint, version
        raise RuntimeError("no exam today")


class Skips(ExternalEvaluation):
    """Declines."""

    def evaluate(self, checkpoint: Path, version: int) -> Mapping[str, float]:
        del checkpoint, version
        raise EvaluationSkipped("No room", "no GPU is free")


class Nothing(ExternalEvaluation):
    """Measures nothing."""

    def evaluate(self, checkpoint: Path, version: int) -> Mapping[str, float]:
        del checkpoint, version
        return {}
