"""The trainer: batches of certified trajectories in, weight versions out.

This is rank 0, which leads; the other ranks follow its orders (`follower`).

Owns: the policy version (batches trained so far) and the list of trained groups.
Receives: batches from the buffer, published and failed versions, rows to score, drains.
Sends: what was trained and refused to the buffer, versions to the publisher, metrics and guards to
    the supervisor, orders to the other ranks.
Invariants:
    TR-1 (certified): a group is trained only after the door let every member of it in, on the rank
        that trains it.
    TR-2 (once): each step trains one batch, and its groups are named to the buffer exactly then.
    TR-3 (bounded-lag): with a limit, no group older than it is trained; age is judged when the
        step begins, not when the batch was asked for.
    TR-4 (whole): a version that is published or saved has the weights of a whole number of steps.
    TR-5 (one-order): collective work begins in the same order on every rank.
Starts: exports the version it has, and asks for the first batch beside it.
Dies: when work of its own fails, or nobody takes its words.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from milepost.actors.effects import (
    Answered,
    Effect,
    Event,
    Fail,
    Received,
    Reply,
    Request,
    Taken,
    Tell,
    Unanswered,
    Woken,
    WorkDone,
)
from milepost.actors.trainer.ending import OFFER, Ending
from milepost.actors.trainer.feed import Feed
from milepost.actors.trainer.guard import Guard
from milepost.actors.trainer.intake import Intake
from milepost.actors.trainer.plan import TrainerPlan
from milepost.actors.trainer.publishing import PublisherWord, Publishing
from milepost.actors.trainer.ranks import Ranks
from milepost.actors.trainer.report import StepReport, untrained
from milepost.actors.trainer.sure import SureWords
from milepost.actors.trainer.trained import TrainedGroups
from milepost.actors.trainer.works import (
    Exported,
    ModelFacts,
    Saved,
    ScoreTokens,
    StepOutcome,
    TrainBatch,
)
from milepost.messages.buffer import Batch, StepTrained
from milepost.messages.shared import Message
from milepost.messages.supervisor import Drain, PeerRestarted, Refused, StepRecorded, WorkFinished
from milepost.messages.trainer import (
    LedgerWritten,
    PartChecked,
    RankOrder,
    RowsScored,
    ScoreRows,
)

SUPERVISOR: Final = "supervisor"


@dataclass(slots=True)
class Trainer:
    """See the module.

    Attributes:
        version: batches trained.
        trained: groups trained since the run began.
        training: a step is being computed; until it ends the weights are of no version.
    """

    plan: TrainerPlan
    intake: Intake
    version: int = 0
    trained: TrainedGroups = field(default_factory=TrainedGroups)
    training: bool = False
    words: SureWords = field(default_factory=SureWords)
    report: StepReport = field(default_factory=StepReport)
    ranks: Ranks = field(init=False)
    feed: Feed = field(init=False)
    publishing: Publishing = field(init=False)
    ending: Ending = field(init=False)
    guard: Guard = field(init=False)
    tripped: str = ""
    """Name of the guard that stopped the work."""
    _batch: Batch | None = None
    _scores: dict[str, tuple[Request, int]] = field(default_factory=dict)
    _last_trained: StepTrained | None = None

    def __post_init__(self) -> None:
        """Parts that share the plan."""
        self.ranks = Ranks(self.plan)
        self.feed = Feed(self.plan, self.ranks, self.words, self.intake)
        self.publishing = Publishing(self.plan, self.ranks, self.intake.made)
        self.ending = Ending(self.plan, self.ranks, self.words)
        self.guard = Guard(self.plan)

    @classmethod
    def of(
        cls,
        plan: TrainerPlan,
        *,
        model: ModelFacts,
        version: int,
        trained: TrainedGroups,
        checkpoint: str = "",
    ) -> Trainer:
        """A trainer that goes on from `version`, trained on `trained`, saved in `checkpoint`."""
        trainer = cls(plan, Intake(plan, 0, model), version, trained)
        trainer.ending.go_on_from(version, checkpoint, is_last=trainer.is_last)
        return trainer

    @property
    def name(self) -> str:
        """Of this actor."""
        return self.plan.ranks[0]

    # ---- the one door --------------------------------------------------------------------

    def start(self, now_s: float) -> list[Effect]:
        """Publish what there is, and ask for the first batch."""
        self.report.idle_s = now_s
        self.publishing.owed = True
        return self._go_on(now_s)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """The one door into the state."""
        effects = self._decide(event, now_s)
        if any(isinstance(effect, Fail) for effect in effects):
            return effects
        return effects + self._go_on(now_s)

    def _decide(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Received(source, message, request):
                return self._received(source, message, request)
            case Answered(key) | Unanswered(key) | Woken(key) | Taken(key) | WorkDone(key):
                pass
        if Intake.owns(key):
            return self.feed.handle(event, now_s)
        if SureWords.owns(key):
            if isinstance(event, Taken):
                self.feed.taken(event)
            return self.words.handle(event, now_s)
        match event:
            case WorkDone() if self.publishing.owns(key):
                return self.publishing.sent(event)
            case WorkDone():
                return self._worked(event, now_s)
            case Unanswered(_, to, reason) if key.startswith("publish/"):
                self.publishing.not_taken(key, f"{to} did not take it: {reason}")
            case Answered() | Unanswered() | Woken() if key == OFFER:
                return self.ending.offer_ended(event, now_s)
            case Unanswered(_, to, reason) if key == "order":
                return [Fail(f"{to} did not take an order: {reason}")]
            case Woken() if key == "publish-late":
                return self.publishing.late(now_s)
            case _:
                pass
        return []

    def _received(self, source: str, message: Message, request: Request | None) -> list[Effect]:
        if isinstance(message, PublisherWord):
            return self.publishing.heard(message, request)
        match message:
            case LedgerWritten():
                self.trained.written(message.version)
            case PartChecked():
                self.ranks.found(message)
            case ScoreRows():
                assert request is not None
                return self._score(message, request)
            case Drain():
                assert request is not None
                self.words.gone.update(message.gone)
                self.ending.draining.append((request, message.save))
            case PeerRestarted():
                return self._peer_restarted(message.actor)
            case _:
                raise TypeError(f"{self.name} was told {type(message).__name__} by {source}")
        return []

    # ---- what the state allows now -------------------------------------------------------

    @property
    def is_last(self) -> bool:
        """No step will follow this version."""
        return self.version >= self.plan.steps or bool(self.ending.over)

    @property
    def _stands_still(self) -> bool:
        """No step may begin any more."""
        return bool(self.tripped) or self.ending.stands_still or self.is_last

    def _go_on(self, now_s: float) -> list[Effect]:
        """Publish, save, finish, train, ask: whatever is due and possible."""
        effects: list[Effect] = []
        if self.ending.comes_early(self.version):
            self.publishing.owed = self.publishing.published != self.version
        if not self.training and not self.tripped:
            effects += self.publishing.begin_owed(self.version, final=self.is_last, now_s=now_s)
            final = self.is_last and self.ending.is_saved(self.version)
            effects += [*self.ending.offer(final=final), *self._save()]
            effects += self._finish()
        effects += self._drain(now_s)
        effects += self._train(now_s)
        return effects + self._ask(now_s)

    def _save(self) -> list[Effect]:
        ending = self.ending
        # A next checkpoint may remove the one that is offered: it waits until that was taken.
        if ending.saving is not None or ending.offering or ending.drained:
            return []
        if self.is_last and not ending.is_saved(self.version):
            return ending.save(self.version, self.trained)
        every = self.plan.checkpoint_every_steps
        if every and self.version % every == 0 and self.version and ending.saved != self.version:
            return ending.save(self.version, self.trained)
        return []

    def _finish(self) -> list[Effect]:
        """Everything that must outlive this actor is on disk and in the engines."""
        ending = self.ending
        if ending.finished or not (self.is_last and ending.is_saved(self.version)):
            return []
        effects = self.publishing.say_final(self.version)
        if not self.publishing.settled:
            return effects
        ending.finished = True
        summary = {
            "version": self.version,
            "groups_trained": len(self.trained),
            "groups_refused": self.feed.num_refused,
            "checkpoint": ending.folder,
            "hugging_face": f"{ending.folder}/hf",
            "ended_early": ending.over,
        }
        effects += self.words.tell(SUPERVISOR, WorkFinished(actor=self.name, summary=summary))[0]
        return effects + self.ranks.order(RankOrder.FINISH, self.version)

    def _drain(self, now_s: float) -> list[Effect]:
        ending = self.ending
        if not ending.draining or self.training or ending.saving is not None:
            return []
        if ending.must_save and not self.guard.spoiled and ending.saved != self.version:
            return ending.save(self.version, self.trained)
        if self.words and not ending.has_waited(now_s):
            return ending.wait(now_s)
        effects = [] if ending.finished else self.ranks.order(RankOrder.FINISH, self.version)
        return effects + ending.reply_drained(self.name)

    # ---- steps ---------------------------------------------------------------------------

    def _ask(self, now_s: float) -> list[Effect]:
        """Ask for the next batch as early as the plan allows."""
        step = self.version + self.training
        unpublished = self.plan.sync and not self.publishing.settled
        held = self.training and not self.plan.prefetch
        if self._stands_still or unpublished or held or step >= self.plan.steps:
            return []
        return self.feed.ask(step, now_s)

    def _train(self, now_s: float) -> list[Effect]:
        """Begin the step whose batch has passed every door, unless it has aged meanwhile."""
        unpublished = self.plan.sync and not self.publishing.settled
        if self.training or self._stands_still or unpublished or not self.feed.ready:
            return []
        taken = self.feed.take(self.publishing.published)
        if isinstance(taken, list):
            return taken
        assert taken.step == self.version, (taken.step, self.version)
        self.training, self._batch = True, taken
        self.report.begun_s = now_s
        work = TrainBatch(f"train/{self.version}", taken)
        return self.ranks.order(RankOrder.TRAIN, self.version, work=work)

    # ---- work that ended -----------------------------------------------------------------

    def _worked(self, event: WorkDone, now_s: float) -> list[Effect]:
        if event.error:
            return [Fail(f"{event.key} failed: {event.error}")]
        match event.result:
            case StepOutcome():
                return self._step_ended(event.result, now_s)
            case Exported():
                told = self._record(self.version, {"perf/export_time": event.result.export_s})
                return [*self.publishing.send(event.result), told]
            case Saved(step=step, save_s=save_s):
                told = self._record(step, {"perf/save_model_time": save_s})
                return [*self.ending.done(event.result), told]
            case _:
                request, version = self._scores.pop(event.key)
                assert isinstance(event.result, tuple), event.result
                return [Reply(request, RowsScored(version=version, logprobs=event.result))]

    def _step_ended(self, outcome: StepOutcome, now_s: float) -> list[Effect]:
        assert self._batch is not None, "a step ended that never began"
        step, batch = self.version, self._batch
        self.training, self._batch = False, None
        effects: list[Effect] = []
        if not outcome.tripped:
            self.version += 1
            self.trained.add(self.version, batch.group_ids)
            self.publishing.owed |= self.is_last or not self.version % self.plan.publish_every_steps
            self._last_trained = StepTrained(
                step=step, version=self.version, group_ids=batch.group_ids
            )
            effects += self.words.tell(self.plan.buffer, self._last_trained)[0]
        metrics = self.report.line(step, batch, outcome, now_s)
        metrics["train/refused_groups"] = float(self.feed.num_refused)
        if outcome.tripped:
            effects.append(Tell(SUPERVISOR, untrained(self.name, step, outcome, metrics)))
        else:
            metrics["train/version"] = float(self.version)
            effects.append(self._record(step, metrics))
        if trip := self.guard.judge(self.name, step, outcome):
            self.tripped = trip.guard
            effects += self.words.tell(SUPERVISOR, trip)[0]
        return effects

    def _record(self, step: int, metrics: dict[str, float]) -> Effect:
        return Tell(SUPERVISOR, StepRecorded(source=self.name, step=step, metrics=metrics))

    # ---- peers ---------------------------------------------------------------------------

    def _score(self, message: ScoreRows, request: Request) -> list[Effect]:
        if self.training or message.version != self.version:
            state = f"version {self.version}" + (" being trained on" if self.training else "")
            reason = f"asked for version {message.version}, the weights are {state}"
            return [Reply(request, Refused(reason=reason))]
        key = f"score/{request.source}/{request.message_id}"
        self._scores[key] = (request, self.version)
        return self.ranks.order(
            RankOrder.SCORE,
            self.version,
            rows=message.rows,
            temperature=message.temperature,
            work=ScoreTokens(key, message.rows, message.temperature),
        )

    def _peer_restarted(self, actor: str) -> list[Effect]:
        if actor == self.plan.publisher:
            self.publishing.lost()
        if actor in self.plan.final_listeners:
            # What it was measuring has no score, and it does not know any more which is the last.
            self.ending.offer_again()
            return self.publishing.say_final_to(actor)
        if actor != self.plan.buffer:
            return []
        # It may have died between taking our last word and writing it down; twice does no harm.
        effects = self.feed.ask_again()
        if self._last_trained is not None:
            effects += self.words.tell(self.plan.buffer, self._last_trained)[0]
        return effects

    # ---- what others see -----------------------------------------------------------------

    def validate(self) -> None:
        """Assert what of TR-1 to TR-5 shows in the state."""
        assert self.version <= self.plan.steps, (self.version, self.plan.steps)
        self.trained.validate()
        assert self.training == (self._batch is not None), "TR-4 (whole)"
        pending = self.publishing.pending
        assert pending is None or pending <= self.version, (pending, self.version)

    def statistics(self) -> dict[str, object]:
        """Versions and counts."""
        return {
            "version": self.version,
            "steps": self.plan.steps,
            "published": self.publishing.published,
            "publishing": self.publishing.pending,
            "saved": self.ending.saved,
            "groups_trained": len(self.trained),
            "groups_refused": self.feed.num_refused,
            "words_not_taken": len(self.words),
        }

    def working_on(self) -> str:
        """What the next step waits for, in names."""
        if self.training:
            return f"trains step {self.version} since {self.report.begun_s:.1f}"
        if self.tripped:
            return f"stopped by guard {self.tripped} after step {self.version}"
        if said := self.ending.working_on(self.version):
            return said
        if self.publishing.pending is not None and (self.plan.sync or self.is_last):
            return self.publishing.waits()
        return self.feed.waits()
