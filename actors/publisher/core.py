"""The publisher: weight epochs as transactions over all engines.

PREPARE and MOVE run beside generation; when every engine has everything, ACTIVATE switches each of
them, the canary asks each for evidence, and only then is the version published. Whatever fails
before, the engines go on with the last published version (or are brought back to it).

Owns: versions on their way, the buckets of the last published one, holds on it.
Receives: versions and buckets from the trainer, holds from the evaluator, engines that (re)start.
Sends: epoch orders to engines, the published version to everyone who counts versions.
Invariants:
    PU-1 (one version): a version is published only after every living engine confirmed it whole and
        the canary agreed.
    PU-2 (no regress): published versions only grow.
    PU-3 (hold): nothing is activated on a serving engine while the version is held.
    PU-4 (back): after a failed epoch every engine serves the last published version.
Starts: at once; the first version makes the engines serve.
Dies: when no engine can be brought to a version after several tries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
    WorkDone,
)
from milepost.actors.publisher.canary import verdict
from milepost.actors.publisher.holds import Holds
from milepost.actors.publisher.lanes import Lane, Phase, Weights
from milepost.messages.engine import AbortEpoch, EpochAnswer, EpochConfirmed, Score, Scored
from milepost.messages.publisher import (
    BucketReady,
    EngineReady,
    HoldVersion,
    ReleaseVersion,
    VersionReady,
)
from milepost.messages.supervisor import (
    Drain,
    Drained,
    EventReported,
    PeerRestarted,
    StepRecorded,
)
from milepost.messages.trainer import VersionFailed, VersionPublished

if TYPE_CHECKING:
    from milepost.actors.publisher.settings import PublisherSettings
    from milepost.messages.shared import Message

TRIES_MAX = 3
AGAIN_S = 1.0


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
    """Engines that confirmed and whose canary has not answered."""


@dataclass(slots=True)
class Publisher:
    """See the module."""

    settings: PublisherSettings
    lanes: dict[str, Lane] = field(default_factory=dict)
    serving: Weights | None = None
    epoch: Epoch | None = None
    arriving: dict[int, Weights] = field(default_factory=dict)
    """Versions announced by the trainer and not begun, at most the two newest."""
    holds: Holds = field(default_factory=Holds)
    num_published: int = 0
    num_skipped: int = 0
    num_failed: int = 0
    _not_before_s: float = 0.0
    _draining: Request | None = None

    def __post_init__(self) -> None:
        """Every engine of the topology has a lane from the start."""
        self.lanes = {engine: Lane(engine) for engine in self.settings.engines}

    def start(self, now_s: float) -> list[Effect]:
        """The trainer speaks first."""
        del now_s
        return []

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """The one door."""
        effects = self._decide(event, now_s)
        effects += self._go_on(now_s)
        return effects

    def _decide(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Received(source, message, request):
                return self._received(source, message, request, now_s)
            case Answered(key, _, message):
                return self._answered(key, message, now_s)
            case Unanswered(key, _, reason):
                return self._unanswered(key, reason, now_s)
            case Woken(key):
                return self._woken(key, now_s)
            case WorkDone() | Taken():
                return []

    def _received(
        self, source: str, message: Message, request: Request | None, now_s: float
    ) -> list[Effect]:
        match message:
            case VersionReady():
                return self._version_ready(message, now_s)
            case BucketReady():
                return self._bucket_ready(message)
            case HoldVersion():
                assert request is not None
                self.holds.asked(message, request)
            case ReleaseVersion():
                self.holds.release(message.holder)
            case EngineReady():
                return self._engine_ready(message.engine, now_s)
            case PeerRestarted():
                return self._peer_restarted(message.actor)
            case Drain():
                assert request is not None
                self._draining = request
            case _:
                raise TypeError(f"publisher was told {type(message).__name__} by {source}")
        return []

    # ---- versions come -------------------------------------------------------------------

    def _version_ready(self, message: VersionReady, now_s: float) -> list[Effect]:
        newest = self.epoch.weights if self.epoch else self.serving
        if newest is not None and message.version <= newest.version:
            reason = f"version {newest.version} is newer or the same"
            return [self._failed_word(message.version, reason)]
        self.arriving[message.version] = Weights(message, now_s)
        for version in sorted(self.arriving)[:-2]:
            del self.arriving[version]
            self.num_skipped += 1
        return []

    def _bucket_ready(self, message: BucketReady) -> list[Effect]:
        for weights in (*self.arriving.values(), *([self.epoch.weights] if self.epoch else [])):
            if weights.version == message.version:
                weights.buckets[message.index] = message
        return []

    def _go_on(self, now_s: float) -> list[Effect]:
        """Whatever the state allows now: begin, move, activate, grant holds."""
        effects = self._begin_epoch(now_s)
        for lane in self.lanes.values():
            effects += lane.next_bucket()
        effects += self._activate_catching_up()
        effects += self._cross_barrier(now_s)
        if self.serving is not None and not (self.epoch and self.epoch.is_activating):
            effects += self.holds.grant(self.serving.version, now_s)
        if self._draining and not (self.epoch and self.epoch.is_activating):
            effects.append(Reply(self._draining, Drained(actor="publisher")))
            self._draining = None
        return effects

    def _begin_epoch(self, now_s: float) -> list[Effect]:
        """Start the newest version, if nothing is under way or what is under way only waits."""
        if not self.arriving or now_s < self._not_before_s:
            return []
        newest = self.arriving[max(self.arriving)]
        effects: list[Effect] = []
        if self.epoch is not None:
            if self.epoch.is_activating or not (self._is_held_up() and newest.is_complete):
                return []
            self.num_skipped += 1
            effects += self._abort(f"version {newest.version} is newer")
        self.num_skipped += sum(version < newest.version for version in self.arriving)
        self.arriving.clear()
        members = {name for name, lane in self.lanes.items() if lane.phase is Phase.IDLE}
        self.epoch = Epoch(newest, members, now_s)
        effects += [self.lanes[name].begin(newest) for name in sorted(members)]
        deadline = Wake(f"deadline/{newest.version}", now_s + self.settings.epoch_deadline_s)
        return [*effects, deadline]

    def _is_held_up(self) -> bool:
        """True when everything has arrived and only a hold stands before the activation."""
        return bool(self.holds) and self._all_moved()

    def _all_moved(self) -> bool:
        members = self.epoch.members if self.epoch else set()
        return bool(members) and all(self.lanes[name].phase is Phase.MOVED for name in members)

    # ---- activation ----------------------------------------------------------------------

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

    def _confirmed(self, lane: Lane, message: EpochConfirmed, now_s: float) -> list[Effect]:
        assert lane.target is not None
        if message.version != lane.target.version or message.digest != lane.target.ready.digest:
            reason = (
                f"{lane.engine} confirmed version {message.version} ({message.digest}), "
                f"asked for {lane.target.version} ({lane.target.ready.digest})"
            )
            return self._lane_failed(lane, reason, now_s)
        weights = lane.target
        lane.confirm(message.pause_s)
        if self.epoch is None or lane.engine not in self.epoch.members:
            return self._reconcile(lane)
        if self.settings.canary and weights.ready.probe_rows:
            score = Score(rows=weights.ready.probe_rows)
            return [Ask(lane.engine, score, f"canary/{lane.engine}/{weights.version}")]
        return self._proven(lane.engine, now_s)

    def _scored(self, key: str, message: Message, now_s: float) -> list[Effect]:
        _, engine, version = key.split("/")
        epoch = self.epoch
        if epoch is None or epoch.weights.version != int(version) or engine not in epoch.unproven:
            return []
        ready = epoch.weights.ready
        if isinstance(message, Scored):
            limit = self.settings.canary_difference_max
            reason = verdict(engine, int(version), ready.probe_logprobs, message, limit)
        else:
            reason = f"{engine} did not score the probe: {message}"
        if not reason:
            return self._proven(engine, now_s)
        event = EventReported(source="publisher", kind="canary", text=reason)
        return [Tell("supervisor", event), *self._fail_epoch(reason, now_s)]

    def _proven(self, engine: str, now_s: float) -> list[Effect]:
        assert self.epoch is not None
        self.epoch.unproven.discard(engine)
        return self._publish(now_s) if self._is_proven() else []

    def _is_proven(self) -> bool:
        epoch = self.epoch
        return bool(epoch and epoch.is_activating and epoch.members and not epoch.unproven)

    def _publish(self, now_s: float) -> list[Effect]:
        assert self.epoch is not None
        epoch, self.epoch = self.epoch, None
        assert self.serving is None or epoch.weights.version > self.serving.version, "PU-2"
        self.serving = epoch.weights
        self.num_published += 1
        published = self._published_word()
        effects: list[Effect] = [Tell(name, published) for name in self.settings.listeners]
        effects.append(Tell("supervisor", self._metrics(epoch, now_s)))
        for lane in self.lanes.values():
            effects += self._reconcile(lane)
        return effects

    def _published_word(self) -> VersionPublished:
        assert self.serving is not None
        ready = self.serving.ready
        return VersionPublished(version=ready.version, final=ready.final)

    def _metrics(self, epoch: Epoch, now_s: float) -> StepRecorded:
        moved_s = epoch.moved_s if epoch.moved_s is not None else epoch.activated_s
        prepared_s = epoch.prepared_s if epoch.prepared_s is not None else moved_s
        num_bytes = epoch.weights.num_bytes
        return StepRecorded(
            source="publisher",
            step=epoch.weights.version,
            metrics={
                "perf/update_weights_time": now_s - epoch.since_s,
                "perf/update_weights_prepare_time": prepared_s - epoch.since_s,
                "perf/update_weights_move_time": moved_s - prepared_s,
                "perf/update_weights_activate_time": now_s - epoch.activated_s,
                "perf/update_weights_hold_time": epoch.activated_s - moved_s,
                "perf/update_weights_pause_time": max(
                    (self.lanes[name].pause_s for name in epoch.members), default=0.0
                ),
                "perf/update_weights_wire_bytes": float(num_bytes * len(epoch.members)),
                "perf/update_weights_skipped": float(self.num_skipped),
            },
        )

    # ---- answers -------------------------------------------------------------------------

    def _answered(self, key: str, message: Message, now_s: float) -> list[Effect]:
        kind = key.partition("/")[0]
        if kind == "canary":
            return self._scored(key, message, now_s)
        lane = self._lane_of(key)
        if lane is None:
            return []
        match message:
            case EpochConfirmed() if lane.phase is Phase.ACTIVATING:
                return self._confirmed(lane, message, now_s)
            case EpochAnswer(ok=True) if lane.phase is not Phase.ACTIVATING:
                lane.answered()
                self._note_prepared(now_s)
                return []
            case EpochAnswer():
                return self._lane_failed(lane, f"{lane.engine}: {message.reason}", now_s)
            case _:
                reason = f"{lane.engine} answered {type(message).__name__} while {lane.phase}"
                return self._lane_failed(lane, reason, now_s)

    def _note_prepared(self, now_s: float) -> None:
        epoch = self.epoch
        if epoch is None or epoch.prepared_s is not None:
            return
        if all(self.lanes[name].phase is not Phase.PREPARING for name in epoch.members):
            epoch.prepared_s = now_s

    def _lane_of(self, key: str) -> Lane | None:
        kind, _, rest = key.partition("/")
        lane = self.lanes.get(rest.partition("/")[0]) if kind == "lane" else None
        return lane if lane is not None and lane.key() == key else None

    def _unanswered(self, key: str, reason: str, now_s: float) -> list[Effect]:
        kind, _, rest = key.partition("/")
        if kind == "canary":
            lane = self.lanes[rest.partition("/")[0]]
        elif (found := self._lane_of(key)) is not None:
            lane = found
        else:
            return []
        return self._engine_silent(lane, reason, now_s)

    def _woken(self, key: str, now_s: float) -> list[Effect]:
        kind, _, rest = key.partition("/")
        match kind:
            case "hold":
                if self.holds.expire(rest, now_s):
                    text = f"the hold of {rest} on the served version ran out and was taken"
                    event = EventReported(source="publisher", kind="hold_expired", text=text)
                    return [Tell("supervisor", event)]
            case "deadline":
                return self._deadline(int(rest), now_s)
            case "again":
                lane = self.lanes[rest]
                if lane.phase is Phase.GONE:
                    return self._engine_ready(rest, now_s)
        return []

    # ---- failures ------------------------------------------------------------------------

    def _deadline(self, version: int, now_s: float) -> list[Effect]:
        epoch = self.epoch
        if epoch is None or epoch.weights.version != version or epoch.is_activating:
            return []
        if self._is_held_up():
            return []  # the hold has a lease of its own
        have = f"{len(epoch.weights.buckets)} of {epoch.weights.ready.num_buckets} buckets came"
        where = ", ".join(str(lane) for lane in self.lanes.values())
        limit_s = self.settings.epoch_deadline_s
        reason = f"version {version} did not reach every engine in {limit_s} s: {have}; {where}"
        return self._fail_epoch(reason, now_s)

    def _lane_failed(self, lane: Lane, reason: str, now_s: float) -> list[Effect]:
        """An engine refused a step."""
        if self.epoch is not None and lane.engine in self.epoch.members:
            return self._fail_epoch(reason, now_s)
        return self._engine_silent(lane, reason, now_s)

    def _fail_epoch(self, reason: str, now_s: float) -> list[Effect]:
        """ABORT: the old version goes on serving, on every engine (PU-4)."""
        assert self.epoch is not None
        weights = self.epoch.weights
        weights.num_failures += 1
        self.num_failed += 1
        text = f"epoch of version {weights.version} failed (try {weights.num_failures}): {reason}"
        event = EventReported(source="publisher", kind="epoch_failed", text=text)
        effects: list[Effect] = [Tell("supervisor", event), *self._abort(reason)]
        if weights.num_failures < TRIES_MAX and weights.is_complete:
            self.arriving.setdefault(weights.version, weights)
            self._not_before_s = now_s + AGAIN_S
            return [*effects, Wake("begin", self._not_before_s)]
        if self.serving is None:
            return [*effects, Fail(f"no engine could be brought to a first version; {text}")]
        return [*effects, self._failed_word(weights.version, reason)]

    def _abort(self, reason: str) -> list[Effect]:
        """End the epoch; engines that switched already are brought back."""
        assert self.epoch is not None
        epoch, self.epoch = self.epoch, None
        version = epoch.weights.version
        effects: list[Effect] = []
        for name in sorted(epoch.members):
            lane = self.lanes[name]
            switched = lane.phase is Phase.ACTIVATING or lane.confirmed == version
            lane.stop(Phase.IDLE)
            if switched:
                lane.confirmed = None
                effects += self._reconcile(lane)
            else:
                abort = AbortEpoch(version=version, reason=reason)
                effects.append(Ask(name, abort, f"abort/{name}/{version}"))
        return effects

    def _failed_word(self, version: int, reason: str) -> Effect:
        serving = self.serving.version if self.serving else 0
        failed = VersionFailed(version=version, serving=serving, reason=reason)
        return Tell(self.settings.leader, failed)

    # ---- engines come and go -------------------------------------------------------------

    def _reconcile(self, lane: Lane) -> list[Effect]:
        """Bring an engine that is not in the epoch to the published version."""
        if self.serving is None or lane.phase is not Phase.IDLE:
            return []
        if self.epoch is not None and lane.engine in self.epoch.members:
            return []
        if lane.confirmed != self.serving.version:
            return [lane.begin(self.serving)]
        if self.epoch is not None and not self.epoch.is_activating:
            self.epoch.members.add(lane.engine)
            return [lane.begin(self.epoch.weights)]
        return []

    def _engine_ready(self, engine: str, now_s: float) -> list[Effect]:
        """An engine (re)started with nothing: first the published version, then the epoch's."""
        lane = self.lanes.get(engine)
        if lane is None:
            known = ", ".join(self.lanes)
            raise ValueError(f"engine {engine!r} is not in the topology, known are {known}")
        effects = self._leave_epoch(lane, now_s)
        lane.stop(Phase.IDLE)
        lane.confirmed = None
        if self.serving is not None:
            return effects + self._reconcile(lane)
        if self.epoch is not None and not self.epoch.is_activating:
            self.epoch.members.add(engine)
            effects.append(lane.begin(self.epoch.weights))
        return effects

    def _peer_restarted(self, actor: str) -> list[Effect]:
        self.holds.release(actor)
        if actor in self.lanes:
            return []  # it says EngineReady when it can take weights
        if actor in self.settings.listeners and self.serving is not None:
            return [Tell(actor, self._published_word())]
        return []

    def _engine_silent(self, lane: Lane, reason: str, now_s: float) -> list[Effect]:
        """The engine is dead or stuck: the epoch goes on without it, and it is tried again."""
        lane.num_failures += 1
        if lane.num_failures > TRIES_MAX:
            tries = lane.num_failures
            return [Fail(f"{lane.engine} took no version in {tries} tries, the last: {reason}")]
        effects = self._leave_epoch(lane, now_s)
        lane.stop(Phase.GONE)
        text = f"{lane.engine} left: {reason}"
        event = EventReported(source="publisher", kind="engine_silent", text=text)
        wake = Wake(f"again/{lane.engine}", now_s + AGAIN_S * 2**lane.num_failures)
        return [*effects, Tell("supervisor", event), wake]

    def _leave_epoch(self, lane: Lane, now_s: float) -> list[Effect]:
        epoch = self.epoch
        if epoch is None or lane.engine not in epoch.members:
            return []
        epoch.members.discard(lane.engine)
        epoch.unproven.discard(lane.engine)
        if epoch.is_activating and not epoch.members:
            return self._fail_epoch("every engine left while it was activated", now_s)
        return self._publish(now_s) if self._is_proven() else []

    # ---- what others see -----------------------------------------------------------------

    def validate(self) -> None:
        """Assert PU-1 and PU-2 as far as one process sees them."""
        assert len(self.arriving) <= 2, sorted(self.arriving)
        if self.epoch is None:
            return
        if self.serving is not None:
            assert self.epoch.weights.version > self.serving.version, "PU-2 (no regress)"
        for name in self.epoch.members:
            lane = self.lanes[name]
            assert lane.phase is not Phase.GONE, lane
            if lane.target is not None:
                assert lane.target is self.epoch.weights, lane

    def statistics(self) -> dict[str, object]:
        """Versions and counts."""
        return {
            "serving": self.serving.version if self.serving else None,
            "epoch": self.epoch.weights.version if self.epoch else None,
            "arriving": sorted(self.arriving),
            "lanes": {lane.engine: str(lane.phase) for lane in self.lanes.values()},
            "published": self.num_published,
            "skipped": self.num_skipped,
            "failed": self.num_failed,
            "held_by": str(self.holds),
        }

    def working_on(self) -> str:
        """What the epoch waits for, in names."""
        epoch = self.epoch
        if epoch is None:
            said = f"version {self.serving.version}" if self.serving else "nothing yet"
            return f"serves {said}, waits for the trainer"
        version = epoch.weights.version
        if self._is_held_up():
            return f"version {version} waits since {epoch.moved_s:.1f} for {self.holds}"
        lanes = ", ".join(str(self.lanes[name]) for name in sorted(epoch.members))
        return f"epoch of version {version} since {epoch.since_s:.1f}: {lanes or 'no engine'}"
