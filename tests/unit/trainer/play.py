"""Drives a trainer core by hand: what it orders is kept until the test lets it happen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from unit.trainer.kit import VOCABULARY, batch_of, trajectory

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
from milepost.actors.trainer.core import Trainer
from milepost.actors.trainer.follower import Follower
from milepost.actors.trainer.plan import TrainerPlan
from milepost.actors.trainer.trained import TrainedGroups
from milepost.actors.trainer.works import (
    BatchVerdict,
    CheckBatch,
    Exported,
    ExportVersion,
    ModelFacts,
    Refusal,
    SaveCheckpoint,
    Saved,
    StepOutcome,
    TrainBatch,
)
from milepost.messages.buffer import Batch, BatchRequested
from milepost.messages.publisher import BucketReady, VersionReady
from milepost.messages.shared import Message
from milepost.messages.trainer import VersionPublished

Kind = TypeVar("Kind")

MODEL = ModelFacts(vocabulary=VOCABULARY, tokenizer_hash="", template_hash="")

PLAN = TrainerPlan(
    ranks=("trainer-0",),
    buffer="buffer",
    publisher="publisher",
    checkpoint_listeners=("buffer", "rollout"),
    final_listeners=("evaluator",),
    steps=4,
    sft=False,
    sync=False,
    prefetch=False,
    publish_every_steps=1,
    checkpoint_every_steps=0,
    staleness_max=None,
    keeps_caches=False,
    refuses_stale=False,
    batches_without_spread_max=2,
    logprob_difference_max=0.0,
    ask_s=60.0,
    publish_s=240.0,
)

GOOD = StepOutcome(metrics={"train/loss": 0.5}, num_tokens=100, train_s=0.1, spread=True)


def batch(step: int, groups: Sequence[str] = ("a", "b")) -> Batch:
    """Groups of one member each; the core never looks into a row."""
    members = [[trajectory(f"{name}{step}", rewards=(1.0,))] for name in groups]
    return batch_of(members, step=step)


@dataclass
class Play:
    """One core, the effects it ordered and nobody has carried out, and a clock."""

    core: Trainer | Follower
    now_s: float = 10.0
    waiting: list[Effect] = field(default_factory=list)
    asked: int = 0

    def feed(self, event: Event) -> list[Effect]:
        effects = self.core.handle(event, self.now_s)
        if not any(isinstance(each, Fail) for each in effects):
            self.core.validate()
        self.waiting += effects
        keys = works(self)
        assert len(keys) == len(set(keys)), f"a work is ordered that is already being done: {keys}"
        return effects

    def all(self, kind: type[Kind]) -> list[Kind]:
        """Effects, or messages told, of one kind, in the order they were given."""
        found = [each.message if isinstance(each, Tell) else each for each in self.waiting]
        return [each for each in (*found, *self.waiting) if isinstance(each, kind)]

    def take(self, kind: type[Kind]) -> Kind:
        """The first effect, or message told, of one kind; it is carried out now."""
        for each in self.waiting:
            inner: object = each.message if isinstance(each, Tell | Ask | Reply) else each
            if isinstance(each, kind):
                self.waiting.remove(each)
                return each
            if isinstance(inner, kind):
                self.waiting.remove(each)
                return inner
        raise AssertionError(f"no {kind.__name__} among {self.names()}")

    def names(self) -> list[str]:
        return [
            type(each.message if isinstance(each, Tell | Ask | Reply) else each).__name__
            for each in self.waiting
        ]

    def has(self, kind: type[object]) -> bool:
        return bool(self.all(kind)) or any(
            isinstance(each, Ask | Reply) and isinstance(each.message, kind)
            for each in self.waiting
        )

    def receive(self, message: Message, source: str = "publisher") -> list[Effect]:
        return self.feed(Received(source, message))

    def ask(self, message: Message, source: str = "supervisor") -> Request:
        self.asked += 1
        request = Request(source, self.asked)
        self.feed(Received(source, message, request))
        return request

    # ---- the outside world, one step at a time -------------------------------------------

    def answer(self, answer: Message) -> list[Effect]:
        """The buffer's answer to the question under way."""
        asked = self.take(Ask)
        return self.feed(Answered(asked.key, "buffer", answer))

    def requested(self) -> BatchRequested:
        for each in self.waiting:
            if isinstance(each, Ask) and isinstance(each.message, BatchRequested):
                return each.message
        raise AssertionError(f"asks for no batch: {self.names()}")

    def check(self, refused: dict[str, str] | None = None, oldest: int = 0) -> list[Effect]:
        """The door's verdict on the batch under way."""
        work = self.take(CheckBatch)
        refusals = tuple(Refusal(name, reason) for name, reason in (refused or {}).items())
        good = {name: oldest for name in work.batch.group_ids if name not in (refused or {})}
        return self.feed(WorkDone(work.key, BatchVerdict(refusals, good)))

    def bring(self, step: int, **check: Any) -> None:
        """A batch comes and passes the door."""
        assert self.requested().step == step
        self.answer(batch(step))
        self.check(**check)

    def trained(self, outcome: StepOutcome = GOOD, **changes: Any) -> list[Effect]:
        """The step under way ends."""
        work = self.take(TrainBatch)
        return self.feed(WorkDone(work.key, replace(outcome, **changes)))

    def exported(self) -> ExportVersion:
        """An export ends; what it gives is on its way."""
        work = self.take(ExportVersion)
        ready = VersionReady(
            version=work.version, tensors=(), num_buckets=1, digest="d", final=work.final
        )
        bucket = BucketReady(version=work.version, index=0, names=(), tensors=())
        self.feed(WorkDone(work.key, Exported(ready, (bucket,), 0.01)))
        return work

    def published(self, version: int, *, final: bool = False) -> list[Effect]:
        return self.receive(VersionPublished(version=version, final=final))

    def saved(self) -> SaveCheckpoint:
        """A checkpoint ends, and who must know of it does."""
        work = self.take(SaveCheckpoint)
        saved = Saved(work.step, f"checkpoints/step_{work.step:06d}", 0.02)
        self.feed(WorkDone(work.key, saved))
        return work

    def taken(self) -> None:
        """Everything told with a wish to know arrives."""
        for each in [each for each in self.waiting if isinstance(each, Tell) and each.confirm]:
            self.waiting.remove(each)
            self.feed(Taken(each.key))

    def lost(self, kind: type[Message], reason: str = "no such peer") -> list[Effect]:
        """A word of this kind does not arrive."""
        for each in self.waiting:
            if isinstance(each, Tell) and isinstance(each.message, kind):
                self.waiting.remove(each)
                return self.feed(Unanswered(each.key, each.to, reason))
        raise AssertionError(f"no {kind.__name__} among {self.names()}")

    def wake(self, key: str, after_s: float = 0.0) -> list[Effect]:
        """A timer comes due."""
        for each in self.waiting:
            if isinstance(each, Wake) and each.key == key:
                self.waiting.remove(each)
                self.now_s = max(self.now_s, each.at_s) + after_s
                return self.feed(Woken(key))
        raise AssertionError(f"no timer {key} among {self.waiting}")

    def step(self, step: int) -> None:
        """One whole step: the batch comes, passes, is trained."""
        self.bring(step)
        self.now_s += 1.0
        self.trained()
        self.taken()


def play(version: int = 0, trained: tuple[str, ...] = (), **changes: Any) -> Play:
    """A leading core, just started."""
    known = TrainedGroups()
    known.add(version, trained)
    core = Trainer.of(
        replace(PLAN, **changes),
        model=MODEL,
        version=version,
        trained=known,
        checkpoint=f"checkpoints/step_{version:06d}" if version else "",
    )
    game = Play(core)
    game.waiting += core.start(game.now_s)
    return game


def follow(rank: int = 1, **changes: Any) -> Play:
    """A following core, just started."""
    plan = replace(PLAN, ranks=("trainer-0", "trainer-1"), **changes)
    core = Follower.of(plan, rank, MODEL)
    game = Play(core)
    game.waiting += core.start(game.now_s)
    return game


def works(game: Play) -> list[str]:
    """Keys of the work under way, in order."""
    return [each.key for each in game.waiting if isinstance(each, Work)]
