"""What follows when an engine refuses, is silent, dies, or an epoch takes too long."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.actors.effects import Effect, Fail, Tell, Wake
from milepost.actors.publisher.epochs import Epochs
from milepost.actors.publisher.lanes import Lane, Phase
from milepost.actors.publisher.proofs import Proofs
from milepost.messages.supervisor import EventReported

TRIES_MAX = 3
AGAIN_S = 1.0


@dataclass(slots=True)
class Failures:
    """Takes epochs back and engines out; see the module."""

    epochs: Epochs
    proofs: Proofs
    num_failed: int = 0

    def lane_failed(self, lane: Lane, reason: str, now_s: float) -> list[Effect]:
        """An engine refused a step: the epoch fails for all, or the engine is tried again."""
        epoch = self.epochs.epoch
        if epoch is not None and lane.engine in epoch.members:
            lane.stop(Phase.IDLE)
            return self.fail_epoch(reason, now_s)
        if lane.target is not self.epochs.serving:
            # The refusal of a version that was given up meanwhile: it serves what it served.
            lane.stop(Phase.IDLE)
            return self.epochs.reconcile(lane)
        return self.engine_silent(lane, reason, now_s)

    def handle_refused(self, lane: Lane, reason: str) -> list[Effect]:
        """The engine cannot read the trainer's memory after all: it begins again, with bytes."""
        assert lane.target is not None
        lane.takes_bytes = True
        said = f"{lane.engine} gets bytes from now on, it refused a handle: {reason}"
        return [_event("cuda_ipc", said), self.epochs.start(lane, lane.target)]

    def no_bytes(self, version: int, reason: str, now_s: float) -> list[Effect]:
        """The trainer does not give the bytes of a version that engines wait for."""
        effects: list[Effect] = []
        for weights in (*self.epochs.on_the_way(), self.epochs.serving):
            if weights is not None and weights.version == version:
                weights.wants_bytes = False
        for lane in self.epochs.lanes.values():
            waits = lane.phase is Phase.MOVING and not lane.is_waiting
            if waits and lane.target is not None and lane.target.version == version:
                effects += self.lane_failed(lane, f"{lane.engine} needs bytes: {reason}", now_s)
        return effects

    def fail_epoch(self, reason: str, now_s: float) -> list[Effect]:
        """ABORT: the old version goes on serving, on every engine (PU-4).

        A version that is whole here is tried again a moment later, `TRIES_MAX` times in all.
        """
        epochs = self.epochs
        assert epochs.epoch is not None
        weights = epochs.epoch.weights
        weights.num_failures += 1
        self.num_failed += 1
        for engine in epochs.epoch.members:
            self.proofs.forget(engine)
        said = f"epoch of version {weights.version} failed (try {weights.num_failures}): {reason}"
        effects = [_event("epoch_failed", said), *epochs.abort(reason)]
        if weights.num_failures < TRIES_MAX and weights.is_complete:
            epochs.arrive(weights)
            epochs.not_before_s = now_s + AGAIN_S
            return [*effects, Wake("begin", epochs.not_before_s)]
        if epochs.serving is None and weights.is_complete:
            return [*effects, Fail(f"no engine could be brought to a first version; {said}")]
        return [*effects, epochs.failed_word(weights.version, reason)]

    def _begin_again(self, now_s: float) -> list[Effect]:
        """Every engine died in the switch: no fault of the version, which waits for the next."""
        epochs = self.epochs
        assert epochs.epoch is not None
        weights = epochs.epoch.weights
        epochs.epoch = None
        epochs.arrive(weights)
        epochs.not_before_s = now_s + AGAIN_S
        said = f"every engine left while version {weights.version} was activated"
        effects = [_event("epoch_failed", said), Wake("begin", epochs.not_before_s)]
        effects += epochs.turns.forget()
        for lane in epochs.lanes.values():
            effects += epochs.reconcile(lane)
        return effects

    def deadline(self, version: int, now_s: float) -> list[Effect]:
        """The time for PREPARE and MOVE is over."""
        epoch = self.epochs.epoch
        if epoch is None or epoch.weights.version != version or epoch.is_activating:
            return []
        if self.epochs.is_held_up():
            return []  # the hold has a lease of its own
        have = f"{len(epoch.weights.buckets)} of {epoch.weights.ready.num_buckets} buckets came"
        where = ", ".join(str(lane) for lane in self.epochs.lanes.values())
        limit_s = self.epochs.settings.epoch_deadline_s
        reason = f"version {version} did not reach every engine in {limit_s} s: {have}; {where}"
        return self.fail_epoch(reason, now_s)

    def engine_silent(self, lane: Lane, reason: str, now_s: float) -> list[Effect]:
        """The engine is dead or stuck: the epoch goes on without it, and it is tried again."""
        said = _event("engine_silent", f"{lane.engine} left: {reason}")
        if not lane.was_heard:
            # A life of ours that has died since may have known that it is being started again.
            return [*self.engine_died(lane.engine, now_s), said]
        lane.num_failures += 1
        if lane.num_failures > TRIES_MAX:
            tries = lane.num_failures
            return [Fail(f"{lane.engine} took no version in {tries} tries, the last: {reason}")]
        effects = self._leave(lane, now_s)
        lane.stop(Phase.GONE)
        wake = Wake(f"again/{lane.engine}", now_s + AGAIN_S * 2**lane.num_failures)
        return [*effects, said, wake]

    def again_due(self, engine: str, now_s: float) -> list[Effect]:
        """Try a silent engine again, unless it spoke up meanwhile."""
        lane = self.epochs.lanes[engine]
        if lane.phase is not Phase.GONE:
            return []
        return self.engine_ready(engine, now_s) if lane.was_heard else [self._ask_for_word(lane)]

    def engine_ready(self, engine: str, now_s: float) -> list[Effect]:
        """An engine (re)started with nothing: first the published version, then the epoch's."""
        lane = self.epochs.lanes.get(engine)
        if lane is None:
            known = ", ".join(self.epochs.lanes)
            raise ValueError(f"engine {engine!r} is not in the topology, known are {known}")
        effects = self._leave(lane, now_s)
        lane.stop(Phase.IDLE)
        lane.confirmed = None
        lane.was_heard = True
        return effects + self.epochs.reconcile(lane)

    def engine_died(self, engine: str, now_s: float) -> list[Effect]:
        """The supervisor replaces the engine, which speaks up when it is ready.

        It may have done so already, to a life of this publisher that has died since: such old news
        says nothing of the engine that lives. So it is asked to forget whatever was begun; the bus
        keeps the question for the next life, and any answer is its word. How long that life may
        take to begin is the supervisor's to judge: here it is waited for, and counts for nothing.
        """
        lane = self.epochs.lanes[engine]
        return [*self._leave(lane, now_s), self._ask_for_word(lane)]

    def no_word(self, lane: Lane, now_s: float) -> list[Effect]:
        """An engine that died is still not back: it is asked once more."""
        return [Wake(f"again/{lane.engine}", now_s + AGAIN_S)]

    def _ask_for_word(self, lane: Lane) -> Effect:
        return lane.ask_for_word(self.epochs.settings.epoch_deadline_s)

    def _leave(self, lane: Lane, now_s: float) -> list[Effect]:
        self.proofs.forget(lane.engine)
        epoch = self.epochs.epoch
        if epoch is None or lane.engine not in epoch.members:
            return []
        epoch.members.discard(lane.engine)
        epoch.unproven.discard(lane.engine)
        if epoch.is_activating and not epoch.members:
            return self._begin_again(now_s)
        return self.epochs.conclude(now_s)


def _event(kind: str, said: str) -> Effect:
    return Tell("supervisor", EventReported(source="publisher", kind=kind, text=said))
