"""Checkpoints measured by the user's own class: one at a time, off the loop, none unnoticed.

The trainer offers every checkpoint and trains on when it was taken. One that is not due is taken
at once. One that is due is kept (its files are linked, so the trainer may remove its own) and
measured. While an older one is still being measured, the policy decides: `skip` takes the new one
without a score, `backpressure` lets the trainer wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.actors.effects import Effect, Reply, Request, WorkDone
from milepost.actors.evaluator.external_worker import CRASHED, Measured
from milepost.actors.evaluator.owed import Debt
from milepost.actors.evaluator.schedule import OVERFLOW
from milepost.actors.evaluator.settings import EvaluatorSettings
from milepost.actors.evaluator.words import score_words, skip_words
from milepost.actors.evaluator.works import KeepCheckpoint, MeasureCheckpoint
from milepost.messages.evaluator import CheckpointOffered, CheckpointTaken, Evaluation

MISSING = "checkpoint_missing"


@dataclass(frozen=True, slots=True)
class _Offer:
    message: CheckpointOffered
    request: Request
    since_s: float


@dataclass(slots=True)
class _Running:
    version: int
    offered_s: float
    folder: str
    """Of the checkpoint, or the starting one's own."""
    request: Request | None = None
    """Of the trainer, who waits until the checkpoint is kept."""
    is_taken: bool = False
    """The trainer was told, or would be: its files need not stay."""
    began_s: float | None = None
    """None while its files are being linked."""


@dataclass(slots=True)
class Checkpoints:
    """See the module."""

    settings: EvaluatorSettings
    debt: Debt
    scores: list[Evaluation] = field(default_factory=list)
    is_last: bool = False
    """The last checkpoint was offered."""
    newest: int = 0
    _due_before: int = 0
    """Version of the last checkpoint that was looked at."""
    _running: _Running | None = None
    _waiting: _Offer | None = None

    def __post_init__(self) -> None:
        """Checkpoints before the one that the run went on from had their turn."""
        self._due_before = self.newest = self.settings.resumed_version

    @property
    def is_over(self) -> bool:
        """No further checkpoint will come, and none is being measured."""
        return self.is_last and self._running is None and self._waiting is None

    def start(self, now_s: float) -> list[Effect]:
        """The starting checkpoint is version 0, and nobody removes it."""
        settings = self.settings
        if not settings.at_start or settings.resumed_version:
            return []
        self._running = _Running(
            0, now_s, settings.starting_checkpoint, is_taken=True, began_s=now_s
        )
        return [self._measure(0, settings.starting_checkpoint, is_kept=False)]

    def offered(self, message: CheckpointOffered, request: Request, now_s: float) -> list[Effect]:
        """The trainer has saved a checkpoint."""
        offer = _Offer(message, request, now_s)
        self.newest = max(self.newest, message.step)
        self.is_last = self.is_last or message.final
        if self._running is not None and self._running.version == message.step:
            # Offered again: the answer was lost, or it turned out to be the last one.
            if self._running.is_taken:
                return [self._taken(message.step, request)]
            self._running.request = request
            return []
        waiting = self._waiting
        if waiting is not None and waiting.message.step == message.step:
            # Asked again: due it was found the first time, and only the newest request has a reply.
            self._waiting = _Offer(message, request, waiting.since_s)
            return []
        if not self._is_due(message):
            return [self._taken(message.step, request)]
        if self._running is None:
            return self._begin(offer)
        if self.settings.overflow == "skip" and not message.final:
            skipped = skip_words(message.step, OVERFLOW, str(self))
            return [*skipped, self._taken(message.step, request)]
        # The trainer waits, so there is no second one.
        self._waiting = offer
        return []

    def _is_due(self, message: CheckpointOffered) -> bool:
        step, every, before = message.step, self.settings.every_versions, self._due_before
        if step in [each.version for each in self.scores]:
            return False
        if message.final and self.settings.at_end:
            return True
        self._due_before = max(before, step)
        return bool(every) and step // every > before // every

    def _begin(self, offer: _Offer) -> list[Effect]:
        message = offer.message
        self._due_before = max(self._due_before, message.step)
        self._running = _Running(message.step, offer.since_s, message.folder, offer.request)
        return [KeepCheckpoint(f"keep/{message.step}", message.step, message.folder)]

    def done(self, event: WorkDone, now_s: float) -> list[Effect]:
        """A checkpoint is kept, or measured; or was not."""
        running = self._running
        assert running is not None, event
        if event.key.startswith("keep/"):
            effects: list[Effect] = []
            if running.request is not None:
                effects.append(self._taken(running.version, running.request))
                running.request, running.is_taken = None, True
            if event.error:
                return [*effects, *self._missed(MISSING, event.error, now_s, measured=False)]
            running.began_s = now_s
            assert isinstance(event.result, str), event.result
            return [*effects, self._measure(running.version, event.result, is_kept=True)]
        if event.error:
            return self._missed(CRASHED, event.error, now_s)
        measured = event.result
        assert isinstance(measured, Measured), measured
        if measured.skipped:
            return self._missed(measured.skipped, measured.text, now_s)
        assert running.began_s is not None, "measured before it was kept"
        score = Evaluation(
            version=running.version,
            seconds=now_s - running.began_s,
            delay_s=now_s - running.offered_s,
            lag_steps=self.newest - running.version,
            external=measured.metrics,
        )
        self.scores.append(score)
        self.debt.paid()
        return self._ended(score_words(score, self.settings.success_metric))

    def _missed(
        self, reason: str, why: str, now_s: float, *, measured: bool = True
    ) -> list[Effect]:
        """No score; of the last checkpoint that is not the last word."""
        assert self._running is not None
        version = self._running.version
        if not (self.is_last and self.settings.at_end and version == self.newest):
            return self._ended(skip_words(version, reason, why))
        missed = self.debt.missed(version, reason, why, now_s, measured=measured, heals=True)
        return missed if self.debt.is_waiting else self._ended(missed)

    def measure_again(self) -> list[Effect]:
        """Another try for the last checkpoint, whose files stay: no newer one takes their place."""
        running = self._running
        assert running is not None, "no try is owed"
        running.began_s = None
        return [KeepCheckpoint(f"keep/{running.version}", running.version, running.folder)]

    def _ended(self, effects: list[Effect]) -> list[Effect]:
        self._running = None
        waiting, self._waiting = self._waiting, None
        return effects if waiting is None else [*effects, *self._begin(waiting)]

    def _measure(self, version: int, folder: str, *, is_kept: bool) -> Effect:
        key, deadline_s = f"measure/{version}", self.settings.deadline_s
        return MeasureCheckpoint(key, version, folder, deadline_s, is_kept)

    @staticmethod
    def _taken(version: int, request: Request) -> Effect:
        return Reply(request, CheckpointTaken(step=version))

    def __str__(self) -> str:
        """What is being measured."""
        if self._running is None:
            return "waits for a checkpoint to measure"
        running = self._running
        said = f"version {running.version} is being measured, offered at {running.offered_s:.1f}"
        if self._waiting is not None:
            said += f", the trainer waits with version {self._waiting.message.step}"
        return said
