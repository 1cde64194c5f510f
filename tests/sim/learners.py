"""Scripted engine and trainer of the simulator: weights, versions, batches, checkpoints."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from sim.exams import Offers
from sim.rows import PROBE_ROW, ids, logprobs, probe_of, probe_turn, turn_logprobs, weights_of
from sim.standins import Scripted

from milepost.actors.effects import (
    Answered,
    Ask,
    Effect,
    Event,
    Received,
    Reply,
    Request,
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
from milepost.messages.engine import (
    AbortEpoch,
    ActivateEpoch,
    EpochAnswer,
    EpochConfirmed,
    Generate,
    Generated,
    GenerateRefused,
    PrepareEpoch,
    Score,
    Scored,
    TensorSpec,
    WeightBucket,
)
from milepost.messages.publisher import BucketReady, EngineReady, VersionReady
from milepost.messages.shared import (
    FinishReason,
    VersionSpan,
    WeightsUsed,
)
from milepost.messages.supervisor import Drain, Drained, PeerRestarted, Refused, WorkFinished
from milepost.messages.trainer import LedgerWritten, VersionFailed, VersionPublished


@dataclass(slots=True)
class Engine(Scripted):
    """Serves numbers. A reply takes a while, and a switch in between shows in its spans."""

    name: str
    random: Random
    lies: bool = False
    """True: confirms a version that it does not serve."""
    keeps_caches: bool = False
    """True: samples over keys and values of the first version that it had."""
    _first: int | None = None
    version: int | None = None
    staged: dict[int, dict[int, float]] = field(default_factory=dict)
    _generating: dict[str, tuple[Request, int]] = field(default_factory=dict)
    _serial: int = 0
    is_broken: bool = False
    """Takes no further version, and says so."""

    def start(self, now_s: float) -> list[Effect]:
        del now_s
        return [Tell("publisher", EngineReady(engine=self.name))]

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Received(_, Generate() as message, request):
                assert request is not None
                if self.version is None or self.version < message.version_min:
                    refused = GenerateRefused(request_id="", reason="no version yet", retry=True)
                    return [Reply(request, refused)]
                self._serial += 1
                if message.sampling.tokens_max == 1:
                    return [Reply(request, self._one_token())]
                key = f"generate/{self._serial}"
                self._generating[key] = (request, self.version)
                return [Wake(key, now_s + 0.01 + self.random.random())]
            case Woken(key):
                return [self._generated(*self._generating.pop(key))]
            case Received(_, message, request) if request is not None:
                return [Reply(request, self._epoch(message))]
            case _:
                return []

    def _one_token(self) -> Generated:
        assert self.version is not None
        first = self._first if self._first is not None and self.keeps_caches else self.version
        digest = f"digest of {self.version}"
        weights = WeightsUsed(version=self.version, digest=digest, kv_version=self.version)
        return Generated(
            request_id="",
            token_ids=ids(1),
            logprobs=turn_logprobs(first),
            spans=(VersionSpan(start=0, end=1, version=self.version),),
            finish_reason=FinishReason.LENGTH,
            cached_tokens=0,
            weights=(weights,),
        )

    def _generated(self, request: Request, started: int) -> Effect:
        assert self.version is not None
        spans = [VersionSpan(start=0, end=1, version=started)]
        if self.version != started:
            spans.append(VersionSpan(start=1, end=2, version=self.version))
        count = len(spans)
        return Reply(
            request,
            Generated(
                request_id="",
                token_ids=ids(count),
                logprobs=logprobs(count),
                spans=tuple(spans),
                finish_reason=FinishReason.STOP,
                cached_tokens=0,
                weights=tuple(
                    WeightsUsed(version=each.version, digest="d", kv_version=each.version)
                    for each in spans
                ),
            ),
        )

    def _epoch(self, message: Any) -> Any:
        match message:
            case PrepareEpoch():
                self.staged = {message.version: {}}
                return EpochAnswer(version=message.version, ok=True)
            case WeightBucket():
                if message.version not in self.staged:
                    return EpochAnswer(version=message.version, ok=False, reason="not prepared")
                (value,) = struct.unpack("<f", message.tensors[0].data)
                self.staged[message.version][message.index] = value
                return EpochAnswer(version=message.version, ok=True)
            case ActivateEpoch():
                values = self.staged.get(message.version, {})
                if self.is_broken or list(values.values()) != [message.version] * 2:
                    return EpochAnswer(version=message.version, ok=False, reason="not whole")
                if not self.lies:
                    self.version = message.version
                    self._first = message.version if self._first is None else self._first
                self.staged = {}
                return EpochConfirmed(
                    version=message.version, digest=message.digest, pause_s=0.1, num_in_flight=0
                )
            case AbortEpoch():
                self.staged.pop(message.version, None)
                return EpochAnswer(version=message.version, ok=True)
            case Score():
                if self.version is None:
                    return GenerateRefused(request_id="", reason="no version yet", retry=True)
                served = self.version
                version = served + 1 if self.lies else served
                return Scored(logprobs=(probe_of(served),), version=version)
            case Drain():
                return Drained(actor=self.name)
            case _:
                raise TypeError(f"{self.name} was told {message}")


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
            tensors=(TensorSpec(name="w", dtype="float32", shape=(1,)),),
            num_buckets=2,
            digest=f"digest of {self.version}",
            final=self.version == self.steps,
            probe_rows=(PROBE_ROW,),
            probe_logprobs=(probe_of(self.version),),
            probe_turn=probe_turn(self.version) if self._has_turn else None,
        )
        effects: list[Effect] = [Tell("publisher", ready)]
        for index in range(2):
            bucket = BucketReady(
                version=self.version, index=index, names=("w",), tensors=(weights_of(self.version),)
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
