"""One rank's way to a batch: ask the buffer, have the door look at it, say what was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from milepost.actors.effects import (
    Answered,
    Ask,
    Effect,
    Event,
    Unanswered,
    Wake,
    Woken,
    WorkDone,
)
from milepost.actors.trainer.lineage import MadeVersions
from milepost.actors.trainer.plan import TrainerPlan
from milepost.actors.trainer.works import BatchVerdict, CheckBatch, DoorRules, ModelFacts
from milepost.messages.buffer import Batch, BatchExhausted, BatchRequested
from milepost.messages.supervisor import Refused
from milepost.messages.trainer import PartChecked

AGAIN_S: Final = 0.5
"""Before a question that found nobody is asked again."""


class IntakeFailed(RuntimeError):
    """The buffer's answer makes no sense, or the door itself failed."""


@dataclass(slots=True)
class Intake:
    """At most one batch on its way at a time.

    Attributes:
        step: of the batch asked for; -1 before the first.
        attempt: how often it was asked for after refusals.
        batch: checked, and not yet taken out by `take`.
    """

    plan: TrainerPlan
    rank: int
    model: ModelFacts
    step: int = -1
    attempt: int = 0
    batch: Batch | None = None
    since_s: float = 0.0
    state: str = "idle"
    """idle, asked, checking, ready or exhausted"""
    made: MadeVersions = field(default_factory=MadeVersions)
    _refused: frozenset[str] = frozenset()
    _questions: int = 0
    _is_lost: bool = False
    """The newest question found nobody."""

    @staticmethod
    def owns(key: str) -> bool:
        """Whether an event with this key belongs here."""
        return key.partition("/")[0] in ("batch", "batch-again", "check")

    @property
    def _key(self) -> str:
        return f"batch/{self._questions}"

    def ask_again(self) -> list[Effect]:
        """The buffer restarted: what it was asked is forgotten.

        It may have died between taking our last refusal and writing it down: what it hands out
        again is refused again.
        """
        self._refused = frozenset()
        return self._ask() if self.state == "asked" else []

    def ask(
        self, step: int, attempt: int, now_s: float, refused: frozenset[str] = frozenset()
    ) -> list[Effect]:
        """Ask for this rank's part of the batch of `step`.

        Args:
            step: batches trained before it; also the version it will be trained on.
            attempt: 0, or one more than last time.
            now_s: now.
            refused: groups of earlier attempts; an answer that holds one again is an error.
        """
        assert self.state in ("idle", "ready"), f"asks for {step} while {self.state}"
        self.step, self.attempt, self._refused = step, attempt, refused
        self.batch, self.since_s = None, now_s
        return self._ask()

    def handle(self, event: Event, now_s: float) -> tuple[list[Effect], PartChecked | None]:
        """Events whose key is of this intake, see `owns`.

        Raises:
            IntakeFailed: see there.
        """
        match event:
            case Answered() | Unanswered() if event.key != self._key:
                return [], None  # a question that was given up when the buffer restarted
            case Answered(_, source, Batch() as batch):
                return self._answered(source, batch), None
            case Answered(_, _, BatchExhausted() as exhausted):
                self.state = "exhausted"
                return [], self._part(exhausted=exhausted)
            case Answered(_, source, Refused(reason=reason)):
                raise IntakeFailed(f"{source} refused the batch of step {self.step}: {reason}")
            case Answered(_, source, message):
                raise IntakeFailed(f"{source} answered {type(message).__name__} to BatchRequested")
            case Unanswered():
                # The buffer may have restarted, or the rollouts take long: the question stands.
                self._is_lost = True
                return [Wake("batch-again", now_s + AGAIN_S)], None
            case Woken():
                # A buffer that returned meanwhile was asked at once, and may have answered.
                return self._ask() if self._is_lost else [], None
            case WorkDone(_, BatchVerdict() as verdict, ""):
                self.state = "ready"
                return [], self._part(verdict=verdict)
            case WorkDone(_, _, error):
                raise IntakeFailed(f"door failed on the batch of step {self.step}: {error}")
            case _:
                raise IntakeFailed(f"no such event here: {event}")

    def take(self) -> Batch:
        """The checked batch, to be trained now."""
        assert self.state == "ready", self.state
        assert self.batch is not None, self.step
        batch, self.batch, self.state = self.batch, None, "idle"
        return batch

    def _ask(self) -> list[Effect]:
        self.state = "asked"
        self._questions += 1
        self._is_lost = False
        request = BatchRequested(
            step=self.step, rank=self.rank, world_size=self.plan.world_size, version=self.step
        )
        return [Ask(self.plan.buffer, request, self._key, self.plan.ask_s)]

    def _answered(self, source: str, batch: Batch) -> list[Effect]:
        if batch.step != self.step:
            raise IntakeFailed(f"{source} sent step {batch.step}, asked was step {self.step}")
        back = sorted({each.group_id for each in batch.trajectories} & self._refused)
        if back:
            raise IntakeFailed(f"{source} sent groups {back} again, which the door refused")
        self.batch, self.state = batch, "checking"
        rules = DoorRules(
            sft=self.plan.sft,
            model=self.model,
            version=self.step,
            digests=dict(self.made.digests),
            keeps_caches=self.plan.keeps_caches,
            routes=self.model.routes if self.plan.replays_routes else None,
        )
        return [CheckBatch("check", batch, rules)]

    def _part(
        self, *, verdict: BatchVerdict | None = None, exhausted: BatchExhausted | None = None
    ) -> PartChecked:
        refusals = verdict.refusals if verdict else ()
        return PartChecked(
            step=self.step,
            attempt=self.attempt,
            rank=self.rank,
            group_ids=tuple(refusal.group_id for refusal in refusals),
            reasons=tuple(refusal.reason for refusal in refusals),
            oldest=verdict.oldest if verdict else {},
            exhausted=exhausted.reason if exhausted else "",
            draining=exhausted is not None and exhausted.draining,
        )
