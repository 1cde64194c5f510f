"""Scripted trainer of the simulator: weights, versions, batches, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sim.exams import Offers
from sim.rows import PROBE_ROW, SHAPES, digest_of, probe_of, probe_turn, weights_of
from sim.standins import Scripted

from milepost.actors.effects import (
    Answered,
    Ask,
    Effect,
    Event,
    Received,
    Reply,
    Tell,
    Unanswered,
    Wake,
    Woken,
)
from milepost.actors.trainer.trained import TrainedGroups
from milepost.messages.buffer import (
    Batch,
    BatchRequested,
    CheckpointSaved,
    GroupsRefused,
    StepTrained,
)
from milepost.messages.publisher import BucketReady, VersionReady
from milepost.messages.supervisor import Drain, Drained, PeerRestarted, Refused, WorkFinished
from milepost.messages.trainer import LedgerWritten, VersionFailed, VersionPublished


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the trainer saved: how many batches, and of which groups."""

    version: int
    trained: tuple[str, ...]
    """But for the first `before`, whose names are in the ledger for good."""
    before: int = 0


@dataclass(slots=True)
class Trainer(Scripted):
    """One rank. Asks for the next batch while one is trained; rank 0 publishes, saves, finishes."""

    rank: int
    world_size: int
    steps: int
    sync: bool
    publish_every: int
    checkpoint_every: int
    has_publisher: bool
    save: Callable[[Checkpoint], None]
    on_batch: Callable[[int, Batch, int | None], None]
    is_joined: Callable[[int], bool] = lambda _: True
    """Whether every rank trains this step: gradients are summed over all, or nobody steps."""
    version: int = 0
    """Batches trained."""
    trained: TrainedGroups = field(default_factory=TrainedGroups)
    published: int | None = None
    step_s: float = 0.5
    turn_every: int = 0
    """Every so many versions come with a turn for a session; 0: none."""
    staleness_max: int | None = None
    """Groups with a larger S_old, by the published version known here, are refused at the door."""
    offers: Offers = field(default_factory=Offers)
    _asked: int = -1
    """Newest step asked for."""
    _training: Batch | None = None
    _next: Batch | None = None
    _waits_for_version: bool = False
    _published_last: int = -1
    _last_trained: StepTrained | None = None

    @property
    def name(self) -> str:
        return f"trainer-{self.rank}"

    def start(self, now_s: float) -> list[Effect]:
        effects = self._publish() if self.rank == 0 and self.has_publisher else []
        if self.version == self.steps:
            if self.offers.to:
                # By the life before, perhaps, too; but that may have died of it.
                self.offers.saved(self.version, final=True)
            return effects + self.offers.go_on() + self._finished()
        return effects + self._ask(self.version) + self._go_on(now_s)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        offered = self.offers.handle(event, now_s)
        if offered is not None:
            return offered + self._go_on(now_s)
        effects: list[Effect] = []
        match event:
            case Received(_, VersionPublished() as message):
                self.published = message.version
            case Received(_, VersionFailed() as message):
                # Only the newest version is worth another try.
                return self._publish() if message.version == self._published_last else []
            case Received(_, LedgerWritten() as message):
                self.trained.written(message.version)
            case Received(_, PeerRestarted(actor="publisher")) if not self.rank:
                return self._publish()
            case Received(_, PeerRestarted(actor="buffer")) if self._last_trained:
                return [Tell("buffer", self._last_trained)]
            case Received(_, Drain(), request):
                assert request is not None
                return [Reply(request, Drained(actor=self.name))]
            case Answered(_, _, Batch() as batch):
                self._next = batch
            case Answered(_, _, Refused() as message):
                raise AssertionError(f"{self.name} was told {message}")
            case Unanswered(key) if key.startswith("batch/"):
                return self._ask(int(key.partition("/")[2]))
            case Woken() if self._training and not self.is_joined(self._training.step):
                return [Wake("trained", now_s + self.step_s)]
            case Woken():
                effects = self._stepped()
            case _:
                pass
        return effects + self._go_on(now_s)

    def _ask(self, step: int) -> list[Effect]:
        self._asked = step
        request = BatchRequested(
            step=step, rank=self.rank, world_size=self.world_size, version=self.version
        )
        return [Ask("buffer", request, f"batch/{step}", deadline_s=1e6)]

    def _publish(self) -> list[Effect]:
        self._published_last = self.version
        ready = VersionReady(
            version=self.version,
            tensors=SHAPES,
            num_buckets=len(SHAPES),
            digest=digest_of(self.version),
            final=self.version == self.steps,
            probe_rows=(PROBE_ROW,),
            probe_logprobs=(probe_of(self.version),),
            probe_turn=probe_turn(self.version) if self._has_turn else None,
        )
        effects: list[Effect] = [Tell("publisher", ready)]
        for index, spec in enumerate(SHAPES):
            tensors = (weights_of(self.version),)
            bucket = BucketReady(
                version=self.version, index=index, names=(spec.name,), tensors=tensors
            )
            effects.append(Tell("publisher", bucket))
        return effects

    @property
    def _has_turn(self) -> bool:
        return bool(self.turn_every) and self.version % self.turn_every == 0

    def _go_on(self, now_s: float) -> list[Effect]:
        """Train what is here, and ask for what comes next."""
        if self._waits_for_version and self.published == self.version:
            self._waits_for_version = False
        if self._waits_for_version:
            return []
        effects: list[Effect] = self.offers.go_on() if self._training is None else []
        if self.offers.stands_still:
            return effects
        if self._training is None and self._next is not None:
            batch, self._next = self._next, None
            if stale := self._stale(batch):
                refused = GroupsRefused(
                    step=batch.step, group_ids=stale, reasons=("stale",) * len(stale)
                )
                return [Tell("buffer", refused), *self._ask(batch.step)]
            self._training = batch
            self.on_batch(self.rank, self._training, self.published)
            effects.append(Wake("trained", now_s + self.step_s))
        ahead = self.version + (self._training is not None)
        if self._next is None and self._asked < ahead < self.steps:
            is_ahead = self._training is not None
            if not (is_ahead and self.sync):
                effects += self._ask(ahead)
        return effects

    def _stale(self, batch: Batch) -> tuple[str, ...]:
        """Judged at this very moment, not when the batch was asked for."""
        if self.staleness_max is None or self.published is None:
            return ()
        oldest: dict[str, int] = {}
        for each in batch.trajectories:
            for span in each.spans:
                oldest[each.group_id] = min(oldest.get(each.group_id, span.version), span.version)
        limit = self.published - self.staleness_max
        return tuple(sorted(name for name, version in oldest.items() if version < limit))

    def _stepped(self) -> list[Effect]:
        assert self._training is not None
        batch, self._training = self._training, None
        self.version += 1
        is_last = self.version == self.steps
        publishes = self.has_publisher and (is_last or self.version % self.publish_every == 0)
        self._waits_for_version = self.sync and publishes and not is_last
        if self.rank:
            return []
        self.trained.add(self.version, batch.group_ids)
        self._last_trained = StepTrained(
            step=batch.step, version=self.version, group_ids=batch.group_ids
        )
        effects: list[Effect] = [Tell("buffer", self._last_trained)]
        if publishes:
            effects += self._publish()
        every = self.checkpoint_every
        if is_last or (every and self.version % every == 0):
            self._save_and_offer(final=is_last)
            saved = CheckpointSaved(step=self.version, folder="")
            effects += [Tell("buffer", saved), Tell("rollout", saved)]
        return effects + (self._finished() if is_last else [])

    def _save_and_offer(self, *, final: bool) -> None:
        self.save(Checkpoint(self.version, self.trained.names, self.trained.num_before))
        self.offers.saved(self.version, final=final)

    def _finished(self) -> list[Effect]:
        return [] if self.rank else [Tell("supervisor", WorkFinished(actor=self.name))]
