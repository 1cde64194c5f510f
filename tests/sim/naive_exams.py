"""Evaluators with one well-known mistake each: food for the canaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from milepost.actors.effects import Core, Effect, Reply, Request, WorkDone
from milepost.actors.evaluator.book import Book
from milepost.actors.evaluator.checkpoints import Checkpoints
from milepost.actors.evaluator.core import Evaluator
from milepost.actors.evaluator.records import Outcome, Past
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


def forgets_what_was_begun(past: Past) -> Past:
    """The trainer offers its newest checkpoint again: as if that were all there was."""
    return Past(outcomes=past.outcomes, unheard=past.unheard, began=past.began)


def forgets_what_was_told(past: Past) -> Past:
    """Only what was begun is known: what has its score looks as if it had none."""
    return Past(due=past.due, began=past.began)


class TellsBeforeItWrites(Book):
    """The supervisor hears of a score at once, the journal later or never."""

    def settle(self, outcome: Outcome, then: Sequence[Effect] = ()) -> list[Effect]:
        return [*self._tell(outcome), self._write(outcome, then)]


def examining(
    kind: type[Checkpoints], settings: EvaluatorSettings, prompts: Sequence[Prompt], past: Past
) -> Core:
    """An evaluator with these checkpoints, where a class of the user's measures them."""
    evaluator = Evaluator(settings, prompts, past)
    if evaluator.checkpoints is not None:
        results = evaluator.results
        evaluator.checkpoints = kind(settings, evaluator.book, results.debt, results.scores)
    return evaluator


def remembering(
    kind: Callable[[Past], Past],
    settings: EvaluatorSettings,
    prompts: Sequence[Prompt],
    past: Past,
) -> Core:
    """An evaluator that makes less of the journal than it says."""
    return Evaluator(settings, prompts, kind(past))


def telling(settings: EvaluatorSettings, prompts: Sequence[Prompt], past: Past) -> Core:
    """An evaluator with the hasty book."""
    evaluator = Evaluator(settings, prompts, past)
    book = TellsBeforeItWrites(settings.success_metric, past)
    evaluator.book = evaluator.results.book = book
    if evaluator.checkpoints is not None:
        evaluator.checkpoints.book = book
    return evaluator
