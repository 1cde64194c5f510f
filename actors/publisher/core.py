"""The publisher: weight epochs as transactions over all engines.

PREPARE and MOVE run beside generation; when every engine has everything, ACTIVATE switches each of
them, the canary asks each for evidence, and only then is the version published. Whatever fails
before, the engines go on with the last published version (or are brought back to it).

Owns: versions on their way, the buckets of the published one, holds on it.
Receives: versions and buckets from the trainer, holds from the evaluator, engines that (re)start.
Sends: epoch orders to engines, the published version to everyone who counts versions.
Invariants:
    PU-1 (one version): a version is published only after every living engine confirmed it whole and
        the canary agreed.
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
    Ask,
    Effect,
    Event,
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
from milepost.actors.publisher.canary import largest_difference
from milepost.actors.publisher.epochs import Epochs
from milepost.actors.publisher.failures import Failures
from milepost.actors.publisher.holds import Holds
from milepost.actors.publisher.lanes import Lane, Phase, Weights
from milepost.actors.publisher.listeners import Listeners
from milepost.messages.engine import EpochAnswer, EpochConfirmed, GenerateRefused, Score, Scored
from milepost.messages.publisher import (
    BucketReady,
    EngineReady,
    HoldVersion,
    ReleaseVersion,
    VersionReady,
)
from milepost.messages.supervisor import Drain, Drained, EventReported, PeerRestarted

if TYPE_CHECKING:
    from milepost.actors.publisher.settings import PublisherSettings
    from milepost.messages.shared import Message

CANARY_AGAIN_S = 0.05


@dataclass(slots=True)
class Publisher:
    """See the module."""

    settings: PublisherSettings
    holds: Holds
    epochs: Epochs
    failures: Failures
    listeners: Listeners = field(default_factory=Listeners)
    _draining: Request | None = None

    @classmethod
    def of(cls, settings: PublisherSettings) -> Publisher:
        """A publisher that has nothing yet; every engine of the topology has a lane."""
        holds = Holds()
        lanes = {engine: Lane(engine) for engine in settings.engines}
        epochs = Epochs(settings, lanes, holds)
        return cls(settings, holds, epochs, Failures(epochs))

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
        return effects + self._reply_drained()

    def _decide(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Received(source, message, request):
                return self._received(source, message, request, now_s)
            case Answered(key, _, message):
                return self._answered(key, message, now_s)
            case Unanswered(_, to) if to in self.settings.listeners:
                return self.listeners.missed(to, now_s) if self.epochs.serving else []
            case Unanswered(key, _, reason):
                return self._unanswered(key, reason, now_s)
            case Woken(key):
                return self._woken(key, now_s)
            case Taken(key):
                self.listeners.taken(key.partition("/")[2])
                return []
            case WorkDone():
                return []

    def _received(
        self, source: str, message: Message, request: Request | None, now_s: float
    ) -> list[Effect]:
        match message:
            case VersionReady():
                return self.epochs.version_ready(message, now_s)
            case BucketReady():
                self.epochs.bucket_ready(message)
            case HoldVersion():
                assert request is not None
                self.holds.asked(message, request)
            case ReleaseVersion():
                self.holds.release(message.holder)
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

    def _peer_restarted(self, actor: str, now_s: float) -> list[Effect]:
        self.holds.release(actor)
        if actor in self.epochs.lanes:
            return self.failures.engine_died(actor, now_s)
        if actor in self.settings.listeners and self.epochs.serving is not None:
            return [Tell(actor, self.epochs.published_word())]
        return []

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
            case "again":
                return self.failures.again_due(rest, now_s)
            case "canary":
                engine, epoch = rest.split("/")[0], self.epochs.epoch
                if epoch is not None and key == self._canary_key(engine, epoch.weights):
                    return [self._ask_canary(engine, epoch.weights)]
        return []

    # ---- answers of engines --------------------------------------------------------------

    def _answered(self, key: str, message: Message, now_s: float) -> list[Effect]:
        if key.startswith("canary/"):
            return self._scored(key, message, now_s)
        lane = self._lane_of(key)
        if lane is None:
            return []  # the answer to a question that nobody asks any more
        match message:
            case EpochConfirmed() if lane.phase is Phase.ACTIVATING:
                return self._confirmed(lane, message, now_s)
            case EpochAnswer(ok=True) if lane.phase is not Phase.ACTIVATING:
                self.epochs.step_done(lane, now_s)
                return []
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
        lane.confirm()
        epoch = self.epochs.epoch
        if epoch is None or lane.engine not in epoch.members:
            return self.epochs.reconcile(lane)
        epoch.pause_s = max(epoch.pause_s, message.pause_s)
        if self.settings.canary and ready.probe_rows:
            return [self._ask_canary(lane.engine, epoch.weights)]
        return self.epochs.proven(lane.engine, now_s)

    def _scored(self, key: str, message: Message, now_s: float) -> list[Effect]:
        epoch, engine = self.epochs.epoch, key.split("/")[1]
        if epoch is None or engine not in epoch.unproven:
            return []
        if key != self._canary_key(engine, epoch.weights):
            return []
        version = epoch.weights.version
        in_time = now_s < epoch.activated_s + self.settings.epoch_deadline_s
        if isinstance(message, GenerateRefused) and message.retry and in_time:
            return [Wake(key, now_s + CANARY_AGAIN_S)]
        if not isinstance(message, Scored) or message.version != version:
            reason = f"{engine} confirmed version {version} and answered the canary {message}"
        else:
            expected = epoch.weights.ready.probe_logprobs
            difference = largest_difference(expected, message.logprobs)
            epoch.difference = max(epoch.difference or 0.0, difference)
            limit = self.settings.canary_difference_max
            if difference <= limit:
                return self.epochs.proven(engine, now_s)
            reason = (
                f"{engine} under version {version}: log-probs of the probe differ from the "
                f"trainer's by {difference:.2e} nats, the limit is {limit:.2e}"
            )
        event = EventReported(source="publisher", kind="canary", text=reason)
        return [Tell("supervisor", event), *self.failures.fail_epoch(reason, now_s)]

    def _ask_canary(self, engine: str, weights: Weights) -> Effect:
        score = Score(rows=weights.ready.probe_rows)
        return Ask(engine, score, self._canary_key(engine, weights))

    @staticmethod
    def _canary_key(engine: str, weights: Weights) -> str:
        return f"canary/{engine}/{weights.version}/{weights.num_failures}"

    def _lane_of(self, key: str) -> Lane | None:
        kind, _, rest = key.partition("/")
        lane = self.epochs.lanes.get(rest.partition("/")[0]) if kind == "lane" else None
        return lane if lane is not None and lane.key() == key else None

    def _unanswered(self, key: str, reason: str, now_s: float) -> list[Effect]:
        lane = self._lane_of(key)
        epoch = self.epochs.epoch
        if key.startswith("canary/") and epoch is not None:
            engine = key.split("/")[1]
            if key == self._canary_key(engine, epoch.weights):
                lane = self.epochs.lanes[engine]
        return self.failures.engine_silent(lane, reason, now_s) if lane else []

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
