"""Variants with one mistake each, of a kind that other systems were bitten by.

They are the canaries: a simulator under which they pass sees nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace
from sim.engines import Engine
from sim.rows import SHAPES, logprobs, probe_row
from sim.standins import Session

from milepost.actors.buffer.batches import Batches
from milepost.actors.buffer.core import Buffer
from milepost.actors.buffer.courier import Courier
from milepost.actors.buffer.groups import StoredGroup
from milepost.actors.buffer.marks import Fates, Mark
from milepost.actors.buffer.settings import BufferSettings
from milepost.actors.buffer.work import KeepGroup, WriteMarks
from milepost.actors.effects import Effect, Event
from milepost.actors.engine.epochs import Epochs as EngineEpochs
from milepost.actors.publisher.core import Publisher
from milepost.actors.publisher.epochs import Epochs
from milepost.actors.publisher.failures import Failures
from milepost.actors.publisher.fleet import FleetPublisher
from milepost.actors.publisher.holds import Holds
from milepost.actors.publisher.lanes import Lane, Weights
from milepost.actors.publisher.movers import mover_of
from milepost.actors.publisher.proofs import Proofs
from milepost.actors.publisher.settings import PublisherSettings
from milepost.actors.rollout.core import Rollout
from milepost.actors.rollout.cursor import PromptOrder
from milepost.actors.rollout.groups import Stage
from milepost.actors.rollout.ledger import Ledger
from milepost.actors.rollout.settings import RolloutSettings
from milepost.messages.session import FinishTrajectory
from milepost.messages.trajectory import Trajectory

# ---- the buffer --------------------------------------------------------------------------


class TellsBeforeItWrites(Buffer):
    """Says that a group is stored, or a batch cut, before the journal has it."""

    def _store(self, groups: Sequence[StoredGroup]) -> list[Effect]:
        keeps = [KeepGroup(f"keep/{group.group_id}", group) for group in groups]
        return [*self._stored(groups), *keeps]

    def _mark(
        self, marks: tuple[Mark, ...], then: list[Effect], *, covered: bool = False
    ) -> list[Effect]:
        marks = (*self.waste.take_marks(), *marks)
        self.fates.apply_all(marks)
        return [*then, WriteMarks("marks/", marks, covered)]

    def _serve(self, now_s: float) -> list[Effect]:
        effects = super()._serve(now_s)
        for cut in self.batches._cuts.values():
            cut.is_written = True
        return effects + self.batches.answer(now_s)

    def _written(self, key: str, error: str) -> list[Effect]:
        del key, error
        return []


class ForgetsWhatWasHandedOut(Buffer):
    """After a restart, offers every group that is not trained, also what is being trained."""

    @classmethod
    def of(cls, settings: BufferSettings, fates: Fates, stored: Sequence[StoredGroup]) -> Buffer:
        fates.handed.clear()
        return super().of(settings, fates, stored)


class CountsMembersNotNames(Buffer):
    """A member that comes a second time counts as another one (33 of 32)."""

    def _arrived(self, members: Sequence[tuple[Trajectory, ...]], now_s: float) -> list[Effect]:
        for rows in members:
            assembly = self.assembling.groups.get(rows[0].group_id)
            if assembly and rows[0].trajectory_id in assembly.members:
                assembly.members[f"{rows[0].trajectory_id}'"] = rows
                return self._completed((assembly,))
        return super()._arrived(members, now_s)


class ForgetsTooSoon(Buffer):
    """Forgets the names of trained groups at a checkpoint, whether or not anybody heard of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.courier = Deaf(self._recovered)


class Deaf(Courier):
    def unheard(self) -> Iterable[str]:
        return ()


class JudgesAgeWhenStored(Buffer):
    """Believes that what was fresh when it came is fresh when it leaves."""

    def _drop_late(self) -> list[Effect]:
        return []


class CapacityFromRecoveredVersion(Batches):
    """Room = (bound + version + 1) batches, against what was issued since the process started."""

    def credit_groups(self, num_spent: int) -> int:
        if self.settings.pace is None:
            return super().credit_groups(num_spent)
        if self.published is None:
            return num_spent
        room = (self.settings.pace + self.published + 1) * self.settings.groups_per_step
        return num_spent + min(room, self.settings.groups_max)


def capacity_from_recovered_version(
    settings: BufferSettings, fates: Fates, stored: Sequence[StoredGroup]
) -> Buffer:
    buffer = Buffer.of(settings, fates, stored)
    naive = CapacityFromRecoveredVersion(settings, buffer.batches.next_version)
    naive.queue = buffer.batches.queue
    buffer.batches = buffer.credits.batches = naive
    return buffer


# ---- the rollout actor -------------------------------------------------------------------


class WaitsForTheDead(Rollout):
    """Takes it that whoever got an episode will say how it ended, some day."""

    @classmethod
    def of(cls, settings: RolloutSettings, order: PromptOrder, ledger: Ledger) -> Rollout:
        rollout = super().of(settings, order, ledger)
        rollout.flight.pool.started_s = 1e15
        return rollout

    def _peer_restarted(self, actor: str, now_s: float) -> list[Effect]:
        del actor, now_s
        return []


class TriesAgainAtOnce(Rollout):
    """Takes it that what was lost is worth another attempt, and now."""

    def _unanswered(self, key: str, to: str, reason: str, now_s: float) -> list[Effect]:
        effects = super()._unanswered(key, to, reason, now_s)
        for group in self.flight.groups.values():
            for member in group.members.values():
                if member.stage is Stage.PENDING:
                    self.verdicts.again_due(group.trajectory_id(member))
        return effects


def skips_what_was_in_flight(
    settings: RolloutSettings, order: PromptOrder, ledger: Ledger
) -> Rollout:
    """Goes on from the saved cursor: what was under way at the stop is nobody's any more."""
    ledger.num_issued -= len(ledger.open)
    ledger.open.clear()
    return Rollout.of(settings, order, ledger)


def reads_the_data_from_the_start(
    settings: RolloutSettings, order: PromptOrder, ledger: Ledger
) -> Rollout:
    """Saves no cursor at all."""
    return Rollout.of(settings, order, Ledger(checkpoints_named=ledger.checkpoints_named))


# ---- the publisher -----------------------------------------------------------------------


class PublishesAtTheFirstAnswer(Epochs):
    """One engine confirmed: surely the others will."""

    def proven(self, engine: str, now_s: float) -> list[Effect]:
        assert self.epoch is not None
        self.epoch.unproven.discard(engine)
        return self.publish(now_s)


class ActivatesAtOnce(Epochs):
    """No barrier: each engine switches when it has everything."""

    def _all_moved(self) -> bool:
        members = self.epoch.members if self.epoch else set()
        return any(str(self.lanes[name].phase) == "moved" for name in members)


class NeverHolds(Holds):
    """Grants a hold and activates all the same."""

    def __bool__(self) -> bool:
        return False


def publisher_with(
    settings: PublisherSettings, epochs_kind: type[Epochs] = Epochs, holds_kind: type[Holds] = Holds
) -> Publisher:
    """Ours, with one part exchanged."""
    holds = holds_kind()
    lanes = {name: Lane(name) for name in settings.engines}
    epochs = epochs_kind(settings, lanes, holds, mover_of(settings))
    proofs = Proofs(settings)
    return Publisher(settings, holds, epochs, Failures(epochs, proofs), proofs)


class FollowsWhileItIsMeasured(FleetPublisher):
    """Moves every published version to the evaluation engines, held or not."""

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        effects = super().handle(event, now_s)
        published, epochs = self.training.epochs.serving, self.evaluation.epochs
        served = epochs.serving.version if epochs.serving else -1
        known = [each.version for each in epochs.on_the_way()]
        if published and published.version > served and published.version not in known:
            self.evaluation.holds = epochs.holds = Holds()
            epochs.arrive(Weights(published.ready, now_s, published.buckets))
            effects += self._led(epochs.go_on(now_s))
        return effects


# ---- sessions, as the canary's turn meets them -------------------------------------------


class AsksAStranger(Session):
    """Its engine belongs to another run, which is at the same version of something else."""

    def _finished(self, row: Any, verdict: FinishTrajectory) -> Trajectory:
        finished = super()._finished(row, verdict)
        turns = tuple(replace(turn, engine="engine-7") for turn in finished.turns)
        return replace(finished, turns=turns)


class RendersOtherwise(Session):
    """Has a template of its own, with one token more."""

    def _finished(self, row: Any, verdict: FinishTrajectory) -> Trajectory:
        finished = super()._finished(row, verdict)
        if row.probed is None:
            return finished
        return probe_row(verdict.trajectory_id, *row.probed, prompt=2)


class LeavesTheAdapterOut(Session):
    """Each reply is sampled by the base: what its engine serves is said of it all the same."""

    def _finished(self, row: Any, verdict: FinishTrajectory) -> Trajectory:
        finished = super()._finished(row, verdict)
        if row.probed is None:
            return finished
        return replace(finished, logprobs=logprobs(2))


# ---- engines -----------------------------------------------------------------------------


class KnowsWhatItWasTold(EngineEpochs):
    """Has digests of versions whose switch it has heard the end of."""

    def _digest(self, version: int) -> str:
        return self.digests.get(version, "")


class HearsOfItsSwitchFirst(Engine):
    """Takes it that nothing is sampled under a version before it has heard that this serves."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.core._epochs = KnowsWhatItWasTold(self.name, SHAPES)
