"""The checkers: the invariants of the whole, looked at from outside of every core.

- ledger: each core asserts its balance after every event; at the end what was trained is what the
  checkpoint says, nothing was trained twice on the way that counts, and no prompt was skipped.
- budget and capacity: asserted by the cores after every event (FL-1, BU-1).
- epochs: a version is published only when every living engine serves exactly it, and published
  versions grow.
- staleness: what a batch holds is within the limit by the version the buffer knew; when paced, no
  group that was complete in time is left behind by its last good batch.
- stop: the run ends within a number of deliveries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sim.engines import Engine
from sim.learners import Trainer
from sim.network import Network
from sim.standins import SEEN

from milepost.actors.buffer.marks import Handed
from milepost.actors.buffer.work import WriteMarks
from milepost.actors.effects import Ask, Effect, Reply, Request, Tell
from milepost.actors.publisher.core import Publisher
from milepost.actors.publisher.fleet import FleetPublisher
from milepost.actors.publisher.lanes import Phase
from milepost.actors.rollout.ledger import Ledger, place_of
from milepost.configs.topology import Topology
from milepost.messages.buffer import Batch
from milepost.messages.engine import ActivateEpoch
from milepost.messages.publisher import HoldVersion, ReleaseVersion, VersionHeld
from milepost.messages.rollout import GroupDropped
from milepost.messages.supervisor import EventReported
from milepost.messages.trainer import VersionPublished

if TYPE_CHECKING:
    from sim.disk import Disk

LOOKED_AT = {
    VersionPublished, ActivateEpoch, HoldVersion, VersionHeld, ReleaseVersion, EventReported,
    WriteMarks, Batch, GroupDropped,
}  # fmt: skip
"""What `Watch.effect` has a case for: most effects are none of these."""


class Watch:
    """Sees every effect before it is carried out, and every batch as it is trained."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.trained: dict[int, tuple[str, ...]] = {}
        """Version trained on -> groups, of the timeline that counts."""
        self.batches: list[tuple[int, Batch]] = []
        self.published: list[int] = []
        self.events: Counter[str] = Counter()
        self.evaluations: list[dict[str, Any]] = []
        self.dropped: set[str] = set()
        self._network: Network | None = None
        self._parts: dict[int, dict[int, Batch]] = {}
        self._holding: int | None = None
        self._fleet = topology.names("evaluation_engine")
        self._pinned: int | None = None
        self.skipped: dict[int, str] = {}
        """Versions that were due and got no score, with the reason."""
        self._resumed = {0}
        self._saved: list[int] = []
        """Checkpoints, of the timeline that counts."""
        self._announced: list[int] = []
        """Published versions that the evaluator has heard of, likewise."""

    def begin(self, network: Network, resume_version: int | None) -> None:
        """The run starts, or goes on from a checkpoint: what came after that is void."""
        self._network = network
        version = resume_version or 0
        self.trained = {at: groups for at, groups in self.trained.items() if at < version}
        self._parts = {}
        self._holding = self._pinned = None
        self._resumed.add(version)
        self._saved = [each for each in self._saved if each <= version]
        self._announced = [each for each in self._announced if each <= version]
        self.evaluations = [each for each in self.evaluations if each["version"] <= version]
        self.skipped = {at: why for at, why in self.skipped.items() if at <= version}
        self.published.clear()

    def saved(self, version: int) -> None:
        """A checkpoint exists."""
        self._saved.append(version)

    def heard(self, version: int) -> None:
        """The evaluator was told of a version."""
        if version not in self._announced:
            self._announced.append(version)

    # ---- as it happens -------------------------------------------------------------------

    def effect(self, actor: str, effect: Effect) -> None:
        """Called before an effect is carried out."""
        if type(getattr(effect, "message", effect)) not in LOOKED_AT:
            return
        match effect:
            case Tell("buffer", VersionPublished() as message) if actor == "publisher":
                self._check_published(message)
            case Ask(to, ActivateEpoch() as message) if to in self._fleet:
                assert self._pinned in (None, message.version), (
                    f"{to} gets version {message.version} while {self._pinned} is measured on it"
                )
            case Ask(_, ActivateEpoch() as message):
                assert self._holding in (None, message.version), (
                    f"version {message.version} is activated while {self._holding} is held"
                )
            case Reply(request, VersionHeld()) if not self._is_waited_for(request):
                pass
            case Reply(_, VersionHeld(fleet=True) as message):
                self._check_fleet(message.version)
                self._pinned = message.version
            case Tell(_, ReleaseVersion(fleet=True)) | Ask(_, HoldVersion(fleet=True)):
                self._pinned = None  # asked for by a next life, what the last one held is let go
            case Reply(_, VersionHeld() as message):
                self._check_engines(message.version, "held")
                self._holding = message.version
            case Tell(_, ReleaseVersion()):
                self._holding = None
            case Tell("supervisor", EventReported() as message):
                self.events[message.kind] += 1
                assert message.kind != "canary", f"the canary is red: {message.text}"
                if message.kind == "evaluation":
                    self._check_score(message.values)
                    self.evaluations.append(message.values)
                elif message.kind == "evaluation_skipped":
                    self._check_skip(message.values["version"], message.values["reason"])
            case WriteMarks(_, (Handed() as mark,)):
                self._check_paced(mark.version)
            case Reply(_, Batch() as message):
                self._check_ages(message)
            case Tell("rollout", GroupDropped() as message):
                self.dropped.add(message.group_id)
            case _:
                pass

    def _is_waited_for(self, request: Request) -> bool:
        """Whether whoever asked lives, and has not given up."""
        assert self._network is not None
        return request.message_id in self._network.actors[request.source].asks

    def _check_skip(self, version: int, reason: str) -> None:
        """No score: not for want of files that the trainer was to keep, nor beside a score."""
        # A checkpoint that the run died with was never offered: the trainer may go on without it.
        assert reason != "checkpoint_missing" or version in self._resumed, (
            f"its files were taken away: {version}"
        )
        known = self.skipped.setdefault(version, reason)
        if self._is_external:
            scored = version in {each["version"] for each in self.evaluations}
            assert not scored, f"version {version} is skipped ({reason}), and has a score"
            assert reason == known or version == self._last, (
                f"version {version} is skipped for two reasons: {known}, {reason}"
            )

    def _check_score(self, score: dict[str, Any]) -> None:
        """Measured once; a class of the user's has looked at the files of this very version."""
        version = score["version"]
        others = [each for each in self.evaluations if each["version"] == version]
        if not score["external"]:
            whole = [each for each in others if each["sampled"] and each["greedy"]]
            assert all(each == score for each in whole), f"scored twice: {whole} {score}"
            return
        looked_at = score["external"]["version"]
        assert looked_at == version, f"a score of {looked_at} is told of {score}"
        assert all(each == score for each in others), f"scored twice: {others} {score}"
        assert version not in self.skipped or version == self._last, (
            f"version {version} has a score, and is skipped ({self.skipped[version]})"
        )

    @property
    def _is_external(self) -> bool:
        evaluator = self.topology.actors.evaluator
        return evaluator is not None and bool(evaluator.external)

    @property
    def _last(self) -> int:
        """Its score is tried for again and again."""
        return self.topology.run.steps

    def _check_published(self, message: VersionPublished) -> None:
        if self.published and self.published[-1] == message.version:
            return  # said again to an actor that restarted
        assert not self.published or message.version > self.published[-1], (
            f"published version went from {self.published[-1]} to {message.version}"
        )
        self.published.append(message.version)
        self._check_engines(message.version, "published")

    def _check_engines(self, version: int, word: str) -> None:
        assert self._network is not None
        publisher = self._network.actors["publisher"].core
        publisher = publisher.training if isinstance(publisher, FleetPublisher) else publisher
        lanes = publisher.epochs.lanes if isinstance(publisher, Publisher) else {}
        for name in self.topology.names("engine"):
            engine = self._network.actors[name].core
            if engine is None or (name in lanes and lanes[name].phase is Phase.GONE):
                continue
            if name in lanes and lanes[name].confirmed is None:
                continue  # it started again and is being brought to the version
            assert isinstance(engine, Engine)
            assert engine.version == version or engine.version is None, (
                f"version {version} is {word} and {name} serves {engine.version}"
            )

    def _check_fleet(self, version: int) -> None:
        """One score never combines two versions: every living engine serves the one it is of."""
        assert self._network is not None
        publisher = self._network.actors["publisher"].core
        assert isinstance(publisher, FleetPublisher)
        for name, lane in publisher.evaluation.epochs.lanes.items():
            engine = self._network.actors[name].core
            if engine is None or lane.phase is Phase.GONE or lane.confirmed is None:
                continue
            assert isinstance(engine, Engine)
            assert engine.version in (version, None), (
                f"version {version} is measured and {name} serves {engine.version}"
            )

    def _check_ages(self, batch: Batch) -> None:
        buffer = self.topology.actors.buffer
        assert buffer is not None
        limit, published = buffer.max_weight_staleness, self._version_at_cut(batch.step)
        if limit is None or published is None:
            return
        if buffer.staleness_policy == "correct" or buffer.late == "correct":
            return
        for trajectory in batch.trajectories:
            oldest = min(span.version for span in trajectory.spans)
            assert published - oldest <= limit, (
                f"{trajectory.trajectory_id} of version {oldest} is handed out while "
                f"{published} is published, the limit is {limit}"
            )

    def _check_paced(self, version: int) -> None:
        """A batch was cut on top of `version`: what stays behind can still be consumed in time.

        Groups that were issued in time for this batch are at most as many as it takes, because
        credits count from the run's beginning, and the oldest go first.
        """
        assert self._network is not None
        core: Any = self._network.actors["buffer"].core
        pace, every = core.settings.pace, core.settings.publish_every
        if pace is None or core.settings.partial:
            return  # a partial rollout is late by one version on purpose
        for group in core.batches.queue.values():
            if group.versions is not None:
                due = ((group.versions.oldest + pace) // every + 1) * every - 1
                assert due > version, (
                    f"{group.group_id} of version {group.versions.oldest} was complete for the "
                    f"batch on top of {version}, its last good one, and was left behind"
                )

    def _version_at_cut(self, step: int) -> int | None:
        # A batch is written down between its cut and its way out; the trainer's door judges again.
        assert self._network is not None
        core: Any = self._network.actors["buffer"].core
        version: int | None = core.batches._cuts[step].published
        return version

    def batch(self, rank: int, batch: Batch, published: int | None) -> None:
        """A rank starts to train its part."""
        del published
        parts = self._parts.setdefault(batch.step, {})
        parts[rank] = batch
        config = self.topology.actors.trainer
        assert config is not None
        if len(parts) == config.ranks:
            self._check_parts([parts[at] for at in sorted(parts)])
        if rank == 0:
            self._check_once(batch)

    def is_joined(self, step: int) -> bool:
        """Whether every rank has its part of this step."""
        config = self.topology.actors.trainer
        assert config is not None
        return len(self._parts.get(step, {})) == config.ranks

    def _check_parts(self, parts: list[Batch]) -> None:
        """Every trajectory of the batch is in exactly one part; normalisers agree."""
        first = parts[0]
        names = [each.trajectory_id for part in parts for each in part.trajectories]
        assert len(names) == len(set(names)) == first.num_trajectories, names
        assert {part.group_ids for part in parts} == {first.group_ids}
        assert {name.rpartition(".")[0] for name in names} == set(first.group_ids)
        assert sum(first.minibatch_loss_tokens) == first.num_loss_tokens
        assert sum(first.minibatch_trajectories) == first.num_trajectories

    def _check_once(self, batch: Batch) -> None:
        assert batch.step not in self.trained or self.trained[batch.step] == batch.group_ids
        self._check_trained_ages(batch)
        self._check_seen(batch)
        before = {name for groups in self.trained.values() for name in groups}
        if batch.step not in self.trained:
            again = before & set(batch.group_ids)
            assert not again, f"trained twice: {sorted(again)}"
        self.trained[batch.step] = batch.group_ids
        self.batches.append((batch.step, batch))

    def _check_seen(self, batch: Batch) -> None:
        """The reward of every trajectory is about the very tokens that are trained with it."""
        for each in batch.trajectories:
            if SEEN in each.metrics:
                trained = bytes(each.loss_mask.data).count(1)
                seen = each.metrics[SEEN]
                assert trained == seen, f"{each.trajectory_id}: the reward saw {seen} of {trained}"

    def _check_trained_ages(self, batch: Batch) -> None:
        """Invariant 5, by the version the trainer knows at the moment it trains."""
        assert self._network is not None
        trainer = self._network.actors["trainer-0"].core
        assert isinstance(trainer, Trainer)
        assert not trainer._stale(batch), f"batch {batch.step} is trained stale"

    # ---- at the end ----------------------------------------------------------------------

    def ended(self, disk: Disk, ledger: Ledger | None, problems: Mapping[str, str]) -> None:
        """Every batch was full, the checkpoint agrees, and no prompt was skipped on the way."""
        self._check_trained(disk)
        if ledger is not None:
            self._check_positions(ledger)
        for evaluation in self.evaluations:
            for mode in ("sampled", "greedy"):
                score = evaluation.get(mode)
                assert score is None or score["num_mixed"] == 0, evaluation
        evaluator = self.topology.actors.evaluator
        if evaluator is not None:
            known = self._saved if evaluator.external else self._announced
            self._check_due(known, evaluator.every_versions)
        if evaluator is not None and evaluator.at_end:
            self._check_end(problems.get("evaluator", ""))

    def _check_due(self, known: list[int], every: int) -> None:
        """Every version that was due, and the starting one, has a score or a reason."""
        pairs = pairwise([0, *known])
        due = {0, *(now for before, now in pairs if every and now // every > before // every)}
        lost = due - {each["version"] for each in self.evaluations} - self.skipped.keys()
        assert not lost, f"versions {sorted(lost)} were due, and nobody knows of them"

    def _check_end(self, problem: str) -> None:
        """The last version has its score, or the run says by name that it has none."""
        measured = {each["version"] for each in self.evaluations}
        steps = self.topology.run.steps
        if problem:
            assert f"version {steps}, the last one, has no score" in problem, problem
        else:
            assert steps in measured, f"no score of version {steps}: {measured}, {self.skipped}"

    def _check_positions(self, ledger: Ledger) -> None:
        """Every position of the prompt order up to the cursor has a fate, or is on its way."""
        names = {name for groups in self.trained.values() for name in groups}
        names |= self.dropped | ledger.open.keys() | ledger.stored.keys()
        seen = {place_of(name).position for name in names}
        seen |= {place.position for place in ledger.again}
        skipped = set(range(ledger.position)) - seen
        assert not skipped, f"prompts at positions {sorted(skipped)} were skipped"

    def _check_trained(self, disk: Disk) -> None:
        assert disk.checkpoint is not None
        steps, size = self.topology.run.steps, self.topology.algorithm.prompts_per_step
        assert sorted(self.trained) == list(range(steps)), sorted(self.trained)
        counts = Counter(map(len, self.trained.values()))
        assert counts == Counter({size: steps}), counts
        trained = [name for _, groups in sorted(self.trained.items()) for name in groups]
        before = disk.checkpoint.before
        assert list(disk.checkpoint.trained) == trained[before:], (disk.checkpoint, trained)
