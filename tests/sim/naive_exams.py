"""Evaluators of checkpoints with one well-known mistake each: food for the canaries."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.actors.effects import Core, Effect, Reply, Request, WorkDone
from milepost.actors.evaluator.checkpoints import Checkpoints
from milepost.actors.evaluator.core import Evaluator
from milepost.actors.evaluator.settings import EvaluatorSettings
from milepost.messages.evaluator import CheckpointOffered
from milepost.messages.shared import Prompt


class NamesTheNewest(Checkpoints):
    """An exam that ends is told of the newest checkpoint, not of the one that it looked at."""

    def done(self, event: WorkDone, now_s: float) -> list[Effect]:
        if self._running is not None and event.key.startswith("measure/"):
            self._running.version = self.newest
        return super().done(event, now_s)


class NeverMakesWait(Checkpoints):
    """The trainer goes on at once, and what waited is overwritten by the next one."""

    def offered(self, message: CheckpointOffered, request: Request, now_s: float) -> list[Effect]:
        effects = super().offered(message, request, now_s)
        taken = any(isinstance(effect, Reply) for effect in effects)
        if self._running is not None:
            self._running.request = None
        return effects if taken else [self._taken(message.step, request), *effects]


def examining(
    kind: type[Checkpoints], settings: EvaluatorSettings, prompts: Sequence[Prompt]
) -> Core:
    """An evaluator with these checkpoints, where a class of the user's measures them."""
    evaluator = Evaluator(settings, prompts)
    if evaluator.checkpoints is not None:
        results = evaluator.results
        evaluator.checkpoints = kind(settings, results.debt, results.scores)
    return evaluator
