"""Evidence that an engine which confirmed a version serves it: asked for after every activation.

A confirmation says what an engine believes. Here it has to show it, step by step:

    COLD     log-probs of the probe rows without the prefix cache equal the trainer's;
    WARM     the same with the cache, which must not hold anything of an older version;
    AGAIN    the same once more, now that the cache holds these very rows;
    DIGESTS  tensors read back from the weights that serve have the trainer's digests: all of them
             after the first update under `check_weight_update_equal`, else a few, others each time.

The first two are asked at once, and so share a forward pass; the second is judged after the first.
Whatever differs fails the version on every engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from milepost.actors.effects import Ask, Effect, Wake
from milepost.actors.publisher.canary import largest_difference
from milepost.actors.publisher.lanes import Weights
from milepost.actors.publisher.settings import PublisherSettings
from milepost.messages.engine import (
    DigestTensors,
    GenerateRefused,
    Score,
    Scored,
    TensorDigests,
)
from milepost.messages.publisher import VersionReady
from milepost.messages.shared import Message

AGAIN_S = 0.05
DIGESTED_SHARE = 100
"""One tensor in so many is read back after a publication; all have had their turn after as many."""


class Step(IntEnum):
    """What the engine is asked for now; see the module."""

    COLD = 0
    WARM = 1
    AGAIN = 2
    DIGESTS = 3
    DONE = 4


@dataclass(slots=True)
class Proof:
    """One engine on its way to be believed."""

    engine: str
    weights: Weights
    step: Step
    since_s: float
    compare_all: bool
    names: tuple[str, ...] = ()
    difference: float | None = None
    """Largest difference to the trainer so far, in nats; None before the first score."""
    warm: Message | None = None
    """The answer to WARM, while that to COLD is not there."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one answer.

    Attributes:
        effects: what is asked next.
        proof: set when it is over.
        reason: why the engine is not believed; empty when it is.
    """

    effects: tuple[Effect, ...] = ()
    proof: Proof | None = None
    reason: str = ""


@dataclass(slots=True)
class Proofs:
    """See the module. At most one proof for each engine is under way."""

    settings: PublisherSettings
    _open: dict[str, Proof] = field(default_factory=dict)
    _num_begun: int = 0
    _keys: dict[str, dict[str, Step]] = field(default_factory=dict)
    """Engine -> its open questions by key."""

    def begin(self, engine: str, weights: Weights, now_s: float, *, compare_all: bool) -> Verdict:
        """The engine confirmed the version; a proof that was under way is forgotten."""
        self._num_begun += 1
        proof = Proof(engine, weights, Step.COLD, now_s, compare_all)
        self._open[engine] = proof
        if not (self.settings.canary and weights.ready.probe_rows):
            proof.step = Step.DIGESTS
        return self._ask(proof)

    def forget(self, engine: str) -> None:
        """The engine left, or its version was given up: late answers mean nothing."""
        self._open.pop(engine, None)
        self._keys.pop(engine, None)

    def engine_of(self, key: str) -> str:
        """Whose open question has this key; empty when nobody's."""
        engine = key.split("/")[1] if key.startswith("canary/") else ""
        return engine if key in self._keys.get(engine, {}) else ""

    def again(self, key: str) -> list[Effect]:
        """An engine that was busy is asked again."""
        engine = self.engine_of(key)
        if not engine:
            return []
        return [Ask(engine, self._question(self._open[engine], self._keys[engine][key]), key)]

    def answered(self, key: str, message: Message, now_s: float) -> Verdict:
        """Judge an answer."""
        engine = self.engine_of(key)
        if not engine:
            return Verdict()
        proof = self._open[engine]
        in_time = now_s < proof.since_s + self.settings.epoch_deadline_s
        if isinstance(message, GenerateRefused) and message.retry and in_time:
            return Verdict((Wake(key, now_s + AGAIN_S),))
        step = self._keys[engine].pop(key)
        if step is Step.WARM and self._keys[engine]:
            proof.warm = message
            return Verdict()
        reason = self._fault(proof, step, message)
        if step is Step.COLD and not reason and proof.warm is not None:
            reason = self._fault(proof, Step.WARM, proof.warm)
        if reason:
            self.forget(engine)
            return Verdict(
                proof=proof, reason=f"{engine} under version {self._version(proof)}: {reason}"
            )
        if self._keys[engine]:
            return Verdict()
        proof.step = Step(max(step, Step.WARM) + 1)
        return self._ask(proof)

    # ---- asking --------------------------------------------------------------------------

    def _ask(self, proof: Proof) -> Verdict:
        if proof.step is Step.DIGESTS:
            proof.names = self._names(proof)
            if not proof.names:
                proof.step = Step.DONE
        if proof.step is Step.DONE:
            self.forget(proof.engine)
            return Verdict(proof=proof)
        steps = (Step.COLD, Step.WARM) if proof.step is Step.COLD else (proof.step,)
        place = f"canary/{proof.engine}/{self._version(proof)}/{self._num_begun}"
        keys = self._keys[proof.engine] = {f"{place}/{step.name}": step for step in steps}
        asks = (Ask(proof.engine, self._question(proof, keys[key]), key) for key in keys)
        return Verdict(tuple(asks))

    def _question(self, proof: Proof, step: Step) -> Message:
        if step is Step.DIGESTS:
            return DigestTensors(names=proof.names)
        rows = proof.weights.ready.probe_rows
        return Score(rows=rows, use_cache=step is not Step.COLD)

    def _names(self, proof: Proof) -> tuple[str, ...]:
        ready = proof.weights.ready
        if not ready.tensor_digests or not self.settings.reads_tensors:
            return ()
        names = [spec.name for spec in ready.tensors]
        if proof.compare_all:
            return tuple(names)
        if not self.settings.canary:
            return ()
        return tuple(names[self._version(proof) % DIGESTED_SHARE :: DIGESTED_SHARE]) or (
            names[self._version(proof) % len(names)],
        )

    # ---- judging -------------------------------------------------------------------------

    def _fault(self, proof: Proof, step: Step, message: Message) -> str:
        if step is Step.DIGESTS:
            return self._digests_fault(proof, message)
        return self._scores_fault(proof, step, message)

    def _scores_fault(self, proof: Proof, step: Step, message: Message) -> str:
        version = self._version(proof)
        if not isinstance(message, Scored) or message.version != version:
            return f"it confirmed the version and answered the canary {message}"
        difference = largest_difference(proof.weights.ready.probe_logprobs, message.logprobs)
        proof.difference = max(proof.difference or 0.0, difference)
        limit = self.settings.canary_difference_max
        if difference <= limit:
            return ""
        where = {
            Step.COLD: "",
            Step.WARM: " with the prefix cache, though not without it: keys and values of an older"
            " version are in use",
            Step.AGAIN: " with the prefix cache of this version, though not without it",
        }[step]
        return (
            f"log-probs of the probe differ from the trainer's by {difference:.2e} nats{where}, "
            f"the limit is {limit:.2e}"
        )

    def _digests_fault(self, proof: Proof, message: Message) -> str:
        version = self._version(proof)
        if not isinstance(message, TensorDigests) or message.version != version:
            return f"it confirmed the version and answered for its tensors {message}"
        ready = proof.weights.ready
        specs = zip(ready.tensors, ready.tensor_digests, strict=True)
        wanted = {spec.name: digest for spec, digest in specs}
        if len(message.digests) != len(proof.names):
            return f"{len(message.digests)} digests for {len(proof.names)} tensors"
        found = zip(proof.names, message.digests, strict=True)
        differing = [name for name, digest in found if digest != wanted[name]]
        if not differing:
            return ""
        some = ", ".join(differing[:3])
        return f"{len(differing)} of {len(proof.names)} tensors have other bytes: {some}"

    @staticmethod
    def _version(proof: Proof) -> int:
        return proof.weights.version


def unmoved(ready: VersionReady, serving: Weights | None) -> str:
    """Why a version cannot be what was trained: it has the bytes of the one before; or empty."""
    if serving is None or not ready.trained or ready.version <= serving.version:
        return ""
    if ready.digest != serving.ready.digest:
        return ""
    return (
        f"version {ready.version} was trained with a gradient and a learning rate, and has the "
        f"very bytes of version {serving.version} ({serving.ready.digest})"
    )
