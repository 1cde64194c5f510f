"""A trainer rank other than 0: does what rank 0 orders, on its own part of each batch.

Owns: its part of the batch on its way.
Receives: orders from rank 0, its part from the buffer.
Sends: what its door found, to rank 0.
Invariants: orders are carried out in the order they were given, without a gap (TR-5).
Starts: by waiting for the first order.
Dies: on a gap, or when work of its own fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.actors.effects import (
    Effect,
    Event,
    Fail,
    Received,
    Reply,
    Request,
    WorkDone,
)
from milepost.actors.trainer.intake import Intake
from milepost.actors.trainer.plan import TrainerPlan
from milepost.actors.trainer.sure import SureWords
from milepost.actors.trainer.works import (
    ExportVersion,
    ModelFacts,
    SaveCheckpoint,
    ScoreTokens,
    TrainBatch,
)
from milepost.messages.shared import Message
from milepost.messages.supervisor import Drain, Drained, PeerRestarted, Refused
from milepost.messages.trainer import (
    PartChecked,
    RankOrder,
    RankOrdered,
    ScoreRows,
    VersionFailed,
    VersionPublished,
)


@dataclass(slots=True)
class Follower:
    """See the module."""

    plan: TrainerPlan
    intake: Intake
    words: SureWords = field(default_factory=SureWords)
    num_orders: int = 0
    finished: bool = False
    works: set[str] = field(default_factory=set)
    _last: str = "no order yet"
    _since_s: float = 0.0
    _draining: list[Request] = field(default_factory=list)

    @classmethod
    def of(cls, plan: TrainerPlan, rank: int, model: ModelFacts) -> Follower:
        """Rank `rank` of the plan's."""
        return cls(plan, Intake(plan, rank, model))

    @property
    def name(self) -> str:
        """Of this actor."""
        return self.plan.ranks[self.intake.rank]

    def start(self, now_s: float) -> list[Effect]:
        """Rank 0 speaks first."""
        self._since_s = now_s
        return []

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """The one door into the state."""
        return self._decide(event, now_s) + self._drain()

    def _decide(self, event: Event, now_s: float) -> list[Effect]:
        if isinstance(event, Received):
            return self._received(event.source, event.message, event.request, now_s)
        if Intake.owns(event.key):
            effects, part = self.intake.handle(event, now_s)
            return effects if part is None else effects + self._found(part)
        if SureWords.owns(event.key):
            return self.words.handle(event, now_s)
        if isinstance(event, WorkDone):
            self.works.discard(event.key)
            if event.error:
                return [Fail(f"{event.key} failed: {event.error}")]
        return []

    def _received(
        self, source: str, message: Message, request: Request | None, now_s: float
    ) -> list[Effect]:
        match message:
            case RankOrdered():
                return self._ordered(message, now_s)
            case PeerRestarted() if message.actor == self.plan.buffer:
                return self.intake.ask_again()
            case Drain():
                assert request is not None
                self._draining.append(request)
            case ScoreRows():
                assert request is not None
                reason = f"{self.name} follows {self.plan.ranks[0]}, ask there"
                return [Reply(request, Refused(reason=reason))]
            case VersionPublished(version=version, digest=digest):
                self.intake.made.learn(version, digest)
            case VersionFailed() | PeerRestarted():
                pass
            case _:
                raise TypeError(f"{self.name} was told {type(message).__name__} by {source}")
        return []

    def _found(self, part: PartChecked) -> list[Effect]:
        return self.words.tell(self.plan.ranks[0], part)[0]

    def _ordered(self, message: RankOrdered, now_s: float) -> list[Effect]:
        if message.index != self.num_orders:
            return [Fail(f"order {message.index} came after {self.num_orders} orders: a gap")]
        self.num_orders += 1
        self._last, self._since_s = f"{message.order.value} {message.step}", now_s
        step = message.step
        match message.order:
            case RankOrder.ASK:
                return self.intake.ask(step, message.attempt, now_s)
            case RankOrder.TRAIN:
                return self._begin(TrainBatch(f"train/{step}", self.intake.take()))
            case RankOrder.EXPORT:
                return self._begin(ExportVersion(f"export/{step}", step, message.final))
            case RankOrder.SAVE:
                # Only rank 0 writes down which groups were trained.
                return self._begin(SaveCheckpoint(f"save/{step}", step, ()))
            case RankOrder.SCORE:
                key = f"score/{message.index}"
                return self._begin(ScoreTokens(key, message.rows, message.temperature))
            case RankOrder.FINISH:
                self.finished = True
                return []

    def _begin(
        self, work: TrainBatch | ExportVersion | SaveCheckpoint | ScoreTokens
    ) -> list[Effect]:
        self.works.add(work.key)
        return [work]

    def _drain(self) -> list[Effect]:
        """Rank 0 may still need this rank for a checkpoint: gone only when it says so."""
        if not self.finished or self.works or not self._draining:
            return []
        replies: list[Effect] = [Reply(each, Drained(actor=self.name)) for each in self._draining]
        self._draining.clear()
        return replies

    def validate(self) -> None:
        """Assert that orders do not pile up: rank 0 does each of them, too."""
        assert len(self.works) <= 8, self.works

    def statistics(self) -> dict[str, object]:
        """Counts."""
        return {"orders": self.num_orders, "batch": self.intake.step, "works": sorted(self.works)}

    def working_on(self) -> str:
        """The last order, and what its batch waits for."""
        if self.intake.state in ("asked", "checking"):
            doer = self.plan.buffer if self.intake.state == "asked" else "the door"
            step, since_s = self.intake.step, self.intake.since_s
            return f"waits for its part of step {step} from {doer} since {since_s:.1f}"
        if self.works:
            return f"does {', '.join(sorted(self.works))} since {self._since_s:.1f}"
        return f"waits for {self.plan.ranks[0]}, last order {self._last} at {self._since_s:.1f}"
