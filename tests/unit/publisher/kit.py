"""A publisher alone, with engines that do as they are told unless a test says otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from sim.rows import PROBE_ROW, probe_of, weights_of

from milepost.actors.effects import (
    Answered,
    Ask,
    Effect,
    Event,
    Fail,
    Received,
    Reply,
    Request,
    Tell,
    Unanswered,
    Wake,
    Woken,
)
from milepost.actors.publisher.core import Publisher
from milepost.actors.publisher.fleet import FleetPublisher
from milepost.actors.publisher.settings import PublisherSettings
from milepost.messages.engine import (
    AbortEpoch,
    ActivateEpoch,
    EpochAnswer,
    EpochConfirmed,
    PauseMode,
    PrepareEpoch,
    Score,
    Scored,
    TensorSpec,
    WeightBucket,
)
from milepost.messages.publisher import BucketReady, EngineReady, HoldVersion, VersionReady
from milepost.messages.shared import Message
from milepost.messages.supervisor import EventReported, PeerRestarted
from milepost.messages.trainer import VersionPublished

BUCKETS = 2


@dataclass
class Play:
    """Questions to engines wait until `answer`; the rest is kept by type."""

    engines: tuple[str, ...] = ("engine-0", "engine-1")
    canary: bool = False
    now_s: float = 0.0
    asked: dict[str, Ask] = field(default_factory=dict)
    said: list[Message] = field(default_factory=list)
    replies: list[Message] = field(default_factory=list)
    wakes: dict[str, float] = field(default_factory=dict)
    failed: str = ""
    serving: dict[str, int] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    """Engines that answer nothing before they are `back`."""

    def __post_init__(self) -> None:
        self.core = self.make()
        self.carry_out(self.core.start(0.0))

    def make(self) -> Publisher | FleetPublisher:
        return Publisher.of(self.settings)

    @property
    def settings(self) -> PublisherSettings:
        return PublisherSettings(
            engines=self.engines,
            listeners=("buffer",),
            leader="trainer-0",
            pause=PauseMode.RETRACT,
            epoch_deadline_s=60.0,
            canary=self.canary,
            canary_difference_max=1e-4,
        )

    # ---- events --------------------------------------------------------------------------

    def hear(self, message: Message, source: str = "trainer-0") -> None:
        self.feed(Received(source, message))

    def feed(self, event: Event) -> None:
        effects = self.core.handle(event, self.now_s)
        self.core.validate()
        self.carry_out(effects)

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell(_, message):
                    self.said.append(message)
                case Ask():
                    self.asked[effect.key] = effect
                case Reply(_, message):
                    self.replies.append(message)
                case Wake(key, at_s):
                    self.wakes[key] = at_s
                case Fail(reason):
                    self.failed = self.failed or reason
                case _:
                    raise TypeError(effect)

    def wake(self, key: str) -> None:
        self.now_s = max(self.now_s, self.wakes.pop(key))
        self.feed(Woken(key))

    # ---- the trainer ---------------------------------------------------------------------

    def announce(self, version: int, *, final: bool = False, buckets: int = BUCKETS) -> None:
        """A version, and the first `buckets` of its two buckets."""
        ready = VersionReady(
            version=version,
            tensors=(TensorSpec(name="w", dtype="float32", shape=(1,)),),
            num_buckets=BUCKETS,
            digest=f"digest of {version}",
            final=final,
            probe_rows=(PROBE_ROW,),
            probe_logprobs=(probe_of(version),),
        )
        self.hear(ready)
        for index in range(buckets):
            self.bucket(version, index)

    def bucket(self, version: int, index: int) -> None:
        tensors = (weights_of(version),)
        self.hear(BucketReady(version=version, index=index, names=("w",), tensors=tensors))

    # ---- engines -------------------------------------------------------------------------

    def waiting(self, kind: type[Message]) -> list[str]:
        """Engines that have an open question of this type."""
        return [ask.to for ask in self.asked.values() if isinstance(ask.message, kind)]

    def answer(self, engine: str, message: Message | None = None) -> None:
        """The engine answers its oldest open question, well unless told otherwise."""
        key = next(key for key, ask in self.asked.items() if ask.to == engine)
        ask = self.asked.pop(key)
        self.feed(Answered(key, engine, message or self._good(engine, ask.message)))

    def feed_answer(self, key: str, message: Message) -> None:
        """An answer of the trainer's that comes late."""
        self.asked.pop(key, None)
        self.feed(Answered(key, "trainer-0", message))

    def answer_all(self) -> None:
        """Every engine answers everything, for as long as there is a question."""
        while living := [ask.to for ask in self.asked.values() if ask.to not in self.dead]:
            self.answer(living[0])

    def die(self, engine: str) -> None:
        """With what it had been asked; the supervisor says so."""
        self.serving.pop(engine, None)
        self.dead.add(engine)
        self.asked = {key: ask for key, ask in self.asked.items() if ask.to != engine}
        self.hear(PeerRestarted(actor=engine, incarnation=1), "supervisor")

    def back(self, engine: str) -> None:
        """Its next life says that it is ready."""
        self.dead.discard(engine)
        self.hear(EngineReady(engine=engine), engine)

    def silence(self, engine: str) -> None:
        """The deadline of the engine's open question passes."""
        key = next(key for key, ask in self.asked.items() if ask.to == engine)
        del self.asked[key]
        self.feed(Unanswered(key, engine, "no answer before the deadline"))

    def _good(self, engine: str, message: Message) -> Message:
        match message:
            case PrepareEpoch() | WeightBucket() | AbortEpoch():
                return EpochAnswer(version=message.version, ok=True)
            case ActivateEpoch():
                self.serving[engine] = message.version
                return EpochConfirmed(
                    version=message.version, digest=message.digest, pause_s=0.5, num_in_flight=0
                )
            case Score():
                version = self.serving[engine]
                return Scored(logprobs=(probe_of(version),), version=version)
            case _:
                raise TypeError(message)

    # ---- what was said -------------------------------------------------------------------

    def take(self, kind: type[Message]) -> list[Any]:
        taken = [message for message in self.said if isinstance(message, kind)]
        self.said = [message for message in self.said if not isinstance(message, kind)]
        return taken

    def published(self) -> list[int]:
        return [message.version for message in self.take(VersionPublished)]

    def events(self) -> list[str]:
        return [message.kind for message in self.take(EventReported)]

    def hold(self, lease_s: float = 100.0) -> None:
        message = HoldVersion(holder="evaluator", lease_s=lease_s)
        self.feed(Received("evaluator", message, Request("evaluator", 1)))


@dataclass
class FleetPlay(Play):
    """The same with one engine of the evaluator's own."""

    def make(self) -> Publisher | FleetPublisher:
        fleet = replace(self.settings, engines=("evaluation_engine-0",), listeners=())
        return FleetPublisher(Publisher.of(self.settings), fleet)

    def hold_fleet(self) -> None:
        message = HoldVersion(holder="evaluator", lease_s=100.0, fleet=True)
        self.feed(Received("evaluator", message, Request("evaluator", 2)))

    def answer_key(self, key: str, engine: str, message: Message) -> None:
        """An answer that comes whether or not the question is open."""
        self.feed(Answered(key, engine, message))
