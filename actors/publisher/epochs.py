"""Weight epochs: one version on its way to every engine, from PREPARE to its publication.

What happens when a step is refused, late, or an engine dies is in `failures`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.actors.effects import Ask, Effect, Tell, Wake
from milepost.actors.publisher.holds import Holds
from milepost.actors.publisher.lanes import Lane, Phase, Weights
from milepost.actors.publisher.listeners import UntoldFailure
from milepost.actors.publisher.movers import Mover
from milepost.actors.publisher.settings import PublisherSettings
from milepost.actors.publisher.turns import Turns, TurnVerdict
from milepost.messages.engine import AbortEpoch
from milepost.messages.publisher import BucketReady, VersionReady
from milepost.messages.supervisor import StepRecorded
from milepost.messages.trainer import KeepVersions, VersionFailed, VersionPublished

ARRIVING_MAX = 2


@dataclass(slots=True)
class Epoch:
    """One version on its way to all engines at once."""

    weights: Weights
    members: set[str]
    """Engines that take part; the dead leave."""
    since_s: float
    is_activating: bool = False
    activated_s: float = 0.0
    moved_s: float | None = None
    prepared_s: float | None = None
    unproven: set[str] = field(default_factory=set)
    """Engines that have not confirmed, or whose canary has not answered."""
    pause_s: float = 0.0
    """Longest stop of any engine."""
    difference: float | None = None
    """Largest difference that a canary showed, in nats."""
    turn: TurnVerdict | None = None
    """Of the turn through a session, where one was asked for."""

    @property
    def is_proven(self) -> bool:
        """True when every member serves the version, with evidence."""
        return self.is_activating and bool(self.members) and not self.unproven


@dataclass(slots=True)
class Epochs:
    """See the module."""

    settings: PublisherSettings
    lanes: dict[str, Lane]
    holds: Holds
    mover: Mover
    serving: Weights | None = None
    """The published version; its buckets stay, for engines that start again."""
    epoch: Epoch | None = None
    arriving: dict[int, Weights] = field(default_factory=dict)
    """Versions announced by the trainer and not begun, at most the two newest."""
    not_before_s: float = 0.0
    """No epoch begins earlier: the last one failed a moment ago."""
    num_published: int = 0
    num_skipped: int = 0
    announced: int | None = None
    """Newest version that came and lies on the trainer's GPU."""
    _kept: set[int] = field(default_factory=set)
    """Versions that the trainer was last told to keep there."""
    untold: UntoldFailure = field(init=False)
    turns: Turns = field(init=False)

    def __post_init__(self) -> None:
        """Nothing has failed yet."""
        self.untold = UntoldFailure(self.settings.leader)
        self.turns = Turns(self.settings)

    # ---- versions come -------------------------------------------------------------------

    def version_ready(self, message: VersionReady, now_s: float) -> list[Effect]:
        """The trainer made a version; its buckets follow."""
        if message.memory is not None:
            self.announced = max(message.version, self.announced or 0)
        if self.serving is not None and message.version == self.serving.version:
            return [Tell(self.settings.leader, self.published_word())]
        newest = self.epoch.weights if self.epoch else self.serving
        if newest is not None and message == newest.ready:
            return []  # said again; it is on its way
        if newest is not None and message.version <= newest.version:
            reason = f"version {newest.version} is on its way or serves already"
            return [self.failed_word(message.version, reason)]
        self.arrive(Weights(message, now_s))
        return []

    def arrive(self, weights: Weights) -> None:
        """A version waits to begin, for the first time or again; only the newest two do."""
        self.arriving[weights.version] = weights
        for version in sorted(self.arriving)[:-ARRIVING_MAX]:
            del self.arriving[version]
            self.num_skipped += 1

    def bucket_ready(self, message: BucketReady) -> None:
        """One bucket; of a version that was skipped already, nobody needs it."""
        served = [self.serving] if self.serving and self.mover.keeps_buckets else []
        for weights in (*self.on_the_way(), *served):
            known = weights.buckets.get(message.index)
            is_poorer = known is not None and len(known.tensors) > len(message.tensors)
            if weights.version == message.version and not is_poorer:
                weights.buckets[message.index] = message

    def on_the_way(self) -> list[Weights]:
        """Versions that are not published yet: the epoch's, and those that wait to begin."""
        begun = [self.epoch.weights] if self.epoch else []
        return [*begun, *self.arriving.values()]

    # ---- forward -------------------------------------------------------------------------

    def go_on(self, now_s: float) -> list[Effect]:
        """Whatever the state allows now: begin, move, activate."""
        effects = self._begin(now_s)
        if self.epoch is not None:
            effects += self.mover.prepare(self.epoch.weights)
        for lane in self.lanes.values():
            effects += self._move(lane)
        effects += self._activate_catching_up()
        return effects + self._cross_barrier(now_s)

    def _begin(self, now_s: float) -> list[Effect]:
        """Start the newest version, if nothing is under way or what is under way only waits."""
        if not self.arriving or now_s < self.not_before_s:
            return []
        newest = self.arriving[max(self.arriving)]
        effects: list[Effect] = []
        if self.epoch is not None:
            if self.epoch.is_activating or not (self.is_held_up() and newest.is_complete):
                return []
            self.num_skipped += 1
            effects += self.abort(f"version {newest.version} is newer")
        self.num_skipped += sum(version < newest.version for version in self.arriving)
        self.arriving.clear()
        members = {name for name, lane in self.lanes.items() if lane.phase is Phase.IDLE}
        self.epoch = Epoch(newest, members, now_s)
        effects += [self.start(self.lanes[name], newest) for name in sorted(members)]
        deadline = Wake(f"deadline/{newest.version}", now_s + self.settings.epoch_deadline_s)
        return [*effects, deadline]

    def start(self, lane: Lane, target: Weights) -> Effect:
        """An engine begins on its way to a version, or begins again."""
        randomize = self.settings.check_weight_update_equal and lane.confirmed is None
        return lane.begin(target, self.mover.num_moves(target), randomize=randomize)

    def _move(self, lane: Lane) -> list[Effect]:
        if lane.phase is not Phase.MOVING or lane.is_waiting:
            return []
        members = self.epoch.members if self.epoch else set()
        names = sorted(members) if lane.engine in members else [lane.engine]
        return self.mover.move(lane, [self.lanes[name] for name in names])

    def is_held_up(self) -> bool:
        """True when everything has arrived and only a hold stands before the activation."""
        return bool(self.holds) and self._all_moved()

    def _all_moved(self) -> bool:
        """True when every living engine has everything of the epoch's version."""
        members = self.epoch.members if self.epoch else set()
        return bool(members) and all(
            lane.phase is Phase.GONE or (name in members and lane.phase is Phase.MOVED)
            for name, lane in self.lanes.items()
        )

    def _activate_catching_up(self) -> list[Effect]:
        members = self.epoch.members if self.epoch else set()
        return [
            lane.activate(self.settings.pause)
            for lane in self.lanes.values()
            if lane.phase is Phase.MOVED and lane.engine not in members
        ]

    def _cross_barrier(self, now_s: float) -> list[Effect]:
        epoch = self.epoch
        if epoch is None or epoch.is_activating or not self._all_moved():
            return []
        if epoch.moved_s is None:
            epoch.moved_s = now_s
        if self.holds:
            return []
        epoch.is_activating = True
        epoch.activated_s = now_s
        epoch.unproven = set(epoch.members)
        return [self.lanes[name].activate(self.settings.pause) for name in sorted(epoch.members)]

    def step_done(self, lane: Lane, device: str, now_s: float) -> None:
        """An engine took PREPARE or a bucket; `device` as of its answer."""
        lane.answered(device)
        epoch = self.epoch
        if epoch is None or epoch.prepared_s is not None:
            return
        if all(self.lanes[name].phase is not Phase.PREPARING for name in epoch.members):
            epoch.prepared_s = now_s

    def proven(self, engine: str, now_s: float) -> list[Effect]:
        """This engine serves the version, with evidence."""
        assert self.epoch is not None
        self.epoch.unproven.discard(engine)
        return self.conclude(now_s)

    def conclude(self, now_s: float) -> list[Effect]:
        """Publish, once every member is proven and a session's turn is what it should be."""
        epoch = self.epoch
        if epoch is None or not epoch.is_proven:
            return []
        if epoch.turn is None and self.turns.wanted(epoch.weights):
            return self.turns.begin(epoch.weights, now_s)
        return self.publish(now_s)

    def publish(self, now_s: float) -> list[Effect]:
        """Every member proved to serve the version: tell everyone who counts versions."""
        assert self.epoch is not None
        epoch, self.epoch = self.epoch, None
        assert self.serving is None or epoch.weights.version > self.serving.version, "PU-2"
        self.serving = epoch.weights
        self.num_published += 1
        published = self.published_word()
        effects: list[Effect] = self.mover.published(self.serving)
        # First, since the trainer may export the next version as soon as this one is published.
        effects += self.keep_word()
        effects += [Tell(name, published) for name in self.settings.listeners]
        effects.append(Tell("supervisor", self._metrics(epoch, now_s)))
        for lane in self.lanes.values():
            effects += self.reconcile(lane)
        return effects

    # ---- backward ------------------------------------------------------------------------

    def abort(self, reason: str) -> list[Effect]:
        """End the epoch; engines that switched already are brought back (PU-4)."""
        assert self.epoch is not None
        epoch, self.epoch = self.epoch, None
        version = epoch.weights.version
        effects = self.turns.forget()
        for name in sorted(epoch.members):
            lane = self.lanes[name]
            if lane.phase is Phase.ACTIVATING:
                continue  # a switch cannot be stopped; its answer brings the engine back
            is_staged = lane.phase is not Phase.IDLE
            lane.stop(Phase.IDLE)
            if is_staged:
                abort = AbortEpoch(version=version, reason=reason)
                effects.append(Ask(name, abort, f"abort/{name}/{version}"))
        for lane in self.lanes.values():
            effects += self.reconcile(lane)
        return effects

    def reconcile(self, lane: Lane) -> list[Effect]:
        """Bring an engine that is not in the epoch to the published version, then into it.

        While an epoch is activated it waits: what is to be served then is about to be decided.
        """
        if lane.phase is not Phase.IDLE:
            return []
        epoch = self.epoch
        if epoch is not None and (epoch.is_activating or lane.engine in epoch.members):
            return []
        if self.serving is not None and lane.confirmed != self.serving.version:
            return [self.start(lane, self.serving)]
        if self.epoch is not None:
            self.epoch.members.add(lane.engine)
            return [self.start(lane, self.epoch.weights)]
        return []

    # ---- words ---------------------------------------------------------------------------

    def needed(self) -> set[int]:
        """Versions that an engine is on its way to, or may have to be brought to."""
        targets = (lane.target for lane in self.lanes.values())
        every = (*self.on_the_way(), self.serving, *targets)
        return {weights.version for weights in every if weights is not None}

    def keep_word(self) -> list[Effect]:
        """What the trainer is told when other versions than before are read on its GPU."""
        needed = self.needed()
        if self.announced is None or needed == self._kept:
            return []
        self._kept = needed
        word = KeepVersions(versions=tuple(sorted(needed)), announced=self.announced)
        return [Tell(self.settings.leader, word)]

    @property
    def serves_everywhere(self) -> bool:
        """True when every living engine serves the published version and none is switching."""
        if self.serving is None or (self.epoch is not None and self.epoch.is_activating):
            return False
        living = [lane for lane in self.lanes.values() if lane.phase is not Phase.GONE]
        return bool(living) and all(lane.confirmed == self.serving.version for lane in living)

    def published_word(self) -> VersionPublished:
        """What everyone who counts versions is told."""
        assert self.serving is not None
        ready = self.serving.ready
        return VersionPublished(version=ready.version, final=ready.final, digest=ready.digest)

    def failed_word(self, version: int, reason: str) -> Effect:
        """What the trainer is told."""
        serving = self.serving.version if self.serving else 0
        return self.untold.say(VersionFailed(version=version, serving=serving, reason=reason))

    def _metrics(self, epoch: Epoch, now_s: float) -> StepRecorded:
        moved_s = epoch.moved_s if epoch.moved_s is not None else epoch.activated_s
        prepared_s = epoch.prepared_s if epoch.prepared_s is not None else moved_s
        weights = epoch.weights
        lanes = [self.lanes[name] for name in epoch.members]
        metrics = {
            "perf/update_weights_version": float(weights.version),
            "perf/update_weights_time": now_s - epoch.since_s,
            "perf/update_weights_prepare_time": prepared_s - epoch.since_s,
            "perf/update_weights_move_time": moved_s - prepared_s,
            "perf/update_weights_hold_time": epoch.activated_s - moved_s,
            "perf/update_weights_activate_time": now_s - epoch.activated_s,
            "perf/update_weights_pause_time": epoch.pause_s,
            "perf/update_weights_wire_bytes": float(self.mover.wire_bytes(weights, lanes)),
            "perf/update_weights_cuda_ipc_bytes": float(
                weights.announced_bytes * sum(lane.by_handle for lane in lanes)
            ),
            "perf/update_weights_skipped": float(self.num_skipped),
        }
        if weights.written is not None:
            metrics["perf/update_weights_density"] = weights.written.density
            metrics["perf/update_weights_encode_cpu_time"] = weights.written.cpu_s
        if epoch.difference is not None:
            metrics["perf/canary_logprob_difference"] = epoch.difference
        if epoch.turn is not None:
            metrics["perf/canary_turn_time"] = epoch.turn.seconds
            metrics["perf/canary_turn_missed"] = float(self.turns.num_missed)
            if epoch.turn.difference is not None:
                metrics["perf/canary_turn_logprob_difference"] = epoch.turn.difference
        return StepRecorded(source="publisher", step=epoch.weights.version, metrics=metrics)

    def validate(self) -> None:
        """Assert PU-2, and that every member is on its way to the epoch's version."""
        assert len(self.arriving) <= ARRIVING_MAX, sorted(self.arriving)
        if self.epoch is None:
            return
        if self.serving is not None:
            assert self.epoch.weights.version > self.serving.version, "PU-2 (no regress)"
        for name in self.epoch.members:
            lane = self.lanes[name]
            assert lane.phase is not Phase.GONE, lane
            assert lane.target is None or lane.target is self.epoch.weights, lane
        if self.epoch.is_activating:
            assert self.epoch.unproven <= self.epoch.members, self.epoch
