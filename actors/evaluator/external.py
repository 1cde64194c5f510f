"""What a user writes to measure checkpoints by other means: one class, one method."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


class ExternalEvaluation:
    """Base of evaluations named by `actors.evaluator.external`.

    Keyword arguments of the constructor come from `actors.evaluator.external_options`. An instance
    is made for each checkpoint, in a process of its own: it may block, start servers, use all the
    memory, or crash. At the deadline that process and all it has started are killed.
    """

    def evaluate(self, checkpoint: Path, version: int) -> Mapping[str, float]:
        """Measure one checkpoint.

        Args:
            checkpoint: a Hugging Face folder (weights, config, tokenizer); it stays as it is until
                this returns, whatever checkpoints are made meanwhile. Read it only.
            version: that it is of.

        Returns:
            Finite numbers by name, recorded as `eval/external/NAME` at the step of the version.

        Raises:
            EvaluationSkipped: there is no score of this checkpoint, and why.
        """
        raise NotImplementedError


class EvaluationSkipped(Exception):
    """Raised by `evaluate`: no score, for a reason in one lower-case word such as `unhealthy`.

    It is counted as `eval/skipped_REASON`; the text is for people.
    """

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(text or reason)
        self.reason = reason


def make_evaluation(path: str, options: dict[str, Any]) -> ExternalEvaluation:
    """An instance of the user's class.

    Raises:
        ValueError: the path names no subclass of `ExternalEvaluation`.
        TypeError: the class refuses its options.
        ImportError: the module cannot be imported.
    """
    module, colon, name = path.partition(":")
    found = getattr(import_module(module), name, None) if colon else None
    if not isinstance(found, type) or not issubclass(found, ExternalEvaluation):
        raise ValueError(
            f"evaluation {path!r} at $.actors.evaluator.external is no subclass of "
            "milepost.ExternalEvaluation; write module:Class"
        )
    return found(**options)
