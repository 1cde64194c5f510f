"""The publisher's core where the evaluator has engines of its own.

Two publishers in one process, since one of them has the bytes: `training` serves the engines of the
rollout, `evaluation` those of the evaluator, each with epochs, proofs and holds of its own. The
second one gets a version only when the evaluator asks for it, and then the published one.

Invariants:
    FP-1 (apart): nothing that evaluation engines do, or fail to do, holds up or fails a
        publication.
    FP-2 (pinned): while the evaluator holds them, they stay on the version that it was told.
    FP-3 (answered): every hold is granted or refused with a reason.
    FP-4 (kept): what they may have to load again stays on the disk while they are held; once they
        are not, they need no version before the next hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import msgspec

from milepost.actors.effects import (
    Answered,
    Ask,
    Effect,
    Event,
    Fail,
    Received,
    Reply,
    Request,
    Taken,
    Tell,
    Unanswered,
    Wake,
    Woken,
    Work,
    WorkDone,
)
from milepost.actors.publisher.core import Publisher
from milepost.actors.publisher.lanes import Weights
from milepost.actors.publisher.works import ConfirmVersion
from milepost.messages.publisher import (
    BucketReady,
    EngineReady,
    HoldRefused,
    HoldVersion,
    ReleaseVersion,
    VersionHeld,
)
from milepost.messages.supervisor import EventReported, PeerRestarted, StepRecorded
from milepost.messages.trainer import KeepVersions, VersionFailed

if TYPE_CHECKING:
    from milepost.actors.publisher.settings import PublisherSettings

OURS: Final = "fleet"
"""Keys of the evaluation engines' effects begin with it and the number of their publisher."""
METRICS: Final = "perf/evaluation_engines/"


@dataclass(slots=True)
class _Wanted:
    message: HoldVersion
    request: Request
    version: int | None = None
    """The one being moved for it; None before any was published."""


@dataclass(slots=True)
class FleetPublisher:
    """See the module."""

    training: Publisher
    settings: PublisherSettings
    """Of the evaluation engines."""
    evaluation: Publisher = field(init=False)
    num_refused: int = 0
    _life: int = 0
    """Counts fresh starts after a failure: answers to what was asked before mean nothing."""
    _wanted: _Wanted | None = None

    def __post_init__(self) -> None:
        """Nothing was asked for yet."""
        self.evaluation = self._made()

    def _made(self) -> Publisher:
        """A publisher without a past, whose names neither `training` nor one before it has used."""
        life = f"{self.settings.life}.{OURS}{self._life}"
        return Publisher.of(replace(self.settings, life=life))

    def start(self, now_s: float) -> list[Effect]:
        """The trainer speaks first."""
        return self.training.start(now_s)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """The one door."""
        effects: list[Effect] = []
        if self._is_stale(event):
            pass
        elif (ours := self._ours(event)) is not None:
            effects += self._led(self.evaluation.handle(ours, now_s))
        elif not self._asked(event):
            effects += map(self.kept, self.training.handle(event, now_s))
            if isinstance(event, Received) and isinstance(event.message, BucketReady):
                # Bytes that evaluation engines asked for, of a version that is no longer served.
                effects += self._led(self.evaluation.handle(event, now_s))
        return effects + self._go_on(now_s)

    @property
    def _prefix(self) -> str:
        return f"{OURS}{self._life}:"

    def _is_stale(self, event: Event) -> bool:
        match event:
            case Received():
                return False
            case _:
                return event.key.startswith(OURS) and not event.key.startswith(self._prefix)

    def _ours(self, event: Event) -> Event | None:
        """The event as the evaluation engines' publisher knows it; None when it is not its own."""
        match event:
            case Answered(key) | Unanswered(key) | Woken(key) | Taken(key) | WorkDone(key):
                ours = key.startswith(self._prefix)
                return (
                    msgspec.structs.replace(event, key=key.removeprefix(self._prefix))
                    if ours
                    else None
                )
            case Received(_, EngineReady(engine=name)) | Received(_, PeerRestarted(actor=name)):
                return event if name in self.settings.engines else None
            case Received(_, ReleaseVersion(fleet=True)):
                self._wanted = None
                return event
            case _:
                return None

    def _asked(self, event: Event) -> bool:
        """True for a question about the evaluation engines."""
        match event:
            case Received(_, HoldVersion(fleet=True) as message, request):
                assert request is not None
                self.evaluation.holds.release(message.holder)
                self._wanted = _Wanted(message, request)
                return True
        return False

    def _go_on(self, now_s: float) -> list[Effect]:
        """Move the published version to the evaluation engines, if it is wanted there."""
        wanted, published = self._wanted, self.training.epochs.serving
        epochs = self.evaluation.epochs
        if wanted is None and not self.evaluation.holds and epochs.epoch is None:
            epochs.serving = None  # nobody counts on it: an engine that starts now stays as it is
        if wanted is None or published is None:
            return []
        effects: list[Effect] = []
        if wanted.version is None:
            wanted.version = published.version
            served = epochs.serving.version if epochs.serving else None
            on_its_way = [each.version for each in epochs.on_the_way()]
            if wanted.version != served and wanted.version not in on_its_way:
                weights = Weights(published.ready, now_s, published.buckets, 0, published.written)
                epochs.arrive(weights)
                effects = self._led(epochs.go_on(now_s))
        if epochs.serving is None or epochs.serving.version != wanted.version:
            return effects
        if epochs.serves_everywhere and self._wanted is wanted:
            self._wanted = None
            self.evaluation.holds.asked(wanted.message, wanted.request)
            effects += self._led(self.evaluation.holds.grant(wanted.version, now_s))
        return effects

    def kept(self, effect: Effect) -> Effect:
        """Whatever the evaluation engines may be sent to stays on the disk, or on the GPU."""
        needed = self.evaluation.epochs.needed()
        if self._wanted is not None and self._wanted.version is not None:
            needed.add(self._wanted.version)
        match effect:
            case ConfirmVersion(key, version):
                return ConfirmVersion(key, version, min(needed | {version}))
            case Tell(_, KeepVersions(versions=versions) as word):
                every = tuple(sorted(needed.union(versions)))
                return msgspec.structs.replace(
                    effect, message=msgspec.structs.replace(word, versions=every)
                )
            case _:
                return effect

    def _led(self, effects: list[Effect]) -> list[Effect]:
        """Effects of the evaluation engines' publisher, kept apart from the other's."""
        found: list[Effect] = []
        for effect in effects:
            match effect:
                case Fail(reason):
                    self._life += 1
                    self.evaluation = self._made()
                    return found + self._refused(reason)
                case Tell(_, VersionFailed() as message):
                    found += self._refused(message.reason)
                case Tell(_, StepRecorded() as message):
                    metrics = {METRICS + _last(name): v for name, v in message.metrics.items()}
                    renamed = msgspec.structs.replace(message, metrics=metrics)
                    found.append(msgspec.structs.replace(effect, message=renamed))
                case Reply(request, VersionHeld() as message):
                    held = msgspec.structs.replace(message, fleet=True)
                    found.append(Reply(request, held))
                case Tell(key=""):
                    found.append(effect)
                case Tell(key=key) | Ask(key=key) | Wake(key=key):
                    found.append(msgspec.structs.replace(effect, key=self._prefix + key))
                case Work():
                    pass  # on the disk the version is confirmed, since it was published
                case _:
                    found.append(effect)
        return found

    def _refused(self, reason: str) -> list[Effect]:
        self.num_refused += 1
        said = f"the evaluation engines took no version: {reason}"
        event = EventReported(source="publisher", kind="evaluation_engines", text=said)
        wanted, self._wanted = self._wanted, None
        if wanted is None:
            return [Tell("supervisor", event)]
        refused = HoldRefused(version=wanted.version or 0, reason=reason)
        return [Tell("supervisor", event), Reply(wanted.request, refused)]

    def validate(self) -> None:
        """Assert the invariants of both."""
        self.training.validate()
        self.evaluation.validate()

    def statistics(self) -> dict[str, object]:
        """Those of the rollout's engines, and beside them the others'."""
        return {
            **self.training.statistics(),
            "evaluation_engines": {**self.evaluation.statistics(), "refused": self.num_refused},
        }

    def working_on(self) -> str:
        """What the epochs of both wait for, in names."""
        said = self.training.working_on()
        if self._wanted is None:
            return said
        return f"{said}; for the evaluator: {self.evaluation.working_on()}"


def _last(name: str) -> str:
    return name.rpartition("/")[2]
