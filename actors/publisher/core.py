"""The publisher: weight epochs as transactions over all engines.

PREPARE and MOVE run beside generation; when every engine has everything, ACTIVATE switches each of
them, the canary asks each for evidence, and only then is the version published. Whatever fails
before, the engines go on with the last published version (or are brought back to it).

Owns: versions on their way, the buckets of the published one, holds on it.
Receives: versions and buckets from the trainer, holds from the evaluator, engines that (re)start,
    the row of the turn that it asked a session for.
Sends: epoch orders to engines, now and then a turn to a session, the published version to everyone
    who counts versions.
Invariants:
    PU-1 (one version): a version is published only after every living engine confirmed it whole and
        the canary agreed; where a turn through a session is due, after that one, too.
    PU-2 (no regress): published versions only grow.
    PU-3 (hold): no new version is activated while the published one is held.
    PU-4 (back): after a failed epoch every engine serves the published version.
Starts: at once; the first version makes the engines serve.
Dies: when an engine cannot be brought to a version in several tries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
from milepost.actors.publisher.epochs import Epochs
from milepost.actors.publisher.failures import Failures
from milepost.actors.publisher.holds import Holds
from milepost.actors.publisher.lanes import Lane, Phase, Weights
from milepost.actors.publisher.listeners import Listeners
from milepost.actors.publisher.movers import BYTES, mover_of
from milepost.actors.publisher.proofs import Proofs, Verdict, unmoved
from milepost.actors.publisher.works import VersionWritten
from milepost.messages.buffer import TrajectoryFinished
from milepost.messages.engine import EpochAnswer, EpochConfirmed
from milepost.messages.publisher import (
    BucketReady,
    EngineReady,
    HoldVersion,
    ReleaseVersion,
    VersionReady,
)
from milepost.messages.supervisor import Drain, Drained, EventReported, PeerRestarted
from milepost.messages.trainer import VersionSent

if TYPE_CHECKING:
    from milepost.actors.publisher.settings import PublisherSettings
    from milepost.actors.publisher.turns import TurnVerdict
    from milepost.messages.shared import Message
    from milepost.messages.trajectory import Trajectory


@dataclass(slots=True)
class Publisher:
    """See the module."""

    settings: PublisherSettings
    holds: Holds
    epochs: Epochs
    failures: Failures
    proofs: Proofs
    listeners: Listeners = field(default_factory=Listeners)
    _draining: Request | None = None

    @classmethod
    def of(cls, settings: PublisherSettings) -> Publisher:
        """A publisher that has nothing yet; every engine of the topology has a lane."""
        holds = Holds()
        lanes = {engine: Lane(engine) for engine in settings.engines}
        epochs = Epochs(settings, lanes, holds, mover_of(settings))
        proofs = Proofs(settings)
        return cls(settings, holds, epochs, Failures(epochs, proofs), proofs)

    def start(self, now_s: float) -> list[Effect]:
        """The trainer speaks first."""
        del now_s
        return []

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """The one door."""
        effects = self._decide(event, now_s)
        effects += self.epochs.go_on(now_s)
        serving = self.epochs.serving
        if serving is not None and self.epochs.serves_everywhere:
            effects += self.holds.grant(serving.version, now_s)
        return [*effects, *self.epochs.keep_word(), *self._reply_drained()]

    def _decide(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Received(source, message, request):
                return self._received(source, message, request, now_s)
            case Answered(key, _, message) if self.epochs.turns.owns(key):
                return self._turned(self.epochs.turns.answered(key, message, now_s), now_s)
            case Answered(key, _, message):
                return self._answered(key, message, now_s)
            case Unanswered(key, _, reason) if self.epochs.turns.owns(key):
                return self._turned(self.epochs.turns.unanswered(key, reason, now_s), now_s)
            case Unanswered(key) if self.epochs.untold.owns(key):
                return self.epochs.untold.missed(key, now_s)
            case Unanswered(key, _, reason) if key.startswith(BYTES):
                version = int(key.removeprefix(BYTES))
                return self.failures.no_bytes(version, reason, now_s)
            case Unanswered(_, to) if to in self.settings.listeners:
                return self.listeners.missed(to, now_s) if self.epochs.serving else []
            case Unanswered(key, _, reason):
                return self._unanswered(key, reason, now_s)
            case Woken(key):
                return self._woken(key, now_s)
            case Taken(key) if self.epochs.untold.owns(key):
                self.epochs.untold.taken(key)
                return []
            case Taken(key):
                self.listeners.taken(key.partition("/")[2])
                return []
            case WorkDone(key, result, error):
                return self._work_done(key, result, error, now_s)

    def _received(
        self, source: str, message: Message, request: Request | None, now_s: float
    ) -> list[Effect]:
        match message:
            case VersionReady():
                return self._version_ready(message, now_s)
            case BucketReady():
                self.epochs.bucket_ready(message)
            case HoldVersion():
                assert request is not None
                self.holds.asked(message, request)
            case ReleaseVersion():
                self.holds.release(message.holder)
            case TrajectoryFinished(trajectory=row):
                return self._turned(self._delivered(row, now_s), now_s)
            case EngineReady():
                return self.failures.engine_ready(message.engine, now_s)
            case PeerRestarted():
                return self._peer_restarted(message.actor, now_s)
            case Drain():
                assert request is not None
                self._draining = request
            case _:
                raise TypeError(f"publisher was told {type(message).__name__} by {source}")
        return []

    def _version_ready(self, message: VersionReady, now_s: float) -> list[Effect]:
        if reason := unmoved(message, self.epochs.serving):
            event = EventReported(source="publisher", kind="canary", text=reason)
            return [Tell("supervisor", event), self.epochs.failed_word(message.version, reason)]
        return self.epochs.version_ready(message, now_s)

    def _peer_restarted(self, actor: str, now_s: float) -> list[Effect]:
        # A hold stays: the next life of its holder takes it over, or lets it go. The news may come
        # after that life has asked already.
        if actor in self.epochs.lanes:
            return self.failures.engine_died(actor, now_s)
        effects: list[Effect] = []
        if actor in self.settings.sessions:
            effects = self._turned(self.epochs.turns.restarted(actor, now_s), now_s)
        if actor in self.settings.listeners and self.epochs.serving is not None:
            effects.append(Tell(actor, self.epochs.published_word()))
        return effects

    def _woken(self, key: str, now_s: float) -> list[Effect]:
        kind, _, rest = key.partition("/")
        match kind:
            case "hold" if self.holds.expire(rest, now_s):
                said = f"the hold of {rest} on the served version ran out and was taken"
                event = EventReported(source="publisher", kind="hold_expired", text=said)
                return [Tell("supervisor", event)]
            case "deadline":
                return self.failures.deadline(int(rest), now_s)
            case "listener":
                return self.listeners.due(rest, self.epochs.published_word())
            case "failed":
                return self.epochs.untold.due(key)
            case "again":
                return self.failures.again_due(rest, now_s)
            case "canary":
                return self.proofs.again(key)
            case "turn":
                return self._turned(self.epochs.turns.woken(key, now_s), now_s)
        return []

    # ---- answers of engines --------------------------------------------------------------

    def _answered(self, key: str, message: Message, now_s: float) -> list[Effect]:
        if key.startswith("canary/"):
            return self._judged(self.proofs.answered(key, message, now_s), now_s)
        if isinstance(message, VersionSent):
            return self._sent(key, message, now_s)
        lane = self._lane_of(key)
        if lane is None:
            return []  # the answer to a question that nobody asks any more
        lane.was_heard = True
        if lane.phase is Phase.GONE:
            return self.failures.engine_ready(lane.engine, now_s)
        match message:
            case EpochConfirmed() if lane.phase is Phase.ACTIVATING:
                return self._confirmed(lane, message, now_s)
            case EpochAnswer(ok=True) if lane.phase is not Phase.ACTIVATING:
                self.epochs.step_done(lane, message.device, now_s)
                return []
            case EpochAnswer(ok=False) if lane.phase is Phase.MOVING and lane.by_handle:
                return self.failures.handle_refused(lane, message.reason)
            case EpochAnswer(ok=False):
                reason = f"{lane.engine} refused while {lane.phase}: {message.reason}"
                return self.failures.lane_failed(lane, reason, now_s)
            case _:
                reason = f"{lane.engine} answered {type(message).__name__} while {lane.phase}"
                return self.failures.lane_failed(lane, reason, now_s)

    def _confirmed(self, lane: Lane, message: EpochConfirmed, now_s: float) -> list[Effect]:
        assert lane.target is not None
        ready = lane.target.ready
        if (message.version, message.digest) != (ready.version, ready.digest):
            reason = (
                f"{lane.engine} confirmed version {message.version} ({message.digest}), "
                f"asked for was {ready.version} ({ready.digest})"
            )
            return self.failures.lane_failed(lane, reason, now_s)
        weights = lane.target
        lane.confirm()
        epoch = self.epochs.epoch
        if epoch is None or lane.engine not in epoch.members:
            if weights is not self.epochs.serving:
                return self.epochs.reconcile(lane)  # a version that was given up meanwhile
        else:
            epoch.pause_s = max(epoch.pause_s, message.pause_s)
        return self._proof_begins(lane, weights, now_s)

    def _proof_begins(self, lane: Lane, weights: Weights, now_s: float) -> list[Effect]:
        compare_all = self.settings.check_weight_update_equal and not lane.was_compared
        verdict = self.proofs.begin(lane.engine, weights, now_s, compare_all=compare_all)
        return self._judged(verdict, now_s)

    def _judged(self, verdict: Verdict, now_s: float) -> list[Effect]:
        """What follows from an answer to the canary."""
        proof = verdict.proof
        if proof is None:
            return list(verdict.effects)
        lane, epoch = self.epochs.lanes[proof.engine], self.epochs.epoch
        is_member = epoch is not None and proof.weights is epoch.weights
        if not is_member and proof.weights is not self.epochs.serving:
            return self.epochs.reconcile(lane)  # a version that was given up meanwhile
        if not is_member and lane.phase is not Phase.IDLE:
            return []  # it is on its way to another version, and will have to prove that one
        if epoch is not None and is_member and proof.difference is not None:
            epoch.difference = max(epoch.difference or 0.0, proof.difference)
        if verdict.reason:
            event = EventReported(source="publisher", kind="canary", text=verdict.reason)
            if is_member:
                failed = self.failures.fail_epoch(verdict.reason, now_s)
            else:
                failed = self.failures.engine_silent(lane, verdict.reason, now_s)
            return [Tell("supervisor", event), *failed]
        lane.was_compared = lane.was_compared or proof.compare_all
        return self.epochs.proven(proof.engine, now_s) if is_member else self.epochs.reconcile(lane)

    # ---- a turn through a session --------------------------------------------------------

    def _delivered(self, row: Trajectory, now_s: float) -> TurnVerdict:
        epoch, lanes = self.epochs.epoch, self.epochs.lanes.values()
        version = epoch.weights.version if epoch else None
        confirmed = {lane.engine for lane in lanes if lane.confirmed == version}
        return self.epochs.turns.delivered(row, now_s, confirmed=confirmed)

    def _turned(self, verdict: TurnVerdict, now_s: float) -> list[Effect]:
        """What follows from a session's answer to the canary."""
        effects, epoch = list(verdict.effects), self.epochs.epoch
        if verdict.weights is None:
            return effects
        assert epoch is not None, "a turn is forgotten with its epoch"
        assert epoch.weights is verdict.weights, (epoch.weights.version, verdict.weights.version)
        if verdict.reason:
            event = EventReported(source="publisher", kind="canary", text=verdict.reason)
            failed = self.failures.fail_epoch(verdict.reason, now_s)
            return [*effects, Tell("supervisor", event), *failed]
        if verdict.missed:
            said = f"no session showed version {epoch.weights.version} in time: {verdict.missed}"
            event = EventReported(source="publisher", kind="canary_missed", text=said)
            effects.append(Tell("supervisor", event))
        epoch.turn = verdict
        return effects + self.epochs.conclude(now_s)

    def _lane_of(self, key: str) -> Lane | None:
        kind, _, rest = key.partition("/")
        lane = self.epochs.lanes.get(rest.partition("/")[0]) if kind == "lane" else None
        return lane if lane is not None and lane.key() == key else None

    def _unanswered(self, key: str, reason: str, now_s: float) -> list[Effect]:
        lane = self._lane_of(key)
        if engine := self.proofs.engine_of(key):
            lane = self.epochs.lanes[engine]
        if lane is None:
            return []
        if lane.phase is Phase.GONE:
            return self.failures.no_word(lane, now_s)
        return self.failures.engine_silent(lane, reason, now_s)

    # ---- what transports do on the way ---------------------------------------------------

    def _work_done(self, key: str, result: object, error: str, now_s: float) -> list[Effect]:
        if key.startswith("confirm/"):
            if error:
                return [Fail(f"the confirmed version cannot be kept on the disk: {error}")]
            return []
        for weights in self.epochs.on_the_way():
            if weights.writing != key:
                continue
            if isinstance(result, VersionWritten):
                weights.was_written(result)
                return []
            weights.writing = ""
            return self._given_up(weights, f"it cannot be written: {error}", now_s)
        return []  # of a version that a newer one has replaced

    def _sent(self, key: str, message: VersionSent, now_s: float) -> list[Effect]:
        """The sender is through; engines say by themselves what came of it."""
        if message.ok:
            return []
        if key.startswith(BYTES):
            return self.failures.no_bytes(message.version, message.reason, now_s)
        for weights in self.epochs.on_the_way():
            # What came of a meeting before it says nothing of the one that goes on.
            if weights.version == message.version and weights.meeting == key:
                return self._given_up(weights, f"it cannot be sent: {message.reason}", now_s)
        return []

    def _given_up(self, weights: Weights, reason: str, now_s: float) -> list[Effect]:
        epoch = self.epochs.epoch
        if epoch is None or epoch.weights is not weights or epoch.is_activating:
            return []
        return self.failures.fail_epoch(reason, now_s)

    # ---- draining, and what others see ---------------------------------------------------

    def _reply_drained(self) -> list[Effect]:
        epoch = self.epochs.epoch
        if self._draining is None or (epoch is not None and epoch.is_activating):
            return []
        request, self._draining = self._draining, None
        return [Reply(request, Drained(actor="publisher"))]

    def validate(self) -> None:
        """Assert the invariants as far as one process sees them."""
        self.epochs.validate()

    def statistics(self) -> dict[str, object]:
        """Versions and counts."""
        epochs = self.epochs
        return {
            "serving": epochs.serving.version if epochs.serving else None,
            "epoch": epochs.epoch.weights.version if epochs.epoch else None,
            "arriving": sorted(epochs.arriving),
            "lanes": {lane.engine: str(lane.phase) for lane in epochs.lanes.values()},
            "published": epochs.num_published,
            "skipped": epochs.num_skipped,
            "failed": self.failures.num_failed,
            "held_by": str(self.holds),
        }

    def working_on(self) -> str:
        """What the epoch waits for, in names."""
        epochs = self.epochs
        if epochs.epoch is None:
            said = f"version {epochs.serving.version}" if epochs.serving else "nothing yet"
            return f"serves {said}, waits for the trainer"
        version = epochs.epoch.weights.version
        if epochs.is_held_up():
            return f"version {version} waits since {epochs.epoch.moved_s:.1f} for {self.holds}"
        lanes = ", ".join(str(epochs.lanes[name]) for name in sorted(epochs.epoch.members))
        return (
            f"epoch of version {version} since {epochs.epoch.since_s:.1f}: {lanes or 'no engine'}"
        )
