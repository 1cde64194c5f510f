"""Checkpoints measured by the user's own class: one at a time, off the loop, none unnoticed.

The trainer offers every checkpoint and trains on when it was taken. One that is not due is taken
at once. One that is due is kept (its files are linked, so the trainer may remove its own) and
measured. While an older one is still being measured, the policy decides: `skip` takes the new one
without a score, `backpressure` lets the trainer wait.

A checkpoint that a former life had begun is measured again by the next one: what it kept is still
there, or, since the trainer waits until it is kept, the checkpoint itself is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from milepost.actors.effects import Effect, Reply, Request, WorkDone
from milepost.actors.evaluator.book import Book
from milepost.actors.evaluator.external_worker import CRASHED, Measured
from milepost.actors.evaluator.owed import Debt
from milepost.actors.evaluator.records import Due, Outcome
from milepost.actors.evaluator.schedule import OVERFLOW
from milepost.actors.evaluator.settings import EvaluatorSettings
from milepost.actors.evaluator.works import KeepCheckpoint, MeasureCheckpoint, RemoveCheckpoint
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
    is_settled: bool = False
    """It has its outcome, and its files are being removed."""


@dataclass(slots=True)
class Checkpoints:
    """See the module."""

    settings: EvaluatorSettings
    book: Book
    debt: Debt
    scores: list[Evaluation] = field(default_factory=list)
    is_last: bool = False
    """The last checkpoint was offered."""
    newest: int = 0
    _due_before: int = 0
    """Version of the last checkpoint that was looked at."""
    _running: _Running | None = None
    _left: deque[Due] = field(default_factory=deque)
    """Begun by former lives, or never offered by one."""
    _waiting: _Offer | None = None

    def __post_init__(self) -> None:
        """Checkpoints before the one that the run went on from had their turn, or are left."""
        last = self.book.past.newest or 0
        self._due_before = self.newest = max(self.settings.resumed_version, last)

    @property
    def is_over(self) -> bool:
        """No further checkpoint will come, and none is being measured."""
        is_idle = self._running is None and self._waiting is None and not self._left
        return self.is_last and is_idle

    def start(self, now_s: float) -> list[Effect]:
        """What is left is measured; the starting checkpoint is version 0, and nobody removes it."""
        settings, past = self.settings, self.book.past
        start, every = settings.starting_checkpoint, settings.every_versions
        left = list(past.due.values())
        if settings.at_start and 0 not in (past.due.keys() | past.outcomes.keys()):
            left.append(Due(version=0, folder=start))
        last = past.newest or 0
        for version, folder in sorted(settings.resumed_checkpoints.items()):
            if every and version // every > last // every:
                # The run ended before it was taken, and the trainer offers only what it saves.
                left.append(Due(version=version, folder=folder))
            last = max(last, version)
        # Files that may be removed, when a newer checkpoint is saved, come first.
        self._left.extend(sorted(left, key=lambda due: (due.folder == start, due.version)))
        effects = self._next(now_s)
        for each in self._left:
            if each.version not in past.due:
                # Before anything newer is written, or a next life would not look for it.
                effects += self.book.begin(each)
        return effects

    def offered(self, message: CheckpointOffered, request: Request, now_s: float) -> list[Effect]:
        """The trainer has saved a checkpoint."""
        offer = _Offer(message, request, now_s)
        self.newest = max(self.newest, message.step)
        self.is_last = self.is_last or message.final
        running, waiting = self._running, self._waiting
        if running is not None and running.version == message.step and not running.is_settled:
            # Offered again: the answer was lost, or it turned out to be the last one.
            if running.is_taken:
                return [self._taken(message.step, request)]
            running.request = request
            return []
        if waiting is not None and waiting.message.step == message.step:
            # Asked again: due it was found the first time, and only the newest request has a reply.
            self._waiting = _Offer(message, request, waiting.since_s)
            return []
        left = next((each for each in self._left if each.version == message.step), None)
        if left is not None:
            # It is due already, and perhaps not kept yet: the trainer waits for that.
            self._left.remove(left)
            self._waiting = offer
            return []
        if not self._is_due(message):
            return [self._taken(message.step, request)]
        if self._running is None:
            return self._begin(offer)
        is_busy = bool(self._left) or not self._running.is_settled
        if self.settings.overflow == "skip" and is_busy and not message.final:
            outcome = Outcome(version=message.step, reason=OVERFLOW, why=str(self))
            return self.book.settle(outcome, [self._taken(message.step, request)])
        # The trainer waits, so there is no second one; unless the run ends, and forgets the offer.
        self._waiting = offer
        return self.book.begin(Due(version=message.step, folder=message.folder))

    def _is_due(self, message: CheckpointOffered) -> bool:
        step, every, before = message.step, self.settings.every_versions, self._due_before
        if self.book.past.has_score(step):
            return False
        if message.final and self.settings.at_end:
            return True
        self._due_before = max(before, step)
        return bool(every) and step // every > before // every

    def _begin(self, offer: _Offer) -> list[Effect]:
        due = Due(version=offer.message.step, folder=offer.message.folder)
        self._due_before = max(self._due_before, due.version)
        running = _Running(due.version, offer.since_s, due.folder, offer.request)
        return self.book.begin(due, [self._run(running)])

    def _next(self, now_s: float) -> list[Effect]:
        """The one that waited longest, if any does."""
        if self._left:
            due = self._left.popleft()
            first = self._run(_Running(due.version, now_s, due.folder))
            return [first] if due.version in self.book.past.due else self.book.begin(due, [first])
        waiting, self._waiting = self._waiting, None
        return [] if waiting is None else self._begin(waiting)

    def _run(self, running: _Running) -> Effect:
        """It is its turn."""
        self._running = running
        if self._is_kept(running):
            return self._keep(running)
        running.is_taken, running.began_s = True, running.offered_s
        return self._measure(running.version, running.folder)

    def _is_kept(self, running: _Running) -> bool:
        """Whether its files are linked, and removed afterwards."""
        return running.folder != self.settings.starting_checkpoint

    def done(self, event: WorkDone, now_s: float) -> list[Effect]:
        """A checkpoint is kept, or measured; or was not."""
        running = self._running
        assert running is not None, event
        if event.key.startswith("remove/"):
            return self._ended(now_s)
        if event.key.startswith("keep/"):
            effects: list[Effect] = []
            running.is_taken = True
            if running.request is not None:
                effects.append(self._taken(running.version, running.request))
                running.request = None
            if event.error:
                return [*effects, *self._missed(MISSING, event.error, now_s, measured=False)]
            running.began_s = now_s
            assert isinstance(event.result, str), event.result
            return [*effects, self._measure(running.version, event.result)]
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
        return self._settled(Outcome(version=running.version, score=score), now_s)

    def _missed(
        self, reason: str, why: str, now_s: float, *, measured: bool = True
    ) -> list[Effect]:
        """No score; of the last checkpoint that is not the last word."""
        assert self._running is not None
        version = self._running.version
        outcome = Outcome(version=version, reason=reason, why=why)
        if not (self.is_last and self.settings.at_end and version == self.newest):
            return self._settled(outcome, now_s)
        missed = self.debt.missed(version, reason, why, now_s, measured=measured, heals=True)
        return missed if self.debt.is_waiting else [*missed, *self._settled(outcome, now_s)]

    def measure_again(self) -> list[Effect]:
        """Another try for the last checkpoint, whose files stay: no newer one takes their place."""
        running = self._running
        assert running is not None, "no try is owed"
        running.began_s = None
        return [self._keep(running)]

    def _settled(self, outcome: Outcome, now_s: float) -> list[Effect]:
        """Its files go when the outcome is on disk, and then the next one is begun."""
        running = self._running
        assert running is not None, outcome
        if not self._is_kept(running):
            return [*self.book.settle(outcome), *self._ended(now_s)]
        running.is_settled = True
        remove = RemoveCheckpoint(f"remove/{running.version}", running.version)
        return self.book.settle(outcome, [remove])

    def _ended(self, now_s: float) -> list[Effect]:
        self._running = None
        return self._next(now_s)

    def _keep(self, running: _Running) -> Effect:
        return KeepCheckpoint(f"keep/{running.version}", running.version, running.folder)

    def _measure(self, version: int, folder: str) -> Effect:
        return MeasureCheckpoint(f"measure/{version}", version, folder, self.settings.deadline_s)

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
