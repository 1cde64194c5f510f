"""What came of every version that was due: its score, or why it has none.

EV-4 and EV-5 are kept here; how a version is measured is the round's business.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from milepost.actors.effects import Effect
from milepost.actors.evaluator.book import Book
from milepost.actors.evaluator.owed import Debt
from milepost.actors.evaluator.records import Outcome
from milepost.actors.evaluator.round import Round
from milepost.actors.evaluator.schedule import FAILED, NOBODY, Schedule
from milepost.actors.evaluator.scores import no_score, score
from milepost.actors.evaluator.settings import EvaluatorSettings
from milepost.actors.evaluator.words import event
from milepost.messages.evaluator import Evaluation
from milepost.messages.supervisor import WorkFinished


@dataclass(slots=True)
class Results:
    """See the module.

    Attributes:
        scores: one for each version that has one.
        failed: version -> why a mode of its evaluation has no score.
        debt: the score of the last version.
    """

    settings: EvaluatorSettings
    schedule: Schedule
    book: Book
    scores: list[Evaluation] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    debt: Debt = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is owed yet; former lives have said what they have said."""
        self.debt = Debt(self.settings.deadline_s)
        for version, outcome in sorted(self.book.past.outcomes.items()):
            if outcome.score is not None:
                self.scores.append(outcome.score)
                if outcome.why:
                    self.failed[version] = outcome.why

    def of(self, version: int) -> Evaluation | None:
        """The score of this version, if it has one."""
        return next((each for each in self.scores if each.version == version), None)

    def _is_whole(self, version: int) -> bool:
        """Whether every mode of it has a score."""
        scored = self.of(version)
        known = {"sampled": scored.sampled, "greedy": scored.greedy} if scored else {}
        return all(known.get(mode) is not None for mode in self.settings.modes)

    def skipped(self, version: int, reason: str, why: str, now_s: float) -> list[Effect]:
        """A version that was due was not measured."""
        if self._is_whole(version) or not self.schedule.is_owed(version):
            return self.book.settle(Outcome(version=version, reason=reason, why=why))
        heals = reason != NOBODY  # that one was waited for as long as an evaluation may take
        return self._missed(version, reason, why, now_s, measured=False, heals=heals)

    def _missed(
        self, version: int, reason: str, why: str, now_s: float, *, measured: bool, heals: bool
    ) -> list[Effect]:
        """The last version has no score yet, or not a whole one."""
        effects = self.debt.missed(version, reason, why, now_s, measured=measured, heals=heals)
        if self.debt.is_waiting:
            return effects
        return [*effects, *self.book.settle(Outcome(version=version, reason=reason, why=why))]

    def measured(self, ended: Round, now_s: float) -> list[Effect]:
        """A round is over. Of the last version, measured again, modes add up."""
        version, success = ended.version, self.settings.success_metric
        scores = {mode: score(tally, success) for mode, tally in ended.tallies.items()}
        before = self.of(version)
        sampled = scores.get("sampled") or (before.sampled if before else None)
        greedy = scores.get("greedy") or (before.greedy if before else None)
        known = {"sampled": sampled, "greedy": greedy}
        unscored = [
            no_score(version, mode, tally)
            for mode, tally in ended.tallies.items()
            if known[mode] is None
        ]
        effects: list[Effect] = []
        if any(scores.values()):
            measured = Evaluation(
                version=version,
                seconds=now_s - ended.started_s,
                delay_s=self.schedule.delay_s(version, now_s),
                lag_steps=self.schedule.lag(version),
                sampled=sampled,
                greedy=greedy,
            )
            self.scores[:] = [each for each in self.scores if each.version != version]
            self.scores.append(measured)
            outcome = Outcome(version=version, score=measured, why="; ".join(unscored))
            effects += self.book.settle(outcome)
        return effects + self._judge(version, unscored, now_s)

    def _judge(self, version: int, unscored: list[str], now_s: float) -> list[Effect]:
        self.failed.pop(version, None)
        is_owed = self.schedule.is_owed(version)
        if not unscored:
            if is_owed:
                self.debt.paid()
            return []
        why = "; ".join(unscored)
        effects: list[Effect] = [event("evaluation_failed", said) for said in unscored]
        if is_owed:
            return effects + self._missed(version, FAILED, why, now_s, measured=True, heals=True)
        self.failed[version] = why
        if self.of(version):
            return effects
        return effects + self.book.settle(Outcome(version=version, reason=FAILED, why=why))

    def finished(self, name: str) -> WorkFinished:
        """The last word: every score, and what is missing."""
        problem = self.debt.problem
        summary = {
            "evaluations": [msgspec.to_builtins(each) for each in self.scores],
            "failed": [*self.failed.values(), *filter(None, [problem])],
        }
        return WorkFinished(actor=name, summary=summary, problem=problem)
